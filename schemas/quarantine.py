"""Records that cannot be processed: the record of the quarantine topic, and the stand-in for a
batch that cannot be decoded.
"""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from schemas.closed_sets import RefusalReason

# The records of the `quarantine` topic: the coordinates of a refused record and the reason. The
# bytes stay on its topic.


class QuarantineRecord(BaseModel):
    """A record that can never be processed. The message has five parts: what, where, expected and
    seen, now, what to do.

    For a batch that cannot be decoded, `offset` is that of its first record and `last_offset` that
    of its last. For one record, `last_offset` is null.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: int = 1
    topic: str
    partition: int
    offset: int
    last_offset: int | None = None
    key: str
    reason: RefusalReason
    what: str
    expected_and_seen: str
    what_happens_now: str
    what_to_do: str
    quarantined_at_ms: int

    def message(self) -> str:
        """Returns the five parts as one text for a person."""
        where = f"{self.topic}[{self.partition}]@{self.offset}"
        if self.last_offset is not None:
            where += f" to @{self.last_offset}"
        of = f" of conversation {self.key}" if self.key else ""
        return (
            f"{where}{of}: {self.what}. {self.expected_and_seen}. {self.what_happens_now} "
            f"{self.what_to_do}"
        )


# The stand-in for records that a reader cannot decode.


@dataclass(frozen=True, slots=True)
class UndecodableRecord:
    """One record, or the rest of a batch, that the client cannot decode. It has the fields of a
    Kafka record.

    Attributes:
        topic: Name of the topic.
        partition: Partition number.
        first_offset: Offset of the first record it replaces.
        offset: Offset of the last record it replaces, because reading goes on at `offset + 1`.
        timestamp: Milliseconds since 1970. If the batch's times cannot be trusted, the best known
            earlier time, or 0.
        what: The fault, in a few words.
        expected_and_seen: The expected content and the actual one.
        what_to_do: The next step for a person.
        key: Always None.
        value: Always None.
        headers: Always empty.
    """

    topic: str
    partition: int
    first_offset: int
    offset: int
    timestamp: int
    what: str
    expected_and_seen: str
    what_to_do: str
    key: None = None
    value: None = None
    headers: tuple[()] = ()

    def __str__(self) -> str:
        through = "" if self.first_offset == self.offset else f" to @{self.offset}"
        return (
            f"{self.topic}[{self.partition}]@{self.first_offset}{through}: {self.what}, "
            f"{self.expected_and_seen}"
        )
