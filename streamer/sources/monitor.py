"""The role `monitor`: joins the running calls of ElevenLabs agents, and sends what it hears."""

import asyncio
import contextlib
import hashlib
import time
import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, get_args
from urllib.parse import quote

import httpx2
import structlog
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosedError,
    ConnectionClosedOK,
    InvalidHandshake,
    InvalidStatus,
)

from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import SetupError, end_tasks, finish_unless, first_of, wall_clock_ms
from consumers.runtime.registry import Instruments
from schemas.closed_sets import MonitorOutcome
from schemas.events.elevenlabs import CarriedAgentEvent
from schemas.log import OutgoingRecord
from schemas.wire import MAX_NAME_CHARS, Name
from streamer.settings.all_settings import MonitorSettings
from streamer.sources.outgoing import MAX_VALUE_BYTES, NotAcknowledgedError, outgoing
from streamer.sources.replay import compact_json
from streamer.sources.writer import AcknowledgedWriter

# Separates the past of a call from its present in the messages of ElevenLabs' monitor. Pure.
#
# A monitor that joins a call is first sent its last hundred messages, all at once, and nothing
# marks the end of them. They have no times, so their arrival says nothing of when they happened.
# The same is true after a reconnect, also of the messages that were missed meanwhile.

QUIET_SECONDS: Final = 0.25
"""Pause after which a message is of the present. The past arrives in one piece; people take turns
more slowly.
"""
PAST_MESSAGES: Final = 100
"""Messages of the past that ElevenLabs sends to a monitor that joins."""
MAX_REMEMBERED_PAST: Final = 2 * PAST_MESSAGES
"""Messages that are recognised when they come again: as many as ElevenLabs repeats, and those that
it adds meanwhile.
"""


class Judgement(NamedTuple):
    """One message, judged.

    Attributes:
        is_exact: Whether it is of the present, so that the time of its arrival is the time of the
            event.
        is_repeat: Whether an earlier connection delivered it already.
        number: Its number among the equal messages of the call, from 1: another bridge of the same
            call comes to the same one. None where earlier messages may be unknown.
    """

    is_exact: bool
    is_repeat: bool
    number: int | None = None


class JoinedCall:
    """The messages of one call, over all connections to it.

    Repeats are recognised by their bytes, because not every message has an id: each message of an
    earlier connection can come again once in the past of the next one. A caller who says the same
    words twice says them in the present. What an earlier bridge of the call has sent, before it was
    started again, is recognised by its `number`.
    """

    def __init__(self) -> None:
        self._in_past = True
        self._last_at: float | None = None
        self._newest: deque[bytes] = deque(maxlen=MAX_REMEMBERED_PAST)
        self._may_repeat: Counter[bytes] = Counter()
        self._numbers: Counter[bytes] = Counter()
        self._past_messages = 0
        self._is_linked = False
        self._is_whole = True

    def connected(self) -> None:
        """Begins a connection: its first messages are of the past."""
        self._in_past = True
        self._last_at = None
        self._may_repeat = Counter(self._newest)
        self._past_messages = 0
        self._is_linked = False

    def passed_over(self) -> None:
        """Counts a message that says nothing of the call, because ElevenLabs counts it too."""
        if self._in_past:
            self._past_messages += 1
            # Before as many messages as ElevenLabs keeps, there may have been others, unless we
            # know one of these.
            if self._past_messages >= PAST_MESSAGES and not self._is_linked:
                self._is_whole = False

    def judge(self, text: bytes, at_seconds: float) -> Judgement:
        """Judges the next message that says something of the call: pings and sound come all the
        time, and are no pause.

        Args:
            text: The message as it came.
            at_seconds: When it arrived, on a monotonic clock.
        """
        if self._last_at is not None and at_seconds - self._last_at >= QUIET_SECONDS:
            self._in_past = False
        self._last_at = at_seconds
        self.passed_over()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        if self._in_past and self._may_repeat[digest] > 0:
            self._may_repeat[digest] -= 1
            self._is_linked = True
            return Judgement(is_exact=False, is_repeat=True)
        self._newest.append(digest)
        self._numbers[digest] += 1
        number = self._numbers[digest] if self._in_past or self._is_whole else None
        return Judgement(is_exact=not self._in_past, is_repeat=False, number=number)


