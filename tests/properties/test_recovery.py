"""An evaluator that ends anywhere loses nothing: its successor recalls the written records, replays, and publishes the rest once."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.effects import Count, Effect
from consumers.engine.intake.admission import Arrival
from consumers.engine.partition import PartitionEvaluator
from schemas.scores.all_records import TurnValues
from tests.properties.evaluation import assert_counted, end_of, final_state, fresh, newest, outcomes_of
from tests.properties.measured_anew import OF_WORDS, PARTS, differing
from tests.properties.steered_calls import drawn
from tests.support.calls.wire_calls import arrivals_of
from tests.support.fakes.engine_feed import T0_MS, closings_of, records_of
from tests.support.laws import examples

STEP_MS = 25

One = TypeVar("One")


def _interleaved(data: st.DataObject, arrivals: Sequence[Arrival]) -> list[Arrival]:
    """The same log read in another order of its topics, each topic in its own."""
    return interleaved(arrivals, lambda arrival: arrival.source, data.draw(st.integers(0, 1_000)))


def interleaved(log: Sequence[One], topic_of: Callable[[One], str], seed: int) -> list[One]:
    """A log in another order of its topics, each topic in its own."""
    waiting: dict[str, list[One]] = {}
    for one in log:
        waiting.setdefault(topic_of(one), []).append(one)
    turns = [topic_of(one) for one in log]
    random.Random(seed).shuffle(turns)  # noqa: S311  # an order, nothing secret
    return [waiting[topic].pop(0) for topic in turns]


def _read(
    evaluator: PartitionEvaluator, log: Sequence[Arrival], *, until: int | None = None, in_steps: bool
) -> list[Effect]:
    """Fold the log up to `until`; in steps, with time passing as far as every topic that goes on is read."""
    effects: list[Effect] = []
    unread = Counter(arrival.source for arrival in log)
    read_ms: dict[str, int] = {}
    for arrival in log[:until]:
        effects += evaluator.receive(arrival)
        unread[arrival.source] -= 1
        read_ms[arrival.source] = arrival.broker_time_ms
        goes_on = [source for source, number in unread.items() if number]
        if in_steps and all(source in read_ms for source in goes_on):
            effects += evaluator.advance(min((read_ms[source] for source in goes_on), default=max(read_ms.values())))
    return [effect for effect in effects if not isinstance(effect, Count)]


def _successor(written: Sequence[Effect]) -> PartitionEvaluator:
    evaluator = fresh()
    for record in records_of(written):
        evaluator.recall(record)
    return evaluator


@examples(times=1.5)
@given(st.data())
def test_what_is_written_in_the_end_is_what_an_undisturbed_evaluator_writes(data: st.DataObject) -> None:
    call, order = drawn(data, updates=False)
    # Of two reasons that contradict each other on two topics the last to arrive counts, which is a matter of arrival.
    call["control"] = [event | ({"reason": "goodbye"} if "reason" in event else {}) for event in call["control"]]
    # The log goes on evenly and ends within the closing grace: events after the close of a call do not count, and
    # how much of it was read before depends on the order of the topics.
    arrivals = [
        replace(arrival, broker_time_ms=T0_MS + place * STEP_MS)
        for place, arrival in enumerate(arrivals_of(call, order))
    ]
    undisturbed = fresh()
    expected = [*_read(undisturbed, arrivals, in_steps=False), *undisturbed.advance(end_of(arrivals))]
    written: list[Effect] = []
    for _ in range(data.draw(st.integers(1, 3))):
        evaluator = _successor(written)
        log = _interleaved(data, arrivals)
        done = data.draw(st.integers(0, len(log)))
        said = _read(evaluator, log, until=done, in_steps=data.draw(st.booleans()))
        written += said[: data.draw(st.integers(0, len(said)))]
    evaluator = _successor(written)
    written += _read(evaluator, _interleaved(data, arrivals), in_steps=False)
    written += evaluator.advance(end_of(arrivals))

    assert_counted(records_of(written))
    assert [closing.transcript for closing in closings_of(written)] == [
        closing.transcript for closing in closings_of(expected)
    ]
    assert final_state(written) == final_state(expected)


@given(st.data())
def test_a_call_that_was_closed_is_not_opened_again(data: st.DataObject) -> None:
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    evaluator = fresh()
    written = [*_read(evaluator, arrivals, in_steps=False), *evaluator.advance(end_of(arrivals))]
    again = _successor(written)
    assert _read(again, _interleaved(data, arrivals), in_steps=True) == []
    assert again.open_calls == 0
    assert {count.labels[1] for count in outcomes_of(again)} == {"replayed"}


@given(st.data())
def test_nothing_is_said_again_where_nothing_is_new(data: st.DataObject) -> None:
    """When the replay has caught up, changes of turns since they were measured last are published, not later."""
    _assert_nothing_is_said_again(*drawn(data))


def test_a_stage_that_came_after_its_turn_was_measured_is_something_new() -> None:
    """The law found it: the model's time of turn 1 comes when the call is in turn 2 already, and is published later."""
    audit = [
        {"message_type": "user", "value": "Hi", "timestamp": f"{T0_MS}"},
        {"message_type": "user", "value": "Hi", "timestamp": f"{T0_MS + 1}"},
        {"message_type": "llm_call", "value": {"response": "Yes."}, "latency_ms": 700, "model": "m", "timestamp": f"{T0_MS + 1}"},
        {"message_type": "tool_response", "value": {"tool": "t", "response": {"status": "success"}}, "timestamp": f"{T0_MS + 1}"},
    ]  # fmt: skip
    pipecat = [{"type": "tts_text", "data": {"frame": "Yes."}, "timestamp": T0_MS}]
    call = {"id": "late-stage", "audit": audit, "pipecat": pipecat, "user_sim": [], "control": []}
    order = [("audit", 0), ("pipecat", 0), ("audit", 1), ("audit", 2), ("audit", 3)]
    assert _assert_nothing_is_said_again(call, order) == [1]


