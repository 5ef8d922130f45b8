"""The known calls of the golden files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from consumers.engine.admission import Arrival
from schemas.closed_sets import InputSource
from schemas.events.codec import decode
from streamer.recordings.files import RecordedCall
from streamer.recordings.reader import read_recordings
from streamer.sources.replay import in_time_order, with_control_events
from streamer.sources.simulator.traffic import simulate_call
from tests.support.calls.wire_calls import arrivals_of, in_random_order, wire_calls
from tests.support.conformance_data import conformance

SAMPLE: Final = Path(__file__).parents[2] / "streamer" / "recordings" / "sample" / "call.jsonl"
WIRE_FILES: Final = (
    "calls.jsonl.gz",
    "cut_calls.jsonl.gz",
    "hostile_calls.jsonl.gz",
    "eva_histories.jsonl.gz",
)
RECORDED: Final = ("record_1.1.2", "sample", "simulated")
SIMULATED_CALLS: Final = 200
START_MS: Final = 1_790_000_000_000

Call = tuple[str, list[Arrival]]


def calls_of(source: str) -> Iterator[Call]:
    """The calls of a source with their names; streams of wire-level ones arrive in a
    random order.
    """
    if source in WIRE_FILES:
        for number, call in enumerate(wire_calls(conformance(source))):
            yield call["id"], arrivals_of(call, in_random_order(call, number))
    elif source == "simulated":
        for seed in range(SIMULATED_CALLS):
            yield str(seed), arrivals_of_recorded(simulate_call(seed, start_ms=START_MS).call)
    else:
        path = SAMPLE if source == "sample" else conformance(source)
        for recorded in read_recordings(path):
            yield recorded.conversation_id, arrivals_of_recorded(recorded)


def arrivals_of_recorded(call: RecordedCall) -> list[Arrival]:
    arrivals = []
    for offset, event in enumerate(in_time_order(with_control_events(call, agent="desk"))):
        source = InputSource(event.source)
        typed = decode(source, event.value)
        arrivals.append(
            Arrival(
                source,
                offset,
                int(event.arrival_ms),
                call.conversation_id,
                typed,
                event.value,
                None,
            )
        )
    return arrivals
