"""Every kind of fault: what it does, and what must hold after it.

Each function returns a description, or None when the fault is not possible now. After each of them
every final score is there once and right, unless it says otherwise.
"""

import asyncio
import json
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
from confluent_kafka import Consumer, KafkaException, Producer

from consumers.runtime.process import wall_clock_ms
from schemas.closed_sets import InputSource
from schemas.log import Next
from schemas.topics import EVENTS_TOPIC
from tests.chaos.cluster.administration import asked
from tests.chaos.cluster.cluster import Node
from tests.chaos.cluster.proxy import DOORS, Way
from tests.chaos.evaluators.fleet import TERM, Fleet, Member, PageError, total
from tests.chaos.faults.faults import Fault
from tests.chaos.stage import CREATE_TRIES, SESSION_SECONDS, RunError, Stage
from tests.chaos.verdict.deleted_records import Deletion, Excuse
from tests.chaos.verdict.topic_reader import UnreadableError, extent, to_the_end
from tests.support.brokers.topic_changes import create_topics, delete_topic

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
        busy: Names of the targets of faults that are not over: no other fault may have them until
            then.
        thawed: How often a frozen sequencer went on while another was active.
    """

    stage: Stage
    rng: random.Random
    least_evaluators: int
    proofs: list[Callable[[], str | None]] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)
    thawed: int = 0

    def evaluator(self, *, is_ready: bool = False) -> Member | None:
        """Any that runs and to which nothing is being done; if asked for, one that has
        started up.
        """
        return self._one_of(self.stage.fleet, is_ready=is_ready)

    def sequencer(self) -> Member | None:
        """The active one, if it runs and nothing is being done to it."""
        found = [
            each
            for each in self.stage.sequencers.running
            if each.name not in self.busy and is_active(each)
        ]
        return found[0] if found else None

    def _one_of(self, fleet: Fleet, *, is_ready: bool = False) -> Member | None:
        there = [each for each in fleet.running if each.name not in self.busy]
        if is_ready:
            there = [each for each in there if each.metrics_address]
        return self.rng.choice(there) if there else None

    def during(
        self,
        what: str,
        seconds: float,
        undo: Callable[[], None],
        is_enough: Callable[[], bool] = lambda: True,
    ) -> None:
        """Marks a target as busy for so long, and longer until it is enough; then undoes the fault,
        or begins its next part.
        """
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


# -- faults of evaluators; every call that is over is closed after them
# ------------------------------------------------

FROZEN_AT_LEAST, FROZEN_AT_MOST = SESSION_SECONDS + 2, SESSION_SECONDS + 8
MORE_EVALUATORS: Final = 2
"""So many may join above the number asked for."""
NEWER_SECONDS: Final = 15.0
OLDER_SECONDS: Final = SESSION_SECONDS + 2
"""So that evaluators of this version have the partitions of a killed newer one, before it comes
back.
"""
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
    return target.name


def terminate(scene: Scene) -> str | None:
    """SIGTERM; another starts in its place."""
    target = scene.evaluator()
    if target is None:
        return None
    target.terminate(for_good=False)
    return target.name


def freeze(scene: Scene) -> str | None:
    """SIGSTOP for longer than the group waits: when it goes on, its partitions have
    other owners.
    """
    target = scene.evaluator()
    if target is None:
        return None
    seconds = scene.rng.uniform(FROZEN_AT_LEAST, FROZEN_AT_MOST)
    target.freeze(seconds)
    return f"{target.name} for {seconds:.0f} s"


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
    return target.name


def newer(scene: Scene) -> str | None:
    """An evaluator comes back as a newer version, is killed, comes back as this version, and all of
    it once more.

    So its partitions change versions there and back: each version publishes the values of the
    other's calls once again, with higher revisions and the same end. Also, this version obeys
    closings that it cannot read whole.
    """
    target = scene.evaluator(is_ready=True)
    if target is None:
        return None
    name, stage = target.name, scene.stage

    def end_as(is_newer: bool) -> None:
        target.is_newer = is_newer
        if target.is_running:
            target.kill()

    def be_newer(then: Callable[[], None]) -> None:
        closed_before = stage.newer_closings
        scene.during(
            name, NEWER_SECONDS, then, lambda: stage.newer_closings > closed_before + ENOUGH_CLOSED
        )

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
        lambda: (
            None
            if stage.said_again
            else "versions have changed, and no call was published once again"
        )
    )
    return (
        f"{name} for {NEWER_SECONDS:.0f} s and until it has closed calls, {OLDER_SECONDS:.0f} s "
        "not, and again"
    )


def twins(scene: Scene) -> str | None:
    """Two evaluators join with one instance name, and leave: one of them stands aside while the
    other is there.
    """
    fleet = scene.stage.fleet
    if "twins" in scene.busy or len(fleet.members) >= scene.least_evaluators + MORE_EVALUATORS:
        return None
    both = [fleet.join(instance=f"twin of {len(scene.proofs)}") for _ in range(2)]

    def leave(each: Member) -> None:
        if each.is_running:
            each.terminate(for_good=True)
        elif not each.is_gone:  # another fault has it: the next process in its place goes
            scene.stage.after(LOOK_AGAIN_SECONDS, lambda: leave(each))

    def end() -> None:
        for each in both:
            leave(each)

    scene.during("twins", TWINS_SECONDS, end, lambda: bool(fleet.logs_with(TWIN_IN_LOG)))
    scene.proofs.append(
        lambda: None if fleet.logs_with(TWIN_IN_LOG) else f"no evaluator says {TWIN_IN_LOG}"
    )
    return f"evaluators {both[0].number} and {both[1].number} for {TWINS_SECONDS:.0f} s"


def stranger(scene: Scene) -> str | None:
    """A program that is no evaluator joins the group, is given partitions of the log, commits its
    end, and leaves: nothing is skipped.
    """
    if "the group" in scene.busy or not _answers_and_is_quiet(scene):
        return None
    stage = scene.stage
    topic = stage.prefix + EVENTS_TOPIC
    given: list[TopicPartition] = []
    program = Thread(
        target=_read_as_stranger,
        args=(stage.cluster.bootstrap, stage.group, topic, given),
        daemon=True,
    )
    program.start()

    def gone() -> None:
        program.join()
        stage.note(f"the stranger was given {len(given)} partitions")

    scene.during("the group", STRANGER_SECONDS, gone, lambda: not program.is_alive())
    scene.proofs.append(
        lambda: (
            None
            if not given or stage.fleet.logs_with(STRANGER_IN_LOG)
            else "no evaluator names the stranger"
        )
    )
    return f"reads {topic} for {STRANGER_SECONDS:.0f} s"


def _read_as_stranger(bootstrap: str, group: str, topic: str, given: list[TopicPartition]) -> None:
    """Reads for so long from when it is given partitions, for which a busy group may
    need a while.
    """
    until = time.monotonic() + (MOST_TIMES_LONGER - 1) * STRANGER_SECONDS
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": STRANGER_IN_LOG,
            "partition.assignment.strategy": "range",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 500,
            "session.timeout.ms": int(SESSION_SECONDS * 1_000),
        }
    )
    try:
        reader.subscribe([topic])
        while time.monotonic() < until:
            reader.poll(0.2)
            if not given and (found := reader.assignment()):
                given += found
                until = time.monotonic() + STRANGER_SECONDS
    finally:
        reader.close()


def clock_forward(scene: Scene) -> str | None:
    """The clock of an evaluator or sequencer steps ahead, and later back to the right time: no call
    is closed for that.
    """
    return _step_clock(scene, CLOCK_STEP_SECONDS)


def clock_back(scene: Scene) -> str | None:
    """The clock of an evaluator or sequencer steps back, and later to the right time: no call waits
    for that.
    """
    return _step_clock(scene, -CLOCK_STEP_SECONDS)


def _step_clock(scene: Scene, seconds: float) -> str | None:
    target = scene.rng.choice((scene.evaluator(), scene.sequencer()))
    if target is None:
        return None
    target.step_clock(seconds)
    scene.during(target.name, CLOCK_WRONG_SECONDS, lambda: target.step_clock(0))
    return f"{target.name} by {seconds:+.0f} s for {CLOCK_WRONG_SECONDS:.0f} s"


# -- faults of sequencers; every record of the inputs is in the log once after them
# ------------------------------------

MORE_SEQUENCERS: Final = 3
"""So many may be there at most."""
JOINS_SECONDS: Final = 15.0


def is_active(member: Member) -> bool:
    """Whether it writes the log now, as far as it says."""
    try:
        return bool(member.metrics_address) and total(member, TERM) > 0
    except PageError:
        return False


def sequencer_killed(scene: Scene) -> str | None:
    """kill -9 of the active sequencer; one that stood by goes on from what the log says."""
    return _on_sequencer(scene, lambda target: target.kill())


def sequencer_terminated(scene: Scene) -> str | None:
    """SIGTERM of the active sequencer."""
    return _on_sequencer(scene, lambda target: target.terminate(for_good=False))


def _on_sequencer(scene: Scene, do: Callable[[Member], None]) -> str | None:
    target = scene.sequencer()
    if target is None:
        return None
    do(target)
    return target.name


def sequencer_frozen(scene: Scene) -> str | None:
    """SIGSTOP of the active sequencer until another has begun a term: what it had in hand and
    appends when it thaws is void.
    """
    target = scene.sequencer()
    if target is None:
        return None
    seconds = scene.rng.uniform(FROZEN_AT_LEAST, FROZEN_AT_MOST)
    target.freeze(MOST_TIMES_LONGER * seconds)
    seen: list[Member] = []

    def has_successor() -> bool:
        seen[:] = [
            each
            for each in scene.stage.sequencers.running
            if each is not target and is_active(each)
        ]
        return bool(seen)

    def thaw() -> None:
        if target.thaws_at is not None:
            scene.stage.note(
                f"{target.name} thaws while {seen[0].name if seen else 'nobody'} is active"
            )
            scene.thawed += bool(seen)
            target.thaw()

    scene.during(target.name, seconds, thaw, has_successor)
    scene.proofs.append(
        lambda: None if scene.thawed else "no sequencer was thawed while another was active"
    )
    return f"{target.name} for {seconds:.0f} s and until another is active"


def sequencers_killed(scene: Scene) -> str | None:
    """kill -9 of all sequencers at once: the log stands still, and no silence comes of that."""
    running = [each for each in scene.stage.sequencers.running if each.name not in scene.busy]
    for each in running:
        each.kill()
    return " and ".join(each.name for each in running) or None


def sequencer_joins(scene: Scene) -> str | None:
    """One more sequencer joins the group, which is shared out anew, and leaves again."""
    fleet = scene.stage.sequencers
    if "a sequencer" in scene.busy or len(fleet.members) >= MORE_SEQUENCERS:
        return None
    member = fleet.join()

    def leave() -> None:
        if member.is_running:
            member.terminate(for_good=True)
        elif not member.is_gone:
            scene.stage.after(LOOK_AGAIN_SECONDS, leave)

    scene.during("a sequencer", JOINS_SECONDS, leave)
    return f"{member.name} for {JOINS_SECONDS:.0f} s"


# -- faults between processes and brokers, for all traffic through one door of the proxy, which is
# half of the fleet ---

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
    """Only the broker's packets pass, or only those to it."""
    return _narrow(scene, scene.rng.choice((Way.NOT_TO_BROKER, Way.NOT_FROM_BROKER)), LONG_SECONDS)


