"""Recorded calls in a file of events: one JSON object a line, as `POST /events` takes them and `callgauge simulate --print` writes them.

The events of several calls may be mixed. An event without `conversation_id` belongs to a call named after the file.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from schemas.events.simulator import CONTROL_EVENTS, STREAMS, Stream, stream_of
from streamer.recordings.files.json_files import (
    MAX_DOCUMENT_BYTES,
    RecordingError,
    kind_of,
    object_in,
    shape_error,
    shown,
)

WIRE_STREAMS: Final = ("audit", "pipecat", "user_sim", "agent")
"""Lists of events in a line that is a whole call."""
_TYPE_KEYS = ("type", "message_type", "event_type")


@dataclass(frozen=True, slots=True)
class FiledEvents:
    """The events of one call of a file, by their stream and in the order of the file.

    Attributes:
        path: The file.
        conversation_id: The name of the call.
        control: Events that steer the evaluator: `call_started`, `call_ended` and `user_text_updated`.
        streams: All other events.
    """

    path: Path
    conversation_id: str
    control: list[dict[str, Any]] = field(default_factory=list)
    streams: dict[Stream, list[dict[str, Any]]] = field(default_factory=dict)


def is_event(first_line: Mapping[str, Any]) -> bool:
    """Whether a file that begins with this object has an event a line, and not a whole call.

    Example:
        >>> is_event({"type": "call_started", "timestamp": 1}), is_event({"id": "a", "audit": []})
        (True, False)
    """
    has_a_call = any(isinstance(first_line.get(name), list) for name in WIRE_STREAMS)
    return not has_a_call and any(key in first_line for key in _TYPE_KEYS)


def calls_of_events(path: Path, lines: Iterable[tuple[int, bytes]]) -> Iterator[FiledEvents]:
    """Reads a whole file of events, and returns its calls in the order in which they begin.

    Args:
        path: The file.
        lines: Its lines with their numbers.

    Raises:
        RecordingError: A line is no event of a known stream, or the file is too large to be read at once.
    """
    calls: dict[str, FiledEvents] = {}
    size_bytes = 0
    for number, text in lines:
        where = f"{path}:{number}"
        size_bytes += len(text)
        if size_bytes > MAX_DOCUMENT_BYTES:
            raise shape_error(where, f"at most {MAX_DOCUMENT_BYTES:,} bytes of events in one file", "more")
        if not text.strip():
            continue
        event = object_in(text, where)
        stream = _stream_of(event, where)
        conversation_id = _conversation_id(event.pop("conversation_id", None), path, where)
        call = calls.setdefault(conversation_id, FiledEvents(path, conversation_id))
        if event.get("type") in CONTROL_EVENTS:
            call.control.append(event)
        else:
            call.streams.setdefault(stream, []).append(event)
    yield from calls.values()


def _stream_of(event: dict[str, Any], where: str) -> Stream:
    named = event.pop("stream", None)
    stream = stream_of(event) if named is None else next((each for each in STREAMS if each == named), None)
    if stream is not None:
        return stream
    raise RecordingError(
        what="this is no event of a known type",
        where=where,
        expected=f"a known `type` or `message_type`, or `stream` as one of {', '.join(STREAMS)}",
        seen=shown(named or next((event[key] for key in _TYPE_KEYS if key in event), event)),
        consequence="Nothing of this file is read.",
        remedy="`callgauge events check` names every line that is not understood.",
    )


def _conversation_id(named: object, path: Path, where: str) -> str:
    if named is None:
        return path.name.removesuffix(".gz").removesuffix(".jsonl")
    if isinstance(named, int) and not isinstance(named, bool):
        return str(named)
    if not isinstance(named, str) or not named.isprintable() or not named:
        raise shape_error(where, '"conversation_id" as a text of printable characters', kind_of(named))
    return named
