"""Transcripts as files: one per conversation, always whole, with a safe name for every conversation id.

They contain the words of people, so only the user of the process may read them, whatever the umask.
"""

import gzip
import hashlib
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import Final

from consumers.runtime.process import OperatorError

FILE_MODE: Final = 0o600
"""Rights of a transcript's file: its owner reads and writes."""
FOLDER_MODE: Final = 0o700
"""Rights of a new folder. An existing folder keeps its own."""
MAX_NAME_CHARS: Final = 100
"""Bound of the conversation id in a file name; file systems accept 255 bytes, some of them 143."""
_PART_SUFFIX: Final = ".part"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]|^[.-]")  # a leading dot hides a file, a leading dash makes it an option


class TranscriptFolderError(OperatorError):
    """The folder for transcripts cannot be used: create it, or choose another."""


class TranscriptFiles:
    """A folder of transcripts. A file appears as a whole or not at all; an existing file is replaced.

    Attributes:
        folder: The folder of the files.
    """

    def __init__(self, folder: Path, *, packs: bool) -> None:
        """Nothing is touched before `prepare`.

        Args:
            folder: The folder of the files.
            packs: Whether they are gzipped.
        """
        self.folder = folder
        self._packs = packs

    def prepare(self) -> bool:
        """Creates the folder if necessary, and deletes unfinished files of a killed process.

        Returns:
            Whether users other than the owner and its group can look into the folder.

        Raises:
            TranscriptFolderError: The folder cannot be created or written to.
        """
        try:
            _make_folder(self.folder)
            for part in self.folder.glob(f".*{_PART_SUFFIX}"):
                if part.is_symlink() or part.is_file():  # a link is deleted, its target stays
                    part.unlink(missing_ok=True)
            with tempfile.NamedTemporaryFile(prefix=".", suffix=_PART_SUFFIX, dir=self.folder):
                return bool(self.folder.stat().st_mode & stat.S_IRWXO)
        except OSError as error:
            raise TranscriptFolderError(
                f"Transcripts: the folder {self.folder} cannot be written to ({error.strerror or error}), so nothing was "
                "started. Make it, give this user the right to write there, or choose another one."
            ) from error

    def path_of(self, conversation_id: str) -> Path:
        """Where the transcript of this conversation is."""
        return self.folder / f"{file_stem(conversation_id)}.json{'.gz' if self._packs else ''}"

    def write(self, conversation_id: str, value: bytes) -> Path:
        """Writes the file. It waits for the disk, so call it in a thread.

        Returns:
            The path of the file.

        Raises:
            OSError: The file could not be written; an earlier file stays.
        """
        path = self.path_of(conversation_id)
        # A new file under a name that nobody can know: a link that waits there is not followed.
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=_PART_SUFFIX, dir=self.folder)
        part = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, FILE_MODE)  # the umask may have left less
                # Without the time of packing the same transcript is the same file.
                file.write(gzip.compress(value, mtime=0) if self._packs else value)
                file.flush()
                os.fsync(file.fileno())  # otherwise the name could survive a power cut and the content not
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        return path


def _make_folder(folder: Path) -> None:
    """Makes the folder and those above it that are not there; `Path.mkdir` gives those above the rights of the umask."""
    if folder.is_dir():
        return
    if not folder.parent.exists():
        _make_folder(folder.parent)
    folder.mkdir(FOLDER_MODE, exist_ok=True)
    folder.chmod(FOLDER_MODE)  # the umask may have left less


def file_stem(conversation_id: str) -> str:
    """The name of a conversation's file without its ending: a safe id, or the safe part of the id and a hash.

    Example:
        >>> file_stem("conv-12.a")
        'conv-12.a'
        >>> file_stem("../etc/passwd")
        '_._etc_passwd-3cba4c3a335390b6'
    """
    safe = _UNSAFE.sub("_", conversation_id)[:MAX_NAME_CHARS]
    if safe == conversation_id:
        return safe
    return f"{safe}-{hashlib.blake2b(conversation_id.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"
