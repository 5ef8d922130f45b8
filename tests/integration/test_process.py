"""`callgauge run` as a supervisor sees it: probes, signals, the token, and an exporter that runs
alone and restarts.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from itertools import count
from pathlib import Path

import httpx
import pytest
from aiokafka import AIOKafkaProducer

from schemas.rows import encode
from tests.integration.conftest import PARTITIONS, make_topics, variables
from tests.integration.metrics_page import answer_of, total
from tests.integration.processes import COMMAND, Process, started, wait_for
from tests.support.brokers.kafka_broker import NOTHING_TO_RUN
from tests.support.required_tools import MISSING
from tests.unit.exporter.test_projection import call, closed

ROOT = Path(__file__).parents[2]
TOKEN = "one~two.three"  # noqa: S105 - a secret of this test only
SOON_SECONDS = 20
"""Below the deadline of 10 s: no step of a stop may use all of it. On an idle machine 2 to 4 s are
seen, on a busy one 5.
"""
STARTED, ENDED = "callgauge_calls_started_total", "callgauge_calls_ended_total"
MOST_RECORDS = 200_000
PER_SECOND = 500
LIVES = 3
STARTS = 3
"""Most starts of a process whose broker is frozen. One is enough on a machine with time."""
BATCH = 20


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.fixture
def environment(environment: dict[str, str]) -> dict[str, str]:
    """With a port that is known before the process says it."""
    return {**environment, "CALLGAUGE_HTTP_PORT": str(free_port())}


def on(broker: "OwnBroker", prefix: str) -> dict[str, str]:
    """Variables of a process on a broker of a test's own, with topics."""
    environment = {**variables(broker.address, prefix), "CALLGAUGE_HTTP_PORT": str(free_port())}
    asyncio.run(make_topics(environment))
    return environment


def page(environment: dict[str, str], path: str, token: str | None = None) -> tuple[int, str]:
    """Status and text; (0, "") while no server listens."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        answer = answer_of(
            f"http://127.0.0.1:{environment['CALLGAUGE_HTTP_PORT']}{path}", headers, seconds=2
        )
    except httpx.TransportError:
        return 0, ""
    return answer.status_code, answer.text


def is_ready(environment: dict[str, str]) -> bool:
    """Whether every role of the process works."""
    return page(environment, "/readyz")[0] == 200


def wait_until_ready(process: Process, environment: dict[str, str]) -> str:
    """The address of the metrics."""
    assert wait_for(
        lambda: f"readiness, which says {page(environment, '/readyz')}, in:\n{process.text}",
        lambda: is_ready(environment) or not process.is_running,
        40,
    )
    assert process.is_running, process.text
    return process.metrics()


def send(process: Process, number: signal.Signals) -> None:
    """Sends a signal and waits for nothing."""
    process._popen.send_signal(number)


class OwnBroker:
    """A broker of a test's own, which may be frozen and killed; `keeper` ends it in any case."""

    def __init__(self, keeper: "subprocess.Popen[str]") -> None:
        assert keeper.stdout is not None
        self.address = keeper.stdout.readline().strip()
        children = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children")
        self._pids = [int(pid) for pid in children.read_text().split()] if self.address else []
        self.is_here = any(Path(f"/proc/{pid}/comm").read_text() == "java\n" for pid in self._pids)

    def signalled(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):  # it may be dead
                os.kill(pid, number)


@contextmanager
def frozen(broker: OwnBroker) -> Iterator[None]:
    """The broker stops at once, and goes on at the end at the latest."""
    broker.signalled(signal.SIGSTOP)
    try:
        yield
    finally:
        broker.signalled(signal.SIGCONT)


