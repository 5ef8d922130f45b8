"""The HTTP transport below the endpoint's client: it counts requests, and bounds replies before the client reads them.

The client decompresses, follows redirects and keeps cookies as the endpoint asks. So it gets replies with only the status, the
pause before a retry, and a body of bounded size: there is nothing to follow, keep or decompress.
"""

from contextvars import ContextVar
from typing import Any, Final
from urllib.request import getproxies, proxy_bypass

import httpx2

from consumers.judge.asking.reply import Delivery

MAX_REPLY_BYTES: Final = 1_000_000
"""Largest reply that is read. An answer with the most tokens that the settings allow has half of it, and a usual one 2 kB. Each
request in flight may take this much memory."""
_KEPT_HEADERS: Final = ("retry-after", "retry-after-ms", "x-should-retry")
"""Headers that the client needs for its retries."""
_PLAIN_ENCODINGS: Final = ("", "identity")

CURRENT_DELIVERY: Final[ContextVar[Delivery]] = ContextVar("current_delivery")
"""Delivery of the request of the running task. The client has no parameter to pass it through."""


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Returns bounded replies, and notes in `CURRENT_DELIVERY` how far each try of a request got."""

    def __init__(self, network: httpx2.AsyncBaseTransport) -> None:
        """Wraps the transport that has the connections."""
        self._network = network

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends one try and returns its reply, with the body read to its end or dropped.

        Raises:
            httpx2.TransportError: The network failed, or the endpoint broke HTTP.
        """
        delivery = CURRENT_DELIVERY.get()
        delivery.tries += 1
        number = delivery.tries

        async def note(event: str, details: dict[str, Any]) -> None:
            # CONNECT is what a proxy is asked first; the question is not in it.
            if event.endswith(".send_request_headers.started") and details["request"].method != b"CONNECT":
                delivery.departed.add(number)

        request.extensions["trace"] = note
        request.headers["accept-encoding"] = "identity"
        response = await self._network.handle_async_request(request)
        try:
            body = await _bounded_body(response, delivery)
        finally:
            await response.aclose()
        kept = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
        return httpx2.Response(response.status_code, headers=kept, content=body)

    async def aclose(self) -> None:
        """Ends all connections."""
        await self._network.aclose()


def client_for(
    base_url: str, max_connections: int, network: httpx2.AsyncBaseTransport | None = None
) -> httpx2.AsyncClient:
    """Returns an HTTP client for one endpoint, through the proxy of the environment if there is one.

    Args:
        base_url: The endpoint.
        max_connections: Most connections at a time.
        network: Stands in for the connections, in tests.
    """
    if network is None:
        limits = httpx2.Limits(max_connections=max_connections, max_keepalive_connections=max_connections)
        network = httpx2.AsyncHTTPTransport(limits=limits, proxy=_proxy_for(httpx2.URL(base_url)))
    return httpx2.AsyncClient(transport=BoundedTransport(network), follow_redirects=False)


def _proxy_for(url: httpx2.URL) -> str | None:
    """Returns the proxy by `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, which the client ignores with a transport."""
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(url.host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


async def _bounded_body(response: httpx2.Response, delivery: Delivery) -> bytes:
    """Reads the body as it was sent. If it is compressed or too large, notes that and returns nothing."""
    if response.headers.get("content-encoding", "").strip().lower() not in _PLAIN_ENCODINGS:
        delivery.faults.add("compressed")
        return b""
    body = bytearray()
    async for part in response.aiter_raw():
        body += part
        if len(body) > MAX_REPLY_BYTES:
            delivery.faults.add("too_large")
            return b""
    return bytes(body)
