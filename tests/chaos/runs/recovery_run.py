"""How long calls are without an evaluator when one of two goes, by kill -9 or in order, and the other takes its calls over."""

import json
import time
from pathlib import Path
from typing import Final

from schemas.topics import INPUT_TOPICS
from tests.chaos.cluster.administration import committed
from tests.chaos.cluster.cluster import Cluster
from tests.chaos.evaluators.evaluator_page import partitions_of
from tests.chaos.runs.chaos_run import Outcome, Plan
from tests.chaos.stage import RunError, Say, Stage
from tests.chaos.verdict.topic_reader import ReadRecord, ends

LIVE_MS: Final = 2_000
"""A partition is live again when a score that is no older than this comes out of it."""
MOST_SECONDS: Final = 300.0
AFTERWARDS_SECONDS: Final = 20.0


def recovery(plan: Plan, cluster: Cluster, folder: Path, say: Say) -> Outcome:
    """Two evaluators, `plan.calls` calls for `plan.seconds`; then one is killed with -9 and not replaced."""
    return _measured(plan, cluster, folder, say, in_order=False)


def recovery_after_stop(plan: Plan, cluster: Cluster, folder: Path, say: Say) -> Outcome:
    """The same with SIGTERM: one evaluator leaves in order, as in every deployment."""
    return _measured(plan, cluster, folder, say, in_order=True)


def _measured(plan: Plan, cluster: Cluster, folder: Path, say: Say, *, in_order: bool) -> Outcome:
    """Takes the time until every partition of the evaluator that went is live again.

    A partition counts as live again with the first record of `scores` that was caused by an event the broker took after
    the signal and less than `LIVE_MS` ago; the figure is that of the last partition.
    """
    with Stage(cluster, folder, say, partitions=plan.partitions, command=plan.command) as stage:
        stage.wait_for_fleet(2)
        stage.start_load(calls=plan.calls, ramp_seconds=plan.ramp_seconds, seed=plan.seed, rate=plan.rate)
        stage.look_for(plan.seconds)
        victim, survivor = stage.fleet.members
        waiting = partitions_of(victim)
        taken_over = survivor.text.count("partitions_assigned")
        open_calls = stage.load.report.open_calls
        again = _read_again(stage, waiting)
        if in_order:
            victim.terminate(for_good=True)
        else:
            victim.kill(for_good=True)
        killed_at, killed_ms = time.monotonic(), _now_ms()
        how = "SIGTERM" if in_order else "kill -9"
        stage.note(f"{how} evaluator 1 of 2, which had partitions {sorted(waiting)}")
        lost = len(waiting)
        noticed_seconds: float | None = None
        seconds: list[float] = []
        while waiting:
            for record in stage.look():
                if record.partition in waiting and _is_live(record, killed_ms):
                    waiting.remove(record.partition)
                    seconds.append(time.monotonic() - killed_at)
            if noticed_seconds is None and survivor.text.count("partitions_assigned") > taken_over:
                noticed_seconds = time.monotonic() - killed_at
            if time.monotonic() - killed_at > MOST_SECONDS:
                raise RunError(f"partitions {sorted(waiting)} are not live after {MOST_SECONDS:.0f} s")
        stage.note(f"the last of {lost} partitions is live again")
        stage.look_for(AFTERWARDS_SECONDS)
        stage.finish()
        line = (
            f"recovery from {how}: {open_calls:,} open calls, {lost} of {plan.partitions} partitions lost; first live again after "
            f"{min(seconds):.1f} s, all after {max(seconds):.1f} s, of which {noticed_seconds or 0:.1f} s until the group "
            f"gave them to the survivor; {again:,} events read again"
        )
        figures = {
            "open_calls": float(open_calls),
            "seconds": max(seconds),
            "notice_seconds": noticed_seconds or 0.0,
            "events_read_again": float(again),
        }
        return Outcome(stage.judged(), 1, (line, *stage.fleet.told()), figures)


def _is_live(record: ReadRecord, killed_ms: int) -> bool:
    caused_ms = int(json.loads(record.value or b"{}").get("caused_at_ms", 0))
    return caused_ms > killed_ms and _now_ms() - caused_ms < LIVE_MS


def _read_again(stage: Stage, numbers: set[int]) -> int:
    """Records between the committed offsets and the ends of these partitions of the inputs."""
    bootstrap = stage.cluster.bootstrap
    read = committed(bootstrap, stage.group, numbers)
    written = {
        (stage.prefix + topic, number): end
        for topic in INPUT_TOPICS
        for number, end in ends(bootstrap, stage.prefix + topic, numbers).items()
    }
    return sum(end - read.get(where, 0) for where, end in written.items())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
