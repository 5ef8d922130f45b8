"""How far broker time has come in a partition: the clock by which silence is judged.

Silence may only be read from inputs of which nothing is outstanding. An input that is read to its end is known up to
the moment the broker last said so; one that lags, up to its last record. The partition is where its hindmost input is, so
neither a backlog nor a broker that does not answer looks like silence.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple


class InputProgress(NamedTuple):
    """How far one input partition is read.

    Attributes:
        position: Offset of the next record to be handed over.
        end: Offset after the last record that may be read, as the broker last said.
        told_at_ms: When we were told the answer before that, on our clock: up to then it is true; None if there was none.
        newest_told_at_ms: When we were told the last answer.
        last_record_ms: Broker timestamp of the last record handed over; None if there was none yet.
        since_ms: When reading began, on our clock.
        is_paused: Whether we do not read it on for now.
    """

    position: int
    end: int
    told_at_ms: int | None
    newest_told_at_ms: int | None
    last_record_ms: int | None
    since_ms: int
    is_paused: bool

    @property
    def is_at_end(self) -> bool:
        """Whether nothing was outstanding when the broker last spoke."""
        return self.told_at_ms is not None and self.position >= self.end

    @property
    def lag_messages(self) -> int:
        """Records still to be handed over."""
        return max(0, self.end - self.position)


STALE_MS: Final = 5_000
"""The broker tells the end ten times a second; when it has not for this long, nobody knows what is outstanding."""


def broker_time_ms(inputs: Iterable[InputProgress]) -> int | None:
    """The broker time up to which every input of a partition is known; None while one of them is not known at all."""
    known = [progress.told_at_ms if progress.is_at_end else progress.last_record_ms for progress in inputs]
    times_ms = [time_ms for time_ms in known if time_ms is not None]
    return min(times_ms) if times_ms and len(times_ms) == len(known) else None


SILENT_MS: Final = 1_000
"""When an input has not told its end for this long, records taken since may stand in it: other inputs wait for it."""
PATIENCE_MS: Final = 30_000
"""How long they wait for an input that says nothing at all: longer than a partition needs to get another leader. Then calls
go on without it, which is worth more to whoever watches them than the exact order."""


def in_order_until_ms(inputs: Iterable[InputProgress | None], since_ms: int, now_ms: int) -> int | None:
    """Up to which broker time records may be folded in the order in which the broker took them.

    Args:
        inputs: Those of one partition number; None for one of which nothing is known yet.
        since_ms: When reading began, on our clock.
        now_ms: Our clock.

    Returns:
        None when no input is known to lag, which is nearly always: every record may be folded.
    """
    bounds_ms: list[int] = []
    for progress in inputs:
        if progress is None or progress.newest_told_at_ms is None:
            if now_ms - since_ms <= PATIENCE_MS:
                bounds_ms.append(0)
        elif progress.is_paused or progress.lag_messages:
            bounds_ms.append(progress.last_record_ms or 0)
        elif SILENT_MS < now_ms - progress.newest_told_at_ms <= PATIENCE_MS:
            bounds_ms.append(progress.newest_told_at_ms + SILENT_MS)
    return min(bounds_ms, default=None)


def lag_ms(progress: InputProgress, caught_up_at_ms: int | None, now_ms: int) -> int:
    """At most how old the oldest outstanding record is, in ms; 0 if none is outstanding.

    It came after the last record that was handed over, and after the last moment at which nothing was outstanding. When
    the broker is silent, something may be outstanding since it last spoke.

    Args:
        progress: The input partition now.
        caught_up_at_ms: When it was last seen at its end; None if never.
        now_ms: Our clock.
    """
    if progress.told_at_ms is None:
        return max(0, now_ms - progress.since_ms)
    if progress.is_at_end:
        return now_ms - progress.told_at_ms if now_ms - progress.told_at_ms > STALE_MS else 0
    bounds_ms = [time_ms for time_ms in (progress.last_record_ms, caught_up_at_ms) if time_ms is not None]
    return max(0, now_ms - max(bounds_ms, default=progress.since_ms))
