"""The bridge from ElevenLabs' monitor, before a server on loopback that plays ElevenLabs by a
script.
"""

import asyncio
import http
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import structlog
from prometheus_client import CollectorRegistry
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource
from schemas.events.codec import decode
from schemas.events.elevenlabs import CarriedAgentEvent
from schemas.events.envelope import read_envelope
from schemas.log import OutgoingRecord
from schemas.rows import TurnRow
from streamer.settings.all_settings import MonitorSettings
from streamer.sources import monitor as monitor_bridge
from streamer.sources.monitor import (
    PAST_MESSAGES,
    QUIET_SECONDS,
    CallBridge,
    JoinedCall,
    Judgement,
    MonitoredCall,
)
from streamer.sources.outgoing import NotAcknowledgedError
from streamer.sources.writer import AcknowledgedWriter
from tests.support.calls.monitor_messages import server_messages
from tests.support.calls.rows_of_calls import turns_of
from tests.support.fakes.engine_feed import T0_MS as FEED_T0_MS
from tests.support.fakes.engine_feed import Feed, plain, rows_of

Json = dict[str, Any]
T0_MS = 1_790_000_000_000
KEY = "key-of-tests"


class Records:
    """A writer that keeps its records; the next `fails` writes are not acknowledged."""

    def __init__(self) -> None:
        self.records: list[OutgoingRecord] = []
        self.fails = 0

    async def write(self, records: Sequence[OutgoingRecord]) -> None:
        if self.fails:
            self.fails -= 1
            raise NotAcknowledgedError
        self.records += records

    @property
    def events(self) -> list[Json]:
        return [json.loads(each.value) for each in self.records]


class Listening(CallBridge):
    """A bridge on the clock of the test; it signals each message that it has taken."""

    def __init__(
        self, url: str, writer: Records, instruments: Instruments, now_seconds: float = 0.0
    ) -> None:
        self.now_seconds = now_seconds
        self.took = asyncio.Semaphore(0)
        super().__init__(
            MonitoredCall("conv 1", "desk"),
            MonitorSettings.model_validate({"api_key": KEY, "base_url": url}),
            cast("AcknowledgedWriter", writer),
            instruments,
            lambda: T0_MS + round(self.now_seconds * 1000),
            lambda: self.now_seconds,
        )

    async def written(self) -> None:
        """Waits until the writer has all messages that were taken."""
        await self._waiting.join()

    def _judge_message(self, text: bytes, at_seconds: float) -> Any:
        try:
            return super()._judge_message(text, at_seconds)
        finally:
            self.took.release()


class Side:
    """The actions of a script on one connection."""

    def __init__(self, socket: ServerConnection, bridge: Listening) -> None:
        self._socket = socket
        self._bridge = bridge

    async def says(self, *messages: Json | str) -> None:
        """Sends messages one right after the other; each is taken before the next."""
        for message in messages:
            await self._socket.send(message if isinstance(message, str) else json.dumps(message))
            await self._bridge.took.acquire()

    def passes(self, seconds: float = QUIET_SECONDS) -> None:
        """Lets time pass without a message."""
        self._bridge.now_seconds += seconds

    async def breaks(self) -> None:
        """Breaks the connection at once."""
        self._socket.transport.abort()
        await self._socket.wait_closed()


Script = Callable[[Side], Awaitable[None]]


def saying(*steps: Json | str | float) -> Script:
    """Messages, one right after the other; at a number so many seconds pass."""

    async def script(side: Side) -> None:
        for step in steps:
            if isinstance(step, float):
                side.passes(step)
            else:
                await side.says(step)

    return script


async def followed(*scripts: Script) -> "Call":
    call = Call()
    await call.follow(*scripts)
    return call


