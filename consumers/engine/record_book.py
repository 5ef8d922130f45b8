"""What a call has published: revisions, so that nothing is said twice and every change has the next number."""

import hashlib
from typing import Any, NamedTuple, TypeVar

from schemas.codec import InputSource
from schemas.scores import AnyScoreRecord, CallLabels, TurnStatus
from schemas.topics import TOPIC_BY_SOURCE

Subject = tuple[str, int | None, int]
"""Name, turn and index: what a record is about. A higher revision of a subject replaces a lower one."""

Record = TypeVar("Record", bound=AnyScoreRecord)


class Published(NamedTuple):
    """The newest record of a subject."""

    revision: int
    inputs: tuple[Any, ...]
    had_value: bool
    status: TurnStatus


class RecordBook:
    """Makes the records of one call. `offsets` and `caused_at_ms` are those of the record being folded."""

    def __init__(self, conversation_id: str, code_version: str) -> None:
        self._conversation_id = conversation_id
        self._code_version = code_version
        self.labels = CallLabels()
        self.offsets: dict[InputSource, int] = {}
        self.caused_at_ms = 0
        self.published: dict[Subject, Published] = {}

    def offsets_by_topic(self) -> dict[str, int]:
        """Last offset folded, for each input topic of the call."""
        return {TOPIC_BY_SOURCE[source]: offset for source, offset in self.offsets.items()}

    def record(
        self,
        record_type: type[Record],
        subject: Subject,
        status: TurnStatus,
        inputs: tuple[Any, ...],
        *,
        event_time_ms: int | None,
        has_value: bool = True,
        **fields: Any,
    ) -> Record | None:
        """The next record about `subject`; None when its inputs and status are those of the last one.

        Args:
            record_type: Which record.
            subject: What it is about.
            status: How final it is. A final record restates even what did not change.
            inputs: What the value was computed from; plain values, and they decide whether anything changed.
            event_time_ms: Time on the call's own clock.
            has_value: Whether it says something that counts; the first such revision is marked.
            fields: The record's own fields.
        """
        last = self.published.get(subject)
        is_change = last is None or last.inputs != inputs
        if last is not None and not is_change and (status is not TurnStatus.FINAL or last.status is TurnStatus.FINAL):
            return None
        had_value = last is not None and last.had_value
        revision = (last.revision if last is not None else 0) + is_change
        self.published[subject] = Published(revision, inputs, had_value or has_value, status)
        name, turn, index = subject
        return record_type(
            conversation_id=self._conversation_id,
            name=name,
            turn=turn,
            index=index,
            revision=revision,
            status=status,
            is_first=has_value and not had_value,
            is_change=is_change,
            input_hash=hashlib.blake2b(repr(inputs).encode(), digest_size=8).hexdigest(),
            offsets=self.offsets_by_topic(),
            event_time_ms=event_time_ms,
            caused_at_ms=self.caused_at_ms,
            labels=self.labels,
            code_version=self._code_version,
            **fields,
        )
