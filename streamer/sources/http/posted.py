"""POST /events: batches of events, as JSON lines or CloudEvents."""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import structlog
from pydantic_core import PydanticSerializationError, to_json
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from consumers.engine.admission import admit
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.http import challenge, given_token
from consumers.runtime.registry import Instruments
from schemas.closed_sets import IngestOutcome, RefusalReason
from schemas.events.codec import Misread, RefusedRecordError, misread_of
from schemas.events.simulator import Stream, source_of
from schemas.log import OutgoingRecord
from schemas.quarantine import QuarantineRecord
from schemas.topics import TOPIC_BY_SOURCE
from schemas.wire import MAX_NAME_CHARS
from streamer.sources.http.body import (
    WHICH_EVENTS,
    Posted,
    UnreadableBodyError,
    in_our_words,
    posted_events,
    stream_in,
)
from streamer.sources.http.receiving import (
    BYTES_LEFT_OUT_AN_EVENT,
    Bodies,
    BodyTurn,
    BrokenGzipError,
    Senders,
    SendingTenant,
    UnreadBodyError,
    key_of,
)
from streamer.sources.outgoing import MAX_VALUE_BYTES, NotAcknowledgedError, WritesRecords, outgoing
from streamer.sources.replay import agent_event_name, event_name, event_time_ms

# Turns posted events into records for the input topics, or into refusals that say which event, and
# why. Pure but for the clock.
#
# An event passes the evaluator's own checks here, so a sender learns of a refusal from the answer
# instead of the quarantine.

CE_SOURCE: Final = "callgauge.ingest"
"""`ce_source` of events without CloudEvents attributes."""
MAX_SHOWN_CHARS: Final = 80


class Refusal(NamedTuple):
    """One event that is not accepted.

    Attributes:
        line: Its line, or its place in the array, from 1.
        reason: The reason, from a closed set.
        what: The fault, in a few words.
        expected_and_seen: The expected content and the actual one, redacted.
        what_to_do: The remedy.
    """

    line: int
    reason: RefusalReason
    what: str
    expected_and_seen: str
    what_to_do: str


class Accepted(NamedTuple):
    """One event that is ready for Kafka, of this stream; `misread` names the part of it that is not
    understood, if there is one.
    """

    record: OutgoingRecord
    stream: Stream
    misread: Misread | None


@dataclass(slots=True)
class _PostedRecord:
    """A posted event in the shape in which the evaluator checks records."""

    topic: str
    offset: int
    timestamp: int
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]
    partition: int = 0


