"""Finished traces in agent-inspect's formats: files, documents, and the options of its scorers."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from consumers.engine.agent_inspect import AgentTurn, ExpectedCall, Options, PlainSubgoal
from schemas.goals.goal_set import TOOL_KEYS, ToolStringError, tool_calls_of
from schemas.judging import TemplateError, check_template
from schemas.wire import MAX_NAME_CHARS
from streamer.recordings.elements import Element, elements_in
from streamer.recordings.files import (
    UNREADABLE,
    RecordingError,
    kind_of,
    shape_error,
    shown,
    unpacked,
    unreadable_file,
)
from streamer.recordings.places import RecordedPath, name_of

# Options of agent-inspect's scorers, under its names.

OPTIONS: Final = Options.__struct_fields__
"""Options that scorers read."""
TEMPLATE: Final = "template_subgoal"
_OTHER_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "include_entire_prompt_in_validation_result": "include_prompt_sent_to_llmj",
        "templates_subgoal": TEMPLATE,
    }
)
"""Names in agent-inspect's documentation, by which its code knows nothing."""


def option_in(text: str) -> tuple[str, Any]:
    """An option as a person types it: its name and a JSON value.

    Raises:
        ValueError: There is no such option, or the value is no JSON.

    Example:
        >>> option_in("max_turns=8"), option_in("optimize_judge_trials=true")
        (('max_turns', 8), ('optimize_judge_trials', True))
    """
    name, equals, value = text.partition("=")
    name = _OTHER_NAMES.get(name, name)
    if not equals or name not in OPTIONS:
        raise ValueError(f"expected NAME=VALUE with one of {', '.join(OPTIONS)}; seen {text!r}")
    if name == TEMPLATE:
        raise ValueError(
            f"a template has many lines: name its file in the setting goals.{TEMPLATE}, as "
            "file:PATH"
        )
    try:
        option = {name: json.loads(value)}
        msgspec.convert(option, Options)
    except ValueError as error:  # msgspec's too
        raise ValueError(
            f"expected a number, true, false or null for {name}; seen {value!r}"
        ) from error
    return name, option[name]


def options_in(given: Iterable[str]) -> dict[str, Any]:
    """Options by name. Raises as `option_in`."""
    return dict(map(option_in, given))


def config_in(value: object, where: str) -> Mapping[str, Any]:
    """Reads the options of a trace.

    Raises:
        RecordingError: There is no such option, or the template cannot be used.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise shape_error(where, "an object with agent-inspect's options", kind_of(value))
    config = {_OTHER_NAMES.get(name, name): each for name, each in value.items()}
    unknown = next((name for name in config if name not in OPTIONS), None)
    if unknown is not None:
        raise shape_error(where, f"some of {', '.join(OPTIONS)}", repr(unknown))
    template = config.get(TEMPLATE)
    if isinstance(template, str):
        try:
            check_template(template)
        except TemplateError as error:
            raise shape_error(
                f"{where}.{TEMPLATE}", f"a template that the judge can use: {error}", "another"
            ) from error
    return config


# Reads agent-inspect's own objects from JSON: a trace, the sample it belongs to, and the options of
# its scorers.
#
# agent-inspect has no file format, so the form is that of its dataclasses as JSON, under the names
# of its parameters. Only the shape is checked: our scorers fail where agent-inspect's fail.

KNOWN_RESULTS: Final = ("progress_scores", "progress_score", "validation_results", "success_scores")
"""Results that a line may have in place of a trace, as agent-inspect's static helpers take them."""


@dataclass(frozen=True, slots=True)
class TraceDocument:
    """One trace with its sample, as agent-inspect's scorers take them.

    Attributes:
        trace_id: Id of the line; otherwise of its sample; otherwise its place.
        turns: The turns; None where agent-inspect has None.
        subgoals: The sample's subgoals.
        expected_calls: The sample's expected tool calls; None where agent-inspect has None.
        user_instruction: The caller's instruction; None if there is none.
        options: The options.
        known: Results in place of a trace, by name.
    """

    trace_id: str
    turns: tuple[AgentTurn, ...] | None = None
    subgoals: tuple[PlainSubgoal, ...] = ()
    expected_calls: tuple[ExpectedCall, ...] | None = None
    user_instruction: str | None = None
    options: Options = Options()  # noqa: RUF009  # it never changes
    known: Mapping[str, Any] = field(default_factory=dict)


