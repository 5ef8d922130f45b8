"""Writes dashboards/overview.json, the dashboard Grafana shows first. Run this file after a change; a test compares.

The JSON is committed, so nothing of this is needed to run callgauge. Units, descriptions and positions are written once
here instead of by hand in a file of a thousand lines.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import DataSourceRef, StackingMode
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, GridPos, VariableOption, VariableRefresh
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from schemas.scores.latency_stages import CONTRIBUTIONS, Stage

OUTPUT = Path(__file__).parent / "dashboards" / "overview.json"
GRID_WIDTH = 24
PANEL_HEIGHT = 8

_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_LATENCY = 'callgauge_turn_response_latency_seconds_bucket{agent=~"$agent"}[$__rate_interval]'
_STAGES = "callgauge_stage_latency_seconds"
_SERVICE_STAGES = "endpointing|stt_trailing|llm_first_token|tool_request|tool_run|tts_first_byte"
_CONTRIBUTIONS = "|".join(stage for stage in CONTRIBUTIONS.values() if stage is not Stage.FIRST_REQUEST)
"""A wait for the greeting begins with the first request, not with the user's last sound."""
_VERDICTS = "callgauge_judge_verdict_seconds_bucket[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Chart:
    """One panel: `queries` maps what the legend says to the expression, `width` counts columns of the 24."""

    title: str
    description: str
    unit: str
    width: int
    queries: dict[str, str]
    kind: Literal["lines", "areas", "number", "heatmap"] = "lines"


def _quantile(quantile: float, series_and_window: str) -> str:
    return f"histogram_quantile({quantile}, sum by (le) (rate({series_and_window})))"


def _per_minute(series: str, by: str = "") -> str:
    grouping = f" by ({by})" if by else ""
    return f"60 * sum{grouping} (rate({series}[$__rate_interval]))"


def _share_of_turns(series: str, by: str = "") -> str:
    counted = f"sum{f' by ({by})' if by else ''} (rate({series}[$__rate_interval]))"
    return f'{counted} / scalar(sum(rate(callgauge_turns_total{{agent=~"$agent"}}[$__rate_interval])) > 0)'


