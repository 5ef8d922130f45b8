"""EVA's metrics while a call runs: right after every event, EVA's own in the end, and every settled turn that changes is counted."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.effects import Count, Effect
from consumers.engine.eva_metrics.heard_times import heard_times
from consumers.engine.eva_metrics.turn_taking import turn_scores_of
from consumers.engine.eva_metrics.turn_values import live_value
from consumers.engine.settled_turns import ChangeCause
from consumers.engine.speaking import SpeakingMachine
from schemas.eva_scores import TurnTakingScore
from schemas.score_record import Scored, TurnStatus
from schemas.scores import TurnFact
from tests.engine_feed import records_of
from tests.properties.evaluation import end_of, fresh
from tests.properties.steered_calls import drawn
from tests.wire_calls import arrivals_of


@given(st.data())
def test_after_every_event_each_turn_is_what_a_look_at_the_whole_call_says(data: st.DataObject) -> None:
    call, order = drawn(data)
    evaluator = fresh()
    for arrival in arrivals_of(call, order):
        evaluator.receive(arrival)
        calls = evaluator._calls.get(arrival.conversation_id)
        if calls is None:
            continue  # a limit or an end has closed it
        live, measure = calls.live, calls._measures.eva
        expected = {}
        for turn in live.machine.turns:
            heard = heard_times(live, turn, has_tool_call=turn in _turns_with_tools(live.machine.last_tool))
            value = None if heard is None else live_value(turn, heard)
            if value is not None:
                expected[turn] = value
        assert measure._values == expected


@given(st.data())
def test_in_the_end_each_turn_is_as_eva_says(data: st.DataObject) -> None:
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    evaluator = fresh()
    for arrival in arrivals:
        evaluator.receive(arrival)
    open_calls = list(evaluator._calls.values())
    expected = {}
    for each in open_calls:
        if not isinstance(each.live.machine, SpeakingMachine):
            expected = {turn: (s.score, s.reason.value) for turn, s in turn_scores_of(each.context()).items()}
    effects = evaluator.advance(end_of(arrivals))
    if expected:
        finals = [each for each in _timings(effects) if each.status is TurnStatus.FINAL]
        found = {each.turn: (each.result.value, each.reason) for each in finals if isinstance(each.result, Scored)}
        assert found == expected


@given(st.data())
def test_every_settled_turn_that_changes_is_counted(data: st.DataObject) -> None:
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    evaluator = fresh()
    said: dict[int | None, object] = {}
    then: dict[int | None, object] = {}
    counted: Counter[tuple[str, ...]] = Counter()

    def take(effects: list[Effect]) -> None:
        for record in _timings(effects):
            said[record.turn] = _what(record)
        for fact in records_of(effects):
            if isinstance(fact, TurnFact) and fact.status is TurnStatus.SETTLED:
                then.setdefault(fact.turn, said.get(fact.turn))
        for effect in effects:
            if isinstance(effect, Count) and effect.metric.startswith("callgauge_settled_turns"):
                counted[effect.metric, *effect.labels] += effect.by

    for arrival in arrivals:
        take(list(evaluator.receive(arrival)))
    take(list(evaluator.advance(end_of(arrivals))))
    changed = sum(said.get(turn) != value for turn, value in then.items())
    assert counted.pop(("callgauge_settled_turns_total",), 0) == len(then)
    assert counted.total() == changed
    causes = {("callgauge_settled_turns_changed_total", cause.value) for cause in ChangeCause}
    assert set(counted) <= causes


def _timings(effects: Any) -> list[TurnTakingScore]:
    return [record for record in records_of(effects) if isinstance(record, TurnTakingScore)]


def _what(record: TurnTakingScore) -> object:
    """What it says of the turn; that it says nothing is all the same, whatever the reason."""
    if not isinstance(record.result, Scored):
        return None
    how = {"result", "reason", "has_tool_call", "latency_ms", "overlap_ms", "interrupt_segments", "yield_ms"}
    return record.model_dump(include=how | {"post_interrupt_latency_ms"})


def _turns_with_tools(last: Any) -> set[int]:
    turns = set()
    while last is not None:
        if not last.is_response:
            turns.add(last.turn)
        last = last.previous
    return turns
