"""Merging the inputs: in which order their records are appended, and up to which time all of them
are read. Pure.

All times are the brokers', in ms since 1970. The turns of a call do not depend on the order in
which its topics are read, but its end does, and so do its labels: records must not overtake those
of an input that lags. So an input that runs ahead waits here for those that are known to lag.
Nearly always none lags, and nothing waits.
"""

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition

from schemas.closed_sets import InputSource
from schemas.log import Next
from schemas.quarantine import UndecodableRecord

SILENT_MS: Final = 1_000
"""Silence of the broker about an input after which the other inputs wait for it, because it may
have new records or be recreated. It is asked twice a second, so after a pause of this process they
wait too: nothing could be told of the time between the records of a backlog.
"""
PATIENCE_MS: Final = 30_000
"""How long the others wait for an input without answers, or with outstanding records that do not
come: longer than a partition needs to elect a leader, or a leader to remove a dead replica. After
that calls go on without it: live results are worth more than the order.
"""
STALE_MS: Final = 5_000
"""Age at which the reported end of an input is out of date."""
STAMP_MS: Final = 500
"""How much later than its stamp a record may stand in its log. A broker stamps it first, and then
its thread may have to wait for a processor: some 120 ms were seen where 25 threads wanted two. So
much later is silence noticed.
"""
MAX_AHEAD_RECORDS: Final = 2_000
"""Waiting records of an input at which it is not read on: more than one answer of the broker
usually has.
"""
MAX_AHEAD_BYTES: Final = 2 * 2**20
"""Waiting bytes of an input at which it is not read on. An answer of the broker comes on top."""
_TIME_MS: Final = attrgetter("timestamp")
FROM_THE_FIRST: Final = -1
"""In place of an offset: reading begins at the first record that there is."""


# Whether the log of an input is still the one that was read: a topic may be deleted and recreated
# under its name.


class Witness(NamedTuple):
    """Knows the last record that was read, and so tells whether a log is still the one that was
    read. Nothing shows it if that record was deleted, or cannot be decoded.

    Attributes:
        time_ms: Its time, the broker's or its producer's.
        checksum: Of key and value; None if it is not known, as after a restart.
    """

    time_ms: int
    checksum: int | None

    @classmethod
    def of(cls, time_ms: int, key: bytes | None, value: bytes | None) -> "Witness":
        """Knows a record."""
        return cls(time_ms, zlib.crc32(value or b"", zlib.crc32(key or b"")))

    def may_be(self, record: Any) -> bool:
        """Whether it is this record, as far as can be told: of one that cannot be decoded nothing
        can.
        """
        if isinstance(record, UndecodableRecord):
            return True
        seen = self.of(record.timestamp, record.key, record.value)
        return seen.time_ms == self.time_ms and self.checksum in {None, seen.checksum}


# An input, and the merge.


