"""The calls that run now, folded from `scores`: which there are, which of them a person asks for, and in which order.

`top`, the demo and the page of running calls show this. Pure: records and the present time in, views out.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self, TypeVar

from pydantic import BaseModel

from schemas.closed_sets import Anchor, CloseReason, PipelineType, SortKey
from schemas.scores.live_view import CallFold, CallView, ShownRecord
from schemas.scores.records import CallLabels
from schemas.scores.shares import Shares
from schemas.scores.trouble import FRESH_MS, Trouble, TroubleKind, troubles_of
from schemas.units import MS_PER_SECOND, to_seconds

MAX_CALLS: Final = 5_000
"""Calls kept; `CallTable` says which one makes room for a new one."""

SHOWN_AFTER_END_MS: Final = 20_000
"""How long a call stays in the table after it closed, so that a person sees how it ended."""


class _Kept:
    """A call of the table, and its troubles as they were shown last; None before, and when they may have changed."""

    __slots__ = ("fold", "troubles")

    def __init__(self, fold: CallFold) -> None:
        self.fold = fold
        self.troubles: tuple[Trouble, ...] | None = None


class CallTable:
    """The calls that run, and those that ended lately. Taking in a record takes constant time, however many calls there are.

    When it is full, a call that ended makes room, otherwise the quietest call of the tenant with the most running ones: no tenant
    pushes out the calls of another one.

    Attributes:
        calls_ended: Calls seen to close, since the table was made.
        calls_dropped: Calls that made room for others while they still ran.
    """

    def __init__(self, max_calls: int = MAX_CALLS) -> None:
        self.calls_ended = 0
        self.calls_dropped = 0
        self._max_calls = max_calls
        self._calls: dict[str, _Kept] = {}
        self._running = Shares()
        self._ended: OrderedDict[str, None] = OrderedDict()
        """Ids of the calls that ended, the quietest first."""

    def fold(self, record: ShownRecord) -> None:
        """Takes in one record."""
        conversation_id = record.conversation_id
        kept = self._calls.get(conversation_id)
        was_open = kept is None or kept.fold.closed is None
        if kept is None:
            self._make_room()
            kept = self._calls[conversation_id] = _Kept(CallFold(record))
        elif kept.fold.fold(record):
            kept.troubles = None
        if kept.fold.closed is None:
            self._running.use(conversation_id, kept.fold.labels.tenant)
            return
        self._ended[conversation_id] = None
        self._ended.move_to_end(conversation_id)
        if was_open:
            self._running.discard(conversation_id)
            self.calls_ended += 1

    def rows(self, now_ms: int) -> list[CallView]:
        """Returns the calls in the order in which they began, without those that closed over `SHOWN_AFTER_END_MS` ago."""
        return [call.view for call in self.shown(now_ms, now_ms)]

    def shown(self, now_ms: int, known_ms: int) -> list["ShownCall"]:
        """The same with their troubles. Those of a call without new records are kept, unless time alone changes them.

        Args:
            now_ms: The present, in epoch ms.
            known_ms: The time up to which waits are counted.
        """
        return whole(self.showing(now_ms, known_ms))

    def showing(self, now_ms: int, known_ms: int) -> Generator[None, None, list["ShownCall"]]:
        """As `shown`, in steps of one call, between which records may be taken in: each call is as its step finds it."""
        calls = []
        for conversation_id, kept in list(self._calls.items()):
            fold = kept.fold
            if fold.closed is not None and fold.changed_ms < now_ms - SHOWN_AFTER_END_MS:
                if conversation_id in self._ended:  # it may have made room meanwhile
                    del self._calls[conversation_id], self._ended[conversation_id]
                continue
            view = fold.view()
            if kept.troubles is None or view.wait is not None or view.errors is not None:
                kept.troubles = troubles_of(view, known_ms)
            calls.append(ShownCall(view, kept.troubles))
            yield
        calls.sort(key=lambda call: (call.view.first_seen_ms, call.view.conversation_id))
        return calls

    @property
    def calls_running(self) -> int:
        """Calls in the table that have not closed."""
        return len(self._running)

    def _make_room(self) -> None:
        if len(self._calls) < self._max_calls:
            return
        if self._ended:
            gone, _ = self._ended.popitem(last=False)
        else:
            gone = self._running.make_room()
            self.calls_dropped += 1
        del self._calls[gone]


Result = TypeVar("Result")


def whole(steps: Generator[None, None, Result]) -> Result:
    """The result of work that is done in steps, without a pause between them."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: Result = done.value
            return result


# The order of the calls: those in trouble first, the worst at the top.


class ShownCall(NamedTuple):
    """A call and what is wrong with it, the worst first."""

    view: CallView
    troubles: tuple[Trouble, ...]

    @property
    def is_bad(self) -> bool:
        """Whether anything is wrong with it."""
        return bool(self.troubles)


