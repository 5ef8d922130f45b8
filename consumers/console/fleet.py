"""The calls that run, and figures of all calls over the last minutes. Pure: rows and times in."""

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from consumers.console.agents import Agents, percentile
from schemas.rows import CallRow, Row, TurnRow, number
from schemas.scores.running import CallTable, KnownTime, RunningCalls, looking, whole

MAX_CALLS: Final = 10_000
"""Calls kept, twice as many as an evaluator is measured with; `CallTable` says which one makes room."""
STEP_MS: Final = 10_000
"""Time of one point of a line."""
STEPS: Final = 90
"""Points of a line: a quarter of an hour."""
MAX_ANSWERS: Final = 2_000
"""Latencies kept of one step; beyond it the percentiles are those of the first ones."""


@dataclass(slots=True)
class Step:
    """Figures of all calls in one step of time.

    Attributes:
        end_ms: End of the step, in epoch ms.
        latencies_ms: Latencies of the answers that became known in it, as they were first known, in ascending order.
        running: Calls that ran at its end.
        bad: Of these, those in trouble.
        progress: Mean progress of those that have goals and a verdict; None without any.
    """

    end_ms: int
    latencies_ms: list[float] = field(default_factory=list)
    running: int = 0
    bad: int = 0
    progress: float | None = None

    def percentile_ms(self, percent: int) -> float | None:
        """The smallest latency that so many percent of the answers do not exceed; None without answers."""
        return percentile(self.latencies_ms, percent)


class Fleet:
    """All calls, as far as `scores` was read.

    Attributes:
        table: The calls that run, and those that ended lately.
        agents: The agents behind them.
        known: Up to when what happened is known.
        unreadable: Values that are no rows: of another program or of a newer version.
        steps: Figures of the last quarter of an hour, the newest last.
    """

    def __init__(self) -> None:
        self.table = CallTable(MAX_CALLS)
        self.agents = Agents()
        self.known = KnownTime()
        self.unreadable = 0
        self.steps: deque[Step] = deque(maxlen=STEPS)
        self._latencies_ms: list[float] = []

    def take(self, row: Row) -> None:
        """Takes in one row of `scores`."""
        match row:
            case CallRow():
                self.known.take(row.known_ms)
                self.agents.take_call(self.table.newest(row.conversation_id), row)
                self.table.take(row)
            case TurnRow():
                self.agents.take_turn(row)
                wait_ms = number(row.wait_ms)
                if "wait" in row.news and wait_ms is not None and len(self._latencies_ms) < MAX_ANSWERS:
                    self._latencies_ms.append(wait_ms)

    def now(self, now_ms: int) -> RunningCalls:
        """The calls as they are now; also ends the step of time that is over."""
        return whole(self.looking(now_ms))

    def looking(self, now_ms: int) -> Generator[None, None, RunningCalls]:
        """As `now`, in steps of one call, between which records may be taken in."""
        now = yield from looking(self.table, self.known, now_ms)
        yield from self.agents.looking(now.calls, now_ms)
        end_ms = now_ms - now_ms % STEP_MS
        if not self.steps or self.steps[-1].end_ms < end_ms:
            self._end_step(end_ms, now)
        return now

    def _end_step(self, end_ms: int, now: RunningCalls) -> None:
        running = [each.call for each in now.calls if each.call.state != "closed"]
        shares = [
            call.goals.progress.reached / call.goals.progress.subgoals
            for call in running
            if call.goals is not None and call.goals.progress is not None and call.goals.progress.subgoals
        ]
        progress = sum(shares) / len(shares) if shares else None
        bad = sum(call.is_bad for call in now.calls)
        self.steps.append(Step(end_ms, sorted(self._latencies_ms), len(running), bad, progress))
        self._latencies_ms = []

    def latencies(self, steps: int = STEPS) -> Step:
        """The latencies of the last steps and of the one that goes on, together."""
        recent = list(self.steps)[-steps:]
        return Step(0, sorted(chain(self._latencies_ms, *(step.latencies_ms for step in recent))))
