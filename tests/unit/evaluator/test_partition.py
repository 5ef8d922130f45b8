"""One partition without a broker: what is decided of the records, the refused ones, and the order of its steps."""

from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.engine.effects import CloseCall, Count, Effect, NotUnderstood, OpenCall, PublishScore
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.evaluator import partition as partition_module
from consumers.evaluator.partition import MAX_KINDS, MAX_QUARANTINE_LINES, MisreadRecords, Partition
from consumers.evaluator.recovery import CommitNote, OrderStarts, PlacedStart
from consumers.evaluator.writer import Trip
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource, MisreadReason, RefusalReason
from schemas.events.codec import Misread
from schemas.metrics.catalogue import metric_named
from schemas.order import Closed, Evicted, Fold, GoalsChosen, OrderDecoder, OrderStart, Step, TimePassed, order_value
from tests.support.brokers.record_bytes import stand_in
from tests.support.fakes.evaluator_fakes import (
    AUDIT,
    NOW_MS,
    PIPECAT,
    Record,
    StubEvaluator,
    fact,
    goal_set,
    goals_fact,
    partition_of,
    waiting_in,
)


def test_records_are_folded_by_time_and_their_effects_kept_in_order() -> None:
    evaluator = StubEvaluator([PublishScore(fact("c-1"))])
    partition, _ = partition_of(evaluator)
    partition.fold([[Record(PIPECAT, 5), Record(PIPECAT, 6, NOW_MS + 2)], [Record(AUDIT, 9, NOW_MS + 1)]], None)
    assert [(arrival.source, arrival.offset) for arrival in evaluator.arrivals] == [
        (InputSource.PIPECAT, 5), (InputSource.AUDIT, 9), (InputSource.PIPECAT, 6),
    ]  # fmt: skip
    assert waiting_in(partition.outbox) == [["c-1"]] * 3


def test_a_decision_knows_the_way_of_its_event_and_of_none_if_time_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = StubEvaluator([PublishScore(fact("c-1"))])
    partition, _ = partition_of(evaluator)
    clock_ms = iter((NOW_MS + 20, NOW_MS + 21, NOW_MS + 23))
    monkeypatch.setattr("consumers.evaluator.partition.wall_clock_ms", lambda: next(clock_ms))
    runs = [[Record(PIPECAT, 5), Record(PIPECAT, 6, NOW_MS + 2)]]
    partition.polled(runs)
    partition.fold(runs, None)
    evaluator.wakeup_ms = 0
    partition.advance(NOW_MS + 9)
    first, second = Trip(NOW_MS, NOW_MS + 20, NOW_MS + 21), Trip(NOW_MS + 2, NOW_MS + 20, NOW_MS + 23)
    assert [each.trip for each in partition.outbox.first()] == [first, second, None]


@pytest.mark.parametrize(
    ("known_ms", "advanced_to_ms"),
    [
        pytest.param(None, [], id="an input is not known"),
        pytest.param(NOW_MS + 900, [NOW_MS, NOW_MS + 400, NOW_MS + 500], id="as it passed at the broker"),
        pytest.param(NOW_MS + 400, [NOW_MS, NOW_MS + 400, NOW_MS + 400], id="no further than every input is known"),
    ],
)
def test_time_passes_before_each_record(known_ms: int | None, advanced_to_ms: list[int]) -> None:
    evaluator = StubEvaluator()
    evaluator.wakeup_ms = 0
    partition, _ = partition_of(evaluator)
    runs = [[Record(PIPECAT, 0), Record(PIPECAT, 1, NOW_MS + 500)], [Record(AUDIT, 0, NOW_MS + 400)]]
    partition.polled(runs)
    assert partition.last_record_ms == {PIPECAT: NOW_MS + 500, AUDIT: NOW_MS + 400}
    partition.fold(runs, known_ms)
    assert evaluator.advanced_to_ms == advanced_to_ms
    assert len(evaluator.arrivals) == 3


def test_a_successor_starts_at_the_oldest_open_call() -> None:
    evaluator = StubEvaluator()
    partition, _ = partition_of(evaluator, offsets={PIPECAT: 5, AUDIT: 2})
    assert partition.offsets_to_commit() == {PIPECAT: 5, AUDIT: 2}  # nothing was read: where reading begins
    partition.fold([[Record(PIPECAT, 5), Record(PIPECAT, 8)], [Record(AUDIT, 9)]], None)
    assert partition.offsets_to_commit() == {PIPECAT: 9, AUDIT: 10}
    evaluator.watermarks = {InputSource.PIPECAT: 5, InputSource.JUDGE: 2}
    assert partition.offsets_to_commit() == {PIPECAT: 5, AUDIT: 10}


