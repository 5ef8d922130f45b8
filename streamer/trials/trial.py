"""One call as a trial of its goal set, folded from its score records. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from schemas.closed_sets import ToolOutcome, UnscoredReason
from schemas.goals.goal_set import GoalSet
from schemas.scores.live_view import Subject, newest_scores
from schemas.scores.records import (
    AnyScoreRecord,
    CallStartedFact,
    CallValues,
    ClosedFact,
    GoalsFact,
    NotApplicable,
    ProgressScore,
    Result,
    Scored,
    SubgoalScore,
    ToolUseFact,
    Unscored,
)

READ_NAMES: Final = frozenset({"call_started", "goals", "subgoal", "progress", "call", "tool_call", "closed"})
"""Names of the records that a trial is made of; a reader may leave out all others before it decodes them."""
_FAILED: Final = frozenset({ToolOutcome.ERROR, ToolOutcome.UNANSWERED})


@dataclass(frozen=True, slots=True)
class SubgoalOutcome:
    """The end of one subgoal in one call.

    Attributes:
        subgoal_id: Its name in the goal set.
        finding: Whether it was reached, or why nobody knows.
        reached_turn: The turn that reached it.
        votes_complete: Votes of the judge for "reached", in the verdict that decided; 0 for a check by code.
        votes_incomplete: Votes against it in the same verdict.
    """

    subgoal_id: str
    finding: bool | str
    reached_turn: int | None = None
    votes_complete: int = 0
    votes_incomplete: int = 0


@dataclass(frozen=True, slots=True)
class FailedTool:
    """A tool that answered with an error, or not at all, and the turn in which it was called; None if no turn is known."""

    tool: str
    turn: int | None


@dataclass(frozen=True, slots=True)
class Trial:
    """One closed call that had goals.

    Attributes:
        conversation_id: Its id.
        place: Where a person finds the call: a file, or the address of its page; empty if neither is known.
        goal_set: Its goals.
        version: Digest of the goals: sets of one name and two contents have two.
        success: Whether every subgoal was reached by the last turn that counts, or why nobody knows.
        progress: Share of the subgoals that were reached, or why nobody knows.
        subgoals: In the order of the goal set.
        stall_turn: In a call without success, the first turn after its last progress; None if there is no such turn.
        failed_tools: In the order of writing.
        closed_at_ms: Broker time at which the call closed.
    """

    conversation_id: str
    place: str
    goal_set: GoalSet
    version: str
    success: bool | str
    progress: float | str
    subgoals: tuple[SubgoalOutcome, ...]
    stall_turn: int | None
    failed_tools: tuple[FailedTool, ...]
    closed_at_ms: int = 0

    @property
    def missed(self) -> Iterator[str]:
        """The subgoals that were not reached, by id."""
        return (subgoal.subgoal_id for subgoal in self.subgoals if subgoal.finding is False)

    @property
    def failed_before_stall(self) -> Iterator[FailedTool]:
        """The tools that failed up to the turn in which the call stalls, that turn included; all if it does not stall."""
        last = self.stall_turn
        return (each for each in self.failed_tools if last is None or (each.turn is not None and each.turn <= last))


class CallFold:
    """The newest records of one call, as far as a trial needs them; records may come in any number of revisions.

    Attributes:
        has_start: Whether the first record of the call was among them.
        closed_at_ms: Broker time of the record that says that the call is over; None before it.
    """

    __slots__ = ("_newest", "closed_at_ms", "has_start")

    def __init__(self, records: Iterable[AnyScoreRecord] = ()) -> None:
        """Folds the records of a call that are there already."""
        self._newest: dict[Subject, AnyScoreRecord] = {}
        self.has_start = False
        self.closed_at_ms: int | None = None
        for record in records:
            self.take(record)

    def take(self, record: AnyScoreRecord) -> None:
        """Folds one more record of the call."""
        match record:
            case CallStartedFact():
                self.has_start = self.has_start or record.revision == 1  # further ones have new labels
            case ClosedFact():
                self.closed_at_ms = record.caused_at_ms
            case GoalsFact() | SubgoalScore() | ProgressScore() | CallValues() | ToolUseFact():
                subject = (record.name, record.turn, record.index)
                known = self._newest.get(subject)
                if known is None or known.revision <= record.revision:
                    self._newest[subject] = record

    def trial(self, conversation_id: str, place: str) -> Trial | None:
        """The call as a trial; None if it has no goals."""
        records = list(newest_scores(self._newest.values()).values())
        goals = next((record for record in records if isinstance(record, GoalsFact)), None)
        if goals is None:
            return None
        last = max((r for r in records if isinstance(r, ProgressScore)), key=lambda r: r.turn or 0, default=None)
        whole = next((record for record in records if isinstance(record, CallValues)), None)
        success = None if whole is None else whole.success_final_turn
        if success is None and last is not None:
            success = last.success
        known = _finding(success)
        found = {record.index: record for record in records if isinstance(record, SubgoalScore)}
        subgoals = tuple(
            _outcome(subgoal.id, found.get(index)) for index, subgoal in enumerate(goals.goal_set.subgoals)
        )
        tools = (record for record in records if isinstance(record, ToolUseFact) and record.outcome in _FAILED)
        return Trial(
            conversation_id=conversation_id,
            place=place,
            goal_set=goals.goal_set,
            version=goals.digest,
            success=known,
            progress=_value(last.result) if last is not None else _value(success),
            subgoals=subgoals,
            stall_turn=_stall_turn(subgoals, (last and last.turn) or 0) if known is False else None,
            failed_tools=tuple(FailedTool(tool.tool, tool.turn) for tool in tools),
            closed_at_ms=self.closed_at_ms or 0,
        )


def _value(result: Result | None) -> float | str:
    """The value, or why there is none."""
    match result:
        case Scored(value=value):
            return value
        case Unscored(reason=reason):
            return reason.value
        case NotApplicable(reason=why):
            return why
    return UnscoredReason.NO_TURN_JUDGED.value


def _finding(result: Result | None) -> bool | str:
    value = _value(result)
    return value if isinstance(value, str) else value == 1


def _outcome(subgoal_id: str, record: SubgoalScore | None) -> SubgoalOutcome:
    if record is None:
        return SubgoalOutcome(subgoal_id, UnscoredReason.NO_TURN_JUDGED.value)
    votes = (record.votes_complete, record.votes_incomplete)
    return SubgoalOutcome(subgoal_id, _finding(record.result), record.reached_turn, *votes)


def _stall_turn(subgoals: Iterable[SubgoalOutcome], last_turn: int) -> int | None:
    """The turn after the last one that reached a subgoal, if the call has such a turn."""
    after = 1 + max((each.reached_turn for each in subgoals if each.reached_turn is not None), default=0)
    return after if after <= last_turn else None
