"""The only reader of wire JSON: bytes become an event, or the reason why they do not."""

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json, to_json

from schemas.closed_sets import InputSource, MisreadReason, RefusalReason
from schemas.events.audit import AuditEvent, CallEnded, CallStarted, TurnDetails, UserTextUpdated
from schemas.events.elevenlabs import AgentEvent, ConversationRecord, TypedAgentEvent
from schemas.events.envelope import AGENT_RECORD_TYPE, HEADERS, Envelope
from schemas.events.pipecat import (
    FUNCTION_CALL_KINDS,
    SPEECH_KINDS,
    FunctionCallRecord,
    MessageRecord,
    PipecatEvent,
)
from schemas.events.simulator import (
    STREAMS,
    TYPE_KEYS,
    TYPES_BY_STREAM,
    AudioEvent,
    CarriedSimulatorEvent,
    TypedSimulatorEvent,
    has_type,
    under_its_own_key,
)
from schemas.judging import JudgeVerdict
from schemas.units import to_seconds
from schemas.wire import MAX_NAME_CHARS, MAX_TIME_MS, Name, WireModel, WireTimeMs, finite

# Names the parts of an accepted record that are not understood, and the remedy for each.
#
# Such a record is no fault of the call, so it is not refused. But it may be a whole bot whose
# events do nothing, so it is counted and reported.

LEFT_OUT: Final = "fields left out for their type"
"""Extra field of an event that was read without some of its fields; it has their names."""

UNREAD_FIELDS: Final = frozenset(
    {
        *("conversation_id", "source", "destination", "was_interrupted", "model"),
        *("displayName", "isBotMessage", "type", "turn_id"),
        *("sequence", "provider"),
        *("agent_output_audio_format", "user_input_audio_format", "tool_type"),
        *("recording_url", "recording_starts_ms"),
    }
)
"""Optional fields of events without which every rule goes on: an event is read without them if they
have another type or form.
"""

KNOWN_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "speech_event": SPEECH_KINDS,
    "function_call_event": FUNCTION_CALL_KINDS,
}
"""Kinds by the type of event that has them."""


REMEDY_FOR_UNKNOWN: Final = (
    "`callgauge schema` names the events of each source, and docs/sources/other.md says which a "
    "framework that callgauge does not know has to send. An unknown event is counted and does "
    "nothing."
)
_WORD: Final = re.compile(r"[a-z0-9]+")
_WORDS_BY_EVENT: Final = {
    shown: frozenset(_WORD.findall(name))
    for name, shown in (
        *(
            (name, f"`{name}`")
            for stream in ("audit", "pipecat")
            for name in TYPES_BY_STREAM[stream]
        ),
        *(
            (kind, f"`{name}` of kind `{kind}`")
            for name, kinds in KNOWN_KINDS.items()
            for kind in kinds
        ),
    )
}
"""The words in the names of the events that any framework may send, by their name as it
is shown.
"""


class UnrecognizedEvent(WireModel):
    """An event of a type that this version does not know: kept and counted. On the audit and
    simulator streams, its time counts.
    """

    type: Name | None = None
    event_type: Name | None = None
    message_type: Name | None = None
    timestamp: WireTimeMs | None = None


class Misread(NamedTuple):
    """One kind of misreading. `what` is equal for all records of this kind."""

    reason: MisreadReason
    what: str
    what_to_do: str


NAMELESS_TOOL: Final = Misread(
    MisreadReason.TOOL_WITHOUT_NAME,
    "a tool of which no event has `function_name`",
    "It is in no score. Send `function_name` with one of its events, for example when it begins to "
    "run.",
)
_TOOL_WITHOUT_ID: Final = Misread(
    MisreadReason.TOOL_WITHOUT_ID,
    "a function_call_event without `tool_call_id`",
    "It does nothing: nothing says which use of a tool it is of. Send the same id with all events "
    "of one use.",
)


