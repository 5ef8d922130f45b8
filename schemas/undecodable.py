"""The stand-in for records that a reader cannot decode."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UndecodableRecord:
    """One record, or the rest of a batch, that the client cannot decode. It has the fields of a Kafka record.

    Attributes:
        topic: Name of the topic.
        partition: Partition number.
        first_offset: Offset of the first record it replaces.
        offset: Offset of the last record it replaces, because reading goes on at `offset + 1`.
        timestamp: Milliseconds since 1970. If the batch's times cannot be trusted, the best known earlier time, or 0.
        is_transactional: Whether it was written in a transaction; None if that is not known.
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
    is_transactional: bool | None
    what: str
    expected_and_seen: str
    what_to_do: str
    key: None = None
    value: None = None
    headers: tuple[()] = ()

    def __str__(self) -> str:
        through = "" if self.first_offset == self.offset else f" to @{self.offset}"
        return f"{self.topic}[{self.partition}]@{self.first_offset}{through}: {self.what}, {self.expected_and_seen}"
