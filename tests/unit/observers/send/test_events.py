"""Events of whatever bots and their tools hand over: readable, bounded, and nothing that they do
reaches the bot.
"""

import gc
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import pytest
from callgauge_send.events import (
    FAILED_STATUSES,
    MAX_DEPTH,
    MAX_EVENT_BYTES,
    MAX_INSTRUCTIONS_CHARS,
    MAX_OWN_BYTES,
    MAX_TEXT_CHARS,
    MAX_VALUES,
    encoded,
    is_failure,
    name_of,
    text_of,
    value_of,
)
from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.admission import parts_of
from consumers.engine.limits import Limits
from schemas.closed_sets import InputSource
from schemas.events.codec import decode
from streamer.sources.http.body import BATCH, posted_events
from tests.support.held_loop import in_short_time, seconds_of

T = TypeVar("T")
MOST_SECONDS = 0.03
"""Processor time for any one value: three times what it is on an idle machine, where caches are
warm.
"""


def soon(read: Callable[[], T]) -> T:
    """What is read in a short time, without the collection of what other tests keep."""
    gc.disable()
    try:
        return in_short_time(lambda: seconds_of(read), MOST_SECONDS)
    finally:
        gc.enable()


class Odd:
    """Nothing that JSON knows, and hostile to any code that looks at it."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)

    def __bool__(self) -> bool:
        raise ArithmeticError("neither")


class Model:
    """Has the method of pydantic's models."""

    def __init__(self, dump: Callable[[], object]) -> None:
        self._dump = dump

    def model_dump(self, **_: object) -> object:
        return self._dump()


class Endless(Mapping[str, object]):
    """Has items without end."""

    def __getitem__(self, key: str) -> object:
        if not key.isdigit():
            raise KeyError(key)
        return self

    def __iter__(self) -> Iterator[str]:
        number = 0
        while True:
            number += 1
            yield str(number)

    def __len__(self) -> int:
        return 1


class Items(dict[str, object]):
    """A dictionary whose code fails, or lies."""

    def items(self) -> Any:
        raise KeyError("x")

    def get(self, *_: object) -> Any:
        raise LookupError("y")

    def __len__(self) -> int:
        raise RuntimeError("z")


class Text(str):
    __slots__ = ()

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __getitem__(self, _: object) -> str:
        raise RuntimeError("no part")


Liar = type("Liar", (), {"__class__": property(lambda _: dict)})
"""Says that it is a dictionary, as mocks do."""


class Key:
    def __hash__(self) -> int:
        return 1


def raises(error: BaseException) -> Model:
    def dump() -> object:
        raise error

    return Model(dump)


def _gives_itself() -> Model:
    model = Model(lambda: model)
    return model


def _deeper() -> dict[str, object]:
    return {"a": Model(_deeper)}


def _endless() -> dict[str, Any]:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    return loop


def _deep(levels: int) -> list[Any]:
    deep: list[Any] = []
    for _ in range(levels):
        deep = [deep]
    return deep


HOSTILE: dict[str, Callable[[], object]] = {
    "object": Odd,
    "object inside": lambda: {"a": [Odd()]},
    "class that lies": Liar,
    "tuple as key": lambda: {("a", "b"): 1, "c": 2},
    "object as key": lambda: {Key(): 1},
    "nan as key": lambda: {float("nan"): 1},
    "endless": _endless,
    "deep": lambda: _deep(50_000),
    "as deep as one more": lambda: _deep(MAX_DEPTH),
    "nan": lambda: float("nan"),
    "infinity": lambda: {"n": float("-inf")},
    "half a pair": lambda: "\ud800",
    "half a pair as key": lambda: {"\udfff": 1},
    "control characters": lambda: "\x00\x1b\x7f\u2028",
    "many control characters": lambda: "\x00" * MAX_EVENT_BYTES,
    "bytes": lambda: b"bytes" * 2_000_000,
    "set": lambda: {1, 2},
    "long": lambda: "x" * (MAX_EVENT_BYTES + 1),
    "very long": lambda: "ü" * 20_000_000,
    "huge": lambda: 10**5_000,
    "many huge": lambda: [2**1_023] * MAX_VALUES,
    "wide": lambda: [[] for _ in range(30_000)],
    "20 MB": lambda: {"rows": [{"a": "x" * 50, "b": i} for i in range(250_000)]},
    "as many as may be": lambda: [set()] * (MAX_VALUES - 20),
    "dump that raises": lambda: raises(RuntimeError("boom")),
    "many dumps that raise": lambda: [raises(RuntimeError("boom"))] * (MAX_VALUES - 20),
    "dump of itself": _gives_itself,
    "dump without end": lambda: Model(_deeper),
    "recursion": lambda: raises(RecursionError()),
    "items that raise": lambda: Items(a=1),
    "items without end": Endless,
    "text of a class of its own": lambda: Text("said"),
    "text of a class of its own as key": lambda: {Text("said"): 1},
    "generator": lambda: (each for each in range(3)),
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_whatever_a_tool_returns_its_event_can_be_read_and_costs_little(
    make: Callable[[], object],
) -> None:
    result = make()
    event = {
        "type": "function_call_event",
        "timestamp": 1_790_000_000_000,
        "data": {
            "kind": "function_call_completed",
            "function_name": "f",
            "tool_call_id": "c",
            "timestamp": 1_790_000_000.0,
            "result": result,
        },
    }
    value = soon(lambda: encoded(event))
    fails, text = is_failure(result), text_of(result)
    assert (fails, len(text) <= MAX_TEXT_CHARS, type(text)) == (False, True, str)
    assert len(value) <= MAX_EVENT_BYTES
    read = decode(InputSource.PIPECAT, value)
    assert (read.data.kind, read.data.function_name) == ("function_call_completed", "f")
    body = (
        b'[{"specversion":"1.0","id":"1","source":"s","type":"t","subject":"c","data":%b}]' % value
    )
    (posted,) = posted_events(body, BATCH, {})
    assert posted.fault is None
    assert parts_of(value) < Limits().max_record_parts


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
        max_leaves=30,
    )
)
def test_what_json_can_hold_arrives_as_it_is(value: Any) -> None:
    marks: list[None] = []
    event = {"type": "x", "data": {"result": value, "pair": (1, None)}}
    assert json.loads(encoded(event, lambda: marks.append(None))) == {
        "type": "x",
        "data": {"result": value, "pair": [1, None]},
    }
    assert marks == []


