"""Moments that a person names."""

import re
from datetime import UTC, datetime
from typing import Final

from consumers.runtime.process import SetupError, wall_clock_ms

# Moments: the present, and moments as people type and read them.

_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 24 * 3_600_000}
_AGO: Final = re.compile(r"(\d{1,6})([smhd])")
_DAYS_AGO: Final = {"today": 0, "yesterday": 1}


def moment_ms(text: str, now_ms: int) -> int:
    """The moment of a text, in ms since 1970.

    Args:
        text: `90s`, `30m`, `2h` or `7d` ago; the begin of `today` or `yesterday` in UTC; or a date,
            with or without a time, in UTC unless it names its zone.
        now_ms: The present, from which "ago" counts.

    Raises:
        SetupError: It is neither.

    Example:
        >>> moment_ms("2h", 10_000_000), moment_ms("1970-01-02", 0), moment_ms("1970-01-01T02:00+01:00", 0)
        (2800000, 86400000, 3600000)
        >>> moment_ms("yesterday", 90_000_000)
        0
    """
    if ago := _AGO.fullmatch(text):
        return now_ms - int(ago[1]) * _UNITS_MS[ago[2]]
    if (days := _DAYS_AGO.get(text)) is not None:
        return now_ms - now_ms % _UNITS_MS["d"] - days * _UNITS_MS["d"]
    try:
        moment = datetime.fromisoformat(text)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000)
    except (ValueError, OverflowError) as error:
        raise SetupError(
            f"{text!r} is no moment: give how long ago, for example 30m, 2h or 7d, `yesterday`, or a "
            "UTC time, for example 2026-08-01T14:30. Nothing was done."
        ) from error


def shown_moment(ms: int) -> str:
    """A moment for people: date and time of day in UTC, to the second.

    Example:
        >>> shown_moment(86_400_999)
        '1970-01-02 00:00:00'
    """
    return datetime.fromtimestamp(ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


# Moments that a person names on the command line.


def moment_given(text: str) -> int:
    """The moment that a person names, in milliseconds since 1970.

    Raises:
        SetupError: The text is no moment.
    """
    return moment_ms(text, wall_clock_ms())
