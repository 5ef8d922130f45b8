"""Checks events of a bot without sending them: refusals, and the scores that the events can give."""

import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from pydantic_core import from_json

from consumers.console.page.drawing import counted
from consumers.engine.admission import FIRST_MS, Arrival
from consumers.engine.effects import Count
from consumers.engine.evaluator import NO_LIMITS, PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.engine.measures.stages import CONTRADICTED
from consumers.engine.redaction.redactor import Redactor
from consumers.engine.sources.frameworks import translated
from consumers.runtime.process import OperatorError, wall_clock_ms
from schemas.closed_sets import InputSource, MisreadReason
from schemas.events.codec import Misread, decode
from schemas.events.elevenlabs import CarriedAgentEvent
from schemas.events.envelope import read_envelope
from schemas.events.pipecat import CallNote, IgnoredLine, ToolLine
from schemas.events.simulator import CONTROL_EVENTS, source_of
from streamer.settings.all_settings import SenderSettings
from streamer.sources.http.posted import LINES, Accepted, Batches, Posted, Refusal, UnreadableBodyError, posted_events
from streamer.sources.http.receiving import Sender, Senders
from streamer.sources.replay import agent_event_name, event_name, event_time_ms
from streamer.sources.writer import OutgoingRecord

# The results of a call, and the events that each of them needs. Pure.

USER_STARTED: Final = "pipecat speech_event user_speech_started"
USER_STOPPED: Final = "pipecat speech_event user_speech_stopped"
TURN_STOPPED: Final = "pipecat speech_event user_turn_stopped"
BOT_STARTED: Final = "pipecat speech_event bot_speech_started"
BOT_STOPPED: Final = "pipecat speech_event bot_speech_stopped"
AGENT_TURN: Final = ("elevenlabs user_transcript", "elevenlabs agent_response")
TURN_STARTED: Final = "pipecat speech_event user_turn_started"
RECORD: Final = "elevenlabs conversation_record"


class Result(NamedTuple):
    """One result of a call.

    Attributes:
        name: The result in words.
        needs: Alternatives, the usual one first; each is a group of events that are needed together.
        otherwise: The loss if no group is whole.
    """

    name: str
    needs: tuple[frozenset[str], ...]
    otherwise: str


def _any_of(*groups: str | tuple[str, ...]) -> tuple[frozenset[str], ...]:
    return tuple(frozenset((group,) if isinstance(group, str) else group) for group in groups)


RESULTS: Final = (
    Result(
        "voice-to-voice latency of each turn",
        _any_of(
            (USER_STARTED, USER_STOPPED, BOT_STARTED), (TURN_STARTED, TURN_STOPPED, BOT_STARTED), AGENT_TURN, "user_sim audio_start",
        ),
        "turns are counted as unmeasured",
    ),
    Result(
        "interruptions",
        _any_of(
            (USER_STARTED, BOT_STARTED, BOT_STOPPED), "elevenlabs interruption", "user_sim audio_end"
        ),
        "nobody knows who spoke over whom",
    ),
    Result(
        "dead air",
        _any_of((USER_STOPPED, BOT_STARTED), AGENT_TURN, "user_sim audio_end"),
        "a silent agent goes unnoticed",
    ),
    Result(
        "words of the user",
        _any_of("pipecat user_message", "audit user", "elevenlabs user_transcript", "user_sim user_speech", RECORD),
        "transcripts, goals and judges have no words of this side",
    ),
    Result(
        "words of the assistant",
        _any_of(
            "pipecat assistant_message", "pipecat tts_text", "pipecat llm_response", "audit assistant",
            "elevenlabs agent_response", "user_sim assistant_speech", RECORD,
        ),
        "transcripts, goals and judges have no words of this side",
    ),
    Result(
        "tool calls, their duration and outcome",
        _any_of(
            "pipecat function_call_event", ("audit tool_call", "audit tool_response"),
            ("elevenlabs agent_tool_request", "elevenlabs agent_tool_response"),
            ("elevenlabs agent_tool_request", "elevenlabs agent_tool_response_full_payload"), "elevenlabs mcp_tool_call",
        ),
        "a tool that fails or hangs goes unnoticed",
    ),
    Result(
        "latency by stage",
        _any_of(
            "pipecat latency_breakdown", "pipecat service_latency", "pipecat TTFBMetricsData", "pipecat LatencyMetric",
            "audit llm_call", RECORD,
        ),
        "which stage makes callers wait is not known",
    ),
    Result(
        "agent, tenant and environment as labels", _any_of("call_started with agent"), "the call is of the agent `unknown`"
    ),
    Result("validity of tool calls", _any_of("call_started with tools"), "arguments of tools are not checked"),
    Result(
        "task completion", _any_of(("call_started with expected_state", "call_ended with final_state")), "it is not applicable"
    ),
    Result(
        "the end of the call at once", _any_of("call_ended", RECORD, "user_sim connection_state"),
        "the call closes when it has been idle for a while",
    ),
)  # fmt: skip
"""In the order in which they are shown."""

