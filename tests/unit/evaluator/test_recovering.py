"""A partition that folds again what its former owners had folded: silently, and then it goes on where they were."""

from collections.abc import Mapping, Sequence

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.engine.admission import Arrival
from consumers.engine.effects import Count, Effect, OpenCall, PublishScore
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import Limits
from consumers.evaluator import partition as partition_module
from consumers.evaluator.assignment import Assignment
from consumers.evaluator.partition import CatchingUp, Partition
from consumers.evaluator.recovery import PublishedCalls, Replay
from consumers.evaluator.writer import Decision
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource
from schemas.order import Fold, GoalsChosen, OrderDecoder, OrderStart, Renumbered, Step, TimePassed, order_value
from schemas.scores.records import CallStartedFact
from schemas.topics import INPUT_TOPICS, SOURCE_BY_TOPIC
from tests.support.fakes.evaluator_fakes import (
    AUDIT,
    NOW_MS,
    PIPECAT,
    Record,
    StubEvaluator,
    WrittenOrder,
    fact,
    goal_set,
    goals_fact,
    outlet_of,
    trusted_clock,
    waiting_in,
)

GENERATION = 1_000_000
AT_START = dict.fromkeys(INPUT_TOPICS, 0)
VERSION = "test"


def said(offset: int, call: str = "a", topic: str = PIPECAT, at_ms: int = NOW_MS) -> Record:
    return Record(topic, offset, at_ms, key=call.encode())


class Recovering:
    """A partition that has been taken over, with an engine that publishes a score of a call with each of its records."""

    def __init__(self, *, closes: bool = False) -> None:
        self.registry = CollectorRegistry()
        self.engine = Speaking()
        self.engine.closing_calls = int(closes)
        self.goals = ChosenGoals()
        self.partition = Partition(
            outlet_of(), self.engine, Limits(), SOURCE_BY_TOPIC, Instruments(self.registry, ["evaluator"]), goals=self.goals,
            version=VERSION,
        )  # fmt: skip

    def replay(self, order: WrittenOrder, **ends: int) -> None:
        """Begins to take this order again. The inputs end at these offsets."""
        sources = {InputSource(name): end for name, end in ends.items()}
        replay = Replay(
            order.read(), dict.fromkeys(InputSource, 0), dict.fromkeys(InputSource, 0) | sources, VERSION, self.engine,
            self.partition.admitted,
        )  # fmt: skip
        self.partition.start(AT_START, replay=replay)

    def catch_up(self, until: Mapping[str, int], *closed: str, open: Sequence[str] = ()) -> None:  # noqa: A002
        """Begins without an order."""
        published = PublishedCalls()
        published.closed, published.open = dict.fromkeys(closed), dict.fromkeys(open)
        self.partition.start(AT_START, catching_up=CatchingUp(AT_START | dict(until), published))

    def fold(self, *records: Record, known_ms: int | None = None) -> None:
        runs = [[record for record in records if record.topic == topic] for topic in INPUT_TOPICS]
        self.partition.fold([run for run in runs if run], known_ms)

    def is_silent(self) -> bool:
        return self.partition.is_recovering

    def replayed(self, source: str) -> float | None:
        return self.registry.get_sample_value("callgauge_events_total", {"source": source, "outcome": "replayed"})

    @property
    def decisions(self) -> list[Decision]:
        """All that wait to be written, of whatever version."""
        return list(self.partition.outbox._decisions)

    @property
    def records(self) -> list[CallStartedFact]:
        """The scores that wait to be written."""
        written = [record for each in self.decisions for record in each.records]
        return [record for record in written if isinstance(record, CallStartedFact)]

    @property
    def steps(self) -> list[tuple[str, list[Step]]]:
        """By decision: its version and its steps."""
        first, found = self.decisions[0], []
        start = OrderStart(version=first.version, positions=dict(first.positions), time_ms=first.time_ms)
        decoder = OrderDecoder(start)
        for each in self.decisions:
            assert decoder.positions == each.positions
            found.append((each.version, list(decoder.steps(order_value(each.steps)))))
        return found


class Speaking(StubEvaluator):
    """The first record of a call opens it."""

    def __init__(self) -> None:
        super().__init__()
        self.open_calls: Sequence[str] = ()

    def receive(self, arrival: Arrival) -> Sequence[Effect]:
        self.arrivals.append(arrival)
        return self._spoken(arrival)

    def receive_again(self, arrival: Arrival, opening: OpenCall | None) -> Sequence[Effect]:
        super().receive_again(arrival, opening)
        return self._spoken(arrival)

    def _spoken(self, arrival: Arrival) -> list[Effect]:
        call, score = arrival.conversation_id, PublishScore(fact(arrival.conversation_id))
        if call in self.open_calls:
            return [score]
        self.open_calls = (*self.open_calls, call)
        return [OpenCall(None), score]


