"""Estimates the broker's time from a steady clock, which nobody can set, and corrects the estimate by timestamps of records.

Silence and the end of calls are judged by the time at which the broker received records. This machine's wall clock may be set
at any moment, and such a step must neither close calls nor delay their end. So the wall clock is read once, at the start, and
then the steady clock counts. If an input had no outstanding record a moment ago and now has one, the broker received it in
between: such records prove the error of the estimate, and only they correct it.
"""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog
from aiokafka import TopicPartition

from consumers.runtime.registry import Instruments
from schemas.units import to_seconds

STEP_MS: Final = 250
"""Smallest step of the wall clock that is reported. A smaller one only shifts the age of one answer of the broker by as much."""
ALLOWED_MS: Final = 1_000
"""Error of the estimate up to which it is not corrected: clocks of brokers differ by less, and it is a third of the shortest dead
air."""
RECENT_MS: Final = 60_000
"""How long the proof of an input counts. The estimate is corrected only if all recent proofs agree, as brokers have clocks of
their own."""
UNPROVED_MS: Final = 2_000
"""How long after the start, once everything is read, time stays at the newest record, unless a record proves the wall clock
right before. A topic with calls has a record in less time."""
READ_TRIES: Final = 5
"""How often the two clocks are read until no pause falls between the readings, which would look like a step."""
LOG_APPEND_TIME: Final = 1
"""`timestamp_type` of a record that carries the broker's time, and not its producer's."""

log = structlog.get_logger()


class Reading(NamedTuple):
    """Wall clock and steady clock of this machine at one moment, in ms."""

    wall_ms: int
    steady_ms: int


def read_clocks() -> Reading:
    """Reads both clocks. The steady one goes on while the machine sleeps, if the system has such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    for _ in range(READ_TRIES):
        before_ns = time.clock_gettime_ns(clock)
        wall_ns = time.time_ns()
        steady_ns = time.clock_gettime_ns(clock)
        if steady_ns - before_ns < 1_000_000:
            break
    return Reading(wall_ns // 1_000_000, steady_ns // 1_000_000)


class _Proof(NamedTuple):
    """Bounds of how far the broker's time is ahead of the steady clock, proved by records of one input."""

    at_ms: int
    least_ms: int
    most_ms: int
    is_of_broker: bool


class BrokerClock:
    """Estimates the broker time for one evaluator. Moments of the steady clock stay right when the estimate is corrected."""

    def __init__(self, instruments: Instruments, read: Callable[[], Reading] = read_clocks) -> None:
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
        """How far the wall clock is ahead of the estimate, in ms."""
        return self._wall_ahead_ms - self._broker_ahead_ms

    def steady_ms(self) -> int:
        """Returns the present moment of the steady clock."""
        return self._read().steady_ms

    def now_ms(self) -> int:
        """Returns the estimated broker time now."""
        return self.broker_ms(self.steady_ms())

    def broker_ms(self, steady_ms: int) -> int:
        """Returns the estimated broker time at a moment of the steady clock."""
        return steady_ms + self._broker_ahead_ms

    def steady_ms_of(self, wall_ms: int) -> int:
        """Returns the moment of the steady clock at which the wall clock showed `wall_ms` since its latest step; at most now."""
        return min(wall_ms - self._wall_ahead_ms, self.steady_ms())

    def was_stepped(self) -> bool:
        """Whether the wall clock was set since the last call of this method. Logs and counts the step."""
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
        """Whether time may go on without records. Call it only when everything is read."""
        if not self._is_trusted:
            now_ms = self.steady_ms()
            if self._doubted_since_ms is None:
                self._doubted_since_ms = now_ms
            self._is_trusted = now_ms - self._doubted_since_ms >= UNPROVED_MS
        return self._is_trusted

    def weigh(self, tp: TopicPartition, empty_at_ms: int, first_ms: int, last_ms: int, *, is_of_broker: bool) -> None:
        """Notes the proof by records that just came to an input without outstanding records.

        Args:
            tp: The input.
            empty_at_ms: When nothing was outstanding, on the steady clock. The records came after that.
            first_ms: Timestamp of the first record.
            last_ms: Timestamp of the last record.
            is_of_broker: Whether the timestamps are the broker's, not the producers'.
        """
        now_ms = self.steady_ms()
        least_ms, most_ms = last_ms - now_ms, first_ms - empty_at_ms
        if least_ms <= most_ms:  # otherwise several clocks wrote these timestamps
            self._proofs[tp] = _Proof(now_ms, least_ms, most_ms, is_of_broker)

    def correct(self) -> bool:
        """Corrects the estimate as far as all recent proofs agree.

        Proofs by the broker's timestamps count at once. Proofs by producers' timestamps count only if the wall clock agrees: a
        producer with a wrong clock must not move the time of all calls.

        Returns:
            Whether the estimate was corrected.
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
        self._correct_to(self._proved_ms(least_ms, most_ms) if of_broker else self._wall_ahead_ms)
        return True

    def _proved_ms(self, least_ms: int, most_ms: int) -> int:
        """An estimate that the proofs allow, and that is rather too low: a silence that was declared too early stays declared.

        The least is too low by the time that records take to reach us. The most may be too high by all the time without records.
        """
        is_ahead = self._broker_ahead_ms > most_ms
        return self._wall_ahead_ms if is_ahead and least_ms <= self._wall_ahead_ms <= most_ms else least_ms

    def forget(self) -> None:
        """Drops the proofs, because the inputs are others now."""
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