_FIELDS: Final = {"call_started": ("agent", "tools", "expected_state"), "call_ended": ("final_state",)}


def names_of(stream: str, name: str, event: Mapping[str, Any]) -> Iterator[str]:
    """The names by which `RESULTS` may ask for an event: with its stream, its kind, or a field of it.

    Example:
        >>> list(names_of("audit", "call_started", {"type": "call_started", "agent": "desk"}))
        ['call_started', 'call_started with agent']
        >>> list(names_of("pipecat", "speech_event", {"data": {"kind": "bot_speech_started"}}))
        ['pipecat speech_event', 'pipecat speech_event bot_speech_started']
    """
    if name in _FIELDS or name == "user_text_updated":
        yield name
        yield from (f"{name} with {field}" for field in _FIELDS.get(name, ()) if event.get(field) is not None)
        return
    yield f"{stream} {name}"
    data = event.get("data")
    if isinstance(data, Mapping) and isinstance(data.get("kind"), str):
        yield f"{stream} {name} {data['kind']}"


def missing_for(result: Result, present: Collection[str]) -> frozenset[str] | None:
    """The events that are missing for a result: of the first group with events of a stream that is there. None if a group is whole.

    Example:
        >>> sorted(missing_for(RESULTS[0], {USER_STARTED, USER_STOPPED}))
        ['pipecat speech_event bot_speech_started']
    """
    if any(group.issubset(present) for group in result.needs):
        return None
    streams = {name.partition(" ")[0] for name in present}
    groups = sorted(result.needs, key=lambda group: not any(name.partition(" ")[0] in streams for name in group))
    return groups[0].difference(present)


# Reads a file of events as the ingest role would, and says what callgauge makes of them.

