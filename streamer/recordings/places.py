"""Where recorded calls are: in folders, in files, and in the elements of files."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from schemas.events.simulator import Stream
from streamer.recordings.elements import Element, RecordedEvent, WholeCall, elements_in, told
from streamer.recordings.elevenlabs import unwrapped
from streamer.recordings.files import (
    AUDIT_FILE,
    MAX_DIRECTORY_DEPTH,
    MAX_DOCUMENT_BYTES,
    SAMPLE,
    SAMPLE_FILE,
    UNREADABLE,
    FiledEvent,
    RecordingError,
    is_discarded,
    is_record_folder,
    is_sample,
    shape_error,
    unpacked,
    unreadable_file,
)


@dataclass(frozen=True, slots=True)
class RecordFolder:
    """The folder of one EVA record."""

    path: Path


@dataclass(frozen=True, slots=True)
class FiledEvents:
    """The events of one call, by their stream and in the order of the file.

    Attributes:
        path: The file; of spans in several files the first one.
        conversation_id: The name of the call.
        control: Events that steer the evaluator: `call_started`, `call_ended`, `user_text_updated`
            and `turn_details`.
        streams: All other events.
    """

    path: Path
    conversation_id: str
    control: list[FiledEvent] = field(default_factory=list)
    streams: dict[Stream, list[FiledEvent]] = field(default_factory=dict)


Place = RecordFolder | WholeCall | FiledEvents
Refuse = Callable[[RecordingError], None]
"""Takes the reason why an element cannot be read. What it raises ends the reading of the file."""
_SUFFIXES: Final = (".json", ".jsonl", ".ndjson", ".pb", ".bin")
"""Files that are read in a folder, packed ones too. A file that is named itself is read whatever
its name.
"""


def raising(error: RecordingError) -> None:
    """Ends the reading of a file: without one of its elements a call would be a different one."""
    raise error


class RecordedFiles:
    """The calls in the files of a command. Spans of one trace may be in several files: they are
    sent in batches.

    Attributes:
        left_out: Elements and spans that no rule reads.
        unnamed: Events that name no call.
    """

    def __init__(self, refuse: Refuse = raising) -> None:
        """Nothing is read yet."""
        self.left_out = 0
        self.unnamed = 0
        self._refuse = refuse
        self._traces: dict[str, FiledEvents] = {}
        self._spans: set[tuple[str, ...]] = set()
        self._span_bytes = 0

    def in_file(self, path: Path) -> Iterator[Place]:
        """The calls of a file, but for those that spans tell.

        Raises:
            RecordingError: It cannot be read any further, or no rule reads anything of it; or by
                `refuse`.
        """
        try:
            with unpacked(path) as file:
                yield from self.among(elements_in(file, path), path)
        except UNREADABLE as error:
            raise unreadable_file(path, str(path), error) from error

    def among(self, elements: Iterable[Element], path: Path) -> Iterator[Place]:
        """The calls of these elements, but for those that spans tell. Raises as `in_file`."""
        calls: dict[str, FiledEvents] = {}
        events: set[tuple[str, ...]] = set()
        faults: list[tuple[RecordingError, WholeCall]] = []  # before anything that can be read
        event_bytes = whole = taken = 0
        for element in elements:
            for said in told(element):
                match said:
                    case None:
                        self.left_out += 1
                        continue
                    case RecordingError() if not calls and not whole:
                        faults.append((said, WholeCall(element.at, element.text)))
                    case RecordingError() if calls:
                        self._refuse(said)
                    case WholeCall() if said.record_id in calls:
                        # The record of a call whose live events are there, as in one topic.
                        record = FiledEvent(unwrapped(element.value), element.at)
                        calls[said.record_id].streams.setdefault("elevenlabs", []).append(record)
                    case RecordedEvent():
                        of, seen = (self._traces, self._spans) if said.is_span else (calls, events)
                        self._file_event(said, path, of, seen)
                    case _:
                        yield from (place for _, place in faults)
                        faults.clear()
                        whole += 1
                        yield WholeCall(element.at, element.text)
                taken += 1
            event_bytes += len(element.text) if calls or faults else 0
            self._span_bytes += len(element.text) if self._traces else 0
            if max(event_bytes, self._span_bytes) > MAX_DOCUMENT_BYTES:
                raise shape_error(
                    str(element.at),
                    f"at most {MAX_DOCUMENT_BYTES:,} bytes of events in one file",
                    "more",
                )
        for fault, _ in faults:
            self._refuse(fault)
        if not taken:
            expected = "events, spans or calls that a rule reads"
            raise shape_error(
                str(path), expected, f"{self.left_out} others" if self.left_out else "an empty list"
            )
        yield from calls.values()

    def of_spans(self) -> Iterator[Place]:
        """The calls that the spans of all files tell."""
        yield from self._traces.values()

    def _file_event(
        self,
        said: RecordedEvent,
        path: Path,
        calls: dict[str, FiledEvents],
        seen: set[tuple[str, ...]],
    ) -> None:
        self.unnamed += said.call is None
        name = name_of(path) if said.call is None else said.call
        if said.identity is not None and (name, *said.identity) in seen:
            return  # the same event again
        seen.update(() if said.identity is None else ((name, *said.identity),))
        call = calls.setdefault(name, FiledEvents(path, name))
        (call.control if said.stream is None else call.streams.setdefault(said.stream, [])).append(
            said.event
        )


def name_of(path: Path) -> str:
    """The id of a call that names none: the name of its file."""
    name = Path(path.name.removesuffix(".gz"))
    return name.stem if name.suffix in _SUFFIXES else name.name


class RecordedPath:
    """A path with recorded calls.

    Attributes:
        path: The path.
        known: The folders of EVA's records below it, in name order; empty for files, whose calls
            are known by reading them.
        files: The files with calls, in name order; empty where there are folders of records.
        discarded: Number of folders of discarded attempts, which are left out.
    """

    def __init__(self, path: Path, *, may_be_empty: bool = False) -> None:
        """Looks for calls, and reads none.

        Args:
            path: A file, an EVA record or run directory, a directory of files, or `SAMPLE`.
            may_be_empty: Whether a directory may have nothing to read, because somebody will write
                there.

        Raises:
            RecordingError: There is nothing to read.
        """
        if is_sample(path):
            path = SAMPLE_FILE
        self.path = path
        self.discarded = 0
        self.known: tuple[RecordFolder, ...] = ()
        self.files = [path]
        if path.is_dir():
            try:
                # Beside EVA's records there are other documents, so files count where there is
                # nothing of EVA's.
                self.known = tuple(
                    map(RecordFolder, self._record_folders(path, MAX_DIRECTORY_DEPTH))
                )
                self.files = [] if self.known else sorted(filter(_is_read, path.iterdir()))
            except OSError as error:
                raise _unreadable(path, error) from error
            if not (self.known or self.files or may_be_empty):
                raise _nothing_in(path)
        elif not path.exists():
            raise RecordingError(
                what="there is no recorded call",
                where=str(path),
                expected="a file, or a directory of recorded calls",
                seen="no such file or directory",
                consequence="Nothing is read from it.",
                remedy=(
                    f"Check the spelling of the path; `{SAMPLE}` is a call that comes with "
                    "callgauge."
                ),
            )

    def places(self, files: RecordedFiles) -> Iterator[Place]:
        """The places of its calls, in order, but for those that spans tell.

        Raises:
            RecordingError: A file cannot be read any further.
        """
        yield from self.known
        for file in self.files:
            yield from files.in_file(file)

    def _record_folders(self, directory: Path, levels_below: int) -> Iterator[Path]:
        if is_record_folder(directory):
            yield directory
        elif levels_below:
            for child in sorted(child for child in directory.iterdir() if child.is_dir()):
                if is_discarded(child):
                    self.discarded += 1
                else:
                    yield from self._record_folders(child, levels_below - 1)


def _is_read(child: Path) -> bool:
    """Whether a file of a folder is read; hidden ones are of the file system."""
    return (
        child.is_file()
        and not child.name.startswith(".")
        and Path(child.name.removesuffix(".gz")).suffix in _SUFFIXES
    )


def _nothing_in(path: Path) -> RecordingError:
    return RecordingError(
        what="there is no recorded call",
        where=str(path),
        expected=f"{AUDIT_FILE} in it or in a directory up to "
        f"{MAX_DIRECTORY_DEPTH} levels down, or "
        "files "
        f"({', '.join(_SUFFIXES)}) in it",
        seen="none",
        remedy="Name an EVA record or run directory, a directory of such files, or a file.",
    )


def _unreadable(path: Path, error: OSError) -> RecordingError:
    return RecordingError(
        what="the folder cannot be read",
        where=str(error.filename or path),
        expected="a folder that this user may look into",
        seen=error.strerror or type(error).__name__,
        remedy="Check its permissions.",
    )
