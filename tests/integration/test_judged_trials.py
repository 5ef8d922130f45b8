"""Simulated calls with a judge whose votes are scripted: `callgauge trials` against a computation
by hand, and its time.
"""

import json
import random
import re
import time
from collections import Counter
from fractions import Fraction
from functools import cache
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from streamer.sources.simulator.traffic import simulate_call
from tests.integration.processes import ended
from tests.support.fakes.scripted_openai import Asked, Does, grades, scripted_openai
from tests.support.patience import patient

LEAST_TURNS: Final = 3
MANY: Final = 200
"""With fewer calls the start of the command is a good part of the time."""
MOST_OF_THE_SLOWEST: Final = 1.2
"""Wall time of the run in times of its slowest chain of requests, where answers take as long as
those of a large model.
"""
TRIALS, MAJORITY = 5, 3
KS: Final = (1, 5, 30)
INVALID: Final = "XXXXX"
JUDGE: Final = {
    "OPENAI_API_KEY": "key",
    "CALLGAUGE_JUDGE__MAX_CONCURRENT_REQUESTS": "600",
    "CALLGAUGE_JUDGE__MAX_REQUESTS_PER_MINUTE": "100000",
    "CALLGAUGE_JUDGE__MAX_TOKENS_PER_MINUTE": "100000000",
}
GOALS: Final = {
    "id": "any",
    "subgoals": [
        {
            "id": "even",
            "details": "the case is even",
            "check": {"kind": "says", "speaker": "user", "pattern": r"case \d{0,2}[02468]\)"},
        },
        {"id": "done", "details": "it is done", "check": {"kind": "judge"}},
    ],
}


# The script: it decides each vote by the number of the call and the turn.


def done_in(case: int) -> int | None:
    """The turn that reaches the judged subgoal; None for one call in twenty."""
    return None if case % 20 == 3 else 1 + case % 2


@cache
def letters(case: int, turn: int) -> str:
    """Five votes that decide, with up to two against the majority; or five answers
    without a grade.
    """
    if case % 25 == 7:
        return INVALID
    drawn = random.Random(f"{case} {turn}")  # noqa: S311 - a script, not a secret
    majority, minority = "CI" if turn == done_in(case) else "IC"
    votes = list(
        drawn.choice(
            [
                majority * 5,
                majority * 4 + minority,
                majority * 3 + minority * 2,
                majority * 3 + minority + "X",
            ]
        )
    )
    drawn.shuffle(votes)
    return "".join(votes)


def poll(votes: str) -> tuple[int, str]:
    """The waves of one question, and the votes that are used until the majority is certain."""
    used, waves = "", 0
    while len(used) < TRIALS and (needed := MAJORITY - max(used.count("C"), used.count("I"))) > 0:
        if max(used.count("C"), used.count("I")) + TRIALS - len(used) < MAJORITY:
            break
        used, waves = votes[: len(used) + needed], waves + 1
    return waves, used


def turns_asked(case: int, turns: int) -> int:
    """The turns about which the judge is asked: up to the one that reaches the subgoal."""
    return turns if letters(case, 1) == INVALID else done_in(case) or turns


def write_calls(path: Path, calls: int) -> list[int]:
    """Writes simulated calls, whose callers name the number of the call; gives the number of turns
    of each.
    """
    lines: list[str] = []
    turns: list[int] = []
    for seed in count():
        if len(turns) == calls:
            break
        call = simulate_call(seed, start_ms=1_790_000_000_000, kind="cascade").call
        audit = [dict(entry) for entry in call.audit or ()]
        said = [entry for entry in audit if entry.get("message_type") == "user"]
        if len(said) < LEAST_TURNS:
            continue
        for entry in said:
            entry["value"] = f"{entry['value']} (case {len(turns)})"
        line = {"id": f"case-{len(turns)}", "audit": audit, "control": call.control}
        lines.append(json.dumps({**line, "pipecat": call.pipecat, "user_sim": call.elevenlabs}))
        turns.append(len(said))
    path.write_text("".join(f"{line}\n" for line in lines))
    return turns


