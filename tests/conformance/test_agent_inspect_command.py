"""agent-inspect's cases through the command that a user types, with a judge over real HTTP: its
results, its requests.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from consumers.judge import ask
from streamer.cli import main as cli
from streamer.facts import Scorer
from tests.support.conformance_data import needs_conformance, place_of
from tests.support.fakes.scripted_openai import Asked, Does, ScriptedOpenAI, fails, scripted_openai

Json = dict[str, Any]

FILE = place_of("progress_cases.json")
CASES: list[Json] = json.loads(FILE.read_text()) if FILE.exists() else []

pytestmark = needs_conformance(FILE.name)

DOES: Final = {
    "C": Does(text="It was done.\nGRADE: C"),
    "I": Does(text="It was not done.\nGRADE: I"),
    "X": Does(text="I cannot tell."),
    "B": Does(text=""),
    "W": Does(text=" \n "),
    "N": Does(text=None),
    "L": Does(text="grade: c"),
    "P": Does(text="GRADE: P"),
    "E429": fails(429),
    "E500": fails(500),
}
KEEPS: Final = {"include_judge_explanation": True, "include_validation_results": True}
DYNAMIC: Final = (Scorer.THROUGH_TURNS, Scorer.AUC, Scorer.PPT, Scorer.SUCCESS_AT_END)
OBSERVED: Final = {
    "total_latency": Scorer.TOTAL_LATENCY,
    "average_latency": Scorer.AVERAGE_LATENCY,
    "input_tokens": Scorer.INPUT_TOKENS,
    "output_tokens": Scorer.OUTPUT_TOKENS,
    "reasoning_tokens": Scorer.REASONING_TOKENS,
    "total_tokens": Scorer.TOKENS,
    "tool_call_count": Scorer.TOOL_CALLS,
}


class Judge:
    """Answers each question of each case in its script's order, the last answer again and again."""

    def __init__(self) -> None:
        self.asked: Counter[tuple[str, int, str]] = Counter()

    def __call__(self, asked: Asked) -> Does:
        subgoal = json.loads(asked.user.partition("\nSubgoal: ")[2].partition("\n")[0])
        if "Case " in subgoal:
            name, _, question = subgoal.partition("Case ")[2].partition(": ")
            question, turn = question.partition(" It is: ")[0], 0
        else:
            words = asked.user.rpartition("Case ")[2].split()
            name, turn, question = words[0], int(words[2].rstrip('."')), subgoal
        place = self.asked[name, turn, question]
        self.asked[name, turn, question] += 1
        tokens = self._tokens(CASE_BY_ID[name], turn, question)
        token = tokens[min(place, len(tokens) - 1)]
        return DOES[token] if token in DOES else Does(text=token)

    def _tokens(self, case: Json, turn: int, question: str) -> list[str]:
        given = case["input"]
        match case["metric"]:
            case "progress_through_turns":
                return list(given["judge"][question][turn - 1])
            case "progress_static":
                return [given["judge"][question]]
            case "majority_vote":
                return list(given["responses"])
            case "grade_parse":
                return [given["completion"]]
        return list(given["judge"][question])

    def requests(self, name: str) -> int:
        return sum(count for (case, _, _), count in self.asked.items() if case == name)

    def by_question(self, name: str) -> dict[tuple[int, str], int]:
        return {
            (turn, question): count
            for (case, turn, question), count in self.asked.items()
            if case == name
        }


CASE_BY_ID = {case["id"]: case for case in CASES}
Scored = Callable[..., tuple[dict[str, Json], Judge]]


@pytest.fixture
def scored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Scored:
    """Runs the installed entry point on these lines, and gives the metrics of each."""

    def run(lines: Iterable[Json], *scorers: str) -> tuple[dict[str, Json], Judge]:
        file = tmp_path / "traces.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        judge = Judge()
        with scripted_openai(judge) as server:
            _judge_settings(monkeypatch, server)
            options = [option for scorer in scorers for option in ("--scorer", scorer)]
            arguments = ["score", str(file), "--format", "agent-inspect", "--judge", "on", *options]
            monkeypatch.setattr(sys, "argv", ["callgauge", *arguments])
            with pytest.raises(SystemExit) as ended:
                cli.main()
        told = capsys.readouterr()
        assert not ended.value.code, told.err
        results = [json.loads(line) for line in told.out.splitlines()]
        return {result["id"]: result["metrics"] for result in results}, judge

    return run