class Batches:
    """Checks the events of all requests."""

    def __init__(
        self, senders: Senders, limits: Limits, redactor: Redactor, clock_ms: Callable[[], int]
    ) -> None:
        self._senders = senders
        self._limits = limits.model_copy(
            update={"max_record_bytes": min(limits.max_record_bytes, MAX_VALUE_BYTES)}
        )
        self._redactor = redactor
        self._clock_ms = clock_ms

    def all_checked(
        self, posted: Posted, sender: SendingTenant, request_id: str
    ) -> Iterator[Accepted | Refusal]:
        """Checks one event, or what an event of another framework says in our words: nothing if no
        rule reads it.
        """
        return (
            self.checked(each, sender, request_id)
            for each in in_our_words(posted, self._clock_ms())
        )

    def checked(self, posted: Posted, sender: SendingTenant, request_id: str) -> Accepted | Refusal:
        """Checks one event.

        Args:
            posted: The event.
            sender: The sender, whose tenant the event gets.
            request_id: Identifies the request: an event without CloudEvents attributes gets an id
                from it and from its place, so a request that is sent again with the same id is a
                repeat.
        """
        place, attributes = posted.place, posted.attributes or {}
        if posted.fault is not None:
            fault = self._redactor.beginning(posted.fault, 4 * MAX_SHOWN_CHARS)
            return _refusal(place, RefusalReason.UNDECODABLE, "it cannot be read", fault)
        if not isinstance(posted.event, Mapping):
            return _refusal(
                place, RefusalReason.UNDECODABLE, "it is no event", "expected a JSON object"
            )
        event = dict(posted.event)
        named = event.pop("conversation_id", None)
        key = key_of(attributes.get("subject") or attributes.get("partitionkey") or named)
        if key is None:
            return _refusal(
                place,
                RefusalReason.EMPTY_KEY,
                "it names no conversation",
                "expected `conversation_id`, or `subject` of a CloudEvent, of 1 to "
                f"{MAX_NAME_CHARS} bytes in UTF-8",
                "Put the id of the call into every event.",
            )
        try:
            stream = stream_in(event, attributes)
        except RefusedRecordError as error:
            seen = self._redactor.beginning(error.seen, 2 * MAX_SHOWN_CHARS)
            return _refusal(
                place, error.reason, error.what, f"{error.expected}; saw {seen}", WHICH_EVENTS
            )
        if (foreign := self._foreign_tenant(event, sender)) is not None:
            return foreign._replace(line=place)
        if self._senders.is_foreign(sender, key):
            return _refusal(
                place,
                RefusalReason.INVALID_EVENT,
                "the conversation is another tenant's",
                "expected a conversation that this tenant began",
                "Give each call an id that cannot be guessed, for example a UUID.",
            )
        outcome = self._admitted(
            place, key, stream, event, attributes, f"{request_id}/{place}", sender
        )
        if isinstance(outcome, Accepted):
            self._senders.claim(sender, key)
        return outcome

    def _foreign_tenant(self, event: dict[str, Any], sender: SendingTenant) -> Refusal | None:
        """Puts the sender's tenant into an event that names the labels of a call; a refusal if it
        names another one.
        """
        if event.get("type") != "call_started" or not sender.tenant:
            return None
        if event.get("tenant") not in (None, sender.tenant):
            return _refusal(
                0,
                RefusalReason.INVALID_EVENT,
                "its tenant is another one",
                f"expected {sender.tenant!r}, the tenant of the token, or none",
                "Leave `tenant` out, or use that tenant's token.",
            )
        event["tenant"] = sender.tenant
        return None

    def _admitted(
        self,
        place: int,
        key: bytes,
        stream: Stream,
        event: dict[str, Any],
        attributes: Mapping[str, str],
        own_id: str,
        sender: SendingTenant,
    ) -> Accepted | Refusal:
        now_ms = self._clock_ms()
        is_agent_event = stream == "elevenlabs"
        name = agent_event_name(event) if is_agent_event else event_name(source_of(stream), event)
        if (
            is_agent_event
            and event.get("timestamp") is None
            and "transcript" not in event
            and "data" not in event
        ):
            # ElevenLabs' events have no time: it is that of their arrival
            event["timestamp"] = now_ms
        sequence = attributes.get("sequence", "")
        try:
            value = to_json(event, inf_nan_mode="null")  # 1e999 is infinity by now
        except (PydanticSerializationError, ValueError) as error:
            return _refusal(
                place,
                RefusalReason.UNDECODABLE,
                "it cannot be written as JSON",
                type(error).__name__,
            )
        record = outgoing(
            source_of(stream),
            key.decode(),
            value,
            name=name,
            event_id=attributes.get("id") or own_id,
            ce_source=attributes.get("source")
            or (f"{CE_SOURCE}/{sender.tenant}" if sender.tenant else CE_SOURCE),
            time_ms=event_time_ms(event),
            sequence=int(sequence)
            if sequence.isascii() and sequence.isdigit() and len(sequence) < 19
            else None,
            is_agent_event=is_agent_event,
        )
        if any(len(value) > 4 * MAX_NAME_CHARS for _, value in record.headers):
            return _refusal(
                place,
                RefusalReason.TEXT_TOO_LONG,
                "an attribute is too long",
                f"expected CloudEvents attributes and types of at most {4 * MAX_NAME_CHARS} bytes",
            )
        as_read = _PostedRecord(
            TOPIC_BY_SOURCE[record.source], place, now_ms, key, value, list(record.headers)
        )
        arrival = admit(record.source, as_read, self._limits, self._redactor)
        if isinstance(arrival, QuarantineRecord):
            return _refusal(
                place, arrival.reason, arrival.what, arrival.expected_and_seen, arrival.what_to_do
            )
        return Accepted(record, stream, misread_of(arrival.event))


def _refusal(
    place: int,
    reason: RefusalReason,
    what: str,
    expected_and_seen: str,
    what_to_do: str = "Compare with `callgauge schema`, fix the sender, and send it again.",
) -> Refusal:
    return Refusal(
        place, reason, what, expected_and_seen, what_to_do.replace(", then put the record back", "")
    )


# `POST /events`: events of any framework, answered when they are safe: on the disk, or acknowledged
# by Kafka.

MAX_BODY_BYTES: Final = 8_388_608
"""Largest body: some 40,000 events. A bot sends a few hundred a second at most. Of Vapi, one
message of a call of two hours, which has the whole call in it several times.
"""
MAX_SHOWN_REFUSALS: Final = 100
"""Refused events that an answer describes one by one; `refused_events` counts all of them."""
MAX_SHOWN_MISREADINGS: Final = 20
"""Kinds of events that are not understood which an answer names."""
RETRY_SECONDS: Final = 5
"""Pause after which a sender should try again when nothing can be written, or there is no room."""
MAX_REQUEST_ID_CHARS: Final = 200
_UNREAD: Final[Mapping[str, tuple[str, dict[str, str]]]] = {
    "busy": (
        "Too many requests at a time; nothing was accepted.",
        {"retry-after": str(RETRY_SECONDS)},
    ),
    "too_slow": ("The body did not arrive in time; nothing was accepted.", {"connection": "close"}),
    "gone": ("The body has no end.", {"connection": "close"}),
}
"""The text and the headers of the answer to a body that was not read to its end."""


