"""Calls of real pipecat bots, as an observer in their pipelines recorded them: `pipecat_calls.jsonl`.

Pipeline, aggregators, turn strategies, service and transport base classes are pipecat's own (1.14.0) and ran at real pace; only
the vendors were fake. Beside the events are the numbers of pipecat's own `UserBotLatencyObserver`.
"""

import copy
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from consumers.engine.admission import Arrival
from consumers.engine.effects import Effect
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from schemas.closed_sets import InputSource
from schemas.events.codec import decode
from schemas.scores.records import DeadAirFact, InterruptionFact, Scored, ToolUseFact, TurnValues
from tests.support.fakes.engine_feed import LATENCY, Json, closings_of, records_of

_FILE: Final = Path(__file__).with_name("pipecat_calls.jsonl")
_LIMITS: Final = Limits(max_event_time_skew_ms=10**12)
_LATER_MS: Final = 10**7
HALF_A_BROADCAST_MS: Final = 1
"""A broadcast is two frames; an observer that reports both sees the second this much later."""


class RecordedCall(NamedTuple):
    """One call: its events, and by pipecat's own observer its latencies and the first bytes of each answer, in ms."""

    name: str
    events: Sequence[Json]
    latencies_ms: Sequence[float]
    breakdowns: Sequence[Json]


class Outcome(NamedTuple):
    """The published records of a call.

    Attributes:
        latencies_ms: The newest latency by turn, for turns that have one.
        anchors: The anchor of each.
        ever_ms: Every latency that was published at any time.
        interruptions: (name, turn) of every interruption that was published at any time.
        dead_airs: (turn, start in ms) of every dead air.
        stages_ms: The newest value by turn and stage.
        speech_ms: The newest time of speech by turn and side, where it is known.
        tools: Tool and outcome of each use, in order.
        turns: Numbers of the turns with a record.
        transcript: Speaker, words and whether they were cut off, in order; entries of tools are left out.
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
        each["id"]: RecordedCall(each["id"], each["events"], each["latencies_ms"], each["breakdowns"]) for each in calls
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
        effects += evaluator.receive(Arrival(InputSource.PIPECAT, offset, at_ms, "call", decoded, value, None))
        effects += evaluator.advance(at_ms)
    effects += evaluator.advance(ended["timestamp"] + _LATER_MS)
    (closing,) = closings_of(effects)
    return _outcome(records_of(effects), json.loads(closing.transcript or b"[]"))


def _outcome(records: Sequence[Any], transcript: list[Json]) -> Outcome:
    newest = {(each.name, each.turn or 0, each.index): each for each in records}
    measured = [each for each in records if each.name == LATENCY and isinstance(each.result, Scored)]
    known = {turn: each for (_, turn, _), each in newest.items() if each in measured}
    rows = [each for each in newest.values() if isinstance(each, TurnValues) and not each.is_withdrawn]
    overlaps = [each for each in records if isinstance(each, InterruptionFact)]
    tools = {key: each for key, each in newest.items() if isinstance(each, ToolUseFact) and not each.is_withdrawn}
    return Outcome(
        latencies_ms={turn: each.result.value for turn, each in known.items()},
        anchors={turn: each.anchor.value for turn, each in known.items()},
        ever_ms={each.result.value for each in measured},
        interruptions={(each.name, each.turn or 0) for each in overlaps if not each.is_withdrawn},
        dead_airs={(each.turn or 0, each.silent_since_ms) for each in records if isinstance(each, DeadAirFact)},
        stages_ms={(row.turn or 0, each.stage.value): each.latency_ms for row in rows for each in row.stages},
        speech_ms={
            (row.turn or 0, side): talk.speech_ms.value
            for row in rows
            if row.talk is not None
            for side, talk in (("user", row.talk.user), ("assistant", row.talk.assistant))
            if isinstance(talk.speech_ms, Scored)
        },
        tools=[(tools[key].turn or 0, tools[key].tool, tools[key].outcome.value) for key in sorted(tools)],
        turns={row.turn or 0 for row in rows},
        transcript=[
            (entry["role"], entry["message"], entry["interrupted"])
            for entry in transcript
            if not entry["tool_calls"] and not entry["tool_results"]
        ],
    )
