"""EVA's other metrics of a call by code: waits, tool calls, its end, its final state, and the
composites.
"""

from typing import Any

import pytest

from consumers.engine.measures.eva import (
    EXPERIENCE_THRESHOLDS,
    authentication_success,
    composite_mean,
    composite_pass,
    conversation_completed_on_time,
    conversation_correctly_finished,
    conversation_valid_end,
    state_hash,
    task_completion,
)
from consumers.engine.measures.eva_timing import response_speed, speed_of
from consumers.engine.measures.eva_tools import (
    CALL_ERRORS,
    tool_call_validity,
    tool_schema_validity,
)
from consumers.engine.turns.eva import CallerLine
from schemas.events.audit import AgentTool
from tests.support.calls.metric_contexts import context

# response_speed


def test_waits_are_averaged_over_all_turns_and_by_whether_a_tool_was_used() -> None:
    result = speed_of({0: 1.2, 1: 2.0, 2: 4.5, 3: -0.5, 4: 0.0, 5: 1000.0}, with_tools=[2, 3])
    assert (result.score, result.normalized_score, result.skipped) == (2.567, None, False)
    assert result.details == {
        "max_speed_seconds": 4.5,
        "mean_speed_seconds": 2.567,
        "num_turns": 3,
        "per_turn_speeds": [1.2, 2.0, 4.5],
    }
    assert result.sub_metrics == {"with_tool_calls": 4.5, "no_tool_calls": 1.6}


def test_a_call_without_a_wait_is_skipped() -> None:
    for waits in ({}, {1: -0.2}):
        result = speed_of(waits, [])
        assert (result.score, result.normalized_score, result.skipped, result.error) == (
            None,
            None,
            True,
            None,
        )
        assert (result.details, result.sub_metrics) == ({}, {})


def test_waits_are_added_from_the_first_to_the_last() -> None:
    """With another order of addition EVA's third digit is another."""
    assert speed_of(dict(enumerate([0.8, 0.25, 4.2, 0.8])), []).score == 1.512


def test_the_stages_of_a_run_are_told_in_seconds() -> None:
    heard = context(user={1: [(1.0, 2.0)]}, assistant={1: [(3.0, 4.0)]})
    parts = response_speed(heard, {"llm_latency": 3304.7368}).sub_metrics
    assert parts == {"no_tool_calls": 1.0, "llm_latency": 3.305}


# tool_call_validity


def _tools(*answers: object) -> dict[str, Any]:
    return {
        "tool_responses": [{"tool_name": "book", "tool_response": answer} for answer in answers],
        "tool_params": [{"tool_name": "book", "tool_parameters": {"n": 0}}],
    }


def test_answers_that_blame_the_call_are_counted_by_type() -> None:
    wrong = {"error_type": "invalid_parameter", "message": "no such seat"}
    result = tool_call_validity(
        context(**_tools({"status": "success"}, wrong, {"error_type": "not_found"}))
    )
    assert result.score == result.normalized_score == 0.6667
    assert result.details == {
        "errors": [
            {
                "error_type": "invalid_parameter",
                "message": "no such seat",
                "parameters": {},
                "tool_name": "book",
            }
        ],
        "invalid_tool_calls": 1,
        "total_tool_calls": 3,
        "valid_tool_calls": 2,
    }
    assert result.sub_metrics["invalid_parameter_rate"] == 0.3333
    assert result.sub_metrics["num_tool_calls"] == 3.0
    assert set(result.sub_metrics) == {
        "num_tool_calls",
        *(f"{error}_rate" for error in CALL_ERRORS),
    }


@pytest.mark.parametrize(
    "answer", ["invalid_parameter", None, {"error_type": ["invalid_parameter"]}, {}]
)
def test_an_answer_of_another_shape_blames_nobody(answer: object) -> None:
    assert tool_call_validity(context(**_tools(answer))).score == 1.0


def test_other_domains_validation_errors_are_not_counted() -> None:
    assert (
        tool_call_validity(context(**_tools({"error_type": "invalid_employee_id_format"}))).score
        == 1.0
    )


