"""The records of `scores` without a value: the mark with which an owner of a partition begins, and
the row of the partition.

The row ends each transaction of the partition: how far the log was folded when all that stands in
front of the row was decided, and from where a successor must fold it to have the same state. Pure:
bytes in, values out.
"""

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

WRITER_HEADER: Final = "callgauge-writer"
"""Header of marks and rows: the id of the producer with which the owner writes."""
ROW_HEADER: Final = "callgauge-row"
"""Header of a row: what it says."""

_Offset = Annotated[int, Field(ge=0)]


class PartitionRow(BaseModel):
    """How far a partition has come.

    Attributes:
        place: Offset in `events` of the next record to fold. What is decided in front of it is in
            `scores`, nothing else is.
        first: Offset in `events` from which a successor must fold: a tick in front of the first
            record of the oldest open call.
        first_known_ms: Known time there.
        known_ms: Known time at the place.
        event_ms: The broker's time of the newest event in front of it; 0 without any.
        version: Version of code and settings with which the values of the open calls were decided;
            empty while they are published once again.
        base: What is added to revisions, because the log was recreated and its places begin again;
            0 in nearly every log.
        cut: The place at which records of open calls were missed last; 0 if none ever were. Of
            calls that had scores by then nothing counts that becomes known later.
        evicted: Calls that are over because too many were open, and have no `closed` fact yet, with
            the offset of the record that opened another call then.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    place: _Offset
    first: _Offset
    first_known_ms: int
    known_ms: int
    version: str
    event_ms: int = 0
    base: _Offset = 0
    cut: _Offset = 0
    evicted: dict[str, _Offset] = Field(default_factory=dict)

    def header(self) -> tuple[str, bytes]:
        """The header of its record.

        Example:
            >>> row = PartitionRow(place=7, first=3, first_known_ms=1_000, known_ms=2_000, version="1")
            >>> row_in([row.header()]) == row
            True
        """
        return ROW_HEADER, self.model_dump_json(exclude_defaults=True).encode()


def writer_in(headers: Sequence[tuple[str, bytes]]) -> str | None:
    """The id of the producer that a mark or a row names; None without one."""
    return next(
        (value.decode("utf-8", "replace") for name, value in headers if name == WRITER_HEADER), None
    )


def row_in(headers: Sequence[tuple[str, bytes]]) -> PartitionRow | None:
    """The row in the headers of a record; None if there is none, or one that cannot be read."""
    for name, value in headers:
        if name == ROW_HEADER:
            try:
                return PartitionRow.model_validate_json(value)
            except ValidationError:
                return None
    return None