log = structlog.get_logger()
_WITHOUT_FAULT: Final = frozenset({IngestOutcome.BUSY, IngestOutcome.UNWRITTEN, IngestOutcome.GONE})
"""Outcomes of requests that are no fault of their sender: it comes again, and other metrics tell of
them.
"""


class RefusalLog:
    """Tells a person of refused events: a line in the log for each sender and kind of refusal, when
    it comes first. A sender that reads no answers, as most webhooks do not, would otherwise lose
    events silently.
    """

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()  # both are closed sets

    def tell(
        self, tenant: str, kind: RefusalReason | IngestOutcome, seen: str, what_to_do: str
    ) -> None:
        """Notes a refusal.

        Args:
            tenant: Of the sender; empty for everybody.
            kind: What is wrong.
            seen: The fault with the expected and the actual content, redacted.
            what_to_do: The remedy.
        """
        if (tenant, kind.value) in self._told:
            return
        self._told.add((tenant, kind.value))
        log.warning(
            "events_refused",
            tenant=tenant,
            kind=kind.value,
            seen=seen,
            what_to_do=what_to_do,
            what_happens_now=(
                "They are in no score. Later ones of this kind are only counted, and in the "
                "answers."
            ),
        )


class EventsRoute:
    """The route for events, in the encoding that `read` knows."""

    def __init__(
        self,
        senders: Senders,
        batches: Batches,
        bodies: Bodies,
        writer: WritesRecords,
        instruments: Instruments,
        read: Callable[[bytes, str, Mapping[str, str]], Iterator[Posted | None]] = posted_events,
    ) -> None:
        self._log = RefusalLog()
        self._read = read
        self._senders = senders
        self._batches = batches
        self._bodies = bodies
        self._writer = writer
        self._instruments = instruments

    async def answer(self, request: Request) -> Response:
        """Answers one request."""
        authorization = request.headers.get("authorization", "").encode("latin-1")
        token = given_token(authorization)
        sender = None if token is None else self._senders.with_token(token)
        if sender is None:
            text = (
                "Expected `Authorization: Bearer` with the token of senders: the one that "
                "`callgauge serve` has printed, that of the setting ingest.token, or that of a "
                "tenant."
            )
            headers = {"www-authenticate": challenge(authorization)}
            return self._refused("", IngestOutcome.UNAUTHORIZED, 401, text, headers)
        if (limited := self._limited(sender)) is not None:
            return limited
        encoding = request.headers.get("content-encoding", "identity").lower()
        if encoding not in ("identity", "gzip"):
            text = (
                "Expected a body in gzip or without Content-Encoding, saw "
                f"{encoding[:MAX_SHOWN_CHARS]!r}; nothing was accepted."
            )
            return self._refused(sender.tenant, IngestOutcome.UNREADABLE, 415, text)
        unzips_to = MAX_BODY_BYTES if encoding == "gzip" else None
        try:
            async with self._bodies.read(
                request, sender.tenant, lambda _: MAX_BODY_BYTES, unzips_to=unzips_to
            ) as body:
                if body.is_whole:
                    return await self._taken(request, body.content, sender)
        except BrokenGzipError as error:
            sender.take_body(error.read_bytes)
            text = (
                f"Expected a body in gzip, as its Content-Encoding says: {error}. Nothing was "
                "accepted."
            )
            return self._refused(
                sender.tenant, IngestOutcome.UNREADABLE, 400, text, {"connection": "close"}
            )
        except UnreadBodyError as error:
            sender.take_body(error.arrived_bytes)
            text, headers = _UNREAD[error.reason]
            return self._refused(
                sender.tenant, IngestOutcome(error.reason), error.status, text, headers
            )
        sender.take_body(body.total_bytes)
        saw = "more when unpacked" if unzips_to else str(body.total_bytes)
        text = (
            f"Expected a body of at most {MAX_BODY_BYTES} bytes, saw {saw}: send smaller batches."
        )
        return self._refused(sender.tenant, IngestOutcome.TOO_LARGE, 413, text)

    def _limited(self, sender: SendingTenant) -> Response | None:
        """The answer to a sender that has to wait; None if it may send now."""
        if (wait_seconds := sender.wait_seconds()) <= 0:
            return None
        text = (
            f"More than {sender.settings.events_per_second} events a second on average; nothing "
            "was accepted."
        )
        return self._refused(sender.tenant, IngestOutcome.LIMITED, 429, text, _retry(wait_seconds))

    async def _taken(self, request: Request, body: bytes, sender: SendingTenant) -> Response:
        began = time.perf_counter()
        accepted: list[Accepted] = []
        refused: list[Refusal] = []
        async with sender.turn, self._senders.turn() as turn:
            # by bodies that were read before this one
            if (limited := self._limited(sender)) is not None:
                return limited
            try:
                left_out = await self._read_all(request, body, sender, turn, accepted, refused)
            except UnreadableBodyError as error:
                sender.take_body(len(body))
                return self._refused(
                    sender.tenant, IngestOutcome.UNREADABLE, 400, f"{error}. Nothing was accepted."
                )
            if accepted and not refused:
                sender.spend(len(accepted))
            elif left_out and not refused:
                sender.spend(max(left_out, len(body) // BYTES_LEFT_OUT_AN_EVENT))
            else:
                sender.take_body(len(body), len(accepted) + len(refused))
        if not accepted and not refused and not left_out:
            return self._refused(sender.tenant, IngestOutcome.UNREADABLE, 400, "The body is empty.")
        try:
            await self._writer.write([each.record for each in accepted])
        except NotAcknowledgedError:
            text = (
                "The events were not acknowledged in time. Send the whole request again, with the "
                "same Idempotency-Key."
            )
            return self._refused(
                sender.tenant, IngestOutcome.UNWRITTEN, 503, text, _retry(RETRY_SECONDS)
            )
        if accepted:
            seconds = time.perf_counter() - began
            self._instruments.observe(
                "callgauge_ingest_acknowledgement_seconds", ("events",), seconds
            )
        return self._summary(sender.tenant, accepted, refused, left_out)

    async def _read_all(
        self,
        request: Request,
        body: bytes,
        sender: SendingTenant,
        turn: BodyTurn,
        accepted: list[Accepted],
        refused: list[Refusal],
    ) -> int:
        """Sorts what the body says into what is accepted and what is refused; returns the number of
        events that no rule reads.
        """
        headers = {
            name.decode("latin-1"): _text(value) for name, value in reversed(request.headers.raw)
        }  # the first one counts
        request_id = (
            request.headers.get("idempotency-key", "")[:MAX_REQUEST_ID_CHARS] or uuid.uuid4().hex
        )
        left_out = 0
        for posted in self._read(body, headers.get("content-type", ""), headers):
            await turn.pass_on()
            if posted is None:
                continue
            count = len(accepted) + len(refused)
            for outcome in self._batches.all_checked(posted, sender, request_id):
                await turn.pass_on()
                if isinstance(outcome, Accepted):
                    accepted.append(outcome)
                else:
                    refused.append(outcome)
            left_out += count == len(accepted) + len(refused)
        return left_out

    def _summary(
        self, tenant: str, accepted: Sequence[Accepted], refused: Sequence[Refusal], left_out: int
    ) -> Response:
        by_source = Counter(each.record.source for each in accepted)
        for source, count in by_source.items():
            self._instruments.inc("callgauge_ingest_events_total", (tenant, source.value), count)
        if refused:
            self._instruments.inc("callgauge_ingest_events_refused_total", (tenant,), len(refused))
        for each in refused:
            self._log.tell(
                tenant, each.reason, f"{each.what}: {each.expected_and_seen}", each.what_to_do
            )
        misread = Counter(each.misread for each in accepted if each.misread is not None)
        answer: dict[str, Any] = {"accepted_events": len(accepted), "refused_events": len(refused)}
        if left_out:
            answer["left_out_events"] = left_out
        if refused:
            answer["refused"] = [each._asdict() for each in refused[:MAX_SHOWN_REFUSALS]]
        if misread:
            answer["not_understood"] = [
                {"events": count, "what": what.what, "what_to_do": what.what_to_do}
                for what, count in misread.most_common(MAX_SHOWN_MISREADINGS)
            ]
        outcome, status = IngestOutcome.ACCEPTED, 202
        if refused:
            outcome, status = (
                (IngestOutcome.PARTLY_REFUSED, 207) if accepted else (IngestOutcome.REFUSED, 422)
            )
        self._instruments.inc("callgauge_ingest_requests_total", (tenant, outcome.value))
        return JSONResponse(answer, status_code=status)

    def _refused(
        self,
        tenant: str,
        outcome: IngestOutcome,
        status: int,
        text: str,
        headers: dict[str, str] | None = None,
    ) -> Response:
        self._instruments.inc("callgauge_ingest_requests_total", (tenant, outcome.value))
        if outcome not in _WITHOUT_FAULT:
            self._log.tell(
                tenant,
                outcome,
                text,
                "docs/sources/http.md has the answers and what to do after each.",
            )
        return JSONResponse(
            {"accepted_events": 0, "error": text}, status_code=status, headers=headers
        )


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape").strip()


def _retry(seconds: float) -> dict[str, str]:
    return {"retry-after": str(max(1, round(seconds)))}
