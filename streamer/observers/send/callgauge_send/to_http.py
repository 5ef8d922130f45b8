"""Events to callgauge's `POST /events`, as a batch of CloudEvents."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import aiohttp

from callgauge_send.events import Record
from callgauge_send.outbox import UNREAD, EventOutbox
from callgauge_send.sender import STOP_SECONDS, LaterError, Log, Once, Settled, Taken

BATCH: Final = "application/cloudevents-batch+json"
MAX_BODY_BYTES: Final = 2_097_152
"""Largest body, half of what callgauge takes."""
REQUEST_SECONDS: Final = 15.0
"""How long an answer may take before the events are sent again; callgauge itself waits ten seconds
for Kafka.
"""
MAX_ANSWER_BYTES: Final = 262_144
"""How much of an answer is read: a hundred refusals in words."""
MAX_SHOWN_CHARS: Final = 400
MAX_POSTS: Final = 64
"""Requests of one round: enough to find a few odd events by halves. What is left goes with the next
round.
"""
GIVE_UP_SECONDS: Final = 300.0
"""How long callgauge may refuse this sender before waiting events are dropped: as long as a new
token or route takes to be known.
"""
_SOME: Final = 207
_NONE: Final = 422
_UNREADABLE: Final = (400, 413)
"""Answers to a body as a whole, of which one event may be the cause."""
_LATER: Final = (429, 503)
_ANOTHER_TIME: Final = (408, 425)
"""Answers below 500 that say nothing about the sender."""
_REMEDIES: Final[Mapping[int, str]] = {
    401: "Check the token: it is that of the setting `ingest.token`, or of a tenant.",
    403: "Check the token, and whether something in front of callgauge refuses this sender.",
    404: "Check the address: it ends with `/events`.",
    405: "Check the address: it ends with `/events`.",
    415: "Something in front of callgauge changes the content type or the encoding of bodies.",
}


class ToHttp:
    """An address of callgauge's ingest, with a client that is made when it is needed."""

    def __init__(self, url: str, token: str, log: Log) -> None:
        """Keeps the settings.

        Args:
            url: The whole address, which ends with `/events`.
            token: The bearer token of the setting `ingest.token`, or of a tenant.
            log: Takes what a person may want to know.
        """
        self._url = url
        self._token = token
        self._once = Once(log)
        self._session: aiohttp.ClientSession | None = None
        self._refused_since_s: float | None = None
        self.key: Hashable = ("http", url, token)
        self.place = url
        self.remedy = (
            "Check the address, the token, and that `callgauge serve` or `callgauge run` runs "
            "there."
        )

    async def open(self) -> None:
        """Makes a client, unless there is one; it connects with the first request."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
                headers={"Authorization": f"Bearer {self._token}", "Content-Type": BATCH},
            )

    async def send(self, taken: Taken, settled: Settled) -> BaseException | None:
        """Posts the records in their order and adds those that callgauge has, or will never take;
        returns the first failure.

        A body that cannot be read is sent again in halves, until the event that is the cause is
        alone: it is lost, and counted. A sender that is refused as a whole tries for
        `GIVE_UP_SECONDS`; then its events are lost, and counted.

        Raises:
            LaterError: callgauge asks for a pause.
        """
        batches = deque(_batches(taken))
        for _ in range(MAX_POSTS):
            if not batches:
                break
            batch = batches.popleft()
            answer = await self._post(b"[%b]" % b",".join(text for _, _, text in batch))
            if answer.status in _UNREADABLE and len(batch) > 1:
                middle = len(batch) // 2
                batches.extendleft((batch[middle:], batch[:middle]))
                continue
            records = [(outbox, record) for outbox, record, _ in batch]
            failure = None
            if 200 <= answer.status < 300 or answer.status == _NONE:
                self._refused_since_s = None
                self._read(answer, records)
            elif answer.status in _UNREADABLE:
                _lose(records)
                self._once.warn(
                    answer.status,
                    f"{self._url} cannot read an event, which is lost and counted: {answer.said}",
                )
            elif answer.status in _LATER:
                raise LaterError(
                    answer.said, float(answer.pause) if answer.pause.isdecimal() else 0.0
                )
            elif not self._is_given_up(answer.status):
                return ConnectionError(answer.said)
            else:
                _lose(records)
                failure = ConnectionError(answer.said)
                self._once.warn(
                    ("given up", answer.status),
                    f"{self._url} has refused all events for {GIVE_UP_SECONDS:g} s, which are lost "
                    f"and counted from now on until it takes them: {answer.said}. "
                    f"{_REMEDIES.get(answer.status, self.remedy)}",
                )
            settled.update((outbox, record.sequence) for outbox, record in records)
            if failure is not None:
                return failure
        return None

    async def close(self) -> None:
        """Disconnects."""
        session, self._session = self._session, None
        if session is not None:
            await asyncio.wait({asyncio.ensure_future(session.close())}, timeout=STOP_SECONDS)

    async def _post(self, body: bytes) -> "_Answer":
        if self._session is None:
            raise ConnectionError("not connected")
        async with self._session.post(self._url, data=body, allow_redirects=False) as answer:
            text = b""
            async for piece in answer.content.iter_any():
                text += piece
                if len(text) > MAX_ANSWER_BYTES:
                    break
            said = text[:MAX_ANSWER_BYTES].decode("utf-8", "replace")
            return _Answer(answer.status, said, answer.headers.get("Retry-After", ""))

    def _is_given_up(self, status: int) -> bool:
        """Whether the other side has refused this sender for so long that its events are dropped; a
        server in trouble refuses no sender.
        """
        if status >= 500 or status in _ANOTHER_TIME:
            return False
        if self._refused_since_s is None:
            self._refused_since_s = time.monotonic()
        return time.monotonic() - self._refused_since_s >= GIVE_UP_SECONDS

    def _read(self, answer: "_Answer", records: Sequence[tuple[EventOutbox, Record]]) -> None:
        """Counts refused events as lost, and says once what of the rest is not understood."""
        try:
            told = json.loads(answer.text)
        except (ValueError, RecursionError):
            told = {}
        for each in _objects(told, "not_understood"):
            shown = json.dumps(each)[:MAX_SHOWN_CHARS]
            self._once.warn(
                ("not understood", str(each.get("what"))),
                f"{self._url} does not understand some events: {shown}",
            )
        if answer.status == _NONE:
            _lose(records)
        refused = _objects(told, "refused")
        if answer.status == _SOME:
            places = {place for each in refused if isinstance(place := each.get("line"), int)}
            named = [each for place, each in enumerate(records, 1) if place in places]
            _lose(named)
            count = told.get("refused_events") if isinstance(told, dict) else None
            for _ in range(min(count, len(records)) - len(named) if isinstance(count, int) else 0):
                records[0][0].lose(UNREAD)  # it names a hundred only, and counts the others
        if answer.status in (_SOME, _NONE):
            for each in refused[:1]:
                shown = json.dumps(each)[:MAX_SHOWN_CHARS]
                self._once.warn(
                    ("refused", str(each.get("reason"))),
                    f"{self._url} refuses events, which are lost and counted: {shown}",
                )


class _Answer(NamedTuple):
    """An answer, and the pause that it asks for."""

    status: int
    text: str
    pause: str

    @property
    def said(self) -> str:
        """The answer in a message."""
        return f"status {self.status}: {self.text[:MAX_SHOWN_CHARS]}"


def _lose(records: Sequence[tuple[EventOutbox, Record]]) -> None:
    for outbox, record in records:
        outbox.refuse(record)


def _objects(told: object, name: str) -> list[Mapping[str, Any]]:
    """The objects of a list in an answer; none if it has another shape."""
    found = told.get(name) if isinstance(told, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _batches(taken: Taken) -> Iterator[list[tuple[EventOutbox, Record, bytes]]]:
    """The records as CloudEvents, in bodies that are not too large."""
    batch: list[tuple[EventOutbox, Record, bytes]] = []
    size = 0
    for outbox, records in taken.items():
        call = _text(outbox.conversation_id)
        source = _text(outbox.source)
        for record in records:
            text = _cloud_event(call, source, record)
            if batch and size + len(text) > MAX_BODY_BYTES:
                yield batch
                batch, size = [], 0
            batch.append((outbox, record, text))
            size += len(text) + 1
    if batch:
        yield batch


def _cloud_event(call: bytes, source: bytes, record: Record) -> bytes:
    """A CloudEvent (structured mode) around the event, which is JSON already; its source and id
    identify a repeat.
    """
    kind = _text(f"callgauge.pipecat.{record.type}.v1")
    number = b'"%d"' % record.sequence
    return (
        b'{"specversion":"1.0","id":%b,"source":%b,"type":%b,"subject":%b,"sequence":%b,"datacontenttype":"application/json","data":%b}'
        % (number, source, kind, call, number, record.value)
    )


def _text(value: Any) -> bytes:
    return json.dumps(str(value).encode("utf-8", "replace").decode()).encode()
