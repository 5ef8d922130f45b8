"""`POST /webhooks/elevenlabs`: the record of a call, when ElevenLabs has processed it.

ElevenLabs switches a webhook off after ten failures in a row. So a delivery that a second try would not improve gets 200 and a
count: recorded sound, a call that never began, types of tomorrow. 503 is only for a delivery that must come again.
"""

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from consumers.runtime.registry import Instruments
from schemas.closed_sets import WebhookKind, WebhookOutcome
from streamer.recordings.elevenlabs import RECORD_WEBHOOKS
from streamer.sources.http.elevenlabs.deliveries import records_of_delivery
from streamer.sources.http.elevenlabs.signature import (
    SIGNATURE_HEADER,
    SignatureError,
    SignedBody,
    check_time,
    read_signature,
)
from streamer.sources.http.receiving.bodies import Bodies, BusyError, GoneError, TooSlowError
from streamer.sources.http.receiving.tenants import Sender, Senders
from streamer.sources.writer import AcknowledgedWriter, NotAcknowledgedError, OutgoingRecord

MAX_BODY_BYTES: Final = 8_388_608
"""Largest body that is kept. The record of an hour with its usage figures has 2 MB; recorded sound is read and dropped."""
SNIFFED_BYTES: Final = 4_096
"""Beginning of a body in which its type is looked for; ElevenLabs writes it first."""
MAX_REMEMBERED_DELIVERIES: Final = 10_000
"""Deliveries that are recognised when they come again: those of half an hour, after which a signature is stale, at five a second.
The ids of events make a delivery a repeat for the evaluator beyond that, and in other processes."""
RETRY_SECONDS: Final = 5

_TYPE: Final = re.compile(rb'"type"\s*:\s*"([a-z0-9_]{1,64})"')
_KINDS: Final = {
    **dict.fromkeys(RECORD_WEBHOOKS, WebhookKind.TRANSCRIPTION),
    "post_call_audio": WebhookKind.AUDIO,
    "unredacted_audio": WebhookKind.AUDIO,
    "call_initiation_failure": WebhookKind.INITIATION_FAILURE,
}
_REFUSED_STATUS: Final = 401

log = structlog.get_logger()


