"""Every command on the folder of `callgauge serve`: while that runs, and when it does not."""

import asyncio
import contextlib
import json
import signal
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from consumers.history.sqlite import SqliteHistory
from consumers.log.file import FileLog
from schemas.closed_sets import InputSource
from schemas.log import OutgoingRecord
from streamer.facts import KEY_FILE, TOKEN_FILE
from tests.integration.metrics_page import total
from tests.integration.processes import Ended, ended, started, wait_for
from tests.integration.test_serve import SOON, Served, address_of, call

LIMITS = {"CALLGAUGE_LIMITS__CLOSING_GRACE_MS": "500", "CALLGAUGE_LIMITS__DEAD_AIR_MS": "1500"}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    folder = tmp_path / "calls"
    arguments = ["serve", "--folder", str(folder), "--port", "0"]
    with started(tmp_path / "serve.log", *arguments, **SOON | LIMITS) as process:
        yield Served(process, folder, address_of(process))


def run(
    served: Served, *arguments: str, code: int = 0, environment: dict[str, str] | None = None
) -> Ended:
    """A command on the folder, run to its end."""
    given = LIMITS | (environment or {})
    done = ended(*arguments, "--folder", str(served.folder), **given)
    assert done.code == code, done.out + done.err
    return done


def said(done: Ended) -> str:
    return " ".join((done.out + done.err).split())


def play(served: Served, *calls: str | list[dict[str, Any]]) -> None:
    """Plays calls to their ends, those of a name or of events; they are in the history then."""
    metrics = f"{served.address}/metrics"
    before = total(metrics, "callgauge_calls_ended_total")
    played = [call(each) if isinstance(each, str) else each for each in calls]
    for events in played:
        assert served.post(events).status_code == 202
    names = [events[0]["conversation_id"] for events in played]
    wait_for(
        "the ends of calls",
        lambda: total(metrics, "callgauge_calls_ended_total") == before + len(calls),
        20,
    )
    wait_for("them in history", lambda: _are_kept(served, names), 20)


def _are_kept(served: Served, names: Iterable[str]) -> bool:
    """Whether the history has the ends of these calls, which are written up to a second after they
    count.
    """
    store = SqliteHistory(served.folder / "history")
    try:
        return all(
            (found := store.call(name)) is not None and found.call.state == "closed"
            for name in names
        )
    finally:
        store.close()


def stop(served: Served) -> None:
    assert served.process.signalled(signal.SIGINT)[0] == 0


# What reads.


@pytest.mark.parametrize("is_running", [True, False])
def test_commands_that_read_work_while_it_runs_and_when_it_does_not(
    served: Served, tmp_path: Path, is_running: bool
) -> None:
    play(served, spoken("one"), "two")
    assert served.post(call("open", is_over=False)).status_code == 202
    wait_for(
        "the open one",
        lambda: "open" in ended("call", "open", "--folder", str(served.folder)).out,
        20,
    )
    if not is_running:
        stop(served)
    assert "1 call running" in run(served, "top", "--once").out
    assert WORD in run(served, "call", "one").out
    context = json.loads(run(served, "context", "--from-topics", "one").out)
    assert WORD in json.dumps(context)
    run(served, "report", "--from-topics", "one", "-o", str(tmp_path / "page.html"))
    assert WORD in (tmp_path / "page.html").read_text()
    assert "one" in run(served, "history", "find", "--text", WORD).out
    today = time.strftime("%Y-%m-%d", time.gmtime())
    run(served, "history", "compare", "--before", today, "--after", today)
    agreed = run(served, "history", "agreement", "--yes", "solved", "--no", "unsolved")
    assert "Agreement is unknown" in said(agreed)
    assert "No refused record matches" in said(run(served, "quarantine", "list"))
    brought = ended(
        "history", "import", "sample", "--folder", str(served.folder), "--processes", "1"
    )
    assert brought.code == (1 if is_running else 0), brought.err
    assert ("another process writes" in said(brought)) == is_running


