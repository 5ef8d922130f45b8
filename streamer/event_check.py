"""Checks events of a bot without sending them: refusals, and the scores that the events
can give.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, get_args

from pydantic_core import from_json

from consumers.engine.admission import FIRST_MS, Arrival
from consumers.engine.effects import Count
from consumers.engine.evaluator import NO_LIMITS, PartitionEvaluator
from consumers.engine.measures.stages import CONTRADICTED
from consumers.view.words import counted
from schemas.closed_sets import MisreadReason
from schemas.events.codec import Misread, is_read, misread_of
from schemas.events.elevenlabs import CarriedAgentEvent
from schemas.events.pipecat import CallNote, IgnoredLine, ToolLine
from schemas.events.simulator import CONTROL_EVENTS
from streamer.offline.contexts import RefusedEvent, arrivals_of
from streamer.recordings.elements import elements_in
from streamer.recordings.eva_needs import EvaNeed, eva_misses, is_of_eva
from streamer.recordings.files import RecordedCall, RecordingError
from streamer.recordings.places import Place, RecordedFiles, RecordedPath
from streamer.recordings.reader import NoCallError, read_call
from streamer.sources.replay import event_time_ms, in_time_order
from streamer.terminal import say

STANDARD_INPUT: Final = Path("-")

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
        needs: Alternatives, the usual one first; each is a group of events that are needed
            together.
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
            (USER_STARTED, USER_STOPPED, BOT_STARTED),
            (TURN_STARTED, TURN_STOPPED, BOT_STARTED),
            AGENT_TURN,
            "user_sim audio_start",
        ),
        "turns are counted as unmeasured",
    ),
    Result(
        "interruptions",
        _any_of(
            (USER_STARTED, BOT_STARTED, BOT_STOPPED),
            "elevenlabs interruption",
            "user_sim audio_end",
        ),
        "it is unknown who spoke over whom",
    ),
    Result(
        "dead air",
        _any_of((USER_STOPPED, BOT_STARTED), AGENT_TURN, "user_sim audio_end"),
        "a silent agent goes unnoticed",
    ),
    Result(
        "words of the user",
        _any_of(
            "pipecat user_message",
            "audit user",
            "elevenlabs user_transcript",
            "user_sim user_speech",
            RECORD,
        ),
        "transcripts, goals and judges have no words of this side",
    ),
    Result(
        "words of the assistant",
        _any_of(
            "pipecat assistant_message",
            "pipecat tts_text",
            "pipecat llm_response",
            "audit assistant",
            "elevenlabs agent_response",
            "user_sim assistant_speech",
            RECORD,
        ),
        "transcripts, goals and judges have no words of this side",
    ),
    Result(
        "tool calls, their duration and outcome",
        _any_of(
            "pipecat function_call_event",
            ("audit tool_call", "audit tool_response"),
            ("elevenlabs agent_tool_request", "elevenlabs agent_tool_response"),
            ("elevenlabs agent_tool_request", "elevenlabs agent_tool_response_full_payload"),
            "elevenlabs mcp_tool_call",
        ),
        "a tool that fails or hangs goes unnoticed",
    ),
    Result(
        "latency by stage",
        _any_of(
            "pipecat latency_breakdown",
            "pipecat service_latency",
            "pipecat TTFBMetricsData",
            "pipecat LatencyMetric",
            "audit llm_call",
            RECORD,
        ),
        "which stage makes callers wait is not known",
    ),
    Result(
        "agent, tenant and environment as labels",
        _any_of("call_started with agent"),
        "the call is of the agent `unknown`",
    ),
    Result(
        "validity of tool calls",
        _any_of("call_started with tools"),
        "arguments of tools are not checked",
    ),
    Result(
        "task completion",
        _any_of(("call_started with expected_state", "call_ended with final_state")),
        "it is not applicable",
    ),
    Result(
        "EVA's own turns and metrics (`context`, `score --format eva`)",
        _any_of(
            ("audit user", "user_sim audio_start", "user_sim audio_end", "user_sim user_speech")
        ),
        "EVA's rules need a simulated caller and the audit log; other results come from the events "
        "above",
    ),
    Result(
        "the end of the call immediately",
        _any_of("call_ended", RECORD, "user_sim connection_state"),
        "the call closes when it has been idle for a while",
    ),
)
"""In the order in which they are shown."""

_FIELDS: Final = {
    "call_started": ("agent", "tools", "expected_state"),
    "call_ended": ("final_state",),
}


def names_of(stream: str, name: str, event: Mapping[str, Any]) -> Iterator[str]:
    """The names by which `RESULTS` may ask for an event: with its stream, its kind, or a field of
    it.

    Example:
        >>> list(names_of("audit", "call_started", {"type": "call_started", "agent": "desk"}))
        ['call_started', 'call_started with agent']
        >>> list(names_of("pipecat", "speech_event", {"data": {"kind": "bot_speech_started"}}))
        ['pipecat speech_event', 'pipecat speech_event bot_speech_started']
    """
    if name in CONTROL_EVENTS:
        yield name
        yield from (
            f"{name} with {field}"
            for field in _FIELDS.get(name, ())
            if event.get(field) is not None
        )
        return
    yield f"{stream} {name}"
    data = event.get("data")
    if isinstance(data, Mapping) and isinstance(data.get("kind"), str):
        yield f"{stream} {name} {data['kind']}"


def missing_for(result: Result, present: Collection[str]) -> frozenset[str] | None:
    """The events that are missing for a result: of the first group with events of a stream that is
    there. None if a group is whole.

    Example:
        >>> sorted(missing_for(RESULTS[0], {USER_STARTED, USER_STOPPED}))
        ['pipecat speech_event bot_speech_started']
    """
    if any(group.issubset(present) for group in result.needs):
        return None
    streams = {name.partition(" ")[0] for name in present}
    groups = sorted(
        result.needs, key=lambda group: not any(name.partition(" ")[0] in streams for name in group)
    )
    return groups[0].difference(present)


# Reads a file as every other command does, and says what callgauge makes of it.

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
        not_understood: Events of a type or a kind that this version does not know, by that type or
            kind.
        misspelt: Events with a field that nothing reads, called nearly like one that is missing.
        refused: What cannot be read, and events that are not accepted.
        without_conversation: Events that name no conversation.
        in_seconds: Places of events whose time looks like seconds.
        names_by_call: The names of the events of each call, as `coverage` asks for them.
        contradicted: Latencies of stages that the sounds of their turn contradict, by source and
            stage.
        of_eva: Calls whose turns EVA's rules make.
        eva_misses: What these rules miss, and the calls that lack it.
    """

    read: Counter[str] = field(default_factory=Counter)
    carried: Counter[str] = field(default_factory=Counter)
    not_understood: Counter[Misread] = field(default_factory=Counter)
    misspelt: Counter[Misread] = field(default_factory=Counter)
    refused: list[RecordingError | RefusedEvent] = field(default_factory=list)
    without_conversation: int = 0
    in_seconds: list[str] = field(default_factory=list)
    names_by_call: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    contradicted: Counter[tuple[str, ...]] = field(default_factory=Counter)
    of_eva: int = 0
    eva_misses: defaultdict[EvaNeed, list[str]] = field(default_factory=lambda: defaultdict(list))

    def missing(self) -> Iterator[tuple[Result, int, frozenset[str]]]:
        """Each result, the number of calls that have it, and the events that most of the others
        lack.
        """
        for result in RESULTS:
            lacking = Counter(missing_for(result, names) for names in self.names_by_call.values())
            measured = lacking.pop(None, 0)
            fewest = [each for each, _ in lacking.most_common(1) if each is not None]
            yield result, measured, fewest[0] if fewest else frozenset()


