"""Goal sets: subgoals, expected uses of tools, and how they are read from files and topics."""

import ast
import difflib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Final, Protocol

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    Field,
    JsonValue,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from schemas.goals.checks import (
    CHECKS,
    MAX_CHECK_DEPTH,
    MAX_CHECKS_PER_SUBGOAL,
    AnyCheck,
    GoalModel,
    Judge,
    NonEmptyName,
    patterns_of,
    with_depths,
)
from schemas.goals.patterns import worst_steps
from schemas.judging import MAX_RETRY_WAVES, MAX_TRIALS, check_template, odd
from schemas.wire import is_none

# Goal sets: the purpose of a call, as subgoals that can be checked and expected tool calls.
#
# A chosen set is published as a fact of its call, with its digest, so that the call and its replays
# keep it even if the source changes. The checks of subgoals are in `checks`.

MAX_SUBGOALS: Final = 50
"""Subgoals of one set. The largest published samples have eight; each one that a judge checks costs
money per turn.
"""
MAX_EXPECTED_TOOL_CALLS: Final = 100
"""Tool calls that one set expects; a long call makes some thirty."""
MAX_EXPECTED_PARAMETERS: Final = 50
"""Arguments of one expected call."""
MAX_AGENTS: Final = 100
"""Agents that one set is for."""
MAX_DETAILS_CHARS: Final = 4_000
"""Longest text of one subgoal: it is part of every question about it."""
MAX_INSTRUCTION_CHARS: Final = 20_000
"""Longest instruction of the caller; part of every question too. Published ones have some 3,000
characters.
"""
MAX_SET_BYTES: Final = 262_144
"""Largest set as canonical JSON. It is written to `scores` with every call, in records of at most 1
MiB.
"""
MAX_SET_STEPS: Final = 20_000
"""Steps that all patterns of a set may take at each character, at worst: some 1.5 s for the longest
text that is searched.
"""
MAX_TURNS: Final = 1_000
"""Most that `max_turns` may be: as many turns as a call may have."""
DEFAULT_MAX_TURNS: Final = 20
"""agent-inspect's default."""
MISTAKES_ERROR: Final = "goal_mistakes"
"""Type of a pydantic error whose context has `mistakes`: pairs of a path below it and a text."""

SubgoalId = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)
]
TurnOfSample = Annotated[int, Field(ge=-MAX_TURNS, le=MAX_TURNS)] | NonEmptyName | None
"""agent-inspect's `turn`: a 0-based index; texts, such as `all`, and None name no turn."""


class Subgoal(GoalModel):
    """One thing the call should get done.

    Attributes:
        id: Its name among the set's subgoals.
        details: The goal in plain words. A judge gets exactly this text; for a check by code it is
            an explanation.
        check: How it is checked.
        turn: Used by agent-inspect's static scores of finished traces only. A call may reach the
            subgoal in any turn, as in agent-inspect's progress over turns, so a set in our own
            format may not name one.
    """

    id: SubgoalId
    details: str = Field(min_length=1, max_length=MAX_DETAILS_CHARS)
    check: AnyCheck
    turn: TurnOfSample = None

    @property
    def is_judged(self) -> bool:
        """Whether a judge checks it."""
        return isinstance(self.check, Judge)


class ExpectedParameter(GoalModel):
    """An argument of an expected call: equal to `value`, or as `check` says in plain words for a
    judge.
    """

    name: NonEmptyName
    value: JsonValue = None
    check: str | None = Field(None, min_length=1, max_length=MAX_DETAILS_CHARS)

    @model_validator(mode="after")
    def _is_one_of_two(self) -> "ExpectedParameter":
        _require_value_or_check(self)
        return self


class ExpectedOutput(GoalModel):
    """The answer to an expected call: equal to `value` (null when neither is given), or as `check`
    says.
    """

    value: JsonValue = None
    check: str | None = Field(None, min_length=1, max_length=MAX_DETAILS_CHARS)

    @model_validator(mode="after")
    def _is_one_of_two(self) -> "ExpectedOutput":
        _require_value_or_check(self)
        return self


class ExpectedToolCall(GoalModel):
    """A tool call that should be made.

    Attributes:
        tool: Its name.
        expected_parameters: Arguments that must be so; others are free.
        expected_output: None takes any answer.
        turn: The 0-based index of the turn it belongs to. agent-inspect leaves out calls that name
            no turn.
    """

    tool: NonEmptyName
    expected_parameters: tuple[ExpectedParameter, ...] = Field(
        (), max_length=MAX_EXPECTED_PARAMETERS
    )
    expected_output: ExpectedOutput | None = None
    turn: TurnOfSample = None


