"""The curve of progress and the area under it."""

from collections.abc import Sequence

import pytest

from consumers.engine.goals import curve as progress_curve
from consumers.engine.goals.checks import Undecided
from consumers.engine.goals.curve import ProgressCurve, area_under, sum_in_numpy_order
from schemas.closed_sets import UnscoredReason
from schemas.rows import Progress, Unscored

LATE = UnscoredReason.USER_STILL_SPEAKING  # any two reasons: the curve only passes them on
ABSENT = UnscoredReason.NO_USER_SPEECH
VERDICT_OF: dict[str, bool | UnscoredReason] = {"C": True, "I": False, "L": LATE, "A": ABSENT}


def _hash(turn: int) -> str:
    return f"input of turn {turn}"


def _curve(*rows: str, max_turns: int = 20) -> ProgressCurve:
    """One row per subgoal, one letter per turn: `C`, `I`, a reason, or `.` where there is no
    verdict.
    """
    curve = ProgressCurve(len(rows), max_turns)
    for turn in range(1, max(map(len, rows)) + 1):
        curve.set_input(turn, _hash(turn))
        for subgoal, row in enumerate(rows):
            for letter in row[turn - 1 : turn].strip("."):
                assert curve.fold(turn, subgoal, VERDICT_OF[letter], _hash(turn)) is (
                    turn <= max_turns
                )
    return curve


def _plain(scores: Progress | None, name: str) -> object:
    """The score, or the reason why it is not known; None while a verdict is open."""
    value = getattr(scores, name, None)
    return value.reason if isinstance(value, Unscored) else value


def _each(curve: ProgressCurve, name: str) -> list[object]:
    return [_plain(curve.at(turn), name) for turn in range(1, curve.turns + 1)]


def _now(curve: ProgressCurve, name: str) -> object:
    return _plain(curve.now, name)


@pytest.mark.parametrize(
    ("rows", "max_turns", "progress", "auc", "ppt", "success"),
    [
        (("C", "IIC", "IIII"), 6, [0.3333, 0.3333, 0.6667, 0.6667], 0.5667, 0.2222, 0),
        (("C", "IC"), 20, [0.5, 1.0], 0.9868, 0.5, 1),
        (("C", "IIIC"), 3, [0.5, 0.5, 0.5], 0.5, 0.5, 0),  # turn 4 is not looked at
        (("IC", "IIC"), 3, [0.0, 0.5, 1.0], 0.5, 0.3333, 1),
        (("C",), 2, [1.0], 1.0, 1.0, 1),
        (("I", "I"), 20, [0.0], 0.0, 0.0, 0),
        (
            ("C", "IC", "IC", "IIIIC", "IIIIIC", "IIIIII", "IIIC"),
            8,
            [0.1429, 0.4286, 0.4286, 0.5714, 0.7143, 0.8571],
            0.6224,
            0.1429,
            0,
        ),
    ],
)
def test_the_numbers_are_agent_inspect_s(
    rows: tuple[str, ...],
    max_turns: int,
    progress: list[float],
    auc: float,
    ppt: float,
    success: float,
) -> None:
    curve = _curve(*rows, max_turns=max_turns)
    assert _each(curve, "result") == progress
    assert (_now(curve, "auc"), _now(curve, "ppt"), _now(curve, "success")) == (auc, ppt, success)


def test_the_area_as_if_the_call_ended_now_has_no_turns_to_come() -> None:
    curve = _curve("C", "IIC", max_turns=5)
    assert _each(curve, "auc") == [0.5, 0.5, 0.8125]
    assert _each(curve, "auc_if_ended_now") == [UnscoredReason.ONE_TURN_HAS_NO_AREA, 0.5, 0.625]


def test_progress_per_turn_falls_when_progress_comes_late() -> None:
    assert _each(_curve("C", "IIIIIIIIIC"), "ppt") == [0.5] * 9 + [0.1]


