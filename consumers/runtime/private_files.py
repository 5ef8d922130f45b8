"""Files and folders with what people said: the user of the process alone may read those that it
makes, whatever the umask says.
"""

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Final

from consumers.runtime.process import OperatorError

FILE_MODE: Final = 0o600
"""Rights of a new file: its owner reads and writes."""
FOLDER_MODE: Final = 0o700
"""Rights of a new folder."""
LOCK_FILE: Final = "lock.sqlite"
"""Name of the file that the process locks that writes a folder."""


def ensure_file(path: Path) -> None:
    """Makes an empty file if there is none; one that is there keeps its rights and its content.

    Raises:
        OSError: It cannot be made, or not be written to.
    """
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, FILE_MODE))


def make_file(path: Path) -> None:
    """Makes an empty file, in the place of one that a killed process left; a link there is not
    followed.

    Raises:
        OSError: It cannot be made.
    """
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE)
    try:
        # Windows has rights of another kind, and a folder of a user is that user's alone
        if hasattr(os, "fchmod"):
            os.fchmod(descriptor, FILE_MODE)  # the umask may have left less
    finally:
        os.close(descriptor)


def write_secret(path: Path, text: str) -> None:
    """Writes a file with a line that its owner alone may read; whoever reads it meanwhile sees the
    whole line or no file.

    Raises:
        OSError: It cannot be made.
    """
    new = path.with_suffix(".new")
    make_file(new)
    new.write_text(f"{text}\n", encoding="utf-8")
    new.replace(path)


def make_folder(folder: Path) -> None:
    """Makes the folder and those above it that are not there; `Path.mkdir` gives those above the
    rights of the umask. A folder that is there keeps its rights.

    Raises:
        OSError: It cannot be made.
    """
    if folder.is_dir():
        return
    if not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(FOLDER_MODE, exist_ok=True)
    folder.chmod(FOLDER_MODE)  # the umask may have left less


NETWORK_KINDS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "fuse.sshfs", "glusterfs", "lustre"}
)
"""File systems that several machines share."""


def network_kind(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """The kind of the network file system that a folder is on; None for another one, and where no
    list of mounts tells: Linux has one.
    """
    if not mounts.exists():
        return None
    kinds = {
        Path(place): kind
        for _, place, kind, *_ in map(str.split, mounts.read_text("utf-8").splitlines())
    }
    kind = next(
        (kinds[place] for place in (folder.resolve(), *folder.resolve().parents) if place in kinds),
        None,
    )
    return kind if kind in NETWORK_KINDS else None


class FolderLockedError(OperatorError):
    """Another process writes the folder."""


def is_locked(folder: Path) -> bool:
    """Whether a process writes the folder now. Nothing is made there.

    Raises:
        sqlite3.Error: It cannot be found out.
    """
    place = folder / LOCK_FILE
    if not place.exists():
        return False
    with contextlib.closing(
        sqlite3.connect(f"{place.resolve().as_uri()}?mode=ro", timeout=0, uri=True)
    ) as looking:
        try:
            looking.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            return True
    return False


def lock_folder(folder: Path) -> sqlite3.Connection:
    """Makes this process the one that writes the folder, until it closes what is returned, or ends.
    SQLite locks files on every system.

    Raises:
        FolderLockedError: Another process writes it.
        OSError, sqlite3.Error: A file cannot be made there.
    """
    place = folder / LOCK_FILE
    ensure_file(place)
    lock = sqlite3.connect(place, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        lock.close()
        if "locked" not in str(error):
            raise
        raise FolderLockedError(f"another process writes {folder}") from error
    return lock
