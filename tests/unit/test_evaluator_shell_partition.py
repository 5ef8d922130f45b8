"""One partition without a broker: what effects become, what is refused, and where a successor must start."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import pytest
from aiokafka import TopicPartition
from prometheus_client import CollectorRegistry

from consumers.engine.effects import CloseCall, Count, Effect, PublishScore, RecordFact
from consumers.engine.intake import Arrival
from consumers.engine.limits import Limits
from consumers.evaluator.assignment import Assignment, NotCoPartitionedError, assigned_numbers
from consumers.evaluator.carry_out import carry_out
from consumers.evaluator.partition import MAX_QUARANTINE_LINES, Partition
from consumers.runtime.registry import Instruments
from schemas.codec import InputSource, RefusalReason
from schemas.metric_catalogue import metric_named
from schemas.scores import AnyScoreRecord, CallStartedFact, TurnStatus
from schemas.topics import SOURCE_BY_TOPIC

NOW_MS = 1_790_000_000_000
PIPECAT, AUDIT = "pipecat.events", "audit.events"


class Record(NamedTuple):
    """A record as aiokafka hands it over."""

    topic: str
    offset: int
    timestamp: int = NOW_MS
    key: bytes | None = b"c-1"
    value: bytes | None = b'{"type": "call_ended", "timestamp": 1790000000000}'
    partition: int = 0
    headers: Sequence[tuple[str, bytes]] = ()


class StubEvaluator:
    """Returns the effects it was given and keeps what it was called with."""

    def __init__(self, effects: Sequence[Effect] = ()) -> None:
        self.open_calls = 1
        self.replayed_elements = 0
        self.arrivals: list[Arrival] = []
        self.advanced_to_ms: list[int] = []
        self.wakeup_ms: int | None = None
        self.watermarks: Mapping[InputSource, int] = {}
        self.counts: list[Count] = []
        self._effects = effects

    def receive(self, arrival: Arrival) -> Sequence[Effect]:
        self.arrivals.append(arrival)
        return self._effects

    def advance(self, now_ms: int) -> Sequence[Effect]:
        self.advanced_to_ms.append(now_ms)
        return self._effects

    def next_wakeup(self) -> int | None:
        return self.wakeup_ms

    def low_watermarks(self) -> Mapping[InputSource, int]:
        return self.watermarks

    def drain_counts(self) -> Sequence[Count]:
        counts, self.counts = self.counts, []
        return counts


def fact(conversation_id: str) -> CallStartedFact:
    return CallStartedFact(
        conversation_id=conversation_id, revision=1, status=TurnStatus.OPEN, input_hash="0", offsets={},
        event_time_ms=None, caused_at_ms=0, labels={}, code_version="1",
    )  # fmt: skip


def partition_of(evaluator: StubEvaluator, number: int = 0) -> tuple[Partition, CollectorRegistry]:
    registry = CollectorRegistry()
    return Partition(number, evaluator, Limits(), SOURCE_BY_TOPIC, Instruments(registry, ["evaluator"])), registry


EFFECTS: list[tuple[Effect, list[str]]] = [
    (PublishScore(fact("score")), ["score"]),
    (RecordFact(fact("fact")), ["fact"]),
    (CloseCall("c-1", (fact("last"), fact("closed"))), ["last", "closed"]),
    (Count("callgauge_late_events_total", ("audit",), 2), []),
]


@pytest.mark.parametrize(("effect", "written"), EFFECTS, ids=[type(effect).__name__ for effect, _ in EFFECTS])
def test_each_effect_is_carried_out(effect: Effect, written: list[str]) -> None:
    registry = CollectorRegistry()
    outbox: deque[AnyScoreRecord] = deque([fact("before")])
    carry_out([effect], outbox, Instruments(registry, ["evaluator"]))
    assert [record.conversation_id for record in outbox] == ["before", *written]
    late = registry.get_sample_value("callgauge_late_events_total", {"source": "audit"})
    assert late == (2 if isinstance(effect, Count) else 0)


def test_every_effect_has_a_case() -> None:
    assert {type(effect) for effect, _ in EFFECTS} == set(get_args(Effect))


def test_records_are_folded_by_time_and_their_effects_kept_in_order() -> None:
    evaluator = StubEvaluator([PublishScore(fact("c-1"))])
    partition, _ = partition_of(evaluator)
    partition.fold([[Record(PIPECAT, 5), Record(PIPECAT, 6, NOW_MS + 2)], [Record(AUDIT, 9, NOW_MS + 1)]])
    assert [(arrival.source, arrival.offset) for arrival in evaluator.arrivals] == [
        (InputSource.PIPECAT, 5), (InputSource.AUDIT, 9), (InputSource.PIPECAT, 6),
    ]  # fmt: skip
    assert len(partition.outbox) == 3
    assert partition.last_record_ms == {PIPECAT: NOW_MS + 2, AUDIT: NOW_MS + 1}


def test_a_successor_starts_at_the_oldest_open_call() -> None:
    evaluator = StubEvaluator()
    partition, _ = partition_of(evaluator)
    assert partition.offsets_to_commit() == {}  # nothing was read: the committed offsets stay
    partition.fold([[Record(PIPECAT, 5), Record(PIPECAT, 8)], [Record(AUDIT, 9)]])
    assert partition.offsets_to_commit() == {PIPECAT: 9, AUDIT: 10}
    evaluator.watermarks = {InputSource.PIPECAT: 5, InputSource.JUDGE: 2}
    assert partition.offsets_to_commit() == {PIPECAT: 5, AUDIT: 10}


def test_what_can_never_be_processed_is_refused_counted_and_passed_over() -> None:
    evaluator = StubEvaluator()
    partition, registry = partition_of(evaluator)
    partition.fold([[Record(PIPECAT, 0, key=None), Record(PIPECAT, 1), Record(PIPECAT, 2, value=b"{")]])
    assert [record.reason for record in partition.refused] == [RefusalReason.EMPTY_KEY, RefusalReason.UNDECODABLE]
    assert [arrival.offset for arrival in evaluator.arrivals] == [1]
    assert partition.offsets_to_commit() == {PIPECAT: 3}
    for reason in ("empty_key", "undecodable"):
        labels = {"source": "pipecat", "reason": reason}
        assert registry.get_sample_value("callgauge_quarantined_total", labels) == 1
    labels = {"source": "pipecat", "outcome": "quarantined"}
    assert registry.get_sample_value("callgauge_events_total", labels) == 2


def test_a_flood_of_refused_records_is_a_few_log_lines(capsys: pytest.CaptureFixture[str]) -> None:
    partition, _ = partition_of(StubEvaluator())
    partition.fold([[Record(PIPECAT, offset, key=None) for offset in range(100)]])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == MAX_QUARANTINE_LINES + 1
    assert len(partition.refused) == 100


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
    assert len(partition.outbox) == len(advanced_to_ms)


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


def test_an_assignment_is_the_same_numbers_of_all_inputs() -> None:
    topics = ("a", "b")
    assert assigned_numbers({TopicPartition(topic, number) for topic in topics for number in (2, 0)}, topics) == [0, 2]
    assert assigned_numbers(set(), topics) == []
    torn = {TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("a", 1)}
    with pytest.raises(NotCoPartitionedError, match=r"but not b\[1\]\. "):
        assigned_numbers(torn, topics)


class FakeConsumer:
    """What an assignment asks the client: (position, end, stable end, told at) by partition."""

    def __init__(self, known: dict[TopicPartition, tuple[int, int, int | None, int]]) -> None:
        self.known = known

    def highwater(self, tp: TopicPartition) -> int | None:
        return self.known[tp][1] if tp in self.known else None

    def last_stable_offset(self, tp: TopicPartition) -> int | None:
        return self.known[tp][2]

    def last_poll_timestamp(self, tp: TopicPartition) -> int:
        return self.known[tp][3]

    async def position(self, tp: TopicPartition) -> int:
        return self.known[tp][0]


async def test_time_passes_in_a_partition_once_every_input_is_known() -> None:
    evaluators = [StubEvaluator(), StubEvaluator()]
    for evaluator in evaluators:
        evaluator.wakeup_ms = 0
    assignment = Assignment({number: partition_of(evaluators[number])[0] for number in (0, 1)}, ["a", "b"])
    known: dict[TopicPartition, Any] = {TopicPartition(topic, 0): (4, 4, 4, NOW_MS) for topic in "ab"}
    known[TopicPartition("a", 1)] = (4, 4, 4, NOW_MS)
    consumer = FakeConsumer(known)
    await assignment.look(consumer)
    assignment.advance()
    assert [evaluator.advanced_to_ms for evaluator in evaluators] == [[NOW_MS], []]
    consumer.known[TopicPartition("b", 1)] = (4, 4, None, NOW_MS + 5)
    await assignment.look(consumer)
    assignment.advance()
    assert evaluators[1].advanced_to_ms == [NOW_MS]


@pytest.mark.parametrize(
    ("stable_end", "lag"),
    [(4, 0), (9, 5), (None, 6), (-1, 6)],
    ids=["an open transaction is not there yet", "committed so far", "an old broker", "reading uncommitted"],
)
async def test_the_end_is_what_can_be_read(stable_end: int | None, lag: int) -> None:
    assignment = Assignment({3: partition_of(StubEvaluator(), 3)[0]}, ["a"])
    await assignment.look(FakeConsumer({TopicPartition("a", 3): (4, 10, stable_end, NOW_MS)}))
    assert assignment.lag_messages("g") == {("g", "a", "3"): lag}


async def test_lag_and_newest_records_are_told_by_topic() -> None:
    partition, _ = partition_of(StubEvaluator())
    assignment = Assignment({0: partition}, [PIPECAT, AUDIT])
    assert assignment.newest_records_ms() == {}
    assert assignment.lag_seconds("g") == {}
    partition.fold([[Record(PIPECAT, 0, NOW_MS - 500), Record(PIPECAT, 1, NOW_MS - 700)]])
    assert assignment.newest_records_ms() == {PIPECAT: NOW_MS - 700}
    told_at_ms = 2**52  # far ahead of any clock, so that it is never stale
    await assignment.look(FakeConsumer({TopicPartition(PIPECAT, 0): (2, 2, 2, told_at_ms)}))
    assert assignment.lag_seconds("g") == {("g", PIPECAT, "0"): 0}
