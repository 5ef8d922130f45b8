"""The watched calls as a screen, as plain lines and as JSON. Pure: values in, text out."""

from typing import Any

from rich.console import RenderableType

from schemas.scores.live_view import CallView
from streamer.operations.live_calls.watching import WatchedCalls
from streamer.roles.demo_view.news import MOST_NEWS
from streamer.roles.demo_view.screen import screen
from streamer.terminal import FILE_COLUMNS

EVERY_ROW = 10_000
"""Height of a table that is no screen: no row is left out."""


def live_screen(watched: WatchedCalls, place: str, now_ms: int, *, width: int, height: int) -> RenderableType:
    """The calls as they are now, for a terminal of this size; `place` says where they come from."""
    return screen(
        _headline(watched, place, now_ms), watched.table.rows(now_ms), now_ms, width=width, height=height,
        totals=watched.totals.text(), news=watched.news.newest(MOST_NEWS),
    )  # fmt: skip


def plain_table(watched: WatchedCalls, place: str, now_ms: int) -> RenderableType:
    """Every call as it is now, without news and legend, for a file or a pipe."""
    headline = f"{_headline(watched, place, now_ms)}\n{watched.totals.text()}"
    return screen(headline, watched.table.rows(now_ms), now_ms, width=FILE_COLUMNS, height=EVERY_ROW)


def calls_document(watched: WatchedCalls, now_ms: int) -> dict[str, Any]:
    """The calls as they are now, for a program: times in epoch ms, durations in ms, null for unknown values."""
    rows = watched.table.rows(now_ms)
    return {
        "at_ms": now_ms,
        "calls_running": watched.table.calls_running,
        "calls_ended": watched.table.calls_ended,
        "unreadable_records": watched.unreadable,
        "calls": [_call(row) for row in rows],
    }


def _headline(watched: WatchedCalls, place: str, now_ms: int) -> str:
    watched.table.rows(now_ms)  # lets go of calls that are over
    unreadable = f", {watched.unreadable} records not understood" if watched.unreadable else ""
    return f"{watched.table.calls_running} calls running, {watched.table.calls_ended} over, {place}{unreadable}"


def _call(row: CallView) -> dict[str, Any]:
    latency, goals = row.latency, row.goals
    return {
        "conversation_id": row.conversation_id,
        **row.labels.model_dump(mode="json"),
        "first_seen_ms": row.first_seen_ms,
        "changed_ms": row.changed_ms,
        "turn": row.turn,
        "latency": None
        if latency is None
        else {
            "turn": latency.turn,
            "latency_ms": latency.latency_ms,
            "anchor": None if latency.anchor is None else latency.anchor.value,
        },
        "user_interruptions": row.user_interruptions,
        "assistant_interruptions": row.assistant_interruptions,
        "dead_airs": row.dead_airs,
        "tool_calls": row.tool_calls,
        "goals": None if goals is None else goals._asdict(),
        "is_stalled": row.is_stalled,
        "closed": None
        if row.closed is None
        else {"reason": row.closed.reason.value, "ended_reason": row.closed.ended_reason},
    }