def _assert_nothing_is_said_again(call: dict[str, Any], order: Sequence[tuple[str, int]]) -> list[int | None]:
    """Returns the turns whose records the successor published with other values than the first evaluator."""
    arrivals = arrivals_of(call, order)
    evaluator = fresh()
    written = _read(evaluator, arrivals, in_steps=False)
    changed = _changed_turns(evaluator)
    last = newest(records_of(written))
    again = _successor(written)
    read_again = _read(again, arrivals, in_steps=False)
    for record in records_of(read_again):
        assert isinstance(record, TurnValues)
        old = last.get(("turn", record.turn, 0))
        if old is None:
            assert record.turn in changed, (
                "a turn that came late, and was not measured before the first evaluator ended"
            )
            continue
        assert isinstance(old, TurnValues)
        assert record.turn in changed or differing(old, record.model_dump(include=PARTS)).keys() <= OF_WORDS, (
            "words came late"
        )
    end_ms = end_of(arrivals)
    closed, closed_again = list(evaluator.advance(end_ms)), list(again.advance(end_ms))
    assert_counted(records_of([*written, *read_again, *closed_again]))
    assert final_state([*written, *read_again, *closed_again]) == final_state([*written, *closed])
    if not read_again:
        assert records_of(closed_again) == records_of(closed)
    assert _settled_turns(closed_again) == _settled_turns(closed)
    return [record.turn for record in records_of(read_again) if ("turn", record.turn, 0) in last]


def _changed_turns(evaluator: PartitionEvaluator) -> set[int]:
    """Turns that changed after they were measured last; of a copy, because stale stages are handed out once."""
    (call,) = PartitionEvaluator.restore(evaluator.snapshot())._calls.values()
    measures, heard = call._measures, call.live.heard()
    changed = set(measures._dirty)
    if measures._known != (heard.sides, call.live.has_speech_events):
        changed |= call.live.turns.turns
    return changed | measures.stages.stale_turns(heard, changed)


def _settled_turns(effects: Sequence[Effect]) -> int:
    return sum(e.by for e in effects if isinstance(e, Count) and e.metric == "callgauge_settled_turns_total")
