"""Writes figures into performance.md and sizing.md. What is measured comes from `performance.json`,
which one run of `make bench ARGS=--table` writes; what that run could not measure has the reason in
the place of its figure. Sizes of what stands in the log are computed from its code.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from schemas.closed_sets import InputSource
from schemas.log import SOURCES, Next, Origin, Placed, Tick
from schemas.units import DAY_MS

RUN: Final = Path(__file__).parent / "performance.json"

ROWS: Final = {
    "Events of a backlog, on Kafka": {
        "bare_us_per_event": "a bare loop: aiokafka and pydantic read the inputs, and nothing else",
        "bytewax_us_per_event": "Bytewax 0.21: a counter and a latency for each call, no guarantee",
        "quix_at_least_once_us_per_event": "Quix Streams 3.28: the same, at least once",
        "quix_exactly_once_us_per_event": "Quix Streams 3.28: the same, exactly once",
        "evaluator_us_per_event_backlog": "evaluator: everything written, exactly once",
        "evaluator_backlog_of_quix": "evaluator, times Quix Streams exactly once",
        "evaluator_backlog_of_bare": "evaluator, times the bare loop",
        "sequencer_us_per_event_backlog": "sequencer",
        "both_us_per_event_backlog": "sequencer and evaluator",
        "sequencer_backlog_events_per_second": "sequencer, by the wall clock",
        "two_evaluators_of_one": "two evaluators on two cores, times the events of one",
    },
    "Running calls, 1,000 at a time": {
        "evaluator_us_per_event_live": "evaluator",
        "evaluator_live_of_bare": "evaluator, times the bare loop on a backlog",
        "sequencer_live_core_share": "sequencer, of a core",
        "both_live_core_share": "sequencer and evaluator, of a core",
        "exporter_us_per_event_live": "exporter, its page asked for once a second",
        "exporter_us_per_event_without_page": "the same, without its page",
        "many_partitions_of_few": "evaluator with 64 partitions, times 12",
        "event_to_counted_p50_ms": "from an event to its count in the exporter, p50",
        "event_to_counted_p99_ms": "the same, p99",
    },
    "The engine alone": {
        "engine_us_per_event_simulated": "decode, fold, close, transcript, encode: simulated calls",
        "engine_of_decode_simulated": "the same, times decoding",
        "engine_us_per_event_recorded": "copies of a recorded call",
        "engine_of_decode_recorded": "the same, times decoding",
        "scores_rows_per_call_simulated": "rows of a simulated call on `scores`",
        "scores_rows_per_call_recorded": "rows of the recorded call",
        "ratio_100_open_calls": "an event with 100 open calls, times one with one",
        "ratio_10000_open_calls": "with 10,000",
        "ratio_10_minutes": "an event of a call of 10 minutes, times one of a minute",
        "ratio_120_minutes": "of two hours",
        "bytes_per_open_call_10_turns": "memory of an open call of 10 turns",
    },
    "Beside tools for calls that are over": {
        "eva_context_ms": "EVA's processor: the recorded call, 5.7 minutes, once it is over",
        "eva_live_ms": "EVA's processor again after each event of the call, all events together",
        "our_context_ms": "callgauge: the same context after each event, all events together",
        "our_call_ms": "callgauge: the same, with closing, rows, words and transcript",
        "agent_inspect_ms": "agent-inspect: four scorers, 10 turns, 3 subgoals, known votes",
        "our_scorers_ms": "the same scores by callgauge",
    },
    "Start and recovery": {
        "help_seconds": "`callgauge --help`",
        "evaluator_ready_seconds": "an evaluator, until it reads",
        "recovery_seconds": "kill -9 of one of two evaluators, until its last call is live again",
        "recovery_notice_seconds": "of that until the group notices",
        "score_speed_up_ratio": "`callgauge score` with two processes, times as fast",
    },
    "Events in": {
        "webhook_ms_p50": "`ingest`: a webhook, until it is acknowledged, p50",
        "webhook_ms_p99": "the same, p99",
        "ingest_us_per_event": "`ingest`: `POST /events` in batches of 200",
        "sampled_own_us_per_frame": "200 pipecat bots in one process: our code in each frame",
        "observer_events_per_call_minute": "events of the observer in a minute of a call",
        "observer_bytes_per_call_minute": "their size",
    },
    "`callgauge serve`, 300 running calls, four pages open": {
        "serve_core_share": "of a core",
        "serve_mb": "memory, after three minutes",
        "serve_event_to_page_p50_ms": "from a posted event until the page of its call has it, p50",
        "serve_event_to_page_p99_ms": "the same, p99",
        "serve_page_ms": "opening the page of a running call",
        "serve_first_start_seconds": "a start with two hours of one call to fold",
        "serve_start_seconds": "a start after kill -9, with all of these calls open",
    },
    "The console, 5,000 running calls": {
        "console_reading_core_share": "1,000 rows a second, nobody looks, of a core",
        "console_now_core_share": "300 pages of running calls too, of a core",
        "console_watched_core_share": "100 pages of calls that go on, of a core",
        "evaluator_beside_console_ratio": "an event of the evaluator beside a console, times without",
        "console_first_byte_ms": "first byte of the page of running calls",
        "console_stop_seconds": "its end with 300 pages open",
    },
}
"""The figures of performance.md by their group and name, in words."""

_MEMORY_OF_NO_CALL_MB: Final = 230
"""Memory of an evaluator beside its calls: it took 226 MB at twice its highest rate, calls
included.
"""
_EVENTS_OF_A_CALL: Final = 1.95
"""A second; the simulated calls of the load send so many."""
_PLANNED: Final = 1_900
"""Events a second of an evaluator that may have to take over those of another. The chart has it
too.
"""
_MOST_CALLS: Final = (500, 2_500, 10_000, 40_000)


_TICKS_A_SECOND: Final = 2
_RECORD_BYTES: Final = 60
"""Bytes that Kafka adds to a tick, with its header."""
_PARTITIONS: Final = (4, 16, 64)
_MANY_EVENTS: Final = 10_000_000
"""Offset of an input that has been in use for some time."""


def performance_lines() -> Iterator[str]:
    """The table of performance.md, and what the run was made on."""
    run = json.loads(RUN.read_text(encoding="utf-8"))
    yield f"Measured on {run['day']}: {run['processor']}; {run['python']}; callgauge {run['callgauge']}."
    yield from ("", "| what | figure | goal |", "|---|---|---|")
    for group, rows in ROWS.items():
        yield f"| **{group}** | | |"
        for name, what in rows.items():
            figure = run["figures"].get(name, {"value": None, "why": "not a part of this run"})
            yield f"| {what} | {shown(figure)} | {goal_of(figure)} |"
    yield ""


def shown(figure: Mapping[str, Any]) -> str:
    """A figure as people read it; the reason where it could not be measured."""
    value = figure["value"]
    if value is None:
        return f"not measured: {figure['why']}"
    return _with_unit(value, figure["unit"])


def goal_of(figure: Mapping[str, Any]) -> str:
    """The goal of a figure as people read it; empty without one."""
    if (most := figure.get("goal")) is not None:
        return _with_unit(most, figure["unit"])
    if (least := figure.get("at_least")) is not None:
        return f"{_with_unit(least, figure['unit'])} or more"
    return ""


def _with_unit(value: float, unit: str) -> str:
    if unit == "bytes" and value >= 10_000:
        value, unit = value / 1_000, "kB"
    return f"{_rounded(value)} {_UNITS.get(unit, unit)}"


_UNITS: Final = {"us/event": "us", "us/frame": "us", "x": "times"}


def _rounded(value: float) -> str:
    """Three digits, and no more than two of them behind the point."""
    places = max(0, min(2, 2 - math.floor(math.log10(value)))) if value > 0 else 0
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


# sizing.md: what follows from these figures for a number of calls.


def call_lines() -> Iterator[str]:
    """What one call and one event take."""
    yield from ("| what | figure |", "|---|---|")
    run = _Sizes()
    yield (
        f"| events of a running call (1,000 calls send {1_000 * _EVENTS_OF_A_CALL:,.0f} events/s) "
        f"| {_EVENTS_OF_A_CALL} events/s |"
    )
    yield f"| events of an evaluator with one core, at most | {run.events_at_most} |"
    yield (
        f"| the same, planned, so that one can take over the calls of another | {_PLANNED:,} "
        "events/s |"
    )
    yield (
        "| memory of an evaluator beside its calls; after 2 minutes of twice its highest rate it "
        "took 226 MB, calls included (`python -m tests.chaos --overload`) "
        f"| {_MEMORY_OF_NO_CALL_MB} MB |"
    )
    yield f"| memory of an open call | {run.call_kb:.0f} kB |"
    yield (
        f"| events of a bot in a minute of a call | {run.bot_events:.0f} events, {run.bot_kb:.0f} "
        "kB |"
    )
    yield f"| the header that the sequencer adds to an event on `events` | {_header_bytes()} bytes |"
    yield f"| `ingest`: `POST /events` with one core | {run.ingest} |"
    yield ""


def evaluator_lines() -> Iterator[str]:
    """Evaluators, their memory and the traffic for numbers of calls."""
    run = _Sizes()
    yield (
        "| calls at a time | events/s | evaluators | memory of each | to Kafka: inputs and "
        "`events` |"
    )
    yield "|---|---|---|---|---|"
    bytes_of_a_call = (2_000 * run.bot_kb + run.bot_events * _header_bytes()) / 60
    for calls in _MOST_CALLS:
        events = calls * _EVENTS_OF_A_CALL
        evaluators = max(2, math.ceil(events / _PLANNED))
        memory_mb = _MEMORY_OF_NO_CALL_MB + run.call_kb / 1_000 * calls / (evaluators - 1)
        yield (
            f"| {calls:,} | {events:,.0f} | {evaluators} | {10 * math.ceil(memory_mb / 10)} MB | "
            f"{_rounded(calls * bytes_of_a_call / 1e6)} MB/s |"
        )
    yield ""


def serve_lines() -> Iterator[str]:
    """The figures of `callgauge serve` with 300 running calls."""
    run = _Run()
    yield from ("| `callgauge serve` with 300 running calls | |", "|---|---|")
    for name, what in {
        "serve_core_share": "share of a core",
        "serve_mb": "memory, after three minutes",
        "serve_event_to_page_p50_ms": "from an event to its page, p50",
        "serve_event_to_page_p99_ms": "the same, p99",
        "serve_log_mb_per_minute": "log, `log.sqlite`, in a minute",
        "serve_start_seconds": "start after a kill, until all open calls are live again",
    }.items():
        yield f"| {what} | {run.shown(name)} |"
    yield ""


def sequencer_lines() -> Iterator[str]:
    """The figures of one sequencer."""
    run = _Run()
    calls = round(1 / run.value("sequencer_live_core_share")) * 1_000
    yield (
        f"On a backlog one appends {run.shown('sequencer_backlog_events_per_second')}. Running "
        "calls come in small lots, which cost more:"
    )
    yield (
        f"a thousand take {run.shown('sequencer_live_core_share')}, so plan {calls:,} calls for "
        "each shard."
    )
    yield ""


def tick_lines() -> Iterator[str]:
    """The size of ticks, by the number of partitions."""
    yield "| partitions of each input, and of `events` | a tick | ticks of a day, before replication and compression |"
    yield "|---|---|---|"
    for partitions in _PARTITIONS:
        size = _tick_bytes(partitions)
        of_a_day = size * _TICKS_A_SECOND * partitions * DAY_MS / 1_000
        yield f"| {partitions} | {size:,} bytes | {_rounded(of_a_day / 1e9)} GB |"
    yield ""


def kept_lines() -> Iterator[str]:
    """The size of a call's rows on Kafka."""
    run = _Run()
    yield "| topic | a simulated call | a recorded call of five minutes |"
    yield "|---|---|---|"
    for topic in ("scores", "words"):
        sizes = [
            f"{run.shown(f'{topic}_rows_per_call_{kind}')}, "
            f"{run.shown(f'{topic}_bytes_per_call_{kind}')}"
            for kind in ("simulated", "recorded")
        ]
        yield f"| `{topic}` | {' | '.join(sizes)} |"
    yield ""