def test_what_the_client_cannot_decode_is_refused_with_its_first_and_last_offset() -> None:
    evaluator = StubEvaluator()
    partition, registry = partition_of(evaluator)
    partition.fold([[stand_in(PIPECAT, 3, 8), Record(PIPECAT, 9)]], None)
    assert waiting_in(partition.outbox) == [[RefusalReason.UNDECODABLE]]
    assert partition.offsets_to_commit()[PIPECAT] == 10
    labels = {"source": "pipecat", "reason": "undecodable"}
    assert registry.get_sample_value("callgauge_quarantined_total", labels) == 1


def test_what_can_never_be_processed_is_refused_counted_and_passed_over() -> None:
    evaluator = StubEvaluator()
    partition, registry = partition_of(evaluator)
    partition.fold([[Record(PIPECAT, 0, key=None), Record(PIPECAT, 1), Record(PIPECAT, 2, value=b"{")]], None)
    assert waiting_in(partition.outbox) == [[RefusalReason.EMPTY_KEY], [RefusalReason.UNDECODABLE]]
    assert [arrival.offset for arrival in evaluator.arrivals] == [1]
    assert partition.offsets_to_commit()[PIPECAT] == 3
    for reason in ("empty_key", "undecodable"):
        labels = {"source": "pipecat", "reason": reason}
        assert registry.get_sample_value("callgauge_quarantined_total", labels) == 1
    labels = {"source": "pipecat", "outcome": "quarantined"}
    assert registry.get_sample_value("callgauge_events_total", labels) == 2


def test_a_flood_of_refused_records_is_a_few_log_lines(capsys: pytest.CaptureFixture[str]) -> None:
    partition, _ = partition_of(StubEvaluator())
    partition.fold([[Record(PIPECAT, offset, key=None) for offset in range(100)]], None)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == MAX_QUARANTINE_LINES + 1
    assert partition.outbox.records == 100


def test_a_partition_begins_where_its_start_says_and_ends_when_it_is_dropped() -> None:
    evaluator = StubEvaluator([PublishScore(fact("c-1"))])
    partition, _ = partition_of(evaluator, offsets={PIPECAT: 7})
    assert (partition.next_offsets, partition.is_active, evaluator.knows_of_time) == ({PIPECAT: 7}, True, True)
    partition.fold([[Record(PIPECAT, 7)]], None)
    partition.drop()
    assert not partition.is_active
    assert partition.outbox.records == 0


def test_the_reasons_are_those_of_the_catalogue() -> None:
    source, reason = metric_named("callgauge_quarantined_total").label_set
    assert set(reason.values) == {each.value for each in RefusalReason}
    assert set(source.values) >= {each.value for each in InputSource}


@pytest.mark.parametrize(
    ("wakeup_ms", "advanced_to_ms"), [(None, []), (NOW_MS + 1, []), (NOW_MS, [NOW_MS]), (NOW_MS - 50, [NOW_MS])]
)
def test_time_passes_only_when_something_waits_for_it(wakeup_ms: int | None, advanced_to_ms: list[int]) -> None:
    evaluator = StubEvaluator([PublishScore(fact("c-1"))])
    evaluator.wakeup_ms = wakeup_ms
    partition, _ = partition_of(evaluator)
    partition.advance(NOW_MS)
    assert evaluator.advanced_to_ms == advanced_to_ms
    assert partition.outbox.records == len(advanced_to_ms)


def test_from_the_first_poll_on_nothing_is_taken_for_silence_that_another_input_may_fill() -> None:
    """The engine itself: the later record of a call that goes on after its idle time waits for the input that lags."""
    evaluator = PartitionEvaluator(Limits(idle_ms=60_000), "1")
    partition, _ = partition_of(evaluator, offsets={PIPECAT: 0, AUDIT: 0})
    says = b'{"message_type": "assistant", "value": "Hello", "timestamp": %d}'
    records = [Record(AUDIT, place, at_ms, value=says % at_ms) for place, at_ms in enumerate((NOW_MS, NOW_MS + 90_000))]
    partition.fold([records], None)
    partition.count_events()
    (call,) = evaluator._calls.values()
    assert [arrival.offset for _, arrival in call.waiting] == [1]
    assert partition.offsets_to_commit() == {PIPECAT: 0, AUDIT: 0}
    partition.advance(NOW_MS + 90_000)
    while partition.closing_calls:
        partition.close_some()
    assert evaluator.open_calls == ()


def test_the_engines_counts_reach_the_metrics_once() -> None:
    evaluator = StubEvaluator()
    partition, registry = partition_of(evaluator)
    evaluator.counts = [Count("callgauge_events_total", ("audit", "folded"), 7)]
    evaluator.replayed_elements = 3
    partition.count_events()
    partition.count_events()
    labels = {"source": "audit", "outcome": "folded"}
    assert registry.get_sample_value("callgauge_events_total", labels) == 7
    assert registry.get_sample_value("callgauge_replayed_elements_total") == 3


