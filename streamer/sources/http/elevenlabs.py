"""ElevenLabs' webhook: signatures, deliveries, and the events that they become."""

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

import structlog
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from consumers.engine.limits import Limits
from consumers.engine.sources.otlp import UnreadableSpansError
from consumers.runtime.registry import Instruments
from schemas.closed_sets import WebhookKind, WebhookOutcome
from schemas.events.elevenlabs import RecordEntry
from schemas.events.simulator import CONTROL_EVENTS
from schemas.log import OutgoingRecord
from schemas.units import to_seconds
from streamer.recordings.elevenlabs import RECORD_WEBHOOKS, call_in
from streamer.recordings.files import shown
from streamer.settings.all_settings import SenderSettings
from streamer.sources.http.body import value_of
from streamer.sources.http.receiving import (
    Bodies,
    Body,
    Senders,
    SendingTenant,
    UnreadBodyError,
    key_of,
)
from streamer.sources.outgoing import MAX_VALUE_BYTES, NotAcknowledgedError, WritesRecords, outgoing
from streamer.sources.replay import AGENT_RECORD, agent_event_name, compact_json

# The records for Kafka of one delivery of ElevenLabs' webhook. Pure.

CE_SOURCE: Final = "callgauge.elevenlabs.webhook"
"""`ce_source` of these records. With ids that come from the call alone, a second delivery of it is
a repeat in any process.
"""
MAX_EVENTS: Final = 20_000
"""Most events that one record gives; the evaluator closes a call with more."""
MAX_TOLD_ENTRIES: Final = 5
"""Entries that are not read which the log names one by one."""
_READ_FIELDS: Final = (
    "timestamp",
    "conversation_id",
    "agent_id",
    "agent_name",
    "status",
    "metadata",
    "transcript",
)
_OUTLINE_FIELDS: Final = (
    *(
        "role",
        "ignored_as_backchannel",
        "interrupted",
        "time_in_call_secs",
        "created_at_unix_ms",
        "source_event_id",
    ),
    *("conversation_turn_metrics", "llm_usage"),
)


OUTLINE_CHARS: Final = 64
"""Beginning of an entry's words in the outline of a record that is too large: it says whose turn it
was.
"""


class Delivery(NamedTuple):
    """A delivery as records.

    Attributes:
        records: In order.
        outcome: `accepted`; `quarantined` for the body as it came, which the evaluator puts into
            quarantine, from where it can be sent again after a fix; `too_large_to_keep`; or
            `too_old`, without records.
        what: What is not as expected, and what was seen; empty if nothing is.
    """

    records: tuple[OutgoingRecord, ...]
    outcome: WebhookOutcome = WebhookOutcome.ACCEPTED
    what: str = ""


class Read(NamedTuple):
    """What a body says.

    Attributes:
        kind: What it holds.
        name: Its type in ElevenLabs' words; None if it has none.
        delivery: The records of a call; None for what holds no call.
    """

    kind: WebhookKind
    name: str | None
    delivery: Delivery | None = None


def read_body(content: bytes, sender: SendingTenant, oldest_ms: float) -> Read:
    """Reads a body with a signature that holds, as `records_of_delivery` does if it
    holds a call.
    """
    fault: ValueError | None = None
    try:
        document = value_of(content)
    except ValueError as error:
        fault = error
        kind, name = _kind_at_the_beginning(content)
    else:
        named = document.get("type") if isinstance(document, Mapping) else None
        name = named if isinstance(named, str) else None
        kind = _KINDS.get(name or "", WebhookKind.UNKNOWN)
    if kind is not WebhookKind.TRANSCRIPTION:
        return Read(kind, name)
    if fault is not None:
        return Read(kind, name, _unread("", content, f"the body cannot be read as JSON: {fault}"))
    return Read(kind, name, records_of_delivery(document, content, sender, oldest_ms))


