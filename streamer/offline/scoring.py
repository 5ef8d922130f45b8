"""Scores recorded calls through the engine, and asks a judge about them."""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from consumers.engine.admission import Arrival
from consumers.engine.effects import (
    Effect,
    PublishRow,
    PublishTranscript,
    PublishWords,
    RequestVerdict,
)
from consumers.engine.evaluator import NO_LIMITS, PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import InputSource
from schemas.events.audit import CallEnded
from schemas.events.elevenlabs import ConversationRecord
from schemas.events.simulator import ConnectionState
from schemas.goals.goal_set import GoalSet
from schemas.judging import JudgeRequest, JudgeVerdict
from schemas.redaction import RedactionRules
from schemas.rows import CallRow, GoalsRow, Row, TurnRow, WordsRow
from streamer.facts import installed_version
from streamer.offline.contexts import RefusedEvent, about_refused, arrivals_of
from streamer.recordings.eva import with_state
from streamer.recordings.eva_needs import miss_sentences
from streamer.recordings.files import RecordedCall
from streamer.recordings.reader import RecordedGoals
from streamer.settings.all_settings import Settings
from streamer.sources.replay import in_random_order, in_time_order, with_control_events

_FOR_EVER_MS: Final = 2**53
_NEVER_CUT_OFF: Final = NO_LIMITS.model_dump(include=NO_LIMITS.model_fields_set)

Asking = Generator[Sequence[JudgeRequest], Sequence[JudgeVerdict], None]
"""Gives questions, and is sent the answers to them in the same order."""


def _not_counted() -> None:
    pass


@dataclass(frozen=True, slots=True)
class ScoringPlan:
    """How recorded calls are scored.

    Attributes:
        limits: Limits of the evaluator. Limits that would cut a recording off do not apply.
        rules: How goals are judged, and whether a judge is asked.
        code_version: Written into the rows of calls.
        arrival_seed: Decides in which order events of different sources are read; None is by their
            times.
        writes_transcripts: Whether the call gets a transcript.
        redaction: Rules of the redaction of its texts.
        sets: Goal sets to choose from; None for no goals.
        agent: Agent of calls whose recording names none.
    """

    limits: Limits
    rules: GoalRules
    code_version: str
    arrival_seed: int | None = None
    writes_transcripts: bool = False
    redaction: RedactionRules = field(default_factory=RedactionRules)
    sets: RecordedGoals | None = None
    agent: str | None = None


def plan_from(
    settings: Settings,
    sets: RecordedGoals | None = None,
    agent: str | None = None,
    *,
    asks_judge: bool = False,
    arrival_seed: int | None = None,
    writes_transcripts: bool = False,
) -> ScoringPlan:
    """The plan by the evaluator's limits, goals and redaction; a judge is asked as `asks_judge`
    says, whatever the settings say.
    """
    rules = settings.goals.rules(settings.judge, has_judge=False).model_copy(
        update={"asks_judge": asks_judge}
    )
    version, redaction = installed_version(), settings.redaction
    return ScoringPlan(
        settings.all_limits,
        rules,
        version,
        arrival_seed,
        writes_transcripts,
        redaction,
        sets,
        agent,
    )


class _Given:
    """Where the one goal set comes from that a call is judged against."""

    def __init__(self, goal_set: GoalSet | None) -> None:
        self._goal_set = goal_set

    def choose(self, _goals_id: str | None, _agent: str | None) -> GoalSet | None:
        return self._goal_set