# Follows one live call over ElevenLabs' monitor: its messages become records of
# `elevenlabs.events`.

FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 8.0
MOST_TRIES: Final = 8
"""Connections in a row without a message, some 30 s of pauses, after which a call is left."""
OPEN_SECONDS: Final = 10.0
MAX_MESSAGE_BYTES: Final = 1_048_576
"""Largest message. A full tool result has 64 KB; sound, which is left out, some 100 KB."""
MAX_WAITING: Final = 1_000
"""Messages of a call that wait for Kafka: some minutes of it. Later ones are dropped and counted,
because ElevenLabs would otherwise wait for us.
"""
CE_SOURCE: Final = "callgauge.elevenlabs.monitor"

_CARRIED: Final = frozenset(get_args(CarriedAgentEvent.model_fields["type"].annotation))
_FOR_GOOD: Final = frozenset({401, 403, 404, 410, 422})
"""Answers that a second try does not improve: no right, no such call, a call that is over."""
_REFUSING_CLOSES: Final = frozenset({1008, 3000, 3003})
"""Codes of a close that a second try does not improve: against the rules, not logged in, not
allowed.
"""
_HowItEnded = Literal["ended", "lost", "refused"]

log = structlog.get_logger()


class MonitoredCall(NamedTuple):
    """A call that runs now.

    Attributes:
        conversation_id: ElevenLabs' id of the call.
        agent: Name or id of its agent; None if it is not known.
    """

    conversation_id: str
    agent: str | None


