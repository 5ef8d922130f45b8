"""Sends events to the topics: one writer, and recorded or simulated calls in real time."""

import asyncio
import heapq
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from aiokafka.errors import MessageSizeTooLargeError

from consumers.runtime.kafka.connection import KafkaSettings, require_access
from consumers.runtime.process import OperatorError, end_tasks, first_of
from schemas.log import OutgoingRecord
from streamer.cluster.facts import TRAFFIC_NEEDS
from streamer.facts import MAX_OPEN_CALLS
from streamer.settings.all_settings import Settings
from streamer.signals import over_after, stop_on_signals
from streamer.sources.outgoing import NotAcknowledgedError, outgoing
from streamer.sources.replay import PlayedCall, WireEvent
from streamer.sources.writer import AcknowledgedWriter

# Puts wire events on the input topics, paced like the calls they belong to.

MAX_WAITING: Final = 10_000
"""Events that wait to be written; publishing waits when there are more."""
MAX_BATCH: Final = 1_000
"""Events of one write."""
MAX_TRIES: Final = 4
"""Times that records are given to Kafka, some twenty seconds, before sending ends."""
CLOSE_SECONDS: Final = 3.0
"""How long the end waits for the last events."""


class PublishError(OperatorError):
    """Records could not be put on a topic; some of the earlier records may be missing too."""


class Publishes(Protocol):
    """A publisher, as playing calls needs it."""

    async def publish(self, conversation_id: str, event: WireEvent) -> None:
        """Sends one event; waits while too many are on their way."""

    async def flush(self) -> None:
        """Waits until all sent events are acknowledged."""


Write = Callable[[Sequence[OutgoingRecord]], Awaitable[None]]
"""Returns when the records are safe; raises what ends the sending."""


class EventPublisher:
    """Sends wire events in order, with a bounded number on their way. What a write fails with is
    raised by what comes after it.
    """

    def __init__(
        self,
        opening: AbstractAsyncContextManager[Write],
        ce_source: str,
        gather_seconds: float = 0.0,
    ) -> None:
        """Connected inside `async with`.

        Args:
            opening: Connects, and writes.
            ce_source: Names the producer, for example `callgauge.replay`.
            gather_seconds: How long events gather before they are written together.
        """
        self._opening = opening
        self._ce_source = ce_source
        self._gather_seconds = gather_seconds
        self._waiting: deque[OutgoingRecord] = deque()
        self._grown, self._sent = asyncio.Event(), asyncio.Event()
        self._in_flight = 0
        self._failure: Exception | None = None

    async def __aenter__(self) -> Self:
        """Connects.

        Raises:
            OperatorError: Nobody takes events there.
        """
        self._write = await self._opening.__aenter__()
        self._sending = asyncio.create_task(self._send_for_ever())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Sends the rest, for at most `CLOSE_SECONDS`, and disconnects.

        Raises:
            PublishError: Something was not acknowledged. An error that is already on its way says
                more.
        """
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.flush()
        except (TimeoutError, PublishError) as failure:
            if error is None and isinstance(failure, PublishError):
                raise
            if error is None:
                raise PublishError("The last events were not acknowledged.") from failure
        finally:
            await end_tasks([self._sending])
            await self._opening.__aexit__(None, None, None)

    async def publish(self, conversation_id: str, event: WireEvent) -> None:
        """Takes one event; waits while too many are on their way.

        Raises:
            PublishError: An earlier one could not be sent.
        """
        await self._until(lambda: len(self._waiting) < MAX_WAITING)
        self._waiting.append(record_of(conversation_id, event, self._ce_source))
        self._grown.set()

    async def flush(self) -> None:
        """Waits until every event is acknowledged.

        Raises:
            PublishError: One of them was not.
        """
        await self._until(lambda: not (self._waiting or self._in_flight))

    async def _until(self, is_reached: Callable[[], bool]) -> None:
        while self._failure is None and not is_reached():
            self._sent.clear()
            await self._sent.wait()
        if self._failure is not None:
            raise PublishError(f"Events could not be sent: {self._failure}") from self._failure

    async def _send_for_ever(self) -> None:
        while self._failure is None:
            self._grown.clear()
            if not self._waiting:
                await self._grown.wait()
            await asyncio.sleep(self._gather_seconds)
            batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
            self._in_flight = len(batch)
            try:
                await self._write(batch)
            except Exception as error:  # noqa: BLE001 - whoever publishes gets it
                self._failure = error
            self._in_flight = 0
            self._sent.set()


@asynccontextmanager
async def topics_of(kafka: KafkaSettings) -> AsyncIterator[Write]:
    """Writes events to the input topics.

    Raises:
        KafkaUnreachableError: No broker answers.
    """
    writer = AcknowledgedWriter(kafka, "streamer")
    await writer.start()

    async def write(records: Sequence[OutgoingRecord]) -> None:
        for tries in range(1, MAX_TRIES + 1):
            try:
                await writer.write(records)
            except NotAcknowledgedError as error:
                if (
                    tries == MAX_TRIES
                    or writer.broken.is_set()
                    or isinstance(error.__cause__, MessageSizeTooLargeError)
                ):
                    seen = str(error.__cause__) or type(error.__cause__).__name__
                    raise PublishError(
                        f"Kafka at {kafka.bootstrap_servers} did not acknowledge every record; "
                        f"seen {seen}.\n"
                        "  Sending stops here; events sent just before may be missing.\n"
                        "  Check that the broker runs at this address and that the topics exist."
                    ) from error
            else:
                return

    try:
        yield write
    finally:
        await writer.close()


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


async def publisher_to(settings: Settings, ce_source: str, folder: Path | None) -> EventPublisher:
    """What sends to the topics, or to the process that serves a folder.

    Raises:
        KafkaUnreachableError: No broker answers, or the user lacks a right.
    """
    if folder is None:
        await require_access(settings.kafka, TRAFFIC_NEEDS)
        return EventPublisher(topics_of(settings.kafka), ce_source)
    from streamer.sources.posting import GATHER_SECONDS, served_in

    return EventPublisher(served_in(folder, settings.ingest.token), ce_source, GATHER_SECONDS)