def order_of(*steps: Step, version: str = VERSION, time_ms: int = 0) -> WrittenOrder:
    order = WrittenOrder()
    order.owner(version, time_ms=time_ms)
    order.write(*steps)
    return order


# With an order.


def test_what_former_owners_had_folded_is_folded_silently_and_what_comes_behind_it_is_live() -> None:
    recovering = Recovering()
    order = order_of(Fold(InputSource.AUDIT, 0, "b"), Fold(InputSource.PIPECAT, 0, "a"), TimePassed(NOW_MS - 5))
    recovering.replay(order, pipecat=2, audit=1)
    recovering.engine.counts = [Count("callgauge_late_events_total", ("audit",), 7)]
    partition = recovering.partition
    recovering.fold(said(0, "a"))
    assert recovering.is_silent()
    assert partition.next_offsets[PIPECAT] == 0, "it waits for the other input"
    recovering.fold(said(0, "b", AUDIT))
    assert not recovering.is_silent()
    assert [call for call, _, _ in recovering.engine.again] == ["b", "a"]
    assert (partition.next_offsets[PIPECAT], partition.next_offsets[AUDIT]) == (1, 1)
    assert partition.outbox.first() == []
    assert [recovering.replayed(source) for source in ("pipecat", "audit", "judge")] == [1, 1, 0]
    partition.count_events()
    late = {"source": "audit"}
    assert recovering.registry.get_sample_value("callgauge_late_events_total", late) == 0, "a former owner counted it"
    recovering.fold(said(1, "a"))
    assert [arrival.offset for arrival in recovering.engine.arrivals] == [1]
    (decision,) = partition.outbox.first()
    assert (decision.positions[InputSource.PIPECAT], decision.positions[InputSource.AUDIT]) == (1, 1)
    assert (decision.time_ms, decision.version) == (NOW_MS - 5, VERSION)
    assert recovering.steps == [(VERSION, [Fold(InputSource.PIPECAT, 1)])]


def begun(kind: str) -> Recovering:
    """A partition that recovers, and has not read all that it needs."""
    recovering = Recovering(closes=True)
    if kind == "order":
        recovering.replay(order_of(Fold(InputSource.PIPECAT, 0, "a"), Fold(InputSource.PIPECAT, 1)), pipecat=2)
    else:
        recovering.catch_up({PIPECAT: 2})
    recovering.fold(said(0))
    return recovering


BOTH = pytest.mark.parametrize("kind", ["order", "scores"])


@BOTH
def test_meanwhile_nothing_is_committed_counted_or_closed_and_no_time_passes(kind: str) -> None:
    recovering = begun(kind)
    partition, engine = recovering.partition, recovering.engine
    engine.wakeup_ms, engine.counts = 0, [Count("callgauge_late_events_total", ("audit",), 7)]
    partition.advance(NOW_MS)
    partition.count_events()
    assert (engine.advanced_to_ms, partition.closing_calls, len(engine.counts)) == ([], 0, 1)
    assert [recovering.partition.due_offsets() for _ in range(2)] == [{}, {}]
    recovering.fold(said(1))
    assert not recovering.is_silent()
    partition.advance(NOW_MS)
    assert (engine.advanced_to_ms, partition.closing_calls) == ([NOW_MS], 1)
    partition.outbox.written(9)
    assert len(recovering.partition.due_offsets()) == len(INPUT_TOPICS)


@BOTH
def test_records_behind_what_is_recovered_are_folded_before_time_passes(kind: str) -> None:
    """A call that goes on would end by a silence that never was."""
    recovering = begun(kind)
    recovering.engine.wakeup_ms = 0

    class Known(Assignment):
        def known_ms(self, number: int) -> int:
            return NOW_MS + 900 + number

        def _until_ms(self, _: int) -> None:
            return None

    assignment = Known(INPUT_TOPICS, {}, trusted_clock())
    assignment.owned = {0: recovering.partition}
    assignment.fold(0, [[said(1), said(2, at_ms=NOW_MS + 300), said(3, at_ms=NOW_MS + 600)]])
    assignment.fold(0, ())
    folded = [arrival.offset for arrival in recovering.engine.arrivals]
    assert folded[-2:] == [2, 3]
    passed = [time_ms for time_ms in recovering.engine.advanced_to_ms if time_ms > NOW_MS]
    assert passed == sorted(passed)
    assert passed[:2] == [NOW_MS + 300, NOW_MS + 600]