class Call:
    """A call and the output of the bridge for it."""

    def __init__(self) -> None:
        self.writer = Records()
        self.registry = CollectorRegistry()
        self.instruments = Instruments(self.registry, ["monitor"])
        self.requests: list[Request] = []
        self.now_seconds = 0.0

    def count(self, name: str, outcome: str) -> float:
        return (
            self.registry.get_sample_value(f"callgauge_monitor_{name}_total", {"outcome": outcome})
            or 0.0
        )

    async def follow(self, *scripts: Script, status: int | None = None) -> None:
        """Follows the call through one script for each connection, to its end."""
        left = list(scripts)
        bridges: list[Listening] = []

        async def speak(socket: ServerConnection) -> None:
            await left.pop(0)(Side(socket, bridges[0]))

        async with serving(speak, self.requests, status) as url:
            bridges.append(Listening(url, self.writer, self.instruments, self.now_seconds))
            await bridges[0].run()
        assert left == []

    async def killed_after(self, script: Script) -> None:
        """Follows the call through the script, then ends without a word, like a killed process."""
        is_over = asyncio.Event()
        bridges: list[Listening] = []

        async def speak(socket: ServerConnection) -> None:
            await script(Side(socket, bridges[0]))
            is_over.set()
            await socket.wait_closed()

        async with serving(speak, self.requests) as url:
            bridges.append(Listening(url, self.writer, self.instruments, self.now_seconds))
            bridge = asyncio.create_task(bridges[0].run())
            await is_over.wait()
            await bridges[0].written()
            bridge.cancel()
            await asyncio.gather(bridge, return_exceptions=True)
        self.now_seconds = bridges[0].now_seconds


@asynccontextmanager
async def serving(
    speak: Callable[[ServerConnection], Awaitable[None]],
    requests: list[Request],
    status: int | None = None,
) -> AsyncIterator[str]:
    """Runs a server of the monitor; yields its address. With a status it accepts no connection."""

    def answer(connection: ServerConnection, request: Request) -> Response | None:
        requests.append(request)
        return None if status is None else connection.respond(http.HTTPStatus(status), "")

    server: Server
    async with serve(speak, "127.0.0.1", 0, process_request=answer) as server:
        yield f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


# a Literal
CARRIED = set(CarriedAgentEvent.model_fields["type"].annotation.__args__)  # type: ignore[union-attr]


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_bridge, "FIRST_PAUSE_SECONDS", 0.0)


PING: Json = {"type": "ping", "ping_event": {"event_id": 1}}


def heard(text: str, event_id: int | str | None = None) -> Json:
    data: Json = {"user_transcript": text} | ({} if event_id is None else {"event_id": event_id})
    return {"type": "user_transcript", "user_transcription_event": data}


def said(text: str, event_id: int | str | None = None) -> Json:
    data: Json = {"agent_response": text} | ({} if event_id is None else {"event_id": event_id})
    return {"type": "agent_response", "agent_response_event": data}


def fed(call: Call) -> Feed:
    """The evaluator after the records of a call that is over."""
    feed = Feed()
    for record, event in zip(call.writer.records, call.writer.events, strict=True):
        assert record.source is InputSource.ELEVENLABS, "in one topic the labels come first"
        feed.send(
            "user_sim",
            event,
            event["timestamp"] - FEED_T0_MS,
            envelope=read_envelope(record.headers),
        )
    feed.advance(3_600_000)
    return feed


def words(records: Records) -> list[tuple[str, bool]]:
    """The words in order, each with a flag for an exact time."""
    found = []
    for event in records.events:
        for part in ("user_transcription_event", "agent_response_event"):
            if part in event:
                texts = [value for key, value in event[part].items() if key != "event_id"]
                found.append((texts[0], event.get("is_time_exact", True)))
    return found


@pytest.mark.parametrize("whole", [False, True])
async def test_every_type_of_the_document_is_taken(*, whole: bool) -> None:
    messages = server_messages(whole=whole)
    assert len({message["type"] for message in messages}) == 27
    call = await followed(saying(*messages))
    started, *events, ended = call.writer.events
    assert (started["type"], started["agent"], ended["type"]) == (
        "call_started",
        "desk",
        "call_ended",
    )
    assert [event["type"] for event in events] == [
        each["type"] for each in messages if each["type"] not in CARRIED
    ]
    assert call.count("messages", "left_out") == len(messages) - len(events)
    for record in call.writer.records[1:-1]:
        assert (
            decode(InputSource.ELEVENLABS, record.value, read_envelope(record.headers)).timestamp
            == T0_MS
        )
    assert {record.key for record in call.writer.records} == {b"conv 1"}
    (request,) = call.requests
    assert request.path == "/v1/convai/conversations/conv%201/monitor"
    assert request.headers["xi-api-key"] == KEY


