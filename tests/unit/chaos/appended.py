"""Inputs in memory, and the log that a sequencer makes of them."""

from collections.abc import Iterator, Mapping, Sequence

from schemas.closed_sets import InputSource
from schemas.log import Next, Origin, Placed, Tick
from schemas.topics import TOPIC_BY_SOURCE
from tests.chaos.load.call_pool import T0_SECONDS, CallTemplate
from tests.chaos.verdict.log_check import InputRecord
from tests.chaos.verdict.topic_reader import ReadRecord

Inputs = Mapping[InputSource, Sequence[InputRecord]]


def inputs_of(pool: Sequence[CallTemplate]) -> dict[InputSource, list[InputRecord]]:
    """The records of calls that begin a second apart, as one partition of each input holds them."""
    inputs: dict[InputSource, list[InputRecord]] = {source: [] for source in InputSource}
    events = sorted(
        (
            1_000 * number + event.after_ms,
            number,
            event.source,
            event.rendered(T0_SECONDS + number, b"call-%d" % number),
        )
        for number, call in enumerate(pool)
        for event in call.events
    )
    for after_ms, number, name, value in events:
        source = InputSource(name)
        records = inputs[source]
        time_ms = T0_SECONDS * 1_000 + after_ms
        records.append(
            InputRecord(
                TOPIC_BY_SOURCE[source], 0, len(records), time_ms, b"call-%d" % number, value
            )
        )
    return inputs


def event(
    offset: int, source: InputSource, record: InputRecord, term: int = 1, generation: int = 0
) -> ReadRecord:
    """A record of an input as it stands in the log."""
    origin = Origin(source, generation, record.partition, record.offset, record.timestamp)
    return ReadRecord(0, offset, 0, record.key, record.value, (Placed(term, origin).header(),))


def tick(
    offset: int, known_ms: int, positions: Mapping[tuple[InputSource, int], Next], term: int = 1
) -> ReadRecord:
    """A tick as it stands in the log."""
    made = Tick.of(term, known_ms, positions)
    return ReadRecord(0, offset, 0, None, made.value(), (made.header(),))


def appended(inputs: Inputs, term: int = 1) -> Iterator[ReadRecord]:
    """The log of these inputs, merged by time, with a tick in front of each record."""
    merged = sorted(
        (record.timestamp, source, record.offset, record)
        for source, records in inputs.items()
        for record in records
    )
    positions: dict[tuple[InputSource, int], Next] = {}
    for place, (time_ms, source, offset, record) in enumerate(merged):
        yield tick(2 * place, time_ms, positions, term)
        yield event(2 * place + 1, source, record, term)
        positions[source, 0] = Next(0, offset + 1)
