"""A call of very many turns, as the topics have it, for tests of what one call may cost."""

import functools
import json
from collections.abc import Sequence
from typing import Any

from consumers.engine.admission import Arrival, admit
from consumers.engine.evaluator import NO_LIMITS
from schemas.closed_sets import InputSource
from schemas.rows import CallRow, Row, TurnRow, WordsRow
from schemas.topics import TOPIC_BY_SOURCE
from tests.benchmarks.traffic import START_MS
from tests.support.calls.report_calls import words_of
from tests.support.calls.rows_of_calls import rows_in_steps
from tests.support.fakes.broker_records import BrokerRecord

Input = tuple[InputSource, BrokerRecord]

TURN_MS = 4_000
WORDS = ("word " * 40).strip()


def long_inputs(turns: int, conversation_id: str = "long") -> list[Input]:
    """The records of a call that goes on: in each turn both speak, forty words each, and a tool is
    used.
    """
    events: list[tuple[InputSource, float, dict[str, Any]]] = [
        (InputSource.AUDIT, 0, {"type": "call_started", "agent": "desk"})
    ]

    def speech(kind: str, at_ms: float) -> None:
        data = {"kind": kind, "timestamp": (START_MS + at_ms) / 1_000}
        events.append((InputSource.PIPECAT, at_ms, {"type": "speech_event", "data": data}))

    def said(kind: str, at_ms: float, number: int) -> None:
        data = {"content": f"{WORDS} {number}"}
        events.append((InputSource.PIPECAT, at_ms, {"type": kind, "data": data}))

    def tool(kind: str, at_ms: float, number: int, **more: Any) -> None:
        data = {
            "kind": f"function_call_{kind}",
            "status": kind,
            "tool_call_id": f"c{number}",
            "function_name": "lookup",
            **more,
        }
        events.append((InputSource.PIPECAT, at_ms, {"type": "function_call_event", "data": data}))

    for number in range(turns):
        at_ms = 10_000 + number * TURN_MS
        speech("user_speech_started", at_ms + 100)
        speech("user_speech_stopped", at_ms + 1_000)
        said("user_message", at_ms + 1_000, number)
        tool("in_progress", at_ms + 1_200, number, arguments={"a": WORDS})
        tool("completed", at_ms + 1_500, number, result={"a": WORDS})
        speech("bot_speech_started", at_ms + 2_000)
        speech("bot_speech_stopped", at_ms + 3_000)
        said("assistant_message", at_ms + 3_000, number)
    offsets = dict.fromkeys(InputSource, -1)
    inputs = []
    for source, since_ms, event in events:
        offsets[source] += 1
        stamp = int(START_MS + since_ms)
        value = json.dumps(
            {"conversation_id": conversation_id, "timestamp": stamp, **event}
        ).encode()
        record = BrokerRecord(
            TOPIC_BY_SOURCE[source], offsets[source], stamp, conversation_id.encode(), value
        )
        inputs.append((source, record))
    return inputs


@functools.cache
def long_call(turns: int) -> Sequence[Row | WordsRow]:
    """All rows of such a call up to now, and its words, made once: a call of 900 turns takes
    seconds.
    """
    arrivals = [admit(source, record, NO_LIMITS) for source, record in long_inputs(turns)]
    steps = rows_in_steps([each for each in arrivals if isinstance(each, Arrival)], None, NO_LIMITS)
    rows: list[Row | WordsRow] = [
        row for row in steps if not (isinstance(row, CallRow) and row.state == "closed")
    ]
    newest = {row.turn: row for row in rows if isinstance(row, TurnRow)}
    return [*rows, *words_of(newest.values(), WORDS)]
