"""One call: repeats and the kinds of its events."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from consumers.engine.call import _READERS
from consumers.engine.limits import Limits
from consumers.engine.sources.facts import nothing
from consumers.engine.sources.repeats import MAX_PRODUCERS, SeenEvents
from consumers.engine.sources.rules import RULES
from schemas.events.audit import AuditEvent
from schemas.events.codec import ControlEvent, VerdictEvent
from schemas.events.elevenlabs import (
    AgentEvent,
    CarriedAgentEvent,
    ConversationRecord,
    TypedAgentEvent,
)
from schemas.events.envelope import Envelope
from schemas.events.pipecat import IgnoredLine, PipecatEvent, ToolLine
from schemas.events.simulator import AudioEvent, TypedSimulatorEvent
from tests.support.fakes.engine_feed import Feed

USER = {"message_type": "user", "value": "Hello"}
SPEECH = {"type": "user_speech", "data": {"text": "Hi"}}


def _outcomes(feed: Feed) -> Counter[str]:
    by_outcome: Counter[str] = Counter()
    for (_, outcome), count in feed.counts("callgauge_events_total").items():
        by_outcome[outcome] += count
    return by_outcome


@pytest.mark.parametrize(
    ("first", "second", "is_repeat"),
    [
        (("e-1", "bot", None), ("e-1", "bot", None), True),
        (("e-1", "bot", 1), ("e-1", "bot", 1), True),
        (("e-1", "bot", None), ("e-1", "desk", None), False),
        (("e-1", "bot", None), ("e-2", "bot", None), False),
        ((None, "bot", None), (None, "bot", None), False),
    ],
)
def test_an_id_of_one_producer(
    first: tuple[str, str, int], second: tuple[str, str, int], is_repeat: bool
) -> None:
    feed = Feed()
    for id_, source, sequence in (first, second):
        feed.send("audit", USER, 0, envelope=Envelope(id_, source, None, sequence))
    assert _outcomes(feed) == ({"folded": 1, "repeated": 1} if is_repeat else {"folded": 2})


@pytest.mark.parametrize(
    ("second", "is_repeat"),
    [
        (SPEECH | {"sequence": 4}, True),
        (SPEECH | {"sequence": 5}, False),
        (SPEECH, False),
        (SPEECH | {"sequence": 4, "provider": "x"}, False),
    ],
)
def test_a_sequence_of_the_simulator_with_the_same_bytes(
    second: dict[str, object], is_repeat: bool
) -> None:
    feed = Feed()
    feed.send("user_sim", SPEECH | {"sequence": 4}, 0)
    feed.send("user_sim", second, 0)
    assert _outcomes(feed).get("repeated", 0) == is_repeat


def test_only_the_newest_ids_are_remembered() -> None:
    seen = SeenEvents(4)
    assert [seen.is_repeat(b"%d" % number, None) for number in (1, 2, 3, 4)] == [False] * 4
    assert seen.is_repeat(b"1", None)
    assert not seen.is_repeat(b"5", None)  # now the older half is forgotten
    assert not seen.is_repeat(b"1", None)
    assert seen.is_repeat(b"5", None)


def test_only_so_many_producers_are_remembered() -> None:
    feed = Feed(Limits())
    for number in range(MAX_PRODUCERS + 1):
        for _ in range(2):
            feed.send("audit", USER, 0, envelope=Envelope("e-1", f"bot-{number}", None, None))
    assert _outcomes(feed) == {"folded": MAX_PRODUCERS + 2, "repeated": MAX_PRODUCERS}


UNIONS = (
    PipecatEvent,
    AuditEvent,
    TypedSimulatorEvent,
    TypedAgentEvent,
    ControlEvent,
    VerdictEvent,
)


def _members(union: Any) -> Iterator[type]:
    """The models of a union, also of unions inside it."""
    parts = get_args(union)
    if isinstance(union, type) or not parts:
        yield union
        return
    for part in parts:
        if isinstance(part, type) or get_args(part):
            yield from _members(part)


DECODED: set[type[Any]] = {kind for union in UNIONS for kind in _members(union)}
DECODED |= {AudioEvent, ConversationRecord}


UNREAD = {IgnoredLine, ToolLine, CarriedAgentEvent}
"""Known events that no rule reads: only their time counts."""
UNKNOWN = {AgentEvent}


def test_an_event_that_can_be_decoded_is_read_or_named_as_unread() -> None:
    assert RULES.keys() == DECODED | UNKNOWN
    assert {kind for kind, rule in RULES.items() if rule.facts is nothing} == UNREAD | UNKNOWN
    assert {kind for kind, rule in RULES.items() if rule.outcome == "unknown"} == UNKNOWN


def test_every_fact_of_a_source_has_a_reader() -> None:
    told = {
        fact for rule in RULES.values() for fact in _facts_in(get_type_hints(rule.facts)["return"])
    }
    assert told == _READERS.keys()


def _facts_in(hint: Any) -> Iterator[type]:
    """The types of facts that a translator says it returns."""
    if isinstance(hint, type) and get_origin(hint) is None:
        yield hint
    for part in get_args(hint):
        yield from _facts_in(part)


def test_a_call_says_the_version_of_its_agent_once_it_is_known() -> None:
    feed = Feed()
    feed.send("audit", {"type": "call_started", "agent": "desk"}, 0)
    feed.send("audit", {"type": "call_started", "version": "prompt-12"}, 100)
    feed.send("audit", {"type": "call_started", "version": "prompt-12"}, 150)
    # leaves out what stays
    feed.send("audit", {"type": "call_started", "environment": "live"}, 200)
    assert [(labels.environment, labels.version) for labels in feed.values("labels")] == [
        ("unknown", None),
        ("unknown", "prompt-12"),
        ("live", "prompt-12"),
    ]
