"""Frames of a call become events in the shapes of pipecat's own observers. No clock, no Kafka: a
frame in, events out.
"""

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final

from callgauge_send.events import (
    MAX_INSTRUCTIONS_CHARS,
    MAX_TOOLS,
    Event,
    Rank,
    is_failure,
    known_fields,
    name_of,
    text_of,
)

from pipecat_callgauge.frames import HAS_USER_TURN_TEXTS, ByFrame
from pipecat_callgauge.measurements import Emit, metric_events

MAX_OPEN_CALLS: Final = 256
"""Function calls at a time of which the beginning is remembered; more is a loop."""
MAX_PARTS: Final = 1_000
"""Parts of a system message that are read; it is one text, or a few."""
LEFTOVER_SECONDS: Final = 0.5
"""How long after an interruption sound is the rest of the answer that was cut, unless a new answer
has begun. Under load, the output transport may play a piece that was on its way, and reports that
the bot speaks.
"""


class CallReader:
    """Reads the frames of one call, in the order in which they were pushed for the first time."""

    def __init__(
        self,
        emit: Emit,
        *,
        words: bool = True,
        tool_arguments: bool = True,
        tool_results: bool = False,
        vad_stop_secs: float | None = None,
    ) -> None:
        """Begins before the first frame.

        Args:
            emit: Takes the events.
            words: Whether words leave the bot.
            tool_arguments: Whether arguments of tools do.
            tool_results: Whether results of tools do. If not, a result says only whether it is an
                error.
            vad_stop_secs: Silence after which the detector says that the user has stopped, for
                pipecat before 0.0.102, which does not report it.
        """
        self._emit = emit
        self._has_words = words
        self._has_arguments = tool_arguments
        self._has_results = tool_results
        self._vad_stop_secs = vad_stop_secs
        self._began_s: dict[str, float] = {}
        self._requested_s: dict[str, float] = {}
        self._running_s: dict[str, float] = {}
        self._is_bot_speaking = False
        self._is_cut = False
        self._cut_at_s = 0.0
        self._tools: object = None
        self._instructions: str | None = None
        self.end: str | None = None

    # Speech. A stretch is named by the event that begins it, and the event that ends it says when
    # it began.

    def vad_started(self, frame: Any, now_s: float) -> None:
        """The detector is sure that the user speaks: since `start_secs`."""
        if hasattr(frame, "start_secs"):
            self._begins("user_speech", frame.timestamp - frame.start_secs)
        elif self._vad_stop_secs is not None:
            self._begins("user_speech", now_s)

    def vad_stopped(self, frame: Any, now_s: float) -> None:
        """The detector is sure that the user is silent: since `stop_secs`.

        A frame without its start time cannot be used for timing. Then the rulings about turns
        remain, and the latency names them as its anchor.
        """
        if hasattr(frame, "stop_secs"):
            self._ends("user_speech", frame.timestamp - frame.stop_secs)
        elif self._vad_stop_secs is not None:
            self._ends("user_speech", now_s - self._vad_stop_secs)

    def turn_started(self, _frame: Any, now_s: float) -> None:
        """The strategy rules that the user has a turn."""
        self._begins("user_turn", now_s)

    def turn_stopped(self, _frame: Any, now_s: float) -> None:
        """The strategy rules that the user's turn is over."""
        self._ends("user_turn", now_s)

    def bot_started(self, _frame: Any, now_s: float) -> None:
        """The bot's first sound leaves."""
        if self._is_cut and now_s - self._cut_at_s < LEFTOVER_SECONDS:
            return
        self._is_bot_speaking, self._is_cut = True, False
        self._begins("bot_speech", now_s)

    def bot_stopped(self, _frame: Any, now_s: float) -> None:
        """The bot has fallen silent."""
        self._is_bot_speaking = False
        self._ends("bot_speech", now_s)

    def interrupted(self, _frame: Any, now_s: float) -> None:
        """Somebody interrupts. Every turn of a user does, also over silence; only over the bot is
        it an interruption.
        """
        self._is_cut, self._cut_at_s = self._is_bot_speaking, now_s
        if self._is_cut:
            self._moment("interruption", now_s)

    def _begins(self, what: str, at_s: float) -> None:
        self._began_s[what] = at_s
        self._moment(f"{what}_started", at_s)

    def _ends(self, what: str, at_s: float) -> None:
        self._moment(f"{what}_stopped", at_s, self._began_s.pop(what, None))

    def _moment(self, kind: str, at_s: float, began_s: float | None = None) -> None:
        self._emit(
            Rank.SPEECH,
            "speech_event",
            data=known_fields(kind=kind, timestamp=at_s, started_at=began_s),
        )

    # Words.

    def answering(self, _frame: Any, _now_s: float) -> None:
        """The model or the synthesis begins, and it is not interrupted yet."""
        self._is_cut = False

    def heard(self, frame: Any, _now_s: float) -> None:
        """Words of the bot leave as sound: one word, or a phrase if the service does not time
        words.
        """
        if self._has_words and frame.text:
            self._emit(Rank.WORDS, "tts_text", data={"frame": text_of(frame.text)})

    def user_said(self, frame: Any, _now_s: float) -> None:
        """The words of the user's turn, as the model reads them."""
        self._message("user_message", frame)

    def transcribed(self, frame: Any, now_s: float) -> None:
        """A final transcription; where pipecat does not report whole turns, it is the message."""
        if not HAS_USER_TURN_TEXTS:
            self.user_said(frame, now_s)

    def bot_said(self, frame: Any, _now_s: float) -> None:
        """The words of the bot's turn; of one that was cut, as far as they were heard."""
        self._message("assistant_message", frame, interrupted=self._is_cut)

    def _message(self, kind: str, frame: Any, **more: Any) -> None:
        if self._has_words:
            data = {"content": text_of(frame.text), "timestamp": frame.timestamp, **more}
            self._emit(Rank.WORDS, kind, data=data)

    # Tools.

    def tools_requested(self, frame: Any, now_s: float) -> None:
        """The model asks for tools; each may still have to wait."""
        for call in frame.function_calls:
            _remember(self._requested_s, call.tool_call_id, now_s)
            self._tool("started", call, now_s, arguments=self._arguments(call))

    def tool_running(self, frame: Any, now_s: float) -> None:
        """A tool runs from now on."""
        _remember(self._running_s, frame.tool_call_id, now_s)
        self._tool(
            "in_progress",
            frame,
            now_s,
            arguments=self._arguments(frame),
            started_at=self._requested_s.pop(frame.tool_call_id, None),
            group_id=getattr(frame, "group_id", None),
            blocking=getattr(frame, "cancel_on_interruption", None),
        )

    def tool_answered(self, frame: Any, now_s: float) -> None:
        """A tool has returned, or raised. A result that is not the last is no end."""
        properties = getattr(frame, "properties", None)
        if properties is not None and not getattr(properties, "is_final", True):
            return
        error = getattr(frame, "error", None)
        if error:
            self._settled("failed", frame, now_s, error=text_of(error))
        else:
            self._settled("completed", frame, now_s, result=self._result(frame.result))

    def tool_cancelled(self, frame: Any, now_s: float) -> None:
        """A tool was stopped: by its time limit, which asks the model to go on, or by an
        interruption.
        """
        self._settled(
            "timed_out" if getattr(frame, "run_llm", False) else "cancelled", frame, now_s
        )

    def _settled(self, what: str, frame: Any, now_s: float, **more: Any) -> None:
        self._requested_s.pop(frame.tool_call_id, None)
        self._tool(
            what, frame, now_s, in_progress_at=self._running_s.pop(frame.tool_call_id, None), **more
        )

    def _tool(self, what: str, call: Any, now_s: float, **more: Any) -> None:
        name, call_id = name_of(call.function_name), name_of(call.tool_call_id)
        kind = f"function_call_{what}"
        data = known_fields(
            kind=kind, function_name=name, tool_call_id=call_id, timestamp=now_s, **more
        )
        self._emit(Rank.TOOLS, "function_call_event", data=data)

    def _arguments(self, call: Any) -> object:
        return call.arguments if self._has_arguments else None

    def _result(self, result: object) -> object:
        """The result; if results are not to leave the bot, whether it is an error."""
        if self._has_results:
            return result
        return {"status": "error" if is_failure(result) else "success", "withheld": True}

    # The call.

    def asked(self, frame: Any, _now_s: float) -> None:
        """The context goes to the model. Its system message and its tools are sent when they
        change.
        """
        instructions = _instructions(frame.context) if self._has_words else None
        if instructions is not None and instructions != self._instructions:
            self._instructions = instructions
            self._emit(Rank.CALL, "call_started", instructions=instructions)
        tools = getattr(frame.context, "tools", None)
        if tools is self._tools:
            return
        self._tools = tools
        schemas = getattr(tools, "standard_tools", None) or ()
        known = [each for each in islice(schemas, MAX_TOOLS) if hasattr(each, "name")]
        described = [
            {"name": name_of(each.name), "parameters": _parameters(each)} for each in known
        ]
        if described:
            self._emit(Rank.CALL, "call_started", tools=described)

    def ending(self, frame: Any, _now_s: float) -> None:
        """The call is to end: immediately, or after the words before it."""
        reason = getattr(frame, "reason", None)
        word = "cancelled" if type(frame).__name__ == "CancelFrame" else "ended"
        self.end = self.end or (name_of(reason) if reason else word)

    def failed(self, frame: Any, _now_s: float) -> None:
        """A processor reports an error."""
        processor = getattr(frame, "processor", None)
        data = known_fields(
            message=text_of(frame.error), processor=getattr(processor, "name", None)
        )
        # callgauge only counts it, and a broken service reports many
        self._emit(Rank.METRICS, "error", data=data)

    def measured(self, frame: Any, now_s: float) -> None:
        """Services report their time and use."""
        for metric in frame.data:
            for kind, fields in metric_events(metric, now_s):
                self._emit(Rank.METRICS, kind, **fields)


