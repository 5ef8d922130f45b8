"""Sends events to the topics: one writer, and recorded or simulated calls in real time."""

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from aiokafka.errors import KafkaError

from consumers.runtime.kafka.connection import KafkaSettings, require_access
from consumers.runtime.process import OperatorError, first_of, in_time
from schemas.log import OutgoingRecord
from schemas.topics import TOPIC_BY_SOURCE
from streamer.cluster.facts import TRAFFIC_NEEDS
from streamer.facts import MAX_OPEN_CALLS
from streamer.settings.all_settings import Settings
from streamer.signals import over_after, stop_on_signals
from streamer.sources.outgoing import outgoing
from streamer.sources.replay import PlayedCall, WireEvent
from streamer.sources.writer import CLOSE_SECONDS, connected

# Puts wire events on the input topics, paced like the calls they belong to.

MAX_UNACKNOWLEDGED_SENDS: Final = 10_000
"""Records handed to the client and not yet acknowledged; publishing waits when there are more."""


class PublishError(OperatorError):
    """Records could not be put on a topic; some of the earlier records may be missing too."""


class Publishes(Protocol):
    """A publisher, as playing calls needs it."""

    async def publish(self, conversation_id: str, event: WireEvent) -> None:
        """Sends one event; waits while too many are on their way."""

    async def flush(self) -> None:
        """Waits until all sent events are acknowledged."""


