"""An event loop whose time jumps to the next timer, so that a test of a minute takes a
millisecond.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

_BEGIN_MS: Final = 1_800_000_000_000
_LEAST_SECONDS: Final = 1e-6
"""Any less may vanish in the rounding, and then the loop would turn without end."""
_Result = TypeVar("_Result")


class _JumpingSelector(selectors.DefaultSelector):
    """Does not wait: if nothing has happened, the time to wait is over."""

    def __init__(self) -> None:
        super().__init__()
        self.now_seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("the loop would wait for ever: no timer is set and nothing is ready")
        if not ready and timeout is not None:
            self.now_seconds += max(timeout, _LEAST_SECONDS)
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """Its time can be the clocks of the tested code, too."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._jumping.now_seconds

    def wall_clock_ms(self) -> int:
        """The same as a time in 2027, in ms since 1970."""
        return _BEGIN_MS + round(1_000 * self.time())

    def finish(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Runs the work to its end, and closes the loop."""
        try:
            return self.run_until_complete(work)
        finally:
            self.close()
