"""What the engine wants done: a closed union of values that a shell carries out, and tests compare."""

from dataclasses import dataclass

from schemas.judging import JudgeRequest
from schemas.scores.all_records import AnyScoreRecord


@dataclass(frozen=True, slots=True)
class PublishScore:
    """Write one record to `scores`."""

    record: AnyScoreRecord


@dataclass(frozen=True, slots=True)
class RecordFact:
    """Write to `scores` what was known only by silence, so that a replay need not decide it again."""

    record: AnyScoreRecord


@dataclass(frozen=True, slots=True)
class CloseCall:
    """Write the final scores and, last, the `closed` fact in one transaction; the call is gone from the engine.

    `transcript` is the value of a record of `transcripts`, to be written in the same transaction; None when none is.
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
    """Write a question to `judge.requests`. Asking twice is harmless: its id follows from what is asked."""

    request: JudgeRequest


Effect = PublishScore | RecordFact | CloseCall | Count | RequestVerdict
