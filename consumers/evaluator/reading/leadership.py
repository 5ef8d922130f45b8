"""The leader of an input, and the moment until which its replicas agree on it. Pure.

A leader that is cut off from the other brokers does not learn that another was elected. It goes on to answer that nothing is
outstanding, while records arrive at the new leader. But a new leader is one of the replicas in sync, and accepts no record
before it knows that it leads. So the reported end of a log is valid until the moment at which all of them followed the same
leader.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from consumers.evaluator.reading.partition_clock import LogEnd

SILENT_REPLICA_MS: Final = 2_000
"""Silence after which a replica is ignored, as long as more than half of them answer, and all that do agree. A broker that hangs
must not stop time on all its inputs until the cluster removes it."""


class Leadership(NamedTuple):
    """Leadership of one input, as one broker knows it.

    Attributes:
        leader: The broker that leads the input; -1 for none.
        epoch: Number of its reign, higher for each new leader.
        in_sync: Brokers that may become the next leader, itself included.
        replicas: All brokers with a copy. Any of them may be in sync soon.
    """

    leader: int
    epoch: int
    in_sync: frozenset[int]
    replicas: frozenset[int]


def newest(views: Iterable[Leadership]) -> Leadership:
    """Returns the newest leadership of views that may differ: the latest reign, with every replica that any view names.

    Args:
        views: One or more.
    """
    views = list(views)
    epoch = max(view.epoch for view in views)
    latest = [view for view in views if view.epoch == epoch]
    in_sync, replicas = (frozenset().union(*each) for each in zip(*(view[2:] for view in latest), strict=True))
    return latest[0]._replace(in_sync=in_sync, replicas=replicas)


class Agreement:
    """Answers of the replicas of one input in one reign.

    Attributes:
        leadership: The leader that they follow.
    """

    def __init__(self, leadership: Leadership) -> None:
        """Starts without answers."""
        self.leadership = leadership
        self._asked_at_ms: dict[int, int] = {}
        self._since_ms = 0
        self._offset = 0
        self._is_over = False

    def end_reign(self) -> None:
        """Stops trusting this leader, because a replica follows a later one. Replicas that do not know it yet change nothing."""
        self._is_over = True

    def answered(self, node: int, offset: int, asked_at_ms: int) -> LogEnd | None:
        """Notes that a replica is this leader or follows it.

        Args:
            node: The replica.
            offset: Offset after its last record. For a follower, this is not the end of the log.
            asked_at_ms: When it was asked, on the steady clock.

        Returns:
            The end of the log; None while too few have answered, or another replica leads.
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
        # A replica that has not answered yet may follow a later leader.
        is_too_early = not replicas <= asked.keys() and self._since_ms >= silent_ms
        if self._is_over or is_too_early or leader not in asked or len(times_ms) < most:
            return None
        heard_ms = [time_ms for time_ms in asked.values() if time_ms >= silent_ms]
        return LogEnd(self._offset, min(asked[leader], times_ms[most - 1], *heard_ms))
