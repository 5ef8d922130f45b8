"""What every wire model shares: how times and texts are read, and that unknown fields are carried, never fatal."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, FiniteFloat, StringConstraints

MAX_TEXT_CHARS = 32_768
"""Longest text one event may carry. A spoken minute is about 1,000 characters; longer is a fault of the producer."""

MAX_NAME_CHARS = 256
"""Longest identifier, type, tool or agent name."""

WireTimeMs = int | FiniteFloat
"""Milliseconds since the epoch. Producers write integers, strings of digits, or floats; `int()` of it is the event time."""

Text = Annotated[str, StringConstraints(max_length=MAX_TEXT_CHARS)]
Name = Annotated[str, StringConstraints(max_length=MAX_NAME_CHARS)]


class WireModel(BaseModel):
    """A record as a producer wrote it: unknown fields stay in `model_extra` and are counted by the engine."""

    model_config = ConfigDict(extra="allow")
