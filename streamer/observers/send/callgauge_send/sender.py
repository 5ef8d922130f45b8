"""One sender for all calls of a process and event loop that go the same way. It works beside the
bots and never makes one wait.
"""

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Final, Protocol
from weakref import WeakKeyDictionary

from callgauge_send.events import Record
from callgauge_send.outbox import EventOutbox

MAX_SENT_TOGETHER: Final = 200
"""Records whose acknowledgements are awaited together."""
MAX_SENT_WHEN_BEHIND: Final = 2_000
"""The same while more waits than one round sends: a long round catches up sooner, and no bot waits
for it.
"""
MAX_OF_ONE_CALL: Final = 50
"""Records of one call among them, so that no call waits long behind the backlog of another."""
MAX_ENDED_EVENTS: Final = 20_000
"""Events of ended calls that still wait for the broker. Beyond it the oldest of these calls keep
only the count of their events.
"""
MAX_ENDED_CALLS: Final = 2_000
"""Ended calls with something to send, be it only the count of their lost events. Beyond it the
oldest are forgotten.
"""
GATHER_SECONDS: Final = 0.05
"""How long events gather before they are sent. Twenty rounds a second cost less than one for each
event, and the end of a call waits no longer than this for it.
"""
FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 5.0
"""Pause after a failure; it doubles with each one, up to this."""
LONGEST_WISH_SECONDS: Final = 30.0
"""Longest pause that a server may ask for."""
FAILURES_BEFORE_RECONNECTING: Final = 5
"""Failures in a row after which a new client is made, in case it is the client that does not get
on.
"""
FLUSH_SECONDS: Final = 2.0
"""How long the end of a call waits for its last events."""
MAX_TOLD: Final = 20
"""Kinds of refusals that the log has; each is counted with its events."""
STOP_SECONDS: Final = 0.5
"""How long disconnecting may take."""

Taken = Mapping[EventOutbox, Sequence[Record]]
"""The records of one round, by call, each call's in their order."""
Settled = set[tuple[EventOutbox, int]]
"""Records that need not be sent again, by call and sequence: the other side has them, or will never
take them.
"""


class Log(Protocol):
    """Takes the few sentences that a person must read: a `logging.Logger`, or loguru's."""

    def warning(self, message: str, /) -> object: ...
    def info(self, message: str, /) -> object: ...
    def debug(self, message: str, /) -> object: ...


