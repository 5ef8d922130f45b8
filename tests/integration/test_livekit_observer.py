"""Sessions of real LiveKit agents without a room, through the observer and a real broker: the
numbers are LiveKit's own.
"""

import json
import os
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from schemas.closed_sets import Anchor
from schemas.rows import GoalsRow, Row
from schemas.scores.latency_stages import Stage
from tests.integration.metrics_page import total
from tests.integration.observed_calls import latencies_of, scored
from tests.integration.processes import started, wait_for
from tests.integration.score_log import newest_rows, records_on, written_rows
from tests.integration.test_ingest import TOKEN, Ingest, listening
from tests.support.calls.rows_of_calls import call_of, turns_of
from tests.support.environments import python_with
from tests.support.observers import LIVEKIT, SEND
from tests.support.pages import blocks_of
from tests.support.patience import patient
from tests.tidy.source_tree import ROOT

pytestmark = pytest.mark.kafka

NEWEST: Final = "1.8.9"
EARLIER: Final = ("1.2.18", "1.3.12", "1.4.6", "1.5.17", "1.6.10", "1.7.1")
TELLS_LATENCIES: Final = (1, 3)
"""The first version that has `e2e_latency`."""
TELLS_HANDOFFS: Final = (1, 8)
"""The first version in which the turn that is answered by another agent has one."""
# versions before 1.6 do not import without the latter
BESIDE: Final = ("aiokafka>=0.14,<0.15", "httpx")
SESSION: Final = ROOT / "tests/support/livekit_agents/session.py"
ROUNDED_MS: Final = 1.0
"""What is left of a time in events, which have milliseconds."""
CLOSE_MS: Final = 2.0
NEAR_MS: Final = 25.0
"""For every latency: the agent's state may have to wait for its turn, where LiveKit does not tell
the first sound.
"""
TURNS: Final = 20


def play(
    version: str, environment: dict[str, str], *arguments: str
) -> "subprocess.CompletedProcess[str]":
    """Plays calls with this version of LiveKit; its own figures are on standard output."""
    python = python_with("livekit-agents", version, *BESIDE)
    paths = os.pathsep.join(map(str, (SEND, LIVEKIT)))
    return subprocess.run(
        [str(python), "-W", "ignore", str(SESSION), *arguments],
        capture_output=True,
        text=True,
        timeout=patient(180),
        env={**os.environ, **environment, "PYTHONPATH": paths},
    )


def figures_of(ended: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert ended.returncode == 0, ended.stderr[-3_000:]
    calls: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])["calls"]
    return calls


def require_times_of_its_events(rows: list[Row], figures: dict[str, Any]) -> None:
    """Checks that each latency lies between two times that events of the session have, however late
    they were handed over: the user's last sound by the user's state or message, and the first sound
    by the output or the agent's state.
    """
    latencies, anchors = latencies_of(rows)
    for ours, possible in zip(latencies, figures["heard_ms"], strict=True):
        assert min(abs(ours - each) for each in possible) < ROUNDED_MS, (ours, possible)
    assert anchors == {Anchor.VAD}


def require_livekits_own(
    rows: list[Row], figures: dict[str, Any], *, without: int | None = None
) -> None:
    """Checks the scores of a call against LiveKit's figures, which it takes from its clock a moment
    before or after its events; the turn `without` has no latency there.
    """
    latencies, anchors = latencies_of(rows)
    if without is not None:
        del latencies[without - 1]
    assert latencies == pytest.approx(figures["e2e_ms"], abs=patient(NEAR_MS))
    apart = [abs(ours - its) for ours, its in zip(latencies, figures["e2e_ms"], strict=True)]
    assert statistics.median(apart) < patient(CLOSE_MS)
    assert anchors == {Anchor.VAD}


def require_the_script(rows: list[Row]) -> None:
    """Checks what the script of the session has beside answers; the turn that fails is joined with
    the next.
    """
    turns = turns_of(rows)
    assert [
        (number, *turn.interruptions) for number, turn in turns.items() if turn.interruptions
    ] == [(5, "user")]
    tools = [
        (number, use.tool, use.outcome) for number, turn in turns.items() for use in turn.tools
    ]
    assert tools == [
        (2, "find_badge", "success"),
        (3, "open_drawer", "error"),
        (7, "call_guard", "success"),
    ]
    errors = call_of(rows).errors
    assert errors is not None
    assert (errors.number, errors.component) == (1, "LLM")
    assert {turn.labels.agent for turn in turns.values()} == {"livekit"}