@pytest.fixture(scope="module")
def own_broker() -> Iterator[OwnBroker]:
    command = [sys.executable, "-m", "tests.support.brokers.kafka_broker", "--until-stdin-closes"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        text=True,
        start_new_session=True,
        # it reports its broker's death
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as keeper:
        broker = OwnBroker(keeper)
        if not broker.address:
            assert keeper.wait() == NOTHING_TO_RUN
            pytest.skip(f"{MISSING}no Kafka broker can run here")
        try:
            if not broker.is_here:
                pytest.skip(
                    f"{MISSING}a broker in a container cannot be frozen from here: install Java 17 "
                    "and Maven"
                )
            yield broker
        finally:
            broker.signalled(signal.SIGCONT)
            assert keeper.stdin is not None
            keeper.stdin.close()


@pytest.mark.parametrize(
    "roles", ["sequencer", "evaluator", "exporter", "judge", "sequencer,evaluator,exporter,judge"]
)
def test_every_role_answers_probes_and_stops_when_told(
    environment: dict[str, str], tmp_path: Path, roles: str
) -> None:
    with started(
        tmp_path / "run.log", "run", "--roles", roles, command=[str(COMMAND)], **environment
    ) as process:
        wait_until_ready(process, environment)
        assert page(environment, "/healthz") == (200, "ok\n")
        status, text = page(environment, "/metrics")
        assert status == 200
        assert all(
            f"callgauge_{name}" in text for name in ("sequencer_term",) if "sequencer" in roles
        )
        assert all(
            f"callgauge_{name}" in text for name in ("events_total",) if "evaluator" in roles
        )
        assert all(
            f"callgauge_{name}" in text for name in ("scores_read_total",) if "exporter" in roles
        )
        assert all(
            f"callgauge_{name}" in text for name in ("judge_verdicts_total",) if "judge" in roles
        )
        assert process.signalled(signal.SIGTERM)[0] == 0, process.text
        assert "Traceback" not in process.text


def test_a_broker_that_freezes_takes_readiness_away_and_never_the_life(
    own_broker: OwnBroker, tmp_path: Path
) -> None:
    environment = on(own_broker, "frozen.")
    for _ in range(STARTS):
        with frozen(own_broker), started(tmp_path / "run.log", "run", **environment) as process:
            wait_for("the server", lambda: page(environment, "/readyz")[0], 20)
            status, text = page(environment, "/readyz")
            assert status == 503
            assert [line.partition(":")[0] for line in text.splitlines()] == [
                "sequencer",
                "evaluator",
                "exporter",
                "judge",
                "console",
            ]
            assert page(environment, "/healthz") == (200, "ok\n")
            own_broker.signalled(signal.SIGCONT)
            # A start ends, for its supervisor, if the broker says nothing for 20 s, or that its
            # cluster has no broker: as when the controller has given up this one meanwhile. A busy
            # machine may be slow enough for either.
            wait_for(
                "a start or its end", lambda: is_ready(environment) or not process.is_running, 40
            )
            if not process.is_running:
                assert any(
                    reason in process.text for reason in ("no answer in time", "names no broker")
                ), process.text
                continue
            own_broker.signalled(signal.SIGSTOP)
            assert page(environment, "/healthz") == (200, "ok\n")
            send(process, signal.SIGTERM)
            wait_for(
                "readiness to end",
                lambda: "stopping" in page(environment, "/readyz")[1],
                SOON_SECONDS,
            )
            assert page(environment, "/healthz") == (200, "ok\n")
            assert wait_for("the end", lambda: not process.is_running, SOON_SECONDS), process.text
            assert process._popen.returncode == 0, process.text
            return
    pytest.fail(f"{STARTS} starts ended before the broker could answer")


def test_a_second_signal_does_not_wait_for_a_frozen_broker(
    own_broker: OwnBroker, tmp_path: Path
) -> None:
    environment = on(own_broker, "twice.")
    with started(tmp_path / "run.log", "run", **environment) as process:
        wait_until_ready(process, environment)
        with frozen(own_broker):
            send(process, signal.SIGTERM)
            process.printed("service_stopping", SOON_SECONDS)
            assert process.signalled(signal.SIGTERM)[0] == 128 + signal.SIGTERM, process.text


def test_a_broker_that_dies_kills_nobody(own_broker: OwnBroker, tmp_path: Path) -> None:
    """The last test on this broker."""
    environment = on(own_broker, "dies.")
    with started(tmp_path / "run.log", "run", **environment) as process:
        wait_until_ready(process, environment)
        own_broker.signalled(signal.SIGKILL)
        process.printed("Unable", 20)
        assert page(environment, "/healthz") == (200, "ok\n")
        assert process.signalled(signal.SIGTERM)[0] == 0, process.text


def test_with_a_token_only_who_has_it_reads_the_metrics(
    environment: dict[str, str], tmp_path: Path
) -> None:
    environment["CALLGAUGE_HTTP_TOKEN"] = TOKEN
    with started(tmp_path / "run.log", "run", "--roles", "exporter", **environment) as process:
        wait_until_ready(process, environment)
        assert page(environment, "/healthz")[0] == 200
        assert (
            page(environment, "/metrics")[0] == page(environment, "/metrics", "another")[0] == 401
        )
        assert page(environment, "/metrics", TOKEN)[0] == 200
        process.signalled(signal.SIGTERM)
        assert TOKEN not in process.text


@asynccontextmanager
async def transactions(environment: dict[str, str]) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(
        bootstrap_servers=environment["CALLGAUGE_BOOTSTRAP"],
        transactional_id=f"{environment['CALLGAUGE_TOPIC_PREFIX']}test",
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def write_scores(
    environment: dict[str, str],
    records: int,
    *,
    per_second: int,
    enough: asyncio.Event | None = None,
) -> int:
    """Writes so many records to `scores`, or until it is enough, in transactions; how many it
    wrote.

    It writes more in every fourth transaction, which is aborted and counts for none.
    """
    topic = f"{environment['CALLGAUGE_TOPIC_PREFIX']}scores"
    loop = asyncio.get_running_loop()
    async with transactions(environment) as producer:
        began_seconds = loop.time()
        written = 0
        for number in count(1):
            batch = min(BATCH, records - written)
            if batch == 0 or (enough is not None and enough.is_set()):
                break
            await producer.begin_transaction()
            for index in range(batch):
                name = f"c-{written + index}"
                await producer.send(
                    topic, encode(call("started", conversation_id=name)), name.encode()
                )
            if number % 4 == 0:
                await producer.abort_transaction()
                continue
            await producer.commit_transaction()
            written += batch
            await asyncio.sleep(began_seconds + written / per_second - loop.time())
        return written


async def write_ends(environment: dict[str, str]) -> None:
    """Writes a closed row to each partition of `scores`: an exporter that has counted them all has
    counted all before them.
    """
    topic = f"{environment['CALLGAUGE_TOPIC_PREFIX']}scores"
    async with transactions(environment) as producer, producer.transaction():
        for partition in range(PARTITIONS):
            row = closed(conversation_id=f"end-{partition}")
            await producer.send(topic, encode(row), b"end", partition=partition)


def wait_for_records(address: str, records: int) -> None:
    wait_for(f"{records} records counted", lambda: total(address, STARTED) >= records, 30)


def wait_for_ends(address: str) -> None:
    wait_for("the last records", lambda: total(address, ENDED) == PARTITIONS, 30)


def records_counted(process: Process) -> int:
    """The counts that a stopped exporter reported."""
    (line,) = [line for line in process.text.splitlines() if "exporter_stopped" in line]
    return int(json.loads(line)["records"])


def exporter(environment: dict[str, str], log: Path) -> AbstractContextManager[Process]:
    return started(log, "run", "--roles", "exporter", CALLGAUGE_LOG_FORMAT="json", **environment)


async def test_an_exporter_alone_counts_what_was_committed(
    environment: dict[str, str], tmp_path: Path
) -> None:
    await write_scores(environment, 50, per_second=1_000)  # the past of a new group is not counted
    with exporter(environment, tmp_path / "exporter.log") as process:
        address = await asyncio.to_thread(wait_until_ready, process, environment)
        await write_scores(environment, 500, per_second=10_000)
        await write_ends(environment)
        await asyncio.to_thread(wait_for_ends, address)
        assert total(address, STARTED) == 500
        assert process.signalled(signal.SIGTERM)[0] == 0
        assert records_counted(process) == 500 + PARTITIONS
        assert all(json.loads(line)["event"] for line in process.text.splitlines()), (
            "every line is a log line"
        )


async def test_a_group_that_counted_nothing_yet_keeps_its_place(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with exporter(environment, tmp_path / "first.log") as process:
        await asyncio.to_thread(wait_until_ready, process, environment)
        process.signalled(signal.SIGTERM)
    await write_scores(environment, 50, per_second=1_000)
    with exporter(environment, tmp_path / "second.log") as process:
        address = await asyncio.to_thread(wait_until_ready, process, environment)
        await asyncio.to_thread(wait_for_records, address, 50)


async def test_graceful_restarts_neither_lose_nor_double(
    environment: dict[str, str], tmp_path: Path
) -> None:
    counted: list[int] = []
    enough = asyncio.Event()
    writing = None
    for life in range(LIVES):
        with exporter(environment, tmp_path / f"{life}.log") as process:
            address = await asyncio.to_thread(wait_until_ready, process, environment)
            writing = writing or asyncio.create_task(
                write_scores(environment, MOST_RECORDS, per_second=PER_SECOND, enough=enough)
            )
            await asyncio.to_thread(wait_for_records, address, PER_SECOND)
            assert not writing.done(), "every restart is in the middle of the load"
            if life == LIVES - 1:
                enough.set()
                await writing
                await write_ends(environment)
                await asyncio.to_thread(wait_for_ends, address)
            exit_code, _ = await asyncio.to_thread(process.signalled, signal.SIGTERM)
            assert exit_code == 0
            counted.append(records_counted(process))
    assert writing is not None
    assert sum(counted) == writing.result() + PARTITIONS, counted


async def test_kill_9_loses_nothing_and_doubles_a_commit_interval_at_most(
    environment: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after, per_second = 2_000, 500, PER_SECOND
    with exporter(environment, tmp_path / "first.log") as process:
        address = await asyncio.to_thread(wait_until_ready, process, environment)
        writing = asyncio.create_task(write_scores(environment, before, per_second=per_second))
        await asyncio.to_thread(wait_for_records, address, before)
        await asyncio.to_thread(process.signalled, signal.SIGKILL)
        await writing
    await write_scores(environment, after, per_second=10_000)
    await write_ends(environment)
    with exporter(environment, tmp_path / "second.log") as process:
        address = await asyncio.to_thread(wait_until_ready, process, environment)
        await asyncio.to_thread(wait_for_ends, address)
        await asyncio.to_thread(process.signalled, signal.SIGTERM)
        doubled = records_counted(process) - after - PARTITIONS
    with capsys.disabled():
        print(f" [counted by both: {doubled} at {per_second}/s]", end="")
    assert 0 <= doubled <= per_second * 1.5
