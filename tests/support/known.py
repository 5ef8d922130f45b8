"""Values that a test expects to be there."""

from collections.abc import MutableMapping
from typing import Any, TypeVar

Value = TypeVar("Value")
Logged = list[MutableMapping[str, Any]]
"""The log lines of a test, of the fixture `logged`."""


def some(value: Value | None) -> Value:
    """The value, which is not None."""
    assert value is not None
    return value


def instance_of(kind: type[Value], value: object) -> Value:
    """The value, which is of this kind."""
    assert isinstance(value, kind), f"{value!r} is no {kind.__name__}"
    return value
