"""Receives bodies within bounds, and knows the tenant of each sender."""

import asyncio
import time
import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, NamedTuple

from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from consumers.runtime.http import is_token
from schemas.wire import MAX_NAME_CHARS
from streamer.settings.all_settings import SenderSettings

# Bodies of requests, read within bounds: of one body, of all bodies in memory at a time, and of time.

BODY_SECONDS: Final = 20.0
"""How long a body may take. A megabyte over a slow line (1 Mbit/s) takes 8 s."""
MAX_PENDING_BYTES: Final = 67_108_864
"""Bytes of all bodies of a route that are in memory at a time; further requests are asked to come again."""
MAX_DRAINED_BYTES: Final = 134_217_728
"""Bytes of one body that are read and dropped. A client that is cut while it still sends sees no answer; an hour of recorded
sound in base64 has 80 MB."""
_GZIP: Final = 16 + zlib.MAX_WBITS


class UnreadBodyError(Exception):
    """A body that was not read to its end; nothing of it is kept.

    Attributes:
        reason: `busy` if too many bodies are in memory, `too_slow` if it did not arrive in time, `gone` if the client went
            away before its end, or sends without one. Metrics call it so too.
    """

    def __init__(self, reason: Literal["busy", "too_slow", "gone"]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = {"busy": 503, "too_slow": 408, "gone": 400}[reason]


class Body(NamedTuple):
    """The kept bytes of a body, and its length with those that were dropped."""

    content: bytes
    total_bytes: int

    @property
    def is_whole(self) -> bool:
        """Whether nothing was dropped."""
        return self.total_bytes == len(self.content)


class Bodies:
    """The bodies of one route that are in memory now."""

    def __init__(self) -> None:
        self.pending_bytes = 0

    @asynccontextmanager
    async def read(
        self,
        request: Request,
        most_bytes: Callable[[bytearray], int],
        on_piece: Callable[[bytes], None] | None = None,
        *,
        unzips_to: int | None = None,
    ) -> AsyncIterator[Body]:
        """Reads a body to its end, and gives its room back afterwards. Of one that is too large, the beginning is kept.

        Args:
            request: The request.
            most_bytes: Returns how many bytes are kept, from the beginning of the body as far as it is known.
            on_piece: Called with each piece, in order, also with those that are dropped.
            unzips_to: Most bytes that a body in gzip becomes: what is beyond them is dropped without becoming anything. None for
                a body that is not compressed.

        Raises:
            UnreadBodyError: It was not read to its end.
            zlib.error: It is not gzip, or ends too early.
        """
        kept, total_bytes = bytearray(), 0
        unzipped = None if unzips_to is None else zlib.decompressobj(_GZIP)
        try:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    async for piece in request.stream():
                        if on_piece is not None:
                            on_piece(piece)
                        if unzipped is not None and unzips_to is not None:
                            room = unzips_to + 1 - total_bytes
                            piece = unzipped.decompress(piece, room) if room > 0 else b""
                        if total_bytes == (before := len(kept)):  # nothing was dropped so far
                            kept += piece
                        total_bytes += len(piece)
                        del kept[most_bytes(kept) :]
                        self.pending_bytes += len(kept) - before
                        if total_bytes > MAX_DRAINED_BYTES:
                            raise UnreadBodyError("gone")
                        if self.pending_bytes > MAX_PENDING_BYTES:
                            raise UnreadBodyError("busy")
            except TimeoutError:
                raise UnreadBodyError("too_slow") from None
            except ClientDisconnect:
                raise UnreadBodyError("gone") from None
            if unzipped is not None and unzips_to is not None and total_bytes <= unzips_to and not unzipped.eof:
                raise zlib.error("it ends too early")
            yield Body(bytes(kept), total_bytes)
        finally:
            self.pending_bytes -= len(kept)


# JSON of others, which is counted before it is read: 4 MB of empty lists take seconds and 300 MB.

MAX_PARTS: Final = 400_000
"""Most commas and opening brackets of a body: 4 MB of spans have as many, or the record of three hours. To read them takes 50 ms."""


class OverfullError(ValueError):
    """JSON with so many parts that reading it would keep others waiting."""


def value_of(text: bytes, most_parts: int = MAX_PARTS) -> Any:
    """The value that JSON has.

    Raises:
        OverfullError: It has more parts than that.
        ValueError: It is not JSON.
    """
    if (parts := text.count(b",") + text.count(b"[") + text.count(b"{")) > most_parts:
        raise OverfullError(f"expected at most {most_parts} commas and brackets, saw {parts}")
    return from_json(text, allow_inf_nan=False)


# The senders that may post: their tokens, how much each may send, and which conversations are theirs.

BURST_SECONDS: Final = 10.0
"""A sender may send so many seconds' worth of events at once, for example after its network was away."""
MAX_REMEMBERED_CALLS: Final = 100_000
"""Conversations of which this process remembers the tenant: some hours of a busy installation, 20 MB."""


def key_of(conversation_id: object) -> bytes | None:
    r"""The Kafka key of a conversation: exactly the id that was sent; None if no key is.

    Example:
        >>> key_of("call 7"), key_of(7), key_of("half a pair: \ud800"), key_of(""), key_of(None)
        (b'call 7', b'7', None, None, None)
    """
    if isinstance(conversation_id, int) and not isinstance(conversation_id, bool):
        conversation_id = str(conversation_id)
    try:
        key = conversation_id.encode() if isinstance(conversation_id, str) else b""
    except UnicodeEncodeError:
        return None
    return key if 0 < len(key) <= MAX_NAME_CHARS else None


class Sender:
    """One tenant, or everybody if there are no tenants.

    Attributes:
        tenant: Name of the tenant; empty for everybody.
        settings: Its rights and limits.
        calls: Keys of its conversations, the newest last.
    """

    def __init__(self, tenant: str, settings: SenderSettings) -> None:
        """Starts with a full allowance; the tenant is empty for everybody."""
        self.tenant = tenant
        self.settings = settings
        self.calls: OrderedDict[bytes, None] = OrderedDict()
        self._most = settings.events_per_second * BURST_SECONDS
        self._left = self._most
        self._at = time.monotonic()

    def wait_seconds(self) -> float:
        """How long the sender has to wait before it may send again; 0 if it may send now."""
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self.settings.events_per_second)
        self._at = now
        return 0.0 if self._left > 0 else 1 - self._left / self.settings.events_per_second

    def take(self, events: int) -> None:
        """Takes events from the allowance. It may fall below 0: a batch is never cut, and the next one waits."""
        self._left -= events


