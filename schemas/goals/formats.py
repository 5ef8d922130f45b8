"""Goals in other projects' formats, rewritten as ours: agent-inspect's samples in both shapes, and EVA's dataset records.

Fields that have nothing to do with goals are left alone. All subgoals of these formats are for a judge.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from schemas.goals.tool_strings import ToolStringError, calls_in

Path = tuple[str | int, ...]
"""A place in a document: names of fields and indexes of lists."""

TOOL_KEYS: Final = ("expected_tools", "expected_tool_calls", "expectedTools")
"""The names under which agent-inspect's files and its reader know the expected calls."""

_PLACEHOLDER: Final = re.compile(r"<[A-Z][A-Z_]+>")
_MAX_SEEN_CHARS: Final = 60


@dataclass(slots=True)
class Rewritten:
    """A goal set in our format, as plain values that nobody has checked yet.

    Attributes:
        plain: The fields of a `GoalSet`.
        origins: Where parts of it came from, by their path in `plain`; each with all below it.
        mistakes: Parts that could not be rewritten, with their places in the original.
    """

    plain: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, Path] = field(default_factory=dict)
    mistakes: list[tuple[Path, str]] = field(default_factory=list)

    def take(self, name: str, value: object, path: Path) -> None:
        """A field, and where its value was."""
        self.plain[name] = value
        self.origins[(name,)] = path

    def origin(self, path: Path) -> Path:
        """Where the part of `plain` at this path was in the original."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]] + path[length:]
        return path


def rewritten(value: Mapping[str, Any]) -> Rewritten | None:
    """A sample or record of another project's; None for a document in our own format, or in none."""
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
        result.take("user_instruction", value["user_instruction"], ("user_instruction",))
    result.take("subgoals", _judged(value["sub_goals"]), ("sub_goals",))
    _take_calls(result, value, ())
    return result


def _data_file_entry(value: Mapping[str, Any], metadata: Mapping[str, Any]) -> Rewritten:
    """An element of the data files that agent-inspect ships."""
    result = Rewritten()
    _take_id(result, value)
    spoken = value.get("input")
    if isinstance(spoken, list) and spoken and isinstance(spoken[0], Mapping) and "content" in spoken[0]:
        result.take("user_instruction", spoken[0]["content"], ("input", 0, "content"))
    if "subgoals" in metadata:
        result.take("subgoals", _judged(metadata["subgoals"]), ("metadata", "subgoals"))
    _take_calls(result, metadata, ("metadata",))
    return result


def _eva_record(value: Mapping[str, Any]) -> Rewritten:
    """A record of EVA's datasets: the results that the caller must get, and the tool calls of the expected trace."""
    result = Rewritten()
    _take_id(result, value)
    path: Path = ("user_goal", "decision_tree", "must_have_criteria")
    criteria = _at(value, path)
    if criteria is None:
        result.mistakes.append((path[:1], "expected decision_tree.must_have_criteria in user_goal, a list of texts"))
    else:
        result.take("subgoals", _judged(criteria, as_details=True), path)
        if isinstance(criteria, list):
            result.origins |= {("subgoals", index, "details"): (*path, index) for index in range(len(criteria))}
    instruction = _at(value, ("user_goal", "high_level_user_goal"))
    if instruction is not None:
        result.take("user_instruction", instruction, ("user_goal", "high_level_user_goal"))
    trace_path: Path = ("ground_truth", "expected_trace", "trace")
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
    """A call of the expected trace. EVA fills in names by language when a call begins, so a name that is not known yet matches any."""
    given = event.get("params") or {}
    if not isinstance(given, Mapping):
        raise ToolStringError(f"expected params by name, seen {seen(given)}")
    parameters = [
        {"name": name, "value": value} for name, value in given.items() if not _PLACEHOLDER.search(json.dumps(value))
    ]
    return {"tool": event.get("tool_name"), "expected_parameters": parameters}


def _take_id(result: Rewritten, value: Mapping[str, Any]) -> None:
    given = value.get("id")
    if given is not None:
        result.take("id", str(given) if type(given) is int else given, ("id",))


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
            subgoals.append({**named, **{name: each[name] for name in ("details", "turn") if name in each}})
        else:
            subgoals.append(each)
    return subgoals


def _take_calls(result: Rewritten, holder: Mapping[str, Any], path: Path) -> None:
    """The expected calls under any of their names."""
    for key in TOOL_KEYS:
        entries = holder.get(key)
        if entries is None:
            continue
        if isinstance(entries, list):
            _add_calls(result, enumerate(entries), (*path, key), tool_calls_of)
        else:
            result.mistakes.append(((*path, key), f"expected a list of tool calls, seen {seen(entries)}"))


def _add_calls(
    result: Rewritten,
    entries: Iterable[tuple[int, Any]],
    path: Path,
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
            call["expected_parameters"] = [_with_mode(each) for each in _list(entry.get("tool_inputs"))]
            if entry.get("tool_output") is not None:
                call["expected_output"] = _with_mode(entry["tool_output"])
            return [call]
        case {"tool": name}:
            call = {"tool": name, "turn": entry.get("turn"), "expected_output": entry.get("expected_output")}
            call["expected_parameters"] = _list(entry.get("expected_parameters"))
            return [call]
    raise ToolStringError(f"expected a tool call with tool or tool_name, or a text with tool_code, seen {seen(entry)}")


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


def _at(value: object, path: Path) -> Any:
    """The value at a path of field names; None where there is none."""
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value
