"""The cost of the engine from wire bytes to encoded records: decoding, folding, closing,
transcripts and JSON.

Time passes between the records as in the evaluator, so calls close as they do in production.
"""

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from consumers.engine.admission import Arrival, admit
from consumers.engine.effects import Effect, PublishRow, PublishTranscript, PublishWords
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from schemas.events.codec import decode
from schemas.rows import encode
from tests.benchmarks.figures import Figures, say
from tests.benchmarks.traffic import (
    Traffic,
    interleaved,
    long_call,
    recorded_events,
    simulated_events,
)

SIMULATED_CALLS: Final = 100
RECORDED_COPIES: Final = 25
ROUNDS: Final = 5
LIMITS: Final = Limits(max_event_time_skew_ms=10**12)
STAYS_OPEN: Final = Limits(
    closing_grace_ms=10**12,
    max_events_per_call=2**31,
    max_open_calls=10**6,
    max_event_time_skew_ms=10**12,
)
LATER_MS: Final = 3_600_000


class Written(NamedTuple):
    """The output for some traffic.

    Attributes:
        closed: Number of calls that closed.
        rows: Number of rows, by topic.
        size_bytes: Their size, encoded, by topic.
    """

    closed: int
    rows: Counter[str]
    size_bytes: Counter[str]


def processor_seconds(run: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Processor time of the least disturbed of some runs."""
    times = []
    for _ in range(rounds):
        gc.collect()
        begin = time.process_time()
        run()
        times.append(time.process_time() - begin)
    return min(times)


def simulated() -> Traffic:
    """Calls of the simulator that run beside each other."""
    return interleaved(
        [simulated_events(seed, 1_790_000_000_000 + 40 * seed) for seed in range(SIMULATED_CALLS)]
    )


def recorded() -> Traffic:
    """Copies of the recorded call that run beside each other; empty without the
    conformance data.
    """
    recording = recorded_events()
    copies = [
        [(at_ms + 100 * n, source, value) for at_ms, source, value in recording]
        for n in range(RECORDED_COPIES)
    ]
    return interleaved(copies) if recording else []


def fold(traffic: Traffic, limits: Limits = LIMITS) -> tuple[PartitionEvaluator, Written]:
    """Folds traffic from bytes to bytes, as the evaluator does between reading and writing."""
    evaluator = PartitionEvaluator(limits, "bench", writes_transcripts=True)
    rows, size_bytes = Counter[str](), Counter[str]()
    for effects in _steps(evaluator, traffic, limits):
        for topic, value in _encoded(effects):
            size_bytes[topic] += len(value)
            rows[topic] += 1
    return evaluator, Written(rows["transcripts"], rows, size_bytes)


def _steps(
    evaluator: PartitionEvaluator, traffic: Traffic, limits: Limits
) -> Iterator[Iterable[Effect]]:
    receive, next_wakeup = evaluator.receive, evaluator.next_wakeup
    for source, record in traffic:
        wakeup_ms = next_wakeup()
        if wakeup_ms is not None and wakeup_ms <= record.timestamp:
            yield evaluator.advance(record.timestamp)
        arrival = admit(source, record, limits)
        if isinstance(arrival, Arrival):
            yield receive(arrival)
    if limits is LIMITS:
        yield evaluator.advance(traffic[-1][1].timestamp + LATER_MS)


def _encoded(effects: Iterable[Effect]) -> Iterator[tuple[str, bytes]]:
    """Yields each record as it is written, and its topic."""
    for effect in effects:
        match effect:
            case PublishRow():
                yield "scores", encode(effect.row)
            case PublishWords():
                yield "words", encode(effect.row)
            case PublishTranscript():
                yield "transcripts", effect.value


def measure_engine(figures: Figures) -> None:
    """Measures simulated and recorded calls, each beside decoding alone."""
    for name, traffic, goal, record_goal in (
        ("simulated", simulated(), 6, 50),
        ("recorded", recorded(), 5.5, 90),
    ):
        if not traffic:
            say(f"the {name} call is not here (CONFORMANCE_DIR): not measured")
            continue
        events = len(traffic)
        say(f"engine, {name} calls, {events:,} events")
        # the default binds the loop's value
        decoding = processor_seconds(
            lambda t=traffic: [decode(source, record.value) for source, record in t]  # type: ignore[misc]
        )
        ours = processor_seconds(lambda t=traffic: fold(t))  # type: ignore[misc]  # as above
        _, written = fold(traffic)
        figures.add(
            f"decode_us_per_event_{name}",
            decoding / events * 1e6,
            "decode only (pydantic)",
            "us/event",
        )
        what = "decode, fold, close, transcript, encode"
        figures.add(f"engine_us_per_event_{name}", ours / events * 1e6, what, "us/event")
        figures.add(
            f"engine_of_decode_{name}", ours / decoding, "the same, times decoding", "x", goal=goal
        )
        for topic in ("scores", "words"):
            per_call = written.rows[topic] / written.closed
            most = record_goal if topic == "scores" else None
            figures.add(
                f"{topic}_rows_per_call_{name}", per_call, f"rows on {topic}", "rows", goal=most
            )
            size = written.size_bytes[topic] / written.closed
            figures.add(f"{topic}_bytes_per_call_{name}", size, "their size", "bytes")


def measure_scaling(figures: Figures) -> None:
    """Measures how the cost of an event grows with the number of open calls, and with the length of
    a call.
    """
    say("engine, cost of an event as calls become more, and longer")
    first = 0.0
    for count in (1, 100, 10_000):
        distinct = [simulated_events(seed) for seed in range(min(count, 50))]
        seconds = _per_event(
            interleaved([distinct[number % len(distinct)][:60] for number in range(count)]), 20_000
        )
        first = first or seconds
        if count > 1:
            figures.add(
                f"ratio_{count}_open_calls",
                seconds / first,
                f"{count:,} open calls, of one",
                "x",
                goal=1.5,
            )
    first = 0.0
    for minutes in (1, 10, 120):
        seconds = _per_event(interleaved([long_call(minutes)]), 5_000)
        first = first or seconds
        if minutes > 1:
            figures.add(
                f"ratio_{minutes}_minutes",
                seconds / first,
                f"{minutes} minutes, of one",
                "x",
                goal=1.5,
            )


def _per_event(traffic: Traffic, at_least: int) -> float:
    rounds = max(1, at_least // len(traffic))
    seconds = processor_seconds(
        lambda: [fold(traffic, STAYS_OPEN) for _ in range(rounds)], rounds=3
    )
    return seconds / (len(traffic) * rounds)
