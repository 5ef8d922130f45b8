"""The HTTP server of a role: its pages, its bounds, and tokens."""

import asyncio
import contextlib
import gzip
import hmac
import ipaddress
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import uvicorn
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from consumers.runtime.process import OperatorError
from consumers.runtime.registry import Instruments
from consumers.runtime.settings import HttpSettings

# Bounds for the connections of our HTTP server, so that slow or silent clients keep no other client
# out.
#
# uvicorn waits for a request without a limit: its timeouts begin after an answer, and its
# `limit_concurrency` refuses probes like everybody else. Here every connection has a deadline at
# every moment: for its next complete request, or for sending its answer. When too many connections
# are open, the oldest one is closed, so there is always room for the next probe.

REQUEST_SECONDS: Final = 5.0
"""How long a connection may be open without a complete request, from its start or the end of its
last answer. Single bytes of headers do not extend it; a healthy client sends them immediately.
"""
ANSWER_SECONDS: Final = 15.0
"""How long an answer may take, from the request's headers to the last piece given to the operating
system. Prometheus gives up after 10 s by default (`scrape_timeout`).
"""
MAX_CONNECTIONS: Final = 128
"""Most connections at a time. Prometheus, a browser and a probe need three. It is more than twice
`MAX_ACCEPTED_AT_ONCE`, so that in any burst a client's request is read before its connection is the
oldest.
"""
MAX_ACCEPTED_AT_ONCE: Final = 32
"""New connections that one turn of the event loop takes; the others wait in the operating system's
queue.
"""
READ_BYTES: Final = 16_384
"""Bytes that one turn of the event loop takes from a connection. They may be 2,700 chunks of a
byte, which take 20 ms.
"""
MAX_PENDING: Final = 1_024
"""Most connections in that queue: during a burst while the loop is busy, the system must not drop a
probe.
"""


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """Limits of the connections of one server.

    Attributes:
        request_seconds: As `REQUEST_SECONDS`.
        answer_seconds: As `ANSWER_SECONDS`.
        most_connections: As `MAX_CONNECTIONS`.
        unread_seconds: How long a client may leave a full buffer unread, for answers that take
            longer than that on purpose.
    """

    request_seconds: float = REQUEST_SECONDS
    answer_seconds: float = ANSWER_SECONDS
    most_connections: int = MAX_CONNECTIONS
    unread_seconds: float = ANSWER_SECONDS


SCRAPED: Final = ConnectionBounds()
"""Limits of a server for probes and metrics."""
HttpLimit = Literal["request_time", "answer_time", "connections", "scrapes", "host", "origin"]
"""The bounds of the HTTP server, as the label `limit` of `callgauge_http_limits_hit_total` names
them.
"""


