"""The HTTP below the client of the endpoint: what goes out is counted, and what comes back is bounded before anybody reads it.

The client unpacks, decodes, redirects and keeps cookies as an endpoint asks for. So it gets a reply of which nothing is
left but the status, the pause until a repeat, and a body of bounded size: there is nothing to follow, keep or unpack.
"""

from contextvars import ContextVar
from typing import Any, Final
from urllib.request import getproxies, proxy_bypass

import httpx2

from consumers.judge.asking.reply import Delivery

MAX_REPLY_BYTES: Final = 1_000_000
"""Largest reply that is read. An answer of the most tokens a setting allows has half of it, and a usual one 2 kB; more
would be memory that an endpoint takes, times the requests that are on their way."""
_KEPT_HEADERS: Final = ("retry-after", "retry-after-ms", "x-should-retry")
"""What the client's repeats go by."""
_PLAIN_ENCODINGS: Final = ("", "identity")

CURRENT_DELIVERY: Final[ContextVar[Delivery]] = ContextVar("current_delivery")
"""Of the request that the running task is about; the client has no place to pass it through."""


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Hands over bounded replies, and notes in `CURRENT_DELIVERY` how far each try of a request got."""

    def __init__(self, network: httpx2.AsyncBaseTransport) -> None:
        """Keeps the transport that has the connections."""
        self._network = network

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """One try: its reply, read to its end or dropped.

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
    """An HTTP client for one endpoint, by way of the proxy that the environment names for it, if any.

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
    """What `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` say; the client asks them only without a transport."""
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(url.host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


async def _bounded_body(response: httpx2.Response, delivery: Delivery) -> bytes:
    """The body as it was sent; empty when it is packed or too large, and then that is noted."""
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
