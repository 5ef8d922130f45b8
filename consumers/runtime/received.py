"""The input of a shell: batches of decoded messages, each with the place of its record. Any reader
can make them.
"""

from collections.abc import Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import structlog

from consumers.runtime.logs import about_record
from consumers.runtime.registry import Instruments

Message = TypeVar("Message")

log = structlog.get_logger()


class RecordPlace(NamedTuple):
    """A record without its value.

    Attributes:
        topic: Name of the topic on the cluster.
        partition: Partition number.
        offset: Its offset; of records that could not be decoded together, that of the last one.
        timestamp: Milliseconds since 1970, as the broker has it.
        key: Its key; None if it has none, or could not be decoded.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None


class Unreadable(NamedTuple):
    """Stands for the message of a record that has none of its type.

    Attributes:
        reason: Why, in a line.
        what_to_do: The next step for a person; empty if only the record's writer knows.
    """

    reason: str
    what_to_do: str = ""


class Received(NamedTuple, Generic[Message]):
    """A record's place and its message, which is None if the record has no value."""

    place: RecordPlace
    message: Message | Unreadable | None


Batch = Sequence[Received[Message]]
"""Records that one poll gave: each partition's are in order and next to each other."""


MAX_QUARANTINE_LINES: Final = 5
"""Most log lines about records that go to quarantine, of one step or between two ticks. A broken
producer sends thousands, and the quarantine topic has them all.
"""
MAX_REFUSED_LINES: Final = 10
"""Most log lines about refused records of one batch. One more line has the number of the others."""


class UnreadableRecords:
    """Counts the records that a role cannot use, and logs those of a batch with their places."""

    def __init__(self, role: str, metric: str, instruments: Instruments) -> None:
        self._role = role
        self._metric = metric
        self._instruments = instruments
        self._of_this_batch = 0

    def refuse(self, place: Any, reason: str) -> None:
        """Counts a record, and logs it unless the batch has had enough."""
        self._instruments.inc(self._metric)
        self._of_this_batch += 1
        if self._of_this_batch <= MAX_REFUSED_LINES:
            log.warning("record_refused", role=self._role, **about_record(place), reason=reason)

    def end_batch(self) -> None:
        """Logs how many have no line of their own."""
        if self._of_this_batch > MAX_REFUSED_LINES:
            log.warning(
                "more_records_refused",
                role=self._role,
                records=self._of_this_batch - MAX_REFUSED_LINES,
            )
        self._of_this_batch = 0
