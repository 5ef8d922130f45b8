"""Which goal set a call has, and its progress towards it."""

from collections import OrderedDict
from typing import Any, Final

from consumers.engine.goals.goal_progress import GoalProgress
from consumers.engine.goals.subgoal_checks import CheckPlan
from consumers.engine.judging.rules import GoalRules
from consumers.engine.records.revisions import Revisions
from schemas.goals.goal_set import ChoosesGoals, GoalSet

MAX_PLANS: Final = 200
"""Goal sets whose checks are kept ready; a fleet of agents has some tens. Another one is made ready again when needed."""


class ChosenGoals:
    """Goals of the calls of one partition number.

    Attributes:
        rules: How they are judged.
        source: Where goal sets come from.
    """

    def __init__(self, source: ChoosesGoals | None = None, rules: GoalRules | None = None) -> None:
        """Without a source no call has goals, unless its log says so."""
        self.rules = rules or GoalRules()
        self.source = source
        self._plans: OrderedDict[str, CheckPlan] = OrderedDict()

    def choose(self, goals_id: str | None, agent: str | None) -> GoalSet | None:
        """The set for a call of this agent that names this set, if any."""
        return None if self.source is None else self.source.choose(goals_id, agent)

    def progress(self, conversation_id: str, goal_set: GoalSet, revisions: Revisions) -> GoalProgress:
        """What judges a call against a set."""
        plan = self._plans.get(goal_set.digest)
        if plan is None:
            plan = self._plans[goal_set.digest] = CheckPlan(goal_set)
            if len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)
        return GoalProgress(conversation_id, goal_set, plan, self.rules, revisions)

    def __getstate__(self) -> dict[str, Any]:
        # A snapshot keeps the sets of its calls; where new ones come from is the restorer's.
        return self.__dict__ | {"source": None}
