"""Public events of an agent session become events of a call. No Kafka: an event in, events out.

LiveKit's versions differ in when an event has which time. A time that LiveKit gives counts;
otherwise it is that of the event.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, NamedTuple

from callgauge_send.events import (
    MAX_INSTRUCTIONS_CHARS,
    MAX_TOOLS,
    Rank,
    is_failure,
    known_fields,
    name_of,
    text_of,
    value_of,
)

HOLD_SECONDS: Final = 5.0
"""How long the end of the user's speech waits for its true time, where LiveKit's event comes with
the time at which the detector was sure (before 1.5). The message of the turn brings it, or the
answer's start ends the waiting.
"""
BACKDATED_SECONDS: Final = 0.005
"""An event with a time that is longer ago than this has the time at which it happened."""
STATE_DELAY_SECONDS: Final = 1.0
"""How long after the first sound LiveKit may say at the latest that the agent speaks."""
MAX_OPEN_CALLS: Final = 256
"""Tools at a time of which the beginning is remembered; more is a loop."""
MAX_SPEECHES: Final = 64
"""Speeches at a time that may still be interrupted."""
CAUSES: Final = {
    "audio_activity": "user_speech",
    "user_turn": "user_turn",
    "programmatic": "program",
}
"""Why a speech was interrupted: the user began to speak, the user's turn was ruled to be over, or
the agent's own code did it.
"""
KINDS: Final = {"llm": "LLM", "realtime": "LLM", "stt": "STT", "tts": "TTS"}
"""The kind of a service by the first word of the type of its error or metrics."""

Emit = Callable[..., None]
"""Takes the rank, the type, and the fields of an event."""


class _Stop(NamedTuple):
    """The end of the user's speech whose time is not certain yet."""

    began_s: float | None
    at_s: float
    timer: asyncio.TimerHandle


