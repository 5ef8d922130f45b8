"""Bounds for the connections of our HTTP server: clients that send nothing, little or slowly keep nobody out.

uvicorn waits for a request for as long as the client likes. Here every connection has a deadline at every moment: for
its next whole request, or for its answer to be sent. When too many connections are open, the oldest one gives way, so
there is always room for the probe that comes next.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Literal

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS: Final = 5.0
"""How long a connection may be open without a whole request, from its start or from the end of its last answer. Headers
that come byte by byte do not extend it; a client that is well sends them at once."""
ANSWER_SECONDS: Final = 15.0
"""How long an answer may take, from the request's headers to the last piece that we hand to the operating system.
Prometheus gives up after 10 s unless its `scrape_timeout` says otherwise."""
MAX_CONNECTIONS: Final = 128
"""Connections at a time; Prometheus, a browser and a probe need three. It is more than twice `MAX_ACCEPTED_AT_ONCE`, so
that in any burst a client's request is read before its connection is the oldest."""
MAX_ACCEPTED_AT_ONCE: Final = 32
"""New connections that one turn of the event loop takes; the others wait in the operating system's queue."""
MAX_PENDING: Final = 1_024
"""Connections in that queue: a burst that comes while the loop is busy must not make the system drop a probe's."""

HttpLimit = Literal["request_time", "answer_time", "connections", "scrapes"]
"""The bounds of the HTTP server, as the label `limit` of `callgauge_http_limits_hit_total` names them."""


class OpenConnections:
    """The open connections of one server, the oldest first, and where it is counted that a bound was reached."""

    def __init__(self, count: Callable[[HttpLimit], None]) -> None:
        """Begins with none.

        Args:
            count: Called once for each connection that a bound ends.
        """
        self.count = count
        self._open: dict[BoundedConnection, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: "BoundedConnection") -> None:
        """Takes one in. When there are too many, the oldest without a request ends, or the oldest of all."""
        if len(self._open) >= MAX_CONNECTIONS:
            waiting = (each for each in self._open if not each.is_answering)
            next(waiting, next(iter(self._open))).end("connections")
        self._open[connection] = None

    def remove(self, connection: "BoundedConnection") -> None:
        """Forgets one that has ended; twice is harmless."""
        self._open.pop(connection, None)


class BoundedConnection(H11Protocol):
    """uvicorn's connection with a deadline at every moment of its life.

    Attributes:
        is_answering: Whether there is a request whose answer has not been sent.
    """

    def __init__(self, open_connections: OpenConnections, **of_uvicorn: Any) -> None:
        """Has no deadline before it is made.

        Args:
            open_connections: The connections of this server.
            of_uvicorn: What uvicorn gives to each connection.
        """
        super().__init__(**of_uvicorn)
        self.is_answering = False
        self._open_connections = open_connections
        self._deadline: asyncio.TimerHandle | None = None
        self._owes_request = True
        """False between an answer and the first byte of the next request: ending it then is nothing to count."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Begins to wait for a request."""
        super().connection_made(transport)
        self._open_connections.add(self)
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Takes the deadline back."""
        self._clear_deadline()
        self._open_connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Reads a part of a request; the deadline stays unless it is a whole one."""
        self._owes_request = True
        super().data_received(data)

    def handle_events(self) -> None:
        """Begins the answer to a request whose headers are complete."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self.is_answering = True
            self._set_deadline(ANSWER_SECONDS, "answer_time")

    def on_response_complete(self) -> None:
        """Waits for the next request; what is left of the answer has to be sent meanwhile."""
        self.is_answering = False
        self._owes_request = False
        self._wait_for_request()
        super().on_response_complete()

    def end(self, limit: HttpLimit) -> None:
        """Ends the connection at once, with whatever was not sent yet, because of this bound."""
        if limit == "request_time" and self.transport.get_write_buffer_size():
            limit = "answer_time"  # handed over, and the client did not read it
        if self._owes_request or limit != "request_time":
            self._open_connections.count(limit)
        self._clear_deadline()
        self._open_connections.remove(self)
        self.transport.abort()

    def _wait_for_request(self) -> None:
        self._set_deadline(REQUEST_SECONDS, "request_time")

    def _set_deadline(self, seconds: float, limit: HttpLimit) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(seconds, self.end, limit)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
