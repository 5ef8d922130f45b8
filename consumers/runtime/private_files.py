"""Files and folders with what people said: the user of the process alone may read those that it makes, whatever the umask says."""

import os
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o600
"""Rights of a new file: its owner reads and writes."""
FOLDER_MODE: Final = 0o700
"""Rights of a new folder."""


def ensure_file(path: Path) -> None:
    """Makes an empty file if there is none; one that is there keeps its rights and its content.

    Raises:
        OSError: It cannot be made, or not be written to.
    """
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, FILE_MODE))


def make_file(path: Path) -> None:
    """Makes an empty file, in the place of one that a killed process left; a link there is not followed.

    Raises:
        OSError: It cannot be made.
    """
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE)
    try:
        os.fchmod(descriptor, FILE_MODE)  # the umask may have left less
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Makes the folder and those above it that are not there; `Path.mkdir` gives those above the rights of the umask. A folder that is
    there keeps its rights.

    Raises:
        OSError: It cannot be made.
    """
    if folder.is_dir():
        return
    if not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(FOLDER_MODE, exist_ok=True)
    folder.chmod(FOLDER_MODE)  # the umask may have left less
