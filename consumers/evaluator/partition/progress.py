"""Whether a partition gets on under its owner.

A step of one call that takes longer than the session timeout, or ends the process, comes back to each new owner: it reads
the same records again. So the commit note counts owners, each before it folds, and one that lives on past the place where
the one before it was sets the count back. `stuck_partitions` says what is done when too many have not.
"""

from collections.abc import Mapping
from typing import Final

from consumers.evaluator.partition.partition import InputStart

MAX_TAKEOVERS_WITHOUT_PROGRESS: Final = 3
"""Owners that may end without getting on: two crashes in a row are bad luck. Each costs a session timeout and a replay."""
PROGRESS_LASTS_MS: Final = 3_000
"""How long an owner must live after it has got on and broker time has passed: what it lives through is committed by then."""


class Progress:
    """How a partition gets on under one owner.

    Attributes:
        takeovers: Owners since the partition last got on, this one included; 0 once it has.
    """

    def __init__(self, starts: Mapping[str, InputStart], takeovers: int) -> None:
        """Nothing is folded yet.

        Args:
            starts: By topic, where reading begins and how far an earlier owner got.
            takeovers: As noted at the takeover, this one included; 0 where nobody counts.
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
        """How far it is: it gets on when a call is done with, when it reads what nobody read before, or when it waits for more.

        Not before broker time has passed since then: many a step, a close above all, is taken when time comes to it.

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
