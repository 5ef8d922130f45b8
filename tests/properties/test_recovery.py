"""Owners of a partition that end anywhere, with what they had not written, publish together what one owner publishes, byte for byte.

An owner is one split of the steps: the next one takes the written steps again, in their order, and goes on with the records that are
left in any other.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from consumers.engine.admission import Arrival
from consumers.engine.effects import Effect, RequestVerdict
from consumers.engine.limits import GoalRules, Limits
from schemas.closed_sets import InputSource, JudgeKind
from schemas.events.codec import decode
from schemas.goals.goal_set import GoalSet
from schemas.judging import Judged, JudgeRequest, JudgeVerdict, Rated, VerdictResult, Votes
from schemas.scores.records import AnyScoreRecord, ClosedFact
from tests.benchmarks.traffic import interleaved, simulated_events
from tests.properties.evaluation import (
    GOALS,
    Subject,
    assert_counted,
    end_of,
    final_state,
    fold,
    fresh,
    outcomes_of,
    run,
    taken_over,
)
from tests.properties.owners import Owner, Settings, Topics, undisturbed, written_by_call
from tests.properties.steered_calls import Order, drawn
from tests.support.calls.wire_calls import arrivals_of
from tests.support.fakes.engine_feed import T0_MS, Json, closings_of, records_of
from tests.support.laws import examples

STEP_MS = 25
MOST_BYTES_AN_EVENT = 3
JUDGED = (JudgeKind.CONCISENESS, JudgeKind.SPEAKABILITY, JudgeKind.CONVERSATION_PROGRESSION, JudgeKind.FAITHFULNESS)


class AgentsGoals:
    """A version of the goal files: one agent's calls have goals, in another order in each version, from when they name it."""

    def __init__(self, version: str) -> None:
        place = len(version) if not version.isdigit() else int(version) % len(GOALS.subgoals)
        subgoals = [*GOALS.subgoals[place:], *GOALS.subgoals[:place]]
        changes = {"subgoals": subgoals, "user_instruction": f"as of {version}"}
        self._goals = GoalSet.model_validate(GOALS.model_dump() | changes)

    def choose(self, goals_id: str | None, agent: str | None) -> GoalSet | None:
        return self._goals if agent == "desk" else None


class Judge:
    """Answers some questions, each behind the records that are on its topic by then, and equal questions equally."""

    def __init__(self, inputs: Mapping[InputSource, list[Arrival]], broker_ms: int) -> None:
        self._verdicts = inputs[InputSource.JUDGE]
        self._broker_ms = broker_ms

    def answer(self, request: JudgeRequest) -> None:
        mind = random.Random(request.request_id).random()  # noqa: S311  # nothing secret
        if mind < 0.3:
            return
        result: VerdictResult = Judged(is_completed=mind > 0.6)
        if request.kind is not JudgeKind.SUBGOAL:
            result = Rated(rating=3, normalised=1.0) if mind > 0.6 else Rated(rating=2, normalised=0.5)
        verdict = JudgeVerdict(
            timestamp=self._broker_ms, request_id=request.request_id, conversation_id=request.conversation_id,
            kind=request.kind, turn=request.turn, subgoal_id=request.subgoal_id, input_hash=request.input_hash,
            prompt_version=request.prompt_version, result=result, votes=Votes(complete=3),
        )  # fmt: skip
        offset = self._verdicts[-1].offset + 1 if self._verdicts else 0
        arrival = Arrival(InputSource.JUDGE, offset, self._broker_ms, request.conversation_id, verdict, b"", None)
        self._verdicts.append(arrival)


_few = st.sampled_from([1_000, 1, 2, 3])
_settings = st.builds(
    Settings,
    limits=st.builds(
        Limits,
        max_event_time_skew_ms=st.just(0),
        max_open_calls=_few,
        max_closed_calls_remembered=_few,
        max_events_per_call=st.sampled_from([10_000, 10_000, 30, 10, 3]),
        max_turns_per_call=st.sampled_from([10_000, 10_000, 2]),
        idle_ms=st.sampled_from([600_000, 30_000, 2_000]),
        closing_grace_ms=st.sampled_from([10_000, 1_000, 0]),
        dead_air_ms=st.sampled_from([3_000, 400, 1]),
        delivery_allowance_ms=st.sampled_from([500, 0]),
    ),
    rules=st.builds(
        GoalRules,
        asks_judge=st.sampled_from([True, True, False]),
        text_judges=st.sampled_from([JUDGED, JUDGED, ()]),
        steady_words_ms=st.sampled_from([0, 0, 1_000]),
        verdict_deadline_ms=st.sampled_from([10**9, 3_000]),
        stall_turns=st.sampled_from([10**6, 1]),
        stall_ms=st.sampled_from([10**12, 2_000]),
    ),
    goals_of=st.just(AgentsGoals),
)


