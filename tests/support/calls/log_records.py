"""The log as the sequencer writes it, in memory: records of inputs become events, and ticks tell
time.
"""

from collections.abc import Iterable
from typing import Any

from schemas.closed_sets import InputSource
from schemas.log import Next, Origin, Placed, Tick
from schemas.topics import EVENTS_TOPIC
from tests.support.fakes.broker_records import BrokerRecord


class PlacedRecords:
    """One partition of the log, which grows.

    Attributes:
        records: What it has, with the fields of aiokafka's records.
        positions: By input and partition, the next record to append.
    """

    def __init__(self, term: int = 0, partition: int = 0, topic: str = EVENTS_TOPIC) -> None:
        self.records: list[Any] = []
        self.positions: dict[tuple[InputSource, int], Next] = {}
        self.term = term
        self._partition = partition
        self._topic = topic

    def event(self, source: InputSource, record: BrokerRecord, at_ms: int | None = None) -> Any:
        """Appends a record of an input, at this time of the log, or at once."""
        self.positions[source, record.partition] = Next(0, record.offset + 1)
        placed = Placed(
            self.term, Origin(source, 0, record.partition, record.offset, record.timestamp)
        )
        headers = (*record.headers, placed.header())
        return self._append(
            record._replace(headers=headers), record.timestamp if at_ms is None else at_ms
        )

    def tick(
        self, known_ms: int, positions: dict[tuple[InputSource, int], Next] | None = None
    ) -> Any:
        """Appends a tick; it says where the inputs stand here, or these positions."""
        tick = Tick.of(self.term, known_ms, self.positions if positions is None else positions)
        record = BrokerRecord(key=None, value=tick.value(), headers=(tick.header(),))
        return self._append(record, known_ms)

    def _append(self, record: BrokerRecord, at_ms: int) -> Any:
        placed = record._replace(
            topic=self._topic,
            partition=self._partition,
            offset=len(self.records),
            timestamp=at_ms,
        )
        self.records.append(placed)
        return placed


def logged(inputs: Iterable[tuple[InputSource, BrokerRecord]]) -> list[Any]:
    """The events of these records in this order, without ticks."""
    log = PlacedRecords()
    return [log.event(source, record) for source, record in inputs]
