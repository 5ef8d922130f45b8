"""The instruments: built from the catalogue, bounded in their labels, and read when asked."""

import re
from functools import partial
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics

from consumers.runtime.registry import Instruments
from consumers.runtime.settings import MAX_SERIES
from schemas.metrics.catalogue import METRICS, metrics_of
from schemas.metrics.exporter import LATENCY_EDGES_SECONDS

LABEL_CAPS = {
    label.name: label.cap
    for metric in METRICS
    for label in metric.label_set
    if label.cap is not None
}

STARTED = "callgauge_calls_started_total"
TOOLS = "callgauge_tool_calls_total"
OVERFLOW = "callgauge_label_overflow_total"
FOLDED = "callgauge_series_folded_total"
STAGES = "callgauge_stage_latency_seconds"
LATENCIES = "callgauge_turn_response_latency_seconds"

ENCODERS = (generate_latest, openmetrics)


@pytest.fixture
def instruments() -> Instruments:
    return Instruments(
        CollectorRegistry(),
        [
            "exporter",
            "sequencer",
            "evaluator",
            "judge",
            "history",
            "measures",
            "console",
            "ingest",
            "monitor",
        ],
    )


def value(instruments: Instruments, name: str, **labels: str) -> float | None:
    return instruments.registry.get_sample_value(name, labels)


def page(instruments: Instruments, *, is_openmetrics: bool = False) -> str:
    return instruments.page(ENCODERS[is_openmetrics], is_openmetrics=is_openmetrics).decode()


def series(instruments: Instruments, name: str) -> list[str]:
    text = page(instruments)
    return [line for line in text.splitlines() if re.match(rf"{name}[{{ ]", line)]


def test_every_metric_of_the_roles_is_there_with_its_help_and_nothing_else(
    instruments: Instruments,
) -> None:
    text = page(instruments)
    shown = re.findall(r"^# HELP (\S+) (.*)$", text, re.M)
    assert sorted(shown) == sorted((metric.name, metric.help) for metric in METRICS)
    assert "_created" not in text


def test_a_role_has_its_own_metrics_only() -> None:
    instruments = Instruments(CollectorRegistry(), ["evaluator"])
    shown = set(re.findall(r"^# TYPE (\S+)", page(instruments), re.M))
    assert shown == {metric.name for metric in metrics_of("evaluator")}
    with pytest.raises(KeyError):
        instruments.inc(STARTED, ("a", "b", "c"))


def test_closed_sets_are_there_from_the_start_at_zero(instruments: Instruments) -> None:
    assert (
        value(instruments, "callgauge_quarantined_total", source="audit", reason="undecodable") == 0
    )
    assert value(instruments, "callgauge_events_total", source="judge", outcome="late") == 0
    assert value(instruments, "callgauge_scores_refused_total") == 0
    assert value(instruments, "callgauge_event_to_score_seconds_count", pipeline="s2s") == 0


def test_a_new_agent_has_its_counters_at_once(instruments: Instruments) -> None:
    instruments.inc(STARTED, ("ava", "acme", "live"))
    who = {"agent": "ava", "tenant": "acme", "environment": "live"}
    assert value(instruments, "callgauge_turns_total", **who) == 0
    assert value(instruments, "callgauge_talk_seconds_total", **who, speaker="user") == 0
    assert value(instruments, "callgauge_calls_ended_total", **who, outcome="idle") == 0
    assert value(instruments, "callgauge_overlap_seconds_total", **who | {"tenant": "bolt"}) is None
    assert series(instruments, TOOLS) == []


def test_all_outcomes_of_a_tool_appear_together(instruments: Instruments) -> None:
    instruments.inc(TOOLS, ("ava", "acme", "live", "book", "success"))
    names = {"agent": "ava", "tenant": "acme", "environment": "live", "tool": "book"}
    assert value(instruments, TOOLS, **names, outcome="error") == 0


def test_counting_by_nothing_makes_the_series_appear(instruments: Instruments) -> None:
    instruments.inc(STARTED, ("ava", "acme", "live"), 0)
    assert value(instruments, STARTED, agent="ava", tenant="acme", environment="live") == 0


