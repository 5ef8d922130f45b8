"""Reads recorded calls: EVA record directories and wire-level files, one call at a time.

A recording is read as it is. Nothing is repaired and no line is skipped: a recording with a broken line would play as a
different call, so it raises `RecordingError` with the file and the line.
"""

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

Events = tuple[Mapping[str, Any], ...]

PIPELINE_TYPES = ("cascade", "audio_llm", "s2s")

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest line that is read; a wire-level line is a whole call, and an hour of speech is about 2 MB."""
MAX_DOCUMENT_BYTES = 256 * 1024 * 1024
"""Largest JSON document that is read; an audit log carries every prompt of its call."""
MAX_DIRECTORY_DEPTH = 3
"""How far below the given directory records are looked for: run, `records`, record, trial."""

_AUDIT_FILE = "audit_log.json"
_RESULT_FILE = "result.json"
_RUN_CONFIG_FILE = "config.json"
# Where two names exist the first is newer and wins, as in EVA.
_PIPECAT_FILES = ("framework_logs.jsonl", "pipecat_logs.jsonl")
_SIMULATOR_FILES = ("user_simulator_events.jsonl", "elevenlabs_events.jsonl")
_RECORD_FILES = (_AUDIT_FILE, *_PIPECAT_FILES, *_SIMULATOR_FILES)
_WIRE_SUFFIXES = (".jsonl", ".jsonl.gz")
_WIRE_STREAMS = ("audit", "pipecat", "user_sim")

_NOT_READ = "This call is not read and reading stops here; calls before it were read."


class RecordingError(Exception):
    """A recording cannot be read. The command line shows it and stops; nothing of the call was played.

    Attributes:
        what: What failed.
        where: File, and line where there is one.
        expected: What should have been there.
        seen: What was there.
        consequence: What happens now.
        remedy: What a person can do.
    """

    def __init__(
        self, *, what: str, where: str, expected: str, seen: str, remedy: str, consequence: str = _NOT_READ
    ) -> None:
        super().__init__(f"{where}: {what}:\n  expected {expected}; seen {seen}.\n  {consequence}\n  {remedy}")
        self.what = what
        self.where = where
        self.expected = expected
        self.seen = seen
        self.consequence = consequence
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call as its three sources and its control events, each in the order in which they were written.

    Attributes:
        conversation_id: The Kafka key of everything the call puts on topics.
        pipeline_type: `cascade`, `audio_llm` or `s2s`.
        conversation_ended_reason: Why the call ended, or None where the recording does not say.
        audit: Entries of the audit log, or None when the call has no such source.
        pipecat: Lines of the pipecat or framework log, or None when absent.
        elevenlabs: Events of the simulated caller, or None when absent (a real phone line has none).
        control: `call_started`, `call_ended` and `user_text_updated`, in time order. Empty for most recordings.
    """

    conversation_id: str
    pipeline_type: str
    conversation_ended_reason: str | None
    audit: Events | None
    pipecat: Events | None
    elevenlabs: Events | None
    control: Events = ()


def read_recordings(path: Path) -> Iterator[RecordedCall]:
    """Reads the calls below a path one after the other, in name order; only the current call is in memory.

    Args:
        path: An EVA record directory, a directory that contains record directories (up to three levels down), or a
            wire-level file (`.jsonl` or `.jsonl.gz`, one call per line).

    Yields:
        Each call, at least one.

    Raises:
        RecordingError: Nothing is there, or a file or line is not what it should be.
    """
    if path.is_dir():
        directories = list(_record_directories(path, MAX_DIRECTORY_DEPTH))
        if not directories:
            raise RecordingError(
                what="there is no recorded call",
                where=str(path),
                expected=f"{_AUDIT_FILE} in it or in a directory up to {MAX_DIRECTORY_DEPTH} levels down",
                seen="none",
                remedy="Name an EVA record or run directory, or a wire-level .jsonl or .jsonl.gz file.",
            )
        for directory in directories:
            yield _read_record_directory(directory)
    elif not path.exists():
        raise RecordingError(
            what="there is no recorded call",
            where=str(path),
            expected="an EVA record directory or a .jsonl or .jsonl.gz file",
            seen="no such file or directory",
            remedy="Check the spelling of the path.",
        )
    elif not path.name.endswith(_WIRE_SUFFIXES):
        raise RecordingError(
            what="this kind of file holds no recorded calls",
            where=str(path),
            expected="a name that ends in .jsonl or .jsonl.gz",
            seen=path.name,
            remedy="Name the directory of the record instead, or rename the file if it is wire-level.",
        )
    else:
        yield from _read_wire_file(path)


