"""What the log promises, in a file and on Kafka: the same tests, with the processes that a user
starts, `serve` and `run`.

A home takes events and acknowledges them, and tells what stands in its log and what was decided.
All else is the promise.
"""

import asyncio
import contextlib
import json
import re
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Protocol

import httpx
import msgspec
import pytest
from aiokafka import AIOKafkaProducer

from consumers.engine.limits import Limits
from consumers.log.file import FILE_NAME, FileLog, reading
from consumers.runtime.process import wall_clock_ms
from schemas.closed_sets import InputSource
from schemas.events.envelope import envelope_headers
from schemas.log import REPLAY_OF_HEADER, Event, LogReader, OutgoingRecord, Tick
from schemas.rows import CallRow, GoalsRow, Row, decode
from schemas.topics import EVENTS_TOPIC, SCORES_TOPIC, TOPIC_BY_SOURCE
from streamer.facts import TOKEN_FILE
from tests.chaos.verdict.undisturbed import undisturbed
from tests.integration.processes import Process, ended, ran, started, wait_for
from tests.integration.score_log import records_on
from tests.properties.evaluation import subject_of
from tests.support.patience import patient

GRACE_MS: Final = 400
LIMITS: Final = Limits(closing_grace_ms=GRACE_MS)
SETTINGS: Final = {
    "CALLGAUGE_JUDGE__ENABLED": "false",
    "CALLGAUGE_LIMITS__CLOSING_GRACE_MS": str(GRACE_MS),
}
WAIT_SECONDS: Final = 40
LOOK_SECONDS: Final = 0.3
DAY_MS: Final = 86_400_000

Said = tuple[str, dict[str, Any]]
"""The id of an event, and its members."""


class Home(Protocol):
    """A log and all that works on it, as far as both homes have it.

    Attributes:
        processes: Those that were started, in order.
        options: Say to a command where the calls are.
        roles: Those of `run`.
    """

    processes: list[Process]
    options: Sequence[str]
    environment: Mapping[str, str]
    roles: str

    def start(self) -> Process:
        """Starts a process that takes events and evaluates calls."""

    async def send(self, call: str, events: Iterable[Said]) -> None:
        """Has events of a call acknowledged, in order."""

    async def put(self, call: str, value: bytes) -> None:
        """Puts bytes where events come from that no door has checked. Nothing runs meanwhile."""

    async def log(self) -> list[Event | Tick]:
        """All that stands in the log, as a reader is told of it."""

    async def rows(self) -> list[Row]:
        """All rows that were ever decided, in order."""

    def addresses(self) -> tuple[str, str]:
        """Where the pages and the metrics of the last process are, without a slash at the end."""


