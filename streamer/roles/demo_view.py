"""The demo on the screen: running calls, news and totals."""

import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from consumers.runtime.visible import visible
from schemas.closed_sets import Anchor
from schemas.scores.live_view import CallFold, CallView, GoalsReached, MeasuredLatency
from schemas.scores.records import (
    AnyScoreRecord,
    CallStartedFact,
    ClosedFact,
    DeadAirFact,
    InterruptionFact,
    Scored,
    StallFact,
    SubgoalScore,
    VoiceToVoiceLatency,
)
from schemas.units import MS_PER_SECOND, to_seconds

# The calls of the demo's table: those that run, and those that ended lately. Pure.

MAX_CALLS: Final = 500
"""Calls kept; the call that was quiet for longest makes room for a new one."""

SHOWN_AFTER_END_MS: Final = 20_000
"""How long a call stays in the table after it closed, so that a person sees how it ended."""


class CallTable:
    """The calls that run, and those that ended lately.

    Attributes:
        calls_started: Calls seen to start, since the table was made.
        calls_ended: Calls seen to close.
        calls_dropped: Calls that made room for others while they still ran.
    """

    def __init__(self, max_calls: int = MAX_CALLS) -> None:
        self.calls_started = 0
        self.calls_ended = 0
        self.calls_dropped = 0
        self._max_calls = max_calls
        self._calls: dict[str, CallFold] = {}

    def fold(self, record: AnyScoreRecord) -> None:
        """Takes in one record."""
        call = self._calls.get(record.conversation_id)
        was_open = call is None or call.closed is None
        if call is None:
            self._make_room()
            call = self._calls[record.conversation_id] = CallFold(record)
            self.calls_started += 1
        else:
            call.fold(record)
        self.calls_ended += was_open and call.closed is not None

    def rows(self, now_ms: int) -> list[CallView]:
        """Returns the calls in the order in which they began, without those that closed over `SHOWN_AFTER_END_MS` ago."""
        self._calls = {
            conversation_id: call
            for conversation_id, call in self._calls.items()
            if call.closed is None or call.changed_ms >= now_ms - SHOWN_AFTER_END_MS
        }
        views = [call.view() for call in self._calls.values()]
        return sorted(views, key=lambda view: (view.first_seen_ms, view.conversation_id))

    @property
    def calls_running(self) -> int:
        """Calls in the table that have not closed."""
        return sum(call.closed is None for call in self._calls.values())

    def _make_room(self) -> None:
        if len(self._calls) < self._max_calls:
            return
        quietest = min(self._calls, key=lambda each: (self._calls[each].closed is None, self._calls[each].changed_ms))
        self.calls_dropped += self._calls[quietest].closed is None
        del self._calls[quietest]


# Records that are news, as lines for a reader. Pure: a record in, a line out.

SLOW_MS: Final = 1_500
"""The objective of voice agents is that 95 % of answers are faster."""
VERY_SLOW_MS: Final = 3_500
MOST_NEWS: Final = 50
"""Lines kept, more than a terminal shows below the table."""
ID_CHARS: Final = 6


class NewsLine(NamedTuple):
    """One line below the table: the broker's time of its cause, the text, and the colour."""

    time_ms: int
    text: str
    style: str


class News:
    """The newest lines of note; a fast answer is none."""

    def __init__(self) -> None:
        self._lines: deque[NewsLine] = deque(maxlen=MOST_NEWS)

    def fold(self, record: AnyScoreRecord) -> None:
        """Takes in one record."""
        text = plain_line(record)
        if text is not None and (style := _style(record)) is not None:
            clock = time.strftime("%H:%M:%S", time.localtime(record.caused_at_ms / MS_PER_SECOND))
            self._lines.append(NewsLine(record.caused_at_ms, f"{clock}  {text}", style))

    def newest(self, count: int) -> list[NewsLine]:
        """The newest lines, at most so many, in the order of their times: partitions are read one after the other."""
        return sorted(self._lines, key=lambda line: line.time_ms)[-count:] if count > 0 else []


def plain_line(record: AnyScoreRecord) -> str | None:
    """A record as one line for a reader; None when it is no news."""
    call = f"{short_id(record.conversation_id)} {record.labels.agent}"
    match record:
        case VoiceToVoiceLatency(turn=int(turn), result=Scored(value=latency_ms)) if record.is_first:
            by = "" if record.anchor is None else f" ({record.anchor.value})"
            return f"{call}: turn {turn} answered after {latency_ms:.0f} ms{by}"
        case InterruptionFact(turn=int(turn), is_withdrawn=False):
            return f"{call}: turn {turn} interrupted by the {record.by.value}"
        case DeadAirFact():
            return f"{call}: dead air"
        case SubgoalScore(reached_turn=int(turn)) if record.is_first:
            return f"{call}: turn {turn} reached the subgoal {record.subgoal_id}"
        case StallFact():
            return f"{call}: no subgoal reached since turn {record.since_turn}"
        case ClosedFact():
            return f"{call}: over ({record.ended_reason or record.reason.value}), {record.turns} turns"
        case _:
            return None