@BOTH
def test_what_waits_is_read_again_after_a_rebalance(kind: str) -> None:
    recovering = Recovering()
    partition = recovering.partition
    if kind == "order":
        recovering.replay(
            order_of(Fold(InputSource.AUDIT, 0, "b"), Fold(InputSource.PIPECAT, 0, "a")), pipecat=1, audit=1
        )
    else:
        recovering.catch_up({PIPECAT: 0, AUDIT: 1})
    partition.polled([[said(0)]])
    recovering.fold(said(0))
    assert partition.waits(PIPECAT)
    partition.read_again()
    assert (partition.waits(PIPECAT), partition.last_record_ms) == (False, {})
    recovering.fold(said(0), said(0, "b", AUDIT))
    recovering.fold()
    assert not recovering.is_silent()
    assert sorted(recovering.engine.open_calls) == ["a", "b"]


def test_an_input_ahead_of_the_order_pauses_and_later_steps_need_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumers.evaluator.recovery.MAX_WAITING_RECORDS", 1)
    recovering = Recovering()
    recovering.replay(order_of(Fold(InputSource.AUDIT, 0, "b"), Fold(InputSource.PIPECAT, 0, "a")), pipecat=9, audit=1)
    recovering.fold(said(0), said(1))
    partition = recovering.partition
    assert [partition.is_full(topic, is_paused=False) for topic in (PIPECAT, AUDIT)] == [True, False]
    assert not partition.has_more_to_replay
    recovering.fold(said(0, "b", AUDIT))
    assert not partition.is_full(PIPECAT, is_paused=False)


@BOTH
def test_what_a_former_owner_refused_is_not_refused_again(kind: str) -> None:
    recovering = Recovering()
    refused = Record(PIPECAT, 0, key=None)
    if kind == "order":
        recovering.replay(order_of(Fold(InputSource.PIPECAT, 0)), pipecat=1)
    else:
        recovering.catch_up({PIPECAT: 1})
    recovering.fold(refused)
    assert (recovering.partition.outbox.records, recovering.partition.next_offsets[PIPECAT]) == (0, 1)
    recovering.fold(refused._replace(offset=1))
    assert [each.records for each in recovering.decisions][-1] != ()
    assert recovering.partition.outbox.records == 1


def test_calls_with_lost_records_are_counted_and_named() -> None:
    recovering = Recovering()
    recovering.replay(order_of(Fold(InputSource.PIPECAT, 0, "a"), Fold(InputSource.PIPECAT, 1)), pipecat=1)
    with capture_logs() as logged:
        recovering.fold(said(0))
    told = [(line["event"], line.get("lost"), line.get("conversation_ids")) for line in logged]
    assert told == [("partition_replayed", 1, None), ("calls_incomplete", None, ["a"])]
    assert recovering.registry.get_sample_value("callgauge_calls_incomplete_total") == 1


def test_a_call_that_has_lost_every_record_is_named_and_would_open_in_a_new_generation() -> None:
    recovering = Recovering()
    recovering.replay(order_of(Fold(InputSource.PIPECAT, 0, "a")), pipecat=0)
    with capture_logs() as logged:
        recovering.fold()
    assert [line["conversation_ids"] for line in logged if line["event"] == "calls_incomplete"] == [["a"]]
    assert recovering.engine.renumbered == [Renumbered("a", GENERATION, counts=False)]
    recovering.partition.write_steps()
    assert recovering.steps == [(VERSION, [Renumbered("a", GENERATION, counts=False)])]


def test_goals_are_those_of_then_until_the_order_ends() -> None:
    recovering = Recovering()
    then = recovering.goals.logged = {"a": goal_set("As it was.")}
    recovering.replay(order_of(Fold(InputSource.PIPECAT, 0, "a")), pipecat=1)
    assert recovering.goals.logged == then
    recovering.fold(said(0))
    assert recovering.goals.logged is None


def test_what_another_version_published_is_published_once_again() -> None:
    recovering = Recovering()
    order = order_of(Fold(InputSource.PIPECAT, 0, "a"), Fold(InputSource.PIPECAT, 1, "b"), version="old")
    order.owner(VERSION)
    order.write(Renumbered("a", GENERATION))
    recovering.replay(order, pipecat=2)
    recovering.fold(said(0, "a"), said(1, "b"))
    assert recovering.engine.renumbered == [Renumbered("a", GENERATION), Renumbered("b", GENERATION)]
    again = fact("b").model_copy(update={"revision": GENERATION, "is_first": False})
    assert [each.records for each in recovering.partition.outbox.first()] == [(again,)]
    assert recovering.steps == [(VERSION, [Renumbered("b", GENERATION)])]


# Without an order.


