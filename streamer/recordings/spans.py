"""Spans as OTLP/HTTP carries them, in protobuf or JSON. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from schemas.events.audit import TRACEPARENT

PROTOBUF: Final = "application/x-protobuf"
_NS_IN_MS: Final = 1_000_000
_TRACEPARENT: Final = re.compile(TRACEPARENT)
_FAILED: Final = (2, "STATUS_CODE_ERROR")


class UnreadableSpansError(ValueError):
    """The bytes are no export request of traces."""


class Span(NamedTuple):
    """One span.

    Attributes:
        trace_id: In hexadecimal digits.
        span_id: In hexadecimal digits.
        name: What it is about, in the words of its framework.
        start_ms: When it began, in epoch ms.
        end_ms: When it was over, in epoch ms.
        attributes: Its attributes, as Python has them.
        has_failed: Whether its status is an error.
        service: `service.name` of its process; empty without one.
        parent_id: Of the span that it is part of; empty without one.
    """

    trace_id: str
    span_id: str
    name: str
    start_ms: float
    end_ms: float
    attributes: Mapping[str, Any]
    has_failed: bool
    service: str
    parent_id: str = ""

    def first(self, *names: str) -> Any:
        """The first of these attributes that the span has."""
        return next((self.attributes[name] for name in names if self.attributes.get(name) is not None), None)

    def as_parent(self, span_id: str) -> dict[str, str]:
        """A span of its trace as the field `traceparent`; empty if the ids have not the form of W3C's."""
        traceparent = f"00-{self.trace_id}-{span_id}-01"
        return {"traceparent": traceparent} if _TRACEPARENT.fullmatch(traceparent) else {}


def spans_in(body: bytes, content_type: str) -> Iterator[Span]:
    """The spans of an export request.

    Raises:
        UnreadableSpansError: It is none, or a package for protobuf is not installed.
    """
    if content_type.partition(";")[0].strip().lower() == PROTOBUF:
        yield from _in_protobuf_request(body)
        return
    try:
        yield from spans_of(from_json(body, allow_inf_nan=False))
    except ValueError as error:
        raise UnreadableSpansError(f"the body is no export request of traces in JSON ({error})") from None


def spans_of(request: Any) -> Iterator[Span]:
    """The spans of an export request that is JSON already.

    Raises:
        UnreadableSpansError: It is none.
    """
    try:
        for resource in request["resourceSpans"]:
            service = _in_json(resource.get("resource", {}).get("attributes", ())).get("service.name")
            for scope in resource.get("scopeSpans", ()):
                for span in scope.get("spans", ()):
                    yield Span(
                        str(span["traceId"]).lower(),
                        str(span["spanId"]).lower(),
                        str(span["name"]),
                        int(span["startTimeUnixNano"]) / _NS_IN_MS,
                        int(span["endTimeUnixNano"]) / _NS_IN_MS,
                        _in_json(span.get("attributes", ())),
                        span.get("status", {}).get("code") in _FAILED,
                        service if isinstance(service, str) else "",
                        str(span.get("parentSpanId") or "").lower(),
                    )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableSpansError(f"{type(error).__name__}: {error}") from None


def _in_json(attributes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in attributes:
        kind, value = next(iter(each["value"].items()), ("", None))
        found[each["key"]] = int(str(value)) if kind == "intValue" else value
    return found


def _in_protobuf_request(body: bytes) -> Iterator[Span]:
    try:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it brings no types
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    except ImportError as error:
        raise UnreadableSpansError(
            f"traces in protobuf need a package that is not installed ({error.name}): install callgauge with the extra `otlp`, or send "
            "JSON (`encoding: json` of a collector's otlphttp exporter)"
        ) from None
    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(body)
    except DecodeError:
        raise UnreadableSpansError("the body is no export request of traces in protobuf") from None
    for resource in request.resource_spans:
        service = _in_protobuf(resource.resource.attributes).get("service.name")
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.name,
                    span.start_time_unix_nano / _NS_IN_MS,
                    span.end_time_unix_nano / _NS_IN_MS,
                    _in_protobuf(span.attributes),
                    span.status.code in _FAILED,
                    service if isinstance(service, str) else "",
                    span.parent_span_id.hex(),
                )


def _in_protobuf(attributes: Any) -> dict[str, Any]:
    simple = ("string_value", "bool_value", "int_value", "double_value")
    kinds = ((each.key, each.value, each.value.WhichOneof("value")) for each in attributes)
    return {key: getattr(value, kind) for key, value, kind in kinds if kind in simple}
