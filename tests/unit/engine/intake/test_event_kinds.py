"""Every type of event of the contract has one rule: it can be decoded, and it is read or named as one that is not."""

from collections.abc import Iterator
from typing import Any, get_args

from consumers.engine.call import _HANDLERS
from consumers.engine.sources import FLEETING, STEERING, UNKNOWN, UNREAD
from schemas.events.audit import AuditEvent
from schemas.events.codec import ControlEvent, VerdictEvent
from schemas.events.elevenlabs import ConversationRecord, TypedAgentEvent
from schemas.events.pipecat import PipecatEvent
from schemas.events.simulator import AudioEvent, TypedSimulatorEvent

UNIONS = (PipecatEvent, AuditEvent, TypedSimulatorEvent, TypedAgentEvent, ControlEvent, VerdictEvent)


def _members(union: Any) -> Iterator[type]:
    """The models of a union, also of unions inside it."""
    parts = get_args(union)
    if isinstance(union, type) or not parts:
        yield union
        return
    for part in parts:
        if isinstance(part, type) or get_args(part):
            yield from _members(part)


DECODED = {kind for union in UNIONS for kind in _members(union)} | {AudioEvent, ConversationRecord}


def test_an_event_that_can_be_decoded_is_read_or_named_as_unread() -> None:
    assert DECODED - _HANDLERS.keys() == UNREAD
    assert _HANDLERS.keys() & UNREAD == set()


def test_an_event_that_is_read_can_be_decoded() -> None:
    assert _HANDLERS.keys() - UNKNOWN <= DECODED
    assert (STEERING | FLEETING) - UNKNOWN <= DECODED
