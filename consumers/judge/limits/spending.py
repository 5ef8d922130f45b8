"""Costs and budgets of judging: per call, per agent and hour, and per hour. Pure; time is an argument.

Money is in the currency of the prices. An hour begins on the full hour of the clock, so it is known when a budget is renewed.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self

from schemas.judging import TokenUse
from schemas.units import HOUR_MS

MAX_CALLS: Final = 20_000
"""Most calls whose spending is remembered. Beyond it, the call with the oldest spending starts at 0 again."""
MAX_AGENTS: Final = 1_000
"""Most agents with an hourly budget of their own. Further agents share one."""
_TOKENS_PRICED: Final = 1_000_000
_OTHERS: Final = ""

BudgetName = Literal["hour", "agent"]


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a million tokens: of prompts, of cached prompts, and of answers."""

    prompt: float
    cached: float
    answer: float

    def cost_of(self, tokens: TokenUse) -> float:
        """Returns the cost of these tokens."""
        fresh = max(0, tokens.prompt - tokens.cached)
        return (fresh * self.prompt + tokens.cached * self.cached + tokens.answer * self.answer) / _TOKENS_PRICED


@dataclass(frozen=True, slots=True)
class Allowance:
    """Limits of spending."""

    per_call: float
    per_agent_hour: float
    per_hour: float


class Budget:
    """Money that was spent, and money promised to requests in flight. A promise stays in force past the end of its hour."""

    def __init__(self, allowance: Allowance) -> None:
        """Starts without spending."""
        self._allowance = allowance
        self._hour = 0
        self._spent_by_agent: dict[str, float] = {}
        self._spent_by_call: OrderedDict[str, float] = OrderedDict()
        self._promised = 0.0
        self._promised_by_agent: defaultdict[str, float] = defaultdict(float)
        self._promised_by_call: defaultdict[str, float] = defaultdict(float)

    def promise(self, conversation_id: str, agent: str, cost: float, now_ms: int) -> "Promise | None":
        """Sets money aside for requests.

        Args:
            conversation_id: The call.
            agent: The call's agent.
            cost: Highest cost of the requests.
            now_ms: The time, which decides the hour.

        Returns:
            The promise; None if one of the budgets has less left.
        """
        self._turn_hour(now_ms)
        agent = self._budget_of(agent)
        limits = self._allowance
        wanted = (
            (limits.per_hour, sum(self._spent_by_agent.values()) + self._promised),
            (limits.per_agent_hour, self._spent_by_agent.get(agent, 0.0) + self._promised_by_agent.get(agent, 0.0)),
            (
                limits.per_call,
                self._spent_by_call.get(conversation_id, 0.0) + self._promised_by_call.get(conversation_id, 0.0),
            ),
        )
        if any(used + cost > limit for limit, used in wanted):
            return None
        self._hold(conversation_id, agent, cost)
        return Promise(self, conversation_id, agent, cost)

    def spend(self, conversation_id: str, agent: str, cost: float, now_ms: int) -> None:
        """Counts money that was spent."""
        self._turn_hour(now_ms)
        agent = self._budget_of(agent)
        self._spent_by_agent[agent] = self._spent_by_agent.get(agent, 0.0) + cost
        self._spent_by_call[conversation_id] = self._spent_by_call.pop(conversation_id, 0.0) + cost
        if len(self._spent_by_call) > MAX_CALLS:
            self._spent_by_call.popitem(last=False)

    def spent(self, now_ms: int) -> tuple[int, Mapping[str, float]]:
        """Returns the hour, counted from 1970, and the money that was spent in it, by agent."""
        self._turn_hour(now_ms)
        return self._hour, self._spent_by_agent

    def recall(self, hour: int, spent: Mapping[str, float], now_ms: int) -> None:
        """Counts the money that a former process had spent, unless that hour is over."""
        self._turn_hour(now_ms)
        for agent, cost in spent.items() if hour >= self._hour else ():
            name = self._budget_of(agent)
            self._spent_by_agent[name] = max(cost, self._spent_by_agent.get(name, 0.0))

    def left(self, now_ms: int) -> Mapping[BudgetName, float]:
        """Returns the money left for this hour, and the least that any agent has left."""
        self._turn_hour(now_ms)
        spent, promised = self._spent_by_agent, self._promised_by_agent
        used = [spent.get(agent, 0.0) + promised.get(agent, 0.0) for agent in spent.keys() | promised.keys()]
        return {
            "hour": max(0.0, self._allowance.per_hour - sum(spent.values()) - self._promised),
            "agent": max(0.0, self._allowance.per_agent_hour - max(used, default=0.0)),
        }

    def _hold(self, conversation_id: str, agent: str, cost: float) -> None:
        """Raises the promised money by an amount, or lowers it if negative."""
        self._promised += cost
        for promised, key in ((self._promised_by_agent, agent), (self._promised_by_call, conversation_id)):
            promised[key] += cost
            if abs(promised[key]) < 1e-12:  # the rounding error of sums of floats
                del promised[key]

    def _turn_hour(self, now_ms: int) -> None:
        if now_ms // HOUR_MS > self._hour:
            self._hour = now_ms // HOUR_MS
            self._spent_by_agent.clear()

    def _budget_of(self, agent: str) -> str:
        return agent if agent in self._spent_by_agent or len(self._spent_by_agent) < MAX_AGENTS else _OTHERS


class Promise:
    """Money set aside for requests. As a context manager, it returns the rest on leaving."""

    def __init__(self, budget: Budget, conversation_id: str, agent: str, cost: float) -> None:
        self._budget = budget
        self._conversation_id = conversation_id
        self._agent = agent
        self._held = cost

    def settle(self, held: float, spent: float, now_ms: int) -> None:
        """Settles a part of the promise: `held` was set aside for it, `spent` is its cost."""
        self._give_back(min(held, self._held))
        self._budget.spend(self._conversation_id, self._agent, spent, now_ms)

    def _give_back(self, cost: float) -> None:
        self._held -= cost
        self._budget._hold(self._conversation_id, self._agent, -cost)  # noqa: SLF001  # two halves of one thing

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back(self._held)
