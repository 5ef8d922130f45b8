"""Measures of one's own: what a function may be and give, and that a mistake in one costs its value
only.
"""

import asyncio
import math
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from consumers.measures.files import MAX_MEASURES, FoundMeasures, stamp_of
from consumers.measures.own import (
    MAX_HANGING,
    MAX_LABELS,
    Calls,
    MeasureError,
    MeasureOutcome,
    NotMeasured,
    measure,
)
from schemas.closed_sets import UnscoredReason
from schemas.rows import NotApplicable, TurnRow, Unscored

TURN = TurnRow(conversation_id="c", turn=3, revision=8, wait_ms=912.0)


def outcome_of(result: object, seconds: float = 5.0) -> MeasureOutcome:
    @measure
    def mine(turn: TurnRow) -> object:
        if isinstance(result, BaseException):
            raise result
        return result

    return Calls(mine, seconds).call({"turn": TURN})


@pytest.mark.parametrize(
    ("result", "value", "label", "reason", "cause"),
    [
        (3, 3.0, None, None, "reason"),
        (True, 1.0, None, None, "reason"),
        (" polite ", None, "polite", None, "reason"),
        (NotMeasured("nobody spoke"), None, None, "nobody spoke", "reason"),
        (Unscored(UnscoredReason.NO_SUBGOALS), None, None, "no_subgoals", "reason"),
        (NotApplicable("the greeting"), None, None, "the greeting", "reason"),
        (math.nan, None, None, "it gave nan, which is no number", "mistake"),
        (10**400, None, None, "it gave inf, which is no number", "mistake"),
        (
            None,
            None,
            None,
            "it gave NoneType: expected a number, a text as a label, or NotMeasured",
            "mistake",
        ),
        (
            "x" * 41,
            None,
            None,
            "it gave a label of 41 characters: expected 1 to 40 in one line",
            "mistake",
        ),
        (ValueError("no"), None, None, "it raised ValueError: no", "mistake"),
        (SystemExit(3), None, None, "it raised SystemExit: 3", "mistake"),
    ],
)
def test_what_a_function_gives_is_a_value_or_a_reason(
    result: object, value: float | None, label: str | None, reason: str | None, cause: str
) -> None:
    assert outcome_of(result) == (value, label, reason, cause)


def test_a_coroutine_counts_too() -> None:
    @measure
    async def later(turn: TurnRow) -> int:
        await asyncio.sleep(0)
        return turn.turn

    assert Calls(later, 5.0).call({"turn": TURN}) == MeasureOutcome(3.0)


def test_a_function_that_hangs_is_left_alone_until_a_call_of_it_comes_back() -> None:
    goes_on = threading.Event()

    @measure
    def hangs(turn: TurnRow) -> int:
        return int(goes_on.wait(60))

    calls = Calls(hangs, 0.05)
    before = threading.active_count()
    seen = [calls.call({"turn": TURN}).reason for _ in range(5)]
    assert seen[:MAX_HANGING] == ["it took more than 0.05 s"] * MAX_HANGING
    assert all(
        reason is not None and reason.startswith("not called") for reason in seen[MAX_HANGING:]
    )
    assert threading.active_count() - before == MAX_HANGING
    goes_on.set()
    until = time.monotonic() + 10
    while calls.hangs and time.monotonic() < until:
        threading.Event().wait(0.01)
    assert calls.call({"turn": TURN}) == MeasureOutcome(1.0)


def test_a_function_gives_few_labels() -> None:
    names = iter(range(100))

    @measure
    def label(turn: TurnRow) -> str:
        return f"l{next(names)}"

    calls = Calls(label, 5.0)
    seen = [calls.call({"turn": TURN}) for _ in range(MAX_LABELS + 1)]
    assert [each.label for each in seen[:-1]] == [f"l{number}" for number in range(MAX_LABELS)]
    assert seen[-1].reason == f"it gave more than {MAX_LABELS} different labels"


def test_a_function_with_other_parameters_is_refused_with_what_is_expected() -> None:
    def both(turn: Any, context: Any) -> int:
        return 1

    def Loud(turn: Any) -> int:  # noqa: N802
        return 1

    with pytest.raises(
        MeasureError, match=r"both has the parameters \(context, turn\): expected turn"
    ):
        measure(both)
    with pytest.raises(MeasureError, match="'Loud': expected lower-case"):
        measure(Loud)


ONE = "from callgauge import measure\n\n@measure\ndef {name}(turn):\n    return {value}\n"


def test_a_broken_file_costs_its_own_measures(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "b.py").write_text(ONE.format(name="good", value=1))
    (tmp_path / "c.py").write_text(ONE.format(name="good", value=2))
    (tmp_path / "_d.py").write_text("raise SystemExit\n")
    found = FoundMeasures(tmp_path)
    assert [*found.measures] == ["good"]
    assert found.measures["good"](TURN) == 1
    broken, twice = found.mistakes
    assert broken.startswith(f"{tmp_path / 'a.py'}: ModuleNotFoundError: ")
    assert "there is another measure good" in twice
    assert "no such folder" in FoundMeasures(tmp_path / "none").mistakes[0]


def test_no_more_measures_count_than_are_allowed(tmp_path: Path) -> None:
    text = "".join(
        ONE.format(name=f"m{number}", value=number) for number in range(MAX_MEASURES + 1)
    )
    (tmp_path / "many.py").write_text(text)
    found = FoundMeasures(tmp_path)
    assert len(found.measures) == MAX_MEASURES
    assert f"m{MAX_MEASURES} is left out" in found.mistakes[0]


def test_a_changed_file_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(ONE.format(name="one", value=1))
    before = stamp_of(tmp_path)
    path.write_text(ONE.format(name="one", value=10))
    assert stamp_of(tmp_path) != before == before
    assert FoundMeasures(tmp_path).measures["one"](TURN) == 10
