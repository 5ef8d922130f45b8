"""Who leads an input, and until when its replicas agree that it still does. Pure.

A leader that is cut off from the other brokers does not learn that another has been chosen, and goes on to answer: nothing
is outstanding, it says, while records come to the new one. But a new leader is one of the replicas in sync, and takes no
record before it knows that it leads. So where a log ends is true up to the moment at which each of them followed the same leader.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from consumers.evaluator.reading.partition_clock import LogEnd

SILENT_REPLICA_MS: Final = 2_000
"""A replica that has not answered for so long is not waited for as long as more than half have: one that hangs must not stop
time on all inputs of which it has a copy, until the cluster does without it. Of those that answer each must agree."""


class Leadership(NamedTuple):
    """What one broker knows about one input.

    Attributes:
        leader: The broker that leads it; -1 for none.
        epoch: Its reign; each new leader has a higher one.
        in_sync: Brokers that may become its leader next, itself among them.
        replicas: All that have a copy: any of them may be in sync soon.
    """

    leader: int
    epoch: int
    in_sync: frozenset[int]
    replicas: frozenset[int]


def newest(views: Iterable[Leadership]) -> Leadership:
    """What is true if brokers differ: the latest reign counts, and whoever is in sync or has a copy as anybody sees it.

    Args:
        views: At least one.
    """
    views = list(views)
    epoch = max(view.epoch for view in views)
    latest = [view for view in views if view.epoch == epoch]
    in_sync, replicas = (frozenset().union(*each) for each in zip(*(view[2:] for view in latest), strict=True))
    return latest[0]._replace(in_sync=in_sync, replicas=replicas)


class Agreement:
    """What the replicas of one input have answered in one reign.

    Attributes:
        leadership: Whom they follow.
    """

    def __init__(self, leadership: Leadership) -> None:
        """Nobody has answered yet."""
        self.leadership = leadership
        self._asked_at_ms: dict[int, int] = {}
        self._since_ms = 0
        self._offset = 0
        self._is_over = False

    def end_reign(self) -> None:
        """A replica follows a later leader: this one is not believed any more, even by way of replicas that have not learned it."""
        self._is_over = True

    def answered(self, node: int, offset: int, asked_at_ms: int) -> LogEnd | None:
        """A replica follows this leader, or is it.

        Args:
            node: The replica.
            offset: After the last record that it has; of a follower it is not the end.
            asked_at_ms: When it was asked, on the steady clock.

        Returns:
            Where the log ends; None while too few have answered, or another leads.
        """
        asked = self._asked_at_ms
        if not asked or asked_at_ms > max(asked.values()) + SILENT_REPLICA_MS:  # nobody was asked for a while
            asked.clear()
            self._since_ms = asked_at_ms
        asked[node] = asked_at_ms
        leader = self.leadership.leader
        if node == leader:
            self._offset = offset
        in_sync, replicas = self.leadership.in_sync | {leader}, self.leadership.replicas
        silent_ms = max(asked.values()) - SILENT_REPLICA_MS
        times_ms = sorted((asked[each] for each in in_sync & asked.keys()), reverse=True)
        most = len(in_sync) // 2 + 1
        # Who has not answered yet may know better.
        is_too_early = not replicas <= asked.keys() and self._since_ms >= silent_ms
        if self._is_over or is_too_early or leader not in asked or len(times_ms) < most:
            return None
        heard_ms = [time_ms for time_ms in asked.values() if time_ms >= silent_ms]
        return LogEnd(self._offset, min(asked[leader], times_ms[most - 1], *heard_ms))
