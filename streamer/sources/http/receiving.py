"""Receives bodies within bounds, and knows the tenant of each sender."""

import asyncio
import time
import zlib
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from typing import Final, Literal, NamedTuple, Self

from starlette.requests import ClientDisconnect, Request

from consumers.runtime.http import is_token
from schemas.wire import MAX_NAME_CHARS
from streamer.settings.all_settings import SenderSettings
from streamer.sources.http.body import MAX_EVENTS

# Bodies of requests, read within bounds: of one body, of all bodies in memory at a time, of those
# of one sender, and of time.

BODY_SECONDS: Final = 20.0
"""How long a body may take. A megabyte over a slow line (1 Mbit/s) takes 8 s."""
MAX_PENDING_BYTES: Final = 67_108_864
"""Bytes of all bodies of a room that are in memory at a time. Beyond them a body that is not
finished yet is ended: the oldest one of the sender that holds most.
"""
MAX_PENDING_BYTES_A_SENDER: Final = MAX_PENDING_BYTES // 2
"""The same for one sender, so that its finished bodies, which nothing ends while Kafka is slow,
leave room for others.
"""
MAX_DRAINED_BYTES: Final = 134_217_728
"""Bytes of one body that are read and dropped. A client that is cut while it still sends sees no
answer; an hour of recorded sound in base64 has 80 MB.
"""
_GZIP: Final = 16 + zlib.MAX_WBITS
_GZIP_OVERHEAD_BYTES: Final = 65_536
"""How much longer than its content a body in gzip may be: content that cannot be compressed gets a
few bytes for each 16 kB.
"""


