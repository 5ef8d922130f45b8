"""The base of all wire models: how times and texts are read. Unknown fields are kept and never an
error.
"""

from math import isfinite
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    StringConstraints,
)
from pydantic_core import from_json, to_json

from schemas.units import to_seconds

MAX_TEXT_CHARS = 32_768
"""Longest text of one event. A minute of speech has about 1,000 characters; a longer text is a
fault of the producer.
"""

MAX_INSTRUCTIONS_CHARS = 100_000
"""Longest instructions of an agent: the longest prompts in use have some 60,000 characters."""
MAX_NAME_CHARS = 256
"""Longest identifier, type, tool or agent name."""

MAX_TIME_MS = 10**15
"""Furthest time from 1970, in ms: some 30,000 years. Beyond it neither a float nor arithmetic on
times is exact.
"""

_TimeBounds = Field(
    ge=-MAX_TIME_MS, le=MAX_TIME_MS, description="Milliseconds since 1970, as a number or digits."
)
WireTimeMs = Annotated[int, _TimeBounds] | Annotated[FiniteFloat, _TimeBounds]
"""Milliseconds since the epoch. Producers write integers, strings of digits, or floats; `int()` of
it is the event time.
"""

WireTimeSeconds = Annotated[
    FiniteFloat,
    Field(
        ge=-to_seconds(MAX_TIME_MS),
        le=to_seconds(MAX_TIME_MS),
        description="Seconds since 1970, with fractions.",
    ),
]
"""The moment of a sound, in seconds since the epoch."""

Text = Annotated[str, StringConstraints(max_length=MAX_TEXT_CHARS)]
Name = Annotated[str, StringConstraints(max_length=MAX_NAME_CHARS)]


def _readable_id(value: object) -> int | None:
    """Returns an id given as number or digits; None for other values. Without an id, only the order
    of equal times is lost.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value >= 0 else None
    return (
        int(value)
        if isinstance(value, str) and len(value) <= 18 and value.isascii() and value.isdigit()
        else None
    )


def is_none(value: object) -> bool:
    """Whether there is no value; a field with `exclude_if=is_none` is left out of JSON then."""
    return value is None


EventId = Annotated[int | None, BeforeValidator(_readable_id)]
"""Number of an event among those of its call."""


def without_infinity(value: Any) -> Any:
    """Returns a JSON value with null for each number that no float can hold, such as `1e999`: it
    would be infinity.

    Example:
        >>> without_infinity({"fees": [1e999, 2.5], "code": "A1"})
        {'fees': [None, 2.5], 'code': 'A1'}
    """
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_infinity(each) for key, each in value.items()}
    return [without_infinity(each) for each in value] if isinstance(value, list) else value


JsonValue = Annotated[Any, AfterValidator(without_infinity)]
"""A value of a producer that is kept as it is: arguments and answers of tools."""
JsonObject = Annotated[dict[str, Any], AfterValidator(without_infinity)]
"""An object of that kind: states, schemas."""


class WireModel(BaseModel):
    """A record as a producer wrote it: unknown fields stay in `model_extra` and are counted by the
    engine.
    """

    # Errors may be logged, so they must not contain words of a call.
    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)


def finite(value: bytes) -> bytes:
    """Returns JSON with null for NaN and for infinity: Python's own writer puts them there, and no
    other reader takes them.

    Example:
        >>> finite(b'{"fee": NaN, "said": "NaN"}')
        b'{"fee":null,"said":"NaN"}'
        >>> finite(b"{")  # refused by the decoder, with the place of the fault
        b'{'
    """
    try:
        return to_json(from_json(value), inf_nan_mode="null")
    except ValueError:
        return value
