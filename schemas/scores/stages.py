"""Where the time of a turn went: the latency of each stage, a part of the records of turns and calls."""

from pydantic import Field

from schemas.scores.latency_stages import Stage, StageSource
from schemas.scores.record import Anchor, ScoreModel


class StageLatency(ScoreModel):
    """How long one stage of a turn took.

    Attributes:
        stage: Which.
        latency_ms: The number of the best source that has one.
        source: That source.
        anchor: How the end of the user's speech is known, for a stage that begins there; None for one that begins inside
            the agent.
        model: The model that worked, where the source names it.
        others_ms: What other sources say of the same stage.
        is_disputed: Whether one of them says something else than `latency_ms`, beyond the tolerance.
    """

    stage: Stage
    latency_ms: float
    source: StageSource
    anchor: Anchor | None = None
    model: str | None = None
    others_ms: dict[StageSource, float] = Field(default_factory=dict)
    is_disputed: bool = False


class StageAgreement(ScoreModel):
    """In how many turns of a call several sources measured a stage, and in how many of those they disagree.

    Attributes:
        compared: Turns in which at least two sources measured it.
        disputed: Those of them in which one says something else than the best, beyond the tolerance.
    """

    compared: int = 0
    disputed: int = 0


class EstimateError(ScoreModel):
    """By how many ms the live estimate of a turn's voice-to-voice latency was off: estimate less record, below 0 where it was
    too short. Live events arrive when a transcript is ready, so the estimate lacks the time until then.
    """

    error_ms: float
    estimated_ms: float
    recorded_ms: float
