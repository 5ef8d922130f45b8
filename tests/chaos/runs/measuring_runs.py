"""Runs that measure something and judge as every run does: recovery, overload, the cost of fencing,
and killed leaders.
"""

import json
import signal
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from consumers.runtime.process import wall_clock_ms
from tests.chaos.cluster.cluster import Cluster
from tests.chaos.evaluators.fleet import (
    ALTERED,
    COMMAND,
    LAG_MESSAGES,
    LAG_SECONDS,
    OPEN_CALLS,
    Member,
    partitions_of,
    resident_bytes,
    samples,
    total,
)
from tests.chaos.runs.chaos_run import Outcome, Plan
from tests.chaos.stage import RunError, Say, Stage
from tests.chaos.verdict.checker import Findings
from tests.chaos.verdict.topic_reader import ReadRecord

# -- how long calls are without an evaluator when one goes
# ------------------------------------------------------

LIVE_MS: Final = 2_000
"""A partition is live again when a score that is no older than this comes out of it."""
MOST_SECONDS: Final = 300.0
AFTERWARDS_SECONDS: Final = 20.0


def recovery(plan: Plan, cluster: Cluster, folder: Path, say: Say) -> Outcome:
    """`plan.evaluators`, `plan.calls` calls for `plan.seconds`; then one of them is killed with -9
    and not replaced.
    """
    return _measured(plan, cluster, folder, say, in_order=False)


def recovery_after_stop(plan: Plan, cluster: Cluster, folder: Path, say: Say) -> Outcome:
    """The same with SIGTERM: one evaluator leaves in order, as in every deployment."""
    return _measured(plan, cluster, folder, say, in_order=True)


def _measured(plan: Plan, cluster: Cluster, folder: Path, say: Say, *, in_order: bool) -> Outcome:
    """Takes the time until every partition of the evaluator that went is live again.

    A partition counts as live again with the first record of `scores` that was caused by an event
    the broker took after the signal and less than `LIVE_MS` ago; the figure is that of the last
    partition.
    """
    with Stage(cluster, folder, say, partitions=plan.partitions, command=plan.command) as stage:
        stage.wait_for_fleet(plan.evaluators)
        stage.start_load(
            calls=plan.calls, ramp_seconds=plan.ramp_seconds, seed=plan.seed, rate=plan.rate
        )
        stage.look_for(plan.seconds)
        victim, *survivors = stage.fleet.members
        waiting = partitions_of(victim)
        taken_over = _assignments(survivors)
        open_calls = stage.load.report.open_calls
        again_before = _read_again(survivors)
        if in_order:
            victim.terminate(for_good=True)
        else:
            victim.kill(for_good=True)
        killed_at, killed_ms = time.monotonic(), wall_clock_ms()
        how = "SIGTERM" if in_order else "kill -9"
        stage.note(
            f"{how} evaluator 1 of {plan.evaluators}, which had partitions {sorted(waiting)}"
        )
        lost = len(waiting)
        noticed_seconds: float | None = None
        seconds: list[float] = []
        while waiting:
            for record in stage.look():
                if record.partition in waiting and _is_live(record, killed_ms):
                    waiting.remove(record.partition)
                    seconds.append(time.monotonic() - killed_at)
            if noticed_seconds is None and _assignments(survivors) >= taken_over + len(survivors):
                noticed_seconds = time.monotonic() - killed_at
            if time.monotonic() - killed_at > MOST_SECONDS:
                raise RunError(
                    f"partitions {sorted(waiting)} are not live after {MOST_SECONDS:.0f} s"
                )
        stage.note(f"the last of {lost} partitions is live again")
        stage.look_for(AFTERWARDS_SECONDS)
        again = _read_again(survivors) - again_before
        stage.finish()
        line = (
            f"recovery from {how}: {open_calls:,} open calls, {lost} of {plan.partitions} "
            "partitions lost; first live again after "
            f"{min(seconds):.1f} s, all after {max(seconds):.1f} s, of which "
            f"{noticed_seconds or 0:.1f} s until the group "
            f"gave them to others; {again:,} events folded again"
        )
        figures = {
            "open_calls": float(open_calls),
            "seconds": max(seconds),
            "notice_seconds": noticed_seconds or 0.0,
            "events_read_again": again,
        }
        return Outcome(stage.judged(), 1, (line, *stage.told()), figures)


