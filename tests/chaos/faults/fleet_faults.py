"""Faults of evaluators. Each returns a description, or None when no evaluator is fit for it.

After each of them every final score is there once and right, and every call that is over is closed.
"""

from collections.abc import Callable
from typing import Final

from tests.chaos.faults.scene import Scene
from tests.chaos.stage import SESSION_SECONDS

FROZEN_AT_LEAST, FROZEN_AT_MOST = SESSION_SECONDS + 2, SESSION_SECONDS + 8
MORE_EVALUATORS: Final = 2
"""So many may join above the number asked for."""
NEWER_SECONDS: Final = 15.0
OLDER_SECONDS: Final = SESSION_SECONDS + 2
"""So that evaluators of this version have the partitions of a killed newer one, before it comes back."""
ENOUGH_CLOSED: Final = 2
"""Calls that a newer version closes each time before it goes."""
CLOCK_STEP_SECONDS: Final = 600.0
CLOCK_WRONG_SECONDS: Final = 20.0


def kill(scene: Scene) -> str | None:
    """kill -9 of an evaluator; another starts in its place."""
    target = scene.evaluator()
    if target is None:
        return None
    target.kill()
    return f"evaluator {target.number}"


def terminate(scene: Scene) -> str | None:
    """SIGTERM; another starts in its place."""
    target = scene.evaluator()
    if target is None:
        return None
    target.terminate(for_good=False)
    return f"evaluator {target.number}"


def freeze(scene: Scene) -> str | None:
    """SIGSTOP for longer than the group waits: when it goes on, its partitions have other owners."""
    target = scene.evaluator()
    if target is None:
        return None
    seconds = scene.rng.uniform(FROZEN_AT_LEAST, FROZEN_AT_MOST)
    target.freeze(seconds)
    return f"evaluator {target.number} for {seconds:.0f} s"


def join(scene: Scene) -> str | None:
    if len(scene.stage.fleet.members) >= scene.least_evaluators + MORE_EVALUATORS:
        return None
    return f"evaluator {scene.stage.fleet.join().number}"


def leave(scene: Scene) -> str | None:
    """One evaluator fewer, in peace."""
    target = scene.evaluator()
    if target is None or len(scene.stage.fleet.members) <= scene.least_evaluators:
        return None
    target.terminate(for_good=True)
    return f"evaluator {target.number}"


def newer(scene: Scene) -> str | None:
    """An evaluator comes back as a newer version, is killed, comes back as this version, and all of it once more.

    So its partitions change versions there and back: each version publishes the values of the other's calls once again, with higher
    revisions and the same end. Also, this version obeys closings that it cannot read whole.
    """
    target = scene.evaluator(is_ready=True)
    if target is None:
        return None
    name, stage = f"evaluator {target.number}", scene.stage

    def end_as(is_newer: bool) -> None:
        target.is_newer = is_newer
        if target.is_running:
            target.kill()

    def be_newer(then: Callable[[], None]) -> None:
        closed_before = stage.newer_closings
        scene.during(name, NEWER_SECONDS, then, lambda: stage.newer_closings > closed_before + ENOUGH_CLOSED)

    def back() -> None:
        end_as(is_newer=False)
        scene.during(name, OLDER_SECONDS, again)

    def again() -> None:
        end_as(is_newer=True)
        be_newer(lambda: end_as(is_newer=False))

    target.is_newer = True
    target.terminate(for_good=False)
    be_newer(back)
    scene.proofs.append(
        lambda: None if stage.of_later_generations else "versions have changed, and no call was published once again"
    )
    return f"{name} for {NEWER_SECONDS:.0f} s and until it has closed calls, {OLDER_SECONDS:.0f} s not, and again"


def clock_forward(scene: Scene) -> str | None:
    """The clock of an evaluator steps ahead, and later back to the right time: no call is closed for that."""
    return _step_clock(scene, CLOCK_STEP_SECONDS)


def clock_back(scene: Scene) -> str | None:
    """The clock of an evaluator steps back, and later to the right time: no call waits for that."""
    return _step_clock(scene, -CLOCK_STEP_SECONDS)


def _step_clock(scene: Scene, seconds: float) -> str | None:
    target = scene.evaluator()
    if target is None:
        return None
    target.step_clock(seconds)
    scene.during(f"evaluator {target.number}", CLOCK_WRONG_SECONDS, lambda: target.step_clock(0))
    return f"evaluator {target.number} by {seconds:+.0f} s for {CLOCK_WRONG_SECONDS:.0f} s"
