"""Which source a span is of, and what it says of its call. Pure."""

import hashlib
from collections.abc import Iterator
from typing import Final

from pydantic_core import to_json

from consumers.engine.sources import gen_ai_spans, livekit_spans, pipecat_spans
from consumers.engine.sources.otlp import Span
from consumers.engine.sources.told import REPORT, Event

CALL: Final = "trace-{}"
"""Conversation id of a call that spans tell, with the id of their trace in hexadecimal digits: no
other id is in every span.
"""
STARTED: Final = "call_started"
"""Id of the event with which the first span of a call tells its start, after the call's id."""
_BY_NAME: Final = {**livekit_spans.RULES, **pipecat_spans.RULES}
_OF_THE_AGENT: Final = frozenset({"llm_node", "llm", "llm_setup"})
"""Spans of the model that speaks with the caller. A request (`llm_request`) may be that of a helper
with other instructions.
"""


def told(span: Span) -> Iterator[Event]:
    """What a span says of its call; nothing if no rule reads it."""
    rule = _BY_NAME.get(span.name) or gen_ai_spans.RULES.get(
        str(span.first(gen_ai_spans.OPERATION))
    )
    if rule is not None:
        yield from rule(span)


def started(span: Span) -> Event:
    """The start of a call, as its first span shows it. The agent's own name may come with a later
    one.
    """
    agent = span.first(livekit_spans.AGENT_NAME)
    if (
        not agent and span.name not in livekit_spans.RULES
    ):  # there it is the part of the agent that speaks, and changes within a call
        agent = span.first(gen_ai_spans.AGENT_NAME)
    agent = agent or span.producer.service
    named = {"agent": agent} if isinstance(agent, str) and agent else {}
    parent = span.as_parent(span.parent_id or span.span_id)
    # a job begins before its call
    time_ms = span.end_ms if span.name == "job_entrypoint" else span.start_ms
    return {
        "type": "call_started",
        "timestamp": int(time_ms),
        "is_told_later": True,
        **parent,
        **named,
    }


def events_of(span: Span, begun: set[str]) -> Iterator[tuple[str, Event]]:
    """The events of a span with their ids, which are the same when it is sent again, and where
    another span repeats what it reports.

    Each request to a model repeats what the agent was told: the same has one id, and is told once.

    Args:
        span: The span.
        begun: The traces that have their start already, and the ids of what agents were told; those
            of this one are added to them.
    """
    call = CALL.format(span.trace_id)
    events = [
        (f"{call}/{event.pop(REPORT, f'{span.span_id}/{number}')}", event)
        for number, event in enumerate(told(span))
    ]
    fields = _told_agent(span)
    if fields:
        told_id = f"{call}/{hashlib.blake2b(to_json(fields, inf_nan_mode='null'), digest_size=12).hexdigest()}"
        if told_id not in begun:
            begun.add(told_id)
            began = {"type": "call_started", "timestamp": int(span.start_ms), "is_told_later": True}
            events.append((told_id, {**began, **fields}))
    if events and span.trace_id not in begun:
        begun.add(span.trace_id)
        yield f"{call}/{STARTED}", started(span)
    yield from events


def _told_agent(span: Span) -> Event:
    is_of_a_library = (
        span.name not in _BY_NAME and str(span.first(gen_ai_spans.OPERATION)) in gen_ai_spans.RULES
    )
    return gen_ai_spans.told_agent(span) if is_of_a_library or span.name in _OF_THE_AGENT else {}
