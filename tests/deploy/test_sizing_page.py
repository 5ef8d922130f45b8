"""The page on sizing: its rows follow from its figures, which are those of the page on performance and of the chart."""

import math
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "deploy" / "sizing.md").read_text(encoding="utf-8")
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
VALUES = yaml.safe_load((ROOT / "deploy/helm/callgauge/values.yaml").read_text(encoding="utf-8"))


def _number(text: str) -> float:
    return float(re.findall(r"[\d,.]+", text)[0].replace(",", ""))


def _rows(first_header: str) -> list[list[str]]:
    table = PAGE[PAGE.index(f"| {first_header} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


FIGURES = {name: _number(figure) for name, figure in _rows("what")}


def _figure(beginning: str) -> float:
    (found,) = [figure for name, figure in FIGURES.items() if name.startswith(beginning)]
    return found


def test_the_rows_follow_from_the_figures() -> None:
    events_of_a_call, planned = _figure("events of a running call"), _figure("the same, planned")
    empty_mb, call_mb = _figure("memory of an evaluator"), _figure("memory of an open call") / 1_000
    (sent,) = [figure for name, figure in _rows("what") if name.startswith("events of a bot")]
    bytes_of_a_call = float(re.findall(r"(\d+) kB", sent)[0]) * 1_000 / 60
    for row in _rows("calls at a time"):
        calls, events, evaluators, memory_mb, kafka_mb = map(_number, row)
        assert events == calls * events_of_a_call
        assert evaluators == max(2, math.ceil(events / planned))
        taken_over = calls / (evaluators - 1)
        assert abs(memory_mb - empty_mb - call_mb * taken_over) <= 5 + memory_mb * 0.03
        assert abs(kafka_mb - calls * bytes_of_a_call / 1e6) < 0.06


def test_the_figures_are_those_of_the_other_page_and_of_the_chart() -> None:
    assert VALUES["autoscaling"]["eventsPerSecond"] == _figure("the same, planned")
    for stated in (
        "one core per 5,000 events/s",
        "1,950 events/s",
        "| 75 kB |",
        "245 events, 90 kB",
        "15,700 events/s",
        "190 to 226 MB",
    ):
        assert stated in PERFORMANCE, stated
    for row in _rows("calls at a time"):
        requested = VALUES["roles"]["evaluator"]["resources"]["requests"]["memory"]
        assert _number(row[3]) < _number(requested)
