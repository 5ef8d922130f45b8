"""Owners of a partition that end anywhere, with what they had not written, publish together what
one owner publishes, byte for byte.

Each of them folds the log from the place that the row of the partition names, silently up to where
the last one had come, and goes on.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from msgspec import structs

from consumers.engine.admission import Arrival
from consumers.engine.limits import GoalRules, Limits
from schemas import rows
from schemas.closed_sets import InputSource
from schemas.events.codec import decode
from schemas.log import Begin, Event, LogReader, Tick
from schemas.rows import CallRow, GoalsRow, Row
from schemas.topics import JUDGE_REQUESTS_TOPIC, SCORES_TOPIC, TRANSCRIPTS_TOPIC
from tests.properties.evaluation import (
    Subject,
    assert_counted,
    end_of,
    final_state,
    final_values,
    fold,
    fresh,
    lives_of,
    outcomes_of,
    run,
    subject_of,
    taken_over,
)
from tests.properties.owners import (
    Acts,
    Log,
    Owner,
    Rules,
    Settings,
    Step,
    acts,
    by_call,
    undisturbed,
)
from tests.properties.partitions import AgentsGoals, logs, settings
from tests.properties.steered_calls import drawn
from tests.support.calls.wire_calls import arrivals_of
from tests.support.fakes.engine_feed import T0_MS, Json, transcripts_of
from tests.support.laws import examples

STEP_MS = 25


def closings(rows: Iterable[Row]) -> list[CallRow]:
    """The last row of each call."""
    return [row for row in rows if isinstance(row, CallRow) and row.state == "closed"]


def assert_once(log: Log) -> None:
    """Every call closes once and is silent then, and revisions never fall: one step may decide two
    rows of a call.
    """
    for life in lives_of(log.rows):
        assert closings(life) == life[-1:], "every call closes once"
        last: dict[Subject, int] = {}
        for row in life:
            assert row.revision >= last.get(subject_of(row), 0), "revisions never fall"
            last[subject_of(row)] = row.revision


@examples(times=3)
@given(logs(), settings, st.lists(acts(), min_size=1, max_size=4))
def test_folding_with_stops_anywhere_publishes_what_folding_once_does_byte_for_byte(
    log: Log, settings: Settings, lives: Sequence[Acts]
) -> None:
    for number, each in enumerate(lives):
        Owner(log, settings, str(number)).live(each)
    Owner(log, settings, "last").to_the_end()
    expected = undisturbed(log, settings)
    evictions = sum(each.close_reason == "limit_open_calls" for each in closings(log.rows))
    event(f"{min(evictions, 2)} evictions or more")
    event(
        f"{min(3, sum(each.topic == JUDGE_REQUESTS_TOPIC for each in expected))} questions or more"
    )
    assert by_call(log.published) == by_call(expected)
    assert_once(log)


@examples(times=2)
@given(logs(), settings, st.lists(st.tuples(acts(), st.sampled_from("12")), min_size=1, max_size=4))
def test_what_another_version_says_again_is_all_that_it_adds(
    log: Log, settings: Settings, lives: Sequence[tuple[Acts, str]]
) -> None:
    """Its revision is the odd one in front of the next place; a call that was over by then closes
    with it.
    """
    again: Counter[int] = Counter()
    for number, (some, version) in enumerate(lives):
        owner = Owner(log, settings, str(number), version)
        again[2 * owner.partition.next_offset - 1] += owner.partition.is_publishing_again
        owner.live([("fold", 8), *some])
    owner = Owner(log, settings, "last", "1")
    again[2 * owner.partition.next_offset - 1] += owner.partition.is_publishing_again
    owner.to_the_end()
    expected = lives_of(
        rows.decode(each.value)
        for each in undisturbed(log, settings)
        if each.topic == SCORES_TOPIC and each.value
    )
    published = {life[0].conversation_id: life for life in lives_of(log.rows)}
    assert len(published) == len(expected)
    closed_again = 0
    for life in expected:
        seen = published[life[0].conversation_id]
        said_again = [row for row in seen if row.revision % 2]
        decided = [row for row in seen if not row.revision % 2]
        assert decided == life[: len(decided)]
        closing = life[len(decided) :]
        assert said_again[len(said_again) - len(closing) :] == [
            structs.replace(row, revision=said_again[-1].revision) for row in closing
        ]
        before = said_again[: len(said_again) - len(closing)]
        assert {row.revision for row in said_again} <= {
            revision for revision, times in again.items() if times
        }
        assert {row.news for row in before if not isinstance(row, GoalsRow)} <= {()}
        assert [row.revision for row in seen] == sorted(row.revision for row in seen)
        closed_again += bool(closing)
    event(f"{min(2, sum(again.values()))} times or more, {min(1, closed_again)} closings or more")


@examples(times=1.5)
@given(st.data())
def test_what_is_written_in_the_end_is_what_an_undisturbed_evaluator_writes(
    data: st.DataObject,
) -> None:
    """However often time passes in between: it goes on evenly and ends within the closing grace."""
    call, order = drawn(data, updates=False)
    # Of two reasons that contradict each other on two topics the last to arrive counts, which is a
    # matter of arrival.
    call["control"] = [
        event | ({"reason": "goodbye"} if "reason" in event else {}) for event in call["control"]
    ]
    arrivals = [
        replace(arrival, broker_time_ms=T0_MS + place * STEP_MS)
        for place, arrival in enumerate(arrivals_of(call, order))
    ]
    log = Log.of(arrivals, has_ticks=True)
    for each in data.draw(st.lists(acts(), min_size=1, max_size=3)):
        Owner(log, Settings()).live(each)
    Owner(log, Settings()).to_the_end()
    expected = run(arrivals)
    assert_counted(log.rows)
    transcripts = [each.value for each in log.published if each.topic == TRANSCRIPTS_TOPIC]
    assert transcripts == transcripts_of(expected)
    assert final_values(log.rows) == final_state(expected)


@given(st.data())
def test_a_call_that_was_closed_is_not_opened_again(data: st.DataObject) -> None:
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    log = Log.of(arrivals)
    Owner(log, Settings()).to_the_end()
    published = list(log.published)
    for each in arrivals:
        log.add(replace(each, broker_time_ms=log.now_ms))
    again = Owner(log, Settings())
    assert again.evaluator.open_calls == ()
    again.to_the_end()
    assert log.published == published
    outcomes = Counter[str]()
    for count in outcomes_of(again.evaluator):
        outcomes[count.labels[1]] += count.by
    assert outcomes == {"after_close": len(arrivals)}


@given(st.data())
def test_a_successor_closes_a_call_as_the_owner_before_it_would_have(data: st.DataObject) -> None:
    """Nothing is said again, nothing is withdrawn, and no count is made twice."""
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    before, after = fresh(), taken_over(arrivals)
    fold(before, arrivals)
    assert after.next_wakeup() == before.next_wakeup()
    assert after.low_watermark() == before.low_watermark()
    assert after.context(str(call["id"])) == before.context(str(call["id"]))
    assert after.advance(end_of(arrivals)) == before.advance(end_of(arrivals))


def test_goals_that_a_call_got_late_are_not_there_sooner_for_a_successor() -> None:
    """A call that names its agent after some turns: its stall counts from there."""
    before = [
        *_ticks(0),
        _started("call", 100),
        *_no_goal("call", 1_000),
        *_no_goal("call", 2_000),
        _started("call", 6_000, agent="desk"),
        *_no_goal("call", 6_500),
        *_ticks(8_000),
    ]
    after = [*_ticks(13_000, 14_000, 20_000), *_no_goal("call", 21_000), _ended("call", 29_000)]
    goals = Settings(rules=GoalRules(stall_turns=10**6, stall_ms=10_000), goals_of=AgentsGoals)
    stops, once = published_with(HONEST, before, after, goals)
    assert stops == once


# What is caught. Each of these breaks one rule of a successor.


class BeginsAtEveryTick(LogReader):
    """Takes a tick for a place to begin that says less than is in front of it."""

    def read(self, record: Any) -> Event | Tick | None:
        read = super().read(record)
        if isinstance(read, Tick):
            self.begin = Begin(record.offset, read.known_ms)
        return read


HONEST: Final = Rules()
OF_ALL: Final = Settings()
CLOSED_IN_FRONT: Final = Rules(overlap_ms=0)
"""Knows only those closed calls whose facts came after the known time at the record where it
begins.
"""
WRITES_BEFORE: Final = Rules(place_of=lambda recovery: recovery.place and recovery.place - 1)
"""Goes live one record before the place."""
EVERY_TICK: Final = Rules(reader=BeginsAtEveryTick)


def event_of(key: str, at_ms: int, value: Json, source: InputSource = InputSource.AUDIT) -> Arrival:
    """An event that is logged at once, in ms since the calls began."""
    text = json.dumps({"timestamp": T0_MS + at_ms} | value).encode()
    return Arrival(source, 0, T0_MS + at_ms, key, decode(source, text), text, None)


def _word(key: str, at_ms: int) -> Step:
    return Step("event", event_of(key, at_ms, {"message_type": "user", "value": "Hello"}))


def _no_goal(key: str, at_ms: int) -> list[Step]:
    """A turn in which no subgoal is reached."""
    said = {"user": "bcd", "assistant": "sorry"}
    return [
        Step("event", event_of(key, at_ms + 300 * place, {"message_type": who, "value": text}))
        for place, (who, text) in enumerate(said.items())
    ]


def _started(key: str, at_ms: int, **more: str) -> Step:
    return Step("event", event_of(key, at_ms, {"type": "call_started"} | more, InputSource.PIPECAT))


def _ended(key: str, at_ms: int) -> Step:
    return Step("event", event_of(key, at_ms, {"type": "call_ended"}, InputSource.PIPECAT))


def _ticks(*at_ms: int) -> list[Step]:
    return [Step("tick", number=T0_MS + each) for each in at_ms]


def published_with(
    rules: Rules, before: Sequence[Step], after: Sequence[Step], settings: Settings = OF_ALL
) -> tuple[object, object]:
    """What an owner publishes who reads the first steps, and a successor who reads on; and what one
    does who reads all.
    """
    log = Log([*before, *after])
    first = Owner(log, settings, rules=rules)
    for _ in before:
        first.fold()
        first.partition.close_some()
        first.write()
    first.partition.write_row(is_last=True)
    first.write()
    Owner(log, settings, rules=rules).to_the_end()
    return by_call(log.published), by_call(undisturbed(log, settings))


REFUSED: Final = Step(
    "event",
    replace(event_of("call", 30_100, {"message_type": "user", "value": "Hello"}), value=b"{"),
)
BROKEN: Final[list[tuple[str, Rules, list[Step], list[Step]]]] = [
    (
        "a late record opens a closed call again",
        CLOSED_IN_FRONT,
        [
            *_ticks(0),
            _word("call", 100),
            _ended("call", 200),
            *_ticks(20_000, 40_000),
            _word("other", 40_100),
        ],
        [_word("call", 40_200)],
    ),
    ("a decision is published twice", WRITES_BEFORE, [*_ticks(0), _word("call", 100)], []),
    (
        "a refused record is quarantined twice",
        EVERY_TICK,
        [*_ticks(0, 30_000), REFUSED, Step("succeed")],
        [_word("call", 40_200)],
    ),
]


@pytest.mark.parametrize(
    ("what", "rules", "before", "after"), BROKEN, ids=[what for what, *_ in BROKEN]
)
def test_a_successor_that_breaks_a_rule_is_caught(
    what: str, rules: Rules, before: list[Step], after: list[Step]
) -> None:
    del what
    stops, once = published_with(HONEST, before, after)
    assert stops == once
    stops, once = published_with(rules, before, after)
    assert stops != once


# Silence. It is found between events and a tick, wherever the one or the other ends.

TURNS: Final = 20
OF_LIVE_CALLS: Final = Settings(Limits(max_event_time_skew_ms=0, idle_ms=30_000))
"""Calls are over after half a minute without an event: half of the longest gap between
two ticks.
"""


def _spoken(key: str, begin_ms: int, silence_ms: int) -> list[Step]:
    """A call in which the caller speaks for a second, and the bot after such a silence, again and
    again.
    """
    steps = [_started(key, begin_ms)]
    for turn in range(TURNS):
        at_ms = begin_ms + 8_000 * turn
        for kind, ms in (
            ("user_speech_started", at_ms),
            ("user_speech_stopped", at_ms + 1_000),
            ("bot_speech_started", at_ms + 1_000 + silence_ms),
            ("bot_speech_stopped", at_ms + 2_000 + silence_ms),
        ):
            moment = {
                "type": "speech_event",
                "data": {"kind": kind, "timestamp": (T0_MS + ms) / 1000},
            }
            steps.append(Step("event", event_of(key, ms, moment, InputSource.PIPECAT)))
    return steps


def _time_of(step: Step) -> int:
    return step.number if step.arrival is None else step.arrival.broker_time_ms


@pytest.mark.parametrize("gap_ms", [500, 60_000])
@pytest.mark.parametrize(("silence_ms", "dead_airs"), [(2_900, 0), (3_100, TURNS)])
def test_no_gap_between_ticks_and_no_restart_makes_a_silence(
    gap_ms: int, silence_ms: int, dead_airs: int
) -> None:
    """No call ends in it either. Owners and sequencers end everywhere in between."""
    calls = {"one": 1_000, "two": 2_700, "three": 59_000, "four": 90_000}
    spoken = [
        step for key, begin_ms in calls.items() for step in _spoken(key, begin_ms, silence_ms)
    ]
    ticks = _ticks(*range(0, 260_000, gap_ms))
    steps = sorted([*ticks, *spoken], key=_time_of)
    for place in range(len(steps) - 1, 0, -37):
        steps.insert(place, Step("succeed"))
    log = Log(steps)
    while True:
        owner = Owner(log, OF_LIVE_CALLS)
        if not all(owner.fold() for _ in range(29)):
            break
        owner.partition.close_some()
        owner.write()
        owner.partition.write_row(is_last=True)
        owner.write()
    Owner(log, OF_LIVE_CALLS).to_the_end()
    closed = {each.conversation_id: each for each in closings(log.rows)}
    found = {key: each.dead_airs for key, each in closed.items() if each.dead_airs}
    assert found == (dict.fromkeys(calls, dead_airs) if dead_airs else {})
    last_ms = {
        step.arrival.conversation_id: _time_of(step) for step in spoken if step.arrival is not None
    }
    assert {key: each.known_ms for key, each in closed.items()} == {
        key: at_ms + OF_LIVE_CALLS.limits.idle_ms for key, at_ms in last_ms.items()
    }
