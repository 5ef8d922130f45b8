"""A call as its records of `scores` show it, the newest of each."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field, TypeAdapter

from schemas.closed_sets import Anchor, ToolOutcome, UnscoredReason
from schemas.scores.latency_stages import ServiceKind, Stage
from schemas.scores.records import (
    AgentErrorsFact,
    AnyScoreRecord,
    CallLabels,
    CallStartedFact,
    CallValues,
    ClosedFact,
    DeadAirFact,
    GoalsFact,
    InterruptionFact,
    ProgressScore,
    Result,
    Scored,
    ScoreModel,
    StallFact,
    SubgoalScore,
    ToolUseFact,
    TurnValues,
    Unscored,
    VoiceToVoiceLatency,
)

# Selects the scores of a call that count: the newest revision of each subject, unless it is withdrawn.

Subject = tuple[str, int | None, int]
"""Name, turn and index of a record. Of the same subject a higher revision replaces a lower one, and of equal ones the last counts."""


class _ShownPart(ScoreModel):
    """The fields that the view reads of every record."""

    conversation_id: str
    turn: int | None = None
    index: int = 0
    revision: int
    caused_at_ms: int
    labels: CallLabels


class ShownStage(ScoreModel):
    """The part of a `StageLatency` that the view shows."""

    stage: Stage
    latency_ms: float


class ShownTurn(_ShownPart):
    """The part of a `TurnValues` that the view shows: reading the rest takes six times as long."""

    name: Literal["turn"]
    stages: tuple[ShownStage, ...] = ()
    is_withdrawn: bool = False


class ShownCallValues(_ShownPart):
    """The part of a `CallValues` that the view shows."""

    name: Literal["call"]
    is_over: bool = False


ShownRecord = AnyScoreRecord | ShownTurn | ShownCallValues
SHOWN_RECORD: Final[TypeAdapter[ShownRecord]] = TypeAdapter(
    Annotated[
        VoiceToVoiceLatency | CallStartedFact | InterruptionFact | DeadAirFact | ToolUseFact | AgentErrorsFact | GoalsFact | SubgoalScore
        | ProgressScore | StallFact | ShownTurn | ShownCallValues | ClosedFact,
        Field(discriminator="name"),
    ]
)  # fmt: skip
"""Reads one value of the `scores` topic as far as the view needs it."""


def newest_scores(records: Iterable[AnyScoreRecord]) -> dict[Subject, AnyScoreRecord]:
    """Returns the newest revision of each subject of one call, in the order in which they were written.

    Args:
        records: All records of the call in order. Once `closed` is among them, the newest revisions are final.
    """
    newest: dict[Subject, AnyScoreRecord] = {}
    for record in records:
        subject = (record.name, record.turn, record.index)
        last = newest.pop(subject, None)
        newest[subject] = record if last is None or last.revision <= record.revision else last
    return {subject: record for subject, record in newest.items() if not is_withdrawn(record)}


def is_withdrawn(record: ShownRecord) -> bool:
    """Whether this revision withdraws the earlier ones without a new value.

    A latency is withdrawn whenever it has no value; the record of its turn has the reason.
    """
    match record:
        case VoiceToVoiceLatency():
            return not isinstance(record.result, Scored)
        case SubgoalScore() | ProgressScore():
            return isinstance(record.result, Unscored) and record.result.reason is UnscoredReason.WITHDRAWN
        case TurnValues() | ShownTurn() | InterruptionFact() | ToolUseFact():
            return record.is_withdrawn
    return False


# The view of one call as it is now, folded record by record from `scores`: the state behind tables and pages of
# running calls.
#
# The fold does not depend on the order of the records: of each subject the newest revision counts, of equal ones (decided by one step) the
# last, and a record that comes twice counts once. Nothing here reads a clock; times are those of the records.

MAX_SUBJECTS: Final = 5_000
"""Subjects of turns kept of one call: some twenty for each turn of a two-hour call. Beyond it the oldest turns are dropped, and
the counts cover the rest."""
MAX_JUDGED_TURNS: Final = 20
"""Judged turns kept of one call: as many as goal sets count by default. Late events can show that the newest turns do not exist;
should all of these be withdrawn at once, progress is unknown until the next turn is judged."""


def _value_of(result: Result) -> float | None:
    return result.value if isinstance(result, Scored) else None


class JudgedTurn(NamedTuple):
    """Progress of a call after one turn.

    Attributes:
        turn: Its number.
        revision: Revision of its progress record.
        reached: How many subgoals were reached.
        missing: How many subgoals have no verdict.
        progress: The share of subgoals that were reached, from 0 to 1; None when it is not known.
        is_withdrawn: Whether later events showed that there is no such turn.
        auc: agent-inspect's area under the progress curve up to this turn, from 0 to 1; None when it is not known.
        ppt: Progress divided by the turn that first had it, from 0 to 1; None when it is not known.
    """

    turn: int
    revision: int
    reached: int
    missing: int
    progress: float | None
    is_withdrawn: bool = False
    auc: float | None = None
    ppt: float | None = None


class CallGoals(NamedTuple):
    """Progress of one call towards its goals.

    Attributes:
        subgoals: How many subgoals the call has; 0 for a call without goals, or whose goals are not known yet.
        judged: The newest judged turns in order, at most `MAX_JUDGED_TURNS`, withdrawn ones included.
        goal_set: Name of its goal set; None for a call without goals, or whose goals are not known yet.
    """

    subgoals: int = 0
    judged: tuple[JudgedTurn, ...] = ()
    goal_set: str | None = None

    @property
    def newest(self) -> JudgedTurn | None:
        """The newest judged turn that is not withdrawn; None before the first."""
        return next((each for each in reversed(self.judged) if not each.is_withdrawn), None)

    @property
    def reached(self) -> int:
        """How many subgoals are reached after the newest judged turn."""
        return 0 if self.newest is None else self.newest.reached

    @property
    def progress(self) -> float | None:
        """Share of the subgoals that are reached after the newest judged turn; None when that is not known."""
        return None if self.newest is None else self.newest.progress

    def after(self, record: ShownRecord) -> "CallGoals":
        """Returns the goals after one more record of the call.

        A reader that starts in the middle of a call learns of its goals at the next judged turn. When a turn is withdrawn, the
        one before it counts again, although nothing is published for it.
        """
        match record:
            case GoalsFact():
                subgoals = max(self.subgoals, len(record.goal_set.subgoals))
                return self._replace(subgoals=subgoals, goal_set=record.goal_set.id)
            case ProgressScore():
                return self._after_turn(record)
            case _:
                return self

    def had_reached(self, turn: int) -> int:
        """How many subgoals were reached after `turn`; for a turn older than the kept ones, after the oldest of those."""
        kept = [each for each in self.judged if not each.is_withdrawn]
        before = [each for each in kept if each.turn <= turn]
        if before:
            return before[-1].reached
        return kept[0].reached if kept and turn > 0 else 0

    def _after_turn(self, record: ProgressScore) -> "CallGoals":
        judged = {each.turn: each for each in self.judged}
        turn = record.turn or 0
        is_gone = is_withdrawn(record)
        last = judged.get(turn)
        if last is None or last.revision <= record.revision:
            progress, auc, ppt = (_value_of(result) for result in (record.result, record.auc, record.ppt))
            judged[turn] = JudgedTurn(
                turn, record.revision, record.reached, record.missing, progress, is_gone, auc, ppt
            )
        subgoals = self.subgoals if is_gone else max(self.subgoals, record.subgoals)
        return self._replace(subgoals=subgoals, judged=tuple(sorted(judged.values())[-MAX_JUDGED_TURNS:]))


class MeasuredLatency(NamedTuple):
    """A voice-to-voice latency.

    Attributes:
        turn: The turn that was answered.
        latency_ms: Milliseconds; negative when the assistant began before the user had ended.
        anchor: How the end of the user's speech is known.
    """

    turn: int
    latency_ms: float
    anchor: Anchor | None


class GoalsReached(NamedTuple):
    """Subgoals of a call by their state: `reached` of `subgoals`, and `missing` without a verdict."""

    reached: int
    missing: int
    subgoals: int


class SlowestStage(NamedTuple):
    """The stage of a left turn that took longest, and its milliseconds."""

    turn: int
    stage: Stage
    latency_ms: float


class Wait(NamedTuple):
    """A caller who has finished and has no answer yet.

    Attributes:
        turn: The turn that is not answered.
        since_ms: Broker time from which nobody spoke; of several silences in one wait that of the first.
        silences: How many of its silences became dead air: the caller spoke again after each but the last.
    """

    turn: int
    since_ms: int
    silences: int


class ReportedErrors(NamedTuple):
    """The errors that the agent of a call reported.

    Attributes:
        number: How many so far.
        known_ms: Broker time at which the newest of them were known.
        component: The service of the newest, if the bot names it.
    """

    number: int
    known_ms: int
    component: ServiceKind | None


class CallView(NamedTuple):
    """One call as its records show it so far.

    Attributes:
        conversation_id: The call.
        labels: Agent, tenant and environment; `unknown` until `call_started` names them.
        first_seen_ms: Earliest broker time of a cause of its records.
        changed_ms: Latest broker time of a cause of its records.
        turn: The newest turn with a record; None before the first, 0 for the greeting.
        latency: The latency of the newest turn that has one.
        user_interruptions: How often the user interrupted the assistant.
        assistant_interruptions: How often the assistant interrupted the user.
        dead_airs: How often nobody spoke for longer than the threshold.
        tool_calls: How many tool calls have an outcome.
        goals: Subgoals after the newest judged turn; None before the first, and without goals.
        is_stalled: Whether the call runs and reached no further subgoal since its last stall.
        closed: The closing record, once there is one.
        wait: The wait that became dead air and goes on; None while the caller speaks or is answered.
        slowest_stage: The slowest stage of the turn of `latency`; None until the call has left that turn.
        interrupted_turns: The turns with an interruption, in order, one entry for each.
        dead_air_turns: The turns with dead air, in order, one entry for each.
        failing_tools: By tool, how many of its newest uses in a row failed; tools that worked at last are not in it.
        stalled_since: The turn after which no subgoal was reached, for a stalled call.
        errors: The errors that its agent reported; None without any.
        is_over: Whether the call is over; one that is not closed yet waits for verdicts.
        version: The agent's version, if the call says it.
    """

    conversation_id: str
    labels: CallLabels
    first_seen_ms: int
    changed_ms: int
    turn: int | None
    latency: MeasuredLatency | None
    user_interruptions: int
    assistant_interruptions: int
    dead_airs: int
    tool_calls: int
    goals: GoalsReached | None
    is_stalled: bool
    closed: ClosedFact | None
    wait: Wait | None = None
    slowest_stage: SlowestStage | None = None
    interrupted_turns: tuple[int, ...] = ()
    dead_air_turns: tuple[int, ...] = ()
    failing_tools: tuple[tuple[str, int], ...] = ()
    stalled_since: int | None = None
    errors: ReportedErrors | None = None
    is_over: bool = False
    version: str | None = None

    @property
    def agent(self) -> str:
        """Name of the voice agent; `unknown` until `call_started` says it."""
        return self.labels.agent


class _TurnIndex(NamedTuple):
    """Turn and index of a record. The oldest turns sort first."""

    turn: int
    number: int


class _Answer(NamedTuple):
    """The latency of one answer, and when it was known."""

    latency: MeasuredLatency
    known_ms: int


class _Silence(NamedTuple):
    """One silence that became dead air: its turn, its beginning in broker time, and when it was known."""

    turn: int
    since_ms: int
    known_ms: int


class _ToolUse(NamedTuple):
    """One use of a tool with an outcome."""

    tool: str
    has_failed: bool


class _Newest(NamedTuple):
    """The newest revision of a subject, as far as the view shows it."""

    revision: int
    is_withdrawn: bool
    shown: _Answer | SlowestStage | _Silence | _ToolUse | None


class CallFold:
    """Folds the records of one call; `view` shows the result.

    Attributes:
        closed: The closing record, once there is one.
        first_seen_ms: Earliest broker time of a cause of its records.
        changed_ms: Latest broker time of a cause of its records.
    """

    def __init__(self, first: ShownRecord) -> None:
        """Starts with one record of the call, whichever comes first."""
        self.closed: ClosedFact | None = None
        self.first_seen_ms = self.changed_ms = first.caused_at_ms
        self._conversation_id = first.conversation_id
        self._labels = first.labels
        self._labels_rank = _labels_rank(first)
        self._goals = CallGoals()
        self._stalled_since: int | None = None
        self._newest: dict[str, dict[_TurnIndex, _Newest]] = {}
        self._oldest: list[tuple[_TurnIndex, str]] | None = None
        """All subjects of turns as a heap, once there have been too many: looking through all of them for the oldest takes long."""
        self._is_over = False
        self._started: CallStartedFact | None = None
        self._errors: AgentErrorsFact | None = None
        self._view: CallView | None = None
        self.fold(first)

    def fold(self, record: ShownRecord) -> bool:
        """Takes in one record of this call, in any order and any number of times.

        Returns:
            Whether the view can differ by more than the times of its first and its last record.
        """
        self.first_seen_ms = min(self.first_seen_ms, record.caused_at_ms)
        self.changed_ms = max(self.changed_ms, record.caused_at_ms)
        is_news = self._take(record)
        if is_news:
            self._view = None
        elif self._view is not None:
            self._view = self._view._replace(first_seen_ms=self.first_seen_ms, changed_ms=self.changed_ms)
        return is_news

    @property
    def labels(self) -> CallLabels:
        """The newest labels of the call."""
        return self._labels

    def view(self) -> CallView:
        """Returns the call as it looks now."""
        if self._view is None:
            self._view = self._viewed()
        return self._view

    def _take(self, record: ShownRecord) -> bool:
        has_news = False
        if (rank := _labels_rank(record)) >= self._labels_rank:
            has_news = rank[2] != self._labels_rank[2]
            self._labels, self._labels_rank = record.labels, rank
        match record:
            case CallStartedFact():
                if self._started is None or self._started.revision <= record.revision:
                    self._started = record
            case StallFact():
                self._stalled_since = max(record.since_turn, self._stalled_since or 0)
            case ClosedFact():
                if self.closed is None or self.closed.revision <= record.revision:
                    self.closed = record
            case AgentErrorsFact():
                if self._errors is None or self._errors.revision <= record.revision:
                    self._errors = record
            case CallValues() | ShownCallValues():
                self._is_over = self._is_over or record.is_over
            case _:
                before, self._goals = self._goals, self._goals.after(record)
                has_news |= self._goals is not before
                return (record.turn is not None and self._take_of_turn(record, record.turn)) or has_news
        return True

    def _take_of_turn(self, record: ShownRecord, turn: int) -> bool:
        newest, place = self._newest.setdefault(record.name, {}), _TurnIndex(turn, record.index)
        last = newest.get(place)
        if last is not None and last.revision > record.revision:
            return False
        newest[place] = _Newest(record.revision, is_withdrawn(record), _shown(record, turn))
        if last is None and sum(map(len, self._newest.values())) > MAX_SUBJECTS:
            if self._oldest is None:
                self._oldest = [(each, name) for name, places in self._newest.items() for each in places]
                heapify(self._oldest)
            else:
                heappush(self._oldest, (place, record.name))
            oldest, name = heappop(self._oldest)
            del self._newest[name][oldest]
        return last is None or last[1:] != newest[place][1:]

    def _there(self, name: str) -> list[tuple[_TurnIndex, _Newest]]:
        """The subjects with this name that are not withdrawn, in order."""
        return sorted(each for each in self._newest.get(name, {}).items() if not each[1].is_withdrawn)

    def _viewed(self) -> CallView:
        turns = [place.turn for kind in self._newest.values() for place, each in kind.items() if not each.is_withdrawn]
        turn = max(turns, default=None)
        answers = [
            each.shown for _, each in self._there("voice_to_voice_latency_ms") if isinstance(each.shown, _Answer)
        ]
        silences = [each.shown for _, each in self._there("dead_air") if isinstance(each.shown, _Silence)]
        uses = [each.shown for _, each in self._there("tool_call") if isinstance(each.shown, _ToolUse)]
        by_user, by_assistant = ([place.turn for place, _ in self._there(name)] for name in _INTERRUPTIONS)
        latency = answers[-1].latency if answers else None
        judged = self._goals.newest
        is_stalled = self._is_stalled()
        is_over = self._is_over or self.closed is not None
        return CallView(
            conversation_id=self._conversation_id,
            labels=self._labels,
            first_seen_ms=self.first_seen_ms,
            changed_ms=self.changed_ms,
            turn=turn,
            latency=latency,
            user_interruptions=len(by_user),
            assistant_interruptions=len(by_assistant),
            dead_airs=len(silences),
            tool_calls=len(uses),
            goals=None if judged is None else GoalsReached(judged.reached, judged.missing, self._goals.subgoals),
            is_stalled=is_stalled,
            closed=self.closed,
            wait=None if is_over or turn is None else _wait(max(0, turn), answers, silences),
            slowest_stage=None if latency is None else self._slowest_stage(latency.turn),
            interrupted_turns=tuple(sorted(by_user + by_assistant)),
            dead_air_turns=tuple(each.turn for each in silences),
            failing_tools=_failing(uses),
            stalled_since=self._stalled_since if is_stalled else None,
            errors=None
            if self._errors is None
            else ReportedErrors(self._errors.errors, self._errors.caused_at_ms, self._errors.component),
            is_over=is_over,
            version=None if self._started is None else self._started.version,
        )

    def _slowest_stage(self, turn: int) -> SlowestStage | None:
        values = self._newest.get("turn", {}).get(_TurnIndex(turn, 0))
        if values is None or values.is_withdrawn or not isinstance(values.shown, SlowestStage):
            return None
        return values.shown

    def _is_stalled(self) -> bool:
        since = self._stalled_since
        return self.closed is None and since is not None and self._goals.reached == self._goals.had_reached(since)


_INTERRUPTIONS: Final = ("interruption_by_user", "interruption_by_assistant")
_INSIDE_STAGES: Final = frozenset({Stage.VOICE_TO_VOICE, Stage.FIRST_SPEECH, Stage.LLM_LAST_SENTENCE})
"""Stages that explain no wait: they are the wait itself, or go on after the answer has begun."""


def _shown(record: ShownRecord, turn: int) -> _Answer | SlowestStage | _Silence | _ToolUse | None:
    """Returns the part of a turn's record that the view shows."""
    match record:
        case VoiceToVoiceLatency(result=Scored(value=latency_ms)):
            return _Answer(MeasuredLatency(turn, latency_ms, record.anchor), record.caused_at_ms)
        case TurnValues() | ShownTurn():
            stages = [each for each in record.stages if each.stage not in _INSIDE_STAGES]
            slowest = max(stages, key=lambda each: each.latency_ms, default=None)
            return None if slowest is None else SlowestStage(turn, slowest.stage, slowest.latency_ms)
        case DeadAirFact():
            # Its own clock may differ from the broker's, so the silence is taken to begin by the threshold before it was known.
            return _Silence(turn, record.caused_at_ms - record.threshold_ms, record.caused_at_ms)
        case ToolUseFact():
            return _ToolUse(record.tool, record.outcome is ToolOutcome.ERROR)
    return None


def _wait(turn: int, answers: Iterable[_Answer], silences: Iterable[_Silence]) -> Wait | None:
    """The wait that goes on: dead air of the newest turn, of which no answer is known since."""
    answered_ms = max((each.known_ms for each in answers if each.latency.turn == turn), default=-1)
    found = [each.since_ms for each in silences if each.turn == turn and each.known_ms > answered_ms]
    return Wait(turn, min(found), len(found)) if found else None


def _failing(uses: Iterable[_ToolUse]) -> tuple[tuple[str, int], ...]:
    """By tool, how often it failed since it last worked."""
    failed: dict[str, int] = {}
    for use in uses:
        if use.has_failed:
            failed[use.tool] = failed.get(use.tool, 0) + 1
        else:
            failed.pop(use.tool, None)
    return tuple(failed.items())


def _labels_rank(record: ShownRecord) -> tuple[bool, int, tuple[str, ...]]:
    """The higher, the newer the labels: `call_started` is published again when they change, other records only carry them."""
    is_start = isinstance(record, CallStartedFact)
    labels = record.labels
    names = (labels.agent, labels.tenant, labels.environment, labels.pipeline_type)
    return is_start, record.revision if is_start else record.caused_at_ms, names
