"""`POST /v1/traces`: spans of a voice agent by OTLP/HTTP, as LiveKit's agents and pipecat's bots
name theirs, and `gen_ai.*`.

A span comes when it is over, some seconds after it began. So a call that is told by spans has no
dead air while it runs, and all its other values. The conversation id is `trace-` and the id of the
trace: no other id is in every span. Pure.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from consumers.engine.sources.otlp import (
    PROTOBUF,
    spans_in_json,
    spans_in_protobuf,
)
from consumers.engine.sources.spans import CALL, events_of
from streamer.sources.http.body import (
    LEFT_OUT,
    MAX_EVENTS,
    Posted,
    UnreadableBodyError,
    value_of,
)

CE_SOURCE: Final = "otlp"
MAX_JSON_PARTS: Final = 100_000
"""Most commas and opening brackets of a request in JSON: that of 2,000 to 5,000 spans, of which an
exporter sends 512 at a time. To read more holds up other tasks for too long.
"""


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
        if is_protobuf:
            spans = yield from spans_in_protobuf(body, MAX_EVENTS)
        else:
            request = value_of(body, MAX_JSON_PARTS)
            yield None
            spans = spans_in_json(request, MAX_EVENTS)
    except ValueError as error:
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