# The order of its steps.


def steps_in(partition: Partition) -> list[list[Step]]:
    """By decision: its steps. Each begins where the one before it ended."""
    decoder: OrderDecoder | None = None
    steps = []
    for each in partition.outbox.first():
        if decoder is None:
            start = OrderStart(version=each.version, positions=dict(each.positions), time_ms=each.time_ms)
            decoder = OrderDecoder(start)
        assert (decoder.positions, decoder.time_ms) == (each.positions, each.time_ms)
        steps.append(list(decoder.steps(order_value(each.steps))))
    return steps


class Scripted(StubEvaluator):
    """Has effects of its own for each record, and for a close."""

    def __init__(self, *effects: Sequence[Effect], at_close: Sequence[Effect] = ()) -> None:
        super().__init__()
        self._scripted = iter(effects)
        self._at_close = at_close

    def receive(self, arrival: object) -> Sequence[Effect]:
        del arrival
        return next(self._scripted)

    def close_some(self) -> Sequence[Effect]:
        return self._at_close


SCORE = PublishScore(fact("c-1"))


def test_every_step_is_noted_in_its_order() -> None:
    chosen = goals_fact("c-1", goal_set())
    evaluator = Scripted(
        (OpenCall(None),), (OpenCall("c-0"), PublishScore(chosen)), (),
        at_close=[CloseCall("c-0", (fact("c-0"),)), CloseCall("c-2", (fact("c-2"),))],
    )  # fmt: skip
    partition, _ = partition_of(evaluator)
    runs = [[Record(PIPECAT, 3, NOW_MS - 9), Record(PIPECAT, 5, key=None)], [Record(AUDIT, 0), Record(AUDIT, 1)]]
    partition.fold(runs, None)
    evaluator.wakeup_ms = 0
    partition.advance(NOW_MS)
    partition.close_some()
    assert steps_in(partition) == [
        [Fold(InputSource.PIPECAT, 3, "c-1"), Fold(InputSource.PIPECAT, 5)],
        [
            GoalsChosen("c-1", "goals", chosen.digest),
            Evicted("c-0"), Fold(InputSource.AUDIT, 0, "c-1"),
        ],
        [Fold(InputSource.AUDIT, 1), TimePassed(NOW_MS), Closed("c-0"), Closed("c-2")],
    ]  # fmt: skip
    assert waiting_in(partition.outbox) == [[RefusalReason.EMPTY_KEY], ["c-1"], ["c-0", "c-2"]]


def test_steps_that_decided_nothing_are_written_when_the_partition_is_given_up() -> None:
    """Or the successor would fold their records as new ones, and count them again."""
    partition, _ = partition_of(Scripted((), ()))
    partition.fold([[Record(PIPECAT, 3), Record(PIPECAT, 4)]], None)
    assert not partition.outbox.is_filled
    for _ in range(2):
        partition.write_steps()
    assert steps_in(partition) == [[Fold(InputSource.PIPECAT, 3), Fold(InputSource.PIPECAT, 4)]]


def test_a_decision_has_all_steps_since_the_one_before() -> None:
    evaluator = Scripted((), (Count("callgauge_late_events_total", ("audit",)),), (SCORE,), (), (SCORE, SCORE), ())
    partition, _ = partition_of(evaluator, offsets={PIPECAT: 7})
    partition.fold([[Record(PIPECAT, 7 + place) for place in range(6)]], None)
    assert [len(steps) for steps in steps_in(partition)] == [3, 2]
    first, second = partition.outbox.first()
    assert [each.positions[InputSource.PIPECAT] for each in (first, second)] == [7, 10]
    assert (len(first.records), len(second.records)) == (1, 2)


def test_time_that_changed_something_is_noted_and_time_that_did_not_too() -> None:
    """Otherwise a successor would find another silence."""
    evaluator = StubEvaluator()
    evaluator.wakeup_ms = 0
    partition, _ = partition_of(evaluator)
    partition.advance(NOW_MS)
    evaluator._effects = (SCORE,)
    partition.advance(NOW_MS + 5)
    assert steps_in(partition) == [[TimePassed(NOW_MS), TimePassed(NOW_MS + 5)]]
    assert [(each.time_ms, each.version) for each in partition.outbox.first()] == [(0, "test")]


def test_steps_that_decide_nothing_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_module, "MAX_PENDING_STEPS_BYTES", 2)
    partition, _ = partition_of(StubEvaluator())
    for offset in range(7):
        partition.fold([[Record(PIPECAT, offset)]], None)
    assert [len(steps) for steps in steps_in(partition)] == [3, 3]
    assert partition.outbox.records == 0