def test_a_tie_is_rounded_as_agent_inspect_s_sum_falls() -> None:
    # The area is 0.41665 exactly; lost bits of the sum make it 0.4166.
    assert _now(_curve("C", "IIC", "III", max_turns=3), "auc") == 0.4166


def test_turns_are_added_up_again_only_at_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    summed: list[Sequence[float]] = []

    def counted(heights: Sequence[float]) -> float:
        summed.append(heights)
        return area_under(heights)

    monkeypatch.setattr(progress_curve, "area_under", counted)
    assert _each(_curve("C", "IIIC", max_turns=8), "auc") == [0.5, 0.5, 0.5, 0.8214]
    assert summed == []
    assert _now(_curve("C", "IIC", "III", max_turns=3), "auc") == 0.4166
    assert summed[-1] == [0.3333, 0.3333, 0.6667]


def test_with_room_for_one_turn_there_is_no_area() -> None:
    no_area = Unscored(UnscoredReason.ONE_TURN_HAS_NO_AREA)
    now = _curve("C", "I", max_turns=1).now
    assert now == Progress(0.5, no_area, no_area, 0.5, 0.0, reached=1, missing=0, subgoals=2)


@pytest.mark.parametrize(
    ("subgoals", "turns", "gap"),
    [(0, 1, UnscoredReason.NO_SUBGOALS), (2, 0, UnscoredReason.NO_TURN_JUDGED)],
)
def test_what_agent_inspect_crashes_on_has_no_scores(
    subgoals: int, turns: int, gap: UnscoredReason
) -> None:
    curve = ProgressCurve(subgoals)
    for turn in range(1, turns + 1):
        curve.set_input(turn, _hash(turn))
    none = Unscored(gap)
    assert curve.now == Progress(none, none, none, none, none, subgoals=subgoals)


def test_a_turn_with_an_open_verdict_has_no_scores_yet() -> None:
    curve = _curve("C", "I.", max_turns=5)
    assert _plain(curve.at(1), "result") == 0.5
    assert curve.now is None
    curve.fold(2, 1, False, _hash(2))
    assert curve.now == Progress(0.5, 0.5, 0.5, 0.5, 0.0, reached=1, missing=0, subgoals=2)


def test_what_could_not_be_judged_is_unknown_with_the_reason() -> None:
    curve = _curve("IIC", "ILI", max_turns=5)
    # the verdict of turn 3 is on all turns up to it
    assert _each(curve, "result") == [0.0, LATE, 0.5]
    assert _each(curve, "auc") == _each(curve, "ppt") == [0.0, LATE, LATE]  # they need turn 2
    assert _each(curve, "auc_if_ended_now") == [UnscoredReason.ONE_TURN_HAS_NO_AREA, LATE, LATE]
    assert _each(curve, "missing") == [0, 1, 0]


def test_success_is_unknown_only_when_it_hangs_on_what_is() -> None:
    assert _each(_curve("ICC", "LLL", "III"), "success") == [0.0, 0.0, 0.0]
    assert _each(_curve("IC", "LLC"), "success") == [0.0, LATE, 1.0]


def test_of_several_reasons_the_first_subgoal_s_is_given_and_an_open_verdict_goes_before() -> None:
    assert _now(_curve("C", "A", "L"), "result") is ABSENT
    assert _now(_curve("C", "A", "."), "result") is None
    assert _now(_curve("C.", "AI", "II"), "auc") is ABSENT
    assert _plain(_curve("I.", "AI").at(2), "auc") is None


def test_each_open_subgoal_is_asked_about_once_per_turn() -> None:
    # Example 12 of the reference: 26 evaluations, N requests each.
    reached = (1, 2, 2, 5, 6, 9, 4)
    curve = ProgressCurve(len(reached), 8)
    asked = 0
    for turn in range(1, 7):
        curve.set_input(turn, _hash(turn))
        for asked_turn, subgoal in list(curve.open_questions()):
            assert asked_turn == turn
            asked += 1
            curve.fold(turn, subgoal, reached[subgoal] == turn, _hash(turn))
        assert list(curve.open_questions()) == []
    assert asked == 1 + 2 + 2 + 5 + 6 + 6 + 4


