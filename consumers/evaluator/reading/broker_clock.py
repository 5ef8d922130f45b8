"""Estimates the broker's time from a clock that nobody sets, corrected by the timestamps of records.

When calls end and what counts as silence is judged by the time at which the broker took records. This machine's wall clock
may be set at any moment; a step of it must neither close calls nor hold them back. So the wall clock is read once, at the
start, and from then on time goes as the machine counts it. A record that comes where the broker had nothing a moment before
was taken within that moment: so records prove how far the estimate is off, and only they correct it.
"""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog
from aiokafka import TopicPartition

from consumers.runtime.registry import Instruments
from schemas.units import to_seconds

STEP_MS: Final = 250
"""The wall clock moves against the machine's count only when it is set. Less than this is not worth a word: it makes what
the broker said that much older or newer, once."""
ALLOWED_MS: Final = 1_000
"""How far the estimate may be from what records prove before it is corrected: clocks of brokers differ by less, and a third
of what counts as dead air is not lost."""
RECENT_MS: Final = 60_000
"""How long what an input has proved is asked of before the estimate moves: the clocks of several brokers must agree."""
UNPROVED_MS: Final = 2_000
"""How long after everything is read time goes no further than the newest record, at the start, unless a record proves the
wall clock right: nobody has seen yet whether it is. A topic with calls has a record in less."""
READ_TRIES: Final = 5
"""How often the two clocks are read until nothing came between: a process that is frozen there would see a step."""
LOG_APPEND_TIME: Final = 1
"""`timestamp_type` of a record that carries the broker's time, and not its producer's."""

log = structlog.get_logger()


class Reading(NamedTuple):
    """Two clocks of this machine at one moment, in ms: one that people set, and one that nobody can."""

    wall_ms: int
    steady_ms: int