WORDLESS_MESSAGE: Final = Misread(
    MisreadReason.WORDS_WITHOUT_CONTENT,
    "a user_message or assistant_message without `content`",
    "It says nothing. Put the words into `data.content`.",
)
_READ_ALL_THE_SAME: Final = frozenset({MisreadReason.FIELD_LEFT_OUT, MisreadReason.FIELD_MISSPELT})
"""Why an event does not do all that it could, and does the rest."""
_NEAR: Final = 0.8
"""How alike a field that nothing reads and one that is read are, if one may be meant for the
other.
"""


def misread_of(event: Any) -> Misread | None:
    """Names the part of an event that is not understood; None if all of it is."""
    kind, extra = type(event), event.__pydantic_extra__
    if kind is UnrecognizedEvent:
        return _unrecognized(event, extra or {})
    if kind is AgentEvent:
        return _unknown_type(event.type)
    if kind is FunctionCallRecord and event.data.tool_call_id is None:
        return _TOOL_WITHOUT_ID
    if kind is MessageRecord and "content" not in event.data.model_fields_set:
        return WORDLESS_MESSAGE
    if extra and LEFT_OUT in extra:
        names = ", ".join(extra[LEFT_OUT])
        return Misread(
            MisreadReason.FIELD_LEFT_OUT,
            f"{names} of another type or form",
            "The events are read without these fields. `callgauge schema` says what they take.",
        )
    if extra and kind in (CallStarted, CallEnded):
        missing = frozenset(kind.model_fields) - event.model_fields_set
        unread = tuple(name[:MAX_NAME_CHARS] for name in islice(extra, MOST_UNREAD))
        return _misspelt(event.type, unread, missing)
    return None


def is_read(misread: Misread | None) -> bool:
    """Whether an event does what it is for, although a part of it may not be understood."""
    return misread is None or misread.reason in _READ_ALL_THE_SAME


MOST_UNREAD: Final = 10
"""Fields of an event that are compared with those that are read."""


@lru_cache(maxsize=256)
def _misspelt(event: str, unread: Sequence[str], missing: frozenset[str]) -> Misread | None:
    """Names a field that is nearly called like one that is missing."""
    for name in unread:
        near = get_close_matches(name, missing, 1, _NEAR)
        if near and near[0] not in name.split("_"):  # `version_id` is a field of its own
            return Misread(
                MisreadReason.FIELD_MISSPELT,
                f"a {event} with `{name}`, which nothing reads",
                f"Is `{near[0]}` meant?",
            )
    return None