class Senders:
    """All senders, and the owners of the newest conversations."""

    def __init__(self, settings: Mapping[str, SenderSettings]) -> None:
        self.by_tenant = {tenant: Sender(tenant, each) for tenant, each in settings.items()}
        self._has_tenants = any(self.by_tenant)
        self._owners: dict[bytes, Sender] = {}

    def with_token(self, token: bytes) -> Sender | None:
        """The sender with this token. Every token is compared, so that time says nothing."""
        found = None
        for sender in self.by_tenant.values():
            if sender.settings.token is not None and is_token(token, sender.settings.token):
                found = sender
        return found

    def owns(self, sender: Sender, key: bytes) -> bool:
        """Whether a conversation is the sender's, by the key that is written. It belongs to the tenant that first sent an event of it.

        When there are too many, the tenant with the most forgets its oldest, so that no tenant makes us forget another one's.
        """
        if not self._has_tenants:
            return True
        owner = self._owners.setdefault(key, sender)
        if owner is sender:
            sender.calls[key] = None
            sender.calls.move_to_end(key)
        if len(self._owners) > MAX_REMEMBERED_CALLS:
            busiest = max(self.by_tenant.values(), key=lambda each: len(each.calls))
            del self._owners[busiest.calls.popitem(last=False)[0]]
        return owner is sender
