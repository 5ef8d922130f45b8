"""Kills `callgauge serve` again and again under load, and compares what it leaves with what must be
there.

`python -m tests.chaos.serve --kills 300 --seed 1 --calls 10` prints one line of figures; its exit
code is 0 when nothing is missing, doubled or wrong. Senders post simulated calls over HTTP and send
each batch again until it is acknowledged. The process gets SIGKILL while it starts, in the middle
of a commit, and at any other moment. A trigger in the database notes every record that is ever
decided, because history takes them away.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import msgspec
import structlog
from prometheus_client import CollectorRegistry

from consumers.evaluator.on_file import FileEvaluator
from consumers.evaluator.settings import EvaluatorSettings
from consumers.history.search import CallSearch
from consumers.history.sqlite import SqliteHistory
from consumers.log.file import FILE_NAME, FileLog
from consumers.runtime.process import wall_clock_ms
from consumers.runtime.registry import Instruments
from schemas.events.envelope import ID_HEADER, SOURCE_HEADER
from schemas.rows import CallRow, GoalsRow, Row, WordsRow, decode, decode_words
from schemas.topics import (
    JUDGE_REQUESTS_TOPIC,
    QUARANTINE_TOPIC,
    SCORES_TOPIC,
    TRANSCRIPTS_TOPIC,
    WORDS_TOPIC,
)
from streamer.facts import TOKEN_FILE
from streamer.roles.serving import _evaluator_settings
from streamer.settings.listing import settings_from
from streamer.sources.publisher import record_of
from streamer.sources.simulator.traffic import simulate_call
from tests.properties.evaluation import newest, subject_of
from tests.support.file_logs import SetClock, undecided
from tests.support.known import some
from tests.support.patience import patient

COMMAND: Final = Path(sys.executable).with_name("callgauge")
ENVIRONMENT: Final = {
    "CALLGAUGE_LOG_FORMAT": "json",
    "CALLGAUGE_LIMITS__CLOSING_GRACE_MS": "700",
    "CALLGAUGE_LIMITS__IDLE_MS": "4000",
    "CALLGAUGE_JUDGE__ENABLED": "false",
    "CALLGAUGE_TRANSCRIPTS__ENABLED": "true",
}
"""Calls close soon, whether they end in order or fall silent."""
HISTORY: Final = "history"
"""Name of its folder."""
CE_SOURCE: Final = "chaos"
MOST_EVENTS: Final = 60
"""Of one batch."""
WITHOUT_END_SHARE: Final = 0.2
"""Of the calls: they fall silent somewhere in the middle."""
AGAIN_SHARE: Final = 0.1
"""Of the batches: they are sent once more although they were acknowledged."""
REST_SHARE: Final = 0.02
"""Of the kills: the next start comes so late that nobody has listened for longer than a gap."""
REST_SECONDS: Final = 5.5
FINISH_RATE: Final = 40.0
"""How fast the calls go on after the last kill."""
STOP_SECONDS: Final = 2.0
"""How long the process may take to end in order."""


class Plan(NamedTuple):
    """What happens.

    Attributes:
        kills: How often the process is killed.
        seed: Decides calls and moments.
        calls: At the same time.
        rate: How many times faster than real they are played.
    """

    kills: int = 300
    seed: int = 1
    calls: int = 10
    rate: float = 4.0


@dataclass
class Outcome:
    """What was found.

    Attributes:
        findings: What is missing, doubled or wrong, a sentence each.
        figures: Numbers by their names.
    """

    findings: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    def line(self) -> str:
        """All of it in one line, but for the sentences."""
        return " ".join(
            f"{name}={number:g}"
            for name, number in {**self.figures, "wrong": len(self.findings)}.items()
        )


# The process.


class Server:
    """The real command, which is started and killed.

    Attributes:
        address: Where it listens, each time.
        ready_seconds: How long each start took that came to its end.
    """

    def __init__(self, folder: Path, output: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.ready_seconds: list[float] = []
        self.ended_alone: list[int] = []
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self._port}"
        self._output = output
        self._environment = {**os.environ, **ENVIRONMENT, **environment}
        self._popen: subprocess.Popen[bytes] | None = None
        self._began = 0.0

    def start(self) -> None:
        with self._output.open("ab") as file:
            self._popen = subprocess.Popen(
                [str(COMMAND), "serve", "--folder", str(self.folder), "--port", str(self._port)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )
        self._began = time.monotonic()

    async def ready(self) -> None:
        """Waits until it is."""
        async with httpx.AsyncClient() as client:
            while self.is_running and time.monotonic() - self._began < patient(30):
                with contextlib.suppress(httpx.HTTPError):
                    if (
                        await client.get(f"{self.address}/readyz", timeout=5)
                    ).status_code == httpx.codes.OK:
                        self.ready_seconds.append(time.monotonic() - self._began)
                        return
                await asyncio.sleep(0.02)
        code = None if self._popen is None else self._popen.poll()
        raise AssertionError(
            f"it does not become ready, exit code {code}:\n{self._output.read_text()[-2_000:]}"
        )

    @property
    def is_running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def kill(self) -> None:
        assert self._popen is not None
        if (code := self._popen.poll()) is not None:
            self.ended_alone.append(code)
        self._popen.kill()
        self._popen.wait()

    def kill_in_a_commit(self, late_seconds: float) -> None:
        """Kills it so soon after it began to write a transaction."""
        wal = self.folder / f"{FILE_NAME}-wal"
        before, until = _state_of(wal), time.monotonic() + 2.0
        while time.monotonic() < until and _state_of(wal) == before:
            pass
        at = time.monotonic() + late_seconds
        while time.monotonic() < at:
            pass
        self.kill()

    def stop(self) -> tuple[int, float]:
        """Ends it in order, as Ctrl-C does; its exit code, and how long it took."""
        assert self._popen is not None
        began = time.monotonic()
        self._popen.send_signal(signal.SIGINT)
        return self._popen.wait(patient(10)), time.monotonic() - began


def _state_of(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


# The senders.


class Sent(NamedTuple):
    """A batch that was acknowledged.

    Attributes:
        call: The call of its events.
        ids: Source and id of each event.
        acked_after_ms: When the try began that was acknowledged.
    """

    call: str
    ids: tuple[tuple[str, str], ...]
    acked_after_ms: int


class Senders:
    """Send calls one after the other, each as many times as it takes."""

    def __init__(self, plan: Plan, server: Server, token: str) -> None:
        self.sent: list[Sent] = []
        self.refused: list[str] = []
        self.tries = 0
        self.rate = plan.rate
        self.is_over = False
        self._plan = plan
        self._server = server
        self._headers = {"authorization": f"Bearer {token}"}

    async def send(self, number: int) -> None:
        """One sender, with one call at a time."""
        rng = random.Random(f"{self._plan.seed} {number}")  # noqa: S311  # a seed decides it
        async with httpx.AsyncClient(
            base_url=self._server.address, headers=self._headers, timeout=10.0
        ) as client:
            while not self.is_over:
                await self._send_call(client, rng)

    async def _send_call(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        began_ms = wall_clock_ms()
        call = simulate_call(rng.randrange(2**32), start_ms=began_ms)
        name = f"{call.call.conversation_id}-{rng.randrange(2**32):08x}"
        events = list(call.wire_events())
        if rng.random() < WITHOUT_END_SHARE:
            events = events[: rng.randrange(1, len(events))]
        is_cloud_events = rng.random() < 0.5
        place, at_ms, looked = 0, 0.0, time.monotonic()
        earlier: list[tuple[str, str]] = []
        while place < len(events):
            now = time.monotonic()
            at_ms += (now - looked) * 1_000 * self.rate
            looked = now
            due = [
                each
                for each in events[place : place + MOST_EVENTS]
                if each.arrival_ms - began_ms <= at_ms
            ]
            if due:
                key = f"{name}/{place}"
                records = [record_of(name, each, CE_SOURCE) for each in due]
                body, ids = (_as_cloud_events if is_cloud_events else _as_lines)(name, key, records)
                await self._post(client, rng, name, key, body, ids)
                earlier.append((key, body))
                if rng.random() < AGAIN_SHARE:
                    await self._post(client, rng, name, *rng.choice(earlier), ())
                place += len(due)
            await asyncio.sleep(rng.uniform(0.01, 0.3))

    async def _post(
        self,
        client: httpx.AsyncClient,
        rng: random.Random,
        call: str,
        key: str,
        body: str,
        ids: Sequence[tuple[str, str]],
    ) -> None:
        """Sends a batch until it is acknowledged. Without ids it was acknowledged before."""
        kind = (
            "application/cloudevents-batch+json" if body.startswith("[") else "application/x-ndjson"
        )
        headers = {"content-type": kind, "idempotency-key": key}
        while True:
            self.tries += 1
            began_ms = wall_clock_ms()
            with contextlib.suppress(httpx.TransportError):
                answer = await client.post("/events", content=body, headers=headers)
                if answer.status_code == httpx.codes.ACCEPTED:
                    if ids:
                        self.sent.append(Sent(call, tuple(ids), began_ms))
                    return
                if answer.status_code not in {429, 503}:
                    self.refused.append(f"{call}: {answer.status_code} {answer.text[:200]}")
                    return
            await asyncio.sleep(rng.uniform(0.02, 0.2))


def _as_cloud_events(
    name: str, key: str, records: Sequence[Any]
) -> tuple[str, list[tuple[str, str]]]:
    """A batch whose events have ids of their own."""
    del key
    events, ids = [], []
    for record in records:
        attributes = {
            each.removeprefix("ce_"): text.decode()
            for each, text in record.headers
            if each.startswith("ce_")
        }
        events.append({**attributes, "data": json.loads(record.value)})
        ids.append((CE_SOURCE, attributes["id"]))
    del name
    return json.dumps(events), ids


_STREAMS: Final = {"pipecat": "pipecat", "elevenlabs": "user_sim", "audit": "audit"}


def _as_lines(name: str, key: str, records: Sequence[Any]) -> tuple[str, list[tuple[str, str]]]:
    """A batch whose events have their ids from the key of the request and from their places."""
    lines = [
        json.dumps(
            {
                **json.loads(record.value),
                "conversation_id": name,
                "stream": _STREAMS[record.source.value],
            }
        )
        for record in records
    ]
    return "\n".join(lines), [
        ("callgauge.ingest", f"{key}/{place}") for place in range(1, len(lines) + 1)
    ]


# The run.


async def chaos(
    plan: Plan, folder: Path, say: Callable[[str], None] = print, **environment: str
) -> Outcome:
    """Kills it so many times, lets every call end, and judges."""
    outcome, began = Outcome(), time.monotonic()
    rng = random.Random(plan.seed)  # noqa: S311  # a seed decides it
    server = Server(folder / "served", folder / "serve.log", environment)
    kinds: Counter[str] = Counter()
    try:
        first = max(1, plan.kills // 20)
        for _ in range(first):  # the folder, its files and the token are being made
            server.start()
            await asyncio.sleep(rng.uniform(0.0, 1.5))
            server.kill()
        kinds["first"] = first
        server.start()
        await server.ready()
        _note_all_that_is_decided(server.folder)
        token = (server.folder / TOKEN_FILE).read_text().strip()
        senders = Senders(plan, server, token)
        sending = [asyncio.create_task(senders.send(number)) for number in range(plan.calls)]
        try:
            for number in range(first, plan.kills):
                kind = rng.choices(["start", "commit", "any"], [25, 40, 35])[0]
                await _kill(server, kind, rng)
                kinds[kind] += 1
                if rng.random() < REST_SHARE:
                    await asyncio.sleep(REST_SECONDS)
                server.start()
                if number % 25 == 0:
                    say(
                        f"{number} kills, {len(senders.sent)} batches, "
                        f"{time.monotonic() - began:.0f} s"
                    )
            senders.rate, senders.is_over = FINISH_RATE, True
            async with asyncio.timeout(patient(120)):
                await asyncio.gather(*sending)
        finally:
            for task in sending:
                task.cancel()
        await server.ready()
        await _until_all_is_closed(server.folder, outcome)
        code, seconds = server.stop()
        if code or seconds > patient(STOP_SECONDS):
            outcome.findings.append(f"it ended with {code} after {seconds:.1f} s")
    finally:
        if server.is_running:
            server.kill()
    outcome.findings += [f"it ended by itself with {code}" for code in server.ended_alone]
    outcome.findings += [f"a batch was refused: {each}" for each in senders.refused]
    outcome.findings += _faults_in(folder / "serve.log")
    outcome.figures |= {
        "kills": plan.kills,
        **{f"kills_{name}": number for name, number in sorted(kinds.items())},
        "seed": plan.seed,
        "batches": len(senders.sent),
        "tries": senders.tries,
        "slowest_start_s": round(max(server.ready_seconds), 2),
        "mean_start_s": round(sum(server.ready_seconds) / len(server.ready_seconds), 2),
        "stop_s": round(seconds, 2),
    }
    await judge(server.folder, folder / "folded", senders.sent, outcome, environment)
    outcome.figures["seconds"] = round(time.monotonic() - began)
    return outcome


async def _kill(server: Server, kind: str, rng: random.Random) -> None:
    if kind == "start":
        await asyncio.sleep(rng.uniform(0.0, 1.2))
        server.kill()
        return
    await server.ready()
    await asyncio.sleep(rng.uniform(0.0, 1.0))
    if kind == "commit":
        await asyncio.to_thread(server.kill_in_a_commit, rng.uniform(0.0, 0.003))
    else:
        server.kill()


def _note_all_that_is_decided(folder: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(folder / FILE_NAME, timeout=30)) as connection,
        connection,
    ):
        connection.execute(
            "CREATE TABLE decided (n INTEGER PRIMARY KEY, topic TEXT, offset INTEGER, key BLOB, "
            "value BLOB)"
        )
        connection.execute(
            "CREATE TRIGGER note AFTER INSERT ON record BEGIN INSERT INTO decided (topic, offset, "
            "key, value) "
            "VALUES (new.topic, new.offset, new.key, new.value); END"
        )


def _read(folder: Path) -> "contextlib.closing[sqlite3.Connection]":
    uri = f"{(folder / FILE_NAME).as_uri()}?mode=ro"
    return contextlib.closing(sqlite3.connect(uri, uri=True, timeout=30))


async def _until_all_is_closed(folder: Path, outcome: Outcome) -> None:
    """Waits until every call has closed, and history has taken all that was decided."""
    began, left = time.monotonic(), (1, 1)
    while any(left) and time.monotonic() - began < patient(60):
        await asyncio.sleep(0.1)
        with _read(folder) as there:
            (calls,) = there.execute("SELECT count(*) FROM call WHERE closed IS NULL").fetchone()
            (records,) = there.execute(
                "SELECT count(*) FROM record WHERE topic != ?", [QUARANTINE_TOPIC]
            ).fetchone()
            left = calls, records
    if any(left):
        outcome.findings.append(
            f"{left[0]} calls do not close, and {left[1]} records stay in the log"
        )


def _faults_in(output: Path) -> Iterator[str]:
    """What the processes said that they should not have to say."""
    for line in output.read_text(errors="replace").splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            if "Traceback" in line:
                yield f"the process says: {line}"
            continue
        if isinstance(said, dict) and said.get("level") in {"warning", "error", "critical"}:
            yield f"the process says: {line[:400]}"


# The judgement.


class Decided(NamedTuple):
    """All that was decided, by call and in order."""

    rows: dict[str, list[Row]]
    words: dict[str, list[WordsRow]]
    transcripts: dict[str, list[bytes]]
    others: Counter[str]


def decided_in(records: Iterable[tuple[str, bytes, bytes]]) -> Decided:
    """Sorts records of topics: topic, key and value."""
    found = Decided({}, {}, {}, Counter())
    for topic, key, value in records:
        call = key.decode()
        if topic == SCORES_TOPIC:
            found.rows.setdefault(call, []).append(decode(value))
        elif topic == WORDS_TOPIC:
            found.words.setdefault(call, []).append(decode_words(value))
        elif topic == TRANSCRIPTS_TOPIC:
            found.transcripts.setdefault(call, []).append(value)
        else:
            found.others[topic] += 1
    return found


async def judge(
    folder: Path,
    scratch: Path,
    sent: Sequence[Sent],
    outcome: Outcome,
    environment: Mapping[str, str],
) -> None:
    """Compares the log with what was acknowledged, and what was decided with a fold of the log in
    peace.
    """
    with _read(folder) as there:
        _judge_events(there, sent, outcome)
        said = there.execute("SELECT topic, key, value FROM decided ORDER BY n").fetchall()
        numbers = [
            offset
            for (offset,) in there.execute("SELECT offset FROM decided ORDER BY n").fetchall()
        ]
    if numbers and numbers != [*range(numbers[0], numbers[0] + len(numbers))]:
        outcome.findings.append("the offsets of what was decided have gaps, or come twice")
    decided, expected = decided_in(said), decided_in(await _folded(folder, scratch, environment))
    outcome.figures |= {"calls": len(expected.rows), "rows": sum(map(len, decided.rows.values()))}
    calls = {each.call for each in sent}
    outcome.findings += [
        f"{call}: was acknowledged and has no row" for call in sorted(calls - set(expected.rows))
    ]
    for call in sorted({*expected.rows, *decided.rows}):
        outcome.findings += [f"{call}: {each}" for each in _faults_of(call, decided, expected)]
    if decided.others != expected.others:
        outcome.findings.append(f"other records: {decided.others}, expected {expected.others}")
    _judge_history(folder / HISTORY, decided, outcome)


def _judge_events(there: sqlite3.Connection, sent: Sequence[Sent], outcome: Outcome) -> None:
    """Every acknowledged event is in the log once, in the order of its call."""
    in_log: Counter[tuple[str, str]] = Counter()
    of_calls: dict[str, list[tuple[str, str]]] = {}
    at_ms: dict[tuple[str, str], int] = {}
    ticks = gaps = 0
    found = (
        "SELECT source, (SELECT key FROM call WHERE id = log.call), at_ms, value, headers FROM log "
        "ORDER BY place"
    )
    last_ms = 0
    for source, key, time_ms, value, headers in there.execute(found):
        if time_ms < last_ms:
            outcome.findings.append(f"time goes back from {last_ms} to {time_ms}")
        last_ms = time_ms
        if source is None:
            ticks, gaps = ticks + 1, gaps + bool(value)
            continue
        if key is None:
            outcome.findings.append(f"an event of {time_ms} is of no call")
            continue
        named = dict(msgspec.msgpack.decode(headers))
        name = named[SOURCE_HEADER].decode(), named[ID_HEADER].decode()
        in_log[name] += 1
        at_ms.setdefault(name, time_ms)
        of_calls.setdefault(key.decode(), []).append(name)
    acked: dict[str, list[tuple[str, str]]] = {}
    for batch in sent:
        acked.setdefault(batch.call, []).extend(batch.ids)
    wanted = {each for batch in sent for each in batch.ids}
    outcome.findings += [
        f"{each}: was acknowledged and is not in the log" for each in sorted(wanted - set(in_log))
    ]
    outcome.findings += [
        f"{each}: is {number} times in the log" for each, number in in_log.items() if number > 1
    ]
    outcome.findings += [f"{each}: nobody sent it" for each in sorted(set(in_log) - wanted)]
    for call, ids in acked.items():
        once = list(dict.fromkeys(ids))  # the simulator repeats some, as producers do
        if of_calls.get(call) != once:
            outcome.findings.append(
                f"{call}: its events are in another order than they were sent in"
            )
    outcome.figures |= {
        "events": len(wanted),
        "ticks": ticks,
        "gaps": gaps,
        # The process was killed between the commit and its answer, and the batch came again.
        "written_unacknowledged": sum(
            any(at_ms.get(each, batch.acked_after_ms) < batch.acked_after_ms for each in batch.ids)
            for batch in sent
        ),
    }


async def _folded(
    folder: Path, scratch: Path, environment: Mapping[str, str]
) -> list[tuple[str, bytes, bytes]]:
    """What one process decides that reads the log from its first record to its last."""
    undecided(folder, scratch)
    with contextlib.closing(sqlite3.connect(scratch / FILE_NAME)) as connection, connection:
        connection.execute("DROP TRIGGER note")
        connection.execute("DROP TABLE decided")
    log = FileLog(scratch, clock_ms=SetClock())
    log.open()
    log._writer.execute("PRAGMA synchronous = OFF")
    try:
        evaluator = FileEvaluator(
            log, _settings(environment), Instruments(CollectorRegistry(), ["evaluator"])
        )
        await evaluator._take_over()
        partition = evaluator.partition
        while records := log.read(partition.next_offset, 1_000):
            for record in records:
                partition.fold(record, 0)
            while partition.closing_calls:
                partition.close_some()
            while partition.outbox.is_filled:
                await evaluator._write(partition.outbox.first())
        topics = (
            SCORES_TOPIC,
            WORDS_TOPIC,
            TRANSCRIPTS_TOPIC,
            JUDGE_REQUESTS_TOPIC,
            QUARANTINE_TOPIC,
        )
        return [
            (topic, key, value)
            for topic in topics
            for _, key, value, *_ in log.records(topic, 0, 2**40)
        ]
    finally:
        await log.close()


def _settings(environment: Mapping[str, str]) -> EvaluatorSettings:
    """Those of the process that served."""
    before = dict(os.environ)
    os.environ.update({**ENVIRONMENT, **environment})
    try:
        return _evaluator_settings(
            settings_from(None), ["evaluator", "exporter", "history", "console", "ingest"]
        )
    finally:
        os.environ.clear()
        os.environ.update(before)


def _faults_of(call: str, decided: Decided, expected: Decided) -> Iterator[str]:
    """What is wrong with the records of a call."""
    rows, wanted = decided.rows.get(call, []), expected.rows.get(call, [])
    closed = [row for row in rows if isinstance(row, CallRow) and row.state == "closed"]
    if len(closed) != 1:
        yield f"has {len(closed)} closed rows"
    elif rows[-1] is not closed[0]:
        yield "has rows behind its closed one"
    if wrong := _different(_plain(rows), _plain(wanted)):
        yield f"its newest rows are others: {wrong}"
    counted = Counter(
        (subject_of(row), name)
        for row in rows
        if not isinstance(row, GoalsRow)
        for name in row.news
    )
    twice = [each for each, number in counted.items() if number > 1 and each[1] != "wait_revised"]
    if twice:
        yield f"counts twice: {twice}"
    due = {
        (subject_of(row), name)
        for row in wanted
        if not isinstance(row, GoalsRow)
        for name in row.news
    }
    if set(counted) != due:
        yield f"counts {set(counted) - due} and not {due - set(counted)}"
    revisions: dict[object, int] = {}
    for row in rows:
        if row.revision < revisions.get(subject_of(row), 0):
            yield f"{subject_of(row)} goes back to revision {row.revision}"
        revisions[subject_of(row)] = row.revision
    if wrong := _different(
        _words(decided.words.get(call, [])), _words(expected.words.get(call, []))
    ):
        yield f"its words are others: {wrong}"
    if decided.transcripts.get(call) != expected.transcripts.get(call):
        yield f"has {len(decided.transcripts.get(call, []))} transcripts, or others"


def _plain(rows: Iterable[Row]) -> dict[Any, Any]:
    """The newest rows, all of them but `news`, which are those of a transaction."""
    return {
        subject: {name: part for name, part in msgspec.to_builtins(row).items() if name != "news"}
        for subject, row in newest(rows).items()
    }


def _whole(rows: Iterable[Row]) -> dict[Any, Any]:
    return {subject_of(row): msgspec.to_builtins(row) for row in rows}


def _words(rows: Iterable[WordsRow]) -> dict[Any, Any]:
    return {row.turn: msgspec.to_builtins(row) for row in rows}


def _different(
    found: Mapping[Any, Mapping[str, Any]], wanted: Mapping[Any, Mapping[str, Any]]
) -> list[str]:
    """The fields that are not as they must be."""
    return [
        (
            f"{each}.{name}: {found.get(each, {}).get(name)!r} and not "
            f"{wanted.get(each, {}).get(name)!r}"
        )[:200]
        for each in sorted({*found, *wanted}, key=str)
        for name in sorted({*found.get(each, {}), *wanted.get(each, {})})
        if found.get(each, {}).get(name) != wanted.get(each, {}).get(name)
    ]


def _judge_history(folder: Path, decided: Decided, outcome: Outcome) -> None:
    """History has every call, closed once, with its newest rows, its words and its transcript."""
    history = SqliteHistory(folder)
    try:
        listed = Counter(
            str(each["conversation_id"]) for each in history.find(CallSearch(0, 2**53, most=None))
        )
        for call, rows in sorted(decided.rows.items()):
            kept = history.call(call)
            if listed[call] != 1 or kept is None:
                outcome.findings.append(f"{call}: history has it {listed[call]} times")
                continue
            day = some(history._day_with(call))
            number = some(day.rows.id_of(call))
            all_rows = [
                decode(value)
                for (kind, _, _), (_, value) in day.rows._all(number)
                if kind == "call"
            ]
            closed = [row for row in all_rows if isinstance(row, CallRow) and row.state == "closed"]
            if len(closed) != 1:
                outcome.findings.append(f"{call}: history has {len(closed)} closed rows of it")
            must_be = [row for row in newest(rows).values() if not isinstance(row, GoalsRow)]
            if wrong := _different(_whole((kept.call, *kept.turns)), _whole(must_be)):
                outcome.findings.append(f"{call}: history has other rows: {wrong}")
            if _words(kept.words) != _words(decided.words.get(call, [])):
                outcome.findings.append(f"{call}: history has other words")
            if [day.transcript(call)] != decided.transcripts.get(call, [None]):
                outcome.findings.append(f"{call}: history has another transcript")
        outcome.findings += [
            f"{call}: is in history and was never decided"
            for call in set(listed) - set(decided.rows)
        ]
    finally:
        history.close()


def main() -> int:
    """Runs it; the exit code is 0 when nothing is missing, doubled or wrong."""
    usual = Plan()
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.serve", description=__doc__)
    parser.add_argument("--kills", type=int, default=usual.kills)
    parser.add_argument("--seed", type=int, default=usual.seed, help="decides calls and moments")
    parser.add_argument("--calls", type=int, default=usual.calls, help="at the same time")
    parser.add_argument(
        "--rate",
        type=float,
        default=usual.rate,
        help="how many times faster than real they are played",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        help="a folder for all files, which is kept; a temporary one by default",
    )
    given = parser.parse_args()

    def say(text: str) -> None:
        print(text, flush=True)

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory(prefix="callgauge-serve-", ignore_cleanup_errors=True) as name:
        plan = Plan(given.kills, given.seed, given.calls, given.rate)
        outcome = asyncio.run(chaos(plan, given.keep or Path(name), say))
    for finding in outcome.findings[:50]:
        say(finding)
    say(outcome.line())
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    sys.exit(main())
