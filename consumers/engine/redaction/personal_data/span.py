"""The place of a finding in a text."""

from typing import NamedTuple


class Span(NamedTuple):
    """The characters from `start` up to `end`, which is excluded."""

    start: int
    end: int