def short_id(conversation_id: str) -> str:
    """The end of a conversation id: its beginning is often the same for all calls."""
    return conversation_id[-ID_CHARS:]


def _style(record: AnyScoreRecord) -> str | None:
    """The colour of a line of note; None for a record that is none."""
    match record:
        case VoiceToVoiceLatency(result=Scored(value=latency_ms)):
            return None if latency_ms <= SLOW_MS else "yellow" if latency_ms <= VERY_SLOW_MS else "red"
        case SubgoalScore():
            return "green"
        case ClosedFact():
            return "dim"
        case InterruptionFact() | DeadAirFact() | StallFact() if record.revision == 1:
            return "yellow"
        case _:
            return None


# Running calls as a table on a terminal, or as plain lines. Pure: values in, text out.

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
        table.add_column(Text(column), justify="right", width=chars, no_wrap=True)
    if is_wide:
        table.add_column("anchor", width=max(map(len, Anchor)), no_wrap=True)
    for column in ("cut in\nuser", "cut in\nassistant", "dead\nair", *(("tool\ncalls",) if is_wide else ())):
        table.add_column(Text(column), justify="right", width=max(map(len, column.splitlines())), no_wrap=True)
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
            Text(visible(_status(row)), no_wrap=True, overflow="ellipsis"),
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
    return Text(visible(text), style=style, no_wrap=True, overflow="ellipsis")


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


# Totals of all calls since the demo began: answers, interruptions, dead air, subgoals, ends; of all and by agent.
# Pure.

MAX_ANSWERS: Final = 10_000
"""Latencies kept of one agent; percentiles are of the newest ones."""
MAX_AGENTS: Final = 100
"""Agents with totals of their own; the demo has four."""
_UNKNOWN: Final = "unknown"


@dataclass(slots=True)
class AgentTotals:
    """Totals of the calls of one agent.

    Attributes:
        latencies_ms: Latencies of its answers, as they were first known.
        interruptions: Interruptions by either side.
        dead_airs: Silences beyond the threshold.
        subgoals: Subgoals that were reached.
        ended: Calls that closed.
    """

    latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_ANSWERS))
    interruptions: int = 0
    dead_airs: int = 0
    subgoals: int = 0
    ended: int = 0


class Totals:
    """Totals since the demo began.

    Attributes:
        ends: Number of closed calls by the reason of their end.
    """

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter()
        self._agents: defaultdict[str, AgentTotals] = defaultdict(AgentTotals)

    def fold(self, record: AnyScoreRecord) -> None:
        """Takes in one record."""
        agent = record.labels.agent
        if agent not in self._agents and len(self._agents) >= MAX_AGENTS:
            agent = _UNKNOWN
        match record:
            case CallStartedFact():
                _ = self._agents[agent]
            case VoiceToVoiceLatency(result=Scored(value=latency_ms)) if record.is_first:
                self._agents[agent].latencies_ms.append(latency_ms)
            case InterruptionFact(revision=1, is_withdrawn=False):
                self._agents[agent].interruptions += 1
            case DeadAirFact(revision=1):
                self._agents[agent].dead_airs += 1
            case SubgoalScore(reached_turn=int()) if record.is_first:
                self._agents[agent].subgoals += 1
            case ClosedFact(revision=1):
                self._agents[agent].ended += 1
                self.ends[record.ended_reason or record.reason.value] += 1

    def text(self) -> str:
        """The totals of all agents as one line."""
        every = self._agents.values()
        latencies_ms = [latency_ms for each in every for latency_ms in each.latencies_ms]
        ends = ", ".join(f"{reason} {count}" for reason, count in self.ends.most_common(3)) or "none"
        return (
            f"answers {len(latencies_ms)} (p50 {_percentile(latencies_ms, 50)}, p95 {_percentile(latencies_ms, 95)})  "
            f"subgoals {sum(each.subgoals for each in every)}  cut in {sum(each.interruptions for each in every)}  "
            f"dead air {sum(each.dead_airs for each in every)}  ended: {ends}"
        )

    def by_agent(self, marked: str) -> Table:
        """A row for each agent; that of the `marked` one has a colour."""
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        table.add_column("agent", no_wrap=True)
        for column in ("ended", "answers", "p50", "p95", "subgoals", "cut in", "dead air"):
            table.add_column(column, justify="right", no_wrap=True)
        for agent, totals in sorted(self._agents.items()):
            table.add_row(
                agent, str(totals.ended), str(len(totals.latencies_ms)), _percentile(totals.latencies_ms, 50),
                _percentile(totals.latencies_ms, 95), str(totals.subgoals), str(totals.interruptions),
                str(totals.dead_airs), style="yellow" if agent == marked else "",
            )  # fmt: skip
        return table


def _percentile(values_ms: Sequence[float] | deque[float], percent: int) -> str:
    """The smallest value that so many percent of the values do not exceed."""
    if not values_ms:
        return "-"
    ordered = sorted(values_ms)
    return f"{to_seconds(ordered[math.ceil(len(ordered) * percent / 100) - 1]):.2f} s"