def records_of_delivery(
    document: Mapping[str, Any], content: bytes, sender: SendingTenant, oldest_ms: float = 0
) -> Delivery:
    """Turns the body of a webhook into records: the call's start, the events of its transcript, its
    record.

    The events are marked as made from the record: the evaluator leaves them out of a call that has
    live events.

    Args:
        document: The body as JSON.
        content: The body, with a signature that holds.
        sender: Whose webhook it is.
        oldest_ms: Time in ms since 1970 before which the evaluator refuses an event.
    """
    data = document.get("data", document)
    if not isinstance(data, Mapping):
        return _unread(
            "", content, f"data: expected the record of a conversation, saw {shown(data)}"
        )
    conversation_id = data.get("conversation_id")
    if not isinstance(conversation_id, str) or key_of(conversation_id) is None:
        return _unread(
            "",
            content,
            f"data.conversation_id: expected the id of the call, saw {shown(conversation_id)}",
        )
    try:
        call = call_in(document)
    except UnreadableSpansError as error:
        return _unread(
            conversation_id,
            content,
            f"data.otlp_traces: expected an export request of traces, saw {error}",
        )
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where, seen = ".".join(map(str, fault["loc"])), shown(fault["input"], str(fault["loc"][-1]))
        return _unread(conversation_id, content, f"data.{where}: {fault['msg']}, saw {seen}")
    begin_ms = call.events[0]["timestamp"]
    if begin_ms < oldest_ms:
        began = datetime.fromtimestamp(to_seconds(begin_ms), UTC)
        return Delivery(
            (),
            WebhookOutcome.TOO_OLD,
            f"call {conversation_id} began at {began:%Y-%m-%d %H:%M:%S} UTC",
        )
    records = [_control(conversation_id, {**call.started, "tenant": sender.tenant or None})]
    records += _agent_records(conversation_id, call.events[:-1])
    last, is_whole = _fitting(call.events[-1])
    if last:
        records += [_record(conversation_id, AGENT_RECORD, last, call.events[-1]["timestamp"])]
    if is_whole:
        told = [f"call {conversation_id}: {each}" for each in call.left_out[:MAX_TOLD_ENTRIES]]
        return Delivery(tuple(records), what="; ".join(told))
    end_ms = call.events[-1]["timestamp"]
    records += [
        _control(
            conversation_id,
            {"type": "call_ended", "timestamp": end_ms, "reason": call.ended_reason},
        )
    ]
    what = (
        f"call {conversation_id}: expected a record of at most {MAX_VALUE_BYTES} bytes, saw "
        f"{len(content)}"
    )
    return Delivery(tuple(records), WebhookOutcome.TOO_LARGE_TO_KEEP, what)


def _fitting(record: Mapping[str, Any]) -> tuple[bytes, bool]:
    """The record as one of Kafka's can carry it, and whether that is all that a rule reads: as it
    came, without the fields that nothing reads, or as an outline. The outline has the status of a
    record that is not final, so that the transcript is made from the events, which have all words.
    Empty if not even the outline fits.
    """
    if len(value := to_json(record, inf_nan_mode="null")) <= MAX_VALUE_BYTES:
        return value, True
    record = {name: record[name] for name in _READ_FIELDS if name in record}
    if len(value := to_json(record, inf_nan_mode="null")) <= MAX_VALUE_BYTES:
        return value, True
    entries = [_outlined(entry) for entry in record["transcript"]]
    value = to_json({**record, "status": "processing", "transcript": entries}, inf_nan_mode="null")
    return (value if len(value) <= MAX_VALUE_BYTES else b""), False


