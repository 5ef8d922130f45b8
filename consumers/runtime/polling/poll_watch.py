"""Watches the polls of one role: failed polls are counted and logged, and make `/healthz` fail if they persist."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import structlog
from aiokafka.errors import ConsumerStoppedError, KafkaError

from consumers.runtime.registry import Instruments

RETRY_SECONDS: Final = 1.0
"""Pause after a failed poll, so that polls that fail at once do not use up the processor."""
LINE_SECONDS: Final = 30.0
"""Time between log lines about failing polls. The first failure is logged at once."""
MAX_FAILING_SECONDS: Final = 30.0
"""How long polls may fail, for other reasons than an unreachable broker, before only a restart helps."""
QUIET_SECONDS: Final = 10.0
"""Time without a failure after which the trouble counts as over. A single good poll is not enough: one partition may still fail."""

log = structlog.get_logger()


class PollWatch:
    """Runs every poll and swallows its errors. The position has not moved, so the next poll tries again."""

    def __init__(
        self, role: str, instruments: Instruments | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Starts without failures.

        Args:
            role: Name of the role in log lines and in the metric.
            instruments: Count failures; None for no count.
            clock: Monotonic seconds.
        """
        self._role = role
        self._instruments = instruments
        self._clock = clock
        self._failing_since = self._failed_at = 0.0
        self._is_failing = False  # for another reason than a broker that is away
        self._line_at: float | None = None
        self._since_line = 0

    def stalled(self) -> Sequence[str]:
        """Reasons why only a restart helps, for `/healthz`: polls have failed for MAX_FAILING_SECONDS."""
        if not self._is_failing or self._clock() - self._failed_at > QUIET_SECONDS:
            return ()
        failing_seconds = self._failed_at - self._failing_since
        if failing_seconds <= MAX_FAILING_SECONDS:
            return ()
        return (f"{self._role}: its polls of Kafka have failed for {failing_seconds:.0f} s",)

    async def watched(self, poll: Callable[[], Awaitable[tuple[Any, ...]]]) -> tuple[Any, ...]:
        """Returns the records of a poll; none, after a pause, if it fails.

        Raises:
            ConsumerStoppedError: The client is stopped.
        """
        try:
            return await poll()
        except ConsumerStoppedError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is: it would end reading, with one line an hour
            self.failed(error)
        await asyncio.sleep(RETRY_SECONDS)
        return ()

    def failed(self, error: Exception) -> None:
        """Counts and logs a failed poll."""
        now = self._clock()
        if self._instruments is not None:
            self._instruments.inc("callgauge_poll_failures_total", (self._role,))
        # Retriable errors mean that the broker is unreachable, or moves partitions.
        if not (isinstance(error, KafkaError) and error.retriable):
            if not self._is_failing or now - self._failed_at > QUIET_SECONDS:
                self._is_failing, self._failing_since = True, now
            self._failed_at = now
        self._since_line += 1
        if self._line_at is not None and now - self._line_at < LINE_SECONDS:
            return
        log.error(
            "kafka_poll_failed",
            role=self._role,
            record=", ".join(getattr(error, "__notes__", ())) or None,
            error=repr(error),
            failures=self._since_line,
            what_happens_now=f"It is tried again from the same position every {RETRY_SECONDS:.0f} s; other partitions go on. "
            f"If it lasts for {MAX_FAILING_SECONDS:.0f} s and the broker is not away, /healthz fails.",
            what_to_do="See to what the error names: rights, the topic's settings, or that record.",
            exc_info=None if isinstance(error, KafkaError) else error,
        )
        self._line_at, self._since_line = now, 0
