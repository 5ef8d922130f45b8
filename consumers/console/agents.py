"""Figures of a quarter of an hour, minute by minute: of all calls, of those with the same labels,
and of the agents behind them.

Each version of an agent is by itself, with since when it is bad. Pure: rows and times in.
"""

from collections import Counter, OrderedDict
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, fields
from math import ceil
from typing import Final, TypeVar

from msgspec import Struct, structs

from schemas.closed_sets import CallOutcome
from schemas.rows import CallRow, Labels, TurnRow, number
from schemas.scores.latency_stages import Stage
from schemas.scores.running import ShownCall, WantedCalls, heard_ms
from schemas.scores.trouble import SLOW_MS, TroubleKind, bad_end
from schemas.units import MINUTE_MS

MINUTES: Final = 15
"""How far back figures go, one minute after the other."""
WINDOW_MS: Final = MINUTES * MINUTE_MS
MAX_KEPT: Final = 1_000
"""Versions of agents, and sets of labels, that have figures; those of which no row came for longest
make room.
"""
WAIT_STEP_MS: Final = 10
"""Waits are counted in steps of this: people read no more of one."""
MAX_WAIT_MS: Final = 600_000
"""Longer waits count as this long, so a minute has a bounded number of different ones."""
MAX_AFFECTED: Final = 10_000
"""Calls counted as affected by one bad time; more are as good as this many."""
MOST_WHOSE: Final = 3
"""Tenants and environments that a bad time names."""
BAD_SHARE: Final = 0.1
"""Share of calls in trouble from which a version is bad: of many calls one or two are always in
trouble.
"""
FEW_CALLS: Final = 1
"""So few calls make a version bad by one of them whose caller asked again in vain or waits for long,
whose tool failed again, that had an error or ended badly; of more it takes two. One slow turn of one
call says nothing of its agent.
"""
SURE_MS: Final = 2_000
"""A caller waits for his agent if an event of any call came so long after his wait began. Until
then the events may only be missing, and of several calls that is what it mostly is.
"""
NO_ANSWER_MS: Final = 10_000
"""A caller who has waited this long counts as not answered, and his answer as no slow one."""
GRAVE_MS: Final = 20_000
"""A wait of one call that says enough of its agent."""
ENDED_LATELY_MS: Final = MINUTE_MS
"""How long a call that ended badly counts beside those that run: it makes its version bad, and
keeps none bad after its end.
"""
PAUSE_MS: Final = MINUTE_MS
"""A version that is bad again so soon has not been well between, and one that was bad for less is
soon forgotten.
"""
CALLS_OF_ONE_STEP: Final = 500
"""Calls that are looked at before everything else has its turn: half a millisecond."""

Version = tuple[str, str | None]
"""Name of an agent, and its version if calls have one."""
_Key = Version | Labels | None
"""Whose figures: those of a version, of calls with the same labels, or of all calls."""
_Wrong = tuple[TroubleKind | None, Stage | None]
"""The trouble of a call, and the slowest stage of its answers if those are slow. Those that people
have one word for are one: `slow` is `very_slow`, and `dead_air` is `silent`.
"""
_Named = TypeVar("_Named")