@pytest.mark.parametrize("ids", [(1, 1, 2, 2), ("1", "1", "2", "2"), (None, None, None, None)])
async def test_the_past_of_a_call_that_is_joined_late_has_no_times(
    ids: tuple[int | str | None, ...],
) -> None:
    past = heard("One", ids[0]), said("Two", ids[1])
    call = await followed(
        saying(*past, QUIET_SECONDS, heard("Three", ids[2]), 0.9, said("Four", ids[3]))
    )
    assert words(call.writer) == [("One", False), ("Two", False), ("Three", True), ("Four", True)]
    assert (call.count("messages", "past"), call.count("messages", "sent")) == (2, 2)


@pytest.mark.parametrize("has_ids", [True, False])
async def test_what_a_reconnect_repeats_is_sent_once_and_what_was_missed_has_no_time(
    *, has_ids: bool
) -> None:
    one, two, three, again = (
        heard("Yes", 1 if has_ids else None),
        said("Good", 1 if has_ids else None),
        heard("Yes", 2 if has_ids else None),
        said("Good", 3 if has_ids else None),
    )

    async def first(side: Side) -> None:
        await saying(QUIET_SECONDS, one, QUIET_SECONDS, two)(side)
        await side.breaks()

    # the third was missed
    call = await followed(first, saying(one, two, three, QUIET_SECONDS, again))
    assert words(call.writer) == [("Yes", False), ("Good", True), ("Yes", False), ("Good", True)]
    assert call.count("messages", "repeated") == 2
    assert (call.count("connections", "lost"), call.count("connections", "ended")) == (1, 1)
    ids = [
        envelope.id
        for record in call.writer.records
        if (envelope := read_envelope(record.headers)) is not None
    ]
    assert len(set(ids)) == len(ids)


async def test_sound_and_pings_are_no_pause() -> None:
    call = await followed(saying(heard("One"), *(0.1, PING) * 3, heard("Two")))
    assert words(call.writer) == [("One", False), ("Two", True)]


async def test_what_is_no_message_is_counted_and_the_call_goes_on() -> None:
    with structlog.testing.capture_logs() as logs:
        call = await followed(
            saying("{", "[]", "{}", '{"type": 5}', '{"type": "of_tomorrow"}', heard("One"))
        )
    assert [each["event"] for each in logs] == ["monitor_message_unreadable"]
    assert call.count("messages", "unreadable") == 4
    assert [event["type"] for event in call.writer.events[1:-1]] == [
        "of_tomorrow",
        "user_transcript",
    ]


