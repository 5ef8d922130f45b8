"""`callgauge tail` sends each event of a run once, in the order of its file, however the files are written."""

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamer.facts import POSITION_FILE
from streamer.recordings.eva import with_state
from streamer.recordings.files import AUDIT_FILE, METRICS_FILE, RESULT_FILE
from streamer.recordings.reader import read_recordings
from streamer.sources import tail as module
from streamer.sources.replay import WireEvent, in_time_order, with_control_events
from streamer.sources.simulator.traffic import simulate_call
from streamer.sources.tail import (
    SUMMARY_FILE,
    CallFacts,
    FilePosition,
    FollowedRun,
    GrowingFile,
    PositionError,
    PositionFile,
    RunFolderError,
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
    monkeypatch.setattr(module, "FOLDERS_SECONDS", 0.0)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)


class Sent:
    """Takes the events in place of Kafka; after `fails_after` of them it fails like a broker that is gone."""

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
        return [json.loads(event.value) for name, event in self.events if (name, event.source) == (call, source)]

    def control(self, call: str) -> list[str]:
        return [
            e.event_name for name, e in self.events if name == call and e.event_name in ("call_started", "call_ended")
        ]


class Tail:
    """The command without Kafka; each step is one look at the files."""

    def __init__(self, folder: Path, facts: CallFacts = CallFacts(), skew_ms: int = 0) -> None:  # noqa: B008 - never changed
        self.sent = Sent()
        self._skew_ms = skew_ms
        self.said: list[str] = []
        self.folder = folder
        self._facts = facts
        self.restart()

    def restart(self) -> None:
        self.file = PositionFile(self.folder / POSITION_FILE)
        position = self.file.read("broker", "")
        self.run = FollowedRun(self.folder, self.file, position, self._facts, self.said.append, self._skew_ms)

    def look(self, times: int = 1) -> None:
        """Looks at the files this many times; the sent events are acknowledged and remembered."""

        async def work() -> None:
            for _ in range(times):
                self.run._find_folders()
                over = (self.folder / SUMMARY_FILE).is_file()
                await self.run._send_news(self.sent, run_is_over=over)
                self.file.write(self.run._position)

        asyncio.run(work())

    def to_the_end(self) -> None:
        asyncio.run(asyncio.wait_for(self.run.send(self.sent, is_endless=False), patient(30)))


def lines(*events: Json) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def word(number: int) -> Json:
    return {"type": "tts_text", "data": {"frame": f"word {number}"}, "timestamp": MS + number}


def append(path: Path, text: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(text)


def write_audit(record: Path, *said: str) -> None:
    entries = [{"timestamp": str(MS), "message_type": "user", "value": text} for text in said]
    (record / AUDIT_FILE).write_text(json.dumps({"transcript": entries}))


def write_end(record: Path, reason: str = "goodbye") -> None:
    write_audit(record, "hi")
    (record / RESULT_FILE).write_text(json.dumps({"record_id": "1", "conversation_ended_reason": reason}))


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "records" / "1"


@pytest.fixture
def tail(tmp_path: Path) -> Tail:
    return Tail(tmp_path)


def written_slowly(source: Path, target: Path, pieces: int) -> Iterator[None]:
    """Writes the files of a record as EVA does, the log in pieces that end anywhere; yields after each piece."""
    target.mkdir(parents=True)
    for name in (LOG, METRICS_FILE):
        text = (source / name).read_bytes() if (source / name).exists() else b""
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
        whole / METRICS_FILE, lines({"type": "TTFBMetricsData", "processor": "LLM#0", "value": 0.5, "timestamp": 3.5})
    )
    append(whole / SIMULATOR, lines(*map(dict, call.elevenlabs or ())))
    append(whole / AUDIT_FILE, json.dumps({"transcript": call.audit}).encode())
    write_result = {"record_id": "1", "conversation_ended_reason": "goodbye", "final_scenario_db_hash": "h"}
    append(whole / RESULT_FILE, json.dumps(write_result).encode())
    (recorded,) = read_recordings(whole)
    expected = [event.value for event in in_time_order(with_state(with_control_events(recorded)))]

    run = tmp_path / "run"
    tail = tail_of(run)
    for _ in written_slowly(whole, run / "records" / "1", 7):
        if restarts:
            tail.restart()
        tail.look()
    (run / SUMMARY_FILE).write_text("{}")
    tail.to_the_end()
    sent = [event.value for _, event in tail.sent.events]
    extra = [json.loads(value) for value in sent if value not in expected]
    assert [event["type"] for event in extra] in ([], ["call_started"]), "only the start, with the time known then"
    assert sorted(value for value in sent if value in expected) == sorted(expected)
    assert len(set(tail.sent.identities)) == len(sent)
    assert json.loads(sent[-1])["type"] == "call_ended"
    assert {name for name, _ in tail.sent.events} == {"1"}
    assert tail.said == []


