"""Detects whether a partition makes progress under its owner.

If a step of one call takes longer than the session timeout, or ends the process, it does so to each new owner, which reads the
same records again. So the commit note counts owners. Each adds itself before it folds, and resets the count when it has read
further than its predecessor. `stuck_partitions` acts when too many owners made no progress.
"""

from collections.abc import Mapping
from typing import Final

from consumers.evaluator.partition.partition import InputStart

MAX_TAKEOVERS_WITHOUT_PROGRESS: Final = 3
"""Owners that may end without progress. Two crashes in a row are bad luck; each costs a session timeout and a replay."""
PROGRESS_LASTS_MS: Final = 3_000
"""How long an owner must live after its progress before the count is reset. Its progress is committed by then."""


class Progress:
    """Progress of a partition under one owner.

    Attributes:
        takeovers: Owners since the partition last made progress, this one included; 0 once this one has made progress.
    """

    def __init__(self, starts: Mapping[str, InputStart], takeovers: int) -> None:
        """Starts before the first record.

        Args:
            starts: By topic, the start of reading and how far earlier owners had read.
            takeovers: The count at the takeover, this owner included; 0 if owners are not counted.
        """
        self.takeovers = takeovers
        self._starts = starts
        self._reached_ms: int | None = None
        self._since_ms: int | None = None

    @property
    def stops(self) -> dict[str, int] | None:
        """By topic, the offset before which to stop and close a call; None when the partition is not stuck."""
        if self.takeovers <= MAX_TAKEOVERS_WITHOUT_PROGRESS:
            return None
        return {topic: max(start.offset, start.seen_before) for topic, start in self._starts.items()}

    def note(
        self,
        now_ms: int,
        broker_ms: int,
        watermarks: Mapping[str, int],
        positions: Mapping[str, int],
        *,
        has_caught_up: bool,
    ) -> None:
        """Notes how far the partition is. It makes progress when its oldest call has closed, when it reads records that no owner
        read before, or when it has read everything.

        Progress counts only after broker time has passed since then, because many steps, above all closing, happen in time.

        Args:
            now_ms: Our clock.
            broker_ms: Broker time that the partition has come to.
            watermarks: By topic, where a successor must start to read.
            positions: By topic, the offset after the last record folded.
            has_caught_up: Whether everything is read that was there at the takeover.
        """
        if not self.takeovers:
            return
        gets_on = has_caught_up or any(
            watermarks[topic] > start.offset or positions[topic] > max(start.offset, start.seen_before)
            for topic, start in self._starts.items()
        )
        if gets_on and self._reached_ms is None:
            self._reached_ms = broker_ms
        if self._reached_ms is not None and self._since_ms is None and broker_ms > self._reached_ms:
            self._since_ms = now_ms
        if self._since_ms is not None and now_ms - self._since_ms >= PROGRESS_LASTS_MS:
            self.takeovers = 0