def is_of_unknown_kind(error: ValidationError) -> bool:
    """Whether all that is wrong with an event is a kind that this version does not know."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    places = [one["loc"] for one in found if one["type"] == "literal_error"]
    return (
        len(found) == len(places) == 1
        and places[0][1:] == ("data", "kind")
        and places[0][0] in KNOWN_KINDS
    )


def without_unread(
    adapter: TypeAdapter[Any], value: bytes, error: ValidationError, *, is_tagged: bool
) -> Any:
    """The event without its wrong fields, if no rule reads them and it needs none of them; None
    otherwise.

    Args:
        adapter: Decodes the event.
        value: Its bytes.
        error: Its fault.
        is_tagged: Whether the places in `error` begin with the type of event.
    """
    found = error.errors(include_url=False, include_input=False, include_context=False)
    places = {_place(one)[int(is_tagged) :] for one in found}
    if not all(place and place[-1] in UNREAD_FIELDS for place in places):
        return None
    document = from_json(value)  # it is an object: otherwise no place has a name
    try:
        for *path, name in places:
            owner = document
            for part in path:
                owner = owner[int(part) if isinstance(owner, list) else part]
            owner.pop(name, None)
        event = adapter.validate_json(json.dumps(document))
    # it needs the field, or the place has a part that is not in the document
    except (ValidationError, LookupError):
        return None
    extra = event.__pydantic_extra__
    if extra is not None:
        extra[LEFT_OUT] = sorted(place[-1] for place in places)
    return event


@lru_cache(maxsize=256)
def nearest_events(name: str) -> str:
    """Returns the two events of any framework that share most words with a name; empty if none
    shares one.

    Example:
        >>> nearest_events("speech-update").partition(",")[0]
        '`speech_event`'
        >>> nearest_events("input_audio_buffer.speech_started")
        '`speech_event` of kind `bot_speech_started`, `speech_event` of kind `user_speech_started`'
        >>> nearest_events("media")
        ''
    """
    words = frozenset(_WORD.findall(name[:MAX_NAME_CHARS].casefold()))
    near = sorted(
        (-len(words & known), len(known - words), shown)
        for shown, known in _WORDS_BY_EVENT.items()
        if words & known
    )
    return ", ".join(shown for _, _, shown in near[:2])


def _unrecognized(event: UnrecognizedEvent, extra: Mapping[str, Any]) -> Misread:
    if "specversion" in extra:
        return Misread(
            MisreadReason.CLOUDEVENT_IN_BODY,
            "a CloudEvent in structured mode without an event in `data`",
            "Put the event into `data` as a JSON object, or send it as the value, with the "
            "attributes as headers (ce_id and so on).",
        )
    name = event.type or event.event_type or event.message_type or ""
    known = KNOWN_KINDS.get(name)
    data = extra.get("data")
    if known is not None and isinstance(data, Mapping):
        return Misread(
            MisreadReason.UNKNOWN_KIND,
            f"{name} of kind {str(data.get('kind'))[:MAX_NAME_CHARS]!r}",
            f"Known kinds: {', '.join(known)}.",
        )
    return _unknown_type(name)


def _unknown_type(name: str) -> Misread:
    near = nearest_events(name)
    remedy = f"{f'Nearest known: {near}. ' if near else ''}{REMEDY_FOR_UNKNOWN}"
    return Misread(MisreadReason.UNKNOWN_TYPE, f"an event of type {name!r}", remedy)


# The other form of a CloudEvent.


class StructuredModeError(Exception):
    """A CloudEvent in structured mode: one JSON object with the attributes, and the event in
    `data`. It is no fault: decode what it holds.

    Attributes:
        value: The event.
        headers: The attributes as the headers of binary mode.
    """

    def __init__(self, value: bytes, headers: tuple[tuple[str, bytes], ...]) -> None:
        super().__init__("a CloudEvent in structured mode")
        self.value = value
        self.headers = headers


def _raise_if_structured(value: bytes) -> None:
    """Looks for the other form where the event is none that we know.

    Raises:
        StructuredModeError: It is in that form, and holds an event.
    """
    document = from_json(value) if b'"specversion"' in value else None
    data = (
        document.get("data") if isinstance(document, dict) and "specversion" in document else None
    )
    if not isinstance(document, dict) or not isinstance(data, dict):
        return
    data.pop("specversion", None)  # one form around another is looked at once
    given = ((header, document.get(header.removeprefix("ce_"))) for header in HEADERS)
    headers = tuple(
        (header, text.encode("utf-8", "replace")) for header, text in given if isinstance(text, str)
    )
    raise StructuredModeError(to_json(data, inf_nan_mode="null"), headers)


# Decodes bytes to typed events: one adapter per input topic, straight from JSON.

MAX_SEEN_CHARS: Final = 2_000
"""Characters kept of a wrong value: enough to redact it before a part of it is shown."""
MAX_SHOWN_CHARS: Final = 80


class RefusedRecordError(ValueError):
    """A record can never be processed. Quarantine it and go on with the next.

    Attributes:
        reason: The reason, from a closed set, for the metric.
        what: The fault, in a few words.
        where: The field.
        expected: The expected content of the field.
        seen: The start of its actual content, unredacted. Before it is shown or stored, it must be
            redacted and then shortened to `MAX_SHOWN_CHARS`.
    """

    def __init__(
        self, reason: RefusalReason, what: str, where: str, expected: str, seen: str
    ) -> None:
        shown = seen if len(seen) <= MAX_SHOWN_CHARS else seen[: MAX_SHOWN_CHARS - 3] + "..."
        super().__init__(f"{what}: {expected}, saw {shown}")
        self.reason = reason
        self.what = what
        self.where = where
        self.expected = expected
        self.seen = seen


def refused_type(event: Mapping[str, Any], stream: object = None) -> RefusedRecordError:
    """The refusal of an event that says nothing of what it is, or whose stream nothing tells: the
    same however it comes.

    Args:
        event: The event, without its `stream`.
        stream: The stream that was named for it; None if none was.

    Example:
        >>> refused_type({"type": "speech_evt"}).seen, refused_type({"foo": 1}, "audit").seen
        ("`type` 'speech_evt'", "no `type`, with foo and `stream` 'audit'")
    """
    name, named = next(
        ((key, event[key]) for key in (*TYPE_KEYS, "event") if event.get(key)), ("type", None)
    )
    near = nearest_events(named) if isinstance(named, str) else ""
    others = ", ".join(field for field in event if field not in TYPE_KEYS)
    return RefusedRecordError(
        RefusalReason.INVALID_EVENT,
        "its type is not known",
        "type",
        f"expected a known `type` or `message_type`{f', nearest known: {near}' if near else ''}, "
        f"or a type and `stream`: one of {', '.join(STREAMS)}; the record of a conversation has a "
        "`transcript`",
        (f"no `type`, with {others or 'nothing'}" if named is None else f"`{name}` {named!r}")[
            :MAX_SEEN_CHARS
        ]
        + (f" and `stream` {stream!r}" if stream is not None else "")[:MAX_SEEN_CHARS],
    )


ControlEvent = Annotated[
    CallStarted | CallEnded | UserTextUpdated | TurnDetails, Field(discriminator="type")
]
VerdictEvent = Annotated[
    JudgeVerdict | CallStarted | CallEnded | UserTextUpdated | TurnDetails,
    Field(discriminator="type"),
]
"""The events on the topic of verdicts."""

_PIPECAT: TypeAdapter[Any] = TypeAdapter(PipecatEvent)
_SIMULATOR: TypeAdapter[Any] = TypeAdapter(TypedSimulatorEvent)
_AUDIO: TypeAdapter[Any] = TypeAdapter(AudioEvent)
_AUDIT: TypeAdapter[Any] = TypeAdapter(AuditEvent)
_CONTROL: TypeAdapter[Any] = TypeAdapter(ControlEvent)
_VERDICT: TypeAdapter[Any] = TypeAdapter(VerdictEvent)
_AGENT: TypeAdapter[Any] = TypeAdapter(TypedAgentEvent)
_STRANGE_AGENT: TypeAdapter[Any] = TypeAdapter(AgentEvent)
_AGENT_RECORD: TypeAdapter[Any] = TypeAdapter(ConversationRecord)
_UNRECOGNIZED: TypeAdapter[Any] = TypeAdapter(UnrecognizedEvent)

_BY_SOURCE = {
    InputSource.PIPECAT: (_PIPECAT,),
    InputSource.AUDIT: (_AUDIT, _CONTROL),
    InputSource.ELEVENLABS: (_SIMULATOR, _AUDIO),
    InputSource.JUDGE: (_VERDICT,),
}
_UNION_BRANCHES = frozenset({"constrained-int", "constrained-float"})
"""pydantic's names of the ways to write a time, which messages to a person leave out."""