class UnreadBodyError(Exception):
    """A body that was not read to its end; nothing of it is kept.

    Attributes:
        reason: `busy` if it was ended because too many bodies are in memory, `too_slow` if it did
            not arrive in time, `gone` if the client went away before its end, or sends without one.
            Metrics call it so too.
        arrived_bytes: Bytes that arrived, for the rate of the sender.
    """

    def __init__(self, reason: Literal["busy", "too_slow", "gone"], arrived_bytes: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = {"busy": 503, "too_slow": 408, "gone": 400}[reason]
        self.arrived_bytes = arrived_bytes


class BrokenGzipError(ValueError):
    """A body that is not gzip, ends too early, or goes on after its end.

    Attributes:
        read_bytes: Bytes that arrived, or that they became if these are more, for the rate of the
            sender.
    """

    def __init__(self, error: zlib.error, read_bytes: int) -> None:
        super().__init__(str(error))
        self.read_bytes = read_bytes


class Body(NamedTuple):
    """The kept bytes of a body, and its length with those that were dropped."""

    content: bytes
    total_bytes: int

    @property
    def is_whole(self) -> bool:
        """Whether nothing was dropped."""
        return self.total_bytes == len(self.content)


class _Arriving:
    """A body on its way."""

    def __init__(self, sender: Hashable, deadline: asyncio.Timeout) -> None:
        self.sender = sender
        self.kept = bytearray()
        self.arrived_bytes = 0
        self.is_ended = False
        self._deadline = deadline

    def end(self) -> None:
        """Ends it at the next turn of the loop, in the middle of whatever it waits for."""
        self.is_ended = True
        if not self._deadline.expired():
            self._deadline.reschedule(0)


class Bodies:
    """The bodies of one room that are in memory now.

    Attributes:
        pending_bytes: Their bytes.
    """

    def __init__(self) -> None:
        self.pending_bytes = 0
        self._held = Counter[Hashable]()
        self._unfinished: dict[_Arriving, None] = {}  # oldest first

    @asynccontextmanager
    async def read(
        self,
        request: Request,
        sender: Hashable,
        most_bytes: Callable[[bytearray], int],
        on_piece: Callable[[bytes], None] | None = None,
        *,
        unzips_to: int | None = None,
    ) -> AsyncIterator[Body]:
        """Reads a body to its end, and gives its room back afterwards. Of one that is too large,
        the beginning is kept.

        Args:
            request: The request.
            sender: Whose it is: each has its share of the room.
            most_bytes: Returns how many bytes are kept, from the beginning of the body as far as it
                is known.
            on_piece: Called with each piece, in order, also with those that are dropped.
            unzips_to: Most bytes that a body in gzip becomes: what is beyond them is dropped
                without becoming anything. None for a body that is not compressed.

        Raises:
            UnreadBodyError: It was not read to its end.
            BrokenGzipError: It is not gzip, ends too early, or goes on after its end.
        """
        body: _Arriving | None = None
        total_bytes = 0
        unzipping = None if unzips_to is None else _Unzipping(unzips_to)
        try:
            try:
                async with asyncio.timeout(BODY_SECONDS) as deadline:
                    body = _Arriving(sender, deadline)
                    self._unfinished[body] = None
                    async for piece in request.stream():
                        body.arrived_bytes += len(piece)
                        if body.arrived_bytes > MAX_DRAINED_BYTES:
                            raise UnreadBodyError("gone", body.arrived_bytes)
                        if on_piece is not None:
                            on_piece(piece)
                        content = piece if unzipping is None else unzipping.add(piece)
                        total_bytes += len(content)
                        # nothing was dropped so far
                        if total_bytes == len(body.kept) + len(content):
                            self._keep(body, content, most_bytes)
                    await asyncio.sleep(0)  # to read what arrived begins in a turn of its own
                if unzipping is not None:
                    unzipping.finish()
            except TimeoutError:
                raise UnreadBodyError(
                    "busy" if body is not None and body.is_ended else "too_slow", _arrived(body)
                ) from None
            except ClientDisconnect:
                raise UnreadBodyError("gone", _arrived(body)) from None
            except zlib.error as error:
                raise BrokenGzipError(error, max(_arrived(body), total_bytes)) from None
            if body.is_ended:  # in the turn of its end
                raise UnreadBodyError("busy", body.arrived_bytes)
            del self._unfinished[body]
            yield Body(bytes(body.kept), total_bytes)
        finally:
            if body is not None:
                self._unfinished.pop(body, None)
                self._drop(body)

    def _keep(
        self, body: _Arriving, content: bytes, most_bytes: Callable[[bytearray], int]
    ) -> None:
        before = len(body.kept)
        body.kept += content
        del body.kept[most_bytes(body.kept) :]
        self.pending_bytes += len(body.kept) - before
        self._held[body.sender] += len(body.kept) - before
        while self._held[body.sender] > MAX_PENDING_BYTES_A_SENDER:
            self._end_one_of(body.sender)
        while self.pending_bytes > MAX_PENDING_BYTES:
            self._end_one_of(
                max(
                    (each.sender for each in self._unfinished if each.kept),
                    key=self._held.__getitem__,
                )
            )

    def _end_one_of(self, sender: Hashable) -> None:
        """Ends the unfinished body of this sender that takes room for the longest time: a whole one
        arrives in a second.
        """
        oldest = next(each for each in self._unfinished if each.sender == sender and each.kept)
        self._drop(oldest)
        oldest.end()

    def _drop(self, body: _Arriving) -> None:
        self.pending_bytes -= len(body.kept)
        self._held[body.sender] -= len(body.kept)
        if not self._held[body.sender]:
            del self._held[body.sender]
        body.kept = bytearray()


def _arrived(body: _Arriving | None) -> int:
    return 0 if body is None else body.arrived_bytes


class _Unzipping:
    """A body in gzip, which becomes a bounded number of bytes, from a bounded number of bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._room = most_bytes + 1
        self._left_bytes = most_bytes + _GZIP_OVERHEAD_BYTES
        self._member = zlib.decompressobj(_GZIP)

    def add(self, piece: bytes) -> bytes:
        """What a piece becomes; empty once there is more than that.

        Raises:
            zlib.error: It is not gzip, or goes on after its end.
        """
        if self._room <= 0:
            return b""
        self._left_bytes -= len(piece)
        content = self._member.decompress(piece, self._room)
        if self._member.unused_data:
            raise zlib.error("it goes on after its end")
        if self._left_bytes < 0:  # blocks of nothing become nothing without end
            raise zlib.error("it is longer than anything that may be in it")
        self._room -= len(content)
        return content

    def finish(self) -> None:
        """Checks that it was whole.

        Raises:
            zlib.error: It ends too early.
        """
        if self._room > 0 and not self._member.eof:
            raise zlib.error("it ends too early")


# The senders that may post: their tokens, how much each may send, and which conversations are
# theirs.

BYTES_AN_EVENT: Final = 419
"""A body of which something is refused is charged to the rate of its sender as one event for so
many bytes: it took as long to read.
"""
BYTES_LEFT_OUT_AN_EVENT: Final = 4_096
"""The same of a body of which no rule reads anything: most of it is skipped, which takes a tenth of
the time. Frameworks that repeat the whole call send a megabyte a second of it in a long call.
"""
MAX_CHARGED_EVENTS: Final = 2 * MAX_EVENTS
"""Most events that a body is charged as for its size: the largest body of events."""
BURST_SECONDS: Final = 10.0
"""A sender may send so many seconds' worth of events at once, for example after its network was
away.
"""
NEW_CALL_EVENTS: Final = 20
"""A conversation that is new to this process costs its sender as much as so many events, because to
open, close and publish it takes as long as fifty. A call has some 2.5 events a second, so after a
restart all running calls of a sender that sends at its rate cost eight seconds of it, less than its
burst.
"""
MAX_REMEMBERED_CALLS: Final = 100_000
"""Conversations of which this process remembers the sender: some hours of a busy installation, 20
MB.
"""


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


class SendingTenant:
    """One tenant, or everybody if there are no tenants.

    Attributes:
        tenant: Name of the tenant; empty for everybody.
        settings: Its rights and limits.
        calls: Keys of its conversations, the newest last.
        turn: Held while a body of the sender is read as events: one at a time, so that its rate is
            known before the next one, and no other sender waits for more than one body of this one.
    """

    def __init__(self, tenant: str, settings: SenderSettings) -> None:
        """Starts with a full allowance; the tenant is empty for everybody."""
        self.tenant = tenant
        self.settings = settings
        self.calls: OrderedDict[bytes, None] = OrderedDict()
        self.turn = asyncio.Lock()
        self._most = settings.events_per_second * BURST_SECONDS
        self._left = self._most
        self._at = time.monotonic()

    def wait_seconds(self) -> float:
        """How long the sender has to wait before it may send again; 0 if it may send now."""
        now = time.monotonic()
        self._left = min(
            self._most, self._left + (now - self._at) * self.settings.events_per_second
        )
        self._at = now
        return 0.0 if self._left > 0 else 1 - self._left / self.settings.events_per_second

    def spend(self, events: int) -> None:
        """Takes events from the allowance. It may fall below 0: a batch is never cut, and the next
        one waits.
        """
        self._left -= events

    def take_body(self, total_bytes: int, events: int = 0) -> None:
        """Takes for a body of which something is refused: by its size, and at least so
        many events.
        """
        self.spend(max(events, min(MAX_CHARGED_EVENTS, 1 + total_bytes // BYTES_AN_EVENT)))


TURN_SECONDS: Final = 0.01
"""How long a body is read and checked before others get their turn; one event may take longer."""


class BodyTurn:
    """The turn of one body: while one is read and checked, no other one is. So bodies that are read
    at the same time share the loop in turns, and none holds the loop for longer than one of them.
    """

    def __init__(self, of_all: asyncio.Lock) -> None:
        self._of_all = of_all
        self._is_ours = False
        self._since = 0.0

    async def __aenter__(self) -> Self:
        """Waits for the turn."""
        await self._of_all.acquire()
        self._is_ours, self._since = True, time.perf_counter()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends the turn; after a cancelled wait there is none."""
        if self._is_ours:
            self._of_all.release()

    async def pass_on(self) -> None:
        """Lets others have their turn if this one has lasted for `TURN_SECONDS`."""
        if time.perf_counter() - self._since <= TURN_SECONDS:
            return
        self._is_ours = False
        self._of_all.release()
        await asyncio.sleep(0)
        await self.__aenter__()


class Senders:
    """All senders, and the owners of the newest conversations."""

    def __init__(self, settings: Mapping[str, SenderSettings]) -> None:
        self.by_tenant = {tenant: SendingTenant(tenant, each) for tenant, each in settings.items()}
        self._has_tenants = any(self.by_tenant)
        self._owners: dict[bytes, SendingTenant] = {}
        self._turn_of_all = asyncio.Lock()

    def turn(self) -> BodyTurn:
        """The turn of the next body that is read."""
        return BodyTurn(self._turn_of_all)

    def with_token(self, token: bytes) -> SendingTenant | None:
        """The sender with this token. Every token is compared, so that time says nothing."""
        found = None
        for sender in self.by_tenant.values():
            if sender.settings.token is not None and is_token(token, sender.settings.token):
                found = sender
        return found

    def is_foreign(self, sender: SendingTenant, key: bytes) -> bool:
        """Whether a conversation is another tenant's, by the key that is written."""
        return self._has_tenants and self._owners.get(key, sender) is not sender

    def claim(self, sender: SendingTenant, key: bytes) -> None:
        """Makes a conversation the sender's, with the first event of it that is accepted. It must
        not be another tenant's.

        A new one costs the sender `NEW_CALL_EVENTS`. When there are too many, the tenant with the
        most forgets its oldest, so that no tenant makes us forget another one's.
        """
        if key not in sender.calls:
            sender.spend(NEW_CALL_EVENTS)
        self._owners[key] = sender
        sender.calls[key] = None
        sender.calls.move_to_end(key)
        if len(self._owners) > MAX_REMEMBERED_CALLS:
            busiest = max(self.by_tenant.values(), key=lambda each: len(each.calls))
            del self._owners[busiest.calls.popitem(last=False)[0]]
