"""Reads recorded calls of every kind, with their goals."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from consumers.engine.sources.otlp import UnreadableSpansError
from consumers.runtime.process import OperatorError
from schemas.goals.goal_set import GoalSet
from streamer.goals.files import SAMPLE_GOALS, GoalIndex, doubles_in, goal_files_of, read_goal_file
from streamer.recordings.elements import Element, Form, WholeCall, element_at, form_of, told
from streamer.recordings.elevenlabs import call_in, other_webhook
from streamer.recordings.files import (
    AUDIT_FILE,
    MAX_DIRECTORY_DEPTH,
    MAX_SHOWN_CHARS,
    METRICS_FILE,
    PIPECAT_FILES,
    PIPELINE_TYPES,
    RESULT_FILE,
    SIMULATOR_FILES,
    WIRE_STREAMS,
    Events,
    FiledEvent,
    RecordedCall,
    RecordingError,
    UnplacedMetricsError,
    conversation_id_of,
    is_sample,
    kind_of,
    lines_of,
    object_in,
    read_document,
    shape_error,
    shown,
    with_llm_latencies,
    with_metrics,
    without_trial,
)
from streamer.recordings.places import (
    FiledEvents,
    Place,
    RecordedFiles,
    RecordedPath,
    RecordFolder,
    name_of,
)
from streamer.terminal import say

# Reads recorded calls, one at a time.
#
# Nothing is repaired and no line is skipped: without a broken line a recording would be a different
# call, so the line raises `RecordingError` with its file and number. Measurements that EVA stores
# beside the events go to the places where a running bot would send them.

_RUN_CONFIG_FILE = "config.json"
MAX_SAID_ENTRIES: Final = 5
"""Entries of a record that are named one by one as left out."""


class NoCallError(RecordingError):
    """A webhook of an ElevenLabs agent that holds no call; among others in a folder it
    is left out.
    """


def read_recordings(*paths: Path) -> Iterator[RecordedCall]:
    """Reads the calls of paths one after the other; only the current call is in memory, or the
    events of a file.

    Args:
        paths: Files, EVA record or run directories, directories of files, or `SAMPLE`.

    Yields:
        Each call, at least one.

    Raises:
        RecordingError: There is no recording, or something in one cannot be read.
    """
    files = RecordedFiles()
    for path in paths:
        for place in RecordedPath(path).places(files):
            try:
                yield read_call(place)
            except NoCallError as error:
                if not path.is_dir():
                    raise
                say(str(error))
    yield from map(read_call, files.of_spans())


def read_call(place: Place) -> RecordedCall:
    """Reads the call at one place.

    Raises:
        RecordingError: Something in it cannot be read.
    """
    match place:
        case RecordFolder(path):
            return _read_record_directory(path)
        case FiledEvents():
            return _call_of_events(place)
        case WholeCall(at, text):
            element = element_at(at, text)
            match form_of(element):
                case Form.CALL:
                    return _wire_call(element.value, str(at))
                case Form.RECORD:
                    return _agent_call(element)
            raise next(said for said in told(element) if isinstance(said, RecordingError))


def _read_record_directory(directory: Path) -> RecordedCall:
    audit_path = directory / AUDIT_FILE
    if not audit_path.is_file():
        raise RecordingError(
            what="the record has no audit log",
            where=str(audit_path),
            expected="a JSON document that EVA writes at the end of each call",
            seen="no such file",
            remedy=(
                'The recorded call probably crashed; as a wire-level line with "audit": null it '
                "can be played."
            ),
        )
    audit_log = read_document(audit_path)
    if "transcript" not in audit_log:
        raise shape_error(str(audit_path), 'an object with the list "transcript"', "no such key")
    result_path = directory / RESULT_FILE
    result = read_document(result_path) if result_path.is_file() else {}
    record_id = result.get("record_id")
    if record_id is not None and not (isinstance(record_id, str) and record_id):
        raise shape_error(str(result_path), '"record_id" as a text', kind_of(record_id))
    named_type = pipeline_type_of_run(directory)
    pipeline_type = named_type or "cascade"
    return RecordedCall(
        conversation_id=conversation_id_of(directory, record_id),
        pipeline_type=pipeline_type,
        conversation_ended_reason=_optional_text(
            result, "conversation_ended_reason", str(result_path)
        ),
        audit=with_llm_latencies(
            _events(audit_log["transcript"], f"{audit_path}: transcript"),
            audit_log.get("llm_prompts"),
        ),
        pipecat=_pipecat_stream(directory, pipeline_type),
        elevenlabs=_first_event_file(directory, SIMULATOR_FILES),
        directory=directory,
        names_pipeline_type=named_type is not None,
    )


def run_configs(record_directory: Path) -> Iterator[dict[str, Any]]:
    """EVA keeps the settings of a run in its `config.json`, above the record: those there are, the
    nearest first.
    """
    directory = record_directory.resolve()
    for above in (directory, *directory.parents[:MAX_DIRECTORY_DEPTH]):
        path = above / _RUN_CONFIG_FILE
        if path.is_file():
            yield read_document(path)


def pipeline_type_of_run(record_directory: Path) -> str | None:
    """How the run's models make up an agent; None where nothing says which models it has."""
    for config in run_configs(record_directory):
        model = config.get("model")
        if isinstance(model, dict):
            # Two vendors are configured as speech to speech and work as a cascade inside.
            speech_to_speech = {"elevenlabs": "cascade", "ultravox": "audio_llm"}
            if model.get("s2s"):
                return speech_to_speech.get(str(model["s2s"]), "s2s")
            if model.get("audio_llm"):
                return "audio_llm"
            return "s2s" if model.get("realtime_model") else "cascade"
    return None