def _record_directories(directory: Path, levels_below: int) -> Iterator[Path]:
    if any((directory / name).is_file() for name in _RECORD_FILES):
        yield directory
    elif levels_below:
        for child in sorted(child for child in directory.iterdir() if child.is_dir()):
            yield from _record_directories(child, levels_below - 1)


def _read_record_directory(directory: Path) -> RecordedCall:
    audit_path = directory / _AUDIT_FILE
    if not audit_path.is_file():
        raise RecordingError(
            what="the record has no audit log",
            where=str(audit_path),
            expected="a JSON document that EVA writes at the end of each call",
            seen="no such file",
            remedy='The recorded call probably crashed; as a wire-level line with "audit": null it can be played.',
        )
    audit_log = _json_document(audit_path)
    if "transcript" not in audit_log:
        raise _shape_error(str(audit_path), 'an object with the list "transcript"', "no such key")
    result_path = directory / _RESULT_FILE
    result = _json_document(result_path) if result_path.is_file() else {}
    record_id = result.get("record_id")
    if record_id is not None and not (isinstance(record_id, str) and record_id):
        raise _shape_error(str(result_path), '"record_id" as a text', _kind(record_id))
    return RecordedCall(
        conversation_id=record_id or directory.resolve().name,
        pipeline_type=_pipeline_type_of_run(directory),
        conversation_ended_reason=_optional_text(result, "conversation_ended_reason", str(result_path)),
        audit=_events(audit_log["transcript"], f"{audit_path}: transcript"),
        pipecat=_first_event_file(directory, _PIPECAT_FILES),
        elevenlabs=_first_event_file(directory, _SIMULATOR_FILES),
    )


def _pipeline_type_of_run(record_directory: Path) -> str:
    """EVA keeps the models of a run in the run's `config.json`, above the record; a run without it is a cascade."""
    directory = record_directory.resolve()
    for above in (directory, *directory.parents[:MAX_DIRECTORY_DEPTH]):
        path = above / _RUN_CONFIG_FILE
        model = _json_document(path).get("model") if path.is_file() else None
        if isinstance(model, dict):
            # Two vendors are configured as speech to speech and are something else inside.
            speech_to_speech = {"elevenlabs": "cascade", "ultravox": "audio_llm"}
            if model.get("s2s"):
                return speech_to_speech.get(str(model["s2s"]), "s2s")
            if model.get("audio_llm"):
                return "audio_llm"
            return "s2s" if model.get("realtime_model") else "cascade"
    return "cascade"


def _first_event_file(directory: Path, names: tuple[str, ...]) -> Events | None:
    for name in names:
        path = directory / name
        if path.is_file():
            return tuple(_object(text, f"{path}:{number}") for number, text in _lines(path))
    return None


def _read_wire_file(path: Path) -> Iterator[RecordedCall]:
    number = 0
    for number, text in _lines(path):
        where = f"{path}:{number}"
        yield _wire_call(_object(text, where), where)
    if not number:
        raise _shape_error(str(path), "one call per line", "an empty file")


