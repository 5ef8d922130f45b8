"""Finished traces in agent-inspect's formats: files, documents, and the options of its scorers."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from consumers.engine.agent_inspect import (
    K_VALUE,
    KEEPS_COMPLETIONS,
    KEEPS_VALIDATIONS,
    MAX_TURNS,
    NO_OF_TRIALS,
    RETRY_WAVES,
    STOPS_EARLY,
    TEMPLATE,
    TRIALS,
    Argument,
    ExpectedCall,
    Required,
    Step,
    Subgoal,
    Turn,
)
from schemas.goals.goal_set import TOOL_KEYS, ToolStringError, tool_calls_of
from schemas.judging import TemplateError, check_template
from schemas.wire import MAX_NAME_CHARS
from streamer.recordings.files import (
    RecordingError,
    kind_of,
    object_in,
    raw_lines_of,
    read_json,
    require_text,
    shape_error,
    shown,
)

# Options of agent-inspect's scorers, under its names.

KEEPS_PROMPTS: Final = "include_prompt_sent_to_llmj"
OPTIONS: Final = (
    TRIALS,
    STOPS_EARLY,
    RETRY_WAVES,
    MAX_TURNS,
    KEEPS_COMPLETIONS,
    KEEPS_VALIDATIONS,
    KEEPS_PROMPTS,
    TEMPLATE,
    K_VALUE,
    NO_OF_TRIALS,
)
"""Options that scorers read."""
_OTHER_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {"include_entire_prompt_in_validation_result": KEEPS_PROMPTS, "templates_subgoal": TEMPLATE}
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
        raise ValueError(f"a template has many lines: name its file in the setting goals.{TEMPLATE}_file")
    try:
        return name, json.loads(value)
    except ValueError as error:
        raise ValueError(f"expected a number, true, false or null for {name}; seen {value!r}") from error


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
    if template is not None:
        if not isinstance(template, str):
            raise shape_error(f"{where}.{TEMPLATE}", "a text", kind_of(template))
        try:
            check_template(template)
        except TemplateError as error:
            raise shape_error(
                f"{where}.{TEMPLATE}", f"a template that the judge can use: {error}", "another"
            ) from error
    return config


# Reads agent-inspect's own objects from JSON: a trace, the sample it belongs to, and the options of its scorers.
#
# agent-inspect has no file format, so the form is that of its dataclasses as JSON, under the names of its parameters.
# A field that is missing has its default there. Only the shape is checked: our scorers fail where agent-inspect's
# fail.

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
        config: The options under agent-inspect's names.
        known: Results in place of a trace, by name.
    """

    trace_id: str
    turns: tuple[Turn, ...] | None = None
    subgoals: tuple[Subgoal, ...] = ()
    expected_calls: tuple[ExpectedCall, ...] | None = None
    user_instruction: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    known: Mapping[str, Any] = field(default_factory=dict)

    @property
    def template(self) -> str | None:
        """The prompt for subgoals; None for callgauge's own."""
        return self.config.get(TEMPLATE)


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
                raise shape_error(where, "an id of its own for each sample", f"{shown(str(name))} twice")
            self._by_id[str(name)] = sample

    def of(self, name: str, where: str) -> Mapping[str, Any]:
        """The sample with this id.

        Raises:
            RecordingError: There is none.
        """
        if name not in self._by_id:
            expected = '"evaluation_data_sample", or the id of a sample in --goals'
            raise shape_error(where, expected, f"the id {shown(name)}, which names none of {len(self._by_id)} samples")
        return self._by_id[name]


def document_in(
    line: Mapping[str, Any], where: str, fallback_id: str, samples: Samples, options: Mapping[str, Any]
) -> TraceDocument:
    """Reads one trace.

    Args:
        line: `agent_trace`, or its `turns` themselves; `evaluation_data_sample`; perhaps `id` and `config`.
        where: Its place, for messages.
        fallback_id: Its id if neither it nor its sample has one.
        samples: For traces without a sample of their own.
        options: For options that its own `config` does not have.

    Raises:
        RecordingError: It has another shape.
    """
    config = {**options, **config_in(line.get("config"), f"{where}: config")}
    known = {name: line[name] for name in KNOWN_RESULTS if name in line}
    if known:
        return TraceDocument(_id(line.get("id"), where) or fallback_id, config=config, known=known)
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
        _turns(trace["turns"], f"{where}: turns"),
        tuple(_subgoal(each, f"{where_sample}: subgoal {n}") for n, each in enumerate(subgoals, 1)),
        _expected_calls(calls, f"{where_sample}: expected tool calls"),
        instruction,
        config,
    )


