"""The clock of this machine that people set. How long something took is measured by `time.monotonic` instead."""

import time
from typing import Final

_NS_PER_MS: Final = 1_000_000


def wall_clock_ms() -> int:
    """Returns the milliseconds since 1970 that this machine shows."""
    return time.time_ns() // _NS_PER_MS
