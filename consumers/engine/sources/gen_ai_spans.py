"""Spans with the names of OpenTelemetry's conventions for generative AI (`gen_ai.*`), which other
frameworks use too. Pure.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from consumers.engine.sources.otlp import Span
from consumers.engine.sources.told import (
    Event,
    agent_told,
    listed_in,
    number_in,
    parsed,
    tool_event,
)
from schemas.units import MS_PER_SECOND, to_seconds

AGENT_NAME: Final = "gen_ai.agent.name"
OPERATION: Final = "gen_ai.operation.name"


def used_tool(span: Span) -> Iterator[Event]:
    """One use of a tool, which is the span."""
    call_id = span.first("gen_ai.tool.call.id", "lk.function_tool.id") or span.span_id
    name = span.first("gen_ai.tool.name", "lk.function_tool.name")
    arguments, result = (parsed(span.first(*names)) for names in (_ARGUMENTS, _RESULT))
    # LiveKit and the conventions say of a tool that failed what kind of error it was, and may leave
    # the span's status as it is.
    has_failed = (
        span.has_failed
        or is_true(span.first("lk.function_tool.is_error"))
        or bool(span.first("error.type"))
    )
    yield tool_event("in_progress", span.start_ms, call_id, function_name=name, arguments=arguments)
    ended = {"function_name": name, "result": result, "in_progress_at": to_seconds(span.start_ms)}
    yield tool_event("failed" if has_failed else "completed", span.end_ms, call_id, **ended)


def told_agent(span: Span) -> Event:
    """What the agent was told, as fields of `call_started`: the conventions have both in spans of a
    model, pipecat in its own words too.
    """
    instructions = span.first(*_INSTRUCTIONS)
    parts = parsed(instructions)
    if isinstance(parts, list):
        texts = [each.get("content") for each in listed_in(parts)]
        instructions = "\n".join(text for text in texts if isinstance(text, str))
    # Of Gemini's live models pipecat has the beginning alone.
    may_be_cut = (
        span.name == "llm_setup"
        and isinstance(instructions, str)
        and len(instructions) == _CUT_AT_CHARS
    )
    return agent_told(None if may_be_cut else instructions, parsed(span.first(*_TOOLS)))


def first_byte(
    service: str, value: object, time_ms: float | None, start_ms: float
) -> Iterator[Event]:
    """How long a service took to its first byte, in seconds; without a number, nothing.

    Args:
        service: `STT`, `LLM` or `TTS`.
        value: The number.
        time_ms: A moment by which the byte had come, in epoch ms; None for the moment that follows
            from the start.
        start_ms: When the service was asked, in epoch ms.
    """
    seconds = number_in(value)
    if seconds is not None:
        came_ms = start_ms + seconds * MS_PER_SECOND if time_ms is None else time_ms
        known = {"processor": f"{service}Service#0", "value": seconds}
        yield {"type": "TTFBMetricsData", "timestamp": int(came_ms), **known}


def used(service: str, span: Span, *, has_cache_in_input: bool = False) -> Iterator[Event]:
    """The tokens, characters or seconds of sound of one request to a service; nothing if the span
    has none.

    Args:
        service: `STT`, `LLM` or `TTS`.
        span: The request.
        has_cache_in_input: Whether the tokens of the input have those of the cache among them, as
            the conventions say.
    """
    amounts = _amounts(span, has_cache_in_input=has_cache_in_input)
    if amounts:
        known = {
            "kind": service.lower(),
            "processor": f"{service}Service#0",
            "provider": span.first("gen_ai.provider.name", "gen_ai.system"),
            "model": span.first(*_MODEL),
            "timestamp": to_seconds(span.end_ms),
        }
        data = {name: value for name, value in known.items() if value is not None}
        yield {"type": "service_usage", "timestamp": int(span.end_ms), "data": {**data, **amounts}}


def failed(service: str, span: Span, **known: str) -> Event:
    """An error of one of the agent's services. Of one that two spans tell, `cause` and `told_by`
    are known (`told.error_event`).
    """
    return {
        "type": "error",
        "timestamp": int(span.end_ms),
        "data": {"processor": f"{service}Service#0", **known},
    }


def is_true(value: object) -> bool:
    """Whether an attribute says yes: some producers write it as text."""
    return value is True or value == "true"


def _amounts(span: Span, *, has_cache_in_input: bool) -> dict[str, float]:
    counts = {name: number_in(span.first(*attributes)) for name, attributes in _AMOUNTS.items()}
    amounts = {name: count for name, count in counts.items() if count}
    if has_cache_in_input and amounts:
        # Of the total, the reader takes the cache away, so that no token counts twice.
        amounts["total_tokens"] = amounts.get("prompt_tokens", 0) + amounts.get(
            "completion_tokens", 0
        )
    return amounts


def _asked_model(span: Span) -> Iterator[Event]:
    """The tokens of a request to a model. They count in a call whose framework reports none: its
    own spans have the same ones.
    """
    amounts = _amounts(span, has_cache_in_input=True)
    if amounts:
        known: dict[str, Any] = {"processor": "LLMService#0", "value": amounts}
        model = span.first(*_MODEL)
        named = {"model": model} if isinstance(model, str) else {}
        yield {"type": "LLMTokenUsageMetricsData", "timestamp": int(span.end_ms), **known, **named}


_MODEL: Final = ("gen_ai.request.model", "gen_ai.response.model")
_INSTRUCTIONS: Final = ("gen_ai.system_instructions", "session.instructions")
_TOOLS: Final = ("gen_ai.tool.definitions", "tools.definitions", "tools")
_CUT_AT_CHARS: Final = 500
_ARGUMENTS: Final = (
    "gen_ai.tool.call.arguments",
    "lk.pii.function_tool.arguments",
    "lk.function_tool.arguments",
)
_RESULT: Final = (
    "gen_ai.tool.call.result",
    "lk.pii.function_tool.output",
    "lk.function_tool.output",
)
_AMOUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    "prompt_tokens": (
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.prompt_tokens",
        "llm.usage.prompt_tokens",
        "llm.token_count.prompt",
        "tokens.prompt",
    ),
    "completion_tokens": (
        "gen_ai.usage.output_tokens",
        "gen_ai.usage.completion_tokens",
        "llm.usage.completion_tokens",
        "llm.token_count.completion",
        "tokens.completion",
    ),
    "cache_read_input_tokens": (
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read_input_tokens",
        "gen_ai.usage.input_cached_tokens",
        "llm.token_count.prompt_details.cache_read",
    ),
    "cache_creation_input_tokens": (
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.cache_write.input_tokens",
        "gen_ai.usage.cache_creation_input_tokens",
        "llm.token_count.prompt_details.cache_write",
    ),
    "characters": ("metrics.character_count",),
    "audio_seconds": ("metrics.audio_seconds",),
}
"""Names of the same amount, by producer and version; the first that a span has counts."""
Rule = Callable[[Span], Iterator[Event]]
RULES: Final[Mapping[str, Rule]] = {
    "execute_tool": used_tool,
    "chat": _asked_model,
    "generate_content": _asked_model,
    "text_completion": _asked_model,
}
"""What spans of an operation (`gen_ai.operation.name`) tell, whatever their names."""
