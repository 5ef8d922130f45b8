"""EVA's metric contexts and results of recorded calls."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

from consumers.engine.admission import Arrival, admit
from consumers.engine.call import Call
from consumers.engine.contexts import is_finished
from consumers.engine.evaluator import NO_LIMITS, folded
from consumers.engine.limits import Limits
from consumers.engine.measures.eva import metrics_of, state_hash
from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import InputSource
from schemas.events.envelope import TYPE_HEADER, agent_event_type
from schemas.metric_context import MetricContext, TurnsBy
from schemas.quarantine import QuarantineRecord
from schemas.topics import TOPIC_BY_SOURCE
from streamer.recordings.eva import RecordedState, state_of_record
from streamer.recordings.files import MAX_DOCUMENT_BYTES, RecordedCall, without_trial
from streamer.sources.replay import WireEvent, in_random_order, in_time_order

# The events of a recorded call as the evaluator gets them from Kafka: the same checks apply, but no
# limit of duration.

_INTAKE_LIMITS: Final[Limits] = NO_LIMITS.model_copy(
    update={"max_record_bytes": MAX_DOCUMENT_BYTES}
)


@dataclass(slots=True)
class _FiledRecord:
    """An event of a recording in the shape of a Kafka record; the broker took it when it was
    produced.
    """

    topic: str
    offset: int
    timestamp: int
    key: bytes
    value: bytes
    partition: int = 0
    headers: tuple[tuple[str, bytes], ...] = ()


class RefusedEvent(NamedTuple):
    """An event that the evaluator would quarantine: where it stands, and the record with the
    reason.
    """

    place: str
    record: QuarantineRecord

    def __str__(self) -> str:
        """The sentence about it."""
        record = self.record
        remedy = record.what_to_do.replace(", then put the record back", "")
        return (
            f"{self.place}: {record.what}: {record.expected_and_seen}. Left out, as the evaluator "
            f"would. {remedy}"
        )


def arrivals_of(
    conversation_id: str,
    events: Iterable[WireEvent],
    refused: list[RefusedEvent],
    redactor: Redactor | None = None,
) -> Iterator[Arrival | None]:
    """Checks the events of a call as the evaluator does, one by one.

    Args:
        conversation_id: The call's id, which is the key of its records.
        events: In the order of reading; events of one source stay in order.
        refused: Gets the events that the evaluator would quarantine.
        redactor: Redacts the texts in those records; None uses the default rules.

    Yields:
        The arrival of each event; None for one that was refused.
    """
    offsets = {source: count() for source in InputSource}
    key = conversation_id.encode()
    for event in events:
        source = InputSource(event.source)
        # The engine recognises events of a real agent by the envelope; the rest of the envelope is
        # not needed.
        headers = (
            ((TYPE_HEADER, agent_event_type(event.event_name).encode()),)
            if event.is_agent_event
            else ()
        )
        record = _FiledRecord(
            TOPIC_BY_SOURCE[source],
            next(offsets[source]),
            event.arrival_ms,
            key,
            event.value,
            headers=headers,
        )
        match admit(source, record, _INTAKE_LIMITS, redactor):
            case QuarantineRecord() as refusal:
                place = f"Call {conversation_id}, event {record.offset + 1} of {record.topic}"
                refused.append(RefusedEvent(place if event.at is None else str(event.at), refusal))
                yield None
            case arrival:
                yield arrival


_MOST_LINES_PER_CALL: Final = 3


def about_refused(conversation_id: str, refused: Sequence[RefusedEvent]) -> list[str]:
    """The sentences about the events of a call that are not in its results."""
    sentences = [str(each) for each in refused[:_MOST_LINES_PER_CALL]]
    if (more := len(refused) - _MOST_LINES_PER_CALL) > 0:
        sentences.append(f"Call {conversation_id}: {more} more events left out.")
    return sentences


# Recorded calls through the engine without a broker, for `callgauge context` and `callgauge score
# --format eva`. A recording is complete, so none of the engine's limits applies to it.

_SOUND_FILES: Final = ("audio_assistant_path", "audio_user_path", "audio_mixed_path")


class EvaResult(NamedTuple):
    """What EVA's metrics read of a recorded call, or what they give.

    Attributes:
        values: The context in its JSON encoding; or the metrics by name, in the encoding of EVA's
            result files: its own zeros, errors and skips.
        refused: Events that the evaluator would have quarantined, in the order of arrival; they are
            not in the values.
        turns_by: Whose turns they are.
    """

    values: dict[str, Any]
    refused: tuple[RefusedEvent, ...]
    turns_by: TurnsBy = "eva"


def context_of(recorded: RecordedCall, arrival_seed: int | None = None) -> EvaResult:
    """The metric context of a call at its end, in its JSON encoding. Arguments and errors are those
    of `recorded_context`.
    """
    context, refused = recorded_context(recorded, arrival_seed)
    # The folder of a record says which facts there could be.
    plain = context.to_dict(with_unset=recorded.directory is not None)
    return EvaResult(plain, refused, context.turns_by)


def recorded_context(
    recorded: RecordedCall, arrival_seed: int | None = None
) -> tuple[MetricContext, tuple[RefusedEvent, ...]]:
    """The metric context of a call at its end, and the events that the evaluator would have
    quarantined.

    Args:
        recorded: The call. One of a folder is EVA's, whatever is missing in it.
        arrival_seed: Decides in which order events of different sources arrive; None is by their
            times.

    Raises:
        RecordingError: A file of the record cannot be read.
    """
    call, refused = folded_recording(recorded, arrival_seed)
    if recorded.directory is None:
        return call.context(), tuple(refused)
    return whole_context(recorded, call, state_of_record(recorded.directory)), tuple(refused)


def eva_metrics_of(recorded: RecordedCall, arrival_seed: int | None = None) -> EvaResult:
    """EVA's metrics of a call at its end. Arguments and errors are those of `recorded_context`."""
    state = state_of_record(recorded.directory)
    call, refused = folded_recording(recorded, arrival_seed)
    context = whole_context(recorded, call, state)
    results = metrics_of(context, call.history, state.stage_mean_ms, state.mean_tokens)
    return EvaResult({name: results[name].to_dict() for name in sorted(results)}, tuple(refused))