def check_events(file: IO[bytes], path: Path = STANDARD_INPUT) -> Findings:
    """Checks what is read from a file; `path` is its name in messages. Raises as `findings_in`."""
    return _findings(lambda files: files.among(elements_in(file, path), path))


def findings_in(path: Path) -> Findings:
    """Checks recorded calls, a file of events above all; `-` is standard input.

    Raises:
        RecordingError: Nothing in it can be told apart.
    """
    return (
        check_events(sys.stdin.buffer)
        if path == STANDARD_INPUT
        else _findings(RecordedPath(path).places)
    )


def _findings(places: Callable[[RecordedFiles], Iterator[Place]]) -> Findings:
    findings = Findings()

    def refuse(error: RecordingError) -> None:
        error.consequence = "It is left out here; other commands read no call of this file."
        findings.refused.append(error)

    files = RecordedFiles(refuse=refuse)
    for place in chain(places(files), files.of_spans()):
        try:
            call = read_call(place)
        except NoCallError as error:
            say(str(error))
            findings.carried["a webhook that holds no call"] += 1
        except RecordingError as error:
            refuse(error)
        else:
            _note(call, findings)
    findings.without_conversation = files.unnamed
    findings.carried.update(
        {"another framework's, without a rule": files.left_out} if files.left_out else {}
    )
    return findings


