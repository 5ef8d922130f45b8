"""EVA's metrics while a call runs: right after every event, EVA's own in the end, and every settled
turn that changes is counted.
"""

from collections import Counter
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from consumers.engine.effects import Count, Effect
from consumers.engine.measures.eva_timing import ChangeCause, live_taking, turn_scores_of
from schemas.rows import Row, TurnRow, TurnTaking, number
from tests.properties.evaluation import end_of, fresh, holds, newest
from tests.properties.measured_anew import times_now
from tests.properties.steered_calls import drawn
from tests.support.calls.wire_calls import arrivals_of
from tests.support.fakes.engine_feed import Feed, rows_of


@given(st.data())
def test_after_every_event_each_turn_is_what_a_look_at_the_whole_call_says(
    data: st.DataObject,
) -> None:
    """Turns that were not left yet, too. That it is published when one is left, is a law of
    `test_measured_turns`.
    """
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
            expected = None if times is None else live_taking(turn, times)
            assert measure.turn_taking(live, live.heard(), turn) == expected


def test_a_turn_without_an_answer_has_no_unknown_times() -> None:
    """The example that a search found: the caller interrupts the greeting, and one of her speeches
    has no end.
    """
    feed = Feed()
    for kind, at_ms in (
        ("bot_speech_started", 0),
        ("user_speech_started", 0),
        ("bot_speech_stopped", 0),
    ):
        feed.speech(kind, at_ms)
    (
        feed.send(
            "pipecat",
            {"type": "user_started_speaking", "data": {"frame": "UserStartedSpeaking"}},
            780,
        )
        .speech("user_speech_started", 780)
        .send("audit", {"message_type": "user", "value": "Hello."}, 2_100)
    )
    (call,) = feed.evaluator._calls.values()
    times = times_now(call.live, 1)
    assert times is not None
    assert times.pending is None
    assert call._measures.eva.turn_taking(call.live, call.live.heard(), 1) is None


@given(st.data())
def test_in_the_end_each_turn_is_as_eva_says(data: st.DataObject) -> None:
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    evaluator = fresh()
    effects = [effect for arrival in arrivals for effect in evaluator.receive(arrival)]
    (open_call,) = evaluator._calls.values()
    expected = None
    if open_call.live.is_simulated:
        expected = {
            turn: (s.score, s.reason.value)
            for turn, s in turn_scores_of(open_call.eva_context()).items()
        }
    effects += evaluator.advance(end_of(arrivals))
    if expected is not None:
        finals = _timings(newest(rows_of(effects)).values())
        found = {
            turn: (score, each.reason)
            for turn, each in finals.items()
            if each is not None and (score := number(each.result)) is not None
        }
        assert found == expected


@given(st.data())
def test_every_settled_turn_that_changes_is_counted(data: st.DataObject) -> None:
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    evaluator = fresh()
    said: dict[int, object] = {}
    then: dict[int, object] = {}
    counted: Counter[tuple[str, ...]] = Counter()

    def take(effects: list[Effect]) -> None:
        for turn, timing in _timings(rows_of(effects)).items():
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


def _timings(rows: Iterable[Row]) -> dict[int, TurnTaking | None]:
    """By turn: how well it was timed, by its newest row; None where that says nothing of it."""
    turns = [row for row in rows if isinstance(row, TurnRow)]
    return {row.turn: row.turn_taking if holds(row) else None for row in turns}


def _what(timing: TurnTaking | None) -> object:
    """The score of the turn; all reasons for having none are the same."""
    if timing is None or number(timing.result) is None:
        return None
    return replace(timing, anchor=None)
