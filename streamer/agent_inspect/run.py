"""Scores traces of agent-inspect side by side, with the judge role's machinery, in the order of the traces."""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from consumers.engine.agent_inspect import Ballot, Vote
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.logs import configure_logging
from consumers.runtime.process import first_of
from schemas.closed_sets import UnjudgedReason
from schemas.judging import Judged, Unjudged
from streamer.agent_inspect.documents import TraceDocument
from streamer.agent_inspect.files import TraceFiles, read_samples
from streamer.agent_inspect.questions import NotJudgedError, TraceQuestions
from streamer.agent_inspect.scorer_names import Scorer
from streamer.agent_inspect.scorers import Json, default_scorers, known_metrics_of, metrics_of
from streamer.offline.call_work import CallOutput
from streamer.offline.judging.judge_in_process import JudgeInProcess
from streamer.offline.judging.kept_verdicts import keeping
from streamer.recordings.files.json_files import RecordingError
from streamer.settings.all_settings import Settings
from streamer.terminal import say

_VOTE_FAILED: Final = frozenset(
    {UnjudgedReason.INVALID_ANSWERS, UnjudgedReason.REFUSED, UnjudgedReason.REJECTED, UnjudgedReason.UNAVAILABLE}
)
"""Answers that agent-inspect counts as invalid, until its vote fails."""


@dataclass(frozen=True, slots=True)
class TracePlan:
    """How traces are scored.

    Attributes:
        settings: Judge, deadlines and redaction.
        scorers: The scorers for each trace; empty for those that fit it.
        asks_judge: Whether a judge is asked.
        verdicts: File of kept verdicts; None keeps none.
        agent: The agent whose budget pays.
        options: Options under agent-inspect's names, for all traces that do not set them.
    """

    settings: Settings
    scorers: Sequence[Scorer] = ()
    asks_judge: bool = False
    verdicts: Path | None = None
    agent: str = "unknown"
    options: Mapping[str, object] = field(default_factory=dict)


def score_traces(
    files: TraceFiles,
    samples_path: Path | None,
    plan: TracePlan,
    show: Callable[[CallOutput], None],
    on_question: Callable[[], None],
) -> None:
    """Scores all traces and shows each in its order.

    Args:
        files: The traces.
        samples_path: Samples for traces without their own; None for none.
        plan: How they are scored.
        show: Called with each trace's line.
        on_question: Called after each question to the judge.

    Raises:
        RecordingError: The samples cannot be read.
        VerdictFileError: The file of verdicts cannot be used.
        NoJudgeError: A judge is asked, and a setting of it is missing.
        JudgeFailedError: The judge answers nothing.
    """
    samples = read_samples(samples_path)
    options = {**plan.settings.goals.agent_inspect_options, **plan.options}
    redactor = Redactor(plan.settings.redaction)
    # Log lines of the judge are no results.
    configure_logging(plan.settings.log_format, "warning", redact=redactor.redact)

    def documents() -> Iterator[TraceDocument | RecordingError]:
        for placed in files:
            if isinstance(placed, RecordingError):
                yield placed
                continue
            try:
                yield placed.read(samples, options)
            except RecordingError as error:
                yield error

    asyncio.run(_Run(plan, redactor, show, on_question).all(documents()))


class _Run:
    def __init__(
        self,
        plan: TracePlan,
        redactor: Redactor,
        show: Callable[[CallOutput], None],
        on_question: Callable[[], None],
    ) -> None:
        # The completions of its judge are a part of agent-inspect's results.
        self._judge_settings = plan.settings.judge.model_copy(update={"keeps_raw_answers": True})
        self._plan = plan
        self._redactor = redactor
        self._show = show
        self._on_question = on_question
        self._judge: JudgeInProcess | None = None

    async def all(self, documents: Iterator[TraceDocument | RecordingError]) -> None:
        if not self._plan.asks_judge:
            await self._side_by_side(documents)
            return
        with keeping(self._plan.verdicts, self._judge_settings) as kept:
            judge = self._judge = JudgeInProcess(self._judge_settings, redactor=self._redactor, kept=kept)

            async def work() -> None:
                try:
                    await self._side_by_side(documents)
                finally:
                    await judge.finish()

            await first_of(work(), judge.run())
            say(judge.summary())

    async def _side_by_side(self, documents: Iterator[TraceDocument | RecordingError]) -> None:
        # Each trace asks one question at a time, so fewer would leave places of the judge empty.
        at_a_time = self._judge_settings.max_concurrent_requests
        begun: deque[asyncio.Task[CallOutput]] = deque()
        try:
            for document in documents:
                begun.append(asyncio.create_task(self._scored(document)))
                if len(begun) == at_a_time:
                    self._show(await begun.popleft())
            while begun:
                self._show(await begun[0])
                begun.popleft()
        finally:
            for task in begun:
                task.cancel()
            await asyncio.gather(*begun, return_exceptions=True)

    async def _scored(self, document: TraceDocument | RecordingError) -> CallOutput:
        if isinstance(document, RecordingError):
            return CallOutput("", (str(document),), is_read=False)
        if document.known:
            return _output(document, known_metrics_of(document), ())
        scorers = self._plan.scorers or default_scorers(document)
        patience_ms = self._plan.settings.goals.verdict_deadline_ms
        questions = TraceQuestions(document, self._plan.agent, patience_ms, self._redactor)
        form = self._judge_settings.answer_form
        asking = metrics_of(document, scorers, lambda ballot: questions.prompt(ballot, form))
        unjudged: list[str] = []
        proceed: Callable[[], Ballot] = partial(next, asking)
        while True:
            try:
                ballot = proceed()
            except StopIteration as ended:
                return _output(document, ended.value, unjudged)
            try:
                proceed = partial(asking.send, await self._vote(questions, ballot))
            except NotJudgedError as error:
                proceed = partial(asking.throw, error)
                unjudged.append(error.reason)

    async def _vote(self, questions: TraceQuestions, ballot: Ballot) -> Vote:
        request = questions.request(ballot)
        if self._judge is None:
            raise NotJudgedError(UnjudgedReason.JUDGE_DISABLED)
        verdict = await self._judge.answer_whatever_the_rate(request)
        self._on_question()
        completions = tuple(answer.raw for answer in verdict.answers if answer.raw)
        match verdict.result:
            case Judged(is_completed=is_completed):
                return Vote(is_completed, completions)
            case Unjudged(reason=reason) if reason not in _VOTE_FAILED:
                raise NotJudgedError(reason)
        return Vote(None, completions)


def _output(document: TraceDocument, metrics: dict[str, Json], unjudged: Sequence[str]) -> CallOutput:
    told = (
        f"Trace {document.trace_id}: the judge gave no verdict ({', '.join(dict.fromkeys(unjudged))}), so scorers that need "
        "it have none."
    )
    line = json.dumps({"id": document.trace_id, "metrics": metrics}, default=str) + "\n"
    return CallOutput(line, (told,) if unjudged else ())
