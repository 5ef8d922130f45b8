"""The cost of fencing: scores in transactions of one producer per partition, against plain idempotent writes, in one run."""

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.chaos.cluster.cluster import Cluster
from tests.chaos.evaluators.fleet import ALTERED, COMMAND
from tests.chaos.runs.chaos_run import Outcome, Plan
from tests.chaos.stage import RunError, Say, Stage
from tests.chaos.verdict.checker import Findings

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
    """One evaluator each way: how soon a score can be read after its event, and how many it writes per second at most.

    The first is measured under steady load, the second on a backlog that was there before the evaluator.
    """
    findings = Findings()
    delays_ms: dict[str, list[float]] = {way: [] for way in WAYS}
    per_second: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(ROUNDS):
        for way, command in WAYS.items():
            own = folder / f"{way}-{number}"
            own.mkdir(parents=True)
            prefix = f"{way}{number}.steady."
            with Stage(cluster, own, say, partitions=plan.partitions, command=command, prefix=prefix) as stage:
                delays_ms[way] += _delays_ms(stage, plan.seed)
                findings.add(stage.judged())
            prefix = f"{way}{number}.backlog."
            with Stage(cluster, own, say, partitions=plan.partitions, command=command, prefix=prefix) as stage:
                per_second[way].append(_scores_per_second(stage, plan.seed))
                findings.add(stage.judged())
    lines = [
        f"{way}: event to score p50 {_percentile(delays_ms[way], 50):.0f} ms, p99 {_percentile(delays_ms[way], 99):.0f} ms; "
        f"backlog {max(per_second[way]):,.0f} scores/s (rounds: {', '.join(f'{each:,.0f}' for each in per_second[way])})"
        for way in WAYS
    ]
    ratio = max(per_second["fenced"]) / max(per_second["plain"])
    added_ms = [_percentile(delays_ms["fenced"], n) - _percentile(delays_ms["plain"], n) for n in (50, 99)]
    lines.append(
        f"fencing: {ratio:.2f} of the scores/s, adds {added_ms[0]:.0f} ms at p50 and {added_ms[1]:.0f} ms at p99"
    )
    return Outcome(findings, 0, lines)


def _delays_ms(stage: Stage, seed: int) -> list[float]:
    """From the broker taking an event to the score that it caused being readable, for every score of the steady time."""
    stage.wait_for_fleet(1)
    stage.start_load(calls=STEADY_CALLS, ramp_seconds=SHORT_RAMP_SECONDS, seed=seed)
    stage.look_for(SHORT_RAMP_SECONDS)
    delays_ms = []
    until = time.monotonic() + STEADY_SECONDS
    while time.monotonic() < until:
        records = stage.look(LOOK_SECONDS)
        seen_ms = time.time_ns() / 1e6
        for record in records:
            score = json.loads(record.value or b"{}")
            if score.get("kind") == "score" and score["status"] != "final":  # decisions by silence have no event
                delays_ms.append(seen_ms - score["caused_at_ms"])
    stage.finish()
    return delays_ms


def _scores_per_second(stage: Stage, seed: int) -> float:
    """How fast an evaluator writes that has nothing to wait for."""
    stage.start_load(calls=BACKLOG_CALLS, ramp_seconds=SHORT_RAMP_SECONDS, seed=seed, rate=BACKLOG_RATE)
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
                f"a backlog of {stage.load.report.events:,} events is not drained after {DRAIN_SECONDS:.0f} s"
            )
    seconds = time.monotonic() - (begin or deadline)
    stage.finish()
    return written / seconds


_MOSTLY: Final = 0.9
"""Of the calls must be closed; the others hung up without a word, and are closed by their silence."""


def _percentile(values: Sequence[float], number: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[number - 1] if len(values) > 1 else 0.0
