"""Bounds for the connections of our HTTP server, so that slow or silent clients keep no other client out.

uvicorn waits for a request without a limit. Here every connection has a deadline at every moment: for its next complete
request, or for sending its answer. When too many connections are open, the oldest one is closed, so there is always room for
the next probe.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS: Final = 5.0
"""How long a connection may be open without a complete request, from its start or the end of its last answer. Single bytes of
headers do not extend it; a healthy client sends them at once."""
ANSWER_SECONDS: Final = 15.0
"""How long an answer may take, from the request's headers to the last piece given to the operating system. Prometheus gives up
after 10 s by default (`scrape_timeout`)."""
MAX_CONNECTIONS: Final = 128
"""Most connections at a time. Prometheus, a browser and a probe need three. It is more than twice `MAX_ACCEPTED_AT_ONCE`, so that
in any burst a client's request is read before its connection is the oldest."""
MAX_ACCEPTED_AT_ONCE: Final = 32
"""New connections that one turn of the event loop takes; the others wait in the operating system's queue."""
MAX_PENDING: Final = 1_024
"""Most connections in that queue: during a burst while the loop is busy, the system must not drop a probe."""


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """Limits of the connections of one server.

    Attributes:
        request_seconds: As `REQUEST_SECONDS`.
        answer_seconds: As `ANSWER_SECONDS`.
        most_connections: As `MAX_CONNECTIONS`.
    """

    request_seconds: float = field(default_factory=lambda: REQUEST_SECONDS)
    answer_seconds: float = field(default_factory=lambda: ANSWER_SECONDS)
    most_connections: int = field(default_factory=lambda: MAX_CONNECTIONS)


HttpLimit = Literal["request_time", "answer_time", "connections", "scrapes"]
"""The bounds of the HTTP server, as the label `limit` of `callgauge_http_limits_hit_total` names them."""


class OpenConnections:
    """The open connections of one server, oldest first. It counts reached bounds."""

    def __init__(self, count: Callable[[HttpLimit], None], bounds: ConnectionBounds | None = None) -> None:
        """Starts without connections.

        Args:
            count: Called once for each connection that a bound ends.
            bounds: Limits of the connections; None means those of a server for probes and metrics.
        """
        self.count = count
        self._bounds = bounds
        self._open: dict[BoundedConnection, None] = {}

    @property
    def bounds(self) -> ConnectionBounds:
        """Limits of the connections."""
        return self._bounds or ConnectionBounds()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: "BoundedConnection") -> None:
        """Adds a connection. If there are too many, ends the oldest without a request, or the oldest of all."""
        if len(self._open) >= self.bounds.most_connections:
            waiting = (each for each in self._open if not each.is_answering)
            next(waiting, next(iter(self._open))).end("connections")
        self._open[connection] = None

    def remove(self, connection: "BoundedConnection") -> None:
        """Removes a connection that has ended; harmless when repeated."""
        self._open.pop(connection, None)


class BoundedConnection(H11Protocol):
    """uvicorn's connection with a deadline at every moment of its life.

    Attributes:
        is_answering: Whether there is a request whose answer has not been sent.
    """

    def __init__(self, open_connections: OpenConnections, **of_uvicorn: Any) -> None:
        """Starts without a deadline, until the connection is made.

        Args:
            open_connections: The connections of this server.
            of_uvicorn: uvicorn's arguments for each connection.
        """
        super().__init__(**of_uvicorn)
        self.is_answering = False
        self._open_connections = open_connections
        self._deadline: asyncio.TimerHandle | None = None
        self._owes_request = True
        """False between an answer and the first byte of the next request: ending it then is nothing to count."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Starts the deadline of the first request."""
        super().connection_made(transport)
        self._open_connections.add(self)
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the deadline."""
        self._clear_deadline()
        self._open_connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Reads a part of a request. The deadline stays until the request is complete."""
        self._owes_request = True
        super().data_received(data)

    def handle_events(self) -> None:
        """Starts the deadline of the answer once the headers of a request are complete."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self.is_answering = True
            self._set_deadline(self._open_connections.bounds.answer_seconds, "answer_time")

    def on_response_complete(self) -> None:
        """Starts the deadline of the next request. The rest of the answer must be sent within it."""
        self.is_answering = False
        self._owes_request = False
        self._wait_for_request()
        super().on_response_complete()

    def end(self, limit: HttpLimit) -> None:
        """Ends the connection at once because of this bound, without sending the rest."""
        if limit == "request_time" and self.transport.get_write_buffer_size():
            limit = "answer_time"  # handed over, and the client did not read it
        if self._owes_request or limit != "request_time":
            self._open_connections.count(limit)
        self._clear_deadline()
        self._open_connections.remove(self)
        self.transport.abort()

    def _wait_for_request(self) -> None:
        self._set_deadline(self._open_connections.bounds.request_seconds, "request_time")

    def _set_deadline(self, seconds: float, limit: HttpLimit) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(seconds, self.end, limit)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