class InputPartition:
    """One partition of an input: where it stands, and its records that wait.

    Attributes:
        source: The input.
        tp: Topic and partition number.
        generation: How often it was recreated, as far as has been seen.
        handed: Offset after the last record that was read, or `FROM_THE_FIRST`.
        is_placed: Whether it is read. It is not before its place is found, and while another log
            may have taken the place of the old one.
        is_recreated: Whether another log has taken it. It is not read before `renew`.
        next: Where it stands in the log of all events; None until the first record is known.
        before_next_ms: The time of the record before that; 0 if it is not known.
        leader: The broker that leads it, as the client knows; None before the first answer.
        position: Offset of the client. Ends of transactions are no records, so it may be behind the
            last record that was read.
        end: End of what can be read, by the latest answer.
        told_ms: When the question for that was asked; before the first answer, when the input was
            found.
        sure_ms: When its log was last known to be the one that is read; None before the first
            answer behind `begin`.
        settled_ms: The moment of the latest question for its end to which everything before that
            end is in the log; 0 before.
        records: Those that wait.
    """

    def __init__(
        self,
        source: InputSource,
        tp: TopicPartition,
        now_ms: int,
        place: Next | None = None,
        witness: Witness | None = None,
    ) -> None:
        """Nothing of it is read; `place` is where the log has it, and `witness` what that knows of
        the record before.
        """
        self.source = source
        self.tp = tp
        self.generation, self.handed = place or (0, FROM_THE_FIRST)
        self.is_placed = self.is_recreated = False
        self.next = place
        self.before_next_ms = 0 if witness is None else witness.time_ms
        self.leader: int | None = None
        self.position = self.end = 0
        self.told_ms = self._moved_ms = now_ms
        self.sure_ms: int | None = None
        self.records: list[Any] = []
        self._times_ms: list[int] = []  # never decreases, although a producer's clock may step back
        self._bytes = 0
        self._read_ms = self._appended_ms = self.settled_ms = 0
        self._asked: tuple[int, int] | None = None
        self._witness = witness
        self._is_proving = False  # the first record to come is the one before `handed`

    @property
    def is_full(self) -> bool:
        """Whether so much waits that it is not read on."""
        return len(self.records) > MAX_AHEAD_RECORDS or self._bytes > MAX_AHEAD_BYTES

    @property
    def is_sought(self) -> bool:
        """Whether its place in the log that has its name has to be found."""
        return not self.is_placed and not self.is_recreated

    @property
    def known_ms(self) -> int:
        """Time up to which all of its records are in the log: no event before it will come. 0 if it
        is not known.

        While records wait, the first of them is the next one, and it has come at its time.
        """
        reached_ms = self._times_ms[0] if self.records else self._appended_ms
        return max(self.settled_ms - STAMP_MS, reached_ms)

    @property
    def lag_messages(self) -> int:
        """Records that are not in the log yet."""
        return max(0, self.end - self.position) + len(self.records)

    def lag_ms(self, now_ms: int) -> int:
        """An upper bound of the age of its oldest record that is not in the log; 0 if there is
        none. It came after `known_ms`.
        """
        is_told = now_ms - self.told_ms <= STALE_MS
        if is_told and not self.lag_messages:
            return 0
        return max(0, now_ms - (self.known_ms or self._moved_ms))

    def is_left_out(self, now_ms: int) -> bool:
        """Whether time goes on without it, because it has given no answer for too long."""
        return now_ms - self.told_ms > PATIENCE_MS

    def begin(self, first: int, now_ms: int) -> None:
        """Finds its place in a log that begins at this offset, and is read from there on.

        The record before the place comes first, if it is still there and something is known of it.
        """
        self._is_proving = self._witness is not None and self.handed > first
        self.handed = max(self.handed, first)
        self.is_placed = True
        self.position = self.handed - self._is_proving
        begins = Next(self.generation, self.handed)
        if not self.records and begins != self.next:
            self.next, self.before_next_ms = begins, 0
        self._asked, self._moved_ms, self.sure_ms = None, now_ms, None

    def look_for_silence(self, now_ms: int) -> None:
        """Gives up the place where the broker, or this process, was silent: another log may have
        the input's name now, unnoticed.

        What came behind the silence is read once more, behind the record before the place. So the
        first answer behind `begin` always counts, however late it is: that record comes with it.
        """
        if self.sure_ms is not None and now_ms - self.sure_ms > SILENT_MS:
            self.is_placed = False

    def lose(self, now_ms: int) -> None:
        """Has another leader, or none: another log may have its name now, and it may take its time
        again.
        """
        self.is_placed, self.told_ms = False, now_ms

    def renew(self) -> None:
        """Is another log now, in a new generation. Nothing may wait any more."""
        self.generation, self.handed = self.generation + 1, FROM_THE_FIRST
        self.is_placed = self.is_recreated = False
        self._witness = None
        self.next, self.before_next_ms = Next(self.generation, 0), 0

    def put(self, records: Sequence[Any], now_ms: int) -> bool:
        """Takes the records that were read next.

        Returns:
            Whether they are of the log that was read before. If not, nothing is taken, and it must
            begin again.
        """
        if self._is_proving and self._witness is not None and records[0].offset < self.handed:
            if not self._witness.may_be(records[0]):
                self.is_placed = False
                return False
            records = records[1:]
        self._is_proving = False
        self._moved_ms = self.sure_ms = now_ms
        if records:
            last = records[-1]
            self.handed = last.offset + 1
            self._witness = None
            if not isinstance(last, UndecodableRecord):
                self._witness = Witness.of(last.timestamp, last.key, last.value)
            times_ms = list(accumulate(map(_TIME_MS, records), max, initial=self._read_ms))[1:]
            self._read_ms = times_ms[-1]
            self.records += records
            self._times_ms += times_ms
            self._bytes += sum(len(record.value or b"") for record in records)
        self.position = max(self.position, self.handed)
        return True

    def pop_until(self, until_ms: int | None) -> tuple[list[Any], list[int]]:
        """Removes and returns the waiting records up to this time, all for None, and their times;
        they are appended now.
        """
        number = len(self.records) if until_ms is None else bisect_right(self._times_ms, until_ms)
        taken, times_ms = self.records[:number], self._times_ms[:number]
        if taken:
            del self.records[:number], self._times_ms[:number]
            self._bytes -= sum(len(record.value or b"") for record in taken)
            self.next = Next(self.generation, taken[-1].offset + 1)
            self.before_next_ms = (
                0 if isinstance(taken[-1], UndecodableRecord) else taken[-1].timestamp
            )
            self._appended_ms = times_ms[-1]
        return taken, times_ms

    def bound_ms(self, now_ms: int) -> int | None:
        """Returns up to which time records of others may be appended before its next one; None if
        they need not wait for it.
        """
        if self.is_full:
            since_ms, bound_ms = now_ms, self._read_ms
        elif not self.is_placed:
            since_ms, bound_ms = self.told_ms, self._read_ms
        elif self.position < self.end:
            since_ms, bound_ms = self._moved_ms, self._read_ms
        elif now_ms - self.told_ms > SILENT_MS:
            since_ms, bound_ms = self.told_ms, self.told_ms + SILENT_MS
        else:
            return None
        return max(bound_ms, self.known_ms) if now_ms - since_ms <= PATIENCE_MS else None

    def told(self, asked_ms: int, end: int, handed: int, *, hides_any: bool = False) -> None:
        """The broker has told its end. It was asked at this moment, when so much was read: an end
        below that is another log's.

        If it hides records, because not all replicas have them, then nothing is known of this
        moment.
        """
        if self.sure_ms is None:
            # else its records are on their way
            self.sure_ms = asked_ms if self.position >= end else None
        elif asked_ms - self.sure_ms <= SILENT_MS:
            self.sure_ms = max(self.sure_ms, asked_ms)
        self.told_ms, self.end = asked_ms, end
        if self.position >= end:
            self._moved_ms = max(self._moved_ms, asked_ms)
        if end < handed:
            self.is_placed = False
        elif self.is_placed and not hides_any:
            self._asked = asked_ms, end

    def settle(self) -> None:
        """Knows all up to the last question, if everything before the end told then is in the log,
        or was taken to be appended now.
        """
        if self._asked is not None:
            asked_ms, end = self._asked
            if self.position >= end and not (self.records and self.records[0].offset < end):
                self.settled_ms, self._asked = max(self.settled_ms, asked_ms), None


