"""Reads goal sets from plain values in any format. Every mistake has its place in the document and a remedy."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from schemas.goals.checks import CHECKS
from schemas.goals.formats import Path, Rewritten, rewritten, seen
from schemas.goals.goal_set import (
    MISTAKES_ERROR,
    ExpectedOutput,
    ExpectedParameter,
    ExpectedToolCall,
    GoalSet,
    JudgeOptions,
    Subgoal,
)


@dataclass(frozen=True, slots=True)
class GoalMistake:
    """One mistake.

    Attributes:
        path: Where it is in the document.
        text: The expected and the seen value, and the remedy: a sentence without a full stop.
    """

    path: Path
    text: str

    @property
    def place(self) -> str:
        """The path as a person writes it.

        Example:
            >>> GoalMistake((0, "subgoals", 2, "id"), "").place
            '[0].subgoals[2].id'
        """
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)
        return "".join(parts).removeprefix(".")


@dataclass(slots=True)
class ReadGoals:
    """The goal sets and mistakes in a document.

    Attributes:
        sets: The goal sets without a mistake, each with its place.
        mistakes: All mistakes, in the order of the document's parts.
    """

    sets: list[tuple[Path, GoalSet]] = field(default_factory=list)
    mistakes: list[GoalMistake] = field(default_factory=list)


def read_goals(document: object, *, fallback_id: str | None = None) -> ReadGoals:
    """Reads a goal set, or a list of them, in any of the formats.

    Args:
        document: As JSON has it.
        fallback_id: The id of a single set that has none in a format where it may be missing, such as a file's name.
    """
    found = ReadGoals()
    listed = enumerate(document) if isinstance(document, list) else [(None, document)]
    for index, value in listed:
        _read_one(found, value, () if index is None else (index,), fallback_id if index is None else None)
    if not found.sets and not found.mistakes:
        found.mistakes.append(
            GoalMistake((), "holds no goal set; expected a mapping with id and subgoals, or a list of them")
        )
    _refuse_doubles(found)
    return found


def _read_one(found: ReadGoals, value: object, path: Path, fallback_id: str | None) -> None:
    if not isinstance(value, Mapping):
        found.mistakes.append(GoalMistake(path, f"expected a goal set with id and subgoals, seen {seen(value)}"))
        return
    foreign = rewritten(value)
    read = foreign or Rewritten(plain=dict(value))
    if foreign is not None and fallback_id is not None:
        read.plain.setdefault("id", fallback_id)
    mistakes = list(read.mistakes)
    try:
        goals = GoalSet.model_validate(read.plain)
    except ValidationError as error:
        found_mistakes = _mistakes_in(error.errors(include_url=False), read.plain)
        # A field that could not be rewritten is among the mistakes already.
        mistakes += [
            (read.origin(place), text)
            for place, text in found_mistakes
            if not (read.mistakes and text.startswith("subgoals is missing"))
        ]
    else:
        if not mistakes:
            found.sets.append((path, goals))
    found.mistakes += (GoalMistake(path + place, text) for place, text in mistakes)


def _refuse_doubles(found: ReadGoals) -> None:
    """Adds a mistake for each id that is there twice, and for each agent of two sets."""
    ids: set[str] = set()
    owners: dict[str, str] = {}
    for path, goals in found.sets:
        if goals.id in ids:
            found.mistakes.append(
                GoalMistake((*path, "id"), f"{goals.id!r} is there twice; give each goal set its own id")
            )
        ids.add(goals.id)
        for index, agent in enumerate(goals.agents):
            if owners.setdefault(agent, goals.id) != goals.id:
                text = f"{agent!r} is an agent of {owners[agent]!r} too; leave it to one goal set"
                found.mistakes.append(GoalMistake((*path, "agents", index), text))


_MODEL_AT: Final[Mapping[str, type[BaseModel]]] = {
    "": GoalSet,
    "subgoals": Subgoal,
    "expected_tool_calls": ExpectedToolCall,
    "expected_parameters": ExpectedParameter,
    "expected_output": ExpectedOutput,
    **CHECKS,
}
"""By the last name on the way to a field, the model that the field belongs to."""
_MATCHERS: Final = frozenset({"equals", "one_of", "matches", "between", "present"})
_HINTS: Final[Mapping[str, str]] = {
    "id": "give it a name of its own",
    "subgoals": "give at least one, each with id, details and check",
    "details": "say in plain words what must be so",
    "check": "say how it is checked, for example `check: {kind: judge}`",
    "kind": "say which kind of check it is",
    "pattern": "give the words to look for",
    "speaker": "say whose words, user or assistant",
    "tool": "name the tool",
    "checks": "give the checks that it combines",
}
_ITS_KINDS: Final = re.compile(r"'(\w+)'")


def _mistakes_in(details: Iterable[Mapping[str, Any]], plain: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Every mistake with its path in `plain`."""
    for detail in details:
        path, current = _followed(detail["loc"], plain)
        name = str(detail["loc"][-1]) if detail["loc"] else ""
        match detail["type"]:
            case kind if kind == MISTAKES_ERROR:  # found by the set itself, of several parts
                yield from (((*path, *below), text) for below, text in detail["ctx"]["mistakes"])
            case "missing":
                yield path, f"{name} is missing; {_HINTS.get(name, 'add it')}"
            case "extra_forbidden":
                yield path, _unknown_field(detail["loc"])
            case "too_short" if len(current or ()) >= detail["ctx"]["min_length"]:
                pass  # each of its items has a mistake of its own
            case _:
                yield path, _expected(detail)


