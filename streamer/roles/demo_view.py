"""The demo on the screen: running calls, news and totals."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from consumers.engine.rows import percentile
from consumers.runtime.visible import visible
from consumers.view.contents import INTERRUPTIONS, wait_in_words
from consumers.view.running import ID_CHARS, RunningLine, running_line, wait_level
from consumers.view.words import seconds
from schemas.closed_sets import Anchor, Speaker
from schemas.rows import CallRow, GoalsRow, Row, TurnRow, number
from schemas.scores.running import ShownCall
from schemas.scores.trouble import SLOW_MS, bad_end
from schemas.units import MS_PER_SECOND

# What rows have for news, as lines for a reader.

MOST_NEWS: Final = 50
"""Lines kept, more than a terminal shows below the table."""
MOST_GOAL_SETS: Final = 200
"""Goal sets whose subgoals are known by name; a fleet of agents has some tens."""
NOTABLE, URGENT = "magenta", "bold red"
"""Colours that can be read on a dark and on a light background; a mark stands beside each in the
table.
"""


_STYLES: Final = {"": "", "bad": NOTABLE, "urgent": URGENT}
"""By how bad something is."""


class NewsLine(NamedTuple):
    """One line below the table: the broker's time of its cause, the text, and the colour."""

    time_ms: int
    text: str
    style: str


class News:
    """The newest lines of note; a fast answer is none."""

    def __init__(self) -> None:
        self._lines: deque[NewsLine] = deque(maxlen=MOST_NEWS)
        self._subgoals: dict[str, list[str]] = {}

    def tell(self, row: Row) -> None:
        """Takes in one row."""
        match row:
            case GoalsRow():
                self._learn(row)
            case TurnRow() if row.news:
                self._add(row, _news_of_turn(row))
            case CallRow() if row.news:
                self._add(row, self._news_of_call(row))

    def newest(self, count: int) -> list[NewsLine]:
        """The newest lines, at most so many, in the order of their times: partitions are read one
        after the other.
        """
        return sorted(self._lines, key=lambda line: line.time_ms)[-count:] if count > 0 else []

    def _add(self, row: TurnRow | CallRow, news: Iterable[tuple[str, str]]) -> None:
        clock = time.strftime("%H:%M:%S", time.localtime(row.known_ms / MS_PER_SECOND))
        for text, style in news:
            line = f"{clock}  {row.conversation_id[-ID_CHARS:]} {row.labels.agent}: {text}"
            self._lines.append(NewsLine(row.known_ms, line, style))

    def _learn(self, row: GoalsRow) -> None:
        """Notes the names of the subgoals of a goal set."""
        if row.digest not in self._subgoals and len(self._subgoals) >= MOST_GOAL_SETS:
            del self._subgoals[next(iter(self._subgoals))]
        self._subgoals[row.digest] = [
            str(each.get("id", "")) for each in row.goal_set.get("subgoals", [])
        ]

    def _news_of_call(self, row: CallRow) -> Iterator[tuple[str, str]]:
        for name in row.news:
            kind, _, rest = name.partition(".")
            if kind == "subgoal" and row.goals is not None:
                names, place = self._subgoals.get(row.goals.digest, []), int(rest)
                named = names[place] if place < len(names) else f"number {place + 1}"
                yield (
                    f"turn {row.goals.subgoals[place].reached_turn} reached the subgoal {named}",
                    "green",
                )
            elif kind == "stall" and row.goals is not None:
                yield f"no subgoal reached since turn {row.goals.stalls[-1].since_turn}", NOTABLE
            elif kind == "closed" and row.close_reason is not None:
                ending = bad_end(row)
                how = f"over ({row.ended_reason or row.close_reason.value}), {row.turns} turns"
                yield (how, "dim") if ending is None else (f"{how}: {ending}", URGENT)


def _news_of_turn(row: TurnRow) -> Iterator[tuple[str, str]]:
    for name in row.news:
        kind, _, rest = name.partition(".")
        if (
            kind == "wait"
            and row.wait_ms is not None
            and (level := wait_level(number(row.wait_ms)))
        ):
            yield f"turn {row.turn} {wait_in_words(row.wait_ms, row.anchor)}", _STYLES[level]
        elif kind == "interruption":
            yield f"turn {row.turn} {INTERRUPTIONS[Speaker(rest)]}", NOTABLE
        elif kind == "dead_air":
            yield "dead air", NOTABLE


# The calls as a table on a terminal, or as plain lines. Pure: values in, text out.

