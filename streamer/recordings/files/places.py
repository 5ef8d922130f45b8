"""Finds recorded calls below a path without reading them: folders of EVA records, lines of wire-level files, and files. Files of
events are read, because the events of a call may be anywhere in them.

EVA nests the folders of a run as `records/<record>` or, with several trials, `records/<record>/trial_<n>`. The folder of an
attempt that EVA discarded has a suffix; it is left out below a run, as EVA leaves it out, and read when it is named itself.
"""

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from streamer.recordings.files.event_files import FiledEvents, calls_of_events, is_event
from streamer.recordings.files.json_files import RecordingError, raw_lines_of, shape_error

MAX_DIRECTORY_DEPTH = 3
"""How far below the given directory records are looked for: run, `records`, record, trial."""

AUDIT_FILE: Final = "audit_log.json"
RESULT_FILE: Final = "result.json"
# Where two names exist the first is newer and wins, as in EVA.
PIPECAT_FILES: Final = ("framework_logs.jsonl", "pipecat_logs.jsonl")
METRICS_FILE: Final = "pipecat_metrics.jsonl"
LATENCIES_FILE: Final = "response_latencies.json"
SIMULATOR_FILES: Final = ("user_simulator_events.jsonl", "elevenlabs_events.jsonl")
RECORD_FILES: Final = (AUDIT_FILE, RESULT_FILE, *PIPECAT_FILES, *SIMULATOR_FILES)
"""A folder with one of them is the folder of one call."""

SAMPLE: Final = Path("sample")
"""Path of the call that comes with callgauge, wherever there is no file or folder of this name."""
_SAMPLE_FILE: Final = Path(__file__).parents[1] / "sample" / "call.jsonl"

_WIRE_SUFFIXES = (".jsonl", ".jsonl.gz")
_AGENT_RECORD_SUFFIXES = (".json", ".json.gz")
_DISCARDED = re.compile(r".+_(?:failed_attempt|extra|unvalidated|attempt)_\d+")
_TRIAL = re.compile(r"trial_\d+")


@dataclass(frozen=True, slots=True)
class RecordFolder:
    """The folder of one EVA record."""

    path: Path


@dataclass(frozen=True, slots=True)
class AgentRecordFile:
    """A file with the record of one conversation with an ElevenLabs agent."""

    path: Path


@dataclass(frozen=True, slots=True)
class WireLine:
    """One line of a wire-level file, with its number from 1."""

    path: Path
    number: int
    text: bytes


Place = RecordFolder | AgentRecordFile | WireLine | FiledEvents


class RecordedPath:
    """The recorded calls below one path.

    Attributes:
        path: The path.
        known: The places below it in name order; empty for a file of lines, which are read one by one.
        discarded: Number of folders of discarded attempts, which are left out.
    """

    def __init__(self, path: Path) -> None:
        """Looks for calls, and reads none.

        Args:
            path: An EVA record or run directory, a directory of records of ElevenLabs agents, a file of recorded calls, or
                `SAMPLE`.

        Raises:
            RecordingError: There is no recorded call.
        """
        if is_sample(path):
            path = _SAMPLE_FILE
        self.path = path
        self.known: tuple[Place, ...] = ()
        self.discarded = 0
        if path.is_dir():
            try:
                self.known = tuple(self._below(path))
            except OSError as error:
                raise _unreadable(path, error) from error
            if not self.known:
                raise _nothing_in(path)
        elif not path.exists():
            raise RecordingError(
                what="there is no recorded call",
                where=str(path),
                expected="a directory of recorded calls or a .jsonl, .jsonl.gz, .json or .json.gz file",
                seen="no such file or directory",
                consequence="Nothing is read from it.",
                remedy=f"Check the spelling of the path; `{SAMPLE}` is a call that comes with callgauge.",
            )
        elif path.name.endswith(_AGENT_RECORD_SUFFIXES):
            self.known = (AgentRecordFile(path),)
        elif not path.name.endswith(_WIRE_SUFFIXES):
            raise RecordingError(
                what="this kind of file holds no recorded calls",
                where=str(path),
                expected="a name that ends in .jsonl, .jsonl.gz, .json or .json.gz",
                seen=path.name,
                remedy="Name the directory of the record instead, or rename the file if it has one event or one call a line.",
            )

    def __iter__(self) -> Iterator[Place]:
        """The places, in order; lines of a file as they are read.

        Raises:
            RecordingError: The file cannot be read any further, or is empty.
        """
        if self.known:
            yield from self.known
            return
        lines = raw_lines_of(self.path)
        first = next(lines, None)
        if first is None:
            raise shape_error(str(self.path), "one call per line, or one event", "an empty file")
        lines = itertools.chain([first], lines)
        if is_event(_object_in_line(first[1])):
            yield from calls_of_events(self.path, lines)
            return
        for number, text in lines:
            yield WireLine(self.path, number, text)

    def _below(self, directory: Path) -> Iterator[Place]:
        folders = [RecordFolder(folder) for folder in self._record_folders(directory, MAX_DIRECTORY_DEPTH)]
        # Beside EVA's records there are other documents, so these count where there is nothing of EVA's.
        yield from folders or map(AgentRecordFile, _agent_records(directory))

    def _record_folders(self, directory: Path, levels_below: int) -> Iterator[Path]:
        if is_record_folder(directory):
            yield directory
        elif levels_below:
            for child in sorted(child for child in directory.iterdir() if child.is_dir()):
                if is_discarded(child):
                    self.discarded += 1
                else:
                    yield from self._record_folders(child, levels_below - 1)