# A partition between two owners: which offsets may be committed, and the note beside them.


def owned(evaluator: StubEvaluator | None = None) -> Partition:
    engine = evaluator or StubEvaluator([PublishScore(fact("c-1"))])
    return partition_of(engine, offsets={PIPECAT: 5, AUDIT: 2})[0]


def fold(each: Partition, *offsets: int) -> None:
    each.fold([[Record(PIPECAT, offset) for offset in offsets]], None)


def due(each: Partition) -> dict[str, int]:
    return {tp.topic: at.offset for tp, at in each.due_offsets().items()}


def test_a_commit_says_where_to_read_the_inputs_and_the_order() -> None:
    evaluator = StubEvaluator()
    each = owned(evaluator)
    placed = [PlacedStart(n, {InputSource.PIPECAT: at}, 40 + n) for n, at in enumerate((5, 6, 7))]
    each.outlet.starts = OrderStarts(placed, 0)
    fold(each, 5, 6)
    evaluator.watermarks = {InputSource.PIPECAT: 6}
    assert each.due_offsets() == {
        TopicPartition(PIPECAT, 0): OffsetAndMetadata(6, CommitNote(41, read=7).text()),
        TopicPartition(AUDIT, 0): OffsetAndMetadata(2, CommitNote(41, read=2).text()),
    }


def test_only_what_is_written_is_committed_and_what_came_since_is_not() -> None:
    each = owned()
    outbox = each.outbox
    fold(each, 5)
    assert due(each) == {}
    fold(each, 6)
    outbox.written(1)
    assert due(each) == {PIPECAT: 6, AUDIT: 2}, "as it was at the first time of asking"
    assert due(each) == {}
    outbox.written(1)
    assert due(each) == {PIPECAT: 7, AUDIT: 2}


def test_the_note_is_of_the_same_moment_as_the_offsets() -> None:
    each = owned()
    each.outlet.starts = OrderStarts([PlacedStart(1, {InputSource.PIPECAT: 5}, 40)], 0)
    fold(each, 5)
    assert due(each) == {}
    each.outlet.starts.add(PlacedStart(2, {InputSource.PIPECAT: 6}, 41))
    fold(each, 6)
    each.outbox.written(1)
    assert each.due_offsets()[TopicPartition(PIPECAT, 0)] == OffsetAndMetadata(6, CommitNote(40, read=6).text())


def test_a_partition_that_is_not_ours_commits_nothing() -> None:
    each = owned()
    fold(each, 5)
    each.drop()
    assert [due(each) for _ in range(2)] == [{}, {}]


@given(st.lists(st.sampled_from(["fold", "write", "commit"]), max_size=30))
def test_no_offset_is_ahead_of_what_is_written(steps: list[str]) -> None:
    each, folded, written, committed = owned(), 5, 5, 5
    for step in steps:
        if step == "fold":
            fold(each, folded)
            folded += 1
        elif step == "write" and written < folded:
            each.outbox.written(1)
            written += 1
        elif offsets := due(each):
            assert committed <= offsets[PIPECAT] <= written
            committed = offsets[PIPECAT]
    each.outbox.written(30)
    due(each)
    assert due(each)[PIPECAT] == folded


# Records that are taken and not understood are counted, and each kind of them is logged once with its remedy.


def _report(what: str) -> NotUnderstood:
    return NotUnderstood(InputSource.PIPECAT, "call", Misread(MisreadReason.UNKNOWN_KIND, what, "Known kinds: a, b."))


def _taken(*what: str) -> tuple[Any, list[Any]]:
    registry = CollectorRegistry()
    misread = MisreadRecords(Instruments(registry, ["evaluator"]))
    with capture_logs() as logs:
        for each in what:
            misread.take(_report(each))
    counted = registry.get_sample_value(
        "callgauge_misread_records_total", {"source": "pipecat", "reason": "unknown_kind"}
    )
    return counted, logs


def test_each_kind_is_logged_once_and_every_record_counted() -> None:
    counted, logs = _taken("x", "x", "y", "x")
    assert counted == 4
    assert [(line["event"], line["seen"], line["what_to_do"]) for line in logs] == [
        ("records_not_understood", "x", "Known kinds: a, b."),
        ("records_not_understood", "y", "Known kinds: a, b."),
    ]


def test_a_producer_that_makes_up_kinds_does_not_fill_the_log() -> None:
    counted, logs = _taken(*map(str, range(2 * MAX_KINDS)))
    assert (counted, len(logs)) == (2 * MAX_KINDS, MAX_KINDS)
