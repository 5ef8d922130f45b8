"""Turns posted events into records for the input topics, or into refusals that say which event, and why. Pure but for the clock.

An event passes the evaluator's own checks here, so a sender learns of a refusal from the answer instead of the quarantine.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pydantic_core import PydanticSerializationError, to_json

from consumers.engine.admission import admit
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import RefusalReason
from schemas.events.codec import Misread, misread_of
from schemas.events.envelope import envelope_headers
from schemas.events.simulator import STREAMS, Stream, input_source_of, source_of, stream_of, stream_of_type
from schemas.quarantine import QuarantineRecord
from schemas.topics import TOPIC_BY_SOURCE
from schemas.wire import MAX_NAME_CHARS
from streamer.sources.http.posted.cloudevents import Posted
from streamer.sources.http.receiving.tenants import Sender, Senders
from streamer.sources.publisher import cloudevent_type
from streamer.sources.replay.playback import agent_event_name, event_name, event_time_ms
from streamer.sources.writer import MAX_VALUE_BYTES, OutgoingRecord

CE_SOURCE: Final = "callgauge.ingest"
"""`ce_source` of events without CloudEvents attributes."""
MAX_SHOWN_CHARS: Final = 80


class Refusal(NamedTuple):
    """One event that is not accepted.

    Attributes:
        place: Its line, or its place in the array, from 1.
        reason: The reason, from a closed set.
        what: The fault, in a few words.
        expected_and_seen: The expected content and the actual one, redacted.
        what_to_do: The remedy.
    """

    place: int
    reason: RefusalReason
    what: str
    expected_and_seen: str
    what_to_do: str


class Accepted(NamedTuple):
    """One event that is ready for Kafka, of this stream; `misread` names the part of it that is not understood, if there is one."""

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

    def __init__(self, senders: Senders, limits: Limits, redactor: Redactor, clock_ms: Callable[[], int]) -> None:
        """Prepares the checks.

        Args:
            senders: The owners of conversations.
            limits: Of the evaluator: sizes, and how far an event's time may be from now.
            redactor: Redacts the parts of events that a refusal repeats.
            clock_ms: Milliseconds since 1970.
        """
        self._senders = senders
        self._limits = limits.model_copy(update={"max_record_bytes": min(limits.max_record_bytes, MAX_VALUE_BYTES)})
        self._redactor = redactor
        self._clock_ms = clock_ms

    def checked(self, posted: Iterable[Posted], sender: Sender, request_id: str) -> Iterator[Accepted | Refusal]:
        """Checks events one by one.

        Args:
            posted: The events of one request.
            sender: The sender, whose tenant the events get.
            request_id: Identifies the request: an event without CloudEvents attributes gets an id from it and from its place,
                so a request that is sent again with the same id is a repeat.
        """
        for each in posted:
            yield self._checked(each, sender, request_id)

    def _checked(self, posted: Posted, sender: Sender, request_id: str) -> Accepted | Refusal:
        place, attributes = posted.place, posted.attributes or {}
        if posted.fault is not None:
            fault = self._redactor.beginning(posted.fault, 4 * MAX_SHOWN_CHARS)
            return _refusal(place, RefusalReason.UNDECODABLE, "it cannot be read", fault)
        if not isinstance(posted.event, Mapping):
            return _refusal(place, RefusalReason.UNDECODABLE, "it is no event", "expected a JSON object")
        event = dict(posted.event)
        named = event.pop("conversation_id", None)
        conversation_id = attributes.get("subject") or attributes.get("partitionkey") or named
        if isinstance(conversation_id, int) and not isinstance(conversation_id, bool):
            conversation_id = str(conversation_id)
        if (
            not isinstance(conversation_id, str)
            or not 0 < len(conversation_id.encode("utf-8", "replace")) <= MAX_NAME_CHARS
        ):
            return _refusal(
                place, RefusalReason.EMPTY_KEY, "it names no conversation",
                f"expected `conversation_id`, or `subject` of a CloudEvent, of 1 to {MAX_NAME_CHARS} bytes",
                "Put the id of the call into every event.",
            )  # fmt: skip
        stream = _stream(event, attributes)
        if stream is None:
            return _refusal(
                place, RefusalReason.INVALID_EVENT, "its type is not known",
                f"expected a known `type` or `message_type`, or `stream`: one of {', '.join(STREAMS)}",
                "Compare with `callgauge schema`, or name the stream.",
            )  # fmt: skip
        if (foreign := self._foreign_tenant(event, sender)) is not None:
            return foreign._replace(place=place)
        if not self._senders.owns(sender, conversation_id):
            return _refusal(
                place, RefusalReason.INVALID_EVENT, "the conversation is another tenant's",
                "expected a conversation that this tenant began", "Give each call an id that nobody can guess, for example a UUID.",
            )  # fmt: skip
        return self._admitted(place, conversation_id, stream, event, attributes, f"{request_id}/{place}", sender)

    def _foreign_tenant(self, event: dict[str, Any], sender: Sender) -> Refusal | None:
        """Puts the sender's tenant into an event that names the labels of a call; a refusal if it names another one."""
        if event.get("type") != "call_started" or not sender.tenant:
            return None
        if event.get("tenant") not in (None, sender.tenant):
            return _refusal(
                0, RefusalReason.INVALID_EVENT, "its tenant is another one",
                f"expected {sender.tenant!r}, the tenant of the token, or none", "Leave `tenant` out, or use that tenant's token.",
            )  # fmt: skip
        event["tenant"] = sender.tenant
        return None

    def _admitted(
        self,
        place: int,
        conversation_id: str,
        stream: Stream,
        event: dict[str, Any],
        attributes: Mapping[str, str],
        own_id: str,
        sender: Sender,
    ) -> Accepted | Refusal:
        now_ms = self._clock_ms()
        is_agent_event = stream == "elevenlabs"
        name = agent_event_name(event) if is_agent_event else event_name(source_of(stream), event)
        if is_agent_event and event.get("timestamp") is None and "transcript" not in event and "data" not in event:
            event["timestamp"] = now_ms  # ElevenLabs' events have no time: it is that of their arrival
        sequence = attributes.get("sequence", "")
        headers = envelope_headers(
            event_id=attributes.get("id") or own_id,
            source=attributes.get("source") or (f"{CE_SOURCE}/{sender.tenant}" if sender.tenant else CE_SOURCE),
            event_type=cloudevent_type(source_of(stream), name, is_agent_event=is_agent_event),
            subject=conversation_id,
            time_ms=event_time_ms(event),
            sequence=int(sequence) if sequence.isascii() and sequence.isdigit() and len(sequence) < 19 else None,
        )  # fmt: skip
        if any(len(value) > 4 * MAX_NAME_CHARS for _, value in headers):
            return _refusal(
                place, RefusalReason.TEXT_TOO_LONG, "an attribute is too long",
                f"expected CloudEvents attributes and types of at most {4 * MAX_NAME_CHARS} bytes",
            )  # fmt: skip
        try:
            value = to_json(event, inf_nan_mode="null")  # 1e999 is infinity by now
        except (PydanticSerializationError, ValueError) as error:
            return _refusal(place, RefusalReason.UNDECODABLE, "it cannot be written as JSON", type(error).__name__)
        source = input_source_of(stream)
        key = conversation_id.encode("utf-8", "replace")
        record = _PostedRecord(TOPIC_BY_SOURCE[source], place, now_ms, key, value, headers)
        arrival = admit(source, record, self._limits, self._redactor)
        if isinstance(arrival, QuarantineRecord):
            return _refusal(place, arrival.reason, arrival.what, arrival.expected_and_seen, arrival.what_to_do)
        return Accepted(OutgoingRecord(source, key, value, headers), stream, misread_of(arrival.event))


def _stream(event: dict[str, Any], attributes: Mapping[str, str]) -> Stream | None:
    """The stream that the event names, or its CloudEvents type, or its own type."""
    named = event.pop("stream", None)
    if named is not None:
        return next((stream for stream in STREAMS if stream == named), None)
    return stream_of_type(attributes.get("type", "")) or stream_of(event)


def _refusal(
    place: int, reason: RefusalReason, what: str, expected_and_seen: str,
    what_to_do: str = "Compare with `callgauge schema`, fix the sender, and send it again.",
) -> Refusal:  # fmt: skip
    return Refusal(place, reason, what, expected_and_seen, what_to_do.replace(", then put the record back", ""))
