"""Broker time of a partition: the clock by which silence is judged.

Silence counts only while no record of any input is outstanding. An input that is read to its end is known up to the moment at
which the broker last confirmed that end; an input that lags, up to its last record. The time of the partition is that of its
slowest input, so neither a backlog nor a broker that does not answer looks like silence. For an input with replicas, the leader
must confirm the end, because it knows records that readers do not see yet, and the replicas must agree that it leads.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from consumers.runtime.kafka.log_ends import LogEnd


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
