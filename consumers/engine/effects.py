"""The effects of the engine: a closed union of values that the shell carries out and tests compare."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemas.closed_sets import InputSource
from schemas.judging import JudgeRequest
from schemas.scores.records import AnyScoreRecord

if TYPE_CHECKING:
    from schemas.events.codec import Misread  # brings the reader of every event


@dataclass(frozen=True, slots=True)
class PublishScore:
    """Write one record to `scores`."""

    record: AnyScoreRecord


@dataclass(frozen=True, slots=True)
class CloseCall:
    """Write the final scores and, last, the `closed` fact in one transaction; the engine has forgotten the call.

    `transcript` is the value of a record of `transcripts` for the same transaction; None without a transcript.
    """

    conversation_id: str
    records: tuple[AnyScoreRecord, ...]
    transcript: bytes | None = None


@dataclass(frozen=True, slots=True)
class Count:
    """Add to a counter of the metric catalogue."""

    metric: str
    labels: tuple[str, ...]
    by: int = 1


@dataclass(frozen=True, slots=True)
class RequestVerdict:
    """Write a question to `judge.requests`. A repeated question is harmless: equal questions have equal ids."""

    request: JudgeRequest


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """Report a record that is taken and does nothing, or less than it could."""

    source: InputSource
    conversation_id: str
    misread: "Misread"


Effect = PublishScore | CloseCall | Count | RequestVerdict | NotUnderstood
