"""Names the parts of an accepted record that are not understood, and the remedy for each.

Such a record is no fault of the call, so it is not refused. But it may be a whole bot whose events do nothing, so it is counted
and reported.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from schemas.closed_sets import MisreadReason
from schemas.events.elevenlabs_agent import AgentEvent
from schemas.events.pipecat import FUNCTION_CALL_KINDS, SPEECH_KINDS
from schemas.wire import MAX_NAME_CHARS, Name, WireModel, WireTimeMs

LEFT_OUT: Final = "fields left out for their type"
"""Extra field of an event that was read without some of its fields; it has their names."""

UNREAD_FIELDS: Final = frozenset(
    {
        *("conversation_id", "source", "destination", "was_interrupted", "model"),
        *("displayName", "isBotMessage", "type", "turn_id"),
        *("sequence", "provider"),
        *("agent_output_audio_format", "user_input_audio_format", "tool_type"),
    }
)
"""Optional fields of events without which every rule goes on: an event is read without them if they have another type."""

KNOWN_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "speech_event": SPEECH_KINDS,
    "function_call_event": FUNCTION_CALL_KINDS,
}
"""Kinds by the type of event that has them."""


class UnrecognizedEvent(WireModel):
    """An event of a type that this version does not know: kept and counted. On the audit and simulator streams, its time counts."""

    type: Name | None = None
    event_type: Name | None = None
    message_type: Name | None = None
    timestamp: WireTimeMs | None = None


class Misread(NamedTuple):
    """One kind of misreading. `what` is equal for all records of this kind."""

    reason: MisreadReason
    what: str
    what_to_do: str


def misread_of(event: Any) -> Misread | None:
    """Names the part of an event that is not understood; None if all of it is."""
    kind, extra = type(event), event.__pydantic_extra__
    if kind is UnrecognizedEvent:
        return _unrecognized(event, extra or {})
    if kind is AgentEvent:
        return _unknown_type(event.type)
    if extra and LEFT_OUT in extra:
        names = ", ".join(extra[LEFT_OUT])
        return Misread(
            MisreadReason.FIELD_LEFT_OUT,
            f"{names} of another type",
            "The events are read without these fields. `callgauge schema` has their types.",
        )
    return None


def is_of_unknown_kind(error: ValidationError) -> bool:
    """Whether all that is wrong with an event is a kind that this version does not know."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    places = [one["loc"] for one in found if one["type"] == "literal_error"]
    return len(found) == len(places) == 1 and places[0][1:] == ("data", "kind") and places[0][0] in KNOWN_KINDS


def without_unread(adapter: TypeAdapter[Any], value: bytes, error: ValidationError, *, is_tagged: bool) -> Any:
    """The event without its wrong fields, if no rule reads them; None otherwise.

    Args:
        adapter: Decodes the event.
        value: Its bytes.
        error: Its fault.
        is_tagged: Whether the places in `error` begin with the type of event.
    """
    found = error.errors(include_url=False, include_input=False, include_context=False)
    places = {tuple(str(part) for part in one["loc"][int(is_tagged) :]) for one in found}
    if not all(place and place[-1] in UNREAD_FIELDS for place in places):
        return None
    document = from_json(value)  # it is an object: otherwise no place has a name
    for *path, name in places:
        owner = document
        for part in path:
            owner = owner[part]
        owner.pop(name, None)
    event = adapter.validate_json(json.dumps(document))
    extra = event.__pydantic_extra__
    if extra is not None:
        extra[LEFT_OUT] = sorted(place[-1] for place in places)
    return event


def _unrecognized(event: UnrecognizedEvent, extra: Mapping[str, Any]) -> Misread:
    if "specversion" in extra:
        return Misread(
            MisreadReason.CLOUDEVENT_IN_BODY,
            "a CloudEvent in structured mode",
            "Send its data as the value of the record, and its attributes as headers (ce_id, ce_source, ce_type).",
        )
    name = event.type or event.event_type or event.message_type
    known = KNOWN_KINDS.get(name or "")
    data = extra.get("data")
    if known is not None and isinstance(data, Mapping):
        return Misread(
            MisreadReason.UNKNOWN_KIND,
            f"{name} of kind {str(data.get('kind'))[:MAX_NAME_CHARS]!r}",
            f"Known kinds: {', '.join(known)}.",
        )
    return _unknown_type(name)


def _unknown_type(name: str | None) -> Misread:
    what = "an event without type, event_type or message_type" if name is None else f"an event of type {name!r}"
    remedy = "Is it on the right topic? `callgauge schema` names the events of each; others are counted and do nothing."
    return Misread(MisreadReason.UNKNOWN_TYPE, what, remedy)