# Past traffic.


def test_past_traffic_comes_out_as_it_did_and_another_setting_tells(served: Served) -> None:
    def compared(*arguments: str, **environment: str) -> dict[str, Any]:
        told = run(
            served,
            "replay",
            "--from-topics",
            "--since",
            "1h",
            "--json",
            *arguments,
            environment=environment,
        )
        result: dict[str, Any] = json.loads(told.out)
        return result

    play(served, "one", "two")
    assert served.post(call("open", is_over=False)).status_code == 202
    running = compared()
    assert (running["calls"]["equal"], sum(running["calls"].values())) == (2, 2), running
    assert running["equal_values"] > 10
    assert running["log_cut_at_ms"] == {}
    stop(served)
    assert compared()["equal_values"] == running["equal_values"]
    found = compared(CALLGAUGE_LIMITS__DEAD_AIR_MS="600")
    assert found["measures"]["dead_airs"]["change"] == 1
    assert found["calls"]["changed"] == 2
    again = compared("--without-facts")
    assert (again["calls"]["equal"], again["calls"]["not_over"]) == (2, 1)
    text = said(run(served, "replay", "--from-topics", "--since", "1h"))
    assert "of 2 calls are equal" in text


def test_trials_are_those_of_the_history_in_the_folder(served: Served, tmp_path: Path) -> None:
    ended("replay", "sample", "--keep-ids", "--speed", "max", "--folder", str(served.folder))
    wait_for("the sample in history", lambda: _are_kept(served, ["sample-call"]), 20)
    found = json.loads(run(served, "trials", "--from-topics", "--k", "1", "--json").out)
    stop(served)
    assert json.loads(run(served, "trials", "--from-topics", "--k", "1", "--json").out) == found
    assert [each["trials"] for each in found["goal_sets"]] == [1], found
    assert json.loads(run(served, "trials", "--history", "--k", "1", "--json").out) == found
    alone = run(served, "trials", code=2)
    assert "only with --from-topics or --history" in said(alone)
    nothing = ended("trials", "--from-topics", "--folder", str(tmp_path))
    assert nothing.code == 1
    assert "no `callgauge serve` has kept calls here" in said(nothing)


# What people say, and what is forgotten.

WORD = "zanzibar"


def spoken(name: str, *, is_over: bool = True, **more: Any) -> list[dict[str, Any]]:
    """A call in which somebody says a word that nothing else has."""
    events = call(name, is_over=is_over)
    events[0] |= more
    heard = {"content": f"I want to go to {WORD}", "timestamp": events[1]["timestamp"] / 1_000}
    words = {
        "conversation_id": name,
        "type": "user_message",
        "timestamp": events[2]["timestamp"],
        "data": heard,
    }
    return [*events[:3], words, *events[3:]]


def holding(folder: Path, text: str) -> list[str]:
    """The files with a text in them."""
    return sorted(
        path.name
        for path in folder.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    )


@pytest.mark.parametrize("is_running", [True, False])
def test_a_label_is_given_and_taken_back(served: Served, is_running: bool) -> None:
    def shown() -> str:
        return said(run(served, "call", "one"))

    play(served, "one", "two")
    if not is_running:
        stop(served)
    by = ("--by", "anna", "--label", "false-alarm", "--note", "on hold, mail to anna@example.com")
    given = run(served, "call", "one", *by)
    assert "Call one: false-alarm: on hold" in said(given)
    wait_for("the label", lambda: "false-alarm: on hold" in shown(), 20)
    assert "anna@example.com" not in shown(), "a note is redacted"
    labelled = run(served, "history", "find", "--label", "false-alarm").out
    assert "one" in labelled
    assert "two" not in labelled
    run(served, "call", "one", "--by", "anna", "--unlabel", "false-alarm")
    wait_for("no label", lambda: "false-alarm" not in shown(), 20)