_TOO_FAR = ({"le": to_seconds(MAX_TIME_MS)}, {"ge": -to_seconds(MAX_TIME_MS)})
"""Bounds of a time in seconds; a time in milliseconds is beyond them."""

_TAG_ERRORS = frozenset({"union_tag_invalid", "union_tag_not_found"})


class _Named(BaseModel):
    """The keys of an event that can name its type."""

    type: Any = None
    message_type: Any = None
    event_type: Any = None


_NAMED: TypeAdapter[_Named] = TypeAdapter(_Named)
# The adapters' validators themselves: the adapter's own method costs a tenth of a decode in Python.
_decode_pipecat = _PIPECAT.validator.validate_json
_decode_audio = _AUDIO.validator.validate_json
_decode_audit = _AUDIT.validator.validate_json


def decode(source: InputSource, value: bytes, envelope: Envelope | None = None) -> Any:
    """Decodes the event in `value`, by the rules of its topic.

    Args:
        source: The input topic.
        value: The record's bytes, one JSON object.
        envelope: The envelope in its headers. It only decides whether a real ElevenLabs agent wrote
            the event.

    Returns:
        One of the wire models; `UnrecognizedEvent` for a type this version does not know.

    Raises:
        RefusedRecordError: The bytes are not a JSON object, or a known event lacks a required field
            or has a wrong type.
        StructuredModeError: The event is inside of a CloudEvent in structured mode.
    """
    if b"NaN" in value or b"Infinity" in value:  # in words too, which costs a second look
        value = finite(value)
    if source is InputSource.PIPECAT:
        try:
            return _decode_pipecat(value)
        except ValidationError as error:
            return _decode_slowly(source, value, error)
    if source is InputSource.ELEVENLABS:
        if envelope is not None and envelope.is_agent_event:
            return _decode_agent(value, envelope)
        # a guess which shape it is; a wrong one only costs a second look
        if b'"event_type"' in value:
            try:
                return _decode_audio(value)
            except ValidationError as error:
                return _decode_slowly(source, value, error)
    decode_json = (
        _decode_audit if source is InputSource.AUDIT else _BY_SOURCE[source][0].validate_json
    )
    try:
        event = decode_json(value)
        return (
            _validate(_AGENT, value)
            if type(event) is CarriedSimulatorEvent and _is_by_agent(event)
            else event
        )
    except ValidationError as error:
        return _decode_slowly(source, value, error)