def _is_live(record: ReadRecord, killed_ms: int) -> bool:
    if not record.value:
        return False
    known_ms = int(json.loads(record.value).get("known_ms", 0))
    return known_ms > killed_ms and wall_clock_ms() - known_ms < LIVE_MS


def _assignments(survivors: Iterable[Member]) -> int:
    """How often the group has given one of them partitions."""
    return sum(each.text.count("partitions_assigned") for each in survivors)


def _read_again(survivors: Iterable[Member]) -> float:
    """How many events they have folded so far that a former owner had folded."""
    return sum(total(each, "callgauge_events_total", outcome="replayed") for each in survivors)


# -- three brokers: the leader of every partition is killed once, under load
# -------------------------------------------

BETWEEN_SECONDS: Final = 15.0
"""From the moment that every replica is in sync to the next kill."""
IN_SYNC_SECONDS: Final = 120.0


def leaders_killed(plan: Plan, cluster: Cluster, folder: Path, say: Say) -> Outcome:
    """Kills one node after the other with -9, each when all replicas are in sync, and judges as
    every run does.
    """
    with Stage(cluster, folder, say, partitions=plan.partitions, command=plan.command) as stage:
        stage.wait_for_fleet(plan.evaluators)
        stage.start_load(
            calls=plan.calls, ramp_seconds=plan.ramp_seconds, seed=plan.seed, rate=plan.rate
        )
        killed: set[tuple[str, int]] = set()
        kills = 0
        begin = time.monotonic()
        for node in cluster.nodes:
            _wait_for_replicas(stage)
            stage.look_for(BETWEEN_SECONDS)
            led = {where for where, leader in cluster.leaders().items() if leader == node.number}
            killed |= led
            kills += 1
            node.take_down(signal.SIGKILL)
            stage.note(f"kill -9 node {node.number}, leader of {len(led)} partitions")
        _wait_for_replicas(stage)
        spared = cluster.leaders().keys() - killed
        if spared:
            raise RunError(f"the leaders of {sorted(spared)[:5]} were never killed")
        stage.look_for(begin + plan.seconds - time.monotonic())
        stage.finish()
        lines = (f"the leader of each of {len(killed)} partitions was killed", *stage.told())
        return Outcome(stage.judged(), kills, lines)


def _wait_for_replicas(stage: Stage) -> None:
    deadline = time.monotonic() + IN_SYNC_SECONDS
    stage.look()
    while any(node.is_down for node in stage.cluster.nodes) or stage.cluster.unreplicated():
        stage.look_for(1.0)
        if time.monotonic() > deadline:
            raise RunError(
                f"{stage.cluster.unreplicated()} partitions are not in sync after "
                f"{IN_SYNC_SECONDS:.0f} s"
            )


# -- twice the highest rate of an evaluator for two minutes, then less than its highest rate
# ---------------------------

OVERLOAD_CALLS: Final = 1_000
"""On the line at a time, at every rate: calls are played faster, since more calls would need more
memory for a good reason.
"""
SHORT_LIMITS: Final = {
    "CALLGAUGE_LIMITS__IDLE_MS": "10000",
    "CALLGAUGE_LIMITS__CLOSING_GRACE_MS": "500",
}
"""A call that ended stays open for its grace, or until it is silent for too long. Calls that are
played twice as fast end twice as often, so that at the usual limits the open calls would be twice
as many too.
"""
STEP: Final = 1.25
RATE_STEP_SECONDS: Final = 10.0
HELD_LAG_SECONDS: Final = 1.0
"""The evaluator keeps up with a rate while it is no further behind than this."""
BEFORE_SECONDS: Final = 40.0
OVERLOAD_SECONDS: Final = 120.0
NORMAL_SHARE: Final = 0.3
"""Share of its highest rate that an operator would plan for."""
CATCH_UP_SECONDS: Final = 300.0
MOST_MEMORY: Final = 1.5
WATCH_SECONDS: Final = 1.0