def _by_trouble(call: ShownCall) -> tuple[float, bool]:
    return -(call.troubles[0].rank if call.troubles else 0), call.view.closed is not None


def _by_latency(call: ShownCall) -> float:
    return -call.view.latency.latency_ms if call.view.latency else math.inf


_ORDERS: Final[dict[SortKey, Callable[[ShownCall], tuple[float, bool] | float | str]]] = {
    "trouble": _by_trouble,
    "quiet": lambda call: call.view.changed_ms,
    "latency": _by_latency,
    "began": lambda call: call.view.first_seen_ms,
    "agent": lambda call: call.view.agent,
}


def age_of_data(newest_ms: int | None, now_ms: int, calls_running: int) -> tuple[str, bool]:
    """How old the newest score is, in words, and whether that is too old to say anything of the calls that run.

    Args:
        newest_ms: Broker time of the newest cause of any score; None without one.
        now_ms: The present, in epoch ms.
        calls_running: Calls that have not closed.
    """
    if newest_ms is None:
        return "no score yet", False
    age_ms = max(0, now_ms - newest_ms)
    is_stale = calls_running > 0 and age_ms > FRESH_MS
    age = f"{to_seconds(age_ms):.1f} s" if age_ms < FRESH_MS else f"{age_ms // MS_PER_SECOND} s"
    return (f"SCORES ARE {age} OLD: does an evaluator run?" if is_stale else f"newest score {age} old"), is_stale


@dataclass(frozen=True, slots=True)
class WantedCalls:
    """The calls that a person asks for, and their order.

    Attributes:
        agents: Names of agents; empty for all.
        tenants: Names of tenants; empty for all.
        environments: Names of environments; empty for all.
        text: Part of the id, of a label, or of what is wrong, in any case; empty for all.
        only_bad: Whether only calls in trouble are shown.
        sort: `trouble`: the worst first, then the healthy ones in the order in which they began, then those that are over;
            `quiet`: the longest without a record first; `latency`: the slowest newest answer first; `began`, `agent`.
    """

    agents: frozenset[str] = frozenset()
    tenants: frozenset[str] = frozenset()
    environments: frozenset[str] = frozenset()
    text: str = ""
    only_bad: bool = False
    sort: SortKey = "trouble"

    def include(self, labels: CallLabels) -> bool:
        """Whether calls with these labels are asked for."""
        return (
            (not self.agents or labels.agent in self.agents)
            and (not self.tenants or labels.tenant in self.tenants)
            and (not self.environments or labels.environment in self.environments)
        )


EVERY_CALL: Final = WantedCalls()


@dataclass(frozen=True, slots=True)
class ShownCalls:
    """The calls at one moment.

    Attributes:
        calls: The calls in their order.
        running: How many of the calls that are asked for have not closed.
        bad: How many of them are in trouble.
        age: How old the newest score is, in words.
        is_stale: Whether it is too old to say anything of now.
        is_ranked: Whether the worst calls come first.
    """

    calls: list[ShownCall]
    running: int
    bad: int
    age: str
    is_stale: bool
    is_ranked: bool


@dataclass(frozen=True, slots=True)
class RunningCalls:
    """All calls at one moment, without those that were over for a while. Several readers choose from it.

    What all choices need is made once: the calls in each order, and the text that is searched.

    Attributes:
        calls: The calls and their troubles, in the order in which they began.
        age: How old the newest score is, in words.
        is_stale: Whether it is too old to say anything of now.
    """

    calls: list[ShownCall]
    age: str
    is_stale: bool
    _said: list[tuple[ShownCall, str]] = field(default_factory=list, compare=False, repr=False)
    _ordered: dict[SortKey, list[tuple[ShownCall, str]]] = field(default_factory=dict, compare=False, repr=False)

    def chosen(self, wanted: WantedCalls) -> ShownCalls:
        """The calls that are asked for, in their order."""
        found: Iterable[tuple[ShownCall, str]] = self._in_order(wanted.sort)
        if wanted.agents or wanted.tenants or wanted.environments:
            found = [each for each in found if wanted.include(each[0].view.labels)]
        if wanted.text:
            text = wanted.text.casefold()
            found = [each for each in found if text in each[1]]
        everything = [call for call, _ in found]
        bad = [call for call in everything if call.troubles]
        return ShownCalls(
            calls=bad if wanted.only_bad else everything,
            running=sum(call.view.closed is None for call in everything),
            bad=len(bad),
            age=self.age,
            is_stale=self.is_stale,
            is_ranked=wanted.sort == "trouble",
        )

    def _in_order(self, sort: SortKey) -> list[tuple[ShownCall, str]]:
        """The calls in this order, each with all that a list says of it."""
        ordered = self._ordered.get(sort)
        if ordered is None:
            if not self._said:
                self._said[:] = [(call, _said_of(call)) for call in self.calls]  # at once: several threads may choose
            order = _ORDERS[sort]
            ordered = self._ordered[sort] = sorted(self._said, key=lambda each: order(each[0]))
        return ordered


