"""Whose processor time it is: samples of the running program, each weighted with the processor time
since the one before.

Other work on the machine disturbs a share less than a difference between two runs: both parts of it
are of one run.
"""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from types import FrameType
from typing import Final

SAMPLE_SECONDS: Final = 0.002
"""Processor time between two samples: some thousand in a run of the benchmark."""


class Part(StrEnum):
    """A part of the program, by the functions that are being called."""

    HOOKS = "hooks"
    SENDING = "sending"
    HAND_OVER = "hand_over"
    PIPELINE = "pipeline"


_SENDING: Final = (
    "/callgauge_send/sender.py",
    "/callgauge_send/to_kafka.py",
    "/aiokafka/",
    "/kafka/",
)
_HOOKS: Final = ("/pipecat_callgauge/", "/callgauge_send/")
_HAND_OVER: Final = ("/pipeline/worker_observer.py", "/pipeline/task_observer.py")


def part_of(files: Sequence[str]) -> Part:
    """The part that the functions of these files belong to, with all functions that they call.

    Example:
        >>> part_of(["/x/asyncio/events.py", "/x/pipecat_callgauge/observer.py", "/x/json/encoder.py"])
        <Part.HOOKS: 'hooks'>
    """
    for part, known in (
        (Part.SENDING, _SENDING),
        (Part.HOOKS, _HOOKS),
        (Part.HAND_OVER, _HAND_OVER),
    ):
        if any(name in file for file in files for name in known):
            return part
    return Part.PIPELINE


class Samples:
    """Processor seconds by part, between `sampled` and its end."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(Part, 0.0)
        self._last_seconds = 0.0

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Samples meanwhile, on the main thread."""
        before = signal.signal(signal.SIGPROF, self._take)
        self._last_seconds = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.signal(signal.SIGPROF, before)

    def _take(self, _number: int, frame: FrameType | None) -> None:
        files = []
        while frame is not None:
            files.append(frame.f_code.co_filename)
            frame = frame.f_back
        now_seconds = time.process_time()
        self.seconds[part_of(files)] += now_seconds - self._last_seconds
        self._last_seconds = now_seconds
