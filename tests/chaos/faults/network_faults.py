"""Faults between evaluators and brokers: they concern all traffic through one door of the proxy, which is half of the fleet.

After each of them every final score is there once and right; connections come back by themselves.
"""

from typing import Final

from tests.chaos.cluster.proxy import DOORS, Way
from tests.chaos.faults.scene import Scene
from tests.chaos.stage import SESSION_SECONDS

SLOW_MS: Final = 200
SLOW_SECONDS: Final = 20.0
SHORT_SECONDS: Final = 6.0
LONG_SECONDS: Final = SESSION_SECONDS + 6
"""Longer than the group waits: the others take the partitions over."""


def slow(scene: Scene) -> str | None:
    """Every byte takes longer, in both directions."""
    return _narrow(scene, Way.SLOW, SLOW_SECONDS, SLOW_MS)


def hole(scene: Scene) -> str | None:
    """Nothing passes and neither end is notified, for less than the group waits or for longer."""
    return _narrow(scene, Way.HOLE, scene.rng.choice((SHORT_SECONDS, LONG_SECONDS)))


def one_way(scene: Scene) -> str | None:
    """Only the broker's packets pass, or only the evaluators'."""
    return _narrow(scene, scene.rng.choice((Way.NOT_TO_BROKER, Way.NOT_FROM_BROKER)), LONG_SECONDS)


def half_open(scene: Scene) -> str | None:
    """The brokers have closed every connection, and the evaluators believe that they are open."""
    return _narrow(scene, Way.HALF_OPEN, LONG_SECONDS)


def cut(scene: Scene) -> str | None:
    """Every connection ends, and new ones work at once."""
    return _narrow(scene, Way.CUT, 1.0)


def refused(scene: Scene) -> str | None:
    """No connection can be had."""
    return _narrow(scene, Way.REFUSED, LONG_SECONDS)


def _narrow(scene: Scene, way: Way, seconds: float, delay_ms: int = 0) -> str | None:
    there = [door for door in DOORS if f"the {door} door" not in scene.busy]
    if not there:
        return None
    door = scene.rng.choice(there)
    proxy = scene.stage.cluster.proxy
    proxy.change(door, way, delay_ms)
    scene.during(f"the {door} door", seconds, lambda: proxy.change(door, Way.OPEN))
    members = [each.number for each in scene.stage.fleet.members if each.door == door]
    return f"the {door} door ({way.replace('_', ' ')}) for {seconds:.0f} s: evaluators {members}"
