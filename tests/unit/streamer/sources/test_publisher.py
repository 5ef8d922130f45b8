"""Wire events are published when they are due, keyed and numbered, and a broker that is away is
reported plainly.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, MessageSizeTooLargeError

from consumers.runtime.kafka import connection as kafka_module
from consumers.runtime.kafka.connection import KafkaSettings, KafkaUnreachableError
from schemas.events.envelope import read_envelope
from schemas.events.simulator import Source
from schemas.log import OutgoingRecord
from streamer.sources import publisher as publisher_module
from streamer.sources.publisher import (
    MAX_TRIES,
    EventPublisher,
    PlayProgress,
    PublishError,
    Write,
    play,
    record_of,
    topics_of,
)
from streamer.sources.replay import PlayedCall, WireEvent
from tests.support.fakes.evaluator_fakes import until_idle

NOW_MS = 1_790_000_000_000
HOST = KafkaSettings(bootstrap_servers="host:1")


class VirtualTime:
    """A clock that moves only during a sleep."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def clock(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class RecordingPublisher:
    def __init__(self, time: VirtualTime) -> None:
        self.sent: list[tuple[float, str, int]] = []
        self.flushed_after = -1
        self._time = time

    async def publish(self, conversation_id: str, event: WireEvent) -> None:
        self.sent.append((round(self._time.seconds - 100, 6), conversation_id, event.sequence))

    async def flush(self) -> None:
        self.flushed_after = len(self.sent)


def played(name: str, *arrivals_ms: int, start_offset_ms: int = 0) -> PlayedCall:
    numbered = enumerate(arrivals_ms, start=1)
    events = tuple(
        WireEvent("audit", b"{}", at_ms, "user", number, at_ms) for number, at_ms in numbered
    )
    return PlayedCall(name, events, start_offset_ms)


async def sent_by(
    *calls: PlayedCall, speed: float | None, **more: Any
) -> list[tuple[float, str, int]]:
    time = VirtualTime()
    publisher = RecordingPublisher(time)
    await play(calls, publisher, speed=speed, clock=time.clock, sleep=time.sleep, **more)
    assert publisher.flushed_after == len(publisher.sent)
    return publisher.sent


async def test_calls_are_played_side_by_side_from_their_own_start() -> None:
    first, second = (
        played("a", 5_000, 7_000, 7_000),
        played("b", 90_000, 91_000, start_offset_ms=500),
    )
    expected = [(0.0, "a", 1), (0.5, "b", 1), (1.5, "b", 2), (2.0, "a", 2), (2.0, "a", 3)]
    assert await sent_by(first, second, speed=1) == expected
    assert await sent_by(first, second, speed=2) == [
        (at / 2, name, number) for at, name, number in expected
    ]
    assert await sent_by(first, second, speed=None) == [
        (0.0, name, number) for _, name, number in expected
    ]


async def test_a_later_start_waits_also_when_nothing_else_is_played() -> None:
    sent = await sent_by(
        played("a", 0), played("b", 0, start_offset_ms=4_000), played("empty"), speed=1
    )
    assert sent == [(0.0, "a", 1), (4.0, "b", 1)]


async def test_when_all_places_are_taken_the_next_call_waits_and_keeps_its_pace() -> None:
    calls = [played(name, 0, 1_000) for name in "abc"]
    sent = await sent_by(*calls, speed=1, max_open_calls=2)
    assert sent == [
        (0.0, "a", 1),
        (0.0, "b", 1),
        (1.0, "a", 2),
        (1.0, "b", 2),
        (1.0, "c", 1),
        (2.0, "c", 2),
    ]


async def test_calls_are_taken_as_they_start() -> None:
    taken: list[int] = []

    def endless() -> Iterator[PlayedCall]:
        for number in range(1_000_000):
            taken.append(number)
            yield played(str(number), 0, start_offset_ms=number * 1000)

    class Stop(Exception):  # noqa: N818 - any exception that ends a run
        pass

    def stop_at_third(progress: PlayProgress) -> None:
        if progress.events_published == 3:
            raise Stop

    with pytest.raises(Stop):
        await sent_by_iterator(endless(), stop_at_third)
    assert len(taken) <= 4


