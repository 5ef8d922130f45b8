"""The console on a real broker: a call is read whole whatever lies before it, faults cost little, and a console ends and begins anew."""

import asyncio
import json
import re
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import httpx2 as httpx
import pytest
import yaml
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from prometheus_client import CollectorRegistry

from consumers.console import reading
from consumers.console import watched as watched_module
from consumers.console.fleet import Place
from consumers.console.reading import ConsoleEndsError, TooManyWatchedError, UnknownCallError, WatchedCalls
from consumers.console.watched import WatchedCall
from consumers.engine.admission import Arrival
from consumers.engine.evaluator import folded
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.log import stretches
from consumers.log.stretches import KeyRecords
from consumers.runtime.kafka.connection import KafkaSettings, murmur2_place
from consumers.runtime.process import wall_clock_ms
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource, PipelineType
from schemas.scores.records import AnyScoreRecord
from schemas.topics import EVENTS_TOPIC, SCORES_TOPIC, TOPIC_BY_SOURCE
from streamer.offline.contexts import context_of
from streamer.recordings.reader import read_recordings
from streamer.sources.replay import PlayedCall
from streamer.sources.simulator.profile import HEALTHY, always
from streamer.sources.simulator.traffic import event_lines, simulate_call
from tests.integration.conftest import PARTITIONS
from tests.integration.metrics_page import answer_of, total
from tests.integration.processes import Process, ran_here, started, wait_for
from tests.integration.score_log import newest_of, written_scores
from tests.support.brokers.topic_changes import create_topics
from tests.support.calls.report_calls import recorded, wire_line
from tests.support.calls.watched_calls import scores_of
from tests.support.calls.wire_calls import arrivals_of, in_time_order, wire_calls
from tests.support.conformance_data import conformance, needs_conformance
from tests.support.fakes.log_writer import LogRecord, LogWriter
from tests.support.monitoring import prometheus
from tests.support.patience import patient

pytestmark = [pytest.mark.kafka, needs_conformance("calls.jsonl.gz")]

CALL = "the-call"
SECONDS = 60
OPENS_SECONDS = 1.5
"""Of a processor, for a call that began long ago."""
API = "api/v1"
STREAMS = 300
FILLERS = 300_000
_ADDRESS = re.compile(r"console_listens.*?address=(\S+)")


# What reading costs and finds, with topics whose records have the times that a test gives them.


class Topics:
    """The topics of one test, each with one partition, and their producer."""

    def __init__(self, kafka: KafkaSettings, producer: AIOKafkaProducer) -> None:
        self.kafka = kafka
        self._producer = producer
        self._sequencer = LogWriter()

    async def put(self, value: bytes, at_ms: int, key: str = CALL) -> int:
        """Writes a score; returns its offset."""
        sent = await self._producer.send_and_wait(
            self.kafka.topic(SCORES_TOPIC), value, key.encode(), timestamp_ms=at_ms
        )
        return int(sent.offset)

    async def append(self, source: InputSource, value: bytes, at_ms: int, key: str = CALL) -> None:
        """Appends an event to the log."""
        record = self._sequencer.event(source, key, value, at_ms)
        await self._producer.send_and_wait(
            self.kafka.topic(EVENTS_TOPIC), value, record.key, timestamp_ms=at_ms, headers=list(record.headers)
        )

    @asynccontextmanager
    async def calls(self, most: int = 10) -> AsyncIterator[WatchedCalls]:
        made = WatchedCalls(self.kafka, Limits(), Redactor(), most, Instruments(CollectorRegistry(), ["console"]))
        try:
            yield made
        finally:
            await made.close()


@pytest.fixture
async def topics(kafka: KafkaSettings) -> AsyncIterator[Topics]:
    await create_topics(kafka.bootstrap_servers, {kafka.topic(name): 1 for name in (SCORES_TOPIC, EVENTS_TOPIC)})
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        yield Topics(kafka, producer)