class JudgeOptions(GoalModel):
    """How a judge is asked about the subgoals of a set, under the names of agent-inspect's options.
    None leaves it to the settings.

    Attributes:
        num_judge_trials: Most trials of a vote, odd.
        optimize_judge_trials: Whether asking ends once a majority is certain.
        max_retry_judge_trials: How often invalid answers are asked again when it does not.
        include_judge_explanation: Whether the record of a subgoal has the trials of its verdict:
            grades, explanations and, if the judge keeps them, whole answers.
        template_subgoal: A prompt of one's own, with the places of `judging.PLACES`;
            `templates_subgoal` is another name of it, that of agent-inspect's documentation.
    """

    num_judge_trials: Annotated[int, AfterValidator(odd)] | None = Field(
        None, gt=0, le=MAX_TRIALS, exclude_if=is_none
    )
    optimize_judge_trials: bool | None = Field(None, exclude_if=is_none)
    max_retry_judge_trials: int | None = Field(None, ge=0, le=MAX_RETRY_WAVES, exclude_if=is_none)
    include_judge_explanation: bool | None = Field(None, exclude_if=is_none)
    template_subgoal: Annotated[str, AfterValidator(check_template)] | None = Field(
        None,
        validation_alias=AliasChoices("template_subgoal", "templates_subgoal"),
        exclude_if=is_none,
    )


class GoalSet(JudgeOptions):
    """The purpose of a call.

    Attributes:
        id: Its name in `call_started`, and the key on the topic `goals`.
        agents: Agents whose calls get it if they name no set. Without agents, only calls that name
            it get it.
        user_instruction: The caller's instruction or wish, for the judge; None when it is not
            known.
        subgoals: Its subgoals, in the order in which they are shown and judged.
        expected_tool_calls: Tool calls that should be made, for tool correctness.
        max_turns: Turns to which progress is padded, as agent-inspect does; later turns count for
            nothing.
    """

    id: NonEmptyName
    agents: tuple[NonEmptyName, ...] = Field((), max_length=MAX_AGENTS)
    user_instruction: str | None = Field(None, max_length=MAX_INSTRUCTION_CHARS)
    subgoals: tuple[Subgoal, ...] = Field(min_length=1, max_length=MAX_SUBGOALS)
    expected_tool_calls: tuple[ExpectedToolCall, ...] = Field(
        (), max_length=MAX_EXPECTED_TOOL_CALLS
    )
    max_turns: int = Field(DEFAULT_MAX_TURNS, ge=1, le=MAX_TURNS)

    @cached_property
    def digest(self) -> str:
        """Hash of the content, the same in every process; a missing value counts as its default."""
        return hashlib.blake2b(self.canonical(), digest_size=16).hexdigest()

    def canonical(self) -> bytes:
        """The set as JSON in one fixed form."""
        # Without defaults, so that a field of a later version does not change the digest of sets
        # that do not use it.
        plain = self.model_dump(mode="json", exclude_defaults=True)
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @model_validator(mode="after")
    def _keeps_the_bounds(self) -> "GoalSet":
        mistakes = [*self._doubled(), *self._too_large_checks(), *self._too_costly()]
        if not mistakes and (size := len(self.canonical())) > MAX_SET_BYTES:
            mistakes = [
                (
                    (),
                    f"has {size} bytes as JSON, and {MAX_SET_BYTES} are allowed; shorten its texts",
                )
            ]
        if mistakes:
            texts = "; ".join(text for _, text in mistakes)
            raise PydanticCustomError(
                MISTAKES_ERROR, "{texts}", {"texts": texts, "mistakes": mistakes}
            )
        return self

    def _doubled(self) -> Iterator["PlacedText"]:
        counts = Counter(subgoal.id for subgoal in self.subgoals)
        seen = set()
        for index, subgoal in enumerate(self.subgoals):
            if subgoal.id in seen:
                times = counts[subgoal.id]
                yield (
                    ("subgoals", index, "id"),
                    f"{subgoal.id!r} names {times} subgoals; give each one its own",
                )
            seen.add(subgoal.id)
        for index, agent in enumerate(self.agents):
            if agent in self.agents[:index]:
                yield ("agents", index), f"{agent!r} is there twice; leave one out"

    def _too_large_checks(self) -> Iterator["PlacedText"]:
        for index, subgoal in enumerate(self.subgoals):
            depths = [depth for _, depth in with_depths(subgoal.check)]
            if max(depths) > MAX_CHECK_DEPTH:
                text = (
                    f"checks are nested {max(depths)} deep, and {MAX_CHECK_DEPTH} are allowed; "
                    "make several subgoals"
                )
                yield ("subgoals", index, "check"), text
            elif len(depths) > MAX_CHECKS_PER_SUBGOAL:
                text = (
                    f"has {len(depths)} checks, and {MAX_CHECKS_PER_SUBGOAL} are allowed; make "
                    "several subgoals of it"
                )
                yield ("subgoals", index, "check"), text

    def _too_costly(self) -> Iterator["PlacedText"]:
        steps = 0
        for index, subgoal in enumerate(self.subgoals):
            steps += sum(worst_steps(pattern) for pattern in patterns_of(subgoal.check))
            if steps > MAX_SET_STEPS:
                yield (
                    ("subgoals", index, "check"),
                    f"with this one, the patterns of the set may take {steps:,} steps at each "
                    f"character, and {MAX_SET_STEPS:,} are allowed; use fewer or shorter "
                    "repetitions",
                )
                return