def read_clocks() -> Reading:
    """Both clocks; the steady one goes on while the machine sleeps, where the system has such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    for _ in range(READ_TRIES):
        before_ns = time.clock_gettime_ns(clock)
        wall_ns = time.time_ns()
        steady_ns = time.clock_gettime_ns(clock)
        if steady_ns - before_ns < 1_000_000:
            break
    return Reading(wall_ns // 1_000_000, steady_ns // 1_000_000)


class _Proof(NamedTuple):
    """By how much the broker's time is ahead of the steady clock: between these two, as one input's records prove."""

    at_ms: int
    least_ms: int
    most_ms: int
    is_of_broker: bool


class BrokerClock:
    """The one estimate of broker time in an evaluator. Times on the steady clock stay right when the estimate is corrected."""

    def __init__(self, instruments: Instruments, read: Callable[[], Reading] = read_clocks) -> None:
        """Believes the wall clock, this once.

        Args:
            instruments: Where steps are counted and the offset is read.
            read: Gives the two clocks.
        """
        self._read = read
        self._instruments = instruments
        first = read()
        self._wall_ahead_ms = first.wall_ms - first.steady_ms
        self._broker_ahead_ms = self._wall_ahead_ms
        self._proofs: dict[TopicPartition, _Proof] = {}
        self._is_trusted = False
        self._doubted_since_ms: int | None = None
        instruments.read_gauge("callgauge_clock_offset_seconds", lambda: {(): to_seconds(self.wall_offset_ms)})

    @property
    def wall_offset_ms(self) -> int:
        """By how much the wall clock is ahead of the estimate."""
        return self._wall_ahead_ms - self._broker_ahead_ms

    def steady_ms(self) -> int:
        """Now, on the clock that nobody sets: for how long something took."""
        return self._read().steady_ms

    def now_ms(self) -> int:
        """Now, by the broker's time as far as we know it."""
        return self.broker_ms(self.steady_ms())

    def broker_ms(self, steady_ms: int) -> int:
        """The broker's time at a moment of the steady clock."""
        return steady_ms + self._broker_ahead_ms

    def steady_ms_of(self, wall_ms: int) -> int:
        """The moment of the steady clock at which the wall clock showed this, after its latest step; never after now."""
        return min(wall_ms - self._wall_ahead_ms, self.steady_ms())

    def was_stepped(self) -> bool:
        """Looks at the wall clock: whether somebody has set it since the last look. Logs and counts it."""
        wall_ms, steady_ms = self._read()
        by_ms = wall_ms - steady_ms - self._wall_ahead_ms
        if abs(by_ms) < STEP_MS:
            return False
        self._wall_ahead_ms += by_ms
        self._instruments.inc("callgauge_clock_steps_total")
        log.warning(
            "clock_stepped",
            by_seconds=to_seconds(by_ms),
            ahead_of_broker_seconds=to_seconds(self.wall_offset_ms),
            what_happens_now="Time in calls goes on as before, so no call closes and none waits because of this. Records "
            "prove whether the clock is right now.",
            what_to_do="Find out what sets the clock of this machine; NTP that slews does not step it.",
        )
        return True

    def is_trusted(self) -> bool:
        """Whether time may go on without records; to be asked when everything is read."""
        if not self._is_trusted:
            now_ms = self.steady_ms()
            if self._doubted_since_ms is None:
                self._doubted_since_ms = now_ms
            self._is_trusted = now_ms - self._doubted_since_ms >= UNPROVED_MS
        return self._is_trusted

    def weigh(self, tp: TopicPartition, empty_at_ms: int, first_ms: int, last_ms: int, *, is_of_broker: bool) -> None:
        """Takes what records prove that came just now to an input of which nothing was outstanding.

        Args:
            tp: The input.
            empty_at_ms: When nothing was outstanding, on the steady clock: the records came after that.
            first_ms: Timestamp of the first of them.
            last_ms: Timestamp of the last.
            is_of_broker: Whether the timestamps are the broker's, and not the producers'.
        """
        now_ms = self.steady_ms()
        least_ms, most_ms = last_ms - now_ms, first_ms - empty_at_ms
        if least_ms <= most_ms:  # else it is not one clock that wrote them
            self._proofs[tp] = _Proof(now_ms, least_ms, most_ms, is_of_broker)

    def correct(self) -> bool:
        """Corrects the estimate, as far as every input that has proved something lately wants it corrected.

        What the broker's timestamps prove counts at once. Those of producers count only where the wall clock is between
        them: a producer whose clock is wrong must not move the time of all calls.

        Returns:
            Whether it was.
        """
        now_ms = self.steady_ms()
        self._proofs = {tp: proof for tp, proof in self._proofs.items() if now_ms - proof.at_ms <= RECENT_MS}
        of_broker = [proof for proof in self._proofs.values() if proof.is_of_broker]
        proofs = of_broker or list(self._proofs.values())
        if not proofs:
            return False
        least_ms = min(proof.least_ms for proof in proofs)
        most_ms = max(proof.most_ms for proof in proofs)
        if not of_broker and not least_ms - ALLOWED_MS <= self._wall_ahead_ms <= most_ms + ALLOWED_MS:
            return False
        self._is_trusted = True
        if least_ms - ALLOWED_MS <= self._broker_ahead_ms <= most_ms + ALLOWED_MS:
            return False
        proved_ms = least_ms if self._broker_ahead_ms < least_ms else most_ms
        self._correct_to(proved_ms if of_broker else self._wall_ahead_ms)
        return True

    def forget(self) -> None:
        """The inputs are others now: what they proved is asked of no longer."""
        self._proofs.clear()

    def _correct_to(self, broker_ahead_ms: int) -> None:
        by_ms = broker_ahead_ms - self._broker_ahead_ms
        self._broker_ahead_ms = broker_ahead_ms
        log.warning(
            "clock_corrected",
            by_seconds=to_seconds(by_ms),
            wall_ahead_of_broker_seconds=to_seconds(self.wall_offset_ms),
            what_happens_now="Records prove that the broker's time is another than we took it for; time in calls follows "
            "theirs." + (" Calls wait until it has come as far again." if by_ms < 0 else ""),
            what_to_do="Compare the clocks of this machine and of the brokers, and keep both by NTP; `callgauge doctor` "
            "shows the difference.",
        )
