"""Simulated calls with goals that code decides, so that their progress is known without a judge."""

from typing import Final

from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules
from schemas.goals.goal_set import GoalSet
from schemas.rows import Row
from streamer.sources.simulator.traffic import simulate_call
from tests.golden.calls import START_MS
from tests.properties.evaluation import GOALS
from tests.support.calls.rows_of_calls import rows_of_recorded

GOALS_OF_CODE: Final = GOALS.model_copy(
    update={"subgoals": tuple(each for each in GOALS.subgoals if not each.is_judged)}
)


class _ForEveryCall:
    def choose(self, goals_id: str | None, agent: str | None) -> GoalSet:
        del goals_id, agent
        return GOALS_OF_CODE


def chosen_goals() -> ChosenGoals:
    """The goals of every call; it is stuck after two turns without progress."""
    return ChosenGoals(_ForEveryCall(), GoalRules(stall_turns=2))


def rows_with_goals_of_code(seed: int) -> list[Row]:
    """All rows of a simulated call."""
    return rows_of_recorded(simulate_call(seed, start_ms=START_MS).call, chosen_goals())
