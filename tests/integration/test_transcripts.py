"""Transcripts on a real broker: one per call, with its closing; and their files. What kills do to
them is asked by the chaos runs.
"""

import gzip
import json
import signal
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.integration.metrics_page import total
from tests.integration.processes import ran, started, wait_for
from tests.integration.score_log import closed_rows, records_on
from tests.support.conformance_data import needs_conformance, place_of

Json = dict[str, Any]

T0_MS = 1_790_000_000_000
CALLS = 12
SECONDS = 60

pytestmark = [
    pytest.mark.kafka,
    needs_conformance("calls.jsonl.gz"),
    pytest.mark.service(limits__closing_grace_ms="1500"),
]


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """Some of the conformance calls, one of them with tools that answer at such length that its
    transcript is near the bound.
    """
    path = tmp_path / "calls.jsonl"
    with gzip.open(place_of("calls.jsonl.gz"), "rt") as lines:
        path.write_text("".join(islice(lines, CALLS - 1)))
    use = {"tool": "look", "parameters": {}}
    audit = [{"timestamp": T0_MS, "message_type": "user", "value": "Tell me all"}]
    for at_ms in range(T0_MS, T0_MS + 10_000, 1_000):  # a single value may have 100,000 characters
        answer = {"tool": "look", "response": "x" * 98_500}
        audit += [
            {"timestamp": at_ms + 100, "message_type": "tool_call", "value": use},
            {"timestamp": at_ms + 200, "message_type": "tool_response", "value": answer},
        ]
    with path.open("a") as file:
        file.write(
            json.dumps(
                {
                    "id": "long",
                    "pipeline_type": "cascade",
                    "conversation_ended_reason": None,
                    "audit": audit,
                    "pipecat": None,
                    "user_sim": None,
                }
            )
            + "\n"
        )
    return path


def expected(path: Path, folder: Path) -> dict[str, bytes]:
    """By conversation, the command's transcripts of the same recordings."""
    ran("transcript", str(path), "--folder", str(folder))
    return {file.stem: file.read_bytes() for file in folder.iterdir()}


async def written(environment: dict[str, str]) -> list[tuple[str, bytes]]:
    """Keys and values of all committed records of the topic."""
    return [
        (record.key.decode(), record.value)
        for record in await records_on(environment, "transcripts")
    ]


async def all_closed(environment: dict[str, str]) -> None:
    """Waits until every call has its closing."""
    closed = await closed_rows(environment, CALLS, SECONDS)
    assert len(closed) == CALLS, sorted(closed)


async def test_each_call_has_one_transcript_and_it_is_the_command_s(
    environment: dict[str, str], calls: Path, tmp_path: Path
) -> None:
    with started(
        tmp_path / "run.log", "run", "--roles", "sequencer,evaluator", **environment
    ) as process:
        page = process.metrics(SECONDS)
        ran("replay", str(calls), "--speed", "20", "--keep-ids", **environment)
        await all_closed(environment)
        assert total(page, "callgauge_transcripts_published_total") == CALLS
        assert process.signalled(signal.SIGTERM)[0] == 0
    records = await written(environment)
    assert len(records) == CALLS
    assert dict(records) == expected(calls, tmp_path / "expected")
    assert len(dict(records)["long"]) > 990_000


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")
    }


async def test_a_folder_that_goes_away_stops_no_evaluation_and_gets_its_files_later(
    environment: dict[str, str], calls: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    more = {"CALLGAUGE_TRANSCRIPTS__FOLDER": str(folder)}
    with started(
        tmp_path / "run.log", "run", "--roles", "sequencer,evaluator", **environment, **more
    ) as process:
        page = process.metrics(SECONDS)
        wait_for("the folder", folder.is_dir, SECONDS)
        moved = folder.rename(tmp_path / "gone")
        ran("replay", str(calls), "--speed", "max", "--keep-ids", **environment)
        await all_closed(environment)
        wait_for(
            "a file that failed",
            lambda: total(page, "callgauge_transcript_files_total", outcome="failed"),
            SECONDS,
        )
        assert "transcript_files_wait" in process.text
        assert process.is_running
        moved.rename(folder)
        wait_for("all files", lambda: len(files_in(folder)) == CALLS, SECONDS)
        assert process.signalled(signal.SIGTERM)[0] == 0
    found = {name.removesuffix(".json"): value for name, value in files_in(folder).items()}
    assert found == dict(await written(environment))


async def test_without_transcripts_none_are_written(
    environment: dict[str, str], calls: Path, tmp_path: Path
) -> None:
    environment = {**environment, "CALLGAUGE_TRANSCRIPTS__ENABLED": "false"}
    with started(
        tmp_path / "run.log", "run", "--roles", "sequencer,evaluator", **environment
    ) as process:
        process.metrics(SECONDS)
        ran("replay", str(calls), "--speed", "max", "--keep-ids", **environment)
        await all_closed(environment)
    assert await written(environment) == []
