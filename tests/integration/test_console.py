"""The console on a real broker: a call is seen as its rows come, whatever lies before them, and a
console ends and begins anew.
"""

import asyncio
import json
import re
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx2 as httpx
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from msgspec import structs

from consumers.console.site import MAX_PAGES
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.kafka.connection import murmur2_place
from consumers.runtime.process import wall_clock_ms
from schemas.closed_sets import InputSource
from schemas.rows import CallRow, GoalsRow, Labels, Row, TurnRow, WordsRow, decode, encode, kind_of
from schemas.topics import SCORES_TOPIC, TOPIC_BY_SOURCE, WORDS_TOPIC
from streamer.offline.contexts import context_of
from streamer.recordings.reader import read_recordings
from streamer.sources.replay import PlayedCall
from streamer.sources.simulator.profile import HEALTHY, always
from streamer.sources.simulator.traffic import event_lines, simulate_call
from tests.integration.conftest import PARTITIONS
from tests.integration.metrics_page import answer_of, total
from tests.integration.processes import Process, ran_here, started, wait_for
from tests.integration.score_log import records_on
from tests.support.calls.console_calls import call_row
from tests.support.calls.long_calls import long_call
from tests.support.calls.report_calls import recorded, wire_line
from tests.support.held_loop import times_slower
from tests.support.monitoring import about_to_fire
from tests.support.patience import patient

pytestmark = [pytest.mark.kafka]

CALL = "the-call"
SECONDS = 60
OPENS_SECONDS = 0.5
"""Of a processor, for the page of a call of half an hour."""
LONG_TURNS = 450
API = "api/v1"
FILLERS = 20_000
_ADDRESS = re.compile(r"console_listens.*?address=(\S+)")


# The console as a process of its own.


@contextmanager
def console(
    folder: Path, environment: dict[str, str], port: int = 0, **settings: str
) -> Iterator[tuple[Process, str]]:
    """A console, and its address."""
    more = {f"CALLGAUGE_CONSOLE__{name.upper()}": value for name, value in settings.items()}
    log = folder / f"console-{uuid.uuid4().hex[:6]}.log"
    with started(
        log, "run", "--roles", "console", **environment, CALLGAUGE_CONSOLE__PORT=str(port), **more
    ) as process:
        found = wait_for(
            lambda: f"the console in:\n{process.text}", lambda: _ADDRESS.search(process.text), 30
        )
        address = f"{found[1].rstrip('/')}/"
        readiness = process.metrics().replace("/metrics", "/readyz")
        wait_for("rows that are read", lambda: answer_of(readiness).status_code == 200, 30)
        yield process, address


def asked(address: str, path: str) -> Any:
    return httpx.get(f"{address}{path}", timeout=patient(20)).raise_for_status().json()


class Follower:
    """A reader of a stream, as a program is: piece by piece, over a socket."""

    def __init__(
        self, address: str, path: str, last_id: str = "", *, bytes_of_buffer: int | None = None
    ) -> None:
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
        """Waits for the last row of a call."""
        while not re.search(
            f'"row":"call","conversation_id":"{conversation_id}".*"state":"closed"', self.text
        ):
            self.more()

    @property
    def places(self) -> list[tuple[str, ...]]:
        """What tells each row that came from all others: of what it is, the call, the turn, the
        revision.
        """
        return re.findall(
            r'"row":"(\w+)","conversation_id":"([^"]+)",(?:"turn":(-?\d+),)?"revision":(\d+)',
            self.text,
        )

    @property
    def last_id(self) -> str:
        """The id of the last event that came whole."""
        return str(re.findall(r"id: (\S+)\ndata: .*?\n\n", self.text, re.DOTALL)[-1])


def replayed(
    folder: Path, environment: dict[str, str], name: str, *, turns: int, speed: str
) -> AbstractContextManager[Process]:
    file = folder / f"{name}.jsonl"
    file.write_text(wire_line(recorded(conversation_id=name, turns=turns)))
    return started(
        folder / f"{name}.log", "replay", str(file), "--keep-ids", "--speed", speed, **environment
    )


@pytest.mark.service(limits__closing_grace_ms="1000")
async def test_a_call_is_seen_at_once_and_a_killed_console_loses_and_doubles_nothing(
    environment: dict[str, str], tmp_path: Path, producer: AIOKafkaProducer
) -> None:
    """The stream of another console ends with `gap`, after which the calls are read; from then on
    it has every row once.
    """
    with started(
        tmp_path / "run.log", "run", "--roles", "sequencer,evaluator", **environment
    ) as evaluator:
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
            wait_for(
                "its page",
                lambda: asked(address, f"{API}/calls/one")["call"].get("state") == "closed",
                SECONDS,
            )
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
            seen = records.places + resumed.places
            assert len(seen) == len(set(seen))
            written = await rows_on(environment)
            for name, reader in (("one", records), ("three", resumed)):
                places = {
                    place
                    for _, row in written
                    if row.conversation_id == name
                    for place in [place_of(row)]
                }
                assert places <= set(reader.places)
            for name in ("one", "two", "three"):
                shown = asked(again, f"{API}/calls/{name}")
                turns = {
                    row.turn: row.revision
                    for _, row in written
                    if isinstance(row, TurnRow) and row.conversation_id == name
                }
                assert {each["turn"]: each["revision"] for each in shown["turns"]} == turns
                assert shown["call"]["state"] == "closed"


async def rows_on(environment: dict[str, str]) -> list[tuple[int, Row]]:
    """The rows of `scores` with their offsets, partition by partition."""
    records = await records_on(environment, SCORES_TOPIC)
    return [(record.offset, decode(record.value)) for record in records if record.value]


