"""Recorded values of the rules equal values computed from the rows: shares within 0.02, the
quantile within its bucket.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import pytest

from schemas.closed_sets import FAILED_USES, Speaker
from schemas.metrics.catalogue import metric_named
from schemas.rows import CallRow, Row, TurnRow, number
from streamer.sources.simulator.profile import AGENTS, AWKWARD
from tests.drills.virtual_time import RULES, SCRAPE_SECONDS, World, minute, rows_of, scraped
from tests.support.promtool import promtool

MINUTES = 40
MOMENTS = (20, 27, 34, 40)
"""Minutes at which values are compared. Calls of all kinds of difficulty run from the first to the
last.
"""
WORLD = World("live", 4, MINUTES, agents=AGENTS[:1], usual=AWKWARD)
SHARE_TOLERANCE: Final = 0.02
_ANSWER = re.compile(
    r'expr: "([^"]+)", time: (\d+)m,\s+exp: ?\S+\s+got: ?"?\{[^}]*\} ([-+\w.]+)"?\n'
)


@dataclass(frozen=True)
class Happened:
    """Final values by the minute at which they were known first: everything that the recordings are
    shares of.
    """

    latencies: list[tuple[float, float]]
    waits: list[float]
    dead_airs: list[float]
    interruptions: list[float]
    tools: list[tuple[float, bool]]
    call_turns: list[tuple[float, int]]


def happened(rows: Iterable[Row]) -> Happened:
    """Takes the newest row of each turn, and of each value in it the time at which it was known
    first.
    """
    found = Happened([], [], [], [], [], [])
    turns: dict[tuple[str, int], TurnRow] = {}
    first: dict[tuple[str, int, str, object], float] = {}
    for row in rows:
        if isinstance(row, CallRow) and row.state == "closed":
            found.call_turns.append((_minute_of(row.known_ms), row.turns))
        if not isinstance(row, TurnRow):
            continue
        turn = (row.conversation_id, row.turn)
        turns[turn] = row
        parts: list[tuple[str, object]] = [("interruption", by) for by in row.interruptions]
        parts += [("tool", use.index) for use in row.tools]
        parts += [("wait", None)] if number(row.wait_ms) is not None else []
        for part in parts:
            first.setdefault((*turn, *part), _minute_of(row.known_ms))
    for turn, row in turns.items():
        answered, silent = [], [_minute_of(each.known_ms) for each in row.dead_air]
        found.dead_airs.extend(silent)
        if (wait_ms := number(row.wait_ms)) is not None:
            answered.append(first[*turn, "wait", None])
            if wait_ms >= 0:
                found.latencies.append((answered[0], wait_ms / 1000))
        # An answer and a dead air of one turn are one wait.
        found.waits.extend(answered if len(answered) >= len(silent) else silent)
        if Speaker.ASSISTANT in row.interruptions:
            found.interruptions.append(first[*turn, "interruption", Speaker.ASSISTANT])
        for use in row.tools:
            found.tools.append((first[*turn, "tool", use.index], use.outcome in FAILED_USES))
    return found


def _minute_of(known_ms: int) -> float:
    return (known_ms - minute(0)) / 60_000


@pytest.fixture(scope="module")
def truth() -> Happened:
    return happened(
        row
        for _, played in WORLD.calls()
        for row in rows_of(played, lambda _metric, _labels, _at, _by: None)
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, int], float]:
    """Each recording of the agent at each moment, as promtool computes it."""
    names = [*SHARES, P95]
    work = tmp_path_factory.mktemp("recordings")
    tests = [
        {"expr": name, "eval_time": f"{at}m", "exp_samples": []} for name in names for at in MOMENTS
    ]
    series = [
        {"series": name, "values": values}
        for name, values in scraped([WORLD], MINUTES).notation().items()
    ]
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": f"{SCRAPE_SECONDS}s",
        "tests": [
            {"interval": f"{SCRAPE_SECONDS}s", "input_series": series, "promql_expr_test": tests}
        ],
    }
    path = work / "recordings.yml"
    path.write_text(json.dumps(document), encoding="utf-8")
    result = promtool("test", "rules", path)  # it shows the value only where it was not expected
    answers = _ANSWER.findall(result.stdout + result.stderr)
    return {(name, int(at)): float(value) for name, at, value in answers}


def _of(times: Iterable[float], at: int, window: int) -> int:
    return sum(at - window < each <= at for each in times)


SHARES: Final[Mapping[str, Callable[[Happened, int], float]]] = {
    "agent:callgauge_response_latency_misses:ratio_rate5m": lambda all_of, at: _slower(
        all_of, at, 5, 1.5
    ),
    "agent:callgauge_response_latency_misses:ratio_rate30m": lambda all_of, at: _slower(
        all_of, at, 30, 1.5
    ),
    "agent:callgauge_slow_answers:ratio_rate5m": lambda all_of, at: _slower(all_of, at, 5, 3.5),
    "agent:callgauge_slow_answers:ratio_rate30m": lambda all_of, at: _slower(all_of, at, 30, 3.5),
    "agent:callgauge_dead_air:ratio_rate10m": lambda all_of, at: (
        _of(all_of.dead_airs, at, 10) / _of(all_of.waits, at, 10)
    ),
    "agent:callgauge_interruptions:ratio_rate10m": lambda all_of, at: (
        _of(all_of.interruptions, at, 10) / _of(all_of.waits, at, 10)
    ),
    "agent:callgauge_tool_errors:ratio_rate10m": lambda all_of, at: (
        _of((when for when, failed in all_of.tools if failed), at, 10)
        / _of((when for when, _ in all_of.tools), at, 10)
    ),
    "agent:callgauge_call_turns_low:ratio_rate15m": lambda all_of, at: (
        _of((when for when, turns in all_of.call_turns if turns <= 2), at, 15)
        / _of((when for when, _ in all_of.call_turns), at, 15)
    ),
}
P95: Final = "agent:callgauge_turn_response_latency_seconds:p95_5m"


def _slower(all_of: Happened, at: int, window: int, limit_seconds: float) -> float:
    in_time = [seconds for when, seconds in all_of.latencies if at - window < when <= at]
    return sum(seconds > limit_seconds for seconds in in_time) / len(in_time)


@pytest.mark.parametrize("name", SHARES)
def test_a_recorded_share_is_that_of_the_scores(
    name: str, truth: Happened, recorded: Mapping[tuple[str, int], float]
) -> None:
    values = {at: (recorded[name, at], SHARES[name](truth, at)) for at in MOMENTS}
    assert all(abs(seen - due) <= SHARE_TOLERANCE for seen, due in values.values()), values
    assert any(due > 0 for _, due in values.values()) or "call_turns_low" in name


@pytest.mark.parametrize("at", MOMENTS)
def test_the_recorded_quantile_is_in_the_bucket_of_the_true_one(
    at: int, truth: Happened, recorded: Mapping[tuple[str, int], float]
) -> None:
    in_time = sorted(seconds for when, seconds in truth.latencies if at - 5 < when <= at)
    true = in_time[math.ceil(0.95 * len(in_time)) - 1]
    edges = (0.0, *metric_named("callgauge_turn_response_latency_seconds").edges)
    above = next(place for place, edge in enumerate(edges) if true <= edge)
    assert edges[above - 1] <= recorded[P95, at] <= edges[above], (true, len(in_time))
