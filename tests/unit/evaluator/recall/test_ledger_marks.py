"""From where a successor reads `scores`: late enough to be short, and never after anything that it must know."""

from collections.abc import Mapping
from typing import Literal, NamedTuple
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from consumers.evaluator.recall import ledger_marks
from consumers.evaluator.recall.ledger_marks import MARK_EVERY_MS, MAX_MARKS, LedgerMarks, Mark

OVERLAP_MS = 900_000


def marks_at(*positions: int, overlap_ms: int = OVERLAP_MS) -> LedgerMarks:
    """A mark for every ten seconds, the topic `a` read up to these positions; scores are at ten times that."""
    marks = LedgerMarks(Mark(0, {"a": positions[0]}, positions[0] * 10), overlap_ms)
    for place, position in enumerate(positions[1:], 1):
        marks.note(Mark(place * MARK_EVERY_MS, {"a": position}, position * 10))
    return marks


def test_nothing_is_left_out_that_closed_less_than_the_overlap_before_what_is_read() -> None:
    places = OVERLAP_MS // MARK_EVERY_MS
    marks = marks_at(*range(1, places + 4))
    assert marks.start_for({"a": places}) == 10
    assert marks.start_for({"a": places + 1}) == 10  # read that far exactly the overlap after the first mark
    assert marks.start_for({"a": places + 2}) == 20
    assert marks.start_for({"a": 99_999}) == 30  # the next record is read later than the last mark


def test_the_overlap_is_counted_from_where_reading_begins_and_not_from_now() -> None:
    """A call closed at 0:00 (scores@50). Another begins at offset 10 at 0:30, and goes on for an hour. At 1:00 a late
    record of the first comes, and is read again by an owner that begins at 10: the closing must be known then."""
    marks = LedgerMarks(Mark(-60_000, {"a": 0}, 0), OVERLAP_MS)
    marks.note(Mark(15_000, {"a": 9}, 51))
    for second in range(30, 3_600, 10):
        marks.note(Mark(second * 1_000, {"a": 1_000 + second}, 100 + second))
        assert marks.start_for({"a": 10}) <= 50


def test_nothing_is_left_out_that_belongs_to_what_is_read_again() -> None:
    marks = marks_at(10, 20, 30, 40, overlap_ms=0)
    assert marks.start_for({"a": 9}) == 100
    assert marks.start_for({"a": 19}) == 100
    assert marks.start_for({"a": 20}) == 200
    assert marks.start_for({"a": 39}) == 300
    assert marks.start_for({"a": 40}) == 400


def test_every_topic_must_be_read_that_far() -> None:
    marks = LedgerMarks(Mark(0, {"a": 0, "b": 0}, 0), 0)
    marks.note(Mark(MARK_EVERY_MS, {"a": 10, "b": 10}, 70))
    assert marks.start_for({"a": 10, "b": 9}) == 0
    assert marks.start_for({"a": 9, "b": 10}) == 0
    assert marks.start_for({"a": 10, "b": 10}) == 70


def test_marks_are_not_closer_than_they_need_to_be() -> None:
    marks = LedgerMarks(Mark(0, {"a": 0}, 0), 0)
    marks.note(Mark(MARK_EVERY_MS - 1, {"a": 1}, 10))
    assert marks.start_for({"a": 1}) == 0
    marks.note(Mark(MARK_EVERY_MS, {"a": 2}, 20))
    assert marks.start_for({"a": 2}) == 20


def test_a_clock_that_steps_back_makes_no_marks() -> None:
    marks = LedgerMarks(Mark(50 * MARK_EVERY_MS, {"a": 0}, 0), 0)
    marks.note(Mark(MARK_EVERY_MS, {"a": 5}, 50))
    assert marks.start_for({"a": 5}) == 0


def test_the_marks_of_a_call_that_never_ends_are_bounded() -> None:
    marks = marks_at(*range(3 * MAX_MARKS), overlap_ms=0)
    assert len(marks._marks) <= MAX_MARKS
    assert marks.start_for({"a": 0}) == 0
    start = marks.start_for({"a": 3 * MAX_MARKS})
    assert 3 * MAX_MARKS - 8 <= start / 10 < 3 * MAX_MARKS  # the last one, or one of the few before it


class Step(NamedTuple):
    """The next event, and its delay after the step before."""

    after_ms: int
    what: Literal["record", "close", "write", "commit"]
    topic: Literal["a", "b"]
    call: int


class Late(NamedTuple):
    """A record of a call that had closed some time before."""

    topic: str
    offset: int
    call: int
    closed_for_ms: int


class Written(NamedTuple):
    """A record of `scores`."""

    offset: int
    call: int
    is_closing: bool


