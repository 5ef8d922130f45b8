"""Past calls evaluated again come out as they did, whatever the order was in which they were evaluated."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import accumulate, count
from operator import itemgetter
from typing import Any

from aiokafka.structs import ConsumerRecord
from hypothesis import event, given
from hypothesis import strategies as st

from consumers.engine.effects import Effect
from consumers.engine.goals.chosen_goals import ChosenGoals
from consumers.engine.intake.admission import Arrival
from consumers.engine.judging.rules import GoalRules
from consumers.engine.limits import Limits
from schemas.judging import JudgeKind
from schemas.order import Fold
from schemas.scores.all_records import SCORE_RECORD, AnyScoreRecord, ClosedFact
from schemas.topics import ORDER_TOPIC, TOPIC_BY_SOURCE
from streamer.operations.backtest.comparison import Comparison, Said, Subject, last_words
from streamer.operations.backtest.inputs import in_logged_order
from streamer.operations.backtest.past import PastCalls, Period
from streamer.operations.backtest.rerun import Rerun
from tests.properties.owners import Owner, Settings, Topics
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
_settings = st.builds(
    lambda times, counts, rules: Settings(Limits(**times, **counts), rules, AgentsGoals), _times, _counts, _rules
)
Acts = Sequence[tuple[str, int, int | None]]
_acts = st.one_of(
    st.tuples(st.just("fold"), st.integers(0, 3), st.sampled_from([1, 2, 8])),
    st.tuples(st.just("pass"), st.just(0), st.sampled_from([0, 0, 1, 1_000, 20_000, 10**7])),
    st.tuples(st.just("close"), st.just(0), st.just(0)),
    st.tuples(st.just("write"), st.booleans(), st.sampled_from([1, 2, None])),
)
_lives = st.lists(st.lists(_acts, max_size=30), max_size=3)


def _live(owner: Owner, acts: Acts) -> None:
    """An owner reads its inputs in any order, time passes anyhow, and some of what it decides is written."""
    time_ms = last_ms = T0_MS
    for what, which, number in acts:
        if what == "fold":
            for _ in range(number or 0):
                if unread := owner.unread:
                    last_ms = unread[which % len(unread)].broker_time_ms
                    owner.fold(unread[which % len(unread)])
        elif what == "pass":
            time_ms = max(time_ms, last_ms + (number or 0))
            owner.pass_time(time_ms)
        elif what == "close":
            owner.close_some()
        else:
            owner.write(number, starts=bool(which))


def _evaluated(topics: Topics, settings: Settings, lives: Sequence[Acts]) -> None:
    for number, acts in enumerate(lives):
        _live(Owner(topics, settings, str(number)), acts)
    Owner(topics, settings, "last").to_the_end()


def _record(topic: str, offset: int, at_ms: int, key: bytes | None, value: bytes, headers: Any = ()) -> Any:
    return ConsumerRecord(topic, 0, offset, at_ms, 1, key, value, None, 0, len(value), headers)


def _read(arrival: Arrival) -> Any:
    value = arrival.value or arrival.event.model_dump_json().encode()  # the judge of these tests writes events alone
    topic, key = TOPIC_BY_SOURCE[arrival.source], arrival.conversation_id.encode()
    return _record(topic, arrival.offset, arrival.broker_time_ms, key, value)


async def _each(records: Iterable[Any]) -> AsyncIterator[Any]:
    for record in records:
        yield record


def _again(rerun: Rerun, topics: Topics, since: int = 0) -> dict[str, list[bytes]]:
    """All that the new evaluation writes, by call. It sees the order from one of its records on."""

    async def taken() -> list[AnyScoreRecord]:
        order = [
            _record(ORDER_TOPIC, place, T0_MS, None, value, headers)
            for place, (headers, value) in enumerate(topics.order)
        ]
        inputs = {source: _each(map(_read, arrivals)) for source, arrivals in topics.inputs.items()}
        async with aclosing(in_logged_order(_each(order[since:]), inputs)) as steps:
            return [record async for logged in steps for record in rerun.take(logged)]

    written: dict[str, list[bytes]] = {}
    for record in [*asyncio.run(taken()), *rerun.finish(0)]:
        written.setdefault(record.conversation_id, []).append(record.model_dump_json().encode())
    return written


def _past(effects: Iterable[Effect], period: Period) -> tuple[PastCalls, dict[str, list[bytes]]]:
    """The calls that closed once, in the period, and all that was written of calls that closed in it."""
    past, lives = PastCalls(period), dict[str, list[bytes]]()
    written: dict[str, list[bytes]] = {}
    for record in records_of(effects):
        value = record.model_dump_json().encode()
        past.take(record.conversation_id.encode(), value)
        lives.setdefault(record.conversation_id, []).append(value)
        if isinstance(record, ClosedFact):
            life = lives.pop(record.conversation_id)
            if period.has(record.caused_at_ms):
                written[record.conversation_id] = life
    return past, written


def _rerun(limits: Limits, rules: GoalRules, past: PastCalls) -> Rerun:
    return Rerun(limits, "test", past.period, past.by_id, True, Comparison(), goals=ChosenGoals(None, rules))


@examples(times=3)
@given(partitions(), _settings, _lives, st.integers(0, 4))
def test_with_the_same_settings_every_record_is_the_same_byte_for_byte(
    topics: Topics, settings: Settings, lives: Sequence[Acts], skipped: int
) -> None:
    """Some calls may have closed before the period: they are not evaluated, and others gave way to them all the same."""
    _evaluated(topics, settings, lives)
    closed = [record for record in records_of(topics.published) if isinstance(record, ClosedFact)]
    since_ms = sorted(record.caused_at_ms for record in closed)[skipped % len(closed)]
    past, then = _past(topics.published, Period(since_ms, EVER.until_ms))
    rerun = _rerun(settings.limits, settings.rules, past)
    assert _again(rerun, topics) == {conversation_id: then[conversation_id] for conversation_id in past.by_id}
    assert (rerun.comparison.equal_calls, rerun.comparison.examples) == (len(past.by_id), [])
    assert (rerun.open_calls, rerun.without_beginning, rerun.refused) == (0, 0, 0)
    event(f"{len(past.by_id)} of {len(closed)} calls")
    event(f"{min(2, sum(record.reason == 'limit_open_calls' for record in closed))} evictions or more")


@given(partitions(), _settings, _lives, st.integers(0, 9))
def test_calls_that_began_before_the_order_that_is_left_are_left_out(
    topics: Topics, settings: Settings, lives: Sequence[Acts], cut: int
) -> None:
    _evaluated(topics, settings, lives)
    starts = [place for place, (headers, _) in enumerate(topics.order) if headers]
    since = starts[cut % len(starts)]
    begun = {
        arrival.conversation_id
        for _, step, arrival in topics.taken(since)
        if arrival is not None and isinstance(step, Fold) and step.opens
    }
    past, then = _past(topics.published, EVER)
    rerun = _rerun(settings.limits, settings.rules, past)
    expected = {conversation_id: then[conversation_id] for conversation_id in past.by_id if conversation_id in begun}
    assert _again(rerun, topics, since) == expected
    assert (rerun.comparison.equal_calls, rerun.comparison.examples) == (len(expected), [])
    assert rerun.without_beginning == len(past.by_id) - len(expected)


class NoGoals:
    """No call has goals."""

    def choose(self, goals_id: str | None, agent: str | None) -> None:
        del goals_id, agent


def _never_late(topics: Topics) -> Topics:
    """The same records, but each has a broker time of its own, in the order of the offsets."""
    times_ms = {
        source: accumulate((each.broker_time_ms for each in some), max) for source, some in topics.inputs.items()
    }
    timed = [
        (at_ms, each)
        for source, some in topics.inputs.items()
        for at_ms, each in zip(times_ms[source], some, strict=True)
    ]
    timed.sort(key=itemgetter(0))
    arrivals, last_ms = [], 0
    for at_ms, each in timed:
        last_ms = max(at_ms, last_ms + 1)
        arrivals.append(replace(each, broker_time_ms=last_ms))
    return Topics.of(arrivals)


@examples(times=2)
@given(partitions(), _times, _times, _rules, st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_other_settings_decide_as_if_they_had_been_there_then(
    topics: Topics, then: dict[str, Any], today: dict[str, Any], rules: GoalRules, turns: list[int]
) -> None:
    """The order says only now and then how far time had come. That is enough where no record came after its time had passed."""
    topics = _never_late(topics)
    owner = Owner(topics, Settings(Limits(**then), rules, lambda _: NoGoals()))
    other = Settings(Limits(**today), rules).evaluator(ChosenGoals(None, rules))
    expected: list[Effect] = []
    for place in count():
        if not (unread := owner.unread):
            break
        arrival = unread[turns[place % len(turns)] % len(unread)]
        known_ms = min(each.broker_time_ms for each in unread) - 1
        if (wakeup_ms := owner.evaluator.next_wakeup()) is not None and wakeup_ms <= known_ms:
            owner.pass_time(known_ms)
        while (wakeup_ms := other.next_wakeup()) is not None and wakeup_ms <= known_ms:
            expected += other.advance(wakeup_ms)
        owner.close_some()
        owner.fold(arrival)
        expected += other.receive(arrival)
    owner.to_the_end()
    owner.write_steps()
    owner.write()
    while (wakeup_ms := other.next_wakeup()) is not None:
        expected += other.advance(wakeup_ms)

    past, _ = _past(topics.published, EVER)
    rerun = _rerun(Limits(**today), rules, past)
    again = _again(rerun, topics)
    event(f"{min(1, rerun.comparison.changed_calls)} changed calls or more")
    said = {key: _lasting(map(SCORE_RECORD.validate_json, values)) for key, values in again.items()}
    assert said == {key: _lasting(call.records()) for key, call in _past(expected, EVER)[0].by_id.items()}


def _lasting(records: Iterable[AnyScoreRecord]) -> dict[Subject, Said]:
    """What holds in the end. Late facts may still change the number of a turn when a silence in it is decided."""
    words = last_words(records)
    return {each._replace(turn=None) if each.name == "dead_air" else each: said for each, said in words.items()}
