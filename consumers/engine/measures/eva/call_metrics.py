"""EVA's metrics of a call that need no judge, as far as their inputs are known."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from consumers.engine.measures.eva.call_ends import (
    conversation_completed_on_time,
    conversation_correctly_finished,
    conversation_valid_end,
)
from consumers.engine.measures.eva.final_state import authentication_success, task_completion
from consumers.engine.measures.eva.timing.response_speed import response_speed
from consumers.engine.measures.eva.timing.turn_taking import turn_taking
from consumers.engine.measures.eva.tools.pre_tool_speech import pre_tool_speech_rate
from consumers.engine.measures.eva.tools.tool_call_validity import tool_call_validity
from consumers.engine.measures.words.word_errors import stt_wer
from consumers.engine.records.eva_result import MetricResult
from consumers.engine.turns.eva.history import CallerLine, EvaHistory
from schemas.metric_context import MetricContext

DEFAULT_LANGUAGE: Final = "en"
STAGES: Final = ("llm_latency", "stt_latency", "tts_latency")
"""Stages of an answer whose mean latency is in a run's result."""


@dataclass(frozen=True, slots=True)
class CallFacts:
    """Inputs of EVA's metrics besides the context of the call.

    Attributes:
        caller_line: The end of the simulated caller's stream.
        pre_tool_speech_rate: Share of tool groups that the assistant announced; None without tools.
        stage_mean_ms: Mean latency of each known stage.
        mean_tokens: Mean number of tokens of the model's steps, by EVA's names, as far as known.
    """

    caller_line: CallerLine
    pre_tool_speech_rate: float | None = None
    stage_mean_ms: Mapping[str, float] = field(default_factory=dict)
    mean_tokens: Mapping[str, float] = field(default_factory=dict)


def facts_of(
    history: EvaHistory,
    stage_mean_ms: Mapping[str, float] | None = None,
    mean_tokens: Mapping[str, float] | None = None,
) -> CallFacts:
    """The facts from the merged history of a call, together with the given ones."""
    rate = pre_tool_speech_rate(history.timeline)
    return CallFacts(history.caller_line, rate, stage_mean_ms or {}, mean_tokens or {})


def metrics_of(context: MetricContext, facts: CallFacts) -> dict[str, MetricResult]:
    """EVA's metrics by name.

    Metrics of the call alone are always there. The one of a valid end needs a simulated caller, and those of the final state need
    both the final and the expected state.
    """
    results = {
        "conversation_completed_on_time": conversation_completed_on_time(context),
        "conversation_correctly_finished": conversation_correctly_finished(context),
        "response_speed": response_speed(context, facts.stage_mean_ms),
        "stt_wer": stt_wer(context, context.language or DEFAULT_LANGUAGE),
        "tool_call_validity": tool_call_validity(context),
        "turn_taking": turn_taking(context, facts.pre_tool_speech_rate, mean_tokens=facts.mean_tokens),
    }
    if facts.caller_line.has_events:
        results["conversation_valid_end"] = conversation_valid_end(context, facts.caller_line)
    expected, final = context.expected_scenario_db, context.final_scenario_db
    if expected is not None and final is not None:
        results["authentication_success"] = authentication_success(
            expected, final, context.tool_responses, context.agent_tools or ()
        )
        results["task_completion"] = task_completion(expected, final, context.final_scenario_db_hash)
    return results
