"""Orders the records of one poll by the time at which the broker received them, without reordering a topic."""

from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Any, Final

Records = Sequence[Any]
_PLACE: Final = attrgetter("partition", "topic")
TIME_MS: Final = attrgetter("timestamp")


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
