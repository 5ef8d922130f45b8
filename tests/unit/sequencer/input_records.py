"""Records of inputs, and inputs that are read to somewhere, for the tests of the sequencer."""

from collections.abc import Sequence
from typing import NamedTuple

from aiokafka import TopicPartition

from consumers.sequencer.merge import InputPartition, Witness
from schemas.closed_sets import InputSource
from schemas.log import Next
from schemas.topics import TOPIC_BY_SOURCE

NOW_MS = 1_790_000_000_000


class Record(NamedTuple):
    """A record as aiokafka hands it over."""

    offset: int
    timestamp: int = NOW_MS
    key: bytes | None = b"call-1"
    value: bytes | None = b"{}"
    headers: Sequence[tuple[str, bytes]] = ()
    topic: str = "pipecat.events"
    partition: int = 0


def an_input(
    source: InputSource = InputSource.PIPECAT,
    partition: int = 0,
    place: Next | None = None,
    now_ms: int = NOW_MS,
    witness: Witness | None = None,
) -> InputPartition:
    """One of which nothing is known yet."""
    return InputPartition(
        source, TopicPartition(TOPIC_BY_SOURCE[source], partition), now_ms, place, witness
    )


def read(
    *times_ms: int,
    source: InputSource = InputSource.PIPECAT,
    partition: int = 0,
    end: int | None = None,
) -> InputPartition:
    """One whose records from offset 0 on have these times and wait; the broker has told its end
    just now.
    """
    each = an_input(source, partition)
    each.begin(0, NOW_MS)
    topic = TOPIC_BY_SOURCE[source]
    records = [
        Record(offset, ms, topic=topic, partition=partition) for offset, ms in enumerate(times_ms)
    ]
    assert each.put(records, NOW_MS)
    each.told(NOW_MS, len(times_ms) if end is None else end, each.handed)
    return each