def _instructions(context: Any) -> str | None:
    """The system message at the start of a context; None without one, or if it is too long."""
    messages = getattr(context, "messages", None) or ()
    first = messages[0] if messages else None
    if not isinstance(first, Mapping) or first.get("role") not in ("system", "developer"):
        return None
    content = first.get("content")
    if isinstance(content, list):
        parts = islice((part for part in content if isinstance(part, Mapping)), MAX_PARTS)
        content = "\n".join(text for part in parts if isinstance(text := part.get("text"), str))
    return (
        content if isinstance(content, str) and 0 < len(content) <= MAX_INSTRUCTIONS_CHARS else None
    )


def _parameters(schema: Any) -> Event:
    """The JSON schema of a tool's arguments."""
    return {"type": "object", "properties": schema.properties, "required": schema.required}


def _remember(times: dict[str, float], call_id: str, at_s: float) -> None:
    times[call_id] = at_s
    if len(times) > MAX_OPEN_CALLS:
        del times[next(iter(times))]


READERS: Final[ByFrame[Callable[[CallReader, Any, float], None]]] = ByFrame(
    {
        "VADUserStartedSpeakingFrame": CallReader.vad_started,
        "VADUserStoppedSpeakingFrame": CallReader.vad_stopped,
        "UserStartedSpeakingFrame": CallReader.turn_started,
        "UserStoppedSpeakingFrame": CallReader.turn_stopped,
        "BotStartedSpeakingFrame": CallReader.bot_started,
        "BotStoppedSpeakingFrame": CallReader.bot_stopped,
        "InterruptionFrame": CallReader.interrupted,
        "StartInterruptionFrame": CallReader.interrupted,
        "LLMFullResponseStartFrame": CallReader.answering,
        "TTSStartedFrame": CallReader.answering,
        "LLMContextUserTurnFrame": CallReader.user_said,
        "LLMContextAssistantTurnFrame": CallReader.bot_said,
        "TranscriptionFrame": CallReader.transcribed,
        "FunctionCallsStartedFrame": CallReader.tools_requested,
        "FunctionCallInProgressFrame": CallReader.tool_running,
        "FunctionCallResultFrame": CallReader.tool_answered,
        "FunctionCallCancelFrame": CallReader.tool_cancelled,
        "LLMContextFrame": CallReader.asked,
        "OpenAILLMContextFrame": CallReader.asked,
        "MetricsFrame": CallReader.measured,
        "ErrorFrame": CallReader.failed,
        "EndFrame": CallReader.ending,
        "CancelFrame": CallReader.ending,
        "StopFrame": CallReader.ending,
    }
)
"""How each kind of frame is read."""