class Samples:
    """agent-inspect's samples by id, for traces that name theirs."""

    def __init__(self, samples: Iterable[tuple[str, Mapping[str, Any]]] = ()) -> None:
        """Keeps the samples.

        Args:
            samples: Each with its place, for messages.

        Raises:
            RecordingError: One has no id, or two have the same.
        """
        self._by_id: dict[str, Mapping[str, Any]] = {}
        for where, sample in samples:
            name = sample.get("id")
            if not isinstance(name, str | int) or name == "":
                raise shape_error(where, '"id" of the sample as a text or a number', kind_of(name))
            if str(name) in self._by_id:
                raise shape_error(
                    where, "an id of its own for each sample", f"{shown(str(name))} twice"
                )
            self._by_id[str(name)] = sample

    def of(self, name: str, where: str) -> Mapping[str, Any]:
        """The sample with this id.

        Raises:
            RecordingError: There is none.
        """
        if name not in self._by_id:
            expected = '"evaluation_data_sample", or the id of a sample in --goals'
            raise shape_error(
                where,
                expected,
                f"the id {shown(name)}, which names none of {len(self._by_id)} samples",
            )
        return self._by_id[name]


def document_in(
    line: Mapping[str, Any],
    where: str,
    fallback_id: str,
    samples: Samples,
    options: Mapping[str, Any],
) -> TraceDocument:
    """Reads one trace.

    Args:
        line: `agent_trace`, or its `turns` themselves; `evaluation_data_sample`; perhaps `id` and
            `config`.
        where: Its place, for messages.
        fallback_id: Its id if neither it nor its sample has one.
        samples: For traces without a sample of their own.
        options: For options that its own `config` does not have.

    Raises:
        RecordingError: It has another shape.
    """
    own_options = config_in(line.get("config"), f"{where}: config")
    config = _read(Options, {**options, **own_options}, f"{where}: config")
    known = {name: line[name] for name in KNOWN_RESULTS if name in line}
    if known:
        return TraceDocument(_id(line.get("id"), where) or fallback_id, options=config, known=known)
    trace = line if "turns" in line else line.get("agent_trace")
    if not isinstance(trace, Mapping) or "turns" not in trace:
        raise shape_error(where, '"agent_trace" as an object with the list "turns"', kind_of(trace))
    own_id = _id(line.get("id"), where)
    sample = line.get("evaluation_data_sample")
    if sample is None:
        named = _id(line.get("data_sample_id"), where) or own_id or ""
        sample = samples.of(named, where)
    if not isinstance(sample, Mapping):
        raise shape_error(where, '"evaluation_data_sample" as an object', kind_of(sample))
    where_sample = f"{where}: evaluation_data_sample"
    instruction, subgoals, calls = _parts_of(sample, where_sample)
    return TraceDocument(
        own_id or _id(sample.get("id"), where_sample) or fallback_id,
        _read(tuple[AgentTurn, ...] | None, trace["turns"], f"{where}: turns"),
        subgoals,
        _expected_calls(calls, f"{where_sample}: expected tool calls"),
        instruction,
        config,
    )


def _id(value: object, where: str) -> str | None:
    if value is None:
        return None
    name = str(value) if isinstance(value, str | int) else ""
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise shape_error(
            where, f'"id" of 1 to {MAX_NAME_CHARS} printable characters', shown(value)
        )
    return name