class OpenConnections:
    """The open connections of one server, oldest first, and their bounds. It counts
    reached bounds.
    """

    def __init__(self, count: Callable[[HttpLimit], None], bounds: ConnectionBounds) -> None:
        self.count = count
        self.bounds = bounds
        self._open: dict[BoundedConnection, None] = {}

    def add(self, connection: "BoundedConnection") -> None:
        """Adds a connection. If there are too many, ends the oldest without a request, or the
        oldest of all.
        """
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
        super().__init__(**of_uvicorn)
        self.is_answering = False
        self._open_connections = open_connections
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._owes_request = True
        """False between an answer and the first byte of the next request: ending it then is nothing
        to count.
        """

    # as uvicorn's own
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the deadline of the first request."""
        super().connection_made(transport)
        # of asyncio's transports; uvicorn reads whatever they give at once
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]
        self._open_connections.add(self)
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the deadlines."""
        self._clear_deadline()
        self._clear_unread()
        self._open_connections.remove(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Starts the deadline of a client that leaves what waits for it unread."""
        super().pause_writing()
        self._unread = self.loop.call_later(
            self._open_connections.bounds.unread_seconds, self.end, "answer_time"
        )

    def resume_writing(self) -> None:
        """Cancels it: the client has read."""
        super().resume_writing()
        self._clear_unread()

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
        """Starts the deadline of the next request. The rest of the answer must be sent
        within it.
        """
        self.is_answering = False
        self._owes_request = False
        self._wait_for_request()
        super().on_response_complete()

    def end(self, limit: HttpLimit) -> None:
        """Ends the connection immediately because of this bound, without sending the rest."""
        if limit == "request_time" and self.transport.get_write_buffer_size():
            limit = "answer_time"  # handed over, and the client did not read it
        if self._owes_request or limit != "request_time":
            self._open_connections.count(limit)
        self._clear_deadline()
        self._clear_unread()
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

    def _clear_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


# Who may ask a listener of this machine alone.
#
# A browser asks this machine whatever page tells it to, and the page can read the answer if the
# name in its own address leads here: its owner only has to let the name do so (DNS rebinding). Such
# a request has that name as its `Host`, which no page can change.

_LOOPBACK_NAMES: Final = frozenset({"localhost", "localhost."})
# who listens on all addresses is asked at one
_REACHED_AT: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def is_loopback(host: str) -> bool:
    """Whether the address is this machine's alone.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("[::1]"), is_loopback("0.0.0.0"), is_loopback("a.example.com")
    (True, True, True, False, False)
    """
    if host.lower() in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def name_in(host: str) -> str:
    """The name in the value of `Host`, without a port and in lower case.

    >>> name_in("LOCALHOST:8070"), name_in("[::1]:8070"), name_in("[::1]"), name_in("calls.example.com")
    ('localhost', '[::1]', '[::1]', 'calls.example.com')
    """
    name, _, port = host.rpartition(":")
    return (name if port.isdigit() else host).lower()


def is_from_our_page(headers: Headers) -> bool:
    """Whether the page that had a browser ask came from the address that it asks, or from that of a
    proxy in front. A browser names the origin of each form, and no page can change what it names.

    >>> is_from_our_page(Headers({"origin": "http://127.0.0.1:8070", "host": "127.0.0.1:8070"}))
    True
    >>> is_from_our_page(Headers({"origin": "null", "host": "127.0.0.1:8070"}))
    False
    """
    origin = urlsplit(headers.get("origin", "")).netloc
    ours = {headers.get("host", ""), headers.get("x-forwarded-host", "")}
    return headers.get("sec-fetch-site") == "same-origin" or (origin != "" and origin in ours)


class _OnlyForThisMachine:
    """Answers requests that were meant for this machine, and for the names by which a proxy or a
    tunnel on it asks; none that a page of another site has a browser make, which names the page's
    address in `Origin`. Programs send none.
    """

    def __init__(
        self, app: ASGIApp, names: Collection[str], count: Callable[[HttpLimit], None]
    ) -> None:
        self._app = app
        self._names = frozenset(name.lower() for name in names)
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Request(scope).headers
        name, origin = name_in(headers.get("host", "")), headers.get("origin")
        if not is_loopback(name) and name not in self._names:
            self._count("host")
            text = (
                "This address is for this machine alone, and the request is for "
                f"{name[:MAX_TOLD_CHARS]!r}, so it is not answered. If a "
                "proxy or a tunnel on this machine asks by that name, add it to the setting "
                "http_names.\n"
            )
            await PlainTextResponse(text, status_code=421)(scope, receive, send)
        elif origin is not None and not self._is_ours(origin, headers):
            self._count("origin")
            text = (
                "This address is for this machine alone, and a page of "
                f"{origin[:MAX_TOLD_CHARS]!r} asks, so it is not answered. If that "
                "is the name of a proxy or a tunnel on this machine, add it to the setting "
                "http_names.\n"
            )
            await PlainTextResponse(text, status_code=403)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _is_ours(self, origin: str, headers: Headers) -> bool:
        return is_from_our_page(headers) or name_in(urlsplit(origin).netloc) in self._names


MAX_TOLD_CHARS: Final = 100
"""Longest name that a refusal repeats."""


# Serves routes on one address inside our event loop, with bounds for every connection.

STOP_SECONDS: Final = 0.4
"""How long open connections may take to finish when a server stops, before they are cut."""


class AddressInUseError(OperatorError):
    """The address is taken. Choose another port, or end the program that uses it."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, because the application handles signals, and with our
    length of the queue.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            # its `backlog` is also how many one turn of the loop accepts
            listening.listen(MAX_PENDING)


class HttpListener:
    """One address and its routes."""

    def __init__(
        self,
        host: str,
        port: int,
        routes: Sequence[BaseRoute],
        count: Callable[[HttpLimit], None],
        *,
        bounds: ConnectionBounds = SCRAPED,
        without_it: str,
        names: Collection[str] = (),
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        """Stores its settings; `start` listens.

        At an address of this machine alone it answers only requests whose `Host` is such an
        address, this host or one of the names, and whose `Origin`, if there is one, is the same or
        one of the names.

        Args:
            host: Address to listen on.
            port: Port to listen on; 0 takes a free one.
            routes: The pages.
            count: Called once for each connection that a bound ends.
            bounds: Limits of its connections; otherwise those of a server for probes and metrics.
            without_it: The loss if it cannot listen, for the error.
            names: Further names by which a proxy or a tunnel on this machine asks.
            stop_seconds: How long answers in progress may take when it stops, before they are cut.
        """
        self._host = host
        self._port = port
        self._without_it = without_it
        self._connections = OpenConnections(count, bounds)
        app: ASGIApp = Starlette(routes=routes)
        if is_loopback(host):
            app = _OnlyForThisMachine(app, names, count)
        self._config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            backlog=MAX_ACCEPTED_AT_ONCE,
            # uvicorn only calls it
            http=partial(BoundedConnection, self._connections),  # type: ignore[arg-type]
            # asyncio waits for parts of a second too
            timeout_graceful_shutdown=stop_seconds,  # type: ignore[arg-type]
        )
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where this machine reaches it, with the actual port and without a path."""
        host = _REACHED_AT.get(self._host, self._host)
        return f"http://[{host}]:{self._port}" if ":" in host else f"http://{host}:{self._port}"

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
                f"{self._without_it}, so callgauge does not start. Choose another port, by "
                "`--port` of `serve` or by its setting; 0 takes a free one."
            ) from error
        # asyncio does this for sockets whose protocol number is set, and these have none: an answer
        # in two pieces took 40 ms.
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


# The token of a request: `Authorization: Bearer`, compared in constant time.

CHALLENGE: Final = 'Bearer realm="callgauge"'


def given_token(authorization: bytes) -> bytes | None:
    """Returns the token in the value of the header; None if it has another scheme or is empty.

    Example:
        >>> given_token(b"bearer  abc "), given_token(b"Basic YTpi"), given_token(b"")
        (b'abc', None, None)
    """
    scheme, _, token = authorization.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None


def is_token(given: bytes, expected: SecretStr) -> bool:
    """Whether the given bytes are the expected token. The time it takes says nothing of how much of
    it is right.
    """
    # bytes: text beyond ASCII would raise
    return hmac.compare_digest(given, expected.get_secret_value().encode())


def challenge(authorization: bytes) -> str:
    """Returns the value of `WWW-Authenticate` for a request with this `Authorization`, empty if it
    has none.
    """
    return CHALLENGE + (', error="invalid_token"' if authorization else "")


# `/metrics`, `/healthz`, `/readyz` and `/state`, served inside our event loop.
#
# Liveness: an answer of `/healthz` shows that the event loop runs. It is 503 only if a restart
# helps: the task of a role has ended, or its ticks have stopped although the loop runs. It never
# depends on the broker, because all waits for the broker are bounded or do not count. So a broker
# that is down causes no restart.
#
# Readiness: `/readyz` is 200 while every role works: from its first assignment, or the end of its
# recovery, until it starts to stop.
#
# Probes have no token, so both answers contain nothing secret: only names of roles and the reasons
# why they wait. Clients cannot change the answer to a probe: connections have bounds of their own
# (`http_connections`), and only `/metrics` answers 503 when too many clients read it at once.

MAX_SCRAPES: Final = 4
"""Most readers of /metrics at a time, from the request until the page is sent, because each keeps a
page in memory. Two Prometheus servers and a person need three. Further readers get 503; probes do
not count.
"""
RETRY_SCRAPE_SECONDS: Final = 5
"""Pause after which a rejected reader of /metrics should try again."""
PAGE_PIECE_BYTES: Final = 65_536
"""Bytes of a page that are sent at once. The rest waits until the client has read them."""
GZIP_LEVEL: Final = 1
"""How hard a page is compressed. The fastest level makes a full page of 5 MB a thirtieth as large
in 13 ms; the last one takes seven times as long for a third less.
"""

Sentences = Callable[[], Sequence[str]]
State = Callable[[], str]
"""Returns what a process says of itself, as JSON."""


class MetricsRoutes:
    """Shows the instruments to Prometheus, the state of the roles to probes, and more of it to who
    has the token.

    Attributes:
        routes: The routes.
    """

    def __init__(
        self,
        token: SecretStr | None,
        instruments: Instruments,
        *,
        stalled: Sentences = tuple,
        not_ready: Sentences = tuple,
        state: State = str,
    ) -> None:
        """Makes the routes.

        Args:
            token: What a reader of `/metrics` and `/state` has to send; None for nothing.
            instruments: The content of `/metrics`.
            stalled: Returns reasons why only a restart helps, a sentence each; `/healthz` answers
                503 while there is one.
            not_ready: Returns reasons why a role does not work now, a sentence each; `/readyz`
                answers 503 while there is one.
            state: Returns what `/state` says.
        """
        self._stalled = stalled
        self._state = state
        self._not_ready = not_ready
        self._page = _MetricsPage(token, instruments)
        self.routes: Sequence[BaseRoute] = [
            Route("/metrics", self._page, methods=["GET"]),
            Route("/healthz", self._health),
            Route("/readyz", self._readiness),
            Route("/state", self._tell_state),
        ]

    def close(self) -> None:
        """Ends the thread of the page."""
        self._page.close()

    async def _health(self, _request: Request) -> Response:
        return _probe_response(self._stalled())

    async def _readiness(self, _request: Request) -> Response:
        return _probe_response(self._not_ready())

    async def _tell_state(self, request: Request) -> Response:
        return self._page.refused(request) or Response(self._state(), media_type="application/json")


class MetricsServer(HttpListener):
    """Serves these routes at an address of their own."""

    def __init__(
        self,
        settings: HttpSettings,
        instruments: Instruments,
        *,
        stalled: Sentences = tuple,
        not_ready: Sentences = tuple,
        state: State = str,
    ) -> None:
        """`start` listens. The arguments are those of `MetricsRoutes`; the settings have address,
        port and token.
        """
        self._metrics = MetricsRoutes(
            settings.token, instruments, stalled=stalled, not_ready=not_ready, state=state
        )
        super().__init__(
            settings.host,
            settings.port,
            self._metrics.routes,
            partial(_count, instruments),
            names=settings.names,
            without_it="Metrics cannot be shown",
        )

    @property
    def url(self) -> str:
        """Address of `/metrics`, with the actual port."""
        return f"{self.address}/metrics"

    async def stop(self) -> None:
        """Stops as every listener does, and ends the thread of the page."""
        await super().stop()
        self._metrics.close()


class _MetricsPage:
    """`/metrics` as an ASGI application: renders the page, and sends it no faster than the client
    reads.
    """

    def __init__(self, token: SecretStr | None, instruments: Instruments) -> None:
        self._token = token
        self._instruments = instruments
        self._rendering = asyncio.Lock()
        # of its own: other work must not delay a scrape
        self._thread = ThreadPoolExecutor(1, "metrics")
        self._readers = 0

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if (refused := self.refused(request)) is not None:
            await refused(scope, receive, send)
        elif self._readers >= MAX_SCRAPES:
            _count(self._instruments, "scrapes")
            text = (
                f"/metrics is read by {MAX_SCRAPES} clients already; come again in "
                f"{RETRY_SCRAPE_SECONDS} s.\n"
            )
            headers = {"retry-after": str(RETRY_SCRAPE_SECONDS)}
            await PlainTextResponse(text, status_code=503, headers=headers)(scope, receive, send)
        else:
            self._readers += 1
            try:
                await self._answer(request, send)
            finally:
                self._readers -= 1

    async def _answer(self, request: Request, send: Send) -> None:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        is_gzip = gzip_accepted(request.headers.get("accept-encoding", ""))
        # a page at a time: rendering shares the processor with the roles
        async with self._rendering:
            self._instruments.refresh()
            # 10,000 series take a tenth of a second: in a thread, so that no probe and no poll of
            # Kafka waits for it.
            is_openmetrics = content_type.startswith("application/openmetrics-text")
            rendered = partial(
                _rendered, self._instruments, encode, is_openmetrics=is_openmetrics, is_gzip=is_gzip
            )
            page = await asyncio.get_running_loop().run_in_executor(self._thread, rendered)
        headers = [
            (b"content-type", content_type.encode()),
            (b"content-length", str(len(page)).encode()),
            (b"vary", b"accept-encoding"),
            *([(b"content-encoding", b"gzip")] if is_gzip else []),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for begin in range(
            0, max(len(page), 1), PAGE_PIECE_BYTES
        ):  # each `send` waits until the client has read enough
            end = begin + PAGE_PIECE_BYTES
            await send(
                {
                    "type": "http.response.body",
                    "body": page[begin:end],
                    "more_body": end < len(page),
                }
            )

    def refused(self, request: Request) -> Response | None:
        """Returns the rejection of a request without the right token; None for an
        allowed request.
        """
        if self._token is None:
            return None
        authorization = request.headers.get("authorization", "").encode("latin-1")
        given = given_token(authorization)
        if given is not None and is_token(given, self._token):
            return None
        seen = "another token or scheme" if authorization else "no Authorization header"
        text = (
            f"{request.url.path} needs `Authorization: Bearer` with the token of the setting "
            f"http_token; seen: {seen}.\n"
        )
        return PlainTextResponse(
            text, status_code=401, headers={"www-authenticate": challenge(authorization)}
        )


def _rendered(
    instruments: Instruments,
    encode: Callable[[Collector], bytes],
    *,
    is_openmetrics: bool,
    is_gzip: bool,
) -> bytes:
    page = instruments.page(encode, is_openmetrics=is_openmetrics)
    return gzip.compress(page, GZIP_LEVEL) if is_gzip else page


def _count(instruments: Instruments, limit: HttpLimit) -> None:
    instruments.inc("callgauge_http_limits_hit_total", (limit,))


def _probe_response(sentences: Sequence[str]) -> Response:
    if sentences:
        return PlainTextResponse("\n".join(sentences) + "\n", status_code=503)
    return PlainTextResponse("ok\n")