ROWS: tuple[tuple[str, tuple[Chart, ...]], ...] = (
    (
        "Calls",
        (
            Chart(
                "Calls active",
                "Calls running now: begun and not closed yet.",
                "short",
                6,
                {"active": 'sum(callgauge_calls_active{agent=~"$agent"})'},
                "number",
            ),
            Chart(
                "Calls started and ended",
                "Calls per minute. The lines follow each other; a gap that stays means that calls do not close.",
                "cpm",
                9,
                {
                    "started": _per_minute('callgauge_calls_started_total{agent=~"$agent"}'),
                    "ended": _per_minute('callgauge_calls_ended_total{agent=~"$agent"}'),
                },
            ),
            Chart(
                "Why calls ended",
                "Closed calls per minute by reason. `ended` and `session_ended` are regular; `idle` means that no end "
                "was ever sent.",
                "cpm",
                9,
                {"{{outcome}}": _per_minute('callgauge_calls_ended_total{agent=~"$agent"}', "outcome")},
                "areas",
            ),
        ),
    ),
    (
        "Voice to voice",
        (
            Chart(
                "Voice-to-voice latency",
                "From the end of the user's audio to the start of the assistant's. The objective is 95 % of turns "
                "within 1.5 s. A point names one turn's conversation. The first value of each turn counts, as the caller felt it; "
                "`callgauge_turns_final_total` has the values at the close.",
                "s",
                12,
                {f"p{quantile * 100:.0f}": _quantile(quantile, _LATENCY) for quantile in (0.5, 0.95, 0.99)},
            ),
            Chart(
                "Voice-to-voice latency, all turns",
                "How many turns took how long. Two bands mean two kinds of turns, often those with and without a tool.",
                "s",
                12,
                {"{{le}}": f"sum by (le) (increase({_LATENCY}))"},
                "heatmap",
            ),
        ),
    ),
    (
        "Where the time goes",
        (
            Chart(
                "Stages of an answer, median",
                "How long each stage takes in half of the turns, as whoever measured it says. Stages overlap, and not every "
                "source measures all of them.",
                "s",
                9,
                {
                    "{{stage}}": "histogram_quantile(0.5, sum by (le, stage) (rate("
                    f'{_STAGES}_bucket{{agent=~"$agent",stage=~"{_SERVICE_STAGES}"}}[$__rate_interval])))'
                },
            ),
            Chart(
                "What a wait is made of, mean",
                "Of the turns for which pipecat reports a latency breakdown: its contributions, which add up to the wait from the "
                "user's last sound to the bot's first.",
                "s",
                9,
                {
                    "{{stage}}": "sum by (stage) (rate("
                    f'{_STAGES}_sum{{agent=~"$agent",stage=~"{_CONTRIBUTIONS}"}}[$__rate_interval])) / scalar(sum(rate('
                    f'{_STAGES}_count{{agent=~"$agent",stage="endpointing_wait"}}[$__rate_interval])) > 0)'
                },
                "areas",
            ),
            Chart(
                "Sources that disagree",
                "Stages of turns, per minute, for which two sources gave numbers further apart than measuring twice explains: a "
                "clock is skewed, or one measures something else.",
                "cpm",
                6,
                {"{{stage}}": _per_minute('callgauge_stage_disagreements_total{agent=~"$agent"}', "stage")},
            ),
        ),
    ),
    (
        "Conversation",
        (
            Chart(
                "Turns",
                "Turns begun per minute, without the greeting.",
                "cpm",
                6,
                {"turns": _per_minute('callgauge_turns_total{agent=~"$agent"}')},
            ),
            Chart(
                "Interruptions",
                "Interruptions per turn, by who spoke over the other.",
                "percentunit",
                6,
                {"by {{by}}": _share_of_turns('callgauge_interruptions_total{agent=~"$agent"}', "by")},
            ),
            Chart(
                "Dead air",
                "Share of turns in which the user had spoken and nobody answered for longer than the threshold.",
                "percentunit",
                6,
                {"dead air": _share_of_turns('callgauge_dead_air_total{agent=~"$agent"}')},
            ),
            Chart(
                "Turns without a latency",
                "Share of turns that the latency does not count: unmeasured, by what was missing, and overlapped, "
                "where the assistant spoke first.",
                "percentunit",
                6,
                {
                    "{{reason}}": _share_of_turns('callgauge_turns_unmeasured_total{agent=~"$agent"}', "reason"),
                    "overlapped": _share_of_turns('callgauge_turns_overlapped_total{agent=~"$agent"}'),
                },
            ),
        ),
    ),
    (
        "Tools",
        (
            Chart(
                "Tool calls",
                "Tool calls per minute by how they ended.",
                "cpm",
                12,
                {"{{outcome}}": _per_minute('callgauge_tool_calls_total{agent=~"$agent"}', "outcome")},
                "areas",
            ),
            Chart(
                "Tool errors",
                "Share of each tool's calls that failed or were never answered.",
                "percentunit",
                12,
                {
                    "{{tool}}": "sum by (tool) (rate(callgauge_tool_calls_total"
                    '{agent=~"$agent",outcome=~"error|unanswered"}[$__rate_interval])) / (sum by (tool) '
                    '(rate(callgauge_tool_calls_total{agent=~"$agent"}[$__rate_interval])) > 0)'
                },
            ),
        ),
    ),
    (
        "Progress",
        (
            Chart(
                "Progress of running calls",
                "Mean share of their subgoals that running calls have reached, as far as it is known. A line that falls "
                "may only mean that new calls have begun.",
                "percentunit",
                6,
                {
                    "{{agent}}": 'sum by (agent) (callgauge_progress_active{agent=~"$agent"}) / (sum by (agent) '
                    '(callgauge_calls_with_goals_active{agent=~"$agent",progress="known"}) > 0)'
                },
            ),
            Chart(
                "Subgoals",
                "Subgoals reached per minute by what checked them, beside those of the calls that began.",
                "cpm",
                6,
                {
                    "reached, {{checked_by}}": _per_minute(
                        'callgauge_subgoals_reached_total{agent=~"$agent"}', "checked_by"
                    ),
                    "of new calls": _per_minute('callgauge_subgoals_total{agent=~"$agent"}'),
                },
            ),
            Chart(
                "Stalls",
                "Calls per minute that went on for too many turns, or for too long, without reaching a further subgoal.",
                "cpm",
                6,
                {"by {{by}}": _per_minute('callgauge_progress_stalls_total{agent=~"$agent"}', "by")},
                "areas",
            ),
            Chart(
                "Success",
                "Share of the calls with goals that closed with every subgoal reached, of those where that is known.",
                "percentunit",
                6,
                {
                    "{{agent}}": "sum by (agent) (rate(callgauge_calls_scored_total"
                    '{agent=~"$agent",outcome="success"}[$__rate_interval])) / (sum by (agent) '
                    '(rate(callgauge_calls_scored_total{agent=~"$agent"}[$__rate_interval])) > 0)'
                },
            ),
        ),
    ),
    (
        "Judge (all agents)",
        (
            Chart(
                "Judge spending",
                "Money per hour at the present rate, in the currency of the configured prices, by model; and what is left "
                "of the budget of this hour of the clock.",
                "short",
                6,
                {
                    "{{model}}": "3600 * sum by (model) (rate(callgauge_judge_cost_total[$__rate_interval]))",
                    "left of the hour": 'sum(callgauge_judge_budget_left{budget="hour"})',
                },
            ),
            Chart(
                "Judge latency",
                "From a question's arrival at the judge to its verdict, waiting included, and the requests to the model "
                "alone.",
                "s",
                6,
                {
                    **{f"verdict p{quantile * 100:.0f}": _quantile(quantile, _VERDICTS) for quantile in (0.5, 0.95)},
                    "request p95": _quantile(0.95, "callgauge_judge_request_seconds_bucket[$__rate_interval]"),
                },
            ),
            Chart(
                "Judge verdicts",
                "Answers per minute, by the verdict or by why there is none.",
                "cpm",
                6,
                {"{{outcome}}": _per_minute("callgauge_judge_verdicts_total", "outcome")},
                "areas",
            ),
            Chart(
                "Waiting for the judge",
                "Age of the question that has waited longest. Above the deadline of a verdict, a minute unless set "
                "otherwise, questions are given up.",
                "s",
                6,
                {"longest": "max(callgauge_judge_waiting_seconds)"},
            ),
        ),
    ),
    (
        "Pipeline (all agents)",
        (
            Chart(
                "Events",
                "Events per minute by what became of them. `late` costs work, `quarantined` is lost to the scores.",
                "cpm",
                6,
                {"{{outcome}}": _per_minute("callgauge_events_total", "outcome")},
                "areas",
            ),
            Chart(
                "Evaluator behind",
                "Age of the oldest event not yet processed. Above a minute every number here is old.",
                "s",
                6,
                {"{{topic}}": "max by (topic) (callgauge_consumer_lag_seconds)"},
            ),
            Chart(
                "Event to score, p99",
                "From the broker's timestamp of an event to the metric that it changed.",
                "s",
                6,
                {"p99": _quantile(0.99, "callgauge_event_to_score_seconds_bucket[$__rate_interval]")},
            ),
            Chart(
                "Quarantined",
                "Records per minute that can never be processed, by source and reason.",
                "cpm",
                6,
                {"{{source}}: {{reason}}": _per_minute("callgauge_quarantined_total", "source, reason")},
                "areas",
            ),
        ),
    ),
)