@dataclass(slots=True)
class Minute:
    """What became known in one minute, and the calls at its end.

    Attributes:
        waits: Number of answers by their wait, in steps of `WAIT_STEP_MS`.
        vain_waits: The same of callers whose call ended while they waited.
        open_waits: The same of callers who waited at its end for longer than the objective: their
            answers took that long at least.
        unanswered: Turns without an answer.
        ended_badly: Calls that ended badly.
        judged: Calls with goals that closed, and of which it is known whether they reached all.
        unjudged: Other calls with goals that closed.
        successes: Calls that closed and reached all goals.
        running: Calls that ran.
        in_trouble: How many of them were in trouble.
    """

    waits: Counter[int] = field(default_factory=Counter)
    vain_waits: Counter[int] = field(default_factory=Counter)
    open_waits: Counter[int] = field(default_factory=Counter)
    unanswered: int = 0
    ended_badly: int = 0
    judged: int = 0
    unjudged: int = 0
    successes: int = 0
    running: int = 0
    in_trouble: int = 0

    def add(self, other: "Minute") -> None:
        """Adds the figures of other calls, or of another minute."""
        self.waits.update(dict(other.waits))  # a copy: rows may be taken in meanwhile
        self.vain_waits.update(dict(other.vain_waits))
        self.open_waits.update(dict(other.open_waits))
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def wait_ms(self, percent: int) -> float | None:
        """The smallest wait that so many percent of them do not exceed; None without any."""
        every = Counter(dict(self.waits))  # a copy, as above
        every.update(dict(self.vain_waits))
        every.update(dict(self.open_waits))
        counts = sorted(every.items())
        left = ceil(sum(count for _, count in counts) * percent / 100)
        for steps, count in counts:
            left -= count
            if left <= 0:
                return float(steps * WAIT_STEP_MS)
        return None

    def figures(self) -> "Figures":
        """What is told of it."""
        return Figures(
            calls_running=self.running,
            calls_in_trouble=self.in_trouble,
            calls_ended_badly=max(0, self.ended_badly),
            turns_answered=sum(self.waits.values()),
            turns_unanswered=max(0, self.unanswered),
            wait_p50_ms=self.wait_ms(50),
            wait_p95_ms=self.wait_ms(95),
            calls_judged=self.judged,
            calls_unjudged=self.unjudged,
            success=self.successes / self.judged if self.judged else None,
        )


_NUMBERS: Final = tuple(each.name for each in fields(Minute) if not each.name.endswith("waits"))


def together(minutes: Iterable[Minute]) -> Minute:
    """The figures of several lots of calls in the same minute."""
    whole = Minute()
    for each in minutes:
        whole.add(each)
    return whole


def in_a_row(minutes: Sequence[Minute]) -> Minute:
    """The figures of minutes one after another as one; its calls are those at their ends, added up.
    Who waits for minutes waits once, at the end.
    """
    whole = together(minutes)
    whole.open_waits = Counter(dict(minutes[-1].open_waits))
    return whole


class Figures(Struct, frozen=True, kw_only=True):
    """What is told of some calls and some time.

    Attributes:
        calls_running: Calls that run, at its end, without those whose end was announced.
        calls_in_trouble: How many of them have a trouble.
        calls_ended_badly: Calls that ended badly.
        turns_answered: Turns whose wait is known.
        turns_unanswered: Turns without an answer.
        wait_p50_ms: Median of these waits, of those of callers whose call ended while they waited,
            and of those so far of callers who wait at its end for longer than the objective.
        wait_p95_ms: The wait that 95 % of them do not exceed.
        calls_judged: Calls with goals that closed, and of which it is known whether they reached
            all.
        calls_unjudged: Other calls with goals that closed.
        success: Share of the former that reached all goals; null without any.
    """

    calls_running: int
    calls_in_trouble: int
    calls_ended_badly: int
    turns_answered: int
    turns_unanswered: int
    wait_p50_ms: float | None
    wait_p95_ms: float | None
    calls_judged: int
    calls_unjudged: int
    success: float | None

    @property
    def turns(self) -> int:
        """Turns that were answered, or had to be."""
        return self.turns_answered + self.turns_unanswered

    @property
    def unanswered_share(self) -> float | None:
        """Share of the turns without an answer; None without turns."""
        return self.turns_unanswered / self.turns if self.turns else None


