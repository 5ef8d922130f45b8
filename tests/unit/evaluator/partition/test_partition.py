"""One partition without a broker: the records made of effects, the refused ones, and the start of a successor."""

from typing import get_args

import pytest
from prometheus_client import CollectorRegistry

from consumers.engine.effects import CloseCall, Count, Effect, NotUnderstood, PublishScore, RecordFact, RequestVerdict
from consumers.engine.limits import Limits
from consumers.engine.partition import PartitionEvaluator
from consumers.evaluator.partition.partition import MAX_QUARANTINE_LINES, InputStart, Partition
from consumers.evaluator.writing.carry_out import carry_out
from consumers.evaluator.writing.outbox import Outbox
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource, MisreadReason, RefusalReason
from schemas.events.misread import Misread
from schemas.metrics.catalogue import metric_named
from schemas.quarantine import QuarantineRecord
from schemas.topics import SOURCE_BY_TOPIC
from schemas.transcript import Transcript
from tests.support.brokers.record_bytes import stand_in
from tests.support.fakes.evaluator_fakes import (
    AUDIT,
    NOW_MS,
    PIPECAT,
    Record,
    StubEvaluator,
    fact,
    partition_of,
    question,
    waiting_in,
)

EFFECTS: list[tuple[Effect, list[list[str]]]] = [
    (PublishScore(fact("score")), [["score"]]),
    (RecordFact(fact("fact")), [["fact"]]),
    (CloseCall("c-1", (fact("last"), fact("closed"))), [["last", "closed"]]),
    (Count("callgauge_late_events_total", ("audit",), 2), []),
    (RequestVerdict(question("asked")), [["asked"]]),
    (NotUnderstood(InputSource.AUDIT, "c-1", Misread(MisreadReason.UNKNOWN_TYPE, "x", "y")), []),
]


@pytest.mark.parametrize(("effect", "written"), EFFECTS, ids=[type(effect).__name__ for effect, _ in EFFECTS])
def test_each_effect_is_carried_out(effect: Effect, written: list[list[str]]) -> None:
    registry = CollectorRegistry()
    outbox = Outbox()
    outbox.put((fact("before"),))
    carry_out([effect], outbox, Instruments(registry, ["evaluator"]))
    assert waiting_in(outbox) == [["before"], *written]
    late = registry.get_sample_value("callgauge_late_events_total", {"source": "audit"})
    assert late == (2 if isinstance(effect, Count) else 0)


def test_a_transcript_is_written_with_the_closing_and_before_it() -> None:
    outbox = Outbox()
    closing = CloseCall("c-1", (fact("last"), fact("closed")), b"[]")
    carry_out([closing], outbox, Instruments(CollectorRegistry(), ["evaluator"]))
    assert outbox.first() == [(Transcript("c-1", b"[]"), fact("last"), fact("closed"))]


def test_every_effect_has_a_case() -> None:
    assert {type(effect) for effect, _ in EFFECTS} == set(get_args(Effect))


def test_records_are_folded_by_time_and_their_effects_kept_in_order() -> None:
    evaluator = StubEvaluator([PublishScore(fact("c-1"))])
    partition, _ = partition_of(evaluator)
    partition.fold([[Record(PIPECAT, 5), Record(PIPECAT, 6, NOW_MS + 2)], [Record(AUDIT, 9, NOW_MS + 1)]], None)
    assert [(arrival.source, arrival.offset) for arrival in evaluator.arrivals] == [
        (InputSource.PIPECAT, 5), (InputSource.AUDIT, 9), (InputSource.PIPECAT, 6),
    ]  # fmt: skip
    assert waiting_in(partition.outbox) == [["c-1"]] * 3


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
    partition, _ = partition_of(evaluator, starts={PIPECAT: InputStart(5, 0), AUDIT: InputStart(2, 0)})
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