def _decode_slowly(source: InputSource, value: bytes, first: ValidationError) -> Any:
    """Tries the other forms of this topic, then the unrecognised event. Raises the most specific
    error if none fits.
    """
    if first.errors(include_url=False, include_input=False)[0]["type"] != "json_invalid":
        _raise_if_structured(value)
    error = first
    for adapter in _BY_SOURCE[source]:
        if adapter is _AUDIO and b'"event_type"' not in value:
            # no event of sound, and to be told so takes as long as to read a whole record of a
            # conversation
            continue
        try:
            return adapter.validate_json(value)
        except ValidationError as seen:
            if not _is_of_another_type(seen):
                error = seen
                break
    else:
        return (
            _inferred(value)
            if source is InputSource.ELEVENLABS
            else _of_unknown_type(_UNRECOGNIZED, value, source)
        )
    if is_of_unknown_kind(error):
        return _validate(_UNRECOGNIZED, value)
    event = without_unread(adapter, value, error, is_tagged=adapter is not _AUDIO)
    if event is None:
        raise _refusal(error) from error
    return event


def _inferred(value: bytes) -> Any:
    """Decodes an event of the simulator's topic that has none of the simulator's forms: its kind is
    under the other key, or it is of a real agent whose producer sets no `ce_type`, or unknown.
    """
    document = from_json(value)
    moved = under_its_own_key(document) if isinstance(document, dict) else None
    if moved is not None:
        return decode(InputSource.ELEVENLABS, to_json(moved))
    try:
        if not _is_in_form_of_simulator(document):
            return _AGENT.validate_json(value)
    except ValidationError as error:
        if not _is_of_another_type(error):
            raise _refusal(error) from error
    if b'"transcript"' in value and (
        b'"agent_id"' in value or b'"post_call_transcription"' in value
    ):
        return _validate(_AGENT_RECORD, value)
    return _of_unknown_type(_UNRECOGNIZED, value, "user_sim")


def _of_unknown_type(adapter: TypeAdapter[Any], value: bytes, stream: str) -> Any:
    """Decodes an event of a type that this version does not know. One without a type is refused."""
    # To read all of a large event again takes as long as to decode it. Only of a real agent's event
    # more than these keys count.
    event = from_json(value) if stream == "elevenlabs" else vars(_validate(_NAMED, value))
    if not has_type(event, stream):
        raise refused_type(from_json(value))
    return _validate(adapter, value)