def test_without_tools_eva_says_one() -> None:
    result = tool_call_validity(context())
    assert (result.score, result.sub_metrics) == (1.0, {"num_tool_calls": 0.0})
    assert result.details == {"note": "No tool calls to evaluate", "total_tool_calls": 0}


def test_calls_are_compared_with_what_the_tools_take() -> None:
    tools = [
        AgentTool(name="book", parameters={"type": "object", "required": ["seat"]}),
        AgentTool(name="wait"),
    ]
    calls = [
        {"tool_name": "book", "tool_parameters": {"seat": "1A"}},
        {"tool_name": "book", "tool_parameters": {}},
        {"tool_name": "wait", "tool_parameters": {"long": True}},
        {"tool_name": "cancel", "tool_parameters": {}},
    ]
    result = tool_schema_validity(calls, tools)
    assert result.score == 0.5
    assert result.sub_metrics == {
        "num_tool_calls": 4.0,
        "unknown_tool_rate": 0.25,
        "unfit_arguments_rate": 0.25,
    }
    assert tool_schema_validity([], tools).skipped


# How the call ended.

IDLE = "inactivity_timeout"
USER_LAST: dict[str, Any] = {"user": {1: [(10.0, 12.0)]}, "assistant": {1: [(11.0, 11.5)]}}


@pytest.mark.parametrize(
    ("reason", "score", "told"),
    [
        (IDLE, 0.0, "conversation ended with inactivity_timeout and user was the last speaker"),
        ("error", 1.0, "conversation ended with reason='error'"),
        (None, 1.0, "conversation ended with reason=None"),
    ],
)
def test_whether_the_user_was_left_without_an_answer(
    reason: str | None, score: float, told: str
) -> None:
    result = conversation_correctly_finished(context(**USER_LAST, ended_reason=reason))
    assert (result.score, result.details["reason"]) == (score, told)
    assert result.details["last_audio_speaker"] == "user"


def test_of_two_who_end_at_once_the_assistant_was_last() -> None:
    tie = context(user={1: [(10.0, 12.0)]}, assistant={1: [(11.0, 12.0)]}, ended_reason=IDLE)
    result = conversation_correctly_finished(tie)
    assert (result.score, result.details["reason"]) == (
        1.0,
        "inactivity_timeout but last speaker was 'assistant'",
    )


def test_only_the_time_limit_makes_a_call_late() -> None:
    assert conversation_completed_on_time(context(ended_reason="time_limit_exceeded")).score == 0.0
    for reason in ("timeout", "ended", "cancelled", None):
        result = conversation_completed_on_time(context(ended_reason=reason))
        assert (result.score, result.details) == (
            1.0,
            {"conversation_ended_reason": reason, "timed_out": False},
        )


@pytest.mark.parametrize(
    ("line", "score", "error"),
    [
        (CallerLine(has_events=True, last_reason="goodbye"), 1.0, None),
        (CallerLine(has_events=True, last_reason="error"), 0.0, None),
        (CallerLine(has_events=True, last_reason=None), 0.0, None),
        (
            CallerLine(has_events=False, last_reason=None),
            0.0,
            "The simulated caller's stream is empty",
        ),
    ],
)
def test_an_end_that_counts_is_a_goodbye(line: CallerLine, score: float, error: str | None) -> None:
    result = conversation_valid_end(context(), line)
    assert (result.score, result.error) == (score, error)
    missed = context(**USER_LAST, ended_reason=IDLE)
    # or the assistant's silence, which is one, too
    assert conversation_valid_end(missed, line).score == 1.0


# The final state of the call.

EXPECTED = {"fees": {"f1": {"total": 20, "note": None}}, "session": {"name": "Ada"}}
FINAL: dict[str, Any] = {
    "fees": {"f1": {"total": 20.0, "note": "None"}},
    "session": {"name": "ADA", "more": 1},
}


def test_the_state_is_compared_apart_from_spelling() -> None:
    assert authentication_success(EXPECTED, FINAL).score == 1.0
    assert task_completion(EXPECTED, FINAL).score == 1.0


