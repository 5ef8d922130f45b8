"""Chooses the goal set of a call, and makes the part that judges the call against it."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from consumers.engine.goals.goal_progress import GoalProgress
from consumers.engine.goals.subgoal_checks import CheckPlan
from consumers.engine.judging.rules import GoalRules
from consumers.engine.records.revisions import Revisions
from schemas.goals.goal_set import ChoosesGoals, GoalSet

MAX_PLANS: Final = 200
"""Goal sets whose checks are kept ready; a fleet of agents has some tens. Checks of any other set are made again
when needed.
"""


class ChosenGoals:
    """Goals of the calls of one partition number.

    Attributes:
        rules: Rules of judging.
        source: Gives goal sets.
        logged: By call, the goal set that it got in the past; then the source is not asked. None where calls choose.
    """

    def __init__(self, source: ChoosesGoals | None = None, rules: GoalRules | None = None) -> None:
        """Without a source no call has goals."""
        self.rules = rules or GoalRules()
        self.source = source
        self.logged: Mapping[str, GoalSet] | None = None
        self._plans: OrderedDict[str, CheckPlan] = OrderedDict()

    def choose(self, conversation_id: str, goals_id: str | None, agent: str | None) -> GoalSet | None:
        """The goal set for a call of this agent, or the one that the call names; None without any."""
        if self.logged is not None:
            return self.logged.get(conversation_id)
        return None if self.source is None else self.source.choose(goals_id, agent)

    def progress(self, conversation_id: str, goal_set: GoalSet, revisions: Revisions) -> GoalProgress:
        """The part that judges a call against a goal set."""
        plan = self._plans.get(goal_set.digest)
        if plan is None:
            plan = self._plans[goal_set.digest] = CheckPlan(goal_set)
            if len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)
        return GoalProgress(conversation_id, goal_set, plan, self.rules, revisions)
