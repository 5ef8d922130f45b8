"""Past calls evaluated again come out as they did, whatever the order was in which they were evaluated."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import accumulate, chain, count
from operator import itemgetter
from typing import Any

from aiokafka.structs import ConsumerRecord
from hypothesis import event, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from consumers.engine.admission import Arrival, admit
from consumers.engine.effects import Effect
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from consumers.evaluator.partition import Partition
from consumers.evaluator.recovery import OrderLog, Replay
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource, JudgeKind
from schemas.goals.goal_set import ChoosesGoals
from schemas.judging import JudgeRequest
from schemas.order import OrderStart, order_value
from schemas.quarantine import QuarantineRecord
from schemas.scores.records import SCORE_RECORD, AnyScoreRecord, ClosedFact, GoalsFact
from schemas.topics import INPUT_TOPICS, ORDER_TOPIC, SOURCE_BY_TOPIC, TOPIC_BY_SOURCE
from schemas.transcript import Transcript
from streamer.backtest.past import PastCalls, Period, in_logged_order
from streamer.backtest.rerun import Comparison, Rerun, Said, Subject, last_words
from tests.properties.owners import Topics
from tests.properties.test_recovery import AgentsGoals, partitions
from tests.support.fakes.engine_feed import T0_MS, records_of
from tests.support.laws import examples

EVER = Period(-(10**15), 10**15)

_few = st.sampled_from([1_000, 1, 2, 3])
_times = st.fixed_dictionaries(
    {
        "max_event_time_skew_ms": st.just(0),
        "idle_ms": st.sampled_from([600_000, 30_000, 2_000]),
        "closing_grace_ms": st.sampled_from([10_000, 1_000, 0]),
        "dead_air_ms": st.sampled_from([3_000, 400, 1]),
        "delivery_allowance_ms": st.sampled_from([500, 0]),
        "max_call_duration_ms": st.sampled_from([10**9, 10**9, 10_000]),
    }
)
_counts = st.fixed_dictionaries(
    {
        "max_open_calls": _few,
        "max_closed_calls_remembered": _few,
        "max_events_per_call": st.sampled_from([10_000, 10_000, 30, 10]),
    }
)
_rules = st.builds(
    GoalRules,
    text_judges=st.sampled_from([(JudgeKind.CONCISENESS,), ()]),
    steady_words_ms=st.sampled_from([0, 1_000]),
    verdict_deadline_ms=st.sampled_from([10**9, 3_000]),
)
_limits = st.builds(lambda times, counts: Limits(**times, **counts), _times, _counts)
Acts = Sequence[tuple[str, int, int | None]]
_acts = st.one_of(
    st.tuples(st.just("fold"), st.integers(0, 3), st.sampled_from([None, 0, 0, 1_000, 10**7])),
    st.tuples(st.just("pass"), st.just(0), st.sampled_from([0, 0, 1, 1_000, 20_000, 10**7])),
    st.tuples(st.just("close"), st.just(0), st.just(0)),
    st.tuples(st.just("write"), st.integers(1, 5), st.just(0)),
)
_lives = st.lists(st.lists(_acts, max_size=60), max_size=3)


class Past:
    """The topics of a partition: its inputs, its order, and the scores of its owners."""

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        self.order: list[Any] = []
        self.scores: list[AnyScoreRecord] = []

    def inputs(self) -> dict[InputSource, list[Any]]:
        return {source: list(map(_read, arrivals)) for source, arrivals in self.topics.inputs.items()}


class Owner:
    """An evaluator's shell of one partition, from its takeover to its end. What it has not written then is lost."""

    def __init__(self, past: Past, limits: Limits, rules: GoalRules, source: ChoosesGoals) -> None:
        order = OrderLog()
        for each in past.order:
            order.take(each)
        goals = ChosenGoals(source, rules)
        evaluator = PartitionEvaluator(limits, "test", goals)
        instruments = Instruments(CollectorRegistry(), ["evaluator"])
        self.partition = Partition(0, evaluator, limits, SOURCE_BY_TOPIC, instruments, goals=goals)
        self._past = past
        sets = {each.digest: each.goal_set for each in past.scores if isinstance(each, GoalsFact)}
        starts, ends = dict.fromkeys(InputSource, 0), {source: order.positions.get(source, 0) for source in InputSource}
        replay = Replay(order, starts, ends, "test", evaluator, self.partition.admitted, goals, sets)
        self.partition.start(dict.fromkeys(INPUT_TOPICS, 0), replay)
        folded = [[each for each in some if each.offset < ends[source]] for source, some in past.inputs().items()]
        self.partition.fold([some for some in folded if some], None)
        while self.partition.is_recovering:
            self.partition.fold([], None)

    @property
    def unread(self) -> list[Any]:
        """The next record of each input that has one."""
        offsets = self.partition.next_offsets
        rests = [[each for each in some if each.offset >= offsets[each.topic]] for some in self._past.inputs().values()]
        return [rest[0] for rest in rests if rest]

    def write(self, most: int) -> None:
        """One transaction of some decisions. Its record of the order has a start."""
        outbox, past = self.partition.outbox, self._past
        if decisions := outbox.first()[:most]:
            outbox.written(len(decisions))
            version, positions, time_ms = decisions[0][2:]
            start = OrderStart(version=version, positions=dict(positions), time_ms=time_ms)
            steps = order_value(b"".join(each.steps for each in decisions))
            past.order.append(_record(ORDER_TOPIC, len(past.order), T0_MS, None, steps, (start.header(),)))
            for record in chain.from_iterable(each.records for each in decisions):
                if isinstance(record, JudgeRequest):
                    past.topics.answers(record)
                elif not isinstance(record, QuarantineRecord | Transcript):
                    past.scores.append(record)

    def live(self, acts: Acts) -> None:
        """Reads the inputs in any order, with time passing before a record or not, and writes some of what it decides."""
        last_ms = T0_MS
        for what, which, number in acts:
            if what == "fold" and (unread := self.unread):
                record = unread[which % len(unread)]
                last_ms = max(last_ms, record.timestamp)
                self.partition.fold([[record]], None if number is None else last_ms + number)
            elif what == "pass":
                self.partition.advance(last_ms + (number or 0))
            elif what == "close":
                self.partition.close_some()
            elif what == "write":
                self.write(which)

    def to_the_end(self) -> None:
        """Reads everything, lets every call end, and writes everything."""
        while self.unread or self.partition.open_calls:
            for record in self.unread:
                self.partition.fold([[record]], None)
            if not self.unread and (wakeup_ms := self.partition.evaluator.next_wakeup()) is not None:
                self.partition.advance(wakeup_ms)
            self.partition.close_some()
        self.partition._put(())  # the steps behind the last decision, which the next one would bring
        while self.partition.outbox.first():
            self.write(1_000)


