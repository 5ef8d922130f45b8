"""Writes one partition of the log as the sequencer does, where a test has none: events with their
origins, and ticks.
"""

from collections import Counter
from collections.abc import Sequence

from schemas.closed_sets import InputSource
from schemas.log import Next, Origin, Placed, Tick
from schemas.topics import EVENTS_TOPIC
from tests.support.fakes.broker_records import BrokerRecord


class LogWriter:
    """The sequencer of one partition. Each event comes from partition 0 of its input, unless it
    says otherwise.

    Attributes:
        term: Term of the sequencer.
        records: The log so far, from offset 0.
    """

    def __init__(self, partition: int = 0) -> None:
        self.term = 1
        self.records: list[BrokerRecord] = []
        self._partition = partition
        self._next: Counter[InputSource] = Counter()

    def event(
        self,
        source: InputSource | str,
        key: str | bytes | None,
        value: bytes | None,
        time_ms: int,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> BrokerRecord:
        """Appends the next record of an input."""
        source = InputSource(source)
        offset = self._next[source]
        self._next[source] += 1
        return self.again(
            Placed(self.term, Origin(source, 0, 0, offset, time_ms)), key, value, headers
        )

    def again(
        self,
        placed: Placed,
        key: str | bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> BrokerRecord:
        """Appends an event with this origin, whatever is in the log."""
        key = key.encode() if isinstance(key, str) else key
        return self.append(key, value, [*headers, placed.header()], placed.origin.time_ms)

    def tick(self, known_ms: int) -> BrokerRecord:
        """Appends a tick."""
        tick = Tick.of(
            self.term,
            known_ms,
            {(source, 0): Next(0, offset) for source, offset in self._next.items()},
        )
        return self.append(None, tick.value(), [tick.header()], known_ms)

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]],
        time_ms: int,
    ) -> BrokerRecord:
        """Appends any record."""
        record = BrokerRecord(
            EVENTS_TOPIC, len(self.records), time_ms, key, value, self._partition, headers
        )
        self.records.append(record)
        return record