class History:
    """A partition in small: records come, each is scored, calls close, scores are written in transactions."""

    def __init__(self, overlap_ms: int) -> None:
        self.now_ms = 0
        self.next_offsets = {"a": 0, "b": 0}
        self.firsts: dict[int, dict[str, int]] = {}
        """Of open calls."""
        self.lasts: dict[int, dict[str, int]] = {}
        """Of closed calls: the last record that counted."""
        self.closed_ms: dict[int, int] = {}
        self.late: list[Late] = []
        self.outbox: list[tuple[int, bool]] = []
        self.scores: list[Written] = []
        self.scores_end = 0
        self.overlap_ms = overlap_ms
        self.marks = LedgerMarks(Mark(0, dict(self.next_offsets), 0), overlap_ms)
        self._read: dict[int, dict[str, int]] = {}

    def take(self, step: Step) -> None:
        self.now_ms += step.after_ms
        if step.what == "record":
            self._record(step.topic, step.call)
        elif step.what == "close" and step.call in self.firsts:
            del self.firsts[step.call]
            self.lasts[step.call] = self._read[step.call]
            self.closed_ms[step.call] = self.now_ms
            self.outbox.append((step.call, True))
        elif step.what == "write":
            self.scores += [Written(self.scores_end + place, *record) for place, record in enumerate(self.outbox)]
            self.scores_end += len(self.outbox) + bool(self.outbox)  # and the end of the transaction
            self.outbox.clear()
        elif step.what == "commit":
            # The scores behind a commit are not always written yet; they are before the commit is made.
            self.marks.note(Mark(self.now_ms, dict(self.next_offsets), self.scores_end))

    def _record(self, topic: str, call: int) -> None:
        offset = self.next_offsets[topic]
        self.next_offsets[topic] = offset + 1
        if call in self.lasts:
            self.late.append(Late(topic, offset, call, self.now_ms - self.closed_ms[call]))
        else:
            self.firsts.setdefault(call, {}).setdefault(topic, offset)
            self._read.setdefault(call, {})[topic] = offset
            self.outbox.append((call, False))

    def watermarks(self) -> Mapping[str, int]:
        return {
            topic: min([offset, *(firsts[topic] for firsts in self.firsts.values() if topic in firsts)])
            for topic, offset in self.next_offsets.items()
        }

    def must_be_known(self) -> list[Written]:
        """Scores that a successor would publish again if it did not read them."""
        watermarks = self.watermarks()
        again = {
            call
            for call, lasts in self.lasts.items()
            if any(offset >= watermarks[topic] for topic, offset in lasts.items())
        }
        again |= {
            late.call
            for late in self.late
            if late.offset >= watermarks[late.topic] and late.closed_for_ms < self.overlap_ms
        }
        return [each for each in self.scores if each.call in self.firsts or (each.is_closing and each.call in again)]


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from([0, 1, MARK_EVERY_MS, 60_000, OVERLAP_MS]),
        st.sampled_from(["record", "record", "record", "close", "write", "commit", "commit"]),
        st.sampled_from(["a", "b"]),
        st.integers(0, 5),
    ),
    max_size=60,
)


@given(STEPS, st.sampled_from([0, 60_000, OVERLAP_MS]), st.sampled_from([2, 5, MAX_MARKS]))
@example(  # a call that closes in the middle of the records read again, with marks before and after it
    [
        Step(0, "record", "a", 0), Step(0, "record", "a", 1), Step(0, "write", "a", 0),
        Step(MARK_EVERY_MS, "commit", "a", 0), Step(0, "record", "a", 1), Step(0, "close", "a", 1),
        Step(0, "write", "a", 0), Step(MARK_EVERY_MS, "commit", "a", 0), Step(OVERLAP_MS, "commit", "a", 0),
    ], 0, MAX_MARKS,
)  # fmt: skip
@example(  # a late record of a closed call behind the first of a call that lasts for longer than the overlap
    [
        Step(0, "record", "a", 0), Step(0, "close", "a", 0), Step(0, "write", "a", 0),
        Step(MARK_EVERY_MS, "commit", "a", 0), Step(MARK_EVERY_MS, "record", "a", 1), Step(0, "record", "a", 0),
        Step(OVERLAP_MS, "commit", "a", 0),
    ], OVERLAP_MS, MAX_MARKS,
)  # fmt: skip
def test_whatever_happens_nothing_that_a_successor_must_know_is_left_out(
    steps: list[Step], overlap_ms: int, max_marks: int
) -> None:
    with mock.patch.object(ledger_marks, "MAX_MARKS", max_marks):
        history = History(overlap_ms)
        for step in steps:
            history.take(step)
            if step.what == "commit":
                start = history.marks.start_for(history.watermarks())
                missed = [each for each in history.must_be_known() if each.offset < start]
                assert not missed, f"reading from {start}"


@pytest.mark.parametrize("overlap_ms", [0, OVERLAP_MS])
def test_what_a_successor_need_not_know_is_left_out(overlap_ms: int) -> None:
    history = History(overlap_ms)
    for call in range(1_000):
        for what in ("record", "close", "write", "commit"):
            history.take(Step(MARK_EVERY_MS if what == "record" else 0, what, "a", call))
    start = history.marks.start_for(history.watermarks())
    # Each call takes ten seconds and three offsets, the end of its transaction included.
    assert history.scores_end - start <= 3 * (overlap_ms // MARK_EVERY_MS + 1)