def _followed(loc: Path, plain: object) -> tuple[Path, Any]:
    """The part of pydantic's path that is in the document, without the names of variants, and the value there."""
    path: list[str | int] = []
    current: Any = plain
    for part in loc:
        if isinstance(current, Mapping):
            is_there = part in current
        else:
            is_there = isinstance(current, list) and isinstance(part, int) and part < len(current)
        if is_there:
            current = current[part]
            path.append(part)
    return tuple(path), current


def _unknown_field(loc: Path) -> str:
    owner = next((str(part) for part in reversed(loc[:-1]) if isinstance(part, str)), "")
    if owner in _MATCHERS:
        return f"there is a matcher already, and {str(loc[-1])!r} beside it is not taken; make two checks, in an all_of"
    model = _MODEL_AT.get(owner)
    known = [] if model is None else sorted(model.model_fields, key=lambda name: name in JudgeOptions.model_fields)
    close = difflib.get_close_matches(str(loc[-1]), known, n=1)
    hint = f"probably {close[0]!r} is meant" if close else f"there are {', '.join(known)}"
    return f"there is no field {str(loc[-1])!r} here; {hint}"


def _expected(detail: Mapping[str, Any]) -> str:
    message, given, context = str(detail["msg"]), detail["input"], detail.get("ctx", {})
    match detail["type"]:
        case "value_error":
            return message.removeprefix("Value error, ")
        case "unknown_matcher":
            return f"{message}; seen {seen(given)}"
        case "union_tag_invalid":
            kinds = ", ".join(_ITS_KINDS.findall(context["expected_tags"]))
            if context["tag"] == "judge":
                return f"a judge checks a whole subgoal, not a part of a check; expected one of {kinds}"
            close = difflib.get_close_matches(str(context["tag"]), kinds.split(", "), n=1)
            hint = f"probably {close[0]!r} is meant, one of {kinds}" if close else f"expected one of {kinds}"
            return f"there is no check of kind {context['tag']!r}; {hint}"
        case "union_tag_not_found":
            kind = next((name for name in given if name in CHECKS), "tool_called")
            return f"kind is missing; {_HINTS['kind']}, for example `kind: {kind}`"
        case "model_type" | "model_attributes_type" | "dict_type":
            example = ", for example `kind: judge`;" if detail["loc"][-1] == "check" else ","
            return f"expected a mapping{example} seen {seen(given)}"
        case "tuple_type" | "list_type":
            example = f", for example [{given}]," if detail["loc"][-1] == "agents" and isinstance(given, str) else ","
            return f"expected a list{example} seen {seen(given)}"
        case "string_type":
            hint = "; put it in quotes" if isinstance(given, int | float) else ""
            return f"expected a text, seen {seen(given)}{hint}"
        case "int_type" | "int_parsing" | "int_from_float":
            return f"expected a whole number, seen {seen(given)}"
        case "float_type" | "float_parsing" | "finite_number":
            return f"expected a number, seen {seen(given)}"
        case "bool_type" | "bool_parsing":
            return f"expected true or false, seen {seen(given)}"
        case "string_pattern_mismatch":
            return f"expected letters, digits, dot, dash and underscore, a letter or digit first; seen {seen(given)}"
        case "string_too_short" | "too_short":
            return "must not be empty"
        case "string_too_long":
            return f"has {len(given)} characters, and {context['max_length']} are allowed; shorten it"
        case "too_long":
            return f"has {context['actual_length']} entries, and {context['max_length']} are allowed; leave some out"
    should_be = "must be" if "than" in detail["type"] else "expected"  # a bound of a number, or one of some values
    return f"{re.sub('^Input should be', should_be, message)}; seen {seen(given)}"
