"""One producer for all calls of a process and event loop. It works beside the bots and never makes one wait."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final
from weakref import WeakKeyDictionary

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError
from loguru import logger

from pipecat_callgauge.events import MAX_EVENT_BYTES, Record
from pipecat_callgauge.outbox import Outbox

MAX_SENT_TOGETHER: Final = 200
"""Records whose acknowledgements are awaited together."""
MAX_OF_ONE_CALL: Final = 50
"""Records of one call among them, so that no call waits long behind the backlog of another."""
SENDS_AT_A_STRETCH: Final = 10
"""Records handed to the client before the bots' own tasks get their turn: half a millisecond."""
MAX_ENDED_EVENTS: Final = 20_000
"""Events of ended calls that still wait for the broker. Beyond it the oldest of these calls keep only the count of their events."""
GATHER_SECONDS: Final = 0.05
"""How long events gather before they are sent. Twenty rounds a second cost less than one for each event, and the end of a call
waits no longer than this for it."""
REQUEST_TIMEOUT_MS: Final = 10_000
"""How long the broker may take for an answer before records are sent again."""
FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 5.0
"""Pause after a failure; it doubles with each one, up to this."""
FAILURES_BEFORE_RECONNECTING: Final = 5
"""Failures in a row after which a new client is made, in case it is the client that does not get on."""
FLUSH_SECONDS: Final = 2.0
"""How long the end of a call waits for its last events."""
STOP_SECONDS: Final = 0.5
"""How long disconnecting may take."""