@st.composite
def partitions(draw: st.DrawFn) -> Topics:
    """The records of some calls as one partition has them: with ties, gaps, broker times that step back, and one id of two calls."""
    arrivals: list[Arrival] = []
    for _ in range(draw(st.integers(1, 4))):
        call, order = draw(_calls)
        call["control"] = [draw(_with_agent(each)) for each in call["control"]]
        after_ms = draw(st.sampled_from([0, 0, 3_000, 40_000]))
        key = draw(st.sampled_from(["one", "two", "three", "four"]))
        arrivals += [
            replace(each, conversation_id=key, broker_time_ms=each.broker_time_ms + after_ms)
            for each in arrivals_of(call, order)
        ]
    arrivals.sort(key=lambda each: each.broker_time_ms)
    ties_ms = draw(st.sampled_from([1, 50, 2_000]))
    back_ms = draw(st.lists(st.sampled_from([0, 0, 0, 700, 60_000]), min_size=1, max_size=5))
    gaps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 300]), min_size=1, max_size=4))
    offsets = dict.fromkeys(InputSource, -1)
    log: list[Arrival] = []
    for place, each in enumerate(arrivals):
        offsets[each.source] += gaps[place % len(gaps)]
        broker_ms = each.broker_time_ms // ties_ms * ties_ms - back_ms[place % len(back_ms)]
        log.append(replace(each, offset=offsets[each.source], broker_time_ms=broker_ms))
    topics = Topics.of(log)
    topics.answers = Judge(topics.inputs, max(each.broker_time_ms for each in log)).answer
    return topics


def _with_agent(event: Json) -> st.SearchStrategy[Json]:
    """The event; one that a call has started may name the agent, and another of the same call may not."""
    named = {"agent": "desk"} if event["type"] == "call_started" else {}
    return st.sampled_from([event | named, event])


@st.composite
def _drawn(draw: st.DrawFn) -> tuple[Json, Order]:
    return drawn(draw(st.data()))


_calls = _drawn()
Steps = Sequence[tuple[str, int, int | None]]


def _steps_with(pauses_ms: Sequence[int]) -> st.SearchStrategy[Steps]:
    """Steps of an owner; time passes as far as the hindmost or the foremost input is read, and such a pause."""
    folds = st.tuples(st.just("fold"), st.integers(0, 3), st.sampled_from([1, 2, 8]))
    passes = st.tuples(st.just("pass"), st.booleans(), st.sampled_from(pauses_ms))
    closes = st.tuples(st.just("close"), st.just(0), st.just(0))
    writes = st.tuples(st.just("write"), st.booleans(), st.sampled_from([1, 2, None]))
    notes = st.tuples(st.just("note"), st.just(0), st.just(0))
    return st.lists(st.one_of(folds, folds, passes, closes, writes, notes), max_size=30)


_any_steps = _steps_with([0, 0, 1, 1_000, 20_000, 10**7, -30_000])
_steps_within_the_log = _steps_with([0])


def _lives(owner: Owner, steps: Steps) -> None:
    """An owner takes steps, and writes some of its decisions."""
    read_ms: dict[InputSource, int] = {}
    for what, which, number in steps:
        if what == "fold":
            for _ in range(number or 0):
                if owner.unread:
                    arrival = owner.unread[which % len(owner.unread)]
                    read_ms[arrival.source] = arrival.broker_time_ms
                    owner.fold(arrival)
        elif what == "pass":
            times_ms = read_ms.values() or [T0_MS]
            owner.pass_time((max(times_ms) if which else min(times_ms)) + (number or 0))
        elif what == "close":
            owner.close_some()
        elif what == "write":
            owner.write(number, starts=bool(which))
        else:
            owner.write_steps()


def _owned(data: st.DataObject, topics: Topics, settings: Settings, *, begins_late: bool) -> None:
    """Some owners after each other, of which the last reads and writes everything."""
    for number in range(data.draw(st.integers(1, 4))):
        since = topics.newest_start() if begins_late else 0
        _lives(Owner(topics, settings, str(number), since), data.draw(_any_steps))
    since = topics.newest_start() if begins_late else 0
    Owner(topics, settings, "last", since).to_the_end()


def _lives_of(effects: Sequence[Effect]) -> list[list[AnyScoreRecord]]:
    """The records of each life of each call, from its opening to its `closed` fact."""
    lives: list[list[AnyScoreRecord]] = []
    current: dict[str, list[AnyScoreRecord]] = {}
    for record in records_of(effects):
        current.setdefault(record.conversation_id, []).append(record)
        if isinstance(record, ClosedFact):
            lives.append(current.pop(record.conversation_id))
    return [*lives, *current.values()]


