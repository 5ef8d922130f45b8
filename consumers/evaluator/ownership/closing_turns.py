"""Closes calls that are over a few at a time, so that a thousand that end together delay nothing for longer than a step."""

from collections.abc import Mapping

from consumers.evaluator.partition.owned_partition import OwnedPartition


class ClosingTurns:
    """Whose calls close next: each partition in its turn, so that none waits for all the calls of another.

    Attributes:
        has_more: Whether there was more to close after the last step. Then the next one should come soon.
    """

    def __init__(self, max_unwritten_records: int) -> None:
        """Starts with the lowest partition number.

        Args:
            max_unwritten_records: The calls of a partition with more unwritten records wait until they are written.
        """
        self.has_more = False
        self._last = -1
        self._max_unwritten_records = max_unwritten_records

    def close_some(self, active: Mapping[int, OwnedPartition]) -> None:
        """Takes one step of one partition: it closes as many calls as fit into it."""
        ready = [
            number
            for number, owned in active.items()
            if owned.partition.closing_calls and owned.partition.outbox.records <= self._max_unwritten_records
        ]
        if ready:
            self._last = min((each for each in ready if each > self._last), default=min(ready))
            active[self._last].partition.close_some()
        self.has_more = len(ready) > 1 or any(active[number].partition.closing_calls for number in ready)