def test_a_later_turn_waits_for_the_verdict_that_may_make_it_needless() -> None:
    curve = ProgressCurve(1)
    curve.set_input(1, _hash(1))
    curve.set_input(2, _hash(2))
    assert list(curve.open_questions()) == [(1, 0)]
    curve.fold(1, 0, LATE, _hash(1))
    assert list(curve.open_questions()) == [(2, 0)]
    curve.fold(2, 0, True, _hash(2))
    assert list(curve.open_questions()) == []


def test_a_verdict_on_another_input_does_not_count() -> None:
    curve = _curve("I")
    curve.set_input(1, "a word more")
    assert not curve.fold(1, 0, True, _hash(1))
    assert not curve.fold(2, 0, True, _hash(2))
    assert _now(curve, "result") is None
    assert curve.fold(1, 0, True, "a word more")
    assert _now(curve, "result") == 1.0


def test_a_completion_is_taken_back_only_when_the_turn_that_reached_it_changes() -> None:
    curve = _curve("IC", "III")
    curve.set_input(2, _hash(2))
    curve.set_input(3, "a word more")
    curve.fold(3, 1, False, "a word more")
    assert list(curve.reached_at) == [2, None]
    assert _each(curve, "result") == [0.0, 0.5, 0.5]
    curve.set_input(2, "a word more")
    assert list(curve.reached_at) == [None, None]
    assert _each(curve, "result") == [0.0, None, None]
    assert list(curve.open_questions()) == [(2, 0), (2, 1)]
    curve.fold(2, 0, False, "a word more")
    curve.fold(2, 1, False, "a word more")
    assert list(curve.open_questions()) == [(3, 0)]
    curve.fold(3, 0, True, "a word more")
    assert (curve.reached_at, _each(curve, "result")) == ((3, None), [0.0, 0.0, 0.5])


def test_a_later_verdict_stands_in_for_one_that_is_taken_back() -> None:
    curve = _curve("IIC")
    curve.fold(2, 0, True, _hash(2))
    assert list(curve.reached_at) == [2]
    curve.fold(3, 0, True, _hash(3))
    assert list(curve.reached_at) == [2]
    curve.fold(2, 0, False, _hash(2))
    assert list(curve.reached_at) == [3]


def test_turns_that_are_gone_take_their_verdicts_with_them() -> None:
    curve = _curve("C", "IIC")
    curve.remove_from(2)
    assert (curve.turns, curve.reached_at, _now(curve, "result")) == (1, (1, None), 0.5)
    curve.set_input(2, _hash(2))
    assert list(curve.open_questions()) == [(2, 1)]
    curve.remove_from(0)
    assert (curve.turns, curve.reached_at) == (0, (None, None))


def test_a_turn_that_was_passed_over_keeps_the_scores_open() -> None:
    curve = ProgressCurve(1, 5)
    curve.set_input(2, _hash(2))
    curve.fold(2, 0, False, _hash(2))
    assert list(curve.open_questions()) == []
    assert curve.now is None
    curve.set_input(1, _hash(1))
    assert list(curve.open_questions()) == [(1, 0)]
    curve.fold(1, 0, False, _hash(1))
    assert _now(curve, "auc") == 0.0


def test_what_code_checks_needs_no_verdicts() -> None:
    curve = _curve("..", "IC", max_turns=3)
    curve.know(0, None)
    curve.know(0, None)
    assert list(curve.open_questions()) == []
    assert _each(curve, "result") == [0.0, 0.5]
    curve.know(0, 1)
    assert (_each(curve, "result"), _now(curve, "auc")) == ([0.5, 1.0], 0.875)
    curve.set_input(1, "a word more")  # takes back verdicts, not results of code
    curve.fold(1, 1, False, "a word more")
    assert list(curve.reached_at) == [1, 2]
    curve.know(0, 2)
    assert _each(curve, "result") == [0.0, 1.0]
    curve.know(0, 7)
    assert _each(curve, "result") == [0.0, 0.5]


