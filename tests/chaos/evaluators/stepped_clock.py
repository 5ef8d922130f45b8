"""A clock that steps: an evaluator's time of day is wrong by as many seconds as a file says at each
moment.
"""

import mmap
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

FILE: Final = "CHAOS_CLOCK"
"""Environment variable that names the file."""
_SECONDS: Final = struct.Struct("<d")


def step(clock: Path, seconds: float) -> None:
    """The clock is so many seconds off from now on; also makes the file."""
    if clock.exists():
        with clock.open("r+b") as file:
            # in place: the evaluator has this file in its memory
            file.write(_SECONDS.pack(seconds))
    else:
        clock.write_bytes(_SECONDS.pack(seconds))


def install(clock: Path) -> None:
    """From now on this process reads the time as the file says; to be called before anything takes
    `time.time`.
    """
    with clock.open("rb") as file:
        view = mmap.mmap(file.fileno(), _SECONDS.size, access=mmap.ACCESS_READ)
    right: Callable[[], float] = time.time
    right_ns: Callable[[], int] = time.time_ns

    def stepped() -> float:
        return right() + float(_SECONDS.unpack_from(view)[0])

    def stepped_ns() -> int:
        return right_ns() + int(_SECONDS.unpack_from(view)[0] * 1_000_000_000)

    time.time, time.time_ns = stepped, stepped_ns