class Sender:
    """Sends the outboxes of open calls, and of ended ones until they are empty. It disconnects after the last."""

    _shared: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, "dict[object, Sender]"]] = WeakKeyDictionary()

    def __init__(self, topic: str, options: Mapping[str, Any]) -> None:
        """Keeps the settings; nothing is connected before the first event.

        Args:
            topic: Full name of the topic.
            options: Arguments of aiokafka's producer: addresses, TLS, login.
        """
        self._topic = topic
        self._options = {
            "acks": "all",  # a repeated record has the same id, so readers recognise it
            "client_id": "pipecat-callgauge",
            "linger_ms": 5,
            "max_batch_size": MAX_EVENT_BYTES,  # one that is larger than the topic takes is lost as a whole
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            **options,
        }
        self._open: dict[Outbox, None] = {}
        self._ended: dict[Outbox, None] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._producer: AIOKafkaProducer | None = None
        self._failures = 0

    @classmethod
    def shared(cls, topic: str, options: Mapping[str, Any]) -> "Sender":
        """Returns the sender of this event loop for this topic and these options."""
        senders = cls._shared.setdefault(asyncio.get_running_loop(), {})
        key = (topic, *sorted((name, repr(value)) for name, value in options.items()))
        if key not in senders:
            senders[key] = cls(topic, options)
        return senders[key]

    def begin(self, outbox: Outbox) -> None:
        """Takes over the events of a call, from now until it has ended."""
        self._open[outbox] = None
        if self._task is None or self._task.done():
            self._wake = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run(), name="pipecat-callgauge")

    def wake(self) -> None:
        """Sends soon: there is something new in an outbox."""
        self._wake.set()

    async def end(self, outbox: Outbox, seconds: float = FLUSH_SECONDS) -> bool:
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
                try:
                    failure = await self._send_some()
                except Exception as error:  # noqa: BLE001 - whatever fails in the client, events must go on later
                    failure = error
                if failure is None:
                    pause = FIRST_PAUSE_SECONDS
                    self._have_succeeded()
                    continue
                self._have_failed(failure)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                if self._failures % FAILURES_BEFORE_RECONNECTING == 0:
                    await self._disconnect()
        finally:
            self._task = None  # a call that begins from here on has a task and a client of its own
            await self._disconnect()

    def _has_work(self) -> bool:
        """Whether anything waits. Forgets ended calls without events, and the surplus events of ended calls."""
        for outbox in [each for each in self._ended if each.is_empty.is_set()]:
            del self._ended[outbox]
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
        producer = self._producer or await self._connect()
        taken: dict[Outbox, Sequence[Record]] = {}
        room = MAX_SENT_TOGETHER
        for calls in (self._ended, self._open):
            for outbox in list(calls):
                if room > 0 and not outbox.is_empty.is_set():
                    taken[outbox] = outbox.take(min(room, MAX_OF_ONE_CALL))
                    room -= len(taken[outbox])
                    calls[outbox] = calls.pop(outbox)  # the next round begins with the others
        acknowledged: set[tuple[Outbox, int]] = set()
        try:
            return await self._send(producer, taken, acknowledged)
        finally:  # also when cancelled
            for outbox, records in taken.items():
                outbox.settle([record for record in records if (outbox, record.sequence) not in acknowledged])

    async def _send(
        self,
        producer: AIOKafkaProducer,
        taken: Mapping[Outbox, Sequence[Record]],
        acknowledged: set[tuple[Outbox, int]],
    ) -> BaseException | None:
        """Sends the records in their order and adds those that the broker has to `acknowledged`; returns the first failure."""
        sent: dict[asyncio.Future[Any], tuple[Outbox, Record]] = {}
        failure: BaseException | None = None
        for outbox, record in ((outbox, record) for outbox, records in taken.items() for record in records):
            if len(sent) % SENDS_AT_A_STRETCH == SENDS_AT_A_STRETCH - 1:
                await asyncio.sleep(0)
            key, headers = outbox.conversation_id.encode("utf-8", "replace"), _headers(outbox.source, record)
            try:
                sent[await producer.send(self._topic, record.value, key=key, headers=headers)] = outbox, record
            except KafkaError as error:
                failure = error
                break
        if sent:
            await asyncio.wait(sent, timeout=3 * REQUEST_TIMEOUT_MS / 1000)
        for future, (outbox, record) in sent.items():
            has_answer = future.done() and not future.cancelled()
            refusal = future.exception() if has_answer else TimeoutError("no answer")
            if isinstance(refusal, MessageSizeTooLargeError):  # this broker will never take it
                outbox.lose(record.rank.name.lower())
            elif refusal is not None:
                failure = failure or refusal
                continue
            acknowledged.add((outbox, record.sequence))
        return failure

    async def _connect(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(**self._options)
        try:
            await producer.start()
        except BaseException:
            await _stop(producer)
            raise
        self._producer = producer
        return producer

    async def _disconnect(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await _stop(producer)

    def _have_failed(self, error: BaseException) -> None:
        """Warns of the first of several failures."""
        self._failures += 1
        if self._failures == 1:
            logger.warning(
                f"callgauge: events cannot be sent to {self._topic} at {self._options.get('bootstrap_servers')} "
                f"({type(error).__name__}: {error}). They wait, up to a bound, and are sent when the broker takes them. "
                "Check the address, the login, and that the topic exists (`callgauge topics create`)."
            )

    def _have_succeeded(self) -> None:
        if self._failures:
            self._failures = 0
            logger.info(f"callgauge: events are sent to {self._topic} again.")


async def _stop(producer: AIOKafkaProducer) -> None:
    """Disconnects, but does not wait for a broker that is away."""
    task = asyncio.ensure_future(producer.stop())
    await asyncio.wait({task}, timeout=STOP_SECONDS)
    if not task.done():
        task.cancel()
    elif not task.cancelled() and task.exception() is not None:
        logger.debug(f"callgauge: disconnecting failed: {task.exception()!r}")


def _headers(source: str, record: Record) -> list[tuple[str, bytes]]:
    """The envelope of a CloudEvent (binary mode); its source and id identify a repeat."""
    number = b"%d" % record.sequence
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", number),
        ("ce_source", source.encode()),
        ("ce_type", f"callgauge.pipecat.{record.type}.v1".encode()),
        ("ce_sequence", number),
        ("content-type", b"application/json"),
    ]