def a_call() -> tuple[list[Arrival], list[AnyScoreRecord]]:
    """A call as the first of the conformance data, under another name."""
    call = next(wire_calls(conformance("calls.jsonl.gz"))) | {"id": CALL}
    arrivals = arrivals_of(call, in_time_order(call))
    return arrivals, scores_of(arrivals)


def heard(at_ms: int) -> bytes:
    return json.dumps({"timestamp": at_ms, "type": "user_speech", "data": {"text": "hello"}}).encode()


def times_of(call: WatchedCall) -> list[int]:
    with call._looked():
        return [each.broker_time_ms for each in call._arrivals]


async def test_a_call_is_read_from_its_first_event_on(topics: Topics) -> None:
    """Its first score comes late, and before its first event lies an earlier one of the same key: there it was silent for too long."""
    score = a_call()[1][0]
    now_ms, idle_ms = wall_clock_ms(), Limits().idle_ms
    quiet = [now_ms - 20_000 - 250_000 * step for step in range(6)]
    for at_ms in [quiet[-1] - idle_ms - 2_000, *reversed(quiet)]:
        await topics.append(InputSource.ELEVENLABS, heard(at_ms), at_ms)
        await topics.append(InputSource.AUDIT, b"{}", at_ms, "another")
    changed = {"caused_at_ms": now_ms, "offsets": {"events": 11}}
    value = score.model_copy(update=changed).model_dump_json().encode()
    place = Place(0, await topics.put(value, now_ms))
    for known, began_ms in ((place, None), (None, now_ms), (None, None)):
        async with topics.calls() as calls, calls.watch(CALL, known, began_ms) as call:
            assert times_of(call) == sorted(quiet)
            assert (len(call.scores), call.left_out) == (1, 0)


