"""A place in a text."""

from typing import NamedTuple


class Span(NamedTuple):
    """From `start` up to `end`, which is not part of it."""

    start: int
    end: int