async def sent_by_iterator(
    calls: Iterator[PlayedCall], on_progress: Callable[[PlayProgress], None]
) -> None:
    time = VirtualTime()
    await play(
        calls,
        RecordingPublisher(time),
        speed=1,
        on_progress=on_progress,
        clock=time.clock,
        sleep=time.sleep,
    )


async def test_progress_counts_calls_and_events() -> None:
    seen: list[PlayProgress] = []
    await sent_by(played("a", 0, 100), played("b", 0), speed=1, on_progress=seen.append)
    assert seen == [PlayProgress(1, 0, 1, 0), PlayProgress(2, 1, 2, 0), PlayProgress(2, 2, 3, 100)]


@pytest.mark.parametrize("speed", [0, -1, float("inf"), float("nan")])
async def test_a_speed_that_is_none_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="speed is"):
        await sent_by(speed=speed)


async def test_cancelling_leaves_at_once_and_does_not_flush() -> None:
    time = VirtualTime()
    publisher = RecordingPublisher(time)
    forever: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    asleep = asyncio.Event()

    async def sleep(_: float) -> None:
        asleep.set()
        await forever

    playing = asyncio.create_task(
        play([played("a", 0, 60_000)], publisher, speed=1, clock=time.clock, sleep=sleep)
    )
    await asleep.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert (len(publisher.sent), publisher.flushed_after) == (1, -1)


def headers_of(source: Source, name: str, time_ms: int = NOW_MS) -> dict[str, bytes]:
    return dict(
        record_of(
            "call-1", WireEvent(source, b"{}", time_ms, name, 7, time_ms), "callgauge.replay"
        ).headers
    )


def test_headers_are_cloudevents() -> None:
    assert headers_of("elevenlabs", "audio_start") == {
        "ce_specversion": b"1.0",
        "ce_id": b"call-1/elevenlabs/7",
        "ce_source": b"callgauge.replay",
        "ce_type": b"callgauge.user_sim.audio_start.v1",
        "ce_subject": b"call-1",
        "ce_sequence": b"7",
        "ce_time": b"2026-09-21T14:13:20.000+00:00",
        "content-type": b"application/json",
    }
    assert headers_of("pipecat", "tts_text")["ce_type"] == b"callgauge.pipecat.tts_text.v1"
    assert headers_of("audit", "user")["ce_type"] == b"callgauge.audit.user.v1"
    assert headers_of("audit", "call_started")["ce_type"] == b"callgauge.call.call_started.v1"
    assert "ce_time" not in headers_of("audit", "user", 10**18)


def test_what_a_real_agent_says_is_of_a_type_of_its_own() -> None:
    event = WireEvent(
        "elevenlabs", b"{}", NOW_MS, "user_transcript", 7, NOW_MS, is_agent_event=True
    )
    headers = dict(record_of("call-1", event, "callgauge.replay").headers)
    assert headers["ce_type"] == b"callgauge.elevenlabs.user_transcript.v1"
    envelope = read_envelope(list(headers.items()))
    assert envelope is not None
    assert envelope.is_agent_event


