"""The faults of the chaos run: their plan, the poison, and the tools that make the faults."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.memory_records import MemoryRecords

from consumers.engine.admission import Arrival, admit
from consumers.engine.limits import Limits
from schemas.closed_sets import InputSource
from tests.chaos.cluster.proxy import Door, Way
from tests.chaos.evaluators import stepped_clock
from tests.chaos.faults.fault_kinds import HARM
from tests.chaos.faults.faults import ON_SEVERAL, ONCE, SEVERAL_BROKERS, USUAL, Fault, planned
from tests.chaos.load.foreign import is_foreign
from tests.chaos.load.heavy_call import heavy_call
from tests.chaos.load.poison import Cook, Kind
from tests.chaos.load.raw_batch import RawRecord, batch
from tests.chaos.verdict.deleted_records import DeletedRecords, with_deleted
from tests.chaos.verdict.log_check import InputRecord
from tests.chaos.verdict.topic_reader import ReadRecord
from tests.support.patience import patient

NOW_MS = 1_790_000_000_000


def test_a_short_run_has_every_fault_and_a_long_one_has_them_in_proportion() -> None:
    short = list(planned(5, seconds=1_000, mean_spacing_seconds=10, pack=ON_SEVERAL))
    assert (
        short
        == list(planned(5, seconds=1_000, mean_spacing_seconds=10, pack=ON_SEVERAL))
        != list(planned(6, seconds=1_000, mean_spacing_seconds=10, pack=ON_SEVERAL))
    )
    assert {fault for _, fault in short[: len(Fault)]} == set(Fault)
    times = [at for at, _ in short]
    assert times == sorted(times)
    assert 60 < len(times) < 160
    long = Counter(
        fault for _, fault in planned(5, seconds=100_000, mean_spacing_seconds=10, pack=ON_SEVERAL)
    )
    assert long[Fault.KILL] > 2 * long[Fault.BROKER_KILLED] > 0
    assert {long[fault] for fault in ONCE} == {1}


def test_every_fault_is_done_by_something_that_says_what_must_hold() -> None:
    assert set(HARM) == set(ON_SEVERAL) == set(Fault) == set(USUAL) | SEVERAL_BROKERS
    assert all(harm.__doc__ for harm in HARM.values())


def test_poison_has_every_kind_and_what_is_to_be_refused_is_refused() -> None:
    cook = Cook(random.Random(1))  # noqa: S311  # play, not secrets
    kinds: set[Kind] = set()
    for offset in range(100):
        poison = cook.draw(b"call-1", NOW_MS)
        kinds.add(poison.kind)
        if poison.kind is Kind.FOREIGN:
            assert is_foreign(poison.key)
        elif poison.raw is None:
            record = InputRecord("topic", 0, offset, NOW_MS, poison.key, poison.value)
            is_admitted = isinstance(admit(InputSource(poison.source), record, Limits()), Arrival)
            assert is_admitted == (poison.kind is Kind.ODD_KEY), poison.kind
    assert kinds == set(Kind)


def test_a_batch_made_by_hand_is_what_a_client_reads() -> None:
    records = [
        RawRecord(b"k", b"v", [(b"h", b"x")]),
        RawRecord(None, None),
        RawRecord(b"", b"w" * 300),
    ]
    for is_compressed in (False, True):
        read = MemoryRecords(batch(records, is_compressed=is_compressed)).next_batch()
        assert read.validate_crc()
        assert [(each.offset, each.key, each.value, list(each.headers)) for each in read] == [
            (0, b"k", b"v", [("h", b"x")]),
            (1, None, None, []),
            (2, b"", b"w" * 300, []),
        ]


def test_a_heavy_call_is_inside_every_limit() -> None:
    limits = Limits()
    events = list(heavy_call(NOW_MS))
    for offset, (source, value) in enumerate(events):
        arrival = admit(
            InputSource(source), InputRecord("topic", 0, offset, NOW_MS, b"heavy", value), limits
        )
        assert isinstance(arrival, Arrival), arrival
    kept_bytes = sum(len(value) for _, value in events)
    assert limits.max_kept_bytes_per_call / 2 < kept_bytes < limits.max_kept_bytes_per_call
    assert sum(b'"audio_start"' in value for _, value in events) / 2 < limits.max_turns_per_call


def test_what_is_deleted_is_kept_with_each_life_of_its_topic(tmp_path: Path) -> None:
    kept = DeletedRecords(tmp_path / "deleted")
    records = [
        ReadRecord(
            3, n, NOW_MS + n, b"call-%d" % n, b"\xff" if n else None, (("h", b"\x00"),) * (n % 2)
        )
        for n in range(6)
    ]
    kept.keep("audit.events", 3, records[:2])
    kept.keep("audit.events", 3, records[2:4])
    assert list(kept.of("audit.events", 3)) == records[:4]
    assert list(kept.of("audit.events", 4)) == []
    assert list(with_deleted(kept.of("audit.events", 3), records[3:])) == records
    kept.made["audit.events"] = 1
    kept.keep("audit.events", 3, records[:1])
    assert list(kept.of("audit.events", 3, 1)) == records[:1]
    assert list(kept.of("audit.events", 3)) == records[:4]


def test_a_clock_steps_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("time", "time_ns"):
        monkeypatch.setattr(time, name, getattr(time, name))  # puts the right ones back in the end
    right = time.time
    clock = tmp_path / "clock"
    stepped_clock.step(clock, 0)
    stepped_clock.install(clock)
    for seconds in (0, 600, -600, 0):
        stepped_clock.step(clock, seconds)
        times = right(), time.time() - seconds, time.time_ns() / 1e9 - seconds, right()
        assert list(times) == pytest.approx(sorted(times), abs=1e-3)


@contextlib.asynccontextmanager
async def through(door: Door) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection through a door to a server that echoes everything."""
    serving: list[asyncio.Task[None]] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(100):
                writer.write(data)
        writer.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await door.serve(reader, writer, *broker.sockets[0].getsockname())

    def task_of(handle: Any) -> Any:
        return lambda reader, writer: serving.append(asyncio.create_task(handle(reader, writer)))

    broker = await asyncio.start_server(task_of(echo), "127.0.0.1")
    proxy = await asyncio.start_server(task_of(serve), "127.0.0.1")
    async with broker, proxy:
        reader, writer = await asyncio.open_connection(*proxy.sockets[0].getsockname())
        try:
            yield reader, writer
        finally:
            writer.close()
            await asyncio.gather(*serving)


async def test_a_door_holds_back_and_lets_go() -> None:
    door = Door()
    async with asyncio.timeout(patient(10)), through(door) as (reader, writer):
        for way in (Way.OPEN, Way.SLOW, Way.HOLE, Way.NOT_TO_BROKER, Way.NOT_FROM_BROKER):
            door.change(way, 1)
            writer.write(way.encode())
            if way not in {Way.OPEN, Way.SLOW}:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(reader.read(100), 0.05)
                door.change(Way.OPEN, 0)
            assert await reader.readexactly(len(way)) == way.encode()


@pytest.mark.parametrize("way", [Way.CUT, Way.REFUSED, Way.HALF_OPEN])
async def test_a_door_cuts(way: Way) -> None:
    door = Door()
    async with asyncio.timeout(patient(10)), through(door) as (reader, writer):
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        door.change(way, 0)
        if way is Way.HALF_OPEN:
            writer.write(b"b")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(100), 0.05)
            door.change(Way.OPEN, 0)
        with contextlib.suppress(ConnectionError):
            assert await reader.read(100) == b""