def test_a_process_with_a_token_of_its_settings_has_none_in_its_folder(served: Served) -> None:
    (served.folder / TOKEN_FILE).unlink()
    refused = run(served, "replay", "sample", "--speed", "max", code=1)
    assert "runs here, with a token of its settings" in said(refused)
    assert "CALLGAUGE_INGEST__TOKEN" in said(refused)


def test_what_a_killed_process_left_leads_nobody_astray(served: Served) -> None:
    """Its address and its key stay in the folder, and somebody else may listen there now."""
    play(served, "one")
    served.process.signalled(signal.SIGKILL)
    assert (served.folder / KEY_FILE).exists()
    assert "no `callgauge serve` runs here" in said(
        run(served, "replay", "sample", "--speed", "max", code=1)
    )
    assert "Call one: solved" in said(
        run(served, "call", "one", "--label", "solved", "--by", "anna")
    )
    assert "anna" in run(served, "call", "one").out
    inner = ended(
        "history",
        "forget",
        "--conversation",
        "one",
        "--yes",
        "--folder",
        str(served.folder / "history"),
    )
    assert inner.code == 2
    assert "is the history of `callgauge serve`" in said(inner)
    assert "1 call deleted" in said(
        run(served, "history", "forget", "--conversation", "one", "--yes")
    )


def test_only_who_may_read_the_folder_may_write_through_its_process(served: Served) -> None:
    for path in ("annotations", "put-back"):
        for key in ("", served.token, "wrong"):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            answer = httpx.post(
                f"{served.address}/folder/{path}", json=[["one", None]], headers=headers
            )
            assert answer.status_code == 401
    place = served.folder / KEY_FILE
    assert place.stat().st_mode & 0o077 == 0
    headers = {"authorization": f"Bearer {place.read_text().strip()}"}
    wrong = httpx.post(
        f"{served.address}/folder/annotations", json=[["one", {"kind": "other"}]], headers=headers
    )
    assert wrong.status_code == 422
    large = httpx.post(
        f"{served.address}/folder/annotations", content=b" " * 9_000_000, headers=headers
    )
    assert large.status_code == 413
    stop(served)
    assert not place.exists()


@pytest.mark.parametrize("is_running", [True, False])
def test_a_call_that_is_forgotten_is_in_no_file_any_more(served: Served, is_running: bool) -> None:
    play(served, spoken("one"), "two")
    assert holding(served.folder, WORD), "the log has what was said"
    refused = run(served, "history", "forget", "--conversation", "one", code=2)
    assert "add --yes" in said(refused)
    if not is_running:
        stop(served)
    done = said(run(served, "history", "forget", "--conversation", "one", "--yes"))
    assert "1 call deleted from the history and the log" in done
    assert holding(served.folder, WORD) == []
    assert "one" not in run(served, "history", "find").out
    assert "two" in run(served, "history", "find").out
    if is_running:
        assert served.get("/calls/one").status_code == 410
        assert served.get("/calls/two").status_code == 200
        assert served.post(spoken("one")[3:4]).status_code == 202  # once more, late
        stop(served)
    assert "one" not in run(served, "history", "find").out
    again = said(run(served, "history", "forget", "--conversation", "nobody", "--yes"))
    assert "0 calls deleted" in again


def test_an_open_call_that_is_forgotten_leaves_the_log_when_it_closes(served: Served) -> None:
    assert served.post(spoken("open", is_over=False, tenant="acme")).status_code == 202
    play(served, spoken("over", tenant="acme"), "two")
    wait_for("the open one, too", lambda: "open" in run(served, "call", "open").out, 20)
    done = said(run(served, "history", "forget", "--tenant", "acme", "--yes"))
    assert "2 calls deleted" in done
    assert "Call open is still open" in done
    assert "over" not in run(served, "history", "find").out
    assert run(served, "call", "open", code=1)
    end = {
        "conversation_id": "open",
        "type": "call_ended",
        "timestamp": time.time_ns() // 1_000_000,
    }
    assert served.post([end]).status_code == 202
    wait_for("no word of it", lambda: holding(served.folder, WORD) == [], 20)
    assert "two" in run(served, "history", "find").out
    stop(served)
    assert holding(served.folder, WORD) == []