class SessionReader:
    """Reads the events of one session, in their order."""

    def __init__(
        self,
        emit: Emit,
        agent: Callable[[], Any],
        *,
        words: bool = True,
        tool_arguments: bool = True,
        tool_results: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Begins before the session.

        Args:
            emit: Takes the events.
            agent: Returns the agent that speaks now; it may raise before there is one.
            words: Whether words leave the agent.
            tool_arguments: Whether arguments of tools do.
            tool_results: Whether results of tools do. If not, a result says only whether it is an
                error.
            clock: The time now, in seconds since 1970.
        """
        self._emit = emit
        self._agent_now = agent
        self._has_words = words
        self._has_arguments = tool_arguments
        self._has_results = tool_results
        self._clock = clock
        self._user_began_s: float | None = None
        self._user_stop: _Stop | None = None
        self._is_user_speaking = False
        self._played_s: float | None = None
        self._agent_began_s: float | None = None
        self._speeches: dict[str, Any] = {}
        self._running: dict[str, tuple[str, float]] = {}
        self._reports_tools = False
        self._agent: Any = None
        self._reads_metrics = False
        self._used: Counter[tuple[str, str, str]] = Counter()

    def close(self) -> None:
        """Sends what still waited for a better time, before the end of the call."""
        self._release(None)

    # Speech. A stretch is named by the event that begins it, and the event that ends it says when
    # it began.

    def user_state(self, event: Any) -> None:
        """The user begins or ends to speak, or is away."""
        if event.new_state == "speaking":
            self._release(None)
            self._is_user_speaking = True
            self._user_began_s = event.created_at
            self._moment("user_speech_started", event.created_at)
        elif event.old_state == "speaking":
            self._is_user_speaking = False
            began_s, self._user_began_s = self._user_began_s, None
            if self._clock() - event.created_at > BACKDATED_SECONDS:
                self._moment("user_speech_stopped", event.created_at, began_s)
                return
            timer = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._release, None)
            self._user_stop = _Stop(began_s, event.created_at, timer)

    def agent_state(self, event: Any) -> None:
        """The agent begins or ends to speak. An end may be that of an interrupted speech."""
        self._introduce()
        if event.new_state == "speaking":
            self._release(None)
            played_s, self._played_s = self._played_s, None
            is_of_now = (
                played_s is not None and 0 <= event.created_at - played_s <= STATE_DELAY_SECONDS
            )
            self._agent_began_s = (
                played_s if is_of_now and played_s is not None else event.created_at
            )
            self._moment("bot_speech_started", self._agent_began_s)
        elif event.old_state == "speaking":
            self._interruptions(event.created_at)
            self._moment("bot_speech_stopped", event.created_at, self._agent_began_s)
            self._agent_began_s = None

    def played(self, event: Any) -> None:
        """The output plays the first sound of a speech; the state of the agent follows when LiveKit
        comes to it (from 1.3 on).
        """
        self._played_s = event.created_at

    def speech(self, event: Any) -> None:
        """A speech is planned; it may be interrupted later, and its handle knows."""
        handle = event.speech_handle
        self._speeches[handle.id] = handle
        for known in [
            name for name, each in self._speeches.items() if each.done() and name != handle.id
        ]:
            del self._speeches[known]
        if len(self._speeches) > MAX_SPEECHES:
            del self._speeches[next(iter(self._speeches))]

    def resumed(self, event: Any) -> None:
        """What looked like an interruption was none."""
        self._emit(
            Rank.SPEECH,
            "false_interruption",
            data={"resumed": bool(event.resumed), "timestamp": event.created_at},
        )

    def _interruptions(self, at_s: float) -> None:
        """Reports a speech that was interrupted while it was heard, with the cause as far as
        LiveKit tells it.
        """
        for name in [name for name, handle in self._speeches.items() if handle.interrupted]:
            handle = self._speeches.pop(name)
            cause = CAUSES.get(getattr(handle, "_interrupt_source", None) or "")
            if cause is None:
                cause = "user_speech" if self._is_user_speaking else "program"
            self._emit(
                Rank.SPEECH,
                "speech_event",
                data={"kind": "interruption", "timestamp": at_s, "cause": cause},
            )

    def _release(self, at_s: float | None) -> None:
        """Sends the end of the user's speech that waited; `at_s` is its true time if it lies in the
        stretch.
        """
        stop, self._user_stop = self._user_stop, None
        if stop is None:
            return
        stop.timer.cancel()
        is_true = at_s is not None and (stop.began_s or 0.0) <= at_s <= stop.at_s
        self._moment(
            "user_speech_stopped", at_s if is_true and at_s is not None else stop.at_s, stop.began_s
        )

    def _moment(self, kind: str, at_s: float, began_s: float | None = None) -> None:
        self._emit(
            Rank.SPEECH,
            "speech_event",
            data=known_fields(kind=kind, timestamp=at_s, started_at=began_s),
        )

    # Words, and the numbers that come with them.

    def item(self, event: Any) -> None:
        """A message of the user or the agent is whole, or another agent has taken over."""
        item = event.item
        kind = getattr(item, "type", "")
        if kind == "agent_handoff":
            self._introduce()
        elif kind == "message" and item.role == "user":
            self._user_said(item, getattr(item, "metrics", None) or {}, event.created_at)
        elif kind == "message" and item.role == "assistant":
            self._agent_said(item, getattr(item, "metrics", None) or {}, event.created_at)

    def _user_said(self, item: Any, metrics: Mapping[str, Any], at_s: float) -> None:
        stopped_s = metrics.get("stopped_speaking_at")
        if stopped_s is not None:
            self._release(stopped_s)
        self._said("user_message", item, metrics)
        if not self._reads_metrics:
            self._ruled(stopped_s, metrics.get("end_of_turn_delay"))
            delay_s = metrics.get("transcription_delay")
            heard_s = at_s if stopped_s is None else stopped_s + (delay_s or 0.0)
            self._first_byte("STT stt_node", _model(metrics.get("stt_metadata")), delay_s, heard_s)

    def _agent_said(self, item: Any, metrics: Mapping[str, Any], at_s: float) -> None:
        self._said("assistant_message", item, metrics, interrupted=bool(item.interrupted))
        if not self._reads_metrics:
            spoken_s = (metrics.get("started_speaking_at") or at_s) - (
                metrics.get("playback_latency") or 0.0
            )
            ttfb_s = metrics.get("tts_node_ttfb")
            self._first_byte("TTS tts_node", _model(metrics.get("tts_metadata")), ttfb_s, spoken_s)
            ttft_s = metrics.get("llm_node_ttft")
            self._first_byte(
                "LLM llm_node",
                _model(metrics.get("llm_metadata")),
                ttft_s,
                spoken_s - (ttfb_s or 0.0),
            )
        if (latency_s := metrics.get("e2e_latency")) is not None:
            # The message comes when the speech is over: of one that was cut, when the user speaks
            # again.
            data = known_fields(
                latency_seconds=latency_s, timestamp=metrics.get("started_speaking_at")
            )
            self._emit(Rank.METRICS, "user_bot_latency", data=data)

    def _said(self, kind: str, item: Any, metrics: Mapping[str, Any], **more: Any) -> None:
        content = item.text_content
        if self._has_words and content:
            began = datetime.fromtimestamp(
                metrics.get("started_speaking_at") or item.created_at, UTC
            ).isoformat()
            self._emit(
                Rank.WORDS, kind, data={"content": text_of(content), "timestamp": began, **more}
            )

    def _ruled(self, stopped_s: float | None, delay_s: float | None) -> None:
        """The ruling that the user's turn is over came so long after its last sound."""
        if stopped_s is not None and delay_s:
            data = {"user_turn_start_time": stopped_s, "user_turn_secs": delay_s}
            self._emit(Rank.METRICS, "latency_breakdown", data=data)

    def _first_byte(
        self, processor: str, model: str | None, seconds: float | None, at_s: float
    ) -> None:
        """A service gave its first word or sound at that time, so long after it was asked."""
        if seconds is not None and seconds > 0:
            data = known_fields(
                kind="ttfb", processor=processor, model=model, seconds=seconds, timestamp=at_s
            )
            self._emit(Rank.METRICS, "service_latency", data=data)

    def measured(self, event: Any) -> None:
        """A service reports its time and use, one request at a time: only before LiveKit 1.5, where
        messages do not have all of it.
        """
        self._reads_metrics = True
        metrics = event.metrics
        kind = KINDS.get(metrics.type.partition("_")[0])
        name = f"{kind} {name_of(getattr(metrics, 'label', ''))}"
        if metrics.type == "eou_metrics":
            stopped_s = getattr(metrics, "last_speaking_time", None)
            if stopped_s is not None:
                self._release(stopped_s)
            else:
                stopped_s = (
                    metrics.timestamp
                    - metrics.end_of_utterance_delay
                    - metrics.on_user_turn_completed_delay
                )
            self._ruled(stopped_s, metrics.end_of_utterance_delay)
            self._first_byte(
                "STT stt_node",
                None,
                metrics.transcription_delay,
                stopped_s + metrics.transcription_delay,
            )
        elif kind == "LLM":
            self._first_byte(
                name,
                None,
                metrics.ttft,
                metrics.timestamp - metrics.duration + max(metrics.ttft, 0.0),
            )
            tokens: dict[str, float] = {
                "prompt_tokens": getattr(metrics, "prompt_tokens", 0)
                or getattr(metrics, "input_tokens", 0),
                "completion_tokens": getattr(metrics, "completion_tokens", 0)
                or getattr(metrics, "output_tokens", 0),
            }
            self._spent("llm", name, None, tokens)
        elif kind == "TTS":
            self._first_byte(
                name,
                None,
                metrics.ttfb,
                metrics.timestamp - metrics.duration + max(metrics.ttfb, 0.0),
            )
            self._spent("tts", name, None, {"characters": metrics.characters_count})
        elif kind == "STT":
            self._spent("stt", name, None, {"audio_seconds": metrics.audio_duration})

    def used(self, event: Any) -> None:
        """The use of each model since the session began. What is new since the last
        report is sent.
        """
        for usage in event.usage.model_usage:
            kind = usage.type.partition("_")[0]
            fresh = {}
            for name, field in _USED.get(kind, {}).items():
                key = (kind, f"{usage.provider} {usage.model}", name)
                fresh[name] = getattr(usage, field, 0) - self._used[key]
                self._used[key] += fresh[name]
            if KINDS.get(kind):
                self._spent(
                    kind, f"{KINDS[kind]} {name_of(usage.provider)}", name_of(usage.model), fresh
                )

    def _spent(
        self, kind: str, processor: str, model: str | None, amounts: Mapping[str, float]
    ) -> None:
        if any(amount > 0 for amount in amounts.values()):
            data = known_fields(
                kind=kind, processor=processor, model=model, timestamp=self._clock(), **amounts
            )
            self._emit(Rank.METRICS, "service_usage", data=data)

    # Tools.

    def tool_update(self, event: Any) -> None:
        """A tool begins to run, or has ended: LiveKit tells each by itself from 1.6 on."""
        self._reports_tools = True
        update = event.update
        if update.type == "tool_call_started":
            call = update.function_call
            self._running[call.call_id] = (call.name, event.created_at)
            if len(self._running) > MAX_OPEN_CALLS:
                del self._running[next(iter(self._running))]
            self._tool(
                "in_progress",
                call.name,
                call.call_id,
                event.created_at,
                arguments=self._arguments(call.arguments),
            )
        elif update.type == "tool_call_ended":
            name, began_s = self._running.pop(update.call_id, (None, None))
            self._settled(
                _ENDS[update.status],
                name,
                update.call_id,
                event.created_at,
                began_s,
                update.message,
            )

    def tools_executed(self, event: Any) -> None:
        """Some tools have ended, before 1.6: when each began is in its call, when it ended in its
        output.
        """
        if self._reports_tools:
            return
        for call, output in zip(event.function_calls, event.function_call_outputs, strict=False):
            began_s = getattr(call, "created_at", None)
            if began_s is not None:
                self._tool(
                    "in_progress",
                    call.name,
                    call.call_id,
                    began_s,
                    arguments=self._arguments(call.arguments),
                )
            ended_s = getattr(output, "created_at", None) or event.created_at
            what = "failed" if getattr(output, "is_error", False) else "completed"
            self._settled(
                what, call.name, call.call_id, ended_s, began_s, getattr(output, "output", None)
            )

    def _settled(
        self,
        what: str,
        name: str | None,
        call_id: str,
        at_s: float,
        began_s: float | None,
        result: str | None,
    ) -> None:
        if what == "failed":
            more: dict[str, Any] = {"error": text_of(result or "failed")}
        elif what == "cancelled":
            more = {}
        else:
            more = {"result": self._result(result)}
        self._tool(what, name, call_id, at_s, in_progress_at=began_s, **more)

    def _tool(self, what: str, name: str | None, call_id: str, at_s: float, **more: Any) -> None:
        data = known_fields(
            kind=f"function_call_{what}",
            function_name=None if name is None else name_of(name),
            tool_call_id=name_of(call_id),
            timestamp=at_s,
            **more,
        )
        self._emit(Rank.TOOLS, "function_call_event", data=data)

    def _arguments(self, arguments: str) -> object:
        if not self._has_arguments:
            return None
        known = value_of(arguments or "{}")
        return text_of(arguments) if known is None else known

    def _result(self, result: str | None) -> object:
        """The result; if results are not to leave the agent, whether it is an error."""
        if self._has_results:
            return text_of(result or "")
        return {"status": "error" if is_failure(result) else "success", "withheld": True}

    # The call.

    def failed(self, event: Any) -> None:
        """A service reports an error, also one from which it recovers."""
        error = event.error
        kind = KINDS.get(str(getattr(error, "type", "")).partition("_")[0])
        label = getattr(error, "label", None) or type(event.source).__name__
        data = {
            "message": text_of(getattr(error, "error", error)),
            "processor": name_of(f"{kind} {label}" if kind else label),
        }
        # callgauge counts it, and a broken service reports many
        self._emit(Rank.METRICS, "error", data=data)

    def _introduce(self) -> None:
        """Sends what the agent that speaks now was told and may do, when it is another one; the
        second one takes over from the first.
        """
        try:
            agent = self._agent_now()
        except RuntimeError:
            return
        if agent is None or agent is self._agent:
            return
        old, self._agent = self._agent, agent
        if old is not None:
            self._emit(
                Rank.CALL,
                "agent_handoff",
                data={"old_agent": _agent_name(old), "new_agent": _agent_name(agent)},
            )
        instructions = getattr(agent, "instructions", None)
        is_sent = (
            self._has_words
            and isinstance(instructions, str)
            and 0 < len(instructions) <= MAX_INSTRUCTIONS_CHARS
        )
        names = map(_tool_name, islice(getattr(agent, "tools", None) or (), MAX_TOOLS))
        tools = [{"name": name_of(name)} for name in names if name]
        known = known_fields(instructions=instructions if is_sent else None, tools=tools or None)
        if known:
            self._emit(Rank.CALL, "call_started", **known)


def _agent_name(agent: object) -> str:
    return name_of(getattr(agent, "id", None) or type(agent).__name__)


def _tool_name(tool: Any) -> str | None:
    """The name of a tool: of its description, which lies where the version puts it."""
    for place in ("info", "__livekit_tool_info", "__livekit_raw_tool_info"):
        name = getattr(getattr(tool, place, None), "name", None)
        if isinstance(name, str):
            return name
    return None


def _model(metadata: Any) -> str | None:
    name = metadata.get("model_name") if isinstance(metadata, Mapping) else None
    return name_of(name) if name else None


_ENDS: Final = {"done": "completed", "error": "failed", "cancelled": "cancelled"}
"""The end of a tool by LiveKit's status."""
_USED: Final[Mapping[str, Mapping[str, str]]] = {
    "llm": {
        "prompt_tokens": "input_tokens",
        "completion_tokens": "output_tokens",
        "cache_read_input_tokens": "input_cached_tokens",
        "cache_creation_input_tokens": "input_cache_creation_tokens",
        "reasoning_tokens": "output_reasoning_tokens",
    },
    "tts": {"characters": "characters_count"},
    "stt": {"audio_seconds": "audio_duration"},
}
"""Fields of LiveKit's usage of a model, by callgauge's."""
READERS: Final[Mapping[str, Callable[[SessionReader, Any], None]]] = {
    "user_state_changed": SessionReader.user_state,
    "agent_state_changed": SessionReader.agent_state,
    "speech_created": SessionReader.speech,
    "agent_false_interruption": SessionReader.resumed,
    "conversation_item_added": SessionReader.item,
    "tool_execution_updated": SessionReader.tool_update,
    "function_tools_executed": SessionReader.tools_executed,
    "metrics_collected": SessionReader.measured,
    "session_usage_updated": SessionReader.used,
    "error": SessionReader.failed,
}
"""How each event of a session is read."""