def half_open(scene: Scene) -> str | None:
    """The brokers have closed every connection, and the other ends believe that they are open."""
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
    members = ", ".join(each.name for each in scene.stage.members if each.door == door)
    return f"the {door} door ({way.replace('_', ' ')}) for {seconds:.0f} s: {members}"


# -- faults of topics and their records
# --------------------------------------------------------------------------------

PRODUCED: Final = ("pipecat", "elevenlabs", "audit")
"""Inputs that producers write."""
MORE_PARTITIONS: Final = 2
BEHIND_SECONDS: Final = 2.0
"""How long sequencers are frozen before unread records are deleted, and again before they go on."""
REMADE_SECONDS: Final = 6.0
"""How long an input pauses at least before it is replaced."""
FILLED: Final = "audit"
"""The input that is replaced with more records than it had."""
FEW: Final = 20
"""Records in each partition of it before."""
ANEW_IN_LOG: Final = "another record stands where its last one was"
OPEN_SECONDS: Final = 20.0
LATE_MS: Final = 2_000
"""After its end a transaction may still hide records for so long."""
ANSWER_SECONDS: Final = 20.0
ABORT_TRIES: Final = 5
"""Later than that the broker has ended the transaction by itself."""
LOSS_IN_LOG: Final = "input_not_where_it_was"


