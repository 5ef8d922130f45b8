"""Recorded calls through the engine without a broker, for `callgauge context`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final

from consumers.engine.admission import Arrival
from consumers.engine.call import Call
from consumers.engine.evaluator import folded
from consumers.engine.measures.eva import GOODBYE, state_hash
from schemas.metric_context import MetricContext
from schemas.quarantine import QuarantineRecord
from streamer.offline.arrivals import arrivals_of
from streamer.recordings.eva_state import RecordedState, state_of_record
from streamer.recordings.files.places import without_trial
from streamer.recordings.recorded_call import RecordedCall
from streamer.sources.replay.playback import in_random_order, in_time_order

_SOUND_FILES: Final = ("audio_assistant_path", "audio_user_path", "audio_mixed_path")


@dataclass(frozen=True, slots=True)
class CallContext:
    """The metric context of one recorded call.

    Attributes:
        conversation_id: The call's id in the recording.
        context: EVA's context in its JSON encoding.
        refused: Events that the evaluator would have quarantined, in the order of arrival; they are not in the context.
    """

    conversation_id: str
    context: dict[str, Any]
    refused: tuple[QuarantineRecord, ...]


def context_of(
    recorded: RecordedCall, arrival_seed: int | None = None, on_event: Callable[[], None] | None = None
) -> CallContext:
    """Streams a recorded call through the engine, event by event, and gives its context at the end of the call.

    A recording is complete, so none of the engine's limits applies to it.

    Args:
        recorded: The call.
        arrival_seed: Decides in which order events of different sources arrive; None is by their times.
        on_event: Called after each event.

    Raises:
        RecordingError: A file of the record cannot be read.
    """
    state = state_of_record(recorded.directory)
    call, refused = folded_recording(recorded, arrival_seed, on_event)
    context = whole_context(recorded, call, state).to_dict(with_unset=recorded.directory is not None)
    return CallContext(recorded.conversation_id, context, refused)


def whole_context(recorded: RecordedCall, call: Call, state: RecordedState) -> MetricContext:
    """The context of a call with the facts that EVA's runner adds, as far as its files or its events have them.

    Args:
        recorded: The call.
        call: The same after its last event.
        state: The files of its record.
    """
    supplied = call.supplied
    facts: dict[str, Any] = {
        "expected_scenario_db": supplied.expected_state,
        "final_scenario_db": supplied.final_state,
        "final_scenario_db_hash": supplied.final_state_hash,
        "agent_tools": None if supplied.tools is None else [tool.model_dump() for tool in supplied.tools],
    }
    if recorded.directory is not None:  # the files of a record say more than events do
        of_files = _of_files(recorded.conversation_id, recorded.directory, state)
        facts |= {name: value for name, value in of_files.items() if value is not None}
    return call.context().model_copy(update=facts)


def _of_files(conversation_id: str, directory: Path, state: RecordedState) -> dict[str, Any]:
    """Facts by EVA's name; None for each that no file has."""
    result, data, agent = state.result, state.data, state.agent
    return {
        "record_id": _known(result, "record_id", str) or without_trial(conversation_id),
        "user_goal": data.user_goal,
        "user_persona": data.user_persona,
        "initial_scenario_db": state.initial,
        "initial_scenario_db_hash": _known(result, "initial_scenario_db_hash", str) or _hash_of(state.initial),
        "final_scenario_db": state.final,
        "final_scenario_db_hash": state.final_hash or _hash_of(state.final),
        "expected_scenario_db": data.expected_state,
        "agent_id": agent.agent_id,
        "agent_role": agent.role,
        "agent_instructions": data.agent_instructions or agent.instructions,
        "agent_tools": agent.tools,
        "current_date_time": data.current_date_time,
        "language": state.language,
        "num_turns": _known(result, "num_turns", int),
        "tools_called": _known(result, "tools_called", list),
        "conversation_finished": _is_finished(result),
        "duration_seconds": _known(result, "duration_seconds", int, float),
        "output_dir": str(directory.resolve()),
        **{name: _sound_file(result, name, directory) for name in _SOUND_FILES},
    }


def _known(result: Mapping[str, Any], name: str, *types: type) -> Any:
    value = result.get(name)
    return value if isinstance(value, types) and not isinstance(value, bool) else None


def _hash_of(state: Mapping[str, Any] | None) -> str | None:
    return None if state is None else state_hash(state)


def _is_finished(result: Mapping[str, Any]) -> bool | None:
    """Whether the call ended with a goodbye: EVA's word for a call that was finished."""
    reason = _known(result, "conversation_ended_reason", str)
    return None if reason is None else reason == GOODBYE


def _sound_file(result: Mapping[str, Any], name: str, directory: Path) -> str | None:
    """The file of that name beside the other files: the run may have been moved since EVA wrote the path."""
    stored = _known(result, name, str)
    path = None if stored is None else directory.resolve() / PurePath(stored).name
    return str(path) if path is not None and path.is_file() else None


def folded_recording(
    recorded: RecordedCall, arrival_seed: int | None, on_event: Callable[[], None] | None
) -> tuple[Call, tuple[QuarantineRecord, ...]]:
    """Feeds one recorded call to the engine; gives the call after its last event, and the refused events."""
    events = in_time_order(recorded) if arrival_seed is None else in_random_order(recorded, arrival_seed)
    refused: list[QuarantineRecord] = []

    def arrivals() -> Iterator[Arrival]:
        for arrival in arrivals_of(recorded.conversation_id, events, refused):
            if arrival is not None:
                yield arrival
            if on_event is not None:
                on_event()

    return folded(arrivals(), recorded.pipeline_type, recorded.conversation_ended_reason), tuple(refused)
