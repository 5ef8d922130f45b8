"""What every record of the `scores` topic has: what it is about, how far that can still change, and what is needed to trust it."""

import hashlib
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field
from pydantic_core import from_json

from schemas.closed_sets import Anchor as Anchor
from schemas.closed_sets import UnscoredReason as UnscoredReason
from schemas.events.call import PipelineType

SCHEMA_VERSION = 2


class TurnStatus(StrEnum):
    """How far a turn can still change: it is the newest; it was left; every stream is past it; the call is over."""

    OPEN = "open"
    PROVISIONAL = "provisional"
    SETTLED = "settled"
    FINAL = "final"


class ScoreModel(BaseModel):
    """Records we write: closed shapes, never changed after they are made. Their errors repeat no texts."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


class Scored(ScoreModel):
    """A known value."""

    outcome: Literal["scored"] = "scored"
    value: float


class Unscored(ScoreModel):
    """A value that is not known, and why."""

    outcome: Literal["unscored"] = "unscored"
    reason: UnscoredReason


class NotApplicable(ScoreModel):
    """A score that this turn or call cannot have, and why."""

    outcome: Literal["not_applicable"] = "not_applicable"
    reason: str


Result = Annotated[Scored | Unscored | NotApplicable, Field(discriminator="outcome")]


class CallLabels(ScoreModel):
    """What a call's metrics are labelled with; `unknown` until a `call_started` says."""

    agent: str = "unknown"
    tenant: str = "unknown"
    environment: str = "unknown"
    pipeline_type: PipelineType = PipelineType.CASCADE


class CallRecord(ScoreModel):
    """What every record of `scores` carries.

    `revision` counts from 1 for each subject (`name`, `turn`, `index`) of a conversation; a higher one replaces a lower, and
    the newest one before `closed` is final. No revision says the same as the one before it. `is_first` marks the first
    revision that has a value, the one a counter counts. `offsets` are the last record of each input topic folded before it.
    `caused_at_ms` is the broker's time of the record that caused it.
    """

    schema_version: int = SCHEMA_VERSION
    conversation_id: str
    turn: int | None = None
    index: int = 0
    revision: int
    status: TurnStatus
    is_first: bool = False
    input_hash: str
    offsets: dict[str, int]
    event_time_ms: int | None
    caused_at_ms: int
    labels: CallLabels
    code_version: str

    @computed_field(description="Identifies the record: the same subject, revision and status always has the same id.")  # type: ignore[prop-decorator]  # mypy cannot stack decorators on property
    @property
    def record_id(self) -> str:
        """Hash of (conversation, name, turn, index, revision, status)."""
        name = getattr(self, "name", "")
        identity = (
            f"{self.conversation_id}\x00{name}\x00{self.turn}\x00{self.index}\x00{self.revision}\x00{self.status}"
        )
        return hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()


def schema_version_in(value: bytes) -> int | None:
    """The schema version that a value of `scores` names, whatever else is in it; None when it names none."""
    try:
        fields = from_json(value)
    except ValueError:
        return None
    version = fields.get("schema_version") if isinstance(fields, dict) else None
    return version if isinstance(version, int) else None
