"""Steps after a snapshot are taken again exactly, or the state is not used."""

from itertools import pairwise
from typing import Any

import pytest

from consumers.engine.intake.admission import Arrival, admit
from consumers.evaluator.recall.journal_piece import Piece
from consumers.evaluator.snapshots import tail as tails
from consumers.evaluator.snapshots.manifest import Refusal, RefusedError
from consumers.evaluator.snapshots.tail import tail_of
from tests.benchmarks.traffic import interleaved, simulated_events
from tests.properties.evaluation import LIMITS
from tests.properties.owners import Log, Owner, Snapshot, record_of


class Scene:
    """An owner in the middle of some calls with a snapshot, and three transactions after it."""

    def __init__(self) -> None:
        admitted = [
            admit(source, record, LIMITS) for source, record in interleaved([simulated_events(s) for s in range(3, 8)])
        ]
        self.records = [record_of(each) for each in admitted if isinstance(each, Arrival)]
        self.log = Log()
        self.owner = Owner(self.log)
        at = [len(self.records) * part // 10 for part in (4, 5, 6, 7)]
        self._read(0, at[0])
        self.owner.write()
        self.snapshot = self.owner.snapshot()
        for first, last in pairwise(at):
            self._read(first, last)
            self.owner.write()
        self.read_to = at[-1]
        assert len(self.log.pieces) == 3

    def _read(self, first: int, last: int) -> None:
        for record in self.records[first:last]:
            self.owner.fold(record)
            self.owner.advance(record.timestamp - 1_000)

    def restored(self, snapshot: Snapshot | None = None) -> Owner:
        return Owner.restored(self.log, snapshot or self.snapshot, self.records)

    def refused(self, reason: Refusal, snapshot: Snapshot | None = None) -> None:
        with pytest.raises(RefusedError) as caught:
            self.restored(snapshot)
        assert caught.value.reason is reason


@pytest.fixture
def scene() -> Scene:
    return Scene()


def _changed(pieces: list[Piece], index: int, **changes: Any) -> None:
    pieces[index] = pieces[index].model_copy(update=changes)


def test_the_state_is_that_of_the_owner_after_its_last_written_record(scene: Scene) -> None:
    restored = scene.restored()
    for record in scene.records[: scene.read_to]:
        restored.fold(record)
        restored.advance(record.timestamp - 1_000)
    restored.write()
    assert len(scene.log.pieces) == 3, "nothing was written again"
    assert restored.partition.next_offsets == scene.owner.partition.next_offsets
    assert restored.partition.open_calls == scene.owner.partition.open_calls


def test_what_was_decided_and_not_written_is_written_by_the_successor(scene: Scene) -> None:
    owner, end_ms = scene.owner, scene.records[-1].timestamp + 10_000_000
    owner.partition.advance(end_ms)
    owner.write()
    assert owner.partition.closing_calls >= 2
    owner.partition.close_some()
    closings = owner.partition.outbox.first()
    assert len(closings) >= 2, "one step closes several calls"
    owner.write(1)
    restored = scene.restored()
    assert restored.partition.open_calls == 0
    assert restored.partition.outbox.first() == closings[1:]


@pytest.mark.parametrize("index", [0, 1])
def test_a_piece_that_is_gone_is_noticed(scene: Scene, index: int) -> None:
    del scene.log.pieces[index]
    scene.refused(Refusal.STALE)


def test_pieces_of_another_journal_do_not_count(scene: Scene) -> None:
    _changed(scene.log.pieces, 2, journal_id="0" * 32)
    scene.refused(Refusal.STALE)


def test_pieces_in_another_order_do_not_count(scene: Scene) -> None:
    scene.log.pieces[1:] = scene.log.pieces[:0:-1]
    scene.refused(Refusal.STALE)


def test_a_state_that_is_older_than_its_place_decides_other_records(scene: Scene) -> None:
    """As if the note named one snapshot, and its bytes were another's."""
    older = Scene().snapshot  # of the same moment, but a fresh state
    older = older._replace(state=Owner(Log()).snapshot().state, journal=scene.snapshot.journal)
    scene.refused(Refusal.DIFFERS, older)


def test_a_state_with_a_call_less_decides_other_records(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    restore = tails.Redoing.redo

    async def torn(self: Any, evaluator: Any, *more: Any) -> Any:
        del evaluator._calls[sorted(evaluator._calls)[0]]
        return await restore(self, evaluator, *more)

    monkeypatch.setattr(tails.Redoing, "redo", torn)
    scene.refused(Refusal.DIFFERS)


def test_a_group_with_another_checksum_is_noticed(scene: Scene) -> None:
    checks = scene.log.pieces[1].checks
    _changed(scene.log.pieces, 1, checks=(*checks[:-1], checks[-1] ^ 1))
    scene.refused(Refusal.DIFFERS)


def test_groups_that_nobody_decides_are_noticed(scene: Scene) -> None:
    _changed(scene.log.pieces, 2, checks=(*scene.log.pieces[2].checks, 7))
    scene.refused(Refusal.DIFFERS)


def test_groups_that_nobody_wrote_are_noticed(scene: Scene) -> None:
    _changed(scene.log.pieces, 2, checks=scene.log.pieces[2].checks[:-1])
    scene.refused(Refusal.DIFFERS)


def test_damaged_steps_are_noticed(scene: Scene) -> None:
    _changed(scene.log.pieces, 2, encoded=scene.log.pieces[2].encoded[:-1])
    scene.refused(Refusal.STALE)


def test_an_input_record_that_is_gone_is_noticed(scene: Scene) -> None:
    topic = scene.records[scene.read_to - 1].topic
    gone = next(
        record
        for record in scene.records
        if record.topic == topic and record.offset == scene.snapshot.positions[topic] + 1
    )
    scene.records.remove(gone)
    scene.refused(Refusal.INPUTS_MOVED)


def test_a_snapshot_without_a_place_has_no_steps_after_it(scene: Scene) -> None:
    assert tail_of(None, ()).steps == ()
    with pytest.raises(RefusedError):
        tail_of(None, scene.log.pieces)


def test_what_was_decided_before_it_must_be_written(scene: Scene) -> None:
    place = scene.snapshot.journal
    with pytest.raises(RefusedError, match="not written"):
        tail_of(place.model_copy(update={"groups": place.groups + 1}), ())


def test_a_tail_has_a_bound(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "MAX_TAIL_STEPS", 5)
    scene.refused(Refusal.TOO_FAR_BACK)
