"""The tables of pages are written from the figures of one run, and from nothing else."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from docs import figure_tables
from docs.figure_tables import ROWS, call_lines, evaluator_lines, goal_of, performance_lines, shown
from tests.benchmarks import __main__ as bench

BENCHMARKS = Path(bench.__file__).parent
SIZES = {
    "bytes_per_open_call_10_turns": 80_400.0,
    "observer_events_per_call_minute": 245.0,
    "observer_bytes_per_call_minute": 90_100.0,
    "evaluator_us_per_event_live": 180.0,
    "ingest_us_per_event": 64.0,
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """The figures of a run, for the pages as soon as they are changed with `keep`."""
    monkeypatch.setattr(figure_tables, "RUN", tmp_path / "performance.json")
    return {name: {"value": value, "unit": "us/event"} for name, value in SIZES.items()}


def keep(figures: dict[str, Any]) -> None:
    about = {"day": "2026-11-29", "processor": "2 x Some", "python": "Python 3", "callgauge": "0.1"}
    figure_tables.RUN.write_text(json.dumps(about | {"figures": figures}))


def test_a_row_has_the_figure_and_its_goal_or_why_there_is_none(run: dict[str, Any]) -> None:
    run["bare_us_per_event"] = {"value": 4.512, "unit": "us/event", "goal": 5}
    run["quix_exactly_once_us_per_event"] = {"value": None, "why": "no package index"}
    keep(run)
    lines = list(performance_lines())
    assert lines[0] == "Measured on 2026-11-29: 2 x Some; Python 3; callgauge 0.1."
    assert any(line.endswith("| 4.51 us | 5 us |") for line in lines)
    assert any(line.endswith("| not measured: no package index |  |") for line in lines)
    assert any(line.endswith("| not measured: not a part of this run |  |") for line in lines)


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (62.71, "us/event", "62.7 us"),
        (1_934.2, "us", "1,934 us"),
        (118_300, "bytes", "118 kB"),
        (1.0, "x", "1 times"),
        (0.084, "cores", "0.08 cores"),
        (0, "ms", "0 ms"),
    ],
)
def test_a_figure_has_three_digits_and_its_unit(value: float, unit: str, said: str) -> None:
    assert shown({"value": value, "unit": unit}) == said


def test_a_goal_says_which_way_is_better() -> None:
    assert goal_of({"value": 1.7, "unit": "x", "at_least": 1.8}) == "1.8 times or more"
    assert goal_of({"value": 1.7, "unit": "x"}) == ""


def test_sizes_follow_from_the_figures(run: dict[str, Any]) -> None:
    keep(run)
    told = "\n".join([*call_lines(), *evaluator_lines()])
    for line in (
        "| events of an evaluator with one core, at most | 5,500 events/s |",
        "| memory of an open call | 80 kB |",
        "| events of a bot in a minute of a call | 245 events, 90 kB |",
        "| `ingest`: `POST /events` with one core | 15,600 events/s |",
        "| 2,500 | 4,875 | 3 | 330 MB | 7.99 MB/s |",
        "| 10,000 | 19,500 | 11 | 310 MB | 32 MB/s |",
    ):
        assert line in told


def test_a_size_that_was_not_measured_is_named(run: dict[str, Any]) -> None:
    run["ingest_us_per_event"] = {"value": None, "why": "any"}
    keep(run)
    with pytest.raises(ValueError, match=r"has no ingest_us_per_event, .*make bench ARGS=--table"):
        list(call_lines())


def test_each_row_is_a_figure_that_some_benchmark_gives() -> None:
    """A name that none gives would be found at the end of half an hour."""
    texts = "".join(file.read_text() for file in BENCHMARKS.glob("*.py"))
    given = {re.sub(r"\{\w+\}", r"\\w+", name) for name in re.findall(r'"([\w{}]+)"', texts)}
    pattern = re.compile("|".join(given - {r"\w+"}))
    names = [name for rows in ROWS.values() for name in rows]
    assert [name for name in names if not pattern.fullmatch(name)] == []
    assert not pattern.fullmatch("no_such_figure_us")
