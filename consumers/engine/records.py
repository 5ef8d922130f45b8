"""Makes the records of a call: an unchanged value makes none, and a changed one has the revision of the step that changed it."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar, cast

from consumers.engine.redaction.redactor import CallRedactor, Redactor
from schemas.closed_sets import UnscoredReason
from schemas.scores.live_view import Subject
from schemas.scores.records import AnyScoreRecord, CallLabels, Result, Scored, TurnStatus, Unscored
from schemas.topics import EVENTS_TOPIC

Record = TypeVar("Record", bound=AnyScoreRecord)
Fields = Mapping[str, Any]
"""Fields of one kind of record only, by name."""


HASH_BITS = 64
"""Bits of `hash_of`."""


class Published(int):
    """The newest record of a subject: the hash of its inputs, and whether any revision so far had a value.

    One integer, because an open call keeps some thirty of them.
    """

    __slots__ = ()

    @classmethod
    def of(cls, input_hash: str, *, had_value: bool) -> "Published":
        """Packs the two; `input_hash` comes from `hash_of`."""
        return cls(int(input_hash, 16) << 1 | had_value)

    @property
    def input_hash(self) -> str:
        """Hash of the inputs, as `hash_of` writes it."""
        return f"{self >> 1:016x}"

    @property
    def had_value(self) -> bool:
        """Whether this revision or an earlier one had a value."""
        return bool(self & 1)


class Cause(NamedTuple):
    """When a value changed.

    Attributes:
        event_time_ms: On the call's own clock; None where the change has no time there.
        broker_ms: Broker time of the record that changed it, or of the end of the silence that did.
    """

    event_time_ms: int | None
    broker_ms: int


class Unsaid(NamedTuple):
    """Stands for a record that nobody reads, so that all goes on as if there were one.

    Attributes:
        caused_at_ms: As in the record.
    """

    caused_at_ms: int


class Revisions:
    """Makes the records of one call. A text passes `redactor` before it enters a record or the inputs of one: from a hash,
    anyone could find a telephone number by trying all of them.

    Attributes:
        counts: Whether values count when they are known for the first time; not in a call of which records are lost.
        is_silent: Whether nobody reads the records, because a former owner has written them: then they are not made.
        labels: Labels of the call, as known now.
        offset: Offset in the log of the last event that was folded.
        revision: Revision of what the present step decides.
        published: Newest record of each subject.
        redactor: Takes personal data out of texts.
    """

    def __init__(self, conversation_id: str, code_version: str, redactor: Redactor | None = None) -> None:
        self._conversation_id = conversation_id
        self._code_version = code_version
        self.counts = True
        self.is_silent = False
        self.labels = CallLabels()
        self.offset = 0
        self.revision = 0
        self.published: dict[Subject, Published] = {}
        self.redactor = CallRedactor(redactor or Redactor())

    @property
    def offsets(self) -> dict[str, int]:
        """The offset as records have it: by topic."""
        return {EVENTS_TOPIC: self.offset}

    def make(
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
        """The next record about `subject`; None when the inputs have not changed since the last one.

        Args:
            record_type: Type of the record.
            subject: Name, turn and index.
            status: How much it can still change.
            inputs: Plain values that the value was computed from. Equal inputs make no new record.
            cause: When the value changed.
            has_value: Whether the record counts as a value; the first such revision is marked `is_first`.
            labels: By default the labels of the call.
            fields: Makes the record's own fields; called only if the inputs changed and somebody reads it, for fields that cost work.
            more: The record's own fields.
        """
        last = self.published.get(subject)
        input_hash = hash_of(inputs)
        if last is not None and last.input_hash == input_hash:
            return None
        had_value = last is not None and last.had_value
        self.published[subject] = Published.of(input_hash, had_value=had_value or has_value)
        if self.is_silent:
            return cast("Record", Unsaid(cause.broker_ms))
        name, turn, index = subject
        return record_type(
            conversation_id=self._conversation_id,
            name=name,
            turn=turn,
            index=index,
            revision=self.revision,
            status=status,
            is_first=has_value and not had_value and self.counts,
            input_hash=input_hash,
            offsets=self.offsets,
            event_time_ms=cause.event_time_ms,
            caused_at_ms=cause.broker_ms,
            labels=labels or self.labels,
            code_version=self._code_version,
            **(more if fields is None else fields()),
        )

    def withdraw(self, record_type: type[Record], subject: Subject, cause: Cause, **fields: Any) -> Record | None:
        """The record that withdraws `subject`, because it does not exist any more; None where nothing of it is published."""
        if subject not in self.published:
            return None
        return self.make(record_type, subject, TurnStatus.OPEN, ("withdrawn",), cause, has_value=False, **fields)


def hash_of(inputs: tuple[Any, ...]) -> str:
    """Hash of a record's inputs: equal for equal inputs, in every process."""
    return hashlib.blake2b(repr(inputs).encode(), digest_size=8).hexdigest()


