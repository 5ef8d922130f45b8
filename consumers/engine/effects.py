"""The effects of the engine: a closed union of values that the shell carries out and
tests compare.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemas.closed_sets import InputSource
from schemas.judging import JudgeRequest
from schemas.rows import Row, WordsRow

if TYPE_CHECKING:
    from schemas.events.codec import Misread  # brings the reader of every event


@dataclass(frozen=True, slots=True)
class PublishRow:
    """Write a row to `scores`. The rows of one step belong together. The closed row of a call is
    its last row.
    """

    row: Row


@dataclass(frozen=True, slots=True)
class PublishWords:
    """Write a row to `words`."""

    row: WordsRow


@dataclass(frozen=True, slots=True)
class PublishTranscript:
    """Write the transcript of a call that closes in this step."""

    conversation_id: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Count:
    """Add to a counter of the metric catalogue."""

    metric: str
    labels: tuple[str, ...]
    by: int = 1


@dataclass(frozen=True, slots=True)
class RequestVerdict:
    """Write a question to `judge.requests`. A repeated question is harmless: equal questions have
    equal ids.
    """

    request: JudgeRequest


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """Report a record that is taken and does nothing, or less than it could."""

    source: InputSource
    conversation_id: str
    misread: "Misread"


Effect = PublishRow | PublishWords | PublishTranscript | Count | RequestVerdict | NotUnderstood
