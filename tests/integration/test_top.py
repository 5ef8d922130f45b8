"""`callgauge top` shows the calls of a real Kafka: as a table, as JSON, in a terminal, and new ones as they come."""

import asyncio
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import Producer

from schemas.closed_sets import Anchor, CloseReason
from schemas.scores.records import (
    AnyScoreRecord,
    CallLabels,
    CallStartedFact,
    ClosedFact,
    Scored,
    TurnStatus,
    VoiceToVoiceLatency,
)
from tests.integration.processes import Ended, ended, started, wait_for
from tests.support.patience import patient

START = "from streamer.cli.main import main; main()"
HOUR_MS = 3_600_000


def records_of(call: str, *, closes: bool = False, age_ms: int = 0) -> list[AnyScoreRecord]:
    """A call with one latency of 1.25 s, of now or of an earlier time."""
    at_ms = int(time.time() * 1_000) - age_ms
    common = {
        "conversation_id": call, "revision": 1, "status": TurnStatus.OPEN, "input_hash": "", "offsets": {},
        "event_time_ms": at_ms, "caused_at_ms": at_ms, "labels": CallLabels(agent="desk"), "code_version": "1",
    }  # fmt: skip
    latency = VoiceToVoiceLatency(
        result=Scored(value=1_250.0), anchor=Anchor.VAD, source="pipecat", is_first=True, turn=3, **common
    )
    end = ClosedFact(
        reason=CloseReason.ENDED, ended_reason="goodbye", turns=3, events=9, through={}, turn=None, **common
    )
    return [CallStartedFact(turn=None, **common), latency, *([end] if closes else [])]


def write(environment: dict[str, str], *records: AnyScoreRecord, value: bytes | None = None) -> None:
    producer = Producer({"bootstrap.servers": environment["CALLGAUGE_BOOTSTRAP"]})
    topic = f"{environment['CALLGAUGE_TOPIC_PREFIX']}scores"
    for record in records:
        producer.produce(topic, record.model_dump_json().encode(), key=record.conversation_id.encode())
    if value is not None:
        producer.produce(topic, value, key=b"another")
    assert producer.flush(patient(10)) == 0


async def test_the_calls_are_printed_once_as_a_table_and_as_json(environment: dict[str, str]) -> None:
    async def topped(*arguments: str) -> Ended:
        return await asyncio.to_thread(ended, "top", *arguments, **environment)

    empty = await topped("--once")
    assert (empty.code, empty.err) == (0, "")
    assert empty.out.startswith("0 calls running, 0 over")

    write(environment, *records_of("call-running"), *records_of("call-over", closes=True))
    write(environment, *records_of("call-old", age_ms=2 * HOUR_MS), value=b"{}")
    table = await topped("--once")
    assert (table.code, table.err) == (0, "")
    lines = table.out.splitlines()
    assert lines[0].startswith("1 calls running, 1 over, topic ")
    assert lines[0].endswith(", 1 records not understood")
    assert "answers 2 (p50 1.25 s" in lines[1]
    (running,) = [line for line in lines if line.startswith("unning")]
    assert [cell for cell in ("desk", "1.25 s", "vad", "running") if cell not in running] == []
    assert [line for line in lines if "over: goodbye" in line] != []

    document = json.loads((await topped("--json")).out)
    assert (document["calls_running"], document["calls_ended"], document["unreadable_records"]) == (1, 1, 1)
    calls = {call["conversation_id"]: call for call in document["calls"]}
    assert calls.keys() == {"call-running", "call-over"}
    assert calls["call-running"]["latency"] == {"turn": 3, "latency_ms": 1250.0, "anchor": "vad"}
    assert (calls["call-running"]["agent"], calls["call-running"]["closed"]) == ("desk", None)
    assert calls["call-over"]["closed"] == {"reason": "ended", "ended_reason": "goodbye"}

    older = json.loads((await topped("--json", "--since", "3h")).out)
    assert "call-old" in {call["conversation_id"] for call in older["calls"]}
    assert (await topped("--since", "yesterday")).code == 2
    missing = await topped("--once", "--topic-prefix", "nowhere.")
    assert (missing.code, missing.out) == (1, "")
    assert "nowhere.scores" in missing.err


async def test_without_a_terminal_tables_follow_each_other(environment: dict[str, str], tmp_path: Path) -> None:
    with started(tmp_path / "top.log", "top", **environment) as top:
        await asyncio.to_thread(top.printed, "0 calls running")
        await asyncio.to_thread(write, environment, *records_of("call-new"))
        await asyncio.to_thread(top.printed, "1 calls running")
        code, _ = await asyncio.to_thread(top.signalled, signal.SIGINT)
        assert code == 0
        assert "Traceback" not in top.text


async def test_a_terminal_shows_a_call_that_begins(environment: dict[str, str]) -> None:
    def shown_in_a_terminal() -> tuple[int, str]:
        controller, terminal = pty.openpty()
        with subprocess.Popen(
            [sys.executable, "-c", START, "top"], stdin=terminal, stdout=terminal, stderr=terminal,
            env={**os.environ, **environment, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"},
        ) as top:  # fmt: skip
            os.close(terminal)
            shown = ""

            def read(text: str) -> bool:
                nonlocal shown
                while select.select([controller], [], [], 0)[0]:
                    shown += os.read(controller, 65_536).decode(errors="replace")
                return text in shown

            try:
                wait_for(lambda: f"a headline in {shown}", lambda: read("0 calls running"), 20)
                write(environment, *records_of("call-new"))
                wait_for(lambda: f"the call in {shown}", lambda: read("1.25 s"), 10)
                top.send_signal(signal.SIGINT)
                code = top.wait(patient(10))
            finally:
                top.kill()
        os.close(controller)
        return code, shown

    code, shown = await asyncio.to_thread(shown_in_a_terminal)
    assert code == 0
    assert "latency: from the caller's last sound" in shown
    assert "Traceback" not in shown
