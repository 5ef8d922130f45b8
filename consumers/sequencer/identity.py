"""Whether the log of an input partition is still the one that was read: a topic may be deleted and
recreated under its name. Pure.
"""

import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from schemas.log import Next
from schemas.quarantine import UndecodableRecord

LOG_APPEND_TIME: Final = 1
"""`timestamp_type` of a record that carries the broker's time, and not its producer's."""
FROM_THE_FIRST: Final = -1
"""In place of an offset: reading begins at the first record that there is."""


class Witness(NamedTuple):
    """Knows the last record that was read, and so tells whether a log is still the one that was
    read.

    Nothing shows it if that record was deleted, or cannot be decoded. After a restart all that may
    be known is that it came before the newest tick: then a log is not recognised as new whose
    record in that place did so too, by its broker's clock or its producer's.

    Attributes:
        print: Its time and a checksum of key and value; None if they are not known.
        newest_ms: What its time cannot exceed.
    """

    print: tuple[int, int] | None
    newest_ms: int

    @classmethod
    def of(cls, time_ms: int, key: bytes | None, value: bytes | None) -> "Witness":
        """Knows a record."""
        return cls((time_ms, zlib.crc32(value or b"", zlib.crc32(key or b""))), time_ms)

    def may_be(self, record: Any) -> bool:
        """Whether it is this record, as far as can be told: of one that cannot be decoded nothing
        can.
        """
        if isinstance(record, UndecodableRecord):
            return True
        if self.print is None:
            return record.timestamp_type != LOG_APPEND_TIME or bool(
                record.timestamp <= self.newest_ms
            )
        return self.of(record.timestamp, record.key, record.value).print == self.print


class ReadLog:
    """The log of an input partition, as far as it is read.

    Attributes:
        generation: How often it was recreated, as far as has been seen.
        handed: Offset after the last record that was read, or `FROM_THE_FIRST`.
        is_placed: Whether it is read. It is not before its place is found, and while another log
            may have taken the place of the old one.
    """

    def __init__(self, place: Next | None, witness: Witness | None) -> None:
        """Nothing of it is read; `place` is where the log of all events has it, and `witness` what
        that knows of the record before.
        """
        self.generation, self.handed = place or (0, FROM_THE_FIRST)
        self.is_placed = False
        self._witness = witness
        self._is_proving = False  # the first record to come is the one before `handed`

    def begin(self, first: int) -> int:
        """Finds its place in a log that begins at this offset; returns where reading begins.

        The record before the place comes first, if it is still there and something is known of it.
        """
        self._is_proving = self._witness is not None and self.handed > first
        self.handed = max(self.handed, first)
        self.is_placed = True
        return self.handed - self._is_proving

    def renew(self) -> None:
        """Is another log now, in a new generation."""
        self.generation, self.handed = self.generation + 1, FROM_THE_FIRST
        self._witness, self.is_placed = None, False

    def read(self, records: Sequence[Any]) -> Sequence[Any] | None:
        """Takes what was read next; returns what is new of it. None if it is of another log, which
        must begin again.
        """
        if self._is_proving and self._witness is not None and records[0].offset < self.handed:
            if not self._witness.may_be(records[0]):
                self.is_placed = False
                return None
            records = records[1:]
        self._is_proving = False
        if records:
            last = records[-1]
            self.handed = last.offset + 1
            self._witness = (
                None
                if isinstance(last, UndecodableRecord)
                else Witness.of(last.timestamp, last.key, last.value)
            )
        return records
