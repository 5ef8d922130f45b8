"""A chart of a dashboard, and the panel that Grafana makes of it."""

import re
from dataclasses import dataclass, field
from typing import Final, Literal

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    table,
    timeseries,
)
from grafana_foundation_sdk.models.common import DataSourceRef, StackingMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataTransformerConfig,
    DynamicConfigValue,
    GridPos,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

GRID_WIDTH: Final = 24
PANEL_HEIGHT: Final = 8
SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
LATENCY: Final = "callgauge_turn_response_latency_seconds_bucket{WHOSE}[$__rate_interval]"
"""The histogram whose exemplars name calls."""
VARIABLES: Final = ("agent", "tenant", "environment")
"""Labels by which a dashboard of calls is filtered; `WHOSE` in an expression is the selector of
what is chosen.
"""
BEFORE: Final = ", before"
"""End of the legend of a line that shows the same period before: it is drawn thin and dashed."""

_WHOSE: Final = ",".join(f'{name}=~"${name}"' for name in VARIABLES)
_BEFORE_STYLE: Final = [
    DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [4, 6]}),
    DynamicConfigValue("custom.lineWidth", 1),
    DynamicConfigValue("custom.showPoints", "never"),
]

PanelBuilder = timeseries.Panel | stat.Panel | heatmap.Panel | table.Panel


@dataclass(frozen=True, slots=True)
class Chart:
    """One panel.

    Attributes:
        queries: For each legend the expression.
        width: Columns of the 24.
        links: For each title of a link its address; in a table `${__data.fields.NAME}` is the value
            of a label in that row.
    """

    title: str
    description: str
    unit: str
    width: int
    queries: dict[str, str]
    kind: Literal["lines", "areas", "number", "heatmap", "table"] = "lines"
    links: dict[str, str] = field(default_factory=dict)


Row = tuple[str, tuple[Chart, ...]]


def quantile(share: float, series_and_window: str) -> str:
    """Returns the expression of a quantile over all series of a histogram."""
    return f"histogram_quantile({share}, sum by (le) (rate({series_and_window})))"


def per_minute(series: str, by: str = "") -> str:
    """Returns the expression of a counter's increase per minute."""
    grouping = f" by ({by})" if by else ""
    return f"60 * sum{grouping} (rate({series}[$__rate_interval]))"


def panel_of(chart: Chart, panel_id: int, x: int, y: int, least_step: str) -> PanelBuilder:
    """Returns the panel of a chart at a place of the grid.

    Args:
        chart: Its queries and texts.
        panel_id: Its number on the dashboard.
        x: Its first column.
        y: Its first line.
        least_step: Shortest time between two points, such as `10m`, and so of what each covers;
            empty for that of the data source.
    """
    panel = (
        _start_panel(chart)
        .id(panel_id)
        .title(chart.title)
        .description(chart.description)
        .unit(chart.unit)
        .datasource(SOURCE)
        .grid_pos(GridPos(h=PANEL_HEIGHT, w=chart.width, x=x, y=y))
        .data_links([_link(title, address) for title, address in chart.links.items()])
    )
    if least_step:
        panel.interval(least_step)
    if any(legend.endswith(BEFORE) for legend in chart.queries):
        panel.override_by_regexp(f"/{BEFORE}$/", _BEFORE_STYLE)
    for index, (legend, expression) in enumerate(chart.queries.items()):
        chosen = re.sub(r"\bWHOSE\b", _WHOSE, expression)
        query = (
            prometheus.Dataquery()
            .ref_id("ABCDEF"[index])
            .expr(chosen)
            .legend_format(legend)
            .datasource(SOURCE)
        )
        if LATENCY in expression:
            query.exemplar(exemplar=True)
        if chart.kind == "heatmap":
            query.format(PromQueryFormat.HEATMAP)
        if chart.kind == "table":
            query.format(PromQueryFormat.TABLE).instant()
        panel.with_target(query)
    return panel


def _link(title: str, address: str) -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink(title)
        .type(DashboardLinkType.LINK)
        .url(address)
        .target_blank(target_blank=True)
    )


def _start_panel(chart: Chart) -> PanelBuilder:
    match chart.kind:
        case "number":
            return stat.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        case "heatmap":
            return (
                heatmap.Panel()
                .y_axis(heatmap.YAxisConfig().unit(chart.unit))
                .exemplars_color("orange")
            )
        case "areas":
            return (
                timeseries.Panel()
                .fill_opacity(40)
                .stacking(common.StackingConfig().mode(StackingMode.NORMAL))
            )
        case "lines":
            return timeseries.Panel().fill_opacity(0)
        case "table":
            hidden = {"Time": True, "Value": True, "alertstate": True, "__name__": True}
            columns = DataTransformerConfig(id_val="organize", options={"excludeByName": hidden})
            return table.Panel().with_transformation(columns)
