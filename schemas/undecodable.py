"""What a reader hands over in the place of records that it cannot decode."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UndecodableRecord:
    """One record, or all that are left of a batch, that the client cannot decode; its fields are those of a record.

    Whoever reads on after a record reads on at `offset + 1`, so that is the last one's.

    Attributes:
        topic: Name of the topic.
        partition: Partition number.
        first_offset: Of the first record that it stands for.
        offset: Of the last record that it stands for.
        timestamp: Milliseconds since 1970. Where the batch's own times cannot be trusted, the best known earlier time, or 0.
        is_transactional: Whether it was written in a transaction; None if even that cannot be known.
        what: What is wrong, in a few words.
        expected_and_seen: What a reader expects, and what was there.
        what_to_do: The next step for a person.
        key: There is none.
        value: There is none.
        headers: There are none.
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