def is_sample(path: Path) -> bool:
    """Whether the path is that of the call that comes with callgauge."""
    return path == SAMPLE and not path.exists()


def is_record_folder(directory: Path) -> bool:
    """Whether a file of a record is directly in it."""
    return any((directory / name).is_file() for name in RECORD_FILES)


def is_discarded(directory: Path) -> bool:
    """Whether its name is that of an attempt which EVA discarded.

    Example:
        >>> [is_discarded(Path(name)) for name in ("1.1.2_failed_attempt_1", "trial_0_extra_2", "1.1.2", "trial_0")]
        [True, True, False, False]
    """
    return _DISCARDED.fullmatch(directory.name) is not None


def conversation_id_of(directory: Path, record_id: str | None) -> str:
    """The id of a record's call: the id of the record, and the trial if there are several, because they share that id.

    Args:
        directory: Folder of the record.
        record_id: Id in the record's own `result.json`; without one the folder's name counts.

    Example:
        >>> conversation_id_of(Path("/runs/a/records/1.1.2"), None)
        '1.1.2'
        >>> conversation_id_of(Path("/runs/a/records/1.1.2/trial_0"), "1.1.2")
        '1.1.2/trial_0'
    """
    folder = directory.resolve()
    if _TRIAL.fullmatch(folder.name):
        return f"{record_id or folder.parent.name}/{folder.name}"
    return record_id or folder.name


def without_trial(conversation_id: str) -> str:
    """The id of the record that a call is a trial of; goals are for records.

    Example:
        >>> without_trial("1.1.2/trial_0")
        '1.1.2'
    """
    record, slash, trial = conversation_id.rpartition("/")
    return record if slash and _TRIAL.fullmatch(trial) else conversation_id


def _agent_records(directory: Path) -> list[Path]:
    """Files by their name; hidden ones are of the file system."""
    files = [child for child in directory.iterdir() if child.is_file() and not child.name.startswith(".")]
    return sorted(child for child in files if child.name.endswith(_AGENT_RECORD_SUFFIXES))


def _object_in_line(line: bytes) -> Mapping[str, Any]:
    """The line as an object; an empty one if it is none, which is refused where it is read as a call."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _nothing_in(path: Path) -> RecordingError:
    return RecordingError(
        what="there is no recorded call",
        where=str(path),
        expected=f"{AUDIT_FILE} in it or in a directory up to {MAX_DIRECTORY_DEPTH} levels down, or records of "
        "conversations with an ElevenLabs agent (.json, .json.gz) in it",
        seen="none",
        remedy="Name an EVA record or run directory, a directory of such records, or a .jsonl or .jsonl.gz file of "
        "events or calls.",
    )


def _unreadable(path: Path, error: OSError) -> RecordingError:
    return RecordingError(
        what="the folder cannot be read",
        where=str(error.filename or path),
        expected="a folder that this user may look into",
        seen=error.strerror or type(error).__name__,
        remedy="Check its permissions.",
    )
