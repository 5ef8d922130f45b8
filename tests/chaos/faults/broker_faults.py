"""Faults of brokers. Each returns a description, or None while the cluster still recovers from the last one.

After each of them every final score is there once and right; nothing that a broker took is lost.
"""

import signal
from typing import Final

from tests.chaos.cluster.cluster import Node
from tests.chaos.faults.scene import Scene
from tests.chaos.stage import SESSION_SECONDS

OUT_OF_SIGHT_SECONDS: Final = 20.0
FROZEN_SECONDS: Final = SESSION_SECONDS + 5
COORDINATORS: Final = ("__consumer_offsets", "__transaction_state")


def terminated(scene: Scene) -> str | None:
    """SIGTERM of a broker, which starts again."""
    return _take_down(scene, signal.SIGTERM)


def killed(scene: Scene) -> str | None:
    """kill -9 of a broker, which starts again."""
    return _take_down(scene, signal.SIGKILL)


def coordinator_moved(scene: Scene) -> str | None:
    """The broker that coordinates most groups or transactions leaves in peace; soon after it is back, it gets them again."""
    cluster = scene.stage.cluster
    if not _is_quiet(scene):
        return None
    topic = scene.rng.choice(COORDINATORS)
    led = [node for (name, _), node in cluster.leaders().items() if name == topic]
    most = max(cluster.nodes, key=lambda node: led.count(node.number))
    most.take_down(signal.SIGTERM)
    return f"node {most.number} leads {led.count(most.number)} of {topic} and leaves"


def out_of_sight(scene: Scene) -> str | None:
    """A broker and the others lose sight of each other, in both directions or one, while clients see all of them.

    Where nodes cannot have a network of their own, a broker is frozen for longer than its session lasts.
    """
    cluster = scene.stage.cluster
    if not _is_quiet(scene):
        return None
    node = scene.rng.choice(cluster.nodes)
    network = cluster.network
    if network is None:
        node.freeze()
        scene.during("the brokers", FROZEN_SECONDS, node.thaw)
        return f"node {node.number} is frozen for {FROZEN_SECONDS:.0f} s: nodes have no network of their own here"
    sends, hears = scene.rng.choice(((False, False), (False, True), (True, False)))
    for other in cluster.nodes:
        if other is not node and not sends:
            network.blind(node.number, other.number)
        if other is not node and not hears:
            network.blind(other.number, node.number)
    scene.during("the brokers", OUT_OF_SIGHT_SECONDS, network.heal)
    reach = "neither reaches nor hears" if sends == hears else "does not hear" if sends else "does not reach"
    return f"node {node.number} {reach} the others for {OUT_OF_SIGHT_SECONDS:.0f} s"


def _take_down(scene: Scene, number: signal.Signals) -> str | None:
    if not _is_quiet(scene):
        return None
    node: Node = scene.rng.choice(scene.stage.cluster.nodes)
    node.take_down(number)
    return f"node {node.number}"


def _is_quiet(scene: Scene) -> bool:
    """Whether nothing is being done to a broker: of three, two must always be there."""
    return "the brokers" not in scene.busy and scene.stage.cluster.is_whole