def _outlined(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry's measurements, and the beginning of its words."""
    said = RecordEntry.model_validate(entry)
    words = (said.user_words or said.agent_words)[:OUTLINE_CHARS]
    return {**{name: entry[name] for name in _OUTLINE_FIELDS if name in entry}, "message": words}


def _agent_records(
    conversation_id: str, events: tuple[dict[str, Any], ...]
) -> Iterator[OutgoingRecord]:
    for number, event in enumerate(events[:MAX_EVENTS], 1):
        yield _record(
            conversation_id,
            agent_event_name(event),
            compact_json(event),
            int(event["timestamp"]),
            str(number),
        )


def _control(conversation_id: str, event: Mapping[str, Any]) -> OutgoingRecord:
    """An event about the call, on the topic of its others: so the labels come before what counts
    under them.
    """
    known = {key: value for key, value in event.items() if value is not None}
    return _record(
        conversation_id, str(event["type"]), compact_json(known), int(event["timestamp"])
    )


def _record(
    conversation_id: str,
    name: str,
    value: bytes,
    time_ms: int | None = None,
    event_id: str | None = None,
) -> OutgoingRecord:
    return outgoing(
        "elevenlabs",
        conversation_id,
        value,
        name=name,
        event_id=f"{conversation_id}/{event_id or name}",
        ce_source=CE_SOURCE,
        time_ms=time_ms,
        is_agent_event=name not in CONTROL_EVENTS,
    )


def _unread(conversation_id: str, content: bytes, what: str) -> Delivery:
    """The body as it came, for the quarantine; the beginning of one that is too large
    for a record.
    """
    return Delivery(
        (_record(conversation_id, AGENT_RECORD, content[:MAX_VALUE_BYTES]),),
        WebhookOutcome.QUARANTINED,
        what,
    )


# Verifies the signature of ElevenLabs' webhooks: `t=<unix seconds>,v0=<HMAC-SHA256 of "<t>.<body>"
# in hex>`. Pure.
#
# We do not use the check in ElevenLabs' package. It accepts times of any future, and times such as
# `1_790` or Arabic digits; it takes the last of several signatures; it needs the body as text.

SIGNATURE_HEADER: Final = "elevenlabs-signature"
MAX_HEADER_BYTES: Final = 1_024
"""Longest header. One signature has 79 bytes; while a secret is exchanged there may be two."""
MAX_SIGNATURES: Final = 4
"""Most signatures of one header. Each is compared, and one that holds is enough."""
MAX_AGE_SECONDS: Final = 1_800
"""Age from which a delivery is refused, as in ElevenLabs' own check: a record of a delivery cannot
be sent again later.
"""
MAX_AHEAD_SECONDS: Final = 300
"""How far the sender's clock may be ahead of ours."""
_MAX_TIME_DIGITS: Final = 12
_HEX_DIGITS: Final = 64

Fault = Literal["malformed", "stale", "ahead", "forged"]


class SignatureError(ValueError):
    """The signature of a delivery does not hold, so nothing in it is believed.

    Attributes:
        fault: The fault, from a closed set, for the metric.
    """

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.fault: Fault = fault


class Signature(NamedTuple):
    """The parts of the header.

    Attributes:
        time: The sender's time as written: it is part of the signed text.
        digests: The signatures in hex, one or a few.
    """

    time: bytes
    digests: tuple[bytes, ...]

    @property
    def time_seconds(self) -> int:
        """The sender's time in seconds since 1970."""
        return int(self.time)


def read_signature(header: bytes) -> Signature:
    """Reads the header. Blanks around its parts do not matter, and parts of other schemes are left
    out.

    Raises:
        SignatureError: It is malformed.

    Example:
        >>> read_signature(b"t=1790000000, v0=" + b"a" * 64).time_seconds
        1790000000
    """
    if len(header) > MAX_HEADER_BYTES:
        raise SignatureError("malformed", f"the header has more than {MAX_HEADER_BYTES} bytes")
    parts = [part.strip(b" \t").partition(b"=") for part in header.split(b",")]
    times = [value for name, _, value in parts if name == b"t"]
    digests = tuple(value for name, _, value in parts if name == b"v0")
    # bytes.isdigit() knows ASCII digits alone, and no underscore.
    if len(times) != 1 or not times[0].isdigit() or len(times[0]) > _MAX_TIME_DIGITS:
        raise SignatureError(
            "malformed", "expected one `t=` with seconds since 1970 in plain digits"
        )
    if not 0 < len(digests) <= MAX_SIGNATURES or any(
        len(digest) != _HEX_DIGITS for digest in digests
    ):
        raise SignatureError(
            "malformed",
            f"expected 1 to {MAX_SIGNATURES} parts `v0=`, each with {_HEX_DIGITS} hex digits",
        )
    return Signature(times[0], digests)


def check_time(signature: Signature, now_seconds: float) -> None:
    """Checks the time of a delivery against our clock.

    Raises:
        SignatureError: It is stale, or ahead of our time.
    """
    age_seconds = now_seconds - signature.time_seconds
    if age_seconds > MAX_AGE_SECONDS:
        raise SignatureError(
            "stale", f"it was signed {age_seconds:.0f} s ago, expected at most {MAX_AGE_SECONDS} s"
        )
    if age_seconds < -MAX_AHEAD_SECONDS:
        raise SignatureError("ahead", f"it was signed {-age_seconds:.0f} s ahead of our clock")


class SignedBody:
    """The signature of a body, computed while the body arrives: it need not fit into memory."""

    def __init__(self, signature: Signature, secret: bytes) -> None:
        """Begins with the signed time.

        Args:
            signature: The header of the delivery.
            secret: The secret that ElevenLabs shows when the webhook is made.
        """
        self._signature = signature
        self._mac = hmac.new(secret, signature.time + b".", hashlib.sha256)

    def add(self, piece: bytes) -> None:
        """Adds the next piece of the body."""
        self._mac.update(piece)

    def check(self) -> None:
        """Checks the signature of the whole body.

        Raises:
            SignatureError: No signature of the header is that of this body.
        """
        expected = self._mac.hexdigest().encode()
        # As bytes, because compare_digest raises for text beyond ASCII; all of them, so that time
        # says nothing.
        holding = [
            digest for digest in self._signature.digests if hmac.compare_digest(digest, expected)
        ]
        if not holding:
            raise SignatureError("forged", "the signature is not that of this body and our secret")


# `POST /webhooks/elevenlabs`: the record of a call, when ElevenLabs has processed it.
#
# ElevenLabs switches a webhook off after ten failures in a row. So a delivery that a second try
# would not improve gets 200 and a count: recorded sound, a call that never began, types of
# tomorrow. 503 is only for a delivery that must come again.

MAX_BODY_BYTES: Final = 8_388_608
"""Largest body that is kept. The record of an hour with its usage figures has 2 MB; recorded sound
is read and dropped.
"""
SNIFFED_BYTES: Final = 4_096
"""Beginning of a body in which its type is looked for; ElevenLabs writes it first."""
MAX_REMEMBERED_DELIVERIES: Final = 10_000
"""Deliveries that are recognised when they come again: those of half an hour, after which a
signature is stale, at five a second. The ids of events make a delivery a repeat for the evaluator
beyond that, and in other processes.
"""
RETRY_SECONDS: Final = 5
"""Pause after which a delivery should come again when it cannot be written, or there is no room."""
NO_SECRET: Final = secrets.token_bytes(32)
"""Signs the deliveries to a path without a webhook, so that they are answered as those with a wrong
signature are.
"""
MAX_TENANT_CHARS: Final = 256
"""Longest name in the path of a webhook that is told apart from others."""

_TYPE: Final = re.compile(rb'"type"\s*:\s*"([a-z0-9_]{1,64})"')
_KINDS: Final = {
    **dict.fromkeys(RECORD_WEBHOOKS, WebhookKind.TRANSCRIPTION),
    "post_call_audio": WebhookKind.AUDIO,
    "unredacted_audio": WebhookKind.AUDIO,
    "call_initiation_failure": WebhookKind.INITIATION_FAILURE,
}
_REFUSED_STATUS: Final = 401
_TOLD: Final[Mapping[WebhookOutcome, tuple[str, str]]] = {
    WebhookOutcome.ACCEPTED: (
        "The entry is left out; the rest of the call is evaluated.",
        "Look for a newer version of callgauge.",
    ),
    WebhookOutcome.QUARANTINED: (
        "The body is kept as it came, and the evaluator puts it into quarantine.",
        "Look for a newer version of callgauge; `callgauge quarantine list` names the record until "
        "then.",
    ),
    WebhookOutcome.TOO_LARGE_TO_KEEP: (
        "The turns and ElevenLabs' figures are evaluated. The transcript is made from the events, "
        "without details of tools.",
        "Nothing needs to be done for the scores; `callgauge score` reads the whole record from "
        "ElevenLabs' API.",
    ),
    WebhookOutcome.TOO_OLD: (
        "Nothing is written: the evaluator would refuse each event.",
        "Read the record with `callgauge score`, or raise limits.max_event_time_skew_ms.",
    ),
}

log = structlog.get_logger()


class WebhookRoute:
    """The route for ElevenLabs' webhooks, of one tenant each."""

    def __init__(
        self,
        senders: Senders,
        bodies: Bodies,
        writer: WritesRecords,
        instruments: Instruments,
        limits: Limits,
        clock_ms: Callable[[], int],
    ) -> None:
        """Stores its parts; nothing is connected here. Call it inside a running event loop."""
        self._skew_ms = limits.max_event_time_skew_ms
        self._clock_ms = clock_ms
        self._senders = senders
        self._bodies = bodies
        self._writer = writer
        self._instruments = instruments
        self._nobody = SendingTenant("", SenderSettings())
        self._has_webhook = any(
            each.settings.elevenlabs_secret for each in senders.by_tenant.values()
        )
        # One body at a time, and one of each sender: what waits for the thread is in the room,
        # which is bounded.
        self._reading = ThreadPoolExecutor(1, "webhook")
        self._deliveries: OrderedDict[bytes, asyncio.Future[None]] = OrderedDict()

    async def answer(self, request: Request) -> Response:
        """Answers one delivery. That of an unknown tenant is answered as one with a wrong
        signature.
        """
        if not self._has_webhook:
            return PlainTextResponse(
                "There is no webhook of ElevenLabs here: set ingest.elevenlabs_secret.\n", 404
            )
        tenant = request.path_params.get("tenant", "")
        sender = self._senders.by_tenant.get(tenant, self._nobody)
        found = sender.settings.elevenlabs_secret
        secret = NO_SECRET if found is None else found.get_secret_value().encode()
        headers = [
            value for name, value in request.headers.raw if name == SIGNATURE_HEADER.encode()
        ]
        try:
            signature = read_signature(b"".join(headers) if len(headers) == 1 else b"")
            check_time(signature, time.time())
            signed = SignedBody(signature, secret)
            # Nobody knows yet whose body it is: who has no secret takes room of his address alone.
            host = "" if request.client is None else request.client.host
            room = tenant[:MAX_TENANT_CHARS], host
            async with self._bodies.read(request, room, _kept_bytes, signed.add) as body:
                signed.check()
                return await self._taken(body, sender)
        except SignatureError as error:
            return self._answer(
                WebhookKind.UNKNOWN, WebhookOutcome(error.fault), _REFUSED_STATUS, str(error)
            )
        except UnreadBodyError as error:
            return self._answer(WebhookKind.UNKNOWN, WebhookOutcome(error.reason), error.status)

    def close(self) -> None:
        """Ends the thread in which bodies are read."""
        self._reading.shutdown(wait=False, cancel_futures=True)

    async def _taken(self, body: Body, sender: SendingTenant) -> Response:
        """Answers a delivery whose signature holds."""
        if body.is_whole:
            return await self._deliver(body.content, sender)
        sender.take_body(len(body.content))
        kind, name = _kind_at_the_beginning(body.content)
        if kind is not WebhookKind.TRANSCRIPTION:
            return self._ignored(kind, name, body.total_bytes)
        log.error(
            "webhook_too_large",
            bytes=body.total_bytes,
            expected=f"at most {MAX_BODY_BYTES} bytes",
            what_happens_now="The call is not measured.",
            what_to_do="Get the record from ElevenLabs' API, and read it with `callgauge score`.",
        )
        return self._answer(kind, WebhookOutcome.TOO_LARGE)

    def _ignored(self, kind: WebhookKind, name: str | None, total_bytes: int) -> Response:
        if name is None:
            log.warning(
                "webhook_not_as_expected",
                bytes=total_bytes,
                expected="a JSON object with a `type`",
                what_happens_now="Nothing of it is written.",
                what_to_do="Send ElevenLabs' own webhooks to this address only.",
            )
        return self._answer(kind, WebhookOutcome.IGNORED)

    async def _deliver(self, content: bytes, sender: SendingTenant) -> Response:
        """Writes the records of a call once, also if the same delivery comes twice at the same
        time.
        """
        run = asyncio.get_running_loop().run_in_executor
        async with sender.turn:  # so no sender has more than one body in the thread
            if (wait_seconds := sender.wait_seconds()) > 0:
                return self._answer(
                    WebhookKind.UNKNOWN, WebhookOutcome.LIMITED, 429, retry_seconds=wait_seconds
                )
            digest = await run(self._reading, _digest, sender.tenant, content)
            known = self._deliveries.get(digest)
            if known is None:
                oldest_ms = self._clock_ms() - self._skew_ms if self._skew_ms else 0
                read = await run(self._reading, read_body, content, sender, oldest_ms)
                delivery = read.delivery
                if delivery is None or delivery.outcome is not WebhookOutcome.ACCEPTED:
                    sender.take_body(len(content), 0 if delivery is None else len(delivery.records))
                else:
                    sender.spend(len(delivery.records))
            else:
                sender.spend(1)
        kind = WebhookKind.TRANSCRIPTION
        try:
            if known is not None:
                await asyncio.shield(known)
                return self._answer(kind, WebhookOutcome.REPEATED)
            if delivery is None:
                return self._ignored(read.kind, read.name, len(content))
            key = delivery.records[0].key if delivery.records else b""
            if key and self._senders.is_foreign(sender, key):
                return self._answer(kind, WebhookOutcome.FOREIGN)
            if key and delivery.outcome is not WebhookOutcome.QUARANTINED:
                self._senders.claim(sender, key)
            await self._write_once(digest, delivery.records)
        except NotAcknowledgedError:
            return self._answer(kind, WebhookOutcome.UNWRITTEN, 503, retry_seconds=RETRY_SECONDS)
        if delivery.what:
            what_happens_now, what_to_do = _TOLD[delivery.outcome]
            log.error(
                "webhook_not_as_expected",
                outcome=delivery.outcome.value,
                what=delivery.what,
                what_happens_now=what_happens_now,
                what_to_do=what_to_do,
            )
        return self._answer(kind, delivery.outcome)

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
        self._instruments.observe(
            "callgauge_ingest_acknowledgement_seconds", ("elevenlabs",), seconds
        )

    def _answer(
        self,
        kind: WebhookKind,
        outcome: WebhookOutcome,
        status: int = 200,
        text: str = "",
        retry_seconds: float = 0.0,
    ) -> Response:
        self._instruments.inc("callgauge_ingest_webhooks_total", (kind.value, outcome.value))
        headers = {"retry-after": str(max(1, round(retry_seconds)))} if retry_seconds else {}
        return PlainTextResponse(f"{outcome.value}{': ' if text else ''}{text}\n", status, headers)


def _kept_bytes(beginning: bytearray) -> int:
    """How much of a body is kept: nothing but the beginning of recorded sound."""
    kind, _ = _kind_at_the_beginning(bytes(beginning[:SNIFFED_BYTES]))
    return SNIFFED_BYTES if kind is WebhookKind.AUDIO else MAX_BODY_BYTES


def _digest(tenant: str, content: bytes) -> bytes:
    return hashlib.sha256(tenant.encode() + b"\0" + content).digest()


def _kind_at_the_beginning(content: bytes) -> tuple[WebhookKind, str | None]:
    """The kind of a body that is not whole, or no JSON, and its type in ElevenLabs' words; None if
    it has none.
    """
    found = _TYPE.search(content[:SNIFFED_BYTES])
    name = None if found is None else found[1].decode()
    return _KINDS.get(name or "", WebhookKind.UNKNOWN), name


def _read(delivery: "asyncio.Future[None]") -> None:
    """Takes the error of a delivery that came only once, so that it is not reported as
    forgotten.
    """
    if not delivery.cancelled():
        delivery.exception()
