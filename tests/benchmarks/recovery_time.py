"""The time without an evaluator when one of two is killed: a short run of `python -m tests.chaos
--recovery`.
"""

from pathlib import Path
from typing import Final

from tests.benchmarks.evaluator_cost import PARTITIONS
from tests.benchmarks.figures import Figures, say
from tests.chaos.cluster import cluster as clusters
from tests.chaos.evaluators.fleet import PageError
from tests.chaos.load.load import LoadError
from tests.chaos.runs.chaos_run import Plan
from tests.chaos.runs.measuring_runs import recovery
from tests.chaos.stage import RunError
from tests.chaos.verdict.topic_reader import UnreadableError

CALLS: Final = 1_000
"""At their own pace, 2,000 events/s: two cores can carry two evaluators, the load and the broker at
this rate. The goal is about 5,000, for which `python -m tests.chaos --recovery --calls 5000` needs
more cores.
"""
SECONDS: Final = 45.0
"""Time under full load before the kill: by then, calls have their usual age."""


def measure_recovery(figures: Figures, folder: Path) -> None:
    """Measures on a cluster of its own, which the run may break."""
    what, notice = "until the last call is live again", "of which until the group notices"
    try:
        with clusters.running(folder, 1) as cluster:
            outcome = recovery(
                Plan(evaluators=2, calls=CALLS, seconds=SECONDS, partitions=PARTITIONS, poison=()),
                cluster,
                folder,
                lambda _: None,
            )
    except (RunError, LoadError, UnreadableError, PageError) as error:
        say("one of two evaluators is killed with -9")
        figures.not_measured("recovery_seconds", what, str(error))
        return
    assert outcome.findings.is_clean, outcome.findings
    say(f"one of two evaluators is killed with -9, {outcome.figures['open_calls']:,.0f} open calls")
    figures.add("recovery_seconds", outcome.figures["seconds"], what, "s", goal=30)
    figures.add("recovery_notice_seconds", outcome.figures["notice_seconds"], notice, "s")
