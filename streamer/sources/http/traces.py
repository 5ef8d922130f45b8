"""`POST /v1/traces`: spans of a voice agent by OTLP/HTTP, as LiveKit's agents and pipecat's bots
name theirs, and `gen_ai.*`.

A span comes when it is over, some seconds after it began. So a call that is told by spans has no
dead air while it runs, and all its other values. The conversation id is `trace-` and the id of the
trace: no other id is in every span. Pure.
"""

from collections.abc import Generator, Iterator, Mapping
from functools import partial
from typing import Final

from consumers.engine.sources.otlp import (
    PROTOBUF,
    Producer,
    Reader,
    Span,
    UnreadableSpansError,
    producer_in_json,
    span_in_json,
    spans_in_protobuf,
    unreadable,
)
from consumers.engine.sources.spans import CALL, events_of
from streamer.sources.http.body import LEFT_OUT, MAX_EVENTS, Posted, UnreadableBodyError
from streamer.sources.http.json_parts import (
    JsonStretch,
    JsonText,
    TooManyError,
    UnsplitError,
    element_of,
)

RESOURCES: Final = b"resourceSpans"
RESOURCE: Final = b"resource"
SCOPES: Final = b"scopeSpans"
SPANS: Final = b"spans"
"""The parts of an export request in JSON that are read. The arrays are each in the elements of the
one before.
"""
MAX_MEMBERS: Final = 100
"""Most members of the objects around the spans; each has three."""
CE_SOURCE: Final = "otlp"


def posted_spans(
    body: bytes, content_type: str, _headers: Mapping[str, str]
) -> Iterator[Posted | None]:
    """Reads the spans of a request as events of their calls, after they were told apart. One that
    cannot be read is refused alone.

    Args:
        body: The body of an export request, in protobuf or JSON.
        content_type: The value of the header.

    Yields:
        The events of each span, with ids that are the same when it is sent again; `LEFT_OUT` for a
        span that no rule reads; None between parts of the request, so that others may have their
        turn.

    Raises:
        UnreadableBodyError: No spans can be told apart in it, or too many. That is known before the
            first event is yielded.
    """
    is_protobuf = content_type.partition(";")[0].strip().lower() == PROTOBUF
    try:
        spans = yield from (
            spans_in_protobuf(body, MAX_EVENTS) if is_protobuf else _in_json(JsonText(body))
        )
    except (UnreadableSpansError, UnsplitError) as error:
        raise UnreadableBodyError(f"the body is no export request of traces: {error}") from None
    begun: set[str] = set()
    for place, read in enumerate(spans, 1):
        yield None
        try:
            span = read()
        except ValueError as error:
            yield Posted(place, None, {}, str(error))
            continue
        events = list(events_of(span, begun))
        for event_id, event in events:
            attributes = {
                "id": event_id,
                "source": CE_SOURCE,
                "subject": CALL.format(span.trace_id),
            }
            yield Posted(place, event, attributes)
        if not events:
            yield Posted(place, LEFT_OUT)


def _in_json(text: JsonText) -> Generator[None, None, list[Reader]]:
    """The spans of an export request in JSON, as `spans_in_protobuf` gives them."""
    readers = list[Reader]()
    request = yield from text.members(text.place, MAX_MEMBERS)
    if RESOURCES not in request:
        raise UnsplitError(f"expected `{RESOURCES.decode()}`")
    scopes = 0
    for of in (yield from text.elements(request[RESOURCES], b"[]", MAX_EVENTS)):
        yield None
        try:
            resource = yield from text.members(of, MAX_MEMBERS)
            producer = (
                _producer(text.at(resource[RESOURCE])) if RESOURCE in resource else Producer()
            )
            found = (
                (yield from text.elements(resource[SCOPES], b"[]", MAX_EVENTS))
                if SCOPES in resource
                else []
            )
        except UnsplitError as error:
            readers.append(unreadable(error))
            continue
        if (scopes := scopes + len(found)) > MAX_EVENTS:
            raise TooManyError(f"expected at most {MAX_EVENTS} scopes in a request, saw more")
        for each in found:
            yield None
            readers += yield from _in_scope(text, each, producer)
        if len(readers) > MAX_EVENTS:
            raise TooManyError(f"expected at most {MAX_EVENTS} spans in a request, saw more")
    return readers


def _in_scope(
    text: JsonText, place: JsonStretch, producer: Producer
) -> Generator[None, None, list[Reader]]:
    try:
        scope = yield from text.members(place, MAX_MEMBERS)
        spans = (
            (yield from text.elements(scope[SPANS], b"[]", MAX_EVENTS)) if SPANS in scope else []
        )
    except TooManyError:
        raise
    except UnsplitError as error:
        return [unreadable(error)]
    return [partial(_span, text, each, producer) for each in spans]


def _producer(text: bytes) -> Producer:
    try:
        return producer_in_json(element_of(text))
    except ValueError:
        return Producer()


def _span(text: JsonText, place: JsonStretch, producer: Producer) -> Span:
    return span_in_json(element_of(text.at(place)), producer)
