"""A snapshot of any moment and the steps after it bring back the owner that was killed: the final records are the same."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from tests.properties.evaluation import assert_counted, end_of, final_state
from tests.properties.owners import Log, Owner, Snapshot, record_of
from tests.properties.steered_calls import drawn
from tests.properties.test_recovery import STEP_MS, interleaved
from tests.support.calls.wire_calls import arrivals_of
from tests.support.fakes.engine_feed import T0_MS, closings_of
from tests.support.fakes.evaluator_fakes import Record
from tests.support.laws import examples


def _log_of_a_call(data: st.DataObject) -> tuple[list[Record], int]:
    """Records of a call at even times, and a time at which it has closed; as in the law of recovery."""
    call, order = drawn(data, updates=False)
    call["control"] = [event | ({"reason": "goodbye"} if "reason" in event else {}) for event in call["control"]]
    arrivals = [
        replace(arrival, broker_time_ms=T0_MS + place * STEP_MS)
        for place, arrival in enumerate(arrivals_of(call, order))
    ]
    return [record_of(arrival) for arrival in arrivals], end_of(arrivals)


class _Reading:
    """Reads records in their order, with time passing as far as every topic that goes on is read."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._unread = Counter(record.topic for record in records)
        self._read_ms: dict[str, int] = {}

    def known_ms(self, record: Record) -> int | None:
        self._unread[record.topic] -= 1
        self._read_ms[record.topic] = record.timestamp
        goes_on = [topic for topic, number in self._unread.items() if number]
        if all(topic in self._read_ms for topic in goes_on):
            return min((self._read_ms[topic] for topic in goes_on), default=max(self._read_ms.values()))
        return None


def _lives(
    data: st.DataObject, owner: Owner, records: Sequence[Record], most: int, snapshot: Snapshot | None
) -> Snapshot | None:
    """An owner reads so many records, writes some of its decisions now and then, and takes snapshots. The newest that counts."""
    reading, passes = _Reading(records), data.draw(st.booleans())
    at = data.draw(st.sets(st.integers(0, max(0, most - 1)), min_size=1, max_size=3))
    waiting = None
    for place, record in enumerate(records[:most]):
        owner.fold(record)
        known_ms = reading.known_ms(record)
        if passes and known_ms is not None:
            owner.advance(known_ms)
        if place in at:
            waiting = owner.snapshot()
        owner.write(data.draw(st.sampled_from([0, 0, 1, 2, None])))
        if waiting is not None and owner.partition.outbox.has_written(waiting.put):
            snapshot, waiting = waiting, None
    return snapshot


@examples(times=2)
@given(st.data())
def test_kills_after_snapshots_change_nothing_in_the_end(data: st.DataObject) -> None:
    records, end_ms = _log_of_a_call(data)
    undisturbed_log = Log()
    undisturbed = Owner(undisturbed_log)
    for record in records:
        undisturbed.fold(record)
    undisturbed.end(end_ms)

    log = Log()
    snapshot: Snapshot | None = None
    for _ in range(data.draw(st.integers(1, 3))):
        owner = Owner(log) if snapshot is None else Owner.restored(log, snapshot, records)
        event("restored" if snapshot else "replayed")
        others = _in_another_order(data, owner, records)
        most = data.draw(st.integers(len(others) // 3, len(others)))
        snapshot = _lives(data, owner, others, most, None)
    owner = Owner(log) if snapshot is None else Owner.restored(log, snapshot, records)
    for record in _in_another_order(data, owner, records):
        owner.fold(record)
    owner.end(end_ms)

    assert_counted(log.scores)
    written, expected = log.effects(), undisturbed_log.effects()
    assert [each.transcript for each in closings_of(written)] == [each.transcript for each in closings_of(expected)]
    assert final_state(written) == final_state(expected)


def _in_another_order(data: st.DataObject, owner: Owner, records: Sequence[Record]) -> list[Record]:
    """The records that an owner has yet to fold, each topic in its own order."""
    unread = [record for record in records if record.offset >= owner.partition.next_offsets[record.topic]]
    return interleaved(unread, lambda record: record.topic, data.draw(st.integers(0, 1_000)))
