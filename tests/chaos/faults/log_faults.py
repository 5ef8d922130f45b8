"""Faults of topics and their records. Each returns a description, or None when it is not possible now."""

import time
from typing import Final

from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete
from aiokafka.errors import KafkaError

from schemas.topics import INPUT_TOPICS
from tests.chaos.cluster.administration import asked, committed
from tests.chaos.evaluators.evaluator_page import PageError, partitions_of
from tests.chaos.faults.scene import Scene
from tests.chaos.verdict.deleted_records import Deletion
from tests.chaos.verdict.topic_reader import UnreadableError, extent, to_the_end

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
    if not _is_quiet(scene):
        return None
    stage.add_partitions(MORE_PARTITIONS)
    return f"{MORE_PARTITIONS} more, {stage.partitions} now"


def deleted_read(scene: Scene) -> str | None:
    """Records below the committed offsets, which no reader needs any more, are deleted: this has no effect."""
    if not _is_quiet(scene):
        return None
    number = scene.rng.randrange(scene.stage.partitions)
    try:
        deleted = _delete(scene, number, _committed(scene, number))
    except (KafkaError, UnreadableError):
        return None
    return f"{sum(end - first for first, end in deleted.values()):,} records of partition {number}"


def deleted_unread(scene: Scene) -> str | None:
    """Records go that an evaluator has not read. It says so and counts them; calls that lost none are as they must be."""
    target = scene.evaluator(is_ready=True) if _is_quiet(scene) else None
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
    if not _is_quiet(scene):
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


def _is_quiet(scene: Scene) -> bool:
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
