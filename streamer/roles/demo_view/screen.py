"""Running calls as a table on a terminal, or as plain lines. Pure: values in, text out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from schemas.closed_sets import Anchor
from schemas.scores.live_view import CallView, GoalsReached, MeasuredLatency
from schemas.units import MS_PER_SECOND, to_seconds
from streamer.roles.demo_view.news import ID_CHARS, SLOW_MS, VERY_SLOW_MS, NewsLine, short_id

MOST_NEWS_LINES: Final = 10
"""Lines of news below the table, where there is room for them."""
_NEWS_FROM_ROWS, _LEGEND_FROM_ROWS = 16, 24
"""Height of a terminal from which there are lines of news, and a legend."""
_FEWEST_NEWS_LINES: Final = 4
LEGEND: Final = (
    f"latency: from the caller's last sound to the answer; green up to {SLOW_MS / MS_PER_SECOND} s, red over "
    f"{VERY_SLOW_MS / MS_PER_SECOND} s",
    "cut in: who began to speak before the other had finished; goals reached: checked by code as the call goes on",
)
_AGENT_CHARS: Final = 11
_AGENT_CHARS_WIDE: Final = 20
_WIDE_COLUMNS: Final = 110
_SECONDS_PER_MINUTE: Final = 60


@dataclass(frozen=True, slots=True)
class Headline:
    """The line above the table.

    Attributes:
        metrics_url: Address of `/metrics`.
        calls_running: Calls seen to start that have not closed.
        calls_ended: Calls that closed.
        events_per_second: Events put on the topics, over the last seconds.
    """

    metrics_url: str
    calls_running: int
    calls_ended: int
    events_per_second: float

    def text(self) -> str:
        """The headline as one line of text."""
        return (
            f"{self.calls_running} calls running, {self.calls_ended} over, {self.events_per_second:.0f} events/s, "
            f"metrics: {self.metrics_url}"
        )


def screen(
    headline: str,
    rows: Sequence[CallView],
    now_ms: int,
    *,
    width: int,
    height: int,
    totals: str = "",
    news: Sequence[NewsLine] = (),
) -> RenderableType:
    """The headline, the totals, the table of calls, and below it news and a legend, as far as `height` lines have room.

    Args:
        headline: The first line.
        rows: All calls; the newest are shown when not all fit.
        now_ms: Epoch milliseconds, for the ages of calls.
        width: Columns of the terminal.
        height: Lines of the terminal.
        totals: The line below the headline; none if empty.
        news: Lines of note, the newest last.
    """
    is_wide = width >= _WIDE_COLUMNS
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("call", width=ID_CHARS, no_wrap=True)
    table.add_column("agent", width=_AGENT_CHARS_WIDE if is_wide else _AGENT_CHARS, no_wrap=True, overflow="ellipsis")
    for column, chars in (("time", 5), ("turn", 4), ("goals\nreached", 7), ("latency", 7)):
        table.add_column(column, justify="right", width=chars, no_wrap=True)
    if is_wide:
        table.add_column("anchor", width=max(map(len, Anchor)), no_wrap=True)
    for column in ("cut in\nuser", "cut in\nassistant", "dead\nair", *(("tool\ncalls",) if is_wide else ())):
        table.add_column(column, justify="right", width=max(map(len, column.splitlines())), no_wrap=True)
    table.add_column("status")  # the only column without a width: it gives way on a narrow terminal
    # Headline, space, two lines of column names, the line of left-out calls, the cursor's line.
    free = height - 6 - bool(totals)
    legend = LEGEND if totals and height >= _LEGEND_FROM_ROWS else ()
    free -= len(legend) + bool(legend)
    has_news = bool(news) and height >= _NEWS_FROM_ROWS
    fitting = max(1, free - (_FEWEST_NEWS_LINES + 1 if has_news else 0))
    for row in rows[-fitting:]:
        cells = [
            short_id(row.conversation_id),
            row.agent,
            _clock((now_ms if row.closed is None else row.changed_ms) - row.first_seen_ms),
            "" if row.turn is None else str(row.turn),
            _goals(row.goals, is_stalled=row.is_stalled),
            _latency(row.latency),
            *(
                ("" if row.latency is None or row.latency.anchor is None else row.latency.anchor.value,)
                if is_wide
                else ()
            ),
            _count(row.user_interruptions),
            _count(row.assistant_interruptions),
            _count(row.dead_airs),
            *((_count(row.tool_calls),) if is_wide else ()),
            Text(_status(row), no_wrap=True, overflow="ellipsis"),
        ]
        table.add_row(*cells, style="dim" if row.closed else "")
    more = len(rows) - fitting
    lines: list[RenderableType] = [
        _line(headline, "bold"),
        *([_line(totals, "")] if totals else ()),
        Text(),
        table,
    ]
    lines.append(Text(f"and {more} more calls" if more > 0 else "", style="dim"))
    if has_news:
        count = min(MOST_NEWS_LINES, free - min(len(rows), fitting) - 1)
        lines += [*(_line(each.text, each.style) for each in news[-count:]), Text()]
    lines += [_line(text, "dim") for text in legend]
    return Group(*lines)


def _line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _goals(goals: GoalsReached | None, *, is_stalled: bool) -> Text:
    if goals is None:
        return Text("")
    style = "yellow" if is_stalled else "green" if goals.reached == goals.subgoals else ""
    return Text(f"{goals.reached}/{goals.subgoals}{'?' if goals.missing else ''}", style=style)


def _latency(latency: MeasuredLatency | None) -> Text:
    if latency is None:
        return Text("")
    if latency.latency_ms < 0:
        return Text("overlap", style="magenta")
    style = "green" if latency.latency_ms <= SLOW_MS else "yellow" if latency.latency_ms <= VERY_SLOW_MS else "red"
    return Text(f"{to_seconds(latency.latency_ms):.2f} s", style=style)


def _status(row: CallView) -> str:
    if row.closed is None:
        return "stalled" if row.is_stalled else "running"
    return f"over: {row.closed.ended_reason or row.closed.reason.value}"


def _clock(duration_ms: int) -> str:
    minutes, seconds = divmod(max(0, duration_ms) // MS_PER_SECOND, _SECONDS_PER_MINUTE)
    return f"{minutes}:{seconds:02}"


def _count(number: int) -> str:
    return str(number) if number else ""
