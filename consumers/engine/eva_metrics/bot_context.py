"""EVA's context for a call without a simulated caller: its formulas then work on the turns in which the bot heard itself."""

from collections.abc import Mapping

from consumers.engine.eva_metrics.heard_times import HeardTimes
from schemas.metric_context import MetricContext


def context_as_heard(context: MetricContext, turns: Mapping[int, HeardTimes]) -> MetricContext:
    """The context with the times of these turns, in the order of the turns, in place of those that EVA has none of.

    A sound without an end goes on for ever, so the result is for comparing times and not for printing them.
    """
    times = {turn: turns[turn].times for turn in sorted(turns)}
    return context.model_copy(
        update={
            "audio_timestamps_user_turns": {turn: list(each.user) for turn, each in times.items() if each.user},
            "audio_timestamps_assistant_turns": {
                turn: list(each.assistant) for turn, each in times.items() if each.assistant
            },
            "latency_assistant_turns": {
                turn: each.latency_s for turn, each in times.items() if each.latency_s is not None
            },
            "conversation_trace": [
                {"type": "tool_call", "turn_id": turn} for turn, each in times.items() if each.has_tool_call
            ],
            "assistant_interrupted_turns": frozenset(
                turn for turn, each in times.items() if each.assistant_interrupted
            ),
            "user_interrupted_turns": frozenset(turn for turn, each in times.items() if each.user_interrupted),
            "fallback_turn_ids": frozenset(turn for turn, each in times.items() if each.is_fallback),
        }
    )