def tail_of(run: Path) -> Tail:
    run.mkdir()
    return Tail(run)


def test_half_a_line_waits_for_its_end(tail: Tail, record: Path) -> None:
    text = lines(word(1), word(2))
    append(record / LOG, text[:-5])
    tail.look()
    assert tail.sent.values("1", "pipecat") == [word(1)]
    append(record / LOG, text[-5:])
    tail.look()
    assert tail.sent.values("1", "pipecat") == [word(1), word(2)]


def test_a_last_line_without_an_end_counts_when_the_call_is_over(tail: Tail, record: Path) -> None:
    append(record / LOG, lines(word(1), word(2))[:-1])
    write_end(record)
    tail.look(4)
    assert tail.sent.values("1", "pipecat") == [word(1), word(2)]
    assert tail.sent.control("1") == ["call_started", "call_ended"]


def test_a_crash_repeats_events_under_the_same_identity_and_loses_none(tail: Tail, record: Path) -> None:
    append(record / LOG, lines(*map(word, range(10))))
    tail.sent.fails_after = 5
    with pytest.raises(ConnectionError):
        tail.look()
    tail.sent.fails_after = None
    tail.restart()
    tail.look()
    words = [event for event in tail.sent.events if event[1].event_name == "tts_text"]
    by_identity = {(event.source, event.sequence): event.value for _, event in words}
    assert len(words) == 14
    assert [json.loads(value) for value in by_identity.values()] == [word(number) for number in range(10)]
    assert all(by_identity[event.source, event.sequence] == event.value for _, event in words)


@pytest.mark.parametrize("is_over", [False, True])
def test_a_short_file_in_the_place_of_a_long_one_is_another_one_when_nobody_writes_any_more(
    tail: Tail, record: Path, *, is_over: bool
) -> None:
    append(record / LOG, lines(*map(word, range(9))))
    tail.look()
    (record / LOG).write_bytes(lines(word(10)))
    if is_over:
        write_end(record)
    tail.look(4)
    assert tail.sent.values("1", "pipecat")[9:] == ([word(10)] if is_over else [])
    assert ["another file has taken its place" in sentence for sentence in tail.said] == [True] * is_over


@pytest.mark.parametrize(("first", "then"), [((1,), (5, 6)), ((1, 2), (1, 5, 6))])
def test_a_file_that_another_one_replaces_is_named_even_if_it_begins_with_the_same_line(
    tail: Tail, record: Path, first: tuple[int, ...], then: tuple[int, ...]
) -> None:
    append(record / LOG, lines(*map(word, first)))
    tail.look()
    (record / LOG).write_bytes(lines(*map(word, then)))
    tail.look(2)
    assert tail.sent.values("1", "pipecat") == [*map(word, first), *map(word, then)]
    assert ["another file has taken its place" in sentence for sentence in tail.said] == [True]


def test_a_file_is_recognised_by_a_beginning_of_bounded_length(tmp_path: Path) -> None:
    place = FilePosition()
    append(tmp_path / LOG, lines(*map(word, range(50))))
    GrowingFile(tmp_path / LOG, place).lines(is_complete=False)
    assert place.head_bytes == module.HEAD_BYTES < place.offset


