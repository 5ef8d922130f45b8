"""EVA's contexts by hand: as much of one as a metric reads."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from schemas.closed_sets import PipelineType
from schemas.metric_context import MetricContext

Heard = Mapping[int, Sequence[tuple[float, float]] | None]


def context(
    *,
    user: Heard | None = None,
    assistant: Heard | None = None,
    trace: Iterable[Mapping[str, Any]] = (),
    assistant_interrupted: Iterable[int] = (),
    user_interrupted: Iterable[int] = (),
    fallbacks: Iterable[int] = (),
    ended_reason: str | None = "goodbye",
    **others: Any,
) -> MetricContext:
    """A context of a call that sounds like this; latencies follow from the sounds."""
    user, assistant = user or {}, assistant or {}
    latency = {
        turn: round(theirs[0][0] - mine[-1][1], 6)
        for turn, mine in sorted(user.items())
        if mine and (theirs := assistant.get(turn))
    }
    fields: dict[str, Any] = {
        "transcribed_assistant_turns": {},
        "transcribed_user_turns": {},
        "intended_assistant_turns": {},
        "intended_user_turns": {},
        "audio_timestamps_user_turns": dict(user),
        "audio_timestamps_assistant_turns": dict(assistant),
        "latency_assistant_turns": latency,
        "num_assistant_turns": len(assistant),
        "num_user_turns": len(user),
        "num_tool_calls": 0,
        "tool_called": [],
        "tool_params": [],
        "tool_responses": [],
        "conversation_trace": list(trace),
        "assistant_interrupted_turns": frozenset(assistant_interrupted),
        "user_interrupted_turns": frozenset(user_interrupted),
        "fallback_turn_ids": frozenset(fallbacks),
        "conversation_ended_reason": ended_reason,
        "pipeline_type": PipelineType.CASCADE,
    }
    return MetricContext.model_construct(**fields | others)