PlacedText = tuple[tuple[str | int, ...], str]
"""A path below something, and the mistake there."""


class ChoosesGoals(Protocol):
    """A source of goal sets for the evaluator."""

    def choose(self, goals_id: str | None, agent: str | None) -> GoalSet | None:
        """Chooses the set of a call that begins now.

        Args:
            goals_id: The set that the call names; None when it names none.
            agent: The call's agent; None when it is not known.

        Returns:
            The named set, or the agent's set if the call names none; None when there is none. An
            unknown name gives None instead of the agent's set, because progress towards other goals
            than the call's own would be wrong.
        """


def _require_value_or_check(expected: ExpectedParameter | ExpectedOutput) -> None:
    if expected.check is not None and expected.value is not None:
        raise ValueError(
            "has both value and check; give value for an exact match, or check for a judge"
        )


# Tool calls as agent-inspect's data files write them: a list literal as text, with calls like
# `get_user(id=ada_1)`.

MAX_TOOL_STRING_CHARS: Final = 20_000
"""Longest text of one call; the published ones have a few hundred."""
JUDGED_VALUES: Final = frozenset({"$AnyValue", "No Remarks"})
"""Values that agent-inspect hands to a judge instead of comparing them."""
JUDGED_NAMES: Final = frozenset({"expression"})
"""Arguments that it hands to a judge whatever their value."""

_CALL: Final = re.compile(r"\s*([^\s()=,]+)\s*\((.*)\)\s*", re.DOTALL)
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
_QUOTES: Final = "'\""
_CODE: Final = re.compile(
    r"""(["'])tool_code\1\s*:\s*(["'])(?P<code>.*?)\2\s*(?:,\s*(["'])output\4\s*:|\}\s*(?=,\s*\{\s*\1tool_code\1|\]?\s*\Z))""",
    re.DOTALL,
)
"""A call in a list of them, up to its output or to the end of its object."""


class ToolStringError(ValueError):
    """A text that is no tool call; the error has the expected form."""


def calls_in(text: str) -> list[dict[str, Any]]:
    """The calls that a text holds, as fields of `ExpectedToolCall`.

    All values are texts, as in agent-inspect: a number in an actual call never equals one of them.
    Unlike its own reader this one keeps a value with commas whole.

    Raises:
        ToolStringError: It has none, or another text.

    Example:
        >>> calls_in("[{'tool_code': 'book(seats=[1, 2], note=No Remarks)', 'output': '$AnyValue'}]")
        [{'tool': 'book', 'expected_parameters': [{'name': 'seats', 'value': '[1, 2]'}, {'name': 'note', 'check': 'No Remarks'}]}]
        >>> calls_in("get_user(id='ada_1')")
        [{'tool': 'get_user', 'expected_parameters': [{'name': 'id', 'value': 'ada_1'}]}]
    """
    if len(text) > MAX_TOOL_STRING_CHARS:
        raise ToolStringError(
            f"has {len(text)} characters, and {MAX_TOOL_STRING_CHARS} are allowed"
        )
    if not text.lstrip().startswith(("[", "{")):
        return [_call(text)]
    try:
        literal = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return _calls_between(text)
    listed = literal if isinstance(literal, list) else [literal]
    if not listed or not all(
        isinstance(each, dict) and isinstance(each.get("tool_code"), str) for each in listed
    ):
        raise ToolStringError(f"expected a list like {_EXAMPLE}")
    return [_call(each["tool_code"]) for each in listed]


