"""Serves routes on one address inside our event loop, with bounds for every connection."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from consumers.runtime.errors import OperatorError
from consumers.runtime.http.connections import (
    MAX_ACCEPTED_AT_ONCE,
    MAX_PENDING,
    BoundedConnection,
    ConnectionBounds,
    HttpLimit,
    OpenConnections,
)

STOP_SECONDS: Final = 0.4
"""How long open connections may take to finish when a server stops, before they are cut."""


class AddressInUseError(OperatorError):
    """The address is taken. Choose another port, or end the program that uses it."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, because the application handles signals, and with our length of the queue."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(MAX_PENDING)  # its `backlog` is also how many one turn of the loop accepts


class HttpListener:
    """One address and its routes."""

    def __init__(
        self,
        host: str,
        port: int,
        routes: Sequence[BaseRoute],
        count: Callable[[HttpLimit], None],
        *,
        bounds: ConnectionBounds | None = None,
        without_it: str,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        """Stores its settings; `start` listens.

        Args:
            host: Address to listen on.
            port: Port to listen on; 0 takes a free one.
            routes: The pages.
            count: Called once for each connection that a bound ends.
            bounds: Limits of its connections; None means those of a server for probes and metrics.
            without_it: The loss if it cannot listen, for the error.
            stop_seconds: How long answers in progress may take when it stops, before they are cut.
        """
        self._host = host
        self._port = port
        self._without_it = without_it
        self._config = uvicorn.Config(
            Starlette(routes=routes), lifespan="off", log_config=None, access_log=False, server_header=False,
            ws="none", backlog=MAX_ACCEPTED_AT_ONCE,
            http=partial(BoundedConnection, OpenConnections(count, bounds)),  # type: ignore[arg-type]  # uvicorn only calls it
            timeout_graceful_shutdown=stop_seconds,  # type: ignore[arg-type]  # asyncio waits for parts of a second too
        )  # fmt: skip
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """The address with the actual port, without a path."""
        return f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        """Listens and serves.

        Raises:
            AddressInUseError: Another program holds the address, or it is none of this machine's.
        """
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            listening = socket.create_server((self._host, self._port), family=family)
        except OSError as error:
            raise AddressInUseError(
                f"HTTP server: cannot listen on {self._host}:{self._port}: {error.strerror}. "
                f"{self._without_it}, so callgauge does not start. Choose another port, or 0 for a free one."
            ) from error
        # asyncio does this for sockets whose protocol number is set, and these have none: an answer in two pieces took 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._port = listening.getsockname()[1]
        self._server = _Server(self._config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]), name="http")

    async def stop(self) -> None:
        """Stops listening, lets answers in progress finish, and cuts the rest."""
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        await self._serving
        self._server = self._serving = None