def test_without_an_order_it_is_silent_as_far_as_scores_go_and_publishes_open_calls_once_again() -> None:
    recovering = Recovering()
    recovering.catch_up({PIPECAT: 3, AUDIT: 1}, "closed")
    partition, engine = recovering.partition, recovering.engine
    assert engine.closed == ["closed"]
    recovering.fold(said(0, "a"), said(1, "closed"), said(2, "b"), said(3, "a"))
    assert recovering.is_silent()
    assert partition.outbox.first() == []
    assert partition.next_offsets[PIPECAT] == 3, "the last record waits: it was folded by nobody"
    recovering.fold(said(0, "b", AUDIT), known_ms=NOW_MS)
    assert not recovering.is_silent()
    recovering.fold()
    folded = [(arrival.conversation_id, arrival.offset) for arrival in engine.arrivals]
    assert folded == [("a", 0), ("b", 2), ("b", 0), ("a", 3)]
    assert recovering.replayed("pipecat") == 1, "of a closed call, undecoded"
    assert engine.renumbered == [Renumbered("a", GENERATION), Renumbered("b", GENERATION)]
    again = [fact(call).model_copy(update={"revision": GENERATION, "is_first": False}) for call in "ab"]
    assert recovering.records == [*again, fact("a")]


def test_without_an_order_a_call_of_which_only_scores_are_left_would_open_in_a_new_generation() -> None:
    recovering = Recovering()
    recovering.catch_up({PIPECAT: 1}, open=["gone"])
    recovering.fold(said(0, "a"))
    assert recovering.engine.renumbered == [Renumbered("a", GENERATION), Renumbered("gone", GENERATION)]


def test_its_steps_are_noted_from_the_first_on() -> None:
    recovering = Recovering()
    recovering.catch_up({PIPECAT: 3}, "closed")
    recovering.fold(said(0, "a"), said(1, "closed"), said(2, "b"))
    recovering.fold(said(3, "a"))
    pipecat = InputSource.PIPECAT
    steps = [step for _, steps in recovering.steps for step in steps]
    assert steps == [
        Fold(pipecat, 0, "a"), Fold(pipecat, 1), Fold(pipecat, 2, "b"),
        Renumbered("a", GENERATION), Renumbered("b", GENERATION), Fold(pipecat, 3),
    ]  # fmt: skip


@pytest.mark.parametrize("most_bytes", [1, 2, 50_000])
def test_an_owner_that_ends_before_it_has_published_all_again_leaves_the_others_to_its_successor(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    monkeypatch.setattr(partition_module, "MAX_PENDING_STEPS_BYTES", most_bytes)
    recovering = Recovering()
    recovering.catch_up({PIPECAT: 3})
    records = [said(offset, call) for offset, call in enumerate("aab")]
    recovering.fold(*records)
    order, again = WrittenOrder(), set[str]()
    for version, steps in recovering.steps:
        order.owner(version)
        order.write(*steps)
        again |= {step.conversation_id for step in steps if isinstance(step, Renumbered)}
        successor = Recovering()
        successor.replay(order, pipecat=3)
        successor.fold(*records)
        if again:  # otherwise it reads what comes behind the order as new
            assert {step.conversation_id for step in successor.engine.renumbered} == {"a", "b"}
            published = [record.conversation_id for record in successor.records]
            assert published == [call for call in "ab" if call not in again]


def test_goals_that_a_call_got_meanwhile_are_in_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A successor would fold the call without goals."""
    recovering = Recovering()
    chosen = goals_fact("a", goal_set())
    monkeypatch.setattr(recovering.engine, "receive", lambda _: (OpenCall(None), PublishScore(chosen)))
    recovering.engine.open_calls = ("a",)
    recovering.catch_up({PIPECAT: 1})
    recovering.fold(said(0, "a"))
    noted = [step for _, steps in recovering.steps for step in steps]
    assert noted.index(GoalsChosen("a", "goals", chosen.digest)) < noted.index(Renumbered("a", GENERATION))


def test_an_input_with_a_gap_at_its_end_does_not_hold_it_up() -> None:
    """Scores reach beyond the end of an input that was made anew, and its last offset is the end of a transaction."""
    recovering = Recovering()
    recovering.catch_up({PIPECAT: 2})
    recovering.fold(said(0))
    assert recovering.is_silent()
    recovering.fold(said(2))
    recovering.fold()
    assert not recovering.is_silent()
    assert recovering.partition.next_offsets[PIPECAT] == 3


def test_where_nothing_was_published_it_is_live_at_once() -> None:
    recovering = Recovering()
    recovering.catch_up({})
    assert not recovering.is_silent()
    recovering.fold(said(0))
    assert waiting_in(recovering.partition.outbox) == [["a"]]
    assert recovering.steps == [(VERSION, [Fold(InputSource.PIPECAT, 0, "a")])]
