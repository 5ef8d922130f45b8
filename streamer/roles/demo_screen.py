"""Running calls as a table on a terminal, or as plain lines. Pure: values in, text out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from schemas.scores.all_records import (
    Anchor,
    AnyScoreRecord,
    ClosedFact,
    DeadAirFact,
    InterruptionFact,
    Scored,
    StallFact,
    SubgoalScore,
    VoiceToVoiceLatency,
)
from schemas.scores.live_view import CallView, GoalsReached, MeasuredLatency
from schemas.units import MS_PER_SECOND, to_seconds

SLOW_MS: Final = 1_500
"""The objective of voice agents is that 95 % of answers are faster."""
VERY_SLOW_MS: Final = 3_500

_ID_CHARS: Final = 6
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


def screen(headline: Headline, rows: Sequence[CallView], now_ms: int, *, width: int, height: int) -> RenderableType:
    """The headline and the table of calls, the newest of them when not all fit into `height` lines."""
    is_wide = width >= _WIDE_COLUMNS
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("call", width=_ID_CHARS, no_wrap=True)
    table.add_column("agent", width=_AGENT_CHARS_WIDE if is_wide else _AGENT_CHARS, no_wrap=True, overflow="ellipsis")
    for column, chars in (("time", 5), ("turn", 4), ("goals\nreached", 7), ("latency", 7)):
        table.add_column(column, justify="right", width=chars, no_wrap=True)
    if is_wide:
        table.add_column("anchor", width=max(map(len, Anchor)), no_wrap=True)
    for column in ("cut in\nuser", "cut in\nassistant", "dead\nair", *(("tool\ncalls",) if is_wide else ())):
        table.add_column(column, justify="right", width=max(map(len, column.splitlines())), no_wrap=True)
    table.add_column("status")  # the only column without a width: it gives way on a narrow terminal
    fitting = max(
        1, height - 6
    )  # headline, space, two lines of column names, the line of left-out calls, the cursor's line
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
    title = Text(headline.text(), style="bold", no_wrap=True, overflow="ellipsis")
    return Group(title, Text(), table, Text(f"and {more} more calls" if more > 0 else "", style="dim"))


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
    return conversation_id[-_ID_CHARS:]


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
