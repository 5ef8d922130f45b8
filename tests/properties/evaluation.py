"""Drives a partition evaluator through arrivals, and names the results, so that two runs can be compared."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from consumers.engine.admission import Arrival
from consumers.engine.effects import CloseCall, Count, Effect
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from consumers.engine.measures.eva_timing import NOT_ANSWERED
from schemas.closed_sets import TURN_JUDGES, UnscoredReason
from schemas.goals.goal_set import GoalSet
from schemas.scores.records import (
    STAGE_PREFIX,
    TURN_VALUE_NAMES,
    AnyScoreRecord,
    CallStartedFact,
    CallValues,
    ClosedFact,
    DeadAirFact,
    InterruptionFact,
    Scored,
    ToolUseFact,
    TurnValues,
    Unscored,
    VoiceToVoiceLatency,
)
from tests.support.fakes.engine_feed import Json, closings_of, records_of, said

Subject = tuple[str, int | None, int]
"""Name, turn and index of a record."""

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


def taken_over(arrivals: Sequence[Arrival], limits: Limits = LIMITS) -> PartitionEvaluator:
    """A later owner, which has folded these records of one call again, silently."""
    evaluator = fresh(limits)
    for arrival in arrivals:
        evaluator.receive(arrival)
    return evaluator


def run(arrivals: Sequence[Arrival], limits: Limits = LIMITS) -> list[Effect]:
    """A fresh evaluator, all arrivals, then silence until every call has closed."""
    evaluator = fresh(limits)
    effects = fold(evaluator, arrivals)
    effects += evaluator.advance(end_of(arrivals))
    assert evaluator.open_calls == ()
    return effects


def outcomes_of(evaluator: PartitionEvaluator) -> list[Count]:
    """The counts of events by outcome, drained; other counts, as of skewed clocks, say nothing of that."""
    return [count for count in evaluator.drain_counts() if count.metric == "callgauge_events_total"]


def end_of(arrivals: Sequence[Arrival]) -> int:
    """A broker time at which every call of these arrivals has closed."""
    return max(arrival.broker_time_ms for arrival in arrivals) + LONG_AFTER_MS


def renumbered(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """The same records with the offsets of their present order."""
    return [replace(arrival, offset=place) for place, arrival in enumerate(arrivals)]


def newest(records: Iterable[AnyScoreRecord]) -> dict[Subject, AnyScoreRecord]:
    """By subject: its last revision."""
    return {(record.name, record.turn, record.index): record for record in records}


def final_state(effects: Sequence[Effect]) -> dict[Subject, Json]:
    """By subject: the final records of the only call after its close, without decisions by silence.

    That is the newest revision of everything that was not taken back.
    """
    return final_values(records_of(effects))


def final_values(records: Sequence[AnyScoreRecord]) -> dict[Subject, Json]:
    """As `final_state`, of all records of the only call: it closes once, and they end with that of the call and the `closed` fact."""
    assert sum(isinstance(record, ClosedFact) for record in records) == 1
    assert [record.name for record in records[-2:]] == ["call", "closed"]
    last = newest(record for record in records if not isinstance(record, DeadAirFact))
    return {subject: _lasting(record) for subject, record in last.items() if holds(record)}


def closing_of_one(effects: Iterable[Effect]) -> CloseCall:
    """The closing of the only call: it ends with the record of the call and the `closed` fact."""
    (closing,) = closings_of(effects)
    assert [record.name for record in closing.records[-2:]] == ["call", "closed"]
    return closing


def holds(record: AnyScoreRecord) -> bool:
    """Whether it says something, as against taking something back."""
    result = getattr(record, "result", None)
    if isinstance(result, Unscored) and result.reason is UnscoredReason.WITHDRAWN:
        return False
    return not getattr(record, "is_withdrawn", False)


def _lasting(record: AnyScoreRecord) -> Json:
    """The content of a record that does not depend on its time.

    Only the records of the call and its end are always of the close: what others have of a time, of a status or of labels is of
    the moment at which they changed. Which of two end events came first is a matter of arrival, so not why a call closed.
    """
    left_out = set() if isinstance(record, CallValues | ClosedFact) else {"event_time_ms", "status", "labels"}
    if isinstance(record, CallStartedFact):
        left_out -= {"labels"}
    if isinstance(record, ClosedFact):
        left_out |= {"reason", "input_hash"}
    return {name: value for name, value in said(record).items() if name not in left_out}


def assert_counted(records: Iterable[AnyScoreRecord]) -> None:
    """The revisions of the records of one call never fall, and everything that counters and histograms take is in them once.

    However many evaluators wrote them: a subject with a value in its newest revision was marked by then.
    """
    last: dict[Subject, AnyScoreRecord] = {}
    ids: set[str] = set()
    first: set[Subject] = set()
    known: Counter[tuple[int | None, str]] = Counter()
    for record in records:
        subject = (record.name, record.turn, record.index)
        before = last.get(subject)
        assert before is None or before.revision <= record.revision, f"{subject} goes back to an older revision"
        assert before is None or before.input_hash != record.input_hash, f"{subject} is restated"
        last[subject] = record
        assert record.record_id not in ids, "a record is written twice"
        ids.add(record.record_id)
        assert not (record.is_first and subject in first), f"{subject} counts twice"
        if record.is_first:
            first.add(subject)
        if isinstance(record, TurnValues):
            known.update((record.turn, name) for name in record.first_known)
            values = counted_values(record)
            assert set(record.first_known) <= values
            assert all(known[record.turn, name] == 1 for name in values), "each value is marked once, when it is known"
        assert subject in first or not _counts(record), f"{subject} is not counted"
    assert not known or max(known.values()) == 1


def counted_values(record: TurnValues) -> set[str]:
    """The values of a turn that histograms take, by the names of `first_known`."""
    scores = {name: getattr(record, name) for name in ("turn_taking", *TURN_JUDGES)}
    is_known = {name: score is not None and isinstance(score.result, Scored) for name, score in scores.items()}
    is_known["estimate_error_ms"] = record.estimate_error is not None
    assert is_known.keys() == {*TURN_VALUE_NAMES} - {"voice_to_voice_latency_ms"}, "each value is looked for here"
    return {STAGE_PREFIX + each.stage for each in record.stages} | {name for name in is_known if is_known[name]}


def _counts(record: AnyScoreRecord) -> bool:
    """Whether it says something that is counted."""
    if isinstance(record, TurnValues):
        return holds(record) and record.voice_to_voice_ms != NOT_ANSWERED
    if isinstance(record, VoiceToVoiceLatency):
        return isinstance(record.result, Scored)
    return isinstance(record, InterruptionFact | ToolUseFact) and holds(record)


def effects_of_calls(effects: Iterable[Effect]) -> dict[str, list[Json]]:
    """By conversation: everything written to `scores`, without the places in the log, which other records move."""
    by_call: dict[str, list[Json]] = {}
    for record in records_of(effects):
        plain = record.model_dump(mode="json", exclude={"offsets", "through", "revision", "record_id"})
        by_call.setdefault(record.conversation_id, []).append(plain)
    return by_call


def is_closed_by(effect: Effect, conversation_id: str) -> bool:
    """Whether it closes this call."""
    return isinstance(effect, CloseCall) and effect.conversation_id == conversation_id