# The labels of a call over time.

MAX_KEPT: Final = 16
"""Changes of a call's labels that are kept; a call has one or two."""


class LabelHistory:
    """The newest changes of the labels of one call."""

    def __init__(self) -> None:
        self._by_ms: list[tuple[int, CallLabels]] = []

    def note(self, broker_ms: int, labels: CallLabels) -> None:
        """Keeps the labels that the call has from this broker time on."""
        self._by_ms.append((broker_ms, labels))
        del self._by_ms[:-MAX_KEPT]

    def at(self, broker_ms: int) -> CallLabels:
        """The labels at that broker time, so that dead air found later has the same labels as dead air found at once."""
        known = [each for each in self._by_ms if each[0] <= broker_ms]
        return max(known, key=itemgetter(0))[1] if known else CallLabels()


# Values of scores inside the engine: a number, a reason why there is none, or nothing yet.

Value = float | UnscoredReason | None
"""A score inside the engine; None while it waits for a verdict, with nothing to publish."""


class ExpectedToolValues(NamedTuple):
    """One expected tool call, with texts without personal data.

    Attributes:
        place: Its place in the goal set, from 0.
        tool: Its name.
        turn: The turn in which it is expected; None if it names none.
        value: 1 or 0, or why it is not known; None if it names no turn.
        differences: Argument (None for the output), expected and seen text of what is not as expected; None if the tool was not
            called in the turn.
        called_in_turns: Other turns in which the tool was called, if the call was missed.
    """

    place: int
    tool: str
    turn: int | None
    value: Value
    differences: tuple[tuple[str | None, str, str | None], ...] | None
    called_in_turns: tuple[int, ...]


class GoalValues(NamedTuple):
    """The goals' values for a call as a whole.

    Attributes:
        tool_correctness: Share of the expected tool calls that were made; None without any, or before the first turn.
        success_final_turn: Whether every subgoal was reached by the last turn; None while the call runs.
        unscored_subgoals: Number of subgoals without a judgement, by reason; at the close.
        expected_tool_calls: The expected tool calls that are known; empty without any.
    """

    tool_correctness: Value
    success_final_turn: Value
    unscored_subgoals: tuple[tuple[UnscoredReason, int], ...]
    expected_tool_calls: tuple[ExpectedToolValues, ...] = ()


def result_of(value: float | UnscoredReason) -> Result:
    """The value as the result of a score record.

    >>> result_of(0.5)
    Scored(outcome='scored', value=0.5)
    >>> result_of(UnscoredReason.NO_SUBGOALS)
    Unscored(outcome='unscored', reason=<UnscoredReason.NO_SUBGOALS: 'no_subgoals'>)
    """
    return Unscored(reason=value) if isinstance(value, UnscoredReason) else Scored(value=value)


# The result of one EVA metric for a call in EVA's encoding: zeros for values it cannot compute, errors, skips.


@dataclass(frozen=True, slots=True)
class MetricResult:
    """One metric of one call.

    Attributes:
        score: On the metric's own scale; None when skipped. With an `error` it is EVA's 0.0.
        normalized_score: From 0 (worst) to 1 (best); None for a metric without such a scale, or skipped.
        details: Grounds of the score under EVA's keys. JSON values; turn ids are texts.
        error: Why EVA could not compute it, in EVA's words.
        skipped: Whether the call has nothing that this metric measures.
        sub_metrics: Parts of the score by name; a part without values to average is absent, None is a value that EVA leaves
            open.
    """

    score: float | None
    normalized_score: float | None
    details: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    skipped: bool = False
    sub_metrics: Mapping[str, float | None] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values under the keys of EVA's result files."""
        return {
            "details": dict(self.details),
            "error": self.error,
            "normalized_score": self.normalized_score,
            "score": self.score,
            "skipped": self.skipped,
            "sub_metrics": dict(self.sub_metrics),
        }


def scored(
    score: float, details: Mapping[str, Any], sub_metrics: Mapping[str, float | None] | None = None
) -> MetricResult:
    """A score from 0 to 1, which is its own normalised score."""
    return MetricResult(score, score, details, sub_metrics=sub_metrics or {})


def skipped(details: Mapping[str, Any] | None = None) -> MetricResult:
    """The result of a call without anything that the metric measures."""
    return MetricResult(None, None, details or {}, skipped=True)


def failed(error: str) -> MetricResult:
    """The result of a metric that EVA cannot compute: an error, and its zero."""
    return MetricResult(0.0, 0.0, error=error)