def place_of(row: Row) -> tuple[str, ...]:
    turn = str(row.turn) if isinstance(row, TurnRow) else ""
    return kind_of(row), row.conversation_id, turn, str(row.revision)


async def test_the_page_of_a_call_of_half_an_hour_opens_at_once(
    environment: dict[str, str], tmp_path: Path, producer: AIOKafkaProducer
) -> None:
    """Other calls have 20,000 rows behind it."""
    rows = long_call(LONG_TURNS)
    # the last one has words
    late_ms = wall_clock_ms() - rows[-1].known_ms  # type: ignore[union-attr]
    place, prefix = murmur2_place(b"long", PARTITIONS), environment["CALLGAUGE_TOPIC_PREFIX"]

    async def put(row: Row | WordsRow, at_ms: int, name: str = "long") -> None:
        topic = prefix + (WORDS_TOPIC if isinstance(row, WordsRow) else SCORES_TOPIC)
        moved = structs.replace(row, conversation_id=name)
        await producer.send(
            topic, encode(moved), name.encode(), partition=place, timestamp_ms=at_ms
        )

    for row in rows:
        assert not isinstance(row, GoalsRow)
        moved = structs.replace(row, known_ms=row.known_ms + late_ms)
        if isinstance(moved, CallRow):
            moved.first_known_ms += late_ms
        await put(moved, moved.known_ms)
    filler = call_row(known_ms=wall_clock_ms())
    for number in range(FILLERS):
        await put(filler, filler.known_ms, f"other-{number % 500}")
    await producer.flush()
    with console(tmp_path, environment) as (process, address):
        before = process.processor_seconds
        page = httpx.get(f"{address}calls/long", timeout=patient(20))
        spent = process.processor_seconds - before
        assert page.status_code == 200
        print(f"opened with {spent:.2f} s of a processor")
        assert spent < OPENS_SECONDS * times_slower()
        assert len(re.findall(r'class="turn[ "]', page.text)) == LONG_TURNS


@pytest.mark.service(limits__max_event_time_skew_ms="0")  # the call is an old one
async def test_the_context_of_a_running_call_is_that_of_its_events_so_far(
    service: tuple[Process, str], environment: dict[str, str], tmp_path: Path
) -> None:
    """After each of its turns: by the command with its id, and by the command with a file of these
    events.
    """
    simulated = simulate_call(
        7, start_ms=wall_clock_ms() - 60_000, kind="phone", profile_of=always(HEALTHY)
    )
    events = sorted(simulated.wire_events(), key=lambda event: event.arrival_ms)
    lines = list(event_lines([PlayedCall(CALL, tuple(events))]))
    producer = Producer({"bootstrap.servers": environment["CALLGAUGE_BOOTSTRAP"], "log_level": 0})
    file, turns = tmp_path / "so-far.jsonl", 0
    for number, event in enumerate(events, 1):
        topic = environment["CALLGAUGE_TOPIC_PREFIX"] + TOPIC_BY_SOURCE[InputSource(event.source)]
        producer.produce(topic, event.value, CALL.encode())
        assert producer.flush(patient(30)) == 0
        if event.event_name != "turn_ended" and number < len(events):
            continue
        file.write_text("\n".join(lines[:number]))
        (recorded_so_far,) = read_recordings(file)
        expected = Redactor().redact_value(context_of(recorded_so_far).values)
        turns = expected["num_turns"]
        whole = {"id": CALL, "turns_by": "bot", "context": expected}
        deadline = time.monotonic() + patient(30)
        while (
            said := await asyncio.to_thread(
                ran_here, "context", "--from-topics", CALL, **environment
            )
        ) is not None:
            if said.out and json.loads(said.out) == whole:
                break
            assert time.monotonic() < deadline, (said.out[-500:], whole)
    assert turns >= 3


async def test_rules_of_prometheus_that_are_about_to_fire_are_on_the_page(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with (
        about_to_fire(tmp_path) as server,
        console(tmp_path, environment, prometheus=f"{server}/") as (_, address),
    ):
        page = wait_for(
            "the rule",
            lambda: next(
                (text for text in [httpx.get(address).text] if "AnswersSlow" in text), None
            ),
            60,
        )
        assert "Alerts that are about to fire" in page
        fires = r", fires at <time data-at=\"\d+\">\d\d:\d\d:\d\d UTC</time>"
        assert re.search(rf"desk: <span>Callers wait\.</span>\s*<small>since .*{fires}", page)


async def test_pages_are_bounded_and_all_end_at_once(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """All are of one host: the 65th is served as the first one, and the one beyond the bound is
    asked to wait.
    """
    with (
        console(tmp_path, environment) as (process, address),
        ExitStack() as open_pages,
    ):
        paths = ("live/now", "live/now?text=a", f"{API}/stream")
        pages = [
            open_pages.enter_context(Follower(address, paths[number % 3]))
            for number in range(MAX_PAGES)
        ]
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
    """Others get every row, and memory grows by no more than the rows that are kept, and those that
    wait for readers who come again.
    """
    row = call_row(labels=Labels(agent="desk" * 20))
    count, size = 20_000, len(encode(row))
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
            moved = structs.replace(
                row,
                conversation_id=f"c{number % 50}",
                revision=2 * number + 2,
                known_ms=wall_clock_ms(),
            )
            topic = f"{environment['CALLGAUGE_TOPIC_PREFIX']}{SCORES_TOPIC}"
            await producer.send(topic, encode(moved), moved.conversation_id.encode())
        await producer.flush()
        await asyncio.to_thread(
            wait_for, "every row", lambda: len(reader.more().places) >= count, SECONDS
        )
        assert len(set(reader.places)) == count
        assert process.resident_bytes - before < 6 * count * size + 20_000_000
