"""Recorded calls through the engine without a broker, for `callgauge context`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from consumers.engine.call.call import Call
from consumers.engine.call.offline import folded
from consumers.engine.intake.admission import Arrival
from schemas.quarantine import QuarantineRecord
from streamer.offline.arrivals import arrivals_of
from streamer.recordings.reader import RecordedCall
from streamer.sources.replay.playback import in_random_order, in_time_order


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
    """
    call, refused = folded_recording(recorded, arrival_seed, on_event)
    return CallContext(recorded.conversation_id, call.context().to_dict(), refused)


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
