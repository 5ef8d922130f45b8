"""The role `monitor`: follows the live calls of ElevenLabs agents."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import httpx2
import structlog

from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import OperatorError, finish_unless, first_of, wall_clock_ms
from consumers.runtime.registry import Instruments
from streamer.settings.monitor import MonitorSettings
from streamer.sources.monitor.bridge import CallBridge, LiveCall
from streamer.sources.monitor.live_calls import LiveCalls, LookError
from streamer.sources.writer import AcknowledgedWriter

MAX_CALLS: Final = 500
"""Calls that are followed at a time; each is a connection to ElevenLabs."""
MAX_REMEMBERED: Final = 10_000
"""Calls that were followed and are not begun again while the list still has them."""

log = structlog.get_logger()


class MonitorOffError(OperatorError):
    """The role has no key. A person has to set one."""

    exit_code = 2


class MonitorRole:
    """Follows live calls until it is stopped. One process at a time: two would send each event twice.

    Attributes:
        ready: Set after the first look for live calls.
    """

    def __init__(self, kafka: KafkaSettings, settings: MonitorSettings, instruments: Instruments) -> None:
        """Creates the role; nothing is connected before `run`. Call it inside a running event loop.

        Args:
            kafka: Where Kafka is.
            settings: The key, and the agents to follow.
            instruments: Gets the metrics of the role.

        Raises:
            MonitorOffError: There is no key.
        """
        if not settings.is_on:
            raise MonitorOffError(
                "Monitor: there is no key of ElevenLabs' API, so no call can be followed and it does not start. "
                "Set CALLGAUGE_MONITOR__API_KEY, or a file that CALLGAUGE_MONITOR__API_KEY_FILE names."
            )
        self.ready = asyncio.Event()
        self._settings = settings
        self._instruments = instruments
        self._writer = AcknowledgedWriter(kafka, "monitor")
        self._followed: dict[str, asyncio.Task[None]] = {}
        self._known: dict[str, None] = {}
        self._fault: str | None = None
        instruments.read_gauge("callgauge_monitor_calls", lambda: {(): len(self._followed)})

    async def run(self, stop: asyncio.Event) -> None:
        """Looks for live calls and follows them until `stop` is set.

        Raises:
            KafkaUnreachableError: No broker answers.
            ProducerBrokenError: Records cannot be written any more.
        """
        await self._writer.start()
        try:
            async with httpx2.AsyncClient() as client:
                await first_of(
                    _wait(stop), _wait(self._writer.broken), self._look(LiveCalls(self._settings, client), stop)
                )
            if self._writer.broken.is_set():
                raise self._writer.failure()
        finally:
            self.ready.clear()
            for task in self._followed.values():
                task.cancel()
            await asyncio.gather(*self._followed.values(), return_exceptions=True)
            self._followed.clear()
            await self._writer.close()

    def problems(self) -> Sequence[str]:
        """The reasons why it does not follow calls now, for `/readyz`."""
        away = ("monitor: Kafka did not acknowledge the last records",) if self._writer.is_away else ()
        return (*away, *(() if self._fault is None else (f"monitor: {self._fault}",)))

    def stalled(self) -> Sequence[str]:
        """No fault of this role needs a new process."""
        return ()

    async def _look(self, calls: LiveCalls, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                for call in await calls.look(time.time()):
                    self._follow(call)
                self._fault = None
                self.ready.set()
            except LookError as error:
                self._note(str(error))
            await finish_unless(stop, asyncio.sleep(self._settings.poll_seconds))

    def _note(self, fault: str) -> None:
        self._instruments.inc("callgauge_monitor_look_failures_total")
        if self._fault != fault:
            self._fault = fault
            log.error(
                "monitor_look_failed", error=fault, what_happens_now="It is tried again; calls that are followed go on.",
                what_to_do="Check monitor.api_key, its rights, and the network.",
            )  # fmt: skip

    def _follow(self, call: LiveCall) -> None:
        conversation_id = call.conversation_id
        if conversation_id in self._known or len(self._followed) >= MAX_CALLS:
            return
        self._known[conversation_id] = None
        if len(self._known) > MAX_REMEMBERED:
            del self._known[next(iter(self._known))]
        bridge = CallBridge(call, self._settings, self._writer, self._instruments, wall_clock_ms)
        task = asyncio.create_task(bridge.run(), name=f"monitor {conversation_id}")
        self._followed[conversation_id] = task
        task.add_done_callback(lambda done: self._ended(conversation_id, done))

    def _ended(self, conversation_id: str, done: "asyncio.Task[None]") -> None:
        self._followed.pop(conversation_id, None)
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("monitor_failed", conversation=conversation_id, exc_info=error,
                      what_happens_now="The call is not followed any more; others are.")  # fmt: skip


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
