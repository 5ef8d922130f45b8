"""Every kind of fault: what it does, and what must hold after it.

Each function returns a description, or None when the fault is not possible now. After each of them every final score is there once
and right, unless it says otherwise.
"""

import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Thread
from typing import Final

from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete
from aiokafka.errors import KafkaError
from confluent_kafka import Consumer

from schemas.topics import INPUT_TOPICS
from tests.chaos.cluster.administration import asked, committed
from tests.chaos.cluster.cluster import Node
from tests.chaos.cluster.proxy import DOORS, Way
from tests.chaos.evaluators.fleet import Evaluator, PageError, partitions_of
from tests.chaos.faults.faults import Fault
from tests.chaos.stage import SESSION_SECONDS, Stage
from tests.chaos.verdict.deleted_records import Deletion
from tests.chaos.verdict.topic_reader import UnreadableError, extent, to_the_end

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


# -- faults of evaluators; every call that is over is closed after them ------------------------------------------------

FROZEN_AT_LEAST, FROZEN_AT_MOST = SESSION_SECONDS + 2, SESSION_SECONDS + 8
MORE_EVALUATORS: Final = 2
"""So many may join above the number asked for."""
NEWER_SECONDS: Final = 15.0
OLDER_SECONDS: Final = SESSION_SECONDS + 2
"""So that evaluators of this version have the partitions of a killed newer one, before it comes back."""
ENOUGH_CLOSED: Final = 2
"""Calls that a newer version closes each time before it goes."""
TWINS_SECONDS: Final = 15.0
TWIN_IN_LOG: Final = "evaluator_instance"
"""An evaluator logs it when it loses its name, and when it is refused because of it."""
STRANGER_SECONDS: Final = 10.0
STRANGER_IN_LOG: Final = "a stranger"
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
    """One more evaluator."""
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


def twins(scene: Scene) -> str | None:
    """Two evaluators join with one instance name, and leave: one of them stands aside while the other is there."""
    fleet = scene.stage.fleet
    if "twins" in scene.busy or len(fleet.members) >= scene.least_evaluators + MORE_EVALUATORS:
        return None
    both = [fleet.join(instance=f"twin of {len(scene.proofs)}") for _ in range(2)]

    def leave(each: Evaluator) -> None:
        if each.is_running:
            each.terminate(for_good=True)
        elif not each.is_gone:  # another fault has it: the next process in its place goes
            scene.stage.after(LOOK_AGAIN_SECONDS, lambda: leave(each))

    def end() -> None:
        for each in both:
            leave(each)

    scene.during("twins", TWINS_SECONDS, end, lambda: bool(fleet.logs_with(TWIN_IN_LOG)))
    scene.proofs.append(lambda: None if fleet.logs_with(TWIN_IN_LOG) else f"no evaluator says {TWIN_IN_LOG}")
    return f"evaluators {both[0].number} and {both[1].number} for {TWINS_SECONDS:.0f} s"


def stranger(scene: Scene) -> str | None:
    """A program that is no evaluator joins the group, is given partitions of one input, commits its end, and leaves: nothing is skipped."""
    if "the group" in scene.busy or not _answers_and_is_quiet(scene):
        return None
    stage = scene.stage
    topic = stage.prefix + scene.rng.choice(INPUT_TOPICS[:3])
    program = Thread(target=_read_as_stranger, args=(stage.cluster.bootstrap, stage.group, topic), daemon=True)
    program.start()
    scene.during("the group", STRANGER_SECONDS, program.join)
    scene.proofs.append(lambda: None if stage.fleet.logs_with(STRANGER_IN_LOG) else "no evaluator names the stranger")
    return f"reads {topic} for {STRANGER_SECONDS:.0f} s"