def whole_context(recorded: RecordedCall, call: Call, state: RecordedState) -> MetricContext:
    """EVA's own context of a call with the facts that EVA's runner adds, as far as its files or its
    events have them.

    Args:
        recorded: The call.
        call: The same after its last event.
        state: The files of its record.
    """
    context = call.as_eva_has_it()
    if recorded.directory is None:
        return context
    # The files of a record say more than the events do.
    of_files = _of_files(recorded.conversation_id, recorded.directory, state)
    if context.tools_called is not None:
        del of_files["tools_called"]
    return context.model_copy(
        update={name: value for name, value in of_files.items() if value is not None}
    )


def _of_files(conversation_id: str, directory: Path, state: RecordedState) -> dict[str, Any]:
    """Facts by EVA's name; None for each that no file has."""
    result, facts = state.result, state.facts
    return {
        **facts,
        "record_id": _known(result, "record_id", str) or without_trial(conversation_id),
        "initial_scenario_db_hash": _known(result, "initial_scenario_db_hash", str)
        or _hash_of(facts.get("initial_scenario_db")),
        "final_scenario_db_hash": state.final_hash or _hash_of(facts.get("final_scenario_db")),
        "num_turns": _known(result, "num_turns", int),
        "tools_called": _known(result, "tools_called", list),
        "conversation_finished": is_finished(_known(result, "conversation_ended_reason", str)),
        "duration_seconds": _known(result, "duration_seconds", int, float),
        "output_dir": str(directory.resolve()),
        **{name: _sound_file(result, name, directory) for name in _SOUND_FILES},
    }


def _known(result: Mapping[str, Any], name: str, *types: type) -> Any:
    value = result.get(name)
    return value if isinstance(value, types) and not isinstance(value, bool) else None


def _hash_of(state: Mapping[str, Any] | None) -> str | None:
    return None if state is None else state_hash(state)


def _sound_file(result: Mapping[str, Any], name: str, directory: Path) -> str | None:
    """The file of that name beside the other files: the run may have been moved since EVA wrote the
    path.
    """
    stored = _known(result, name, str)
    path = None if stored is None else directory.resolve() / PurePath(stored).name
    return str(path) if path is not None and path.is_file() else None


def folded_recording(
    recorded: RecordedCall, arrival_seed: int | None = None
) -> tuple[Call, list[RefusedEvent]]:
    """Feeds one recorded call to the engine; gives the call after its last event, and the refused
    events.
    """
    events = (
        in_time_order(recorded) if arrival_seed is None else in_random_order(recorded, arrival_seed)
    )
    refused: list[RefusedEvent] = []
    arrivals = filter(None, arrivals_of(recorded.conversation_id, events, refused))
    return folded(arrivals, recorded.pipeline_type, recorded.conversation_ended_reason), refused
