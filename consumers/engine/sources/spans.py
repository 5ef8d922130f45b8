"""Which source a span is of, and the calls in a saved body of spans. Pure."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from consumers.engine.sources import gen_ai_spans, livekit_spans, pipecat_spans
from consumers.engine.sources.otlp import Reader, Span, UnreadableSpansError, spans_in_json, spans_in_protobuf
from consumers.engine.sources.told import Event

CALL: Final = "trace-{}"
"""Conversation id of a call that spans tell, with the id of their trace in hexadecimal digits: no other id is in every span."""
STARTED: Final = "call_started"
"""Id of the event with which the first span of a call tells its start, after the call's id."""
MAX_SAVED_SPANS: Final = 100_000
"""Most spans of a saved request in protobuf: ten times as many as may be posted at once."""
_BY_NAME: Final = {**livekit_spans.RULES, **pipecat_spans.RULES}
_DESCRIBING: Final = frozenset(
    {"call_started", "call_ended", "error", "service_usage", "service_latency", "latency_breakdown", "user_bot_latency"}
) | {"TTFBMetricsData", "LLMTokenUsageMetricsData"}
"""Types of events that say no speech, word or tool: alone they make no call."""


def told(span: Span) -> Iterator[Event]:
    """What a span says of its call; nothing if no rule reads it."""
    rule = _BY_NAME.get(span.name) or gen_ai_spans.RULES.get(str(span.first(gen_ai_spans.OPERATION)))
    if rule is not None:
        yield from rule(span)


def started(span: Span) -> Event:
    """The start of a call, as its first span shows it. The agent's own name may come with a later one."""
    agent = span.first(livekit_spans.AGENT_NAME)
    if (
        not agent and span.name not in livekit_spans.RULES
    ):  # there it is the part of the agent that speaks, and changes within a call
        agent = span.first(gen_ai_spans.AGENT_NAME)
    agent = agent or span.producer.service
    named = {"agent": agent} if isinstance(agent, str) and agent else {}
    parent = span.as_parent(span.parent_id or span.span_id)
    time_ms = span.end_ms if span.name == "job_entrypoint" else span.start_ms  # a job begins before its call
    return {"type": "call_started", "timestamp": int(time_ms), "is_told_later": True, **parent, **named}


def events_of(span: Span, begun: set[str]) -> Iterator[tuple[str, Event]]:
    """The events of a span with their ids, which are the same when it is sent again.

    Args:
        span: The span.
        begun: The traces that have their start already; this one is added to them.
    """
    call = CALL.format(span.trace_id)
    for number, event in enumerate(told(span)):
        if span.trace_id not in begun:
            begun.add(span.trace_id)
            yield f"{call}/{STARTED}", started(span)
        yield f"{call}/{span.span_id}/{number}", event


def calls_in_traces(document: Any) -> Iterator[tuple[str, list[Event]]]:
    """The calls in saved bodies of spans, as `POST /v1/traces` would tell them. A trace without speech, words or a tool is none.

    Args:
        document: An export request of traces, as JSON is read, or its bytes in protobuf; or a list of them, in the order in which they
            were sent. A span that cannot be read is left out.

    Yields:
        The id of each conversation, with its events in that order, each once.

    Raises:
        UnreadableSpansError: It is no export request, or has more than `MAX_SAVED_SPANS`.
    """
    requests: Sequence[Any] = document if isinstance(document, list) else [document]
    calls: dict[str, dict[str, Event]] = {}
    for request in requests:
        begun = set[str]()
        for span in _saved_spans(request):
            events = calls.setdefault(CALL.format(span.trace_id), {})
            for event_id, event in events_of(span, begun):
                events.setdefault(event_id, event)
    for conversation_id, events in calls.items():
        if any(is_of_a_call(event) for event in events.values()):
            yield conversation_id, list(events.values())


def _saved_spans(request: Any) -> Iterator[Span]:
    if not isinstance(request, bytes):
        yield from spans_in_json(request)
        return
    for read in _found_in(spans_in_protobuf(request, MAX_SAVED_SPANS)):
        try:
            span = read()
        except UnreadableSpansError:
            continue
        yield span


def _found_in(search: Generator[None, None, list[Reader]]) -> list[Reader]:
    """The result of a search that others may interrupt, where nobody waits."""
    while True:
        try:
            next(search)
        except StopIteration as found:
            return cast("list[Reader]", found.value)


def is_of_a_call(event: Mapping[str, Any]) -> bool:
    """Whether an event tells speech, words or a tool, and not only something about a call."""
    return event.get("type") not in _DESCRIBING
