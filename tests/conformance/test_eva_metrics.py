"""EVA's metrics of recorded calls, from the live engine, against EVA's own results; in time order
and in other arrival orders.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from schemas.rows import number
from streamer.offline.contexts import eva_metrics_of
from streamer.recordings.reader import read_recordings
from tests.properties.evaluation import LIMITS, end_of
from tests.support.calls.rows_of_calls import newest
from tests.support.calls.wire_calls import arrivals_of, in_random_order, in_time_order, wire_calls
from tests.support.conformance_data import RECORD, conformance
from tests.support.fakes.engine_feed import T0_MS, Feed

Json = dict[str, Any]

SEEDS = (None, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3, 4, 5)))
"""Of orders of arrival; None is the order of time."""
EXACT = ("conversation_correctly_finished", "response_speed", "tool_call_validity", "turn_taking")
SETTLED = ("callgauge_settled_turns_total", "callgauge_settled_turns_changed_total")
MOST_CHANGED_SHARE = 0.01
"""The most settled turns that may differ in the end when events come in time."""


def _metrics(path: Path, seed: int | None) -> dict[str, Json]:
    """As JSON says it, so that a tuple equals a list and no other difference is accepted."""
    results: dict[str, Json] = json.loads(
        json.dumps(
            {
                call.conversation_id: eva_metrics_of(call, seed).values
                for call in read_recordings(path)
            }
        )
    )
    return results


def _differences(expected: Any, actual: Any, where: str) -> list[str]:
    if isinstance(expected, dict) and isinstance(actual, dict):
        return [
            found
            for key in sorted({*expected, *actual})
            for found in _differences(
                expected.get(key, "no such key"), actual.get(key, "no such key"), f"{where}.{key}"
            )
        ]
    return [] if expected == actual else [f"{where}: expected {expected!r}, got {actual!r}"]


@pytest.mark.parametrize("seed", SEEDS)
def test_metrics_equal_the_reference(seed: int | None) -> None:
    actual = _metrics(conformance("calls.jsonl.gz"), seed)
    reference = {
        call["id"]: call["metrics"] for call in wire_calls(conformance("call_metrics.jsonl.gz"))
    }
    assert actual.keys() == reference.keys()
    wrong = [
        found
        for call_id, expected in reference.items()
        for name in (*EXACT, "stt_wer")
        for found in _differences(expected[name], actual[call_id][name], f"{call_id} {name}")
    ]
    assert wrong == [], f"{len(wrong)} values differ"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_recorded_call_has_its_reference_values(seed: int | None) -> None:
    (metrics,) = _metrics(conformance(RECORD.name), seed).values()
    turn_taking, speed = metrics["turn_taking"], metrics["response_speed"]
    assert turn_taking["score"] == 0.2696
    scores = [1.0, 0.7639, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.6623]
    assert turn_taking["details"]["per_turn_score"] == {
        str(turn): score for turn, score in enumerate(scores, 1)
    }
    assert turn_taking["details"]["per_turn_evidence"]["3"]["overlap_ms"] == 18_460.772
    parts = {
        "mean_latency_ms": 2626.25,
        "p50_latency_ms": 3738.123,
        "p90_latency_ms": 17_572.531,
        "on_time_rate": 0.3333,
        "early_rate": 0.1111,
        "late_rate": 0.5556,
    }
    assert {name: turn_taking["sub_metrics"][name] for name in parts} == parts
    assert (
        speed["score"],
        speed["details"]["max_speed_seconds"],
        speed["details"]["num_turns"],
    ) == (5.616, 17.573, 8)
    assert (speed["sub_metrics"]["with_tool_calls"], speed["sub_metrics"]["no_tool_calls"]) == (
        9.951,
        3.014,
    )
    assert metrics["stt_wer"]["normalized_score"] == 0.911
    ended = (
        "conversation_valid_end",
        "conversation_completed_on_time",
        "conversation_correctly_finished",
    )
    assert [metrics[name]["score"] for name in (*ended, "tool_call_validity")] == [1.0] * 4
    # The agent of this recording kept no session, and one is expected.
    assert (metrics["authentication_success"]["score"], metrics["task_completion"]["score"]) == (
        0.0,
        0.0,
    )
    assert (
        metrics["authentication_success"]["details"]["mismatches"]["last_name"]["expected"]
        == "rodriguez"
    )


@pytest.mark.parametrize("seed", [None, 6])
def test_rows_end_as_the_reference_and_settled_turns_stay(seed: int | None) -> None:
    path = conformance("calls.jsonl.gz")
    reference = {
        call["id"]: call["metrics"] for call in wire_calls(conformance("call_metrics.jsonl.gz"))
    }
    wrong: list[str] = []
    settled: Counter[str] = Counter()
    for call in wire_calls(path):
        if not any("audio_timestamp" in event for event in call["user_sim"] or ()):
            continue  # only the bot hears it: its turns are the bot's own
        reason = {"type": "call_ended", "timestamp": 1, "reason": call["conversation_ended_reason"]}
        kind = {"type": "call_started", "timestamp": 0, "pipeline_type": call["pipeline_type"]}
        call |= {"control": [kind, reason], "control_on": ["audit", "audit"]}
        order = in_time_order(call) if seed is None else in_random_order(call, seed)
        arrivals = arrivals_of(call, [("control", 0), *order, ("control", 1)])
        feed = Feed(LIMITS)
        for arrival in arrivals:
            feed._keep(feed.evaluator.receive(arrival))
        feed.advance(end_of(arrivals) - T0_MS)
        of_call, turns, _ = newest(feed.rows(call["id"]))
        for metric_name in SETTLED:
            settled[metric_name] += feed.counts(metric_name).total()
        expected = reference[call["id"]]
        scores = {
            str(each.turn): score
            for each in turns
            if each.turn_taking is not None
            and (score := number(each.turn_taking.result)) is not None
        }
        wrong += _differences(
            expected["turn_taking"]["details"]["per_turn_score"], scores, f"{call['id']} turns"
        )
        for name in EXACT:
            metric = of_call.eva[f"eva_{name}"]
            if (score := number(metric.result)) is not None:
                said = {"score": score, "sub_metrics": metric.sub_metrics}
                wrong += _differences(
                    {key: expected[name][key] for key in said}, said, f"{call['id']} {name}"
                )
    assert wrong == [], f"{len(wrong)} values differ"
    assert settled[SETTLED[0]] > 400
    changed = settled[SETTLED[1]] / settled[SETTLED[0]]
    assert changed <= MOST_CHANGED_SHARE
