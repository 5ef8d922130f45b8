"""The journal of a partition: its pieces, joined, are the steps up to the last written record, whenever the writes came."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.evaluator.recall import journal as journals
from consumers.evaluator.recall.journal import Journal
from consumers.evaluator.recall.journal_piece import CLOSE_SOME, PIECE_HEADER, STEPS_HEADER, Piece, Step, piece_in

TOPICS = ("a", "b", "c")
START_MS = 1_790_000_000_000


@st.composite
def _taken(draw: st.DrawFn) -> list[tuple[Step, int]]:
    """Steps with the number of groups that each decided; offsets of a topic ascend, times may step back."""
    places = dict.fromkeys(TOPICS, 0)
    taken: list[tuple[Step, int]] = []
    for kind in draw(st.lists(st.sampled_from([*TOPICS, "time", "closing"]), max_size=30)):
        if kind in places:
            offset = places[kind] + draw(st.sampled_from([0, 0, 0, 1, 300]))
            places[kind] = offset + 1
            step: Step = (kind, offset)
        else:
            step = CLOSE_SOME if kind == "closing" else (None, START_MS + draw(st.integers(-5_000, 5_000)))
        taken.append((step, draw(st.sampled_from([0, 0, 1, 2, 3]))))
    return taken


def _take(journal: Journal, step: Step, groups: int) -> None:
    topic, value = step
    if step == CLOSE_SOME:
        journal.closed_some(groups)
    elif topic is None:
        journal.time_passed(value, groups)
    else:
        journal.folded(topic, value, groups)


def _carried(piece: Piece | None) -> Piece:
    """The piece as a successor reads it."""
    assert piece is not None
    found = piece_in(piece.headers())
    assert found == piece
    return piece


@given(_taken(), st.integers(0, 3), st.data())
def test_pieces_joined_are_the_steps_up_to_the_last_written_group(
    taken: list[tuple[Step, int]], before: int, data: st.DataObject
) -> None:
    journal = Journal(dict.fromkeys(TOPICS, 0), before)
    decided, written, pieces = before, 0, list[Piece]()
    ends = []
    for index, (step, groups) in enumerate(taken, 1):
        _take(journal, step, groups)
        decided += groups
        ends += [index] * groups
        place = journal.place
        assert place is not None
        assert (place.steps, place.groups, place.written) == (index, decided, written)
        some = data.draw(st.integers(0, decided - written))
        if some:
            pieces.append(_carried(journal.piece(range(written, written + some), some)))
            if data.draw(st.booleans()):  # a step is taken while the transaction is under way
                journal.closed_some(0)
                taken_meanwhile = True
            else:
                taken_meanwhile = False
            journal.wrote(some)
            written += some
            if taken_meanwhile:
                break
    joined = [step for piece in pieces for step in piece.each_step()]
    last = ends[written - before - 1] if written > before else 0
    assert joined == [step for step, _ in taken[:last]]
    assert [check for piece in pieces for check in piece.checks] == list(range(written))
    for piece, after in pairwise(pieces):
        assert after.first_step == piece.first_step + piece.steps
        assert after.first_group == piece.first_group + len(piece.checks)
    if pieces and written > before:
        assert pieces[-1].left == sum(groups for _, groups in taken[:last]) - (written - before)


def test_a_record_costs_a_byte() -> None:
    journal = Journal(dict.fromkeys(TOPICS, 7), 0)
    for offset in range(7, 107):
        journal.folded("b", offset, 1)
    assert len(_carried(journal.piece([0] * 100, 100)).encoded) == 100


def test_a_journal_that_waits_too_long_for_a_transaction_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "MAX_PENDING_STEPS", 3)
    journal = Journal({"a": 0}, 0)
    for offset in range(3):
        journal.folded("a", offset, 0)
    assert journal.place is not None
    journal.folded("a", 3, 1)
    assert _is_over(journal)
    assert journal.piece([1], 1) is None
    journal.folded("a", 4, 1)
    journal.wrote(1)
    assert journal.piece([1], 1) is None


def test_an_offset_that_comes_twice_ends_it() -> None:
    journal = Journal({"a": 5}, 0)
    journal.folded("a", 4, 1)
    assert journal.piece([1], 1) is None
    assert journal.has_ended


@pytest.mark.parametrize("damaged", [b"\x80", b"\x00", b"\x02\x02", b""])
def test_damaged_steps_are_noticed(damaged: bytes) -> None:
    journal = Journal({"a": 0}, 0)
    journal.folded("a", 0, 1)
    piece = _carried(journal.piece([1], 1)).model_copy(update={"encoded": damaged})
    with pytest.raises(ValueError, match=r"step|number"):
        piece.each_step()


def test_a_piece_of_another_form_is_none_of_ours() -> None:
    assert piece_in([("other", b"x")]) is None
    with pytest.raises(ValueError, match="another form"):
        piece_in([(PIECE_HEADER, b'{"later": 1}'), (STEPS_HEADER, b"")])


def _is_over(journal: Journal) -> bool:
    return journal.has_ended and journal.place is None


def test_a_step_during_a_transaction_is_in_the_next_piece() -> None:
    journal = Journal({"a": 0}, 0)
    journal.folded("a", 0, 1)
    first = _carried(journal.piece([1], 1))
    journal.folded("a", 1, 1)
    journal.wrote(1)
    second = _carried(journal.piece([2], 1))
    assert (first.each_step(), second.each_step()) == ([("a", 0)], [("a", 1)])


def test_what_is_being_written_when_it_begins_counts_as_written_with_it() -> None:
    journal = Journal({"a": 0}, 2)
    journal.wrote(2)  # a transaction that was under way, without a piece
    journal.folded("a", 0, 1)
    piece = _carried(journal.piece([1], 1))
    assert (piece.first_group, piece.steps) == (2, 1)