def _note(call: RecordedCall, findings: Findings) -> None:
    """Notes the events of a call, each as the evaluator gets it."""
    events = list(in_time_order(call))
    refused: list[RefusedEvent] = []
    accepted: list[Arrival] = []
    for wire, arrival in zip(
        events, arrivals_of(call.conversation_id, events, refused), strict=True
    ):
        if arrival is None:
            continue
        accepted.append(arrival)
        event: Mapping[str, Any] = from_json(wire.value)
        stream = (
            "user_sim" if wire.source == "elevenlabs" and not wire.is_agent_event else wire.source
        )
        time_ms, misread, name = event_time_ms(event), misread_of(arrival.event), wire.event_name
        if time_ms is not None and 0 < time_ms < FIRST_MS:
            findings.in_seconds.append(str(wire.at or call.conversation_id))
        if misread is not None and not is_read(misread):
            findings.not_understood[misread] += 1
            continue
        if misread is not None and misread.reason is MisreadReason.FIELD_MISSPELT:
            findings.misspelt[misread] += 1
        if (stream, name) in _CARRIED:
            findings.carried[name] += 1
        else:
            findings.read[name if name in CONTROL_EVENTS else f"{stream} {name}"] += 1
        findings.names_by_call[call.conversation_id].update(names_of(stream, name, event))
    if is_of_eva(call):
        findings.of_eva += 1
        for miss in eva_misses(call):
            findings.eva_misses[miss].append(call.conversation_id)
    findings.refused += refused
    findings.contradicted.update(_contradicted(accepted))


_LONG_AFTER_MS: Final = 2**53
"""A time at which every call is over."""


def _contradicted(arrivals: Iterable[Arrival]) -> Counter[tuple[str, ...]]:
    """Folds a call as the evaluator would: only so is known what contradicts what."""
    evaluator = PartitionEvaluator(NO_LIMITS, "check")
    for arrival in arrivals:
        evaluator.receive(arrival)
    counts = (each for each in evaluator.advance(_LONG_AFTER_MS) if isinstance(each, Count))
    return Counter({each.labels: int(each.by) for each in counts if each.metric == CONTRADICTED})


MAX_SHOWN_REFUSALS: Final = 20
"""Refused events that are shown one by one."""
MAX_NAMED_CALLS: Final = 5
"""Calls that are named for one thing that EVA's rules miss; the others are counted."""


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
        "misspelt": [
            {"events": count, "what": each.what, "what_to_do": each.what_to_do}
            for each, count in findings.misspelt.most_common()
        ],
        "refused": [_as_document(each) for each in findings.refused],
        "contradicted": [
            {"source": source, "stage": stage, "values": count}
            for (source, stage), count in sorted(findings.contradicted.items())
        ],
        "places_in_seconds": findings.in_seconds,
        "without_conversation": findings.without_conversation,
        "eva": {
            "calls": findings.of_eva,
            "missing": [
                {
                    "what": miss.missing,
                    "what_happens": miss.effect,
                    "what_to_do": miss.remedy,
                    "calls": len(calls),
                    "conversations": calls[:MAX_NAMED_CALLS],
                }
                for miss, calls in findings.eva_misses.items()
            ],
        },
        "results": [
            {"result": result.name, "calls_with_it": measured, "missing_events": sorted(lacking)}
            for result, measured, lacking in findings.missing()
        ],
    }


