"""Partitions that come to owner after owner: they stop where the last one was, one call is closed, then they go on."""

from collections.abc import Sequence

import pytest
from aiokafka import TopicPartition
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.engine.limits import Limits
from consumers.evaluator.ownership.stuck_partitions import (
    HEAVY_BYTES,
    MAX_TAKEOVERS_WITH_LIGHT_CALLS,
    MAX_TAKEOVERS_WITH_SCORES,
    close_what_stops,
)
from consumers.evaluator.partition.owned_partition import OwnedPartition
from consumers.evaluator.partition.partition import InputStart, Partition
from consumers.evaluator.partition.progress import MAX_TAKEOVERS_WITHOUT_PROGRESS, PROGRESS_LASTS_MS
from consumers.evaluator.recall.commit_note import CommitNote
from consumers.runtime.registry import Instruments
from schemas.topics import SOURCE_BY_TOPIC
from tests.support.fakes.evaluator_fakes import AUDIT, NOW_MS, PIPECAT, Record, StubEvaluator, owned_of, waiting_in

START, REACHED = 10, 500
STUCK = MAX_TAKEOVERS_WITHOUT_PROGRESS + 1
STARTS = {PIPECAT: InputStart(START, REACHED), AUDIT: InputStart(7, 7)}


class Stuck:
    """A partition that was taken over."""

    def __init__(self, takeovers: int = STUCK, number: int = 0, heaviest: tuple[int, int, str] | None = None) -> None:
        self.evaluator = StubEvaluator()
        self.evaluator.heaviest = heaviest
        self.evaluator.wakeup_ms = NOW_MS
        instruments = Instruments(CollectorRegistry(), ["evaluator"])
        self.partition = Partition(number, self.evaluator, Limits(), SOURCE_BY_TOPIC, instruments)
        self.owned: OwnedPartition = owned_of(self.partition)
        self.owned.began(STARTS, {PIPECAT: REACHED, AUDIT: 7}, 0, 0, now_ms=0, overlap_ms=0, takeovers=takeovers)

    def fold(self, *offsets: int, client_at: int | None = None) -> None:
        self.partition.fold([[Record(PIPECAT, offset, NOW_MS) for offset in offsets]], NOW_MS)
        at = (max(offsets) + 1) if client_at is None else client_at
        waits = self.partition.merge.waits(PIPECAT)
        self.owned.read_to({PIPECAT: self.partition.next_offsets[PIPECAT] if waits else at, AUDIT: 7})

    @property
    def folded(self) -> list[int]:
        return [arrival.offset for arrival in self.evaluator.arrivals]


def written(partition: Partition) -> Sequence[Sequence[str]]:
    groups = waiting_in(partition.outbox)
    partition.outbox.written(len(groups))
    return groups


def test_it_stops_where_the_last_owner_was_closes_one_call_and_goes_on_when_that_is_written() -> None:
    stuck = Stuck(heaviest=(900_000, 3, "poison"))
    stuck.fold(498, 499, 500, 501)
    stuck.partition.advance(NOW_MS)
    assert (stuck.folded, stuck.evaluator.advanced_to_ms) == ([498, 499], [])
    with capture_logs() as logged:
        close_what_stops([stuck.owned])
    assert stuck.evaluator.cuts == [("poison", True)]
    (told,) = logged
    assert (told["event"], told["conversation_id"], told["partition"]) == ("call_closed_to_get_on", "poison", 0)
    assert told["seen"].startswith("3 evaluators in a row ended")
    close_what_stops([stuck.owned])
    stuck.fold(502)
    assert (stuck.folded, len(stuck.evaluator.cuts)) == ([498, 499], 1)
    assert written(stuck.partition) == [["poison"]]
    close_what_stops([stuck.owned])
    stuck.fold(503)
    assert stuck.folded == [498, 499, 500, 501, 502, 503]
    assert stuck.evaluator.advanced_to_ms
    close_what_stops([stuck.owned])
    assert len(stuck.evaluator.cuts) == 1


@pytest.mark.parametrize(
    ("offsets", "client_at", "is_there"),
    [
        pytest.param([498], None, False, id="before it"),
        pytest.param([499], None, True, id="the record before it is the last"),
        pytest.param([498], REACHED, True, id="what is between is the end of a transaction"),
        pytest.param([498, 600], None, True, id="what is between was deleted"),
    ],
)
def test_nothing_is_closed_before_everything_is_read_that_was_read(
    offsets: list[int], client_at: int | None, is_there: bool
) -> None:
    stuck = Stuck(heaviest=(900_000, 3, "poison"))
    stuck.fold(*offsets, client_at=client_at)
    close_what_stops([stuck.owned])
    assert bool(stuck.evaluator.cuts) == is_there


