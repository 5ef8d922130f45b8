"""Bounds of asking: a breaker, a rate, money spent, and the line of waiting questions."""

from bisect import bisect_left, insort
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self

from schemas.closed_sets import JudgeKind, UnjudgedReason
from schemas.judging import JudgeRequest, TokenUse
from schemas.units import HOUR_MS, MINUTE_MS

# A circuit breaker: stops requests to an endpoint that keeps failing. Pure; time is an argument.
#
# It is a few lines instead of a library, because libraries have clocks and locks of their own, and
# tests pass the time in.


class Breaker:
    """Opens after a number of failures in a row. After a pause one question may try again, and its
    result decides.
    """

    def __init__(self, failures: int, pause_ms: int) -> None:
        self._most_failures = failures
        self._pause_ms = pause_ms
        self._failures = 0
        self._retry_at_ms: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether the endpoint counts as broken."""
        return self._retry_at_ms is not None

    def wait_ms(self, now_ms: int) -> int:
        """Returns the time until a question may be put, in ms; 0 for now."""
        return 0 if self._retry_at_ms is None else max(0, self._retry_at_ms - now_ms)

    def begin(self, now_ms: int) -> None:
        """Notes that a question is put. While open, it is the only try; others wait for its end or
        another pause.
        """
        if self._retry_at_ms is not None:
            self._retry_at_ms = now_ms + self._pause_ms

    def succeeded(self) -> None:
        """Notes an answer of the endpoint."""
        self._failures = 0
        self._retry_at_ms = None

    def failed(self, now_ms: int) -> None:
        """Notes a failure of the endpoint."""
        self._failures += 1
        if self._failures >= self._most_failures:
            self._retry_at_ms = now_ms + self._pause_ms


# Limits the requests and tokens of a minute. Pure; time is an argument.

BURST_MS: Final = 10_000
"""Part of a minute's limit that may be used at once after a pause. Endpoints apply their limits to
less than a minute, too.
"""


class Bucket:
    """A token bucket: it fills with time and empties with use. It may be overdrawn, and then all
    requests wait.
    """

    def __init__(self, per_minute: float) -> None:
        self._per_ms = per_minute / MINUTE_MS
        self._most = self._per_ms * BURST_MS
        self._level = self._most
        self._at_ms: float | None = None

    def wait_ms(self, now_ms: float, amount: float) -> float:
        """Returns the time until `amount` is available, or the whole bucket if that is less."""
        self._fill(now_ms)
        return max(0.0, (min(amount, self._most) - self._level) / self._per_ms)

    def spend(self, amount: float) -> None:
        """Takes an amount, even if it is not available yet. A negative amount is given back."""
        self._level = min(self._most, self._level - amount)

    def _fill(self, now_ms: float) -> None:
        if self._at_ms is not None:
            self._level = min(
                self._most, self._level + max(0.0, now_ms - self._at_ms) * self._per_ms
            )
        self._at_ms = now_ms if self._at_ms is None else max(self._at_ms, now_ms)


class RateLimit:
    """Limits requests and tokens a minute together. Reservations are served in their order."""

    def __init__(self, requests_per_minute: int, tokens_per_minute: int) -> None:
        self._requests = Bucket(requests_per_minute)
        self._tokens = Bucket(tokens_per_minute)

    def reserve(
        self, now_ms: float, tokens: int, count: int, patience_ms: float
    ) -> list[float] | None:
        """Places for requests that belong together.

        Args:
            now_ms: The time.
            tokens: How many each has at most.
            count: How many requests.
            patience_ms: How long they can wait.

        Returns:
            How long each has to wait; None when that is too long for one of them, and then none has
            a place.
        """
        waits_ms: list[float] = []
        for _ in range(count):
            waits_ms.append(
                max(self._requests.wait_ms(now_ms, 1), self._tokens.wait_ms(now_ms, tokens))
            )
            self._spend(1, tokens)
        if waits_ms[-1] > patience_ms:  # the last one waits longest
            self._spend(-count, -count * tokens)
            return None
        return waits_ms

    def correct(self, reserved: int, used: int, repeats: int) -> None:
        """A request is over: it had `used` tokens, where `reserved` were taken, and was repeated so
        often.
        """
        self._spend(repeats, used - reserved)

    def give_back(self, tokens: int) -> None:
        """A request with a place was not sent."""
        self._spend(-1, -tokens)

    def _spend(self, requests: int, tokens: int) -> None:
        self._requests.spend(requests)
        self._tokens.spend(tokens)


# Costs and budgets of judging: per call, per agent and hour, and per hour. Pure; time is an
# argument.
#
# Money is in the currency of the prices. An hour begins on the full hour of the clock, so it is
# known when a budget is renewed.

MAX_CALLS: Final = 20_000
"""Most calls whose spending is remembered. Beyond it, the call with the oldest spending starts at 0
again.
"""
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
        return (
            fresh * self.prompt + tokens.cached * self.cached + tokens.answer * self.answer
        ) / _TOKENS_PRICED


@dataclass(frozen=True, slots=True)
class Allowance:
    """Limits of spending."""

    per_call: float
    per_agent_hour: float
    per_hour: float


class Budget:
    """Money that was spent, and money promised to requests in flight. A promise stays in force past
    the end of its hour.
    """

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._hour = 0
        self._spent_by_agent: dict[str, float] = {}
        self._spent_by_call: OrderedDict[str, float] = OrderedDict()
        self._promised = 0.0
        self._promised_by_agent: defaultdict[str, float] = defaultdict(float)
        self._promised_by_call: defaultdict[str, float] = defaultdict(float)

    def promise(
        self, conversation_id: str, agent: str, cost: float, now_ms: int
    ) -> "Promise | None":
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
            (
                limits.per_agent_hour,
                self._spent_by_agent.get(agent, 0.0) + self._promised_by_agent.get(agent, 0.0),
            ),
            (
                limits.per_call,
                self._spent_by_call.get(conversation_id, 0.0)
                + self._promised_by_call.get(conversation_id, 0.0),
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
        used = [
            spent.get(agent, 0.0) + promised.get(agent, 0.0)
            for agent in spent.keys() | promised.keys()
        ]
        return {
            "hour": max(0.0, self._allowance.per_hour - sum(spent.values()) - self._promised),
            "agent": max(0.0, self._allowance.per_agent_hour - max(used, default=0.0)),
        }

    def _hold(self, conversation_id: str, agent: str, cost: float) -> None:
        """Raises the promised money by an amount, or lowers it if negative."""
        self._promised += cost
        for promised, key in (
            (self._promised_by_agent, agent),
            (self._promised_by_call, conversation_id),
        ):
            promised[key] += cost
            if abs(promised[key]) < 1e-12:  # the rounding error of sums of floats
                del promised[key]

    def _turn_hour(self, now_ms: int) -> None:
        if now_ms // HOUR_MS > self._hour:
            self._hour = now_ms // HOUR_MS
            self._spent_by_agent.clear()

    def _budget_of(self, agent: str) -> str:
        return (
            agent
            if agent in self._spent_by_agent or len(self._spent_by_agent) < MAX_AGENTS
            else _OTHERS
        )


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
        # two halves of one thing
        self._budget._hold(self._conversation_id, self._agent, -cost)  # noqa: SLF001

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._give_back(self._held)


# The line of waiting questions: which is next, which has expired, and which is superseded. Pure.
#
# Calls at risk come first, then the nearest deadline, then the earliest arrival. The line is
# bounded: when it is full, the last question in this order leaves.

RUNNING_KINDS: Final = frozenset({JudgeKind.CONVERSATION_PROGRESSION})
"""Kinds that judge the whole call again and again. Of each call, one is asked at a time, and only
the newest waits.
"""

Subject = tuple[str, JudgeKind, str | None]
_Rank = tuple[int, int, int, str]


@dataclass(frozen=True, slots=True)
class WaitingQuestion:
    """One question in the line.

    Attributes:
        request: The question.
        arrived_ms: When it arrived.
        deadline_ms: When a verdict is too late.
        number: Grows with every question, so that no two have the same rank.
    """

    request: JudgeRequest
    arrived_ms: int
    deadline_ms: int
    number: int

    @property
    def request_id(self) -> str:
        """Id of the question."""
        return self.request.request_id

    @property
    def subject(self) -> Subject:
        """The judged subject of the call, without the turn."""
        return (self.request.conversation_id, self.request.kind, self.request.subgoal_id)

    @property
    def rank(self) -> _Rank:
        """Sort key of the line; the question with the lowest is next."""
        return (-self.request.priority, self.deadline_ms, self.number, self.request_id)


class WaitingLine:
    """The bounded line of waiting questions."""

    def __init__(self, max_waiting: int) -> None:
        """Starts empty, with room for so many questions."""
        self._max_waiting = max_waiting
        self._by_id: dict[str, WaitingQuestion] = {}
        self._ranks: list[_Rank] = []
        self._deadlines: list[tuple[int, str]] = []
        self._newest: dict[Subject, WaitingQuestion] = {}
        self._running: set[Subject] = set()

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def next_deadline_ms(self) -> int | None:
        """The earliest deadline; None if the line is empty."""
        return self._deadlines[0][0] if self._deadlines else None

    @property
    def oldest_ms(self) -> int | None:
        """Arrival of the question that has waited longest; None if the line is empty."""
        return min((waiting.arrived_ms for waiting in self._by_id.values()), default=None)

    def put(self, waiting: WaitingQuestion) -> Iterator[tuple[WaitingQuestion, UnjudgedReason]]:
        """Adds a question.

        Yields:
            Questions that leave the line for it, with the reason; it may be the new one.
        """
        if waiting.request.kind in RUNNING_KINDS:
            other = self._newest.get(waiting.subject)
            if other is not None:
                if other.request.turn > waiting.request.turn:
                    yield waiting, UnjudgedReason.SUPERSEDED
                    return
                self._remove(other)
                yield other, UnjudgedReason.SUPERSEDED
            self._newest[waiting.subject] = waiting
        self._by_id[waiting.request_id] = waiting
        insort(self._ranks, waiting.rank)
        insort(self._deadlines, (waiting.deadline_ms, waiting.request_id))
        if len(self._by_id) > self._max_waiting:
            last = self._by_id[self._ranks[-1][-1]]
            self._remove(last)
            yield last, UnjudgedReason.QUEUE_FULL

    def pop(self) -> WaitingQuestion | None:
        """Removes and returns the next question; None when none may be asked now."""
        for rank in self._ranks:
            waiting = self._by_id[rank[-1]]
            if waiting.subject in self._running:
                continue
            self._remove(waiting)
            if waiting.request.kind in RUNNING_KINDS:
                self._running.add(waiting.subject)
            return waiting
        return None

    def finished(self, waiting: WaitingQuestion) -> None:
        """Notes that a taken question is finished, with or without a verdict."""
        self._running.discard(waiting.subject)

    def expired(self, now_ms: int) -> list[WaitingQuestion]:
        """Removes and returns the questions past their deadline."""
        gone = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            gone.append(self._by_id[self._deadlines[0][1]])
            self._remove(gone[-1])
        return gone

    def withdraw(self, request_ids: Collection[str]) -> list[WaitingQuestion]:
        """Removes questions by id, if they are in the line."""
        gone = [self._by_id[request_id] for request_id in request_ids if request_id in self._by_id]
        for waiting in gone:
            self._remove(waiting)
        return gone

    def _remove(self, waiting: WaitingQuestion) -> None:
        del self._by_id[waiting.request_id]
        del self._ranks[bisect_left(self._ranks, waiting.rank)]
        del self._deadlines[bisect_left(self._deadlines, (waiting.deadline_ms, waiting.request_id))]
        if self._newest.get(waiting.subject) is waiting:
            del self._newest[waiting.subject]
