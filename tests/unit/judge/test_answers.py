"""An answer counts in its exact shape, and nothing counts that only looks like one."""

import json
from typing import Any

import pytest

from consumers.judge.prompts import DIMENSIONS, read_answer, schema_of
from schemas.closed_sets import JudgeKind
from schemas.judging import MAX_EXPLANATION_CHARS, NotRateable, Rated

FAITHFUL = dict.fromkeys(DIMENSIONS[JudgeKind.FAITHFULNESS], 3)
PROGRESSING = dict.fromkeys(DIMENSIONS[JudgeKind.CONVERSATION_PROGRESSION], 3)


def grade_in(text: str | None, form: Any = "structured") -> bool | None:
    answer = read_answer(JudgeKind.SUBGOAL, form, text)
    return None if answer is None else answer.grade


def rating_in(kind: JudgeKind, **fields: Any) -> Rated | NotRateable | None:
    answer = read_answer(kind, "structured", json.dumps({"explanation": "told", **fields}))
    return None if answer is None else answer.rating


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ('{"explanation": "x", "grade": "C"}', True),
        ('{"explanation": "x", "grade": "I"}', False),
        ('```json\n{"explanation": "x", "grade": "C"}\n```', True),
        ('{"explanation": "GRADE: C", "grade": "I"}', False),
        ('{"explanation": "x", "grade": "c"}', None),
        ('{"explanation": "x", "grade": "P"}', None),
        ('{"explanation": "x", "grade": true}', None),
        ('{"explanation": "x", "grade": ["C"]}', None),
        ('{"explanation": "x", "grade": null}', None),
        ('{"explanation": 1, "grade": "C"}', None),
        ('{"grade": "C"}', None),
        ('{"explanation": "x", "grade": "C"', None),
        ('{"explanation": "x", "gra', None),
        ("GRADE: C", None),
        ("[]", None),
        ("", None),
        (None, None),
        ("{" * 100_000 + "}" * 100_000, None),
    ],
)
def test_structured_grades(text: str | None, grade: bool | None) -> None:
    assert grade_in(text) is grade


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ("It is booked.\nGRADE: C", True),
        ("Nothing yet.\nGRADE: I", False),
        ("The user says GRADE: C\nGRADE: I", False),
        ("GRADE: C\nI am not sure", None),
        ("grade: c", None),
        ("", None),
        (None, None),
    ],
)
def test_grades_in_free_text_are_read_as_agent_inspect_reads_them(text: str | None, grade: bool | None) -> None:
    assert grade_in(text, "grade") is grade


def test_an_explanation_is_one_line_and_short() -> None:
    answer = read_answer(
        JudgeKind.SUBGOAL, "structured", json.dumps({"explanation": "a\nb\x1b" + "c" * 9_999, "grade": "C"})
    )
    assert answer is not None
    assert answer.explanation.startswith("a b ccc")
    assert len(answer.explanation) == MAX_EXPLANATION_CHARS


@pytest.mark.parametrize(("rating", "normalised"), [(3, 1.0), (2, 0.5), (1, 0.0)])
def test_conciseness_has_eva_s_scale(rating: int, normalised: float) -> None:
    modes = [] if rating == 3 else ["excess_information_density", "verbosity_or_filler"]
    assert rating_in(JudgeKind.CONCISENESS, rating=rating, failure_modes=modes) == Rated(
        rating=rating, normalised=normalised, failure_modes=tuple(sorted(modes, reverse=True))
    )


def test_conciseness_of_silence_does_not_apply() -> None:
    assert isinstance(rating_in(JudgeKind.CONCISENESS, rating=None, failure_modes=[]), NotRateable)


@pytest.mark.parametrize(
    "fields",
    [
        {"rating": 0, "failure_modes": []},
        {"rating": 4, "failure_modes": []},
        {"rating": True, "failure_modes": []},
        {"rating": 2.0, "failure_modes": []},
        {"rating": "3", "failure_modes": []},
        {"rating": 2, "failure_modes": ["rudeness"]},
        {"rating": 2},
        {"failure_modes": []},
    ],
)
def test_what_is_off_the_scale_is_no_rating(fields: dict[str, Any]) -> None:
    assert rating_in(JudgeKind.CONCISENESS, **fields) is None


@pytest.mark.parametrize("rating", [0, 1])
def test_speakability_is_one_or_nothing(rating: int) -> None:
    assert rating_in(JudgeKind.SPEAKABILITY, rating=rating) == Rated(rating=rating, normalised=float(rating))
    assert rating_in(JudgeKind.SPEAKABILITY, rating=rating + 2) is None


def test_faithfulness_is_its_worst_dimension() -> None:
    for worst, normalised in ((3, 1.0), (2, 0.5), (1, 0.0)):
        dimensions = FAITHFUL | {"hallucination": worst}
        assert rating_in(JudgeKind.FAITHFULNESS, **dimensions) == Rated(
            rating=worst, normalised=normalised, dimensions=dimensions
        )
    assert rating_in(JudgeKind.FAITHFULNESS, **(FAITHFUL | {"hallucination": 0})) is None
    assert rating_in(JudgeKind.FAITHFULNESS, hallucination=3) is None


@pytest.mark.parametrize(
    ("ratings", "overall"),
    [((3, 3, 3, 3), 3), ((2, 3, 3, 3), 2), ((2, 2, 3, 3), 2), ((2, 2, 2, 3), 1), ((1, 3, 3, 3), 1), ((2, 2, 2, 2), 1)],
)
def test_progression_counts_what_is_flagged(ratings: tuple[int, ...], overall: int) -> None:
    dimensions = dict(zip(PROGRESSING, ratings, strict=True))
    found = rating_in(JudgeKind.CONVERSATION_PROGRESSION, **dimensions)
    assert isinstance(found, Rated)
    assert (found.rating, found.dimensions) == (overall, dimensions)


@pytest.mark.parametrize("kind", JudgeKind)
def test_a_schema_is_closed_and_explains_first(kind: JudgeKind) -> None:
    schema = schema_of(kind)
    assert schema["additionalProperties"] is False
    assert list(schema["properties"]) == schema["required"]
    assert schema["required"][0] == "explanation"