def test_what_a_former_owner_refused_is_not_refused_again() -> None:
    partition, registry = partition_of(StubEvaluator(), starts={PIPECAT: InputStart(0, 2), AUDIT: InputStart(0, 0)})
    partition.fold([[Record(PIPECAT, offset, key=None) for offset in range(4)]], None)
    refused = [record for group in partition.outbox.first() for record in group]
    assert [record.offset for record in refused if isinstance(record, QuarantineRecord)] == [2, 3]
    for outcome in ("replayed", "quarantined"):
        labels = {"source": "pipecat", "outcome": outcome}
        assert registry.get_sample_value("callgauge_events_total", labels) == 2


def test_what_was_refused_before_is_counted_for_its_own_input() -> None:
    partition, registry = partition_of(StubEvaluator(), starts={PIPECAT: InputStart(0, 0), AUDIT: InputStart(0, 9)})
    partition.fold([[Record(PIPECAT, 0, key=None)], [Record(AUDIT, 3, key=None)]], None)
    counted = {
        (source, outcome): registry.get_sample_value("callgauge_events_total", {"source": source, "outcome": outcome})
        for source in ("pipecat", "audit")
        for outcome in ("replayed", "quarantined")
    }
    assert counted == {
        ("pipecat", "quarantined"): 1, ("pipecat", "replayed"): 0, ("audit", "quarantined"): 0, ("audit", "replayed"): 1,
    }  # fmt: skip
    refused = [record for group in partition.outbox.first() for record in group]
    assert [record.topic for record in refused if isinstance(record, QuarantineRecord)] == [PIPECAT]


def test_a_partition_begins_where_its_start_says_and_ends_when_it_is_dropped() -> None:
    evaluator = StubEvaluator([PublishScore(fact("c-1"))])
    registry = CollectorRegistry()
    partition = Partition(0, evaluator, Limits(), SOURCE_BY_TOPIC, Instruments(registry, ["evaluator"]))
    activity = [partition.is_active, evaluator.knows_of_time]
    assert partition.offsets_to_commit() == {}
    partition.recall(fact("before"))
    partition.start({PIPECAT: InputStart(7, 9)})
    activity += [partition.is_active, evaluator.knows_of_time]
    assert partition.next_offsets == {PIPECAT: 7}
    assert evaluator.recalled == [fact("before")]
    partition.fold([[Record(PIPECAT, 7)]], None)
    partition.drop()
    assert [*activity, partition.is_active] == [False, False, True, True, False]
    assert partition.outbox.records == 0


def test_the_reasons_are_those_of_the_catalogue() -> None:
    source, reason = metric_named("callgauge_quarantined_total").label_set
    assert set(reason.values) == {each.value for each in RefusalReason}
    assert set(source.values) >= {each.value for each in InputSource}


@pytest.mark.parametrize(
    ("wakeup_ms", "advanced_to_ms"), [(None, []), (NOW_MS + 1, []), (NOW_MS, [NOW_MS]), (NOW_MS - 50, [NOW_MS])]
)
def test_time_passes_only_when_something_waits_for_it(wakeup_ms: int | None, advanced_to_ms: list[int]) -> None:
    evaluator = StubEvaluator([RecordFact(fact("c-1"))])
    evaluator.wakeup_ms = wakeup_ms
    partition, _ = partition_of(evaluator)
    partition.advance(NOW_MS)
    assert evaluator.advanced_to_ms == advanced_to_ms
    assert partition.outbox.records == len(advanced_to_ms)


def test_from_the_first_poll_on_nothing_is_taken_for_silence_that_another_input_may_fill() -> None:
    """The engine itself: the later record of a call that goes on after its idle time waits for the input that lags."""
    evaluator = PartitionEvaluator(Limits(idle_ms=60_000), "1")
    partition = Partition(0, evaluator, Limits(), SOURCE_BY_TOPIC, Instruments(CollectorRegistry(), ["evaluator"]))
    partition.start({PIPECAT: InputStart(0, 0), AUDIT: InputStart(0, 0)})
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
    assert evaluator.open_calls == 0


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