def _id(value: object, where: str) -> str | None:
    if value is None:
        return None
    name = str(value) if isinstance(value, str | int) else ""
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise shape_error(where, f'"id" of 1 to {MAX_NAME_CHARS} printable characters', shown(value))
    return name


def _parts_of(sample: Mapping[str, Any], where: str) -> tuple[str | None, list[Any], Any]:
    """Instruction, subgoals and expected calls: of an `EvaluationSample`, or of an entry of the data files."""
    if "sub_goals" in sample:
        instruction, subgoals = sample.get("user_instruction"), sample["sub_goals"]
        calls = sample.get("expected_tool_calls")
    else:
        metadata = sample.get("metadata")
        if not isinstance(metadata, Mapping) or "subgoals" not in metadata:
            raise shape_error(where, 'the list "sub_goals", or "metadata" with "subgoals"', "neither")
        spoken = sample.get("input")
        first = spoken[0] if isinstance(spoken, list) and spoken else None
        instruction = first.get("content") if isinstance(first, Mapping) else None
        subgoals = metadata["subgoals"]
        calls = next((metadata[key] for key in TOOL_KEYS if key in metadata), None)
    if instruction is not None and not isinstance(instruction, str):
        raise shape_error(where, "the user's instruction as a text", kind_of(instruction))
    return instruction, _list(subgoals, f"{where}: subgoals"), calls


def _subgoal(value: object, where: str) -> Subgoal:
    given = _object(value, where)
    details = given.get("details")
    if not isinstance(details, str):
        raise shape_error(where, '"details" as a text', kind_of(details))
    return Subgoal(details, given.get("turn"), given.get("type"))


def _turns(value: object, where: str) -> tuple[Turn, ...] | None:
    if value is None:
        return None
    return tuple(_turn(each, f"{where}[{index}]") for index, each in enumerate(_list(value, where)))


def _turn(value: object, where: str) -> Turn:
    given = _object(value, where)
    response, steps = given.get("agent_response"), given.get("steps")
    return Turn(
        given.get("agent_input"),
        response.get("response") if isinstance(response, Mapping) else response,
        None if steps is None else tuple(_step(each, f"{where}.steps") for each in _list(steps, f"{where}.steps")),
        _number(given, "latency_in_ms", where),
    )


def _step(value: object, where: str) -> Step:
    given = _object(value, where)
    tool, arguments = given.get("tool"), given.get("tool_input_args")
    if tool is not None and not isinstance(tool, str):
        raise shape_error(where, '"tool" as a text or null', kind_of(tool))
    return Step(
        tool,
        None if arguments is None else tuple(_argument(each, where) for each in _list(arguments, where)),
        given.get("tool_output"),
        *(_number(given, f"{kind}_token_consumption", where) for kind in ("input", "output", "reasoning")),
    )


def _argument(value: object, where: str) -> Argument:
    given = _object(value, where)
    return Argument(_name(given, where), given.get("value"))


def _expected_calls(value: object, where: str) -> tuple[ExpectedCall, ...] | None:
    if value is None:
        return None
    calls: list[Mapping[str, Any]] = []
    for each in _list(value, where):
        if isinstance(each, Mapping) and "tool" in each:
            calls.append(each)
            continue
        try:
            calls += tool_calls_of(each)
        except ToolStringError as error:
            raise shape_error(where, "an expected tool call as agent-inspect writes it", str(error)) from error
    return tuple(_expected_call(each, where) for each in calls)


def _expected_call(value: object, where: str) -> ExpectedCall:
    given = _object(value, where)
    tool, parameters, output = given.get("tool"), given.get("expected_parameters"), given.get("expected_output")
    if tool is not None and not isinstance(tool, str):
        raise shape_error(where, '"tool" as a text', kind_of(tool))
    read = None
    if parameters is not None:
        objects = [_object(each, where) for each in _list(parameters, where)]
        read = tuple((_name(each, where), _required(each, where)) for each in objects)
    expected_output = None if output is None else _required(_object(output, where), where)
    return ExpectedCall(tool, read, expected_output, given.get("turn"))


def _required(given: Mapping[str, Any], where: str) -> Required:
    check = given.get("check")
    if check is not None and not isinstance(check, str):
        raise shape_error(where, '"check" as a text or null', kind_of(check))
    return Required(given.get("value"), check)


def _name(given: Mapping[str, Any], where: str) -> str:
    name = given.get("name")
    if not isinstance(name, str):
        raise shape_error(where, '"name" of an argument as a text', kind_of(name))
    return name


def _number(given: Mapping[str, Any], name: str, where: str) -> Any:
    value = given.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise shape_error(where, f'"{name}" as a number or null', kind_of(value))
    return value


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise shape_error(where, "an object", kind_of(value))
    return value


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise shape_error(where, "a list", kind_of(value))
    return value