PanelBuilder = timeseries.Panel | stat.Panel | heatmap.Panel


def _start_panel(chart: Chart) -> PanelBuilder:
    match chart.kind:
        case "number":
            return stat.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        case "heatmap":
            return heatmap.Panel().y_axis(heatmap.YAxisConfig().unit(chart.unit)).exemplars_color("orange")
        case "areas":
            return timeseries.Panel().fill_opacity(40).stacking(common.StackingConfig().mode(StackingMode.NORMAL))
        case "lines":
            return timeseries.Panel().fill_opacity(0)


def _panel(chart: Chart, panel_id: int, x: int, y: int) -> PanelBuilder:
    panel = (
        _start_panel(chart)
        .id(panel_id)
        .title(chart.title)
        .description(chart.description)
        .unit(chart.unit)
        .datasource(_SOURCE)
        .grid_pos(GridPos(h=PANEL_HEIGHT, w=chart.width, x=x, y=y))
    )
    for index, (legend, expression) in enumerate(chart.queries.items()):
        query = (
            prometheus.Dataquery().ref_id("ABCDEF"[index]).expr(expression).legend_format(legend).datasource(_SOURCE)
        )
        if _LATENCY in expression:
            query.exemplar(exemplar=True)
        if chart.kind == "heatmap":
            query.format(PromQueryFormat.HEATMAP)
        panel.with_target(query)
    return panel


def render_overview() -> str:
    """The dashboard as the JSON text of the committed file."""
    board = (
        dashboard.Dashboard("callgauge overview")
        .uid("callgauge-overview")
        .description(
            "Voice-agent calls while they run: how long callers wait, how far they get, and whether these numbers are "
            "fresh."
        )
        .tags(["callgauge"])
        .time("now-30m", "now")
        .refresh("10s")
        .timezone("browser")
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("agent")
            .label("Agent")
            .datasource(_SOURCE)
            .query("label_values(callgauge_calls_started_total, agent)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(multi=True)
            .include_all(include_all=True)
            .current(VariableOption(text="All", value="$__all"))
            .all_value(".+")
        )
    )
    panel_id, y = 0, 0
    for title, charts in ROWS:
        panel_id += 1
        board.with_row(dashboard.Row(title).id(panel_id).grid_pos(GridPos(h=1, w=GRID_WIDTH, x=0, y=y)))
        x = 0
        for chart in charts:
            panel_id += 1
            board.with_panel(_panel(chart, panel_id, x, y + 1))
            x += chart.width
        y += 1 + PANEL_HEIGHT
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(render_overview(), encoding="utf-8")
