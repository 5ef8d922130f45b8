"""Overload: twice the highest rate of an evaluator for two minutes, then less than its highest rate."""

import time
from pathlib import Path
from typing import Final

from tests.chaos.cluster.cluster import Cluster
from tests.chaos.evaluators.evaluator_page import LAG_MESSAGES, LAG_SECONDS, OPEN_CALLS, resident_bytes, samples, total
from tests.chaos.evaluators.fleet import Evaluator
from tests.chaos.runs.chaos_run import Outcome, Plan
from tests.chaos.stage import RunError, Say, Stage

CALLS: Final = 1_000
"""On the line at a time, at every rate: calls are played faster, since more calls would need more memory for a good reason."""
LIMITS: Final = {"CALLGAUGE_LIMITS__IDLE_MS": "10000", "CALLGAUGE_LIMITS__CLOSING_GRACE_MS": "500"}
"""A call that ended stays open for its grace, or until it is silent for too long. Calls that are played twice as fast end
twice as often, so that at the usual limits the open calls would be twice as many too."""
STEP: Final = 1.25
STEP_SECONDS: Final = 10.0
HELD_LAG_SECONDS: Final = 1.0
"""The evaluator keeps up with a rate while it is no further behind than this."""
BEFORE_SECONDS: Final = 40.0
OVERLOAD_SECONDS: Final = 120.0
NORMAL_SHARE: Final = 0.3
"""Share of its highest rate that an operator would plan for."""
CATCH_UP_SECONDS: Final = 300.0
MOST_MEMORY: Final = 1.5
LOOK_SECONDS: Final = 1.0


def overload(plan: Plan, cluster: Cluster, folder: Path, say: Say) -> Outcome:
    """Finds the rate that one evaluator holds, doubles it for two minutes, halves it, and judges as every run does."""
    with Stage(cluster, folder, say, partitions=plan.partitions, command=plan.command, limits=LIMITS) as stage:
        stage.wait_for_fleet(1)
        stage.start_load(calls=CALLS, ramp_seconds=plan.ramp_seconds, seed=plan.seed)
        watch = _Watch(stage, stage.fleet.members[0])
        held = watch.highest_held_rate()
        normal = held * NORMAL_SHARE
        stage.load.set_rate(normal)
        watch.until_caught_up(CATCH_UP_SECONDS)
        watch.reset()
        watch.look_for(BEFORE_SECONDS)
        before, usual_lag, usual_open = watch.most_memory, watch.most_lag, watch.most_open
        events = stage.load.report.events
        stage.load.set_rate(2 * held)
        stage.note(f"twice the rate it holds, for {OVERLOAD_SECONDS:.0f} s")
        watch.reset()
        watch.look_for(OVERLOAD_SECONDS)
        overloaded = (stage.load.report.events - events) / OVERLOAD_SECONDS
        stage.load.set_rate(normal)
        stage.note("normal again")
        seconds = watch.until_caught_up(CATCH_UP_SECONDS)
        watch.look_for(BEFORE_SECONDS)
        after = watch.most_memory
        stage.finish()
        line = (
            f"overload: {overloaded:,.0f} events/s for {OVERLOAD_SECONDS:.0f} s, twice what is held; lag before "
            f"{usual_lag:,.0f} records, at most {watch.most_lag:,.0f} ({watch.most_lag_seconds:.0f} s), caught up "
            f"{seconds:.0f} s after; open calls before {usual_open:,.0f}, at most {watch.most_open:,.0f}; "
            f"memory before {before / 1e6:.0f} MB, at most {after / 1e6:.0f} MB ({after / before:.2f} x)"
        )
        if after > MOST_MEMORY * before:
            raise RunError(f"{line}: more than {MOST_MEMORY} x")
        return Outcome(stage.judged(), 1, (line, *stage.fleet.told()))


class _Watch:
    """Follows the lag and the memory of one evaluator."""

    def __init__(self, stage: Stage, evaluator: Evaluator) -> None:
        self._stage = stage
        self._evaluator = evaluator
        self.lag = 0.0
        self.lag_seconds = 0.0
        self.reset()
        stage.status = lambda: f"lag {self.lag:,.0f} ({self.lag_seconds:.1f} s)"

    def reset(self) -> None:
        """Forgets the most that was seen."""
        self.most_lag = 0.0
        self.most_lag_seconds = 0.0
        self.most_memory = 0
        self.most_open = 0.0

    def look_for(self, seconds: float) -> None:
        """Lets time pass and keeps the most of everything."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._stage.look_for(LOOK_SECONDS)
            self.lag = total(self._evaluator, LAG_MESSAGES)
            self.lag_seconds = max((value for _, value in samples(self._evaluator, LAG_SECONDS)), default=0.0)
            self.most_lag = max(self.most_lag, self.lag)
            self.most_lag_seconds = max(self.most_lag_seconds, self.lag_seconds)
            self.most_open = max(self.most_open, total(self._evaluator, OPEN_CALLS))
            self.most_memory = max(self.most_memory, resident_bytes(self._evaluator))

    def highest_held_rate(self) -> float:
        """Plays faster and faster until the evaluator falls behind; the last rate at which it did not."""
        rate = 1.0
        while True:
            events, begin = self._stage.load.report.events, time.monotonic()
            self.look_for(STEP_SECONDS)
            per_second = (self._stage.load.report.events - events) / (time.monotonic() - begin)
            is_held = self.lag < per_second * HELD_LAG_SECONDS
            self._stage.note(f"{per_second:,.0f} events/s: {'held' if is_held else 'not held'}, lag {self.lag:,.0f}")
            if not is_held:
                return rate / STEP
            rate *= STEP
            self._stage.load.set_rate(rate)

    def until_caught_up(self, most_seconds: float) -> float:
        """Lets time pass until the evaluator is no further behind than usual; how long that took."""
        begin = time.monotonic()
        while True:
            events = self._stage.load.report.events
            self.look_for(2 * LOOK_SECONDS)
            per_second = (self._stage.load.report.events - events) / (2 * LOOK_SECONDS)
            if self.lag < max(per_second, 1) * HELD_LAG_SECONDS:
                return time.monotonic() - begin
            if time.monotonic() - begin > most_seconds:
                raise RunError(f"the lag is still {self.lag:,.0f} records after {most_seconds:.0f} s of normal load")