async def test_without_kafka_messages_wait_and_keep_the_time_of_their_arrival(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = Call()
    call.writer.fails = 3
    await call.follow(saying(heard("One"), 5.0, said("Two")))
    assert [event["timestamp"] - T0_MS for event in call.writer.events] == [0, 0, 5_000, 5_000]
    monkeypatch.setattr(monitor_bridge, "MAX_WAITING", 2)
    crowded = Call()
    crowded.writer.fails = 50
    await crowded.follow(saying(*[heard(str(number)) for number in range(10)]))
    assert crowded.count("messages", "dropped") > 0


@pytest.mark.parametrize(
    ("status", "tries"), [(403, 1), (404, 1), (500, monitor_bridge.MOST_TRIES)]
)
async def test_a_call_that_cannot_be_followed_is_left(status: int, tries: int) -> None:
    call = Call()
    await call.follow(status=status)
    assert len(call.requests) == tries
    assert call.writer.events == []


@pytest.mark.parametrize(
    ("code", "ended", "connections", "event"),
    [
        (1008, "refused", 1, "monitor_refused"),
        (1011, "lost", monitor_bridge.MOST_TRIES, "monitor_lost"),
    ],
)
async def test_a_close_is_told_with_its_code_and_reason(
    code: int, ended: str, connections: int, event: str
) -> None:
    async def closes(side: Side) -> None:
        await side._socket.close(code, "monitoring is not enabled")

    call = Call()
    with structlog.testing.capture_logs() as logs:
        await call.follow(*[closes] * connections)
    assert call.count("connections", ended) == connections
    assert (logs[-1]["event"], logs[-1]["seen"]) == (
        event,
        f"close {code} 'monitoring is not enabled'",
    )
    assert call.writer.events == []  # a call that nobody could follow is not opened


async def test_nothing_is_timed_from_the_past_and_the_present_is_estimated() -> None:
    past = said("Welcome.", 1), heard("My badge is lost", 2), said("Which one?", 2)
    call = await followed(saying(*past, 4.0, heard("The blue one", 3), 0.9, said("I see.", 3)))
    rows = rows_of(fed(call).effects)
    assert {row.turn for row in rows if isinstance(row, TurnRow) and "wait" in row.news} == {2}
    assert [
        plain(turn.wait_ms)
        for turn in turns_of(rows).values()
        if turn.turn and turn.wait_ms is not None
    ] == [
        "times_unknown",
        900.0,
    ]


def test_of_a_call_whose_beginning_may_be_missing_no_message_is_taken_for_an_earlier_one() -> None:
    """Equal messages without ids: after a restart their number before the last hundred
    is unknown.
    """
    call = JoinedCall()
    call.connected()
    numbers = [call.judge(b"Yes", 0.0).number for _ in range(PAST_MESSAGES)]
    assert numbers == list(range(1, PAST_MESSAGES + 1))
    assert call.judge(b"Yes", 1.0) == Judgement(is_exact=True, is_repeat=False, number=None)
    whole = JoinedCall()
    whole.connected()
    for _ in range(PAST_MESSAGES - 1):
        whole.judge(b"Yes", 0.0)
    assert whole.judge(b"Yes", 1.0) == Judgement(
        is_exact=True, is_repeat=False, number=PAST_MESSAGES
    )
    whole.connected()
    for _ in range(PAST_MESSAGES):
        assert whole.judge(b"Yes", 2.0).is_repeat
    assert whole.judge(b"Yes", 3.0).number == PAST_MESSAGES + 1


async def test_pings_are_of_the_last_hundred_messages_too() -> None:
    call = await followed(
        saying(*[PING] * (PAST_MESSAGES - 1), heard("Yes"), QUIET_SECONDS, heard("Yes"))
    )
    past, present = (read_envelope(record.headers) for record in call.writer.records[1:-1])
    assert past is not None
    assert present is not None
    assert past.id is not None
    assert past.id.partition("/")[0] not in (present.id or "")


def called(call_id: str) -> Json:
    return {
        "type": "agent_tool_request",
        "agent_tool_request": {"tool_name": "find", "tool_call_id": call_id},
    }


def replied(call_id: str) -> Json:
    data = {"tool_name": "find", "tool_call_id": call_id, "is_error": False, "is_called": True}
    return {"type": "agent_tool_response", "agent_tool_response": data}


@pytest.mark.parametrize("has_ids", [True, False])
async def test_a_bridge_that_starts_again_times_nothing_of_the_past_and_doubles_no_words(
    *, has_ids: bool
) -> None:
    """The bridge follows a call, ends without a word, and misses an answer before its restart."""
    ids = iter(range(1, 100))

    def numbered() -> int | None:
        return next(ids) if has_ids else None

    before = [
        said("Welcome.", numbered()),
        heard("Yes", numbered()),
        said("Good", numbered()),
        heard("Yes", numbered()),
        called("t1"),
    ]
    missed = [replied("t1"), said("Found it", numbered())]
    after = [heard("Yes", numbered()), called("t2"), replied("t2"), said("Good", numbered())]

    call = Call()
    await call.killed_after(
        saying(QUIET_SECONDS, *(step for message in before for step in (message, 1.0)))
    )
    await call.follow(
        saying(5.0, *before, *missed, *(step for message in after for step in (1.0, message)))
    )
    feed = fed(call)
    rows = turns_of(rows_of(feed.effects))
    assert {
        turn: plain(row.wait_ms) for turn, row in rows.items() if turn and row.wait_ms is not None
    } == {1: 1_000.0, 2: "times_unknown", 3: 3_000.0}
    assert [(turn, use.duration_ms) for turn, row in rows.items() for use in row.tools] == [
        (2, None),
        (3, 1_000),
    ]
    talk = {turn: row.talk for turn, row in rows.items()}
    spoken = {
        turn: (each.user.words, each.assistant.words)
        for turn, each in talk.items()
        if each is not None
    }
    assert spoken == {0: (None, 1), 1: (1, 1), 2: (1, 2), 3: (1, 1)}