class FileHome:
    """`callgauge serve`. What was decided is noted beside: it is deleted as soon as
    history has it.
    """

    def __init__(self, folder: Path, running: ExitStack) -> None:
        self.processes: list[Process] = []
        self.options: Sequence[str] = ("--folder", str(folder))
        self.environment: Mapping[str, str] = SETTINGS
        self.roles = ""
        self._folder = folder
        self._running = running

    async def set_up(self) -> None:
        log = FileLog(self._folder)
        log.open()
        await log.close()
        with self._connected() as connection:
            connection.execute("CREATE TABLE noted (n INTEGER PRIMARY KEY, topic TEXT, value BLOB)")
            connection.execute(
                "CREATE TRIGGER note AFTER INSERT ON record BEGIN INSERT INTO noted (topic, value) "
                "VALUES (new.topic, new.value); END"
            )

    def start(self) -> Process:
        output = self._folder.with_suffix(f".{len(self.processes)}")
        arguments = ["serve", *self.options, "--port", "0"]
        self.processes.append(
            self._running.enter_context(started(output, *arguments, **self.environment))
        )
        return self.processes[-1]

    async def send(self, call: str, events: Iterable[Said]) -> None:
        attributes = {"specversion": "1.0", "source": "bot", "subject": call}
        batch = [
            {**attributes, "id": each, "type": said["type"], "data": said} for each, said in events
        ]
        async with asyncio.timeout(patient(WAIT_SECONDS)), httpx.AsyncClient() as client:
            while True:
                with contextlib.suppress(httpx.TransportError, OSError):
                    answer = await client.post(
                        f"{(self._folder / 'address').read_text().strip()}/events",
                        content=json.dumps(batch),
                        headers={
                            "content-type": "application/cloudevents-batch+json",
                            "authorization": (
                                f"Bearer {(self._folder / TOKEN_FILE).read_text().strip()}"
                            ),
                        },
                    )
                    if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                        assert answer.status_code == httpx.codes.ACCEPTED, answer.text
                        return
                await asyncio.sleep(LOOK_SECONDS)

    async def put(self, call: str, value: bytes) -> None:
        log = FileLog(self._folder)
        log.open()
        await log.append([OutgoingRecord(InputSource.AUDIT, call.encode(), value, [])])
        await log.close()

    async def log(self) -> list[Event | Tick]:
        with reading(self._folder) as log:
            return [record.read for record in log.read()]

    async def rows(self) -> list[Row]:
        with self._connected() as connection:
            found = connection.execute(
                "SELECT value FROM noted WHERE topic = ? ORDER BY n", [SCORES_TOPIC]
            ).fetchall()
        return [decode(value) for (value,) in found]

    def addresses(self) -> tuple[str, str]:
        self.processes[-1].printed("callgauge serves ")
        address = (self._folder / "address").read_text().strip()
        return address, f"{address}/metrics"

    @contextlib.contextmanager
    def _connected(self) -> Any:
        with (
            contextlib.closing(sqlite3.connect(self._folder / FILE_NAME, timeout=30)) as connection,
            connection,
        ):
            yield connection


class KafkaHome:
    """`callgauge run`, with the roles that write."""

    def __init__(
        self,
        folder: Path,
        running: ExitStack,
        environment: dict[str, str],
        producer: AIOKafkaProducer,
    ) -> None:
        self.processes: list[Process] = []
        self.options: Sequence[str] = ()
        self.environment: Mapping[str, str] = environment | SETTINGS
        self.roles = "sequencer,evaluator"
        self._folder = folder
        self._running = running
        self._producer = producer

    def start(self) -> Process:
        output = self._folder.with_suffix(f".{len(self.processes)}")
        # A killed process comes back under its name at once, without the time after which the group
        # gives it up.
        names = {
            "CALLGAUGE_EVALUATOR_INSTANCE": f"one-{len([each for each in self.processes if each.is_running])}"
        }
        arguments = ["run", "--roles", self.roles]
        self.processes.append(
            self._running.enter_context(started(output, *arguments, **self.environment, **names))
        )
        return self.processes[-1]

    async def send(self, call: str, events: Iterable[Said]) -> None:
        topic = self.environment["CALLGAUGE_TOPIC_PREFIX"] + TOPIC_BY_SOURCE[InputSource.PIPECAT]
        for each, said in events:
            headers = envelope_headers(
                event_id=each, source="bot", event_type=said["type"], subject=call
            )
            await self._producer.send_and_wait(
                topic, json.dumps(said).encode(), key=call.encode(), headers=headers
            )

    async def put(self, call: str, value: bytes) -> None:
        topic = self.environment["CALLGAUGE_TOPIC_PREFIX"] + TOPIC_BY_SOURCE[InputSource.AUDIT]
        await self._producer.send_and_wait(topic, value, key=call.encode())

    async def log(self) -> list[Event | Tick]:
        reader = LogReader()
        read = (reader.read(record) for record in await records_on(self.environment, EVENTS_TOPIC))
        return [each for each in read if each is not None]

    async def rows(self) -> list[Row]:
        return [
            decode(each.value)
            for each in await records_on(self.environment, SCORES_TOPIC)
            if each.value
        ]

    def addresses(self) -> tuple[str, str]:
        text = self.processes[-1].printed("callgauge runs ")
        (page,) = re.findall(r"console_listens.*?address=(\S+)/", text)
        return page, self.processes[-1].metrics()


