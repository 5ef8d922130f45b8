"""Follows one live call over ElevenLabs' monitor: its messages become records of `elevenlabs.events`."""

import asyncio
import contextlib
import hashlib
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple, get_args
from urllib.parse import quote

import structlog
from pydantic_core import from_json
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK, InvalidHandshake, InvalidStatus

from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource, MonitorOutcome
from schemas.events.elevenlabs import CarriedAgentEvent
from schemas.events.envelope import envelope_headers
from schemas.wire import MAX_NAME_CHARS
from streamer.settings.monitor import MonitorSettings
from streamer.sources.monitor.past import JoinedCall
from streamer.sources.publisher import cloudevent_type
from streamer.sources.replay.playback import compact_json
from streamer.sources.writer import MAX_VALUE_BYTES, AcknowledgedWriter, NotAcknowledgedError, OutgoingRecord

FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 8.0
MOST_TRIES: Final = 8
"""Connections in a row without a message, some 30 s of pauses, after which a call is left."""
OPEN_SECONDS: Final = 10.0
MAX_MESSAGE_BYTES: Final = 1_048_576
"""Largest message. A full tool result has 64 KB; sound, which is left out, some 100 KB."""
MAX_WAITING: Final = 1_000
"""Messages of a call that wait for Kafka: some minutes of it. Later ones are dropped and counted, because ElevenLabs would
otherwise wait for us."""
CE_SOURCE: Final = "callgauge.elevenlabs.monitor"

_CARRIED: Final = frozenset(get_args(CarriedAgentEvent.model_fields["type"].annotation))
_FOR_GOOD: Final = frozenset({401, 403, 404, 410, 422})
"""Answers that a second try does not improve: no right, no such call, a call that is over."""
_HowItEnded = Literal["ended", "lost", "refused"]

log = structlog.get_logger()


class LiveCall(NamedTuple):
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
        self, call: LiveCall, settings: MonitorSettings, writer: AcknowledgedWriter, instruments: Instruments,
        clock_ms: Callable[[], int], monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Stores its settings; nothing is connected before `run`.

        Args:
            call: The call.
            settings: Address and key of the API.
            writer: Writes the records.
            instruments: Counts messages and connections.
            clock_ms: Milliseconds since 1970, which events get as the time of their arrival.
            monotonic: Seconds, for pauses.
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
        self._is_joined = False

    async def run(self) -> None:
        """Follows the call until ElevenLabs ends the connection, refuses it, or cannot be reached any more."""
        writing = asyncio.create_task(self._write())
        try:
            await self._follow()
            await self._waiting.join()
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _follow(self) -> None:
        tries = 0
        while tries < MOST_TRIES:
            before = self._messages
            ended = await self._connection()
            self._instruments.inc("callgauge_monitor_connections_total", (ended,))
            if ended == "ended":
                self._put(*self._control("call_ended"))
                return
            if ended == "refused":
                return
            tries = 1 if self._messages > before else tries + 1
            await asyncio.sleep(min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** (tries - 1)))
        log.error(
            "monitor_lost", conversation=self._call.conversation_id, tries=tries,
            what_happens_now="The call is not followed any more.", what_to_do="Check the network to ElevenLabs.",
        )  # fmt: skip

    async def _connection(self) -> _HowItEnded:
        """One connection, from its start to its end."""
        key = self._settings.api_key
        base = self._settings.base_url.replace("http", "ws", 1)
        url = f"{base}/v1/convai/conversations/{quote(self._call.conversation_id, safe='')}/monitor"
        headers = {} if key is None else {"xi-api-key": key.get_secret_value()}
        try:
            async with connect(
                url, additional_headers=headers, open_timeout=OPEN_SECONDS, max_size=MAX_MESSAGE_BYTES, close_timeout=1
            ) as socket:
                if not self._is_joined:  # a call that nobody may follow is not opened here
                    self._is_joined = True
                    self._put(*self._control("call_started", agent=self._call.agent))
                self._joined.connected()
                return await self._read(socket)
        except InvalidStatus as error:
            return self._not_accepted(error.response.status_code)
        except (OSError, TimeoutError, InvalidHandshake, ConnectionClosedError):
            return "lost"

    def _not_accepted(self, status: int) -> _HowItEnded:
        if status not in _FOR_GOOD:
            return "lost"
        log.error(
            "monitor_refused", conversation=self._call.conversation_id, status=status,
            what_happens_now="The call is not followed.",
            what_to_do="Switch monitoring on for the agent, and give the key the right to write agents; the call may be over.",
        )  # fmt: skip
        return "refused"

    async def _read(self, socket: ClientConnection) -> _HowItEnded:
        while True:
            try:
                text = await socket.recv(decode=False)
            except ConnectionClosedOK:
                return "ended"
            self._messages += 1
            outcome = self._take(text, self._monotonic())
            self._instruments.inc("callgauge_monitor_messages_total", (outcome.value,))

    def _take(self, text: bytes, at_seconds: float) -> MonitorOutcome:
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
        event_id = f"{content}/{judged.number}" if judged.number is not None else f"{self._run_id}/{self._messages}"
        if not self._put(kind, event["timestamp"], value, event_id):
            return MonitorOutcome.DROPPED
        return MonitorOutcome.SENT if judged.is_exact else MonitorOutcome.PAST

    def _control(self, kind: str, **fields: str | None) -> tuple[str, int, bytes]:
        now_ms = self._clock_ms()
        known = {name: value for name, value in fields.items() if value is not None}
        return kind, now_ms, compact_json({"type": kind, "timestamp": now_ms, **known})

    def _put(self, kind: str, time_ms: int, value: bytes, event_id: str | None = None) -> bool:
        """Queues an agent's event, or without an id an event of our own; whether there was room for it.

        After a restart a bridge gives the same ids again, so that the evaluator sees repeats.
        """
        conversation_id = self._call.conversation_id
        is_agent_event = event_id is not None
        source = InputSource.ELEVENLABS if is_agent_event else InputSource.AUDIT
        headers = envelope_headers(
            event_id=f"{conversation_id}/{kind}" if event_id is None else event_id,
            source=CE_SOURCE,
            event_type=cloudevent_type(
                "elevenlabs" if is_agent_event else "audit", kind, is_agent_event=is_agent_event
            ),
            subject=conversation_id,
            time_ms=time_ms,
        )
        with contextlib.suppress(asyncio.QueueFull):
            self._waiting.put_nowait(OutgoingRecord(source, conversation_id.encode(), value, headers))
            return True
        return False

    async def _write(self) -> None:
        """Writes record after record, each until it is acknowledged: its id makes a second copy a repeat."""
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