def heavy_close(scene: Scene) -> str | None:
    """A call inside every limit that is as costly to close as one can be: it is closed like any
    other, and delays no other call.
    """
    scene.stage.load.play_heavy()
    return f"call {scene.stage.load.report.heavy + 1}"


def partitions_added(scene: Scene) -> str | None:
    """Every input gets more partitions, and keys move there: in the log each call stays where it
    is.
    """
    stage = scene.stage
    if not _answers_and_is_quiet(scene) or scene.busy & set(PRODUCED):
        return None
    stage.add_partitions(MORE_PARTITIONS)
    return f"{MORE_PARTITIONS} more, {stage.inputs} now"


def deleted_read(scene: Scene) -> str | None:
    """Records that the sequencer has appended, and whose place every tick says, are deleted: this
    has no effect.
    """
    if not _answers_and_is_quiet(scene):
        return None
    source = scene.rng.choice(PRODUCED)
    try:
        positions = _positions(scene, source)
        deleted = [
            _delete(scene, source, number, place.offset) for number, place in positions.items()
        ]
    except (KafkaError, UnreadableError):
        return None
    return (
        f"{sum(end - first for first, end in deleted):,} records of {source}" if deleted else None
    )


def deleted_unread(scene: Scene) -> str | None:
    """Records go that no sequencer has read. The next to read says so and counts them; all others
    come into the log.
    """
    stage = scene.stage
    running = [each for each in stage.sequencers.running if each.name not in scene.busy]
    if not _answers_and_is_quiet(scene) or len(running) < len(stage.sequencers.members):
        return None
    source = scene.rng.choice(PRODUCED)
    for each in running:
        each.freeze(2 * BEHIND_SECONDS)
    stage.after(BEHIND_SECONDS, lambda: _delete_all(scene, source))
    return f"{source}, with {', '.join(each.name for each in running)} frozen"


