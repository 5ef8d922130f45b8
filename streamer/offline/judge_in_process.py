"""The judge without Kafka: answers questions of this process, for `callgauge score --judge on`; and
a file of verdicts and answers: a killed run that starts again asks only the missing questions.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import json
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, Final, Never, TypeVar

from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from consumers.engine.redaction.redactor import Redactor
from consumers.judge.ask import QuestionAnswerer
from consumers.judge.prompts import JudgePrompt
from consumers.judge.reply import Asks
from consumers.judge.settings import JudgeSettings
from consumers.runtime.logs import configure_logging
from consumers.runtime.private_files import ensure_file
from consumers.runtime.process import OperatorError, SetupError, end_tasks, first_of, wall_clock_ms
from consumers.runtime.registry import Instruments
from consumers.view.words import shortened
from schemas.closed_sets import UnjudgedReason
from schemas.judging import JudgeRequest, JudgeVerdict, TokenUse, TrialAnswer, Unjudged
from streamer.settings.all_settings import Settings
from streamer.terminal import say

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


FINISH_SECONDS: Final = 5.0
"""A request that is cut off may be charged, and leaves its connection open; one that hangs is not
waited for.
"""
MOST_ASKINGS: Final = 1_200
"""Times that a question is put while others leave no place for it: ten minutes at least."""
PAUSE_SECONDS: Final = 0.5
"""Pause before a question is put again."""
AHEAD: Final = 4
"""Things that are begun, or done and not yet shown, for each that may wait for the judge: a slow
one in front must not keep the others from asking. It bounds the memory.
"""
_SOME: Final = 3
MOST_EXAMPLE_CHARS: Final = 300
"""Characters of an answer that cannot be read, in the error about it."""
_FORMS: Final = {
    "structured": (
        "one JSON object by the schema that the request names (judge.answer_form is structured)"
    ),
    "grade": "a last line GRADE: C or GRADE: I (judge.answer_form is grade)",
}
_NOBODY_ANSWERS: Final = frozenset({UnjudgedReason.REJECTED, UnjudgedReason.UNAVAILABLE})


Item = TypeVar("Item")
Result = TypeVar("Result")


class JudgeInProcess:
    """Asks the configured model within its limits and budgets, and counts questions, tokens and
    costs.
    """

    def __init__(
        self,
        settings: JudgeSettings,
        endpoint: Asks | None = None,
        *,
        redactor: Redactor | None = None,
        kept: KeptVerdicts | None = None,
    ) -> None:
        """Prepares the judge; nothing is asked before `run`. Call it inside a running event loop.

        Args:
            settings: Model, endpoint, rates and budgets.
            endpoint: Replaces the endpoint of the settings, in tests.
            redactor: Redacts the explanations of the model; None uses the default rules.
            kept: Verdicts and answers of earlier runs, which are not asked for again; None keeps
                none.

        Raises:
            SetupError: The settings name no key, or switch the judge off.
        """
        if endpoint is None:
            require_on(settings)
        self._settings = settings
        self._kept = kept
        self._recalled = 0
        instruments = Instruments(CollectorRegistry(), ["judge"])
        self._judge = QuestionAnswerer(
            settings, instruments, endpoint, redactor, kept, waits_for_rate=True
        )
        self._outcomes: Counter[UnjudgedReason | None] = Counter()
        self._requests = 0
        self._tokens = TokenUse()
        self._cost = 0.0

    async def run(self) -> Never:
        """Asks the model until cancelled."""
        await self._judge.run()

    async def finish(self) -> None:
        """Starts no more questions, and waits some seconds for the open ones; while `run` runs."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINISH_SECONDS):
                await self._judge.finish()

    async def answer_whatever_the_rate(self, request: JudgeRequest) -> JudgeVerdict:
        """The verdict on a question; while `run` runs. It is put again while there is no place for
        its first request.

        Raises:
            VerdictFileError: The verdict cannot be kept.
            OperatorError: The very first questions failed at the endpoint, or later ones for so
                long that it was left alone.
        """
        if self._kept is not None and (known := self._kept.verdict_on(request)) is not None:
            self._recalled += 1
            return known
        for _ in range(MOST_ASKINGS):
            # Shielded: the promises are the judge's to keep, also when they are not awaited any
            # more.
            verdict = await asyncio.shield(self._judge.ask(_asked_now(request)))
            if verdict.requests or verdict.result != Unjudged(reason=UnjudgedReason.DEADLINE):
                break
            await asyncio.sleep(PAUSE_SECONDS)
        if self._kept is not None:
            self._kept.keep_verdict(request, verdict)
        self._require_answers(verdict)
        return verdict

    def _require_answers(self, verdict: JudgeVerdict) -> None:
        result = verdict.result
        reason = result.reason if isinstance(result, Unjudged) else None
        if reason is UnjudgedReason.CIRCUIT_OPEN or (
            reason in _NOBODY_ANSWERS and not self._outcomes[None]
        ):
            raise OperatorError(
                f"Judge: the model {self._settings.model} at {self._settings.base_url} answers "
                f"nothing ({reason}), so scoring ends here; calls that are complete were printed. "
                "Check the key, the model's name and the address (judge.api_key, judge.model, "
                "judge.base_url), and what the endpoint says of its own state."
            )
        self._outcomes[reason] += 1
        self._requests += verdict.requests
        self._tokens += verdict.tokens
        self._cost += verdict.cost

    def require_answers(self) -> None:
        """Fails if there were questions and the model answered none of them in a form that can be
        read.

        Raises:
            OperatorError: So it is; the text has one of its answers.
        """
        invalid = self._outcomes[UnjudgedReason.INVALID_ANSWERS]
        if not invalid or invalid < self._outcomes.total() or self._recalled:
            return
        example = self._judge.invalid[0] if self._judge.invalid else ""
        raise OperatorError(
            f"Judge: no answer of {self._settings.model} to {invalid} questions can be read, so "
            "what they ask stays unscored (invalid_answers); the rest was printed. Expected "
            f"{_FORMS[self._settings.answer_form]}; seen, for example: "
            f"{example[:MOST_EXAMPLE_CHARS]!r}. Ask a model that keeps to this form, or set "
            "judge.answer_form to the other one."
        )

    def summary(self) -> str:
        """Questions, answers and costs, as a sentence."""
        questions = self._outcomes.total()
        without = {reason: count for reason, count in self._outcomes.most_common() if reason}
        reasons = ", ".join(f"{reason} {count}" for reason, count in list(without.items())[:_SOME])
        tokens = self._tokens.prompt + self._tokens.answer
        recalled = (
            f" {self._recalled} further questions have verdicts of an earlier run."
            if self._recalled
            else ""
        )
        return (
            f"Judge: {questions} questions, {sum(without.values())} without a "
            f"verdict{f' ({reasons})' if reasons else ''}; {self._requests} requests, {tokens} "
            f"tokens, cost {self._cost:.4f} by judge.price_*.{recalled}"
        )


