"""The run that `make chaos` is about: load, a fleet, and faults on the fleet and its broker."""

import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.chaos.checker import Findings
from tests.chaos.cluster import Cluster
from tests.chaos.faults import USUAL, Fault, planned
from tests.chaos.fleet import COMMAND
from tests.chaos.stage import SESSION_SECONDS, Say, Stage

FROZEN_AT_LEAST, FROZEN_AT_MOST = SESSION_SECONDS + 2, SESSION_SECONDS + 8
MORE_EVALUATORS: Final = 2
"""So many may join above the number asked for."""
_BROKER_SIGNALS: Final = {Fault.BROKER_TERMINATED: signal.SIGTERM, Fault.BROKER_KILLED: signal.SIGKILL}


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Attributes:
        seed: Decides calls and faults.
        seconds: Under full load; before that the calls begin one after the other.
        calls: At the same time.
        evaluators: At least so many places in the fleet.
        rate: How many times faster than real the calls are played, where the run does not choose that itself.
        partitions: Of every topic.
        spacing_seconds: Mean wait between two faults.
        faults: What is drawn from, again and again.
        command: What an evaluator is started with, before `run --roles evaluator`.
    """

    seed: int = 1
    seconds: float = 600
    calls: int = 2_100
    rate: float = 1.0
    evaluators: int = 3
    partitions: int = 12
    spacing_seconds: float = 12
    faults: Sequence[Fault] = USUAL
    command: Sequence[str] = COMMAND

    @property
    def ramp_seconds(self) -> float:
        """Until every call has begun."""
        return min(60.0, self.seconds / 4)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        findings: The checker's.
        faults: How many were done.
        what: A line about each thing worth knowing beside the findings.
    """

    findings: Findings
    faults: int
    what: Sequence[str] = ()


def chaos(plan: Plan, cluster: Cluster, folder: Path, say: Say) -> Outcome:
    """Runs it all.

    Raises:
        RunError: The topics could not be made, or an evaluator did not come up.
        LoadError: The load broke down.
        UnreadableError: The topics could not be read to their end.
    """
    with Stage(cluster, folder, say, partitions=plan.partitions, command=plan.command) as stage:
        stage.wait_for_fleet(plan.evaluators)
        stage.start_load(calls=plan.calls, ramp_seconds=plan.ramp_seconds, seed=plan.seed, rate=plan.rate)
        faults = _Faults(plan, stage)
        faults.do_all()
        stage.finish()
        report = ", ".join(f"{fault} {count}" for fault, count in faults.done.items())
        lines = (f"faults: {report or 'none'}; poison {stage.load.report.poison}", *stage.fleet.told())
        return Outcome(stage.judged(), faults.done.total(), lines)


class _Faults:
    """Does what the plan's seed says to what happens to be there."""

    def __init__(self, plan: Plan, stage: Stage) -> None:
        self.done: Counter[Fault] = Counter()
        self._plan = plan
        self._stage = stage
        self._rng = random.Random(f"targets {plan.seed}")  # noqa: S311 - play, not secrets
        stage.status = lambda: f"faults {self.done.total()}"

    def do_all(self) -> None:
        begin = time.monotonic()
        plan = self._plan
        coming = planned(plan.seed, seconds=plan.seconds, mean_spacing_seconds=plan.spacing_seconds, pack=plan.faults)
        for at_seconds, fault in coming:
            self._stage.look_for(begin + at_seconds - time.monotonic())
            self._do(fault)
        self._stage.look_for(begin + plan.seconds - time.monotonic())

    def _do(self, fault: Fault) -> None:
        done = self._to_broker(fault) if fault in _BROKER_SIGNALS else self._to_fleet(fault)
        if done is None:
            self._stage.note(f"{fault}: nothing to do it to")
            return
        fault, what = done
        self.done[fault] += 1
        self._stage.note(what)

    def _to_broker(self, fault: Fault) -> tuple[Fault, str] | None:
        nodes = self._stage.cluster.nodes
        if any(node.is_down for node in nodes):
            return None
        node = self._rng.choice(nodes)
        node.take_down(_BROKER_SIGNALS[fault])
        return fault, str(fault)

    def _to_fleet(self, fault: Fault) -> tuple[Fault, str] | None:
        fleet = self._stage.fleet
        least = self._plan.evaluators
        if fault is Fault.LEAVE and len(fleet.members) <= least:
            fault = Fault.JOIN
        elif fault is Fault.JOIN and len(fleet.members) >= least + MORE_EVALUATORS:
            fault = Fault.LEAVE
        if fault is Fault.JOIN:
            return fault, f"{fault}: evaluator {fleet.join().number}"
        if not fleet.running:
            return None
        target = self._rng.choice(fleet.running)
        what = f"{fault} evaluator {target.number}"
        match fault:
            case Fault.KILL:
                target.kill()
            case Fault.FREEZE:
                seconds = self._rng.uniform(FROZEN_AT_LEAST, FROZEN_AT_MOST)
                target.freeze(seconds)
                what += f" for {seconds:.0f} s"
            case _:
                target.terminate(for_good=fault is Fault.LEAVE)
        return fault, what
