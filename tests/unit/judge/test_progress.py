"""Progress in one partition: a successor finds every answered question answered, every other one
open.
"""

import json
from typing import Any

import pytest
from aiokafka.structs import OffsetAndMetadata
from hypothesis import given
from hypothesis import strategies as st

from consumers.judge.progress import MAX_NOTE_CHARS, MAX_SPAN, AnsweredQuestions

END = 10**6


def progress_from(
    offset: int, note: str = "", *, begin: int = 0, end: int = END
) -> AnsweredQuestions:
    return AnsweredQuestions(OffsetAndMetadata(offset, note), begin, end)


def open_in(progress: AnsweredQuestions, offsets: range) -> list[int]:
    return [offset for offset in offsets if progress.is_open(offset)]


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[int], list[int]]:
    """Where reading starts, the offsets of the questions, and which are answered in which order.
    Some offsets have no question.
    """
    start = draw(st.integers(0, 50))
    gaps = draw(st.lists(st.integers(1, 4), max_size=40))
    offsets = [start + sum(gaps[: place + 1]) - 1 for place in range(len(gaps))]
    answered = draw(st.lists(st.sampled_from(offsets), unique=True)) if offsets else []
    return start, offsets, answered


@given(histories(), st.integers(0, 40), st.integers(0, 250))
def test_a_successor_finds_what_is_open(
    history: tuple[int, list[int], list[int]], readings: int, begin: int
) -> None:
    """However far a former owner has read, in whatever order it answered, and whatever the broker
    has deleted since.
    """
    start, offsets, answered = history
    owner = progress_from(start)
    for offset in offsets:
        assert owner.read(offset)
        assert not owner.is_full(offset + 1)
    for offset in answered:
        owner.answer(offset)
    still_open = sorted(set(offsets) - set(answered))
    assert owner.first == min(still_open, default=offsets[-1] + 1 if offsets else start)

    committed = owner.to_commit(7, {"ava": 0.5})
    successor = AnsweredQuestions(committed, begin, END)
    assert successor.first >= begin
    assert (successor.hour, successor.spent) == (7, {"ava": 0.5})
    again = [offset for offset in offsets if offset >= successor.first]
    assert [offset for offset in again[:readings] if successor.read(offset)] == [
        offset for offset in again[:readings] if offset in still_open
    ]
    # it has read all: what it leaves is the same
    if begin <= committed.offset and len(again) <= readings:
        assert successor.to_commit(7, {"ava": 0.5}) == committed


def test_what_comes_later_is_open() -> None:
    owner = progress_from(3)
    for offset in (3, 4, 6):
        owner.read(offset)
    owner.answer(6)
    successor = AnsweredQuestions(owner.to_commit(0, {}), 0, END)
    assert open_in(successor, range(10)) == [3, 4, 7, 8, 9]  # there is no 5
    assert [successor.read(offset) for offset in (3, 4, 6, 7)] == [True, True, False, True]


def test_an_answer_counts_before_its_question_is_read_again() -> None:
    owner = progress_from(3)
    owner.answer(4)
    owner.answer(3)
    owner.answer(0)  # committed long ago
    assert owner.first == 5
    assert [owner.read(offset) for offset in (3, 4, 5)] == [False, False, True]


