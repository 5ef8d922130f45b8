"""The metric catalogue is a table others trust blindly: these are the rules a row cannot break."""

import ast
import re
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

import schemas
from docs.generate_pages import metric_tables
from schemas.closed_sets import ROLE_NAMES
from schemas.metrics import catalogue as metric_catalogue
from schemas.metrics.catalogue import METRICS, metric_named, metrics_of
from schemas.metrics.definition import OVERFLOW_VALUE, PREFIX, Label, Metric, Role

every_metric = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
ALL_LABELS = [label for metric in METRICS for label in metric.label_set]


@every_metric
def test_a_name_says_what_prometheus_expects_of_its_type(metric: Metric) -> None:
    assert re.fullmatch(PREFIX + r"[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.type == "counter")
    assert metric.name.removesuffix("_total").endswith("_seconds") == (
        metric.unit in {"seconds", "unix seconds"}
    )
    assert metric.name.endswith("_ratio") == (metric.unit == "ratio")
    # reserved for the suffixes of types
    assert not metric.name.endswith(("_bucket", "_count", "_sum", "_created"))


@every_metric
def test_help_is_a_full_sentence(metric: Metric) -> None:
    assert re.fullmatch(r"[A-Z][^\n|]{20,}\.", metric.help)


@every_metric
def test_only_histograms_have_edges_and_they_ascend(metric: Metric) -> None:
    assert bool(metric.edges) == (metric.type == "histogram")
    assert list(metric.edges) == sorted(set(metric.edges))
    assert len(metric.edges) <= 20  # the bucket of an observation is found by walking the edges
    lowest, highest = {"ratio": (0, 1), "number": (0, 10_000)}.get(metric.unit, (0.01, 3600))
    assert all(lowest <= edge <= highest for edge in metric.edges)


@every_metric
def test_labels_of_a_metric_are_distinct_and_never_ids(metric: Metric) -> None:
    assert len(set(metric.labels)) == len(metric.labels)
    assert not [name for name in metric.labels if name.endswith("id")]


@pytest.mark.parametrize("label", dict.fromkeys(ALL_LABELS), ids=lambda label: label.name)
def test_a_label_is_bounded_in_one_way(label: Label) -> None:
    assert not (label.values and label.cap)
    assert len(set(label.values)) == len(label.values)
    # otherwise a real value and the overflow would share a series
    assert OVERFLOW_VALUE not in label.values
    if not label.values and label.cap is None:
        # values that events cannot choose
        assert label.name in {"group", "topic", "partition", "version", "model"}


def test_every_word_of_the_closed_sets_is_used() -> None:
    assert " ".join(sorted({label.name for label in ALL_LABELS})) == (
        "agent anchor budget by cause checked_by environment goal_set group kind label limit "
        "measure model name outcome partition "
        "pipeline progress reason role route source speaker stage state step tenant tool topic "
        "type version"
    )
    assert ", ".join(sorted({metric.unit for metric in METRICS})) == (
        "bytes, calls, dead airs, deliveries, dollars, elements, events, fields, files, handoffs, "
        "hits, info, interruptions, "
        "messages, money, number, pages, partitions, polls, questions, ratio, records, requests, "
        "restarts, revisions, scores, seconds, "
        "stages, stalls, subgoals, tokens, tool calls, turns, unix seconds, values, verdicts, "
        "words, words per minute, "
        "writes"
    )
    assert {metric.role for metric in METRICS} == set(get_args(Role))


def test_caps_agree_and_are_those_agreed() -> None:
    caps = {
        "agent": 50,
        "tenant": 20,
        "environment": 10,
        "goal_set": 50,
        "tool": 50,
        "version": 50,
        "measure": 20,
        "label": 50,
    }
    assert {(label.name, label.cap) for label in ALL_LABELS if label.cap} == set(caps.items())
    assert set(metric_named("callgauge_label_overflow_total").label_set[0].values) == set(caps)


def test_names_and_series_are_unique() -> None:
    series = Counter(name for metric in METRICS for name in {*metric.series, metric.name})
    assert [name for name, times in series.items() if times > 1] == []


def test_lookup_by_name() -> None:
    latency = metric_named("callgauge_turn_response_latency_seconds")
    assert latency.labels == ("agent", "tenant", "environment", "source", "anchor")
    assert latency.series["callgauge_turn_response_latency_seconds_bucket"] == {
        *latency.labels,
        "le",
    }
    assert latency.series["callgauge_turn_response_latency_seconds_count"] == set(latency.labels)
    with pytest.raises(KeyError):
        metric_named("callgauge_turn_response_latency_seconds_bucket")


def test_le_values_are_written_as_the_client_library_writes_them() -> None:

    for metric in METRICS:
        if metric.type == "histogram":
            registry = CollectorRegistry()
            Histogram(metric.name, metric.help, buckets=metric.edges, registry=registry)
            shown = re.findall(r'le="([^"]+)"', generate_latest(registry).decode())
            assert tuple(shown) == metric.le_values


def test_the_limits_alerts_stand_on_are_edges() -> None:
    latency = metric_named("callgauge_turn_response_latency_seconds")
    assert {0.2, 0.3, 0.8, 0.815, 1.5, 2.0, 3.0, 3.5, 5.0} <= set(latency.edges)
    assert (latency.edges[0], latency.edges[-1]) == (0.1, 15.0)
    assert {0.25, 10.0} <= set(metric_named("callgauge_event_to_score_seconds").edges)


def test_nothing_and_all_are_buckets_of_their_own() -> None:
    for name in (
        "callgauge_call_progress_ratio",
        "callgauge_tool_correctness_ratio",
        "callgauge_text_rating_ratio",
    ):
        edges = metric_named(name).edges
        assert (edges[0], edges[-1]) == (0.0, 1.0)
    tenths = tuple(round(tenth / 10, 4) for tenth in range(11))  # as progress is rounded
    assert metric_named("callgauge_call_progress_ratio").edges == tenths


def test_least_children_counts_closed_labels_alone() -> None:
    assert metric_named("callgauge_interruptions_total").least_children == 2
    assert metric_named("callgauge_overlap_seconds_total").least_children == 1


def test_each_metric_is_on_one_role_or_on_all() -> None:
    of_every = set(metrics_of("every"))
    own = [set(metrics_of(role)) for role in ROLE_NAMES]
    assert all(of_every <= each for each in own)
    own = [each - of_every for each in own]
    assert of_every.union(*own) == set(METRICS)
    assert sum(map(len, own)) + len(of_every) == len(METRICS)
    assert "callgauge_turns_total" in {metric.name for metric in metrics_of("exporter")}
    assert "callgauge_events_total" in {metric.name for metric in metrics_of("evaluator")}
    assert "callgauge_judge_verdicts_total" in {metric.name for metric in metrics_of("judge")}


def test_markdown_has_a_row_for_every_metric_and_label() -> None:
    text = metric_tables({METRICS[1].name: "overview: Calls; overview: Ends; `CallgaugeDown`"})
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert [row.split("`")[1] for row in rows if row.startswith(f"| `{PREFIX}")] == [
        metric.name for metric in METRICS
    ]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6, 4}  # no cell breaks its row
    assert [
        METRICS[1].name in row for row in rows if row.endswith("| overview, `CallgaugeDown` |")
    ] == [True]
    assert "| the first 50, then `other` |" in text
    assert "| `by` | who spoke over the other | `user`, `assistant` |" in text
    assert text.endswith("|\n")


def test_the_catalogue_is_plain_data() -> None:
    """Also in the modules of its rows."""
    root = Path(schemas.__file__).parents[1]
    waiting, read, foreign = [metric_catalogue.__name__], set(), set()
    while waiting:
        module = waiting.pop()
        read.add(module)
        for node in ast.walk(
            ast.parse(
                root.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
            )
        ):
            if (
                isinstance(node, ast.ImportFrom)
                and node.module is not None
                and node.module.startswith("schemas.")
            ):
                waiting.append(node.module)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                foreign.add(
                    (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
                )
    assert len(read) > 1
    assert foreign == {"math", "collections.abc", "dataclasses", "enum", "types", "typing"}
