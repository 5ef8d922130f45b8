"""Snapshots in one evaluator: writing them for successors, at stops and between them, and restoring those of predecessors."""

from typing import NamedTuple

from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.snapshots.basis import basis_of
from consumers.evaluator.snapshots.between_stops import SnapshotsBetweenStops
from consumers.evaluator.snapshots.handing_over import SnapshotWriting
from consumers.evaluator.snapshots.restoring import SnapshotRestoring
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.registry import Instruments
from schemas.goals.goal_set import ChoosesGoals
from schemas.topics import SNAPSHOTS_TOPIC


class Snapshots(NamedTuple):
    """Writer and reader of snapshots, which are None without a key; and the writer of snapshots between stops."""

    writing: SnapshotWriting | None
    restoring: SnapshotRestoring | None
    between_stops: SnapshotsBetweenStops


def snapshots_of(
    kafka: KafkaSettings, settings: EvaluatorSettings, goals: ChoosesGoals | None, instruments: Instruments
) -> Snapshots:
    """Builds them from the settings.

    Args:
        kafka: The cluster.
        settings: Group, key, and the basis of snapshots.
        goals: Chooses the goal sets of later calls.
        instruments: Where snapshots are counted.
    """
    if settings.snapshot_key is None or not settings.hands_over_state or kafka.is_embedded:
        return Snapshots(None, None, SnapshotsBetweenStops(None, 0))
    key, basis = settings.snapshot_key.get_secret_value().encode(), basis_of(settings)
    writing = SnapshotWriting(kafka.topic(SNAPSHOTS_TOPIC), basis, key, instruments)
    return Snapshots(
        writing,
        SnapshotRestoring(kafka, settings, basis, key, goals, instruments),
        SnapshotsBetweenStops(writing, settings.snapshot_interval_ms),
    )
