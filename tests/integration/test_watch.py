"""A run that another process writes, through `callgauge replay --watch`: the same final rows as
from `score`, on both homes.
"""

import json
import multiprocessing
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import pytest

from schemas.rows import Row, TurnRow, encode
from streamer.recordings.files import AUDIT_FILE, RESULT_FILE
from streamer.sources.simulator.traffic import simulate_call
from streamer.sources.watch import SUMMARY_FILE
from tests.integration.metrics_page import total
from tests.integration.processes import ended, ran, started, wait_for
from tests.integration.score_log import closed_rows, newest_rows, rows_in, written_rows
from tests.integration.test_serve import SOON, address_of, call

pytestmark = pytest.mark.service(limits__closing_grace_ms="1500")

SPEED: Final = 8.0
"""Of the writer, against the times of the calls."""
LATE_FILES: Final = ("user_simulator_events.jsonl", AUDIT_FILE, RESULT_FILE)
OF_THE_WAY: Final = {
    "revision",
    "known_ms",
    "first_known_ms",
    "last_known_ms",
    "first_place",
    "last_place",
    "partition",
    "news",
    "status",
    "events",
    "close_reason",
    "dead_air",
    "dead_airs",
    "dead_air_turns",
    "waiting",
}
"""Fields about the way of a row, not about the call; and what is decided while the call runs, from
the lines of that moment.
"""
Json = dict[str, Any]


def files_of(seed: int, start_ms: int) -> tuple[list[Json], dict[str, bytes]]:
    """The lines of the log of a call, and its other files."""
    call = simulate_call(seed, start_ms=start_ms, kind="cascade").call
    simulator = b"".join(json.dumps(event).encode() + b"\n" for event in call.elevenlabs or ())
    audit = json.dumps({"transcript": call.audit}).encode()
    result = json.dumps({"conversation_ended_reason": "goodbye"}).encode()
    return [dict(event) for event in call.pipecat or ()], dict(
        zip(LATE_FILES, (simulator, audit, result), strict=True)
    )