def test_values_beyond_the_cap_share_one_name_and_are_counted(instruments: Instruments) -> None:
    cap = LABEL_CAPS["environment"]
    for number in range(cap + 2):
        instruments.inc(STARTED, ("ava", "acme", f"env-{number}"))
    instruments.inc(STARTED, ("ava", "acme", "env-0"))  # known ones keep their name
    assert value(instruments, STARTED, agent="ava", tenant="acme", environment="other") == 2
    assert value(instruments, STARTED, agent="ava", tenant="acme", environment="env-0") == 2
    assert value(instruments, OVERFLOW, label="environment") == 2
    assert value(instruments, OVERFLOW, label="agent") == 0


def test_a_value_that_is_called_other_takes_no_place(instruments: Instruments) -> None:
    instruments.inc(STARTED, ("other", "acme", "live"))
    for number in range(LABEL_CAPS["agent"]):
        instruments.inc(STARTED, (f"agent-{number}", "acme", "live"))
    assert value(instruments, OVERFLOW, label="agent") == 1


def test_a_name_known_in_one_metric_is_known_in_all(instruments: Instruments) -> None:
    for number in range(LABEL_CAPS["agent"]):
        instruments.inc(STARTED, (f"agent-{number}", "acme", "live"))
    instruments.inc("callgauge_overlap_seconds_total", ("agent-7", "acme", "live"))
    instruments.inc("callgauge_overlap_seconds_total", ("one-more", "acme", "live"))
    for agent in ("agent-7", "other"):
        who = {"agent": agent, "tenant": "acme", "environment": "live"}
        assert value(instruments, "callgauge_overlap_seconds_total", **who) == 1


def shown(instruments: Instruments) -> int:
    """Series on the page, as Prometheus counts them."""
    return sum(not line.startswith("#") for line in page(instruments).splitlines())


def test_beyond_the_budget_names_become_other_and_are_counted() -> None:
    instruments = Instruments(CollectorRegistry(), ["exporter"])
    roomy = instruments._budget.left
    instruments.observe(LATENCIES, ("ava", "acme", "live", "pipecat", "vad"), 0.2)
    needed = roomy - instruments._budget.left
    # just enough for her
    instruments = Instruments(CollectorRegistry(), ["exporter"], MAX_SERIES - roomy + needed + 3)
    for agent in ("ava", "bob", "cleo"):
        instruments.observe(LATENCIES, (agent, "acme", "live", "pipecat", "vad"), 0.2)
    turn = {"source": "pipecat", "anchor": "vad"}
    assert (
        value(
            instruments,
            f"{LATENCIES}_count",
            agent="ava",
            tenant="acme",
            environment="live",
            **turn,
        )
        == 1
    )
    assert (
        value(
            instruments,
            f"{LATENCIES}_count",
            agent="other",
            tenant="other",
            environment="other",
            **turn,
        )
        == 2
    )
    assert value(instruments, FOLDED) == 2
    # each name has its place; the series have none
    assert value(instruments, OVERFLOW, label="agent") == 0


def test_when_half_of_the_page_is_full_tenants_give_way_where_nobody_is_woken() -> None:
    instruments = Instruments(CollectorRegistry(), ["exporter"], 20_000)
    stage, turn = ("pipecat", "tool_run"), ("pipecat", "vad")
    for number in range(LABEL_CAPS["agent"]):
        instruments.observe(STAGES, (f"agent-{number}", "acme", "live", *stage), 0.2)
        instruments.observe(LATENCIES, (f"agent-{number}", "acme", "live", *turn), 0.2)
    begun = {"source": "pipecat", "stage": "tool_run"}
    named = [
        tenant
        for number in range(LABEL_CAPS["agent"])
        for tenant in ("acme", "other")
        if value(
            instruments,
            f"{STAGES}_count",
            agent=f"agent-{number}",
            tenant=tenant,
            environment="live",
            **begun,
        )
    ]
    assert named == sorted(named)
    assert len(named) == LABEL_CAPS["agent"]
    assert {*named} == {"acme", "other"}
    latencies = [
        line for line in series(instruments, f"{LATENCIES}_count") if 'tenant="acme"' in line
    ]
    assert len(latencies) == LABEL_CAPS["agent"]
    assert value(instruments, FOLDED) == named.count("other")