# Refused events.


def test_a_refused_event_is_listed_shown_and_put_back_once_after_a_fix(served: Served) -> None:
    """It is in the log although it is too old: of a process whose settings took it."""
    place = "audit.events[0]@"
    stop(served)
    asyncio.run(append(served.folder, OLD))
    away = said(run(served, "quarantine", "replay", "--all", "--yes"))
    assert "0 records to put back" in away, "nobody has read it yet"
    arguments = ["serve", "--folder", str(served.folder), "--port", "0"]
    with started(served.folder.parent / "second.log", *arguments, **SOON | LIMITS) as process:
        address_of(process)
        listed = wait_for("the entry", lambda: said(run(served, "quarantine", "list")), 20)
        assert "time_out_of_bounds" in listed
        place += listed.partition(place)[2].partition(" ")[0]
        shown = said(run(served, "quarantine", "show", place))
        assert "it would be refused again" in shown
        assert "call_started" in shown
        fixed = {"CALLGAUGE_LIMITS__MAX_EVENT_TIME_SKEW_MS": "0"}
        assert "it would be taken" in said(
            run(served, "quarantine", "show", place, environment=fixed)
        )
        again = said(run(served, "quarantine", "replay", place, code=1))
        assert "it would be refused again" in again
        told = said(run(served, "quarantine", "replay", place, "--dry-run", environment=fixed))
        assert "would be put back" in told
        process.signalled(signal.SIGINT)
    gone = run(served, "quarantine", "replay", place, code=1, environment=fixed)
    assert "no `callgauge serve` runs here" in said(gone)
    with started(
        served.folder.parent / "third.log", *arguments, **SOON | LIMITS | fixed
    ) as process:
        address_of(process)
        done = said(run(served, "quarantine", "replay", place, environment=fixed))
        assert f"{place}: put back as audit.events[0]@" in done
        looks = ("call", "old-one", "--folder", str(served.folder))
        wait_for("the call", lambda: "late-desk" in ended(*looks).out, 20)
        twice = said(run(served, "quarantine", "replay", place, environment=fixed))
        assert "was put back before" in twice


OLD = OutgoingRecord(
    InputSource.AUDIT,
    b"old-one",
    b'{"type": "call_started", "agent": "late-desk", "timestamp": 1600000000000}',
    [],
)


async def append(folder: Path, record: OutgoingRecord) -> None:
    log = FileLog(folder)
    log.open()
    await log.append([record])
    await log.close()


# The state of a folder.


def findings(
    served: Served, *, code: int = 0, environment: dict[str, str] | None = None
) -> dict[str, tuple[str, str]]:
    """By check the worst verdict of `doctor`, and what it says."""
    told = run(served, "doctor", "--json", code=code, environment=environment).out.splitlines()
    found: dict[str, tuple[str, str]] = {}
    for each in sorted(
        map(json.loads, told),
        key=lambda each: ["ok", "unknown", "warning", "wrong"].index(each["verdict"]),
    ):
        found[each["check"]] = each["verdict"], f"{each['seen']}. {each['what_to_do']}"
    return found