def write_run(run: Path, seeds: dict[str, int], start_ms: int) -> None:
    """Writes as EVA does: the logs line by line, now and then half a line, and the other files at
    the end of each call.
    """
    calls = {name: files_of(seed, start_ms) for name, seed in seeds.items()}
    lines = sorted(
        ((event["timestamp"], name, event) for name, (log, _) in calls.items() for event in log),
        key=lambda each: each[0],
    )
    begun = time.monotonic()
    last = {name: max(event["timestamp"] for event in log) for name, (log, _) in calls.items()}
    for number, (time_ms, name, event) in enumerate(lines):
        while (time_ms - start_ms) / 1_000 / SPEED > time.monotonic() - begun:
            time.sleep(0.005)
        record = run / "records" / name
        record.mkdir(parents=True, exist_ok=True)
        text = json.dumps(event).encode() + b"\n"
        with (record / "pipecat_logs.jsonl").open("ab", buffering=0) as file:
            file.write(text[: number % 3 * 9])
            file.write(text[number % 3 * 9 :])
        if time_ms == last[name]:
            for late, content in calls[name][1].items():
                (record / late).write_bytes(content[: len(content) // 2])
                time.sleep(0.05)
                (record / late).write_bytes(content)
    (run / SUMMARY_FILE).write_text("{}")


@contextmanager
def writing(run: Path, seeds: dict[str, int], start_ms: int) -> Iterator[BaseProcess]:
    writer = multiprocessing.get_context("spawn").Process(
        target=write_run, args=(run, seeds, start_ms)
    )
    writer.start()
    try:
        yield writer
    finally:
        writer.kill()
        writer.join()


def comparable(rows: list[Row]) -> dict[tuple[Any, ...], Json]:
    return {
        (row.conversation_id, type(row).__name__, row.turn if isinstance(row, TurnRow) else None): {
            name: value for name, value in json.loads(encode(row)).items() if name not in OF_THE_WAY
        }
        for row in newest_rows(rows)
    }


async def test_a_run_that_is_being_written_comes_out_as_score_says(
    environment: dict[str, str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    (run / "records").mkdir(parents=True)
    seeds = {"1.1": 1, "1.2/trial_0": 2, "1.2/trial_1": 3, "1.3": 4}
    watch = ("replay", "--watch", str(run))
    with started(
        tmp_path / "evaluator.log", "run", "--roles", "sequencer,evaluator", **environment
    ) as evaluator:
        evaluator.metrics()
        with (
            started(tmp_path / "first.log", *watch, **environment) as first,
            writing(run, seeds, round(time.time() * 1_000) - 300_000) as writer,
        ):
            await closed_rows(environment, 1, 60)
            assert first.is_running, first.text
            assert first.text.count("--run-name") == 1, (
                "the ids are those of the records: another run needs others"
            )
            assert first.signalled(signal.SIGKILL)[0] == -signal.SIGKILL
            assert writer.is_alive(), "it was killed while the run is written"
            with started(tmp_path / "second.log", *watch, **environment) as second:
                wait_for(
                    lambda: f"the end of the run in:\n{second.text}",
                    lambda: not second.is_running,
                    180,
                )
                assert second.signalled(signal.SIGTERM)[0] == 0, second.text
                assert "The run is over: " in second.text
                assert "--run-name" not in second.text, "it goes on with the same ids"
        closed = await closed_rows(environment, len(seeds), 60)
    assert closed.keys() == seeds.keys()
    found = comparable(await written_rows(environment))
    expected = comparable(rows_in(line.encode() for line in ran("score", str(run)).splitlines()))
    assert found.keys() == expected.keys()
    differences = [
        (*subject, field, found[subject].get(field), fields.get(field))
        for subject, fields in expected.items()
        for field in fields.keys() | found[subject].keys()
        if found[subject].get(field) != fields.get(field)
    ]
    assert differences == []


def append(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


def test_a_file_that_grows_and_a_run_go_to_serve_once_whatever_is_killed(tmp_path: Path) -> None:
    folder, file, run = tmp_path / "calls", tmp_path / "events.jsonl", tmp_path / "run"
    first, second = (
        b"".join(json.dumps(event).encode() + b"\n" for event in call(name)) for name in ("a", "b")
    )
    file.write_bytes(first[:-20])
    serve = ("serve", "--folder", str(folder), "--port", "0")
    watches = [("replay", "--watch", str(path), "--folder", str(folder)) for path in (file, run)]
    run.mkdir()
    with started(tmp_path / "serve.log", *serve, **SOON) as process:
        metrics = f"{address_of(process)}/metrics"
        with started(tmp_path / "first.log", *watches[0], **SOON) as watch:
            wait_for(
                "all lines but the half one",
                lambda: total(metrics, "callgauge_events_total") == 5,
                30,
            )
            assert watch.signalled(signal.SIGKILL)[0] == -signal.SIGKILL
        append(file, first[-20:] + second)
        with started(tmp_path / "second.log", *watches[0], **SOON) as watch:
            wait_for(
                "the end of both calls",
                lambda: total(metrics, "callgauge_calls_ended_total") == 2,
                30,
            )
            assert total(metrics, "callgauge_events_total") == 12, "none twice"
            assert watch.signalled(signal.SIGTERM)[0] == 0, "a file has no end"
        for seed in (1, 2):
            log, others = files_of(seed, round(time.time() * 1_000) - 300_000)
            record = run / "records" / str(seed)
            record.mkdir(parents=True)
            (record / "pipecat_logs.jsonl").write_bytes(
                b"".join(json.dumps(event).encode() + b"\n" for event in log)
            )
            for name, content in others.items():
                (record / name).write_bytes(content)
        (run / SUMMARY_FILE).write_text("{}")
        assert "The run is over: " in ended(*watches[1], **SOON).err
        wait_for(
            "the end of the run's calls",
            lambda: total(metrics, "callgauge_calls_ended_total") == 4,
            30,
        )
        events = total(metrics, "callgauge_events_total")
        assert "The run is over: 0 events sent" in ended(*watches[1], **SOON).err
        assert total(metrics, "callgauge_events_total") == events
