"""The run that measures how long calls are without an evaluator when one of two is killed, and
judges as every run does.
"""

import json
import time
from pathlib import Path
from typing import Final

from consumers.runtime.process import wall_clock_ms
from tests.chaos.cluster.cluster import Cluster
from tests.chaos.evaluators.fleet import (
    Member,
    partitions_of,
    total,
)
from tests.chaos.runs.chaos_run import Outcome, Plan
from tests.chaos.stage import RunError, Say, Stage
from tests.chaos.verdict.topic_reader import ReadRecord

LIVE_MS: Final = 2_000
"""A partition is live again when a score that is no older than this comes out of it."""
MOST_SECONDS: Final = 300.0
AFTERWARDS_SECONDS: Final = 20.0


def recovery(plan: Plan, cluster: Cluster, folder: Path, say: Say) -> Outcome:
    """Two evaluators, `plan.calls` calls for `plan.seconds`; then one is killed with -9 and not
    replaced. The time is that until every partition of the killed one is live again.

    A partition counts as live again with the first record of `scores` that was caused by an event
    the broker took after the signal and less than `LIVE_MS` ago; the figure is that of the last
    partition.
    """
    with Stage(cluster, folder, say, partitions=plan.partitions, command=plan.command) as stage:
        stage.wait_for_fleet(2)
        stage.start_load(
            calls=plan.calls, ramp_seconds=plan.ramp_seconds, seed=plan.seed, rate=plan.rate
        )
        stage.look_for(plan.seconds)
        victim, survivor = stage.fleet.members
        waiting = partitions_of(victim)
        taken_over = survivor.text.count("partitions_assigned")
        open_calls = stage.load.report.open_calls
        again_before = _read_again(survivor)
        victim.kill(for_good=True)
        killed_at, killed_ms = time.monotonic(), wall_clock_ms()
        stage.note(f"kill -9 evaluator 1 of 2, which had partitions {sorted(waiting)}")
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
                raise RunError(
                    f"partitions {sorted(waiting)} are not live after {MOST_SECONDS:.0f} s"
                )
        stage.note(f"the last of {lost} partitions is live again")
        stage.look_for(AFTERWARDS_SECONDS)
        again = _read_again(survivor) - again_before
        stage.finish()
        line = (
            f"recovery from kill -9: {open_calls:,} open calls, {lost} of {plan.partitions} "
            "partitions lost; first live again after "
            f"{min(seconds):.1f} s, all after {max(seconds):.1f} s, of which "
            f"{noticed_seconds or 0:.1f} s until the group "
            f"gave them to the survivor; {again:,} events folded again"
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


def _read_again(survivor: Member) -> float:
    """How many events it has folded so far that a former owner had folded."""
    return total(survivor, "callgauge_events_total", outcome="replayed")
