"""Commands that show and compare calls by the topics of a real Kafka: `call`, `top` and `trials
--from-topics`.
"""

import asyncio
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from msgspec import structs

from consumers.runtime.kafka.connection import murmur2_place
from schemas.closed_sets import Anchor, InputSource
from schemas.log import Origin, Placed
from schemas.rows import CallRow, GoalsRow, Labels, Row, WordsRow, encode
from streamer.offline.scoring import RecordedScoring, plan_from, scored
from streamer.recordings.files import SAMPLE
from streamer.recordings.reader import goals_for, read_recorded_goals, read_recordings
from streamer.settings.all_settings import Settings
from tests.integration.conftest import PARTITIONS
from tests.integration.processes import Ended, Process, ended, ran_here, started, wait_for
from tests.support.calls.made_rows import answer, call_row, closed_row, waited
from tests.support.patience import patient
from tests.unit.streamer.cli.test_score import (
    BOOKS,
    SAYS_YES,
    T0_MS,
    call,
    goals,
    write_calls,
    write_goals,
)

Record = tuple[str, Row | WordsRow | bytes]


def write(
    environment: dict[str, str], *records: Record, topic: str = "scores", **headers: Any
) -> None:
    """Writes records, or bytes that are none, each with its key, and placed as
    callgauge places it.
    """
    producer = Producer(
        {"bootstrap.servers": environment["CALLGAUGE_BOOTSTRAP"], "partitioner": "murmur2_random"}
    )
    for key, record in records:
        value = record if isinstance(record, bytes) else encode(record)
        producer.produce(
            f"{environment['CALLGAUGE_TOPIC_PREFIX']}{topic}", value, key=key.encode(), **headers
        )
    assert producer.flush(patient(10)) == 0


# -- callgauge call
# ----------------------------------------------------------------------------------------------------


def sample_scoring() -> RecordedScoring:
    (sample,) = read_recordings(SAMPLE)
    return scored(sample, plan_from(Settings(), goals_for([SAMPLE], None), writes_transcripts=True))


def named(row: Row | WordsRow, call: str) -> Row | WordsRow:
    """The row as that of this call, which is where its key puts it."""
    of_call = structs.replace(row, conversation_id=call)
    if isinstance(of_call, CallRow):
        of_call.partition = murmur2_place(call.encode(), PARTITIONS)
    return of_call


def write_sample(environment: dict[str, str], *calls: str) -> None:
    """The rows of the sample call under each id; the last one has words, and a record that is no
    row.
    """
    scoring = sample_scoring()
    write(environment, *((call, named(row, call)) for call in calls for row in scoring.rows))
    write(
        environment, *((calls[-1], named(row, calls[-1])) for row in scoring.words), topic="words"
    )
    write(environment, (calls[-1], b"{}"))