class FakeProducer:
    """Takes records like aiokafka's producer, and acknowledges them unless it fails."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.records: list[tuple[str, Mapping[str, Any]]] = []
        self.failure: Exception | None = None
        self.tries = 0
        self.stopped = False

    async def start(self) -> None:
        if self.options["bootstrap_servers"] == "nowhere:1":
            raise KafkaConnectionError("nobody there")

    async def stop(self) -> None:
        self.stopped = True

    async def send(self, topic: str, **record: Any) -> "asyncio.Future[None]":
        self.tries += 1
        if record["value"] == b"huge":
            raise MessageSizeTooLargeError("5 MB")
        self.records.append((topic, record))
        acknowledged = asyncio.get_running_loop().create_future()
        if self.failure is None:
            acknowledged.set_result(None)
        else:
            acknowledged.set_exception(self.failure)
        return acknowledged


@pytest.fixture
def producers(monkeypatch: pytest.MonkeyPatch) -> list[FakeProducer]:
    made: list[FakeProducer] = []

    def make(**options: Any) -> FakeProducer:
        made.append(FakeProducer(**options))
        return made[-1]

    monkeypatch.setattr(kafka_module, "AIOKafkaProducer", make)
    return made


def user_event(value: bytes = b"{}") -> WireEvent:
    return WireEvent("audit", value, NOW_MS, "user", 1, NOW_MS)


async def test_records_are_keyed_by_conversation_and_sent_idempotently(
    producers: list[FakeProducer],
) -> None:
    kafka = KafkaSettings(bootstrap_servers="host:1", topic_prefix="dev.")
    async with EventPublisher(topics_of(kafka), "s") as publisher:
        await publisher.publish("call-1", user_event())
        await publisher.flush()
    (producer,) = producers
    ((topic, record),) = producer.records
    assert (topic, record["key"], record["value"]) == ("dev.audit.events", b"call-1", b"{}")
    assert producer.options["enable_idempotence"] is True
    assert producer.options["transactional_id"] is None
    assert producer.stopped


async def test_no_broker_is_said_plainly(producers: list[FakeProducer]) -> None:
    nowhere = EventPublisher(topics_of(KafkaSettings(bootstrap_servers="nowhere:1")), "s")
    with pytest.raises(
        KafkaUnreachableError,
        match=r"no broker answers at nowhere:1: nobody there\. .* Check the address",
    ):
        await nowhere.__aenter__()
    assert producers[0].stopped


async def started() -> EventPublisher:
    return await EventPublisher(topics_of(HOST), "s").__aenter__()


async def test_a_write_that_failed_surfaces_at_the_next_call(producers: list[FakeProducer]) -> None:
    publisher = await started()
    producers[0].failure = KafkaConnectionError("gone")
    await publisher.publish("call-1", user_event())
    for action in (
        publisher.flush(),
        publisher.publish("call-1", user_event()),
        publisher.__aexit__(None, None, None),
    ):
        with pytest.raises(PublishError, match=r"Kafka at host:1 did not acknowledge .*: gone"):
            await action
    assert len(producers[0].records) == MAX_TRIES


async def test_an_error_that_is_on_its_way_says_more(producers: list[FakeProducer]) -> None:
    publisher = await started()
    producers[0].failure = KafkaConnectionError("gone")
    await publisher.publish("call-1", user_event())
    await publisher.__aexit__(ValueError, ValueError("says more"), None)
    assert producers[0].stopped


async def test_a_record_that_can_never_be_sent_is_tried_once(producers: list[FakeProducer]) -> None:
    publisher = await started()
    await publisher.publish("call-1", user_event(b"huge"))
    with pytest.raises(PublishError, match="MessageSizeTooLarge"):
        await publisher.flush()
    await publisher.__aexit__(ValueError, ValueError(), None)
    assert producers[0].tries == 1


async def test_only_so_many_events_wait_and_the_last_ones_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher_module, "MAX_WAITING", 2)
    monkeypatch.setattr(publisher_module, "MAX_BATCH", 1)
    monkeypatch.setattr(publisher_module, "CLOSE_SECONDS", 0.01)
    goes_on, written = asyncio.Event(), list[bytes]()

    @asynccontextmanager
    async def opening() -> AsyncIterator[Write]:
        async def write(records: Sequence[OutgoingRecord]) -> None:
            await goes_on.wait()
            written.extend(record.value for record in records)

        yield write

    publisher = await EventPublisher(opening(), "s").__aenter__()
    await publisher.publish("c", user_event(b"1"))
    await until_idle()
    for value in (b"2", b"3"):
        await publisher.publish("c", user_event(value))
    fourth = asyncio.create_task(publisher.publish("c", user_event(b"4")))
    await until_idle()
    assert not fourth.done()
    goes_on.set()
    await fourth
    await publisher.flush()
    assert written == [b"1", b"2", b"3", b"4"]
    goes_on.clear()
    await publisher.publish("c", user_event(b"5"))
    with pytest.raises(PublishError, match="not acknowledged"):
        await publisher.__aexit__(None, None, None)
