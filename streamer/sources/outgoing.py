"""Events on their way into the log, and the writer of them as every source sees it."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from consumers.runtime.process import OperatorError
from schemas.closed_sets import InputSource
from schemas.events.envelope import agent_event_type, envelope_headers
from schemas.events.simulator import CONTROL_EVENTS, Source
from schemas.log import OutgoingRecord
from schemas.topics import MAX_BATCH_BYTES

ACKNOWLEDGE_SECONDS: Final = 5.0
"""How long an acknowledgement may take before the sender is asked to come again. A broker that is
there takes milliseconds.
"""
HEADROOM_BYTES: Final = 16_384
"""Room for key, headers and the batch around the value of a record."""
MAX_VALUE_BYTES: Final = MAX_BATCH_BYTES - HEADROOM_BYTES
"""Largest value of a record: it and its headers are one batch."""


# Events on elevenlabs.events are of EVA's simulated caller, unless the event is of a real
# ElevenLabs agent.
_CE_SOURCE_NAMES: Final[Mapping[Source, str]] = {
    "pipecat": "pipecat",
    "elevenlabs": "user_sim",
    "audit": "audit",
}


def outgoing(
    source: Source,
    conversation_id: str,
    value: bytes,
    *,
    name: str,
    event_id: str,
    ce_source: str,
    time_ms: int | None = None,
    sequence: int | None = None,
    is_agent_event: bool = False,
) -> OutgoingRecord:
    """What every adapter posts: the topic, the key, the event, and its CloudEvents attributes as
    headers (binary mode).

    Args:
        source: The input topic.
        conversation_id: The key. Partitions are chosen by murmur2 of it, as Java and aiokafka do.
        value: The event in JSON.
        name: The event's type in the words of its source; with the topic it says whose event it is.
        event_id: The same each time the event is sent, so that a second one is recognised.
        ce_source: The adapter; with `event_id` it identifies the event.
        time_ms: Of the event, in epoch milliseconds.
        sequence: Number of the event within its source.
        is_agent_event: Whether it is of a real ElevenLabs agent, which shares a topic with the
            simulated caller.
    """
    kind = "call" if name in CONTROL_EVENTS else _CE_SOURCE_NAMES[source]
    headers = envelope_headers(
        event_id=event_id,
        source=ce_source,
        event_type=agent_event_type(name) if is_agent_event else f"callgauge.{kind}.{name}.v1",
        subject=conversation_id,
        time_ms=time_ms,
        sequence=sequence,
    )
    return OutgoingRecord(InputSource(source), conversation_id.encode(), value, headers)


class NotAcknowledgedError(Exception):
    """Not all records were acknowledged in time. Some of them may be written, now or later; send
    all of them again.
    """


class ProducerBrokenError(OperatorError):
    """The producer cannot write any more; only a new one can."""


class WritesRecords(Protocol):
    """Writes events, and returns when they are safe.

    Attributes:
        broken: Set when nothing can be written any more.
    """

    broken: asyncio.Event

    @property
    def is_away(self) -> bool:
        """Whether the last records were not acknowledged."""

    def failure(self) -> ProducerBrokenError:
        """The reason why the writer is broken."""

    async def write(self, records: Sequence[OutgoingRecord]) -> None:
        """Writes records, in order for each call, and waits for all acknowledgements.

        Raises:
            NotAcknowledgedError: They did not come in time. Sent again, each counts once.
        """
