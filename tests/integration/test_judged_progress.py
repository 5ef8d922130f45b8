"""agent-inspect's cases, judged by the real client over real HTTP: the same progress, with as many requests as derived."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from consumers.engine.agent_inspect import auc_of, ppt_of, progress_of
from schemas.judging import Judged
from tests.support.calls.judge_questions import judge_settings, question, running_judge, talk
from tests.support.conformance_data import needs_conformance, place_of
from tests.support.fakes.scripted_openai import Asked, Does, fails, scripted_openai

MOST_REQUESTS = 1_000

DOES = {
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


def _fits(case: dict[str, Any]) -> bool:
    """Whether all of it is judged, each subgoal is another one, and it does not take long."""
    expected = case["expected"]
    return (
        case["metric"] == "progress_through_turns"
        and "error" not in expected
        and 0 < expected.get("judge_requests", 0) <= MOST_REQUESTS
        and len(set(case["input"]["subgoals"])) == len(case["input"]["subgoals"])
    )


FILE = place_of("progress_cases.json")
CASES = {case["id"]: case for case in json.loads(FILE.read_text()) if _fits(case)} if FILE.exists() else {}

pytestmark = needs_conformance(FILE.name)


@pytest.mark.parametrize("name", CASES)
async def test_scores_and_requests_are_agent_inspect_s(name: str) -> None:
    given, expected = CASES[name]["input"], CASES[name]["expected"]
    config = given["config"]
    trials, max_turns = config.get("num_judge_trials", 5), config.get("max_turns", 20)
    stops_early = bool(config.get("optimize_judge_trials", False))
    used: Counter[tuple[int, str]] = Counter()

    def script(asked: Asked) -> Does:
        turn, _, subgoal = json.loads(asked.user.partition("\nSubgoal: ")[2].partition("\n")[0]).partition(" ")
        tokens = given["judge"][subgoal][int(turn) - 1]
        place = used[int(turn), subgoal]
        used[int(turn), subgoal] += 1
        return DOES[tokens[min(place, len(tokens) - 1)]]

    progress: list[float] = []
    pending, evaluations = list(given["subgoals"]), 0
    with scripted_openai(script) as server:
        settings = judge_settings(base_url=server.url, answer_form="grade", max_retries=0, breaker_failures=10**6)
        async with running_judge(settings) as (judge, _):
            for turn in range(1, min(given["turns"], max_turns) + 1):
                asked = [
                    question(
                        turn=turn, transcript=talk(turn), subgoal_id=subgoal, subgoal=f"{turn} {subgoal}",
                        trials=trials, stops_early=stops_early, retry_waves=config.get("max_retry_judge_trials", 5),
                    )
                    for subgoal in pending
                ]  # fmt: skip
                evaluations += len(asked)
                verdicts = await asyncio.gather(*map(judge.ask, asked))
                results = [verdict.result for verdict in verdicts]
                assert all(isinstance(result, Judged) for result in results), results
                pending = [
                    subgoal
                    for subgoal, result in zip(pending, results, strict=True)
                    if result == Judged(is_completed=False)
                ]
                progress.append(progress_of([name not in pending for name in given["subgoals"]]))
    progress += [progress[-1]] * (max_turns - len(progress))
    assert progress == expected["progress"]
    if len(progress) > 1:  # otherwise there is no area
        assert (auc_of(progress), round(ppt_of(progress), 4)) == (expected["auc"], expected["ppt"])
    assert len(server.asked) == expected["judge_requests"]
    given_answers = {answer for by_turn in given["judge"].values() for answers in by_turn for answer in answers}
    if given_answers <= {"C", "I"}:
        least = (trials // 2 + 1 if stops_early else trials) * evaluations
        assert least <= len(server.asked) <= trials * evaluations


def test_there_are_cases_of_both_ways_of_voting() -> None:
    ways = Counter(bool(case["input"]["config"].get("optimize_judge_trials", False)) for case in CASES.values())
    assert ways[True] >= 3
    assert ways[False] >= 10