@pytest.fixture(params=["file", pytest.param("kafka", marks=pytest.mark.kafka)])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    with ExitStack() as running:
        if request.param == "file":
            in_file = FileHome(tmp_path / "calls", running)
            asyncio.run(in_file.set_up())
            yield in_file
        else:
            environment, producer = (
                request.getfixturevalue(name) for name in ("environment", "producer")
            )
            yield KafkaHome(tmp_path / "calls", running, environment, producer)


pytestmark = pytest.mark.service(partitions=1)


# Calls, and what is asked of a home again and again until it holds.


def event(name: str, kind: str, **more: Any) -> Said:
    return name, {"type": kind, "timestamp": wall_clock_ms(), **more}


def spoke(name: str, kind: str, at_ms: int) -> Said:
    return name, {
        "type": "speech_event",
        "timestamp": at_ms,
        "data": {"kind": kind, "timestamp": at_ms / 1_000},
    }


def turns(first: int, count: int) -> list[Said]:
    """Questions and answers, 900 ms later, that lie in the past second by second."""
    said = []
    for number in range(first, first + count):
        at_ms = wall_clock_ms() - 3_000 * (first + count - number)
        said += [
            spoke(f"{number}-a", "user_speech_started", at_ms),
            spoke(f"{number}-b", "user_speech_stopped", at_ms + 500),
            spoke(f"{number}-c", "bot_speech_started", at_ms + 1_400),
            spoke(f"{number}-d", "bot_speech_stopped", at_ms + 2_000),
        ]
    return said


def begun() -> Said:
    return event("begin", "call_started", agent="desk")


def over() -> Said:
    return event("end", "call_ended", reason="goodbye")


async def until(home: Home, holds: Callable[[list[Row]], object]) -> list[Row]:
    """All rows, once this holds of them."""
    deadline = time.monotonic() + patient(WAIT_SECONDS)
    while not holds(rows := await home.rows()):
        assert time.monotonic() < deadline, (
            f"in vain; {len(rows)} rows, and the last process "
            f"said:\n{home.processes[-1].text[-3_000:]}"
        )
        await asyncio.sleep(LOOK_SECONDS)
    return rows


def closed(*calls: str) -> Callable[[list[Row]], object]:
    return lambda rows: {each.conversation_id for each in closings(rows)} >= set(calls)


def closings(rows: Iterable[Row]) -> list[CallRow]:
    return [each for each in rows if isinstance(each, CallRow) and each.state == "closed"]


_OF_A_WRITER: Final = {"news", "code_version"}
"""What a row says of its transaction and of who wrote it."""


def values(rows: Iterable[Row]) -> dict[Any, Any]:
    """The newest row of each turn and call, whole but for that."""
    newest = {
        (each.conversation_id, *subject_of(each)): each
        for each in rows
        if not isinstance(each, GoalsRow)
    }
    return {
        subject: {
            name: part
            for name, part in msgspec.to_builtins(row).items()
            if name not in _OF_A_WRITER
        }
        for subject, row in newest.items()
    }


def assert_as_folded_once(rows: list[Row], log: list[Event | Tick]) -> None:
    """What all processes decided is what one would have, which nothing disturbs; each row is there
    once, and each thing counts once.
    """
    assert values(rows) == values(undisturbed(log, LIMITS).rows)
    of_calls = [
        ((each.conversation_id, *subject_of(each)), each)
        for each in rows
        if not isinstance(each, GoalsRow)
    ]
    written = Counter((subject, row.revision) for subject, row in of_calls)
    assert [each for each, times in written.items() if times > 1] == []
    counted = Counter(
        (subject, name) for subject, row in of_calls for name in row.news if name != "wait_revised"
    )
    assert [each for each, times in counted.items() if times > 1] == []


def events_of(log: Iterable[Event | Tick], call: str) -> list[Any]:
    return [
        json.loads(each.value or b"")
        for each in log
        if isinstance(each, Event) and each.key == call.encode()
    ]


# The promise.