def test_what_code_cannot_tell_is_unknown_from_that_turn_on() -> None:
    curve = _curve("IIII", "....")
    curve.know(1, None, Undecided(3, UnscoredReason.TIMES_UNKNOWN))
    assert _each(curve, "result") == [
        0.0,
        0.0,
        UnscoredReason.TIMES_UNKNOWN,
        UnscoredReason.TIMES_UNKNOWN,
    ]
    assert _each(curve, "missing") == [0, 0, 1, 1]
    curve.know(1, None, Undecided(3, UnscoredReason.WITHHELD))
    assert _each(curve, "result") == [0.0, 0.0, UnscoredReason.WITHHELD, UnscoredReason.WITHHELD]
    curve.know(1, None, Undecided(4, UnscoredReason.TIMES_UNKNOWN))
    assert _each(curve, "missing") == [0, 0, 0, 1]
    curve.know(1, 2)
    assert _each(curve, "result") == [0.0, 0.5, 0.5, 0.5]


def test_turns_behind_the_last_that_counts_change_nothing() -> None:
    curve = _curve("II", max_turns=2)
    curve.set_input(3, _hash(3))
    assert curve.at(3) == curve.at(2)


TERMS = [(place * 37 % 101) / 101 for place in range(300)]


@pytest.mark.parametrize(
    ("count", "bits"),
    [
        (0, "0x0.0p+0"),
        (7, "0x1.58b67ebb9079bp+1"),  # one after the other
        (8, "0x1.a0f353a4c0a24p+1"),  # eight accumulators
        (9, "0x1.0c0a237c32b17p+2"),  # and a rest
        (128, "0x1.f4ac5b3f5dc84p+5"),
        (129, "0x1.fbcd4e930288ep+5"),  # two halves
        (137, "0x1.0f2b16cfd7721p+6"),
        (300, "0x1.286562d9faee4p+7"),  # four quarters
    ],
)
def test_a_sum_has_numpy_s_bits(count: int, bits: str) -> None:
    assert sum_in_numpy_order(TERMS[:count]).hex() == bits


@pytest.mark.parametrize(
    ("subgoals", "reached_at", "turns", "bits", "auc"),
    [  # added from left to right, each of them is rounded to the other side
        (9, [2, 3, 4, 5, 6, 7], 10, "0x1.c71de69ad42c3p-2", 0.4444),
        (9, [2], 12, "0x1.b2617c1bda512p-4", 0.1061),
        (6, [4, 5, 8, 13], 20, "0x1.d318fc504816fp-2", 0.4561),
        (4, [3], 21, "0x1.d99999999999ap-3", 0.2313),
        (3, [20, 24], 40, "0x1.43d70a3d70a3dp-2", 0.3162),
        (9, [2, 39, 43, 65, 71, 98, 101, 108], 150, "0x1.027bb2fec56d6p-1", 0.5049),
    ],
)
def test_a_tie_falls_where_scikit_learn_s_does(
    subgoals: int, reached_at: list[int], turns: int, bits: str, auc: float
) -> None:
    heights = [
        round(sum(turn <= last for turn in reached_at) / subgoals, 4)
        for last in range(1, turns + 1)
    ]
    assert area_under(heights).hex() == bits
    curve = ProgressCurve(subgoals, turns)
    for subgoal in range(subgoals):
        curve.know(subgoal, reached_at[subgoal] if subgoal < len(reached_at) else None)
    curve.set_input(turns, "")
    assert (_now(curve, "auc"), _now(curve, "auc_if_ended_now")) == (auc, auc)


@pytest.mark.parametrize("heights", [[], [0.5]])
def test_nothing_lies_between_fewer_than_two_points(heights: list[float]) -> None:
    with pytest.raises(ValueError, match=f"two points or more; there were {len(heights)}"):
        area_under(heights)
