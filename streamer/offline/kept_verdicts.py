"""A file of verdicts and answers: a killed run that starts again asks only the missing questions,
and a finished one asks none.
"""

import fcntl
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, Final

from pydantic import ValidationError

from consumers.console.page.drawing import shortened
from consumers.judge.prompts import JudgePrompt
from consumers.judge.settings import JudgeSettings
from consumers.runtime.private_files import ensure_file
from consumers.runtime.process import SetupError
from schemas.closed_sets import UnjudgedReason
from schemas.judging import JudgeRequest, JudgeVerdict, TrialAnswer, Unjudged

_FINAL_REASONS: Final = frozenset({UnjudgedReason.INVALID_ANSWERS, UnjudgedReason.REFUSED})
"""Reasons of the model itself. Questions without a verdict for other reasons are asked again."""
MOST_EVIDENCE_CHARS: Final = 300
"""Characters of one utterance of the turn that a question is about, in the line of its verdict."""
_MAX_LINE_BYTES: Final = 2_000_000
"""Longest line that is read: a verdict has 100 answers and 100,000 characters of them at most."""


class VerdictFileError(SetupError):
    """The file of verdicts cannot be used; the text has the reason and the remedy."""


@contextmanager
def keeping(path: Path | None, settings: JudgeSettings) -> "Iterator[KeptVerdicts | None]":
    """Opens the file for one run; without a path gives None, and nothing is kept. Raises as
    `KeptVerdicts`.
    """
    if path is None:
        yield None
        return
    with closing(KeptVerdicts(path, settings)) as kept:
        yield kept


def _about(request: JudgeRequest) -> dict[str, Any]:
    """The question in words, for a person who audits the judge; only the key is read again."""
    return {
        "call": request.conversation_id,
        "turn": request.turn,
        "subgoal": request.subgoal_id or request.kind,
        "question": request.subgoal or f"EVA's {request.kind}",
        "evidence": [
            f"{item.kind}{f' {item.tool}' if item.tool else ''}: "
            f"{shortened(item.text, MOST_EVIDENCE_CHARS)}"
            for item in request.transcript
            if item.turn == request.turn
        ],
    }


class KeptVerdicts:
    """The verdicts of one judge in one file, and its answers to questions that have none, or none
    yet. In memory are their places.
    """

    def __init__(self, path: Path, settings: JudgeSettings) -> None:
        """Opens the file, or makes one. A last line that was cut off by the end of a process is
        removed.

        Args:
            path: The file.
            settings: Model and form of the answers; answers of another judge are not used.

        Raises:
            VerdictFileError: It cannot be written, another run writes it, or it is another kind of
                file.
        """
        self._path = path
        self._settings = settings
        self._verdicts: dict[str, int] = {}
        self._answers: dict[str, list[int]] = {}
        self._texts: dict[str, int] = {}
        try:
            ensure_file(path)
            self._file: IO[bytes] = path.open("a+b")
        except OSError as error:
            raise self._unusable(
                error.strerror or type(error).__name__, "Name a file that can be written."
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read_places()
        except BlockingIOError as error:
            self.close()
            raise self._unusable(
                "another run is writing it", "Wait for that run, or name another file."
            ) from error
        except VerdictFileError:
            self.close()
            raise

    def verdict_on(self, request: JudgeRequest) -> JudgeVerdict | None:
        """Returns the verdict on a question by the same model, asked in the same way; None if there
        is none.
        """
        place = self._verdicts.get(self._key(request))
        if place is None:
            return None
        verdict = JudgeVerdict.model_validate(self._read(place)["verdict"])
        # The same words may be asked about for another version of the goals, on another agent's
        # budget.
        return verdict.model_copy(update={"goal_set": request.goal_set, "agent": request.agent})

    def answers_to(self, request: JudgeRequest) -> Sequence[TrialAnswer]:
        """Returns the answers to a question without a verdict, oldest first."""
        places = self._answers.get(self._key(request), ())
        return [TrialAnswer.model_validate(self._read(place)["answer"]) for place in places]

    def keep_verdict(self, request: JudgeRequest, verdict: JudgeVerdict) -> None:
        """Writes a verdict immediately, so that the end of this process does not lose it.

        Raises:
            VerdictFileError: The disk takes no more.
        """
        if isinstance(verdict.result, Unjudged) and verdict.result.reason not in _FINAL_REASONS:
            return
        key = self._key(request)
        line = {"key": key, "about": _about(request), "verdict": verdict.model_dump(mode="json")}
        self._verdicts[key] = self._write(line)
        self._answers.pop(key, None)

    def keep_answer(self, request: JudgeRequest, answer: TrialAnswer) -> None:
        """Writes one answer immediately. Raises as `keep_verdict`."""
        key = self._key(request)
        place = self._write({"key": key, "answer": answer.model_dump(mode="json")})
        self._answers.setdefault(key, []).append(place)

    def text_for(self, question: JudgePrompt) -> str | None:
        """Returns the text with which the same model answered the same prompt; None if there is
        none.
        """
        place = self._texts.get(self._key_of(question.system, question.user))
        return None if place is None else str(self._read(place)["text"])

    def keep_text(self, question: JudgePrompt, text: str) -> None:
        """Writes the answer to a question that has no verdict, as the one about causes. Raises as
        `keep_verdict`.
        """
        key = self._key_of(question.system, question.user)
        self._texts[key] = self._write({"key": key, "text": text})

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
                self._note(json.loads(line), place)
            except (ValueError, KeyError, TypeError, ValidationError) as error:
                seen = (
                    f"line {number} is no verdict or answer, so this is another file or it was "
                    "changed"
                )
                raise self._unusable(
                    seen, "Name a new file, or the one of an earlier run."
                ) from error
            place += len(line)

    def _note(self, record: dict[str, Any], place: int) -> None:
        key = str(record["key"])
        if "text" in record:
            self._texts[key] = place
        elif "answer" in record:
            TrialAnswer.model_validate(record["answer"])
            self._answers.setdefault(key, []).append(place)
        else:
            JudgeVerdict.model_validate(record["verdict"])
            self._verdicts[key] = place
            self._answers.pop(key, None)

    def _read(self, place: int) -> dict[str, Any]:
        self._file.seek(place)
        record: dict[str, Any] = json.loads(self._file.readline(_MAX_LINE_BYTES))
        return record

    def _write(self, record: dict[str, Any]) -> int:
        """Appends a line, and returns its place."""
        try:
            place = self._file.seek(0, 2)
            self._file.write(json.dumps(record).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise self._unusable(
                error.strerror or type(error).__name__, "Make room, and start again."
            ) from error
        return place

    def _key(self, request: JudgeRequest) -> str:
        """The question, and everything that decides how it is answered."""
        return self._key_of(
            request.request_id, request.trials, request.stops_early, request.retry_waves
        )

    def _key_of(self, *about: object) -> str:
        settings = self._settings
        parts = (*about, settings.model, settings.answer_form, settings.temperature)
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def _unusable(self, why: str, remedy: str) -> VerdictFileError:
        return VerdictFileError(f"--verdicts {self._path}: {why}. Nothing more is asked. {remedy}")
