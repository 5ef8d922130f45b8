"""Recorded calls through the engine without a broker, for `callgauge score --format eva`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consumers.engine.measures.eva.call_metrics import facts_of, metrics_of
from schemas.quarantine import QuarantineRecord
from streamer.offline.contexts import folded_recording
from streamer.recordings.eva_state import state_of_record
from streamer.recordings.reader import RecordedCall, read_recordings


@dataclass(frozen=True, slots=True)
class CallMetrics:
    """EVA's metrics of one recorded call.

    Attributes:
        conversation_id: The call's id in the recording.
        metrics: By name, in the encoding of EVA's result files: its own zeros, errors and skips.
        refused: Events that the evaluator would have quarantined, in the order of arrival; they are not in the metrics.
    """

    conversation_id: str
    metrics: dict[str, dict[str, Any]]
    refused: tuple[QuarantineRecord, ...]


def eva_metrics_of(
    paths: Sequence[Path], *, arrival_seed: int | None = None, on_event: Callable[[], None] | None = None
) -> Iterator[CallMetrics]:
    """Streams each recorded call through the engine, event by event, and gives EVA's metrics at the end of the call.

    Args:
        paths: Record directories and wire-level files, read in this order.
        arrival_seed: Decides in which order events of different sources arrive; None is by their times.
        on_event: Called after each event.

    Raises:
        RecordingError: A path, a line or a file of a record cannot be read.
    """
    for path in paths:
        for recorded in read_recordings(path):
            yield _metrics(recorded, arrival_seed, on_event)


def _metrics(recorded: RecordedCall, arrival_seed: int | None, on_event: Callable[[], None] | None) -> CallMetrics:
    state = state_of_record(recorded.directory)
    call, refused = folded_recording(recorded, arrival_seed, on_event)
    told = call.supplied
    is_told = state.final is None  # the files of a record say more than events do
    context = call.context().model_copy(
        update={
            "expected_scenario_db": told.expected_state if state.expected is None else state.expected,
            "final_scenario_db": told.final_state if is_told else state.final,
            "final_scenario_db_hash": told.final_state_hash if is_told else state.final_hash,
            "language": state.language,
            "agent_tools": None if told.tools is None else [tool.model_dump() for tool in told.tools],
        }
    )
    results = metrics_of(context, facts_of(call.history, state.stage_mean_ms, state.mean_tokens))
    return CallMetrics(recorded.conversation_id, {name: results[name].to_dict() for name in sorted(results)}, refused)