def _judge_settings(monkeypatch: pytest.MonkeyPatch, server: ScriptedOpenAI) -> None:
    settings = {
        "API_KEY": "key",
        "BASE_URL": server.url,
        "ANSWER_FORM": "grade",
        "MAX_RETRIES": "0",
        "MAX_REQUESTS_PER_MINUTE": "1000000",
        "MAX_TOKENS_PER_MINUTE": "1000000000",
        "BUDGET_PER_CALL": "1000",
        "BUDGET_PER_AGENT_HOUR": "1000",
        "BUDGET_PER_HOUR": "1000",
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"CALLGAUGE_JUDGE__{name}", value)
    monkeypatch.setattr(ask, "BREAKER_FAILURES", 1_000_000)


def of(*metrics: str) -> list[Json]:
    return [case for case in CASES if case["metric"] in metrics]


def turns_of(case: Json, count: int, silent: Iterable[int] = ()) -> list[Json]:
    return [
        {
            "id": str(number),
            "agent_input": f"Case {case['id']} turn {number}.",
            "agent_response": None if number in silent else {"response": "An answer."},
        }
        for number in range(1, count + 1)
    ]


def trace_line(
    case: Json, turns: list[Json] | None, subgoals: list[Json], config: Json, **sample: Any
) -> Json:
    sample = {"sub_goals": subgoals, "user_instruction": "An instruction.", **sample}
    return {
        "id": case["id"],
        "agent_trace": {"turns": turns},
        "evaluation_data_sample": sample,
        "config": config,
    }


def error_of(result: Json) -> Json:
    return {"error": result["error"]} | (
        {"code": result["internal_code"]} if "internal_code" in result else {}
    )


def score_or_error(result: Json) -> Any:
    return error_of(result) if "error" in result else result["score"]


def test_progress_over_turns_auc_ppt_and_success_of_the_final_turn(scored: Scored) -> None:
    cases = of("progress_through_turns")
    lines = [
        trace_line(
            case,
            turns_of(case, case["input"]["turns"], case["input"].get("turns_without_response", ())),
            [{"details": name} for name in case["input"]["subgoals"]],
            KEEPS | case["input"]["config"],
            user_instruction=case["input"].get("user_instruction", "An instruction."),
        )
        for case in cases
    ]
    results, judge = scored(lines, *DYNAMIC)
    for case in cases:
        name, expected, metrics = case["id"], case["expected"], results[case["id"]]
        curve = metrics["ProgressScoresThroughTurns"]
        found: Json = {}
        if isinstance(curve, dict):
            found = error_of(curve)
        else:
            found["progress"] = [entry["score"] for entry in curve]
            if curve:
                validations = curve[-1]["validation_results"]
                found["final_order"] = [each["sub_goal"]["details"] for each in validations]
                found["final_completed"] = [each["is_completed"] for each in validations]
                found["explanations_per_subgoal"] = [
                    len(each["explanations"]) - 1 for each in validations
                ]
                explained = [
                    value for entry in curve[-1]["explanations"] for value in entry.values()
                ]
                assert explained == [each["explanations"] for each in validations], name
        found["judge_requests"] = judge.requests(name)
        found["auc"] = score_or_error(metrics["AUC"])
        found["ppt"] = score_or_error(metrics["PPT"])
        found["success_final_turn"] = score_or_error(metrics["SuccessScoreFinalTurn"])
        asked = {
            (turn, question): count
            for turn, question, count in expected["requests_by_turn_subgoal"]
        }
        assert judge.by_question(name) == asked, name
        assert found == {
            key: expected[key]
            for key in expected
            if key not in ("waves", "requests_by_turn_subgoal")
        }, name
    assert len(cases) >= 28