def _calls_between(text: str) -> list[dict[str, Any]]:
    """The calls of a list that is no literal, because values in it have the quotes that end a text:
    what stands between `tool_code` and `output`.

    agent-inspect's own reader takes nothing but the tool of such a call. Lists and objects in it
    are read, so that they can equal those of an actual call; other values are texts, as everywhere.
    """
    calls = [_call_or_tool(found["code"]) for found in _CODE.finditer(text)]
    if not calls:
        raise ToolStringError(f"expected a list like {_EXAMPLE}, and it cannot be read as one")
    for parameter in (each for call in calls for each in call["expected_parameters"]):
        if parameter.get("value", "").startswith(("[", "{")):
            with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                parameter["value"] = json.loads(json.dumps(ast.literal_eval(parameter["value"])))
    return calls


def _call_or_tool(code: str) -> dict[str, Any]:
    try:
        return _call(code)
    except ToolStringError:
        if (found := _CALL.fullmatch(code)) is None:
            raise
        return {"tool": found[1], "expected_parameters": []}


_EXAMPLE: Final = "[{'tool_code': 'get_user(id=ada_1)'}]"


def _call(code: str) -> dict[str, Any]:
    found = _CALL.fullmatch(code)
    if found is None:
        raise ToolStringError(f"expected a call like get_user(id=ada_1), seen {code[:60]!r}")
    parameters = []
    for argument in _split(found[2]):
        name, equals, value = argument.partition("=")
        name, value = name.strip(), _unquoted(value.strip())
        if not (name and equals):
            raise ToolStringError(f"expected name=value, seen {argument.strip()[:60]!r}")
        is_judged = value in JUDGED_VALUES or name in JUDGED_NAMES
        parameters.append({"name": name, "check" if is_judged else "value": value})
    return {"tool": found[1], "expected_parameters": parameters}


def _split(arguments: str) -> Iterator[str]:
    """The parts between commas, but for commas in brackets and quotes; a bracket that nothing
    closes is a character.
    """
    if not arguments.strip():
        return
    open_brackets: list[str] = []
    quote = ""
    start = 0
    for place, character in enumerate(arguments):
        if quote:
            # An apostrophe inside a word closes nothing: the quoted text ends where an argument or
            # a list item may.
            if character == quote and arguments[place + 1 :].lstrip()[:1] in (
                "",
                ",",
                "]",
                "}",
                ")",
                ":",
            ):
                quote = ""
        elif character in _QUOTES and arguments[:place].rstrip()[-1:] in (
            "=",
            ",",
            "[",
            "{",
            "(",
            ":",
        ):
            quote = character
        elif character in _CLOSING and _CLOSING[character] in arguments[place:]:
            open_brackets.append(_CLOSING[character])
        elif open_brackets and character == open_brackets[-1]:
            open_brackets.pop()
        elif character == "," and not open_brackets:
            yield arguments[start:place]
            start = place + 1
    yield arguments[start:]


def _unquoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] in _QUOTES and value[-1] == value[0]
    return value[1:-1] if is_quoted else value


# Goals in other projects' formats, rewritten as ours: agent-inspect's samples in both shapes, and
# EVA's dataset records.
#
# Fields that have nothing to do with goals are left alone. All subgoals of these formats are for a
# judge.

DocumentPath = tuple[str | int, ...]
"""A place in a document: names of fields and indexes of lists."""

TOOL_KEYS: Final = ("expected_tools", "expected_tool_calls", "expectedTools")
"""The names under which agent-inspect's files and its reader know the expected calls."""

_PLACEHOLDER: Final = re.compile(r"<[A-Z][A-Z_]+>")
_MAX_SEEN_CHARS: Final = 60


