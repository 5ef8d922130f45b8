"""Sums the progress of the running calls that have goals, by agent."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from schemas.scores.live_view import CallGoals

MAX_KNOWN_AGENTS: Final = 10_000
"""Most agents that stay on the page at 0 after their last call with goals."""
PROGRESS_PARTS: Final = 10_000
"""Parts of 1 in which progress, which has four decimals, is an integer. So sums of it are exact after any removal."""


@dataclass(slots=True)
class _OfAgent:
    calls_known: int = 0
    calls_unknown: int = 0
    progress_parts: int = 0
    reached: int = 0
    subgoals: int = 0


class RunningProgress:
    """Sums over the running calls that have goals, by agent."""

    def __init__(self) -> None:
        """Starts without calls."""
        self._agents: defaultdict[str, _OfAgent] = defaultdict(_OfAgent)

    def add(self, agent: str, goals: CallGoals) -> None:
        """Adds the progress of a running call."""
        self._count(agent, goals, 1)

    def remove(self, agent: str, goals: CallGoals) -> None:
        """Removes the progress of a call, exactly as it was added."""
        self._count(agent, goals, -1)

    def calls(self) -> Mapping[tuple[str, ...], float]:
        """Returns the number of calls, by agent and by whether their progress is known."""
        return {
            (agent, state): calls
            for agent, sums in self._shown()
            for state, calls in (("known", sums.calls_known), ("unknown", sums.calls_unknown))
        }

    def progress(self) -> Mapping[tuple[str, ...], float]:
        """Returns the sum of their progress, by agent."""
        return {(agent,): sums.progress_parts / PROGRESS_PARTS for agent, sums in self._shown()}

    def subgoals(self) -> Mapping[tuple[str, ...], float]:
        """Returns the number of their subgoals, by agent and by whether they are reached."""
        return {
            (agent, state): subgoals
            for agent, sums in self._shown()
            for state, subgoals in (("reached", sums.reached), ("open", sums.subgoals - sums.reached))
        }

    def _shown(self) -> Iterator[tuple[str, _OfAgent]]:
        if len(self._agents) > MAX_KNOWN_AGENTS:
            running = {agent: sums for agent, sums in self._agents.items() if sums.calls_known or sums.calls_unknown}
            self._agents = defaultdict(_OfAgent, running)
        yield from self._agents.items()

    def _count(self, agent: str, goals: CallGoals, calls: int) -> None:
        sums = self._agents[agent]
        if goals.progress is None:
            sums.calls_unknown += calls
        else:
            sums.calls_known += calls
            sums.progress_parts += calls * round(goals.progress * PROGRESS_PARTS)
        sums.reached += calls * goals.reached
        sums.subgoals += calls * goals.subgoals
