"""Turns EVA's metrics of a whole call into scores: a zero for an unknown value becomes unscored, with a reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from consumers.engine.measures.eva.call_ends import (
    conversation_completed_on_time,
    conversation_correctly_finished,
    conversation_valid_end,
)
from consumers.engine.measures.eva.final_state import authentication_success, task_completion
from consumers.engine.measures.eva.supplied import SuppliedFacts
from consumers.engine.measures.eva.timing.response_speed import response_speed
from consumers.engine.measures.eva.timing.turn_scores import TurnScore
from consumers.engine.measures.eva.timing.turn_taking import INACTIVITY, last_speaker, missed_turn, turn_taking
from consumers.engine.measures.eva.tools.schema_validity import tool_schema_validity
from consumers.engine.measures.eva.tools.tool_call_validity import tool_call_validity
from consumers.engine.records.eva_result import MetricResult
from consumers.engine.turns.eva.history import CallerLine
from schemas.metric_context import MetricContext
from schemas.scores.eva import EvaMetricName
from schemas.scores.record import NotApplicable, Result, Scored, Unscored, UnscoredReason

NO_CALLER: Final = NotApplicable(reason="there is no simulated caller")
NO_TOOL: Final = NotApplicable(reason="no tool was used")
NO_ANSWER: Final = NotApplicable(reason="no answer of a tool is known")
NO_ARGUMENTS: Final = NotApplicable(reason="the arguments of the tools are not known")
NO_SCHEMAS: Final = NotApplicable(reason="the schemas of the agent's tools are not known")
NO_EXPECTED_STATE: Final = NotApplicable(reason="the expected final state is not known")
NO_EXPECTED_SESSION: Final = NotApplicable(reason="the user need not be identified")
NO_WAIT: Final = NotApplicable(reason="the user never waited for an answer")


@dataclass(frozen=True, slots=True)
class FinalScore:
    """One metric as a score record has it; the other fields are the metric's own."""

    result: Result
    normalized: float | None = None
    sub_metrics: Mapping[str, float | None] | None = None


@dataclass(frozen=True, slots=True)
class WholeCall:
    """Inputs of the metrics of a call that is over.

    Attributes:
        context: EVA's context, with the times of the turns in which the call is heard, and with its tools.
        turn_scores: The scores of those turns.
        silence: Why nobody was heard; None when some turn has a score.
        pre_tool_speech_rate: Share of tool groups that the assistant announced; None without tools.
        has_used_tool: Whether any source reports a tool, be it without arguments and without an answer.
        caller_line: The end of the simulated caller's stream.
        supplied: Facts that the producer supplied.
    """

    context: MetricContext
    turn_scores: Mapping[int, TurnScore]
    silence: UnscoredReason | None
    pre_tool_speech_rate: float | None
    has_used_tool: bool
    caller_line: CallerLine
    supplied: SuppliedFacts


def final_scores(call: WholeCall) -> dict[EvaMetricName, FinalScore]:
    """Every metric that needs no judge, scored or with the reason why not; word errors are a measure of their own."""
    return {
        "eva_turn_taking": _turn_taking(call),
        "eva_response_speed": _response_speed(call),
        "eva_tool_call_validity": _tool_call_validity(call),
        "eva_tool_schema_validity": _tool_schema_validity(call),
        **_ends(call),
        **_state(call),
    }


def _of(result: MetricResult) -> FinalScore:
    """The score of a result that has one."""
    score = 0.0 if result.score is None else result.score
    return FinalScore(Scored(value=score), result.normalized_score, result.sub_metrics)


def _unscored(reason: UnscoredReason) -> FinalScore:
    return FinalScore(Unscored(reason=reason))


def _turn_taking(call: WholeCall) -> FinalScore:
    if call.silence is not None and not missed_turn(call.context):
        return _unscored(call.silence)
    return _of(turn_taking(call.context, call.pre_tool_speech_rate, call.turn_scores))


def _response_speed(call: WholeCall) -> FinalScore:
    result = response_speed(call.context)
    if not result.skipped:
        return _of(result)
    return FinalScore(NO_WAIT) if call.silence is None else _unscored(call.silence)


def _tool_call_validity(call: WholeCall) -> FinalScore:
    if call.context.tool_responses:
        return _of(tool_call_validity(call.context))
    return FinalScore(NO_ANSWER if call.has_used_tool else NO_TOOL)


def _tool_schema_validity(call: WholeCall) -> FinalScore:
    if call.supplied.tools is None:
        return FinalScore(NO_SCHEMAS)
    result = tool_schema_validity(call.context.tool_params, call.supplied.tools)
    if not result.skipped:
        return _of(result)
    return FinalScore(NO_ARGUMENTS if call.has_used_tool else NO_TOOL)


def _ends(call: WholeCall) -> dict[EvaMetricName, FinalScore]:
    context, line = call.context, call.caller_line
    if context.conversation_ended_reason is None:
        finished = on_time = _unscored(UnscoredReason.END_REASON_UNKNOWN)
    else:
        on_time = _of(conversation_completed_on_time(context))
        finished = _of(conversation_correctly_finished(context))
        if context.conversation_ended_reason == INACTIVITY and last_speaker(context) is None:
            finished = _unscored(call.silence or UnscoredReason.NO_SPEECH_EVENTS)  # the last speaker is unknown
    return {
        "eva_conversation_correctly_finished": finished,
        "eva_conversation_completed_on_time": on_time,
        "eva_conversation_valid_end": _of(conversation_valid_end(context, line))
        if line.has_events
        else FinalScore(NO_CALLER),
    }


def _state(call: WholeCall) -> dict[EvaMetricName, FinalScore]:
    expected, final = call.supplied.expected_state, call.supplied.final_state
    if expected is None:
        authentication = completion = FinalScore(NO_EXPECTED_STATE)
    elif final is None:
        authentication = completion = _unscored(UnscoredReason.FINAL_STATE_UNKNOWN)
    else:
        tools = [tool.model_dump(include={"name", "tool_type"}) for tool in call.supplied.tools or ()]
        session = authentication_success(expected, final, call.context.tool_responses, tools)
        authentication = FinalScore(NO_EXPECTED_SESSION) if session.skipped else _of(session)
        completion = _of(task_completion(expected, final, call.supplied.final_state_hash))
    return {"eva_authentication_success": authentication, "eva_task_completion": completion}
