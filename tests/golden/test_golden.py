"""The golden file: what the engine publishes about known calls, byte for byte.

A change that is not meant to change a score leaves `published.txt` as it is. One that is meant to runs
`python -m tests.golden.test_golden`, which writes it anew, and names the difference in its commit. To see a difference, write
what a call publishes before and after: `python -m tests.golden.test_golden call SOURCE ID`.
"""

import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

from consumers.engine.admission import Arrival
from consumers.engine.effects import CloseCall, Effect, PublishScore, RequestVerdict
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from schemas.closed_sets import InputSource
from schemas.events.codec import decode
from streamer.recordings.files import RecordedCall
from streamer.recordings.reader import read_recordings
from streamer.sources.replay import in_time_order, with_control_events
from streamer.sources.simulator.traffic import simulate_call
from tests.properties.evaluation import EveryCall, end_of
from tests.support.calls.wire_calls import arrivals_of, in_random_order, wire_calls
from tests.support.conformance_data import CONFORMANCE, conformance

GOLDEN: Final = Path(__file__).with_name("published.txt")
SAMPLE: Final = Path(__file__).parents[2] / "streamer" / "recordings" / "sample" / "call.jsonl"
WIRE_FILES: Final = ("calls.jsonl.gz", "cut_calls.jsonl.gz", "hostile_calls.jsonl.gz", "eva_histories.jsonl.gz")
RECORDED: Final = ("record_1.1.2", "sample", "simulated")
SIMULATED_CALLS: Final = 200
START_MS: Final = 1_790_000_000_000
RULES: Final = GoalRules(asks_judge=True)

Call = tuple[str, list[Arrival]]


def _calls(source: str) -> Iterator[Call]:
    """The calls of a source with their names; streams of wire-level ones arrive in a random order."""
    if source in WIRE_FILES:
        for number, call in enumerate(wire_calls(conformance(source))):
            yield call["id"], arrivals_of(call, in_random_order(call, number))
    elif source == "simulated":
        for seed in range(SIMULATED_CALLS):
            yield str(seed), _arrivals(simulate_call(seed, start_ms=START_MS).call)
    else:
        path = SAMPLE if source == "sample" else conformance(source)
        for recorded in read_recordings(path):
            yield recorded.conversation_id, _arrivals(recorded)


def _arrivals(call: RecordedCall) -> list[Arrival]:
    arrivals = []
    for offset, event in enumerate(in_time_order(with_control_events(call, agent="desk"))):
        source = InputSource(event.source)
        typed = decode(source, event.value)
        arrivals.append(Arrival(source, offset, int(event.arrival_ms), call.conversation_id, typed, event.value, None))
    return arrivals


def _published(arrivals: list[Arrival]) -> Iterator[bytes]:
    """All that the engine publishes about one call with goals, a line each, time passing as its records arrive."""
    evaluator = PartitionEvaluator(Limits(), "golden", ChosenGoals(EveryCall(), RULES), writes_transcripts=True)
    for arrival in arrivals:
        yield from _lines(evaluator.advance(arrival.broker_time_ms))
        yield from _lines(evaluator.receive(arrival))
    now_ms = end_of(arrivals)
    yield from _lines(evaluator.advance(now_ms))
    while (wakeup_ms := evaluator.next_wakeup()) is not None:  # deadlines of its questions, and then its close
        now_ms = max(now_ms + 1, wakeup_ms)
        yield from _lines(evaluator.advance(now_ms))
    assert evaluator.open_calls == (), "the golden file holds the close of every call"


def _lines(effects: Iterable[Effect]) -> Iterator[bytes]:
    for effect in effects:
        match effect:
            case PublishScore(record):
                yield record.model_dump_json().encode()
            case RequestVerdict(request):
                yield request.model_dump_json().encode()
            case CloseCall(_, records, transcript):
                yield from (record.model_dump_json().encode() for record in records)
                yield transcript or b"no transcript"
            case _:
                pass


def _golden_line(source: str, call: Call) -> str:
    name, arrivals = call
    lines = list(_published(arrivals))
    digest = hashlib.blake2b(b"\n".join(lines), digest_size=12).hexdigest()
    return f"{source} {name} {len(lines)} {digest}"


@pytest.mark.parametrize("source", [*WIRE_FILES, *RECORDED])
def test_what_is_published_about_known_calls_has_not_changed(source: str) -> None:
    lines = [_golden_line(source, call) for call in _calls(source)]
    golden = [line for line in GOLDEN.read_text().splitlines() if line.startswith(f"{source} ")]
    changed = sorted({*lines} ^ {*golden})
    assert lines == golden, f"{len(changed)} lines of {source} differ, such as {changed[:2]}: see the top of this file"


def _main(arguments: list[str]) -> None:
    if arguments[:1] == ["call"]:
        arrivals = dict(_calls(arguments[1]))[arguments[2]]
        sys.stdout.buffer.writelines(line + b"\n" for line in _published(arrivals))
    else:
        assert CONFORMANCE.is_dir(), "the golden file is written with the conformance data, or it would lose its calls"
        lines = [_golden_line(source, call) for source in (*WIRE_FILES, *RECORDED) for call in _calls(source)]
        GOLDEN.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    _main(sys.argv[1:])
