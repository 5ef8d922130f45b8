"""Events as they travel: their rank, their bytes, and how large they may be."""

import json
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

MAX_TEXT_CHARS: Final = 32_768
"""Longest text of an event. A minute of speech has about 1,000 characters, and callgauge refuses longer ones."""
MAX_NAME_CHARS: Final = 256
"""Longest name or id, as in callgauge."""
MAX_EVENT_BYTES: Final = 65_536
"""Largest event. Arguments and results of tools are the only parts without a natural bound."""
MAX_TOOLS: Final = 256
"""Tools of an agent that are reported, as many as callgauge takes."""
MAX_INSTRUCTIONS_CHARS: Final = 100_000
"""Longest system message that is reported, as long as callgauge takes."""
FAILED_STATUSES: Final = frozenset({"error", "failed", "failure"})
"""Values of `status` in a tool's result that mean a failure. callgauge reads results by the same rule."""
UNREADABLE: Final = "unreadable"
"""Key in the place of a value that JSON cannot hold, with the value's type; or `too large` with its size."""
_FOREIGN_FIELDS: Final = ("arguments", "result", "tools")
"""Fields of an event whose content is the bot's own."""

Event = dict[str, Any]


class Rank(IntEnum):
    """Subject of an event. Where there is no room, events of the lowest go first: their loss costs least."""

    METRICS = 0
    WORDS = 1
    SPEECH = 2
    TOOLS = 3
    CALL = 4


class Record(NamedTuple):
    """An event that is ready to be sent. `sequence` counts the records of its call."""

    rank: Rank
    type: str
    value: bytes
    sequence: int


def encoded(event: Event) -> bytes:
    """Returns the event as JSON. It never raises, whatever a tool took or returned.

    A value that is no JSON is replaced: alone if that is enough, otherwise the whole field.

    Example:
        >>> encoded({"type": "x", "data": {"result": {1, 2}}})
        b'{"type":"x","data":{"result":{"unreadable":"set"}}}'
    """
    try:
        value = _json(event)
        if len(value) <= MAX_EVENT_BYTES:
            return value
        reason = f"too large: {len(value)} bytes"
    except (TypeError, ValueError, RecursionError) as error:
        reason = type(error).__name__
    return _json(_without_foreign_fields(event, reason))


def text_of(value: object) -> str:
    """Returns a text of the bot's, not longer than callgauge takes it."""
    return str(value)[:MAX_TEXT_CHARS]


def name_of(value: object) -> str:
    """Returns a name or id of the bot's, not longer than callgauge takes it."""
    return str(value)[:MAX_NAME_CHARS]


def is_failure(result: object) -> bool:
    """Whether a tool's result means a failure: by an error status, an `error` or an `error_type`. Text may be JSON.

    Example:
        >>> is_failure({"status": "error"}), is_failure('{"error": "no such flight"}'), is_failure("found")
        (True, True, False)
    """
    if isinstance(result, str) and result.lstrip().startswith("{"):
        try:
            result = json.loads(result)
        except ValueError:
            return False
    if not isinstance(result, Mapping):
        return False
    status = result.get("status")
    return bool(
        (isinstance(status, str) and status in FAILED_STATUSES) or result.get("error") or result.get("error_type")
    )


def known_fields(**fields: Any) -> Event:
    """Returns the fields that are known."""
    return {name: value for name, value in fields.items() if value is not None}


def _json(event: Event) -> bytes:
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain)
    return text.encode("utf-8", "replace")  # half a surrogate pair is no UTF-8


def _plain(value: object) -> object:
    """A value that JSON does not know: pydantic models as they are, everything else by its type only."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json", exclude_none=True)
    if isinstance(value, Mapping):
        return dict(value)
    return {UNREADABLE: type(value).__name__}


def _without_foreign_fields(event: Event, reason: str) -> Event:
    """The event with a note in the place of everything that its bot put into it."""
    note = {UNREADABLE: reason}
    data = event.get("data")
    kept = {name: value for name, value in event.items() if name not in _FOREIGN_FIELDS}
    if isinstance(data, dict):
        kept["data"] = {name: note if name in _FOREIGN_FIELDS else value for name, value in data.items()}
    return kept
