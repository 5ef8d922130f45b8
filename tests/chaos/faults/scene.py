"""What a fault finds when its turn comes: the run as it is, and the seed's choice of what to do it to."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.evaluators.fleet import Evaluator
from tests.chaos.stage import Stage

LOOK_AGAIN_SECONDS: Final = 1.0
MOST_TIMES_LONGER: Final = 3
"""What has not come to anything by then will not."""


@dataclass(slots=True)
class Scene:
    """What faults work on.

    Attributes:
        stage: Everything that runs.
        rng: Chooses among what is there.
        least_evaluators: The fleet never becomes smaller for good.
        proofs: Asked at the end: each says what does not hold, or None.
        busy: What is being done to and is not over, by name: it is left alone until then.
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
        """Marks something as busy for so long, and longer until it is enough; then undoes what was done to it."""
        most = time.monotonic() + MOST_TIMES_LONGER * seconds

        def over() -> None:
            if not is_enough() and time.monotonic() < most:
                self.stage.after(LOOK_AGAIN_SECONDS, over)
                return
            undo()
            self.busy.discard(what)
            self.stage.note(f"{what} is as before")

        self.busy.add(what)
        self.stage.after(seconds, over)
