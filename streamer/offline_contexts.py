"""Recorded calls through the engine without a broker: what `callgauge context` prints."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

from consumers.engine.intake import Arrival, admit
from consumers.engine.limits import Limits
from consumers.engine.offline import NO_LIMITS, context_of
from schemas.codec import InputSource
from schemas.quarantine import QuarantineRecord
from schemas.topics import TOPIC_BY_SOURCE
from streamer.playback import WireEvent, in_random_order, in_time_order
from streamer.recordings import MAX_DOCUMENT_BYTES, RecordedCall, read_recordings

_INTAKE_LIMITS: Final[Limits] = NO_LIMITS.model_copy(update={"max_record_bytes": MAX_DOCUMENT_BYTES})


@dataclass(frozen=True, slots=True)
class CallContext:
    """What the engine made of one recorded call.

    Attributes:
        conversation_id: The call's id in the recording.
        context: EVA's context in its JSON encoding.
        refused: Events that the evaluator would have quarantined, in the order of arrival; they are not in the context.
    """

    conversation_id: str
    context: dict[str, Any]
    refused: tuple[QuarantineRecord, ...]


@dataclass(slots=True)
class _FiledRecord:
    """An event of a recording in the shape of a Kafka record, so that it passes the same checks."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


def contexts_of(
    paths: Sequence[Path], *, arrival_seed: int | None = None, on_event: Callable[[], None] | None = None
) -> Iterator[CallContext]:
    """Streams each recorded call through the engine, event by event, and gives its context at the end of the call.

    A recording is complete, so none of the engine's limits applies to it.

    Args:
        paths: Record directories and wire-level files, read in this order.
        arrival_seed: Decides in which order events of different sources arrive; None is by their times.
        on_event: Called after each event.

    Raises:
        RecordingError: A path or a line cannot be read.
    """
    for path in paths:
        for call in read_recordings(path):
            yield _context(call, arrival_seed, on_event)


def _context(call: RecordedCall, arrival_seed: int | None, on_event: Callable[[], None] | None) -> CallContext:
    events = in_time_order(call) if arrival_seed is None else in_random_order(call, arrival_seed)
    refused: list[QuarantineRecord] = []

    def arrivals() -> Iterator[Arrival]:
        for source, record in _records(call.conversation_id, events):
            match admit(source, record, _INTAKE_LIMITS):
                case QuarantineRecord() as refusal:
                    refused.append(refusal)
                case arrival:
                    yield arrival
            if on_event is not None:
                on_event()

    context = context_of(arrivals(), call.pipeline_type, call.conversation_ended_reason)
    return CallContext(call.conversation_id, context, tuple(refused))


def _records(conversation_id: str, events: Iterator[WireEvent]) -> Iterator[tuple[InputSource, _FiledRecord]]:
    offsets: Mapping[InputSource, Iterator[int]] = {source: count() for source in InputSource}
    key = conversation_id.encode()
    latest_ms = 0
    for event in events:
        source = InputSource(event.source)
        latest_ms = max(latest_ms, event.arrival_ms)  # a broker's clock does not run backwards
        yield source, _FiledRecord(TOPIC_BY_SOURCE[source], 0, next(offsets[source]), latest_ms, key, event.value)
