"""Recordings of EVA: agent, data set, metrics and state beside the logs of a run."""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import isfinite
from pathlib import Path
from statistics import mean
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from consumers.engine.measures.eva import DEFAULT_LANGUAGE, STAGES
from schemas.events.audit import MAX_TOOLS, AgentTool
from schemas.scores.latency_stages import MAX_STAGE_SECONDS
from schemas.units import MS_PER_SECOND
from schemas.wire import MAX_INSTRUCTIONS_CHARS, MAX_NAME_CHARS
from streamer.goals.files import DocumentError, read_yaml
from streamer.recordings.files import (
    LATENCIES_FILE,
    MAX_DIRECTORY_DEPTH,
    RESULT_FILE,
    RecordedCall,
    RecordingError,
    kind_of,
    read_document,
    with_fields,
)
from streamer.recordings.reader import run_configs

# Reads the agent of an EVA run: its role, instructions and tools, from the YAML file that the run's
# `config.json` names.
#
# The run names the file by a path inside EVA's own folder. So it is known while the run is where
# EVA wrote it, below that folder, or if the file was copied with the run under the same path.

MAX_AGENT_BYTES: Final = 2_000_000
"""Largest file of an agent that is read; EVA's have some 80 kB."""
_LEVELS_ABOVE: Final = MAX_DIRECTORY_DEPTH + 2
"""How far above a record EVA's folder is: record or trial, `records`, run, `output`, and EVA's
folder.
"""
_KEPT_AGENTS: Final = 8
"""The records of a run have one agent; several runs at a time may have several."""

# EVA takes Python's names of types too.
_TYPES: Final[Mapping[str, str]] = {
    "list": "array",
    "dict": "object",
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
}
Facts = Mapping[str, Any]
_SCHEMA_PARTS: Final = ("enum", "items", "properties", "additionalProperties")


class RunAgent(NamedTuple):
    """The agent of a run: the facts that its file has, under EVA's names, and its tools as
    `call_started` carries them.
    """

    facts: Facts
    event_tools: list[dict[str, Any]] | None = None


def agent_of_run(record_directory: Path) -> RunAgent:
    """The agent of the run that a record belongs to. Its instructions lack the paragraph that EVA
    adds for other languages than English.

    Raises:
        RecordingError: The file of the agent cannot be read, or has another shape.
    """
    for path in _paths(record_directory):
        if path.is_file():
            state = path.stat()
            return _agent(path, state.st_mtime_ns, state.st_size)
    return RunAgent({})


def _paths(record_directory: Path) -> Iterator[Path]:
    """Where the file may be: EVA's path is relative to EVA's folder."""
    directory = record_directory.resolve()
    for config in run_configs(directory):
        name = config.get("agent_config_path")
        if isinstance(name, str) and name and "\0" not in name:
            yield from (above / name for above in (directory, *directory.parents[:_LEVELS_ABOVE]))


@lru_cache(maxsize=_KEPT_AGENTS)
def _agent(path: Path, _changed_ns: int, size_bytes: int) -> RunAgent:
    if size_bytes > MAX_AGENT_BYTES:
        raise _wrong(path, f"at most {MAX_AGENT_BYTES:,} bytes", f"{size_bytes:,} bytes")
    try:
        document = read_yaml(path.read_text(encoding="utf-8")).value
    except (OSError, UnicodeDecodeError, DocumentError) as error:
        raise _wrong(path, "a YAML document", str(error)) from error
    if not isinstance(document, dict):
        raise _wrong(path, "an agent with id, role, instructions and tools", kind_of(document))
    facts: dict[str, Any] = {
        f"agent_{key}": text
        for key in ("id", "role", "instructions")
        if isinstance(text := document.get(key), str)
    }
    tools = document.get("tools")
    if tools is None:
        return RunAgent(facts)
    checked = _checked(tools, path)
    return RunAgent(
        {**facts, "agent_tools": checked}, [_event_tool(tool, path) for tool in checked]
    )


def _checked(tools: object, path: Path) -> list[dict[str, Any]]:
    if (
        not isinstance(tools, list)
        or len(tools) > MAX_TOOLS
        or not all(isinstance(tool, dict) for tool in tools)
    ):
        raise _wrong(path, f'"tools" as a list of at most {MAX_TOOLS} objects', kind_of(tools))
    return tools


