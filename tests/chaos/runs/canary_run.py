"""The checker checked: an evaluator that is broken on purpose must be found out by the run that judges the real one."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.chaos.cluster import cluster as clusters
from tests.chaos.evaluators.fleet import ALTERED
from tests.chaos.faults.faults import Fault
from tests.chaos.load.poison import Kind
from tests.chaos.runs.chaos_run import Plan, chaos
from tests.chaos.stage import Say

SECONDS: Final = 60.0
CALLS: Final = 100
RATE: Final = 2.0
"""So that calls end while faults are going on."""
SPACING_SECONDS: Final = 7.0
FAULTS: Final = {
    "fencing": (Fault.FREEZE,),
    "ledger": (Fault.KILL, Fault.TERMINATE),
    "gate": (Fault.KILL, Fault.TERMINATE),
    "watermark": (Fault.KILL, Fault.TERMINATE),
    "versions": (Fault.NEWER,),
    "newest": (Fault.TERMINATE, Fault.KILL),
    "wholeness": (Fault.TERMINATE,),
    "clock": (Fault.CLOCK_FORWARD, Fault.CLOCK_BACK),
}
"""By the broken part: the faults that bring it to light."""


def is_caught(kind: str, plan: Plan, say: Say) -> bool:
    """Runs one canary on a cluster of its own and says whether the checker found something.

    Args:
        kind: The broken part, one of `FAULTS`.
        plan: Whose seed and partitions are taken; the run is shorter.
        say: Takes each line of the report.
    """
    command = (*ALTERED, "without", kind)
    plan = replace(
        plan,
        seconds=SECONDS,
        calls=min(plan.calls, CALLS),
        rate=RATE,
        spacing_seconds=SPACING_SECONDS,
        faults=FAULTS[kind],
        poison=(Kind.VALUE,),  # the fault that it must not survive
        command=command,
    )
    with (
        tempfile.TemporaryDirectory(prefix="callgauge-chaos-", ignore_cleanup_errors=True) as folder,
        clusters.running(Path(folder), brokers=1) as cluster,
    ):
        say(f"canary: an evaluator without {kind}")
        findings = chaos(plan, cluster, Path(folder), say).findings
    for example in findings.examples[:3]:
        say(example)
    zeros = f"missing={findings.missing} duplicate={findings.duplicate} wrong={findings.wrong}"
    say(f"canary: without {kind}: {zeros}: {'NOT CAUGHT' if findings.is_clean else 'caught'}")
    return not findings.is_clean
