"""A file of verdicts: a run that was ended in the middle asks only what is missing, and one that ended asks nothing again."""

import fcntl
import hashlib
import json
from pathlib import Path
from typing import IO, Final

from pydantic import ValidationError

from consumers.judge.settings import JudgeSettings
from consumers.runtime.errors import OperatorError
from schemas.judging import Judged, JudgeRequest, JudgeVerdict, Unjudged, UnjudgedReason

_FINAL_REASONS: Final = frozenset({UnjudgedReason.INVALID_ANSWERS, UnjudgedReason.REFUSED})
"""What the model itself left open. Other reasons lie in the circumstances: such questions are asked again."""
_MAX_LINE_BYTES: Final = 2_000_000
"""Longest line that is read: a verdict keeps 100 answers and 100,000 characters of them."""


class VerdictFileError(OperatorError):
    """The file of verdicts cannot be used; the text has the reason and the remedy."""

    exit_code = 2


class KeptVerdicts:
    """The verdicts in one file. In memory are only their places."""

    def __init__(self, path: Path) -> None:
        """Opens the file, or makes one. A last line that was cut off by the end of a process is removed.

        Raises:
            VerdictFileError: It cannot be written, another run writes it, or it holds something else.
        """
        self._path = path
        self._places: dict[str, int] = {}
        try:
            self._file: IO[bytes] = path.open("a+b")
        except OSError as error:
            raise self._unusable(error.strerror or type(error).__name__, "Name a file that can be written.") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read_places()
        except BlockingIOError as error:
            self.close()
            raise self._unusable("another run is writing it", "Wait for that run, or name another file.") from error
        except VerdictFileError:
            self.close()
            raise

    def of(self, request: JudgeRequest, settings: JudgeSettings) -> JudgeVerdict | None:
        """The verdict on a question by the same model, asked in the same way; None if there is none."""
        place = self._places.get(_key(request, settings))
        if place is None:
            return None
        self._file.seek(place)
        return JudgeVerdict.model_validate(json.loads(self._file.readline(_MAX_LINE_BYTES))["verdict"])

    def keep(self, request: JudgeRequest, settings: JudgeSettings, verdict: JudgeVerdict) -> None:
        """Writes a verdict at once, so that the end of this process does not lose it.

        Raises:
            VerdictFileError: The disk takes no more.
        """
        if not isinstance(verdict.result, Judged) and not _is_final(verdict.result):
            return
        key = _key(request, settings)
        line = json.dumps({"key": key, "verdict": verdict.model_dump(mode="json")}).encode() + b"\n"
        try:
            place = self._file.seek(0, 2)
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise self._unusable(error.strerror or type(error).__name__, "Make room, and start again.") from error
        self._places[key] = place

    def close(self) -> None:
        """Closes the file; another run may use it."""
        self._file.close()

    def _read_places(self) -> None:
        self._file.seek(0)
        place, number = 0, 0
        while line := self._file.readline(_MAX_LINE_BYTES):
            number += 1
            if not line.endswith(b"\n") and len(line) < _MAX_LINE_BYTES:
                self._file.truncate(place)
                return
            try:
                record = json.loads(line)
                JudgeVerdict.model_validate(record["verdict"])
                self._places[str(record["key"])] = place
            except (ValueError, KeyError, TypeError, ValidationError) as error:
                seen = f"line {number} is no verdict, so this is another file or it was changed"
                raise self._unusable(seen, "Name a new file, or the one of an earlier run.") from error
            place += len(line)

    def _unusable(self, why: str, remedy: str) -> VerdictFileError:
        return VerdictFileError(f"--verdicts {self._path}: {why}. Nothing more is asked. {remedy}")


def _is_final(result: object) -> bool:
    return isinstance(result, Unjudged) and result.reason in _FINAL_REASONS


def _key(request: JudgeRequest, settings: JudgeSettings) -> str:
    """The question, and everything that decides how it is answered."""
    parts = (
        request.request_id, request.trials, request.stops_early, request.retry_waves, settings.model,
        settings.answer_form, settings.temperature,
    )  # fmt: skip
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()