def _delete_all(scene: Scene, source: str) -> None:
    stage = scene.stage
    if not _answers_and_is_quiet(scene) or source in scene.busy:
        stage.note(f"records of {source} stay: a broker is away, or it is replaced")
        return
    topic = stage.topic_of(source)
    made = stage.kept.made.get(topic, 0)
    try:
        for number, place in _positions(scene, source).items():
            _, end = _delete(
                scene, source, number, extent(stage.cluster.bootstrap, topic, number)[1]
            )
            deletion = Deletion(topic, number, made, place.offset, end)
            records = [
                each
                for each in stage.kept.of(topic, number, made)
                if place.offset <= each.offset < end
            ]
            stage.lost(deletion, {each.key for each in records if each.key})
            if records:
                stage.note(f"{len(records):,} records of {topic}[{number}] may go unread")
                # the default binds the loop's value
                scene.proofs.append(lambda deletion=deletion: _is_told(scene, deletion))  # type: ignore[misc]
    except (KafkaError, UnreadableError) as error:
        stage.note(f"records of {topic} could not be deleted: {error}")


def input_remade(scene: Scene) -> str | None:
    """An input is deleted when all of it is read, and recreated, smaller than it was: its new
    records come into the log like the others.
    """
    source = scene.rng.choice(PRODUCED)
    if not _answers_and_is_quiet(scene) or scene.busy & {*PRODUCED, "the brokers"}:
        return None
    _while_paused(scene, source, lambda: _remake(scene, source))
    return scene.stage.topic_of(source)


