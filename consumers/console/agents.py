"""The agents behind the calls, each version by itself: its figures of a quarter of an hour, and since when it is bad.

Pure: rows and times in.
"""

from collections import OrderedDict
from collections.abc import Generator, Iterable, Sequence
from itertools import chain
from math import ceil
from typing import Final

from msgspec import Struct

from schemas.rows import CallRow, Labels, TurnRow, number
from schemas.scores.running import ShownCall
from schemas.scores.trouble import bad_end
from schemas.units import MINUTE_MS

MINUTES: Final = 15
"""How far back figures go, one minute after the other."""
MAX_AGENTS: Final = 200
"""Versions of agents that have figures; the one of which no row came for longest makes room."""
MAX_WAITS: Final = 2_000
"""Waits kept of one version and minute; beyond it the percentiles are those of the first ones."""
MAX_AFFECTED: Final = 10_000
"""Calls counted as affected by one bad time; more are as good as this many."""
BAD_SHARE: Final = 0.1
"""Share of calls in trouble from which a version is bad: of many calls one or two are always in trouble."""
ENDED_LATELY_MS: Final = MINUTE_MS
"""How long a call that ended badly counts beside those that run."""
CALLS_OF_ONE_STEP: Final = 500
"""Calls that are looked at before everything else has its turn: half a millisecond."""

Version = tuple[str, str | None]
"""Name of an agent, and its version if calls have one."""


class AgentNow(Struct, frozen=True):
    """One version of an agent as it is now.

    Attributes:
        agent: Its name.
        version: Its version; null where its calls name none.
        calls_running: Calls that have not closed.
        calls_in_trouble: How many of them have a trouble.
        calls_ended_badly: Calls of the last quarter of an hour that ended badly.
        turns_answered: Turns of the last quarter of an hour whose wait is known.
        turns_unanswered: Turns of that time without an answer.
        wait_p50_ms: Median of these waits.
        wait_p95_ms: The wait that 95 % of them do not exceed.
        waits_p95_ms: The same by minute, the newest last; null for a minute without an answer.
        progress: Mean progress of the running calls with goals; null without any.
        bad_since_ms: Since when it is bad without a break; null while it is not.
        calls_affected: Calls that were in trouble, or ended badly, since then.
    """

    agent: str
    version: str | None
    calls_running: int
    calls_in_trouble: int
    calls_ended_badly: int
    turns_answered: int
    turns_unanswered: int
    wait_p50_ms: float | None
    wait_p95_ms: float | None
    waits_p95_ms: tuple[float | None, ...]
    progress: float | None
    bad_since_ms: int | None
    calls_affected: int

    @property
    def unanswered_share(self) -> float | None:
        """Share of the turns without an answer; None without turns."""
        turns = self.turns_answered + self.turns_unanswered
        return self.turns_unanswered / turns if turns else None


class _Minute:
    """The waits and unanswered turns that became known in one minute."""

    __slots__ = ("unanswered", "waits_ms")

    def __init__(self) -> None:
        self.waits_ms: list[float] = []
        self.unanswered = 0


class _Kept:
    """The minutes of one version, and its bad time."""

    __slots__ = ("affected", "bad_since_ms", "minutes")

    def __init__(self) -> None:
        self.minutes: dict[int, _Minute] = {}
        self.bad_since_ms: int | None = None
        self.affected: set[str] = set()

    def minute(self, at_ms: int) -> _Minute:
        """The minute of this time; those that are too old go."""
        number_of = at_ms // MINUTE_MS
        found = self.minutes.get(number_of)
        if found is None:
            found = self.minutes[number_of] = _Minute()
            for old in [each for each in self.minutes if each <= max(self.minutes) - MINUTES]:
                del self.minutes[old]
        return found

    def last(self, now_ms: int) -> list[_Minute]:
        """The minutes up to now, the oldest first."""
        newest = now_ms // MINUTE_MS
        return [self.minutes.get(each, _Minute()) for each in range(newest - MINUTES + 1, newest + 1)]


class _Sums:
    """The calls of one version at this moment."""

    def __init__(self) -> None:
        self.running = self.in_trouble = self.ended_badly = self.ended_lately = 0
        self.shares: list[float] = []
        self.affected: list[str] = []


