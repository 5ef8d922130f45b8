"""Latencies of the stages of a turn, as parts of the records of turns and calls."""

from pydantic import Field

from schemas.scores.latency_stages import Stage, StageSource
from schemas.scores.record import Anchor, ScoreModel


class StageLatency(ScoreModel):
    """Latency of one stage of a turn.

    Attributes:
        stage: The stage.
        latency_ms: Latency by the best source that measured it.
        source: That source.
        anchor: How the end of the user's speech is known, for a stage that begins there; None for a stage that begins inside
            the agent.
        model: Name of the model, if the source reports it.
        others_ms: Latency of the same stage by other sources.
        is_disputed: Whether another source differs from `latency_ms` by more than the tolerance.
    """

    stage: Stage
    latency_ms: float
    source: StageSource
    anchor: Anchor | None = None
    model: str | None = None
    others_ms: dict[StageSource, float] = Field(default_factory=dict)
    is_disputed: bool = False


class StageAgreement(ScoreModel):
    """Agreement of the sources of a stage over the turns of a call.

    Attributes:
        compared: Turns in which at least two sources measured the stage.
        disputed: Turns of these in which a source differs from the best one by more than the tolerance.
    """

    compared: int = 0
    disputed: int = 0


class EstimateError(ScoreModel):
    """Error of the live estimate of a turn's voice-to-voice latency, in ms: estimate minus record, negative when too short.

    Live events arrive when a transcript is ready, so the estimate lacks the time until then.
    """

    error_ms: float
    estimated_ms: float
    recorded_ms: float
