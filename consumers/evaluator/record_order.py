"""The records of one poll in the order in which the broker took them, as far as their topics allow."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

Records = Sequence[Any]


def runs_by_partition(records: Records) -> dict[int, list[Records]]:
    """The records by partition number; each run is of one topic, in its own order.

    Args:
        records: As polled: those of a topic's partition stand together.
    """
    runs: dict[int, list[Records]] = {}
    start = 0
    last = len(records) - 1
    for index, record in enumerate(records):
        following = records[index + 1] if index < last else None
        if following is None or following.partition != record.partition or following.topic != record.topic:
            runs.setdefault(record.partition, []).append(records[start : index + 1])
            start = index + 1
    return runs


def in_time_order(runs: Sequence[Records]) -> Records:
    """One sequence of all the runs, by broker timestamp; a run's own order is kept whatever its timestamps say.

    A poll hands over one topic after the other. The engine would get the same result from that, as late events, at the
    price of replaying them; this is cheaper.
    """
    if len(runs) == 1:
        return runs[0]
    records: list[Any] = []
    keys: list[int] = []
    for run in runs:
        records.extend(run)
        # Not the timestamps themselves: a producer's clock may step back, an offset does not.
        keys.extend(accumulate((record.timestamp for record in run), max))
    # Sorting finds the ascending runs by itself and is stable, so it is a merge.
    return [records[index] for index in sorted(range(len(records)), key=keys.__getitem__)]
