"""Recorded-looking input for the benchmarks: broker records of simulated calls, made before any
clock starts.
"""

import json
from pathlib import Path

from schemas.closed_sets import InputSource
from schemas.topics import TOPIC_BY_SOURCE
from streamer.recordings.reader import read_recordings
from streamer.sources.replay import in_time_order
from streamer.sources.simulator.traffic import simulate_call
from tests.support.conformance_data import RECORD
from tests.support.fakes.broker_records import BrokerRecord

START_MS = 1_790_000_000_000


Traffic = list[tuple[InputSource, BrokerRecord]]


def interleaved(calls: list[list[tuple[int, InputSource, bytes]]]) -> Traffic:
    """Merge calls by arrival time; offsets count per source as on one partition."""
    events = sorted(
        (at_ms, number, place, source, value)
        for number, call in enumerate(calls)
        for place, (at_ms, source, value) in enumerate(call)
    )
    offsets = dict.fromkeys(InputSource, -1)
    traffic: Traffic = []
    for at_ms, number, _place, source, value in events:
        offsets[source] += 1
        traffic.append(
            (
                source,
                BrokerRecord(
                    TOPIC_BY_SOURCE[source], offsets[source], at_ms, b"call-%d" % number, value
                ),
            )
        )
    return traffic


def simulated_events(
    seed: int, start_ms: int = START_MS, kind: str = "cascade"
) -> list[tuple[int, InputSource, bytes]]:
    """One simulated call as (arrival, source, bytes)."""
    # a plain string is handier here
    call = simulate_call(seed, start_ms=start_ms, kind=kind)  # type: ignore[arg-type]
    return [
        (event.arrival_ms, InputSource(event.source), event.value) for event in call.wire_events()
    ]


def long_call(minutes: float, seed: int = 7) -> list[tuple[int, InputSource, bytes]]:
    """One call of `minutes`: simulated calls end to end, numbered through, without the events that
    would end it.
    """
    events: list[tuple[int, InputSource, bytes]] = []
    start_ms = START_MS
    sequence = 0
    while not events or events[-1][0] - START_MS < minutes * 60_000:
        for at_ms, source, value in simulated_events(seed, start_ms):
            event = json.loads(value)
            if event.get("type") in {"call_started", "call_ended", "connection_state"}:
                continue
            if "sequence" in event:
                sequence += 1
                event["sequence"] = sequence
            events.append((at_ms, source, json.dumps(event, separators=(",", ":")).encode()))
        start_ms = events[-1][0] + 1_000
        seed += 1
    return [event for event in events if event[0] - START_MS <= minutes * 60_000]


def recorded_events(record: Path = RECORD) -> list[tuple[int, InputSource, bytes]]:
    """The recorded real call of the conformance data, or of another folder; empty without it."""
    if not record.is_dir():
        return []
    call = next(iter(read_recordings(record)))
    return [
        (event.arrival_ms, InputSource(event.source), event.value) for event in in_time_order(call)
    ]