def test_progress_and_success_of_static_conversations(scored: Scored) -> None:
    cases = of("progress_static")
    lines = [
        trace_line(
            case,
            turns_of(case, case["input"]["turns"]),
            [{"details": each["name"], "turn": each["turn"]} for each in case["input"]["subgoals"]],
            case["input"].get("config", {}),
        )
        for case in cases
    ]
    results, judge = scored(lines, Scorer.PROGRESS, Scorer.SUCCESS)
    for case in cases:
        name, metrics = case["id"], results[case["id"]]
        progress = metrics["ProgressScore"]
        found: Json = {"judge_requests": judge.requests(name)}
        if "error" in progress:
            found |= error_of(progress)
            assert error_of(metrics["SuccessScore"]) == error_of(progress)
        else:
            found["progress"] = progress["score"]
            found["success"] = metrics["SuccessScore"]["score"]
            assert metrics["SuccessScore"]["sub_scores"] == {"progress_score": progress["score"]}
            found["n_results"] = len(progress["validation_results"])
            found["judged"] = [[turn - 1, question] for turn, question in judge.by_question(name)]
        assert found == case["expected"], name


def test_votes_and_grades(scored: Scored) -> None:
    votes, grades = of("majority_vote"), of("grade_parse")
    lines = [
        trace_line(
            case,
            turns_of(case, 1),
            [{"details": "a"}],
            KEEPS
            | {"max_turns": 1}
            | {key: value for key, value in case["input"].items() if key != "responses"},
        )
        for case in votes
    ]
    once = {"num_judge_trials": 1, "max_retry_judge_trials": 0, "max_turns": 1}
    lines += [trace_line(case, turns_of(case, 1), [{"details": "a"}], once) for case in grades]
    results, judge = scored(lines, Scorer.THROUGH_TURNS)
    for case in votes:
        name, curve = case["id"], results[case["id"]]["ProgressScoresThroughTurns"]
        found: Json = {"requests": judge.requests(name)}
        if isinstance(curve, dict):
            found |= error_of(curve)
        else:
            (validation,) = curve[0]["validation_results"]
            found |= {
                "vote": int(curve[0]["score"]),
                "n_explanations": len(validation["explanations"]) - 1,
            }
        assert found == {key: value for key, value in case["expected"].items() if key != "waves"}, (
            name
        )
    for case in grades:
        curve = results[case["id"]]["ProgressScoresThroughTurns"]
        grade = None if isinstance(curve, dict) else int(curve[0]["score"])
        assert grade == case["expected"]["grade"], case["id"]
        assert grade is not None or error_of(curve) == {
            "error": "EvaluationError",
            "code": "050000",
        }


def test_tool_correctness(scored: Scored) -> None:
    cases = of("tool_correctness")
    results, judge = scored([_tool_line(case) for case in cases], Scorer.TOOLS)
    for case in cases:
        name, result, expected = (
            case["id"],
            results[case["id"]]["ToolCorrectnessMetric"],
            case["expected"],
        )
        found: Json = {"judge_requests": judge.requests(name)}
        if "error" in result:
            found |= error_of(result)
        else:
            told = [
                explanations[0]
                for entry in result["explanations"]
                for explanations in entry.values()
            ]
            found |= {"score": result["score"], "n": len(told)}
            found["per_call"] = [sentence.endswith("was made as expected.") for sentence in told]
        assert found == expected, name
    assert len(cases) >= 45


def _tool_line(case: Json) -> Json:
    given = case["input"]

    def required(spec: Json) -> Json:
        return (
            {**spec, "check": f"Case {case['id']}: {spec['check']}"} if spec.get("check") else spec
        )

    expected = given["expected_tool_calls"] and [
        {
            "tool": call["tool"],
            "expected_parameters": call.get("parameters")
            and [required(each) for each in call["parameters"]],
            "expected_output": None if call.get("output") is None else required(call["output"]),
            "turn": call.get("turn"),
        }
        for call in given["expected_tool_calls"]
    ]
    turns = turns_of(case, len(given["turns"]))
    for turn, spec in zip(turns, given["turns"], strict=True):
        turn["steps"] = spec["steps"] and [step_of(step) for step in spec["steps"]]
    return trace_line(case, turns, [], given.get("config", {}), expected_tool_calls=expected)