@pytest.mark.parametrize(
    ("calls", "delay_seconds"), [(40, 0.05), pytest.param(MANY, 4.0, marks=pytest.mark.long)]
)
def test_the_comparison_is_the_one_by_hand(
    tmp_path: Path, calls: int, delay_seconds: float
) -> None:
    path, goals = tmp_path / "calls.jsonl", tmp_path / "goals.json"
    turns = write_calls(path, calls)
    goals.write_text(json.dumps(GOALS))
    votes_given: Counter[tuple[int, int]] = Counter()

    def script(asked: Asked) -> Does:
        case = int(re.findall(r"\(case (\d+)\)", asked.user)[-1])
        turn = max(map(int, re.findall(r"^(\d+) user ", asked.user, re.M)))
        letter = letters(case, turn)[votes_given[case, turn]]
        votes_given[case, turn] += 1
        return (
            Does(text="no grade", delay_seconds=delay_seconds)
            if letter == "X"
            else grades(letter, delay_seconds=delay_seconds)
        )

    with scripted_openai(script) as server:
        began = time.monotonic()
        result = ended(
            "trials",
            str(path),
            "--goals",
            str(goals),
            "--judge",
            "on",
            "--json",
            *(f"--k={k}" for k in KS),
            OPENAI_BASE_URL=server.url,
            **JUDGE,
        )
        wall_seconds = time.monotonic() - began
    assert result.code == 0, result.err
    (group,) = json.loads(result.out)["goal_sets"]

    cases = range(calls)
    judged = [case for case in cases if letters(case, 1) != INVALID]
    reached = {case: [done_in(case) is not None, case % 2 == 0] for case in judged}
    # A call that misses a subgoal fails, even if the other one is unknown.
    known = [case for case in cases if case in reached or case % 2]
    n, c = len(known), sum(all(each) for each in reached.values())
    assert (group["trials"], group["successes"], group["unscored"]) == (
        calls,
        c,
        {"invalid_answers": calls - n},
    )
    assert group["success_rate"] == pytest.approx(c / n)
    assert group["mean_progress"] == pytest.approx(
        sum(map(sum, reached.values())) / (2 * len(judged))
    )
    for k, passes in zip(KS, group["pass"], strict=True):
        none = all_of = Fraction(1)
        for drawn in range(k):
            none *= Fraction(max(0, n - c - drawn), n - drawn)
            all_of *= Fraction(max(0, c - drawn), n - drawn)
        expected = {
            "pass_at_k": pytest.approx(float(1 - none)),
            "pass_hat_k": pytest.approx(float(all_of)),
        }
        assert passes == {"k": k, **expected}

    used = {
        case: [poll(letters(case, turn)) for turn in range(1, turns_asked(case, turns[case]) + 1)]
        for case in cases
    }
    deciding = [used[case][-1][1].replace("X", "") for case in judged]
    assert group["judge"] == {
        "agreement": pytest.approx(
            sum(max(each.count("C"), each.count("I")) for each in deciding)
            / sum(map(len, deciding))
        ),
        "votes": sum(map(len, deciding)),
        "verdicts": len(judged),
        "unanimous": sum(len(set(each)) == 1 for each in deciding),
        "unscored": {"invalid_answers": calls - len(judged)},
    }
    missed = {each["id"]: each["missed"] for each in group["subgoals"]}
    assert missed == {"even": calls // 2, "done": sum(done_in(case) is None for case in judged)}
    last = {
        case: max(done_in(case) or 0, case % 2 == 0) for case in judged if not all(reached[case])
    }
    stalls = Counter(last[case] + 1 if last[case] < turns[case] else None for case in last)
    assert {each["turn"]: len(each["calls"]) for each in group["stalls"]} == stalls

    assert len(server.asked) == sum(len(votes) for polls in used.values() for _, votes in polls), (
        "nothing is asked twice"
    )
    slowest_seconds = delay_seconds * max(
        sum(waves for waves, _ in polls) for polls in used.values()
    )
    print(
        f"{len(server.asked)} requests in {wall_seconds:.1f} s; the slowest chain takes "
        f"{slowest_seconds:.1f} s"
    )
    if calls >= MANY:
        assert wall_seconds <= patient(MOST_OF_THE_SLOWEST * slowest_seconds)
