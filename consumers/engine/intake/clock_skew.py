"""Events whose own time is far from the broker's timestamp of their record: signs of a wrong clock."""

from collections import Counter
from typing import Final

from consumers.engine.intake.admission import Arrival
from schemas.closed_sets import ClockSkew, InputSource

SkewCounts = Counter[tuple[InputSource, ClockSkew]]

AHEAD_MS: Final = 1_000
"""Lead over the broker beyond which a producer's clock is wrong: an event cannot reach the broker before it happens. Clocks that
are kept by NTP differ by some ten milliseconds, and brokers take a timestamp to the millisecond."""
BEHIND_MS: Final = 60_000
"""Delay beyond which an event is not live. Producers retry for seconds, and the simulated caller sends texts up to 5 s late."""


def skew_of(event_ms: float, broker_ms: int) -> ClockSkew | None:
    """Returns how an event's time differs from the broker's timestamp of its record; None if they are close.

    >>> skew_of(1_000_000.0, 999_500), skew_of(1_000_000.0, 998_000), skew_of(1_000_000.0, 1_100_000)
    (None, <ClockSkew.AHEAD: 'ahead'>, <ClockSkew.BEHIND: 'behind'>)
    """
    if event_ms - broker_ms > AHEAD_MS:
        return ClockSkew.AHEAD
    return ClockSkew.BEHIND if broker_ms - event_ms > BEHIND_MS else None


def count_skew(counts: SkewCounts, arrival: Arrival) -> None:
    """Adds an arrival whose time is far from the broker's. Verdicts have no time of a call."""
    event_ms = arrival.event.timestamp
    if event_ms is not None and arrival.source is not InputSource.JUDGE:
        skew = skew_of(event_ms, arrival.broker_time_ms)
        if skew is not None:
            counts[arrival.source, skew] += 1