def _pipecat_stream(directory: Path, pipeline_type: str) -> Events | None:
    log = _framework_log(directory, is_optional=pipeline_type == "s2s")
    metrics = _first_event_file(directory, (METRICS_FILE,))
    if metrics is None:
        return log
    try:
        return with_metrics(log, metrics)
    except UnplacedMetricsError as error:
        raise RecordingError(
            what="nothing says when these metrics were taken",
            where=str(directory / METRICS_FILE),
            expected=str(error),
            seen="none with a time, and times that count from that start",
            remedy="Remove the file of metrics: the call can be played without it.",
        ) from error


def _framework_log(directory: Path, *, is_optional: bool) -> Events | None:
    """The framework's log. No turn of a speech-to-speech call needs it, and EVA does not open it
    there.
    """
    try:
        return _first_event_file(directory, PIPECAT_FILES)
    except RecordingError as error:
        if not is_optional:
            raise
        error.consequence = (
            "The file is left out: no turn of a speech-to-speech call needs it. The rest of the "
            "call is read."
        )
        error.remedy = "Repair it for what only the framework tells, as latencies by stage."
        say(str(error))
        return None


def _first_event_file(directory: Path, names: tuple[str, ...]) -> Events | None:
    for name in names:
        path = directory / name
        if path.is_file():
            return tuple(object_in(text, f"{path}:{number}") for number, text in lines_of(path))
    return None


def _wire_call(line: dict[str, Any], where: str) -> RecordedCall:
    conversation_id = line.get("id")
    if not isinstance(conversation_id, str) or not conversation_id:
        raise shape_error(where, '"id" as a text that is not empty', kind_of(conversation_id))
    # it becomes a Kafka key and a part of messages; half a surrogate pair cannot
    if not conversation_id.isprintable():
        raise shape_error(where, '"id" of printable characters', ascii(conversation_id)[:80])
    pipeline_type = line.get("pipeline_type", "cascade")
    if pipeline_type not in PIPELINE_TYPES:
        raise shape_error(
            where, f'"pipeline_type" as one of {", ".join(PIPELINE_TYPES)}', shown(pipeline_type)
        )
    if not any(name in line for name in WIRE_STREAMS):
        raise shape_error(
            where, f"at least one of the lists {', '.join(WIRE_STREAMS)}", "none of them"
        )
    streams = {
        name: None if line.get(name) is None else _events(line[name], f"{where}: {name}")
        for name in WIRE_STREAMS
    }
    return RecordedCall(
        conversation_id=conversation_id,
        pipeline_type=pipeline_type,
        conversation_ended_reason=_optional_text(line, "conversation_ended_reason", where),
        audit=streams["audit"],
        pipecat=streams["pipecat"],
        elevenlabs=streams["user_sim"],
        control=_events(line.get("control", []), f"{where}: control"),
        agent=streams["agent"],
    )


def _call_of_events(filed: FiledEvents) -> RecordedCall:
    named = next(
        (event.get("pipeline_type") for event in filed.control if event["type"] == "call_started"),
        None,
    )
    named_type = named if isinstance(named, str) and named in PIPELINE_TYPES else None
    streams = filed.streams
    return RecordedCall(
        conversation_id=filed.conversation_id,
        pipeline_type=named_type or "cascade",
        conversation_ended_reason=None,
        audit=_listed(streams.get("audit")),
        pipecat=_listed(streams.get("pipecat")),
        elevenlabs=_listed(streams.get("user_sim")),
        control=tuple(filed.control),
        agent=_listed(streams.get("elevenlabs")),
        names_pipeline_type=named_type is not None,
    )


def _listed(events: list[FiledEvent] | None) -> Events | None:
    return None if events is None else tuple(events)


