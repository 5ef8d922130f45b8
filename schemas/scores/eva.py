"""EVA's metrics, as parts of the records of turns and calls: how well a turn was timed, and what each metric says of the call."""

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
"""EVA's name of the metric behind `eva_`. `eva_tool_schema_validity` is ours, for agents whose tools do not name their errors
as EVA's do."""

EVA_PREFIX: Final = "eva_"


class TurnTakingScore(ScoreModel):
    """How well a turn was timed, from 0 to 1, by EVA's `turn_taking`: its latency, or how one side spoke over the other.

    The rest is what that was read from, as far as it counted: `latency_ms` from the user's end to the answer;
    `overlap_ms` in which both spoke, in `interrupt_segments` stretches of the assistant, and `post_interrupt_latency_ms`
    until it answered after that; `yield_ms` that the assistant spoke on when the user had begun. A tool call in the turn
    allows for a later answer. `anchor` says how the user's end is known; anything but `audio` is no value of EVA's own.
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
    """What one of EVA's metrics says of the call so far, or in the end, on its own scale.

    That is from 0 to 1 and higher is better, except for `eva_response_speed`, the mean wait for an answer in seconds.
    `normalized` is None where EVA has no such scale. `sub_metrics` has EVA's names; None is what EVA leaves open. `anchor` is
    the worst one that the turns behind it have; None where no sound is behind it.
    """

    result: Result
    normalized: float | None = None
    sub_metrics: dict[str, float | None] = Field(default_factory=dict)
    anchor: Anchor | None = None