def _header_bytes() -> int:
    """Bytes that the sequencer adds to an event: a name and a value, and the length of each."""
    name, packed = Placed(1, Origin(InputSource.AUDIT, 0, 0, _MANY_EVENTS, 0)).header()
    return len(name) + len(packed) + 2


def _tick_bytes(partitions: int) -> int:
    """Size of a tick that says where each partition of each input stands."""
    positions = {
        (source, partition): Next(0, _MANY_EVENTS)
        for source in SOURCES
        for partition in range(partitions)
    }
    known_ms = 1_790_000_000_000
    times_ms = dict.fromkeys(positions, known_ms - 5_000)
    tick = Tick.of(1, known_ms, positions, times_ms=times_ms)
    return len(tick.value()) + _RECORD_BYTES


class _Run:
    """The run's figures by name."""

    def __init__(self) -> None:
        self._figures = json.loads(RUN.read_text(encoding="utf-8"))["figures"]

    def value(self, name: str) -> float:
        """A figure.

        Raises:
            ValueError: The run lacks it.
        """
        measured: float | None = self._figures.get(name, {}).get("value")
        if measured is None:
            raise ValueError(
                f"{RUN.name} has no {name}, which sizing.md needs: run `make bench "
                "ARGS=--table` where it can be measured"
            )
        return measured

    def shown(self, name: str) -> str:
        """A figure with its unit."""
        return _with_unit(self.value(name), self._figures[name]["unit"])


class _Sizes:
    """Figures that are computed from those of the run."""

    def __init__(self) -> None:
        run = _Run()
        self.call_kb = round(run.value("bytes_per_open_call_10_turns") / 1_000)
        self.bot_events = round(run.value("observer_events_per_call_minute"))
        self.bot_kb = round(run.value("observer_bytes_per_call_minute") / 1_000)
        self.events_at_most = _per_second(run.value("evaluator_us_per_event_live"))
        self.ingest = _per_second(run.value("ingest_us_per_event"))


def _per_second(us: float) -> str:
    return f"{100 * int(10_000 / us):,} events/s"
