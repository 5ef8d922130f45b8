"""`make bench`: what the engine costs, each figure beside a bare baseline of the same run.

The baseline is what nobody can do without: reading the same bytes into the same pydantic models. Ratios to it carry over
to other machines, events per second do not.
"""

import gc
import json
import platform
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from importlib.metadata import version

from consumers.engine.intake import Arrival, admit
from consumers.engine.limits import Limits
from consumers.engine.partition import PartitionEvaluator
from consumers.runtime.collection import tune_collection
from schemas.codec import InputSource, decode
from tests.benchmarks.traffic import Traffic, interleaved, long_call, recorded_events, simulated_events
from tests.oracle import batch_context

NO_CLOSING = Limits(
    closing_grace_ms=10**12, max_events_per_call=2**31, max_open_calls=10**6, max_event_time_skew_ms=10**12
)
REPEATS = 3


def best_seconds(run: Callable[[], object], repeats: int = REPEATS) -> float:
    """Shortest of some runs: the least disturbed one."""
    times = []
    for _ in range(repeats):
        gc.collect()
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def fold(traffic: Traffic) -> PartitionEvaluator:
    """Bytes to live state, and the effects thrown away."""
    evaluator = PartitionEvaluator(NO_CLOSING, "bench")
    for source, record in traffic:
        arrival = admit(source, record, NO_CLOSING)
        if isinstance(arrival, Arrival):
            evaluator.receive(arrival)
    return evaluator


def decode_only(traffic: Traffic) -> None:
    """The baseline."""
    for source, record in traffic:
        decode(source, record.value)


def say(text: str = "") -> None:
    """One line of the report."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def throughput() -> None:
    """Events per second from wire bytes to live state on one core, and EVA's way: all of it again for each event."""
    simulated = interleaved([simulated_events(seed, 1_790_000_000_000 + 40 * seed) for seed in range(100)])
    ours = compared("100 simulated calls (short turns: one event in ten is a change of speaker)", simulated)
    recording = recorded_events()
    if recording:
        copies = [[(at_ms + 100 * n, source, value) for at_ms, source, value in recording] for n in range(25)]
        compared("25 copies of the recorded call (one event in twenty)", interleaved(copies))
    else:
        say("the recorded call is not here (CONFORMANCE_DIR): not measured")
    again = recompute_seconds_per_event()
    say("all of it again for each event, as a batch tool would have to")
    say(
        f"  recompute per event     {1 / again:>10,.0f} events/s   {again * 1e6:6.0f} us/event   {again / ours:.0f} times ours"
    )
    say()


def compared(what: str, traffic: Traffic) -> float:
    """Print baseline and callgauge on the same traffic; seconds per event of callgauge."""
    base = best_seconds(lambda: decode_only(traffic)) / len(traffic)
    ours = best_seconds(lambda: fold(traffic)) / len(traffic)
    say(f"wire bytes to live state, {what}, {len(traffic):,} events (goal 150,000 events/s)")
    say(f"  baseline, decode only   {1 / base:>10,.0f} events/s   {base * 1e6:6.2f} us/event")
    say(f"  callgauge, everything   {1 / ours:>10,.0f} events/s   {ours * 1e6:6.2f} us/event   {base / ours:.2f} of it")
    return ours


def recompute_seconds_per_event() -> float:
    """The batch rules on all events so far, once per event, on one 5-minute call."""
    streams: dict[str, list[dict[str, object]]] = {"audit": [], "pipecat": [], "user_sim": []}
    names = {InputSource.AUDIT: "audit", InputSource.PIPECAT: "pipecat", InputSource.ELEVENLABS: "user_sim"}
    events = [(names[source], json.loads(value)) for _, source, value in long_call(5)]
    begin = time.perf_counter()
    for name, event in events:
        streams[name].append(event)
        batch_context({"pipeline_type": "cascade", **streams})
    return (time.perf_counter() - begin) / len(events)


def by_open_calls() -> None:
    """Cost per event with more and more calls open at once (goal: within 1.5 times)."""
    say("cost per event by number of open calls (goal: within 1.5 x of one call)")
    first = 0.0
    for count in (1, 100, 10_000):
        distinct = [simulated_events(seed) for seed in range(min(count, 50))]
        calls = [distinct[number % len(distinct)][:60] for number in range(count)]
        traffic = interleaved(calls)
        rounds = max(1, 20_000 // len(traffic))
        seconds = best_seconds(lambda t=traffic, r=rounds: [fold(t) for _ in range(r)]) / (len(traffic) * rounds)  # type: ignore[misc]  # defaults bind the loop's values
        first = first or seconds
        say(f"  {count:>6,} open calls   {seconds * 1e6:6.2f} us/event   {seconds / first:.2f} x")
    say()


def by_length() -> None:
    """Cost per event of longer and longer calls (goal: within 1.5 times)."""
    say("cost per event by length of the call (goal: within 1.5 x of one minute)")
    first = 0.0
    for minutes in (1, 10, 120):
        traffic = interleaved([long_call(minutes)])
        rounds = max(1, 5_000 // len(traffic))
        seconds = best_seconds(lambda t=traffic, r=rounds: [fold(t) for _ in range(r)]) / (len(traffic) * rounds)  # type: ignore[misc]  # defaults bind the loop's values
        first = first or seconds
        say(
            f"  {minutes:>4} minutes, {len(traffic):>6,} events   {seconds * 1e6:6.2f} us/event   {seconds / first:.2f} x"
        )
    say()


def memory() -> None:
    """Python memory of an open call, by number of turns (goal: 40 kB for 10 turns)."""
    say("memory per open call (goal 40 kB for 10 turns)")
    calls = [long_call(minutes, seed) for minutes in (1, 2.2, 4) for seed in range(20)]
    by_turns: list[tuple[int, float]] = []
    for call in calls:
        traffic = interleaved([call])
        tracemalloc.start()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        evaluator = fold(traffic)
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        context = evaluator.context("call-0")
        turns = context.num_user_turns if context is not None else 0
        by_turns.append((turns, used))
    slope, fixed = statistics.linear_regression([turns for turns, _ in by_turns], [used for _, used in by_turns])
    say(
        f"  {fixed / 1000:.1f} kB + {slope / 1000:.1f} kB per turn; a call of 10 turns: {(fixed + 10 * slope) / 1000:.0f} kB"
    )
    say()


def main() -> None:
    """All of it."""
    say(
        f"callgauge {version('callgauge')}, Python {platform.python_version()}, {platform.machine()}, {platform.system()}"
    )
    say()
    tune_collection()  # as the evaluator does
    throughput()
    by_open_calls()
    by_length()
    memory()


if __name__ == "__main__":
    main()
