"""A TCP proxy between evaluators and brokers, which delays, loses and cuts. `python -m
tests.chaos.cluster.proxy`.

Each evaluator reaches all brokers through one of two doors, so that half a fleet can be cut off
while the other half works. An argument is a door's listener: "left 9001 127.0.0.1 9092". A line on
standard input changes a door: "left slow 200". When standard input closes, the owner is gone, and
it ends.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

CHUNK_BYTES: Final = 65_536
DOORS: Final = ("left", "right")


class Way(StrEnum):
    """How bytes pass a door."""

    OPEN = "open"
    """As they come."""
    SLOW = "slow"
    """So many ms later."""
    HOLE = "hole"
    """Not at all; connections stay, and new ones are accepted and silent."""
    NOT_TO_BROKER = "not_to_broker"
    NOT_FROM_BROKER = "not_from_broker"
    """In the other direction only."""
    HALF_OPEN = "half_open"
    """The broker's end of each connection is closed, and the evaluator does not learn it before the
    door is open again.
    """
    CUT = "cut"
    """Every connection ends; new ones are as usual."""
    REFUSED = "refused"
    """Every connection ends, and so does each new one."""


class _Connection:
    """One evaluator's connection: its own end, the broker's, and whether the broker's end was
    closed in silence.
    """

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.near = near
        self.far = far
        self.is_half_open = False
        self.is_over = asyncio.Event()

    def end(self) -> None:
        """Closes both ends at once."""
        self.is_over.set()
        self.near.transport.abort()
        self.far.transport.abort()


class Door:
    """All listeners that evaluators of one kind use, and how bytes pass there now."""

    def __init__(self) -> None:
        self._delay_seconds = 0.0
        self._to_broker, self._from_broker = asyncio.Event(), asyncio.Event()
        self._refuses = False
        self._connections: set[_Connection] = set()
        self.change(Way.OPEN, 0)

    def change(self, way: Way, delay_ms: int) -> None:
        """Bytes pass like this from now on."""
        if way is Way.HALF_OPEN:
            for each in self._connections:
                each.is_half_open = True
                each.far.transport.abort()
        ends = {Way.CUT: self._connections, Way.REFUSED: self._connections}.get(way) or {
            each for each in self._connections if each.is_half_open and way is not Way.HALF_OPEN
        }
        for each in list(ends):
            each.end()
        self._refuses = way is Way.REFUSED
        self._delay_seconds = delay_ms / 1_000
        for gate, closing in (
            (self._to_broker, {Way.HOLE, Way.NOT_TO_BROKER, Way.HALF_OPEN}),
            (self._from_broker, {Way.HOLE, Way.NOT_FROM_BROKER, Way.HALF_OPEN}),
        ):
            if way in closing:
                gate.clear()
            else:
                gate.set()

    async def serve(
        self, reader: asyncio.StreamReader, near: asyncio.StreamWriter, host: str, port: int
    ) -> None:
        """Carries one connection until it ends."""
        if self._refuses:
            near.transport.abort()
            return
        try:
            far_reader, far = await asyncio.open_connection(host, port)
        except OSError:
            near.transport.abort()
            return
        connection = _Connection(near, far)
        self._connections.add(connection)
        try:
            to_broker = asyncio.create_task(self._carry(connection, reader, far, self._to_broker))
            from_broker = asyncio.create_task(
                self._carry(connection, far_reader, near, self._from_broker)
            )
            await asyncio.wait([to_broker, from_broker], return_when=asyncio.FIRST_COMPLETED)
            if connection.is_half_open:
                await connection.is_over.wait()
            for each in (to_broker, from_broker):
                each.cancel()
            await asyncio.gather(to_broker, from_broker, return_exceptions=True)
        finally:
            self._connections.discard(connection)
            connection.end()

    async def _carry(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        gate: asyncio.Event,
    ) -> None:
        try:
            while data := await reader.read(CHUNK_BYTES):
                await gate.wait()
                if self._delay_seconds:
                    await asyncio.sleep(self._delay_seconds)
                if not connection.is_half_open:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            return  # an end is gone, so the other goes too


async def main() -> None:
    """Serves until standard input closes."""
    doors = {name: Door() for name in DOORS}
    for argument in sys.argv[1:]:
        name, listens, host, port = argument.split()
        door = doors[name]

        async def serve(
            reader: asyncio.StreamReader,
            writer: asyncio.StreamWriter,
            door: Door = door,
            host: str = host,
            port: int = int(port),
        ) -> None:
            await door.serve(reader, writer, host, port)

        await asyncio.start_server(serve, "127.0.0.1", int(listens))
    loop = asyncio.get_running_loop()

    def listen() -> None:
        for line in sys.stdin:
            name, way, delay_ms = line.split()
            loop.call_soon_threadsafe(doors[name].change, Way(way), int(delay_ms))
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    print("ready", flush=True)
    await asyncio.Event().wait()


# -- the proxy as its owner sees it
# ------------------------------------------------------------------------------------

ROOT: Final = Path(__file__).parents[3]


class ProxyError(Exception):
    """The proxy broke down: the run proves nothing."""


class Listener(NamedTuple):
    """One broker behind one door: where evaluators connect, and where that leads."""

    door: str
    port: int
    host: str
    target: int


class ProxyProcess:
    """Runs from construction until `stop`; all doors are open."""

    def __init__(self, listeners: Sequence[Listener], tie: Sequence[str] = ()) -> None:
        """Starts it; returns when it listens.

        Args:
            listeners: Of every broker.
            tie: Put before the command; ends the process with this one.
        """
        arguments = [f"{each.door} {each.port} {each.host} {each.target}" for each in listeners]
        self._process = subprocess.Popen(
            [*tie, sys.executable, "-m", "tests.chaos.cluster.proxy", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise ProxyError(
                "the proxy between evaluators and brokers did not come up; the run proves nothing"
            )

    def change(self, door: str, way: Way, delay_ms: int = 0) -> None:
        """Bytes pass a door like this from now on."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{door} {way} {delay_ms}\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ProxyError(
                "the proxy between evaluators and brokers has ended; the run proves nothing"
            ) from error

    def stop(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


if __name__ == "__main__":
    asyncio.run(main())