def _evaluated(topics: Topics, limits: Limits, rules: GoalRules, lives: Sequence[Acts]) -> Past:
    past = Past(topics)
    for acts in lives:
        Owner(past, limits, rules, AgentsGoals("1")).live(acts)
    Owner(past, limits, rules, AgentsGoals("1")).to_the_end()
    return past


def _record(topic: str, offset: int, at_ms: int, key: bytes | None, value: bytes, headers: Any = ()) -> Any:
    return ConsumerRecord(topic, 0, offset, at_ms, 1, key, value, None, 0, len(value), headers)


def _read(arrival: Arrival) -> Any:
    value = arrival.value or arrival.event.model_dump_json().encode()  # the judge of these tests writes events alone
    topic, key = TOPIC_BY_SOURCE[arrival.source], arrival.conversation_id.encode()
    return _record(topic, arrival.offset, arrival.broker_time_ms, key, value)


async def _each(records: Iterable[Any]) -> AsyncIterator[Any]:
    for record in records:
        yield record


def _again(rerun: Rerun, past: Past, since: int = 0) -> dict[str, list[bytes]]:
    """All that the new evaluation writes, by call. It sees the order from one of its records on."""

    async def taken() -> list[AnyScoreRecord]:
        inputs = {source: _each(records) for source, records in past.inputs().items()}
        async with aclosing(in_logged_order(_each(past.order[since:]), inputs)) as steps:
            return [record async for logged in steps for record in rerun.take(logged)]

    written: dict[str, list[bytes]] = {}
    for record in [*asyncio.run(taken()), *rerun.finish(0)]:
        written.setdefault(record.conversation_id, []).append(record.model_dump_json().encode())
    return written


def _calls(scores: Iterable[AnyScoreRecord], period: Period) -> tuple[PastCalls, dict[str, list[bytes]]]:
    """The calls that closed once, in the period, and all that was written of calls that closed in it."""
    calls, lives = PastCalls(period), dict[str, list[bytes]]()
    written: dict[str, list[bytes]] = {}
    for record in scores:
        value = record.model_dump_json().encode()
        calls.take(record.conversation_id.encode(), value)
        lives.setdefault(record.conversation_id, []).append(value)
        if isinstance(record, ClosedFact):
            life = lives.pop(record.conversation_id)
            if period.has(record.caused_at_ms):
                written[record.conversation_id] = life
    return calls, written


def _rerun(limits: Limits, rules: GoalRules, calls: PastCalls) -> Rerun:
    return Rerun(limits, "test", calls.period, calls.by_id, True, Comparison(), goals=ChosenGoals(None, rules))