@dataclass(slots=True)
class Rewritten:
    """A goal set in our format, as plain values that are not checked yet.

    Attributes:
        plain: The fields of a `GoalSet`.
        origins: Where parts of it came from, by their path in `plain`; each with all below it.
        mistakes: Parts that could not be rewritten, with their places in the original.
    """

    plain: dict[str, Any] = field(default_factory=dict)
    origins: dict[DocumentPath, DocumentPath] = field(default_factory=dict)
    mistakes: list[tuple[DocumentPath, str]] = field(default_factory=list)

    def set_field(self, name: str, value: object, path: DocumentPath) -> None:
        """A field, and where its value was."""
        self.plain[name] = value
        self.origins[(name,)] = path

    def origin(self, path: DocumentPath) -> DocumentPath:
        """Where the part of `plain` at this path was in the original."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]] + path[length:]
        return path


def rewritten(value: Mapping[str, Any]) -> Rewritten | None:
    """A sample or record of another project's; None for a document in our own format,
    or in none.
    """
    if "user_goal" in value or "ground_truth" in value:
        return _eva_record(value)
    if "sub_goals" in value:
        return _sample(value)
    metadata = value.get("metadata")
    if isinstance(metadata, Mapping) and any(key in metadata for key in ("subgoals", *TOOL_KEYS)):
        return _data_file_entry(value, metadata)
    return None


def seen(value: object) -> str:
    """A value as a message shows it.

    Example:
        >>> seen({"kind": "judge"}), seen(None)
        ('{"kind": "judge"}', 'null')
    """
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= _MAX_SEEN_CHARS else shown[: _MAX_SEEN_CHARS - 3] + "..."


def _sample(value: Mapping[str, Any]) -> Rewritten:
    """The fields of agent-inspect's `EvaluationSample`."""
    result = Rewritten()
    _take_id(result, value)
    if value.get("user_instruction") is not None:
        result.set_field("user_instruction", value["user_instruction"], ("user_instruction",))
    result.set_field("subgoals", _judged(value["sub_goals"]), ("sub_goals",))
    _take_calls(result, value, ())
    return result


def _data_file_entry(value: Mapping[str, Any], metadata: Mapping[str, Any]) -> Rewritten:
    """An element of the data files that agent-inspect ships."""
    result = Rewritten()
    _take_id(result, value)
    spoken = value.get("input")
    if (
        isinstance(spoken, list)
        and spoken
        and isinstance(spoken[0], Mapping)
        and "content" in spoken[0]
    ):
        result.set_field("user_instruction", spoken[0]["content"], ("input", 0, "content"))
    if "subgoals" in metadata:
        result.set_field("subgoals", _judged(metadata["subgoals"]), ("metadata", "subgoals"))
    _take_calls(result, metadata, ("metadata",))
    return result


def _eva_record(value: Mapping[str, Any]) -> Rewritten:
    """A record of EVA's datasets: the results that the caller must get, and the tool calls of the
    expected trace.
    """
    result = Rewritten()
    _take_id(result, value)
    path: DocumentPath = ("user_goal", "decision_tree", "must_have_criteria")
    criteria = _at(value, path)
    if criteria is None:
        result.mistakes.append(
            (path[:1], "expected decision_tree.must_have_criteria in user_goal, a list of texts")
        )
    else:
        result.set_field("subgoals", _judged(criteria, as_details=True), path)
        if isinstance(criteria, list):
            result.origins |= {
                ("subgoals", index, "details"): (*path, index) for index in range(len(criteria))
            }
    instruction = _at(value, ("user_goal", "high_level_user_goal"))
    if instruction is not None:
        result.set_field("user_instruction", instruction, ("user_goal", "high_level_user_goal"))
    trace_path: DocumentPath = ("ground_truth", "expected_trace", "trace")
    trace = _at(value, trace_path)
    if isinstance(trace, list):
        called = [
            (index, event)
            for index, event in enumerate(trace)
            if isinstance(event, Mapping) and event.get("event_type") == "tool_call"
        ]
        _add_calls(result, called, trace_path, lambda event: [_eva_call(event)])
    return result


def _eva_call(event: Mapping[str, Any]) -> dict[str, Any]:
    """A call of the expected trace. EVA fills in names by language when a call begins, so a name
    that is not known yet matches any.
    """
    given = event.get("params") or {}
    if not isinstance(given, Mapping):
        raise ToolStringError(f"expected params by name, seen {seen(given)}")
    parameters = [
        {"name": name, "value": value}
        for name, value in given.items()
        if not _PLACEHOLDER.search(json.dumps(value))
    ]
    return {"tool": event.get("tool_name"), "expected_parameters": parameters}


