"""Transcripts as files: one per conversation, always whole, under a name that is safe whatever the conversation is called."""

import gzip
import hashlib
import os
import re
from pathlib import Path
from typing import Final

MAX_NAME_CHARS: Final = 100
"""What is kept of a conversation's id in a file's name; file systems take 255 bytes, some of them 143."""
_PART_SUFFIX: Final = ".part"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]|^[.-]")  # a leading dot hides a file, a leading dash makes it an option


class TranscriptFolderError(Exception):
    """The folder for transcripts cannot be used: make it, or choose another."""


class TranscriptFiles:
    """A folder of transcripts. A file appears as a whole or not at all; one that is there already is replaced."""

    def __init__(self, folder: Path, *, packs: bool) -> None:
        """Nothing is touched before `prepare`.

        Args:
            folder: Where the files are.
            packs: Whether they are gzipped.
        """
        self._folder = folder
        self._packs = packs

    def prepare(self) -> None:
        """Makes the folder where it is not there, and takes away what a process that was killed had begun.

        Raises:
            TranscriptFolderError: It cannot be made or written to.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for part in self._folder.glob(f".*{_PART_SUFFIX}"):
                part.unlink(missing_ok=True)
            probe = self._folder / f".callgauge{_PART_SUFFIX}"
            probe.write_bytes(b"")
            probe.unlink(missing_ok=True)
        except OSError as error:
            raise TranscriptFolderError(
                f"Transcripts: the folder {self._folder} cannot be written to ({error.strerror or error}), so nothing was "
                "started. Make it, give this user the right to write there, or choose another one."
            ) from error

    def path_of(self, conversation_id: str) -> Path:
        """Where the transcript of this conversation is."""
        return self._folder / f"{file_stem(conversation_id)}.json{'.gz' if self._packs else ''}"

    def write(self, conversation_id: str, value: bytes) -> Path:
        """Writes the file. It waits for the disk, so a thread should do it.

        Returns:
            Where it is.

        Raises:
            OSError: It could not; what was there before is there still.
        """
        path = self.path_of(conversation_id)
        part = path.with_name(f".{path.name}.{os.getpid()}{_PART_SUFFIX}")
        try:
            with part.open("wb") as file:
                # Without the time of packing the same transcript is the same file.
                file.write(gzip.compress(value, mtime=0) if self._packs else value)
                file.flush()
                os.fsync(file.fileno())  # else the name could survive a power cut and the content not
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        return path


def file_stem(conversation_id: str) -> str:
    """The name of a conversation's file, without its ending: the id where that is safe, else what is safe of it and a hash.

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
