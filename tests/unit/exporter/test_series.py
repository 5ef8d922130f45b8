"""The golden file of what is counted: every counter and histogram after the sample and after 200
simulated calls with goals.

A change that is not meant to change what Prometheus sees leaves `series.txt` as it is. One that is
meant to runs `python -m tests.unit.exporter.test_series`, which writes it anew, and names the
difference in its commit.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Final

import pytest

from consumers.exporter.projection import Observed, Sample, project
from schemas.metrics.catalogue import metric_named
from schemas.rows import CallRow, Row
from tests.golden.calls import Call, calls_of
from tests.support.calls.rows_of_calls import rows_in_steps
from tests.unit.exporter.simulated import chosen_goals

GOLDEN: Final = Path(__file__).with_name("series.txt")
SOURCES: Final = ("sample", "simulated")
NUMBER_OF_ROWS: Final = frozenset(
    {"callgauge_scores_read_total", "callgauge_event_to_score_seconds"}
)
"""In how many rows something is said is no part of what Prometheus is to see of calls."""


def samples_of(rows: Iterable[Row]) -> Iterator[Sample]:
    """What the rows of one call add, each read at the moment that decided it."""
    is_over = False
    for row in rows:
        yield from project(row, getattr(row, "known_ms", 0), is_over=is_over)
        if isinstance(row, CallRow):
            is_over = row.state == "over"


def lines_of(samples: Iterable[Sample]) -> list[str]:
    """A line for each combination of labels: a counter's value; of a histogram the sum and the
    counts up to each edge.
    """
    values: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for sample in samples:
        if sample.metric in NUMBER_OF_ROWS:
            continue
        amount = sample.value if isinstance(sample, Observed) else sample.by
        values[sample.metric, *map(str, sample.labels)].append(amount)
    return [_line(*key, amounts=amounts) for key, amounts in sorted(values.items())]


def _line(name: str, *labels: str, amounts: list[float]) -> str:
    metric = metric_named(name)
    of = ",".join(f"{label}={value}" for label, value in zip(metric.labels, labels, strict=True))
    parts = [f"{sum(amounts):.6g}"]
    if metric.type == "histogram":
        counts = [0] * (len(metric.edges) + 1)
        for amount in amounts:
            counts[bisect_left(metric.edges, amount)] += 1
        parts += map(str, accumulate(counts))
    return f"{name} {of} {' '.join(parts)}"


def rows_of(call: Call) -> Iterator[Row]:
    return rows_in_steps(call[1], chosen_goals())


def _golden(source: str) -> list[str]:
    samples = (sample for call in calls_of(source) for sample in samples_of(rows_of(call)))
    return [f"{source} {line}" for line in lines_of(samples)]


@pytest.mark.parametrize("source", SOURCES)
def test_every_counter_and_histogram_is_as_before(source: str) -> None:
    golden = [line for line in GOLDEN.read_text().splitlines() if line.startswith(f"{source} ")]
    lines = _golden(source)
    changed = sorted({*lines} ^ {*golden})
    assert lines == golden, (
        f"{len(changed)} lines of {source} differ, such as {changed[:2]}: see the top of this file"
    )


if __name__ == "__main__":
    GOLDEN.write_text("".join(f"{line}\n" for source in SOURCES for line in _golden(source)))