def _as_document(refused: RecordingError | RefusedEvent) -> dict[str, str]:
    if isinstance(refused, RefusedEvent):
        what, told, remedy = (
            refused.record.what,
            refused.record.expected_and_seen,
            refused.record.what_to_do,
        )
        return {
            "where": refused.place,
            "what": what,
            "expected_and_seen": told,
            "what_to_do": remedy,
        }
    told = f"expected {refused.expected}; saw {refused.seen}"
    return {
        "where": refused.where,
        "what": refused.what,
        "expected_and_seen": told,
        "what_to_do": refused.remedy,
    }


def finding_lines(findings: Findings) -> Iterator[str]:
    """The findings for a person, a line each."""
    total, not_understood = (
        findings.read.total() + findings.carried.total(),
        findings.not_understood.total(),
    )
    calls = len(findings.names_by_call)
    yield (
        f"{counted(total, 'event')} of {counted(calls, 'call')} understood, "
        f"{len(findings.refused)} "
        f"refused{f', {not_understood} not understood' if not_understood else ''}."
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
    if findings.misspelt:
        yield "Fields that may be misspelt; the events are read without them:"
    for each, count in findings.misspelt.most_common():
        yield f"  {count:>7}  {each.what}. {each.what_to_do}"
    yield from _faults(findings)
    if findings.eva_misses:
        yield (
            f"Missing for EVA's rules, which make the turns of {counted(findings.of_eva, 'call')} "
            "with a simulated caller:"
        )
    for miss, lacking in findings.eva_misses.items():
        named = ", ".join(lacking[:MAX_NAMED_CALLS])
        more = ", ..." if len(lacking) > MAX_NAMED_CALLS else ""
        yield f"  in {counted(len(lacking), 'call')} ({named}{more}): {miss}"
    if calls:
        yield "Results:"
        yield from _results(findings, calls)


def _faults(findings: Findings) -> Iterator[str]:
    if findings.refused:
        yield "Refused:"
    for refusal in findings.refused[:MAX_SHOWN_REFUSALS]:
        yield from (f"  {line}" for line in str(refusal).splitlines())
    if len(findings.refused) > MAX_SHOWN_REFUSALS:
        yield f"  and {len(findings.refused) - MAX_SHOWN_REFUSALS} more"
    if findings.contradicted:
        yield (
            "Latencies that the sounds of their turn contradict: longer than the wait that they "
            "are part of, or than the turn. They are in no score. Check the unit: seconds, and "
            "milliseconds only where the event says so."
        )
        yield from (
            f"  {count:>7}  {stage} of {source}"
            for (source, stage), count in sorted(findings.contradicted.items())
        )
    if findings.in_seconds:
        places = ", ".join(findings.in_seconds[:MAX_SHOWN_REFUSALS])
        yield (
            f"Times that look like seconds: `timestamp` is in milliseconds since 1970. At {places}."
        )
    if findings.without_conversation:
        count = counted(findings.without_conversation, "event")
        yield (
            f"{count} without `conversation_id`, read as events of a call with the name of the "
            "file: POST /events needs it, on Kafka the key has it."
        )


def _results(findings: Findings, calls: int) -> Iterator[str]:
    for result, measured, lacking in findings.missing():
        if measured == calls:
            yield f"  yes  {result.name}"
            continue
        share = "no " if not measured else f"in {measured} of {counted(calls, 'call')}"
        wanted = " and ".join(map(_shown_event, sorted(lacking)))
        yield f"  {share}  {result.name}: {result.otherwise}, for want of {wanted}"


def _shown_event(name: str) -> str:
    """An event as its sender names it: who sends none of pipecat's own can send these too.

    >>> _shown_event(BOT_STARTED), _shown_event("audit user")
    ('speech_event of kind bot_speech_started', 'audit user')
    """
    event, _, kind = name.removeprefix("pipecat ").partition(" ")
    return (
        f"{event} of kind {kind}"
        if kind and name.startswith("pipecat")
        else name.removeprefix("pipecat ")
    )
