"""How long tests wait: as long as on an idle machine, and longer while other processes compute."""

import os
from pathlib import Path

_LOAD = Path("/proc/loadavg")
_UNSERVED = Path("/proc/thread-self/schedstat")


def patient(seconds: float) -> float:
    """Seconds of an idle machine as seconds of this one under its load; never fewer.

    A time limit in a test is written for an idle machine, and passes through here when the wait
    begins.
    """
    return seconds * max(1.0, _wanting_to_run() / (os.cpu_count() or 1))


def unserved_seconds() -> float:
    """How long this thread was ready to run so far and had no processor, as the kernel counts it; 0
    where it does not.

    What a thread waits for is the time on the clock without this: other processes on the machine
    make that no longer.
    """
    return int(_UNSERVED.read_text().split()[1]) / 1e9 if _UNSERVED.exists() else 0.0


def _wanting_to_run() -> float:
    """Processes that compute or wait for a processor: over the last minute, or at this moment if
    these are more.
    """
    averaged = os.getloadavg()[0]
    if not _LOAD.exists():  # only Linux has the number of this moment
        return averaged
    now = int(_LOAD.read_text().split()[3].partition("/")[0])
    return max(averaged, now)
