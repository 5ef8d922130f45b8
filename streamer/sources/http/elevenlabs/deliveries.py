"""The records for Kafka of one delivery of ElevenLabs' webhook. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from pydantic import ValidationError
from pydantic_core import from_json

from schemas.closed_sets import InputSource
from schemas.events.envelope import envelope_headers
from schemas.wire import MAX_NAME_CHARS
from streamer.recordings.elevenlabs import agent_call, record_in
from streamer.sources.http.receiving.tenants import Sender
from streamer.sources.publisher import cloudevent_type
from streamer.sources.replay.playback import AGENT_RECORD, agent_event_name, compact_json
from streamer.sources.writer import MAX_VALUE_BYTES, OutgoingRecord

CE_SOURCE: Final = "callgauge.elevenlabs.webhook"
"""`ce_source` of these records. With ids that come from the call alone, a second delivery of it is a repeat in any process."""
MAX_EVENTS: Final = 20_000
"""Most events that one record gives; the evaluator closes a call with more."""


class Delivery(NamedTuple):
    """A delivery as records.

    Attributes:
        records: In order.
        fault: The part of the record that cannot be read; None if all can. The record itself is written nevertheless: the
            evaluator puts it into quarantine, from where it can be sent again after a fix.
    """

    records: tuple[OutgoingRecord, ...]
    fault: str | None


def records_of_delivery(content: bytes, sender: Sender) -> Delivery:
    """Turns the body of a webhook into records: the call's start, the events of its transcript, its record.

    The events are marked as made from the record: the evaluator leaves them out of a call that has live events.

    Args:
        content: The body, with a signature that holds.
        sender: Whose webhook it is.
    """
    try:
        document = from_json(content, allow_inf_nan=False)
    except ValueError:
        return Delivery((_unread("", content),), "the body is not JSON")
    record = record_in(document)
    if record is None:
        return Delivery((_unread(_id_in(document), content),), "data")
    record = _dated(record, document)
    conversation_id = record.get("conversation_id")
    try:
        call = agent_call(record)
    except ValidationError as error:
        where = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))
        return Delivery((_unread(_id_in(document), content),), where)
    if not isinstance(conversation_id, str) or not 0 < len(conversation_id.encode()) <= MAX_NAME_CHARS:
        return Delivery((_unread("", content),), "data.conversation_id")
    begin_ms = call.events[0]["timestamp"]
    started = {"type": "call_started", "timestamp": begin_ms, "agent": call.agent, "tenant": sender.tenant or None}
    records = [_control(conversation_id, started)]
    records += _agent_records(conversation_id, tuple({**event, "is_from_record": True} for event in call.events[:-1]))
    last = compact_json(call.events[-1])
    if len(last) <= MAX_VALUE_BYTES:
        records += list(_agent_records(conversation_id, call.events[-1:], first=len(call.events)))
        return Delivery(tuple(records), None)
    end_ms = call.events[-1]["timestamp"]
    ended = {"type": "call_ended", "timestamp": end_ms, "reason": call.ended_reason}
    return Delivery((*records, _control(conversation_id, ended)), f"the record has {len(last)} bytes")


def _dated(record: dict[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """The record with a start: if it has none, the call ended when the webhook was sent."""
    given = record.get("metadata")
    metadata = given if isinstance(given, dict) else {}
    sent_s = document.get("event_timestamp")
    if metadata.get("start_time_unix_secs") is not None or not isinstance(sent_s, int | float):
        return record
    duration_s = metadata.get("call_duration_secs")
    begin_s = sent_s - (duration_s if isinstance(duration_s, int | float) else 0)
    return {**record, "metadata": {**metadata, "start_time_unix_secs": begin_s}}


def _agent_records(
    conversation_id: str, events: tuple[dict[str, Any], ...], first: int = 1
) -> Iterator[OutgoingRecord]:
    for number, event in enumerate(events[:MAX_EVENTS], first):
        name = agent_event_name(event)
        yield OutgoingRecord(
            InputSource.ELEVENLABS,
            conversation_id.encode(),
            compact_json(event),
            envelope_headers(
                event_id=f"{conversation_id}/{AGENT_RECORD if name == AGENT_RECORD else number}",
                source=CE_SOURCE,
                event_type=cloudevent_type("elevenlabs", name, is_agent_event=True),
                subject=conversation_id,
                time_ms=int(event["timestamp"]),
            ),
        )


def _control(conversation_id: str, event: Mapping[str, Any]) -> OutgoingRecord:
    name = str(event["type"])
    return OutgoingRecord(
        InputSource.AUDIT,
        conversation_id.encode(),
        compact_json({key: value for key, value in event.items() if value is not None}),
        envelope_headers(
            event_id=f"{conversation_id}/{name}",
            source=CE_SOURCE,
            event_type=cloudevent_type("audit", name, is_agent_event=False),
            subject=conversation_id,
            time_ms=int(event["timestamp"]),
        ),
    )


def _unread(conversation_id: str, content: bytes) -> OutgoingRecord:
    """The body as it came, for the quarantine; the beginning of one that is too large for a record."""
    return OutgoingRecord(
        InputSource.ELEVENLABS,
        conversation_id.encode("utf-8", "replace"),
        content[:MAX_VALUE_BYTES],
        envelope_headers(
            event_id=f"{conversation_id}/{AGENT_RECORD}",
            source=CE_SOURCE,
            event_type=cloudevent_type("elevenlabs", AGENT_RECORD, is_agent_event=True),
            subject=conversation_id,
        ),
    )


def _id_in(document: object) -> str:
    data = document.get("data") if isinstance(document, Mapping) else None
    found = data.get("conversation_id") if isinstance(data, Mapping) else None
    return found if isinstance(found, str) and len(found.encode("utf-8", "replace")) <= MAX_NAME_CHARS else ""