good = st.builds(
    lambda bits, hour, spent: json.dumps([f"{bits:x}", hour, spent]),
    st.integers(0, 2**40),
    st.integers(0, 10**6),
    st.dictionaries(st.text(max_size=3), st.floats(0, 10), max_size=2),
)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """Notes of which a part is missing or other than it was, and texts of other programs."""
    note = draw(good)
    cut = draw(st.integers(0, len(note) - 1))
    odd: list[Any] = [
        [],
        {},
        None,
        "",
        [None] * 3,
        ["1f", 1],
        ["1f", 1, {}, 0],
        ["0x1f", 1, {}],
        ["-1", 1, {}],
        ["1_f", 1, {}],
    ]
    odd += [
        ["1f", "one", {}],
        ["1f", 1, {"ava": -1}],
        ["1f", 1, {"ava": float("nan")}],
        ["1f", 1, {"ava": float("inf")}],
    ]
    odd += [["f" * (MAX_SPAN // 4 + 1), 1, {}], [31, 1, {}], ["1F", 1, {}], ["1f\n", 1, {}]]
    return draw(
        st.sampled_from([note[:cut], *map(json.dumps, odd), "1e999", '["\\ud800", 1, {}]'])
        | st.text()
    )


@given(damaged())
def test_a_damaged_or_foreign_note_says_that_nothing_is_answered(note: str) -> None:
    progress = progress_from(5, note)
    assert (progress.first, progress.hour, progress.spent) == (5, 0, {})
    assert open_in(progress, range(200)) == list(range(5, 200))


def test_a_broker_may_have_no_note_at_all() -> None:
    assert open_in(AnsweredQuestions(OffsetAndMetadata(5, None), 0, END), range(10)) == list(
        range(5, 10)
    )


@given(good, st.integers(0, 30))
def test_a_note_says_nothing_about_what_is_not_there_yet(note: str, end: int) -> None:
    progress = progress_from(0, note, end=end)
    assert progress.first <= end
    assert open_in(progress, range(end, 60)) == list(range(end, 60))


@pytest.mark.parametrize(
    ("committed", "first"), [(-1, 4), (3, 4), (4, 4), (9, 9), (10, 4), (10**15, 4)]
)
def test_a_commit_outside_of_the_partition(committed: int, first: int) -> None:
    """Nothing is committed, the questions there are deleted, or the topic was created again."""
    assert progress_from(committed, begin=4, end=9).first == first


def test_a_topic_that_is_created_again_while_it_is_read() -> None:
    progress = progress_from(500)
    assert progress.read(500)
    assert progress.read(501)
    progress.answer(501)
    assert progress.read(2)
    assert progress.to_commit(0, {}).offset == 2
    assert open_in(progress, range(500, 503)) == [500, 501, 502]


def test_the_oldest_open_question_holds_reading_back() -> None:
    progress = progress_from(10)
    assert not progress.is_full(10 + MAX_SPAN), "nothing is open"
    progress.read(10)
    for offset in range(11, 10 + MAX_SPAN):
        assert not progress.is_full(offset)
        assert progress.read(offset)
        progress.answer(offset)
    assert progress.is_full(10 + MAX_SPAN)
    successor = AnsweredQuestions(progress.to_commit(0, {}), 0, END)
    assert open_in(successor, range(10, 12 + MAX_SPAN)) == [10, 10 + MAX_SPAN, 11 + MAX_SPAN]
    progress.answer(10)
    assert not progress.is_full(10 + MAX_SPAN)
    assert progress.first == 10 + MAX_SPAN


def test_a_gap_without_questions_costs_nothing() -> None:
    progress = progress_from(0, end=10**15)
    assert progress.read(10**14)
    assert progress.to_commit(0, {}).offset == 10**14


@given(st.dictionaries(st.text(max_size=256), st.floats(0, 10**6), max_size=100), st.booleans())
def test_a_note_is_short_enough_for_a_broker(spent: dict[str, float], has_whole_span: bool) -> None:
    """Of too many agents, it has those that cost most."""
    progress = progress_from(0)
    progress.read(0)
    if has_whole_span:
        progress.read(MAX_SPAN - 1)
        progress.answer(MAX_SPAN - 1)
    committed = progress.to_commit(7, spent)
    assert committed.metadata.isascii()
    assert len(committed.metadata) <= MAX_NOTE_CHARS
    successor = AnsweredQuestions(committed, 0, END)
    assert successor.spent.items() <= spent.items()
    left_out = [cost for agent, cost in spent.items() if agent not in successor.spent]
    assert not left_out or len(json.dumps(spent)) > MAX_NOTE_CHARS - MAX_SPAN // 4 - 50
    assert max(left_out, default=0.0) <= min(successor.spent.values(), default=10**6)
    assert successor.first == 0
