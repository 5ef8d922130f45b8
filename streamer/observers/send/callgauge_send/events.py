"""Events as they travel: their rank, their bytes, and how large they may be."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

MAX_TEXT_CHARS: Final = 32_768
"""Longest text of an event. A minute of speech has about 1,000 characters, and callgauge refuses
longer ones.
"""
MAX_NAME_CHARS: Final = 256
"""Longest name or id, as in callgauge."""
MAX_EVENT_BYTES: Final = 65_536
"""Largest event. Arguments and results of tools are the only parts without a natural bound."""
MAX_OWN_CHARS: Final = 131_072
"""Most characters of an event without these parts: a system message of the longest kind, with names
around it.
"""
MAX_OWN_BYTES: Final = 4 * MAX_OWN_CHARS
"""Its largest size: letters of four bytes. Topics take 1 MB by default."""
MAX_VALUES: Final = 5_000
"""Most values of an event: to read so many takes some 5 ms, in which the bot does nothing else."""
VALUES_OF_A_MARK: Final = 10
"""A mark counts as so many values: to look at an object of others takes longer than to read a
number.
"""
MAX_DEPTH: Final = 64
"""Deepest nesting of an event. Readers of JSON end at some 200, and the record around an event has
a few levels of its own.
"""
MAX_INTEGER_BITS: Final = 1_024
"""Largest integer, as far as a double reaches. Readers of JSON refuse thousands of digits."""
MAX_TOOLS: Final = 256
"""Tools of an agent that are reported, as many as callgauge takes."""
MAX_INSTRUCTIONS_CHARS: Final = 100_000
"""Longest system message that is reported, as long as callgauge takes."""
FAILED_STATUSES: Final = frozenset({"error", "failed", "failure"})
"""Values of `status` in a tool's result that mean a failure. callgauge reads results by the same
rule.
"""
UNREADABLE: Final = "unreadable"
"""Key in the place of a value that JSON cannot hold, with the value's type or what else is odd
about it.
"""
TOO_LARGE: Final = f"too large: more than {MAX_EVENT_BYTES} bytes or {MAX_VALUES} values"
_FOREIGN_FIELDS: Final = ("arguments", "result", "tools")
"""Fields of an event whose content is the bot's own."""
_NOT_WHOLE: Final = "it could not be read as a whole"
_JSON: Final = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
)

Event = dict[str, Any]
T = TypeVar("T")


class Rank(IntEnum):
    """Subject of an event. Where there is no room, events of the lowest go first: their loss costs
    least.
    """

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


def of_others(read: Callable[[], T], otherwise: T) -> T:
    """Runs code of others, of objects that a bot hands over, and returns `otherwise` if it fails.

    That code may raise anything, and the bot must not feel it: so every error is caught, here and
    nowhere else.
    """
    try:
        return read()
    except Exception:  # noqa: BLE001 - code of others may raise any error
        return otherwise


def encoded(event: Event, on_mark: Callable[[], None] = lambda: None) -> bytes:
    """Returns the event as JSON that every reader takes. It never raises, whatever a tool took or
    returned.

    It takes a bounded time, apart from that of a `model_dump` of others, and looks at no more than
    it may keep. A value that is no JSON is replaced by a mark: alone if that is enough, otherwise
    the whole field.

    Args:
        event: The event.
        on_mark: Called for each mark.

    Example:
        >>> encoded({"type": "x", "data": {"result": {1, 2}}})
        b'{"type":"x","data":{"result":{"unreadable":"set"}}}'
    """
    found = of_others(
        lambda: _Walk(MAX_EVENT_BYTES, MAX_EVENT_BYTES, on_mark).json(event), _NOT_WHOLE
    )
    if isinstance(found, str):
        reduced = of_others(lambda: _without_foreign_fields(event, str(found)), event)
        on_mark()
        found = of_others(
            lambda: _Walk(MAX_OWN_CHARS, MAX_OWN_BYTES, on_mark).json(reduced), _NOT_WHOLE
        )
    if isinstance(found, bytes):
        return found
    on_mark()
    bare = {
        "type": name_of(event.get("type")),
        "timestamp": event.get("timestamp"),
        UNREADABLE: found,
    }
    return of_others(lambda: json.dumps(bare, allow_nan=False).encode(), b'{"type":"unreadable"}')


def text_of(value: object) -> str:
    """Returns a text of the bot's, not longer than callgauge takes it. It never raises."""
    return _beginning(value, MAX_TEXT_CHARS)


def name_of(value: object) -> str:
    """Returns a name or id of the bot's, not longer than callgauge takes it. It never raises."""
    return _beginning(value, MAX_NAME_CHARS)


def value_of(text: str) -> object:
    """Returns the value of a text that is JSON; None if it is not, or is longer than an event may
    be.

    Example:
        >>> value_of('{"color": "blue"}'), value_of("blue"), value_of("[" * 50_000)
        ({'color': 'blue'}, None, None)
    """
    return of_others(lambda: json.loads(text), None) if len(text) <= MAX_EVENT_BYTES else None


def is_failure(result: object) -> bool:
    """Whether a tool's result means a failure: by an error status, an `error` or an `error_type`.
    Text may be JSON.

    It never raises. Of a text that is longer than an event may be, no failure is known.

    Example:
        >>> is_failure({"status": "error"}), is_failure('{"error": "no such flight"}'), is_failure("found")
        (True, True, False)
    """
    return of_others(lambda: _is_failure(result), otherwise=False)