MOST_NEWS_LINES: Final = 10
"""Lines of news below the table, where there is room for them."""
_NEWS_FROM_ROWS, _LEGEND_FROM_ROWS = 16, 20
"""Height of a terminal from which there are lines of news, and a legend."""
_FEWEST_NEWS_LINES: Final = 4
PLAIN_LINES: Final = 6
"""Lines beside the rows: headline, space, two lines of column names, the line of left-out calls,
the cursor's line.
"""
LEGEND: Final = (
    "!! the caller suffers now, ! trouble; wait: of the newest answer, ! over "
    f"{SLOW_MS / MS_PER_SECOND:g} s",
    "quiet for: since the newest score; goals: reached of all, ? verdicts missing",
)
_WIDE_LEGEND: Final = (
    "; interrupted: by caller/agent",
    "; anchor: how the end of speech is known",
)
_WIDE, _VERY_WIDE = 120, 160
"""Columns of a terminal from which there are more columns in the table."""
_SECONDS_PER_MINUTE: Final = 60
_MOST_AGENTS_COUNTED: Final = 6


class _Column(NamedTuple):
    """A column of the table.

    Attributes:
        name: Its header.
        chars: Its width; None gives it what the others leave.
        cell: What it shows of the row of a call and its line, at a time in epoch ms.
        from_columns: Columns of a terminal from which it is there.
        is_left: Whether its cells begin at the left.
        wide_chars: Its width on a wide terminal, if another.
    """

    name: str
    chars: int | None
    cell: Callable[[CallRow, RunningLine, int], Text | str]
    from_columns: int = 0
    is_left: bool = False
    wide_chars: int | None = None


