"""Where the time of a turn went: the record of `scores` with the latency of each stage."""

from typing import Literal

from pydantic import Field

from schemas.latency_stages import Stage, StageSource
from schemas.score_record import Anchor, CallRecord, ScoreModel


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


class TurnStages(CallRecord):
    """The stages of a turn, as far as they are known: said when the assistant has begun to speak, and whenever it changes.

    One record for all stages of a turn, because they come together. A stage that nobody measured is not in it. `first_known`
    are the stages whose latency nobody had said before, the ones a histogram takes.
    """

    kind: Literal["score"] = "score"
    name: Literal["stage_latencies"] = "stage_latencies"
    stages: tuple[StageLatency, ...]
    first_known: tuple[Stage, ...] = ()
    is_withdrawn: bool = False