# Finds traces in files and folders, and reads samples of a file of their own.

_LINES: Final = (".jsonl", ".jsonl.gz")
_WHOLE: Final = (".json", ".json.gz")
_LEFT_OUT: Final = "This trace is left out; the others are not concerned."
REMEDY: Final = "The form of traces is described in docs/sources/agent-inspect.md."
"""Of an error in a trace; other recordings have another form."""
_MOST_COUNTED_BYTES: Final = 16 * 1024 * 1024
"""Largest document that is read an additional time to count its traces, for the bar."""


@dataclass(frozen=True, slots=True)
class PlacedTrace:
    """A trace that is not read yet: its text, or its value in a document.

    Attributes:
        where: Its place, for messages.
        fallback_id: Its id if it has none.
    """

    where: str
    fallback_id: str
    value: object

    def read(self, samples: Samples, options: Mapping[str, Any]) -> TraceDocument:
        """Reads it, with these options where it has none of its own.

        Raises:
            RecordingError: It is no trace, or has no sample.
        """
        try:
            if isinstance(self.value, bytes):
                require_text(self.value, self.where)
                line: object = object_in(self.value, self.where)
            else:
                line = self.value
            if not isinstance(line, Mapping):
                raise shape_error(self.where, "a trace as an object", kind_of(line))
            return document_in(line, self.where, self.fallback_id, samples, options)
        except RecordingError as error:
            error.consequence = _LEFT_OUT
            error.remedy = REMEDY
            raise


class TraceFiles:
    """The files of traces below some paths."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Looks for files, and reads none.

        Raises:
            RecordingError: At one of the paths there is none.
        """
        self._files = [file for path in paths for file in _files_at(path)]

    def count(self) -> int | None:
        """The number of traces; None if a file cannot be read: its reader reports that."""
        try:
            return sum(_count(file) for file in self._files)
        except RecordingError:
            return None

    def __iter__(self) -> Iterator[PlacedTrace | RecordingError]:
        """The traces in their order; an error for the rest of a file that cannot be read further."""
        for file in self._files:
            try:
                yield from _traces_in(file)
            except RecordingError as error:
                error.consequence = f"The traces before it were read; the rest of {file} is left out."
                yield error


def read_samples(path: Path | None) -> Samples:
    """Reads agent-inspect's samples: a list, one object, or one per line.

    Raises:
        RecordingError: The file cannot be read, or a sample has no id of its own.
    """
    if path is None:
        return Samples()
    try:
        return Samples(_samples_in(path))
    except RecordingError as error:
        error.consequence = "Nothing was scored."
        error.remedy = REMEDY
        raise


def _samples_in(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for placed in _traces_in(path):
        value = object_in(placed.value, placed.where) if isinstance(placed.value, bytes) else placed.value
        if not isinstance(value, Mapping):
            raise shape_error(placed.where, "a sample as an object", kind_of(value))
        yield placed.where, value


def _files_at(path: Path) -> list[Path]:
    if path.is_dir():
        try:
            found = sorted(child for child in path.iterdir() if child.name.endswith((*_LINES, *_WHOLE)))
        except OSError as error:
            found, seen = [], error.strerror or type(error).__name__
        else:
            seen = "a folder without such files"
        if found:
            return found
    elif not path.exists():
        seen = "no such file or directory"
    elif path.name.endswith((*_LINES, *_WHOLE)):
        return [path]
    else:
        seen = path.name
    raise RecordingError(
        what="there are no traces of agent-inspect",
        where=str(path),
        expected="a .jsonl or .json file of traces, perhaps packed (.gz), or a folder of them",
        seen=seen,
        consequence="Nothing was scored.",
        remedy="Check the path. Each line of a .jsonl file is one trace with its sample.",
    )


def _traces_in(path: Path) -> Iterator[PlacedTrace]:
    stem = path.name.split(".json")[0]
    if path.name.endswith(_LINES):
        for number, text in raw_lines_of(path):
            yield PlacedTrace(f"{path}:{number}", f"{stem}:{number}", text)
        return
    document = read_json(path)
    if not isinstance(document, list):
        yield PlacedTrace(str(path), stem, document)
        return
    for number, value in enumerate(document, 1):
        yield PlacedTrace(f"{path}: [{number - 1}]", f"{stem}:{number}", value)


def _count(path: Path) -> int:
    if path.name.endswith(_LINES):
        return sum(1 for _ in raw_lines_of(path))
    document = read_json(path) if path.stat().st_size <= _MOST_COUNTED_BYTES else None
    return len(document) if isinstance(document, list) else 1