def known_fields(**fields: Any) -> Event:
    """Returns the fields that are known."""
    return {name: value for name, value in fields.items() if value is not None}


def _is_failure(result: object) -> bool:
    if isinstance(result, str):
        result = value_of(result) if result[:MAX_NAME_CHARS].lstrip().startswith("{") else None
    if not isinstance(result, Mapping):
        return False
    status = result.get("status")
    return bool(
        (isinstance(status, str) and status in FAILED_STATUSES)
        or result.get("error")
        or result.get("error_type")
    )


def _beginning(value: object, most: int) -> str:
    if issubclass(type(value), str):
        # a text of a class of its own becomes a plain one
        text = str.__getitem__(value, slice(most))  # type: ignore[index]
    elif issubclass(
        type(value), dict | list | tuple | set | frozenset | bytes | bytearray
    ):  # their texts have no bound
        text = encoded({UNREADABLE: value}).decode()[:most]
    else:
        text = of_others(lambda: str(value)[:most], f"{UNREADABLE} {_kind_of(value)}")
    # half a surrogate pair is no UTF-8
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _kind_of(value: object) -> str:
    return of_others(lambda: str(type(value).__name__)[:MAX_NAME_CHARS], "object")


def _without_foreign_fields(event: Event, reason: str) -> Event:
    """The event with a note in the place of everything that its bot put into it; of a result,
    whether it is a failure is kept.
    """
    note = {UNREADABLE: reason}
    data = event.get("data")
    kept = {name: value for name, value in event.items() if name not in _FOREIGN_FIELDS}
    if isinstance(data, dict):
        kept["data"] = {
            name: note if name in _FOREIGN_FIELDS else value for name, value in data.items()
        }
        if is_failure(data.get("result")):
            kept["data"]["result"] = {"status": "error", **note}
    return kept


class _TooLargeError(Exception):
    """The budget of an event is spent."""


class _Walk:
    """One event becomes plain values, with a budget of values and characters. Code of others runs
    in `of_others` alone.
    """

    def __init__(self, most_chars: int, most_bytes: int, on_mark: Callable[[], None]) -> None:
        self._most_bytes = most_bytes
        self._chars_left = most_chars
        self._values_left = MAX_VALUES
        self._on_mark = on_mark

    def json(self, event: Event) -> bytes | str:
        """The event as JSON, or the reason why there is none."""
        try:
            plain = self._plain(event, 0)
        except _TooLargeError:
            return TOO_LARGE
        value = _JSON.encode(plain).encode("utf-8", "replace")  # half a surrogate pair is no UTF-8
        return value if len(value) <= self._most_bytes else TOO_LARGE

    def _plain(self, value: Any, depth: int) -> Any:
        """The value as JSON knows it. Classes of others may look like known ones, so the type
        itself decides.
        """
        kind = type(value)
        self._values_left -= 1
        if self._values_left < 0:
            raise _TooLargeError
        if issubclass(kind, str):
            return self._text(value)
        if value is None or kind is bool:
            return value
        if issubclass(kind, int):
            bits = int.bit_length(value)
            self._spend(min(bits, MAX_INTEGER_BITS) // 3)
            return (
                int.__pos__(value)
                if bits <= MAX_INTEGER_BITS
                else self._mark(f"int of {bits} bits")
            )
        if issubclass(kind, float):
            return (
                float.__pos__(value) if math.isfinite(value) else self._mark(float.__repr__(value))
            )
        if depth >= MAX_DEPTH:
            return self._mark(f"deeper than {MAX_DEPTH} levels")
        if issubclass(kind, dict):
            return self._mapping(dict.items(value), depth)
        if issubclass(kind, list):
            return [self._plain(each, depth + 1) for each in list.__iter__(value)]
        if issubclass(kind, tuple):
            return [self._plain(each, depth + 1) for each in tuple.__iter__(value)]
        content = of_others(lambda: _content(value, self._values_left + 1), None)
        if content is None:
            return self._mark(_kind_of(value))
        if type(content) is dict:
            self._values_left -= len(content)  # they are read already, and walked from here on
        return self._plain(content, depth + 1)

    def _mapping(self, items: Iterable[tuple[Any, Any]], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            kind = type(key)
            if issubclass(kind, str):
                found[self._text(key)] = self._plain(value, depth + 1)
            elif key is None or issubclass(kind, int | float):
                found[json.dumps(self._plain(key, depth + 1))] = self._plain(value, depth + 1)
            else:
                found |= self._mark(f"key of {_kind_of(key)}")
        return found

    def _text(self, value: str) -> str:
        self._spend(str.__len__(value))
        return value if type(value) is str else str.__getitem__(value, slice(None))

    def _mark(self, what: str) -> dict[str, str]:
        self._on_mark()
        self._values_left -= VALUES_OF_A_MARK
        return {UNREADABLE: what}

    def _spend(self, chars: int) -> None:
        self._chars_left -= chars
        if self._chars_left < 0:
            raise _TooLargeError


def _content(value: Any, most: int) -> object:
    """Returns the content of an object of others: pydantic models and mappings are read as they
    are; None for everything else.
    """
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json", exclude_none=True)
    return dict(islice(value.items(), most)) if isinstance(value, Mapping) else None
