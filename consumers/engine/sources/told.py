"""The words in which sources of other frameworks tell a call: events as any framework may send them
(docs/sources/other.md).
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from schemas.events.audit import MAX_TOOLS as MAX_AGENT_TOOLS
from schemas.units import MS_PER_SECOND, iso_seconds, to_seconds
from schemas.wire import MAX_INSTRUCTIONS_CHARS, MAX_NAME_CHARS, MAX_TIME_MS

Event = dict[str, Any]
REPORT: Final = "report"
"""The field of an event of a span that names what is reported, where several spans of a trace may
report the same. It is not sent.
"""
MAX_TOOLS: Final = 100
"""Most uses of tools that are taken from one message."""
MAX_RECORD_ENTRIES: Final = 10_000
"""Most entries that are taken from the record of a call: one a second for nearly three hours."""
MAX_PARSED_CHARS: Final = 100_000
"""Longest text that may be JSON: a longer one stays text, because to read it can take long."""


class Framework(NamedTuple):
    """A framework whose own messages are taken as they are.

    Attributes:
        name: Its name; with the id of a message it identifies an event.
        owns: Whether a message, any JSON object, is one of its own.
        told: What a message says in our words; the number is the time of one that has none, in
            epoch ms.
        id_of: The framework's own id of a message; None where it has none.
    """

    name: str
    owns: Callable[[Mapping[str, Any]], bool]
    told: Callable[[Mapping[str, Any], int], Iterator[Event]]
    id_of: Callable[[Mapping[str, Any]], object] = lambda _: None


class Translated(NamedTuple):
    """An event of another framework.

    Attributes:
        framework: Its name; with the id of an event it identifies the event.
        events: What it says in our words; none if no rule reads it.
        event_id: The framework's own id; None for one that is made from the content, so that a
            message sent again has the same.
    """

    framework: str
    events: tuple[Event, ...]
    event_id: str | None = None

    def attributes(self, event: Event) -> dict[str, str]:
        """The CloudEvents attributes of one of the events. Several events of one message each have
        an id of their own.
        """
        if self.event_id is not None and len(self.events) == 1:
            return {"id": self.event_id, "source": self.framework}
        content = hashlib.blake2b(to_json(event, inf_nan_mode="null"), digest_size=12).hexdigest()
        return {
            "id": content if self.event_id is None else f"{self.event_id}/{content}",
            "source": self.framework,
        }


_SIDES: Final[Mapping[str, str]] = {
    "user": "user",
    "assistant": "bot",
    "bot": "bot",
    "agent": "bot",
}
"""Who speaks, by the words that frameworks have for it."""


def speech_event(kind: str, time_ms: float, **known: object) -> Event:
    """A start or end of speech, or a ruling about a turn, at this moment; words with the same
    `sound_id` are of this sound.
    """
    data = {"kind": kind, "timestamp": to_seconds(time_ms), **known}
    return {"type": "speech_event", "timestamp": int(time_ms), "data": data}


def spoke_event(role: object, status: object, time_ms: float, **known: object) -> Iterator[Event]:
    """One side has `started` or `stopped` to speak; nothing for other words."""
    side = _SIDES.get(str(role))
    if side is not None and status in ("started", "stopped"):
        yield speech_event(f"{side}_speech_{status}", time_ms, **known)


def message_events(
    role: object, words: object, time_ms: float, sound_id: object = None
) -> Iterator[Event]:
    """The words of a turn of one side; nothing if there are none. `sound_id` names their sound."""
    side = _SIDES.get(str(role))
    if side is not None and isinstance(words, str) and words.strip():
        name = "user_message" if side == "user" else "assistant_message"
        yield {
            "type": name,
            "timestamp": int(time_ms),
            "data": {"content": words, **named_sound(sound_id)},
        }


def named_sound(sound_id: object) -> Event:
    """The name of a sound as a field of its speech event and of its words; nothing if
    it has none.
    """
    return {"sound_id": sound_id} if isinstance(sound_id, str) and sound_id else {}


def recorded_speech(
    role: object, words: object, start_ms: float, end_ms: float | None
) -> Iterator[Event]:
    """What the record of a call says of one stretch of speech: its words, and its sound if its end
    is known and after its start.

    The words have the time of the start, and name the sound: a record knows to which one they
    belong, and what follows may overlap its end.
    """
    is_heard = end_ms is not None and end_ms > start_ms
    sound_id = f"{role} {start_ms}" if is_heard else None
    if is_heard:
        yield from spoke_event(role, "started", start_ms, sound_id=sound_id)
    yield from message_events(role, words, start_ms, sound_id)
    if is_heard:
        yield from spoke_event(role, "stopped", end_ms or 0.0)


def of_record(events: Iterable[Event]) -> list[Event]:
    """The events that the record of a call tells, in the order of time. Speech and words say that
    they are from a record: where live events have told them, they are repeats.
    """
    return [
        {**event, "is_from_record": True} if event["type"] in _TOLD_LIVE_TOO else event
        for event in sorted(events, key=itemgetter("timestamp"))
    ]


_TOLD_LIVE_TOO: Final = frozenset({"speech_event", "user_message", "assistant_message"})


def call_started(time_ms: float, agent: object, *, is_from_record: bool = False) -> Event:
    """The start of a call. The events of one that a record tells come long after what they tell."""
    named = {"agent": agent} if isinstance(agent, str) and agent else {}
    later = {"is_told_later": True, "is_from_record": True} if is_from_record else {}
    return {"type": "call_started", "timestamp": int(time_ms), **named, **later}


def agent_told(instructions: object, tools: object) -> Event:
    """What the agent was told, as fields of `call_started`: its instructions and its tools. What is
    no text and no list is left out, and so is what `call_started` has no room for. Tools are told
    all or none: a use of one that is missing in the list would count as wrong.
    """
    found: Event = {}
    if (
        isinstance(instructions, str)
        and instructions.strip()
        and len(instructions) <= MAX_INSTRUCTIONS_CHARS
    ):
        found["instructions"] = instructions
    if isinstance(tools, list):
        several = [_declared(mapping_in(each)) for each in tools[: MAX_AGENT_TOOLS + 1]]
        listed = [_agent_tool(each) for declared in several for each in declared]
        if len(listed) <= MAX_AGENT_TOOLS and all(listed):
            found["tools"] = listed
    return found


def _declared(tool: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The tools of one entry: Google's models have several functions in one."""
    return listed_in(tool.get("function_declarations"), MAX_AGENT_TOOLS + 1) or [tool]


