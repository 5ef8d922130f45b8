"""Another goal set on past calls: the back-test names the calls that flip, exactly those that the
raw events say.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.integration.metrics_page import total
from tests.integration.processes import ran, started, wait_for

TOOLS: Final = {
    "airline-rebooking": ("find_booking", "rebook", "search_flights"),
    "internet-outage": ("check_line", "book_technician", "reset_port"),
    "library-desk": ("list_loans", "extend_loans", "renew_card"),
    "pharmacy-refill": ("find_prescription", "schedule_callback", "quote_price"),
}
"""By agent a tool that most calls use, one that few use, and one that some use or none."""


def goals(folder: Path, second: int, third: int) -> str:
    """Goal sets of three subgoals, `first`, `second` and `third`, each reached when a tool of its
    agent is called.
    """
    folder.mkdir()
    for agent, tools in TOOLS.items():
        checks = {"first": tools[0], "second": tools[second], "third": tools[third]}
        subgoals = [
            {"id": name, "details": name, "check": {"kind": "tool_called", "tool": tool}}
            for name, tool in checks.items()
        ]
        (folder / f"{agent}.yaml").write_text(
            yaml.safe_dump({"id": agent, "agents": [agent], "subgoals": subgoals})
        )
    return str(folder)


def tools_in(path: Path) -> dict[str, tuple[str, set[str]]]:
    """By call its agent and the tools that it calls, read from the events themselves."""
    agents, tools = {}, defaultdict[str, set[str]](set)
    for line in path.read_text().splitlines():
        event: dict[str, Any] = json.loads(line)
        call = event["conversation_id"]
        if event.get("type") == "call_started":
            agents[call] = event["agent"]
        elif event.get("type") == "tool_call":
            tools[call].add(event["value"]["tool"])
        elif (
            event.get("type") == "function_call_event"
            and event["data"]["kind"] == "function_call_started"
        ):
            tools[call].add(event["data"]["function_name"])
    return {call: (agent, tools[call]) for call, agent in agents.items()}


@pytest.mark.parametrize("calls", [60, pytest.param(500, marks=pytest.mark.long)])
@pytest.mark.service(limits__closing_grace_ms="1500")
def test_the_calls_that_flip_are_those_of_the_raw_events(
    environment: dict[str, str], calls: int, tmp_path: Path
) -> None:
    recorded = tmp_path / "calls.jsonl"
    recorded.write_text(ran("simulate", "--print", "--calls", str(calls), "--seed", "11"))
    then = {**environment, "CALLGAUGE_GOALS__FOLDER": goals(tmp_path / "then", 1, 2)}
    now = {**environment, "CALLGAUGE_GOALS__FOLDER": goals(tmp_path / "now", 2, 1)}
    with started(
        tmp_path / "run.log", "run", "--roles", "sequencer,evaluator,exporter", **then
    ) as process:
        address = process.metrics()
        ran("replay", str(recorded), "--speed", "max", "--keep-ids", **then)
        wait_for(
            "every call to close",
            lambda: total(address, "callgauge_calls_ended_total") == calls,
            30 + calls,
        )
    result = json.loads(
        ran("replay", "--from-topics", "--since", "1h", "--without-facts", "--json", **now)
    )

    expected = {}
    for call, (agent, tools) in tools_in(recorded).items():
        _, rare, other = (tool in tools for tool in TOOLS[agent])
        if rare != other:
            expected[call] = {("second", other), ("third", rare)}
    assert calls / 10 < len(expected) < calls, "some flip, and some do not"
    flipped = {
        each["conversation_id"]: {(flip["subgoal_id"], flip["is_won"]) for flip in each["subgoals"]}
        for each in result["flipped"]
    }
    assert flipped == expected
    assert result["calls_with_other_goals"] == calls
    assert sum(each["won"] for each in result["subgoals"]) == len(expected)