def _event_tool(tool: Mapping[str, Any], path: Path) -> dict[str, Any]:
    required, optional = (
        parameters if isinstance(parameters := tool.get(key), list) else []
        for key in ("required_parameters", "optional_parameters")
    )
    schema = {
        "type": "object",
        "properties": {_name(each): _schema(each) for each in (*required, *optional)},
        "required": [_name(each) for each in required],
    }
    try:
        described = AgentTool(
            name=tool.get("name"), parameters=schema, tool_type=tool.get("tool_type")
        )
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise _wrong(
            path, f'each of "tools" with "{fault["loc"][0]}" as a short text', fault["msg"]
        ) from error
    return described.model_dump(exclude_none=True)


def _name(parameter: object) -> str:
    return str(parameter.get("name") if isinstance(parameter, dict) else parameter)


def _schema(parameter: object) -> dict[str, Any]:
    if not isinstance(parameter, dict):
        return {"type": "string"}
    kind = parameter.get("type", "string")
    parts = {key: parameter[key] for key in _SCHEMA_PARTS if parameter.get(key) is not None}
    return {"type": _TYPES.get(kind, kind) if isinstance(kind, str) else kind, **parts}


def _wrong(path: Path, expected: str, seen: str) -> RecordingError:
    return RecordingError(
        what="the file of the run's agent cannot be used",
        where=str(path),
        expected=expected,
        seen=seen,
        remedy=(
            "Repair it, or take it away: then the role, the instructions and the tools of the "
            "agent are not known."
        ),
    )


# Reads the record of EVA's data set from which a call was made, in the language of the run: the
# user's goal and persona, and the state that the call should produce.
#
# The texts of a data set have placeholders for the names of people; the record has these names for
# each language.

_PLACEHOLDER: Final = re.compile(r"<([A-Z_]+)>")
_PLACE: Final = re.compile(r"<LOC:([^>]+)>")
_ENGLISH: Final = frozenset({"en", "english"})
_ROMANIZED: Final = "_ROMANIZED"


def data_record(path: Path, language: str) -> Facts:
    """The facts that a record has, with the names of this language in place of placeholders. A
    placeholder without a name stays.

    Args:
        path: The record as a file; nothing is known where there is none.
        language: Language of the run.

    Raises:
        RecordingError: The file has another shape.
    """
    if not path.is_file():
        return {}
    data = read_document(path)
    names = _names(data, language)
    facts = {
        "user_goal": _goal(data, names, language),
        "user_persona": _filled(_text(_mapping(data, "user_config"), "user_persona"), names),
        "current_date_time": _text(data, "current_date_time"),
        "expected_scenario_db": _expected_state(data, names, path),
        "agent_instructions": _text(_mapping(data, "agent_override"), "instructions")
        or None,  # they replace those of the agent
    }
    return _known(facts)


def _known(facts: Facts) -> Facts:
    return {name: value for name, value in facts.items() if value is not None}


def _expected_state(
    data: Mapping[str, Any], names: Mapping[str, str], path: Path
) -> Mapping[str, Any] | None:
    expected = _mapping(data, "ground_truth").get("expected_scenario_db")
    if expected is None:
        return None
    if not isinstance(expected, dict):
        raise RecordingError(
            what="the record of the data set has another shape",
            where=str(path),
            expected='"ground_truth" with "expected_scenario_db" as an object',
            seen=type(expected).__name__,
            remedy=(
                "Compare with EVA's data sets, or take the file away: then the final state is not "
                "judged."
            ),
        )
    filled: Mapping[str, Any] = _filled(expected, names)
    return filled


def _goal(
    data: Mapping[str, Any], names: Mapping[str, str], language: str
) -> Mapping[str, Any] | str | None:
    """The goal as the simulated caller got it: EVA puts the opening words of the
    language into it.
    """
    goal = data.get("user_goal")
    if (
        isinstance(goal, dict)
        and (opening := _text(_mapping(data, "starting_utterances"), language)) is not None
    ):
        goal = {**goal, "starting_utterance": opening}
    if not isinstance(goal, dict | str):
        return None
    filled: Mapping[str, Any] | str = _filled(goal, names, is_english=language.lower() in _ENGLISH)
    return filled


