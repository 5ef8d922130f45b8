"""A monitored call: a server on loopback that plays ElevenLabs by a script, and a bridge that listens."""

import asyncio
import http
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from prometheus_client import CollectorRegistry
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

from consumers.runtime.registry import Instruments
from streamer.settings.all_settings import MonitorSettings
from streamer.sources.monitor import QUIET_SECONDS, CallBridge, LiveCall
from streamer.sources.writer import AcknowledgedWriter, NotAcknowledgedError, OutgoingRecord

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

    def __init__(self, url: str, writer: Records, instruments: Instruments, now_seconds: float = 0.0) -> None:
        self.now_seconds = now_seconds
        self.took = asyncio.Semaphore(0)
        super().__init__(
            LiveCall("conv 1", "desk"),
            MonitorSettings.model_validate({"api_key": KEY, "base_url": url}),
            cast("AcknowledgedWriter", writer),
            instruments,
            lambda: T0_MS + round(self.now_seconds * 1000),
            lambda: self.now_seconds,
        )

    async def written(self) -> None:
        """Waits until the writer has all messages that were taken."""
        await self._waiting.join()

    def _take(self, text: bytes, at_seconds: float) -> Any:
        try:
            return super()._take(text, at_seconds)
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


class Call:
    """A call and the output of the bridge for it."""

    def __init__(self) -> None:
        self.writer = Records()
        self.registry = CollectorRegistry()
        self.instruments = Instruments(self.registry, ["monitor"])
        self.requests: list[Request] = []
        self.now_seconds = 0.0

    def count(self, name: str, outcome: str) -> float:
        return self.registry.get_sample_value(f"callgauge_monitor_{name}_total", {"outcome": outcome}) or 0.0

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
    speak: Callable[[ServerConnection], Awaitable[None]], requests: list[Request], status: int | None = None
) -> AsyncIterator[str]:
    """Runs a server of the monitor; yields its address. With a status it accepts no connection."""

    def answer(connection: ServerConnection, request: Request) -> Response | None:
        requests.append(request)
        return None if status is None else connection.respond(http.HTTPStatus(status), "")

    server: Server
    async with serve(speak, "127.0.0.1", 0, process_request=answer) as server:
        yield f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
