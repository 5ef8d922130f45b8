"""The words in which sources of other frameworks tell a call: events as any framework may send them (docs/sources/other.md)."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from schemas.units import MS_PER_SECOND, iso_seconds, to_seconds
from schemas.wire import MAX_TIME_MS

Event = dict[str, Any]
MAX_TOOLS: Final = 100
"""Most uses of tools that are taken from one message."""
MAX_PARSED_CHARS: Final = 100_000
"""Longest text that may be JSON: a longer one stays text, because to read it can take long."""


class Translated(NamedTuple):
    """An event of another framework.

    Attributes:
        framework: Its name; with the id of an event it identifies the event.
        events: What it says in our words; none if no rule reads it.
        event_id: The framework's own id; None for one that is made from the content, so that a message sent again has the same.
    """

    framework: str
    events: tuple[Event, ...]
    event_id: str | None = None

    def attributes(self, event: Event) -> dict[str, str]:
        """The CloudEvents attributes of one of the events."""
        content = to_json(event, inf_nan_mode="null")
        return {"id": self.event_id or hashlib.blake2b(content, digest_size=12).hexdigest(), "source": self.framework}


def speech_event(kind: str, time_ms: float, sound_id: object = None) -> Event:
    """A start or end of speech, or a ruling about a turn, at this moment; words with the same `sound_id` are of this sound."""
    data = {"kind": kind, "timestamp": to_seconds(time_ms), **_named(sound_id)}
    return {"type": "speech_event", "timestamp": int(time_ms), "data": data}


def message_events(role: object, words: object, time_ms: float, sound_id: object = None) -> Iterator[Event]:
    """The words of a turn of `user`, `assistant` or `bot`; nothing if there are none. `sound_id` names their sound."""
    name = {"user": "user_message", "assistant": "assistant_message", "bot": "assistant_message"}.get(str(role))
    if name is not None and isinstance(words, str) and words.strip():
        yield {"type": name, "timestamp": int(time_ms), "data": {"content": words, **_named(sound_id)}}


def _named(sound_id: object) -> Event:
    return {"sound_id": sound_id} if isinstance(sound_id, str) and sound_id else {}


def tool_event(kind: str, time_ms: float, call_id: object, **known: object) -> Event:
    """A moment of a tool: `in_progress`, `completed` or `failed`."""
    fields = {name: value for name, value in known.items() if value is not None}
    data = {"kind": f"function_call_{kind}", "tool_call_id": call_id, "timestamp": to_seconds(time_ms), **fields}
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
    """A number with which one can compute; None for anything that is none, for infinity and for what no time can be."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -MAX_TIME_MS <= value <= MAX_TIME_MS else None


def mapping_in(value: object) -> Mapping[str, Any]:
    """An object; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def listed_in(value: object) -> list[Mapping[str, Any]]:
    """The objects of a list, at most `MAX_TOOLS`; none for anything else."""
    return [each for each in value[:MAX_TOOLS] if isinstance(each, Mapping)] if isinstance(value, list) else []