class CallBridge:
    """One call, until it is over."""

    def __init__(
        self,
        call: MonitoredCall,
        settings: MonitorSettings,
        writer: AcknowledgedWriter,
        instruments: Instruments,
        clock_ms: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is connected before `run`; `clock_ms` is epoch time, which events get as the time
        of their arrival.
        """
        self._call = call
        self._settings = settings
        self._writer = writer
        self._instruments = instruments
        self._clock_ms = clock_ms
        self._monotonic = monotonic
        self._joined = JoinedCall()
        self._waiting: asyncio.Queue[OutgoingRecord] = asyncio.Queue(MAX_WAITING)
        self._run_id = uuid.uuid4().hex
        self._messages = 0
        self._is_joined = self._is_misread = False
        self._fault = ""

    async def run(self) -> None:
        """Follows the call until ElevenLabs ends the connection, refuses it, or cannot be reached
        any more.
        """
        writing = asyncio.create_task(self._write())
        try:
            await self._follow()
            await self._waiting.join()
        finally:
            await end_tasks([writing])

    async def _follow(self) -> None:
        tries = 0
        while tries < MOST_TRIES:
            before = self._messages
            ended = await self._connection()
            self._instruments.inc("callgauge_monitor_connections_total", (ended,))
            if ended == "ended":
                if self._is_joined:
                    self._put(*self._control("call_ended"))
                return
            if ended == "refused":
                log.error(
                    "monitor_refused",
                    conversation=self._call.conversation_id,
                    seen=self._fault,
                    what_happens_now="The call is not followed.",
                    what_to_do=(
                        "Switch monitoring on for the agent, and give the key the right to write "
                        "agents; the call may be over."
                    ),
                )
                return
            tries = 1 if self._messages > before else tries + 1
            if tries == 1:
                log.warning(
                    "monitor_connection_lost",
                    conversation=self._call.conversation_id,
                    seen=self._fault,
                    what_happens_now=(
                        f"It is joined again, {MOST_TRIES} times at most without a message."
                    ),
                )
            await asyncio.sleep(
                min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** (tries - 1))
            )
        log.error(
            "monitor_lost",
            conversation=self._call.conversation_id,
            tries=tries,
            seen=self._fault,
            what_happens_now="The call is not followed any more.",
            what_to_do=(
                "Where nothing answers, check the network to ElevenLabs; the code of a close is "
                "ElevenLabs' own reason."
            ),
        )

    async def _connection(self) -> _HowItEnded:
        """One connection, from its start to its end."""
        key = self._settings.api_key
        base = self._settings.base_url.replace("http", "ws", 1)
        url = f"{base}/v1/convai/conversations/{quote(self._call.conversation_id, safe='')}/monitor"
        headers = {} if key is None else {"xi-api-key": key.get_secret_value()}
        try:
            async with connect(
                url,
                additional_headers=headers,
                open_timeout=OPEN_SECONDS,
                max_size=MAX_MESSAGE_BYTES,
                close_timeout=1,
            ) as socket:
                self._joined.connected()
                return await self._read(socket)
        except InvalidStatus as error:
            status = error.response.status_code
            self._fault = f"status {status}"
            return "refused" if status in _FOR_GOOD else "lost"
        except ConnectionClosedError as error:
            close = error.rcvd
            self._fault = (
                "a break without a close"
                if close is None
                else f"close {close.code} {close.reason!r}"
            )
            return "refused" if close is not None and close.code in _REFUSING_CLOSES else "lost"
        except (OSError, TimeoutError, InvalidHandshake) as error:
            self._fault = f"no connection ({type(error).__name__})"
            return "lost"

    async def _read(self, socket: ClientConnection) -> _HowItEnded:
        while True:
            try:
                text = await socket.recv(decode=False)
            except ConnectionClosedOK:
                return "ended"
            if not self._is_joined:  # a call that may not be followed is not opened here
                self._is_joined = True
                self._put(*self._control("call_started", agent=self._call.agent))
            self._messages += 1
            outcome = self._judge_message(text, self._monotonic())
            if outcome is MonitorOutcome.UNREADABLE and not self._is_misread:
                self._is_misread = True
                log.warning(
                    "monitor_message_unreadable",
                    conversation=self._call.conversation_id,
                    bytes=len(text),
                    expected="a JSON object with a `type`",
                    what_happens_now="It is left out; further ones of this call are counted.",
                )
            self._instruments.inc("callgauge_monitor_messages_total", (outcome.value,))

    def _judge_message(self, text: bytes, at_seconds: float) -> MonitorOutcome:
        """Judges a message and hands it to the writer."""
        try:
            message = from_json(text, allow_inf_nan=False)
        except ValueError:
            return MonitorOutcome.UNREADABLE
        kind = message.get("type") if isinstance(message, Mapping) else None
        if not isinstance(kind, str) or len(kind) > MAX_NAME_CHARS:
            return MonitorOutcome.UNREADABLE
        if kind in _CARRIED:
            self._joined.passed_over()
            return MonitorOutcome.LEFT_OUT
        judged = self._joined.judge(text, at_seconds)
        if judged.is_repeat:
            return MonitorOutcome.REPEATED
        event: dict[str, Any] = {**message, "timestamp": self._clock_ms()}
        if not judged.is_exact:
            event["is_time_exact"] = False
        value = compact_json(event)
        if len(value) > MAX_VALUE_BYTES:
            return MonitorOutcome.DROPPED
        content = hashlib.blake2b(text, digest_size=8).hexdigest()
        event_id = (
            f"{content}/{judged.number}"
            if judged.number is not None
            else f"{self._run_id}/{self._messages}"
        )
        if not self._put(kind, event["timestamp"], value, event_id):
            return MonitorOutcome.DROPPED
        return MonitorOutcome.SENT if judged.is_exact else MonitorOutcome.PAST

    def _control(self, kind: str, **fields: str | None) -> tuple[str, int, bytes]:
        now_ms = self._clock_ms()
        known = {name: value for name, value in fields.items() if value is not None}
        return kind, now_ms, compact_json({"type": kind, "timestamp": now_ms, **known})

    def _put(self, kind: str, time_ms: int, value: bytes, event_id: str | None = None) -> bool:
        """Queues an agent's event, or without an id an event of our own; whether there was room for
        it.

        After a restart a bridge gives the same ids again, so that the evaluator sees repeats.
        """
        conversation_id, is_agent_event = self._call.conversation_id, event_id is not None
        record = outgoing(
            # start and end too: in one topic the labels come before what counts under them
            "elevenlabs",
            conversation_id,
            value,
            name=kind,
            event_id=event_id or f"{conversation_id}/{kind}",
            ce_source=CE_SOURCE,
            time_ms=time_ms,
            is_agent_event=is_agent_event,
        )
        with contextlib.suppress(asyncio.QueueFull):
            self._waiting.put_nowait(record)
            return True
        return False

    async def _write(self) -> None:
        """Writes record after record, each until it is acknowledged: its id makes a second copy a
        repeat.
        """
        while True:
            record = await self._waiting.get()
            while True:
                try:
                    await self._writer.write([record])
                except NotAcknowledgedError:
                    await asyncio.sleep(FIRST_PAUSE_SECONDS)
                else:
                    break
            self._waiting.task_done()


# Asks ElevenLabs which calls of the agents run now.

PAGE_SIZE: Final = 100
MAX_PAGES: Final = 5
"""Most pages of one look: calls are listed newest first, and a running call is among the newest."""
ANSWER_SECONDS: Final = 10.0
MAX_AGE_SECONDS: Final = 4 * 3_600
"""A call that began earlier is not looked for any more."""
_RUNNING: Final = "in-progress"


class LookError(Exception):
    """ElevenLabs did not answer with a list of calls. The text has no secret."""


class _Summary(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    conversation_id: Name
    agent_id: Name | None = None
    agent_name: Name | None = None
    status: str | None = None


class _Page(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    conversations: list[_Summary]
    next_cursor: str | None = None
    has_more: bool = False


class LiveCalls:
    """The list of conversations of ElevenLabs' API."""

    def __init__(self, settings: MonitorSettings, client: httpx2.AsyncClient) -> None:
        """Stores the key and the agents; the client is the caller's to close."""
        self._settings = settings
        self._client = client

    async def look(self, now_seconds: float) -> list[MonitoredCall]:
        """Returns the calls that run now.

        Args:
            now_seconds: Seconds since 1970.

        Raises:
            LookError: There is no answer, or another one.
        """
        agents: tuple[str | None, ...] = self._settings.agents or (None,)
        return [call for agent in agents async for call in self._of(agent, now_seconds)]

    async def _of(self, agent: str | None, now_seconds: float) -> AsyncIterator[MonitoredCall]:
        asked: dict[str, Any] = {
            "page_size": PAGE_SIZE,
            "call_start_after_unix": int(now_seconds) - MAX_AGE_SECONDS,
        }
        if agent is not None:
            asked["agent_id"] = agent
        for _ in range(MAX_PAGES):
            page = await self._page(asked)
            for each in page.conversations:
                if each.status == _RUNNING:
                    yield MonitoredCall(each.conversation_id, each.agent_name or each.agent_id)
            if not page.has_more or page.next_cursor is None:
                return
            asked["cursor"] = page.next_cursor

    async def _page(self, asked: dict[str, Any]) -> _Page:
        key = self._settings.api_key
        headers = {} if key is None else {"xi-api-key": key.get_secret_value()}
        url = f"{self._settings.base_url}/v1/convai/conversations"
        try:
            response = await self._client.get(
                url, params=asked, headers=headers, timeout=ANSWER_SECONDS
            )
            response.raise_for_status()
            return _Page.model_validate_json(response.content)
        except httpx2.HTTPStatusError as error:
            raise LookError(f"ElevenLabs answers {error.response.status_code}") from None
        except httpx2.HTTPError as error:
            raise LookError(f"ElevenLabs does not answer ({type(error).__name__})") from None
        except ValidationError:
            raise LookError("the answer is no list of conversations") from None


# The role `monitor`: follows the live calls of ElevenLabs agents.

POLL_SECONDS: Final = 5.0
"""Pause between two looks for calls that have begun."""
MAX_CALLS: Final = 500
"""Calls that are followed at a time; each is a connection to ElevenLabs."""
TOLD_LOOKS: Final = 60
"""Of so many looks in a row that fail, one is told: every five minutes."""
MAX_REMEMBERED: Final = 10_000
"""Calls that were followed and are not begun again while the list still has them."""


class MonitorRole:
    """Follows live calls until it is stopped. One process at a time: two would send each event
    twice.

    Attributes:
        ready: Set after the first look for live calls.
    """

    def __init__(
        self, kafka: KafkaSettings, settings: MonitorSettings, instruments: Instruments
    ) -> None:
        """Creates the role; nothing is connected before `run`. Call it inside a running event loop.

        Args:
            kafka: Where Kafka is.
            settings: The key, and the agents to follow.
            instruments: Gets the metrics of the role.

        Raises:
            SetupError: There is no key.
        """
        if not settings.is_on:
            raise SetupError(
                "Monitor: there is no key of ElevenLabs' API, so no call can be followed and it "
                "does not start. Set CALLGAUGE_MONITOR__API_KEY, to the key or to file: and the "
                "path of a file with it."
            )
        self.ready = asyncio.Event()
        self._settings = settings
        self._instruments = instruments
        self._writer = AcknowledgedWriter(kafka, "monitor")
        self._followed: dict[str, asyncio.Task[None]] = {}
        self._known: dict[str, None] = {}
        self._fault: str | None = None
        self._failed_looks = 0
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
                    stop.wait(),
                    self._writer.broken.wait(),
                    self._look(LiveCalls(self._settings, client), stop),
                )
            if self._writer.broken.is_set():
                raise self._writer.failure()
        finally:
            self.ready.clear()
            await end_tasks(self._followed.values())
            self._followed.clear()
            await self._writer.close()

    def problems(self) -> Sequence[str]:
        """The reasons why it does not follow calls now, for `/readyz`."""
        away = (
            ("monitor: Kafka did not acknowledge the last records",) if self._writer.is_away else ()
        )
        return (*away, *(() if self._fault is None else (f"monitor: {self._fault}",)))

    def stalled(self) -> Sequence[str]:
        """No fault of this role needs a new process."""
        return ()

    async def _look(self, calls: LiveCalls, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                for call in await calls.look(time.time()):
                    self._follow(call)
                if self._failed_looks:
                    log.info("monitor_looks_again", failures=self._failed_looks)
                self._fault, self._failed_looks = None, 0
                self.ready.set()
            except LookError as error:
                self._note(str(error))
            await finish_unless(stop, asyncio.sleep(POLL_SECONDS))

    def _note(self, fault: str) -> None:
        self._instruments.inc("callgauge_monitor_look_failures_total")
        self._failed_looks += 1
        if self._fault != fault or self._failed_looks % TOLD_LOOKS == 0:
            self._fault = fault
            log.error(
                "monitor_look_failed",
                error=fault,
                failures=self._failed_looks,
                what_happens_now="It is tried again; calls that are followed go on.",
                what_to_do="Check monitor.api_key, its rights, and the network.",
            )

    def _follow(self, call: MonitoredCall) -> None:
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
            log.error(
                "monitor_failed",
                conversation=conversation_id,
                exc_info=error,
                what_happens_now="The call is not followed any more; others are.",
            )
