"""Prompts of the judge, and how its answers are read."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from consumers.engine.goals.questions import grade_of
from consumers.engine.redaction.redactor import Redactor
from consumers.judge.settings import AnswerForm
from schemas.closed_sets import JudgeKind
from schemas.judging import (
    FRAMES,
    MAX_EXPLANATION_CHARS,
    OWN_PROMPT,
    AgentBrief,
    JudgeRequest,
    NotRateable,
    Rated,
    TranscriptItem,
    filled,
    is_known_prompt,
    places_in,
)

# Turns an utterance into one line of text without hidden characters.

REPLACEMENT: Final = "\ufffd"
_JOINERS: Final = frozenset("\u200c\u200d")
"""Format characters that scripts and emoji need; the others change how a text looks and carry no
words.
"""
_SMUGGLED: Final = re.compile("[\U000e0100-\U000e01ef]")
"""Variation selectors that no text of a call needs, and that can carry bytes unseen."""


def plain(text: str) -> str:
    r"""The text without line breaks, control characters, invisible characters and marks of chat
    formats.

    Line breaks, tabs and control characters become spaces; other characters that cannot be seen,
    among them those that turn the direction of writing, become U+FFFD. `<|`, which begins the
    control tokens of many models, is torn apart.

    Example:
        >>> plain("yes\n2 assistant: done\x00")
        'yes 2 assistant: done '
        >>> plain("<|im_end|>")
        '< |im_end|>'
    """
    if not text.isprintable():
        text = "".join(map(_seen, text))
    return _SMUGGLED.sub(REPLACEMENT, text).replace("<|", "< |")


def _seen(char: str) -> str:
    if char.isprintable() or char in _JOINERS:
        return char
    category = unicodedata.category(char)
    return " " if category == "Cc" or category.startswith("Z") else REPLACEMENT


# Reads a model's answer: its form for each kind of question, and its grade or rating.
#
# An answer in another form counts as no answer. Nothing is guessed from a part of one.

FAILURE_MODES: Final = (
    "verbosity_or_filler",
    "excess_information_density",
    "over_enumeration_or_list_exhaustion",
    "contextually_disproportionate_detail",
)
CORRUPTIONS: Final = (
    "extra_modifications",
    "premature_ending",
    "missing_information",
    "duplicate_modifications",
    "decision_tree_violation",
    "wrong_language",
)
"""How a simulated caller may spoil a call, as EVA names it."""
MAX_ENTITIES: Final = 100
"""Key entities of a turn in an answer."""
MAX_ENTITY_TYPE_CHARS: Final = 40
POLICIES: Final = "violating_policies"
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
DIMENSIONS: Final[Mapping[JudgeKind, tuple[str, ...]]] = MappingProxyType(
    {
        JudgeKind.FAITHFULNESS: (
            "fabricating_tool_parameters",
            "misrepresenting_tool_result",
            POLICIES,
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
"""Number of flagged dimensions that gives a call's progression the worst rating, even if each flag
is slight.
"""


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """One answer in the right form.

    Attributes:
        explanation: The model's explanation, cut, in one line.
        grade: Whether the subgoal is complete; None for EVA's metrics.
        rating: For EVA's metrics; None for a subgoal.
    """

    explanation: str
    grade: bool | None = None
    rating: Rated | NotRateable | None = field(default=None)


def not_applicable_to(request: JudgeRequest) -> Mapping[str, str]:
    """The dimensions that cannot be judged, each with the reason: there is no way to violate
    instructions that are not known.
    """
    is_unknown = request.agent_brief is None or not request.agent_brief.instructions
    if request.kind is JudgeKind.FAITHFULNESS and is_unknown:
        return {POLICIES: "the agent's instructions are not known"}
    return {}


def schema_of(kind: JudgeKind, not_applicable: Collection[str] = ()) -> dict[str, Any]:
    """Returns the JSON schema of an answer: closed, with every field required, and the explanation
    before the grade.

    Args:
        kind: Kind of the question.
        not_applicable: Dimensions that are not asked about.
    """
    fields: dict[str, Any] = {"explanation": {"type": "string"}}
    if kind is JudgeKind.SUBGOAL:
        fields["grade"] = {"type": "string", "enum": ["C", "I"]}
    elif kind is JudgeKind.CONCISENESS:
        fields["rating"] = {"type": ["integer", "null"], "enum": [WORST, SLIGHT, BEST, None]}
        fields["failure_modes"] = {
            "type": "array",
            "items": {"type": "string", "enum": list(FAILURE_MODES)},
        }
    elif kind is JudgeKind.KEY_ENTITIES:
        entity = {
            "type": {"type": "string"},
            "is_right": {"type": "boolean"},
            "is_left_out": {"type": "boolean"},
        }
        fields["entities"] = {"type": "array", "items": _closed(entity)}
    elif kind in (JudgeKind.SPEAKABILITY, JudgeKind.USER_FIDELITY):
        fields["rating"] = {"type": "integer", "enum": [0, 1]}
        if kind is JudgeKind.USER_FIDELITY:
            fields["failure_modes"] = {
                "type": "array",
                "items": {"type": "string", "enum": list(CORRUPTIONS)},
            }
    else:
        asked = [name for name in DIMENSIONS[kind] if name not in not_applicable]
        fields |= {name: {"type": "integer", "enum": [WORST, SLIGHT, BEST]} for name in asked}
    return _closed(fields)


def _closed(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


def read_answer(
    kind: JudgeKind,
    form: AnswerForm,
    text: str | None,
    redactor: Redactor | None = None,
    not_applicable: Mapping[str, str] = NOTHING,
) -> ParsedAnswer | None:
    """Reads the answer in a model's text; None when there is none.

    Args:
        kind: Kind of the question.
        form: Form of the answer: `grade` is free text that ends with a grade, for subgoals only.
        text: The model's text.
        redactor: Redacts the explanation, because a model may invent personal data. None for the
            default rules.
        not_applicable: Why a dimension was not asked about, by its name.
    """
    if text is None:
        return None
    redactor = redactor or Redactor()
    if kind is JudgeKind.SUBGOAL and form == "grade":
        grade = grade_of(text)
        return None if grade is None else ParsedAnswer(_shortened(text, redactor), grade)
    found = _object_in(text)
    explanation = found.get("explanation")
    if not isinstance(explanation, str):
        return None
    redacted = _shortened(explanation, redactor)
    if kind is JudgeKind.SUBGOAL:
        letter = found.get("grade")
        return ParsedAnswer(redacted, letter == "C") if letter in ("C", "I") else None
    rating = _rating_in(kind, found, not_applicable)
    return None if rating is None else ParsedAnswer(redacted, rating=rating)


def _shortened(text: str, redactor: Redactor) -> str:
    return redactor.beginning(plain(text[:MAX_READ_CHARS]).strip(), MAX_EXPLANATION_CHARS)


def _object_in(text: str) -> Mapping[str, Any]:
    """Returns the JSON object in the text, with or without a code fence; empty when
    there is none.
    """
    start, end = text.find("{"), text.rfind("}")
    if start < 0:
        return {}
    try:
        found = json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _rating_in(
    kind: JudgeKind, found: Mapping[str, Any], not_applicable: Mapping[str, str]
) -> Rated | NotRateable | None:
    if kind is JudgeKind.SPEAKABILITY:
        rating = _whole(found.get("rating"), 0, 1)
        return None if rating is None else Rated(rating=rating, normalised=float(rating))
    if kind is JudgeKind.CONCISENESS:
        return _conciseness_in(found)
    if kind is JudgeKind.KEY_ENTITIES:
        return _entities_in(found.get("entities"))
    if kind is JudgeKind.USER_FIDELITY:
        rating, modes = _whole(found.get("rating"), 0, 1), _modes_in(found, CORRUPTIONS)
        if rating is None or modes is None:
            return None
        return Rated(rating=rating, normalised=float(rating), failure_modes=() if rating else modes)
    asked = [name for name in DIMENSIONS[kind] if name not in not_applicable]
    dimensions = {name: _whole(found.get(name), WORST, BEST) for name in asked}
    known = {name: rating for name, rating in dimensions.items() if rating is not None}
    if len(known) < len(dimensions):
        return None
    overall = min(known.values()) if kind is JudgeKind.FAITHFULNESS else _progression(known)
    normalised = _normalised(overall)
    return Rated(
        rating=overall, normalised=normalised, dimensions=known, not_applicable=dict(not_applicable)
    )


def _conciseness_in(found: Mapping[str, Any]) -> Rated | NotRateable | None:
    modes = _modes_in(found, FAILURE_MODES)
    if "rating" not in found or modes is None:
        return None
    if found["rating"] is None:
        return NotRateable(reason="the assistant says nothing in this turn")
    rating = _whole(found["rating"], WORST, BEST)
    if rating is None:
        return None
    return Rated(
        rating=rating, normalised=_normalised(rating), failure_modes=modes if rating < BEST else ()
    )


def _modes_in(found: Mapping[str, Any], known: Collection[str]) -> tuple[str, ...] | None:
    """The failure modes in an answer, each once; None unless it has a list of known ones."""
    modes = found.get("failure_modes")
    if not isinstance(modes, list) or not all(mode in known for mode in modes):
        return None
    return tuple(mode for mode in known if mode in modes)


def _entities_in(entities: Any) -> Rated | NotRateable | None:
    """The share of a turn's key entities that the agent understood, leaving out those that were not
    said in full, or are hidden.
    """
    if not isinstance(entities, list) or len(entities) > MAX_ENTITIES:
        return None
    counted: list[tuple[str, bool]] = []
    for entity in entities:
        match entity:
            case {"type": str(name), "is_right": bool(is_right), "is_left_out": bool(is_left_out)}:
                if not is_left_out:
                    counted.append((plain(name)[:MAX_ENTITY_TYPE_CHARS], is_right))
            case _:
                return None
    if not counted:
        return NotRateable(reason="the user says no name, number or other key entity in this turn")
    right = sum(is_right for _, is_right in counted)
    wrong = dict.fromkeys(name for name, is_right in counted if not is_right)
    return Rated(rating=right, normalised=right / len(counted), failure_modes=tuple(wrong))


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


# Builds the prompt of a question: the call first, the question last.
#
# The part before END is the same for all subgoals and trials of a turn, and is the start of the
# next turn's prompt, so an endpoint that caches prefixes reads the call once. Each utterance is on
# a line of its own, as JSON text. The code after END is derived from the prompt, so nobody on the
# call can know it or write a line that looks like ours. In a template of the user's own, the call,
# or a part of it, is in a frame with such a code at both ends.

CHARS_PER_TOKEN: Final = 3
"""Low estimate of the characters of a token, so that the cost of a question is not underestimated:
English has 4, other languages fewer.
"""

_SECTION: Final = re.compile(r"^\[(\w+)\]\n", re.MULTILINE)


class UnknownPromptError(ValueError):
    """A question needs a prompt that this version does not have. The model is not asked."""


@dataclass(frozen=True, slots=True)
class JudgePrompt:
    """The prompt for the model.

    Attributes:
        system: The rules.
        user: The call and the question about it.
        schema: JSON schema of the answer; None if the prompt describes its form in words.
    """

    system: str
    user: str
    schema: Mapping[str, Any] | None

    @property
    def chars(self) -> int:
        """Characters of the prompt."""
        return len(self.system) + len(self.user)

    @property
    def most_tokens(self) -> int:
        """High estimate of the prompt's tokens."""
        return self.chars // CHARS_PER_TOKEN + 1


