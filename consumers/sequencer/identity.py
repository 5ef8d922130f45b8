"""Whether the log of an input partition is still the one that was read: a topic may be deleted and
recreated under its name. Pure.
"""

import zlib
from typing import Any, Final, NamedTuple

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