def test_doctor_asks_the_process_and_looks_at_the_folder(served: Served) -> None:
    before = findings(served)
    assert before["producers"][0] == "warning", "nobody has sent anything"
    play(served, "one")
    found = findings(served)
    assert {check for check, (verdict, _) in found.items() if verdict != "ok"} <= {"judge"}, found
    assert f"at {served.address}, version" in found["roles"][1]
    assert "every part does its work" in found["roles"][1]
    assert "the last event came" in found["producers"][1]
    served.folder.chmod(0o755)
    assert findings(served)["folder"][0] == "warning"
    served.folder.chmod(0o700)
    served.process.signalled(signal.SIGKILL)
    assert findings(served)["serve"][0] == "warning"
    set_too = {"CALLGAUGE_HISTORY__CLICKHOUSE_URL": "http://127.0.0.1:1"}
    assert (
        "history.clickhouse_url is set and does not count"
        in findings(served, environment=set_too)["settings"][1]
    )
    with contextlib.closing(sqlite3.connect(served.folder / "log.sqlite")) as log:
        log.execute("PRAGMA user_version = 99")
    assert "its format is 99, and this callgauge knows" in findings(served, code=1)["log"][1]
    (served.folder / "log.sqlite").write_bytes(b"no database" * 1_000)
    assert findings(served, code=1)["log"][0] == "wrong"


def test_doctor_of_a_process_that_does_not_answer_or_of_no_folder(
    served: Served, tmp_path: Path
) -> None:
    served.process.send(signal.SIGSTOP)
    assert "does not answer" in findings(served, code=1)["serve"][1]
    served.process.send(signal.SIGCONT)
    stop(served)
    assert "no process serves this folder" in findings(served)["serve"][1]
    none = ended("doctor", "--folder", str(tmp_path / "none"))
    assert none.code == 1
    assert "no `callgauge serve` has kept calls here" in said(none)


def test_serve_says_which_settings_do_not_count(tmp_path: Path) -> None:
    arguments = ["serve", "--folder", str(tmp_path / "calls"), "--port", "0"]
    given = {
        "CALLGAUGE_HISTORY__CLICKHOUSE_URL": "http://127.0.0.1:1",
        "CALLGAUGE_GOALS__READS_TOPIC": "true",
    }
    with started(tmp_path / "serve.log", *arguments, **SOON | given) as process:
        address_of(process)
        told = " ".join(process.text.split())
    assert (
        "history.clickhouse_url is set and does not count in `serve`: past calls are kept in files "
        "here" in told
    )
    assert (
        "goals.reads_topic is set and does not count in `serve`: goals are those of goals.folder"
        in told
    )


# Transcripts.


@pytest.mark.parametrize("has_files", [True, False])
def test_transcripts_are_in_the_history_and_in_files_if_a_folder_is_set(
    tmp_path: Path, has_files: bool
) -> None:
    folder, files = tmp_path / "calls", tmp_path / "transcripts"
    arguments = ["serve", "--folder", str(folder), "--port", "0"]
    given = SOON | ({"CALLGAUGE_TRANSCRIPTS__FOLDER": str(files)} if has_files else {})
    with started(tmp_path / "serve.log", *arguments, **given) as process:
        served = Served(process, folder, address_of(process))
        play(served, spoken("one"))
        wait_for(
            "its words", lambda: "one" in run(served, "history", "find", "--text", WORD).out, 20
        )
        if has_files:
            file = files / "one.json"
            wait_for("its file", file.exists, 20)
            assert [
                WORD in turn["message"]
                for turn in json.loads(file.read_bytes())
                if turn["role"] == "user"
            ] == [True]
            assert file.stat().st_mode & 0o077 == 0
            file.unlink()
        stop(served)
    assert files.exists() == has_files
    with started(tmp_path / "again.log", *arguments, **given) as process:
        play(Served(process, folder, address_of(process)), spoken("two"))
        if has_files:
            wait_for("its file", (files / "two.json").exists, 20)
            assert not file.exists(), "what has a file is deleted from the log"


# What is for Kafka.


def test_what_is_for_kafka_says_so_and_names_serve() -> None:
    away = ended("run", "--bootstrap", "127.0.0.1:1")
    assert away.code == 1
    assert "On one machine, `callgauge serve` does all this without Kafka." in said(away)
    assert "`callgauge serve` does the same without Kafka" in said(ended("run", "--help"))
    assert "Topics are for Kafka: `callgauge serve` has none" in said(ended("topics", "--help"))
