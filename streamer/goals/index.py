"""Finds a goal set by its id or by an agent; the same for every source of goals."""

from collections.abc import Iterable

from schemas.goals.goal_set import GoalSet


class GoalIndex:
    """Goal sets at one moment. While the source changes, a reader has the old index or the new one."""

    def __init__(self, goals: Iterable[GoalSet] = ()) -> None:
        """Indexes goal sets.

        Args:
            goals: The first one with an id has it, and the first one with an agent has the agent.
        """
        self._by_id: dict[str, GoalSet] = {}
        self._by_agent: dict[str, GoalSet] = {}
        for each in goals:
            # A set that cannot be found by its id is not found by its agents either.
            if self._by_id.setdefault(each.id, each) is each:
                for agent in each.agents:
                    self._by_agent.setdefault(agent, each)

    def __len__(self) -> int:
        return len(self._by_id)

    def named(self, goals_id: str) -> GoalSet | None:
        """The set with this id."""
        return self._by_id.get(goals_id)

    def of_agent(self, agent: str) -> GoalSet | None:
        """The set that is for this agent's calls."""
        return self._by_agent.get(agent)
