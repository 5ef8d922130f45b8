"""No event holds the loop of an evaluator longer than 50 ms at default limits: each kind at its
largest size, in processor time.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest

from consumers.engine.admission import Arrival, admit
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.evaluator import service
from consumers.runtime.process import tune_python
from schemas.closed_sets import InputSource
from schemas.events.elevenlabs import MAX_ENTRIES
from tests.support.fakes.broker_records import BrokerRecord
from tests.support.fakes.evaluator_fakes import NOW_MS, START, Shell
from tests.support.fakes.log_writer import LogWriter
from tests.support.held_loop import (
    in_short_steps,
    in_short_time,
    kept_out_of_collections,
    seconds_of,
)

Json = dict[str, Any]
LIMITS = Limits()

# Values with as many parts, as many names, or as many bytes as a record may have.
LISTS: Any = [[]] * (LIMITS.max_record_parts // 2 - 100)
NAMES: Any = {f"name-{number}": number for number in range(LIMITS.max_record_parts - 200)}
TEXT: Any = "some words, " * 3_000 + "x" * 900_000
VALUES: dict[str, Any] = {"lists": LISTS, "names": NAMES, "text": TEXT}


def _tool(kind: str, **data: Any) -> Json:
    return {
        "type": "function_call_event",
        "timestamp": NOW_MS,
        "data": {
            "kind": kind,
            "status": kind,
            "tool_call_id": "1",
            "function_name": "find",
            **data,
        },
    }


def _with(value: Any) -> dict[str, tuple[InputSource, Json]]:
    pipecat, audit = InputSource.PIPECAT, InputSource.AUDIT
    return {
        "arguments": (pipecat, _tool("in_progress", arguments={"a": value})),
        "result": (pipecat, _tool("completed", result={"a": value})),
        "audit call": (audit, _audit("tool_call", {"tool": "find", "parameters": {"a": value}})),
        "audit response": (
            audit,
            _audit("tool_response", {"tool": "find", "response": {"a": value}}),
        ),
        "expected state": (
            pipecat,
            {"type": "call_started", "timestamp": NOW_MS, "expected_state": {"a": value}},
        ),
        "final state": (
            pipecat,
            {"type": "call_ended", "timestamp": NOW_MS, "final_state": {"a": value}},
        ),
        "unknown type": (pipecat, {"type": "own_event", "timestamp": NOW_MS, "data": {"a": value}}),
        "prompt": (audit, _audit("llm_prompt", {"messages": value})),
    }


def _audit(kind: str, value: Any) -> Json:
    return {"message_type": kind, "timestamp": NOW_MS, "value": value}


def _record(entries: int) -> Json:
    said = [
        {
            "role": "user" if place % 2 else "agent",
            "message": "Hello there, my friend",
            "time_in_call_secs": place,
        }
        for place in range(entries)
    ]
    data = {
        "conversation_id": "c-1",
        "agent_id": "a",
        "status": "done",
        "transcript": said,
        "metadata": {"start_time_unix_secs": NOW_MS // 1_000 - 6_000, "call_duration_secs": 5_500},
    }
    return {
        "type": "post_call_transcription",
        "event_timestamp": NOW_MS // 1_000,
        "timestamp": NOW_MS,
        "data": data,
    }


LARGEST: dict[str, tuple[InputSource, Json]] = {
    f"{kind} of {name}": event
    for name, value in VALUES.items()
    for kind, event in _with(value).items()
} | {
    "tools of a call": (
        InputSource.PIPECAT,
        {
            "type": "call_started",
            "timestamp": NOW_MS,
            "tools": [
                {"name": f"tool-{number}", "parameters": {"type": "object"}}
                for number in range(100)
            ],
        },
    ),
    "record of an agent": (InputSource.ELEVENLABS, _record(MAX_ENTRIES)),
    "record with too many entries": (InputSource.ELEVENLABS, _record(MAX_ENTRIES + 1)),
    "too many parts": (InputSource.PIPECAT, _tool("completed", result=[LISTS, LISTS, LISTS])),
    "message": (
        InputSource.PIPECAT,
        {"type": "user_message", "timestamp": NOW_MS, "data": {"content": "some words, " * 2_700}},
    ),
}


@pytest.fixture
def log() -> LogWriter:
    made = LogWriter()
    for _ in range(START):
        made.tick(NOW_MS)
    return made


@pytest.fixture
async def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    made = Shell(monkeypatch)
    monkeypatch.setattr(service, "PartitionEvaluator", PartitionEvaluator)  # the real one
    await made.assigned(0)
    tune_python()  # as the role does when it runs
    return made


async def _fold(shell: Shell, records: Callable[[], list[BrokerRecord]]) -> None:
    async def fold() -> None:
        # its first step is one of the loop too
        await asyncio.create_task(shell.role._fold_records(records()))

    await in_short_steps(fold)


@pytest.mark.parametrize("name", LARGEST)
async def test_no_event_holds_the_loop(shell: Shell, log: LogWriter, name: str) -> None:
    source, event = LARGEST[name]
    value = json.dumps(event).encode()
    assert len(value) <= LIMITS.max_record_bytes
    await _fold(shell, lambda: [log.event(source, f"c-{len(log.records)}", value, NOW_MS)])


async def test_no_poll_of_large_events_holds_the_loop(shell: Shell, log: LogWriter) -> None:
    """Four megabytes, as many as one request over HTTP may have, among smaller ones: to read all of
    them takes half a second.
    """
    events = [
        _with(value)["result"][1]
        for value in [NAMES] * 4 + [LISTS[:8_000]] * 30 + [TEXT[:16_000]] * 30
    ]
    values = [json.dumps(event).encode() for event in events]
    await _fold(
        shell,
        lambda: [
            log.event("pipecat", f"c-{len(log.records) % 7}", value, NOW_MS) for value in values
        ],
    )


# Calls of as many turns as a call may have, and many calls that are over at once.


def _spoken(turns: int) -> Iterator[tuple[int, Json]]:
    """Events of a call with so many answered turns, and their times."""
    for turn in range(turns):
        at_ms = NOW_MS + turn * 4_000
        for offset_ms, kind in (
            (0, "user_speech_started"),
            (1_000, "user_speech_stopped"),
            (2_000, "bot_speech_started"),
            (3_000, "bot_speech_stopped"),
        ):
            time_ms = at_ms + offset_ms
            data = {"kind": kind, "timestamp": time_ms / 1_000}
            yield time_ms, {"type": "speech_event", "timestamp": time_ms, "data": data}
            if offset_ms in (1_000, 3_000):
                who = "user_message" if offset_ms == 1_000 else "assistant_message"
                said = {"content": f"I would like to change my booking number {turn}"}
                yield time_ms, {"type": who, "timestamp": time_ms, "data": said}


def _arrival(number: int, time_ms: int, event: Json, key: bytes = b"c-1") -> Arrival:
    record = BrokerRecord("pipecat.events", number, time_ms, key, json.dumps(event).encode(), 0, ())
    arrival = admit(InputSource.PIPECAT, record, LIMITS)
    assert isinstance(arrival, Arrival)
    return arrival


def _longest_step(evaluator: PartitionEvaluator, first: Callable[[], object]) -> tuple[None, float]:
    """The processor time of the longest step until calls that are over have closed: no turn of a
    loop divides them.
    """
    with kept_out_of_collections():
        seconds = [seconds_of(first)[1]]
        while evaluator.closing_calls:
            seconds.append(seconds_of(evaluator.close_some)[1])
    return None, max(seconds)


def test_the_close_of_the_longest_call_takes_short_steps() -> None:
    def close() -> tuple[None, float]:
        evaluator = PartitionEvaluator(LIMITS, "test", writes_transcripts=True)
        for number, (time_ms, event) in enumerate(_spoken(LIMITS.max_turns_per_call - 1)):
            evaluator.receive(_arrival(number, time_ms, event))
        evaluator.pass_time(NOW_MS + LIMITS.max_call_duration_ms)
        assert evaluator.closing_calls == 1
        return _longest_step(evaluator, evaluator.close_some)

    in_short_time(close)


def test_thousands_of_calls_that_are_over_at_once_close_in_short_steps() -> None:
    def close() -> tuple[None, float]:
        evaluator = PartitionEvaluator(LIMITS, "test", writes_transcripts=True)
        numbers = count()
        for call in range(2_000):
            for event in ({"type": "call_started", "agent": "desk"}, {"type": "call_ended"}):
                evaluator.receive(
                    _arrival(next(numbers), NOW_MS, event | {"timestamp": NOW_MS}, b"c-%d" % call)
                )
        return _longest_step(evaluator, partial(evaluator.pass_time, NOW_MS + 200_000))

    in_short_time(close)