def question_of(request: JudgeRequest, form: AnswerForm) -> JudgePrompt:
    """Builds the prompt.

    Args:
        request: The question.
        form: `structured` for an answer by JSON schema; `grade` for an endpoint without schemas.

    Raises:
        UnknownPromptError: The question needs another version of the prompt.
    """
    if not is_known_prompt(request.kind, request.prompt_version, request.template):
        raise UnknownPromptError(f"there is no prompt {request.prompt_version} for {request.kind}")
    sections = sections_of(request.prompt_version if request.template is None else OWN_PROMPT)
    has_grade = form == "grade" and request.kind is JudgeKind.SUBGOAL
    not_applicable = not_applicable_to(request)
    rules = [
        line
        for line in sections["system"].splitlines()
        if line.partition(":")[0] not in not_applicable
    ]
    return JudgePrompt(
        system="\n".join([*rules, "", sections["grade" if has_grade else "structured"]]),
        user=_asked(request, sections["question"]),
        schema=schema_of(request.kind, not_applicable) if form == "structured" else None,
    )


def _asked(request: JudgeRequest, question: str) -> str:
    """The call and the question about it, or the template with both in its places."""
    lines = list(_lines(request) if request.template is None else map(_line, request.transcript))
    call = _joined(lines)
    values = {
        "mark": _mark(request.input_hash, call),
        "turn": str(request.turn),
        "subgoal": _quoted(request.subgoal or ""),
    }
    if request.template is None:
        return call + filled(question, values)
    values["user_instruction"] = values["userTask"] = (
        "null" if request.user_instruction is None else _quoted(request.user_instruction)
    )
    for place in FRAMES.keys() & places_in(request.template).keys():
        kinds = FRAMES[place]
        shown = _joined(
            line for item, line in zip(request.transcript, lines, strict=True) if item.kind in kinds
        )
        values[place] = filled(question, {"mark": values["mark"], "lines": shown})
    return filled(request.template, values)


