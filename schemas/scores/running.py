"""The calls that run now: which there are, which of them a person asks for, and in which order.

`top`, the demo and the page of running calls show this. Pure: rows of calls and the present time
in, lists out.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct

from schemas.closed_sets import SortKey
from schemas.rows import CallRow, Labels
from schemas.scores.shares import Shares
from schemas.scores.trouble import (
    FRESH_MS,
    Trouble,
    TroubleKind,
    bad_end,
    troubles_of,
)
from schemas.units import MINUTE_MS, MS_PER_SECOND, to_seconds

MAX_CALLS: Final = 5_000
"""Calls kept; `CallTable` says which one makes room for a new one."""

SHOWN_AFTER_END_MS: Final = 20_000
"""How long a call stays in the table after it closed, so that a person sees how it ended."""
SHOWN_AFTER_BAD_END_MS: Final = 900_000
"""The same for one that ended badly: whoever looks after a page has rung finds it."""


class _Kept:
    """A call of the table, and its troubles as they were shown last; None before, and when they may
    have changed.
    """

    __slots__ = ("call", "troubles")

    def __init__(self, call: CallRow) -> None:
        self.call = call
        self.troubles: tuple[Trouble, ...] | None = None


class CallTable:
    """The calls that run, and those that ended lately. Taking in a row takes constant time, however
    many calls there are.

    When it is full, a call that ended makes room, otherwise the quietest call of the tenant with
    the most running ones: no tenant pushes out the calls of another one.

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

    def newest(self, conversation_id: str) -> CallRow | None:
        """The newest row of a call; None for one that is not in the table."""
        kept = self._calls.get(conversation_id)
        return None if kept is None else kept.call

    def ending_in(self, end: str) -> str | None:
        """The id of the only call whose id ends so: lists show the end of one; None for several."""
        found = [each for each in self._calls if end and each != end and each.endswith(end)]
        return found[0] if len(found) == 1 else None

    def put_row(self, call: CallRow) -> None:
        """Takes in the newest row of a call. One that is older than that in the table changes
        nothing.
        """
        conversation_id = call.conversation_id
        kept = self._calls.get(conversation_id)
        if kept is not None and kept.call.revision > call.revision:
            return
        was_open = kept is None or kept.call.state != "closed"
        if kept is None:
            self._make_room()
            self._calls[conversation_id] = _Kept(call)
        else:
            kept.call, kept.troubles = call, None
        if call.state != "closed":
            self._running.use(conversation_id, call.labels.tenant)
            return
        self._ended[conversation_id] = None
        self._ended.move_to_end(conversation_id)
        if was_open:
            self._running.discard(conversation_id)
            self.calls_ended += 1

    def shown(self, now_ms: int, known_ms: int) -> list["ShownCall"]:
        """Returns the calls in the order in which they began, without those that closed a while
        ago. The troubles of a call without a new row are kept, unless time alone changes them.

        Args:
            now_ms: The present, in epoch ms.
            known_ms: The time up to which waits are counted.
        """
        return whole(self.showing(now_ms, known_ms))

    def showing(self, now_ms: int, known_ms: int) -> Generator[None, None, list["ShownCall"]]:
        """As `shown`, in steps of one call, between which rows may be taken in: each call is as its
        step finds it.
        """
        calls = []
        for conversation_id, kept in list(self._calls.items()):
            call = kept.call
            if call.state == "closed" and call.known_ms < now_ms - _shown_after_end_ms(call):
                if conversation_id in self._ended:  # it may have made room meanwhile
                    del self._calls[conversation_id], self._ended[conversation_id]
                continue
            if kept.troubles is None or call.waiting is not None or call.errors is not None:
                kept.troubles = troubles_of(call, known_ms)
            calls.append(ShownCall(call, kept.troubles))
            yield
        calls.sort(key=lambda each: (each.call.first_known_ms, each.call.conversation_id))
        return calls

    @property
    def calls_running(self) -> int:
        """Calls in the table that have not closed."""
        return len(self._running)

    def calls_heard_since(self, at_ms: int) -> int:
        """Calls that have had an event since, without those whose end was announced."""
        return sum(
            kept.call.state == "running" and heard_ms(kept.call) >= at_ms
            for kept in self._calls.values()
        )

    def _make_room(self) -> None:
        if len(self._calls) < self._max_calls:
            return
        if self._ended:
            gone, _ = self._ended.popitem(last=False)
        else:
            gone = self._running.make_room()
            self.calls_dropped += 1
        del self._calls[gone]


