"""EVA's context for a call without a simulated caller, so that EVA's formulas apply to the turns that the bot heard."""

from collections.abc import Mapping
from typing import Any

from consumers.engine.measures.eva.timing.heard_times import HeardTimes
from consumers.engine.turns.timeline.tool_uses import ToolEntry
from schemas.metric_context import MetricContext


def context_as_heard(
    context: MetricContext, turns: Mapping[int, HeardTimes], last_tool: ToolEntry | None
) -> MetricContext:
    """The context with the times of these turns, in their order, since EVA has none for such a call.

    Its tools are those of the chain that ends with `last_tool`: EVA knows only the tools of the audit log.

    An open sound has an infinite end, so the result is for comparing times and not for printing them.
    """
    times = {turn: turns[turn].times for turn in sorted(turns)}
    calls, responses = _tools(last_tool)
    return context.model_copy(
        update={
            "audio_timestamps_user_turns": {turn: list(each.user) for turn, each in times.items() if each.user},
            "audio_timestamps_assistant_turns": {
                turn: list(each.assistant) for turn, each in times.items() if each.assistant
            },
            "latency_assistant_turns": {
                turn: each.latency_s for turn, each in times.items() if each.latency_s is not None
            },
            "tool_params": calls,
            "tool_responses": responses,
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


def _tools(last: ToolEntry | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Calls and answers as in EVA's context, in order: first those with arguments, then those with an answer."""
    calls: list[dict[str, Any]] = []
    responses: list[dict[str, Any]] = []
    while last is not None:
        use = last.use
        if use.name and use.value is not None:
            if last.is_response:
                responses.append({"tool_name": use.name, "tool_response": use.value})
            else:
                calls.append({"tool_name": use.name, "tool_parameters": use.value})
        last = last.previous
    return calls[::-1], responses[::-1]
