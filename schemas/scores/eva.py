"""EVA's metrics, as parts of the records of turns and calls: the timing of a turn, and each metric of the call."""

from typing import Final, Literal

from pydantic import Field

from schemas.scores.record import Anchor, Result, ScoreModel

EvaMetricName = Literal[
    "eva_turn_taking",
    "eva_response_speed",
    "eva_tool_call_validity",
    "eva_tool_schema_validity",
    "eva_conversation_correctly_finished",
    "eva_conversation_completed_on_time",
    "eva_conversation_valid_end",
    "eva_authentication_success",
    "eva_task_completion",
    "eva_x_mean",
    "eva_x_pass",
]
"""Names of EVA's metrics with the prefix `eva_`. `eva_tool_schema_validity` is ours, for agents whose tools do not name their
errors as EVA's do."""

EVA_PREFIX: Final = "eva_"


class TurnTakingScore(ScoreModel):
    """How well a turn was timed, by EVA's `turn_taking` from 0 to 1: its latency, or how one side spoke over the other.

    The other fields are the evidence, set if they counted: `latency_ms` from the end of the user's speech to the answer;
    `overlap_ms` in which both spoke, in `interrupt_segments` stretches of the assistant's speech; `post_interrupt_latency_ms`
    from the end of that overlap to the answer; `yield_ms` for which the assistant kept speaking after the user had begun. A
    tool call in the turn allows for a later answer. `anchor` is how the end of the user's speech is known; only with `audio` is
    the score EVA's own.
    """

    result: Result
    reason: Literal["latency", "agent_interrupt", "user_interrupt", "dual_interrupt", "turn_end_fallback"] | None = None
    has_tool_call: bool = False
    latency_ms: float | None = None
    overlap_ms: float | None = None
    interrupt_segments: int | None = None
    post_interrupt_latency_ms: float | None = None
    yield_ms: float | None = None
    anchor: Anchor | None = None


class EvaMetricScore(ScoreModel):
    """One of EVA's metrics of the call so far, or of the whole call, on its own scale.

    The scale is from 0 to 1 and higher is better, except for `eva_response_speed`, the mean wait for an answer in seconds.
    `normalized` is None if EVA does not define it. `sub_metrics` has EVA's names, with None for values that EVA leaves open.
    `anchor` is the worst anchor of the turns behind the score; None if the score does not depend on sound.
    """

    result: Result
    normalized: float | None = None
    sub_metrics: dict[str, float | None] = Field(default_factory=dict)
    anchor: Anchor | None = None
