"""Conversions between units. Inside, times are milliseconds; Prometheus has seconds."""

from datetime import datetime
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


def iso_seconds(text: str) -> float | None:
    """Epoch seconds of a moment in ISO 8601; None for other text. Without an offset it is a moment
    of this machine's zone.

    Example:
        >>> iso_seconds("2026-09-21T14:13:20Z"), iso_seconds("soon")
        (1790000000.0, None)
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None
