"""Refused records on a real broker: seen, shown, and after a fix put back so that their call has
them.
"""

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import RecordsToDelete

from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import wall_clock_ms
from streamer.cluster.readers import Coordinates, RecordGoneError, record_reader
from streamer.quarantine import Wanted, quarantined
from tests.integration.metrics_page import total
from tests.integration.processes import ended, started, wait_for
from tests.integration.score_log import records_on
from tests.integration.test_bad_input import line
from tests.support.brokers.topic_changes import admin_of
from tests.support.patience import patient

DAY_MS = 24 * 3_600_000
NO_TIME_BOUNDS = {"CALLGAUGE_LIMITS__MAX_EVENT_TIME_SKEW_MS": "0"}
"""The fix: records refused for their time are accepted."""

pytestmark = pytest.mark.service(partitions=2, limits__closing_grace_ms="500")


def kafka_of(environment: dict[str, str]) -> KafkaSettings:
    return KafkaSettings(
        bootstrap_servers=environment["CALLGAUGE_BOOTSTRAP"],
        topic_prefix=environment["CALLGAUGE_TOPIC_PREFIX"],
    )


def quarantine(environment: dict[str, str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, results and messages of `callgauge quarantine`."""
    return ended("quarantine", *arguments, **environment)


def listed(environment: dict[str, str], *filters: str) -> list[dict[str, Any]]:
    code, out, err = quarantine(environment, "list", "--json", *filters)
    assert code == 0, err
    return [json.loads(each) for each in out.splitlines()]


async def has_ticked(environment: dict[str, str]) -> None:
    """Waits until the log has a tick behind all its events: a call that opens later is folded from
    there on.
    """
    end = time.monotonic() + patient(20)
    while time.monotonic() < end:
        found: dict[int, bool] = {}
        for record in await records_on(environment, "events"):
            found[record.partition] = record.key is None
        if found and all(found.values()):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("no tick came behind the events")


async def test_a_refused_record_comes_into_its_call_once(
    environment: dict[str, str], producer: AIOKafkaProducer, tmp_path: Path
) -> None:
    """Events are refused for their time, and the limit is raised. All are put back, even twice; one
    of them stands behind the place from which a new evaluator folds, and is taken there too. The
    call has each once.
    """
    prefix = environment["CALLGAUGE_TOPIC_PREFIX"]
    topic = f"{prefix}pipecat.events"
    old = [
        line(timestamp=wall_clock_ms() - 40 * DAY_MS, data={"frame": f"word {number}"})
        for number in range(3)
    ]
    with started(tmp_path / "strict.log", "run", **environment) as strict:
        address = strict.metrics()
        for value in old[:2]:
            await producer.send_and_wait(
                topic, value, key=b"c", partition=1, headers=[("odd", b"\xff")]
            )
        wait_for("both refusals", lambda: total(address, "callgauge_quarantined_total") == 2, 20)
        await has_ticked(environment)
        await producer.send_and_wait(topic, line(), key=b"c", partition=1)
        await producer.send_and_wait(topic, old[2], key=b"c", partition=1)
        await producer.send_and_wait(f"{prefix}audit.events", b"{", key=b"other", partition=0)
        wait_for("the refusals", lambda: total(address, "callgauge_quarantined_total") == 4, 20)
        assert strict.signalled(signal.SIGTERM)[0] == 0

    entries = listed(environment)
    places = [f"{topic}[1]@{offset}" for offset in (0, 1, 3)]
    assert [entry["record"] for entry in entries] == [*places, f"{prefix}audit.events[0]@0"]
    filters = ("--topic", "pipecat.events", "--conversation", "c", "--since", "1h", "--limit", "1")
    assert [entry["record"] for entry in listed(environment, *filters)] == [places[2]]
    code, table, told = quarantine(environment, "list")
    assert code == 0
    assert all(part in table for part in (*places, "time_out_of_bounds", "undecodable"))
    code, shown, _ = quarantine(environment, "show", "pipecat.events[1]@0")
    assert code == 0
    assert all(
        part in shown for part in (places[0], "the event's time is far", "odd: \\xff", "word 0")
    )
    assert "would be refused again" in shown
    assert "would be taken" in quarantine(environment | NO_TIME_BOUNDS, "show", places[0])[1]

    # With the old limit nothing is appended: it would only be refused once more.
    code, out, told = quarantine(environment, "replay", "--all", "--yes")
    assert (code, out.count("would be refused again")) == (1, 4)
    assert "max_event_time_skew_ms" in told
    fixed = environment | NO_TIME_BOUNDS
    code, out, told = quarantine(fixed, "replay", "--reason", "time_out_of_bounds", "--dry-run")
    assert (code, out.splitlines()) == (0, [f"{place}: would be put back" for place in places])
    code, out, told = quarantine(fixed, "replay", "--reason", "time_out_of_bounds")
    assert (code, out) == (1, "")
    assert "give --yes" in told
    assert len(await records_on(environment, "pipecat.events", 1)) == 4

    for number in (4, 7):
        code, out, told = quarantine(fixed, "replay", "--reason", "time_out_of_bounds", "--yes")
        assert code == 0, out + told
        assert out.splitlines() == [
            f"{each}: put back as {topic}[1]@{number + at}" for at, each in enumerate(places)
        ]
    back = (await records_on(environment, "pipecat.events", 1))[4:]
    assert [record.value for record in back] == old * 2
    assert {record.key for record in back} == {b"c"}
    assert dict(back[0].headers) == {"odd": b"\xff", "callgauge_replay_of": places[0].encode()}

    with started(tmp_path / "fixed.log", "run", **fixed) as process:
        address = process.metrics()
        wait_for(
            "the repeats",
            lambda: total(address, "callgauge_events_total", outcome="repeated") == 4,
            20,
        )
        of_call = {"source": "pipecat"}
        outcomes = ("folded", "late", "replayed")
        taken = [
            total(address, "callgauge_events_total", outcome=how, **of_call) for how in outcomes
        ]
        assert sum(taken) == 4, (
            "the one that was never refused, the one in its place, and two that were put back"
        )
        end = json.dumps({"type": "call_ended", "timestamp": wall_clock_ms()}).encode()
        await producer.send_and_wait(topic, end, key=b"c", partition=1)
        wait_for("its end", lambda: total(address, "callgauge_calls_ended_total") == 1, 20)
        code, out, _ = quarantine(fixed, "replay", places[0])
        assert (
            code,
            out.startswith(f"{places[0]}: not put back: its call has closed (ended,"),
        ) == (1, True)
        assert len(await records_on(environment, "pipecat.events", 1)) == 11, (
            "nothing was appended for it"
        )


async def test_a_record_that_is_gone_is_told_and_the_others_are_put_back(
    environment: dict[str, str], producer: AIOKafkaProducer, tmp_path: Path
) -> None:
    topic = f"{environment['CALLGAUGE_TOPIC_PREFIX']}pipecat.events"
    old = line(timestamp=wall_clock_ms() - 40 * DAY_MS)
    with started(
        tmp_path / "run.log", "run", "--roles", "sequencer,evaluator", **environment
    ) as process:
        address = process.metrics()
        for partition in (0, 0, 1):
            await producer.send_and_wait(topic, old, key=b"c", partition=partition)
        wait_for("the refusals", lambda: total(address, "callgauge_quarantined_total") == 3, 20)
        fixed = environment | NO_TIME_BOUNDS
        wait_for(  # a refusal is counted a little before its entry is committed
            "the entries",
            lambda: (
                quarantine(fixed, "replay", "--all", "--dry-run")[1].count("would be put back") == 3
            ),
            20,
        )
        assert process.signalled(signal.SIGTERM)[0] == 0
    async with admin_of(environment["CALLGAUGE_BOOTSTRAP"]) as admin:
        await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=1)})
    code, out, _ = quarantine(fixed, "replay", "--all", "--yes")
    assert code == 1
    gone, *done = sorted(out.splitlines())
    assert gone == (
        f"{topic}[0]@0: not put back: retention took it: the oldest record that {topic}[0] has "
        "is @1"
    )
    assert done == [
        f"{topic}[0]@1: put back as {topic}[0]@2",
        f"{topic}[1]@0: put back as {topic}[1]@1",
    ]
    code, shown, told = quarantine(fixed, "show", f"{topic}[0]@0")
    assert code == 1
    assert "the event's time is far" in shown
    assert "retention took it" in told
    code, out, _ = quarantine(fixed, "replay", f"{topic}[1]@77")
    assert (code, out) == (1, f"{topic}[1]@77: not put back: it is not in quarantine\n")


async def test_what_is_no_record_is_told_apart(environment: dict[str, str], bootstrap: str) -> None:
    """A transaction's marker has an offset, and so have the records of an aborted one."""
    topic = f"{environment['CALLGAUGE_TOPIC_PREFIX']}audit.events"
    writer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{topic}-writer")
    async with writer:
        async with writer.transaction():
            await writer.send_and_wait(topic, b"committed", partition=0)  # offset 0, its marker 1
        await writer.begin_transaction()
        await writer.send_and_wait(topic, b"aborted", partition=0)  # offset 2, its marker 3
        await writer.abort_transaction()
    async with record_reader(kafka_of(environment)) as reader:
        assert (await reader.read(Coordinates(topic, 0, 0))).value == b"committed"
        for offset, why in (
            (1, "marker"),
            (2, "nothing readable"),
            (3, "marker"),
            (4, "ends before @4"),
        ):
            with pytest.raises(RecordGoneError, match=why):
                await reader.read(Coordinates(topic, 0, offset))
        assert (await reader.read(Coordinates(topic, 0, 0))).offset == 0, "back again"
        for nowhere in (Coordinates(topic, 9, 0), Coordinates("elsewhere", 0, 0)):
            with pytest.raises(RecordGoneError, match="no partition of callgauge's topics"):
                await reader.read(nowhere)


async def test_only_what_was_committed_is_read_up_to_the_end(
    environment: dict[str, str], bootstrap: str
) -> None:
    """Quarantine is written in transactions: their markers are passed, aborted records are not
    seen.
    """
    kafka = kafka_of(environment)
    topic = kafka.topic("quarantine")
    entry = {
        "topic": kafka.topic("audit.events"),
        "partition": 0,
        "key": "c",
        "reason": "undecodable",
        "what": "w",
        "expected_and_seen": "e",
        "what_happens_now": "n",
        "what_to_do": "t",
    }
    assert (await quarantined(kafka, Wanted(), most=10)).matching == 0
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=f"{topic}-writer"
    ) as writer:
        for offset in range(6):
            await writer.begin_transaction()
            value = json.dumps(
                {**entry, "offset": offset, "quarantined_at_ms": wall_clock_ms()}
            ).encode()
            await writer.send_and_wait(topic, value, partition=offset % 2)
            await (writer.abort_transaction() if offset >= 4 else writer.commit_transaction())
    for wanted in (Wanted(), Wanted(since_ms=wall_clock_ms() - 60_000)):
        found = await quarantined(kafka, wanted, most=10)
        assert [each.offset for each in found.newest] == [0, 1, 2, 3]
    assert (
        await quarantined(kafka, Wanted(since_ms=wall_clock_ms() + 2 * 3_600_000), most=10)
    ).newest == []
