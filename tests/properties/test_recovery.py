"""An evaluator that ends anywhere loses nothing: its successor recalls what was written, replays, and says the rest once."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.engine.effects import Count, Effect
from consumers.engine.intake import Arrival
from consumers.engine.partition import PartitionEvaluator
from schemas.scores import AnyScoreRecord
from tests.engine_feed import T0_MS, closings_of, records_of
from tests.properties.evaluation import end_of, final_records, final_state, fresh
from tests.properties.steered_calls import drawn
from tests.wire_calls import arrivals_of

STEP_MS = 25


def _interleaved(data: st.DataObject, arrivals: Sequence[Arrival]) -> list[Arrival]:
    """The same log read in another order of its topics, each topic in its own."""
    waiting: dict[str, list[Arrival]] = {}
    for arrival in arrivals:
        waiting.setdefault(arrival.source, []).append(arrival)
    turns = [arrival.source for arrival in arrivals]
    random.Random(data.draw(st.integers(0, 1_000))).shuffle(turns)  # noqa: S311  # an order, nothing secret
    return [waiting[source].pop(0) for source in turns]


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


def _last_words(effects: Sequence[Effect]) -> dict[tuple[str, int | None, int], AnyScoreRecord]:
    last: dict[tuple[str, int | None, int], AnyScoreRecord] = {}
    for record in records_of(effects):
        subject = (record.name, record.turn, record.index)
        before = last.get(subject)
        assert record.revision == (before.revision if before else 0) + record.is_change, f"{subject} skips a revision"
        last[subject] = record
    return last


@settings(max_examples=150)
@given(st.data())
def test_what_is_written_in_the_end_is_what_an_undisturbed_evaluator_writes(data: st.DataObject) -> None:
    call, order = drawn(data, updates=False)
    # Of two reasons that contradict each other on two topics the last to arrive counts, which is a matter of arrival.
    call["control"] = [event | ({"reason": "goodbye"} if "reason" in event else {}) for event in call["control"]]
    # The log goes on evenly and ends within the closing grace: what comes after a call has closed does not count, and
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

    records = records_of(written)
    ids = [record.record_id for record in records]
    assert len(ids) == len(set(ids)), "a record is written twice"
    _last_words(written)
    assert [closing.transcript for closing in closings_of(written)] == [
        closing.transcript for closing in closings_of(expected)
    ]
    assert final_records(written) == final_records(expected)
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
    assert {count.labels[1] for count in again.drain_counts()} == {"replayed"}


@given(st.data())
def test_nothing_is_said_again_where_nothing_is_new(data: st.DataObject) -> None:
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    evaluator = fresh()
    written = _read(evaluator, arrivals, in_steps=False)
    again = _successor(written)
    assert _read(again, arrivals, in_steps=False) == []
    assert again.advance(end_of(arrivals)) == evaluator.advance(end_of(arrivals))