async def test_events_stand_in_the_order_in_which_they_were_acknowledged_and_ticks_tell_time(
    home: Home,
) -> None:
    home.start()
    sent: dict[str, list[Said]] = {"a": [begun(), *turns(0, 2)], "b": [begun(), *turns(0, 1)]}
    before_ms = wall_clock_ms()
    for call in ("a", "b"):
        await home.send(call, sent[call])
    more = [*turns(2, 2), over()]
    await home.send("a", more)
    await home.send("b", [over()])
    rows = await until(home, closed("a", "b"))
    log = await home.log()
    assert events_of(log, "a") == [said for _, said in sent["a"] + more]
    assert events_of(log, "b")[:-1] == [said for _, said in sent["b"]]
    places, told_ms = (
        [each.place for each in log],
        [each.known_ms for each in log if isinstance(each, Tick)],
    )
    assert places == sorted(places)
    assert told_ms == sorted(told_ms)
    assert told_ms[-1] >= before_ms + GRACE_MS, (
        "silence ended the calls, and ticks alone tell of it"
    )
    assert_as_folded_once(rows, log)


async def test_an_event_that_is_sent_again_counts_once_and_one_after_the_end_opens_no_call(
    home: Home,
) -> None:
    home.start()
    said = [begun(), *turns(0, 2)]
    for _ in range(2):  # the sender has had no answer to the first time
        await home.send("again", said)
    end = over()
    await home.send("again", [end, end])
    await until(home, closed("again"))
    home.processes[-1].signalled(signal.SIGKILL)
    home.start()
    await home.send("again", [end, *turns(7, 1)])  # late
    await home.send("next", [begun(), *turns(0, 1), over()])
    rows = await until(home, closed("next"))
    waits = [
        name
        for each in rows
        if each.conversation_id == "again" and not isinstance(each, GoalsRow)
        for name in each.news
    ]
    assert waits.count("wait") == 2
    assert_as_folded_once(rows, await home.log())


async def test_what_killed_processes_decided_is_what_one_would_have(home: Home) -> None:
    """A kill falls between any two steps of folding, publishing and taking over: what was decided
    is there with its place, or is not.
    """
    home.start()
    calls = [f"call-{number}" for number in range(4)]
    sent: dict[str, list[Said]] = {call: [begun()] for call in calls}
    for call in calls:
        await home.send(call, sent[call])
    await until(home, lambda rows: {each.conversation_id for each in rows} >= set(calls))
    for kill in range(3):
        for call in calls:
            more = turns(10 * kill, 2)
            await home.send(call, more)
            sent[call] += more
        await asyncio.sleep(0.05 * kill)
        home.processes[-1].signalled(signal.SIGKILL)
        home.start()
    for call in calls:
        await home.send(call, [over()])
    rows = await until(home, closed(*calls))
    log = await home.log()
    for call in calls:
        assert events_of(log, call)[:-1] == [said for _, said in sent[call]], (
            "acknowledged, so it is there, once and in order"
        )
    assert_as_folded_once(rows, log)


async def test_a_second_process_beside_the_first_doubles_nothing(home: Home) -> None:
    """On Kafka it stands by or takes its share; the file lets in one alone."""
    first = home.start()
    await home.send("a", [begun(), *turns(0, 2)])
    second = home.start()
    wait_for(
        lambda: f"what it says:\n{second.text}",
        lambda: (
            not second.is_running or "sequencer_" in second.text or "evaluator_ready" in second.text
        ),
        WAIT_SECONDS,
    )
    await home.send("a", turns(2, 2))
    await home.send("b", [begun(), *turns(0, 2)])
    if second.is_running:
        first.signalled(signal.SIGKILL)
    else:
        assert "another callgauge writes this folder" in " ".join(second.text.split())
        assert first.is_running
    for call in ("a", "b"):
        await home.send(call, [over()])
    rows = await until(home, closed("a", "b"))
    assert_as_folded_once(rows, await home.log())