def test_hostile_names_never_exceed_the_budget(instruments: Instruments) -> None:
    """Every combination of closed labels, for more names than any label may have."""
    exporter = Instruments(CollectorRegistry(), ["exporter"])
    readings: dict[tuple[str, ...], float] = {}
    for number in range(120):
        for metric in metrics_of("exporter"):
            choices = [
                label.values or (f"{label.name}-{number * 7919 % 120}",)
                for label in metric.label_set
            ]
            for values in product(*choices):
                if metric.type == "counter":
                    exporter.inc(metric.name, values)
                elif metric.type == "histogram":
                    exporter.observe(metric.name, values, 1.0)
                elif metric.name == "callgauge_calls_active":
                    readings[values] = 1.0
    exporter.read_gauge("callgauge_calls_active", lambda: readings)
    exporter.refresh()
    assert 0.9 * MAX_SERIES < shown(exporter) <= MAX_SERIES
    assert (value(exporter, FOLDED) or 0) > 0
    assert sum(
        each for key, each in exporter._gauges.readings["callgauge_calls_active"].items()
    ) == len(readings)


def test_what_all_roles_set_aside_leaves_room_for_names(instruments: Instruments) -> None:
    assert instruments._budget.left > MAX_SERIES / 2


@pytest.mark.parametrize(
    "labels",
    [
        ("a", "t", "live", "book", "maybe"),
        ("a", "t", "live", "book"),
        ("a", "t", "live", "book", "error", "x"),
    ],
)
def test_a_value_outside_a_closed_set_is_an_error(
    instruments: Instruments, labels: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match=TOOLS):
        instruments.inc(TOOLS, labels)


def test_exemplars_are_shown_where_the_format_has_them(instruments: Instruments) -> None:
    labels = ("ava", "acme", "live", "pipecat", "vad")
    instruments.observe(
        "callgauge_turn_response_latency_seconds", labels, 1.2, {"conversation_id": "c-1"}
    )
    instruments.inc(
        "callgauge_dead_air_total", ("ava", "acme", "live"), 1, {"conversation_id": "c-2"}
    )
    assert "c-1" not in page(instruments)
    text = page(instruments, is_openmetrics=True)
    assert re.search(
        r'le="1.2",source="pipecat",tenant="acme"} 1.0 # {conversation_id="c-1"} 1.2 ', text
    )
    assert re.search(
        r'callgauge_dead_air_total{agent="ava",environment="live",tenant="acme"} 1.0 # {conversation_id="c-2"} 1.0 ',
        text,
    )


NAMES = st.text(st.sampled_from('ab"\\\n\x00\u00e9{},= '), max_size=4)
READINGS = st.one_of(
    st.floats(0, 1e9),
    st.integers(0, 9),
    st.sampled_from((0.0, 0.1, 0.5, 1.5, 15.0, 999_999.5, 1e6, 1e-7)),
)


@pytest.mark.parametrize("is_openmetrics", [False, True])
@given(cases=st.lists(st.tuples(NAMES, READINGS, st.none() | NAMES), max_size=8))
def test_the_page_is_to_the_byte_what_the_client_library_writes(
    is_openmetrics: bool, cases: list[tuple[str, float, str | None]]
) -> None:
    instruments = Instruments(CollectorRegistry(), ["exporter"])
    for name, reading, case in cases:
        exemplar = None if case is None else {"conversation_id": case}
        instruments.inc(TOOLS, (name, "acme", "live", "book", "error"), reading, exemplar)
        instruments.inc("callgauge_scores_refused_total", (), reading)
        instruments.observe(
            STAGES, (name, "acme", "live", "pipecat", "tool_run"), reading, exemplar
        )
    instruments.read_gauge(
        "callgauge_calls_active", lambda: {(name, "b", "c"): by for name, by, _ in cases}
    )
    instruments.refresh()
    assert (
        page(instruments, is_openmetrics=is_openmetrics)
        == ENCODERS[is_openmetrics](instruments.registry).decode()
    )


def test_a_value_counts_up_to_the_edge_that_it_reaches(instruments: Instruments) -> None:
    for reading in (0.1, 0.11, 99.0):
        instruments.observe(STAGES, ("ava", "acme", "live", "pipecat", "tool_run"), reading)
    counts = re.findall(
        rf'{STAGES}_bucket.*le="(\S+?)".* (\S+)', "\n".join(series(instruments, f"{STAGES}_bucket"))
    )
    assert counts == [
        ("0.1", "1.0"),
        *((str(edge), "2.0") for edge in LATENCY_EDGES_SECONDS[1:]),
        ("+Inf", "3.0"),
    ]


