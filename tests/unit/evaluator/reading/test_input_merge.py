"""The order of a poll's records, and records that wait for an input that lags."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from consumers.evaluator.reading import InputMerge, in_time_order, runs_by_partition


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
