"""What is read of the log: a partition from some place on, its newest tick, and all that it has of
one call.
"""

from typing import Any

import pytest
from aiokafka import TopicPartition

from consumers.log import stretches
from consumers.log.stretches import CallEvents, KeyRecords, Terms, log_between
from consumers.runtime.process import OperatorError
from schemas.closed_sets import InputSource
from schemas.log import Event, LogReader, Next, Tick
from schemas.topics import EVENTS_TOPIC
from tests.support.calls.log_records import PlacedRecords
from tests.support.fakes.broker_records import BrokerRecord
from tests.support.fakes.kept_topics import KeptTopics

AUDIT = InputSource.AUDIT
LOG = TopicPartition(EVENTS_TOPIC, 0)
T0_MS = 1_000_000_000_000


def sent(offset: int, at_ms: int, key: str = "call") -> BrokerRecord:
    return BrokerRecord("audit.events", offset, T0_MS + at_ms, key.encode(), b"%d" % offset)


def consumer_of(log: PlacedRecords) -> Any:
    return KeptTopics(*log.records)


async def between(consumer: Any, start: int, end: int) -> list[Event | Tick]:
    return [found async for found in log_between(consumer, LOG, start, end)]


def values(found: list[Event | Tick]) -> list[bytes | None]:
    return [each.value for each in found if isinstance(each, Event)]


def a_log() -> PlacedRecords:
    """Two events, a tick, two more and a tick; the second of each pair is of another call."""
    log = PlacedRecords()
    for offset in range(4):
        log.event(AUDIT, sent(offset, offset * 100, "call" if offset % 2 == 0 else "other"))
        if offset % 2:
            log.tick(T0_MS + offset * 100)
    return log


async def test_from_its_first_record_on_all_of_a_log_is_read() -> None:
    found = await between(consumer_of(a_log()), 0, 6)
    assert [type(each) for each in found] == [Event, Event, Tick, Event, Event, Tick]


async def test_in_the_middle_reading_begins_at_a_tick() -> None:
    found = await between(consumer_of(a_log()), 1, 5)
    assert [type(each) for each in found] == [Tick, Event, Event]
    assert values(found) == [b"2", b"3"]


async def test_repeats_and_void_records_are_left_out() -> None:
    log = a_log()
    log.term = 1
    log.tick(T0_MS, {(AUDIT, 0): Next(0, 1)})
    log.event(AUDIT, sent(3, 300, "other"))
    log.term = 0
    log.event(AUDIT, sent(4, 400))
    log.tick(T0_MS + 400)
    found = await between(consumer_of(log), 0, len(log.records))
    assert values(found) == [b"0", b"1", b"2", b"3"]
    assert sum(isinstance(each, Tick) for each in found) == 3


async def test_a_tick_that_tells_time_alone_is_none_to_begin_with() -> None:
    log = PlacedRecords()
    for offset in range(4):
        log.event(AUDIT, sent(offset, 100 * offset))
        log.tick(T0_MS + offset, {} if offset < 2 else None)
    found = await between(consumer_of(log), 1, len(log.records))
    assert values(found) == [b"3"]
    assert [each.known_ms - T0_MS for each in found if isinstance(each, Tick)] == [2, 3]


async def test_a_record_that_is_none_of_the_log_ends_reading_with_its_place() -> None:
    log = a_log()
    log.records[4] = log.records[4]._replace(headers=())
    with pytest.raises(OperatorError, match=r"events\[0\]@4 is no record of the log"):
        await between(consumer_of(log), 0, 6)


# One call.


async def test_repeats_are_told_though_the_records_of_others_are_not_looked_at() -> None:
    log = PlacedRecords(term=1)
    log.tick(T0_MS)
    log.event(AUDIT, sent(0, 1))
    log.event(AUDIT, sent(1, 2, "other"))
    log.term = 2
    log.tick(T0_MS, {})
    log.term = 1
    log.event(AUDIT, sent(2, 3))
    log.term = 2
    for offset, key in enumerate(("call", "other", "call", "other", "call")):
        log.event(AUDIT, sent(offset, 1 + offset, key))
    consumer = consumer_of(log)
    found = CallEvents(consumer, b"call")
    await found.read({LOG: (0, len(log.records))})
    kept = await found.in_order()
    assert [each.key for each in kept] == [None, b"call", None, *[b"call"] * 4]
    reader, whole = LogReader(), LogReader()
    told = [each for record in kept if (each := reader.read(record)) is not None]
    all_told = [each for record in log.records if (each := whole.read(record)) is not None]
    assert values(told) == [
        each.value for each in all_told if isinstance(each, Event) and each.key == b"call"
    ]


def test_only_the_first_tick_of_a_term_is_of_note() -> None:
    log, terms = PlacedRecords(term=4), Terms()
    records = [log.tick(0), log.tick(1), log.event(AUDIT, sent(0, 1))]
    log.term = 5
    records += [log.tick(2), log.tick(3)]
    log.term = 4
    records += [log.tick(4), records[0]._replace(headers=(("callgauge-tick", b"\xff"),))]
    assert [terms.begins_with(each) for each in records] == [
        True,
        False,
        False,
        True,
        False,
        False,
        True,
    ]


async def test_no_more_is_kept_of_a_key_than_the_bounds_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stretches, "MAX_KEPT", 3)
    records = [sent(offset, offset)._replace(topic="t") for offset in range(20)]
    tp = TopicPartition("t", 0)
    found = KeyRecords(KeptTopics(*records), b"call")
    await found.read({tp: (10, 20)})
    await found.read({tp: (0, 10)})
    assert [each.offset for each in await found.in_order()] == [0, 1, 2]
    assert (found.left_out, found.first_ms) == (17, T0_MS)
    monkeypatch.setattr(stretches, "MAX_KEPT_BYTES", 2)
    assert len(await found.in_order()) == 2
