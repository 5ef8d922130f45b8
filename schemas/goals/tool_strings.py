"""Tool calls as agent-inspect's data files write them: a list literal as text, with calls like `get_user(id=ada_1)`."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

MAX_TOOL_STRING_CHARS: Final = 20_000
"""Longest text of one call; the published ones have a few hundred."""
JUDGED_VALUES: Final = frozenset({"$AnyValue", "No Remarks"})
"""Values that agent-inspect hands to a judge instead of comparing them."""
JUDGED_NAMES: Final = frozenset({"expression"})
"""Arguments that it hands to a judge whatever their value."""

_CALL: Final = re.compile(r"\s*([^\s()=,]+)\s*\((.*)\)\s*", re.DOTALL)
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
_QUOTES: Final = "'\""


class ToolStringError(ValueError):
    """A text that is no tool call; the error has the expected form."""


def calls_in(text: str) -> list[dict[str, Any]]:
    """The calls that a text holds, as fields of `ExpectedToolCall`.

    All values are texts, as in agent-inspect: a number in an actual call never equals one of them. Unlike its own reader
    this one keeps a value with commas whole.

    Raises:
        ToolStringError: It has none, or another text.

    Example:
        >>> calls_in("[{'tool_code': 'book(seats=[1, 2], note=No Remarks)', 'output': '$AnyValue'}]")
        [{'tool': 'book', 'expected_parameters': [{'name': 'seats', 'value': '[1, 2]'}, {'name': 'note', 'check': 'No Remarks'}]}]
        >>> calls_in("get_user(id='ada_1')")
        [{'tool': 'get_user', 'expected_parameters': [{'name': 'id', 'value': 'ada_1'}]}]
    """
    if len(text) > MAX_TOOL_STRING_CHARS:
        raise ToolStringError(f"has {len(text)} characters, and {MAX_TOOL_STRING_CHARS} are allowed")
    if not text.lstrip().startswith(("[", "{")):
        return [_call(text)]
    try:
        literal = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise ToolStringError(f"expected a list like {_EXAMPLE}, and it cannot be read as one") from error
    listed = literal if isinstance(literal, list) else [literal]
    if not listed or not all(isinstance(each, dict) and isinstance(each.get("tool_code"), str) for each in listed):
        raise ToolStringError(f"expected a list like {_EXAMPLE}")
    return [_call(each["tool_code"]) for each in listed]


_EXAMPLE: Final = "[{'tool_code': 'get_user(id=ada_1)'}]"


def _call(code: str) -> dict[str, Any]:
    found = _CALL.fullmatch(code)
    if found is None:
        raise ToolStringError(f"expected a call like get_user(id=ada_1), seen {code[:60]!r}")
    parameters = []
    for argument in _split(found[2]):
        name, equals, value = argument.partition("=")
        name, value = name.strip(), _unquoted(value.strip())
        if not (name and equals):
            raise ToolStringError(f"expected name=value, seen {argument.strip()[:60]!r}")
        is_judged = value in JUDGED_VALUES or name in JUDGED_NAMES
        parameters.append({"name": name, "check" if is_judged else "value": value})
    return {"tool": found[1], "expected_parameters": parameters}


def _split(arguments: str) -> Iterator[str]:
    """The parts between commas, but for commas in brackets and quotes; a bracket that nothing closes is a character."""
    if not arguments.strip():
        return
    open_brackets: list[str] = []
    quote = ""
    start = 0
    for place, character in enumerate(arguments):
        if quote:
            # An apostrophe inside a word closes nothing: the quoted text ends where an argument or a list item may.
            if character == quote and arguments[place + 1 :].lstrip()[:1] in ("", ",", "]", "}", ")", ":"):
                quote = ""
        elif character in _QUOTES and arguments[:place].rstrip()[-1:] in ("=", ",", "[", "{", "(", ":"):
            quote = character
        elif character in _CLOSING and _CLOSING[character] in arguments[place:]:
            open_brackets.append(_CLOSING[character])
        elif open_brackets and character == open_brackets[-1]:
            open_brackets.pop()
        elif character == "," and not open_brackets:
            yield arguments[start:place]
            start = place + 1
    yield arguments[start:]


def _unquoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] in _QUOTES and value[-1] == value[0]
    return value[1:-1] if is_quoted else value
