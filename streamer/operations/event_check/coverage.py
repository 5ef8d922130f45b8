"""The results of a call, and the events that each of them needs. Pure."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

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