def _take_id(result: Rewritten, value: Mapping[str, Any]) -> None:
    given = value.get("id")
    if given is not None:
        result.set_field("id", str(given) if type(given) is int else given, ("id",))


def _judged(raw: object, *, as_details: bool = False) -> object:
    """Subgoals for a judge, numbered from 1; the checks explain an entry that is no subgoal."""
    if not isinstance(raw, list):
        return raw
    subgoals: list[object] = []
    for number, each in enumerate(raw, 1):
        named = {"id": str(number), "check": {"kind": "judge"}}
        if as_details:
            subgoals.append({**named, "details": each})
        elif isinstance(each, Mapping):
            subgoals.append(
                {**named, **{name: each[name] for name in ("details", "turn") if name in each}}
            )
        else:
            subgoals.append(each)
    return subgoals


def _take_calls(result: Rewritten, holder: Mapping[str, Any], path: DocumentPath) -> None:
    """The expected calls under any of their names."""
    for key in TOOL_KEYS:
        entries = holder.get(key)
        if entries is None:
            continue
        if isinstance(entries, list):
            _add_calls(result, enumerate(entries), (*path, key), tool_calls_of)
        else:
            result.mistakes.append(
                ((*path, key), f"expected a list of tool calls, seen {seen(entries)}")
            )


def _add_calls(
    result: Rewritten,
    entries: Iterable[tuple[int, Any]],
    path: DocumentPath,
    calls_of: Callable[[Any], list[dict[str, Any]]],
) -> None:
    calls = result.plain.setdefault("expected_tool_calls", [])
    for index, entry in entries:
        try:
            for call in calls_of(entry):
                result.origins["expected_tool_calls", len(calls)] = (*path, index)
                calls.append(call)
        except ToolStringError as error:
            result.mistakes.append(((*path, index), str(error)))


def tool_calls_of(entry: Any) -> list[dict[str, Any]]:
    """The calls of one entry, in any of the ways in which agent-inspect's files write them.

    Raises:
        ToolStringError: It is no such entry.
    """
    match entry:
        case str():
            return calls_in(entry)
        case {"tool_code": str() as code}:
            return calls_in(code)
        case {"tool_name": name}:
            call: dict[str, Any] = {"tool": name, "turn": entry.get("turn")}
            call["expected_parameters"] = [
                _with_mode(each) for each in _list(entry.get("tool_inputs"))
            ]
            if entry.get("tool_output") is not None:
                call["expected_output"] = _with_mode(entry["tool_output"])
            return [call]
        case {"tool": name}:
            call = {
                "tool": name,
                "turn": entry.get("turn"),
                "expected_output": entry.get("expected_output"),
            }
            call["expected_parameters"] = _list(entry.get("expected_parameters"))
            return [call]
    raise ToolStringError(
        f"expected a tool call with tool or tool_name, or a text with tool_code, seen {seen(entry)}"
    )


def _with_mode(given: Any) -> dict[str, Any]:
    """A value with a mode, as `value` or `check`."""
    match given:
        case {"mode": "exact", "content": content}:
            rule = {"value": content}
        case {"mode": "judge", "content": content}:
            rule = {"check": content}
        case _:
            raise ToolStringError(f"expected content with mode exact or judge, seen {seen(given)}")
    return {**({"name": given["name"]} if "name" in given else {}), **rule}


def _list(value: object) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ToolStringError(f"expected a list, seen {seen(value)}")
    return value


def _at(value: object, path: DocumentPath) -> Any:
    """The value at a path of field names; None where there is none."""
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


# Reads goal sets from plain values in any format. Every mistake has its place in the document and a
# remedy.


@dataclass(frozen=True, slots=True)
class GoalMistake:
    """One mistake.

    Attributes:
        path: Where it is in the document.
        text: The expected and the seen value, and the remedy: a sentence without a full stop.
    """

    path: DocumentPath
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

    sets: list[tuple[DocumentPath, GoalSet]] = field(default_factory=list)
    mistakes: list[GoalMistake] = field(default_factory=list)


