"""The clock by which a partition judges silence, and how far records may be folded."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.evaluator.reading import (
    PATIENCE_MS,
    SILENT_MS,
    STALE_MS,
    End,
    InputMerge,
    InputProgress,
    broker_time_ms,
    in_order_until_ms,
    in_time_order,
    lag_ms,
    runs_by_partition,
)
from consumers.runtime.kafka.log_ends import LogEnd

NOW_MS = 1_790_000_000_000


def at_end(answered_at_ms: int = NOW_MS, last_record_ms: int | None = None) -> InputProgress:
    return InputProgress(7, 7, answered_at_ms, answered_at_ms, last_record_ms, NOW_MS - 60_000, NOW_MS, is_paused=False)


def lagging(last_record_ms: int | None, position: int = 3, end: int = 7) -> InputProgress:
    return InputProgress(position, end, NOW_MS, NOW_MS, last_record_ms, NOW_MS - 60_000, NOW_MS, is_paused=False)


UNKNOWN = InputProgress(0, 0, None, None, None, NOW_MS, NOW_MS, is_paused=False)


@pytest.mark.parametrize(
    ("inputs", "expected_ms"),
    [
        pytest.param([at_end(), at_end(), at_end(), at_end()], NOW_MS, id="all read to the end: the broker's word"),
        pytest.param([at_end(), at_end(NOW_MS - 400)], NOW_MS - 400, id="the oldest word counts"),
        pytest.param([at_end(), lagging(NOW_MS - 9_000)], NOW_MS - 9_000, id="a backlog is no silence"),
        pytest.param(
            [lagging(NOW_MS - 9_000), lagging(NOW_MS - 70_000), at_end()], NOW_MS - 70_000, id="the hindmost counts"
        ),
        pytest.param([at_end(), lagging(None)], None, id="nothing read yet of an input that has something"),
        pytest.param([at_end(), UNKNOWN], None, id="the broker has not spoken"),
        pytest.param(
            [lagging(NOW_MS + 5_000), at_end()], NOW_MS, id="a producer's clock that is ahead changes nothing"
        ),
        pytest.param([at_end(NOW_MS - 90_000), at_end()], NOW_MS - 90_000, id="a broker that is down is no silence"),
        pytest.param([], None, id="no inputs"),
    ],
)
def test_broker_time_is_where_the_hindmost_input_is(inputs: list[InputProgress], expected_ms: int | None) -> None:
    assert broker_time_ms(inputs) == expected_ms


LONG_AGO_MS = NOW_MS - PATIENCE_MS - 1


@pytest.mark.parametrize(
    ("inputs", "since_ms", "expected_ms"),
    [
        pytest.param([at_end(), at_end(NOW_MS - SILENT_MS)], NOW_MS, None, id="none lags: nobody waits"),
        pytest.param([at_end(), lagging(NOW_MS - 9_000)], NOW_MS, NOW_MS - 9_000, id="one lags: the others wait"),
        pytest.param([at_end(), lagging(None)], NOW_MS, 0, id="nothing read yet of an input that has something"),
        pytest.param([at_end(), None], NOW_MS - PATIENCE_MS, 0, id="an input is not known yet"),
        pytest.param([at_end(), UNKNOWN], NOW_MS, 0, id="the broker has not spoken yet"),
        pytest.param([at_end(), None, UNKNOWN], LONG_AGO_MS, None, id="it has not for too long"),
        pytest.param(
            [at_end(), UNKNOWN._replace(last_record_ms=NOW_MS - 9)], NOW_MS, NOW_MS - 9, id="it has only shown records"
        ),
        pytest.param(
            [at_end(NOW_MS - SILENT_MS - 1), at_end()], NOW_MS, NOW_MS - 1, id="an input is silent: up to its last word"
        ),
        pytest.param([at_end(LONG_AGO_MS), at_end()], NOW_MS, None, id="it is silent for too long"),
        pytest.param(
            [at_end(LONG_AGO_MS, NOW_MS - 9)._replace(is_paused=True)], NOW_MS, NOW_MS - 9, id="we do not ask it"
        ),
        pytest.param(
            [at_end(), lagging(NOW_MS - 9_000)._replace(moved_at_ms=NOW_MS - PATIENCE_MS)],
            NOW_MS,
            NOW_MS - 9_000,
            id="one lags and hands nothing over: the others wait",
        ),
        pytest.param(
            [at_end(), lagging(NOW_MS - 9_000)._replace(moved_at_ms=LONG_AGO_MS)],
            NOW_MS,
            None,
            id="it has handed nothing over for too long",
        ),
        pytest.param(
            [lagging(NOW_MS - 50), lagging(NOW_MS - 9_000)._replace(moved_at_ms=LONG_AGO_MS)],
            NOW_MS,
            NOW_MS - 50,
            id="another one that lags is waited for still",
        ),
    ],
)
def test_up_to_where_records_are_folded_in_order(
    inputs: list[InputProgress | None], since_ms: int, expected_ms: int | None
) -> None:
    assert in_order_until_ms(inputs, since_ms, NOW_MS) == expected_ms


SOME_TIME = st.none() | st.integers(NOW_MS - 2 * PATIENCE_MS, NOW_MS)
ENDS = st.builds(
    End.or_of_log,
    st.builds(End, st.integers(0, 3), SOME_TIME, st.just(NOW_MS)),
    st.none() | st.just(LogEnd(2, NOW_MS - 50)),
    st.integers(0, 3),
)


@given(
    st.lists(st.tuples(ENDS, st.integers(0, 3), SOME_TIME, st.booleans()), min_size=1, max_size=4),
    st.integers(NOW_MS - 2 * PATIENCE_MS, NOW_MS),
)
def test_time_never_passes_beyond_records_that_wait(
    inputs: list[tuple[End, int, int | None, bool]], since_ms: int
) -> None:
    progresses = [
        InputProgress(position, *end, last_record_ms, since_ms, NOW_MS, is_paused)
        for end, position, last_record_ms, is_paused in inputs
    ]
    known_ms = broker_time_ms(progresses)
    until_ms = in_order_until_ms(progresses, since_ms, NOW_MS)
    assert known_ms is None or until_ms is None or known_ms <= until_ms


@pytest.mark.parametrize(
    ("progress", "caught_up_at_ms", "expected_ms"),
    [
        pytest.param(at_end(), NOW_MS, 0, id="nothing outstanding"),
        pytest.param(lagging(NOW_MS - 9_000), None, 9_000, id="since the last record"),
        pytest.param(lagging(NOW_MS - 900_000), NOW_MS - 100, 100, id="not since a record of a quiet topic long ago"),
        pytest.param(lagging(None), None, 60_000, id="nothing read yet: since reading began"),
        pytest.param(lagging(NOW_MS + 50), None, 0, id="never below zero"),
        pytest.param(UNKNOWN._replace(since_ms=NOW_MS - 20), None, 20, id="the broker has not spoken yet"),
        pytest.param(at_end(NOW_MS - STALE_MS), NOW_MS - STALE_MS, 0, id="the broker spoke just now"),
        pytest.param(at_end(NOW_MS - STALE_MS - 1), NOW_MS, STALE_MS + 1, id="the broker is silent"),
    ],
)
def test_lag_in_time(progress: InputProgress, caught_up_at_ms: int | None, expected_ms: int) -> None:
    assert lag_ms(progress, caught_up_at_ms, NOW_MS) == expected_ms


VISIBLE = End(7, NOW_MS - 100, NOW_MS)


@pytest.mark.parametrize(
    ("log_end", "expected"),
    [
        pytest.param(None, End(7, None, None), id="the leader has not spoken: nobody knows the end"),
        pytest.param(LogEnd(7, NOW_MS - 40), End(7, NOW_MS - 40, NOW_MS - 40), id="readers see all there is"),
        pytest.param(LogEnd(9, NOW_MS - 40), End(9, NOW_MS - 40, NOW_MS - 40), id="two are not visible yet"),
        pytest.param(LogEnd(4, NOW_MS - 40), End(7, NOW_MS - 40, NOW_MS - 40), id="more came since it was asked"),
    ],
)
def test_of_an_input_with_replicas_the_leader_knows_the_end(log_end: LogEnd | None, expected: End) -> None:
    assert VISIBLE.or_of_log(log_end, visible_end=7) == expected


@pytest.mark.parametrize("asked_at_ms", [NOW_MS - 40, NOW_MS - 150, NOW_MS + 10])
def test_what_a_transaction_hides_is_not_written_yet_as_long_as_the_one_who_says_so_leads(asked_at_ms: int) -> None:
    expected = End(7, min(NOW_MS - 100, asked_at_ms), min(NOW_MS, asked_at_ms))
    assert VISIBLE.or_of_log(LogEnd(12, asked_at_ms), visible_end=9) == expected


def test_lag_in_records() -> None:
    assert lagging(None, position=3, end=7).lag_messages == 4
    assert lagging(None, position=9, end=7).lag_messages == 0  # a transaction's marker lies behind the last record


# The order of a poll's records, and records that wait for an input that lags.


class Record(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int
    value: bytes = b"{}"


def run(topic: str, *timestamps: int, partition: int = 0) -> list[Record]:
    return [Record(topic, partition, offset, timestamp) for offset, timestamp in enumerate(timestamps)]


def test_a_poll_is_split_by_partition_number_and_topic() -> None:
    polled = (*run("a", 1, 2), *run("b", 3), *run("a", 4, partition=1), *run("c", 5))
    assert runs_by_partition(polled) == {
        0: [tuple(run("a", 1, 2)), tuple(run("b", 3)), tuple(run("c", 5))],
        1: [tuple(run("a", 4, partition=1))],
    }
    assert runs_by_partition(()) == {}


def test_topics_are_merged_by_the_brokers_time() -> None:
    merged = in_time_order([run("a", 1, 4, 4, 9), run("b", 2, 4), run("c", 0)])
    assert [(record.topic, record.timestamp) for record in merged] == [
        ("c", 0), ("a", 1), ("b", 2), ("a", 4), ("a", 4), ("b", 4), ("a", 9),
    ]  # fmt: skip


def test_a_clock_that_steps_back_does_not_reorder_its_topic() -> None:
    merged = in_time_order([run("a", 10, 3, 12), run("b", 5, 11)])
    assert [(record.topic, record.timestamp) for record in merged] == [
        ("b", 5),
        ("a", 10),
        ("a", 3),
        ("b", 11),
        ("a", 12),
    ]


def test_one_topic_is_handed_on_as_it_is() -> None:
    only = run("a", 3, 1, 2)
    assert in_time_order([only]) is only


@given(st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=8), min_size=1, max_size=4))
def test_merging_loses_nothing_and_keeps_every_topics_order(timestamps: list[list[int]]) -> None:
    runs = [run(str(number), *times) for number, times in enumerate(timestamps)]
    merged = in_time_order(runs)
    assert sorted(merged) == sorted(record for each in runs for record in each)
    for number, each in enumerate(runs):
        assert [record for record in merged if record.topic == str(number)] == each
    if all(times == sorted(times) for times in timestamps):
        assert [record.timestamp for record in merged] == sorted(record.timestamp for record in merged)


RUNS = st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 20), min_size=1, max_size=8))


@given(st.lists(RUNS, max_size=4), st.lists(st.none() | st.integers(0, 20), max_size=4), st.none() | st.integers(0, 12))
def test_records_that_wait_are_let_through_once_in_order_and_as_far_as_they_may(
    polls: list[dict[str, list[int]]], until_ms: list[int | None], stop: int | None
) -> None:
    merge = InputMerge()
    reached = dict.fromkeys("abc", 0)
    let_through: list[Record] = []
    for poll, until in zip(polls, until_ms, strict=False):
        runs = [
            [Record(topic, 0, reached[topic] + place, time_ms) for place, time_ms in enumerate(times)]
            for topic, times in poll.items()
        ]
        merge.put(runs)
        reached |= {each[0].topic: each[-1].offset + 1 for each in runs}
        stops = None if stop is None else dict.fromkeys("abc", stop)
        came = list(merge.let_through(until, stops))
        assert until is None or all(record.timestamp <= until for record in came)
        assert stop is None or all(record.offset < stop for record in came)
        let_through += came
        for topic in "abc":
            offsets = [record.offset for record in let_through if record.topic == topic]
            assert offsets == list(range(len(offsets))), "each topic in its order, nothing left out"
            assert merge.waits(topic) == (len(offsets) < reached[topic])
            assert merge.first_offset(topic) == (len(offsets) if merge.waits(topic) else -1)
    assert merge.waiting_records == sum(reached.values()) - len(let_through)
    if stop is None:
        assert len(let_through) + len(merge.let_through(None)) == sum(reached.values())
