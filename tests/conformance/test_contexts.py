"""The engine's context of recorded calls against the reference results, in time order and in other
arrival orders.
"""

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from consumers.engine.admission import Arrival
from consumers.engine.evaluator import context_of
from tests.support.calls.wire_calls import (
    STREAMS,
    Order,
    arrivals_of,
    in_random_order,
    in_time_order,
    record_call,
    wire_calls,
)
from tests.support.conformance_data import conformance

Json = dict[str, Any]

FILES = (
    "calls.jsonl.gz",
    "cut_calls.jsonl.gz",
    "hostile_calls.jsonl.gz",
    "eva_histories.jsonl.gz",
    "record_1.1.2",
)
SEEDS = range(21)
"""Of orders of arrival; 0 is the order of time."""
SEEDS_OF_EVERY_RUN = 3
"""The others are tried by `make test-long` and `make conformance`."""


@functools.cache
def _calls(path: Path) -> list[tuple[Json, dict[str, list[Arrival]]]]:
    """Each call with its decoded events by stream, so that 21 orders cost one decoding."""
    calls = [record_call(path)] if path.is_dir() else list(wire_calls(path))
    result = []
    for call in calls:
        by_stream: dict[str, list[Arrival]] = {stream: [] for stream in STREAMS}
        order = in_time_order(call)
        for (stream, _), arrival in zip(order, arrivals_of(call, order), strict=True):
            by_stream[stream].append(arrival)
        result.append((call, by_stream))
    return result


def plain(context: Json) -> Json:
    """A context as JSON says it, so that a tuple equals a list and no other difference is accepted."""
    plain: Json = json.loads(json.dumps(context))
    return plain


def differences(call: Json, actual: Json, *, is_older_encoding: bool = False) -> list[str]:
    """The fields of a context that are not as the call expects them."""
    # The recorded call's file has the derived field, the generated calls' do not.
    expected = {"is_audio_native": call["pipeline_type"] != "cascade", **call["expected"]}
    if is_older_encoding:  # see the README of the conformance data
        actual = {key: actual[key] for key in actual if key in expected}
        trace = [
            {key: entry[key] for key in entry if key != "timestamp"}
            for entry in actual["conversation_trace"]
        ]
        actual["conversation_trace"] = trace
    fields = sorted({*expected, *actual})
    return [
        f"{field}: expected {expected.get(field, 'no such field')!r}, got "
        f"{actual.get(field, 'no such field')!r}"
        for field in fields
        if field not in expected or field not in actual or expected[field] != actual[field]
    ]


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[pytest.mark.long] if seed >= SEEDS_OF_EVERY_RUN else [])
        for seed in SEEDS
    ],
)
@pytest.mark.parametrize("name", FILES)
def test_context_equals_the_reference(name: str, seed: int) -> None:
    path = conformance(name)
    wrong = []
    calls = _calls(path)
    for call, by_stream in calls:
        order: Order = in_random_order(call, seed) if seed else in_time_order(call)
        arrivals = [by_stream[stream][index] for stream, index in order]
        context = context_of(arrivals, call["pipeline_type"], call["conversation_ended_reason"])
        found = differences(call, plain(context), is_older_encoding=path.is_dir())
        wrong += [f"call {call['id']}, seed {seed}, {difference}"[:600] for difference in found]
    assert calls
    assert wrong == [], f"{len(wrong)} fields differ"
