"""Moments as people type them."""

import pytest

from consumers.runtime.process import SetupError
from streamer.time_bounds import moment_ms, shown_moment

NOW_MS = 1_790_000_000_000


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("90s", NOW_MS - 90_000),
        ("30m", NOW_MS - 1_800_000),
        ("2h", NOW_MS - 7_200_000),
        ("7d", NOW_MS - 604_800_000),
        ("2026-09-21T14:13:20", NOW_MS),
        ("2026-09-21T14:13:20.250", NOW_MS + 250),
        ("2026-09-21 16:13:20+02:00", NOW_MS),
        ("2026-09-21T14:13:20Z", NOW_MS),
        ("2026-09-21", NOW_MS - (14 * 3_600 + 13 * 60 + 20) * 1_000),
    ],
)
def test_ago_or_a_date(text: str, meant: int) -> None:
    assert moment_ms(text, NOW_MS) == meant


@pytest.mark.parametrize(
    "text", ["", "soon", "2", "h", "-2h", "2 h", "2w", "12:30", "2026-13-01", "9999999h"]
)
def test_anything_else_is_told_with_an_example(text: str) -> None:
    with pytest.raises(SetupError, match="2h or 7d"):
        moment_ms(text, NOW_MS)


def test_what_is_shown_can_be_typed() -> None:
    assert moment_ms(shown_moment(NOW_MS + 999), 0) == NOW_MS
