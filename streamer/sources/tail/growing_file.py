"""Reads the lines of a file that another process still writes.

A line counts when its end is there. The file may appear late, be written anew with the same lines, be replaced by another one,
or be rotated: renamed to the same name with a suffix, while a new file takes its place.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from streamer.sources.tail.positions import FilePosition

MAX_LINE_BYTES: Final = 1_000_000
"""Longest line that is sent: the evaluator and Kafka's default refuse a record of a little more."""
LINES_AT_A_TIME: Final = 500
"""Lines of one file between two looks at the others. It bounds the memory and the events that a crash repeats."""
HEAD_BYTES: Final = 256
"""Bytes by which a file is recognised: they contain the time of its first line."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line with its number from 1, over all files of that name. Its text is None if it is too long."""

    number: int
    text: bytes | None


class GrowingFile:
    """One file of a call.

    Attributes:
        path: The path of the file.
        place: How far it was read.
        replaced: How often another file took its place without having been rotated.
    """

    def __init__(self, path: Path, place: FilePosition) -> None:
        """Opens nothing: the file is open only while it is read."""
        self.path = path
        self.place = place
        self.replaced = 0

    def lines(self, *, is_complete: bool) -> list[Line]:
        """The next lines, at most `LINES_AT_A_TIME`.

        Args:
            is_complete: Whether nobody writes any more: then a last line without an end is a line too.

        Raises:
            OSError: The file is there and cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                if self._is_known(file):
                    return list(self._next(file, is_complete=is_complete))
                is_another = is_complete or self._is_another(file)
        except FileNotFoundError:
            return []
        return self._behind_rotation(is_another=is_another)

    def is_here(self) -> bool:
        """Whether the path has a file that begins as the one that was read."""
        try:
            with self.path.open("rb") as file:
                return self._is_known(file)
        except FileNotFoundError:
            return False

    def _behind_rotation(self, *, is_another: bool) -> list[Line]:
        """The rest of the file that was here before; then the position is at the beginning of the new one. Nothing while the file that
        is here may be the old one, written again.
        """
        found: list[Line] = []
        for before in sorted(self.path.parent.glob(f"{self.path.name}.*")):
            with before.open("rb") as file:
                if self._is_known(file):
                    found = list(self._next(file, is_complete=True))
                    if len(found) == LINES_AT_A_TIME:
                        return found
                    break
        else:
            if not is_another:
                return []
            self.replaced += 1
        self.place.offset, self.place.head, self.place.head_bytes = 0, "", 0
        return found

    def _is_known(self, file: IO[bytes]) -> bool:
        """Whether the file begins as the one that was read so far."""
        return self.place.head_bytes == 0 or _digest(_start(file, self.place.head_bytes)) == self.place.head

    def _is_another(self, file: IO[bytes]) -> bool:
        """Whether it is certainly another file: one that is being written again is short for a moment."""
        return len(_start(file, self.place.head_bytes)) == self.place.head_bytes

    def _next(self, file: IO[bytes], *, is_complete: bool) -> Iterator[Line]:
        place = self.place
        file.seek(place.offset)
        for _ in range(LINES_AT_A_TIME):
            text = file.readline(MAX_LINE_BYTES + 1)
            is_long = len(text) > MAX_LINE_BYTES
            if is_long and not (text := _end_of_line(file, text)):
                return
            if not text or not (text.endswith(b"\n") or is_complete):
                return
            place.offset = file.tell()
            place.lines += 1
            self._note_head(file)
            yield Line(place.lines, None if is_long else text)

    def _note_head(self, file: IO[bytes]) -> None:
        if self.place.head_bytes < HEAD_BYTES:
            head = _start(file, min(HEAD_BYTES, self.place.offset))
            self.place.head, self.place.head_bytes = _digest(head), len(head)
            file.seek(self.place.offset)


def _start(file: IO[bytes], size: int) -> bytes:
    file.seek(0)
    return file.read(size)


def _digest(head: bytes) -> str:
    return hashlib.blake2b(head, digest_size=8).hexdigest()


def _end_of_line(file: IO[bytes], text: bytes) -> bytes:
    """The last part of a line that is too long; nothing while its end is not there."""
    while text and not text.endswith(b"\n"):
        text = file.readline(MAX_LINE_BYTES)
    return text