def test_a_counter_never_becomes_smaller(instruments: Instruments) -> None:
    with pytest.raises(ValueError, match="cannot by -1"):
        instruments.inc(STARTED, ("ava", "acme", "live"), -1)
    assert value(instruments, STARTED, agent="ava", tenant="acme", environment="live") == 0


def test_what_else_is_registered_is_on_the_page(instruments: Instruments) -> None:
    ProcessCollector(registry=instruments.registry)
    text = page(instruments, is_openmetrics=True)
    assert text.count("# TYPE process_cpu_seconds counter") == 1
    assert text.count("# EOF") == 1
    assert text.endswith("# EOF\n")


def test_gauges_are_read_when_asked_and_forget_what_is_gone(instruments: Instruments) -> None:
    readings: dict[tuple[str, ...], float] = {("g", "t", "0"): 5, ("g", "t", "1"): 7}
    instruments.read_gauge("callgauge_consumer_lag_messages", lambda: readings)
    assert series(instruments, "callgauge_consumer_lag_messages") == []
    instruments.refresh()
    assert (
        value(instruments, "callgauge_consumer_lag_messages", group="g", topic="t", partition="1")
        == 7
    )
    del readings["g", "t", "1"]
    instruments.refresh()
    assert len(series(instruments, "callgauge_consumer_lag_messages")) == 1


def test_a_gauge_adds_up_what_has_no_name_of_its_own(instruments: Instruments) -> None:
    for number in range(LABEL_CAPS["agent"] - 1):
        instruments.inc(STARTED, (f"agent-{number}", "acme", "live"))
    readings: dict[tuple[str, ...], float] = {
        ("ava", "acme", "live"): 1,  # the last place, although no counter has seen it yet
        ("eve", "acme", "live"): 2,
        ("zoe", "acme", "live"): 3,
    }
    instruments.read_gauge("callgauge_calls_active", lambda: readings)
    instruments.refresh()
    assert (
        value(instruments, "callgauge_calls_active", agent="ava", tenant="acme", environment="live")
        == 1
    )
    assert (
        value(
            instruments, "callgauge_calls_active", agent="other", tenant="acme", environment="live"
        )
        == 5
    )
    assert value(instruments, OVERFLOW, label="agent") == 0  # looking counts nothing


def test_a_gauge_has_one_reader_and_must_exist(instruments: Instruments) -> None:
    instruments.read_gauge("callgauge_calls_open", dict)
    with pytest.raises(ValueError, match="callgauge_calls_open"):
        instruments.read_gauge("callgauge_calls_open", dict)
    with pytest.raises(KeyError):
        instruments.read_gauge(STARTED, dict)


def test_hooks_run_before_gauges_are_read(instruments: Instruments) -> None:
    order: list[str] = []
    instruments.before_scrape(lambda: order.append("hook"))
    instruments.read_gauge("callgauge_calls_open", lambda: {(): float(len(order))})
    instruments.refresh()
    assert value(instruments, "callgauge_calls_open") == 1


def test_two_sets_of_instruments_do_not_meet() -> None:
    first, second = (Instruments(CollectorRegistry(), ["exporter"]) for _ in range(2))
    first.inc("callgauge_scores_refused_total")
    assert value(second, "callgauge_scores_refused_total") == 0


def test_a_role_that_begins_anew_registers_in_place_of_what_it_had(
    instruments: Instruments,
) -> None:
    asked: list[str] = []
    instruments.before_scrape(partial(asked.append, "another's"))
    instruments.read_gauge("callgauge_calls_active", dict)
    for life in ("first", "second"):
        with instruments.registering("evaluator"):
            instruments.before_scrape(partial(asked.append, life))
            instruments.read_gauge("callgauge_calls_open", partial(dict, {(): float(len(life))}))
    instruments.refresh()
    assert asked == ["another's", "second"]
    assert instruments.registry.get_sample_value("callgauge_calls_open") == len("second")
    with pytest.raises(ValueError, match="reader already"):
        instruments.read_gauge("callgauge_calls_active", dict)
