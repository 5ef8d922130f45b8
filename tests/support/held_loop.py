"""How long one step of an event loop holds it, in processor time: meanwhile nothing else of the
process has a turn.
"""

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

MOST_SECONDS: Final = 0.05
"""The longest step that the product allows itself at default limits."""


@contextmanager
def kept_out_of_collections() -> Iterator[None]:
    """Keeps the objects of other tests out of collections of cycles: to search them takes longer
    than any step.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class HeldLoop:
    """Measures every step of the event loop of the thread that enters it.

    Only the processor time of that thread counts, so other programs change little.

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

        self._keeping = kept_out_of_collections()
        self._keeping.__enter__()
        # every step of a loop goes through it
        asyncio.Handle._run = measured  # type: ignore[method-assign,assignment]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]
        self._keeping.__exit__(None, None, None)

    def forget(self) -> None:
        """Begins anew, for example after what a test sets up."""
        self.longest_seconds, self.longest_step = 0.0, ""

    def _note(self, seconds: float, handle: Any) -> None:
        if seconds > self.longest_seconds:
            self.longest_seconds, self.longest_step = seconds, repr(handle)[:500]
