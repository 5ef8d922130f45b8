"""The run as a fault finds it, and the seed's choice of a target."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.evaluators.fleet import Evaluator
from tests.chaos.stage import Stage

LOOK_AGAIN_SECONDS: Final = 1.0
MOST_TIMES_LONGER: Final = 3
"""A fault that had no effect by then will have none."""


@dataclass(slots=True)
class Scene:
    """The objects that faults work on.

    Attributes:
        stage: Everything that runs.
        rng: Chooses among the objects.
        least_evaluators: The fleet never becomes smaller for good.
        proofs: Called at the end: each returns its complaint, or None.
        busy: Names of the targets of faults that are not over: no other fault may have them until then.
    """

    stage: Stage
    rng: random.Random
    least_evaluators: int
    proofs: list[Callable[[], str | None]] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)

    def evaluator(self, *, is_ready: bool = False) -> Evaluator | None:
        """Any that runs and to which nothing is being done; if asked for, one that has started up."""
        there = [each for each in self.stage.fleet.running if f"evaluator {each.number}" not in self.busy]
        if is_ready:
            there = [each for each in there if each.metrics_address]
        return self.rng.choice(there) if there else None

    def during(
        self, what: str, seconds: float, undo: Callable[[], None], is_enough: Callable[[], bool] = lambda: True
    ) -> None:
        """Marks a target as busy for so long, and longer until it is enough; then undoes the fault, or begins its next part."""
        most = time.monotonic() + MOST_TIMES_LONGER * seconds

        def over() -> None:
            if not is_enough() and time.monotonic() < most:
                self.stage.after(LOOK_AGAIN_SECONDS, over)
                return
            self.busy.discard(what)
            undo()
            if what not in self.busy:
                self.stage.note(f"{what} is as before")

        self.busy.add(what)
        self.stage.after(seconds, over)
