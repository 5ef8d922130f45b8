"""Past traffic on a real broker, evaluated again: equal to the live rows, and different where a
setting differs.
"""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.rows import TurnRow
from streamer.goals.files import SIMULATED_GOALS, goal_files_of
from tests.integration.metrics_page import total
from tests.integration.processes import ended, ran, started, wait_for
from tests.integration.score_log import closings_of, newest_rows, written_rows

CALLS = 12
SETTINGS = {
    "limits__closing_grace_ms": "500",
    "limits__idle_ms": "6000",
    "limits__dead_air_ms": "1200",
    "goals__folder": str(SIMULATED_GOALS),
}

pytestmark = pytest.mark.service(partitions=2, **SETTINGS)


def backtested(environment: dict[str, str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, results and messages."""
    return ended("replay", "--from-topics", "--since", "1h", *arguments, **environment)


def compared(environment: dict[str, str], *arguments: str) -> dict[str, Any]:
    code, out, told = backtested(environment, "--json", *arguments)
    assert code == 0, told
    result: dict[str, Any] = json.loads(out)
    return result


def with_fewer_subgoals(folder: Path) -> Path:
    """The goals of simulated calls without the last subgoal of each set."""
    folder.mkdir()
    for path in goal_files_of(SIMULATED_GOALS):
        goals = yaml.safe_load(path.read_text(encoding="utf-8"))
        del goals["subgoals"][-1]
        (folder / path.name).write_text(yaml.safe_dump(goals), encoding="utf-8")
    return folder


async def test_past_traffic_comes_out_as_it_did(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with started(tmp_path / "run.log", "run", **environment) as process:
        address = process.metrics()
        ran(
            "simulate",
            "--calls",
            str(CALLS),
            "--seconds",
            "20",
            "--seed",
            "7",
            "--profile",
            "awkward",
            **environment,
        )
        wait_for(
            "every call to close",
            lambda: (
                total(address, "callgauge_calls_ended_total")
                == total(address, "callgauge_calls_started_total")
            ),
            30,
        )
        calls = int(total(address, "callgauge_calls_ended_total"))
        assert process.signalled(signal.SIGTERM)[0] == 0
    then = await written_rows(environment)
    turns = [row for row in newest_rows(then) if isinstance(row, TurnRow)]
    dead_airs = [silence for turn in turns for silence in turn.dead_air]
    reasons = {row.close_reason for row in closings_of(then)}
    assert calls >= CALLS
    assert dead_airs, "else time in the log says nothing"
    assert "idle" in reasons, "calls that were cut off"
    assert any(turn.progress is not None for turn in turns)

    # Goals are those of the log, whatever is set today.
    without_goals = {
        name: value for name, value in environment.items() if name != "CALLGAUGE_GOALS__FOLDER"
    }
    results = [compared(environment), compared(environment), compared(without_goals)]
    for result in results:
        assert result["calls"] == {
            "equal": calls,
            "changed": 0,
            "only_then": 0,
            "only_now": 0,
            "not_over": 0,
            "without_beginning": 0,
            "closed_twice": 0,
        }, result["examples"]
        assert result["equal_values"] > 3 * calls
        assert not result["examples"]
        assert not result["log_cut_at_ms"]

    # Silence and ends are decided as the settings of today say.
    other = {
        **environment,
        "CALLGAUGE_LIMITS__DEAD_AIR_MS": "400",
        "CALLGAUGE_LIMITS__IDLE_MS": "60000",
    }
    result = compared(other)
    assert result["calls"]["equal"] + result["calls"]["changed"] == calls
    assert result["calls"]["changed"] > 0
    assert result["measures"]["dead_airs"]["change"] > 0
    assert compared(other)["examples"] == result["examples"]

    code, out, told = backtested(environment)
    assert code == 0, told
    assert f"final values of {calls} calls are equal" in out

    # Without the facts goals are chosen again.
    others = {
        **environment,
        "CALLGAUGE_GOALS__FOLDER": str(with_fewer_subgoals(tmp_path / "goals")),
    }
    assert "goals.subgoals" not in compared(others)["differing_values"]
    assert compared(others, "--without-facts")["differing_values"]["goals.subgoals"] > 0
    result = compared({**environment, "CALLGAUGE_LIMITS__DEAD_AIR_MS": "400"}, "--without-facts")
    assert result["calls"]["changed"] > 0
    assert "goals.subgoals" not in result["differing_values"]
    assert result["measures"]["dead_airs"]["change"] > 0
    assert result["examples"]
    assert all(
        {"conversation_id", "turn", "then", "now"} <= example.keys()
        for example in result["examples"]
    )
    again = compared({**environment, "CALLGAUGE_LIMITS__DEAD_AIR_MS": "400"}, "--without-facts")
    assert again["examples"] == result["examples"]
    code, out, _ = backtested(
        {**environment, "CALLGAUGE_LIMITS__DEAD_AIR_MS": "400"}, "--without-facts"
    )
    assert code == 0
    assert "Values that differ: " in out
    assert "dead_airs" in out

    assert await written_rows(environment) == then, "scores itself is left alone"
    before = compared(environment, "--until", "50m")
    assert before["calls"] == dict.fromkeys(before["calls"], 0)