@pytest.fixture
def service(environment: dict[str, str], tmp_path: Path) -> Iterator[Ingest]:
    with started(tmp_path / "run.log", "run", **environment) as process:
        yield listening(process)


@pytest.mark.service(ingest__port="0", ingest__token=TOKEN, limits__closing_grace_ms="1500")
async def test_a_call_of_twenty_turns_has_the_times_of_its_events_over_kafka_and_over_http(
    service: Ingest, environment: dict[str, str]
) -> None:
    url = ("--url", f"{service.address}/events", "--token", TOKEN)
    figures = figures_of(play(NEWEST, environment, "kafka", "http", "--turns", str(TURNS), *url))
    wait_for(
        "the calls to close", lambda: total(service.metrics, "callgauge_calls_ended_total") == 2, 30
    )
    assert total(service.metrics, "callgauge_quarantined_total") == 0
    assert total(service.metrics, "callgauge_events_total", outcome="unknown") == 0
    records = newest_rows(await written_rows(environment))
    for name, theirs in figures.items():
        ours = [record for record in records if record.conversation_id == name]
        assert len(theirs["e2e_ms"]) == TURNS - 1  # one turn fails
        require_times_of_its_events(ours, theirs)
        require_the_script(ours)
        assert (theirs["errors"], theirs["is_whole"], theirs["lost"]) == (1, True, {})
        closed = call_of(ours)
        assert (closed.close_reason, closed.ended_reason) == ("ended", "user_initiated")
        stages = {each.stage for each in turns_of(ours)[1].stages}
        assert {
            Stage.ENDPOINTING,
            Stage.STT_TRAILING,
            Stage.LLM_FIRST_TOKEN,
            Stage.TTS_FIRST_BYTE,
        } <= stages
    for name in figures:
        events = [
            json.loads(r.value)
            for r in await records_on(environment, "pipecat.events")
            if r.key == name.encode()
        ]
        (handoff,) = [event["data"] for event in events if event["type"] == "agent_handoff"]
        assert handoff == {"old_agent": "desk", "new_agent": "guard"}
        (cut,) = [
            event["data"] for event in events if event.get("data", {}).get("kind") == "interruption"
        ]
        assert cut["cause"] == "user_speech"
        said = [event["data"] for event in events if event["type"] == "assistant_message"]
        assert [answer["interrupted"] for answer in said].count(True) == 1
        assert [event["instructions"] for event in events if "instructions" in event] == [
            "You are a desk.",
            "You guard the door.",
        ]


@pytest.mark.long
@pytest.mark.parametrize("version", [*EARLIER, NEWEST])
async def test_every_version_has_its_own_latencies(
    version: str, environment: dict[str, str]
) -> None:
    (figures,) = figures_of(play(version, environment, "call")).values()
    records = await scored(environment, "call")
    known = tuple(map(int, version.split(".")[:2]))
    if known >= TELLS_LATENCIES:
        require_livekits_own(records, figures, without=7 if known < TELLS_HANDOFFS else None)
    else:
        latencies, anchors = latencies_of(records)
        assert len(latencies) == 8
        assert all(400 < latency < patient(1_200) for latency in latencies)
        assert anchors == {Anchor.VAD}
    require_the_script(records)
    events = [
        json.loads(record.value) for record in await records_on(environment, "pipecat.events")
    ]
    handoffs = [
        event["data"]["new_agent"].lower() for event in events if event["type"] == "agent_handoff"
    ]
    assert handoffs == ["guard"]  # before 1.3 an agent has no id, only a class
    stages = {each.stage for each in turns_of(records)[1].stages}
    assert {Stage.ENDPOINTING, Stage.LLM_FIRST_TOKEN, Stage.TTS_FIRST_BYTE} <= stages


async def test_the_line_of_the_page_attaches_as_it_is(environment: dict[str, str]) -> None:
    (line,) = [
        block.text for block in blocks_of("docs/sources/livekit.md") if block.language == "python"
    ]
    (figures,) = figures_of(
        play(NEWEST, environment, "any", "--turns", "1", "--attach", line)
    ).values()
    records = await scored(environment, figures["id"])
    require_times_of_its_events(records, figures)
    assert {
        (row.labels.agent, row.labels.environment)
        for row in records
        if not isinstance(row, GoalsRow)
    } == {("desk", "production")}