def _is_in_form_of_simulator(document: object) -> bool:
    """Whether all that an event says is in `data`. A real agent's event is under a name of its own,
    and both may have one type.
    """
    if not isinstance(document, dict) or not isinstance(document.get("data"), dict):
        return False
    return not any(isinstance(value, dict) for name, value in document.items() if name != "data")


def _is_by_agent(event: CarriedSimulatorEvent) -> bool:
    """Whether an event of a type that both have (`error`) is by a real agent: the simulator's has
    `data`.
    """
    return event.type == "error" and "error_event" in (event.__pydantic_extra__ or ())


def _decode_agent(value: bytes, envelope: Envelope) -> Any:
    """Decodes an event of a real ElevenLabs agent, or the record of its conversation. Neither is in
    EVA's history.
    """
    if envelope.type == AGENT_RECORD_TYPE:
        record = _validate(_AGENT_RECORD, value)
        if "transcript" not in record.model_fields_set:
            raise refused_type(from_json(value))
        return record
    try:
        return _AGENT.validate_json(value)
    except ValidationError as error:
        if _is_of_another_type(error):
            return _of_unknown_type(_STRANGE_AGENT, value, "elevenlabs")
        event = without_unread(_AGENT, value, error, is_tagged=True)
        if event is None:
            raise _refusal(error) from error
        return event


def _is_of_another_type(error: ValidationError) -> bool:
    """Whether the event's type is none of the adapter's types. Otherwise the event has a fault."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return found[0]["type"] in _TAG_ERRORS or (
        error.title == "AudioEvent"
        and any(one["loc"] in (("type",), ("event_type",)) for one in found)
    )


def _validate(adapter: TypeAdapter[Any], value: bytes) -> Any:
    try:
        return adapter.validate_json(value)
    except ValidationError as error:
        raise _refusal(error) from error


def _place(detail: ErrorDetails) -> tuple[str, ...]:
    """Where a fault is, without the ways to write a time."""
    return tuple(str(part) for part in detail["loc"] if part not in _UNION_BRANCHES)


def _is_harmless(detail: ErrorDetails) -> bool:
    """Whether this fault alone refuses no event: a field that no rule reads, a kind that this
    version does not know.
    """
    place = _place(detail)
    return bool(UNREAD_FIELDS & set(place[-1:])) or place[-2:] == ("data", "kind")


def _refusal(error: ValidationError) -> RefusedRecordError:
    found = error.errors(include_url=False)
    detail = next((one for one in found if not _is_harmless(one)), found[0])
    where = ".".join(_place(detail)) or "the record"
    seen = repr(detail["input"])[:MAX_SEEN_CHARS]
    kind = detail["type"]
    if kind == "json_invalid":
        return RefusedRecordError(
            RefusalReason.UNDECODABLE,
            "it is not JSON",
            where,
            "expected one JSON object in UTF-8",
            detail["msg"],
        )
    expected = detail["msg"]
    if where.endswith("timestamp") and isinstance(detail["input"], str):
        unit = "seconds" if ".data." in where else "milliseconds"
        expected = f"expected {unit} since 1970, as a number; a date and time in words is not read"
    elif kind in ("less_than_equal", "greater_than_equal") and detail["ctx"] in _TOO_FAR:
        expected = "expected seconds since 1970; this looks like milliseconds"
    if kind == "string_too_long" and isinstance(detail["input"], str):
        seen = f"{len(detail['input'])} characters"
        return RefusedRecordError(
            RefusalReason.TEXT_TOO_LONG,
            f"{where} is too long",
            where,
            f"expected at most {detail['ctx']['max_length']} characters",
            seen,
        )
    if where.endswith("user") and kind == "literal_error":
        return RefusedRecordError(
            RefusalReason.UNKNOWN_ROLE,
            "the audio role is unknown",
            where,
            f"{where}: {detail['msg']}",
            seen,
        )
    return RefusedRecordError(
        RefusalReason.INVALID_EVENT, f"{where} is wrong", where, expected, seen
    )
