"""Owners of a partition that end anywhere, with what they had not written, publish together what one owner publishes, byte for byte.

An owner is one split of the steps: the next one takes the written steps again, in their order, and goes on with the records that are
left in any other.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from consumers.engine.admission import Arrival
from schemas.closed_sets import JudgeKind
from schemas.events.codec import decode
from schemas.judging import JudgeRequest
from schemas.scores.records import AnyScoreRecord, ClosedFact
from schemas.transcript import Transcript
from tests.benchmarks.traffic import interleaved, simulated_events
from tests.properties.evaluation import (
    Subject,
    assert_counted,
    end_of,
    final_state,
    final_values,
    fold,
    fresh,
    outcomes_of,
    run,
    taken_over,
)
from tests.properties.owners import Owner, Settings, Topics, acts, by_call, undisturbed
from tests.properties.partitions import partitions, settings
from tests.properties.steered_calls import drawn
from tests.support.calls.wire_calls import arrivals_of
from tests.support.fakes.engine_feed import T0_MS, closings_of
from tests.support.laws import examples

STEP_MS = 25
MOST_BYTES_AN_EVENT = 3
JUDGED = (JudgeKind.CONCISENESS, JudgeKind.SPEAKABILITY, JudgeKind.CONVERSATION_PROGRESSION, JudgeKind.FAITHFULNESS)


def _owned(data: st.DataObject, topics: Topics, settings: Settings, *, begins_late: bool) -> None:
    """Some owners after each other, of which the last reads and writes everything."""
    for number in range(data.draw(st.integers(1, 4))):
        owner = Owner(topics, settings, str(number), since=topics.newest_start() if begins_late else None)
        owner.live(data.draw(acts()))
    Owner(topics, settings, "last", since=topics.newest_start() if begins_late else None).to_the_end()


def _lives_of(records: Iterable[AnyScoreRecord]) -> list[list[AnyScoreRecord]]:
    """The records of each life of each call, from its opening to its `closed` fact."""
    lives: list[list[AnyScoreRecord]] = []
    current: dict[str, list[AnyScoreRecord]] = {}
    for record in records:
        current.setdefault(record.conversation_id, []).append(record)
        if isinstance(record, ClosedFact):
            lives.append(current.pop(record.conversation_id))
    return [*lives, *current.values()]


def _assert_once(topics: Topics) -> None:
    for life in _lives_of(topics.scores):
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
@given(partitions(), settings, st.data())
def test_owners_publish_together_what_one_owner_publishes_byte_for_byte(
    topics: Topics, settings: Settings, data: st.DataObject
) -> None:
    _owned(data, topics, settings, begins_late=False)
    expected = undisturbed(topics, settings)
    evictions = sum(isinstance(each, ClosedFact) and each.reason == "limit_open_calls" for each in expected)
    event(f"{min(evictions, 2)} evictions or more")
    event(f"{min(3, sum(isinstance(each, JudgeRequest) for each in expected))} questions or more")
    assert by_call(topics.published) == by_call(expected)
    _assert_once(topics)


@examples(times=3)
@given(partitions(), settings, st.data())
def test_an_owner_may_begin_to_read_the_order_behind_the_calls_that_closed(
    topics: Topics, settings: Settings, data: st.DataObject
) -> None:
    """It no longer knows which calls closed before, so a late record may open one again: as the order says from then on."""
    _owned(data, topics, settings, begins_late=True)
    assert by_call(topics.published) == by_call(undisturbed(topics, settings, obeys=True))
    _assert_once(topics)


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
        Owner(topics, Settings(), str(number)).live(data.draw(acts(pauses_ms=[0])))
    Owner(topics, Settings()).to_the_end()
    expected = run(arrivals)
    assert_counted(topics.scores)
    transcripts = [each.value for each in topics.published if isinstance(each, Transcript)]
    assert transcripts == [closing.transcript for closing in closings_of(expected)]
    assert final_values(topics.scores) == final_state(expected)


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
            owner.partition.advance(each.timestamp)
        owner.partition.close_some()
        (arrival,) = (arrival for arrival in owner.unread if arrival.source is source)
        owner.fold(arrival)
    owner.to_the_end()
    assert sum(isinstance(each, ClosedFact) for each in topics.scores) == len(calls)
    size = sum(len(each.value) + sum(len(start) for _, start in each.headers) for each in topics.order)
    assert size / len(traffic) <= MOST_BYTES_AN_EVENT, f"{size / len(traffic):.2f} bytes"