def overload(plan: Plan, cluster: Cluster, folder: Path, say: Say) -> Outcome:
    """Finds the rate that one evaluator holds, doubles it for two minutes, halves it, and judges as
    every run does.
    """
    with Stage(
        cluster, folder, say, partitions=plan.partitions, command=plan.command, limits=SHORT_LIMITS
    ) as stage:
        stage.wait_for_fleet(1)
        stage.start_load(calls=OVERLOAD_CALLS, ramp_seconds=plan.ramp_seconds, seed=plan.seed)
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
            f"overload: {overloaded:,.0f} events/s for {OVERLOAD_SECONDS:.0f} s, twice what is "
            "held; lag before "
            f"{usual_lag:,.0f} records, at most {watch.most_lag:,.0f} "
            f"({watch.most_lag_seconds:.0f} s), caught up "
            f"{seconds:.0f} s after; open calls before {usual_open:,.0f}, at most "
            f"{watch.most_open:,.0f}; "
            f"memory before {before / 1e6:.0f} MB, at most {after / 1e6:.0f} MB "
            f"({after / before:.2f} x)"
        )
        if after > MOST_MEMORY * before:
            raise RunError(f"{line}: more than {MOST_MEMORY} x")
        return Outcome(stage.judged(), 1, (line, *stage.told()))


class _Watch:
    """Follows the lag and the memory of one evaluator."""

    def __init__(self, stage: Stage, evaluator: Member) -> None:
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
            self._stage.look_for(WATCH_SECONDS)
            self.lag = total(self._evaluator, LAG_MESSAGES)
            self.lag_seconds = max(
                (value for _, value in samples(self._evaluator, LAG_SECONDS)), default=0.0
            )
            self.most_lag = max(self.most_lag, self.lag)
            self.most_lag_seconds = max(self.most_lag_seconds, self.lag_seconds)
            self.most_open = max(self.most_open, total(self._evaluator, OPEN_CALLS))
            self.most_memory = max(self.most_memory, resident_bytes(self._evaluator))

    def highest_held_rate(self) -> float:
        """Plays faster and faster until the evaluator falls behind; the last rate at which it did
        not.
        """
        rate = 1.0
        while True:
            events, begin = self._stage.load.report.events, time.monotonic()
            self.look_for(RATE_STEP_SECONDS)
            per_second = (self._stage.load.report.events - events) / (time.monotonic() - begin)
            is_held = self.lag < per_second * HELD_LAG_SECONDS
            self._stage.note(
                f"{per_second:,.0f} events/s: {'held' if is_held else 'not held'}, lag "
                f"{self.lag:,.0f}"
            )
            if not is_held:
                return rate / STEP
            rate *= STEP
            self._stage.load.set_rate(rate)

    def until_caught_up(self, most_seconds: float) -> float:
        """Lets time pass until the evaluator is no further behind than usual; how long
        that took.
        """
        begin = time.monotonic()
        while True:
            events = self._stage.load.report.events
            self.look_for(2 * WATCH_SECONDS)
            per_second = (self._stage.load.report.events - events) / (2 * WATCH_SECONDS)
            if self.lag < max(per_second, 1) * HELD_LAG_SECONDS:
                return time.monotonic() - begin
            if time.monotonic() - begin > most_seconds:
                raise RunError(
                    f"the lag is still {self.lag:,.0f} records after {most_seconds:.0f} s of "
                    "normal load"
                )


# -- scores in transactions of one producer per partition, against plain idempotent writes
# -----------------------------

PLAIN: Final = (*ALTERED, "without", "transactions")
WAYS: Final[dict[str, Sequence[str]]] = {"plain": PLAIN, "fenced": COMMAND}
ROUNDS: Final = 2
"""The ways take turns: the machine is not equally fast all the time."""
STEADY_CALLS: Final = 500
STEADY_SECONDS: Final = 40.0
BACKLOG_CALLS: Final = 1_000
BACKLOG_RATE: Final = 8.0
BACKLOG_SECONDS: Final = 20.0
DRAIN_SECONDS: Final = 300.0
SHORT_RAMP_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.005
"""Between two looks at `scores`: a score is seen at most so much later than possible."""


