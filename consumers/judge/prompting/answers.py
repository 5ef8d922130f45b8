"""Reads a model's answer: its form for each kind of question, and its grade or rating.

An answer in another form counts as no answer. Nothing is guessed from a part of one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from consumers.engine.goals.questions import grade_of
from consumers.engine.redaction.redactor import Redactor
from consumers.judge.prompting.forms import AnswerForm
from consumers.judge.prompting.plain_text import plain
from schemas.judging import MAX_EXPLANATION_CHARS, JudgeKind, NotRateable, Rated

FAILURE_MODES: Final = (
    "verbosity_or_filler",
    "excess_information_density",
    "over_enumeration_or_list_exhaustion",
    "contextually_disproportionate_detail",
)
DIMENSIONS: Final[Mapping[JudgeKind, tuple[str, ...]]] = MappingProxyType(
    {
        JudgeKind.FAITHFULNESS: (
            "fabricating_tool_parameters",
            "misrepresenting_tool_result",
            "violating_policies",
            "failing_to_disambiguate",
            "hallucination",
        ),
        JudgeKind.CONVERSATION_PROGRESSION: (
            "unnecessary_tool_calls",
            "information_loss",
            "redundant_statements",
            "question_quality",
        ),
    }
)
MAX_READ_CHARS: Final = 4_000
"""Characters read of an explanation; fewer are kept."""
WORST, SLIGHT, BEST = 1, 2, 3
"""EVA's scale of three; speakability has 0 and 1."""
_FLAGS_OF_A_BAD_CALL: Final = 3
"""Number of flagged dimensions that gives a call's progression the worst rating, even if each flag is slight."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer in the right form.

    Attributes:
        explanation: The model's explanation, cut, in one line.
        grade: Whether the subgoal is complete; None for EVA's metrics.
        rating: For EVA's metrics; None for a subgoal.
    """

    explanation: str
    grade: bool | None = None
    rating: Rated | NotRateable | None = field(default=None)


def schema_of(kind: JudgeKind) -> dict[str, Any]:
    """Returns the JSON schema of an answer: closed, with every field required, and the explanation before the grade."""
    fields: dict[str, Any] = {"explanation": {"type": "string"}}
    if kind is JudgeKind.SUBGOAL:
        fields["grade"] = {"type": "string", "enum": ["C", "I"]}
    elif kind is JudgeKind.CONCISENESS:
        fields["rating"] = {"type": ["integer", "null"], "enum": [WORST, SLIGHT, BEST, None]}
        fields["failure_modes"] = {"type": "array", "items": {"type": "string", "enum": list(FAILURE_MODES)}}
    elif kind is JudgeKind.SPEAKABILITY:
        fields["rating"] = {"type": "integer", "enum": [0, 1]}
    else:
        fields |= {name: {"type": "integer", "enum": [WORST, SLIGHT, BEST]} for name in DIMENSIONS[kind]}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def read_answer(kind: JudgeKind, form: AnswerForm, text: str | None, redactor: Redactor | None = None) -> Answer | None:
    """Reads the answer in a model's text; None when there is none.

    Args:
        kind: Kind of the question.
        form: Form of the answer: `grade` is free text that ends with a grade, for subgoals only.
        text: The model's text.
        redactor: Redacts the explanation, because a model may invent personal data. None for the default rules.
    """
    if text is None:
        return None
    redactor = redactor or Redactor()
    if kind is JudgeKind.SUBGOAL and form == "grade":
        grade = grade_of(text)
        return None if grade is None else Answer(_shortened(text, redactor), grade)
    found = _object_in(text)
    explanation = found.get("explanation")
    if not isinstance(explanation, str):
        return None
    redacted = _shortened(explanation, redactor)
    if kind is JudgeKind.SUBGOAL:
        letter = found.get("grade")
        return Answer(redacted, letter == "C") if letter in ("C", "I") else None
    rating = _rating_in(kind, found)
    return None if rating is None else Answer(redacted, rating=rating)


def _shortened(text: str, redactor: Redactor) -> str:
    return redactor.beginning(plain(text[:MAX_READ_CHARS]).strip(), MAX_EXPLANATION_CHARS)


def _object_in(text: str) -> Mapping[str, Any]:
    """Returns the JSON object in the text, with or without a code fence; empty when there is none."""
    start, end = text.find("{"), text.rfind("}")
    if start < 0:
        return {}
    try:
        found = json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _rating_in(kind: JudgeKind, found: Mapping[str, Any]) -> Rated | NotRateable | None:
    if kind is JudgeKind.SPEAKABILITY:
        rating = _whole(found.get("rating"), 0, 1)
        return None if rating is None else Rated(rating=rating, normalised=float(rating))
    if kind is JudgeKind.CONCISENESS:
        return _conciseness_in(found)
    dimensions = {name: _whole(found.get(name), WORST, BEST) for name in DIMENSIONS[kind]}
    known = {name: rating for name, rating in dimensions.items() if rating is not None}
    if len(known) < len(dimensions):
        return None
    overall = min(known.values()) if kind is JudgeKind.FAITHFULNESS else _progression(known)
    return Rated(rating=overall, normalised=_normalised(overall), dimensions=known)


def _conciseness_in(found: Mapping[str, Any]) -> Rated | NotRateable | None:
    modes = found.get("failure_modes")
    if "rating" not in found or not isinstance(modes, list) or not all(mode in FAILURE_MODES for mode in modes):
        return None
    if found["rating"] is None:
        return NotRateable(reason="the assistant says nothing in this turn")
    rating = _whole(found["rating"], WORST, BEST)
    if rating is None:
        return None
    flagged = tuple(mode for mode in FAILURE_MODES if mode in modes) if rating < BEST else ()
    return Rated(rating=rating, normalised=_normalised(rating), failure_modes=flagged)


def _progression(dimensions: Mapping[str, int]) -> int:
    flagged = [rating for rating in dimensions.values() if rating < BEST]
    if not flagged:
        return BEST
    return WORST if WORST in flagged or len(flagged) >= _FLAGS_OF_A_BAD_CALL else SLIGHT


def _normalised(rating: int) -> float:
    return (rating - WORST) / (BEST - WORST)


def _whole(value: Any, least: int, most: int) -> int | None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and least <= value <= most else None