class BadTime(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A time in which a version of an agent is bad, or was.

    Attributes:
        agent: Its name.
        version: Its version; null where its calls name none.
        since_ms: Since when it is bad.
        until_ms: Until when it was: the end of its last bad call, or when few of those that run
            were left in trouble; null while it is bad.
        ended_with_call: Whether it was the former: nobody knows then how the next call will be.
        calls_affected: Calls that were in trouble, or ended badly, in that time.
        affected_began_ms: When the first of them began.
        calls_meanwhile: Calls that it had in that time.
        tenants_affected: The tenants that had most of those affected, each with how many.
        tenants_more: How many more tenants had some.
        environments_affected: Their environments, that with the most first.
        before: What most of its bad calls suffered earlier in that time: trouble and stage, in
            order.
        trouble: The worst trouble of most of its bad calls, `very_slow` for `slow` and `silent` for
            `dead_air`; it stays while it is that of nearly as many calls as any other.
        stage: The slowest stage of their answers; null where they are not slow, or nobody knows.
        seen_ms: When it was seen last, by the broker's clock in epoch ms, if it is one of those
            that are kept.
    """

    agent: str
    version: str | None = None
    since_ms: int
    until_ms: int | None = None
    ended_with_call: bool = False
    calls_affected: int
    affected_began_ms: int | None = None
    calls_meanwhile: int
    tenants_affected: tuple[tuple[str, int], ...] = ()
    tenants_more: int = 0
    environments_affected: tuple[str, ...] = ()
    before: tuple[_Wrong, ...] = ()
    trouble: TroubleKind | None = None
    stage: Stage | None = None
    seen_ms: int = 0

    @property
    def lasts(self) -> bool:
        """Whether it goes on."""
        return self.until_ms is None


class AgentNow(Figures, frozen=True, kw_only=True):
    """One version of an agent as it is now: its calls, and its figures of the last quarter of an
    hour.

    Attributes:
        agent: Its name.
        version: Its version; null where its calls name none.
        waits_p95_ms: The wait that 95 % do not exceed, by minute, the newest last; null for a
            minute without an answer.
        bad: The time in which it is bad, or was until a quarter of an hour ago; null without one.
        calls_answered: Running calls with an answer.
        calls_slow: How many of them had a newest answer so slow that it is a trouble by itself.
        slowest_ms: The longest of these waits; null without any.
        calls_unsure: Calls in trouble of which only the events may be missing.
        first_call_ms: When its first call began, as far as rows were read; null for none.
        last_call_ms: When its newest call began.
    """

    agent: str
    version: str | None
    waits_p95_ms: tuple[float | None, ...]
    bad: BadTime | None
    calls_answered: int
    calls_slow: int
    slowest_ms: float | None
    calls_unsure: int
    first_call_ms: int | None
    last_call_ms: int | None

    @property
    def is_bad(self) -> bool:
        """Whether it is bad now."""
        return self.bad is not None and self.bad.lasts


@dataclass(slots=True)
class _Kept:
    """The minutes of some calls, and their bad time if they are those of one version."""

    minutes: dict[int, Minute] = field(default_factory=dict)
    bad_since_ms: int | None = None
    bad_until_ms: int | None = None
    ended_with_call: bool = False
    last_end_ms: int = 0
    found_ms: int = 0
    """When the bad time was found."""
    affected: dict[str, Labels] = field(default_factory=dict)
    """By id whose they are."""
    affected_began_ms: int = 0
    """When the first of them began."""
    since_ms: dict[str, int] = field(default_factory=dict)
    """Since when each call is in trouble that is so now, or ended so lately."""
    mostly: _Wrong = (None, None)
    before: tuple[_Wrong, ...] = ()
    """The earlier values of `mostly` in this bad time, in order."""
    bad_seen_ms: int = 0
    """When it was found bad last."""
    calls: int = 0
    """Since the begin of the bad time, or of all."""
    calls_meanwhile: int = 0
    """How many of them began before its end."""
    seen_ms: int = 0
    first_call_ms: int | None = None
    last_call_ms: int | None = None

    @property
    def is_bad(self) -> bool:
        """Whether the bad time lasts."""
        return self.bad_since_ms is not None and self.bad_until_ms is None

    def note_begin(self, at_ms: int) -> None:
        """Notes when one of its calls began."""
        self.calls += 1
        self.first_call_ms = min(at_ms, self.first_call_ms or at_ms)
        self.last_call_ms = max(at_ms, self.last_call_ms or at_ms)
        self.seen_ms = max(at_ms, self.seen_ms)

    def minute(self, at_ms: int) -> Minute:
        """The minute of this time; those that are too old go."""
        number_of = at_ms // MINUTE_MS
        found = self.minutes.get(number_of)
        if found is None:
            found = self.minutes[number_of] = Minute()
            for old in [each for each in self.minutes if each <= max(self.minutes) - MINUTES]:
                del self.minutes[old]
        return found

    def forget_waits(self, since_ms: int) -> None:
        """Forgets who waited since then: no event came that could have said otherwise."""
        for minute, each in list(self.minutes.items()):
            if minute >= since_ms // MINUTE_MS:
                each.open_waits = Counter()  # another thread may read the old one

    def last(self, now_ms: int) -> list[Minute]:
        """The minutes up to now, the oldest first."""
        newest = now_ms // MINUTE_MS
        return [
            self.minutes.get(each) or Minute() for each in range(newest - MINUTES + 1, newest + 1)
        ]

    def note_bad(self, now_ms: int, of: "_Sums") -> None:
        """Notes whether the calls of a version are bad now; a short pause ends no bad time."""
        bad, calls = of.in_trouble + of.ended_lately, of.running + of.ended_lately
        if not self.is_bad:
            bad -= of.unsure
        is_enough = bad > 1 or (calls <= FEW_CALLS and (self.is_bad or of.grave > 0))
        is_bad = bad > 0 and bad >= BAD_SHARE * calls and is_enough
        if of.running:
            self.seen_ms = now_ms
        self.since_ms = {
            each: self.since_ms.get(each, at_ms) for each, at_ms in of.since_ms.items()
        }
        if is_bad:
            if self.bad_since_ms is None or now_ms - (self.bad_until_ms or now_ms) > PAUSE_MS:
                # a call that is in trouble for longer did not make the version bad
                earliest_ms = max(now_ms - PAUSE_MS, self.bad_until_ms or 0)
                begun_ms = [each for each in self.since_ms.values() if each >= earliest_ms]
                self.bad_since_ms = min(begun_ms, default=now_ms)
                self.affected, self.bad_until_ms, self.calls = {}, None, calls
                self.before = ()
                self.found_ms, self.affected_began_ms = now_ms, now_ms
            mostly = _mostly(of.wrong, self.mostly)
            # a silence is how slow answers and none begin
            is_other = self.mostly[0] not in {None, TroubleKind.SILENT, mostly[0]}
            if is_other and mostly not in self.before:
                self.before = (*self.before, self.mostly)
            self.mostly = mostly
            if len(self.affected) < MAX_AFFECTED:
                self.affected |= of.affected
            self.affected_began_ms = min(self.affected_began_ms, of.affected_began_ms)
            self.bad_seen_ms = now_ms
        if self.bad_since_ms is None:
            return
        has_newer_end = of.last_end_ms > self.last_end_ms
        if is_bad and of.in_trouble:
            self.bad_until_ms = None
        elif self.bad_until_ms is None or (is_bad and has_newer_end):
            self.ended_with_call = has_newer_end and not of.in_trouble
            # after a silence of all sources, nobody knows how it was in it
            end_ms = now_ms if now_ms - self.bad_seen_ms <= PAUSE_MS else self.bad_seen_ms
            self.bad_until_ms = of.last_end_ms if self.ended_with_call else end_ms
        self.last_end_ms = max(self.last_end_ms, of.last_end_ms)
        if has_newer_end or self.bad_until_ms is None:
            # who has just begun may be answered yet
            self.calls_meanwhile = self.calls - of.fresh
        if self.bad_until_ms is not None:
            was_short = self.bad_until_ms - self.bad_since_ms < PAUSE_MS
            if now_ms - self.bad_until_ms > (PAUSE_MS if was_short else WINDOW_MS):
                self.forget_bad()

    def bad_time(self, version: Version) -> BadTime | None:
        """The bad time of these calls; None without one."""
        if self.bad_since_ms is None:
            return None
        whose = self.affected.values()
        tenants = _most(each.tenant for each in whose)
        return BadTime(
            agent=version[0],
            version=version[1],
            since_ms=self.bad_since_ms,
            until_ms=self.bad_until_ms,
            ended_with_call=self.ended_with_call,
            calls_affected=len(self.affected),
            affected_began_ms=self.affected_began_ms,
            calls_meanwhile=max(self.calls_meanwhile, len(self.affected)),
            tenants_affected=tuple(tenants[:MOST_WHOSE]),
            tenants_more=max(0, len(tenants) - MOST_WHOSE),
            environments_affected=tuple(
                name for name, _ in _most(each.environment for each in whose)[:MOST_WHOSE]
            ),
            before=self.before,
            trouble=self.mostly[0],
            stage=self.mostly[1],
        )

    def forget_bad(self) -> None:
        """Forgets the bad time."""
        self.bad_since_ms, self.bad_until_ms = None, None
        self.affected, self.mostly, self.before = {}, (None, None), ()


class _Sums:
    """Some calls at this moment."""

    def __init__(self) -> None:
        self.running = self.in_trouble = self.ended_lately = self.last_end_ms = 0
        self.grave = 0
        """Calls of which one says enough where there is no other."""
        self.unsure = 0
        """Calls in trouble of which only the events may be missing."""
        self.affected_began_ms = 2**62
        self.answered = self.fresh = 0
        self.open_waits: Counter[int] = Counter()
        self.slow_ms: list[float] = []
        self.affected: dict[str, Labels] = {}
        self.since_ms: dict[str, int] = {}
        self.wrong: Counter[_Wrong] = Counter()

    def add(self, other: "_Sums") -> None:
        """Adds other calls."""
        self.running += other.running
        self.in_trouble += other.in_trouble
        self.unsure += other.unsure
        self.grave += other.grave
        self.ended_lately += other.ended_lately
        self.last_end_ms = max(self.last_end_ms, other.last_end_ms)
        self.answered += other.answered
        self.fresh += other.fresh
        self.slow_ms += other.slow_ms
        self.open_waits.update(other.open_waits)
        self.affected |= other.affected
        self.affected_began_ms = min(self.affected_began_ms, other.affected_began_ms)
        self.since_ms |= other.since_ms
        self.wrong += other.wrong


class Agents:
    """The versions of agents, and the figures of all calls, as far as rows were read.

    Attributes:
        now: The versions as they were looked at last, the worst first.
        at_ms: When that was, in epoch ms.
        counts_from_ms: What was known before is in no figure: of calls that have closed since then
            nothing may have been read.
    """

    def __init__(self) -> None:
        self.now: list[AgentNow] = []
        self.at_ms = 0
        self.counts_from_ms = 0
        self._everything = _Kept()
        self._kept: OrderedDict[Version | Labels, _Kept] = OrderedDict()

    def take_turn(self, row: TurnRow) -> None:
        """Takes in a row of a turn: a wait counts once, when it is known."""
        wait_ms = number(row.wait_ms)
        if "wait" not in row.news or wait_ms is None:
            return
        for minute in self._minutes_of(row):
            minute.waits[_steps(wait_ms)] += 1

    def take_call(self, before: CallRow | None, row: CallRow) -> None:
        """Takes in a row of a call and the one before it; None for the first. An older row changes
        nothing.
        """
        if before is not None and before.revision > row.revision:
            return
        if before is None or version_of(before.labels) != version_of(row.labels):
            for kept in self._of(row.labels):
                kept.note_begin(_began_ms(row))
        unanswered = _unanswered(row) - (0 if before is None else _unanswered(before))
        ended_badly = (bad_end(row) is not None) - (
            before is not None and bad_end(before) is not None
        )
        closes = row.state == "closed" and (before is None or before.state != "closed")
        ends_in_vain = _waited_in_vain(row) and (before is None or not _waited_in_vain(before))
        if unanswered or ended_badly or closes or ends_in_vain:
            for minute in self._minutes_of(row):
                if ends_in_vain:
                    minute.vain_waits[_steps(row.in_vain_ms or 0)] += 1
                minute.unanswered += unanswered
                minute.ended_badly += ended_badly
                if closes and row.goals is not None and row.goals.subgoals:
                    success = number(row.goals.success_final_turn)
                    minute.judged += success is not None
                    minute.unjudged += success is None
                    minute.successes += success == 1.0

    def looking(
        self,
        calls: Iterable[ShownCall],
        now_ms: int,
        silent_since_ms: int | None = None,
        event_ms: int | None = None,
        until_ms: int | None = None,
    ) -> Generator[None, None, None]:
        """Brings `now` and the newest minute up to date, in steps between which rows may be taken
        in. Since `silent_since_ms` no event of any call has come: nobody knows how their agents
        are, so none becomes bad or well, and none was found to be bad. The newest event of any call
        came at `event_ms`; None where that says nothing. Waits are counted up to `until_ms`, if that
        is not now.
        """
        sums: dict[_Key, _Sums] = {None: _Sums()}
        for place, shown in enumerate(calls, 1):
            of = sums.setdefault(shown.call.labels, _Sums())
            _add(of, shown, now_ms, event_ms, now_ms if until_ms is None else until_ms)
            if place % CALLS_OF_ONE_STEP == 0:
                yield
        for labels, of in list(sums.items()):
            if isinstance(labels, Labels):
                self._of(labels)
                for wider in (None, version_of(labels)):
                    sums.setdefault(wider, _Sums()).add(of)
        yield
        keys: list[tuple[_Key, _Kept]] = [(None, self._everything), *self._kept.items()]
        for key, kept in keys:
            of, minute = sums.get(key) or _Sums(), kept.minute(now_ms)
            minute.running, minute.in_trouble = of.running, of.in_trouble
            minute.open_waits = of.open_waits
            if silent_since_ms is not None:
                kept.forget_waits(silent_since_ms)
        told = [key for key, kept in keys if kept.seen_ms > now_ms - WINDOW_MS]
        found = []
        for key in dict.fromkeys([*sums, *told]):
            if isinstance(key, tuple):
                of = sums.get(key) or _Sums()
                found.append(self._look(key, of, now_ms, silent_since_ms))
                yield
        self.now, self.at_ms = sorted(found, key=_worst_first), now_ms

    def figures(self, wanted: WantedCalls) -> tuple[Figures, list[tuple[int, Figures]]]:
        """Figures up to the last look of the calls with the labels that are asked for: of all the
        time, and by minute, the oldest first, each with its begin.
        """
        kept = [self._everything]
        if wanted.is_by_label:
            kept = [
                each
                for key, each in list(self._kept.items())
                if isinstance(key, Labels) and wanted.include(key)
            ]
        each_last = zip(*(each.last(self.at_ms) for each in (*kept, _Kept())), strict=True)
        minutes = [together(same) for same in each_last]
        first_ms = self.at_ms - self.at_ms % MINUTE_MS - (MINUTES - 1) * MINUTE_MS
        by_minute = [
            (first_ms + place * MINUTE_MS, each.figures()) for place, each in enumerate(minutes)
        ]
        return in_a_row(minutes).figures(), by_minute

    def versions_of(self, wanted: WantedCalls) -> set[Version]:
        """The versions that have calls with the labels that are asked for."""
        return {
            version_of(key)
            for key in list(self._kept)
            if isinstance(key, Labels) and wanted.include(key)
        }

    def _look(
        self, version: Version, of: _Sums, now_ms: int, silent_since_ms: int | None
    ) -> AgentNow:
        kept = self._kept.get(version) or self._add(version)
        if silent_since_ms is None:
            kept.note_bad(now_ms, of)
        elif kept.found_ms > silent_since_ms:
            kept.forget_bad()
        minutes = kept.last(now_ms)
        figures = structs.asdict(in_a_row(minutes).figures())
        return AgentNow(
            **figures | {"calls_running": of.running, "calls_in_trouble": of.in_trouble},
            agent=version[0],
            version=version[1],
            waits_p95_ms=tuple(each.wait_ms(95) for each in minutes),
            bad=kept.bad_time(version),
            calls_answered=of.answered,
            calls_slow=len(of.slow_ms),
            slowest_ms=max(of.slow_ms, default=None),
            calls_unsure=of.unsure,
            first_call_ms=kept.first_call_ms,
            last_call_ms=kept.last_call_ms,
        )

    def _minutes_of(self, row: TurnRow | CallRow) -> list[Minute]:
        """The minute of a row in the figures of all calls, of its version, and of its labels."""
        if row.known_ms < self.counts_from_ms:
            return []
        return [each.minute(row.known_ms) for each in (self._everything, *self._of(row.labels))]

    def _of(self, labels: Labels) -> list[_Kept]:
        found = []
        for key in (version_of(labels), labels):
            found.append(self._kept.get(key) or self._add(key))
            self._kept.move_to_end(key)
        return found

    def _add(self, key: Version | Labels) -> _Kept:
        kept = self._kept[key] = _Kept()
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return kept


def version_of(labels: Labels) -> Version:
    """The version of an agent that these labels name."""
    return labels.agent, labels.version


def _waited_in_vain(row: CallRow) -> bool:
    """Whether its call ended while a caller waited for an answer; a greeting has no wait."""
    return row.in_vain_ms is not None and row.waiting is not None and row.waiting.turn > 0


def _steps(wait_ms: float) -> int:
    """A wait in steps; who gets an answer before he has ended waits for nothing."""
    return round(max(0.0, min(MAX_WAIT_MS, wait_ms)) / WAIT_STEP_MS)


def _unanswered(row: CallRow) -> int:
    """Turns of a call without an answer; one in which the caller waits for the first time may still
    get one, and one in which events stopped may have got one.
    """
    if row.waiting is None or row.outcome is CallOutcome.EVENTS_STOPPED:
        return row.unanswered
    is_given_up = row.waiting.silences > 1 or row.state != "running"
    return max(row.unanswered, int(is_given_up))


def _add(sums: _Sums, shown: ShownCall, now_ms: int, event_ms: int | None, until_ms: int) -> None:
    call = shown.call
    sums.running += call.state == "running"
    end_ms = heard_ms(call)
    is_bad_end = bad_end(call) is not None and end_ms >= now_ms - ENDED_LATELY_MS
    is_sure = (
        event_ms is None
        or call.waiting is None
        or event_ms >= call.waiting.since_ms + SURE_MS
        or any(each.kind not in _WAITS for each in shown.troubles)
    )
    sums.in_trouble += shown.is_bad
    sums.unsure += shown.is_bad and not is_sure
    waits_ms = 0 if call.waiting is None else until_ms - call.waiting.since_ms
    # one who hung up at once may not have let the agent answer
    had_no_chance = call.outcome is CallOutcome.NEVER_ANSWERED and call.waiting is None
    sums.grave += (
        (is_bad_end and not had_no_chance)
        or any(each.kind in _GRAVE for each in shown.troubles)
        or (shown.is_bad and is_sure and waits_ms >= GRAVE_MS)
        or max(call.failing_tools.values(), default=0) > 1
    )
    if is_bad_end:
        sums.ended_lately += 1
        sums.last_end_ms = max(sums.last_end_ms, end_ms)
    if (shown.is_bad and is_sure) or is_bad_end:
        sums.affected[call.conversation_id] = call.labels
        sums.affected_began_ms = min(sums.affected_began_ms, call.first_known_ms)
        sums.since_ms[call.conversation_id] = _since_ms(shown)
        sums.wrong[_wrong(shown, waits_ms)] += 1
    is_fresh = call.answer is None and call.waiting is None and not shown.is_bad
    sums.fresh += is_fresh and call.state == "running"
    waits_for_answer = call.waiting is not None and call.waiting.turn > 0
    is_there = call.state == "running" and not shown.has_stopped
    if waits_for_answer and is_there and is_sure and waits_ms > SLOW_MS:
        sums.open_waits[_steps(waits_ms)] += 1
    if call.answer is not None and call.state == "running":
        sums.answered += 1
        if any(each.kind is TroubleKind.VERY_SLOW for each in shown.troubles):
            sums.slow_ms.append(call.answer.wait_ms)


def _began_ms(row: CallRow) -> int:
    """When a call began, by its own clock unless that is another than the broker's."""
    began_ms = row.first_known_ms if row.began_ms is None else row.began_ms
    return began_ms if abs(row.first_known_ms - began_ms) < MINUTE_MS else row.first_known_ms


def _since_ms(shown: ShownCall) -> int:
    """From when on its caller suffers, for a call whose newest row is the first that says so."""
    call = shown.call
    if call.waiting is not None:
        return call.waiting.since_ms
    is_slow = _SLOW & {each.kind for each in shown.troubles}
    return call.known_ms - round(call.answer.wait_ms if call.answer and is_slow else 0)


def _wrong(shown: ShownCall, waits_ms: int) -> _Wrong:
    """The worst trouble of a call that is in trouble or ended badly, and the stage behind it."""
    answer, waiting = shown.call.answer, shown.call.waiting
    if shown.troubles:
        kind = shown.troubles[0].kind
        if kind is TroubleKind.SILENT and waits_ms >= NO_ANSWER_MS:
            return TroubleKind.MUTE, None
        if answer is not None and kind in _SLOW:
            return TroubleKind.VERY_SLOW, answer.slowest_stage
        return TroubleKind.SILENT if kind is TroubleKind.DEAD_AIR else kind, None
    if shown.call.outcome is CallOutcome.NEVER_ANSWERED:
        return TroubleKind.MUTE, None
    if waiting is None:
        return TroubleKind.AGENT_ERROR, None
    is_mute = waiting.silences > 1 or (shown.call.in_vain_ms or 0) >= NO_ANSWER_MS
    return TroubleKind.MUTE if is_mute else TroubleKind.SILENT, None


_SLOW: Final = frozenset({TroubleKind.SLOW, TroubleKind.VERY_SLOW})
_GRAVE: Final = frozenset({TroubleKind.MUTE, TroubleKind.AGENT_ERROR})
_WAITS: Final = frozenset({TroubleKind.MUTE, TroubleKind.SILENT, TroubleKind.DEAD_AIR})


def _mostly(wrong: Counter[_Wrong], held: _Wrong) -> _Wrong:
    """Returns what most calls suffer. It stays what it was, unless more than twice as many suffer
    something else. Where answers are slow, one silence is a wait for the next of them.
    """
    kinds: Counter[TroubleKind | None] = Counter()
    stages: Counter[Stage | None] = Counter()
    for (kind, stage), calls in wrong.items():
        kinds[kind] += calls
        stages[stage] += calls * (stage is not None)
    if kinds[TroubleKind.VERY_SLOW] or held[0] is TroubleKind.VERY_SLOW:
        kinds[TroubleKind.VERY_SLOW] += kinds.pop(TroubleKind.SILENT, 0)
    kind = _held(kinds, held[0])
    # calls without an answer are the worst: they need not be twice as many
    if kinds[TroubleKind.MUTE] > kinds[kind]:
        kind = TroubleKind.MUTE
    return kind, _held(stages, held[1]) if kind is TroubleKind.VERY_SLOW else None


def _held(counts: Counter[_Named], held: _Named) -> _Named:
    most = max(counts, key=lambda each: counts[each], default=held)
    return held if 2 * counts[held] >= counts[most] else most


def _most(names: Iterable[str]) -> list[tuple[str, int]]:
    """Each name that is known, with how often it is there; that with the most first."""
    return Counter(name for name in names if name != "unknown").most_common()


def _worst_first(each: AgentNow) -> tuple[object, ...]:
    """Bad ones first, then those with many bad calls, then those with many calls."""
    bad = each.calls_in_trouble + each.calls_ended_badly
    return not each.is_bad, -bad, -each.calls_running, each.agent, each.version or ""
