"""Reads a file of events as the ingest role would, and says what callgauge makes of them."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.process import wall_clock_ms
from schemas.closed_sets import MisreadReason
from schemas.events.codec import Misread
from schemas.events.elevenlabs import CarriedAgentEvent
from schemas.events.pipecat import IgnoredLine, ToolLine
from schemas.events.simulator import CONTROL_EVENTS, source_of
from streamer.operations.event_check.coverage import RESULTS, Result, missing_for, names_of
from streamer.settings.ingest import SenderSettings
from streamer.sources.http.posted.batch import Accepted, Batches, Refusal
from streamer.sources.http.posted.cloudevents import Posted, posted_events
from streamer.sources.http.receiving.tenants import Sender, Senders
from streamer.sources.replay.playback import agent_event_name, event_name, event_time_ms

MAX_EVENTS: Final = 1_000_000
"""Most events of one file; a day of a small installation."""
UNNAMED: Final = "the call"
"""Name for the conversation of events that have none in them: on Kafka it is in the key."""
_LEAST_MS: Final = 10**11
"""March 1973 in milliseconds. A smaller time is in seconds."""
_CARRIED: Final = {
    ("elevenlabs" if kind is CarriedAgentEvent else "pipecat", name)
    for kind in (CarriedAgentEvent, IgnoredLine, ToolLine)
    for name in get_args(kind.model_fields["type"].annotation)
}


@dataclass(slots=True)
class Findings:
    """The content of a file of events.

    Attributes:
        read: Events that a rule reads or may read, by stream and name.
        carried: Events that no rule reads, by name: they are kept and change nothing.
        not_understood: Events of a type or a kind that this version does not know, by that type or kind.
        refused: Events that are not accepted.
        without_conversation: Events that name no conversation.
        in_seconds: Places of events whose time looks like seconds.
        names_by_call: The names of the events of each call, as `coverage` asks for them.
    """

    read: Counter[str] = field(default_factory=Counter)
    carried: Counter[str] = field(default_factory=Counter)
    not_understood: Counter[Misread] = field(default_factory=Counter)
    refused: list[Refusal] = field(default_factory=list)
    without_conversation: int = 0
    in_seconds: list[int] = field(default_factory=list)
    names_by_call: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def missing(self) -> Iterator[tuple[Result, int, frozenset[str]]]:
        """Each result, the number of calls that have it, and the events that most of the others lack."""
        for result in RESULTS:
            lacking = Counter(missing_for(result, names) for names in self.names_by_call.values())
            measured = lacking.pop(None, 0)
            fewest = [each for each, _ in lacking.most_common(1) if each is not None]
            yield result, measured, fewest[0] if fewest else frozenset()


def check_events(content: bytes, content_type: str = "") -> Findings:
    """Checks a body of events, without sending it.

    Args:
        content: A JSON object, an array, or one object a line; or CloudEvents, with their content type.
        content_type: As a sender would give it.

    Raises:
        UnreadableBodyError: The content as a whole cannot be read.
    """
    findings = Findings()
    sender = Sender("", SenderSettings())
    # Recorded events may be from any year, so their distance from now is no fault here.
    limits = Limits(max_event_time_skew_ms=0)
    batches = Batches(Senders({"": SenderSettings()}), limits, Redactor(), wall_clock_ms)
    for posted in posted_events(content, content_type, {}, most_events=MAX_EVENTS):
        given = _named(posted, findings)
        (outcome,) = batches.checked([given], sender, "check")
        if isinstance(outcome, Refusal):
            findings.refused.append(outcome)
        else:
            _note(given, outcome, findings)
    return findings


def _named(posted: Posted, findings: Findings) -> Posted:
    """The event with a conversation, which a file for Kafka has in its keys."""
    attributes = posted.attributes or {}
    event = posted.event
    if not isinstance(event, Mapping) or "conversation_id" in event or {"subject", "partitionkey"} & attributes.keys():
        return posted
    findings.without_conversation += 1
    return posted._replace(event={**event, "conversation_id": UNNAMED})


def _note(posted: Posted, accepted: Accepted, findings: Findings) -> None:
    event: Mapping[str, Any] = posted.event
    stream = accepted.stream
    name = agent_event_name(event) if stream == "elevenlabs" else event_name(source_of(stream), event)
    time_ms = event_time_ms(event)
    if time_ms is not None and 0 < time_ms < _LEAST_MS:
        findings.in_seconds.append(posted.place)
    if accepted.misread is not None and accepted.misread.reason is not MisreadReason.FIELD_LEFT_OUT:
        findings.not_understood[accepted.misread] += 1
    elif (stream, name) in _CARRIED:
        findings.carried[name] += 1
    else:
        findings.read[name if name in CONTROL_EVENTS else f"{stream} {name}"] += 1
    findings.names_by_call[accepted.record.key.decode("utf-8", "replace")].update(names_of(stream, name, event))