def _names(data: Mapping[str, Any], language: str) -> dict[str, str]:
    """The texts of the placeholders in this language, by the placeholder without its brackets.

    Romanized names are for parts of addresses: EVA writes them in small letters, and takes the
    plain names where a language has no others.
    """
    plain = _mapping(_mapping(data, "culture_overrides"), language)
    romanized = _mapping(_mapping(data, "romanized_culture_overrides"), language) or plain
    in_small_letters = {name + _ROMANIZED: text.lower() for name, text in _texts(plain | romanized)}
    return dict(_texts(plain)) | in_small_letters


def _texts(values: Mapping[str, Any], of_whom: str = "") -> list[tuple[str, str]]:
    found = []
    for key, value in values.items():
        name = of_whom + key.upper()
        if isinstance(value, str):
            found.append((name, value))
        elif isinstance(value, dict) and not of_whom:  # a companion has names of their own
            found += _texts(value, name + "_")
    return found


def _filled(value: Any, names: Mapping[str, str], *, is_english: bool = False) -> Any:
    """The value with names for placeholders.

    Args:
        value: A JSON value.
        names: Texts by placeholder.
        is_english: Whether a place is called by the name in its placeholder. Other languages have
            names that only EVA's own files know.
    """
    if isinstance(value, dict):
        return {
            _filled(key, names, is_english=is_english): _filled(each, names, is_english=is_english)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_filled(each, names, is_english=is_english) for each in value]
    if isinstance(value, str):
        text = _PLACEHOLDER.sub(lambda found: names.get(found[1], found[0]), value)
        return _PLACE.sub(r"\1", text) if is_english else text
    return value


