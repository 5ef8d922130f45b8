"""How far the running calls are: what is kept of each call that has goals, and the sums by agent."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from schemas.scores.all_records import AnyScoreRecord, GoalsFact, ProgressScore, Scored, Unscored, UnscoredReason

MAX_KNOWN_AGENTS: Final = 10_000
"""Agents that are shown at 0 after their last call with goals; beyond it they are dropped."""
MAX_JUDGED_TURNS: Final = 20
"""Turns kept of each running call: as many as goal sets count unless they say otherwise. Turns are withdrawn when late events
show that there are fewer; should more of them go at once, progress is not known until the next turn is judged."""
PROGRESS_PARTS: Final = 10_000
"""Progress has four decimals, so in these parts of 1 it is whole, and adding and taking away leaves nothing behind."""


class JudgedTurn(NamedTuple):
    """How far a call was after one turn.

    Attributes:
        turn: Its number.
        reached: How many subgoals were reached.
        progress: The share of them that was; None when it is not known.
    """

    turn: int
    reached: int
    progress: float | None


class CallGoals(NamedTuple):
    """How far one call is.

    Attributes:
        subgoals: How many it has.
        judged: The newest turns judged, in order, at most `MAX_JUDGED_TURNS`.
    """

    subgoals: int
    judged: tuple[JudgedTurn, ...] = ()

    @property
    def reached(self) -> int:
        """How many subgoals are reached after the newest turn judged."""
        return self.judged[-1].reached if self.judged else 0

    @property
    def progress(self) -> float | None:
        """Share of the subgoals that are reached after it; None when that is not known."""
        return self.judged[-1].progress if self.judged else None


def goals_after(known: CallGoals | None, record: AnyScoreRecord) -> CallGoals | None:
    """What is known of a call's goals after one more record; None when it has none.

    An exporter that starts in the middle of a call learns of its goals at the next turn judged. A turn that is withdrawn gives
    way to the one before it, of which nothing is published again.
    """
    match record:
        case GoalsFact() if known is None:
            return CallGoals(len(record.goal_set.subgoals))
        case ProgressScore():
            turn = record.turn or 0
            others = () if known is None else tuple(each for each in known.judged if each.turn != turn)
            match record.result:
                case Unscored(reason=UnscoredReason.WITHDRAWN):
                    return None if known is None else CallGoals(known.subgoals, others)
                case Scored(value=value):
                    progress: float | None = value
                case _:
                    progress = None
            judged = sorted((*others, JudgedTurn(turn, record.reached, progress)))
            return CallGoals(record.subgoals, tuple(judged[-MAX_JUDGED_TURNS:]))
        case _:
            return known


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
        """No call runs."""
        self._agents: defaultdict[str, _OfAgent] = defaultdict(_OfAgent)

    def add(self, agent: str, goals: CallGoals) -> None:
        """A call of this agent runs and is that far."""
        self._count(agent, goals, 1)

    def remove(self, agent: str, goals: CallGoals) -> None:
        """A call that was added with just this is gone, or elsewhere."""
        self._count(agent, goals, -1)

    def calls(self) -> Mapping[tuple[str, ...], float]:
        """How many run, by agent and by whether their progress is known."""
        return {
            (agent, state): calls
            for agent, sums in self._shown()
            for state, calls in (("known", sums.calls_known), ("unknown", sums.calls_unknown))
        }

    def progress(self) -> Mapping[tuple[str, ...], float]:
        """Their progress added up, by agent."""
        return {(agent,): sums.progress_parts / PROGRESS_PARTS for agent, sums in self._shown()}

    def subgoals(self) -> Mapping[tuple[str, ...], float]:
        """How many subgoals they have, by agent and by whether they are reached."""
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
