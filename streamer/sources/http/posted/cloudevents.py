"""Reads the events in the body of a POST: plain JSON, JSON lines, and CloudEvents 1.0 in all three modes of HTTP. Pure."""

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from pydantic_core import from_json

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
LINES: Final = frozenset({"application/x-ndjson", "application/jsonl", "application/x-jsonlines"})
REQUIRED: Final = ("specversion", "id", "source", "type")
MAX_EVENTS: Final = 10_000
"""Most events of one request."""


class UnreadableBodyError(ValueError):
    """The body as a whole cannot be read, so no event of it is accepted."""


class Posted(NamedTuple):
    """One event of a body.

    Attributes:
        place: Its line, or its place in the array, from 1.
        event: The event itself, of any JSON type.
        attributes: Its CloudEvents attributes; None for a plain event.
        fault: The reason why it cannot be read; None if it can.
    """

    place: int
    event: Any
    attributes: Mapping[str, str] | None = None
    fault: str | None = None


def posted_events(
    body: bytes, content_type: str, headers: Mapping[str, str], most_events: int = MAX_EVENTS
) -> list[Posted]:
    """Reads the events of a request.

    Args:
        body: The body.
        content_type: The value of the header, with or without parameters.
        headers: All headers by their names in small letters.
        most_events: Most events that it may have.

    Raises:
        UnreadableBodyError: It is no JSON, has too many events, or is a CloudEvents batch that is no array.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == STRUCTURED:
        return [_structured(1, _document(body))]
    if kind == BATCH:
        events = _document(body)
        if not isinstance(events, list):
            raise UnreadableBodyError(f"{BATCH}: expected a JSON array of CloudEvents")
        return [_structured(place, each) for place, each in enumerate(_bounded(events, most_events), 1)]
    if "ce-specversion" in headers or "ce-id" in headers:
        attributes = {name[3:]: _decoded(value) for name, value in headers.items() if name.startswith("ce-")}
        return [Posted(1, _document(body), attributes, _lacking(attributes))]
    if kind not in LINES and body.lstrip()[:1] == b"[":
        return [Posted(place, event) for place, event in enumerate(_bounded(_document(body), most_events), 1)]
    return _bounded(list(_lines(body, may_be_whole=kind not in LINES)), most_events)


def _lines(body: bytes, *, may_be_whole: bool) -> Iterator[Posted]:
    """The events of JSON lines; blank lines have a number and no event. One object may have line breaks inside."""
    if may_be_whole:
        try:
            yield Posted(1, from_json(body, allow_inf_nan=False))
        except ValueError:
            if b"\n" not in body.strip():
                raise UnreadableBodyError("expected one JSON object, an array of them, or one object a line") from None
        else:
            return
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            try:
                yield Posted(number, from_json(line, allow_inf_nan=False))
            except ValueError as error:
                yield Posted(number, None, None, f"the line is not JSON: {error}")


def _document(body: bytes) -> Any:
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise UnreadableBodyError(f"the body is not JSON: {error}") from None


def _bounded(events: list[Any], most: int) -> list[Any]:
    if len(events) > most:
        raise UnreadableBodyError(f"expected at most {most} events in a request, saw {len(events)}")
    return events


def _structured(place: int, document: Any) -> Posted:
    if not isinstance(document, Mapping):
        return Posted(place, None, {}, "expected a CloudEvent as a JSON object")
    attributes = {
        name: value if isinstance(value, str) else str(value)
        for name, value in document.items()
        if name not in ("data", "data_base64") and isinstance(value, str | int) and not isinstance(value, bool)
    }
    data = document.get("data")
    fault = _lacking(attributes)
    if "data_base64" in document and fault is None:
        try:
            data = from_json(base64.b64decode(document["data_base64"], validate=True), allow_inf_nan=False)
        except (ValueError, TypeError, binascii.Error):
            fault = "data_base64 is not JSON in base64"
    return Posted(place, data, attributes, fault)


def _lacking(attributes: Mapping[str, str]) -> str | None:
    missing = [name for name in REQUIRED if not attributes.get(name)]
    if missing:
        return f"the CloudEvent lacks {', '.join(missing)}"
    return None if attributes["specversion"] == "1.0" else 'specversion: expected "1.0"'


def _decoded(value: str) -> str:
    """A header value without its percent encoding, and without the quotes that a sender may put around it."""
    return unquote(value.strip().removeprefix('"').removesuffix('"'))
