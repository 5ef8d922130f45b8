"""Events to callgauge's `POST /events`, as a batch of CloudEvents."""

import asyncio
import json
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final

import aiohttp

from callgauge_send.events import Record
from callgauge_send.outbox import UNREAD, Outbox
from callgauge_send.sender import STOP_SECONDS, LaterError, Log, Settled, Taken

BATCH: Final = "application/cloudevents-batch+json"
MAX_BODY_BYTES: Final = 2_097_152
"""Largest body, half of what callgauge takes."""
REQUEST_SECONDS: Final = 15.0
"""How long an answer may take before the events are sent again; callgauge itself waits ten seconds for Kafka."""
MAX_ANSWER_BYTES: Final = 262_144
"""How much of an answer is read: a hundred refusals in words."""
MAX_SHOWN_CHARS: Final = 400
_SOME: Final = 207
_NONE: Final = 422
_LATER: Final = (429, 503)


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
        self._log = log
        self._session: aiohttp.ClientSession | None = None
        self._told: set[str] = set()
        self.key: Hashable = ("http", url, token)
        self.place = url
        self.remedy = "Check the address, the token, and that `callgauge run` or `callgauge ingest` runs there."

    async def open(self) -> None:
        """Makes a client, unless there is one; it connects with the first request."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
                headers={"Authorization": f"Bearer {self._token}", "Content-Type": BATCH},
            )

    async def send(self, taken: Taken, settled: Settled) -> BaseException | None:
        """Posts the records in their order and adds those that callgauge has, or will never take; returns the first failure.

        Raises:
            LaterError: callgauge asks for a pause.
        """
        for batch in _batches(taken):
            body = b"[%b]" % b",".join(text for _, _, text in batch)
            records = [(outbox, record) for outbox, record, _ in batch]
            failure = await self._post(body, records)
            if failure is not None:
                return failure
            settled.update((outbox, record.sequence) for outbox, record in records)
        return None

    async def close(self) -> None:
        """Disconnects."""
        session, self._session = self._session, None
        if session is not None:
            await asyncio.wait({asyncio.ensure_future(session.close())}, timeout=STOP_SECONDS)

    async def _post(self, body: bytes, records: Sequence[tuple[Outbox, Record]]) -> BaseException | None:
        if self._session is None:
            return ConnectionError("not connected")
        async with self._session.post(self._url, data=body, allow_redirects=False) as answer:
            text = (await answer.content.read(MAX_ANSWER_BYTES)).decode("utf-8", "replace")
            status, pause = answer.status, answer.headers.get("Retry-After", "")
        said = f"status {status}: {text[:MAX_SHOWN_CHARS]}"
        if status in _LATER:
            raise LaterError(said, float(pause) if pause.isdecimal() else 0.0)
        if not 200 <= status < 300 and status != _NONE:
            return ConnectionError(said)
        self._read(status, text, records)
        return None

    def _read(self, status: int, text: str, records: Sequence[tuple[Outbox, Record]]) -> None:
        """Counts refused events as lost, and says once what of the rest is not understood."""
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {}
        if not isinstance(answer, dict):
            return
        for each in answer.get("not_understood") or ():
            self._tell(f"callgauge: {self._url} does not understand some events: {json.dumps(each)[:MAX_SHOWN_CHARS]}")
        if status not in (_SOME, _NONE):
            return
        refused = [each for each in answer.get("refused") or () if isinstance(each, dict)]
        count = answer.get("refused_events")
        places = {place - 1 for each in refused if isinstance(place := each.get("line"), int)}
        if status == _NONE:
            places = set(range(len(records)))
        for place in places & set(range(len(records))):
            outbox, record = records[place]
            outbox.refuse(record)
        for _ in range(min(count, len(records)) - len(places) if isinstance(count, int) else 0):
            records[0][0].lose(UNREAD)  # it names a hundred only, and counts the others
        for each in refused[:1]:
            self._tell(
                f"callgauge: {self._url} refuses events, which are lost and counted: {json.dumps(each)[:MAX_SHOWN_CHARS]}"
            )

    def _tell(self, text: str) -> None:
        """Warns once of each thing, and of a bounded number of things."""
        if text not in self._told and len(self._told) < 20:
            self._told.add(text)
            self._log.warning(text)


def _batches(taken: Taken) -> Iterator[list[tuple[Outbox, Record, bytes]]]:
    """The records as CloudEvents, in bodies that are not too large."""
    batch: list[tuple[Outbox, Record, bytes]] = []
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
    """A CloudEvent (structured mode) around the event, which is JSON already; its source and id identify a repeat."""
    kind = _text(f"callgauge.pipecat.{record.type}.v1")
    number = b'"%d"' % record.sequence
    return (
        b'{"specversion":"1.0","id":%b,"source":%b,"type":%b,"subject":%b,"sequence":%b,"datacontenttype":"application/json","data":%b}'
        % (number, source, kind, call, number, record.value)
    )


def _text(value: Any) -> bytes:
    return json.dumps(str(value).encode("utf-8", "replace").decode()).encode()
