"""EVA's metrics while a call runs: right after every event, EVA's own in the end, and every settled turn that changes is counted."""

from collections import Counter
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.effects import Count, Effect
from consumers.engine.measures.eva_timing import ChangeCause, live_value, turn_scores_of
from schemas.scores.records import AnyScoreRecord, Scored, TurnTakingScore, TurnValues
from tests.properties.evaluation import end_of, fresh, holds, newest
from tests.properties.measured_anew import times_now
from tests.properties.steered_calls import drawn
from tests.support.calls.wire_calls import arrivals_of
from tests.support.fakes.engine_feed import Feed, records_of


@given(st.data())
def test_after_every_event_each_turn_is_what_a_look_at_the_whole_call_says(data: st.DataObject) -> None:
    """Turns that were not left yet, too. That it is published when one is left, is a law of `test_measured_turns`."""
    call, order = drawn(data)
    evaluator = fresh()
    for arrival in arrivals_of(call, order):
        evaluator.receive(arrival)
        calls = evaluator._calls.get(arrival.conversation_id)
        if calls is None:
            continue  # a limit or an end has closed it
        live, measure = calls.live, calls._measures.eva
        for turn in live.machine.turns:
            times = times_now(live, turn)
            expected = None if times is None else live_value(turn, times)
            assert measure.turn_value(live, live.heard(), turn) == expected


def test_a_turn_without_an_answer_has_no_unknown_times() -> None:
    """The example that a search found: the caller interrupts the greeting, and one of her speeches has no end."""
    feed = Feed()
    for kind, at_ms in (("bot_speech_started", 0), ("user_speech_started", 0), ("bot_speech_stopped", 0)):
        feed.speech(kind, at_ms)
    feed.send("pipecat", {"type": "user_started_speaking", "data": {"frame": "UserStartedSpeaking"}}, 780)
    feed.speech("user_speech_started", 780)
    feed.send("audit", {"message_type": "user", "value": "Hello."}, 2_100)
    (call,) = feed.evaluator._calls.values()
    times = times_now(call.live, 1)
    assert times is not None
    assert times.pending is None
    assert call._measures.eva.turn_value(call.live, call.live.heard(), 1) is None


@given(st.data())
def test_in_the_end_each_turn_is_as_eva_says(data: st.DataObject) -> None:
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    evaluator = fresh()
    effects = [effect for arrival in arrivals for effect in evaluator.receive(arrival)]
    (open_call,) = evaluator._calls.values()
    expected = None
    if open_call.live.is_simulated:
        expected = {turn: (s.score, s.reason.value) for turn, s in turn_scores_of(open_call.eva_context()).items()}
    effects += evaluator.advance(end_of(arrivals))
    if expected is not None:
        finals = _timings(newest(records_of(effects)).values())
        scored = {turn: (each.result, each.reason) for turn, each in finals.items() if each is not None}
        found = {
            turn: (result.value, reason) for turn, (result, reason) in scored.items() if isinstance(result, Scored)
        }
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
        for turn, timing in _timings(records_of(effects)).items():
            said[turn] = _what(timing)
        for effect in effects:
            if isinstance(effect, Count) and effect.metric.startswith("callgauge_settled_turns"):
                counted[effect.metric, *effect.labels] += effect.by

    for arrival in arrivals:
        take(list(evaluator.receive(arrival)))
        for each in evaluator._calls.values():
            for turn in each.live.turns.ever_settled:
                assert turn in said, "it is settled, so it was measured"
                then.setdefault(turn, said[turn])
    take(list(evaluator.advance(end_of(arrivals))))
    changed = sum(said.get(turn) != value for turn, value in then.items())
    assert counted.pop(("callgauge_settled_turns_total",), 0) == len(then)
    assert counted.total() == changed
    causes = {("callgauge_settled_turns_changed_total", cause.value) for cause in ChangeCause}
    assert set(counted) <= causes


def _timings(records: Iterable[AnyScoreRecord]) -> dict[int | None, TurnTakingScore | None]:
    """By turn: how well it was timed, by its newest record; None where that says nothing of it."""
    turns = [record for record in records if isinstance(record, TurnValues)]
    return {record.turn: record.turn_taking if holds(record) else None for record in turns}


def _what(timing: TurnTakingScore | None) -> object:
    """The score of the turn; all reasons for having none are the same."""
    if timing is None or not isinstance(timing.result, Scored):
        return None
    how = {"result", "reason", "has_tool_call", "latency_ms", "overlap_ms", "interrupt_segments", "yield_ms"}
    return timing.model_dump(include=how | {"post_interrupt_latency_ms"})
