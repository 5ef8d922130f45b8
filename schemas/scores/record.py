"""The common part of all records of the `scores` topic: subject, revision, status and origin."""

import hashlib
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field
from pydantic_core import from_json

from schemas.closed_sets import Anchor as Anchor
from schemas.closed_sets import UnscoredReason as UnscoredReason
from schemas.events.call import PipelineType

SCHEMA_VERSION = 2

GENERATION = 1_000_000
"""Revisions of one generation: more than any call makes. A new one begins when another version of the code takes a call over."""


class TurnStatus(StrEnum):
    """How far a turn can still change.

    - `open`: it is the newest turn
    - `provisional`: the call has left it
    - `settled`: every stream has moved past it
    - `final`: the call is over
    """

    OPEN = "open"
    PROVISIONAL = "provisional"
    SETTLED = "settled"
    FINAL = "final"


class ScoreModel(BaseModel):
    """Base of the records and their parts: immutable, and validation errors do not repeat the input."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


class Scored(ScoreModel):
    """A known value."""

    outcome: Literal["scored"] = "scored"
    value: float


class Unscored(ScoreModel):
    """The reason why a value is unknown."""

    outcome: Literal["unscored"] = "unscored"
    reason: UnscoredReason


WITHDRAWN = Unscored(reason=UnscoredReason.WITHDRAWN)
"""The result of a record that later events made void: there is no such turn, subgoal or latency any more."""


class NotApplicable(ScoreModel):
    """The reason why this turn or call cannot have the score."""

    outcome: Literal["not_applicable"] = "not_applicable"
    reason: str


Result = Annotated[Scored | Unscored | NotApplicable, Field(discriminator="outcome")]


class CallLabels(ScoreModel):
    """Labels of a call's metrics; `unknown` until a `call_started` names them."""

    agent: str = "unknown"
    tenant: str = "unknown"
    environment: str = "unknown"
    pipeline_type: PipelineType = PipelineType.CASCADE


class CallRecord(ScoreModel):
    """Fields of every record of `scores`.

    `revision` grows with each record of a subject (`name`, `turn`, `index`) of a conversation, from 1. A higher revision
    replaces a lower one, and the newest before `closed` is final. When another version of the code takes the call over, it
    publishes every value once again, and revisions go on from the next million: two versions never use one number.
    `is_first` marks the first revision that has a value, which counters count. `offsets` is, by input topic, the offset of
    the last record that was evaluated before it. `caused_at_ms` is the broker's time of the record that caused it.
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
        """The record's id: a hash of (conversation, name, turn, index, revision, status)."""
        name = getattr(self, "name", "")
        identity = (
            f"{self.conversation_id}\x00{name}\x00{self.turn}\x00{self.index}\x00{self.revision}\x00{self.status}"
        )
        return hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()


def next_generation(revision: int) -> int:
    """Returns the first revision of the generation after that of `revision`.

    >>> next_generation(7), next_generation(1_000_003)
    (1000000, 2000000)
    """
    return (revision // GENERATION + 1) * GENERATION


def schema_version_in(value: bytes) -> int | None:
    """Returns the schema version in a value of `scores` without validating the rest; None if it has none."""
    try:
        fields = from_json(value)
    except ValueError:
        return None
    version = fields.get("schema_version") if isinstance(fields, dict) else None
    return version if isinstance(version, int) else None