def test_of_all_partitions_of_the_process_one_call_is_closed() -> None:
    stuck = [Stuck(number=0, heaviest=(300_000, 3, "a")), Stuck(number=1, heaviest=(900_000, 1, "b")), Stuck(number=2)]
    healthy = Stuck(takeovers=1, number=3, heaviest=(10_000_000, 9, "c"))
    owned = [each.owned for each in [*stuck, healthy]]
    stuck[0].fold(499)
    stuck[1].fold(499)
    close_what_stops(owned)
    assert [each.evaluator.cuts for each in stuck] == [[], [], []]  # one is not there yet
    stuck[2].fold(499)
    for _ in range(2):
        close_what_stops(owned)
    assert [each.evaluator.cuts for each in stuck] == [[], [("b", True)], []]
    written(stuck[1].partition)
    close_what_stops(owned)
    assert [each.partition.stops for each in stuck] == [None] * 3
    assert healthy.evaluator.cuts == []


def test_without_an_open_call_it_just_goes_on() -> None:
    stuck = Stuck()
    stuck.fold(499)
    close_what_stops([stuck.owned])
    assert stuck.partition.stops is None


@pytest.mark.parametrize(
    ("ended", "is_scored"), [(MAX_TAKEOVERS_WITH_SCORES - 1, True), (MAX_TAKEOVERS_WITH_SCORES, False)]
)
def test_when_that_does_not_help_final_scores_are_left_out(ended: int, is_scored: bool) -> None:
    stuck = Stuck(takeovers=ended + 1, heaviest=(900_000, 3, "poison"))
    stuck.fold(499)
    close_what_stops([stuck.owned])
    assert stuck.evaluator.cuts == [("poison", is_scored)]


@pytest.mark.parametrize(
    ("kept_bytes", "ended", "is_closed"),
    [
        (HEAVY_BYTES, MAX_TAKEOVERS_WITHOUT_PROGRESS, True),
        (HEAVY_BYTES - 1, MAX_TAKEOVERS_WITHOUT_PROGRESS, False),
        (HEAVY_BYTES - 1, MAX_TAKEOVERS_WITH_LIGHT_CALLS - 1, False),
        (HEAVY_BYTES - 1, MAX_TAKEOVERS_WITH_LIGHT_CALLS, True),
    ],
)
def test_a_call_that_keeps_little_is_closed_only_when_nothing_else_helps(
    kept_bytes: int, ended: int, is_closed: bool
) -> None:
    stuck = Stuck(takeovers=ended + 1, heaviest=(kept_bytes, 3, "call"))
    stuck.fold(499)
    close_what_stops([stuck.owned])
    assert bool(stuck.evaluator.cuts) == is_closed
    assert (stuck.partition.stops is None) == (not is_closed)


def test_an_owner_that_hands_over_or_ends_because_of_the_broker_does_not_count() -> None:
    stuck = Stuck(takeovers=2)
    stuck.fold(300)
    stuck.evaluator.watermarks = dict.fromkeys(SOURCE_BY_TOPIC.values(), START)

    def takeovers(committed: object) -> set[int]:
        assert isinstance(committed, dict)
        return {CommitNote.parse(at.metadata).takeovers for at in committed.values()}

    assert takeovers(stuck.owned.to_commit(0)) == {2}
    assert takeovers(stuck.owned.to_commit(0, hands_over=True)) == {1}
    found = stuck.owned.as_found()
    assert takeovers(found) == {1}
    assert {tp: at.offset for tp, at in found.items()} == {
        TopicPartition(PIPECAT, 0): START,
        TopicPartition(AUDIT, 0): 7,
    }
    assert {CommitNote.parse(at.metadata).read for at in found.values()} == {REACHED, 7}
    stuck.fold(501)
    for now_ms in (0, 1, 1 + PROGRESS_LASTS_MS):
        committed = stuck.owned.to_commit(now_ms)
        stuck.partition.advance(NOW_MS + 1)
    assert (takeovers(committed), stuck.owned.as_found()) == ({0}, {})


def test_how_far_anybody_read_is_not_forgotten_by_who_reads_again() -> None:
    stuck = Stuck(takeovers=2)
    for offset, read in ((300, REACHED), (600, 601)):
        stuck.fold(offset)
        assert CommitNote.parse(stuck.owned.to_commit(0)[TopicPartition(PIPECAT, 0)].metadata).read == read