class Once:
    """Warns once of each kind of thing, and of a bounded number of kinds."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._told: set[Hashable] = set()

    def warn(self, kind: Hashable, text: str) -> None:
        """Warns, unless it has warned of this kind."""
        if kind not in self._told and len(self._told) < MAX_TOLD:
            self._told.add(kind)
            self._log.warning(f"callgauge: {text}")


class LaterError(Exception):
    """The other side asks for a pause of so many seconds."""

    def __init__(self, text: str, seconds: float) -> None:
        """Keeps the pause, which is bounded where it is used."""
        super().__init__(text)
        self.seconds = seconds


class Way(Protocol):
    """Where records go: to a topic of Kafka, or to callgauge over HTTP. Made without a
    connection.
    """

    @property
    def key(self) -> Hashable:
        """Equal for two ways that can share a client."""

    @property
    def place(self) -> str:
        """Where it leads, for messages."""

    @property
    def remedy(self) -> str:
        """What to check if it does not get on."""

    async def open(self) -> None:
        """Connects, unless it is connected; raises if it cannot."""

    async def send(self, taken: Taken, settled: Settled) -> BaseException | None:
        """Sends records in their order and adds those that are settled, as they are; returns the
        first failure, or raises it.
        """

    async def close(self) -> None:
        """Disconnects, and does not wait long for a side that is away."""


class Sender:
    """Sends the outboxes of open calls, and of ended ones until they are empty. It disconnects
    after the last.
    """

    _shared: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, "dict[Hashable, Sender]"]] = (
        WeakKeyDictionary()
    )

    def __init__(self, way: Way, log: Log) -> None:
        """Keeps the way; nothing is connected before the first event."""
        self._way = way
        self._log = log
        self._once = Once(log)
        self._open: dict[EventOutbox, None] = {}
        self._ended: dict[EventOutbox, None] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failures = 0

    @classmethod
    def shared(cls, way: Way, log: Log) -> "Sender":
        """Returns the sender of this event loop for this way.

        Raises:
            RuntimeError: No event loop runs here.
        """
        senders = cls._shared.setdefault(asyncio.get_running_loop(), {})
        if way.key not in senders:
            senders[way.key] = cls(way, log)
        return senders[way.key]

    def begin(self, outbox: EventOutbox) -> None:
        """Takes over the events of a call, from now until it has ended."""
        self._open[outbox] = None
        if self._task is None or self._task.done():
            self._wake = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run(), name="callgauge-send")

    def wake(self) -> None:
        """Sends soon: there is something new in an outbox."""
        self._wake.set()

    async def end(self, outbox: EventOutbox, seconds: float = FLUSH_SECONDS) -> bool:
        """Ends a call: waits until all of it is acknowledged, but no longer than the deadline.

        Returns:
            Whether all of it was. If not, sending goes on for as long as the process lives.
        """
        self._open.pop(outbox, None)
        self._ended[outbox] = None
        self._wake.set()
        emptied = asyncio.ensure_future(outbox.is_empty.wait())
        waiting: set[asyncio.Future[Any]] = {emptied}
        if self._task is not None and not self._open and len(self._ended) == 1:
            waiting.add(self._task)  # the last call: also until the client is disconnected
        _, late = await asyncio.wait(waiting, timeout=seconds)
        if emptied in late:
            emptied.cancel()
        return outbox.is_empty.is_set()

    async def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        try:
            while True:
                self._wake.clear()
                if not self._has_work():
                    if not self._open and not self._ended:
                        return
                    await self._wake.wait()
                    continue
                if not self._is_behind():
                    await asyncio.sleep(GATHER_SECONDS)
                wish_seconds = 0.0
                try:
                    failure = await self._send_some()
                except LaterError as error:
                    failure, wish_seconds = error, min(error.seconds, LONGEST_WISH_SECONDS)
                except Exception as error:  # noqa: BLE001 - whatever fails in the client, events must go on later
                    failure = error
                if failure is None:
                    pause = FIRST_PAUSE_SECONDS
                    self._have_succeeded()
                    continue
                self._have_failed(failure)
                await asyncio.sleep(max(pause, wish_seconds))
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                if self._failures % FAILURES_BEFORE_RECONNECTING == 0:
                    await self._way.close()
        finally:
            self._task = None  # a call that begins from here on has a task and a client of its own
            await self._way.close()

    def _has_work(self) -> bool:
        """Whether anything waits. Forgets ended calls without events, and the surplus of ended
        calls and of their events.
        """
        for outbox in [each for each in self._ended if each.is_empty.is_set()]:
            del self._ended[outbox]
        for outbox in list(islice(self._ended, max(0, len(self._ended) - MAX_ENDED_CALLS))):
            del self._ended[outbox]
            self._once.warn(
                MAX_ENDED_CALLS,
                f"more than {MAX_ENDED_CALLS} ended calls wait; the oldest are lost.",
            )
        too_many = sum(map(len, self._ended)) - MAX_ENDED_EVENTS
        for outbox in self._ended:
            if too_many <= 0:
                break
            too_many -= len(outbox)
            outbox.drop_all()
        return bool(self._ended) or any(not each.is_empty.is_set() for each in self._open)

    def _is_behind(self) -> bool:
        """Whether more waits than one round sends."""
        return sum(map(len, self._open)) + sum(map(len, self._ended)) >= MAX_SENT_TOGETHER

    async def _send_some(self) -> BaseException | None:
        """Sends some records of every call; returns the first failure."""
        await self._way.open()
        taken: dict[EventOutbox, Sequence[Record]] = {}
        room = MAX_SENT_WHEN_BEHIND if self._is_behind() else MAX_SENT_TOGETHER
        for calls in (self._ended, self._open):
            for outbox in list(calls):
                if room > 0 and not outbox.is_empty.is_set():
                    taken[outbox] = outbox.next_records(min(room, MAX_OF_ONE_CALL))
                    room -= len(taken[outbox])
                    calls[outbox] = calls.pop(outbox)  # the next round begins with the others
        settled: Settled = set()
        try:
            return await self._way.send(taken, settled)
        finally:  # also when cancelled
            for outbox, records in taken.items():
                outbox.settle(
                    [record for record in records if (outbox, record.sequence) not in settled]
                )

    def _have_failed(self, error: BaseException) -> None:
        """Warns of the first of several failures."""
        self._failures += 1
        if self._failures == 1:
            self._log.warning(
                f"callgauge: events cannot be sent to {self._way.place} ({type(error).__name__}: "
                f"{error}). They wait, up to a bound, and are sent when it takes them. "
                f"{self._way.remedy}"
            )

    def _have_succeeded(self) -> None:
        if self._failures:
            self._failures = 0
            self._log.info(f"callgauge: events are sent to {self._way.place} again.")
