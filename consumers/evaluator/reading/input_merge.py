"""Merges the records of the four inputs of one partition number in the order in which the broker received them.

The turns of a call do not depend on the order in which its topics are read, but its end does: records must not overtake an end
event in a topic that lags. So an input that runs ahead waits here for the inputs that are known to lag. Nearly always none
lags, and nothing waits.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Any, Final

Records = Sequence[Any]
_PLACE: Final = attrgetter("partition", "topic")
TIME_MS: Final = attrgetter("timestamp")

MAX_AHEAD_RECORDS: Final = 2_000
"""Waiting records of an input at which its reading pauses: more than one answer of the broker usually has."""
MAX_AHEAD_BYTES: Final = 2 * 2**20
"""Waiting bytes of an input at which its reading pauses."""


def runs_by_partition(records: Records) -> dict[int, list[Records]]:
    """Returns the records by partition number, in runs of one topic each.

    Args:
        records: Records as polled: those of one partition of a topic are next to each other.
    """
    runs: dict[int, list[Records]] = {}
    for (number, _), run in groupby(records, key=_PLACE):
        runs.setdefault(number, []).append(tuple(run))
    return runs


def in_time_order(runs: Sequence[Records]) -> Records:
    """Returns the records of all runs by broker timestamp. Each run keeps its order, even if its timestamps step back.

    A poll returns one topic after the other. The engine would come to the same result, but would have to replay late events;
    this is cheaper.
    """
    if len(runs) == 1:
        return runs[0]
    records: list[Any] = []
    keys: list[int] = []
    for run in runs:
        records.extend(run)
        # Not the timestamps themselves: a producer's clock may step back, an offset does not.
        keys.extend(accumulate(map(TIME_MS, run), max))
    # Sorting finds the ascending runs by itself and is stable, so it is a merge.
    return [records[index] for index in sorted(range(len(records)), key=keys.__getitem__)]


class _Ahead:
    """Waiting records of one input. `times_ms` never decreases, although a producer's clock may step back."""

    __slots__ = ("latest_ms", "records", "size_bytes", "times_ms")

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.times_ms: list[int] = []
        self.latest_ms = 0
        self.size_bytes = 0


class InputMerge:
    """Buffers of one partition number, by topic."""

    def __init__(self) -> None:
        self._inputs: dict[str, _Ahead] = {}

    @property
    def waiting_records(self) -> int:
        """Number of waiting records of all inputs."""
        return sum(len(ahead.records) for ahead in self._inputs.values())

    def waits(self, topic: str) -> bool:
        """Whether a record of this topic waits."""
        ahead = self._inputs.get(topic)
        return ahead is not None and bool(ahead.records)

    def first_offset(self, topic: str) -> int:
        """Returns the offset of the first waiting record of this topic; -1 if none waits."""
        return int(self._inputs[topic].records[0].offset) if self.waits(topic) else -1

    def is_full(self, topic: str, *, is_paused: bool) -> bool:
        """Whether reading of this topic should pause. A paused topic goes on when half of its waiting records are gone."""
        ahead = self._inputs.get(topic)
        share = 2 if is_paused else 1
        return ahead is not None and (
            len(ahead.records) * share > MAX_AHEAD_RECORDS or ahead.size_bytes * share > MAX_AHEAD_BYTES
        )

    def put(self, runs: Sequence[Records]) -> None:
        """Adds records. Each run is of one topic and follows its earlier records."""
        for run in runs:
            topic = run[0].topic
            ahead = self._inputs.get(topic)
            if ahead is None:
                ahead = self._inputs[topic] = _Ahead()
            times_ms = list(accumulate((record.timestamp for record in run), max, initial=ahead.latest_ms))[1:]
            ahead.latest_ms = times_ms[-1]
            ahead.records += run
            ahead.times_ms += times_ms
            ahead.size_bytes += sum(len(record.value or b"") for record in run)

    def let_through(self, until_ms: int | None, stops: Mapping[str, int] | None = None) -> Records:
        """Removes and returns records, by broker time and in each topic's own order.

        Args:
            until_ms: Broker time of the last records to return; None for all.
            stops: By topic, the offset from which records keep waiting; None for none.
        """
        records: list[Any] = []
        times_ms: list[int] = []
        for topic, ahead in self._inputs.items():
            number = len(ahead.records) if until_ms is None else bisect_right(ahead.times_ms, until_ms)
            if stops is not None:
                number = min(number, bisect_left(ahead.records, stops[topic], key=_offset_of))
            if number:
                taken = ahead.records[:number]
                records += taken
                times_ms += ahead.times_ms[:number]
                del ahead.records[:number], ahead.times_ms[:number]
                ahead.size_bytes -= sum(len(record.value or b"") for record in taken)
        # Sorting finds the ascending runs by itself and is stable, so it is a merge.
        return [records[index] for index in sorted(range(len(records)), key=times_ms.__getitem__)]

    def clear(self) -> None:
        """Drops the waiting records: they are read again, here or by another owner."""
        self._inputs.clear()


def _offset_of(record: Any) -> int:
    return int(record.offset)