def _assert_once(effects: Sequence[Effect]) -> None:
    for life in _lives_of(effects):
        assert [record.name for record in life].count("closed") == 1, "every call closes once"
        assert life[-1].name == "closed"
        ids = [record.record_id for record in life]
        assert len(set(ids)) == len(ids), "no record comes twice"
        last: dict[Subject, int] = {}
        for record in life:
            subject = (record.name, record.turn, record.index)
            assert record.revision > last.get(subject, 0), "revisions grow"
            last[subject] = record.revision


@examples(times=5)
@given(partitions(), _settings, st.data())
def test_owners_publish_together_what_one_owner_publishes_byte_for_byte(
    topics: Topics, settings: Settings, data: st.DataObject
) -> None:
    _owned(data, topics, settings, begins_late=False)
    expected = undisturbed(topics, settings)
    evictions = sum(closing.records[-1].reason == "limit_open_calls" for closing in closings_of(expected))  # type: ignore[union-attr]  # the fact
    event(f"{min(evictions, 2)} evictions or more")
    event(f"{min(3, sum(isinstance(each, RequestVerdict) for each in expected))} questions or more")
    assert written_by_call(topics.published) == written_by_call(expected)
    _assert_once(topics.published)


@examples(times=3)
@given(partitions(), _settings, st.data())
def test_an_owner_may_begin_to_read_the_order_behind_the_calls_that_closed(
    topics: Topics, settings: Settings, data: st.DataObject
) -> None:
    """It no longer knows which calls closed before, so a late record may open one again: as the order says from then on."""
    _owned(data, topics, settings, begins_late=True)
    assert written_by_call(topics.published) == written_by_call(undisturbed(topics, settings, obeys=True))
    _assert_once(topics.published)


@examples(times=1.5)
@given(st.data())
def test_what_is_written_in_the_end_is_what_an_undisturbed_evaluator_writes(data: st.DataObject) -> None:
    """Whichever records each owner read first."""
    call, order = drawn(data, updates=False)
    # Of two reasons that contradict each other on two topics the last to arrive counts, which is a matter of arrival.
    call["control"] = [event | ({"reason": "goodbye"} if "reason" in event else {}) for event in call["control"]]
    # The log goes on evenly and ends within the closing grace: events after the close of a call do not count, and
    # how much of it was read before depends on the order of the topics.
    arrivals = [
        replace(arrival, broker_time_ms=T0_MS + place * STEP_MS)
        for place, arrival in enumerate(arrivals_of(call, order))
    ]
    topics = Topics.of(arrivals)
    for number in range(data.draw(st.integers(1, 3))):
        _lives(Owner(topics, Settings(), str(number)), data.draw(_steps_within_the_log))
    Owner(topics, Settings()).to_the_end()
    expected = run(arrivals)
    assert_counted(records_of(topics.published))
    assert [closing.transcript for closing in closings_of(topics.published)] == [
        closing.transcript for closing in closings_of(expected)
    ]
    assert final_state(topics.published) == final_state(expected)


@given(st.data())
def test_a_call_that_was_closed_is_not_opened_again(data: st.DataObject) -> None:
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    topics = Topics.of(arrivals)
    Owner(topics, Settings()).to_the_end()
    published = list(topics.published)
    for some in topics.inputs.values():
        some += [replace(arrival, offset=arrival.offset + len(some)) for arrival in some]
    again = Owner(topics, Settings())
    assert again.evaluator.open_calls == ()
    assert len(again.unread) > 0
    again.to_the_end()
    assert topics.published == published
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
    assert after.low_watermarks() == before.low_watermarks()
    assert after.context(str(call["id"])) == before.context(str(call["id"]))
    assert after.advance(end_of(arrivals)) == before.advance(end_of(arrivals))


def test_the_order_of_usual_calls_costs_three_bytes_an_event_at_most() -> None:
    """With all that is in it: openings, times, closings and goals, and a start every ten seconds."""
    calls = [simulated_events(seed, T0_MS + 4_000 * seed) for seed in range(40)]
    traffic = interleaved(calls)
    topics = Topics.of(
        Arrival(source, each.offset, each.timestamp, each.key.decode(), decode(source, each.value), each.value, None)
        for source, each in traffic
    )
    owner = Owner(topics, Settings())
    written_s = 0
    for source, each in traffic:
        if each.timestamp // 1_000 > written_s:
            written_s = each.timestamp // 1_000
            owner.write(starts=written_s % 10 == 0)
        wakeup_ms = owner.evaluator.next_wakeup()
        if wakeup_ms is not None and wakeup_ms <= each.timestamp:
            owner.pass_time(each.timestamp)
        owner.close_some()
        (arrival,) = (arrival for arrival in owner.unread if arrival.source is source)
        owner.fold(arrival)
    owner.to_the_end()
    assert len(closings_of(topics.published)) == len(calls)
    size = sum(len(value) + sum(len(start) for _, start in headers) for headers, value in topics.order)
    assert size / len(traffic) <= MOST_BYTES_AN_EVENT, f"{size / len(traffic):.2f} bytes"
