"""Recorded values of the rules equal values computed from the scores: shares within 0.02, the quantile within its bucket."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import pytest

from schemas.closed_sets import Speaker, ToolOutcome
from schemas.metrics.catalogue import metric_named
from schemas.scores.records import (
    AnyScoreRecord,
    ClosedFact,
    DeadAirFact,
    InterruptionFact,
    Scored,
    ToolUseFact,
    VoiceToVoiceLatency,
)
from streamer.sources.simulator.profile import AGENTS, AWKWARD
from tests.drills.virtual_time import RULES, SCRAPE_SECONDS, World, minute, records_of, scraped
from tests.support.promtool import promtool

MINUTES = 40
MOMENTS = (20, 27, 34, 40)
"""Minutes at which values are compared. Calls of all kinds of difficulty run from the first to the last."""
WORLD = World("live", 4, MINUTES, agents=AGENTS[:1], usual=AWKWARD)
SHARE_TOLERANCE: Final = 0.02
_ANSWER = re.compile(r'expr: "([^"]+)", time: (\d+)m,\s+exp: ?\S+\s+got: ?"?\{[^}]*\} ([-+\w.]+)"?\n')


@dataclass(frozen=True)
class Happened:
    """Final scores by the minute at which they were known first: everything that the recordings are shares of."""

    latencies: list[tuple[float, float]]
    waits: list[float]
    dead_airs: list[float]
    interruptions: list[float]
    tools: list[tuple[float, bool]]
    call_turns: list[tuple[float, int]]


Subject = tuple[str, str, int | None, int]


def happened(records: Iterable[AnyScoreRecord]) -> Happened:
    """Takes the newest revision of each subject, at the time of the first."""
    newest: dict[Subject, AnyScoreRecord] = {}
    first_ms: dict[Subject, int] = {}
    for record in records:
        subject: Subject = (record.conversation_id, record.name, record.turn, record.index)
        newest[subject] = record
        first_ms.setdefault(subject, record.caused_at_ms)
    found = Happened([], [], [], [], [], [])
    waited: defaultdict[tuple[str, int | None], list[list[float]]] = defaultdict(lambda: [[], []])
    for subject, record in newest.items():
        at, turn = (first_ms[subject] - minute(0)) / 60_000, (record.conversation_id, record.turn)
        match record:
            case VoiceToVoiceLatency(result=Scored(value=value)):
                waited[turn][0].append(at)
                if value >= 0:
                    found.latencies.append((at, value / 1000))
            case DeadAirFact():
                waited[turn][1].append(at)
                found.dead_airs.append(at)
            case InterruptionFact(by=Speaker.ASSISTANT, is_withdrawn=False):
                found.interruptions.append(at)
            case ToolUseFact(is_withdrawn=False):
                found.tools.append((at, record.outcome in {ToolOutcome.ERROR, ToolOutcome.UNANSWERED}))
            case ClosedFact():
                found.call_turns.append((at, record.turns))
    # An answer and a dead air of one turn are one wait.
    for answered, silent in waited.values():
        found.waits.extend(sorted(answered if len(answered) >= len(silent) else silent))
    return found


@pytest.fixture(scope="module")
def truth() -> Happened:
    return happened(
        record for _, played in WORLD.calls() for record in records_of(played, lambda _metric, _labels, _at, _by: None)
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, int], float]:
    """Each recording of the agent at each moment, as promtool computes it."""
    names = [*SHARES, P95]
    work = tmp_path_factory.mktemp("recordings")
    tests = [{"expr": name, "eval_time": f"{at}m", "exp_samples": []} for name in names for at in MOMENTS]
    series = [{"series": name, "values": values} for name, values in scraped([WORLD], MINUTES).notation().items()]
    document = {
        "rule_files": [str(RULES)], "evaluation_interval": f"{SCRAPE_SECONDS}s",
        "tests": [{"interval": f"{SCRAPE_SECONDS}s", "input_series": series, "promql_expr_test": tests}],
    }  # fmt: skip
    path = work / "recordings.yml"
    path.write_text(json.dumps(document), encoding="utf-8")
    result = promtool("test", "rules", path)  # it shows the value only where it was not expected
    answers = _ANSWER.findall(result.stdout + result.stderr)
    return {(name, int(at)): float(value) for name, at, value in answers}


def _of(times: Iterable[float], at: int, window: int) -> int:
    return sum(at - window < each <= at for each in times)


SHARES: Final[Mapping[str, Callable[[Happened, int], float]]] = {
    "agent:callgauge_response_latency_misses:ratio_rate5m": lambda all_of, at: _slower(all_of, at, 5, 1.5),
    "agent:callgauge_response_latency_misses:ratio_rate30m": lambda all_of, at: _slower(all_of, at, 30, 1.5),
    "agent:callgauge_slow_answers:ratio_rate5m": lambda all_of, at: _slower(all_of, at, 5, 3.5),
    "agent:callgauge_slow_answers:ratio_rate30m": lambda all_of, at: _slower(all_of, at, 30, 3.5),
    "agent:callgauge_dead_air:ratio_rate10m": lambda all_of, at: (
        _of(all_of.dead_airs, at, 10) / _of(all_of.waits, at, 10)
    ),
    "agent:callgauge_interruptions:ratio_rate10m": lambda all_of, at: (
        _of(all_of.interruptions, at, 10) / _of(all_of.waits, at, 10)
    ),
    "agent:callgauge_tool_errors:ratio_rate10m": lambda all_of, at: (
        _of((when for when, failed in all_of.tools if failed), at, 10) / _of((when for when, _ in all_of.tools), at, 10)
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
