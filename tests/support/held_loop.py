"""How long one step of an event loop keeps the loop, in processor time: what other programs of the machine take does not count."""

import asyncio
import threading
import time
from typing import Any, Self


class HeldLoop:
    """Measures every step of the event loop of the thread that enters it.

    Attributes:
        longest_seconds: Processor time of the longest step so far.
        longest_step: What that step was, for the message of a test.
    """

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        self.longest_step = ""
        self._run = asyncio.Handle._run
        self._thread = 0

    def __enter__(self) -> Self:
        self._thread = threading.get_ident()
        run, held = self._run, self

        def measured(handle: Any) -> Any:
            if threading.get_ident() != held._thread:
                return run(handle)
            began = time.thread_time()
            try:
                return run(handle)
            finally:
                held._note(time.thread_time() - began, handle)

        asyncio.Handle._run = measured  # type: ignore[method-assign,assignment]  # every step of a loop goes through it
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]

    def forget(self) -> None:
        """Begins anew, for example after what a test sets up."""
        self.longest_seconds, self.longest_step = 0.0, ""

    def _note(self, seconds: float, handle: Any) -> None:
        if seconds > self.longest_seconds:
            self.longest_seconds, self.longest_step = seconds, repr(handle)[:500]