def fencing(plan: Plan, cluster: Cluster, folder: Path, say: Say) -> Outcome:
    """One evaluator each way: how soon a score can be read after its event, and how many it writes
    per second at most.

    The first is measured under steady load, the second on a backlog that was there before the
    evaluator.
    """
    findings = Findings()
    delays_ms: dict[str, list[float]] = {way: [] for way in WAYS}
    per_second: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(ROUNDS):
        for way, command in WAYS.items():
            own = folder / f"{way}-{number}"
            own.mkdir(parents=True)
            prefix = f"{way}{number}.steady."
            with Stage(
                cluster, own, say, partitions=plan.partitions, command=command, prefix=prefix
            ) as stage:
                delays_ms[way] += _delays_ms(stage, plan.seed)
                findings.add(stage.judged())
            prefix = f"{way}{number}.backlog."
            with Stage(
                cluster, own, say, partitions=plan.partitions, command=command, prefix=prefix
            ) as stage:
                per_second[way].append(_scores_per_second(stage, plan.seed))
                findings.add(stage.judged())
    lines = [
        f"{way}: event to score p50 {_percentile(delays_ms[way], 50):.0f} ms, p99 "
        f"{_percentile(delays_ms[way], 99):.0f} ms; "
        f"backlog {max(per_second[way]):,.0f} scores/s (rounds: "
        f"{', '.join(f'{each:,.0f}' for each in per_second[way])})"
        for way in WAYS
    ]
    ratio = max(per_second["fenced"]) / max(per_second["plain"])
    added_ms = [
        _percentile(delays_ms["fenced"], n) - _percentile(delays_ms["plain"], n) for n in (50, 99)
    ]
    lines.append(
        f"fencing: {ratio:.2f} of the scores/s, adds {added_ms[0]:.0f} ms at p50 and "
        f"{added_ms[1]:.0f} ms at p99"
    )
    return Outcome(findings, 0, lines)


def _delays_ms(stage: Stage, seed: int) -> list[float]:
    """From the broker taking an event to the score that it caused being readable, for every score
    of the steady time.
    """
    stage.wait_for_fleet(1)
    stage.start_load(calls=STEADY_CALLS, ramp_seconds=SHORT_RAMP_SECONDS, seed=seed)
    stage.look_for(SHORT_RAMP_SECONDS)
    delays_ms = []
    until = time.monotonic() + STEADY_SECONDS
    while time.monotonic() < until:
        records = stage.look(LOOK_SECONDS)
        seen_ms = time.time_ns() / 1e6
        for record in records:
            if not record.value:
                continue
            row = json.loads(record.value)
            if "wait" in row.get("news", ()):  # decisions by silence have no event
                delays_ms.append(seen_ms - row["known_ms"])
    stage.finish()
    return delays_ms


def _scores_per_second(stage: Stage, seed: int) -> float:
    """How fast an evaluator writes that has nothing to wait for."""
    stage.start_load(
        calls=BACKLOG_CALLS, ramp_seconds=SHORT_RAMP_SECONDS, seed=seed, rate=BACKLOG_RATE
    )
    stage.look_for(BACKLOG_SECONDS)
    stage.load.end()
    while not stage.load.report.has_ended:
        stage.look()
    stage.wait_for_fleet(1)
    begin: float | None = None
    written = 0
    deadline = time.monotonic() + DRAIN_SECONDS
    while stage.closed < stage.load.report.calls * _MOSTLY:
        records = stage.look(LOOK_SECONDS)
        if records and begin is None:
            begin = time.monotonic()
        written += len(records)
        if time.monotonic() > deadline:
            raise RunError(
                f"a backlog of {stage.load.report.events:,} events is not drained after "
                f"{DRAIN_SECONDS:.0f} s"
            )
    seconds = time.monotonic() - (begin or deadline)
    stage.finish()
    return written / seconds


_MOSTLY: Final = 0.9
"""Of the calls must be closed; the others hung up without a word, and are closed by
their silence.
"""


def _percentile(values: Sequence[float], number: int) -> float:
    return (
        statistics.quantiles(values, n=100, method="inclusive")[number - 1]
        if len(values) > 1
        else 0.0
    )