def _shown_after_end_ms(call: CallRow) -> int:
    return SHOWN_AFTER_END_MS if bad_end(call) is None else SHOWN_AFTER_BAD_END_MS


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
    """A call and what is wrong with it, the worst first.

    Attributes:
        call: Its newest row.
        troubles: What is wrong.
        has_stopped: Whether its events stopped with those of all calls, and none has come since:
            it may be over.
    """

    call: CallRow
    troubles: tuple[Trouble, ...]
    has_stopped: bool = False

    @property
    def is_bad(self) -> bool:
        """Whether anything is wrong with it."""
        return bool(self.troubles)

    @property
    def ending(self) -> str | None:
        """How it ended badly, in words; None while it runs, and if it ended well enough."""
        return bad_end(self.call)


def heard_ms(call: CallRow) -> int:
    """When the newest event of a call came, by the broker's clock."""
    return call.last_known_ms or call.known_ms


def _by_trouble(shown: ShownCall) -> tuple[float, int]:
    """The worst first, then those that ended badly, the newest first, then those without events, the
    healthy ones, and those that are over.
    """
    if shown.troubles:
        return -shown.troubles[0].rank, 0
    if shown.ending is not None:
        return 0, -shown.call.known_ms
    if shown.call.state != "running":
        return 0, 3
    return 0, 1 if shown.has_stopped else 2


def _by_latency(shown: ShownCall) -> float:
    if shown.call.in_vain_ms is not None:
        return -shown.call.in_vain_ms
    return math.inf if shown.call.answer is None else -shown.call.answer.wait_ms


_ORDERS: Final[dict[SortKey, Callable[[ShownCall], tuple[float, int] | float | str]]] = {
    "trouble": _by_trouble,
    "quiet": lambda shown: heard_ms(shown.call),
    "latency": _by_latency,
    "began": lambda shown: shown.call.first_known_ms,
    "agent": lambda shown: shown.call.labels.agent,
}


SILENT_MS: Final = 20_000
"""Time without an event of any call, while several run, from which their agents are not judged: a
partition says every ten seconds how far it is.
"""
SILENT_CALLS: Final = 3
"""So many calls do not fall silent together by themselves; one or two may."""
STALE_MS: Final = 15_000
"""How far behind the present the rows may be that tell of it: a partition without events says every
ten seconds how far it is.
"""


