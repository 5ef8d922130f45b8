"""What a call has published: revisions, so that nothing is said twice and every change has the next number."""

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from consumers.engine.call_memory import CallMemory, Subject
from consumers.engine.call_redaction import CallRedactor
from consumers.engine.redaction import Redactor
from schemas.codec import InputSource
from schemas.scores import AnyScoreRecord, CallLabels, TurnStatus, Unscored, UnscoredReason
from schemas.topics import TOPIC_BY_SOURCE

Record = TypeVar("Record", bound=AnyScoreRecord)


class Published(NamedTuple):
    """The newest record of a subject."""

    revision: int
    inputs: tuple[Any, ...]
    had_value: bool
    status: TurnStatus


class _Held(NamedTuple):
    """What would have been published while the book was silent, last of its subject."""

    record_type: type[Any]
    status: TurnStatus
    inputs: tuple[Any, ...]
    event_time_ms: int | None
    has_value: bool
    fields: Mapping[str, Any]

    @property
    def is_withdrawal(self) -> bool:
        return bool(self.fields.get("is_withdrawn")) or self.fields.get("result") == _WITHDRAWN


_WITHDRAWN = Unscored(reason=UnscoredReason.WITHDRAWN)


class RecordBook:
    """Makes the records of one call. `offsets` and `caused_at_ms` are those of the record being folded.

    What somebody said goes through `redactor` before it becomes a part of a record, also as one of its inputs: their hash
    would tell a telephone number to whoever tries them all.

    A book with a memory is silent until the replay has come as far as what the memory holds: a replay may interleave the
    inputs differently and pass through values that nobody has seen.
    """

    def __init__(
        self,
        conversation_id: str,
        code_version: str,
        memory: CallMemory | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        self._conversation_id = conversation_id
        self._code_version = code_version
        self._memory = memory
        self._held: dict[Subject, _Held] = {}
        self.labels = CallLabels()
        self.offsets: dict[InputSource, int] = {}
        self.caused_at_ms = 0
        self.published: dict[Subject, Published] = {}
        self.redactor = CallRedactor(redactor or Redactor())

    @property
    def is_silent(self) -> bool:
        """Whether the call is replayed below what was published of it."""
        return self._memory is not None

    @property
    def has_caught_up(self) -> bool:
        """Whether a silent book has come as far as the last record of its memory, on every input."""
        offsets = self.offsets
        return self._memory is not None and all(
            offsets.get(source, -1) >= offset for source, offset in self._memory.offsets.items()
        )

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
        """The next record about `subject`; None when its inputs and status are those of the last one, or while silent.

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
        if self._memory is not None:
            self._held[subject] = _Held(record_type, status, inputs, event_time_ms, has_value, fields)
            return None
        return self._made(
            record_type, subject, status, inputs, event_time_ms, fields,
            revision=revision, is_first=has_value and not had_value, is_change=is_change,
        )  # fmt: skip

    def speak(self) -> tuple[list[AnyScoreRecord], list[Subject]]:
        """End the silence.

        Returns:
            The difference between what is known now and what was published, numbered on from there; and the subjects
            that were published and are not known any more, which their owner must take back.
        """
        memory, self._memory = self._memory, None
        held, self._held = self._held, {}
        known = memory.published if memory is not None else {}
        records: list[AnyScoreRecord] = []
        for subject in sorted(held, key=_call_first):
            said = held[subject]
            recalled = known.get(subject)
            if recalled is None:
                if said.is_withdrawal:
                    del self.published[subject]
                    continue
                revision, had_value = 1, False
            elif recalled.input_hash == hash_of(said.inputs):
                self.published[subject] = Published(recalled.revision, said.inputs, recalled.had_value, recalled.status)
                continue
            else:
                revision, had_value = recalled.revision + 1, recalled.had_value
            self.published[subject] = Published(revision, said.inputs, had_value or said.has_value, said.status)
            records.append(
                self._made(
                    said.record_type, subject, said.status, said.inputs, said.event_time_ms, said.fields,
                    revision=revision, is_first=said.has_value and not had_value, is_change=True,
                )
            )  # fmt: skip
        gone = []
        for subject, recalled in known.items():
            if subject not in held:
                self.published[subject] = Published(
                    recalled.revision, ("recalled", recalled.input_hash), recalled.had_value, recalled.status
                )
                if not recalled.is_withdrawn:
                    gone.append(subject)
        return records, gone

    def _made(
        self,
        record_type: type[Record],
        subject: Subject,
        status: TurnStatus,
        inputs: tuple[Any, ...],
        event_time_ms: int | None,
        fields: Mapping[str, Any],
        *,
        revision: int,
        is_first: bool,
        is_change: bool,
    ) -> Record:
        name, turn, index = subject
        return record_type(
            conversation_id=self._conversation_id,
            name=name,
            turn=turn,
            index=index,
            revision=revision,
            status=status,
            is_first=is_first,
            is_change=is_change,
            input_hash=hash_of(inputs),
            offsets=self.offsets_by_topic(),
            event_time_ms=event_time_ms,
            caused_at_ms=self.caused_at_ms,
            labels=self.labels,
            code_version=self._code_version,
            **fields,
        )


def hash_of(inputs: tuple[Any, ...]) -> str:
    """What a record says its value was computed from: equal for equal inputs, in any process."""
    return hashlib.blake2b(repr(inputs).encode(), digest_size=8).hexdigest()


def _call_first(subject: Subject) -> bool:
    return subject[0] != "call_started"
