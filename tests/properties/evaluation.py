"""Drives a partition evaluator through arrivals, and names what came out so that two runs can be compared."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from consumers.engine.chosen_goals import ChosenGoals
from consumers.engine.effects import CloseCall, Effect
from consumers.engine.goal_rules import GoalRules
from consumers.engine.intake import Arrival
from consumers.engine.limits import Limits
from consumers.engine.partition import PartitionEvaluator
from schemas.goals import GoalSet
from schemas.scores import (
    AnyScoreRecord,
    ClosedFact,
    DeadAirFact,
    InterruptionFact,
    Unscored,
    UnscoredReason,
)
from tests.engine_feed import Json, closings_of, records_of, said

LIMITS = Limits()
LONG_AFTER_MS = 24 * 3_600_000
GOALS = GoalSet.model_validate(
    {
        "id": "goals",
        "subgoals": [
            {"id": "said", "details": "a word", "check": {"kind": "says", "speaker": "user", "pattern": "[aeiou]"}},
            {"id": "used", "details": "a tool", "check": {"kind": "tool_called", "tool": "rebook"}},
            {
                "id": "found",
                "details": "in time",
                "check": {
                    "kind": "within",
                    "turns": 2,
                    "check": {"kind": "tool_result", "tool": "Get_Order", "outcome": "success"},
                },
            },
            {
                "id": "never",
                "details": "not said",
                "check": {"kind": "not", "check": {"kind": "says", "speaker": "assistant", "pattern": "sorry"}},
            },
            {"id": "judged", "details": "judged by nobody here", "check": {"kind": "judge"}},
        ],
        "expected_tool_calls": [{"tool": "rebook", "turn": 0}],
    }
)
RULES = GoalRules(stall_turns=10**6, stall_ms=10**12)  # when a call is stuck is a matter of arrival


class EveryCall:
    """Every call that says anything of itself has the same goals."""

    def choose(self, goals_id: str | None, agent: str | None) -> GoalSet:
        del goals_id, agent
        return GOALS


def fresh(limits: Limits = LIMITS) -> PartitionEvaluator:
    """An evaluator that has seen nothing."""
    return PartitionEvaluator(limits, "test", ChosenGoals(EveryCall(), RULES), writes_transcripts=True)


def fold(evaluator: PartitionEvaluator, arrivals: Iterable[Arrival]) -> list[Effect]:
    """All arrivals, one by one, time standing still between them."""
    return [effect for arrival in arrivals for effect in evaluator.receive(arrival)]


def run(arrivals: Sequence[Arrival], limits: Limits = LIMITS) -> list[Effect]:
    """A fresh evaluator, all arrivals, then silence until every call has closed."""
    evaluator = fresh(limits)
    effects = fold(evaluator, arrivals)
    effects += evaluator.advance(end_of(arrivals))
    assert evaluator.open_calls == 0
    return effects


def end_of(arrivals: Sequence[Arrival]) -> int:
    """A broker time at which every call of these arrivals has closed."""
    return max(arrival.broker_time_ms for arrival in arrivals) + LONG_AFTER_MS


def renumbered(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """The same records with the offsets of the order in which they stand now, of one topic after the other."""
    last: dict[str, int] = {}
    result = []
    for arrival in arrivals:
        last[arrival.source] = last.get(arrival.source, -1) + 1
        result.append(replace(arrival, offset=last[arrival.source]))
    return result


def final_records(effects: Iterable[Effect]) -> list[Json]:
    """What the closing of the only call says. Which of two end events came first is a matter of arrival, so not why."""
    (closing,) = closings_of(effects)
    why = {"reason", "input_hash"}
    return [
        {name: value for name, value in said(record).items() if not (isinstance(record, ClosedFact) and name in why)}
        for record in closing.records
    ]


def final_state(effects: Sequence[Effect]) -> dict[tuple[str, int | None, int], Json]:
    """By subject: the last word on everything that was ever published and still holds, apart from what silence decided."""
    last: dict[tuple[str, int | None, int], AnyScoreRecord] = {}
    for record in records_of(effects):
        if not isinstance(record, DeadAirFact):
            last[record.name, record.turn, record.index] = record
    return {subject: without_times(record) for subject, record in last.items() if holds(record)}


def holds(record: AnyScoreRecord) -> bool:
    """Whether it says something, as against taking something back."""
    result = getattr(record, "result", None)
    if isinstance(result, Unscored) and result.reason is UnscoredReason.WITHDRAWN:
        return False
    return not getattr(record, "is_withdrawn", False)


def without_times(record: AnyScoreRecord) -> Json:
    """What it says, without the call's own time at which it was said, nor why a call closed, nor how final it is."""
    left_out = {"event_time_ms", "reason", "input_hash"}
    if isinstance(record, InterruptionFact):
        left_out |= {"status", "labels"}  # those of when it was noticed; the closing does not restate it
    return {name: value for name, value in said(record).items() if name not in left_out}


def effects_of_calls(effects: Iterable[Effect]) -> dict[str, list[Json]]:
    """By conversation: everything written to `scores`, without offsets."""
    by_call: dict[str, list[Json]] = {}
    for record in records_of(effects):
        plain = record.model_dump(mode="json", exclude={"offsets", "through"})
        by_call.setdefault(record.conversation_id, []).append(plain)
    return by_call


def is_closed_by(effect: Effect, conversation_id: str) -> bool:
    """Whether it closes this call."""
    return isinstance(effect, CloseCall) and effect.conversation_id == conversation_id