def input_remade_larger(scene: Scene) -> str | None:
    """An input is deleted and recreated while all sequencers are frozen, with more records than it
    had: they find others in their place.

    Before that it is replaced with few records, so that few are more.
    """
    stage = scene.stage
    if (
        not stage.closed_keys
        or not _answers_and_is_quiet(scene)
        or scene.busy & {*PRODUCED, "the brokers"}
    ):
        return None

    def small() -> None:
        _remake(scene, FILLED)
        _fill(scene, FEW)
        _while_paused(scene, FILLED, larger)

    def larger() -> None:
        running = stage.sequencers.running
        for each in running:
            each.freeze(FROZEN_AT_MOST)
        _remake(scene, FILLED)
        _fill(scene, 2 * FEW)
        for each in running:
            each.thaw()
        stage.note(
            f"{stage.topic_of(FILLED)} has {2 * FEW} records in each partition, and had {FEW}"
        )
        scene.proofs.append(
            lambda: (
                None
                if stage.sequencers.logs_with(ANEW_IN_LOG)
                else f"no sequencer says {ANEW_IN_LOG}"
            )
        )

    _while_paused(scene, FILLED, small)
    return stage.topic_of(FILLED)


def _while_paused(scene: Scene, source: str, change: Callable[[], None]) -> None:
    """Holds an input's load back until all of it is read, then changes the input; if it is not read
    in time, nothing changes.
    """
    stage = scene.stage
    topic, bootstrap = stage.topic_of(source), stage.cluster.bootstrap
    stage.load.pause(source)

    def is_read() -> bool:
        if source not in stage.load.report.paused or not _answers_and_is_quiet(scene):
            return False
        try:
            positions = _positions(scene, source)
            ends = {
                number: extent(bootstrap, topic, number)[1]
                for number in range(stage.inputs[source])
            }
        except (KafkaError, UnreadableError):
            return False
        # a place behind the end is that of the log before
        return all(positions.get(number, Next(0, 0)).offset == end for number, end in ends.items())

    def end() -> None:
        if is_read():
            change()
        else:
            stage.note(f"{topic} stays as it is: not all of it could be read")
        if source not in scene.busy:  # or the change goes on
            stage.load.resume(source)

    scene.during(source, REMADE_SECONDS, end, is_read)


def _fill(scene: Scene, records: int) -> None:
    """Puts so many late records of closed calls into each partition of the input, as its own
    producer would write them.
    """
    stage = scene.stage
    writer = Producer({"bootstrap.servers": stage.cluster.bootstrap, "acks": "all", "log_level": 0})
    for number in range(stage.inputs[FILLED]):
        for key in scene.rng.choices(sorted(stage.closed_keys), k=records):
            value = {
                "message_type": "user",
                "timestamp": str(wall_clock_ms()),
                "value": "Is anybody there?",
            }
            writer.produce(stage.topic_of(FILLED), json.dumps(value).encode(), key, number)
    if left := writer.flush(ANSWER_SECONDS):
        raise RunError(f"the broker did not take {left} records")


