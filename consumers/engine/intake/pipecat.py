"""Gives the records of pipecat's observers to the parts of a call that read them: words, tools, measurements."""

from typing import Final

from consumers.engine.measures.measures import Measures
from consumers.engine.turns.bot.history import MOMENT_BY_KIND
from consumers.engine.turns.live_call import LiveCall
from schemas.events.codec import InputSource
from schemas.events.pipecat import FunctionCallRecord, ObserverRecord, SpeechEventRecord
from schemas.events.pipecat_metrics import PipecatMetric

PIPECAT_RECORDS: Final = (SpeechEventRecord, FunctionCallRecord, ObserverRecord, PipecatMetric)
_MESSAGES: Final = frozenset({"user_message", "assistant_message"})


def fold_pipecat_record(
    event: SpeechEventRecord | FunctionCallRecord | ObserverRecord | PipecatMetric,
    time_ms: int,
    live: LiveCall,
    measures: Measures,
) -> int:
    """Folds one observer record.

    Returns:
        Characters of it that are kept until the call closes; those of a function call count with its record.
    """
    if isinstance(event, SpeechEventRecord):
        moment = MOMENT_BY_KIND.get(event.data.kind)
        if moment is not None:
            live.moment(moment, event.data.timestamp, event.data.started_at)
        return 0
    if isinstance(event, ObserverRecord):
        text = event.data.get("content") if isinstance(event.data, dict) else None
        if isinstance(text, str) and event.type in _MESSAGES:
            live.message(time_ms, text, event.data, is_user=event.type == "user_message")
            return len(text)
    elif isinstance(event, FunctionCallRecord):
        live.function_call(event.data, time_ms)
    measures.observe(InputSource.PIPECAT, event, time_ms)
    return 0
