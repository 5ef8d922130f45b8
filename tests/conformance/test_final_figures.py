"""Prometheus' sums over the closings of recorded calls equal the values in their final rows."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import islice

import pytest

from consumers.exporter.projection import Counted, Observed, project
from schemas.closed_sets import UnscoredReason
from schemas.rows import CallRow, Row, TurnRow, Unscored, number
from streamer.recordings.reader import read_recordings
from tests.support.calls.rows_of_calls import newest, rows_of_recorded
from tests.support.conformance_data import conformance

MOST_CALLS = 60
NANOSECOND = 1e-9
Figures = dict[tuple[str, ...], float]


def written(name: str) -> list[list[Row]]:
    """By call: everything that is written to `scores`."""
    return [
        rows_of_recorded(call) for call in islice(read_recordings(conformance(name)), MOST_CALLS)
    ]


def counted(rows: Sequence[Row], prefix: str) -> Figures:
    """The counters of this name, and of the histogram its count and sum."""
    figures: Figures = defaultdict(float)
    for row in rows:
        for sample in project(row, 0):
            if sample.metric.startswith(prefix) and isinstance(sample, Counted):
                figures[sample.metric, *sample.labels] += sample.by
            elif sample.metric.startswith(prefix) and isinstance(sample, Observed):
                figures[sample.metric, "sum"] += sample.value
    return {key: figure for key, figure in figures.items() if figure}


def final(call: CallRow, turns: Sequence[TurnRow]) -> Figures:
    """The same from the newest row of each turn."""
    figures: Figures = defaultdict(float)
    who = (call.labels.agent, call.labels.tenant, call.labels.environment)
    for row in turns:
        wait_ms = number(row.wait_ms)
        if row.turn < 1 or row.status == "withdrawn" or wait_ms is None or row.anchor is None:
            continue
        if wait_ms < 0:
            figures["callgauge_turns_final_total", *who, row.anchor, "overlapped"] += 1
        else:
            figures["callgauge_turns_final_total", *who, row.anchor, "measured"] += 1
            figures["callgauge_turns_final_latency_seconds_total", *who, row.anchor] += (
                wait_ms / 1000
            )
    return {key: figure for key, figure in figures.items() if figure}


@pytest.mark.parametrize(
    "name", ["calls.jsonl.gz", "cut_calls.jsonl.gz", "hostile_calls.jsonl.gz", "record_1.1.2"]
)
def test_final_turns_are_those_of_scores(name: str) -> None:
    turns_seen = 0
    for rows in written(name):
        call, turns, _ = newest(rows)
        true, found = final(call, turns), counted(rows, "callgauge_turns_final")
        assert found.keys() == true.keys()
        assert all(abs(found[key] - true[key]) < NANOSECOND for key in true)
        turns_seen += len(true)
        unmeasured = Counter(
            row.wait_ms.reason for row in turns if isinstance(row.wait_ms, Unscored)
        )
        del unmeasured[UnscoredReason.WITHDRAWN]  # of turns that never were
        assert call.unscored_turns.get("voice_to_voice_latency_ms", {}) == unmeasured
    assert turns_seen > 0