def _read_as_stranger(bootstrap: str, group: str, topic: str) -> None:
    until = time.monotonic() + STRANGER_SECONDS
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "client.id": STRANGER_IN_LOG, "partition.assignment.strategy": "range",
         "auto.offset.reset": "earliest", "auto.commit.interval.ms": 500, "session.timeout.ms": int(SESSION_SECONDS * 1_000)}
    )  # fmt: skip
    try:
        reader.subscribe([topic])
        while time.monotonic() < until:
            reader.poll(0.2)
    finally:
        reader.close()


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


# -- faults between evaluators and brokers, for all traffic through one door of the proxy, which is half of the fleet --

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


# -- faults of topics and their records --------------------------------------------------------------------------------

MORE_PARTITIONS: Final = 2
BEHIND_SECONDS: Final = 3.0
"""How long an evaluator is frozen before its unread records are deleted, and again before it goes on."""
LOSS_IN_LOG: Final = "input_not_where_it_was"


def heavy_close(scene: Scene) -> str | None:
    """A call inside every limit that is as costly to close as one can be: it is closed like any other, and delays no other call."""
    scene.stage.load.play_heavy()
    return f"call {scene.stage.load.report.heavy + 1}"


def partitions_added(scene: Scene) -> str | None:
    """Every topic gets more partitions, and keys move: a call that is open then is two, one on each number it was on."""
    stage = scene.stage
    if not _answers_and_is_quiet(scene):
        return None
    stage.add_partitions(MORE_PARTITIONS)
    return f"{MORE_PARTITIONS} more, {stage.partitions} now"


def deleted_read(scene: Scene) -> str | None:
    """Records below the committed offsets, which no reader needs any more, are deleted: this has no effect."""
    if not _answers_and_is_quiet(scene):
        return None
    number = scene.rng.randrange(scene.stage.partitions)
    try:
        deleted = _delete(scene, number, _committed(scene, number))
    except (KafkaError, UnreadableError):
        return None
    return f"{sum(end - first for first, end in deleted.values()):,} records of partition {number}"


def deleted_unread(scene: Scene) -> str | None:
    """Records go that an evaluator has not read. It says so and counts them; calls that lost none are as they must be."""
    target = scene.evaluator(is_ready=True) if _answers_and_is_quiet(scene) else None
    try:
        numbers = [] if target is None else sorted(partitions_of(target))
    except PageError:
        return None
    if target is None or not numbers:
        return None
    number = scene.rng.choice(numbers)
    target.freeze(2 * BEHIND_SECONDS)
    scene.stage.after(BEHIND_SECONDS, lambda: _delete_all(scene, number))
    return f"partition {number} of evaluator {target.number}"


def _delete_all(scene: Scene, number: int) -> None:
    stage = scene.stage
    if not _answers_and_is_quiet(scene):
        stage.note(f"records of partition {number} stay: a broker is away")
        return
    try:
        needed = _committed(scene, number)
        closed = stage.closed_on(number)
        at_ms = time.time_ns() // 1_000_000
        ranges = _delete(scene, number, ends_of(scene, number))
    except (KafkaError, UnreadableError) as error:
        stage.note(f"records of partition {number} could not be deleted: {error}")
        return
    ranges = {topic: (needed.get(topic, 0), end) for topic, (_, end) in ranges.items()}
    deletion = Deletion(number, at_ms, ranges, closed)
    kept = ((topic, record) for topic in ranges for record in stage.kept.of(topic, number))
    stage.lost(deletion, deletion.calls(kept))
    stage.note(f"{sum(end - first for first, end in ranges.values()):,} records of partition {number} may go unread")
    # An evaluator can report only the loss of records that it still needed.
    if any(needed[topic] < end for topic, (_, end) in ranges.items() if topic in needed):
        scene.proofs.append(lambda: _is_told(scene, deletion))


def _answers_and_is_quiet(scene: Scene) -> bool:
    """Whether every broker is there and answers, so that one can be asked for this at all."""
    return "the brokers" not in scene.busy and scene.stage.cluster.is_whole and scene.stage.cluster.answers()


