"""Three brokers: the leader of every partition is killed once, under load."""

import signal
import time
from pathlib import Path
from typing import Final

from tests.chaos.cluster.cluster import Cluster
from tests.chaos.runs.chaos_run import Outcome, Plan
from tests.chaos.stage import RunError, Say, Stage

BETWEEN_SECONDS: Final = 15.0
"""From the moment that every replica is in sync to the next kill."""
IN_SYNC_SECONDS: Final = 120.0


def leaders_killed(plan: Plan, cluster: Cluster, folder: Path, say: Say) -> Outcome:
    """Kills one node after the other with -9, each when all replicas are in sync, and judges as every run does."""
    with Stage(cluster, folder, say, partitions=plan.partitions, command=plan.command) as stage:
        stage.wait_for_fleet(plan.evaluators)
        stage.start_load(calls=plan.calls, ramp_seconds=plan.ramp_seconds, seed=plan.seed, rate=plan.rate)
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
        lines = (f"the leader of each of {len(killed)} partitions was killed", *stage.fleet.told())
        return Outcome(stage.judged(), kills, lines)


def _wait_for_replicas(stage: Stage) -> None:
    deadline = time.monotonic() + IN_SYNC_SECONDS
    stage.look()
    while any(node.is_down for node in stage.cluster.nodes) or stage.cluster.unreplicated():
        stage.look_for(1.0)
        if time.monotonic() > deadline:
            raise RunError(f"{stage.cluster.unreplicated()} partitions are not in sync after {IN_SYNC_SECONDS:.0f} s")