def _parts_of(
    sample: Mapping[str, Any], where: str
) -> tuple[str | None, tuple[PlainSubgoal, ...], Any]:
    """Instruction, subgoals and expected calls: of an `EvaluationSample`, or of an entry of the
    data files.
    """
    if "sub_goals" in sample:
        instruction, subgoals = sample.get("user_instruction"), sample["sub_goals"]
        calls = sample.get("expected_tool_calls")
    else:
        metadata = sample.get("metadata")
        if not isinstance(metadata, Mapping) or "subgoals" not in metadata:
            raise shape_error(
                where, 'the list "sub_goals", or "metadata" with "subgoals"', "neither"
            )
        spoken = sample.get("input")
        first = spoken[0] if isinstance(spoken, list) and spoken else None
        instruction = first.get("content") if isinstance(first, Mapping) else None
        subgoals = metadata["subgoals"]
        calls = next((metadata[key] for key in TOOL_KEYS if key in metadata), None)
    return (
        _read(str | None, instruction, f"{where}: the user's instruction"),
        _read(tuple[PlainSubgoal, ...], subgoals, f"{where}: subgoals"),
        calls,
    )


def _expected_calls(value: object, where: str) -> tuple[ExpectedCall, ...] | None:
    if value is None:
        return None
    calls: list[Any] = []
    for each in _read(list[Any], value, where):
        if isinstance(each, Mapping) and "tool" in each:
            calls.append(each)
            continue
        try:
            calls += tool_calls_of(each)
        except ToolStringError as error:
            raise shape_error(
                where, "an expected tool call as agent-inspect writes it", str(error)
            ) from error
    read: tuple[ExpectedCall, ...] = _read(tuple[ExpectedCall, ...], calls, where)
    return read


def _read(kind: Any, value: object, where: str) -> Any:
    """The value as one of these, with names of types and no value in the error."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = str(error).replace("`", "").replace(" | ", " or ")
        expected, is_type, seen = text.removeprefix("Expected ").partition(", got ")
        if not is_type:
            expected, seen = "all its fields", expected
        raise shape_error(where, expected, seen) from error


# Reads traces from files and folders, and samples from a file of their own, as recordings are read.

REMEDY: Final = "The form of traces is described in docs/sources/agent-inspect.md."
"""Of an error in a trace; other recordings have another form."""


class TraceFiles:
    """The files of traces below some paths."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Looks for files, and reads none.

        Raises:
            RecordingError: At one of the paths there is none.
        """
        self._files = [file for path in paths for file in RecordedPath(path).files]

    def __iter__(self) -> Iterator[Element | RecordingError]:
        """The traces in their order; an error for the rest of a file that cannot be
        read further.
        """
        for file in self._files:
            try:
                yield from _elements_of(file)
            except RecordingError as error:
                error.consequence = (
                    f"The traces before it were read; the rest of {file} is left out."
                )
                yield error


def trace_in(element: Element, samples: Samples, options: Mapping[str, Any]) -> TraceDocument:
    """Reads a trace, with these options where it has none of its own.

    Raises:
        RecordingError: It is no trace, or has no sample.
    """
    at = element.at
    stem = name_of(at.path)
    try:
        line = _object_of(element, "a trace as an object")
        return document_in(
            line, str(at), f"{stem}:{at.number}" if at.number else stem, samples, options
        )
    except RecordingError as error:
        error.consequence = "This trace is left out; the others are not concerned."
        error.remedy = REMEDY
        raise


def read_samples(path: Path | None) -> Samples:
    """Reads agent-inspect's samples: a list, one object, or one per line.

    Raises:
        RecordingError: The file cannot be read, or a sample has no id of its own.
    """
    try:
        found = () if path is None else _elements_of(path)
        return Samples((str(each.at), _object_of(each, "a sample as an object")) for each in found)
    except RecordingError as error:
        error.consequence = "Nothing was scored."
        error.remedy = REMEDY
        raise


def _elements_of(path: Path) -> Iterator[Element]:
    try:
        with unpacked(path) as file:
            yield from elements_in(file, path)
    except UNREADABLE as error:
        raise unreadable_file(path, str(path), error) from error


def _object_of(element: Element, expected: str) -> Mapping[str, Any]:
    if isinstance(element.value, RecordingError):
        raise element.value
    if not isinstance(element.value, Mapping):
        raise shape_error(str(element.at), expected, kind_of(element.value))
    return element.value