class Agents:
    """The versions of agents, as far as rows were read.

    Attributes:
        now: All of them as they were looked at last, the worst first.
    """

    def __init__(self) -> None:
        self.now: list[AgentNow] = []
        self._kept: OrderedDict[Version, _Kept] = OrderedDict()

    def take_turn(self, row: TurnRow) -> None:
        """Takes in a row of a turn: a wait counts once, when it is known."""
        wait_ms = number(row.wait_ms)
        if "wait" not in row.news or wait_ms is None:
            return
        waits_ms = self._of(row.labels).minute(row.known_ms).waits_ms
        if len(waits_ms) < MAX_WAITS:
            waits_ms.append(wait_ms)

    def take_call(self, before: CallRow | None, row: CallRow) -> None:
        """Takes in a row of a call and the one before it; None for the first. An older row changes nothing."""
        more = row.unanswered - (0 if before is None else before.unanswered)
        if more and (before is None or before.revision <= row.revision):
            self._of(row.labels).minute(row.known_ms).unanswered += more

    def looking(self, calls: Iterable[ShownCall], now_ms: int) -> Generator[None, None, None]:
        """Brings `now` up to date, in steps between which rows may be taken in."""
        sums: dict[Version, _Sums] = {}
        for place, shown in enumerate(calls, 1):
            _add(sums.setdefault(_version_of(shown.call.labels), _Sums()), shown, now_ms)
            if place % CALLS_OF_ONE_STEP == 0:
                yield
        self.now = sorted((self._look(each, of, now_ms) for each, of in sums.items()), key=_worst_first)

    def _look(self, version: Version, of: _Sums, now_ms: int) -> AgentNow:
        kept = self._kept.get(version) or self._add(version)
        bad, calls = of.in_trouble + of.ended_lately, of.running + of.ended_lately
        if not bad or bad < BAD_SHARE * calls:
            kept.bad_since_ms, kept.affected = None, set()
        else:
            kept.bad_since_ms = kept.bad_since_ms or now_ms
            if len(kept.affected) < MAX_AFFECTED:
                kept.affected.update(of.affected)
        minutes = kept.last(now_ms)
        waits_ms = sorted(chain.from_iterable(each.waits_ms for each in minutes))
        return AgentNow(
            agent=version[0],
            version=version[1],
            calls_running=of.running,
            calls_in_trouble=of.in_trouble,
            calls_ended_badly=of.ended_badly,
            turns_answered=len(waits_ms),
            turns_unanswered=max(0, sum(each.unanswered for each in minutes)),
            wait_p50_ms=percentile(waits_ms, 50),
            wait_p95_ms=percentile(waits_ms, 95),
            waits_p95_ms=tuple(percentile(sorted(each.waits_ms), 95) for each in minutes),
            progress=sum(of.shares) / len(of.shares) if of.shares else None,
            bad_since_ms=kept.bad_since_ms,
            calls_affected=len(kept.affected),
        )

    def _of(self, labels: Labels) -> _Kept:
        version = _version_of(labels)
        kept = self._kept.get(version) or self._add(version)
        self._kept.move_to_end(version)
        return kept

    def _add(self, version: Version) -> _Kept:
        kept = self._kept[version] = _Kept()
        if len(self._kept) > MAX_AGENTS:
            self._kept.popitem(last=False)
        return kept


def _version_of(labels: Labels) -> Version:
    return labels.agent, labels.version


def _add(sums: _Sums, shown: ShownCall, now_ms: int) -> None:
    call = shown.call
    if call.state != "closed":
        sums.running += 1
        progress = None if call.goals is None else call.goals.progress
        if progress is not None and progress.subgoals:
            sums.shares.append(progress.reached / progress.subgoals)
    if shown.is_bad:
        sums.in_trouble += 1
        sums.affected.append(call.conversation_id)
    elif bad_end(call) is not None:
        sums.ended_badly += 1
        if call.known_ms >= now_ms - ENDED_LATELY_MS:
            sums.ended_lately += 1
            sums.affected.append(call.conversation_id)


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """The smallest of the ordered values that so many percent of them do not exceed; None without values."""
    return ordered[ceil(len(ordered) * percent / 100) - 1] if ordered else None


def _worst_first(each: AgentNow) -> tuple[object, ...]:
    """Bad ones first, then those with many bad calls, then those with many calls."""
    bad = each.calls_in_trouble + each.calls_ended_badly
    return each.bad_since_ms is None, -bad, -each.calls_running, each.agent, each.version or ""