@examples(times=3)
@given(partitions(), _limits, _rules, _lives, st.integers(0, 4))
def test_with_the_same_settings_every_record_is_the_same_byte_for_byte(
    topics: Topics, limits: Limits, rules: GoalRules, lives: Sequence[Acts], skipped: int
) -> None:
    """Some calls may have closed before the period: they are not evaluated, and others gave way to them all the same."""
    past = _evaluated(topics, limits, rules, lives)
    closed = [record for record in past.scores if isinstance(record, ClosedFact)]
    since_ms = sorted(record.caused_at_ms for record in closed)[skipped % len(closed)]
    calls, then = _calls(past.scores, Period(since_ms, EVER.until_ms))
    rerun = _rerun(limits, rules, calls)
    assert _again(rerun, past) == {conversation_id: then[conversation_id] for conversation_id in calls.by_id}
    assert (rerun.comparison.equal_calls, rerun.comparison.examples) == (len(calls.by_id), [])
    assert (rerun.open_calls, rerun.without_beginning, rerun.refused) == (0, 0, 0)
    event(f"{len(calls.by_id)} of {len(closed)} calls")
    event(f"{min(2, sum(record.reason == 'limit_open_calls' for record in closed))} evictions or more")


@given(partitions(), _limits, _rules, _lives, st.integers(0, 30))
def test_calls_that_began_before_the_order_that_is_left_are_left_out(
    topics: Topics, limits: Limits, rules: GoalRules, lives: Sequence[Acts], cut: int
) -> None:
    past = _evaluated(topics, limits, rules, lives)
    since = cut % len(past.order)
    calls, then = _calls(past.scores, EVER)
    rerun = _rerun(limits, rules, calls)
    again = _again(rerun, past, since)
    assert again == {conversation_id: then[conversation_id] for conversation_id in again}
    assert (rerun.comparison.equal_calls, rerun.comparison.examples) == (len(again), [])
    assert rerun.without_beginning == len(calls.by_id) - len(again)
    event(f"{'some' if again else 'none'} of {min(1, len(calls.by_id))} or more")


class NoGoals:
    """No call has goals."""

    def choose(self, goals_id: str | None, agent: str | None) -> None:
        del goals_id, agent


def _never_late(topics: Topics) -> Topics:
    """The same records, but each has a broker time of its own, in the order of the offsets."""
    timed: list[tuple[int, Arrival]] = []
    for some in topics.inputs.values():
        timed += zip(accumulate((each.broker_time_ms for each in some), max), some, strict=True)
    arrivals, last_ms = [], 0
    for at_ms, each in sorted(timed, key=itemgetter(0)):
        last_ms = max(at_ms, last_ms + 1)
        arrivals.append(replace(each, broker_time_ms=last_ms))
    return Topics.of(arrivals)


@examples(times=2)
@given(partitions(), _times, _times, _rules, st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_other_settings_decide_as_if_they_had_been_there_then(
    topics: Topics, then: dict[str, Any], today: dict[str, Any], rules: GoalRules, turns: list[int]
) -> None:
    """The order says only now and then how far time had come. That is enough where no record came after its time had passed."""
    past = Past(_never_late(topics))
    owner = Owner(past, Limits(**then), rules, NoGoals())
    other = PartitionEvaluator(Limits(**today), "test", ChosenGoals(None, rules))
    other.pass_time(0)
    expected: list[Effect] = []
    for place in count():
        if not (unread := owner.unread):
            break
        record = unread[turns[place % len(turns)] % len(unread)]
        known_ms = min(each.timestamp for each in unread) - 1
        while (wakeup_ms := other.next_wakeup()) is not None and wakeup_ms <= known_ms:
            expected += other.advance(wakeup_ms)
        owner.partition.fold([[record]], known_ms)
        owner.partition.close_some()
        arrival = admit(SOURCE_BY_TOPIC[record.topic], record, Limits(**today))
        assert isinstance(arrival, Arrival)
        expected += other.receive(arrival)
    owner.to_the_end()
    while (wakeup_ms := other.next_wakeup()) is not None:
        expected += other.advance(wakeup_ms)

    rerun = _rerun(Limits(**today), rules, _calls(past.scores, EVER)[0])
    again = _again(rerun, past)
    event(f"{min(1, rerun.comparison.changed_calls)} changed calls or more")
    said = {key: _lasting(map(SCORE_RECORD.validate_json, values)) for key, values in again.items()}
    undisturbed, _ = _calls(records_of(expected), EVER)
    assert said == {key: _lasting(call.records()) for key, call in undisturbed.by_id.items()}


def _lasting(records: Iterable[AnyScoreRecord]) -> dict[Subject, Said]:
    """The values at the end. Late facts may still change the number of a turn when a silence in it is decided."""
    words = last_words(records)
    return {each._replace(turn=None) if each.name == "dead_air" else each: said for each, said in words.items()}
