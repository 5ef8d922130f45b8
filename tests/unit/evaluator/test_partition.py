"""One partition of the log without a broker: what is decided of its records, where a successor
begins, and how it becomes the same.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.engine.admission import admit
from consumers.engine.effects import Count, Effect, NotUnderstood, PublishRow, RequestVerdict
from consumers.evaluator import partition as partition_module
from consumers.evaluator.decisions import Trip
from consumers.evaluator.partition import (
    BEGINS_APART_MS,
    MAX_KEPT_REQUESTS,
    Partition,
    Recovery,
    Withheld,
)
from consumers.evaluator.refusals import MAX_KINDS, report_misread
from consumers.runtime.received import MAX_QUARANTINE_LINES
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource, MisreadReason, RefusalReason
from schemas.events.codec import Misread
from schemas.log import Origin, Placed
from schemas.metrics.catalogue import metric_named
from schemas.owners import PartitionRow
from schemas.topics import EVENTS_TOPIC
from tests.support.brokers.record_bytes import stand_in
from tests.support.fakes.evaluator_fakes import (
    ENDED,
    NOW_MS,
    StubEvaluator,
    goal_set,
    moment,
    partition_of,
    question,
    row,
    waiting_in,
)
from tests.support.fakes.log_writer import LogWriter
from tests.support.known import Logged

PIPECAT, AUDIT = InputSource.PIPECAT, InputSource.AUDIT
SCORE = PublishRow(moment("c-1"))


@pytest.fixture
def log() -> LogWriter:
    return LogWriter()


def ended(
    log: LogWriter, key: str | None = "c-1", value: bytes | None = ENDED, time_ms: int = NOW_MS
) -> None:
    log.event(PIPECAT, key, value, time_ms)


def fold(partition: Partition, log: LogWriter) -> None:
    """Everything that was not folded yet."""
    for record in log.records[partition.next_offset :]:
        partition.fold(record, NOW_MS)


def rows_in(partition: Partition) -> list[PartitionRow]:
    return [each.row for each in partition.outbox.first()]


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


# What is decided of the records.


def test_records_are_folded_in_the_order_of_the_log_whatever_their_times(log: LogWriter) -> None:
    evaluator = StubEvaluator([SCORE])
    partition, _ = partition_of(evaluator)
    log.event(PIPECAT, "c-1", ENDED, NOW_MS + 5)
    log.event(AUDIT, "c-2", ENDED, NOW_MS)
    fold(partition, log)
    assert [
        (each.source, each.conversation_id, each.offset, each.broker_time_ms)
        for each in evaluator.arrivals
    ] == [
        (PIPECAT, "c-1", 0, NOW_MS + 5),
        (AUDIT, "c-2", 1, NOW_MS),
    ]
    assert waiting_in(partition.outbox) == [["c-1"]] * 2
    assert partition.last_event_ms == {"pipecat": NOW_MS + 5, "audit": NOW_MS}


def test_the_offset_of_an_arrival_is_its_place_in_the_log_and_not_in_its_input(
    log: LogWriter,
) -> None:
    evaluator = StubEvaluator()
    partition, _ = partition_of(evaluator)
    log.tick(NOW_MS)
    log.again(Placed(1, Origin(PIPECAT, 0, 7, 900, NOW_MS)), "c-1", ENDED)
    fold(partition, log)
    assert [each.offset for each in evaluator.arrivals] == [1]


def test_time_passes_at_ticks_alone(log: LogWriter) -> None:
    """So neither a backlog, nor a restart, nor a sequencer that stands still looks like silence."""
    evaluator = StubEvaluator([SCORE])
    partition, _ = partition_of(evaluator)
    log.tick(NOW_MS)
    ended(log, time_ms=NOW_MS + 900_000)
    log.tick(NOW_MS + 1)
    fold(partition, log)
    assert evaluator.advanced_to_ms == [0, NOW_MS, NOW_MS + 1]


def test_repeats_and_void_records_are_passed_over_and_counted(log: LogWriter) -> None:
    evaluator = StubEvaluator()
    partition, registry = partition_of(evaluator)
    ended(log)
    log.term = 2
    log.tick(NOW_MS)
    log.again(Placed(2, Origin(PIPECAT, 0, 0, 0, NOW_MS)), "c-1", ENDED)
    log.again(Placed(1, Origin(PIPECAT, 0, 0, 1, NOW_MS)), "c-1", ENDED)
    fold(partition, log)
    partition.count_events()
    partition.count_events()
    assert [each.offset for each in evaluator.arrivals] == [0]
    assert registry.get_sample_value("callgauge_log_repeats_total") == 1
    assert registry.get_sample_value("callgauge_log_void_total") == 1


def test_a_decision_knows_the_way_of_its_event_and_of_none_if_time_decided(
    log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition, _ = partition_of(StubEvaluator([SCORE]))
    monkeypatch.setattr("consumers.evaluator.partition.wall_clock_ms", lambda: NOW_MS + 21)
    ended(log)
    log.tick(NOW_MS)
    for record in log.records:
        partition.fold(record, NOW_MS + 20)
    assert [each.trip for each in partition.outbox.first()] == [
        Trip(NOW_MS, NOW_MS + 20, NOW_MS + 21),
        None,
    ]


def test_what_can_never_be_processed_is_refused_with_its_place_in_its_input(log: LogWriter) -> None:
    evaluator = StubEvaluator()
    partition, registry = partition_of(evaluator)
    log.tick(NOW_MS)
    ended(log, key=None)
    ended(log)
    ended(log, value=b"{")
    fold(partition, log)
    refused = [record for each in partition.outbox.first() for record in each.records]
    # all are refused
    assert [(each.topic, each.offset, each.reason) for each in refused] == [  # type: ignore[union-attr]
        ("pipecat.events", 0, RefusalReason.EMPTY_KEY),
        ("pipecat.events", 2, RefusalReason.UNDECODABLE),
    ]
    assert [each.place for each in rows_in(partition)] == [2, 4]
    assert [arrival.offset for arrival in evaluator.arrivals] == [2]
    for reason in ("empty_key", "undecodable"):
        labels = {"source": "pipecat", "reason": reason}
        assert registry.get_sample_value("callgauge_quarantined_total", labels) == 1
    labels = {"source": "pipecat", "outcome": "quarantined"}
    assert registry.get_sample_value("callgauge_events_total", labels) == 2


def test_what_is_no_record_of_the_log_is_refused_with_its_place_there_and_stops_nothing(
    log: LogWriter,
) -> None:
    evaluator = StubEvaluator()
    partition, _ = partition_of(evaluator)
    log.append(b"theirs", b"what", (), NOW_MS)
    log.append(b"theirs", b"what", [("callgauge-placed", b"short")], NOW_MS)
    log.append(None, b"no tick", [("callgauge-tick", b"x")], NOW_MS)
    ended(log)
    fold(partition, log)
    refused = [record for each in partition.outbox.first() for record in each.records]
    assert [(each.topic, each.partition, each.offset) for each in refused] == [  # type: ignore[union-attr]
        (EVENTS_TOPIC, 0, offset) for offset in range(3)
    ]
    assert len(evaluator.arrivals) == 1


def test_what_the_client_cannot_decode_is_refused_with_its_first_and_last_offset(
    log: LogWriter,
) -> None:
    partition, _ = partition_of(StubEvaluator(), recovery=Recovery(None, 3, 3))
    with capture_logs() as logged:
        partition.fold(stand_in(EVENTS_TOPIC, 3, 8), NOW_MS)
    (refused,) = partition.outbox.first()[0].records
    assert (refused.offset, refused.last_offset, partition.next_offset) == (3, 8, 9)  # type: ignore[union-attr]
    assert [line["event"] for line in logged] == ["record_quarantined"], (
        "and not as records that are gone"
    )


def test_a_flood_of_refused_records_is_a_few_log_lines_between_two_ticks(log: LogWriter) -> None:
    partition, _ = partition_of(StubEvaluator())
    for _ in range(2):
        for _ in range(100):
            ended(log, key=None)
        log.tick(NOW_MS)
    with capture_logs() as logged:
        fold(partition, log)
    assert len(logged) == 2 * (MAX_QUARANTINE_LINES + 1)
    assert [line["records"] for line in logged if line["event"] == "more_records_quarantined"] == [
        95,
        95,
    ]
    assert partition.outbox.records == 200


def test_the_reasons_are_those_of_the_catalogue() -> None:
    source, reason = metric_named("callgauge_quarantined_total").label_set
    assert set(reason.values) == {each.value for each in RefusalReason}
    assert set(source.values) >= {each.value for each in InputSource}


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


def test_a_partition_ends_when_it_is_dropped(log: LogWriter) -> None:
    partition, _ = partition_of(StubEvaluator([SCORE]))
    ended(log)
    fold(partition, log)
    partition.drop()
    partition.write_row(is_last=True)
    assert (partition.is_active, partition.outbox.records, partition.outbox.is_filled) == (
        False,
        0,
        False,
    )


# The row behind a step.


def test_each_step_is_decided_whole_with_the_place_behind_it(log: LogWriter) -> None:
    evaluator = Scripted(
        (),
        (SCORE, SCORE),
        (Count("callgauge_late_events_total", ("audit",)),),
        (SCORE,),
        at_close=[SCORE],
    )
    partition, _ = partition_of(evaluator)
    for _ in range(4):
        ended(log)
    fold(partition, log)
    partition.close_some()
    assert [(each.row.place, len(each.records)) for each in partition.outbox.first()] == [
        (2, 2),
        (4, 1),
        (4, 1),
    ]


def test_a_successor_begins_at_the_last_tick_in_front_of_the_oldest_open_call(
    log: LogWriter,
) -> None:
    evaluator = StubEvaluator([SCORE])
    partition, _ = partition_of(evaluator)
    ended(log)
    for number in (1, 2, 3):
        log.tick(NOW_MS + number * BEGINS_APART_MS)
        ended(log)
    evaluator.first = 0
    fold(partition, log)
    begins = []
    for first in (0, 1, 2, 3, 4, 5, 6, None):
        evaluator.first = first
        begins.append((partition.first, partition._row().first_known_ms))
    ticks = [
        (place, NOW_MS + number * BEGINS_APART_MS) for number, place in enumerate((1, 3, 5), 1)
    ]
    assert begins == [(0, 0), (0, 0), ticks[0], ticks[0], ticks[1], ticks[1], ticks[2], ticks[2]]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8_000)), max_size=40), st.data())
def test_no_call_is_older_than_where_a_successor_begins(
    drawn: list[tuple[bool, int]], data: st.DataObject
) -> None:
    evaluator, log = StubEvaluator([SCORE]), LogWriter()
    partition, _ = partition_of(evaluator)
    open_since: list[int] = []
    now_ms = NOW_MS
    for is_tick, passed_ms in drawn:
        now_ms += passed_ms
        if is_tick:
            log.tick(now_ms)
        else:
            ended(log)
            open_since.append(len(log.records) - 1)
        if open_since and (closed := data.draw(st.sampled_from([*open_since, None]))) is not None:
            open_since.remove(closed)
        evaluator.first = min(open_since, default=None)
        fold(partition, log)
        first = partition._row()
        assert first.first <= min(open_since, default=len(log.records))
        ticks = [record.offset for record in log.records if record.key is None]
        assert first.first == 0 or first.first in ticks, "a reader may begin there"
        if not open_since and ticks:
            assert first.first == ticks[-1]


def test_a_place_is_written_now_and_then_and_at_the_end_although_nothing_is_decided(
    log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_seconds = 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now_seconds)
    partition, _ = partition_of(StubEvaluator())
    ended(log)
    fold(partition, log)
    partition.write_row()
    assert not partition.outbox.is_filled
    now_seconds += partition_module.ROW_EVERY_SECONDS
    for _ in range(2):
        partition.write_row()
    partition.write_row(is_last=True)
    assert [(each.place, each.known_ms) for each in rows_in(partition)] == [(1, 0), (1, 0)]


# What is gone from the log.


def test_records_that_were_deleted_unread_are_counted_and_open_calls_named_once(
    log: LogWriter,
) -> None:
    evaluator = StubEvaluator()
    evaluator.open_calls = ("c-1", "c-2")
    partition, registry = partition_of(evaluator)
    for _ in range(9):
        ended(log)
    with capture_logs() as logged:
        for place in (0, 5, 6, 8):
            partition.fold(log.records[place], NOW_MS)
    lost, incomplete, again = logged
    assert (lost["event"], lost["record"], lost["seen"], lost["records"]) == (
        "log_not_where_it_was",
        "events[0]@1",
        "the log goes on at 5",
        4,
    )
    assert (incomplete["event"], incomplete["conversation_ids"]) == (
        "calls_incomplete",
        ["c-1", "c-2"],
    )
    assert again["records"] == 1
    assert registry.get_sample_value("callgauge_log_records_lost_total") == 5
    assert registry.get_sample_value("callgauge_calls_incomplete_total") == 2


# A successor becomes what the former owner was.


def recovering(
    log: LogWriter, effects: Sequence[Effect] = (SCORE,), **more: Any
) -> tuple[Partition, StubEvaluator, Any]:
    """A successor of an owner that had folded three events."""
    for _ in range(5):
        ended(log)
    evaluator = StubEvaluator(effects)
    given: dict[str, Any] = {"row": row(3), "start": 0, "place": 3} | more
    recovery = Recovery(**given)
    partition, registry = partition_of(evaluator, recovery=recovery)
    return partition, evaluator, registry


def test_up_to_the_place_everything_is_folded_and_nothing_published_or_counted(
    log: LogWriter,
) -> None:
    partition, evaluator, registry = recovering(log)
    evaluator.closing_calls = 1
    evaluator.counts = [Count("callgauge_events_total", ("pipecat", "folded"), 7)]
    partition.fold(log.records[0], NOW_MS)
    partition.count_events()
    partition.write_row(is_last=True)
    assert (partition.is_recovering, partition.closing_calls, partition.outbox.is_filled) == (
        True,
        0,
        False,
    )
    fold(partition, log)
    partition.count_events()
    assert [each.offset for each in evaluator.arrivals] == [0, 1, 2, 3, 4]
    assert [each.place for each in rows_in(partition)] == [4, 5]
    assert (partition.is_recovering, partition.closing_calls) == (False, 1)
    outcomes = {
        outcome: registry.get_sample_value(
            "callgauge_events_total", {"source": "pipecat", "outcome": outcome}
        )
        for outcome in ("folded", "replayed")
    }
    assert outcomes == {"folded": 0, "replayed": 3}


def test_refused_records_are_not_refused_again(log: LogWriter) -> None:
    ended(log, key=None)
    log.append(b"theirs", b"what", (), NOW_MS)
    partition, _, registry = recovering(log)
    fold(partition, log)
    assert waiting_in(partition.outbox) == [["c-1"]] * 4
    labels = {"source": "control", "reason": "undecodable"}
    assert registry.get_sample_value("callgauge_quarantined_total", labels) == 0


def test_records_of_calls_that_closed_are_not_even_decoded(
    log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(log, key="c-0", value=b"{")
    decoded: list[bytes | None] = []

    def watched(source: InputSource, record: Any, *more: Any) -> Any:
        decoded.append(record.key)
        return admit(source, record, *more)

    monkeypatch.setattr(partition_module, "admit", watched)
    partition, evaluator, _ = recovering(log, closed={"c-0": 6, "c-9": 6})
    ended(log, key="c-0")
    fold(partition, log)
    assert evaluator.closed == ["c-0", "c-9"]
    assert decoded == [b"c-1"] * 5 + [b"c-0"], (
        "behind the place the engine says that it comes after the close"
    )


def test_an_id_that_was_used_again_is_open_from_behind_the_place_where_it_closed(
    log: LogWriter,
) -> None:
    partition, evaluator, _ = recovering(log, closed={"c-1": 1, "c-0": 1}, open=["c-1"])
    fold(partition, log)
    assert evaluator.closed == ["c-0"]
    assert [each.offset for each in evaluator.arrivals] == [1, 2, 3, 4]


def test_time_begins_where_the_row_says_and_never_falls(log: LogWriter) -> None:
    """The tick there may say less than one of another term in front of it."""
    log.tick(NOW_MS)
    partition, evaluator, _ = recovering(log, row=row(3, first_known_ms=NOW_MS + 7))
    fold(partition, log)
    assert evaluator.advanced_to_ms == [NOW_MS + 7, NOW_MS + 7]


def test_calls_have_the_goals_that_they_got_then_and_later_ones_those_of_now(
    log: LogWriter,
) -> None:
    partition, _, _ = recovering(log, goals={"c-1": (2, goal_set())})
    assert partition.goals.logged == {}
    fold(partition, log)
    assert partition.goals.logged is None


def test_a_call_that_was_evicted_and_not_closed_is_evicted_by_the_same_record(
    log: LogWriter,
) -> None:
    """Here fewer calls are open than at the former owner."""
    partition, evaluator, _ = recovering(log, row=row(3, evicted={"c-7": 1}))
    fold(partition, log)
    assert evaluator.evictions == [("c-7", 1)]


# Another version of code or settings.


def test_another_version_publishes_open_calls_once_again_in_front_of_the_next_place(
    log: LogWriter,
) -> None:
    partition, evaluator, _ = recovering(
        log, (SCORE, RequestVerdict(question("c-1"))), row=row(3, version="other")
    )
    evaluator.closing_calls = 2
    evaluator.again = [moment("c-1"), moment("c-1")]
    for record in log.records[:3]:
        partition.fold(record, NOW_MS)
    assert (partition.is_recovering, partition.is_publishing_again, partition.closing_calls) == (
        False,
        True,
        3,
    )
    assert evaluator.closes_as == 5, "the former owner may have decided more of it"
    while partition.is_publishing_again:
        partition.close_some()
    begun, again, done = partition.outbox.first()
    assert again.records == (*evaluator.again, question("c-1"))
    assert [each.row.version for each in (begun, again, done)] == ["", "", "test"], (
        "who takes over before all is written does it again"
    )
    assert (done.records, done.row.place, done.row.cut, evaluator.closing_calls) == ((), 3, 0, 0)


def test_many_rows_are_published_again_in_steps_and_all_of_them_before_the_next_record(
    log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_module, "PUBLISHED_AGAIN_IN_A_STEP", 2)
    partition, evaluator, _ = recovering(log, row=row(3, version="other"))
    evaluator.again = [moment("c-1") for _ in range(5)]
    for record in log.records[:3]:
        partition.fold(record, NOW_MS)
    partition.close_some()
    assert [len(each.records) for each in partition.outbox.first()] == [0, 2]
    evaluator._effects = ()
    partition.fold(log.records[3], NOW_MS)
    assert [len(each.records) for each in partition.outbox.first()] == [0, 2, 2, 1, 0]
    assert [each.place for each in rows_in(partition)] == [3] * 5


def test_the_engine_makes_no_rows_before_the_place(log: LogWriter) -> None:
    for version in ("test", "other"):
        partition, evaluator, _ = recovering(log, row=row(3, version=version))
        assert (partition.is_recovering, evaluator.is_silent) == (True, True)
        for record in log.records[:3]:
            partition.fold(record, NOW_MS)
        assert (partition.is_recovering, evaluator.is_silent) == (False, False)


def test_the_newest_questions_of_a_call_are_withheld_once() -> None:
    withheld = Withheld()
    questions = [
        question("c-1").model_copy(update={"subgoal_id": f"s-{place}"})
        for place in range(MAX_KEPT_REQUESTS + 1)
    ]
    withheld.keep_questions(
        [SCORE, *map(RequestVerdict, questions), RequestVerdict(question("c-2"))]
    )
    assert [*withheld.again("c-1")] == questions[1:]
    assert [*withheld.again("c-1")] == []


# A log that is not as it was.


def test_where_records_of_open_calls_are_gone_all_is_published_again_and_counts_nothing(
    log: LogWriter, logged: Logged
) -> None:
    partition, evaluator, registry = recovering(
        log, start=2, place=3, is_cut=True, lacking=["c-1", "c-gone"]
    )
    evaluator.again = [moment("c-1")]
    partition.fold(log.records[2], NOW_MS)
    partition.close_some()
    partition.close_some()
    assert evaluator.lacking == {"c-1", "c-gone"}
    assert [(each.place, each.cut) for each in rows_in(partition)] == [(3, 3)] * 3
    assert [line["conversation_ids"] for line in logged if line["event"] == "calls_incomplete"] == [
        ["c-1", "c-gone"]
    ]
    assert registry.get_sample_value("callgauge_calls_incomplete_total") == 2
    assert registry.get_sample_value("callgauge_log_records_lost_total") == 0, (
        "the former owner had folded them"
    )


def test_where_the_place_itself_is_gone_what_was_never_folded_counts_as_lost(
    log: LogWriter,
) -> None:
    partition, evaluator, registry = recovering(log, row=row(2), start=4, place=2, is_cut=True)
    assert not partition.is_recovering
    partition.fold(log.records[4], NOW_MS)
    assert registry.get_sample_value("callgauge_log_records_lost_total") == 2
    assert [each.offset for each in evaluator.arrivals] == [4]


def test_of_a_log_that_was_made_anew_nothing_is_published_before_the_time_that_was_reached(
    log: LogWriter,
) -> None:
    ended(log)
    log.tick(NOW_MS - 1)
    ended(log)
    log.tick(NOW_MS)
    partition, evaluator, _ = recovering(
        log, row=row(900, known_ms=NOW_MS), place=None, is_cut=True
    )
    for record in log.records[:4]:
        assert partition.is_recovering
        partition.fold(record, NOW_MS)
    assert not partition.is_recovering
    assert len(evaluator.arrivals) == 2
    fold(partition, log)
    assert [each.row.place for each in partition.outbox.first()][-1] == len(log.records)


# Records that are taken and not understood are counted, and each kind of them is logged once with
# its remedy.


def _report(what: str) -> NotUnderstood:
    return NotUnderstood(
        InputSource.PIPECAT, "call", Misread(MisreadReason.UNKNOWN_KIND, what, "Known kinds: a, b.")
    )


def _taken(*what: str) -> tuple[Any, list[Any]]:
    registry = CollectorRegistry()
    instruments = Instruments(registry, ["evaluator"])
    with capture_logs() as logs:
        for each in what:
            report_misread(_report(each), instruments)
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
