"""The records of the `quarantine` topic: the coordinates of a refused record and the reason. The bytes stay on its topic."""

from pydantic import BaseModel, ConfigDict

from schemas.closed_sets import RefusalReason


class QuarantineRecord(BaseModel):
    """A record that can never be processed. The message has five parts: what, where, expected and seen, now, what to do.

    For a batch that cannot be decoded, `offset` is that of its first record and `last_offset` that of its last. For one
    record, `last_offset` is null.
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
        return f"{where}{of}: {self.what}. {self.expected_and_seen}. {self.what_happens_now} {self.what_to_do}"