def _is_told(scene: Scene, deletion: Deletion) -> str | None:
    stage = scene.stage
    is_gone = any(
        extent(stage.cluster.bootstrap, topic, deletion.partition)[0] >= end
        for topic, (first, end) in deletion.ranges.items()
        if first < end
    )
    if not is_gone or stage.fleet.logs_with(LOSS_IN_LOG):  # a killed broker may forget its latest deletions
        return None
    return f"records were deleted before they were read, and no evaluator says {LOSS_IN_LOG}"


def ends_of(scene: Scene, number: int) -> dict[str, int]:
    """Where each input ends."""
    stage = scene.stage
    topics = [stage.prefix + name for name in INPUT_TOPICS]
    return {topic: extent(stage.cluster.bootstrap, topic, number)[1] for topic in topics}


def _committed(scene: Scene, number: int) -> dict[str, int]:
    """The first record that an evaluator would need that begins now, of each input of which the group has committed one."""
    stage = scene.stage
    return {topic: offset for (topic, _), offset in committed(stage.cluster.bootstrap, stage.group, {number}).items()}


def _delete(scene: Scene, number: int, before: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Deletes the records before these offsets, and keeps them for the judgement.

    Returns:
        By topic, the first offset that is gone by this and the first that is still there.
    """
    stage = scene.stage
    bootstrap = stage.cluster.bootstrap
    gone = {}
    for topic, end in before.items():
        first, _ = extent(bootstrap, topic, number)
        if end > first:
            stage.kept.keep(topic, number, to_the_end(bootstrap, topic, number, before=end))
            order = {TopicPartition(topic, number): RecordsToDelete(end)}
            asked(bootstrap, lambda admin, order=order: admin.delete_records(order))  # type: ignore[misc]  # the default binds the loop's value
        gone[topic] = (first, max(first, end))
    return gone


# -- faults of brokers; nothing that a broker took is lost -------------------------------------------------------------

OUT_OF_SIGHT_SECONDS: Final = 20.0
BROKER_FROZEN_SECONDS: Final = SESSION_SECONDS + 5
COORDINATORS: Final = ("__consumer_offsets", "__transaction_state")


def broker_terminated(scene: Scene) -> str | None:
    """SIGTERM of a broker, which starts again."""
    return _take_down(scene, signal.SIGTERM)


def broker_killed(scene: Scene) -> str | None:
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
        scene.during("the brokers", BROKER_FROZEN_SECONDS, node.thaw)
        return (
            f"node {node.number} is frozen for {BROKER_FROZEN_SECONDS:.0f} s: nodes have no network of their own here"
        )
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


# -- all of them -------------------------------------------------------------------------------------------------------

Harm = Callable[[Scene], str | None]

HARM: Final[Mapping[Fault, Harm]] = {
    Fault.KILL: kill,
    Fault.TERMINATE: terminate,
    Fault.FREEZE: freeze,
    Fault.JOIN: join,
    Fault.LEAVE: leave,
    Fault.NEWER: newer,
    Fault.CLOCK_FORWARD: clock_forward,
    Fault.CLOCK_BACK: clock_back,
    Fault.TWINS: twins,
    Fault.STRANGER: stranger,
    Fault.SLOW: slow,
    Fault.HOLE: hole,
    Fault.ONE_WAY: one_way,
    Fault.HALF_OPEN: half_open,
    Fault.CUT: cut,
    Fault.REFUSED: refused,
    Fault.HEAVY_CLOSE: heavy_close,
    Fault.DELETED_READ: deleted_read,
    Fault.DELETED_UNREAD: deleted_unread,
    Fault.PARTITIONS_ADDED: partitions_added,
    Fault.BROKER_TERMINATED: broker_terminated,
    Fault.BROKER_KILLED: broker_killed,
    Fault.COORDINATOR_MOVED: coordinator_moved,
    Fault.OUT_OF_SIGHT: out_of_sight,
}
"""By kind; the functions describe the harm and the conditions that must hold after it."""