class KnownTime:
    """Up to when all that happened is in the rows that were read.

    Attributes:
        newest_ms: The newest `known_ms` of a row of a turn or of a call; None before the first.
        stopped_ms: When the events of all calls stopped last, as far as this process saw it; 0 if
            they never did.
    """

    def __init__(self) -> None:
        self.newest_ms: int | None = None
        self.stopped_ms = 0
        self._is_silent = False
        self._partitions: dict[int, int] = {}
        self._events: dict[int, int] = {}

    def note(self, known_ms: int) -> None:
        """Takes in the time of a row of a turn or of a call."""
        self.newest_ms = max(self.newest_ms or 0, known_ms)

    def take_partition(self, number: int, known_ms: int, event_ms: int = 0) -> None:
        """Takes in how far a partition is, and when its newest event came; its row says so even
        while no event comes.
        """
        self._partitions[number] = max(known_ms, self._partitions.get(number, 0))
        self._events[number] = event_ms

    @property
    def event_ms(self) -> int:
        """When the newest event of any call came; 0 where no partition has said it."""
        return max(self._events.values(), default=0)

    def silent_ms(self, now_ms: int, calls_running: int) -> int:
        """How long no event of any call has come, from when several calls fell silent together
        until the next event; otherwise 0.
        """
        silent_ms = now_ms - self.event_ms
        is_long = self.event_ms > 0 and silent_ms >= SILENT_MS
        # calls without events close, and that is no news of their agents
        self._is_silent = is_long and (self._is_silent or calls_running >= SILENT_CALLS)
        if self._is_silent:
            self.stopped_ms = self.event_ms
        return silent_ms if self._is_silent else 0

    @property
    def reached_ms(self) -> int | None:
        """Where the partition is that is furthest behind; where none has said it, the time of the
        newest row.
        """
        return min(self._partitions.values(), default=self.newest_ms)