@pytest.mark.parametrize(
    ("value", "mark"),
    [
        ({1}, {"unreadable": "set"}),
        (float("nan"), {"unreadable": "nan"}),
        (2**2_000, {"unreadable": "int of 2001 bits"}),
        (raises(KeyError("x")), {"unreadable": "Model"}),
        (Key(), {"unreadable": "Key"}),
    ],
)
def test_an_odd_value_is_marked_alone_and_counted(value: object, mark: dict[str, str]) -> None:
    marks: list[None] = []
    event = {"type": "x", "data": {"arguments": {"good": 1, "odd": value}}}
    assert json.loads(encoded(event, lambda: marks.append(None)))["data"] == {
        "arguments": {"good": 1, "odd": mark}
    }
    assert len(marks) == 1


def test_what_is_too_large_is_marked_and_the_rest_of_the_event_is_whole() -> None:
    rows = {"status": "error", "rows": list(range(MAX_VALUES))}
    read = json.loads(encoded({"type": "x", "data": {"result": rows, "timestamp": 7}}))
    assert read["data"]["timestamp"] == 7
    assert read["data"]["result"]["unreadable"].startswith("too large")
    # what the result means is known all the same
    assert read["data"]["result"]["status"] in FAILED_STATUSES
    elsewhere = json.loads(encoded({"type": "x", "timestamp": 7, "data": {"mine": rows}}))
    assert elsewhere == {
        "type": "x",
        "timestamp": 7,
        "unreadable": read["data"]["result"]["unreadable"],
    }


def test_a_long_system_message_and_a_long_text_in_wide_letters_are_whole() -> None:
    for text in ("ü" * MAX_INSTRUCTIONS_CHARS, "🙂" * MAX_TEXT_CHARS):
        value = encoded({"type": "call_started", "instructions": text})
        assert json.loads(value)["instructions"] == text
        assert len(value) <= MAX_OWN_BYTES


def test_half_a_pair_in_words_costs_one_character() -> None:
    event = {
        "type": "user_message",
        "timestamp": 1_790_000_000_000,
        "data": {"content": "Hi \ud800!"},
    }
    assert decode(InputSource.PIPECAT, encoded(event)).data.content == "Hi ?!"


def test_a_model_is_read_as_it_is() -> None:
    event = {"type": "x", "data": {"result": Model(lambda: {"found": [Model(lambda: 3)]})}}
    assert json.loads(encoded(event))["data"]["result"] == {"found": [3]}


@pytest.mark.parametrize("read", [text_of, name_of])
def test_a_text_that_cannot_be_made_says_so(read: Callable[[object], str]) -> None:
    class Silent:
        def __str__(self) -> str:
            raise ValueError("no")

    assert read(Silent()) == "unreadable Silent"
    assert read(ValueError("said")) == "said"
    assert read("half a pair \ud800") == "half a pair ?"
    assert read({"a": [1]}) == '{"unreadable":{"a":[1]}}'


@pytest.mark.parametrize(
    ("result", "fails"),
    [
        ({"status": "failed"}, True),
        ({"status": ["failed"]}, False),
        ({"error": ""}, False),
        ({"error_type": "x"}, True),
        ('  {"error": "no"}', True),
        ('{"status": "failed"', False),
        ("[1]", False),
        (None, False),
        (["error"], False),
        ('{"a":' * 300_000 + "1" + "}" * 300_000, False),
        ('{"a":' * 10_000 + "1" + "}" * 10_000, False),
        ({"error": Odd()}, False),
        ('{"rows":[' + '{"a":1},' * 2_000_000 + "1]}", False),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str | bool) else None,
)
def test_a_failure_is_known_by_what_the_result_says(result: object, fails: bool) -> None:
    assert soon(lambda: is_failure(result)) is fails


def test_a_text_is_json_or_nothing() -> None:
    assert value_of('{"a": [1]}') == {"a": [1]}
    assert value_of("said") is None
    assert value_of("[" * 60_000) is None
    assert value_of('{"n": ' + "9" * 5_000 + "}") is None
    assert value_of("[" + "1," * MAX_EVENT_BYTES + "1]") is None