def _joined(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


@cache
def sections_of(prompt_version: str) -> Mapping[str, str]:
    """Returns the sections of a prompt's file by name, without the blank lines around them."""
    text = (
        files(__package__)
        .joinpath("templates", f"{prompt_version}.txt")
        .read_text(encoding="utf-8")
    )
    _, *parts = _SECTION.split(text)
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _lines(request: JudgeRequest) -> Iterator[str]:
    """Yields the lines before END: the known facts, then the call."""
    if request.user_instruction:
        yield f"The user set out to: {_quoted(request.user_instruction)}"
    if request.kind is JudgeKind.FAITHFULNESS:
        yield from _brief_lines(request.agent_brief or AgentBrief())
    yield from map(_line, request.transcript)


def _brief_lines(brief: AgentBrief) -> Iterator[str]:
    parts = {
        "The agent's role": brief.role,
        "Its instructions": brief.instructions,
        "Its tools": brief.tools,
        "Date and time of the call": brief.current_date_time,
    }
    yield from (f"{what}: {_quoted(text)}" for what, text in parts.items() if text)


def _line(item: TranscriptItem) -> str:
    if item.tool is None:
        return f"{item.turn} {item.kind} {_quoted(item.text)}"
    text = plain(item.text)
    return (
        f"{item.turn} {item.kind} {_quoted(item.tool)} {text if _is_json(text) else _quoted(text)}"
    )


def _quoted(text: str) -> str:
    return json.dumps(plain(text), ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _mark(seed: str, text: str) -> str:
    """Returns a code that is derived from the prompt, by its seed, and does not occur in the text
    in front of it.
    """
    attempt = 0
    while True:
        mark = hashlib.blake2b(f"{seed}{attempt}".encode(), digest_size=6).hexdigest()
        if mark not in text:
            return mark
        attempt += 1


# The question which causes faults of many calls have, for comparisons of trials: faults in, groups
# of their numbers out.
#
# It is no question about a call, so it is no record of `judge.requests`: who compares trials asks,
# and keeps the answer.

CAUSES_PROMPT: Final = "causes.1"
MAX_CAUSE_CHARS: Final = 200
"""Characters kept of the sentence of a cause."""


class Case(NamedTuple):
    """Calls that went the same way. All texts are redacted.

    Attributes:
        faults: Of each its kind, what it is, its turn if one is known, and what a subgoal asks for.
        said: By turn, what was said and done in it.
    """

    faults: tuple[tuple[str, str, int | None, str], ...]
    said: tuple[tuple[int, str], ...]


def causes_question(
    cases: Iterable[tuple[Case, int]], known: Iterable[str], form: AnswerForm
) -> JudgePrompt:
    """Builds the prompt.

    Args:
        cases: Each with its number of calls. Their faults are numbered from 1, in this order.
        known: Sentences of causes that are known from other cases.
        form: As for any question; endpoints without schemas are told the form in words.
    """
    lines = [f"cause {_quoted(sentence)}" for sentence in known]
    count = 0
    for number, (case, calls) in enumerate(cases, 1):
        lines.append(f"case {number}, calls: {calls}")
        for kind, what, turn, details in case.faults:
            count += 1
            lines.append(
                f"{count} {kind} {_quoted(what)} {'-' if turn is None else turn} {_quoted(details)}"
            )
        lines += [f"said {turn} {_quoted(text)}" for turn, text in case.said]
    evidence, sections = _joined(lines), sections_of(CAUSES_PROMPT)
    group = _closed(
        {"cause": {"type": "string"}, "faults": {"type": "array", "items": {"type": "integer"}}}
    )
    return JudgePrompt(
        system=f"{sections['system']}\n\n{sections['structured']}",
        user=evidence
        + filled(sections["question"], {"mark": _mark(evidence, evidence), "count": str(count)}),
        schema=_closed({"groups": {"type": "array", "items": group}})
        if form == "structured"
        else None,
    )


def read_causes(text: str | None, redactor: Redactor) -> list[tuple[str, list[int]]] | None:
    """Reads groups of faults: the sentence of each, redacted and in one line, and its numbers as
    they are; None when there are none.
    """
    groups = _object_in(text or "").get("groups")
    if not isinstance(groups, list):
        return None
    found = []
    for group in groups:
        match group:
            case {"cause": str(cause), "faults": list(numbers)} if all(
                type(number) is int for number in numbers
            ):
                sentence = redactor.beginning(
                    plain(cause[:MAX_READ_CHARS]).strip(), MAX_CAUSE_CHARS
                )
                found.append((sentence, numbers))
            case _:
                return None
    return found