def _agent_tool(tool: Mapping[str, Any]) -> Event:
    """A tool as `call_started` has it; nothing for one without a name, such as a server
    of tools.
    """
    function = mapping_in(tool.get("function")) or tool
    name = function.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        return {}
    schema = {key: function[key] for key in ("properties", "required") if key in function}
    parameters = function.get("parameters") or function.get("input_schema") or schema
    return (
        {"name": name, "parameters": parameters}
        if isinstance(parameters, Mapping) and parameters
        else {"name": name}
    )


def call_ended(time_ms: float, reason: object, *, awaits_record: bool | None = None) -> Event:
    """The end of a call, and whether its record is still to come; None where no record
    ever comes.
    """
    named = {"reason": reason} if isinstance(reason, str) and reason else {}
    record = {} if awaits_record is None else {"awaits_record": awaits_record}
    return {"type": "call_ended", "timestamp": int(time_ms), **named, **record}


def error_event(time_ms: float, message: object, **known: object) -> Event:
    """An error of the agent. `processor` names the service, for example `STTService#0`. Where a
    framework may tell one error in two ways, `cause` is its name of the error, and `told_by` names
    the way.
    """
    data = {"error": str(message), **{name: value for name, value in known.items() if value}}
    return {"type": "error", "timestamp": int(time_ms), "data": data}


def service_latency(service: str, begin_ms: float, took_ms: float) -> Event:
    """Time to first byte of `STT`, `LLM` or `TTS`, from this moment on."""
    end_ms = begin_ms + took_ms
    data = {"kind": "ttfb", "processor": f"{service}Service#0", "seconds": to_seconds(took_ms)}
    return {
        "type": "service_latency",
        "timestamp": int(end_ms),
        "data": {**data, "timestamp": to_seconds(end_ms)},
    }


def tool_event(kind: str, time_ms: float, call_id: object, **known: object) -> Event:
    """A moment of a tool: `in_progress`, `completed` or `failed`."""
    fields = {name: value for name, value in known.items() if value is not None}
    data = {
        "kind": f"function_call_{kind}",
        "tool_call_id": call_id,
        "timestamp": to_seconds(time_ms),
        **fields,
    }
    return {"type": "function_call_event", "timestamp": int(time_ms), "data": data}


def parsed(value: object) -> object:
    """Arguments or an answer; text that is JSON is read, other text stays text."""
    try:
        return (
            from_json(value, allow_inf_nan=False)
            if isinstance(value, str) and len(value) <= MAX_PARSED_CHARS
            else value
        )
    except ValueError:
        return value


def time_ms_in(value: object, otherwise_ms: float) -> float:
    """A time in epoch ms, as a number or as ISO 8601 text."""
    if isinstance(value, str):
        seconds = iso_seconds(value)
        value = None if seconds is None else seconds * MS_PER_SECOND
    time_ms = number_in(value)
    return time_ms if time_ms is not None and time_ms > 0 else otherwise_ms


def number_in(value: object) -> float | None:
    """A number with which one can compute; None for anything that is none, for infinity and for
    what no time can be.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -MAX_TIME_MS <= value <= MAX_TIME_MS else None


def mapping_in(value: object) -> Mapping[str, Any]:
    """An object; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def listed_in(value: object, most: int = MAX_TOOLS) -> list[Mapping[str, Any]]:
    """The objects of a list, at most so many; none for anything else."""
    return (
        [each for each in value[:most] if isinstance(each, Mapping)]
        if isinstance(value, list)
        else []
    )