def test_a_position_is_on_the_disk_before_it_takes_the_place_of_the_last_one(
    tail: Tail, record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a machine that loses power can come back with an empty position."""
    append(record / LOG, lines(word(1)))
    tail.look()
    before = (tmp_path / POSITION_FILE).read_bytes()
    synced: list[tuple[bytes, bytes]] = []

    def fsync(descriptor: int) -> None:
        with open(f"/proc/self/fd/{descriptor}", "rb") as file:  # noqa: PTH123 - a descriptor, no path
            synced.append((file.read(), (tmp_path / POSITION_FILE).read_bytes()))

    monkeypatch.setattr(os, "fsync", fsync)
    append(record / LOG, lines(word(2)))
    tail.look()
    assert synced == [((tmp_path / POSITION_FILE).read_bytes(), before)]


def test_a_log_that_is_written_anew_with_the_same_lines_repeats_none(tail: Tail, record: Path) -> None:
    append(record / LOG, lines(word(1), word(2)))
    tail.look()
    (record / LOG).write_bytes(b"")
    tail.look()
    part = record / "part"
    part.write_bytes(lines(word(1), word(2), word(3)))
    part.replace(record / LOG)
    tail.look()
    assert tail.sent.values("1", "pipecat") == [word(1), word(2), word(3)]


def test_an_audit_log_that_grows_gives_each_entry_once(tail: Tail, record: Path) -> None:
    entries = [{"timestamp": str(MS + number), "message_type": "user", "value": "hi"} for number in range(3)]
    append(record / LOG, lines(word(1)))
    for count in (1, 3):
        (record / AUDIT_FILE).write_text(json.dumps({"transcript": entries[-count:]}))
        os.utime(record / AUDIT_FILE, ns=(count, count))
        tail.look()
        tail.restart()
    said = [event for event in tail.sent.values("1", "audit") if event.get("message_type")]
    assert said == [entries[2], entries[0], entries[1]]


def test_lines_that_are_no_events_are_named_and_left_out(
    tail: Tail, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 200)
    append(record / LOG, lines(word(1)) + b"{broken\n\n" + b'"' + b"x" * 500)
    tail.look()
    append(record / LOG, b'"\n' + lines(word(2)))
    tail.look()
    assert tail.sent.values("1", "pipecat") == [word(1), word(2)]
    assert len(tail.said) == 3
    assert f"{record / LOG}:2: this is no event" in tail.said[0]
    assert "more than" in tail.said[2]


def test_only_some_lines_are_read_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINES_AT_A_TIME", 3)
    append(tmp_path / LOG, lines(*map(word, range(7))))
    file = GrowingFile(tmp_path / LOG, FilePosition())
    assert [len(file.lines(is_complete=True)) for _ in range(4)] == [3, 3, 1, 0]


def test_only_some_calls_are_open_at_a_time(tail: Tail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OPEN_CALLS", 1)
    for name in ("1", "2"):
        append(tmp_path / "records" / name / LOG, lines(word(1)))
    tail.look(3)
    assert {call for call, _ in tail.sent.events} == {"1"}
    assert "Further ones wait" in tail.said[0]
    write_end(tmp_path / "records" / "1")
    tail.look(6)
    assert {call for call, _ in tail.sent.events} == {"1", "2"}


def test_an_attempt_that_eva_repeats_is_a_call_of_its_own(tail: Tail, record: Path) -> None:
    append(record / LOG, lines(word(1)))
    tail.look()
    shutil.move(record, record.with_name("1_failed_attempt_1"))
    append(record / LOG, lines(word(2)))
    tail.look(3)
    write_end(record)
    tail.restart()
    tail.look(4)
    assert tail.sent.control("1") == ["call_started", "call_ended"]
    assert (
        json.loads(next(e.value for c, e in tail.sent.events if c == "1" and e.event_name == "call_ended"))["reason"]
        == "discarded"
    )
    assert tail.sent.values("1/attempt_2", "pipecat") == [word(2)]
    assert tail.sent.control("1/attempt_2")[-1] == "call_ended"
    assert {call for call, _ in tail.sent.events} == {"1", "1/attempt_2"}, "what was put aside is no call of its own"
    count = len(tail.sent.events)
    tail.restart()
    tail.look(3)
    assert len(tail.sent.events) == count


@pytest.mark.parametrize("begins_anew", [False, True])
def test_an_attempt_that_is_put_aside_between_two_processes_ends_too(
    tail: Tail, record: Path, *, begins_anew: bool
) -> None:
    append(record / LOG, lines(word(1)))
    tail.look()
    shutil.move(record, record.with_name("1_failed_attempt_1"))
    if begins_anew:
        append(record / LOG, lines(word(2)))
    tail.restart()
    tail.look(3)
    assert tail.sent.control("1") == ["call_started", "call_ended"]
    assert tail.sent.values("1/attempt_2", "pipecat") == ([word(2)] if begins_anew else [])


def test_a_folder_that_is_gone_ends_its_call_and_the_run_when_it_is_the_runs(tail: Tail, record: Path) -> None:
    append(record / LOG, lines(word(1)))
    tail.look()
    shutil.rmtree(record)
    tail.look()
    assert tail.sent.control("1") == ["call_started", "call_ended"]
    shutil.rmtree(tail.folder)
    with pytest.raises(RunFolderError, match="not there any more"):
        tail.to_the_end()


def test_a_run_that_may_begin_again_does_not_end_the_command(tail: Tail, record: Path, tmp_path: Path) -> None:
    append(record / LOG, lines(word(1)))
    (tmp_path / SUMMARY_FILE).write_text("{}")
    tail.to_the_end()

    async def follow_for_ever() -> None:
        following = asyncio.create_task(tail.run.send(tail.sent, is_endless=True))
        append(record.with_name("2") / LOG, lines(word(2)))
        while tail.sent.control("2") != ["call_started", "call_ended"]:  # noqa: ASYNC110 - a list has no event
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        assert not following.done()
        following.cancel()

    asyncio.run(asyncio.wait_for(follow_for_ever(), patient(30)))


def test_the_position_is_kept_only_of_what_kafka_has(tail: Tail, record: Path, tmp_path: Path) -> None:
    append(record / LOG, lines(word(1)))
    (tmp_path / SUMMARY_FILE).write_text("{}")
    tail.sent.acknowledges = False
    with pytest.raises(ConnectionError):
        tail.to_the_end()
    tail.sent.acknowledges = True
    tail.restart()
    tail.to_the_end()
    assert tail.sent.values("1", "pipecat") == [word(1), word(1)]
    words = [event.sequence for _, event in tail.sent.events if event.event_name == "tts_text"]
    assert len(set(words)) == 1


def test_a_file_that_cannot_be_read_is_named_once_and_tried_again(tail: Tail, record: Path) -> None:
    append(record / LOG, lines(word(1)))
    tail.look()
    (record / LOG).rename(record / "aside")
    (record / LOG).mkdir()
    tail.look(3)
    assert ["cannot be read" in sentence for sentence in tail.said] == [True]
    (record / LOG).rmdir()
    (record / "aside").rename(record / LOG)
    append(record / LOG, lines(word(2)))
    tail.look()
    assert tail.sent.values("1", "pipecat") == [word(1), word(2)]


def test_only_so_many_records_of_a_run_are_followed(
    tail: Tail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_FOLDERS", 1)
    for name in ("1", "2"):
        append(tmp_path / "records" / name / LOG, lines(word(1)))
    tail.look(3)
    assert {call for call, _ in tail.sent.events} == {"1"}
    assert ["more than 1 records" in sentence for sentence in tail.said] == [True]


def test_the_run_is_not_over_while_calls_wait(tail: Tail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OPEN_CALLS", 1)
    monkeypatch.setattr(module, "FOLDERS_SECONDS", 0.05)  # so that calls end between two looks for folders
    for name in ("1", "2", "3"):
        append(tmp_path / "records" / name / LOG, lines(word(1)))
    (tmp_path / SUMMARY_FILE).write_text("{}")
    tail.to_the_end()
    assert {call for call, _ in tail.sent.events} == {"1", "2", "3"}


@pytest.mark.parametrize("is_old", [False, True])
def test_a_call_ends_when_its_files_have_settled(
    tail: Tail, record: Path, monkeypatch: pytest.MonkeyPatch, *, is_old: bool
) -> None:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 3_600.0)
    append(record / LOG, lines(word(1)))
    write_end(record)
    if is_old:
        for file in record.iterdir():
            os.utime(file, (0, 0))
    tail.look(4)
    assert tail.sent.control("1") == ["call_started", *(["call_ended"] if is_old else [])]


def test_a_call_with_a_result_waits_for_its_audit_log(
    tail: Tail, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MISSING_SECONDS", 3_600.0)
    append(record / LOG, lines(word(0)))
    write_end(record)
    entries = (record / AUDIT_FILE).read_text()
    (record / AUDIT_FILE).write_text(entries[:-5])
    tail.look(4)
    assert tail.sent.control("1") == ["call_started"]
    (record / AUDIT_FILE).write_text(entries)
    tail.look(4)
    assert tail.sent.control("1") == ["call_started", "call_ended"]
    assert [event["value"] for event in tail.sent.values("1", "audit") if "value" in event] == ["hi"]


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_call_without_a_result_ends_after_a_long_silence(
    tail: Tail, record: Path, monkeypatch: pytest.MonkeyPatch, *, is_silent: bool
) -> None:
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.0 if is_silent else 3_600.0)
    append(record / LOG, lines(word(1)))
    tail.look(4)
    assert tail.sent.control("1") == ["call_started", *(["call_ended"] if is_silent else [])]


def test_metrics_that_count_from_a_start_wait_for_it(tail: Tail, record: Path) -> None:
    append(record / LOG, b"")
    append(record / METRICS_FILE, lines({"type": "TTFBMetricsData", "processor": "x", "value": 0.5, "timestamp": 3.5}))
    tail.look()
    assert tail.sent.values("1", "pipecat") == []
    append(record / LOG, lines(word(0)))
    tail.look(2)
    metric = [event for event in tail.sent.values("1", "pipecat") if event["type"] == "TTFBMetricsData"]
    assert [event["timestamp"] for event in metric] == [MS + 3_500]
    assert tail.said == []


def test_the_end_of_the_session_is_sent_after_everything_but_the_end_of_the_call(tail: Tail, record: Path) -> None:
    ended = {"type": "connection_state", "data": {"state": "session_ended"}, "timestamp": MS + 9}
    append(record / LOG, lines(word(0)))
    append(record / SIMULATOR, lines(ended))
    tail.look(2)
    assert tail.sent.values("1", "elevenlabs") == []
    tail.restart()
    write_end(record)
    tail.look(4)
    assert [json.loads(event.value).get("type") for _, event in tail.sent.events][-2:] == [
        "connection_state", "call_ended"
    ]  # fmt: skip


def test_the_entries_of_an_audit_log_are_read_in_parts_and_long_ones_are_named(
    tail: Tail, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINES_AT_A_TIME", 2)
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 200)
    append(record / LOG, lines(word(1)))
    write_end(record)
    write_audit(record, "a", "x" * 300, "b", "c", "d")
    tail.look()
    assert [event["value"] for event in tail.sent.values("1", "audit") if "value" in event] == ["a"]
    tail.look(5)
    assert [event["value"] for event in tail.sent.values("1", "audit") if "value" in event] == ["a", "b", "c", "d"]
    assert tail.sent.control("1") == ["call_started", "call_ended"]
    assert ["entry 2 has more than 200 bytes" in sentence for sentence in tail.said] == [True]


def test_a_copy_of_a_run_goes_on_where_the_run_was(tail: Tail, record: Path, tmp_path: Path) -> None:
    append(record / LOG, lines(word(1)))
    append(record.with_name("2") / LOG, lines(word(1)))
    write_end(record.with_name("2"))
    tail.look(4)
    copy = tmp_path.parent / f"{tmp_path.name}-copy"
    shutil.copytree(tmp_path, copy)
    again = Tail(copy)
    append(copy / "records" / "1" / LOG, lines(word(2)))
    again.look(4)
    assert again.sent.values("1", "pipecat") == [word(2)]
    assert again.sent.values("2", "pipecat") == []


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_call_of_the_past_is_named_before_anything_of_it_is_sent(
    record: Path, tmp_path: Path, *, is_restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "wall_clock_ms", lambda: MS + 86_400_000)
    tail = Tail(tmp_path, skew_ms=86_395_000)
    append(record / LOG, lines(word(0)))
    append(tmp_path / "records" / "2" / LOG, lines(word(10_000)))
    (tmp_path / SUMMARY_FILE).write_text("{}")
    if is_restarted:
        tail.look()
        tail.restart()
    tail.to_the_end()
    assert {name for name, _ in tail.sent.events} == {"2"}
    assert any("its events are of 2026-09-21 14:13:20 UTC" in sentence for sentence in tail.said)
    assert (tail.run.progress.past_calls, tail.run.progress.ended_calls) == (1, 1)


def test_calls_without_a_result_end_with_the_run(tail: Tail, record: Path, tmp_path: Path) -> None:
    append(record / LOG, lines(word(1)))
    append(tmp_path / "records" / "2" / "trial_0" / LOG, lines(word(1)))
    (tmp_path / SUMMARY_FILE).write_text("{}")
    tail.to_the_end()
    for name in ("1", "2/trial_0"):
        assert tail.sent.control(name) == ["call_started", "call_ended"]
    assert [sentence.endswith("`score` refuses the record.") for sentence in tail.said] == [True, True]


def test_a_call_without_an_event_is_named_and_sends_nothing(tail: Tail, record: Path) -> None:
    append(record / LOG, b"")
    (record / RESULT_FILE).write_text("{}")
    tail.look(4)
    assert tail.sent.events == []
    assert ["the call has no event" in sentence for sentence in tail.said] == [True]


def test_an_entry_that_is_not_there_any_more_stays_in_the_call_and_is_named(tail: Tail, record: Path) -> None:
    append(record / LOG, lines(word(0)))
    for number, value in enumerate(("hi", "bye")):
        write_audit(record, value)
        os.utime(record / AUDIT_FILE, ns=(number, number))
        tail.look()
    assert [event["value"] for event in tail.sent.values("1", "audit") if "value" in event] == ["hi", "bye"]
    assert ["1 entries that were sent are not there any more" in sentence for sentence in tail.said] == [True]


def test_the_start_of_a_call_is_told_again_when_an_earlier_event_comes(tail: Tail, record: Path) -> None:
    append(record / LOG, lines(word(5)))
    tail.look()
    write_end(record)
    tail.look(4)
    starts = [event["timestamp"] for event in tail.sent.values("1", "audit") if event.get("type") == "call_started"]
    assert starts == [MS + 5, MS]


def test_little_is_said_of_one_call(tail: Tail, record: Path) -> None:
    append(record / LOG, b"{\n" * 9)
    tail.look()
    assert ["this is no event" in sentence for sentence in tail.said] == [True] * 3 + [False]


def test_a_log_that_was_begun_is_not_exchanged_for_one_with_the_other_name(tail: Tail, record: Path) -> None:
    append(record / LOG, lines(word(1)))
    tail.look()
    append(record / "framework_logs.jsonl", lines(word(7)))
    append(record / LOG, lines(word(2)))
    tail.restart()
    tail.look(2)
    assert tail.sent.values("1", "pipecat") == [word(1), word(2)]


@pytest.mark.parametrize(("run_name", "call"), [(None, "2/trial_0"), ("monday", "2/trial_0-monday")])
def test_the_goals_of_a_trial_are_those_of_its_record_and_a_run_can_have_a_name(
    tmp_path: Path, run_name: str | None, call: str
) -> None:
    tail = Tail(tmp_path, CallFacts(agent="desk", goals="set-{id}", run_name=run_name))
    (tmp_path / "config.json").write_text(json.dumps({"language": "fr-CA"}))
    append(tmp_path / "records" / "2" / "trial_0" / LOG, lines(word(1)))
    tail.look()
    tail.restart()
    tail.look()
    assert {name for name, _ in tail.sent.events} == {call}
    started = tail.sent.values(call, "audit")[0]
    assert (started["goals"], started["agent"], started["pipeline_type"]) == ("set-2", "desk", "cascade")
    assert started["language"] == "fr-CA"


def test_a_position_is_for_one_process_and_one_place(tmp_path: Path) -> None:
    file, other = PositionFile(tmp_path / "p"), PositionFile(tmp_path / "p")
    with file.locked(), pytest.raises(PositionError, match="another `callgauge tail`"), other.locked():
        pass
    with other.locked():
        pass
    file.write(file.read("broker", "a."))
    with pytest.raises(PositionError, match="--position FILE"):
        file.read("broker", "b.")
    (tmp_path / "p").write_text("{")
    with pytest.raises(PositionError, match="Delete the file"):
        file.read("broker", "a.")
    with pytest.raises(PositionError, match="--position FILE"):
        PositionFile(tmp_path / "gone" / "p")._take()


def test_a_run_that_was_renamed_is_told_as_that(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    file = PositionFile(run / "p")
    with file.locked():
        run.rename(tmp_path / "elsewhere")
        with pytest.raises(PositionError, match="moved or renamed"):
            file.write(file.read("b", ""))
