"""The note beside a committed offset: read back as it was written, and never trusted when it is not ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.evaluator.recall.commit_note import MAX_NOTE_CHARS, CommitNote, SnapshotPlace

EVERYTHING = CommitNote(scores=0, read=0)
OFFSETS = st.integers(0, 2**63 - 1)


@given(OFFSETS, OFFSETS, st.integers(0, 10_000))
def test_a_note_is_read_back_as_it_was_written(scores: int, read: int, takeovers: int) -> None:
    text = CommitNote(scores, read, takeovers).text()
    assert CommitNote.parse(text) == CommitNote(scores, read, takeovers)
    assert len(text) <= MAX_NOTE_CHARS


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="none"),
        pytest.param("{", id="no JSON"),
        pytest.param("[" * MAX_NOTE_CHARS, id="deep"),
        pytest.param("[7, 9]", id="no object"),
        pytest.param("null", id="nothing"),
        pytest.param('"scores"', id="a text"),
        pytest.param('{"scores": 7}', id="half of it"),
        pytest.param('{"scores": "7", "read": 9}', id="a number as text"),
        pytest.param('{"scores": 7.5, "read": 9}', id="no whole number"),
        pytest.param('{"scores": 7, "read": NaN}', id="no number"),
        pytest.param('{"scores": -1, "read": 9}', id="scores below zero"),
        pytest.param('{"scores": 7, "read": -9}', id="read below zero"),
        pytest.param('{"scores": 7, "read": 9}' + " " * MAX_NOTE_CHARS, id="too long"),
    ],
)
def test_with_a_note_that_is_not_ours_everything_is_read(text: str) -> None:
    assert CommitNote.parse(text) == EVERYTHING


@given(st.text(max_size=80))
def test_no_text_at_all_is_an_error(text: str) -> None:
    note = CommitNote.parse(text)
    assert min(note.scores, note.read, note.takeovers) >= 0


def test_what_a_later_version_adds_is_no_reason_to_forget_the_rest() -> None:
    assert CommitNote.parse('{"scores": 7, "read": 9, "more": [1]}') == CommitNote(7, 9)


@pytest.mark.parametrize("takeovers", ['"3"', "-1", "1.5", "null", "NaN"])
def test_a_count_that_is_none_begins_anew(takeovers: str) -> None:
    assert CommitNote.parse(f'{{"scores": 7, "read": 9, "takeovers": {takeovers}}}') == CommitNote(7, 9)


def test_a_note_says_where_the_state_is() -> None:
    note = CommitNote(7, 9, 1, SnapshotPlace(2, 40, 44))
    assert CommitNote.parse(note.text()) == note


@pytest.mark.parametrize(
    "place",
    [
        "null",
        "[]",
        "[2, 40]",
        "[2, 40, 44, 1]",
        '[2, 40, "44"]',
        "[2, -1, 44]",
        "[2, 44, 44]",
        "[2, 44, 40]",
        "7",
        "{}",
    ],
)
def test_a_place_that_is_none_is_left_out(place: str) -> None:
    assert CommitNote.parse(f'{{"scores": 7, "read": 9, "snapshot": {place}}}') == CommitNote(7, 9)
