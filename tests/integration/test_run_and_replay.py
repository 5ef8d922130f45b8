"""A recorded real call through a real broker, as a user would do it: `run` here, `replay` there,
and the metrics page.
"""

import gzip
import json
import signal
import subprocess
from pathlib import Path

import pytest

from schemas.rows import CallRow, TurnRow, encode, number
from tests.integration.metrics_page import page, total
from tests.integration.processes import Process, ran, wait_for
from tests.integration.score_log import newest_rows, written_rows
from tests.support.conformance_data import RECORD, needs_conformance
from tests.support.required_tools import require_tool

TURN_LATENCY = "callgauge_turn_response_latency_seconds"

pytestmark = [needs_conformance(RECORD.name), pytest.mark.service(limits__closing_grace_ms="1500")]


def expected_latencies() -> dict[int, float]:
    context = json.loads((RECORD / "expected_processor_context.json").read_text())
    return {int(turn): latency for turn, latency in context["latency_assistant_turns"].items()}


async def test_a_recorded_call_comes_out_as_metrics(
    service: tuple[Process, str], environment: dict[str, str]
) -> None:
    process, address = service
    ran("replay", str(RECORD), "--speed", "20", **environment)
    wait_for(
        "the call to be closed", lambda: total(address, "callgauge_calls_ended_total") == 1, 30
    )

    latencies = expected_latencies()
    measured = [latency for latency in latencies.values() if latency >= 0]
    assert total(address, "callgauge_turns_total") == len(latencies) == 9
    assert total(address, f"{TURN_LATENCY}_count", anchor="audio") == len(measured) == 8
    assert total(address, f"{TURN_LATENCY}_sum") == pytest.approx(sum(measured), abs=0.001)
    assert total(address, "callgauge_turns_overlapped_total") == 1
    assert total(address, "callgauge_turns_unmeasured_total") == 0
    assert total(address, "callgauge_tool_calls_total", outcome="success") == 5
    assert total(address, "callgauge_interruptions_total", by="assistant") == 1
    assert total(address, "callgauge_calls_active") == 0
    by_end = [
        total(address, "callgauge_calls_ended_total", outcome=how)
        for how in ("ended", "session_ended")
    ]
    assert sum(by_end) == 1

    rows = await written_rows(environment)
    assert isinstance(rows[-1], CallRow)
    assert [row.state for row in rows if isinstance(row, CallRow)].count("closed") == 1
    assert rows[-1].state == "closed", "the closed row is the last"
    turns = [row for row in newest_rows(rows) if isinstance(row, TurnRow)]
    values = {
        row.turn: wait_ms / 1000 for row in turns if (wait_ms := number(row.wait_ms)) is not None
    }
    assert values == pytest.approx(latencies, abs=1e-6)
    assert len({encode(row) for row in rows}) == len(rows), "nothing is written twice"

    assert process.signalled(signal.SIGTERM)[0] == 0


def test_the_metrics_page_pleases_prometheus(
    service: tuple[Process, str], environment: dict[str, str]
) -> None:
    _, address = service
    ran("replay", str(RECORD), "--speed", "max", "--agent", "desk", **environment)
    wait_for("a latency", lambda: total(address, f"{TURN_LATENCY}_count", agent="desk") > 0, 30)
    openmetrics = page(address, "application/openmetrics-text; version=1.0.0")
    assert openmetrics.endswith("# EOF\n")
    assert any(
        '# {conversation_id="1.1.2-' in line
        for line in openmetrics.splitlines()
        if TURN_LATENCY in line
    )
    promtool = require_tool("promtool", "install Debian's package prometheus")
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=page(address), capture_output=True, text=True
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_a_phone_line_has_latencies_of_its_own(
    service: tuple[Process, str], environment: dict[str, str], tmp_path: Path
) -> None:
    """There is no simulated caller on a real line: only the bot's turn rulings are left, and the
    anchor says so.
    """
    _, address = service
    lines = [json.loads(line) for line in (RECORD / "pipecat_logs.jsonl").read_text().splitlines()]
    audit = json.loads((RECORD / "audit_log.json").read_text())["transcript"]
    call = {
        "id": "line-1",
        "pipeline_type": "cascade",
        "conversation_ended_reason": "goodbye",
        "audit": audit,
        "pipecat": lines,
        "user_sim": None,
    }
    path = tmp_path / "line.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(call).encode()))
    ran("replay", str(path), "--speed", "max", **environment)
    wait_for(
        "the call to be closed", lambda: total(address, "callgauge_calls_ended_total") == 1, 30
    )
    assert total(address, f"{TURN_LATENCY}_count", anchor="turn_release", source="pipecat") >= 5
    assert total(address, f"{TURN_LATENCY}_count", anchor="audio") == 0