@dataclass(slots=True)
class RecordedScoring:
    """One recorded call on its way through the engine.

    Attributes:
        call: The recorded call with its control events.
        plan: How it is scored.
        goal_set: Its goals, or None.
        rows: Rows that the evaluator would have written so far, in that order.
        words: Rows of words that it would have written so far, in that order.
        refused: Events that it would have quarantined; they are not in the scores.
        transcript: The JSON array for the topic `transcripts`; None before the end of the call, if
            the plan wants none, and if it would be too large.
        lacks: Sentences about what the recording does not have.
    """

    call: RecordedCall
    plan: ScoringPlan
    goal_set: GoalSet | None
    rows: list[Row] = field(default_factory=list)
    words: list[WordsRow] = field(default_factory=list)
    refused: list[RefusedEvent] = field(default_factory=list)
    transcript: bytes | None = None
    lacks: tuple[str, ...] = ()
    _place: int = 0

    def run(self, on_event: Callable[[], None] = _not_counted) -> Asking:
        """Folds the call event by event and lets silence pass between them, to the call's end.

        Questions are answered at the very moment at which they are asked, so that the same answers
        give the same records, however long a judge took.

        Args:
            on_event: Called after each event.
        """
        plan, call = self.plan, self.call
        events = (
            in_time_order(call)
            if plan.arrival_seed is None
            else in_random_order(call, plan.arrival_seed)
        )
        redactor = Redactor(plan.redaction)
        arrivals = list(arrivals_of(call.conversation_id, events, self.refused, redactor))
        goals = ChosenGoals(_Given(self.goal_set), plan.rules)
        limits = _limits_for(arrivals, plan.limits)
        evaluator = PartitionEvaluator(
            limits,
            plan.code_version,
            goals,
            writes_transcripts=plan.writes_transcripts,
            redactor=redactor,
        )
        for arrival, known_ms in zip(arrivals, _known_until(arrivals), strict=True):
            while (wakeup_ms := evaluator.next_wakeup()) is not None and wakeup_ms <= known_ms:
                yield from self._written(
                    evaluator, evaluator.advance(wakeup_ms, self._next_place())
                )
            if arrival is not None:
                arrival.offset = self._next_place()
                yield from self._written(evaluator, evaluator.receive(arrival))
            on_event()
        while (wakeup_ms := evaluator.next_wakeup()) is not None:
            yield from self._written(evaluator, evaluator.advance(wakeup_ms, self._next_place()))

    def _next_place(self) -> int:
        """The number of the next step, as if there were a log: an event, a verdict, or time that
        passes.
        """
        self._place += 1
        return self._place

    def newest_rows(self) -> list[Row]:
        """The newest row of each turn and of the call, with its goals, in the order of turns; the
        row of the call is the last.
        """
        goals = [row for row in self.rows if isinstance(row, GoalsRow)]
        turns = {row.turn: row for row in self.rows if isinstance(row, TurnRow)}
        calls = [row for row in self.rows if isinstance(row, CallRow)]
        return [*goals[-1:], *(turns[number] for number in sorted(turns)), *calls[-1:]]

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences for a person: what the recording lacks, and the events that are not in the
        scores.
        """
        return (*self.lacks, *about_refused(self.call.conversation_id, self.refused))

    def _written(self, evaluator: PartitionEvaluator, effects: Iterable[Effect]) -> Asking:
        requests = self._taken(effects)
        while requests:
            verdicts = yield requests
            answers: list[Effect] = []
            for request, verdict in zip(requests, verdicts, strict=True):
                answers += evaluator.receive(self._arrival(request, verdict))
            requests = self._taken(answers)

    def _taken(self, effects: Iterable[Effect]) -> list[JudgeRequest]:
        """Keeps the rows, and gives the questions."""
        requests = []
        for effect in effects:
            match effect:
                case PublishRow(row):
                    self.rows.append(row)
                case PublishWords(words):
                    self.words.append(words)
                case PublishTranscript(value=transcript):
                    self.transcript = transcript
                case RequestVerdict(request):
                    requests.append(request)
                case _:
                    pass  # counts are for a process that runs on
        return requests

    def _arrival(self, request: JudgeRequest, verdict: JudgeVerdict) -> Arrival:
        asked_ms = request.asked_at_ms
        answer = verdict.model_copy(update={"timestamp": asked_ms})
        return Arrival(
            InputSource.JUDGE,
            self._next_place(),
            asked_ms,
            request.conversation_id,
            answer,
            b"",
            None,
        )


NO_GOAL_SET: Final = "no goal set is for it, by name, id or agent. It has no progress."


def scoring_of(recorded: RecordedCall, plan: ScoringPlan) -> RecordedScoring:
    """A recorded call with the goals that are for it, before it is scored.

    Raises:
        RecordingError: A file beside the events cannot be read.
    """
    call = with_state(with_control_events(recorded, agent=plan.agent))
    goal_set = None if plan.sets is None else plan.sets.of(call)
    lacks = miss_sentences(recorded)
    if plan.sets is not None and goal_set is None:
        lacks.append(f"Call {call.conversation_id}: {NO_GOAL_SET}")
    return RecordedScoring(call, plan, goal_set, lacks=tuple(lacks))


def scored(recorded: RecordedCall, plan: ScoringPlan) -> RecordedScoring:
    """A recorded call after it was scored without a judge. Raises as `scoring_of`."""
    scoring = scoring_of(recorded, plan)
    deque(scoring.run(), maxlen=0)  # nothing is asked
    return scoring


def score_judged(
    scorings: Iterator[RecordedScoring],
    settings: Settings,
    show: Callable[[RecordedScoring], None],
    on_event: Callable[[], None] = _not_counted,
    verdicts: Path | None = None,
) -> None:
    """Scores calls with a judge: many side by side, because each waits for the judge most of its
    time; shows them in their order.

    Args:
        scorings: The calls before they are scored.
        settings: The judge with its limits and budgets.
        show: Called with each call that is scored.
        on_event: Called after each event.
        verdicts: File of kept verdicts; None keeps none.

    Raises:
        VerdictFileError: The file of verdicts cannot be used.
        SetupError: A setting of the judge is missing.
        OperatorError: The judge answers nothing.
    """
    from streamer.offline.judge_in_process import (
        JudgeInProcess,
        side_by_side,
    )  # brings the judge, which most commands do not need

    async def judged(scoring: RecordedScoring, judge: JudgeInProcess | None) -> RecordedScoring:
        assert judge is not None, "a judge is asked"  # noqa: S101 - it is, four lines below
        asking = scoring.run(on_event)
        requests = next(asking, None)
        while requests is not None:
            try:
                requests = asking.send(
                    [*await asyncio.gather(*map(judge.answer_whatever_the_rate, requests))]
                )
            except StopIteration:
                requests = None
        return scoring

    side_by_side(scorings, judged, show, settings, settings.judge, verdicts)


def _known_until(arrivals: Sequence[Arrival | None]) -> list[int]:
    """For each event up to when all is known before it is read: nothing that is still unread came
    sooner.
    """
    known: list[int] = []
    earliest_ms = _FOR_EVER_MS
    for arrival in reversed(arrivals):
        if arrival is not None:
            earliest_ms = min(earliest_ms, arrival.broker_time_ms)
        known.append(earliest_ms)
    return known[::-1]


def _limits_for(arrivals: Iterable[Arrival | None], limits: Limits) -> Limits:
    """The limits with which no event of the call comes after its end: a recording is complete, so a
    pause in it is no end.
    """
    there = [arrival for arrival in arrivals if arrival is not None]
    ends_ms = [arrival.broker_time_ms for arrival in there if _is_end(arrival.event)]
    last_ms = max((arrival.broker_time_ms for arrival in there), default=0)
    grace_ms = max([limits.closing_grace_ms, *(last_ms - end_ms + 1 for end_ms in ends_ms)])
    whole_ms = last_ms - min((arrival.broker_time_ms for arrival in there), default=0) + 1
    times = {
        "closing_grace_ms": grace_ms,
        "idle_ms": max(limits.idle_ms, whole_ms),
        "max_call_duration_ms": max(
            limits.max_call_duration_ms, 2 * whole_ms + limits.idle_ms + grace_ms
        ),
    }
    return limits.model_copy(update=_NEVER_CUT_OFF | times)


def _is_end(event: object) -> bool:
    match event:
        case CallEnded():
            return True
        case ConversationRecord():
            return event.is_final
        case ConnectionState(data=data):
            return data.state == "session_ended"
    return False