def test_a_user_who_was_not_identified_fails_both() -> None:
    stranger = FINAL | {"session": {"name": "Bob"}}
    session, completion = (
        authentication_success(EXPECTED, stranger),
        task_completion(EXPECTED, stranger),
    )
    assert (session.score, completion.score) == (0.0, 0.0)
    assert session.details["mismatches"] == {"name": {"actual": "Bob", "expected": "Ada"}}
    assert completion.details["auth_failed"]


def test_nobody_to_identify_is_no_success() -> None:
    result = authentication_success({"fees": {}}, FINAL)
    assert (result.score, result.skipped) == (None, True)


def test_tables_that_differ_are_named_and_the_hash_of_the_run_counts() -> None:
    other = FINAL | {"fees": {}, "extra": {}}
    result = task_completion(EXPECTED, other)
    assert (result.score, result.details["differing_tables"]) == (0.0, ["extra", "fees"])
    assert task_completion(EXPECTED, FINAL, "0" * 64).score == 0.0
    assert task_completion(EXPECTED, other, state_hash(EXPECTED)).score == 1.0


def test_the_order_of_some_lists_means_nothing() -> None:
    one, other = [{"id": 1}, {"id": 2}], [{"id": 2}, {"id": 1}]
    assert state_hash({"bookings": one}) == state_hash({"bookings": other})
    assert state_hash({"t": {"notifications": one}}) == state_hash({"t": {"notifications": other}})
    assert state_hash({"t": {"legs": one}}) != state_hash({"t": {"legs": other}})


def test_attempts_to_identify_the_user() -> None:
    tools = [{"name": "login", "tool_type": "auth"}, {"name": "book", "tool_type": "write"}]
    once = [{"tool_name": "login"}, {"tool_name": "book"}]
    assert authentication_success(EXPECTED, FINAL, once, tools).sub_metrics == {
        "auth_first_try_success": 1.0,
        "num_auth_calls": 1.0,
        "authentication_success_rate": 1.0,
    }
    twice = [{"tool_name": "login"}, {"tool_name": "login"}]
    assert authentication_success(EXPECTED, FINAL, twice, tools).sub_metrics == {
        "auth_first_try_success": 0.0,
        "num_auth_calls": 2.0,
        "authentication_success_rate": 0.5,
    }
    failed = authentication_success(EXPECTED, {}, twice, tools)
    assert failed.sub_metrics == {"num_auth_calls_on_failure": 2.0}
    assert authentication_success(EXPECTED, FINAL, [], tools).sub_metrics == {}


# The composites.


def test_the_mean_is_that_of_what_is_known() -> None:
    assert (
        composite_mean({"turn_taking": 0.5, "conciseness": 1.0, "conversation_progression": None})
        == 0.75
    )
    assert composite_mean({"turn_taking": None}) is None


@pytest.mark.parametrize(
    ("timing", "passes"), [(0.8, True), (0.8 - 1e-10, True), (0.79, False), (None, None)]
)
def test_every_part_must_be_good_enough(timing: float | None, passes: bool | None) -> None:
    parts = {"turn_taking": timing, "conciseness": 0.5, "conversation_progression": 0.5}
    assert composite_pass(parts, EXPERIENCE_THRESHOLDS) is passes
    assert (
        composite_pass({"turn_taking": timing, "conciseness": 0.5}, EXPERIENCE_THRESHOLDS) is None
    )


@pytest.mark.parametrize(
    ("calls", "average"), [(("identify", "verify"), 1.0), (("identify", "verify", "verify"), 1.5)]
)
def test_of_several_tools_that_identify_the_average_counts(
    calls: tuple[str, ...], average: float
) -> None:
    tools = [{"name": name, "tool_type": "auth"} for name in ("identify", "verify")]
    answers = [{"tool_name": name, "tool_response": {}} for name in calls]
    assert (
        authentication_success(EXPECTED, FINAL, answers, tools).sub_metrics["num_auth_calls"]
        == average
    )
    stranger = {**FINAL, "session": {}}
    failed = authentication_success(EXPECTED, stranger, answers, tools)
    assert failed.sub_metrics == {"num_auth_calls_on_failure": average}
