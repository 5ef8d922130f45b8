"""Stretches of sound, in milliseconds of epoch time."""

from collections.abc import Iterable
from typing import NamedTuple


class Span(NamedTuple):
    """A stretch of time in ms."""

    start_ms: int
    end_ms: int


Spans = tuple[Span, ...]


def merged(spans: Iterable[Span], *, keeps_moments: bool = False) -> Spans:
    """The same time without overlaps, earliest first; spans that touch are one. Spans without a length are left out unless
    `keeps_moments`.

    Example:
        >>> merged([Span(5, 9), Span(1, 3), Span(3, 4), Span(6, 7), Span(8, 8)])
        (Span(start_ms=1, end_ms=4), Span(start_ms=5, end_ms=9))
    """
    result: list[Span] = []
    for span in sorted(spans):
        if span.end_ms < span.start_ms or (span.end_ms == span.start_ms and not keeps_moments):
            continue
        if result and span.start_ms <= result[-1].end_ms:
            result[-1] = Span(result[-1].start_ms, max(result[-1].end_ms, span.end_ms))
        else:
            result.append(span)
    return tuple(result)


def length_ms(spans: Iterable[Span]) -> int:
    """Sum of their lengths."""
    return sum(span.end_ms - span.start_ms for span in spans)
