"""What a call has published: revisions, so that nothing is published twice and every change has the next number."""

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from consumers.engine.records.call_memory import CallMemory, Subject
from consumers.engine.redaction.call_redaction import CallRedactor
from consumers.engine.redaction.redactor import Redactor
from schemas.events.codec import InputSource
from schemas.scores.all_records import AnyScoreRecord, CallLabels, TurnStatus, Unscored, UnscoredReason
from schemas.topics import TOPIC_BY_SOURCE

Record = TypeVar("Record", bound=AnyScoreRecord)
Fields = Mapping[str, Any]
"""The fields that only one kind of record has, by name."""


_HASH_BITS = 64
_IS_HASH = re.compile("[0-9a-f]{16}")
_HASH_MASK = (1 << _HASH_BITS) - 1


class Published(int):
    """The newest record of a subject: its revision, the hash of what it was computed from, and whether any had a value.

    One number, because a call keeps some thirty of them for as long as it is open.
    """

    __slots__ = ()

    @classmethod
    def of(cls, revision: int, input_hash: str, *, had_value: bool) -> "Published":
        """Puts the three together. The hash is that of `hash_of`; one that another version made in another way is hashed."""
        digits = input_hash if _IS_HASH.fullmatch(input_hash) else hash_of((input_hash,))
        return cls((revision << _HASH_BITS | int(digits, 16)) << 1 | had_value)

    @property
    def revision(self) -> int:
        """Its number among the revisions of its subject."""
        return self >> _HASH_BITS + 1

    @property
    def input_hash(self) -> str:
        """As `hash_of` gives it."""
        return f"{self >> 1 & _HASH_MASK:016x}"

    @property
    def had_value(self) -> bool:
        """Whether it or one before it had a value."""
        return bool(self & 1)


class Cause(NamedTuple):
    """When something happened that changed a value.

    Attributes:
        event_time_ms: On the call's own clock; None where it has no time there.
        broker_ms: When the broker took the record that did it, or until when silence lasted.
    """

    event_time_ms: int | None
    broker_ms: int


class _Held(NamedTuple):
    """What would have been published while the book was silent, last of its subject."""

    record_type: type[Any]
    status: TurnStatus
    input_hash: str
    event_time_ms: int | None
    has_value: bool
    fields: Fields

    @property
    def is_withdrawal(self) -> bool:
        return bool(self.fields.get("is_withdrawn")) or self.fields.get("result") == _WITHDRAWN


_WITHDRAWN = Unscored(reason=UnscoredReason.WITHDRAWN)


class RecordBook:
    """Makes the records of one call. Texts of a call go through `redactor` before they become a part of a record, also as one
    of its inputs: their hash would tell a telephone number to anyone who tries them all.

    A book with a memory is silent until the replay has come as far as what the memory holds: a replay may interleave the
    inputs differently and pass through values that nobody has seen.

    Attributes:
        labels: Those of the call, as known now.
        offsets: Last offset folded of each input.
        published: Newest record of each subject.
        redactor: Takes personal data out of texts.
        is_silent: Whether the call is replayed below what was published of it.
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
        self.is_silent = memory is not None
        self._held: dict[Subject, _Held] = {}
        self.labels = CallLabels()
        self.offsets: dict[InputSource, int] = {}
        self.published: dict[Subject, Published] = {}
        self.redactor = CallRedactor(redactor or Redactor())

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
        cause: Cause,
        *,
        has_value: bool = True,
        labels: CallLabels | None = None,
        fields: Callable[[], Fields] | None = None,
        **more: Any,
    ) -> Record | None:
        """The next record about `subject`; None when its inputs are those of the last one, or while silent.

        Args:
            record_type: Which record.
            subject: What it is about.
            status: How final it is.
            inputs: What the value was computed from; plain values, and they decide whether anything changed.
            cause: What changed it, and when.
            has_value: Whether it says something that counts; the first such revision is marked.
            labels: By default those of the call.
            fields: Makes the record's own fields where that is work, which is done only if something changed.
            more: The record's own fields.
        """
        last = self.published.get(subject)
        input_hash = hash_of(inputs)
        if last is not None and last.input_hash == input_hash:
            return None
        had_value = last is not None and last.had_value
        revision = 1 if last is None else last.revision + 1
        self.published[subject] = Published.of(revision, input_hash, had_value=had_value or has_value)
        own = more if fields is None else fields()
        if self._memory is not None:
            self._held[subject] = _Held(record_type, status, input_hash, cause.event_time_ms, has_value, own)
            return None
        return self._made(
            record_type, subject, status, input_hash, cause, own,
            revision=revision, is_first=has_value and not had_value, labels=labels,
        )  # fmt: skip

    def speak(self, broker_ms: int) -> tuple[list[AnyScoreRecord], list[Subject]]:
        """End the silence, at this broker time.

        Returns:
            The difference between what is known now and what was published, numbered on from there; and the subjects
            that were published and are not known any more, which their owner must take back.
        """
        memory, self._memory, self.is_silent = self._memory, None, False
        held, self._held = self._held, {}
        known = memory.published if memory is not None else {}
        records: list[AnyScoreRecord] = []
        for subject in sorted(held, key=_call_first):
            new = held[subject]
            recalled = known.get(subject)
            if recalled is None:
                if new.is_withdrawal:
                    del self.published[subject]
                    continue
                revision, had_value = 1, False
            elif recalled.input_hash == new.input_hash:
                self.published[subject] = Published.of(recalled.revision, new.input_hash, had_value=recalled.had_value)
                continue
            else:
                revision, had_value = recalled.revision + 1, recalled.had_value
            self.published[subject] = Published.of(revision, new.input_hash, had_value=had_value or new.has_value)
            records.append(
                self._made(
                    new.record_type, subject, new.status, new.input_hash, Cause(new.event_time_ms, broker_ms), new.fields,
                    revision=revision, is_first=new.has_value and not had_value,
                )
            )  # fmt: skip
        gone = []
        for subject, recalled in known.items():
            if subject not in held:
                self.published[subject] = Published.of(
                    recalled.revision, recalled.input_hash, had_value=recalled.had_value
                )
                if not recalled.is_withdrawn:
                    gone.append(subject)
        return records, gone

    def _made(
        self,
        record_type: type[Record],
        subject: Subject,
        status: TurnStatus,
        input_hash: str,
        cause: Cause,
        fields: Fields,
        *,
        revision: int,
        is_first: bool,
        labels: CallLabels | None = None,
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
            input_hash=input_hash,
            offsets=self.offsets_by_topic(),
            event_time_ms=cause.event_time_ms,
            caused_at_ms=cause.broker_ms,
            labels=labels or self.labels,
            code_version=self._code_version,
            **fields,
        )


def hash_of(inputs: tuple[Any, ...]) -> str:
    """What a record says its value was computed from: equal for equal inputs, in any process."""
    return hashlib.blake2b(repr(inputs).encode(), digest_size=8).hexdigest()


def _call_first(subject: Subject) -> bool:
    return subject[0] != "call_started"