def _remake(scene: Scene, source: str) -> None:
    stage = scene.stage
    topic, bootstrap, count = stage.topic_of(source), stage.cluster.bootstrap, stage.inputs[source]
    for number in range(count):
        stage.kept.keep(topic, number, to_the_end(bootstrap, topic, number))
    settings = {"message.timestamp.type": "LogAppendTime"}
    replicas = len(stage.cluster.nodes)

    async def change() -> None:
        await delete_topic(bootstrap, topic)
        await create_topics(bootstrap, {topic: count}, settings, replicas)

    for tries_left in reversed(range(CREATE_TRIES)):
        try:
            asyncio.run(change())
            break
        except (KafkaError, TimeoutError) as error:
            if not tries_left:
                raise RunError(f"{topic} could not be recreated: {error}") from error
    stage.kept.made[topic] = stage.kept.made.get(topic, 0) + 1
    stage.note(f"{topic} is replaced")


def open_transaction(scene: Scene) -> str | None:
    """A stranger writes to an input in a transaction that stays open: all behind it comes late, and
    time goes on.
    """
    stage = scene.stage
    source = scene.rng.choice(PRODUCED)
    if not _answers_and_is_quiet(scene) or scene.busy & {*PRODUCED, "a stranger's transaction"}:
        return None
    topic = stage.topic_of(source)
    name = f"{stage.prefix}stranger-{len(scene.proofs)}"
    writer = Producer(
        {"bootstrap.servers": stage.cluster.bootstrap, "transactional.id": name, "log_level": 0}
    )
    since_ms = wall_clock_ms()
    try:
        writer.init_transactions(ANSWER_SECONDS)
        writer.begin_transaction()
        for number in range(stage.inputs[source]):
            writer.produce(topic, b"{", b"nobody-in-a-transaction", number)
        writer.flush(ANSWER_SECONDS)
    except KafkaException:
        return None

    def end() -> None:
        ending = Thread(
            target=_abort, args=(writer,), daemon=True
        )  # a broker that is down starts again only while we look
        ending.start()

        def over() -> None:
            if ending.is_alive():
                stage.after(LOOK_AGAIN_SECONDS, over)
            else:
                stage.excuses.append(Excuse(topic, since_ms, wall_clock_ms() + LATE_MS))

        over()

    scene.during("a stranger's transaction", OPEN_SECONDS, end)
    return f"on {topic} for {OPEN_SECONDS:.0f} s"


def _abort(writer: Producer) -> None:
    for _ in range(ABORT_TRIES):
        try:
            writer.abort_transaction(ANSWER_SECONDS)
        except KafkaException:
            continue
        return


def _answers_and_is_quiet(scene: Scene) -> bool:
    """Whether every broker is there and answers, so that one can be asked for this at all."""
    return (
        "the brokers" not in scene.busy
        and scene.stage.cluster.is_whole
        and scene.stage.cluster.answers()
    )


def _is_told(scene: Scene, deletion: Deletion) -> str | None:
    stage = scene.stage
    if stage.kept.made.get(deletion.topic, 0) != deletion.made:
        return None
    is_gone = extent(stage.cluster.bootstrap, deletion.topic, deletion.partition)[0] >= deletion.end
    # a killed broker may forget its latest deletions
    if not is_gone or stage.sequencers.logs_with(LOSS_IN_LOG):
        return None
    return f"records were deleted before they were read, and no sequencer says {LOSS_IN_LOG}"


def _positions(scene: Scene, source: str) -> dict[int, Next]:
    """By partition number, where an input stands by the newest tick."""
    found = scene.stage.positions()
    return {number: place for (each, number), place in found.items() if each is InputSource(source)}


def _delete(scene: Scene, source: str, number: int, before: int) -> tuple[int, int]:
    """Deletes the records of an input before this offset, and keeps them for the judgement.

    Returns:
        The first offset that is gone by this and the first that is still there.
    """
    stage = scene.stage
    bootstrap, topic = stage.cluster.bootstrap, stage.topic_of(source)
    first, _ = extent(bootstrap, topic, number)
    if before > first:
        stage.kept.keep(topic, number, to_the_end(bootstrap, topic, number, before=before))
        order = {TopicPartition(topic, number): RecordsToDelete(before)}
        asked(bootstrap, lambda admin: admin.delete_records(order))
    return first, max(first, before)


