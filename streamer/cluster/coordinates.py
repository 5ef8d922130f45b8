"""The place of a record on the cluster, as messages print it and commands accept it."""

import re
from typing import Final, NamedTuple, Self

from schemas.quarantine import QuarantineRecord

_COORDINATES: Final = re.compile(r"([A-Za-z0-9._-]{1,249})\[(\d{1,9})\]@(\d{1,18})")


class Coordinates(NamedTuple):
    """The coordinates of a record; messages print them as `topic[partition]@offset`."""

    topic: str
    partition: int
    offset: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads coordinates in the form that `str` gives.

        Raises:
            ValueError: The text has another form.

        Example:
            >>> Coordinates.parse("pipecat.events[3]@17")
            Coordinates(topic='pipecat.events', partition=3, offset=17)
        """
        if not (found := _COORDINATES.fullmatch(text.strip())):
            raise ValueError(f"{text!r} is no place of a record: give TOPIC[PARTITION]@OFFSET, as messages print it")
        return cls(found[1], int(found[2]), int(found[3]))

    @classmethod
    def of(cls, record: QuarantineRecord) -> Self:
        """The coordinates of a refused record."""
        return cls(record.topic, record.partition, record.offset)

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"