def _said_of(call: ShownCall) -> str:
    """The texts of a call in a list, in which a person searches: its id, its labels, and what is wrong."""
    labels = call.view.labels
    said = [call.view.conversation_id, labels.agent, labels.tenant, labels.environment]
    return "\n".join([*said, *(trouble.reason for trouble in call.troubles)]).casefold()


def running_now(table: CallTable, newest_ms: int | None, now_ms: int) -> RunningCalls:
    """The calls as they are now. While the newest score is too old, waits are counted up to it: what has happened since is not known.

    Args:
        table: The calls.
        newest_ms: Broker time of the newest cause of any score; None without one.
        now_ms: The present, in epoch ms.
    """
    return whole(looking(table, newest_ms, now_ms))


def looking(table: CallTable, newest_ms: int | None, now_ms: int) -> Generator[None, None, RunningCalls]:
    """As `running_now`, in steps of one call, between which records may be taken in."""
    age, is_stale = age_of_data(newest_ms, now_ms, table.calls_running)
    known_ms = newest_ms if is_stale and newest_ms is not None else now_ms
    calls = yield from table.showing(now_ms, known_ms)
    return RunningCalls(calls, age, is_stale)


# One running call for programs: what `top --json` and the API of the console give.


class ListedTrouble(BaseModel):
    """One trouble of a call: its kind, its rank (the higher, the worse), and the reason in words."""

    kind: TroubleKind
    rank: float
    reason: str


class ListedLatency(BaseModel):
    """The newest latency of a call: the turn that was answered, milliseconds, and how the end of the user's speech is known."""

    turn: int
    latency_ms: float
    anchor: Anchor | None


class ListedGoals(BaseModel):
    """Subgoals of a call by their state: `reached` of `subgoals`, and `missing` without a verdict."""

    reached: int
    missing: int
    subgoals: int


class ListedEnd(BaseModel):
    """How a call ended: why callgauge closed it, and the reason that the bot gave."""

    reason: CloseReason
    ended_reason: str | None


class ListedCall(BaseModel):
    """A call as its score records show it now: times in epoch ms, durations in ms, null for unknown values.

    Attributes:
        conversation_id: Its id.
        agent: Name of the voice agent; `unknown` until the call names it.
        tenant: Whose call it is; `unknown` as well.
        environment: Where it runs; `unknown` as well.
        pipeline_type: The agent's pipeline.
        version: The agent's version, if the call says it.
        first_seen_ms: Broker time of its first score.
        changed_ms: Broker time of its newest score.
        quiet_ms: Time since then.
        waiting_since_ms: Broker time from which the caller waits in silence, once that is dead air; null otherwise.
        troubles: What is wrong now, the worst first.
        turn: The newest turn.
        latency: The newest latency.
        user_interruptions: How often the user interrupted the assistant.
        assistant_interruptions: How often the assistant interrupted the user.
        dead_airs: How often nobody spoke for longer than the threshold.
        tool_calls: Tool calls with an outcome.
        goals: Its subgoals after the newest judged turn.
        is_stalled: Whether it reached no further subgoal since its last stall.
        is_over: Whether it is over; it may still wait for verdicts.
        closed: How it ended, once it is closed.
    """

    conversation_id: str
    agent: str
    tenant: str
    environment: str
    pipeline_type: PipelineType
    version: str | None
    first_seen_ms: int
    changed_ms: int
    quiet_ms: int
    waiting_since_ms: int | None
    troubles: list[ListedTrouble]
    turn: int | None
    latency: ListedLatency | None
    user_interruptions: int
    assistant_interruptions: int
    dead_airs: int
    tool_calls: int
    goals: ListedGoals | None
    is_stalled: bool
    is_over: bool
    closed: ListedEnd | None

    @classmethod
    def of(cls, call: ShownCall, now_ms: int) -> Self:
        """The call at this time."""
        view = call.view
        latency, goals, closed = view.latency, view.goals, view.closed
        return cls(
            conversation_id=view.conversation_id,
            **dict(view.labels),
            version=view.version,
            first_seen_ms=view.first_seen_ms,
            changed_ms=view.changed_ms,
            quiet_ms=max(0, now_ms - view.changed_ms),
            waiting_since_ms=None if view.wait is None else view.wait.since_ms,
            troubles=[ListedTrouble(kind=each.kind, rank=each.rank, reason=each.reason) for each in call.troubles],
            turn=view.turn,
            latency=None if latency is None else ListedLatency(**latency._asdict()),
            user_interruptions=view.user_interruptions,
            assistant_interruptions=view.assistant_interruptions,
            dead_airs=view.dead_airs,
            tool_calls=view.tool_calls,
            goals=None if goals is None else ListedGoals(**goals._asdict()),
            is_stalled=view.is_stalled,
            is_over=view.is_over,
            closed=None if closed is None else ListedEnd(reason=closed.reason, ended_reason=closed.ended_reason),
        )
