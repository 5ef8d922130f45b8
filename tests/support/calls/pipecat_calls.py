"""Calls of real pipecat bots, as an observer in their pipelines recorded them:
`pipecat_calls.jsonl`.

Pipeline, aggregators, turn strategies, service and transport base classes are pipecat's own
(1.14.0) and ran at real pace; only the vendors were fake. Beside the events are the numbers of
pipecat's own `UserBotLatencyObserver`.
"""

import copy
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from consumers.engine.admission import Arrival
from consumers.engine.effects import Effect
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from schemas.closed_sets import InputSource
from schemas.events.codec import decode
from schemas.rows import TurnRow, number
from tests.properties.evaluation import newest_turns
from tests.support.fakes.engine_feed import Json, rows_of, transcripts_of

_FILE: Final = Path(__file__).with_name("pipecat_calls.jsonl")
_LIMITS: Final = Limits(max_event_time_skew_ms=10**12)
_LATER_MS: Final = 10**7
HALF_A_BROADCAST_MS: Final = 1
"""A broadcast is two frames; an observer that reports both sees the second this much later."""


class RecordedCall(NamedTuple):
    """One call: its events, and by pipecat's own observer its latencies and the first bytes of each
    answer, in ms.
    """

    name: str
    events: Sequence[Json]
    latencies_ms: Sequence[float]
    breakdowns: Sequence[Json]


class Outcome(NamedTuple):
    """The published rows of a call.

    Attributes:
        latencies_ms: The newest latency by turn, for turns that have one.
        anchors: The anchor of each.
        ever_ms: Every latency that was published at any time.
        interruptions: (who, turn) of every interruption that was published at any time.
        dead_airs: (turn, start in ms) of every dead air.
        stages_ms: The newest value by turn and stage.
        speech_ms: The newest time of speech by turn and side, where it is known.
        tools: Tool and outcome of each use, in order.
        turns: Numbers of the turns with a row.
        transcript: Speaker, words and whether they were cut off, in order; entries of tools are
            left out.
    """

    latencies_ms: dict[int, float]
    anchors: dict[int, str]
    ever_ms: set[float]
    interruptions: set[tuple[str, int]]
    dead_airs: set[tuple[int, int]]
    stages_ms: dict[tuple[int, str], float]
    speech_ms: dict[tuple[int, str], float]
    tools: list[tuple[int, str, str]]
    turns: set[int]
    transcript: list[tuple[str, str | None, bool]]


@cache
def recorded_calls() -> dict[str, RecordedCall]:
    """The recorded calls by name."""
    calls = [json.loads(line) for line in _FILE.read_text().splitlines()]
    return {
        each["id"]: RecordedCall(
            each["id"], each["events"], each["latencies_ms"], each["breakdowns"]
        )
        for each in calls
    }


def speech_places(events: Sequence[Json]) -> list[int]:
    return [place for place, event in enumerate(events) if event["type"] == "speech_event"]


def other_half(event: Json) -> Json:
    """The same speech event from the second frame of its broadcast."""
    half = copy.deepcopy(event)
    half["timestamp"] += HALF_A_BROADCAST_MS
    half["data"]["timestamp"] += HALF_A_BROADCAST_MS / 1000
    return half


def without_starts(events: Sequence[Json]) -> list[Json]:
    """The same events of a producer whose ends do not name their starts."""
    plain = copy.deepcopy(list(events))
    for event in plain:
        if event["type"] == "speech_event":
            event["data"].pop("started_at", None)
    return plain


def outcome_of(events: Sequence[Json]) -> Outcome:
    """Evaluates a call: each event as it comes, and time between them."""
    evaluator = PartitionEvaluator(_LIMITS, "test", writes_transcripts=True)
    effects: list[Effect] = []
    ended = {"type": "call_ended", "timestamp": events[-1]["timestamp"] + 1}
    for offset, event in enumerate((*events, ended)):
        value, at_ms = json.dumps(event).encode(), event["timestamp"]
        decoded = decode(InputSource.PIPECAT, value)
        effects += evaluator.receive(
            Arrival(InputSource.PIPECAT, offset, at_ms, "call", decoded, value, None)
        )
        effects += evaluator.advance(at_ms)
    effects += evaluator.advance(ended["timestamp"] + _LATER_MS)
    (transcript,) = transcripts_of(effects)
    return _outcome(
        [row for row in rows_of(effects) if isinstance(row, TurnRow)], json.loads(transcript)
    )


def _outcome(rows: Sequence[TurnRow], transcript: list[Json]) -> Outcome:
    turns = newest_turns(rows)
    waits_ms = {
        turn: wait_ms for turn, row in turns.items() if (wait_ms := number(row.wait_ms)) is not None
    }
    tools = [(turn, use) for turn, row in sorted(turns.items()) for use in row.tools]
    return Outcome(
        latencies_ms=waits_ms,
        anchors={
            turn: anchor.value for turn in waits_ms if (anchor := turns[turn].anchor) is not None
        },
        ever_ms={wait_ms for row in rows if (wait_ms := number(row.wait_ms)) is not None},
        interruptions={(by.value, row.turn) for row in rows for by in row.interruptions},
        dead_airs={(turn, each.since_ms) for turn, row in turns.items() for each in row.dead_air},
        stages_ms={
            (turn, each.stage.value): each.latency_ms
            for turn, row in turns.items()
            for each in row.stages
        },
        speech_ms={
            (turn, side): speech_ms
            for turn, row in turns.items()
            if row.talk is not None
            for side, talk in (("user", row.talk.user), ("assistant", row.talk.assistant))
            if (speech_ms := number(talk.speech_ms)) is not None
        },
        tools=[
            (turn, use.tool, use.outcome.value) for turn, use in tools if use.outcome is not None
        ],
        turns=set(turns),
        transcript=[
            (entry["role"], entry["message"], entry["interrupted"])
            for entry in transcript
            if not entry["tool_calls"] and not entry["tool_results"]
        ],
    )
