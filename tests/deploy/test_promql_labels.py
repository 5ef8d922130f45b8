"""The label checker itself: it must find the mistakes it is there for, or it protects nothing."""

import pytest

from tests.deploy.promql_labels import labels_of

LATENCY = "callgauge_turn_response_latency_seconds"


@pytest.mark.parametrize(
    ("expression", "labels"),
    [
        ("callgauge_overlap_seconds_total", {"agent"}),
        (f"sum by (agent, le) (rate({LATENCY}_bucket[5m]))", {"agent", "le"}),
        (f"histogram_quantile(0.95, sum by (agent, le) (rate({LATENCY}_bucket[5m])))", {"agent"}),
        ("sum(callgauge_calls_active) > 3", set()),
        ("1 - callgauge_overlap_seconds_total", {"agent"}),
        ('absent(up{job="callgauge"} == 1)', set()),
        ("callgauge_overlap_seconds_total and on (agent) callgauge_calls_active", {"agent"}),
        ("callgauge_overlap_seconds_total / scalar(sum(callgauge_turns_total) > 0)", {"agent"}),
        ('callgauge_tool_calls_total{tool="anything",outcome!="success"}', {"agent", "environment", "tool", "outcome"}),
        (
            'callgauge_tool_calls_total{agent=~".+",outcome=~"error|unanswered"}',
            {"agent", "environment", "tool", "outcome"},
        ),
        ("-(agent:known)", {"agent"}),
    ],
)
def test_it_follows_the_labels(expression: str, labels: set[str]) -> None:
    assert labels_of(expression, {"agent:known": frozenset({"agent"})}) == labels


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("sum(", "parenthesis"),
        ("callgauge_dead_airs_total", "no metric exposes callgauge_dead_airs_total"),
        (LATENCY, f"no metric exposes {LATENCY}"),
        ("agent:unknown", "no metric exposes"),
        ("sum by (tenant) (callgauge_overlap_seconds_total)", "no label tenant"),
        ('callgauge_overlap_seconds_total{tenant="a"}', "no label tenant"),
        (f'{LATENCY}_bucket{{le="1.4"}}', 'never has le="1.4"'),
        ('callgauge_event_to_score_seconds_bucket{le="1"}', 'never has le="1"'),
        ('callgauge_tool_calls_total{outcome!="failed"}', 'never has outcome="failed"'),
        ('callgauge_tool_calls_total{outcome=~"error|failed"}', 'never has outcome="failed"'),
        ('callgauge_tool_calls_total{outcome!~"succes"}', 'never has outcome="succes"'),
        (f"histogram_quantile(0.5, sum by (agent) (rate({LATENCY}_bucket[5m])))", "no label le"),
        ("callgauge_overlap_seconds_total / callgauge_turns_total", "never match"),
        ("callgauge_overlap_seconds_total and on (tenant) callgauge_turns_total", "no label tenant"),
        ("sum without (tool) (callgauge_tool_calls_total)", "without"),
        ("round(callgauge_overlap_seconds_total)", "no rule for the function round"),
    ],
)
def test_it_finds_the_mistake(expression: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        labels_of(expression)
