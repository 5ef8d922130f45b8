"""The run that `make chaos` is about: load, a fleet, and faults on everything that they
depend on.
"""

import random
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.chaos.cluster.cluster import Cluster
from tests.chaos.evaluators.fleet import ALTERED
from tests.chaos.faults.fault_kinds import HARM, Scene
from tests.chaos.faults.faults import USUAL, Fault, planned
from tests.chaos.load.poison import Kind
from tests.chaos.stage import Say, Stage
from tests.chaos.verdict.checker import Findings

INSTEAD: Final = {Fault.JOIN: Fault.LEAVE, Fault.LEAVE: Fault.JOIN}
"""Faults that take place where a fleet is too large or too small for the drawn one."""
TRY_AGAIN_SECONDS: Final = 2.0
"""A fault that was not possible is done as soon as it is, so that a run has all faults
of its seed.
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """Options of one run.

    Attributes:
        seed: Decides calls and faults.
        seconds: Under full load; before that the calls begin one after the other.
        calls: At the same time.
        evaluators: At least so many places in the fleet.
        rate: How many times faster than real the calls are played, where the run does not choose
            that itself.
        partitions: Of every topic; some inputs have more.
        spacing_seconds: Mean wait between two faults.
        faults: The faults to draw from, again and again.
        poison: Which kinds of bad records there are.
        command: Command that starts a sequencer or an evaluator, before `run --roles`.
    """

    seed: int = 1
    seconds: float = 600
    calls: int = 2_100
    rate: float = 1.0
    evaluators: int = 3
    partitions: int = 12
    spacing_seconds: float = 12
    faults: Sequence[Fault] = USUAL
    poison: Collection[Kind] = tuple(Kind)
    command: Sequence[str] = ALTERED

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
        figures: Measured figures, by name.
    """

    findings: Findings
    faults: int
    what: Sequence[str] = ()
    figures: Mapping[str, float] = field(default_factory=dict)


def chaos(plan: Plan, cluster: Cluster, folder: Path, say: Say) -> Outcome:
    """Runs it all."""
    with Stage(
        cluster, folder, say, partitions=plan.partitions, command=plan.command, through_proxy=True
    ) as stage:
        stage.wait_for_fleet(plan.evaluators)
        stage.start_load(
            calls=plan.calls,
            ramp_seconds=plan.ramp_seconds,
            seed=plan.seed,
            rate=plan.rate,
            poison=plan.poison,
        )
        faults = _Faults(plan, stage)
        faults.do_all()
        stage.finish()
        findings = stage.judged()
        for proof in faults.scene.proofs:
            if what := proof():
                findings.note("missing", "proof", what)
        return Outcome(
            findings,
            faults.done.total(),
            (*faults.told(), *_contained(stage, findings), *stage.told()),
        )


def _contained(stage: Stage, findings: Findings) -> Iterator[str]:
    for kind, count in sorted(stage.load.report.poison_by_kind.items()):
        yield f"poison: {count} {kind}"
    yield (
        f"log: {findings.admitted:,} records admitted, of which {findings.lost} were deleted "
        f"unread; {findings.repeats:,} repeats, "
        f"{findings.void:,} void"
    )
    yield f"calls with a silence of a known length: {stage.load.report.silences}"


class _Faults:
    """Carries out the faults of the plan's seed on the objects of the moment."""

    def __init__(self, plan: Plan, stage: Stage) -> None:
        self.done: Counter[Fault] = Counter()
        self.scene = Scene(stage, random.Random(f"targets {plan.seed}"), plan.evaluators)  # noqa: S311 - play, not secrets
        self._plan = plan
        self._stage = stage
        self._owed: list[Fault] = []
        stage.status = lambda: f"faults {self.done.total()}"

    def do_all(self) -> None:
        """Does them when they are due."""
        begin = time.monotonic()
        plan = self._plan
        coming = planned(
            plan.seed,
            seconds=plan.seconds,
            mean_spacing_seconds=plan.spacing_seconds,
            pack=plan.faults,
        )
        for at_seconds, fault in coming:
            self._look_until(begin + at_seconds)
            if not self._do(fault):
                self._owed.append(fault)
        self._look_until(begin + plan.seconds)

    def told(self) -> Iterator[str]:
        """A line for each kind of fault: how many there were; at the end the faults that were not
        possible.
        """
        for fault in dict.fromkeys((*self._plan.faults, *self.done)):
            yield f"fault: {self.done[fault]} {fault}"
        for fault in self._owed:
            yield f"planned and not possible before the end: {fault}"

    def _look_until(self, until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            self._stage.look_for(min(left, TRY_AGAIN_SECONDS))
            done = next((fault for fault in dict.fromkeys(self._owed) if self._do(fault)), None)
            if done is not None:
                self._owed.remove(done)

    def _do(self, fault: Fault) -> bool:
        what = HARM[fault](self.scene)
        if what is None and fault in INSTEAD:
            fault = INSTEAD[fault]
            what = HARM[fault](self.scene)
        if what is None:
            return False
        self.done[fault] += 1
        self._stage.note(f"{fault}: {what}")
        return True