class EventPublisher:
    """Sends wire events to Kafka: idempotent, in order for each call, with a bounded number on
    their way.

    The record's own timestamp is left to the client: it says when the record was sent.
    """

    def __init__(self, kafka: KafkaSettings, *, ce_source: str) -> None:
        """Connected inside `async with`; `ce_source` names the producer, for example
        `callgauge.replay`.
        """
        self._kafka = kafka
        self._ce_source = ce_source
        self._topics = {source: kafka.topic(topic) for source, topic in TOPIC_BY_SOURCE.items()}
        self._free_sends = asyncio.Semaphore(MAX_UNACKNOWLEDGED_SENDS)
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Self:
        """Connects.

        Raises:
            KafkaUnreachableError: No broker answers at the address.
        """
        self._producer = await connected(self._kafka, "streamer")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Sends the remaining events, for at most `CLOSE_SECONDS`, and disconnects.

        Raises:
            PublishError: Something was not acknowledged, now or before. An error that is already on
                its way says more.
        """
        try:
            await in_time(CLOSE_SECONDS, self._producer.stop())  # flushes first
        except (TimeoutError, KafkaError) as failure:
            self._failure = self._failure or failure
        if error is None:
            self._require_no_failure()

    async def publish(
        self, conversation_id: str, event: WireEvent, *, sent_ms: int | None = None
    ) -> None:
        """Hands one event to the client, in order; waits while `MAX_UNACKNOWLEDGED_SENDS` are on
        their way.

        Args:
            conversation_id: The key.
            event: The event.
            sent_ms: The record's own timestamp in epoch milliseconds; None is now.

        Raises:
            PublishError: This or an earlier event could not be sent.
        """
        self._require_no_failure()
        source, key, value, headers = record_of(conversation_id, event, self._ce_source)
        await self._free_sends.acquire()
        try:
            acknowledged = await self._producer.send(
                self._topics[source], value=value, key=key, headers=headers, timestamp_ms=sent_ms
            )
        except BaseException as error:
            self._free_sends.release()
            if isinstance(error, KafkaError):
                self._failure = error
                self._require_no_failure()
            raise
        acknowledged.add_done_callback(self._on_acknowledged)

    async def flush(self) -> None:
        """Waits until every event is acknowledged.

        Raises:
            PublishError: One of them was not.
        """
        self._require_no_failure()
        await self._producer.flush()
        # the callbacks of the last acknowledgements run in the next round of the loop
        await asyncio.sleep(0)
        self._require_no_failure()

    def _on_acknowledged(self, acknowledged: "asyncio.Future[Any]") -> None:
        self._free_sends.release()
        error = None if acknowledged.cancelled() else acknowledged.exception()
        self._failure = self._failure or error

    def _require_no_failure(self) -> None:
        if self._failure is not None:
            # Kafka's errors name their class in their text
            seen = str(self._failure) or type(self._failure).__name__
            raise PublishError(
                f"Events could not be sent to Kafka at {self._kafka.bootstrap_servers}:\n"
                f"  expected every record to be acknowledged; seen {seen}.\n"
                "  Sending stops here; events sent just before may be missing.\n"
                "  Check that the broker runs at this address and that the topics exist."
            ) from self._failure


def record_of(conversation_id: str, event: WireEvent, ce_source: str) -> OutgoingRecord:
    """The record of an event; its id comes from the call, the source and the number only, so a
    repeat has the same one.
    """
    return outgoing(
        event.source,
        conversation_id,
        event.value,
        name=event.event_name,
        event_id=f"{conversation_id}/{event.source}/{event.sequence}",
        ce_source=ce_source,
        time_ms=event.time_ms,
        sequence=event.sequence,
        is_agent_event=event.is_agent_event,
    )


@dataclass(frozen=True, slots=True)
class PlayProgress:
    """How far playing got.

    Attributes:
        calls_started: Calls of which the first event was sent.
        calls_finished: Calls of which the last event was sent.
        events_published: Events handed to the publisher.
        position_ms: Call time since the playback began.
    """

    calls_started: int
    calls_finished: int
    events_published: int
    position_ms: int


async def play(
    calls: Iterable[PlayedCall],
    publisher: Publishes,
    *,
    speed: float | None,
    on_progress: Callable[[PlayProgress], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    max_open_calls: int = MAX_OPEN_CALLS,
) -> PlayProgress:
    """Publishes the events of many calls side by side, each when it is due, and waits for the
    acknowledgements.

    Calls are taken from `calls` as they start, so an endless iterator and one that shifts each call
    to the present are fine. Events that are late because sending is slow follow immediately. After
    a cancellation the publisher still has the sent events, and delivers them when it is closed.

    Args:
        calls: In the order of their start.
        publisher: Takes the events.
        speed: Factor against the recording; None is as fast as possible, in the same order.
        on_progress: Called after each event.
        clock: Seconds, monotonic.
        sleep: Waits for seconds.
        max_open_calls: Bound of calls that are played at the same time.

    Returns:
        The progress at the end.

    Raises:
        ValueError: The speed is not above 0.
        PublishError: Events could not be sent.
    """
    if speed is not None and not 0 < speed < float("inf"):
        raise ValueError(
            f"speed is {speed}, expected a number above 0, or None for as fast as possible"
        )
    ticks_per_second = None if speed is None else 1000 * speed
    began_seconds = clock()
    waiting = iter(calls)
    upcoming: PlayedCall | None = None
    exhausted = False
    # due ms, tie break, start ms, index of event, call
    open_calls: list[tuple[int, int, int, int, PlayedCall]] = []
    progress = PlayProgress(0, 0, 0, 0)
    numbers = itertools.count()

    while True:
        position_ms = progress.position_ms
        if ticks_per_second is not None:
            position_ms = max(position_ms, int((clock() - began_seconds) * ticks_per_second))
        while len(open_calls) < max_open_calls and not exhausted:
            if upcoming is None:
                upcoming = next(waiting, None)
                exhausted = upcoming is None
            if upcoming is None or (
                open_calls and upcoming.start_offset_ms > max(position_ms, open_calls[0][0])
            ):
                break
            if upcoming.events:
                starts_ms = max(upcoming.start_offset_ms, position_ms)
                heapq.heappush(open_calls, (starts_ms, next(numbers), starts_ms, 0, upcoming))
            upcoming = None
        if not open_calls:
            break
        due_ms, number, starts_ms, index, call = open_calls[0]
        if ticks_per_second is not None:
            due_seconds = began_seconds + due_ms / ticks_per_second
            while (left_seconds := due_seconds - clock()) > 0:
                await sleep(left_seconds)
        await publisher.publish(call.conversation_id, call.events[index])
        finished = index + 1 == len(call.events)
        if finished:
            heapq.heappop(open_calls)
        else:
            next_ms = starts_ms + call.events[index + 1].arrival_ms - call.events[0].arrival_ms
            heapq.heapreplace(
                open_calls, (max(due_ms, next_ms), number, starts_ms, index + 1, call)
            )
        progress = PlayProgress(
            calls_started=progress.calls_started + (index == 0),
            calls_finished=progress.calls_finished + finished,
            events_published=progress.events_published + 1,
            position_ms=max(progress.position_ms, due_ms),
        )
        if on_progress is not None:
            on_progress(progress)
    await publisher.flush()
    return progress


# Puts calls onto the topics until they end, time is over or a signal comes: for `replay` and
# `simulate`.

_REFRESH_SECONDS: Final = 0.1


async def publish_calls(
    settings: Settings,
    ce_source: str,
    calls: Callable[[], Iterable[PlayedCall]],
    speed: float | None,
    *,
    show: Callable[[PlayProgress], None],
    seconds: float | None = None,
    max_open_calls: int = MAX_OPEN_CALLS,
    folder: Path | None = None,
) -> tuple[bool, PlayProgress]:
    """Publishes calls until the last has ended, the time is over, or a signal comes.

    Args:
        settings: Where Kafka is.
        ce_source: The producer as the records name it.
        calls: Makes the calls; asked once access to the topics is certain.
        speed: How many times faster than recorded; None is as fast as possible.
        show: Gets the progress, some ten times a second and at the end.
        seconds: Longest duration; None is unlimited.
        max_open_calls: Bound of calls that run at the same time.
        folder: The folder of a running `serve`, which takes them; None for Kafka.

    Returns:
        Whether no signal came, and the last progress.

    Raises:
        KafkaUnreachableError: No broker answers, or the user lacks a right.
        PublishError: Records could not be written.
    """
    latest = PlayProgress(0, 0, 0, 0)
    next_look = 0.0

    def on_progress(progress: PlayProgress) -> None:
        nonlocal latest, next_look
        latest = progress
        if (now := time.monotonic()) >= next_look:
            next_look = now + _REFRESH_SECONDS
            show(progress)

    async def work() -> None:
        async with await publisher_to(settings, ce_source, folder) as publisher:
            playing = play(
                calls(),
                publisher,
                speed=speed,
                on_progress=on_progress,
                max_open_calls=max_open_calls,
            )
            # closing the publisher has a deadline of its own
            await first_of(over_after(seconds), playing)

    with stop_on_signals() as stop:
        await first_of(stop.wait(), work())
        completed = not stop.is_set()
    show(latest)
    return completed, latest


async def publisher_to(
    settings: Settings, ce_source: str, folder: Path | None
) -> AbstractAsyncContextManager[Publishes]:
    if folder is None:
        await require_access(settings.kafka, TRAFFIC_NEEDS)
        return EventPublisher(settings.kafka, ce_source=ce_source)
    from streamer.sources.posting import EventPoster

    return EventPoster(folder, ce_source=ce_source, token=settings.ingest.token)
