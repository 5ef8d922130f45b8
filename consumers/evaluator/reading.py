"""Reading the inputs of a partition: the broker time by which silence is judged, and their records in that order while one lags."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from consumers.runtime.kafka.log_ends import LogEnd

# Broker time of a partition: the clock by which silence is judged.
#
# Silence counts only while no record of any input is outstanding. An input that is read to its end is known up to the
# moment at which the broker last confirmed that end; an input that lags, up to its last record. The time of the
# partition is that of its slowest input, so neither a backlog nor a broker that does not answer looks like silence.
# For an input with replicas, the leader must confirm the end, because it knows records that readers do not see yet,
# and the replicas must agree that it leads.


class End(NamedTuple):
    """End of an input, as far as it can be read.

    Attributes:
        offset: Offset after the last record, or after the last readable one while a transaction is open.
        valid_until_ms: Until when that is true, on the steady clock; None if it is not known.
        answered_at_ms: When the broker last reported it, on the steady clock; None if it is not known.
    """

    offset: int
    valid_until_ms: int | None
    answered_at_ms: int | None

    def or_of_log(self, log_end: LogEnd | None, visible_end: int) -> "End":
        """Returns the end of an input with replicas. Only the end that its leader reported shows that nothing is outstanding.

        Args:
            log_end: The end by the leader; None before its first answer.
            visible_end: Offset after the last record that readers see; above `offset` while a transaction is open.
        """
        if log_end is None:
            return End(self.offset, None, None)
        until_ms = log_end.asked_at_ms
        if self.offset < visible_end:  # records after the open transaction are not visible yet
            valid_until_ms = None if self.valid_until_ms is None else min(self.valid_until_ms, until_ms)
            newest_ms = None if self.answered_at_ms is None else min(self.answered_at_ms, until_ms)
            return End(self.offset, valid_until_ms, newest_ms)
        return End(max(self.offset, log_end.offset), until_ms, until_ms)


class InputProgress(NamedTuple):
    """Progress of reading one input partition. All moments are in our estimate of broker time.

    Attributes:
        position: Offset of the next record to read.
        end: Offset after the last record to read, as the broker last reported it.
        valid_until_ms: Until when that end is true; None if it is not known.
        answered_at_ms: When the broker last reported it; None if it is not known.
        last_record_ms: Broker timestamp of the last record that was read; None before the first.
        since_ms: When reading began.
        moved_at_ms: When reading last moved on, or had nothing to read, or was paused.
        is_paused: Whether reading is paused.
    """

    position: int
    end: int
    valid_until_ms: int | None
    answered_at_ms: int | None
    last_record_ms: int | None
    since_ms: int
    moved_at_ms: int
    is_paused: bool

    @property
    def is_at_end(self) -> bool:
        """Whether nothing was outstanding when the broker last answered."""
        return self.valid_until_ms is not None and self.position >= self.end

    @property
    def known_ms(self) -> int | None:
        """Broker time up to which the input is known; None if it is not known at all."""
        return self.valid_until_ms if self.is_at_end else self.last_record_ms

    @property
    def lag_messages(self) -> int:
        """Number of records still to read."""
        return max(0, self.end - self.position)


STALE_MS: Final = 5_000
"""Age at which the reported end of an input is out of date. The broker reports it several times a second."""


def broker_time_ms(inputs: Iterable[InputProgress]) -> int | None:
    """Returns the broker time up to which every input of a partition is known; None while one is not known at all."""
    known = [progress.known_ms for progress in inputs]
    times_ms = [time_ms for time_ms in known if time_ms is not None]
    return min(times_ms) if times_ms and len(times_ms) == len(known) else None


SILENT_MS: Final = 1_000
"""Silence of the broker about an input after which the other inputs wait for it, because it may have new records."""
PATIENCE_MS: Final = 30_000
"""How long the other inputs wait for an input without answers, or with outstanding records that do not come. It is longer than a
partition needs to elect a leader, or a leader to remove a dead replica. After that, calls go on without the input: live results
are worth more than the exact order."""


def in_order_until_ms(inputs: Iterable[InputProgress | None], since_ms: int, now_ms: int) -> int | None:
    """Returns the broker time up to which records may be folded in the order in which the broker received them.

    Args:
        inputs: Progress of the inputs of one partition number; None for an input that is not known yet.
        since_ms: When reading began, in our estimate of broker time.
        now_ms: Now, on the same clock.

    Returns:
        None when no input is known to lag, which is nearly always: every record may be folded. Otherwise never before
        `broker_time_ms`, so that time does not pass before waiting records.
    """
    bounds_ms: list[int] = []
    for progress in inputs:
        if progress is None:
            if now_ms - since_ms <= PATIENCE_MS:
                bounds_ms.append(0)
        elif progress.answered_at_ms is None:
            if now_ms - since_ms <= PATIENCE_MS:
                bounds_ms.append(progress.last_record_ms or 0)
        elif progress.is_paused or progress.lag_messages:
            if now_ms - progress.moved_at_ms <= PATIENCE_MS:
                bounds_ms.append(max(progress.last_record_ms or 0, progress.known_ms or 0))
        elif SILENT_MS < now_ms - progress.answered_at_ms <= PATIENCE_MS:
            bounds_ms.append(progress.answered_at_ms + SILENT_MS)
    return min(bounds_ms, default=None)


def lag_ms(progress: InputProgress, caught_up_at_ms: int | None, now_ms: int) -> int:
    """Returns an upper bound of the age of the oldest outstanding record in ms; 0 if none is outstanding.

    That record came after the last record that was read, and after the last moment at which nothing was outstanding. While the
    broker does not answer, records may be outstanding since its last answer.

    Args:
        progress: Progress of the input partition.
        caught_up_at_ms: When its end was last reached, in our estimate of broker time; None if never.
        now_ms: Now, on the same clock.
    """
    if progress.valid_until_ms is None:
        return max(0, now_ms - progress.since_ms)
    if progress.is_at_end:
        return now_ms - progress.valid_until_ms if now_ms - progress.valid_until_ms > STALE_MS else 0
    bounds_ms = [time_ms for time_ms in (progress.last_record_ms, caught_up_at_ms) if time_ms is not None]
    return max(0, now_ms - max(bounds_ms, default=progress.since_ms))


# Merges the records of the four inputs of one partition number in the order in which the broker received them.
#
# The turns of a call do not depend on the order in which its topics are read, but its end does: records must not
# overtake an end event in a topic that lags. So an input that runs ahead waits here for the inputs that are known to
# lag. Nearly always none lags, and nothing waits.

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