def _wire_call(line: dict[str, Any], where: str) -> RecordedCall:
    conversation_id = line.get("id")
    if not isinstance(conversation_id, str) or not conversation_id:
        raise _shape_error(where, '"id" as a text that is not empty', _kind(conversation_id))
    if not conversation_id.isprintable():  # it becomes a Kafka key and stands in messages; half a surrogate pair cannot
        raise _shape_error(where, '"id" of printable characters', ascii(conversation_id)[:80])
    pipeline_type = line.get("pipeline_type", "cascade")
    if pipeline_type not in PIPELINE_TYPES:
        raise _shape_error(where, f'"pipeline_type" as one of {", ".join(PIPELINE_TYPES)}', repr(pipeline_type)[:80])
    if not any(name in line for name in _WIRE_STREAMS):
        raise _shape_error(where, f"at least one of the lists {', '.join(_WIRE_STREAMS)}", "none of them")
    streams = {
        name: None if line.get(name) is None else _events(line[name], f"{where}: {name}") for name in _WIRE_STREAMS
    }
    return RecordedCall(
        conversation_id=conversation_id,
        pipeline_type=pipeline_type,
        conversation_ended_reason=_optional_text(line, "conversation_ended_reason", where),
        audit=streams["audit"],
        pipecat=streams["pipecat"],
        elevenlabs=streams["user_sim"],
        control=_events(line.get("control", []), f"{where}: control"),
    )


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers from 1, unpacked when the name says so; a blank line raises."""
    number = 0
    try:
        with path.open("rb") as stored:
            # A gzip file is no IO[bytes] to the type checker; both read bytes by line, which is all that is used.
            file = cast("IO[bytes]", gzip.GzipFile(fileobj=stored)) if path.name.endswith(".gz") else stored
            while text := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(text) > MAX_LINE_BYTES:
                    raise _shape_error(
                        f"{path}:{number}", f"a line of at most {MAX_LINE_BYTES:,} bytes", "a longer one"
                    )
                if not text.strip():
                    raise _shape_error(f"{path}:{number}", "a JSON object", "a blank line")
                yield number, text
    except (OSError, EOFError, zlib.error) as error:
        raise RecordingError(
            what="the file cannot be read",
            where=f"{path}:{number + 1}",
            expected="a readable file" + (" in gzip format" if path.name.endswith(".gz") else ""),
            seen=str(error) or type(error).__name__,
            remedy="Check permissions, and that the file was copied whole.",
        ) from error


def _json_document(path: Path) -> dict[str, Any]:
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MAX_DOCUMENT_BYTES:
            raise _shape_error(str(path), f"at most {MAX_DOCUMENT_BYTES:,} bytes", f"{size_bytes:,} bytes")
        text = path.read_bytes()
    except OSError as error:
        raise RecordingError(
            what="the file cannot be read",
            where=str(path),
            expected="a readable file",
            seen=str(error),
            remedy="Check permissions, and that the record was copied whole.",
        ) from error
    return _object(text, str(path))


def _object(text: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:  # bad UTF-8 and bad JSON are ValueErrors; deep nesting is the other
        raise RecordingError(
            what="this is not JSON",
            where=where,
            expected="a JSON object",
            seen=str(error),
            remedy="Repair or remove the line yourself: leaving it out silently would play a different call.",
        ) from error
    if not isinstance(value, dict):
        raise _shape_error(where, "a JSON object", _kind(value))
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):  # 1e999 would read as infinity, which JSON cannot write again
        raise ValueError(f"{digits[:20]} is too large for a number")
    return number


def _events(value: object, where: str) -> Events:
    if not isinstance(value, list):
        raise _shape_error(where, "a list of events", _kind(value))
    for index, event in enumerate(value):
        if not isinstance(event, dict):
            raise _shape_error(f"{where}[{index}]", "an event as a JSON object", _kind(event))
    return tuple(value)


def _optional_text(holder: Mapping[str, Any], key: str, where: str) -> str | None:
    value = holder.get(key)
    if value is None or isinstance(value, str):
        return value
    raise _shape_error(where, f'"{key}" as a text or null', _kind(value))


def _kind(value: object) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
    }
    if value is None:
        return "nothing"
    return "an empty text" if value == "" else names[type(value)]


def _shape_error(where: str, expected: str, seen: str) -> RecordingError:
    return RecordingError(
        what="the recording has another shape",
        where=where,
        expected=expected,
        seen=seen,
        remedy="Compare with the wire-level form and the record directories described in the README.",
    )