# -- faults of brokers; nothing that a broker took is lost
# -------------------------------------------------------------

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
    """The broker that coordinates most groups or transactions leaves in peace; soon after it is
    back, it gets them again.
    """
    cluster = scene.stage.cluster
    if not _is_quiet(scene):
        return None
    topic = scene.rng.choice(COORDINATORS)
    led = [node for (name, _), node in cluster.leaders().items() if name == topic]
    most = max(cluster.nodes, key=lambda node: led.count(node.number))
    most.take_down(signal.SIGTERM)
    return f"node {most.number} leads {led.count(most.number)} of {topic} and leaves"


def out_of_sight(scene: Scene) -> str | None:
    """A broker and the others lose sight of each other, in both directions or one, while clients
    see all of them.

    Where nodes cannot have a network of their own, a broker is frozen for longer than its session
    lasts.
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
            f"node {node.number} is frozen for {BROKER_FROZEN_SECONDS:.0f} s: nodes have no "
            "network of their own here"
        )
    sends, hears = scene.rng.choice(((False, False), (False, True), (True, False)))
    for other in cluster.nodes:
        if other is not node and not sends:
            network.blind(node.number, other.number)
        if other is not node and not hears:
            network.blind(other.number, node.number)
    scene.during("the brokers", OUT_OF_SIGHT_SECONDS, network.heal)
    reach = (
        "neither reaches nor hears"
        if sends == hears
        else "does not hear"
        if sends
        else "does not reach"
    )
    return f"node {node.number} {reach} the others for {OUT_OF_SIGHT_SECONDS:.0f} s"


def leader_cut_off(scene: Scene) -> str | None:
    """The broker that leads a partition of an input is frozen for longer than its session: the
    others elect another leader.
    """
    if not _is_quiet(scene):
        return None
    cluster, topic = scene.stage.cluster, scene.stage.topic_of(scene.rng.choice(PRODUCED))
    led = [node for (name, _), node in cluster.leaders().items() if name == topic]
    chosen = scene.rng.choice(led)
    node = next(each for each in cluster.nodes if each.number == chosen)
    node.freeze()
    scene.during("the brokers", BROKER_FROZEN_SECONDS, node.thaw)
    return (
        f"node {node.number}, which leads partitions of {topic}, for {BROKER_FROZEN_SECONDS:.0f} s"
    )


def _take_down(scene: Scene, number: signal.Signals) -> str | None:
    if not _is_quiet(scene):
        return None
    node: Node = scene.rng.choice(scene.stage.cluster.nodes)
    node.take_down(number)
    return f"node {node.number}"


def _is_quiet(scene: Scene) -> bool:
    """Whether nothing is being done to a broker: of three, two must always be there."""
    return "the brokers" not in scene.busy and scene.stage.cluster.is_whole


# -- all of them
# -------------------------------------------------------------------------------------------------------

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
    Fault.SEQUENCER_KILLED: sequencer_killed,
    Fault.SEQUENCER_TERMINATED: sequencer_terminated,
    Fault.SEQUENCER_FROZEN: sequencer_frozen,
    Fault.SEQUENCERS_KILLED: sequencers_killed,
    Fault.SEQUENCER_JOINS: sequencer_joins,
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
    Fault.INPUT_REMADE: input_remade,
    Fault.INPUT_REMADE_LARGER: input_remade_larger,
    Fault.OPEN_TRANSACTION: open_transaction,
    Fault.BROKER_TERMINATED: broker_terminated,
    Fault.BROKER_KILLED: broker_killed,
    Fault.COORDINATOR_MOVED: coordinator_moved,
    Fault.OUT_OF_SIGHT: out_of_sight,
    Fault.LEADER_CUT_OFF: leader_cut_off,
}
"""By kind; the functions describe the harm and the conditions that must hold after it."""
