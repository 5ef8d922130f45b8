"""Conversions between units. Inside, times are milliseconds; Prometheus has seconds."""

from typing import Final

MS_PER_SECOND: Final = 1_000
MINUTE_MS: Final = 60 * MS_PER_SECOND
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS


def to_seconds(ms: float) -> float:
    """Returns a length of time or a moment in seconds, as Prometheus, asyncio and logs have it.

    Example:
        >>> to_seconds(1_500)
        1.5
    """
    return ms / MS_PER_SECOND