def require_on(settings: JudgeSettings) -> None:
    """Requires a judge that can be asked.

    Raises:
        SetupError: The settings name no key, or switch the judge off.
    """
    if not settings.is_on:
        missing = (
            "it is switched off (judge.enabled)" if not settings.enabled else "there is no key"
        )
        raise SetupError(
            f"--judge on: no model can be asked, because {missing}. Nothing was scored. Set "
            "OPENAI_API_KEY, or CALLGAUGE_JUDGE__API_KEY and CALLGAUGE_JUDGE__BASE_URL for another "
            "endpoint; or leave --judge off: subgoals for a judge are then unscored "
            "(judge_disabled)."
        )


def _asked_now(request: JudgeRequest) -> JudgeRequest:
    """The same question on this machine's clock: the call may have been recorded years ago."""
    now_ms = wall_clock_ms()
    patience_ms = request.deadline_ms - request.asked_at_ms
    return request.model_copy(update={"asked_at_ms": now_ms, "deadline_ms": now_ms + patience_ms})


def side_by_side(
    items: Iterator[Item],
    work: Callable[[Item, JudgeInProcess | None], Awaitable[Result]],
    show: Callable[[Result], None],
    settings: Settings,
    judge_settings: JudgeSettings | None,
    verdicts: Path | None = None,
) -> None:
    """Works on many things that wait for the judge most of their time, and shows the results in the
    order of the things.

    Args:
        items: Taken as there is a place for them.
        work: Asks about one of them; each asks one question, or those of one turn, at a time.
        show: Called with each result.
        settings: Logs and redaction.
        judge_settings: The judge with its limits and budgets; None if none is asked.
        verdicts: File of kept verdicts; None keeps none.

    Raises:
        VerdictFileError: The file of verdicts cannot be used.
        SetupError: A setting of the judge is missing.
        OperatorError: The judge answers nothing.
    """
    redactor = Redactor(settings.redaction)
    # log lines of the judge are no results
    configure_logging(settings.log_format, "warning", redact=redactor.redact)
    # Fewer at a time would leave places of the judge empty.
    at_a_time = settings.judge.max_concurrent_requests

    async def in_order(judge: JudgeInProcess | None) -> None:
        places = asyncio.Semaphore(at_a_time)
        begun: deque[asyncio.Task[Result]] = deque()

        async def do(item: Item) -> Result:
            try:
                return await work(item, judge)
            finally:
                places.release()

        try:
            for item in items:
                await places.acquire()
                begun.append(asyncio.create_task(do(item)))
                await asyncio.sleep(0)  # its first questions leave before the next thing is read
                while begun and (begun[0].done() or len(begun) == at_a_time * AHEAD):
                    show(await begun[0])
                    begun.popleft()
            while begun:
                show(await begun[0])
                begun.popleft()
        finally:
            await end_tasks(begun)
            if judge is not None:
                await judge.finish()

    async def run(judge_settings: JudgeSettings, kept: KeptVerdicts | None) -> None:
        judge = JudgeInProcess(judge_settings, redactor=redactor, kept=kept)
        await first_of(in_order(judge), judge.run())
        say(judge.summary())
        judge.require_answers()

    if judge_settings is None:
        asyncio.run(in_order(None))
        return
    with keeping(verdicts, judge_settings) as kept:
        asyncio.run(run(judge_settings, kept))