def _mapping(holder: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = holder.get(key)
    return value if isinstance(value, dict) else {}


def _text(holder: Mapping[str, Any], key: str) -> str | None:
    value = holder.get(key)
    return value if isinstance(value, str) else None


# Reads the files beside the events of an EVA record: the states before and after, the expected
# state, and the latencies.
#
# The files are `result.json`, `initial_scenario_db.json`, `final_scenario_db.json`,
# `agent_perf_stats.csv`, `response_latencies.json` and, if somebody put it there, the record of the
# data set as `dataset_record.json`. Each may be missing. The agent is the one of the run.

_TOKEN_COLUMNS: Final = {
    "mean_output_tokens": "output_tokens",
    "mean_reasoning_tokens": "reasoning_tokens",
}
_TOKEN_DIGITS: Final = 3
_MS_DIGITS: Final = 3


@dataclass(frozen=True, slots=True)
class RecordedState:
    """What the files of a record say.

    Attributes:
        facts: The facts that they have, under EVA's names: of the run, its agent and the record of
            the data set, with the states `initial_scenario_db`, `final_scenario_db` and
            `expected_scenario_db`.
        result: EVA's result of the whole call; empty without one.
        final_hash: Hash of the final state as the run computed it.
        event_tools: The tools of the agent as `call_started` carries them.
        stage_mean_ms: Mean latency by stage.
        mean_tokens: Mean number of tokens of the model's steps, by EVA's names.
    """

    facts: Facts = field(default_factory=dict)
    result: Facts = field(default_factory=dict)
    final_hash: str | None = None
    event_tools: list[dict[str, Any]] | None = None
    stage_mean_ms: Mapping[str, float] = field(default_factory=dict)
    mean_tokens: Mapping[str, float] = field(default_factory=dict)


def state_of_record(directory: Path | None) -> RecordedState:
    """Reads the files of a record.

    Args:
        directory: Directory of the record; None for a call without one, whose facts are all
            unknown.

    Raises:
        RecordingError: A file has another shape.
    """
    if directory is None:
        return RecordedState()
    result = _document(directory / RESULT_FILE) or {}
    final_hash = result.get("final_scenario_db_hash")
    language = language_of_run(directory)
    states = {
        f"{name}_scenario_db": _document(directory / f"{name}_scenario_db.json")
        for name in ("initial", "final")
    }
    data = data_record(directory / "dataset_record.json", language or DEFAULT_LANGUAGE)
    agent = agent_of_run(directory)
    return RecordedState(
        facts={**_known({"language": language, **states}), **agent.facts, **data},
        result=result,
        final_hash=final_hash if isinstance(final_hash, str) else None,
        event_tools=agent.event_tools,
        stage_mean_ms={
            stage: mean_ms
            for stage in STAGES
            if (mean_ms := _mean_ms(result.get(stage))) is not None
        },
        mean_tokens=_mean_tokens(directory / "agent_perf_stats.csv"),
    )


def language_of_run(directory: Path) -> str | None:
    """The language that the run's configuration names; None without one that can be a code.

    Raises:
        RecordingError: The configuration has another shape.
    """
    named = (config.get("language") for config in run_configs(directory))
    return next(
        (text for text in named if isinstance(text, str) and 0 < len(text) <= MAX_NAME_CHARS), None
    )


def _document(path: Path) -> dict[str, Any] | None:
    return read_document(path) if path.is_file() else None


def _mean_tokens(path: Path) -> dict[str, float]:
    """Mean tokens of output and reasoning of a step; a column without a number has no mean."""
    if not path.is_file():
        return {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecordingError(
            what="the table of the model's steps cannot be read",
            where=str(path),
            expected="comma-separated values with a line of names",
            seen=str(error),
            remedy="Repair it, or remove it: then there are no mean numbers of tokens.",
        ) from error
    means = {}
    for name, column in _TOKEN_COLUMNS.items():
        counts = [count for row in rows if (count := _count_in(row.get(column))) is not None]
        if counts:
            means[name] = round(mean(counts), _TOKEN_DIGITS)
    return means


def _count_in(cell: str | None) -> float | None:
    """The number in a cell, also as `12.0`, which pandas writes; None where there is none, or an
    infinite one.
    """
    try:
        count = float(cell or "")
    except ValueError:
        return None
    return count if isfinite(count) else None


def _mean_ms(stage: object) -> float | None:
    mean_ms = stage.get("mean_ms") if isinstance(stage, dict) else None
    return (
        float(mean_ms)
        if isinstance(mean_ms, int | float) and not isinstance(mean_ms, bool)
        else None
    )


def _latencies_ms(path: Path) -> list[float] | None:
    """The waits for the assistant that EVA measured itself. EVA's metrics do not read them, so only
    `with_state` does.
    """
    if not path.is_file():
        return None
    latencies_s = read_document(path).get("latencies")
    seen = kind_of(latencies_s)
    if isinstance(latencies_s, list):
        others = [each for each in latencies_s if not _is_length_s(each)]
        if not others:
            return [round(each * MS_PER_SECOND, _MS_DIGITS) for each in latencies_s]
        seen = f"{kind_of(others[0])} in it that is no length of a wait"
    raise RecordingError(
        what="the latencies that EVA measured cannot be read",
        where=str(path),
        expected='"latencies" as a list of seconds',
        seen=seen,
        remedy="Repair it, or remove it: then only the times of speech have latencies.",
    )


def _is_length_s(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= MAX_STAGE_SECONDS
    )


def with_state(call: RecordedCall) -> RecordedCall:
    """The call with its known states, and EVA's own latencies, added to the control events that can
    carry them.

    Raises:
        RecordingError: A file has another shape.
    """
    state = state_of_record(call.directory)
    facts = state.facts
    instructions = facts.get("agent_instructions", "")
    supplied: Mapping[str, Facts] = {
        "call_started": {
            "expected_state": facts.get("expected_scenario_db"),
            "tools": state.event_tools,
            "role": facts.get("agent_role"),
            "instructions": instructions
            if 0 < len(instructions) <= MAX_INSTRUCTIONS_CHARS
            else None,
            "current_date_time": facts.get("current_date_time"),
            "language": facts.get("language"),
        },
        "call_ended": {
            "final_state": facts.get("final_scenario_db"),
            "response_latencies_ms": None
            if call.directory is None
            else _latencies_ms(call.directory / LATENCIES_FILE),
        },
    }
    control = []
    for event in call.control:
        known = _known(supplied.get(str(event.get("type")), {}))
        news = {name: value for name, value in known.items() if name not in event}
        if "final_state" in news and state.final_hash is not None:
            event = {"final_state_hash": state.final_hash, **event}
        control.append(with_fields(event, news))
    return replace(call, control=tuple(control))