def in_order_until_ms(inputs: Iterable[InputPartition], now_ms: int) -> int | None:
    """Returns the time up to which records may be appended in the order in which the brokers
    received them.

    Returns:
        None when no input is known to lag, which is nearly always: every record may be appended.
    """
    return min(
        (bound for each in inputs if (bound := each.bound_ms(now_ms)) is not None), default=None
    )


def merged(
    inputs: Iterable[InputPartition], until_ms: int | None
) -> list[tuple[InputPartition, Any]]:
    """Removes and returns the records up to this time, all for None: by time, and those of one
    input in its own order.
    """
    records: list[tuple[InputPartition, Any]] = []
    times_ms: list[int] = []
    for each in inputs:
        if each.records:
            taken, at_ms = each.pop_until(until_ms)
            records += [(each, record) for record in taken]
            times_ms += at_ms
    # Sorting finds the ascending runs by itself and is stable, so it is a merge.
    return [records[index] for index in sorted(range(len(records)), key=times_ms.__getitem__)]


def known_ms(inputs: Iterable[InputPartition], now_ms: int) -> int:
    """Returns the time up to which all inputs are in the log that are not left out; 0 if none is
    known.
    """
    return min((each.known_ms for each in inputs if not each.is_left_out(now_ms)), default=0)
