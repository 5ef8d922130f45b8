"""How far broker time has come in a partition: the clock by which silence is judged.

Silence may only be read from inputs of which nothing is outstanding. An input that is read to its end is known up to
the moment the broker last said so; one that lags, up to its last record. The partition is where its hindmost input is, so
neither a backlog nor a broker that does not answer looks like silence. Of an input that has replicas the leader must say
so, which knows of records that it does not show yet: they are a backlog like any other. And the replicas must agree that it
leads.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple


class LogEnd(NamedTuple):
    """Where the log of an input with replicas ends, whether readers see that far or not.

    Attributes:
        offset: After the last record that the leader has.
        asked_at_ms: Up to when that is true, on the steady clock: the leader was asked by then, and nobody had replaced it.
    """

    offset: int
    asked_at_ms: int


class End(NamedTuple):
    """Where an input ends for us.

    Attributes:
        offset: After the last record that there is, or that may be read if a transaction is open.
        valid_until_ms: Up to when that is true, on the steady clock; None if nobody knows.
        answered_at_ms: When we were told last, on the steady clock; None if nobody knows.
    """

    offset: int
    valid_until_ms: int | None
    answered_at_ms: int | None

    def or_of_log(self, log_end: LogEnd | None, visible_end: int) -> "End":
        """The same of an input with replicas: only what its leader said of the log says that nothing is outstanding.

        Args:
            log_end: What it said; None if it has not spoken yet.
            visible_end: After the last record that readers may see; more than `offset` while a transaction is open.
        """
        if log_end is None:
            return End(self.offset, None, None)
        until_ms = log_end.asked_at_ms
        if self.offset < visible_end:  # what stands after the open transaction is not written yet for us
            valid_until_ms = None if self.valid_until_ms is None else min(self.valid_until_ms, until_ms)
            newest_ms = None if self.answered_at_ms is None else min(self.answered_at_ms, until_ms)
            return End(self.offset, valid_until_ms, newest_ms)
        return End(max(self.offset, log_end.offset), until_ms, until_ms)


class InputProgress(NamedTuple):
    """How far one input partition is read.

    Attributes:
        position: Offset of the next record to be handed over.
        end: Offset after the last record that is to be read, as the broker last said.
        valid_until_ms: Up to when that is true, by our estimate of broker time; None if nobody knows.
        answered_at_ms: When we were told last.
        last_record_ms: Broker timestamp of the last record handed over; None if there was none yet.
        since_ms: When reading began, by our estimate of broker time.
        moved_at_ms: When something was last handed over or nothing was outstanding or to be read on, by the same.
        is_paused: Whether we do not read it on for now.
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
        """Whether nothing was outstanding when the broker last spoke."""
        return self.valid_until_ms is not None and self.position >= self.end

    @property
    def known_ms(self) -> int | None:
        """Broker time up to which it is known; None if it is not known at all."""
        return self.valid_until_ms if self.is_at_end else self.last_record_ms

    @property
    def lag_messages(self) -> int:
        """Records still to be handed over."""
        return max(0, self.end - self.position)


STALE_MS: Final = 5_000
"""The broker tells the end several times a second; when it has not for this long, nobody knows what is outstanding."""


def broker_time_ms(inputs: Iterable[InputProgress]) -> int | None:
    """The broker time up to which every input of a partition is known; None while one of them is not known at all."""
    known = [progress.known_ms for progress in inputs]
    times_ms = [time_ms for time_ms in known if time_ms is not None]
    return min(times_ms) if times_ms and len(times_ms) == len(known) else None


SILENT_MS: Final = 1_000
"""When an input has not told its end for this long, records taken since may stand in it: other inputs wait for it."""
PATIENCE_MS: Final = 30_000
"""How long they wait for an input that says nothing at all, or hands nothing over though something is outstanding: longer
than a partition needs to get another leader, or a leader to do without a dead replica. Then calls go on without it, which is
worth more to whoever watches them than the exact order."""


def in_order_until_ms(inputs: Iterable[InputProgress | None], since_ms: int, now_ms: int) -> int | None:
    """Up to which broker time records may be folded in the order in which the broker took them.

    Args:
        inputs: Those of one partition number; None for one of which nothing is known yet.
        since_ms: When reading began, by our estimate of broker time.
        now_ms: Now, by the same.

    Returns:
        None when no input is known to lag, which is nearly always: every record may be folded. Never before
        `broker_time_ms`, which would let time pass before the records that it holds.
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
    """At most how old the oldest outstanding record is, in ms; 0 if none is outstanding.

    It came after the last record that was handed over, and after the last moment at which nothing was outstanding. When
    the broker is silent, something may be outstanding since it last spoke.

    Args:
        progress: The input partition now.
        caught_up_at_ms: When it was last seen at its end; None if never.
        now_ms: Now, by the same.
    """
    if progress.valid_until_ms is None:
        return max(0, now_ms - progress.since_ms)
    if progress.is_at_end:
        return now_ms - progress.valid_until_ms if now_ms - progress.valid_until_ms > STALE_MS else 0
    bounds_ms = [time_ms for time_ms in (progress.last_record_ms, caught_up_at_ms) if time_ms is not None]
    return max(0, now_ms - max(bounds_ms, default=progress.since_ms))
