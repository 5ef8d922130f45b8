"""Gives the lines of a pipecat bot and the records of its observers to the parts of a call that read them: words, speech, tools,
measurements.
"""

from typing import Final, Protocol

from consumers.engine.effects import Count, Effect
from consumers.engine.intake.event_kinds import EventHandler
from consumers.engine.measures.measures import Measures
from consumers.engine.turns.bot.history import MOMENT_BY_KIND, MOMENT_BY_LINE
from consumers.engine.turns.eva.history import EvaHistory
from consumers.engine.turns.live_call import LiveCall
from schemas.closed_sets import InputSource
from schemas.events.pipecat import (
    EventsDropped,
    FunctionCallRecord,
    LlmResponse,
    MessageRecord,
    ObserverRecord,
    ProcessorFailed,
    SpeechEventRecord,
    TtsText,
    TurnMarker,
    UserSpeaking,
)
from schemas.events.pipecat_metrics import PipecatMetric

PIPECAT_RECORDS: Final = (
    EventsDropped, FunctionCallRecord, MessageRecord, ObserverRecord, PipecatMetric, ProcessorFailed
)  # fmt: skip


def fold_pipecat_record(
    event: EventsDropped | FunctionCallRecord | MessageRecord | ObserverRecord | PipecatMetric | ProcessorFailed,
    time_ms: int,
    live: LiveCall,
    measures: Measures,
    counts: list[Effect],
) -> int:
    """Folds one observer record, and counts in `counts`.

    Returns:
        Characters of it that are kept until the call closes; those of a function call count with its record.
    """
    if isinstance(event, EventsDropped):
        counts += [
            Count("callgauge_source_events_dropped_total", (what.value,), count) for what, count in event.dropped()
        ]
        return 0
    if isinstance(event, ProcessorFailed):
        counts.append(Count("callgauge_agent_errors_total", (InputSource.PIPECAT.value,)))
        return 0
    if isinstance(event, MessageRecord):
        text = event.data.content
        if text is not None:
            live.message(time_ms, text, event.data, is_user=event.type == "user_message")
        return len(text or "")
    if isinstance(event, FunctionCallRecord):
        live.function_call(event.data, time_ms)
    measures.observe(InputSource.PIPECAT, event, time_ms)
    return 0


class _OpenCall(Protocol):
    """The parts of a call that a line changes."""

    history: EvaHistory
    live: LiveCall


def _on_tts_text(call: _OpenCall, event: TtsText, _time_ms: int, _out: list[Effect]) -> None:
    call.history.text_stream.speech(event.timestamp, event.data.frame)
    if call.live.bot is not None:
        call.live.bot_text(event.timestamp, event.data.frame)


def _on_llm_response(call: _OpenCall, event: LlmResponse, _time_ms: int, _out: list[Effect]) -> None:
    call.history.text_stream.response(event.timestamp, event.data.frame)
    call.live.bot_text(event.timestamp, event.data.frame, is_reply=True)


def _on_marker(call: _OpenCall, event: TurnMarker, _time_ms: int, _out: list[Effect]) -> None:
    call.history.text_stream.marker(event.type, event.timestamp)
    call.live.bot_marked()


def _on_user_speaking(call: _OpenCall, event: UserSpeaking, _time_ms: int, _out: list[Effect]) -> None:
    call.live.moment(MOMENT_BY_LINE[event.type], event.timestamp / 1000)


def _on_speech_event(call: _OpenCall, event: SpeechEventRecord, _time_ms: int, _out: list[Effect]) -> None:
    moment = MOMENT_BY_KIND.get(event.data.kind)
    if moment is not None:
        call.live.moment(moment, event.data.timestamp, event.data.started_at)


PIPECAT_LINES: Final[dict[type, EventHandler]] = {
    TtsText: _on_tts_text,
    LlmResponse: _on_llm_response,
    TurnMarker: _on_marker,
    UserSpeaking: _on_user_speaking,
    SpeechEventRecord: _on_speech_event,
}
"""Handlers of the lines, as in the table of `call`."""