async def test_a_refused_record_counts_once_however_often_it_is_put_back(home: Home) -> None:
    """Of two that were refused for their time, the next process folds one where it stands: the call
    is open. It gets copies of both.
    """

    async def stopped_once_refused(count: int) -> None:
        deadline = time.monotonic() + patient(WAIT_SECONDS)
        look = ("quarantine", "list", "--json", *home.options)
        while (await asyncio.to_thread(ran, *look, **home.environment)).count('"offset"') < count:
            assert time.monotonic() < deadline, home.processes[-1].text[-3_000:]
            await asyncio.sleep(LOOK_SECONDS)
        home.processes[-1].signalled(signal.SIGTERM)

    said = {"message_type": "user", "value": "Hello", "timestamp": wall_clock_ms() - 30 * DAY_MS}
    first, second = (json.dumps({**said, "value": word}).encode() for word in ("first", "second"))
    await home.put("call", first)
    home.start()
    await home.send("call", [begun()])
    await until(home, lambda rows: "call" in {each.conversation_id for each in rows})
    await stopped_once_refused(1)
    await home.put("call", second)
    home.start()
    await stopped_once_refused(2)
    home.environment = {**home.environment, "CALLGAUGE_LIMITS__MAX_EVENT_TIME_SKEW_MS": "0"}
    home.start()
    ready = [begun(), over()]
    await home.send("other", ready)
    await until(home, closed("other"))
    for _ in range(2):
        replay = ("quarantine", "replay", "--all", "--yes", *home.options)
        told = await asyncio.to_thread(ran, *replay, **home.environment)
        assert "not put back" not in told
    await home.send("call", [over()])
    rows = await until(home, closed("call"))
    (row,) = (each for each in closings(rows) if each.conversation_id == "call")
    copies = [
        each
        for each in await home.log()
        if isinstance(each, Event) and REPLAY_OF_HEADER in dict(each.headers)
    ]
    assert {json.loads(each.value or b"")["value"] for each in copies} == {"first", "second"}
    assert row.events == 4, "its beginning, its end and the two"


async def test_what_nobody_can_read_is_in_quarantine_and_stops_nothing(home: Home) -> None:
    long_ago = json.dumps(
        {"type": "call_started", "timestamp": wall_clock_ms() - 30 * DAY_MS, "agent": "desk"}
    ).encode()
    unreadable = {"no JSON": b"no JSON", "no object": b"[1]", "of another day": long_ago}
    for call, value in unreadable.items():
        await home.put(call, value)
    home.start()
    await home.send("call", [begun(), *turns(0, 1), over()])
    rows = await until(home, closed("call"))
    assert {each.conversation_id for each in rows} == {"call"}
    assert_as_folded_once(rows, await home.log())
    refused = await asyncio.to_thread(
        ran, "quarantine", "list", "--json", *home.options, **home.environment
    )
    entries = [json.loads(line) for line in refused.splitlines() if line.startswith("{")]
    reasons = {entry["key"]: entry["reason"] for entry in entries if "key" in entry}
    assert reasons == {
        "no JSON": "undecodable",
        "no object": "invalid_event",
        "of another day": "time_out_of_bounds",
    }


# Measures of one's own: a reader of rows beside all that.

MEASURES: Final = """
import asyncio
import time

from callgauge import NotMeasured, measure


@measure
def waited(turn, words):
    return turn.wait_ms / 1_000 if turn.turn else NotMeasured(f"the greeting, {words}")


@measure
def turns_of_call(call, turns, context):
    return len(turns)


@measure
def raises(turn):
    raise ValueError("no such field")


@measure
def sleeps(turn):
    time.sleep(1_000)


@measure
def not_a_number(turn):
    return float("nan")


@measure
async def slow(call):
    await asyncio.sleep(2)
    return "in time"
"""
MEASURE_SECONDS: Final = 3


def own_of(home: Home, call: str) -> dict[tuple[str, int | None], Any]:
    """Of a call the values of one's own measures, or why there is none, by measure and turn."""
    told = json.loads(ended("call", call, "--json", *home.options, **home.environment).out or "{}")
    return {
        (each["measure"], each.get("turn")): each.get(
            "value", each.get("label", each.get("reason"))
        )
        for each in told.get("own", ())
    }


async def page_of(address: str) -> str:
    async with httpx.AsyncClient(timeout=patient(10)) as client:
        return (await client.get(address)).text


