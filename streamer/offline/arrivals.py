"""The events of a recorded call as the evaluator gets them from Kafka: the same checks apply, but no limit of duration."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

from consumers.engine.admission import Arrival, admit
from consumers.engine.evaluator import NO_LIMITS
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import InputSource
from schemas.events.envelope import TYPE_HEADER, agent_event_type
from schemas.quarantine import QuarantineRecord
from schemas.topics import TOPIC_BY_SOURCE
from streamer.recordings.files.json_files import MAX_DOCUMENT_BYTES
from streamer.sources.replay.playback import WireEvent

_INTAKE_LIMITS: Final[Limits] = NO_LIMITS.model_copy(update={"max_record_bytes": MAX_DOCUMENT_BYTES})


@dataclass(slots=True)
class _FiledRecord:
    """An event of a recording in the shape of a Kafka record; the broker took it when it was produced."""

    topic: str
    offset: int
    timestamp: int
    key: bytes
    value: bytes
    partition: int = 0
    headers: tuple[tuple[str, bytes], ...] = ()


def arrivals_of(
    conversation_id: str,
    events: Iterable[WireEvent],
    refused: list[QuarantineRecord],
    redactor: Redactor | None = None,
) -> Iterator[Arrival | None]:
    """Checks the events of a call as the evaluator does, one by one.

    Args:
        conversation_id: The call's id, which is the key of its records.
        events: In the order of reading; events of one source stay in order.
        refused: Gets the records that the evaluator would quarantine.
        redactor: Redacts the texts in those records; None uses the default rules.

    Yields:
        The arrival of each event; None for one that was refused.
    """
    offsets = {source: count() for source in InputSource}
    key = conversation_id.encode()
    for event in events:
        source = InputSource(event.source)
        # The engine recognises events of a real agent by the envelope; the rest of the envelope is not needed.
        headers = ((TYPE_HEADER, agent_event_type(event.event_name).encode()),) if event.is_agent_event else ()
        record = _FiledRecord(
            TOPIC_BY_SOURCE[source], next(offsets[source]), event.arrival_ms, key, event.value, headers=headers
        )
        match admit(source, record, _INTAKE_LIMITS, redactor):
            case QuarantineRecord() as refusal:
                refused.append(refusal)
                yield None
            case arrival:
                yield arrival
