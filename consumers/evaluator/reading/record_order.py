"""The records of one poll in the order in which the broker took them, as far as their topics allow."""

from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Any, Final

Records = Sequence[Any]
_PLACE: Final = attrgetter("partition", "topic")
TIME_MS: Final = attrgetter("timestamp")


def runs_by_partition(records: Records) -> dict[int, list[Records]]:
    """The records by partition number; each run is of one topic, in its own order.

    Args:
        records: As polled: those of a topic's partition stand together.
    """
    runs: dict[int, list[Records]] = {}
    for (number, _), run in groupby(records, key=_PLACE):
        runs.setdefault(number, []).append(tuple(run))
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
        keys.extend(accumulate(map(TIME_MS, run), max))
    # Sorting finds the ascending runs by itself and is stable, so it is a merge.
    return [records[index] for index in sorted(range(len(records)), key=keys.__getitem__)]
