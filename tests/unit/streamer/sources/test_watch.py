"""`callgauge replay --watch` sends each call of a path once, however its files are written."""

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from streamer.facts import POSITION_FILE
from streamer.recordings.eva import with_state
from streamer.recordings.files import AUDIT_FILE, METRICS_FILE, RESULT_FILE
from streamer.recordings.reader import read_recordings
from streamer.sources import watch as module
from streamer.sources.replay import WireEvent, in_time_order, with_control_events
from streamer.sources.simulator.traffic import simulate_call
from streamer.sources.watch import (
    SUMMARY_FILE,
    Position,
    PositionError,
    Sent,
    Watch,
    WatchedFacts,
    WatchedFile,
    WatchError,
)
from tests.support.patience import patient

MS = 1_790_000_000_000
LOG = "pipecat_logs.jsonl"
SIMULATOR = "user_simulator_events.jsonl"
Json = dict[str, Any]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(module, "MISSING_SECONDS", 0.0)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)


class Taken:
    """Takes the events in place of Kafka; after `fails_after` of them it fails like a broker that
    is gone.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, WireEvent]] = []
        self.fails_after: int | None = None
        self.acknowledges = True

    async def publish(self, conversation_id: str, event: WireEvent) -> None:
        if self.fails_after is not None and len(self.events) >= self.fails_after:
            raise ConnectionError("gone")
        self.events.append((conversation_id, event))

    async def flush(self) -> None:
        if not self.acknowledges:
            raise ConnectionError("no answer")

    @property
    def identities(self) -> list[tuple[str, str, int]]:
        return [(call, event.source, event.sequence) for call, event in self.events]

    def values(self, call: str, source: str) -> list[Json]:
        return [
            json.loads(event.value)
            for name, event in self.events
            if (name, event.source) == (call, source)
        ]

    def control(self, call: str) -> list[str]:
        names = ("call_started", "call_ended")
        return [
            event.event_name
            for name, event in self.events
            if name == call and event.event_name in names
        ]


class Watching:
    """The command without Kafka; each step is one look at the files."""

    def __init__(self, path: Path, facts: WatchedFacts = WatchedFacts(), skew_ms: int = 0) -> None:  # noqa: B008 - never changed
        self.taken = Taken()
        self.said: list[str] = []
        self.path = path
        self._facts = facts
        self._skew_ms = skew_ms
        self._position: Position | None = None
        self.restart()

    def restart(self) -> Self:
        if self._position is not None:
            self._position.__exit__()
        self._position = Position(
            self.path / POSITION_FILE if self.path.is_dir() else self.path.with_suffix(".p"),
            "broker",
        )
        self.watch = Watch(
            self.path,
            self._position,
            self._facts,
            lambda said: self.said.append(str(said)),
            self._skew_ms,
        )
        return self

    def look(self, times: int = 1) -> Self:
        async def work() -> None:
            for _ in range(times):
                await self.watch.look(self.taken)

        asyncio.run(work())
        return self

    def to_the_end(self) -> Self:
        asyncio.run(asyncio.wait_for(self.watch.send(self.taken), patient(30)))
        return self


def lines(*events: Json) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def word(number: int) -> Json:
    return {"type": "tts_text", "data": {"frame": f"word {number}"}, "timestamp": MS + number}


def of_call(name: str, *numbers: int) -> list[Json]:
    """Events as `POST /events` takes them."""
    return [{"conversation_id": name, **word(number)} for number in numbers]


def append(path: Path, text: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(text)


def write_record(record: Path, first: int = 0, reason: str = "goodbye") -> None:
    """The files of a call that is over."""
    append(record / LOG, lines(word(first + 1)))
    entries = [{"timestamp": str(MS + first), "message_type": "user", "value": "hi"}]
    (record / AUDIT_FILE).write_text(json.dumps({"transcript": entries}))
    (record / RESULT_FILE).write_text(
        json.dumps({"record_id": "1", "conversation_ended_reason": reason})
    )


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "records" / "1"


@pytest.fixture
def watching(tmp_path: Path) -> Watching:
    return Watching(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "live" / "events.jsonl"
    append(path, b"")
    return path


# A run of EVA.


def written_slowly(source: Path, target: Path, pieces: int) -> Iterator[None]:
    """Writes the files of a record as EVA does, the log in pieces that end anywhere; yields after
    each piece.
    """
    target.mkdir(parents=True)
    for name in (LOG, METRICS_FILE):
        text = (source / name).read_bytes()
        size = len(text) // pieces + 1
        for begin in range(0, len(text), size):
            append(target / name, text[begin : begin + size])
            yield
    for name in (SIMULATOR, AUDIT_FILE, RESULT_FILE):
        text = (source / name).read_bytes()
        append(target / name, text[: len(text) // 2])
        yield
        append(target / name, text[len(text) // 2 :])
        yield


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_is_sent_is_what_score_reads(tmp_path: Path, seed: int, *, restarts: bool) -> None:
    call = simulate_call(seed, start_ms=MS, kind="cascade").call
    whole = tmp_path / "whole" / "1"
    append(whole / LOG, lines(*map(dict, call.pipecat or ())))
    append(
        whole / METRICS_FILE,
        lines({"type": "TTFBMetricsData", "processor": "LLM#0", "value": 0.5, "timestamp": 3.5}),
    )
    append(whole / SIMULATOR, lines(*map(dict, call.elevenlabs or ())))
    append(whole / AUDIT_FILE, json.dumps({"transcript": call.audit}).encode())
    write_result = {
        "record_id": "1",
        "conversation_ended_reason": "goodbye",
        "final_scenario_db_hash": "h",
    }
    append(whole / RESULT_FILE, json.dumps(write_result).encode())
    (recorded,) = read_recordings(whole)
    expected = [event.value for event in in_time_order(with_state(with_control_events(recorded)))]

    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text("{}")  # no recording
    watching = Watching(run).look()
    for _ in written_slowly(whole, run / "records" / "1", 7):
        if restarts:
            watching.restart()
        watching.look()
    (run / SUMMARY_FILE).write_text("{}")
    watching.to_the_end()
    assert [event.value for _, event in watching.taken.events] == expected
    assert len(set(watching.taken.identities)) == len(expected)
    assert {name for name, _ in watching.taken.events} == {"1"}
    assert not any(said.startswith(str(run / "config.json")) for said in watching.said)
    count = len(expected)
    watching.restart().to_the_end()
    assert len(watching.taken.events) == count, "nothing twice"


def test_a_crash_repeats_events_under_the_same_identity_and_loses_none(
    watching: Watching, record: Path
) -> None:
    write_record(record)
    append(record / LOG, lines(*map(word, range(2, 10))))
    watching.taken.fails_after = 5
    with pytest.raises(ConnectionError):
        watching.look()
    watching.taken.fails_after = None
    watching.restart().look()
    identities = watching.taken.identities
    assert identities[:5] == identities[5:10]
    assert [event["timestamp"] - MS for event in watching.taken.values("1", "pipecat")][-9:] == [
        *range(1, 10)
    ]


def test_the_position_is_kept_only_of_what_kafka_has(
    watching: Watching, record: Path, tmp_path: Path
) -> None:
    write_record(record)
    (tmp_path / SUMMARY_FILE).write_text("{}")
    watching.taken.acknowledges = False
    with pytest.raises(ConnectionError):
        watching.to_the_end()
    watching.taken.acknowledges = True
    watching.restart().to_the_end()
    assert watching.taken.values("1", "pipecat") == [word(1), word(1)]
    assert len(set(watching.taken.identities)) == len(watching.taken.events) / 2


@pytest.mark.parametrize("is_late", [False, True])
def test_an_attempt_that_eva_repeats_is_a_call_of_its_own(
    watching: Watching, record: Path, *, is_late: bool
) -> None:
    write_record(record)
    if is_late:
        watching.look()
    shutil.move(record, record.with_name("1_failed_attempt_1"))
    watching.look()
    write_record(record, first=50)
    watching.restart().look()
    second = "1/attempt_2" if is_late else "1"
    assert watching.taken.values(second, "pipecat") == [word(51)]
    assert watching.taken.control(second) == ["call_started", "call_ended"]
    assert {call for call, _ in watching.taken.events} == {"1", second}, (
        "what was put aside is no call of its own"
    )
    count = len(watching.taken.events)
    watching.restart().look()
    assert len(watching.taken.events) == count


def test_a_copy_of_a_run_goes_on_where_the_run_was(
    watching: Watching, record: Path, tmp_path: Path
) -> None:
    write_record(record)
    watching.look()
    copy = tmp_path.parent / f"{tmp_path.name}-copy"
    watching.restart()
    shutil.copytree(tmp_path, copy)
    for file in (copy / "records" / "1").iterdir():
        os.utime(file, (1, 1))
    write_record(copy / "records" / "2")
    again = Watching(copy).look()
    assert {call for call, _ in again.taken.events} == {"1"}, "the id of its result"
    assert len(again.taken.control("1")) == 2, "one call"


def test_files_that_come_late_make_no_second_call(watching: Watching, record: Path) -> None:
    write_record(record)
    watching.look()
    (record / "metrics.json").write_text("{}")
    append(record / SIMULATOR, lines({"type": "connection_state", "timestamp": MS - 9}))
    watching.look()
    assert watching.taken.control("1") == ["call_started", "call_ended"]


def test_a_call_is_sent_when_its_files_have_settled(
    watching: Watching, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 3_600.0)
    write_record(record)
    watching.look(2)
    assert watching.taken.events == []
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.0)
    watching.look()
    assert watching.taken.control("1") == ["call_started", "call_ended"]


def test_a_call_with_a_result_waits_for_its_audit_log(
    watching: Watching, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MISSING_SECONDS", 3_600.0)
    write_record(record)
    entries = (record / AUDIT_FILE).read_text()
    (record / AUDIT_FILE).write_text(entries[:-5])
    watching.look(3)
    assert (watching.taken.events, watching.said, watching.watch.progress.waiting) == ([], [], 1)
    (record / AUDIT_FILE).write_text(entries)
    watching.look()
    assert watching.taken.control("1") == ["call_started", "call_ended"]


def test_a_record_that_cannot_be_read_is_named_once_and_read_when_it_changes(
    watching: Watching, record: Path, tmp_path: Path
) -> None:
    append(record / LOG, lines(word(1)))
    (tmp_path / SUMMARY_FILE).write_text("{}")
    watching.to_the_end()
    assert ["the record has no audit log" in said for said in watching.said] == [True]
    assert "the others go on" in watching.said[0]
    write_record(record)
    watching.restart().to_the_end()
    assert watching.taken.control("1") == ["call_started", "call_ended"]


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_call_without_a_result_ends_after_a_long_silence(
    watching: Watching, record: Path, monkeypatch: pytest.MonkeyPatch, *, is_silent: bool
) -> None:
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.0 if is_silent else 3_600.0)
    write_record(record)
    (record / RESULT_FILE).unlink()
    watching.look(2)
    assert watching.taken.control("1") == (["call_started", "call_ended"] if is_silent else [])


def test_a_run_that_is_gone_ends_the_command(watching: Watching, record: Path) -> None:
    write_record(record)
    watching.look()
    shutil.rmtree(record)
    watching.look()
    shutil.rmtree(watching.path)
    with pytest.raises(WatchError, match="not there any more"):
        watching.to_the_end()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_call_of_the_past_is_named_and_nothing_of_it_is_sent(
    record: Path, tmp_path: Path, *, is_restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "wall_clock_ms", lambda: MS + 86_400_000)
    watching = Watching(tmp_path, skew_ms=86_395_000)
    write_record(record)
    write_record(tmp_path / "records" / "x" / "trial_2", first=10_000)
    (tmp_path / SUMMARY_FILE).write_text("{}")
    if is_restarted:
        watching.look().restart()
    watching.to_the_end()
    assert {name for name, _ in watching.taken.events} == {"1/trial_2"}
    assert any("the events of 1 are of 2026-09-21 14:13:20 UTC" in said for said in watching.said)
    assert watching.watch.progress.past_calls == 1


@pytest.mark.parametrize(
    ("run_name", "call"), [(None, "1/trial_0"), ("monday", "1/trial_0-monday")]
)
def test_the_goals_of_a_trial_are_those_of_its_record_and_a_run_can_have_a_name(
    tmp_path: Path, run_name: str | None, call: str
) -> None:
    watching = Watching(tmp_path, WatchedFacts(agent="desk", goals="set-{id}", run_name=run_name))
    (tmp_path / "config.json").write_text(json.dumps({"language": "fr-CA"}))
    write_record(tmp_path / "records" / "1" / "trial_0")
    watching.look()
    assert {name for name, _ in watching.taken.events} == {call}
    started = watching.taken.values(call, "audit")[0]
    assert (started["goals"], started["agent"], started["pipeline_type"]) == (
        "set-1",
        "desk",
        "cascade",
    )
    assert started["language"] == "fr-CA"


# Files.


def test_half_a_line_waits_for_its_end(file: Path) -> None:
    watching = Watching(file)
    text = lines(*of_call("a", 1, 2))
    append(file, text[:-5])
    watching.look(3)
    assert watching.taken.values("a", "pipecat") == [word(1)]
    append(file, text[-5:])
    watching.look()
    assert watching.taken.values("a", "pipecat") == [word(1), word(2)]
    assert watching.taken.control("a") == [], "only its events know its end"


def test_a_whole_line_without_an_end_counts_when_nothing_changes_any_more(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 3_600.0)
    watching = Watching(file)
    append(file, lines(*of_call("a", 1, 2))[:-1])
    watching.look(2)
    assert watching.taken.values("a", "pipecat") == [word(1)]
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.0)
    watching.look()
    append(file, b"\n" + lines(*of_call("a", 3)))
    watching.look()
    assert watching.taken.values("a", "pipecat") == [word(1), word(2), word(3)]


@pytest.mark.parametrize("at_a_time", [1, 3, 500])
def test_events_have_the_same_identity_in_whatever_parts_the_file_is_read(
    file: Path, monkeypatch: pytest.MonkeyPatch, at_a_time: int
) -> None:
    begin, end = (
        [{"conversation_id": name, "type": kind, "timestamp": MS} for name in "ab"]
        for kind in ("call_started", "call_ended")
    )
    words = [event for number in range(1, 5) for name in "ab" for event in of_call(name, number)]
    append(file, lines(*begin, *words, *end))
    whole = Watching(file, WatchedFacts(agent="desk")).look()
    monkeypatch.setattr(module, "LINES_AT_A_TIME", at_a_time)
    (file.with_suffix(".p")).unlink()
    parts = Watching(file, WatchedFacts(agent="desk"))
    for _ in range(12):
        parts.restart().look()
    assert sorted(parts.taken.identities) == sorted(whole.taken.identities)
    assert len(set(whole.taken.identities)) == 12
    assert parts.taken.control("b") == ["call_started", "call_ended"]
    assert parts.taken.values("b", "audit")[0]["agent"] == "desk"
    assert parts.taken.values("b", "pipecat") == [word(number) for number in range(1, 5)]


@pytest.mark.parametrize(("first", "then"), [((1,), (5, 6)), ((1, 2), (1, 5, 6))])
def test_a_file_that_another_one_replaces_is_named_even_if_it_begins_with_the_same_line(
    file: Path, first: tuple[int, ...], then: tuple[int, ...]
) -> None:
    watching = Watching(file)
    append(file, lines(*of_call("a", *first)))
    watching.look()
    file.write_bytes(lines(*of_call("a", *then)))
    watching.look(2)
    assert watching.taken.values("a", "pipecat") == [*map(word, first), *map(word, then)]
    assert len(set(watching.taken.identities)) == len(first) + len(then)
    assert ["another file has taken its place" in said for said in watching.said] == [True]


def test_a_file_is_recognised_by_a_beginning_of_bounded_length(file: Path) -> None:
    append(file, lines(*of_call("a", *range(50))))
    sent = Sent()
    WatchedFile(file, sent, WatchedFacts(), print).news(is_over=False)
    assert sent.head_bytes == module.HEAD_BYTES < sent.offset


def test_a_file_that_is_written_anew_with_the_same_lines_repeats_none(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 3_600.0)
    watching = Watching(file)
    append(file, lines(*of_call("a", 1, 2)))
    watching.look()
    file.write_bytes(b"")
    watching.look()
    part = file.with_name("part")
    part.write_bytes(lines(*of_call("a", 1, 2, 3)))
    part.replace(file)
    watching.look()
    assert watching.taken.values("a", "pipecat") == [word(1), word(2), word(3)]
    assert watching.said == []


def test_lines_that_are_no_events_are_named_and_left_out(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 300)
    watching = Watching(file)
    append(
        file, lines(*of_call("a", 1)) + b"{broken\n\n[4]\n" + lines(*of_call("a", 2)) + b"x" * 500
    )
    watching.look(3)
    assert watching.taken.values("a", "pipecat") == [word(1), word(2)]
    assert len(watching.said) == 3
    assert any(
        f"{file}:2: this is not JSON" in said and "the rest goes on" in said
        for said in watching.said
    )
    assert "a line of more than" in watching.said[2]


def test_little_is_said_of_one_file(file: Path) -> None:
    watching = Watching(file)
    append(file, lines(*of_call("a", 1)) + b"{\n" * 9)
    watching.look(2)
    assert ["this is not JSON" in said for said in watching.said] == [True] * 3 + [False]


def test_files_of_a_folder_are_sent_those_that_are_added_later_too(tmp_path: Path) -> None:
    watching = Watching(tmp_path).look()
    append(tmp_path / "a.jsonl", lines(*of_call("a", 1)))
    watching.look()
    entries = [{"timestamp": str(MS), "message_type": "user", "value": "hi"}]
    append(tmp_path / "whole.jsonl", lines({"id": "w", "audit": entries}))
    (tmp_path / "list.json").write_text(json.dumps(of_call("l", 1, 2)))
    watching.look(2)
    append(tmp_path / "a.jsonl", lines(*of_call("a", 2)))
    watching.restart().look(2)
    assert watching.taken.values("a", "pipecat") == [word(1), word(2)]
    assert watching.taken.values("l", "pipecat") == [word(1), word(2)]
    assert (
        watching.taken.control("w") == watching.taken.control("l") == ["call_started", "call_ended"]
    )
    assert len(set(watching.taken.identities)) == len(watching.taken.events)


def test_a_file_without_lines_that_changes_repeats_events_under_their_identities(
    tmp_path: Path,
) -> None:
    watching = Watching(tmp_path)
    for count in (2, 3):
        (tmp_path / "list.json").write_text(json.dumps(of_call("l", *range(count))))
        watching.look(2)
    identities = [each for each in watching.taken.identities if each[1] == "pipecat"]
    assert identities[:2] == identities[2:4]
    assert len(set(identities)) == 3


def test_a_file_that_cannot_be_read_is_named_and_tried_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = Watching(file.parent)
    append(file, lines(*of_call("a", 1)))

    def refused(*_: object) -> str:
        raise PermissionError(13, "Permission denied", str(file))

    with monkeypatch.context() as patch:
        patch.setattr(module, "_state_of", refused)
        watching.look()
    assert ["cannot be read (Permission denied)" in said for said in watching.said] == [True]
    watching.look()
    assert watching.taken.values("a", "pipecat") == [word(1)]


def test_only_so_many_places_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PLACES", 1)
    watching = Watching(tmp_path)
    for name in ("a", "b"):
        append(tmp_path / f"{name}.jsonl", lines(*of_call(name, 1)))
    watching.look(3)
    assert {call for call, _ in watching.taken.events} == {"a"}
    assert ["more than 1 records" in said for said in watching.said] == [True]


def test_a_position_is_for_one_process_and_one_target(tmp_path: Path) -> None:
    path = tmp_path / "p"
    with Position(path, "mistyped"):
        pass
    with Position(path, "a") as position:
        assert position.is_new
        position.keep("1", Sent(seen="x"))
        with pytest.raises(PositionError, match="another `callgauge replay --watch`"):
            Position(path, "a")
    with Position(path, "a") as position:
        assert (position.is_new, position.of("1")) == (False, Sent(seen="x"))
    with pytest.raises(PositionError, match="--position FILE"):
        Position(path, "b")
    path.write_text("no database " * 100)
    with pytest.raises(PositionError, match="delete it"):
        Position(path, "a")
    with pytest.raises(PositionError, match="--position FILE"):
        Position(tmp_path / "nowhere" / "p", "a")