def read_goals(document: object, *, fallback_id: str | None = None) -> ReadGoals:
    """Reads a goal set, or a list of them, in any of the formats.

    Args:
        document: As JSON has it.
        fallback_id: The id of a single set that has none in a format where it may be missing, such
            as a file's name.
    """
    found = ReadGoals()
    listed = enumerate(document) if isinstance(document, list) else [(None, document)]
    for index, value in listed:
        _read_one(
            found, value, () if index is None else (index,), fallback_id if index is None else None
        )
    if not found.sets and not found.mistakes:
        found.mistakes.append(
            GoalMistake(
                (), "holds no goal set; expected a mapping with id and subgoals, or a list of them"
            )
        )
    _refuse_doubles(found)
    return found


def _read_one(found: ReadGoals, value: object, path: DocumentPath, fallback_id: str | None) -> None:
    if not isinstance(value, Mapping):
        found.mistakes.append(
            GoalMistake(path, f"expected a goal set with id and subgoals, seen {seen(value)}")
        )
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
        if foreign is None:
            mistakes += _unread_turns(goals)
        if not mistakes:
            found.sets.append((path, goals))
    found.mistakes += (GoalMistake(path + place, text) for place, text in mistakes)


def _unread_turns(goals: GoalSet) -> Iterator["PlacedText"]:
    for index, subgoal in enumerate(goals.subgoals):
        if isinstance(subgoal.turn, int):
            text = (
                "no call is judged by it: a subgoal may be reached in any turn; seen "
                f"{subgoal.turn}. Leave it out, or put the check into one of kind `within`"
            )
            yield ("subgoals", index, "turn"), text


def _refuse_doubles(found: ReadGoals) -> None:
    """Adds a mistake for each id that is there twice, and for each agent of two sets."""
    ids: set[str] = set()
    owners: dict[str, str] = {}
    for path, goals in found.sets:
        if goals.id in ids:
            found.mistakes.append(
                GoalMistake(
                    (*path, "id"), f"{goals.id!r} is there twice; give each goal set its own id"
                )
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


def _mistakes_in(
    details: Iterable[Mapping[str, Any]], plain: Mapping[str, Any]
) -> Iterator[tuple[DocumentPath, str]]:
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


def _followed(loc: DocumentPath, plain: object) -> tuple[DocumentPath, Any]:
    """The part of pydantic's path that is in the document, without the names of variants, and the
    value there.
    """
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


def _unknown_field(loc: DocumentPath) -> str:
    owner = next((str(part) for part in reversed(loc[:-1]) if isinstance(part, str)), "")
    if owner in _MATCHERS:
        return (
            f"there is a matcher already, and {str(loc[-1])!r} beside it is not taken; make two "
            "checks, in an all_of"
        )
    model = _MODEL_AT.get(owner)
    known = (
        []
        if model is None
        else sorted(model.model_fields, key=lambda name: name in JudgeOptions.model_fields)
    )
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
                return (
                    "a judge checks a whole subgoal, not a part of a check; expected one of "
                    f"{kinds}"
                )
            close = difflib.get_close_matches(str(context["tag"]), kinds.split(", "), n=1)
            hint = (
                f"probably {close[0]!r} is meant, one of {kinds}"
                if close
                else f"expected one of {kinds}"
            )
            return f"there is no check of kind {context['tag']!r}; {hint}"
        case "union_tag_not_found":
            kind = next((name for name in given if name in CHECKS), "tool_called")
            return f"kind is missing; {_HINTS['kind']}, for example `kind: {kind}`"
        case "model_type" | "model_attributes_type" | "dict_type":
            example = ", for example `kind: judge`;" if detail["loc"][-1] == "check" else ","
            return f"expected a mapping{example} seen {seen(given)}"
        case "tuple_type" | "list_type":
            example = (
                f", for example [{given}],"
                if detail["loc"][-1] == "agents" and isinstance(given, str)
                else ","
            )
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
            return (
                "expected letters, digits, dot, dash and underscore, a letter or digit first; seen "
                f"{seen(given)}"
            )
        case "string_too_short" | "too_short":
            return "must not be empty"
        case "string_too_long":
            return (
                f"has {len(given)} characters, and {context['max_length']} are allowed; shorten it"
            )
        case "too_long":
            return (
                f"has {context['actual_length']} entries, and {context['max_length']} are allowed; "
                "leave some out"
            )
    # a bound of a number, or one of some values
    should_be = "must be" if "than" in detail["type"] else "expected"
    return f"{re.sub('^Input should be', should_be, message)}; seen {seen(given)}"
