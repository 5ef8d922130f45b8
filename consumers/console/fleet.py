"""All calls, as far as `scores` was read: those that run, and the figures of the last minutes.
Pure: rows and times in.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Final, NamedTuple

from consumers.console.agents import Agents
from consumers.console.bad_times import BadTimes
from schemas.rows import CallRow, Row, TurnRow
from schemas.scores.running import SILENT_CALLS, CallTable, KnownTime, RunningCalls, looking, whole

MAX_CALLS: Final = 10_000
"""Calls kept, twice as many as an evaluator is measured with; `CallTable` says which one makes
room.
"""


class Runbook(NamedTuple):
    """The runbook of an alert.

    Attributes:
        team: Who is asked, as the label `team` of the alert says.
        steps: What to do.
        text: All of it, as Markdown.
        contact: How the team is reached; empty if nobody said it.
    """

    team: str
    steps: Sequence[str]
    text: str
    contact: str = ""


class Fleet:
    """All calls.

    Attributes:
        table: The calls that run, and those that ended lately.
        agents: The agents behind them, and their figures minute by minute.
        bad_times: When versions of agents were bad.
        known: Up to when what happened is known.
        unreadable: Values that are no rows: of another program or of a newer version.
        note: A sentence about the calls by the program that shows them; empty for none.
        doctor: The command that looks for what is wrong outside of agents.
        runbooks: By alert its runbook, as far as that program has them.
    """

    def __init__(self) -> None:
        self.table = CallTable(MAX_CALLS)
        self.agents = Agents()
        self.bad_times = BadTimes()
        self.known = KnownTime()
        self.unreadable = 0
        self.note = ""
        self.doctor = "callgauge doctor"
        self.runbooks: Mapping[str, Runbook] = {}

    def put_row(self, row: Row) -> None:
        """Takes in one row of `scores`."""
        match row:
            case CallRow():
                self.known.note(row.known_ms)
                self.agents.take_call(self.table.newest(row.conversation_id), row)
                self.table.put_row(row)
            case TurnRow():
                self.agents.take_turn(row)

    def now(self, now_ms: int) -> RunningCalls:
        """The calls as they are now."""
        return whole(self.looking(now_ms))

    def looking(self, now_ms: int) -> Generator[None, None, RunningCalls]:
        """As `now`, in steps of one call, between which records may be taken in."""
        now = yield from looking(self.table, self.known, now_ms)
        silent_since_ms = now_ms - now.silent_ms if now.silent_ms else None
        event_ms = self.known.event_ms if self.table.calls_running >= SILENT_CALLS else 0
        until_ms = self.known.reached_ms if now.is_stale else None
        yield from self.agents.looking(
            now.calls, now_ms, silent_since_ms, event_ms or None, until_ms
        )
        self.bad_times.note(self.agents.now, now_ms, is_silent=silent_since_ms is not None)
        return now
