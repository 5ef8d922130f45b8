"""Grades as agent-inspect reads them, and votes: the number of requests, and the result of the
answers.
"""

import pytest

from consumers.engine.goals.questions import VoteFailure, Voting, grade_of
from schemas.closed_sets import UnjudgedReason, UnscoredReason

VOTE_OF = {"C": True, "I": False, "N": None}


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ("Grade: C", True),
        ("GRADE : I", False),
        ("GRADE:\tC", True),
        ("**GRADE: C**", True),
        ("UPGRADE: C", True),
        ("GRADE: Correct", True),
        ("GRADE: Cannot say", True),
        ("GRADE: Incomplete", False),
        ("GRADE: C\n", True),
        ("GRADE: C\r\n", True),
        ("GRADE:\nC", True),
        ("GRADE: C, or rather GRADE: I", True),
        ("GRADE: I\nGRADE: C", True),
        ("grade: c", None),
        ("GRADE: P", None),
        ("GRADE: P GRADE: C", None),
        ("GRADE: P\nGRADE: C", True),
        ("GRADE: **C**", None),
        ("GRADE: 'C'", None),
        ("GRADE=C", None),
        ("GRADE: C\n\n", None),
        ("GRADE: C\nThe caller was told so.", None),
        ("GRADE: C\n.", None),
        ("", None),
        (" \n", None),
        (None, None),
    ],
)
def test_a_grade_is_the_first_on_the_last_line(text: str | None, grade: bool | None) -> None:
    assert grade_of(text) is grade


def _waves(voting: Voting, answers: str) -> list[int]:
    waves, taken = [], 0
    while wave := voting.next_wave:
        waves.append(wave)
        voting.fold([VOTE_OF[answer] for answer in answers[taken : taken + wave]])
        taken += wave
    assert taken == len(answers), "every answer of the row is used"
    return waves


@pytest.mark.parametrize(
    ("trials", "answers", "waves", "outcome"),
    [
        (1, "C", [1], True),
        (1, "N", [1], VoteFailure.TOO_FEW_VALID),
        (3, "CII", [2, 1], False),
        (5, "CCC", [3], True),
        (5, "CICC", [3, 1], True),
        (5, "CCIIC", [3, 1, 1], True),
        (5, "CNCC", [3, 1], True),
        (5, "NNCCC", [3, 2], True),
        # two of three valid ones, but not three of five
        (5, "CNINC", [3, 2], VoteFailure.TOO_FEW_VALID),
        (5, "NNN", [3], VoteFailure.TOO_FEW_VALID),
        (7, "IICCII", [4, 2], False),
        (7, "NNNN", [4], VoteFailure.TOO_FEW_VALID),
        (7, "NNNCNCC", [4, 3], VoteFailure.TOO_FEW_VALID),
        (9, "CCCCIIIIC", [5, 1, 1, 1, 1], True),
    ],
)
def test_a_vote_that_stops_early(
    trials: int, answers: str, waves: list[int], outcome: bool | VoteFailure
) -> None:
    voting = Voting(trials, stops_early=True)
    assert _waves(voting, answers) == waves
    assert outcome in (voting.verdict, voting.failure)


@pytest.mark.parametrize(
    ("trials", "retry_waves", "answers", "waves", "outcome"),
    [
        (5, 5, "CCCII", [5], True),
        (5, 5, "CICII", [5], False),
        (5, 5, "CCCCC", [5], True),  # all are asked, also when three would do
        (5, 5, "CCNNNCNNII", [5, 3, 2], True),
        (5, 5, "CCNNNCCNC", [5, 3, 1], True),
        # decided, and still a failure
        (5, 5, "CCCCNNNNNN", [5, 1, 1, 1, 1, 1], VoteFailure.RETRIES_EXHAUSTED),
        (5, 0, "CCCCN", [5], VoteFailure.RETRIES_EXHAUSTED),
        (1, 1, "NC", [1, 1], True),
    ],
)
def test_a_vote_that_asks_again(
    trials: int, retry_waves: int, answers: str, waves: list[int], outcome: bool | VoteFailure
) -> None:
    voting = Voting(trials, stops_early=False, retry_waves=retry_waves)
    assert _waves(voting, answers) == waves
    assert outcome in (voting.verdict, voting.failure)


def test_the_answers_are_counted() -> None:
    voting = Voting(5, stops_early=False)
    voting.fold([True, None, False, None, True])
    assert (voting.next_wave, voting.verdict) == (2, None)
    voting.fold([None, True])
    voting.fold([False])
    assert (voting.votes_complete, voting.votes_incomplete, voting.votes_invalid) == (3, 2, 3)
    assert (voting.next_wave, voting.verdict, voting.failure) == (0, True, None)


def test_a_failed_vote_has_no_verdict_and_asks_no_more() -> None:
    voting = Voting(5, stops_early=False, retry_waves=0)
    voting.fold([True, True, True, True, None])
    assert (voting.next_wave, voting.verdict, voting.failure) == (
        0,
        None,
        VoteFailure.RETRIES_EXHAUSTED,
    )
    voting.fold([])
    assert (voting.next_wave, voting.verdict) == (0, None)


@pytest.mark.parametrize("trials", [-1, 0, 2, 4])
def test_a_vote_that_could_tie_is_refused(trials: int) -> None:
    with pytest.raises(ValueError, match=f"odd number of trials, .*; it was {trials}"):
        Voting(trials, stops_early=True)


def test_negative_retries_are_refused() -> None:
    with pytest.raises(ValueError, match="it was -1"):
        Voting(5, stops_early=False, retry_waves=-1)


@pytest.mark.parametrize("answers", [[], [True], [True, True, True, True]])
def test_a_wave_is_answered_as_a_whole(answers: list[bool | None]) -> None:
    voting = Voting(5, stops_early=True)
    with pytest.raises(ValueError, match=f"asked for 3 answers and got {len(answers)}"):
        voting.fold(answers)
    assert (voting.next_wave, voting.votes_complete) == (3, 0)


@pytest.mark.parametrize("reason", UnjudgedReason)
def test_every_reason_of_a_judge_is_one_of_scores(reason: UnjudgedReason) -> None:
    assert UnscoredReason(reason.value).value == reason.value