def screen(
    headline: str,
    calls: Sequence[ShownCall],
    now_ms: int,
    *,
    width: int,
    height: int,
    totals: str = "",
    news: Sequence[NewsLine] = (),
    is_stale: bool = False,
    wraps: bool = False,
) -> RenderableType:
    """The headline, the totals, the table of calls, and below it news and a legend, as far as
    `height` lines have room.

    Args:
        headline: The first line.
        calls: All calls in their order; of those that do not fit, the healthy ones are counted by
            agent.
        now_ms: Epoch milliseconds, for the ages of calls.
        width: Columns of the terminal.
        height: Lines of the terminal.
        totals: The line below the headline; none if empty.
        news: Lines of note, the newest last.
        is_stale: Whether the headline is a warning.
        wraps: Whether a line above or below the table goes on below itself; otherwise it is cut.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    columns = [column for column in _COLUMNS if width >= column.from_columns]
    chars = [
        column.wide_chars if column.wide_chars and width >= _WIDE else column.chars
        for column in columns
    ]
    left = width - sum(each + 1 for each in chars if each is not None)
    for column, wide in zip(columns, chars, strict=True):
        table.add_column(
            Text(column.name),
            justify="left" if column.is_left else "right",
            no_wrap=True,
            overflow="ellipsis",
            width=wide,
            max_width=None if wide else max(left, 1),
        )
    free = height - PLAIN_LINES - bool(totals)
    legend = LEGEND if totals and height >= _LEGEND_FROM_ROWS else ()
    free -= len(legend) + bool(legend)
    has_news = bool(news) and height >= _NEWS_FROM_ROWS
    fitting = max(1, free - (_FEWEST_NEWS_LINES + 1 if has_news else 0))
    for shown in calls[:fitting]:
        line = running_line(shown)
        table.add_row(*(column.cell(shown.call, line, now_ms) for column in columns))
    lines: list[RenderableType] = [
        _line(headline, URGENT if is_stale else "bold", wraps=wraps),
        *([_line(totals, "", wraps=wraps)] if totals else ()),
        Text(),
        table,
        _line(_left_out(calls[fitting:]), "", wraps=wraps),
    ]
    if has_news:
        count = min(MOST_NEWS_LINES, free - min(len(calls), fitting) - 1)
        lines += [*(_line(each.text, each.style) for each in news[-count:]), Text()]
    more = _WIDE_LEGEND if width >= _WIDE else ("", "")
    lines += [_line(text + of_wide, "") for text, of_wide in zip(legend, more, strict=False)]
    return Group(*lines)


def _line(text: str, style: str, *, wraps: bool = False) -> Text:
    return Text(visible(text), style=style, no_wrap=not wraps, overflow="ellipsis")


def _left_out(calls: Sequence[ShownCall]) -> str:
    """The calls for which there is no row: how many are in trouble, and the healthy
    ones by agent.
    """
    bad = sum(call.is_bad for call in calls)
    healthy = Counter(each.call.labels.agent for each in calls if not each.is_bad)
    named = [f"{agent} {count}" for agent, count in healthy.most_common(_MOST_AGENTS_COUNTED)]
    others = healthy.total() - sum(count for _, count in healthy.most_common(_MOST_AGENTS_COUNTED))
    named += [f"others {others}"] if others else []
    parts = [f"and {bad} more calls in trouble"] if bad else []
    parts += (
        [f"and {healthy.total()} more calls without trouble: {', '.join(named)}"] if named else []
    )
    return "; ".join(parts)


_MARKS: Final = {"": "", "bad": "!", "urgent": "!!"}


def _goals(call: CallRow, line: RunningLine) -> Text:
    style = (
        "green"
        if (found := call.goals and call.goals.progress) and found.reached == found.subgoals
        else ""
    )
    if call.goals is not None and call.goals.is_stalled:
        style = NOTABLE
    return Text(line.goals.replace(" of ", "/"), style=style)


def _agent(call: CallRow, line: RunningLine) -> str:
    return f"{line.agent} {call.labels.version or ''}".rstrip()


def _interruptions(call: CallRow) -> str:
    by_user, by_assistant = call.user_interruptions, call.assistant_interruptions
    return f"{by_user}/{by_assistant}" if by_user or by_assistant else ""


def _status(line: RunningLine) -> Text:
    text = "; ".join(reason for _, reason in line.chips) or line.state
    return Text(visible(text), style=_STYLES[line.level], no_wrap=True, overflow="ellipsis")


def _clock(duration_ms: float) -> str:
    minutes, rest = divmod(int(max(0, duration_ms)) // MS_PER_SECOND, _SECONDS_PER_MINUTE)
    return f"{minutes}:{rest:02}"


_COLUMNS: Final = (
    _Column(
        "", 2, lambda _, line, __: Text(_MARKS[line.level], style=_STYLES[line.level]), is_left=True
    ),
    _Column("call", ID_CHARS, lambda _, line, __: line.conversation_id[-ID_CHARS:], is_left=True),
    _Column("agent", 10, lambda call, line, _: _agent(call, line), is_left=True, wide_chars=20),
    _Column("tenant", 12, lambda call, *_: call.labels.tenant, _VERY_WIDE, is_left=True),
    _Column("environment", 12, lambda call, *_: call.labels.environment, _VERY_WIDE, is_left=True),
    _Column(
        "time",
        5,
        lambda _, line, now_ms: _clock(
            now_ms - line.first_ms if line.length_ms is None else line.length_ms
        ),
    ),
    _Column("turn", 4, lambda _, line, __: line.turn),
    _Column("quiet\nfor", 5, lambda _, line, now_ms: _clock(now_ms - line.heard_ms)),
    _Column("goals", 5, lambda call, line, _: _goals(call, line)),
    _Column(
        "wait",
        8,
        lambda _, line, __: Text(
            line.latency + _MARKS[line.latency_level][:1], style=_STYLES[line.latency_level]
        ),
    ),
    _Column(
        "anchor",
        max(map(len, Anchor)),
        lambda call, *_: (call.answer and call.answer.anchor) or "",
        _WIDE,
        is_left=True,
    ),
    _Column("inter-\nrupted", 6, lambda call, *_: _interruptions(call), _WIDE),
    _Column("dead\nair", 4, lambda call, *_: str(call.dead_airs or ""), _WIDE),
    _Column("tool\ncalls", 5, lambda call, *_: str(call.tool_calls or ""), _WIDE),
    _Column("status", None, lambda _, line, __: _status(line), is_left=True),
)
"""The columns of the table from left to right; a new one is a line here."""


# Totals of all calls since the demo began: answers, interruptions, dead air, subgoals, ends. Pure.

MAX_ANSWERS: Final = 40_000
"""Latencies that are kept; percentiles are of the newest ones."""


class Totals:
    """Totals since the demo began.

    Attributes:
        ends: Number of closed calls by the reason of their end.
    """

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter()
        self._latencies_ms: deque[float] = deque(maxlen=MAX_ANSWERS)
        self._news: Counter[str] = Counter()

    def count_row(self, row: Row) -> None:
        """Takes in one row."""
        if isinstance(row, GoalsRow):
            return
        self._news.update(name.partition(".")[0] for name in row.news)
        if isinstance(row, TurnRow):
            wait_ms = number(row.wait_ms) if "wait" in row.news else None
            if wait_ms is not None:
                self._latencies_ms.append(wait_ms)
        # Also of a call that lacks records, of which nothing is news.
        elif row.close_reason is not None:
            self.ends[row.ended_reason or row.close_reason.value] += 1

    def text(self) -> str:
        """The totals as one line."""
        latencies_ms = self._latencies_ms
        ends = (
            ", ".join(f"{reason} {count}" for reason, count in self.ends.most_common(3)) or "none"
        )
        return (
            f"answers {len(latencies_ms)} (p50 {_percentile(latencies_ms, 50)}, p95 "
            f"{_percentile(latencies_ms, 95)})  subgoals {self._news['subgoal']}  interruptions "
            f"{self._news['interruption']}  dead air {self._news['dead_air']}  ended: {ends}"
        )


def _percentile(values_ms: Iterable[float], percent: int) -> str:
    """The smallest value that so many percent of the values do not exceed."""
    value_ms = percentile(sorted(values_ms), percent / 100)
    return "-" if value_ms is None else seconds(value_ms)
