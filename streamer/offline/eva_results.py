"""Recorded calls through the engine without a broker, for `callgauge score --format eva`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from consumers.engine.measures.eva import facts_of, metrics_of
from schemas.quarantine import QuarantineRecord
from streamer.offline.contexts import folded_recording, whole_context
from streamer.recordings.eva_state import state_of_record
from streamer.recordings.recorded_call import RecordedCall


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
    recorded: RecordedCall, arrival_seed: int | None = None, on_event: Callable[[], None] | None = None
) -> CallMetrics:
    """Streams a recorded call through the engine, event by event, and gives EVA's metrics at the end of the call.

    Args:
        recorded: The call.
        arrival_seed: Decides in which order events of different sources arrive; None is by their times.
        on_event: Called after each event.

    Raises:
        RecordingError: A file of the record cannot be read.
    """
    state = state_of_record(recorded.directory)
    call, refused = folded_recording(recorded, arrival_seed, on_event)
    context = whole_context(recorded, call, state)
    results = metrics_of(context, facts_of(call.history, state.stage_mean_ms, state.mean_tokens))
    return CallMetrics(recorded.conversation_id, {name: results[name].to_dict() for name in sorted(results)}, refused)
