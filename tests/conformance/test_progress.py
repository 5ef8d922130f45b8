"""Progress, votes, tool correctness and the other numbers of agent-inspect, case by case: every
expected field, exactly.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from consumers.engine import agent_inspect as observed
from consumers.engine.agent_inspect import (
    AgentStep,
    AgentTurn,
    Argument,
    Ballot,
    EvaluationError,
    ExpectedCall,
    InvalidInputValueError,
    NumericalScore,
    Options,
    Parameter,
    PlainSubgoal,
    Required,
    Trace,
    auc_of,
    judge_statistics,
    of_curve,
    pass_at_k,
    pass_hat_k,
    ppt_of,
    progress_of,
    progress_through_turns,
    static_progress,
    success_at_end_of,
    success_from,
    tool_correctness,
    voted,
)
from consumers.engine.goals.curve import area_under
from consumers.engine.goals.questions import grade_of
from consumers.engine.goals.tool_correctness import ToolQuestion
from tests.support.calls.agent_inspect_votes import Judge, JudgeAnswer, driven
from tests.support.conformance_data import needs_conformance, place_of
from tests.support.known import instance_of

Json = dict[str, Any]

CASES = place_of("progress_cases.json")

ANSWERS = {
    "C": JudgeAnswer(200, "It was done.\nGRADE: C"),
    "I": JudgeAnswer(200, "It was not done.\nGRADE: I"),
    "X": JudgeAnswer(200, "I cannot tell."),
    "B": JudgeAnswer(200, ""),
    "W": JudgeAnswer(200, " \n "),
    "N": JudgeAnswer(200, None),
    "L": JudgeAnswer(200, "grade: c"),
    "P": JudgeAnswer(200, "GRADE: P"),
    "E429": JudgeAnswer(429, ""),
    "E500": JudgeAnswer(500, ""),
}

CRASHES = (EvaluationError, InvalidInputValueError, TypeError, IndexError, KeyError, ValueError)


class Script:
    """The answers of one judge to one question, in order, the last repeating; and the questions to
    all judges of a test.
    """

    def __init__(self) -> None:
        self.waves: list[int] = []
        self.requests: list[tuple[Any, int]] = []
        self._used: dict[Any, int] = {}

    def judge(
        self, question: Any, tokens: Sequence[str], *, repeats: bool = True
    ) -> Callable[[int], list[JudgeAnswer]]:
        def ask(wave: int) -> list[JudgeAnswer]:
            self.waves.append(wave)
            self.requests.append((question, wave))
            first = self._used.get(question, 0)
            self._used[question] = first + wave
            last = len(tokens) - 1 if repeats else first + wave
            return [ANSWERS[tokens[min(place, last)]] for place in range(first, first + wave)]

        return ask

    def by_question(self) -> list[list[Any]]:
        totals: dict[Any, int] = {}
        for question, wave in self.requests:
            totals[question] = totals.get(question, 0) + wave
        return [[*question, total] for question, total in totals.items()]


def _error(error: Exception) -> Json:
    code = getattr(error, "internal_code", None)
    return {"error": type(error).__name__} | ({"code": code} if code else {})


def _number_or_error(compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except CRASHES as error:
        return _error(error)


def _judged_through_turns(case: Json, script: Script) -> list[NumericalScore]:
    silent = case.get("turns_without_response", [])
    turns = [
        AgentTurn("A question.", None if number in silent else "An answer.")
        for number in range(1, case["turns"] + 1)
    ]
    options = {"include_judge_explanation": True, "include_validation_results": True}
    trace = Trace(
        "a",
        turns,
        [PlainSubgoal(name) for name in case["subgoals"]],
        None,
        case.get("user_instruction", "An instruction."),
        Options(**{**options, **case["config"]}),
    )

    def judge(ballot: Ballot) -> Judge:
        subgoal = instance_of(PlainSubgoal, ballot.about)
        return script.judge(
            (ballot.turn_index + 1, subgoal.details),
            case["judge"][subgoal.details][ballot.turn_index],
        )

    return driven(progress_through_turns(trace), judge)


def progress_through_turns_case(case: Json) -> Json:
    def curve() -> list[NumericalScore]:
        return _judged_through_turns(case, Script())  # each metric judges anew

    script = Script()
    result: Json = {}
    try:
        entries = _judged_through_turns(case, script)
    except CRASHES as error:
        result = _error(error)
    else:
        result["progress"] = [entry.score for entry in entries]
        if entries:
            results = entries[-1].validation_results or ()
            result["final_order"] = [each.sub_goal.details for each in results]
            result["final_completed"] = [each.is_completed for each in results]
            # behind the summary
            result["explanations_per_subgoal"] = [len(each.explanations) - 1 for each in results]
            explained = [{each.sub_goal.details: each.explanations} for each in results]
            assert explained == entries[-1].explanations
            assert all(entry.validation_results is None for entry in entries[:-1])
    return result | {
        "judge_requests": sum(script.waves),
        "waves": script.waves,
        "requests_by_turn_subgoal": script.by_question(),
        "auc": _number_or_error(lambda: of_curve(area_under, curve()).score),
        "ppt": _number_or_error(lambda: of_curve(ppt_of, curve()).score),
        "success_final_turn": _number_or_error(lambda: success_at_end_of(curve()).score),
    }


def progress_static_case(case: Json) -> Json:
    script = Script()
    turns = [AgentTurn("A question.", "An answer.")] * case["turns"]
    subgoals = [PlainSubgoal(each["name"], each["turn"]) for each in case["subgoals"]]

    def judge(ballot: Ballot) -> Judge:
        subgoal = instance_of(PlainSubgoal, ballot.about)
        return script.judge((ballot.turn_index, subgoal.details), [case["judge"][subgoal.details]])

    try:
        trace = Trace("a", turns, subgoals, options=Options(**case.get("config", {})))
        (found,) = driven(static_progress(trace), judge)
    except CRASHES as error:
        return _error(error) | {"judge_requests": sum(script.waves)}
    return {
        "progress": found.score,
        "success": success_from(found).score,
        "n_results": len(found.validation_results or ()),
        "judge_requests": sum(script.waves),
        "judged": [[index, name] for index, name, _ in script.by_question()],
    }


def majority_vote_case(case: Json) -> Json:
    script = Script()
    sent = {"requests": 0, "waves": script.waves}
    try:
        judge = script.judge("vote", case["responses"], repeats=False)
        trials, retries = case.get("num_judge_trials", 5), case.get("max_retry_judge_trials", 5)
        ballot = Ballot(
            0, 0, PlainSubgoal("a"), trials, case.get("optimize_judge_trials", False), retries
        )
        vote = driven(voted(ballot), lambda _: judge)
    except CRASHES as error:
        return _error(error) | sent | {"requests": sum(script.waves)}
    return {
        "vote": int(bool(vote.is_complete)),
        "n_explanations": len(vote.completions),
        "requests": sum(script.waves),
        "waves": script.waves,
    }


def _required(spec: Json) -> Required:
    return Required(spec.get("value"), spec.get("check"))


def tool_correctness_case(case: Json) -> Json:
    script = Script()
    turns = [
        AgentTurn(
            "A question.",
            "An answer.",
            None if turn["steps"] is None else [_step(step) for step in turn["steps"]],
        )
        for turn in case["turns"]
    ]
    expected = case["expected_tool_calls"] and [
        ExpectedCall(
            call["tool"],
            call.get("parameters")
            and [
                Parameter(each.get("value"), each.get("check"), name=each["name"])
                for each in call["parameters"]
            ],
            None if call.get("output") is None else _required(call["output"]),
            call.get("turn"),
        )
        for call in case["expected_tool_calls"]
    ]

    def judge(ballot: Ballot) -> Judge:
        assert isinstance(ballot.about, ToolQuestion)
        return script.judge(ballot.about.check, case["judge"][ballot.about.check])

    try:
        options = Options(**case.get("config", {}))
        trace = Trace("a", turns, expected_calls=expected, options=options)
        (found,) = driven(tool_correctness(trace), judge)
    except CRASHES as error:
        return _error(error) | {"judge_requests": sum(script.waves)}
    told = [texts[0] for each in found.explanations or () for texts in each.values()]
    return {
        "score": found.score,
        "per_call": [text.endswith("was made as expected.") for text in told],
        "n": len(told),
        "judge_requests": sum(script.waves),
    }


def _step(step: Json) -> AgentStep:
    arguments = step.get("args")
    return AgentStep(
        step.get("tool"),
        None
        if arguments is None
        else [Argument(each["name"], each["value"]) for each in arguments],
        step.get("output"),
        step.get("in"),
        step.get("out"),
        step.get("reason"),
    )


def observed_case(case: Json) -> Json:
    turns = [
        AgentTurn(
            "A question.",
            "An answer.",
            None if turn.get("steps") is None else [_step(step) for step in turn["steps"]],
            turn.get("latency_in_ms"),
        )
        for turn in case["turns"]
    ]
    measures: dict[str, Callable[[Sequence[AgentTurn]], float]] = {
        "total_latency": observed.total_latency_ms,
        "average_latency": observed.average_latency_ms,
        "input_tokens": partial(_tokens, "input"),
        "output_tokens": partial(_tokens, "output"),
        "reasoning_tokens": partial(_tokens, "reasoning"),
        "total_tokens": partial(_tokens, "input", "output", "reasoning"),
        "tool_call_count": observed.tool_call_count,
    }
    return {name: _number_or_error(partial(measure, turns)) for name, measure in measures.items()}


def _tokens(*kinds_and_turns: Any) -> float:
    *kinds, turns = kinds_and_turns
    return observed.tokens(turns, *kinds)


def judge_statistics_case(case: Json) -> Json:
    completions = [
        [ANSWERS[token].text or "" for token in votes] for votes in case["votes_per_subgoal"]
    ]
    return dict(zip(("expectation", "std"), judge_statistics(completions), strict=True))


def grade_parse_case(case: Json) -> Json:
    grade = grade_of(case["completion"])
    # There it is an error of its own, which no result has: a vote counts it as invalid.
    return (
        {"grade": None, "error": "EvaluationError", "code": "050003"}
        if grade is None
        else {"grade": int(grade)}
    )


def _flags_case(flags: list[bool]) -> Json:
    progress = progress_of(flags)
    score = success_from(NumericalScore(progress))
    return {"score": score.score, "sub_scores": score.sub_scores}


def _counts_case(case: Json) -> Json:
    completed, total = case["n_completed"], case["n_total"]
    progress = progress_of([True] * completed + [False] * (total - completed))
    return {"progress": progress, "score": success_from(NumericalScore(progress)).score}


def _success_case(case: Json) -> Json:
    score = success_from(NumericalScore(case["progress"]))
    return {"score": score.score, "sub_scores": score.sub_scores}


def _given(case: Json) -> tuple[Any, Any, Any]:
    return case["success_scores"], case["config"].get("no_of_trials"), case["config"].get("k_value")


RESULT_OF: dict[str, Callable[[Json], Json]] = {
    "auc": lambda case: {"score": auc_of(case["progress"])},
    "ppt": lambda case: {"score": ppt_of(case["progress"])},
    "progress_from_flags": lambda case: {"score": progress_of(case["completed"])},
    "success_from_flags": lambda case: _flags_case(case["completed"]),
    "success_from_flag_counts": _counts_case,
    "success_from_progress": _success_case,
    "progress_through_turns": progress_through_turns_case,
    "progress_static": progress_static_case,
    "majority_vote": majority_vote_case,
    "tool_correctness": tool_correctness_case,
    "pass_at_k": lambda case: {"score": pass_at_k(*_given(case))},
    "pass_hat_k": lambda case: {"score": pass_hat_k(*_given(case))},
    "observed": observed_case,
    "judge_statistics": judge_statistics_case,
    "grade_parse": grade_parse_case,
}


def _cases() -> list[Any]:
    if not CASES.exists():
        return [pytest.param({}, id="none", marks=needs_conformance(CASES.name))]
    return [pytest.param(case, id=case["id"]) for case in json.loads(CASES.read_text())]


def _result(case: Json) -> Json:
    try:
        return RESULT_OF[case["metric"]](case["input"])
    except CRASHES as error:
        return _error(error)


def _text(result: Json) -> str:
    return json.dumps(result, sort_keys=True)


@pytest.mark.parametrize("case", _cases())
def test_result_equals_agent_inspect_s(case: Json) -> None:
    # Compared as JSON text: a tuple is a list there, but 1 is not 1.0 and not true.
    assert _text(_result(case)) == _text(case["expected"])
