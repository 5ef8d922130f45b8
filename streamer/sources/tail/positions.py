"""The position of `callgauge tail` in a run: how far each file was sent, in a file that a restart continues from.

It is written after Kafka has acknowledged the events before it. So a crash repeats at most the events since then, with the same ids,
and the evaluator drops them.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal

from pydantic import BaseModel, Field, ValidationError

from consumers.runtime.process import OperatorError


class FilePosition(BaseModel):
    """How far one file was sent.

    Attributes:
        lines: Lines or entries sent so far, also those of earlier files of that name.
        offset: Bytes read of the present file.
        head: Digest of the first bytes of the present file, by which it is recognised.
        head_bytes: Number of those bytes.
        sent: Digests of the entries that were sent of a document that is written as a whole.
    """

    lines: int = 0
    offset: int = 0
    head: str = ""
    head_bytes: int = 0
    sent: list[str] = Field(default_factory=list)


class CallPosition(BaseModel):
    """How far one call was sent.

    Attributes:
        conversation_id: Id of the call on the topics.
        attempt: 1, and one more whenever EVA begins anew in a folder of that name.
        inode: Number of the folder in its file system.
        files: Positions by file name. When the call has ended, its attempt is recognised by them.
        held: Lines that end the call, with their numbers: they are sent after all others.
        started_ms: Time in the `call_started` that was sent; None before.
        start_ms: First time in the pipecat log, from which some metrics count.
        first_ms: Earliest time of an event.
        last_ms: Latest time of an event.
        state: `open`, `ended`, or `gone` when the folder is not there any more.
    """

    conversation_id: str
    attempt: int = 1
    inode: int = 0
    files: dict[str, FilePosition] = Field(default_factory=dict)
    held: list[tuple[int, str]] = Field(default_factory=list)
    started_ms: int | None = None
    start_ms: int | None = None
    first_ms: int | None = None
    last_ms: int | None = None
    state: Literal["open", "ended", "gone"] = "open"

    def note_time(self, time_ms: int) -> None:
        """Remembers the earliest and the latest time."""
        self.first_ms = time_ms if self.first_ms is None else min(self.first_ms, time_ms)
        self.last_ms = time_ms if self.last_ms is None else max(self.last_ms, time_ms)


class RunPosition(BaseModel):
    """How far a run was sent, by the paths of its records' folders."""

    version: Literal[1] = 1
    bootstrap: str
    topic_prefix: str
    calls: dict[str, CallPosition] = Field(default_factory=dict)


class PositionError(OperatorError):
    """The position cannot be read or written, is in use, or is of other topics; the text says what to do."""


class PositionFile:
    """The file of a position, which one process at a time may use."""

    def __init__(self, path: Path) -> None:
        """Nothing is touched before `locked`."""
        self._path = path
        self._lock: IO[bytes] | None = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from the position meanwhile; also a process that is killed gives it back.

        Raises:
            PositionError: Another process uses it, or the folder cannot be written to.
        """
        self._take()
        try:
            yield
        finally:
            if self._lock is not None:
                self._lock.close()

    def _take(self) -> None:
        beside = self._path.with_name(f"{self._path.name}.lock")
        try:
            self._lock = beside.open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if self._lock is not None:
                self._lock.close()
            raise PositionError(
                f"{self._path}: another `callgauge tail` sends this run already. Nothing was sent. End it first; to send the "
                "run to other topics at the same time, give --position FILE."
            ) from error
        except OSError as error:
            raise self._unwritable(error) from error

    def read(self, bootstrap: str, topic_prefix: str) -> RunPosition:
        """The position, or one at the beginning if there is no file.

        Args:
            bootstrap: The brokers that are sent to.
            topic_prefix: Prefix of the topics that are sent to.

        Raises:
            PositionError: The file is damaged, or of other topics.
        """
        try:
            position = RunPosition.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return RunPosition(bootstrap=bootstrap, topic_prefix=topic_prefix)
        except (OSError, ValidationError) as error:
            reason = getattr(error, "strerror", None) or "it is not a position that this version writes"
            raise PositionError(
                f"{self._path}: the position of an earlier `callgauge tail` cannot be read: {reason}. Nothing was sent. "
                "Delete the file to send the run from its beginning; calls that closed stay as they are."
            ) from error
        if (position.bootstrap, position.topic_prefix) != (bootstrap, topic_prefix):
            raise PositionError(
                f"{self._path}: the run was sent to {position.bootstrap} with the topic prefix {position.topic_prefix!r}, and "
                f"now it would go to {bootstrap} with {topic_prefix!r}. Nothing was sent. Give --position FILE, which is then "
                "the position for these topics."
            )
        return position

    def write(self, position: RunPosition) -> None:
        """Replaces the file, as a whole or not at all.

        Raises:
            PositionError: It cannot be written.
        """
        part = self._path.with_name(f"{self._path.name}.part")
        try:
            with part.open("wb") as file:
                file.write(position.model_dump_json(exclude_defaults=True).encode())
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> PositionError:
        return PositionError(
            f"{self._path}: the position cannot be kept here ({error.strerror or error}), so a restart would send events again. "
            "Sending stops. Give --position FILE in a folder that this user may write to."
        )
