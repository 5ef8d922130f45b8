"""Whole runs of EVA through `score` and `context`: the same on all cores as on one, even if one
call fails.
"""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamer.offline import side_by_side
from streamer.offline.side_by_side import PLACES_AHEAD, WorkerLostError, results_in_order
from streamer.sources.simulator.traffic import simulate_call
from tests.support import warm_starts
from tests.support.patience import patient
from tests.unit.streamer.command_line import Command

ROOT = Path(__file__).parents[4]
MS = 1_790_000_000_000


@pytest.fixture(autouse=True)
def _signals_of_the_tests() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def write_record(folder: Path, seed: int, record_id: str | None = None) -> None:
    """Writes a record as EVA does, with a simulated call."""
    call = simulate_call(seed, start_ms=MS, kind="cascade").call
    folder.mkdir(parents=True)
    (folder / "audit_log.json").write_text(json.dumps({"transcript": call.audit}))
    for name, events in (
        ("pipecat_logs.jsonl", call.pipecat),
        ("user_simulator_events.jsonl", call.elevenlabs),
    ):
        (folder / name).write_text("".join(json.dumps(event) + "\n" for event in events or ()))
    result = {"record_id": record_id or folder.name, "conversation_ended_reason": "goodbye"}
    (folder / "result.json").write_text(json.dumps(result))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two records, one of them with two trials, and a discarded attempt."""
    records = tmp_path / "run" / "records"
    write_record(records / "1.1", 1)
    for trial in (0, 1):
        write_record(records / "1.2" / f"trial_{trial}", 2 + trial, record_id="1.2")
    write_record(records / "1.1_failed_attempt_1", 4, record_id="1.1")
    write_record(records / "1.2" / "trial_1_failed_attempt_1", 5, record_id="1.2")
    return tmp_path / "run"


def ids_in(out: str) -> list[str]:
    ids = (
        json.loads(line).get("id") or json.loads(line)["conversation_id"]
        for line in out.splitlines()
    )
    return list(dict.fromkeys(ids))


@pytest.mark.parametrize(
    "command", [("context",), ("score",), ("score", "--all"), ("score", "--format", "eva")]
)
def test_two_processes_print_the_same_bytes_as_one(
    callgauge: Command, run: Path, command: tuple[str, ...]
) -> None:
    alone = callgauge(*command, run, "--processes", 1)
    assert alone.code == 0
    assert ids_in(alone.out) == ["1.1", "1.2/trial_0", "1.2/trial_1"], (
        "each trial is a call of its own"
    )
    assert "2 folders of discarded attempts are left out" in alone.err
    assert callgauge(*command, run, "--processes", 2) == alone
    assert callgauge(*command, run).out == alone.out


def test_a_discarded_attempt_is_read_when_it_is_named(callgauge: Command, run: Path) -> None:
    assert ids_in(callgauge("context", run / "records" / "1.1_failed_attempt_1").out) == ["1.1"]


def test_the_trials_of_a_record_share_its_goals(
    callgauge: Command, run: Path, tmp_path: Path
) -> None:
    goals = tmp_path / "goals.json"
    check = {"kind": "says", "speaker": "user", "pattern": "e"}
    sets = [
        {"id": each, "subgoals": [{"id": "s", "details": "d", "check": check}]}
        for each in ("1.1", "1.2")
    ]
    goals.write_text(json.dumps(sets))
    rows = [
        json.loads(line)
        for line in callgauge("score", run, "--goals", goals, "--processes", 2).out.splitlines()
    ]
    given = {row["conversation_id"]: row["goal_set"]["id"] for row in rows if row["row"] == "goals"}
    assert given == {"1.1": "1.1", "1.2/trial_0": "1.2", "1.2/trial_1": "1.2"}


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("command", ["context", "score"])
def test_a_folder_that_cannot_be_read_is_named_and_stops_no_other(
    callgauge: Command, run: Path, command: str, processes: int
) -> None:
    whole = callgauge(command, run).out
    crashed = run / "records" / "0.9"
    crashed.mkdir()
    (crashed / "result.json").write_text('{"record_id": "0.9"}')
    broken = run / "records" / "1.11"
    write_record(broken, 7)
    (broken / "audit_log.json").write_text('{"transcript": [')
    ended = callgauge(command, run, "--processes", processes)
    assert (ended.code, ended.out) == (1, whole)
    assert f"{crashed / 'audit_log.json'}: the record has no audit log" in ended.err
    assert f"{broken / 'audit_log.json'}: this is not JSON" in ended.err
    assert ended.err.count("This call is left out; the others are not concerned.") == 2
    assert ended.err.endswith(
        "2 places could not be read, see above; the 3 other calls were read and printed.\n"
    )


def test_lines_behind_a_broken_one_are_read_and_those_behind_a_torn_end_are_not(
    callgauge: Command, tmp_path: Path
) -> None:
    calls = tmp_path / "calls.jsonl"
    lines = [json.dumps({"id": name, "audit": []}) for name in "abc"]
    calls.write_text("\n".join([lines[0], "{", "", *lines[1:]]) + "\n")
    ended = callgauge("context", calls)
    assert (ended.code, ids_in(ended.out)) == (1, ["a", "b", "c"])
    assert f"{calls}:2: this is not JSON" in ended.err
    (tmp_path / "torn.jsonl.gz").write_bytes(b"no gzip")
    ended = callgauge("context", tmp_path / "torn.jsonl.gz", calls)
    assert (ended.code, ids_in(ended.out)) == (1, ["a", "b", "c"])
    assert f"No call of {tmp_path / 'torn.jsonl.gz'} is read." in ended.err


@pytest.mark.parametrize(
    "command",
    [("score", "--format", "table"), ("transcript", "--folder", "t"), ("report", "-o", "page")],
)
def test_every_command_leaves_out_what_it_cannot_read(
    callgauge: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    calls = tmp_path / "calls.jsonl"
    said = {"message_type": "user", "value": "Hello", "timestamp": MS}
    calls.write_text(
        "\n".join(["{", *(json.dumps({"id": name, "audit": [said]}) for name in ("one", "two"))])
        + "\n"
    )
    ended = callgauge(*command, calls)
    assert (ended.code, f"{calls}:1: this is not JSON" in ended.err) == (1, True)
    assert "1 place could not be read, see above; the 2 other calls were read" in ended.err
    page = tmp_path / "page"
    names = [
        *(each.stem for each in sorted(tmp_path.glob("t/*"))),
        *(page.read_text() if page.exists() else ended.out).split(),
    ]
    assert all(any(name in each for each in names) for name in ("one", "two"))


def test_a_broken_file_beside_the_events_costs_no_transcript(callgauge: Command, run: Path) -> None:
    whole = callgauge("transcript", run)
    (run / "records" / "1.1" / "agent_perf_stats.csv").write_bytes(b"output_tokens\n\xff\n")
    assert callgauge("transcript", run) == whole
    assert callgauge("score", run).code == 1


def test_a_misspelt_path_ends_it_before_a_call_is_read(
    callgauge: Command, run: Path, tmp_path: Path
) -> None:
    ended = callgauge("score", run, tmp_path / "gone")
    assert (ended.code, ended.out) == (1, "")
    assert "no such file or directory" in ended.err


@pytest.mark.parametrize("command", ["transcript", "score"])
def test_a_path_without_calls_costs_the_others_nothing(
    callgauge: Command, run: Path, tmp_path: Path, command: str
) -> None:
    (tmp_path / "notes.txt").write_text("no calls here")
    alone, both = callgauge(command, run), callgauge(command, tmp_path / "notes.txt", run)
    assert (both.code, both.out) == (1, alone.out)
    assert "notes.txt: this is not JSON" in both.err
    assert "1 place could not be read" in both.err
    assert callgauge(command, tmp_path / "notes.txt").out == ""


def test_the_bar_shows_how_many_calls_there_are(run: Path) -> None:
    ours, terminal = pty.openpty()
    try:
        command = [
            sys.executable,
            "-m",
            "streamer.cli.main",
            "context",
            str(run),
            "--processes",
            "2",
        ]
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm"},
            stdout=subprocess.PIPE,
            stderr=terminal,
            timeout=patient(60),
        )
        os.set_blocking(ours, False)
        shown = b"".join(iter(lambda: _read(ours), b""))
    finally:
        os.close(ours)
        os.close(terminal)
    assert (ended.returncode, len(ended.stdout.splitlines())) == (0, 3)
    assert b"3/3" in shown


def test_the_bar_adds_no_thread_so_that_processes_begin_as_copies() -> None:
    """A terminal shows the bar. A thread for it would delay the start of work on the other cores by
    a second.
    """
    ours, terminal = pty.openpty()
    text = (
        "from streamer.offline import side_by_side as it; from streamer.offline.call_work import "
        "Done, reading\n"
        "with reading(3) as progress:\n"
        "    progress.add(Done(None, events=5))\n"
        "    print(it._context(it.usable_cores).get_start_method())"
    )
    try:
        ended = subprocess.run(
            [sys.executable, "-c", text],
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm"},
            stdout=subprocess.PIPE,
            stderr=terminal,
            timeout=patient(60),
        )
        os.set_blocking(ours, False)
        assert b"1/3" in _read(ours)
    finally:
        os.close(ours)
        os.close(terminal)
    assert ended.stdout.decode().strip() == ("fork" if sys.platform == "linux" else "forkserver")


@pytest.mark.parametrize("threads", [2, None])
def test_a_process_with_other_threads_is_not_copied(
    monkeypatch: pytest.MonkeyPatch, threads: int | None
) -> None:
    # a process has one server that forks: begun here, it would load less than warm starts need
    warm_starts.begin_to_load()
    monkeypatch.setattr(side_by_side, "_threads", lambda: threads)
    assert side_by_side._context(_doubled).get_start_method() != "fork"
    assert list(results_in_order(range(6), _doubled, 2)) == [2 * number for number in range(6)]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except BlockingIOError:
        return b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_whole_lines_and_no_process_left(
    tmp_path: Path, number: signal.Signals
) -> None:
    calls = tmp_path / "calls.jsonl"
    call = simulate_call(1, start_ms=MS, kind="cascade").call
    line = json.dumps(
        {"id": "c", "audit": call.audit, "pipecat": call.pipecat, "user_sim": call.elevenlabs}
    )
    with calls.open("w") as file:
        for name in range(3_000):
            file.write(line.replace('"c"', f'"c{name}"', 1) + "\n")
    command = [sys.executable, "-m", "streamer.cli.main", "context", str(calls), "--processes", "2"]
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        with _signals_taken():
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=out, stderr=err, start_new_session=True
            )
        until = time.monotonic() + patient(60)
        while not (tmp_path / "out").stat().st_size and time.monotonic() < until:
            time.sleep(0.02)
        if number is signal.SIGINT:
            os.killpg(process.pid, number)  # a terminal signals the whole group
        else:
            process.send_signal(number)
        code = process.wait(patient(20))
    said = (tmp_path / "err").read_text()
    assert (code, said.startswith("Stopped: "), "Traceback" in said) == (130, True, False), said
    printed = (tmp_path / "out").read_text()
    assert printed.endswith("}\n")
    assert f"Stopped: {len(printed.splitlines())} calls were printed" in said
    until = time.monotonic() + patient(10)
    while _group_lives(process.pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not _group_lives(process.pid)


@contextmanager
def _signals_taken() -> Iterator[None]:
    """Lets a new process take SIGINT even where the tests run in the background of a shell, whose
    children ignore it.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _doubled(number: int) -> int:
    return 2 * number


def _dies(_number: int) -> int:
    os._exit(9)


def test_few_places_are_read_ahead_of_the_results() -> None:
    taken = []

    def places() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = results_in_order(places(), _doubled, 2)
    seen = []
    for result in results:
        seen.append(result)
        assert len(taken) - len(seen) <= 2 * PLACES_AHEAD
    assert seen == [2 * number for number in range(100)]


def test_a_few_calls_need_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "ProcessPoolExecutor", None)
    assert list(results_in_order(range(50), _doubled, None)) == [2 * number for number in range(50)]


def test_a_process_that_is_lost_ends_it_in_plain_words() -> None:
    with pytest.raises(WorkerLostError, match="--processes 1"):
        list(results_in_order(range(3), _dies, 2))