async def test_scores_before_the_first_one_that_was_read_are_read_too(topics: Topics) -> None:
    """The console began to read in the middle of the call."""
    scores = a_call()[1]
    now_ms = wall_clock_ms()
    for number, score in enumerate(scores):
        await topics.put(score.model_dump_json().encode(), now_ms - 10_000 + number)
    async with topics.calls() as calls, calls.watch(CALL, Place(0, len(scores) // 2)) as call:
        assert call.scores == scores


async def test_no_more_is_held_of_a_call_than_the_bounds_allow(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (reading, watched_module):
        monkeypatch.setattr(module, "MAX_EVENTS", 30)
    monkeypatch.setattr(stretches, "MAX_KEPT", 30)
    now_ms = wall_clock_ms()
    for number in range(200):
        await topics.append(InputSource.ELEVENLABS, heard(now_ms - 20_000 + number), now_ms - 20_000 + number)
    score = a_call()[1][0].model_copy(update={"caused_at_ms": now_ms}).model_dump_json().encode()
    await topics.put(score, now_ms)
    held = 0

    class Counted(stretches.CallEvents):
        def _cut(self) -> None:
            nonlocal held
            held = max(held, len(self._kept))
            super()._cut()

    monkeypatch.setattr(stretches, "CallEvents", Counted)
    async with topics.calls() as calls, calls.watch(CALL, None) as call:
        assert times_of(call) == [now_ms - 20_000 + number for number in range(30)]
        assert call.left_out == 170
    assert held <= 61
    monkeypatch.setattr(stretches, "MAX_KEPT_BYTES", 10 * len(heard(now_ms)))
    async with topics.calls() as calls, calls.watch(CALL, None) as call:
        assert (len(times_of(call)), call.left_out) == (10, 190)


async def test_a_call_that_nobody_knows_is_looked_for_seldom(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms, score = wall_clock_ms(), a_call()[1][0].model_dump_json().encode()
    await topics.put(score, now_ms)
    for number in range(10):
        await topics.put(score, now_ms, f"another {number}")
    read: list[Any] = []

    class Counted(KeyRecords):
        async def read(self, ranges: Any) -> None:
            read.append(ranges)
            await super().read(ranges)

    monkeypatch.setattr(reading, "KeyRecords", Counted)
    monkeypatch.setattr(reading, "MAX_SEARCHED", 10)
    async with topics.calls(most=100) as calls:

        async def opened(name: str) -> type[BaseException] | None:
            try:
                async with calls.watch(name, None):
                    return None
            except (UnknownCallError, TooManyWatchedError) as error:
                return type(error)

        assert await opened(CALL) is UnknownCallError, "it is not among the newest"
        assert [tuple(each.values()) for each in read] == [((1, 11),)]
        assert await opened(CALL) is UnknownCallError
        assert len(read) == 1, "it is not looked for twice"
        several = await asyncio.gather(*(opened(f"none {number}") for number in range(20)))
        assert several.count(UnknownCallError) == reading.MAX_SEARCHES
        assert several.count(TooManyWatchedError) == 20 - reading.MAX_SEARCHES
        async with calls.watch(CALL, Place(0, 0)) as call:
            assert len(call.scores) == 1, "where it is known, it is read"


async def test_a_fault_with_one_record_ends_no_page(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "RETRY_SECONDS", 0.05)
    now_ms, scores = wall_clock_ms(), a_call()[1]
    values = [score.model_dump_json().encode() for score in scores[:3]]
    place = Place(0, await topics.put(values[0], now_ms))
    async with topics.calls() as calls, calls.watch(CALL, place) as call:
        take = call.take_score

        def faulty(value: bytes) -> None:
            if value == values[1]:
                raise ZeroDivisionError
            take(value)

        monkeypatch.setattr(call, "take_score", faulty)
        for value in values[1:]:
            await topics.put(value, now_ms)
        await asyncio.to_thread(wait_for, "the record behind it", lambda: len(call.scores) == 2, SECONDS)
        assert call.scores == [scores[0], scores[2]]


async def test_a_page_that_is_still_being_read_ends_with_the_console(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(WatchedCalls, "_open", never)
    async with topics.calls() as calls:

        async def opened() -> None:
            async with calls.watch(CALL, Place(0, 0)):
                raise AssertionError("it was read")

        page = asyncio.create_task(opened())
        await asyncio.sleep(0)
        await calls.close()
        with pytest.raises(ConsoleEndsError):
            await page


# The console as a process of its own.


@contextmanager
def console(folder: Path, environment: dict[str, str], port: int = 0, **settings: str) -> Iterator[tuple[Process, str]]:
    """A console, and its address."""
    more = {f"CALLGAUGE_CONSOLE__{name.upper()}": value for name, value in settings.items()}
    log = folder / f"console-{uuid.uuid4().hex[:6]}.log"
    with started(log, "run", "--roles", "console", **environment, CALLGAUGE_CONSOLE__PORT=str(port), **more) as process:
        found = wait_for(lambda: f"the console in:\n{process.text}", lambda: _ADDRESS.search(process.text), 30)
        address = f"{found[1].rstrip('/')}/"
        readiness = process.metrics().replace("/metrics", "/readyz")
        wait_for("scores that are read", lambda: answer_of(readiness).status_code == 200, 30)
        yield process, address


def asked(address: str, path: str) -> Any:
    return httpx.get(f"{address}{path}", timeout=patient(20)).raise_for_status().json()


class Follower:
    """A reader of a stream, as a program is: piece by piece, over a socket."""

    def __init__(self, address: str, path: str, last_id: str = "", *, bytes_of_buffer: int | None = None) -> None:
        host, _, port = address.removeprefix("http://").rstrip("/").partition(":")
        self._socket = socket.socket()
        if bytes_of_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, bytes_of_buffer)
        self._socket.settimeout(patient(SECONDS))
        self._socket.connect((host, int(port)))
        head = f"GET /{path} HTTP/1.1\r\nhost: {host}:{port}\r\nlast-event-id: {last_id}\r\n\r\n"
        self._socket.sendall(head.encode())
        self.text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def more(self) -> Self:
        """Waits for more."""
        piece = self._socket.recv(2**20)
        assert piece, f"the stream ended: {self.text[-500:]}"
        self.text += piece.decode("utf-8", "replace")
        return self

    def until(self, *texts: str) -> str:
        """All that came so far, once it has these."""
        while not all(text in self.text for text in texts):
            self.more()
        return self.text

    def to_the_end(self) -> str:
        """All that came, once the server has ended it."""
        while piece := self._socket.recv(65_536):
            self.text += piece.decode("utf-8", "replace")
        return self.text

    def until_closed(self, conversation_id: str) -> None:
        """Waits for the last record of a call."""
        while not re.search(f'"conversation_id":"{conversation_id}".*"name":"closed"', self.text):
            self.more()

    @property
    def record_ids(self) -> list[str]:
        """The ids of the score records that came."""
        return re.findall(r'"record_id":"([^"]+)"', self.text)

    @property
    def last_id(self) -> str:
        """The id of the last event that came whole."""
        return str(re.findall(r"id: (\S+)\ndata: .*?\n\n", self.text, re.DOTALL)[-1])


def replayed(
    folder: Path, environment: dict[str, str], name: str, *, turns: int, speed: str
) -> AbstractContextManager[Process]:
    file = folder / f"{name}.jsonl"
    file.write_text(wire_line(recorded(conversation_id=name, turns=turns)))
    return started(folder / f"{name}.log", "replay", str(file), "--keep-ids", "--speed", speed, **environment)


@pytest.mark.service(limits__closing_grace_ms="1000")
async def test_a_call_is_seen_at_once_and_a_killed_console_loses_and_doubles_nothing(
    environment: dict[str, str], tmp_path: Path, producer: AIOKafkaProducer
) -> None:
    """The stream of another console ends with `gap`, after which the calls are read; from then on it has every record once."""
    with started(tmp_path / "run.log", "run", "--roles", "sequencer,evaluator", **environment) as evaluator:
        evaluator.metrics()
        with (
            console(tmp_path, environment) as (process, address),
            Follower(address, "live/now") as pages,
            Follower(address, f"{API}/stream") as records,
        ):
            pages.until("clock")
            began = {"type": "call_started", "timestamp": wall_clock_ms(), "agent": "desk"}
            topic = f"{environment['CALLGAUGE_TOPIC_PREFIX']}audit.events"
            await producer.send_and_wait(topic, json.dumps(began).encode(), b"seen-at-once")
            await asyncio.to_thread(pages.until, "seen-at-once")
            with replayed(tmp_path, environment, "one", turns=3, speed="max") as played:
                await asyncio.to_thread(records.until_closed, "one")
                wait_for("the replay", lambda: not played.is_running, SECONDS)
            wait_for("its page", lambda: asked(address, f"{API}/calls/one")["is_closed"], SECONDS)
            port = int(address.rstrip("/").rpartition(":")[2])
            process.signalled(signal.SIGKILL)
            records.to_the_end()
        with replayed(tmp_path, environment, "two", turns=3, speed="max") as played:
            wait_for("the replay", lambda: not played.is_running, SECONDS)
        with (
            console(tmp_path, environment, port) as (_, again),
            Follower(again, f"{API}/stream", records.last_id) as resumed,
        ):
            resumed.until("event: gap")
            with replayed(tmp_path, environment, "three", turns=3, speed="max"):
                await asyncio.to_thread(resumed.until_closed, "three")
            seen = records.record_ids + resumed.record_ids
            assert len(seen) == len(set(seen))
            written = await written_scores(environment)
            assert {each.record_id for each in written if each.conversation_id == "one"} <= set(records.record_ids)
            assert {each.record_id for each in written if each.conversation_id == "three"} <= set(resumed.record_ids)
            for name in ("one", "two", "three"):
                kept = asked(again, f"{API}/calls/{name}/scores")["records"]
                newest = newest_of(each for each in written if each.conversation_id == name)
                assert {each["record_id"] for each in kept} == {each.record_id for each in newest}


@pytest.mark.service(limits__max_event_time_skew_ms="0")  # the call is an old one
async def test_a_call_opens_without_reading_all_and_is_at_each_moment_what_was_known_then(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """It began 300,000 records ago on its partition of the log."""
    prefix = environment["CALLGAUGE_TOPIC_PREFIX"]
    producer = Producer({"bootstrap.servers": environment["CALLGAUGE_BOOTSTRAP"], "linger.ms": 20, "log_level": 0})
    arrivals, scores = a_call()
    half = len(arrivals) // 2
    place = murmur2_place(CALL.encode(), PARTITIONS)
    sequencer, times_ms = LogWriter(place), list[int]()

    def append(record: LogRecord) -> None:
        producer.produce(prefix + EVENTS_TOPIC, record.value, record.key, partition=place, headers=[*record.headers])

    def put(event: Arrival) -> None:
        times_ms.append(wall_clock_ms())
        append(sequencer.event(event.source, CALL, event.value, times_ms[-1]))
        assert producer.flush(patient(30)) == 0

    for score in scores[:3]:
        moved = score.model_copy(update={"caused_at_ms": wall_clock_ms(), "offsets": {}})
        producer.produce(f"{prefix}scores", moved.model_dump_json().encode(), CALL.encode(), partition=place)
    for event in arrivals[:half]:
        put(event)
    sources = [InputSource.AUDIT, InputSource.PIPECAT, InputSource.ELEVENLABS]
    for number in range(FILLERS):
        filler = b'{"filler":"%d"}' % number
        append(sequencer.event(sources[number % 3], b"other-%d" % (number % 500), filler, times_ms[-1]))
        if number % 10_000 == 0:
            producer.poll(0)
            producer.flush(patient(60))
    assert producer.flush(patient(60)) == 0
    for event in arrivals[half:]:
        put(event)
    with console(tmp_path, environment) as (process, address):
        before = process.processor_seconds
        page = httpx.get(f"{address}calls/{CALL}", timeout=patient(20))
        spent = process.processor_seconds - before
        assert page.status_code == 200
        print(f"opened with {spent:.2f} s of a processor")
        assert spent < OPENS_SECONDS
        for at_ms in times_ms[:: max(1, len(times_ms) // 10)]:
            shown = asked(address, f"{API}/calls/{CALL}?at_ms={at_ms}")["context"]
            known = [each for each, moment_ms in zip(arrivals, times_ms, strict=True) if moment_ms <= at_ms]
            expected = folded(known, PipelineType.CASCADE, None, Limits()).context().to_dict()
            assert shown == json.loads(json.dumps(Redactor().redact_value(expected)))


def has_context(page: str, expected: dict[str, Any]) -> bool:
    shown = answer_of(page).json()
    return (shown["turns_by"], shown["context"]) == ("bot", expected)


async def test_the_context_of_a_running_call_is_that_of_its_events_so_far(
    service: tuple[Process, str], environment: dict[str, str], tmp_path: Path
) -> None:
    """After each of its turns: by the API, by the command with its id, and by the command with a file of these events."""
    process, _ = service
    found = wait_for(lambda: f"the console in:\n{process.text}", lambda: _ADDRESS.search(process.text), 30)
    address = f"{found[1].rstrip('/')}/"
    simulated = simulate_call(7, start_ms=wall_clock_ms() - 60_000, kind="phone", profile_of=always(HEALTHY))
    events = sorted(simulated.wire_events(), key=lambda event: event.arrival_ms)
    lines = list(event_lines([PlayedCall(CALL, tuple(events))]))
    producer = Producer({"bootstrap.servers": environment["CALLGAUGE_BOOTSTRAP"], "log_level": 0})
    file = tmp_path / "so-far.jsonl"
    page, turns = f"{address}{API}/calls/{CALL}", 0
    for number, event in enumerate(events, 1):
        topic = environment["CALLGAUGE_TOPIC_PREFIX"] + TOPIC_BY_SOURCE[InputSource(event.source)]
        producer.produce(topic, event.value, CALL.encode())
        assert producer.flush(patient(30)) == 0
        if event.event_name != "turn_ended" and number < len(events):
            continue
        file.write_text("\n".join(lines[:number]))
        (recorded_so_far,) = read_recordings(file)
        of_file = context_of(recorded_so_far)
        expected = Redactor().redact_value(of_file.values)
        turns = expected["num_turns"]
        wait_for("a score of it", lambda: answer_of(page).status_code == 200, 30)
        by_id = await asyncio.to_thread(ran_here, "context", "--from-topics", CALL, **environment)
        assert json.loads(by_id.out) == {"id": CALL, "turns_by": "bot", "context": expected}
        wait_for("its newest event", partial(has_context, page, expected), 30)
    assert turns >= 3


async def test_rules_of_prometheus_that_are_about_to_fire_are_on_the_page(
    environment: dict[str, str], tmp_path: Path
) -> None:
    rule = {"alert": "AnswersSlow", "expr": "vector(1) > 0.5", "for": "1h", "annotations": {"summary": "Callers wait."}}
    rule["labels"] = {"severity": "critical", "agent": "desk"}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "g", "interval": "1s", "rules": [rule]}]}))
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump({"rule_files": [str(tmp_path / "rules.yml")]}))
    with (
        prometheus(tmp_path / "prometheus.yml", tmp_path) as server,
        console(tmp_path, environment, prometheus=f"{server}/") as (_, address),
    ):
        page = wait_for(
            "the rule", lambda: next((text for text in [httpx.get(address).text] if "AnswersSlow" in text), None), 60
        )
        assert "Alerts that are about to fire" in page
        assert re.search(r"desk: <span>Callers wait\.</span>.*fires at \d\d:\d\d:\d\d UTC", page)
        assert "console.alertmanager" in page


async def test_pages_are_bounded_and_all_end_at_once(environment: dict[str, str], tmp_path: Path) -> None:
    """All are of one host: the 65th is served as the first one, and the one beyond the bound is asked to wait."""
    with console(tmp_path, environment, max_pages=str(STREAMS)) as (process, address), ExitStack() as open_pages:
        paths = ("live/now", "live/now?text=a", f"{API}/stream")
        pages = [open_pages.enter_context(Follower(address, paths[number % 3])) for number in range(STREAMS)]
        for page in pages:
            page.until("retry: ")
        with Follower(address, "live/now") as beyond:
            refused = beyond.until("\r\n\r\n").lower()
            assert " 503 " in refused.split("\r\n")[0]
            assert "retry-after: 5" in refused
        assert httpx.get(address, timeout=patient(10)).status_code == 200, (
            "a page that is no stream is served all the same"
        )
        assert total(process.metrics(), "callgauge_console_refused_total", reason="pages") == 1
        assert process.signalled(signal.SIGTERM)[0] == 0, process.text[-2_000:]
        for page in pages:
            page.to_the_end()


async def test_a_reader_who_stops_reading_costs_nothing(
    environment: dict[str, str], tmp_path: Path, producer: AIOKafkaProducer
) -> None:
    """Others get every record, and memory grows by no more than the records that wait for readers who come again."""
    score = a_call()[1][0]
    count, size = 20_000, len(score.model_dump_json())
    with (
        console(tmp_path, environment) as (process, address),
        Follower(address, f"{API}/stream", bytes_of_buffer=4_096) as idle,
        Follower(address, "live/now", bytes_of_buffer=4_096) as idle_page,
        Follower(address, f"{API}/stream") as reader,
    ):
        for each in (idle, idle_page, reader):
            each.until("retry: ")
        before = process.resident_bytes
        for number in range(count):
            moved = score.model_copy(
                update={"conversation_id": f"c{number % 50}", "revision": number, "caused_at_ms": wall_clock_ms()}
            )
            await producer.send(
                f"{environment['CALLGAUGE_TOPIC_PREFIX']}scores",
                moved.model_dump_json().encode(),
                f"c{number % 50}".encode(),
            )
        await producer.flush()
        await asyncio.to_thread(wait_for, "every record", lambda: len(reader.more().record_ids) >= count, SECONDS)
        assert len(set(re.findall(r'"revision":(\d+),', reader.text))) == count
        assert process.resident_bytes - before < 3 * count * size + 20_000_000