MAX_EVENTS: Final = 1_000_000
"""Most events of one file; a day of a small installation."""
_LONG_AFTER_MS: Final = 2**53
"""A time at which every call is over."""
UNNAMED: Final = "the call"
"""Name for the conversation of events that have none in them: on Kafka it is in the key."""
_CARRIED: Final = {
    ("elevenlabs" if kind is CarriedAgentEvent else "pipecat", name)
    for kind in (CarriedAgentEvent, CallNote, IgnoredLine, ToolLine)
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
        contradicted: Latencies of stages that the sounds of their turn contradict, by source and stage.
    """

    read: Counter[str] = field(default_factory=Counter)
    carried: Counter[str] = field(default_factory=Counter)
    not_understood: Counter[Misread] = field(default_factory=Counter)
    refused: list[Refusal] = field(default_factory=list)
    without_conversation: int = 0
    in_seconds: list[int] = field(default_factory=list)
    names_by_call: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    contradicted: Counter[tuple[str, ...]] = field(default_factory=Counter)

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
    calls = _FoldedCalls()
    for posted in filter(None, posted_events(content, content_type, {}, most_events=MAX_EVENTS)):
        given = _named(posted, findings)
        outcomes = list(batches.all_checked(given, sender, "check"))
        if not outcomes:
            findings.carried["another framework's, without a rule"] += 1
        for outcome in outcomes:
            if isinstance(outcome, Refusal):
                findings.refused.append(outcome)
            else:
                _note(given.place, outcome, findings)
                calls.take(outcome.record)
    findings.contradicted = calls.contradicted()
    return findings


class _FoldedCalls:
    """The calls of the events, folded as the evaluator would: only so is known what contradicts what."""

    def __init__(self) -> None:
        self._evaluator = PartitionEvaluator(NO_LIMITS, "check")
        self._taken: Counter[InputSource] = Counter()

    def take(self, record: OutgoingRecord) -> None:
        """Folds one event; no time passes for the broker, so no call closes before its last one."""
        envelope = read_envelope(record.headers) if record.headers else None
        event = decode(record.source, record.value, envelope)
        offset, key = self._taken[record.source], record.key.decode()
        self._taken[record.source] += 1
        self._evaluator.receive(Arrival(record.source, offset, 0, key, event, record.value, envelope))

    def contradicted(self) -> Counter[tuple[str, ...]]:
        """Closes the calls; returns the latencies that their sounds contradict, by source and stage."""
        found: Counter[tuple[str, ...]] = Counter()
        for effect in self._evaluator.advance(_LONG_AFTER_MS):
            if isinstance(effect, Count) and effect.metric == CONTRADICTED:
                found[effect.labels] += effect.by
        return found


def _named(posted: Posted, findings: Findings) -> Posted:
    """The event with a conversation, which a file for Kafka has in its keys."""
    attributes = posted.attributes or {}
    event = posted.event
    if not isinstance(event, Mapping) or "conversation_id" in event or {"subject", "partitionkey"} & attributes.keys():
        return posted
    told = translated(event, 0)
    if told is not None and all(each.get("conversation_id") for each in told.events):  # it names the call inside
        return posted
    findings.without_conversation += 1
    return posted._replace(event={**event, "conversation_id": UNNAMED})


def _note(place: int, accepted: Accepted, findings: Findings) -> None:
    event: Mapping[str, Any] = from_json(accepted.record.value)
    stream = accepted.stream
    name = agent_event_name(event) if stream == "elevenlabs" else event_name(source_of(stream), event)
    time_ms = event_time_ms(event)
    if time_ms is not None and 0 < time_ms < FIRST_MS:
        findings.in_seconds.append(place)
    if accepted.misread is not None and accepted.misread.reason is not MisreadReason.FIELD_LEFT_OUT:
        findings.not_understood[accepted.misread] += 1
    elif (stream, name) in _CARRIED:
        findings.carried[name] += 1
    else:
        findings.read[name if name in CONTROL_EVENTS else f"{stream} {name}"] += 1
    findings.names_by_call[accepted.record.key.decode("utf-8", "replace")].update(names_of(stream, name, event))


# The work of the command `events`: reads a file of events, and shows its faults.

MAX_FILE_BYTES: Final = 268_435_456
"""Largest file that is read."""
MAX_SHOWN_REFUSALS: Final = 20
"""Refused events that are shown one by one."""


def findings_in(path: Path) -> Findings:
    """Checks a file of events; `-` is standard input.

    Raises:
        OperatorError: It cannot be read, or is no file of events.
    """
    try:
        with sys.stdin.buffer if str(path) == "-" else path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise OperatorError(
            f"{path}: the file cannot be read ({error.strerror}). Check its name and its rights."
        ) from error
    if len(content) > MAX_FILE_BYTES:
        raise OperatorError(f"{path}: expected at most {MAX_FILE_BYTES:,} bytes. Check a part of it.")
    try:
        return check_events(content, min(LINES) if path.suffix in (".jsonl", ".ndjson") else "")
    except UnreadableBodyError as error:
        raise OperatorError(f"{path}: {error}. Nothing was checked.") from error


def findings_document(findings: Findings) -> dict[str, Any]:
    """The findings for a program: counts by name, places as line numbers."""
    return {
        "calls": len(findings.names_by_call),
        "read": dict(findings.read),
        "carried": dict(findings.carried),
        "not_understood": [
            {"events": count, "what": each.what, "what_to_do": each.what_to_do}
            for each, count in findings.not_understood.most_common()
        ],
        "refused": [
            {
                "line": each.line,
                "what": each.what,
                "expected_and_seen": each.expected_and_seen,
                "what_to_do": each.what_to_do,
            }
            for each in findings.refused
        ],
        "lines_in_seconds": findings.in_seconds,
        "without_conversation": findings.without_conversation,
        "contradicted": [
            {"source": source, "stage": stage, "values": count}
            for (source, stage), count in sorted(findings.contradicted.items())
        ],
        "results": [
            {"result": result.name, "calls_with_it": measured, "missing_events": sorted(lacking)}
            for result, measured, lacking in findings.missing()
        ],
    }


def finding_lines(findings: Findings) -> Iterator[str]:
    """The findings for a person, a line each."""
    total, not_understood = findings.read.total() + findings.carried.total(), findings.not_understood.total()
    calls = len(findings.names_by_call)
    yield (
        f"{counted(total, 'event')} of {counted(calls, 'call')} understood, {len(findings.refused)} refused"
        f"{f', {not_understood} not understood' if not_understood else ''}."
    )
    for title, counts in (
        ("Read", findings.read),
        ("Kept, and no rule reads them", findings.carried),
    ):
        if counts:
            yield f"{title}:"
            yield from (f"  {count:>7}  {name}" for name, count in sorted(counts.items()))
    if not_understood:
        yield "Not understood: kept and counted, and no rule reads them:"
    for each, count in findings.not_understood.most_common():
        yield f"  {count:>7}  {each.what}. {each.what_to_do}"
    yield from _faults(findings)
    if calls:
        yield "Results:"
        yield from _results(findings, calls)


def _faults(findings: Findings) -> Iterator[str]:
    if findings.refused:
        yield "Refused:"
    for refusal in findings.refused[:MAX_SHOWN_REFUSALS]:
        yield f"  line {refusal.line}: {refusal.what}. {refusal.expected_and_seen}. {refusal.what_to_do}"
    if len(findings.refused) > MAX_SHOWN_REFUSALS:
        yield f"  and {len(findings.refused) - MAX_SHOWN_REFUSALS} more"
    if findings.in_seconds:
        places = ", ".join(map(str, findings.in_seconds[:MAX_SHOWN_REFUSALS]))
        yield f"Times that look like seconds: `timestamp` is in milliseconds since 1970. Lines {places}."
    if findings.contradicted:
        yield (
            "Latencies that the sounds of their turn contradict: longer than the wait that they are part of, or than the turn. They "
            "are in no score. Check the unit: seconds, and milliseconds only where the event says so."
        )
        yield from (
            f"  {count:>7}  {stage} of {source}" for (source, stage), count in sorted(findings.contradicted.items())
        )
    if findings.without_conversation:
        count = counted(findings.without_conversation, "event")
        yield (
            f"{count} without `conversation_id`, read as events of {UNNAMED!r}: POST /events needs it, on Kafka the key has it."
        )


def _results(findings: Findings, calls: int) -> Iterator[str]:
    for result, measured, lacking in findings.missing():
        if measured == calls:
            yield f"  yes  {result.name}"
            continue
        share = "no " if not measured else f"in {measured} of {counted(calls, 'call')}"
        yield f"  {share}  {result.name}: {result.otherwise}, for want of {' and '.join(sorted(lacking))}"
