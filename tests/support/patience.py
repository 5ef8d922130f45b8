"""How long tests wait: so long as an idle machine would let them, and longer where others compute too."""

import os
from pathlib import Path

_LOAD = Path("/proc/loadavg")


def patient(seconds: float) -> float:
    """So many seconds of an idle machine, as long as they take on this one now; never fewer.

    A limit on what a test waits for is written as an idle machine needs it, and passes through here when the wait begins.
    """
    return seconds * max(1.0, _wanting_to_run() / (os.cpu_count() or 1))


def _wanting_to_run() -> float:
    """Processes that compute or would like to: over the last minute, and at this moment if these are more."""
    averaged = os.getloadavg()[0]
    if not _LOAD.exists():  # only Linux says what is so now
        return averaged
    now = int(_LOAD.read_text().split()[3].partition("/")[0])
    return max(averaged, now)
