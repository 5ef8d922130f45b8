"""Calls as the console has read them, and rows of calls for its tests."""

from collections.abc import Sequence
from typing import Any

from consumers.console.reading import ReadCalls
from consumers.view.calls import ReportedCall
from schemas.rows import CallRow, GoalsRow, Labels, Row, Sound, TurnRow, WordsRow
from tests.support.calls.made_rows import with_end
from tests.support.calls.report_calls import Marks, words_of
from tests.support.calls.rows_of_calls import newest, rows_of_simulated

AT_MS = 1_790_000_000_000
"""When the calls that are made here were heard of."""


def call_row(name: str = "c", **more: Any) -> CallRow:
    """The row of a running call."""
    fields: dict[str, Any] = {
        "known_ms": AT_MS,
        "first_known_ms": AT_MS,
        "labels": Labels(agent="desk"),
    } | more
    return with_end(CallRow(conversation_id=name, **fields))


def turn_row(turn: int = 1, name: str = "c", **more: Any) -> TurnRow:
    """The row of a turn that the call has left."""
    fields: dict[str, Any] = {
        "known_ms": AT_MS,
        "labels": Labels(agent="desk"),
        "status": "provisional",
    } | more
    return TurnRow(conversation_id=name, turn=turn, **fields)


def sounds(*times_ms: tuple[int, int | None]) -> tuple[Sound, ...]:
    """Somebody is heard, each from and until a time after the call began."""
    return tuple(
        Sound(AT_MS + start_ms, None if end_ms is None else AT_MS + end_ms)
        for start_ms, end_ms in times_ms
    )


def reported_rows(
    row: CallRow | None = None,
    *turns: TurnRow,
    goals: GoalsRow | None = None,
    words: Sequence[WordsRow] = (),
    anchor_id: str = "call",
) -> ReportedCall:
    """A call as its page has it."""
    return ReportedCall(row or call_row(), turns, goals, words, anchor_id, Marks("\x00"))


def simulated(seed: int = 4, name: str | None = None, *, late_ms: int = 0) -> list[Row | WordsRow]:
    """All rows of a simulated call with goals, in their order, and its words behind them; of
    another name, and so much later.
    """
    rows: list[Row | WordsRow] = list(rows_of_simulated(seed, has_goals=True))
    call, turns, _ = newest(row for row in rows if not isinstance(row, WordsRow))
    rows += words_of(turns, "I would like to move it")
    for row in rows:
        row.conversation_id = call.conversation_id if name is None else name
        if not isinstance(row, GoalsRow):
            row.known_ms += late_ms
        if isinstance(row, CallRow):
            row.first_known_ms += late_ms
    return rows


class HeldCalls(ReadCalls):
    """Calls that were read, in memory."""

    def __init__(self, *rows: Row | WordsRow) -> None:
        super().__init__()
        self.add(*rows)

    def add(self, *rows: Row | WordsRow) -> None:
        """Takes in rows, as if they had come from a topic."""
        self.put(rows)
        self.note(rows)
