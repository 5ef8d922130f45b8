"""Reads the agent of an EVA run: its role, instructions and tools, from the YAML file that the run's `config.json` names.

The run names the file by a path inside EVA's own folder. So it is known while the run is where EVA wrote it, below that folder,
or if the file was copied with the run under the same path.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from schemas.events.audit import MAX_TOOLS, AgentTool
from streamer.goals.documents import DocumentError, read_yaml
from streamer.recordings.files.json_files import RecordingError, kind_of
from streamer.recordings.files.places import MAX_DIRECTORY_DEPTH
from streamer.recordings.reader import run_configs

MAX_AGENT_BYTES: Final = 2_000_000
"""Largest file of an agent that is read; EVA's have some 80 kB."""
_LEVELS_ABOVE: Final = MAX_DIRECTORY_DEPTH + 2
"""How far above a record EVA's folder is: record or trial, `records`, run, `output`, and EVA's folder."""
_KEPT_AGENTS: Final = 8
"""The records of a run have one agent; several runs at a time may have several."""

# EVA takes Python's names of types too.
_TYPES: Final[Mapping[str, str]] = {
    "list": "array", "dict": "object", "str": "string", "int": "integer", "float": "number", "bool": "boolean",
}  # fmt: skip
_SCHEMA_PARTS: Final = ("enum", "items", "properties", "additionalProperties")


@dataclass(frozen=True, slots=True)
class RunAgent:
    """The agent of a run; None for each fact that its file does not have.

    Attributes:
        agent_id: Its id.
        role: Its role, a sentence.
        instructions: Its instructions, without the paragraph that EVA adds for languages other than English.
        tools: Its tools as the file has them.
        event_tools: The tools as `call_started` carries them.
    """

    agent_id: str | None = None
    role: str | None = None
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    event_tools: list[dict[str, Any]] | None = None


def agent_of_run(record_directory: Path) -> RunAgent:
    """The agent of the run that a record belongs to.

    Raises:
        RecordingError: The file of the agent cannot be read, or has another shape.
    """
    for path in _paths(record_directory):
        if path.is_file():
            state = path.stat()
            return _agent(path, state.st_mtime_ns, state.st_size)
    return RunAgent()


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
    texts = {key: value for key in ("id", "role", "instructions") if isinstance(value := document.get(key), str)}
    tools = document.get("tools")
    return RunAgent(
        texts.get("id"),
        texts.get("role"),
        texts.get("instructions"),
        None if tools is None else _checked(tools, path),
        None if tools is None else [_event_tool(tool, path) for tool in _checked(tools, path)],
    )


def _checked(tools: object, path: Path) -> list[dict[str, Any]]:
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS or not all(isinstance(tool, dict) for tool in tools):
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
        described = AgentTool(name=tool.get("name"), parameters=schema, tool_type=tool.get("tool_type"))
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise _wrong(path, f'each of "tools" with "{fault["loc"][0]}" as a short text', fault["msg"]) from error
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
        remedy="Repair it, or take it away: then the role, the instructions and the tools of the agent are not known.",
    )