def step_of(step: Json) -> Json:
    return {
        "tool": step.get("tool"),
        "tool_input_args": step.get("args"),
        "tool_output": step.get("output"),
        "input_token_consumption": step.get("in"),
        "output_token_consumption": step.get("out"),
        "reasoning_token_consumption": step.get("reason"),
    }


def test_observed_values(scored: Scored) -> None:
    cases = of("observed")
    lines = []
    for case in cases:
        turns = turns_of(case, len(case["input"]["turns"]))
        for turn, spec in zip(turns, case["input"]["turns"], strict=True):
            turn["latency_in_ms"] = spec.get("latency_in_ms")
            turn["steps"] = spec.get("steps") and [step_of(step) for step in spec["steps"]]
        lines.append(trace_line(case, turns, [], {}))
    results, judge = scored(lines, *OBSERVED.values())
    for case in cases:
        found = {name: results[case["id"]][scorer] for name, scorer in OBSERVED.items()}
        found = {name: score_or_error(value) for name, value in found.items()}
        assert found == case["expected"], case["id"]
    assert not judge.asked


def test_what_follows_from_results_that_are_known(scored: Scored) -> None:
    def flags(flags: Iterable[bool]) -> list[Json]:
        return [{"is_completed": flag} for flag in flags]

    known_of: dict[str, Callable[[Json], Json]] = {
        "auc": lambda given: {"progress_scores": given["progress"]},
        "ppt": lambda given: {"progress_scores": given["progress"]},
        "success_from_progress": lambda given: {"progress_score": given["progress"]},
        "progress_from_flags": lambda given: {"validation_results": flags(given["completed"])},
        "success_from_flags": lambda given: {"validation_results": flags(given["completed"])},
        "success_from_flag_counts": lambda given: {
            "validation_results": flags(n < given["n_completed"] for n in range(given["n_total"]))
        },
        "pass_at_k": lambda given: {
            "success_scores": given["success_scores"],
            "config": given["config"],
        },
        "pass_hat_k": lambda given: {
            "success_scores": given["success_scores"],
            "config": given["config"],
        },
        "judge_statistics": lambda given: {
            "validation_results": [
                {
                    "is_completed": False,
                    "explanations": ["A summary.", *(DOES[vote].text for vote in votes)],
                }
                for votes in given["votes_per_subgoal"]
            ]
        },
    }
    result_of: dict[str, str] = {
        "auc": "AUC",
        "ppt": "PPT",
        "pass_at_k": "PassAtK",
        "pass_hat_k": "PassHatK",
        "progress_from_flags": "ProgressScore",
    }
    cases = of(*known_of)
    results, judge = scored(
        [{"id": case["id"], **known_of[case["metric"]](case["input"])} for case in cases]
    )
    for case in cases:
        name, metrics, expected = case["id"], results[case["id"]], case["expected"]
        if case["metric"] == "judge_statistics":
            statistics = metrics.get(
                "StatisticAnalysis", {"judge_expectation": None, "judge_std": None}
            )
            found: Json = {
                "expectation": statistics.get("judge_expectation"),
                "std": statistics.get("judge_std"),
            }
            found = error_of(statistics) if "error" in statistics else found
        else:
            result = metrics[result_of.get(case["metric"], "SuccessScore")]
            found = error_of(result) if "error" in result else result
        if case["metric"] == "success_from_flag_counts":
            found |= {"progress": found["sub_scores"]["progress_score"]}
        assert {key: found.get(key) for key in expected} == expected, name
    assert not judge.asked


def test_all_cases_are_of_these_kinds() -> None:
    known = {
        "auc",
        "ppt",
        "success_from_progress",
        "progress_from_flags",
        "success_from_flags",
        "judge_statistics",
    }
    known |= {
        "success_from_flag_counts",
        "pass_at_k",
        "pass_hat_k",
        "observed",
        "tool_correctness",
        "majority_vote",
    }
    known |= {"grade_parse", "progress_static", "progress_through_turns"}
    assert {case["metric"] for case in CASES} == known