async def test_a_call_is_found_and_shown(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_sample(environment, "a-sample-call", "b-sample-call", "sample-call")

    async def called(*arguments: str) -> Ended:
        return await asyncio.to_thread(ran_here, "call", *arguments, **environment)

    whole = await called("sample-call")
    assert (whole.code, whole.err) == (0, "1 row of another version left out.\n")
    lines = whole.out.splitlines()
    assert lines[0] == "sample-call: agent airline-rebooking, environment test"
    assert "7 turns, ended: goodbye" in lines[1]
    assert "  turn 1: answered after 5.04 s (audio); dead air over 3 s" in lines
    assert "Goals sample: 6 of 6 reached" in lines
    assert lines[lines.index("Words:") + 1].startswith("     0  agent: Good morning")

    by_its_end = await called("b-sample-call")
    assert by_its_end.code == 0
    assert (
        by_its_end.out.splitlines()[0] == "b-sample-call: agent airline-rebooking, environment test"
    )
    assert "Words:" not in by_its_end.out

    document = json.loads((await called("b-sample-call", "--json")).out)
    assert (document["call"]["conversation_id"], document["words"]) == ("b-sample-call", [])
    assert (document["call"]["state"], len(document["turns"])) == ("closed", 8)
    assert json.loads((await called("sample-call", "--json")).out)["words"][0][
        "assistant"
    ].startswith("Good morning")

    several = await called("mple-call")
    assert (several.code, several.out) == (1, "")
    assert [
        name
        for name in ("a-sample-call", "b-sample-call", "  sample-call")
        if name not in several.err
    ] == []

    missing = await called("nobody")
    assert missing.code == 1
    assert "No call with the id 'nobody' has a row or an event in the last day" in missing.err
    assert "--since 7d" in missing.err
    now_ms = int(time.time() * 1_000)
    for term in range(2):  # a successor of the sequencer may append an event again
        placed = Placed(term, Origin(InputSource.PIPECAT, 0, 0, 0, now_ms))
        write(environment, ("unheard-of", b"{}"), topic="events", headers=[placed.header()])
    unscored = await called("unheard-of")
    assert (unscored.code, "but 1 event of it came" in unscored.err) == (1, True)
    assert "quarantine list" in unscored.err
    few = await called("all")
    assert (few.code, "needs 4 characters or more" in few.err) == (1, True)
    before = (
        await called(
            "--topic-prefix", environment["CALLGAUGE_TOPIC_PREFIX"], "sample-call", "--since", "2h"
        )
    ).out
    assert before == whole.out
    assert (await called("nobody", "--since", "noon")).code == 2


@pytest.mark.service(limits__closing_grace_ms="1500")
async def test_a_call_is_followed_to_its_end_and_its_page_is_that_of_its_recording(
    service: tuple[Process, str], environment: dict[str, str], tmp_path: Path
) -> None:
    del service
    with started(
        tmp_path / "replay.log", "replay", "sample", "--speed", "20", "--keep-ids", **environment
    ):
        wait_for("the call", lambda: ended("call", "sample-call", **environment).code == 0, 30)
        followed = await asyncio.to_thread(ended, "call", "sample-call", "--follow", **environment)
    assert followed.code == 0
    lines = followed.out.splitlines()
    assert "7 turns, ended: goodbye" in followed.out
    assert [line for line in lines if line.startswith("  turn 7: answered after 0.83 s")] != []
    assert sum(line.startswith("     0  agent: Good morning") for line in lines) == 1
    said = [
        line
        for line in lines
        if line.startswith("  turn 2: ") and "filler; answer after 5.93 s" in line
    ]
    assert len(said) == len(set(said)) >= 1, "a line is printed when it is new or another"

    live, recorded = tmp_path / "live.html", tmp_path / "recorded.html"
    assert (
        await asyncio.to_thread(
            ended, "report", "--from-topics", "sample-call", "-o", str(live), **environment
        )
    ).code == 0
    assert (await asyncio.to_thread(ended, "report", "sample", "-o", str(recorded))).code == 0
    pages = [
        re.sub(r'data-(at|start|end)="\d+"', r"data-\1", path.read_text())
        .replace("><", ">\n<")
        .splitlines()
        for path in (live, recorded)
    ]
    others = [(mine, theirs) for mine, theirs in zip(*pages, strict=True) if mine != theirs]
    assert others[0][1] == "<dd>2026-09-21 14:13:20 UTC</dd>", "the day on which it began"
    earlier = re.compile(r"<small>was [\d.]+ until \d\d:\d\d:\d\d</small>")
    assert all(earlier.fullmatch(each) for pair in others[1:] for each in pair), (
        "otherwise only the time of earlier values"
    )


# -- callgauge top
# -----------------------------------------------------------------------------------------------------

START_OF_TOP = "from streamer.cli.main import main; main()"
HOUR_MS = 3_600_000


def call_of_now(call: str, *, closes: bool = False, age_ms: int = 0) -> list[Record]:
    """A call with one latency of 1.25 s, of now or of an earlier time."""
    at_ms = int(time.time() * 1_000) - age_ms
    common: dict[str, Any] = {"known_ms": at_ms, "labels": Labels(agent="desk")}
    of_call = {
        **common,
        "first_known_ms": at_ms,
        "turn": 3,
        "answer": answer(3, 1_250.0, anchor=Anchor.VAD),
    }
    rows: list[Row] = [
        waited(3, 1_250.0, Anchor.VAD, call=call, **common),
        call_row(call, news=("started",), **of_call),
    ]
    return [(call, row) for row in (*rows, *([closed_row(call, **of_call)] if closes else []))]


async def test_the_calls_are_printed_once_as_a_table_and_as_json(
    environment: dict[str, str],
) -> None:
    async def topped(*arguments: str) -> Ended:
        return await asyncio.to_thread(ended, "top", *arguments, **environment)

    empty = await topped("--once")
    assert (empty.code, empty.err) == (0, "")
    assert empty.out.startswith("0 calls running, 0 in trouble, no score yet, topic ")

    write(environment, *call_of_now("call-running"), *call_of_now("call-over", closes=True))
    write(environment, *call_of_now("call-old", age_ms=2 * HOUR_MS), ("another", b"{}"))
    table = await topped("--once")
    assert (table.code, table.err) == (0, "")
    lines = table.out.splitlines()
    assert lines[0].startswith("1 call running, 0 in trouble, newest score ")
    assert lines[0].endswith(", 1 records not understood")
    assert "answers 2 (p50 1.25 s" in lines[1]
    (running,) = [line for line in lines if line.startswith("   unning")]
    assert [cell for cell in ("desk", "1.25 s", "vad", "running") if cell not in running] == []
    assert [line for line in lines if "over: goodbye" in line] != []

    document = json.loads((await topped("--json")).out)
    assert (document["calls_running"], document["calls_ended"], document["unreadable_records"]) == (
        1,
        1,
        1,
    )
    calls = {each["call"]["conversation_id"]: each for each in document["calls"]}
    assert calls.keys() == {"call-running", "call-over"}
    running, over = calls["call-running"]["call"], calls["call-over"]["call"]
    assert running["answer"] == {"turn": 3, "wait_ms": 1250.0, "anchor": "vad"}
    assert (running["labels"]["agent"], "close_reason" in running) == ("desk", False)
    assert (over["close_reason"], over["ended_reason"]) == ("ended", "goodbye")

    older = json.loads((await topped("--json", "--since", "3h")).out)
    assert "call-old" in {each["call"]["conversation_id"] for each in older["calls"]}
    assert (await topped("--since", "noon")).code == 2
    missing = await topped("--once", "--topic-prefix", "nowhere.")
    assert (missing.code, missing.out) == (1, "")
    assert "nowhere.scores" in missing.err


async def test_without_a_terminal_tables_follow_each_other(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with started(tmp_path / "top.log", "top", **environment) as top:
        await asyncio.to_thread(top.printed, "0 calls running")
        await asyncio.to_thread(write, environment, *call_of_now("call-new"))
        await asyncio.to_thread(top.printed, "1 call running")
        code, _ = await asyncio.to_thread(top.signalled, signal.SIGINT)
        assert code == 0
        assert "Traceback" not in top.text


async def test_a_terminal_shows_a_call_that_begins(environment: dict[str, str]) -> None:
    def shown_in_a_terminal() -> tuple[int, str]:
        controller, terminal = pty.openpty()
        with subprocess.Popen(
            [sys.executable, "-c", START_OF_TOP, "top"],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**os.environ, **environment, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"},
        ) as top:
            os.close(terminal)
            shown = ""

            def read(text: str) -> bool:
                nonlocal shown
                while select.select([controller], [], [], 0)[0]:
                    shown += os.read(controller, 65_536).decode(errors="replace")
                return text in shown

            try:
                wait_for(lambda: f"a headline in {shown}", lambda: read("0 calls running"), 20)
                write(environment, *call_of_now("call-new"))
                wait_for(lambda: f"the call in {shown}", lambda: read("1.25 s"), 10)
                top.send_signal(signal.SIGINT)
                code = top.wait(patient(10))
            finally:
                top.kill()
        os.close(controller)
        return code, shown

    code, shown = await asyncio.to_thread(shown_in_a_terminal)
    assert code == 0
    assert "!! the caller suffers now" in shown
    assert "Traceback" not in shown


# -- callgauge trials
# --------------------------------------------------------------------------------------------------

SINCE = "2026-09-01"
"""Before the moment of the calls."""
EARLIER_MS = 90 * 24 * 3_600_000


def scored_calls(folder: Path, *calls: dict[str, Any]) -> dict[str, list[Row]]:
    """All rows of each call."""
    path = write_calls(folder / "calls.jsonl", *calls)
    sets = read_recorded_goals(
        write_goals(folder / "goals.json", goals("any", SAYS_YES, BOOKS, agents=("desk",)))
    )
    plan = plan_from(Settings(), sets)
    return {call.conversation_id: scored(call, plan).rows for call in read_recordings(path)}


async def test_live_calls_are_compared_by_their_newest_rows(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = scored_calls(
        tmp_path,
        call("good", "yes", "book it", agent="desk"),
        call("stuck/1", "yes", "hello", agent="desk"),
        call("open", "yes", agent="desk"),
        call("damaged", "yes", agent="desk"),
        call("joined late", "yes", "book it", agent="desk"),
        call("long ago", "yes", "book it", agent="desk"),
    )
    rows["open"] = [
        row for row in rows["open"] if not (isinstance(row, CallRow) and row.state == "closed")
    ]
    rows["joined late"] = [row for row in rows["joined late"] if not isinstance(row, GoalsRow)]
    rows["long ago"] = [
        row if isinstance(row, GoalsRow) else structs.replace(row, known_ms=T0_MS - EARLIER_MS)
        for row in rows["long ago"]
    ]
    # The calls run at the same time.
    written: list[Record] = []
    for place in range(max(map(len, rows.values()))):
        if place == 1:
            written.append(("damaged", b'{"row": "turn"}'))
        written += [
            (name, of_call[place]) for name, of_call in rows.items() if place < len(of_call)
        ]
    write(environment, *written)

    async def trials(*arguments: str, **more: str) -> Ended:
        return await asyncio.to_thread(
            ended, "trials", "--from-topics", *arguments, **environment, **more
        )

    first = await trials(
        "--since", SINCE, "--json", CALLGAUGE_CONSOLE_URL="https://example.com/callgauge/"
    )
    assert first.code == 1, "a record could not be read"
    result = json.loads(first.out)
    (group,) = result["goal_sets"]
    assert (group["trials"], group["successes"], group["mean_progress"]) == (2, 1, 0.75)
    assert [each["place"] for each in group["calls"]] == [
        "https://example.com/callgauge/calls/good",
        "https://example.com/callgauge/calls/stuck%2F1",
    ]
    assert group["stalls"] == [
        {"turn": 2, "calls": ["https://example.com/callgauge/calls/stuck%2F1"]}
    ]
    assert result["left_out"] == {
        "not over": 1,
        "with rows that cannot be read": 1,
        "began before --since": 1,
    }
    assert "1 records of a newer version, or of another program, were left out" in first.err

    table = await trials("--since", SINCE)
    assert "stalled in turn 2: 1 call: stuck/1" in table.out, "without an address the id is named"

    nothing = await trials("--since", "1s")
    assert (nothing.code, nothing.out) == (1, "")
    assert "There is nothing to compare" in nothing.err
