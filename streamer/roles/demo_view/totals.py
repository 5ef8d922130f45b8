"""Totals of all calls since the demo began: answers, interruptions, dead air, subgoals, ends; of all and by agent. Pure."""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.table import Table

from schemas.scores.records import (
    AnyScoreRecord,
    CallStartedFact,
    ClosedFact,
    DeadAirFact,
    InterruptionFact,
    Scored,
    SubgoalScore,
    VoiceToVoiceLatency,
)
from schemas.units import to_seconds

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
