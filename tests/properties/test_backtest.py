"""Past calls evaluated again come out as they did, whatever the order was in which they were evaluated."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import accumulate, count
from operator import itemgetter
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from consumers.engine.admission import Arrival
from consumers.engine.effects import Effect
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from schemas.scores.records import SCORE_RECORD, AnyScoreRecord, ClosedFact
from streamer.backtest.past import PastCalls, Period, in_logged_order
from streamer.backtest.rerun import Comparison, Rerun, Said, Subject, last_words
from tests.properties.owners import Acts, Owner, Settings, Topics, acts, record_of
from tests.properties.partitions import partitions, rules, settings, times
from tests.support.fakes.engine_feed import records_of
from tests.support.laws import examples

EVER = Period(-(10**15), 10**15)

_lives = st.lists(acts(), max_size=3)


def _evaluated(topics: Topics, settings: Settings, lives: Sequence[Acts]) -> None:
    for each in lives:
        Owner(topics, settings).live(each)
    Owner(topics, settings).to_the_end()


async def _each(records: Iterable[Any]) -> AsyncIterator[Any]:
    for record in records:
        yield record


def _again(rerun: Rerun, topics: Topics, since: int = 0) -> dict[str, list[bytes]]:
    """All that the new evaluation writes, by call. It sees the order from one of its records on."""

    async def taken() -> list[AnyScoreRecord]:
        inputs = {source: _each(map(record_of, some)) for source, some in topics.inputs.items()}
        async with aclosing(in_logged_order(_each(topics.order[since:]), inputs)) as steps:
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


def _rerun(settings: Settings, calls: PastCalls) -> Rerun:
    goals = ChosenGoals(None, settings.rules)
    return Rerun(settings.limits, "test", calls.period, calls.by_id, True, Comparison(), goals=goals)


@examples(times=3)
@given(partitions(), settings, _lives, st.integers(0, 4))
def test_with_the_same_settings_every_record_is_the_same_byte_for_byte(
    topics: Topics, settings: Settings, lives: Sequence[Acts], skipped: int
) -> None:
    """Some calls may have closed before the period: they are not evaluated, and others gave way to them all the same."""
    _evaluated(topics, settings, lives)
    closed = [record for record in topics.scores if isinstance(record, ClosedFact)]
    since_ms = sorted(record.caused_at_ms for record in closed)[skipped % len(closed)]
    calls, then = _calls(topics.scores, Period(since_ms, EVER.until_ms))
    rerun = _rerun(settings, calls)
    assert _again(rerun, topics) == {conversation_id: then[conversation_id] for conversation_id in calls.by_id}
    assert (rerun.comparison.calls.equal, rerun.comparison.examples) == (len(calls.by_id), [])
    assert (rerun.open_calls, rerun.counts["without_beginning"], rerun.counts["refused_records"]) == (0, 0, 0)
    event(f"{len(calls.by_id)} of {len(closed)} calls")
    event(f"{min(2, sum(record.reason == 'limit_open_calls' for record in closed))} evictions or more")


@given(partitions(), settings, _lives, st.integers(0, 30))
def test_calls_that_began_before_the_order_that_is_left_are_left_out(
    topics: Topics, settings: Settings, lives: Sequence[Acts], cut: int
) -> None:
    _evaluated(topics, settings, lives)
    since = cut % len(topics.order)
    calls, then = _calls(topics.scores, EVER)
    rerun = _rerun(settings, calls)
    again = _again(rerun, topics, since)
    assert again == {conversation_id: then[conversation_id] for conversation_id in again}
    assert (rerun.comparison.calls.equal, rerun.comparison.examples) == (len(again), [])
    assert rerun.counts["without_beginning"] == len(calls.by_id) - len(again)
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
@given(partitions(), times, times, rules, st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_other_settings_decide_as_if_they_had_been_there_then(
    topics: Topics, then: dict[str, Any], today: dict[str, Any], rules: GoalRules, turns: list[int]
) -> None:
    """The order says only now and then how far time had come. That is enough where no record came after its time had passed."""
    topics = _never_late(topics)
    owner = Owner(topics, Settings(Limits(**then), rules, lambda _: NoGoals()))
    other = PartitionEvaluator(Limits(**today), "test", ChosenGoals(None, rules))
    other.pass_time(0)
    expected: list[Effect] = []
    for place in count():
        if not (unread := owner.unread):
            break
        arrival = unread[turns[place % len(turns)] % len(unread)]
        known_ms = min(each.broker_time_ms for each in unread) - 1
        while (wakeup_ms := other.next_wakeup()) is not None and wakeup_ms <= known_ms:
            expected += other.advance(wakeup_ms)
        owner.fold(arrival, known_ms)
        owner.partition.close_some()
        expected += other.receive(arrival)
    owner.to_the_end()
    while (wakeup_ms := other.next_wakeup()) is not None:
        expected += other.advance(wakeup_ms)

    rerun = _rerun(Settings(Limits(**today), rules), _calls(topics.scores, EVER)[0])
    again = _again(rerun, topics)
    event(f"{min(1, rerun.comparison.calls.changed)} changed calls or more")
    said = {key: _lasting(map(SCORE_RECORD.validate_json, values)) for key, values in again.items()}
    undisturbed, _ = _calls(records_of(expected), EVER)
    assert said == {key: _lasting(call.records()) for key, call in undisturbed.by_id.items()}


def _lasting(records: Iterable[AnyScoreRecord]) -> dict[Subject, Said]:
    """The values at the end. Late facts may still change the number of a turn when a silence in it is decided."""
    words = last_words(records)
    return {each._replace(turn=None) if each.name == "dead_air" else each: said for each, said in words.items()}