def _agent_call(element: Element) -> RecordedCall:
    at, _, document = element
    if (kind := other_webhook(document)) is not None:
        raise NoCallError(
            what=f"a webhook of the type {kind[:MAX_SHOWN_CHARS]!r} holds no call",
            where=str(at),
            expected="post_call_transcription",
            seen=kind[:MAX_SHOWN_CHARS],
            consequence="It is left out.",
            remedy="Nothing needs to be done.",
        )
    try:
        call = call_in(document)
    except UnreadableSpansError as error:
        raise shape_error(
            f"{at}: otlp_traces", "an export request of traces in JSON", str(error)
        ) from error
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        part = ".".join(map(str, detail["loc"]))
        seen = shown(detail["input"], str(detail["loc"][-1]))
        raise shape_error(f"{at}: {part}", detail["msg"], seen) from error
    for each in call.left_out[:MAX_SAID_ENTRIES]:
        say(f"{at}: {each}. The entry is left out; the rest of the call is read.")
    if (more := len(call.left_out) - MAX_SAID_ENTRIES) > 0:
        say(f"{at}: {more} more entries of other roles are left out.")
    conversation_id = call.conversation_id or name_of(at.path)
    if not conversation_id.isprintable():
        raise shape_error(
            str(at), '"conversation_id" of printable characters', ascii(conversation_id)[:80]
        )
    return RecordedCall(
        conversation_id=conversation_id,
        pipeline_type="cascade",
        conversation_ended_reason=call.ended_reason,
        audit=None,
        pipecat=None,
        elevenlabs=None,
        control=(call.started,),
        agent=call.events,
    )


def _events(value: object, where: str) -> Events:
    if not isinstance(value, list):
        raise shape_error(where, "a list of events", kind_of(value))
    for index, event in enumerate(value):
        if not isinstance(event, dict):
            raise shape_error(f"{where}[{index}]", "an event as a JSON object", kind_of(event))
    return tuple(value)


def _optional_text(holder: Mapping[str, Any], key: str, where: str) -> str | None:
    value = holder.get(key)
    if value is None or isinstance(value, str):
        return value
    raise shape_error(where, f'"{key}" as a text or null', kind_of(value))


# Chooses the goal set of a recorded call, for `callgauge score --goals`.

_MOST_LINES: Final = 10


class RecordedGoals:
    """Goal sets for recorded calls."""

    def __init__(self, sets: Iterable[GoalSet]) -> None:
        """The ids of the sets differ, and no two are for the same agent."""
        kept = tuple(sets)
        self._index = GoalIndex(kept)
        self._only = kept[0] if len(kept) == 1 else None

    def of(self, call: RecordedCall) -> GoalSet | None:
        """The set that the recording names; otherwise the set with the call's id, that of its
        agent, or the only one.
        """
        started = next((event for event in call.control if event.get("type") == "call_started"), {})
        named, agent = started.get("goals"), started.get("agent")
        if isinstance(named, str):
            return self._index.named(named)
        found = self._index.named(call.conversation_id) or self._index.named(
            without_trial(call.conversation_id)
        )
        if found is None and isinstance(agent, str):
            found = self._index.of_agent(agent)
        return found or self._only


def goals_for(paths: Sequence[Path], goals: Path | None) -> RecordedGoals | None:
    """Goal sets for the calls at these paths; None if none are named. The sample has its own.

    Raises:
        OperatorError: There is a mistake in one, or there is no goal set.
        GoalFolderError: The folder cannot be read.
    """
    if goals is None and all(map(is_sample, paths)):
        goals = SAMPLE_GOALS
    return None if goals is None else read_recorded_goals(goals)


def read_recorded_goals(path: Path) -> RecordedGoals:
    """Reads a file of goals, or a folder of them.

    Raises:
        OperatorError: There is a mistake in one, or there is no goal set.
        GoalFolderError: The folder cannot be read.
    """
    files = [read_goal_file(each) for each in (goal_files_of(path) if path.is_dir() else (path,))]
    mistakes = [*(mistake for file in files for mistake in file.mistakes), *doubles_in(files)]
    if mistakes:
        lines = [f"  {mistake}." for mistake in mistakes[:_MOST_LINES]]
        if len(mistakes) > _MOST_LINES:
            lines.append(f"  `callgauge goals check {path}` tells all {len(mistakes)} mistakes.")
        raise OperatorError("\n".join(["The goals cannot be used, so no call was scored:", *lines]))
    sets = [placed.goals for file in files for placed in file.sets]
    if not sets:
        raise OperatorError(
            f"{path}: there is no goal file in this folder: expected one that ends with .yaml, "
            ".yml, .json or .jsonl. No call was scored."
        )
    return RecordedGoals(sets)
