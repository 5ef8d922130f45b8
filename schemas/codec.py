"""Wire bytes to typed events: one adapter per input topic, straight from JSON."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from schemas.audit_events import AuditEvent
from schemas.call_events import CallEnded, CallStarted, UserTextUpdated
from schemas.envelope import Envelope
from schemas.judging import JudgeVerdict
from schemas.pipecat_events import PipecatEvent
from schemas.simulator_events import AudioEvent, TypedSimulatorEvent
from schemas.wire import Name, WireModel, WireTimeMs


class InputSource(StrEnum):
    """The stream a record came from; the name is the label value in metrics."""

    AUDIT = "audit"
    PIPECAT = "pipecat"
    ELEVENLABS = "elevenlabs"
    JUDGE = "judge"

    __hash__ = str.__hash__  # Enum's own is Python code, and this is a key of the hot path's tables


class RefusalReason(StrEnum):
    """Why a record can never be processed."""

    UNDECODABLE = "undecodable"
    INVALID_EVENT = "invalid_event"
    UNKNOWN_ROLE = "unknown_role"
    TEXT_TOO_LONG = "text_too_long"
    EMPTY_KEY = "empty_key"
    RECORD_TOO_LARGE = "record_too_large"
    TIME_OUT_OF_BOUNDS = "time_out_of_bounds"


class RefusedRecordError(ValueError):
    """A record cannot be processed, now or ever: quarantine it and go on with the next.

    Attributes:
        reason: The closed reason, for the metric.
        what: What was wrong, in a few words.
        expected_and_seen: The field, what it should hold and what it held (shortened).
    """

    def __init__(self, reason: RefusalReason, what: str, expected_and_seen: str) -> None:
        super().__init__(f"{what}: {expected_and_seen}")
        self.reason = reason
        self.what = what
        self.expected_and_seen = expected_and_seen


class UnrecognizedEvent(WireModel):
    """An event of a type this version does not know: carried and counted. On the audit and simulator streams it is
    still something that happened, so its time counts.
    """

    type: Name | None = None
    event_type: Name | None = None
    message_type: Name | None = None
    timestamp: WireTimeMs | None = None


class AgentEvent(WireModel):
    """An event of a real ElevenLabs agent, told apart from the simulated caller's by its envelope; never in EVA's history."""

    type: Name
    timestamp: WireTimeMs | None = None


ControlEvent = Annotated[CallStarted | CallEnded | UserTextUpdated, Field(discriminator="type")]
VerdictEvent = Annotated[JudgeVerdict | CallStarted | CallEnded | UserTextUpdated, Field(discriminator="type")]
"""What stands on the topic of verdicts."""

_PIPECAT: TypeAdapter[Any] = TypeAdapter(PipecatEvent)
_SIMULATOR: TypeAdapter[Any] = TypeAdapter(TypedSimulatorEvent)
_AUDIO: TypeAdapter[Any] = TypeAdapter(AudioEvent)
_AUDIT: TypeAdapter[Any] = TypeAdapter(AuditEvent)
_CONTROL: TypeAdapter[Any] = TypeAdapter(ControlEvent)
_VERDICT: TypeAdapter[Any] = TypeAdapter(VerdictEvent)
_AGENT: TypeAdapter[Any] = TypeAdapter(AgentEvent)
_UNRECOGNIZED: TypeAdapter[Any] = TypeAdapter(UnrecognizedEvent)

_BY_SOURCE = {
    InputSource.PIPECAT: (_PIPECAT,),
    InputSource.AUDIT: (_AUDIT, _CONTROL),
    InputSource.ELEVENLABS: (_SIMULATOR, _AUDIO),
    InputSource.JUDGE: (_VERDICT,),
}
_UNION_BRANCHES = frozenset({"constrained-int", "constrained-float"})
"""Names pydantic gives to the ways of writing a time; a person knows the field only."""

_TAG_ERRORS = frozenset({"union_tag_invalid", "union_tag_not_found"})

# The adapters' validators themselves: the adapter's own method costs a tenth of a decode in Python.
_decode_pipecat = _PIPECAT.validator.validate_json
_decode_audio = _AUDIO.validator.validate_json
_decode_audit = _AUDIT.validator.validate_json


def decode(source: InputSource, value: bytes, envelope: Envelope | None = None) -> Any:
    """The event in `value`, by the rules of its topic.

    Args:
        source: Which input topic it came from.
        value: The record's bytes, one JSON object.
        envelope: What its headers say; it only decides whether a real ElevenLabs agent wrote it.

    Returns:
        One of the wire models; `UnrecognizedEvent` for a type this version does not know.

    Raises:
        RefusedRecordError: the bytes are no JSON object, or a known event lacks a required field or has a wrong type.
    """
    if source is InputSource.PIPECAT:
        try:
            return _decode_pipecat(value)
        except ValidationError as error:
            return _decode_slowly(source, value, error)
    if source is InputSource.ELEVENLABS:
        if envelope is not None and envelope.is_agent_event:
            return _validate(_AGENT, value)
        if b'"event_type"' in value:  # a guess which shape it is; a wrong one only costs a second look
            try:
                return _decode_audio(value)
            except ValidationError as error:
                return _decode_slowly(source, value, error)
    decode_json = _decode_audit if source is InputSource.AUDIT else _BY_SOURCE[source][0].validate_json
    try:
        return decode_json(value)
    except ValidationError as error:
        return _decode_slowly(source, value, error)


def _decode_slowly(source: InputSource, value: bytes, first: ValidationError) -> Any:
    """The other shapes of this topic, then the unrecognized one; the most telling error when none fits."""
    error = first
    for adapter in _BY_SOURCE[source]:
        try:
            return adapter.validate_json(value)
        except ValidationError as seen:
            if not _is_of_another_type(seen):
                error = seen
                break
    else:
        return _validate(_UNRECOGNIZED, value)
    raise _refusal(error) from error


def _is_of_another_type(error: ValidationError) -> bool:
    """Whether the event is of none of the adapter's types, as against being one of them with faults."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return found[0]["type"] in _TAG_ERRORS or (
        error.title == "AudioEvent" and any(one["loc"] in (("type",), ("event_type",)) for one in found)
    )


def _validate(adapter: TypeAdapter[Any], value: bytes) -> Any:
    try:
        return adapter.validate_json(value)
    except ValidationError as error:
        raise _refusal(error) from error


def _refusal(error: ValidationError) -> RefusedRecordError:
    detail = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in detail["loc"] if part not in _UNION_BRANCHES) or "the record"
    seen = repr(detail["input"])
    seen = seen if len(seen) <= 80 else seen[:77] + "..."
    kind = detail["type"]
    if kind == "json_invalid":
        return RefusedRecordError(
            RefusalReason.UNDECODABLE, "it is not JSON", f"expected one JSON object in UTF-8, saw {detail['msg']}"
        )
    if kind == "string_too_long" and isinstance(detail["input"], str):
        seen = f"{len(detail['input'])} characters"
        return RefusedRecordError(
            RefusalReason.TEXT_TOO_LONG,
            f"{where} is too long",
            f"expected at most {detail['ctx']['max_length']} characters, saw {seen}",
        )
    if where.endswith("user") and kind == "literal_error":
        return RefusedRecordError(
            RefusalReason.UNKNOWN_ROLE, "the audio role is unknown", f"{where}: {detail['msg']}, saw {seen}"
        )
    return RefusedRecordError(RefusalReason.INVALID_EVENT, f"{where} is wrong", f"{detail['msg']}, saw {seen}")
