"""`/metrics`, `/healthz` and `/readyz`, served inside our event loop.

Liveness: an answer of `/healthz` shows that the event loop runs. It is 503 only if a restart helps: the task of a role has
ended, or its ticks have stopped although the loop runs. It never depends on the broker, because all waits for the broker are
bounded or do not count. So a broker that is down causes no restart.

Readiness: `/readyz` is 200 while every role works: from its first assignment, or the end of reading its ledger, until it starts
to stop.

Probes have no token, so both answers contain nothing secret: only names of roles and the reasons why they wait. Clients cannot change
the answer to a probe: connections have bounds of their own (`http_connections`), and only `/metrics` answers 503 when too many
clients read it at once.
"""

import asyncio
import gzip
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from consumers.runtime.http.bearer import challenge, given_token, is_token
from consumers.runtime.http.connections import HttpLimit
from consumers.runtime.http.listener import HttpListener
from consumers.runtime.registry import Instruments
from consumers.runtime.settings import HttpSettings

MAX_SCRAPES: Final = 4
"""Most readers of /metrics at a time, from the request until the page is sent, because each keeps a page in memory. Two
Prometheus servers and a person need three. Further readers get 503; probes do not count."""
RETRY_SCRAPE_SECONDS: Final = 5
"""Pause after which a rejected reader of /metrics should try again."""
PAGE_PIECE_BYTES: Final = 65_536
"""Bytes of a page that are sent at once. The rest waits until the client has read them."""
GZIP_LEVEL: Final = 1
"""How hard a page is compressed. The fastest level makes a full page of 5 MB a thirtieth as large in 13 ms; the last one takes seven
times as long for a third less."""

Sentences = Callable[[], Sequence[str]]


class MetricsServer:
    """Serves the instruments to Prometheus, and the state of the roles to probes."""

    def __init__(
        self,
        settings: HttpSettings,
        instruments: Instruments,
        *,
        stalled: Sentences = tuple,
        not_ready: Sentences = tuple,
    ) -> None:
        """Stores its settings; `start` listens.

        Args:
            settings: Address, port and token.
            instruments: The content of `/metrics`.
            stalled: Returns reasons why only a restart helps, a sentence each; `/healthz` answers 503 while there is one.
            not_ready: Returns reasons why a role does not work now, a sentence each; `/readyz` answers 503 while there is one.
        """
        self._stalled = stalled
        self._not_ready = not_ready
        routes = [
            Route("/metrics", _MetricsPage(settings.token, instruments), methods=["GET"]),
            Route("/healthz", self._health),
            Route("/readyz", self._readiness),
        ]
        count = partial(_count, instruments)
        self._listener = HttpListener(settings.host, settings.port, routes, count, without_it="Metrics cannot be shown")

    @property
    def url(self) -> str:
        """Address of `/metrics`, with the actual port."""
        return f"{self._listener.address}/metrics"

    async def start(self) -> None:
        """Listens and serves.

        Raises:
            AddressInUseError: Another program holds the address, or it is none of this machine's.
        """
        await self._listener.start()

    async def stop(self) -> None:
        """Stops listening and ends within a second."""
        await self._listener.stop()

    async def _health(self, _request: Request) -> Response:
        return _probe_response(self._stalled())

    async def _readiness(self, _request: Request) -> Response:
        return _probe_response(self._not_ready())


class _MetricsPage:
    """`/metrics` as an ASGI application: renders the page, and sends it no faster than the client reads."""

    def __init__(self, token: SecretStr | None, instruments: Instruments) -> None:
        self._token = token
        self._instruments = instruments
        self._rendering = asyncio.Lock()
        self._readers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if (refused := self._refused(request)) is not None:
            await refused(scope, receive, send)
        elif self._readers >= MAX_SCRAPES:
            _count(self._instruments, "scrapes")
            text = f"/metrics is read by {MAX_SCRAPES} clients already; come again in {RETRY_SCRAPE_SECONDS} s.\n"
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
        async with self._rendering:  # a page at a time: rendering shares the processor with the roles
            self._instruments.refresh()
            # 10,000 series take a tenth of a second: in a thread, so that no probe and no poll of Kafka waits for it.
            page = await asyncio.to_thread(_rendered, encode, self._instruments.registry, is_gzip=is_gzip)
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
            await send({"type": "http.response.body", "body": page[begin:end], "more_body": end < len(page)})

    def _refused(self, request: Request) -> Response | None:
        """Returns the rejection of a request without the right token; None for an allowed request."""
        if self._token is None:
            return None
        authorization = request.headers.get("authorization", "").encode("latin-1")
        given = given_token(authorization)
        if given is not None and is_token(given, self._token):
            return None
        seen = "another token or scheme" if authorization else "no Authorization header"
        text = f"/metrics needs `Authorization: Bearer` with the token of the setting http_token; seen: {seen}.\n"
        return PlainTextResponse(text, status_code=401, headers={"www-authenticate": challenge(authorization)})


def _rendered(encode: Callable[[CollectorRegistry], bytes], registry: CollectorRegistry, *, is_gzip: bool) -> bytes:
    page = encode(registry)
    return gzip.compress(page, GZIP_LEVEL) if is_gzip else page


def _count(instruments: Instruments, limit: HttpLimit) -> None:
    instruments.inc("callgauge_http_limits_hit_total", (limit,))


def _probe_response(sentences: Sequence[str]) -> Response:
    if sentences:
        return PlainTextResponse("\n".join(sentences) + "\n", status_code=503)
    return PlainTextResponse("ok\n")