class WebhookRoute:
    """The route for ElevenLabs' webhooks, of one tenant each."""

    def __init__(self, senders: Senders, bodies: Bodies, writer: AcknowledgedWriter, instruments: Instruments) -> None:
        """Stores its parts; nothing is connected here. Call it inside a running event loop."""
        self._senders = senders
        self._bodies = bodies
        self._writer = writer
        self._instruments = instruments
        self._deliveries: OrderedDict[bytes, asyncio.Future[None]] = OrderedDict()

    async def answer(self, request: Request) -> Response:
        """Answers one delivery."""
        sender = self._senders.by_tenant.get(request.path_params.get("tenant", ""))
        secret = None if sender is None else sender.settings.elevenlabs_secret
        if sender is None or secret is None:
            return PlainTextResponse("There is no webhook of ElevenLabs here: set ingest.elevenlabs_secret.\n", 404)
        headers = [value for name, value in request.headers.raw if name == SIGNATURE_HEADER.encode()]
        try:
            signature = read_signature(b"".join(headers) if len(headers) == 1 else b"")
            check_time(signature, time.time())
            signed = SignedBody(signature, secret.get_secret_value().encode())
            body = await self._bodies.read(request, _kept_bytes, signed.add)
        except SignatureError as error:
            return self._unsigned(error)
        except BusyError:
            return self._answer(WebhookKind.UNKNOWN, WebhookOutcome.BUSY, 503)
        except TooSlowError:
            return self._answer(WebhookKind.UNKNOWN, WebhookOutcome.TOO_SLOW, 408)
        except GoneError:
            return self._answer(WebhookKind.UNKNOWN, WebhookOutcome.GONE, 400)
        try:
            signed.check()
            content = body.content
            kind = _kind_of(content) if body.is_whole else _kind_at_the_beginning(content)
            if kind is not WebhookKind.TRANSCRIPTION:
                return self._answer(kind, WebhookOutcome.IGNORED)
            if not body.is_whole:
                log.error(
                    "webhook_too_large", bytes=body.total_bytes, expected=f"at most {MAX_BODY_BYTES} bytes",
                    what_happens_now="The call is not measured.", what_to_do="Leave audio out of the transcript webhook.",
                )  # fmt: skip
                return self._answer(kind, WebhookOutcome.TOO_LARGE)
            return await self._deliver(content, sender)
        except SignatureError as error:
            return self._unsigned(error)
        finally:
            body.release()

    async def _deliver(self, content: bytes, sender: Sender) -> Response:
        """Writes the records of a call once, also if the same delivery comes twice at the same time."""
        kind = WebhookKind.TRANSCRIPTION
        digest = hashlib.sha256(sender.tenant.encode() + b"\0" + content).digest()
        known = self._deliveries.get(digest)
        try:
            if known is not None:
                await asyncio.shield(known)
                return self._answer(kind, WebhookOutcome.REPEATED)
            found = records_of_delivery(content, sender)
            if not self._senders.owns(sender, found.records[0].key.decode("utf-8", "replace")):
                return self._answer(kind, WebhookOutcome.FOREIGN)
            await self._write_once(digest, found.records)
        except NotAcknowledgedError:
            return self._answer(kind, WebhookOutcome.KAFKA_AWAY, 503)
        if found.fault is not None:
            log.error(
                "webhook_unreadable", where=found.fault, what_happens_now="The record is on its topic; see the quarantine.",
                what_to_do="`callgauge quarantine show` says what is wrong with it.",
            )  # fmt: skip
        return self._answer(kind, WebhookOutcome.ACCEPTED if found.fault is None else WebhookOutcome.QUARANTINED)

    async def _write_once(self, digest: bytes, records: Sequence[OutgoingRecord]) -> None:
        delivery: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        delivery.add_done_callback(_read)
        self._deliveries[digest] = delivery
        if len(self._deliveries) > MAX_REMEMBERED_DELIVERIES:
            self._deliveries.popitem(last=False)
        began = time.perf_counter()
        try:
            await self._writer.write(records)
        except BaseException:
            self._deliveries.pop(digest, None)
            delivery.set_exception(NotAcknowledgedError())
            raise
        delivery.set_result(None)
        seconds = time.perf_counter() - began
        self._instruments.observe("callgauge_ingest_acknowledgement_seconds", ("elevenlabs",), seconds)

    def _unsigned(self, error: SignatureError) -> Response:
        return self._answer(WebhookKind.UNKNOWN, WebhookOutcome(error.fault), _REFUSED_STATUS, str(error))

    def _answer(self, kind: WebhookKind, outcome: WebhookOutcome, status: int = 200, text: str = "") -> Response:
        self._instruments.inc("callgauge_ingest_webhooks_total", (kind.value, outcome.value))
        headers: dict[str, Any] = {"retry-after": str(RETRY_SECONDS)} if status == 503 else {}
        return PlainTextResponse(f"{outcome.value}{': ' if text else ''}{text}\n", status, headers)


def _kind_of(content: bytes) -> WebhookKind:
    try:
        document = from_json(content, allow_inf_nan=False)
    except ValueError:
        return _kind_at_the_beginning(content)
    kind = document.get("type") if isinstance(document, Mapping) else None
    return _KINDS.get(kind, WebhookKind.UNKNOWN) if isinstance(kind, str) else WebhookKind.UNKNOWN


def _kind_at_the_beginning(content: bytes) -> WebhookKind:
    """The kind of a body that is not whole, or no JSON."""
    found = _TYPE.search(content[:SNIFFED_BYTES])
    return WebhookKind.UNKNOWN if found is None else _KINDS.get(found[1].decode(), WebhookKind.UNKNOWN)


def _kept_bytes(beginning: bytearray) -> int:
    """How much of a body is kept: nothing but the beginning of recorded sound."""
    return (
        SNIFFED_BYTES
        if _kind_at_the_beginning(bytes(beginning[:SNIFFED_BYTES])) is WebhookKind.AUDIO
        else MAX_BODY_BYTES
    )


def _read(delivery: "asyncio.Future[None]") -> None:
    """Takes the error of a delivery that came only once, so that it is not reported as forgotten."""
    if not delivery.cancelled():
        delivery.exception()