async def metrics_with(address: str, name: str) -> str:
    deadline = time.monotonic() + patient(WAIT_SECONDS)
    while name not in (text := await page_of(address)):
        assert time.monotonic() < deadline, f"{name} is not on\n{text[-3_000:]}"
        await asyncio.sleep(LOOK_SECONDS)
    return text


def counted_on(page: str, name: str, measure: str) -> float:
    found = re.findall(rf'^{name}{{.*measure="{measure}".*}} ([0-9.]+)$', page, re.MULTILINE)
    return sum(map(float, found))


async def test_measures_of_ones_own_cost_their_own_values_only(home: Home, tmp_path: Path) -> None:
    """One that raises, one that hangs, one that gives no number, and one that needs 2 s a call,
    beside two good ones: over a stop, and with a change of the file.
    """
    file = tmp_path / "measures" / "mine.py"
    file.parent.mkdir()
    file.write_text(MEASURES)
    home.environment = {
        **home.environment,
        "CALLGAUGE_MEASURES__FOLDER": str(file.parent),
        "CALLGAUGE_CONSOLE__PORT": "0",
        "CALLGAUGE_MEASURES__SECONDS": str(MEASURE_SECONDS),
    }
    home.roles += ",measures,console"
    home.start()
    home.addresses()
    await home.send("one-call", [begun(), *turns(0, 3), over()])
    await home.send("two-call", [begun(), *turns(0, 2)])
    await until(home, closed("one-call"))
    seen = wait_for(
        lambda: f"the values of the call, after:\n{home.processes[-1].text[-3_000:]}",
        lambda: (
            own
            if ("slow", None) in (own := own_of(home, "one-call")) and ("sleeps", 3) in own
            else None
        ),
        WAIT_SECONDS,
    )
    assert {seen["waited", turn] for turn in (1, 2, 3)} == {0.9}
    assert (seen["turns_of_call", None], seen["slow", None]) == (3.0, "in time")
    assert seen["raises", 1] == "it raised ValueError: no such field"
    assert seen["not_a_number", 2] == "it gave nan, which is no number"
    assert {seen["sleeps", turn] for turn in (1, 2, 3)} <= {
        f"it took more than {MEASURE_SECONDS} s",
        f"not called: 2 calls of it have not come back after {MEASURE_SECONDS} s each",
    }
    page, metrics = home.addresses()
    counted = await metrics_with(metrics, "turns_of_call")
    assert counted_on(counted, "callgauge_own_value_count", "turns_of_call") == 1
    assert counted_on(counted, "callgauge_own_value_sum", "waited") == pytest.approx(2.7)
    assert counted_on(counted, "callgauge_own_labels_total", "slow") == 1
    assert counted_on(counted, "callgauge_own_unmeasured_total", "raises") == 3
    shown = await page_of(f"{page}/calls/one-call")
    assert all(name in shown for name in ("Turns of call", "Waited", "it raised ValueError"))
    told = re.findall(r"measure_failed.*measure=(\w+)", home.processes[-1].text)
    assert {"raises", "not_a_number", "sleeps"} == set(told)
    assert len(told) <= 4, "once for each kind of mistake"

    home.processes[-1].signalled(signal.SIGTERM)
    file.write_text(MEASURES.replace("return len(turns)", "return 100 + len(turns)"))
    home.start()
    home.addresses()
    await home.send("two-call", [*turns(2, 2), over()])
    rows = await until(home, closed("one-call", "two-call"))
    _, metrics = home.addresses()
    counted = await metrics_with(metrics, "turns_of_call")
    assert counted_on(counted, "callgauge_own_value_count", "turns_of_call") == 1, (
        "the first call is not counted again"
    )
    assert counted_on(counted, "callgauge_own_value_sum", "turns_of_call") == 104
    assert counted_on(counted, "callgauge_own_value_count", "waited") == 4, (
        "turns from before the stop, too"
    )
    assert own_of(home, "one-call")["turns_of_call", None] == 3.0
    assert_as_folded_once(rows, await home.log())