def age_of_data(known: KnownTime, now_ms: int, calls_running: int) -> tuple[str, bool]:
    """How old the newest score is, in words, and whether what is known is too old to say anything
    of the calls that run. The end of a silence makes a score, too: it is no age of an event.

    Args:
        known: Up to when what happened is known.
        now_ms: The present, in epoch ms.
        calls_running: Calls that have not closed.
    """
    if known.newest_ms is None or known.reached_ms is None:
        return "no score yet", False
    newest_ms, what = known.newest_ms, "nothing new"
    if known.event_ms:
        newest_ms, what = known.event_ms, "no event"
    age_ms, behind_ms = max(0, now_ms - newest_ms), max(0, now_ms - known.reached_ms)
    if calls_running and behind_ms > STALE_MS:
        return (
            f"SCORES ARE {behind_ms // MS_PER_SECOND} s OLD: does callgauge run?",
            True,
        )
    if age_ms < FRESH_MS:
        age_ms = max(0, now_ms - known.newest_ms)
        return f"newest score {to_seconds(age_ms):.1f} s old", False
    minutes, seconds = divmod(age_ms // MS_PER_SECOND, 60)
    return f"{what} for {minutes}:{seconds:02}", False


@dataclass(frozen=True, slots=True)
class WantedCalls:
    """The calls that a person asks for, and their order.

    Attributes:
        agents: Names of agents; empty for all.
        versions: Their versions; empty for all.
        tenants: Names of tenants; empty for all.
        environments: Names of environments; empty for all.
        text: Part of the id, of a label, or of what is wrong, in any case; empty for all.
        only_bad: Whether only calls in trouble are shown, and those that ended badly.
        sort: `trouble`: the worst first, then the healthy ones in the order in which they began,
            then those that are over; `quiet`: the longest without an event first; `latency`: the
            slowest newest answer first; `began`, `agent`.
    """

    agents: frozenset[str] = frozenset()
    tenants: frozenset[str] = frozenset()
    environments: frozenset[str] = frozenset()
    text: str = ""
    only_bad: bool = False
    sort: SortKey = "trouble"
    versions: frozenset[str] = frozenset()

    @property
    def is_by_label(self) -> bool:
        """Whether calls with some labels alone are asked for."""
        return bool(self.agents or self.versions or self.tenants or self.environments)

    def include(self, labels: Labels) -> bool:
        """Whether calls with these labels are asked for."""
        return (
            (not self.agents or labels.agent in self.agents)
            and (not self.versions or labels.version in self.versions)
            and (not self.tenants or labels.tenant in self.tenants)
            and (not self.environments or labels.environment in self.environments)
        )


EVERY_CALL: Final = WantedCalls()


@dataclass(frozen=True, slots=True)
class ShownCalls:
    """The calls at one moment.

    Attributes:
        calls: The calls in their order.
        running: How many of the calls that are asked for run.
        bad: How many of them are in trouble.
        ended_badly: How many have ended badly in the last quarter of an hour.
        age: How old the newest score is, in words.
        is_stale: Whether it is too old to say anything of now.
        is_ranked: Whether the worst calls come first.
        silent_ms: How long no event of any call has come, since several fell silent; otherwise 0.
    """

    calls: list[ShownCall]
    running: int
    bad: int
    ended_badly: int
    age: str
    is_stale: bool
    is_ranked: bool
    silent_ms: int = 0


@dataclass(frozen=True, slots=True)
class RunningCalls:
    """All calls at one moment, without those that were over for a while. Several readers choose
    from it.

    What all choices need is made once: the calls in each order, and the text that is searched.

    Attributes:
        calls: The calls and their troubles, in the order in which they began.
        age: How old the newest score is, in words.
        is_stale: Whether it is too old to say anything of now.
        silent_ms: How long no event of any call has come, since several fell silent; otherwise 0.
    """

    calls: list[ShownCall]
    age: str
    is_stale: bool
    silent_ms: int = 0
    _said: list[tuple[ShownCall, str]] = field(default_factory=list, compare=False, repr=False)
    _ordered: dict[SortKey, list[tuple[ShownCall, str]]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def chosen(self, wanted: WantedCalls) -> ShownCalls:
        """The calls that are asked for, in their order."""
        found: Iterable[tuple[ShownCall, str]] = self._in_order(wanted.sort)
        if wanted.is_by_label:
            found = [each for each in found if wanted.include(each[0].call.labels)]
        if wanted.text:
            text = wanted.text.casefold()
            found = [each for each in found if text in each[1]]
        everything = [call for call, _ in found]
        return ShownCalls(
            calls=[call for call in everything if call.is_bad or call.ending]
            if wanted.only_bad
            else everything,
            running=sum(shown.call.state == "running" for shown in everything),
            bad=sum(call.is_bad for call in everything),
            ended_badly=sum(call.ending is not None for call in everything),
            age=self.age,
            is_stale=self.is_stale,
            is_ranked=wanted.sort == "trouble",
            silent_ms=self.silent_ms,
        )

    def _in_order(self, sort: SortKey) -> list[tuple[ShownCall, str]]:
        """The calls in this order, each with all that a list says of it."""
        ordered = self._ordered.get(sort)
        if ordered is None:
            if not self._said:
                # at once: several threads may choose
                self._said[:] = [(call, _said_of(call)) for call in self.calls]
            order = _ORDERS[sort]
            ordered = self._ordered[sort] = sorted(self._said, key=lambda each: order(each[0]))
        return ordered


def _said_of(shown: ShownCall) -> str:
    """The texts of a call in a list, in which a person searches: its id, its labels, and what is
    wrong.
    """
    labels, ending = shown.call.labels, shown.ending
    said = [
        shown.call.conversation_id,
        labels.agent,
        labels.version or "",
        labels.tenant,
        labels.environment,
    ]
    wrong = [] if ending is None else [ending]
    return "\n".join([*said, *wrong, *(trouble.reason for trouble in shown.troubles)]).casefold()


def running_now(table: CallTable, known: KnownTime, now_ms: int) -> RunningCalls:
    """The calls as they are now. Waits are counted up to what is known, if that is too old: what
    has happened since is not known.

    Args:
        table: The calls.
        known: Up to when what happened is known.
        now_ms: The present, in epoch ms.
    """
    return whole(looking(table, known, now_ms))


def looking(table: CallTable, known: KnownTime, now_ms: int) -> Generator[None, None, RunningCalls]:
    """As `running_now`, in steps of one call, between which records may be taken in."""
    age, is_stale = age_of_data(known, now_ms, table.calls_running)
    reached_ms = known.reached_ms
    # a row says when the newest event came, and there is one in each minute
    live = table.calls_heard_since(known.event_ms - MINUTE_MS - SILENT_MS)
    silent_ms = 0 if is_stale else known.silent_ms(now_ms, live)
    until_ms = now_ms
    if is_stale and reached_ms is not None:
        until_ms = reached_ms
    elif silent_ms:
        until_ms = known.event_ms
    calls = yield from table.showing(now_ms, until_ms)
    if stopped_ms := known.stopped_ms:
        calls = [_as_of(each, stopped_ms, goes_on=bool(silent_ms) or is_stale) for each in calls]
    return RunningCalls(calls, age, is_stale, silent_ms)


_DECIDED_BY_TIME: Final = frozenset({TroubleKind.SILENT, TroubleKind.STALLED, TroubleKind.DEAD_AIR})
"""Not that the agent is mute: its caller has asked again, and that was an event."""


def _as_of(shown: ShownCall, stopped_ms: int, *, goes_on: bool) -> ShownCall:
    """A call without what time alone has decided since the events of all calls stopped: nobody knows
    what has happened since. If the events of others came back and its own did not, it is most likely
    over, and time says nothing of it any more.
    """
    call, until_ms = shown.call, stopped_ms + MS_PER_SECOND
    if heard_ms(call) > until_ms or call.state != "running":
        return shown
    if goes_on and call.known_ms <= until_ms:
        return shown._replace(has_stopped=True)
    troubles = tuple(each for each in shown.troubles if each.kind not in _DECIDED_BY_TIME)
    return shown._replace(troubles=troubles, has_stopped=True)


# The running calls for programs: what `top --json` and the API of the console give.


class ListedCall(Struct):
    """A running call: its row, as `docs/tables.md` has it, and what follows from it now.

    Attributes:
        call: Its row. A field that is not there has its default.
        troubles: What is wrong now, the worst first.
        ended_badly: How a call that is over ended badly, in words; null otherwise.
        quiet_ms: Time since its newest event, as far as its rows tell.
    """

    call: CallRow
    troubles: tuple[Trouble, ...]
    ended_badly: str | None
    quiet_ms: int


class CallList(Struct):
    """The calls that run now, and those that ended in the last seconds; times in epoch ms, null for
    unknown values.

    Attributes:
        at_ms: The present.
        newest_score_ms: Broker time of the newest cause of any row.
        is_stale: Whether that is too old to say anything of the present.
        calls_running: Calls that have not closed.
        calls_in_trouble: How many of them have a trouble.
        calls_ended: Calls that were seen to close.
        calls_left_out: Calls that made room for others while they still ran.
        unreadable_records: Values of `scores` that are no rows.
        calls: The calls, in the order that was asked for.
    """

    at_ms: int
    newest_score_ms: int | None
    is_stale: bool
    calls_running: int
    calls_in_trouble: int
    calls_ended: int
    calls_left_out: int
    unreadable_records: int
    calls: list[ListedCall]


def call_list(
    table: CallTable,
    shown: ShownCalls,
    now_ms: int,
    *,
    newest_ms: int | None,
    ended: int,
    unreadable: int,
    most: int | None = None,
) -> CallList:
    """Lists the calls that were chosen.

    Args:
        table: The calls that they were chosen from.
        shown: The chosen ones.
        now_ms: The present, in epoch ms.
        newest_ms: Broker time of the newest cause of any row; None without one.
        ended: Calls that were seen to close.
        unreadable: Values of `scores` that are no rows.
        most: Most calls of the list; None for all.
    """
    return CallList(
        at_ms=now_ms,
        newest_score_ms=newest_ms,
        is_stale=shown.is_stale,
        calls_running=shown.running,
        calls_in_trouble=shown.bad,
        calls_ended=ended,
        calls_left_out=table.calls_dropped,
        unreadable_records=unreadable,
        calls=[
            ListedCall(each.call, each.troubles, each.ending, max(0, now_ms - heard_ms(each.call)))
            for each in shown.calls[:most]
        ],
    )
