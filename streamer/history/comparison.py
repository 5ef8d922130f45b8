"""Compares the calls of two periods, or of two lots: each measure with its change, and whether the
change is more than chance.
"""

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from itertools import groupby
from typing import Final, NamedTuple

from consumers.history.search import CallSearch, Condition, HistoryStore
from consumers.runtime.process import SetupError, wall_clock_ms
from consumers.store.changes import (
    COMPARED,
    LISTED,
    LONGEST_WAIT,
    MEASURES,
    MOST_FLIPPED,
    PROGRESS,
    SHARE_DRAWS,
    SUCCESS,
    UNANSWERED,
    USUAL_SINCE,
    Change,
    Comparison,
    Lot,
    LotCalls,
    SubgoalChange,
    change_of,
    draws_of_one,
    remark_on_chance,
)
from schemas.columns import Flat
from schemas.units import DAY_MS
from streamer.changes import (
    changes_table,
    comparison_document,
    flipped_lines,
)
from streamer.terminal import output_console, print_document, print_line, say
from streamer.time_bounds import moment_given, moment_ms, shown_moment

GROUPS: Final = (
    *(
        "labels.agent",
        "labels.version",
        "labels.tenant",
        "labels.environment",
        "labels.pipeline_type",
    ),
    *("code_version", "goals.goal_set", "close_reason"),
)
"""Columns by which calls can be compared: those with few values."""
MOST_GROUPS: Final = 200
"""Most groups of one comparison."""
_RANGE: Final = ".."

_ALL: Final = tuple(dict.fromkeys([*(measure.name for measure in COMPARED), *MEASURES]))

Group = tuple[str, ...]


class ComparedPeriod(NamedTuple):
    """A stretch of time in epoch ms; the end is not part of it."""

    since_ms: int
    until_ms: int

    def has(self, time_ms: int) -> bool:
        """Whether a moment lies within."""
        return self.since_ms <= time_ms < self.until_ms

    @classmethod
    def parse(cls, text: str) -> "ComparedPeriod":
        """Reads a day in UTC, as `2026-11-20`, or a range, as `2026-11-13..2026-11-20`, whose last
        day is part of it.

        The ends of a range may be moments, too: `7d..2026-11-20T12:00`.

        Raises:
            SetupError: It is neither, or ends before it begins.
        """
        first, dots, last = text.partition(_RANGE)
        try:
            end_ms = moment_given(
                (date.fromisoformat(last if dots else first) + timedelta(days=1)).isoformat()
            )
        except (ValueError, OverflowError, SetupError):
            if not dots:
                raise SetupError(
                    f"{text!r} is no day: give a day in UTC, for example 2026-11-20, or a range, "
                    "2026-11-13..2026-11-20. Nothing was compared."
                ) from None
            end_ms = moment_given(last)
        period = cls(moment_given(first), end_ms)
        if period.since_ms >= period.until_ms:
            raise SetupError(f"{text!r} ends before it begins. Nothing was compared.")
        return period


class _Lot:
    """The known values of some calls, by the names of their columns."""

    def __init__(self, names: Iterable[str]) -> None:
        self.calls = 0
        self.values = {name: array("d") for name in names}

    @property
    def means(self) -> dict[str, float]:
        return {name: sum(known) / len(known) for name, known in self.values.items() if known}

    def add(self, row: Iterable[Flat]) -> None:
        self.calls += 1
        for known, value in zip(self.values.values(), row, strict=True):
            if isinstance(value, int | float):
                known.append(value)


def groups_given(text: str | None) -> Group:
    """Reads the columns of `--by`.

    Raises:
        SetupError: Calls cannot be compared by one of them.
    """
    names = tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))
    names = tuple(f"labels.{name}" if f"labels.{name}" in GROUPS else name for name in names)
    for name in names:
        if name not in GROUPS:
            raise SetupError(
                f"--by {name!r}: calls can be compared by {', '.join(GROUPS)}. Nothing was "
                "compared."
            )
    return names


def compared(
    store: HistoryStore,
    before: ComparedPeriod,
    after: ComparedPeriod,
    by: Group = (),
    conditions: Sequence[Condition] = (),
) -> list[tuple[Group, Comparison]]:
    """Compares the closed calls of two periods by every measure.

    Args:
        store: History.
        before: The first period.
        after: The second.
        by: Columns whose values make a group; without any, all calls are one.
        conditions: Only calls that meet them.

    Returns:
        The groups with their comparison, without subgoals; those with most calls first.

    Raises:
        SetupError: There are too many groups.
    """
    lots: dict[Group, tuple[_Lot, _Lot]] = {}
    for place, period in enumerate((before, after)):
        question = CallSearch(
            period.since_ms,
            period.until_ms,
            [Condition("state", "=", "closed"), *conditions],
            most=None,
        )
        for row in store.values(question, [*by, *_ALL]):
            group = tuple("" if value is None else str(value) for value in row[: len(by)])
            if group not in lots:
                if len(lots) == MOST_GROUPS:
                    raise SetupError(
                        f"--by {','.join(by)}: there are more than {MOST_GROUPS} groups. Nothing "
                        "was compared. Compare by fewer columns, or only the calls of one agent."
                    )
                lots[group] = (_Lot(_ALL), _Lot(_ALL))
            lots[group][place].add(row[len(by) :])
    draws = draws_of_one(len(_ALL) * len(lots))
    a, b = (
        Lot("", "", "", "", *(shown_moment(ms).removesuffix(" 00:00:00") for ms in period))
        for period in (before, after)
    )
    found = [
        (group, Comparison((a, b), (was.calls, now.calls), [*_changes(was, now, draws, draws)], []))
        for group, (was, now) in lots.items()
    ]
    return sorted(found, key=lambda each: (-sum(each[1].calls), each[0]))


def _changes(was: _Lot, now: _Lot, draws: int, of_shares: int) -> Iterator[Change]:
    """The changes of what at least one lot has; `of_shares` are the draws for shares of goals."""
    for name, before in was.values.items():
        if before or now.values[name]:
            most_draws = of_shares if name in {SUCCESS.name, PROGRESS.name} else draws
            yield change_of(name, before, now.values[name], most_draws=most_draws)


# Two lots of calls, as of two versions of an agent.

MOST_SUBGOALS: Final = 50
"""Subgoals of one comparison, those with the surest change."""
_PARTS: Final = re.compile(
    rf"(?:^|,)\s*({'|'.join(Lot._fields)})\s*=\s*(.*?)\s*(?=$|,\s*(?:{'|'.join(Lot._fields)})\s*=)"
)


def lot_given(text: str) -> Lot:
    """Reads the calls of one side: names and values with commas between.

    Raises:
        SetupError: It is something else.

    Example:
        >>> lot_given("agent=desk, version=2").labels
        {'agent': 'desk', 'version': '2'}
    """
    parts = dict(_PARTS.findall(text))
    if not parts or _PARTS.sub("", text).strip():
        raise SetupError(
            f"{text!r} names no calls: expected some of {', '.join(Lot._fields)}, as in "
            "'agent=desk, version=2' or 'since=2026-11-20, until=2026-11-21'. Nothing was compared."
        )
    return Lot(**parts)


def calls_of(lot: Lot, now_ms: int, conditions: Sequence[Condition] = ()) -> CallSearch:
    """The calls of a lot that are over, and meet these conditions.

    Raises:
        SetupError: A moment of it is none.
    """
    labels = (Condition(f"labels.{name}", "=", value) for name, value in lot.labels.items())
    return CallSearch(
        moment_ms(lot.since or USUAL_SINCE, now_ms),
        moment_ms(lot.until, now_ms) if lot.until else now_ms + 1,
        [Condition("state", "=", "closed"), *labels, *conditions],
        most=None,
    )


_GOALS: Final = ("conversation_id", "goals.goal_set", "goals.digest", "goals.subgoals.result")


def lots_compared(
    store: HistoryStore, lots: tuple[Lot, Lot], now_ms: int, conditions: Sequence[Condition] = ()
) -> Comparison:
    """Compares two lots of calls by the measures that people compare versions by, and subgoal by
    subgoal.

    Raises:
        SetupError: A moment is none.
    """
    found: list[_Lot] = []
    reached: list[dict[tuple[str, str], list[tuple[str, float]]]] = []
    subgoals: dict[str, Sequence[str]] = {}
    for lot in lots:
        found.append(_Lot(measure.name for measure in COMPARED))
        reached.append(defaultdict(list))
        for *row, call, goal_set, digest, results in store.values(
            calls_of(lot, now_ms, conditions), [*found[-1].values, *_GOALS]
        ):
            found[-1].add(row)
            for name, result in subgoal_results(store, subgoals, call, digest, results):
                reached[-1][str(goal_set), name].append((str(call), result))
    a, b = found
    return Comparison(
        lots,
        (a.calls, b.calls),
        list(_changes(a, b, draws_of_one(len(MEASURES)), SHARE_DRAWS)),
        _subgoal_changes(*reached),
        is_over=not lots[1].days or moment_ms(lots[1].until, now_ms) <= now_ms,
    )


def subgoal_results(
    store: HistoryStore, sets: dict[str, Sequence[str]], call: Flat, digest: Flat, results: Flat
) -> Iterator[tuple[str, float]]:
    """The subgoals of a call whose results are known: name, and 1 or 0.

    Args:
        store: History.
        sets: The names of the subgoals by digest of the goal set, filled as they are needed.
        call: Its id.
        digest: The column `goals.digest`.
        results: The column `goals.subgoals.result`.
    """
    if isinstance(results, str) and isinstance(digest, str):
        if digest not in sets:
            sets[digest] = _subgoals_of(store, str(call))
        for name, result in zip(sets[digest], results.split(", "), strict=False):
            if result != "?":
                yield name, float(result)


def _subgoals_of(store: HistoryStore, conversation_id: str) -> Sequence[str]:
    stored = store.call(conversation_id)
    if stored is None or stored.goals is None:  # its set was written before history began
        return ()
    return [str(each["id"]) for each in stored.goals.goal_set["subgoals"]]


def _subgoal_changes(
    was: Mapping[tuple[str, str], Sequence[tuple[str, float]]],
    now: Mapping[tuple[str, str], Sequence[tuple[str, float]]],
) -> list[SubgoalChange]:
    found = []
    for key in dict.fromkeys([*was, *now]):
        before, after = ([value for _, value in lot.get(key, ())] for lot in (was, now))
        change = change_of(key[1], before, after, is_share=True)
        usual = round(change.before) if change.before is not None else None
        flipped = [call for call, value in now.get(key, ()) if usual is not None and value != usual]
        found.append(
            SubgoalChange(*key, change, flipped[:MOST_FLIPPED], max(0, len(flipped) - MOST_FLIPPED))
        )
    found.sort(
        key=lambda each: (not each.change.is_more_than_chance, -abs(each.change.change or 0))
    )
    return found[:MOST_SUBGOALS]


LISTED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "version": ("labels.agent", "labels.version"),
    "agent": ("labels.agent",),
    "tenant": ("labels.tenant",),
    "environment": ("labels.environment",),
    "day": ("day_ms",),
    "week": ("week_ms",),
}
"""By each way in which calls can be listed, the columns whose values make a lot."""
DAYS_OF: Final = {"day": 1, "week": 7}
"""How many days a lot has that is a stretch of time."""


def lots_in(
    store: HistoryStore, since_ms: int, until_ms: int, by: str = "version", agent: str = ""
) -> list[LotCalls]:
    """The calls of a period that are over, of one agent or of all, lot by lot: by version those of
    the agent with most calls first, of an agent the newest version; by day or week the newest;
    otherwise the most calls.

    Raises:
        SetupError: Calls are not listed by this.
    """
    if by not in LISTED_BY:
        raise SetupError(
            f"Calls are listed by {', '.join(LISTED_BY)}; seen {by!r}. Nothing is shown."
        )
    where = [Condition("state", "=", "closed")]
    if agent:
        where.append(Condition("labels.agent", "=", agent))
    question = CallSearch(since_ms, until_ms, where, most=None)
    columns = LISTED_BY[by]
    names = (
        *("first_known_ms", "began_ms", "in_vain_ms", "goals.by_judge", "unanswered", "turn"),
        *(measure.name for measure in LISTED if measure is not UNANSWERED),
    )
    lots: defaultdict[tuple[Flat, ...], _Lot] = defaultdict(lambda: _Lot(names))
    for row in store.values(question, [*columns, *names]):
        lots[row[: len(columns)]].add(row[len(columns) :])
    found = [
        _listed(of._replace(agent=agent or of.agent), lot)
        for key, lot in lots.items()
        for of in [_lot_of(by, key)]
    ]
    if by in DAYS_OF:
        return sorted(found, key=lambda each: each.first_ms, reverse=True)
    if by != "version":
        return sorted(found, key=lambda each: (-each.calls, *each.lot))
    calls: Counter[str] = Counter()
    for each in found:
        calls[each.lot.agent] += each.calls
    found.sort(
        key=lambda each: (each.first_ms // DAY_MS, _in_order(each.lot.version)), reverse=True
    )
    return sorted(found, key=lambda each: (-calls[each.lot.agent], each.lot.agent))


def _lot_of(by: str, key: Sequence[Flat]) -> Lot:
    if by in DAYS_OF:
        begin, end = (
            shown_moment(int(str(key[0])) + more_ms)[: len("2026-11-20")]
            for more_ms in (0, DAYS_OF[by] * DAY_MS)
        )
        return Lot(since=begin, until=end)
    names = ("agent", "version") if by == "version" else (by,)
    return Lot()._replace(
        **{name: str(value or "") for name, value in zip(names, key, strict=True)}
    )


def _listed(lot: Lot, of: _Lot) -> LotCalls:
    # as the pages of calls have it
    began_ms = of.values["began_ms"] or of.values["first_known_ms"]
    turns = sum(of.values["turn"])
    means = of.means
    values = {each.name: means[each.name] for each in LISTED if each.name in means}
    in_vain_ms = of.values["in_vain_ms"]
    if waits_ms := of.values[LONGEST_WAIT.name]:
        values[LONGEST_WAIT.name] = max(waits_ms)
    if turns:
        values[UNANSWERED.name] = sum(of.values["unanswered"]) / turns
    judged = len(of.values[SUCCESS.name])
    with_goals = len(of.values["goals.by_judge"])
    return LotCalls(
        lot,
        of.calls,
        min(began_ms),
        max(began_ms),
        values,
        judged,
        max(0, with_goals - judged),
        int(sum(of.values["unanswered"])),
        len(in_vain_ms),
        max(in_vain_ms, default=None),
    )


def newest_pairs(versions: Iterable[LotCalls]) -> Iterator[tuple[Lot, Lot]]:
    """Of each agent with several versions the newest, and the one before it."""
    said = (each.lot for each in versions if each.lot.version)
    for _, of in groupby(said, lambda each: each.agent):
        after, *older = of
        if older:
            yield older[0], after


def _in_order(version: str) -> list[tuple[int, str]]:
    """Numbers in a version count as numbers: 10 is behind 9."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", version)
    ]


# The work of the command.


def print_lots(
    store: HistoryStore,
    lots: Sequence[Lot],
    conditions: Sequence[Condition] = (),
    *,
    as_json: bool = False,
) -> None:
    """Prints the comparison of two lots; without any, of the two newest versions of each agent.

    Raises:
        SetupError: A moment of a lot is none.
    """
    now_ms = wall_clock_ms()
    versions = [] if lots else lots_in(store, moment_ms(USUAL_SINCE, now_ms), now_ms + 1)
    pairs = [(lots[0], lots[1])] if lots else list(newest_pairs(versions))[:MOST_GROUPS]
    if not pairs:
        say(
            f"No agent in {store.place} has calls of two versions in {USUAL_SINCE}, as "
            "`call_started` says them. Nothing was compared. Compare two lots with --a and --b, or "
            "two days with --before and --after."
        )
    found = (lots_compared(store, pair, now_ms, conditions) for pair in pairs)
    _print(
        [({} if lots else {"agent": each.lots[1].agent}, each) for each in found], as_json=as_json
    )


def print_periods(
    store: HistoryStore,
    before: ComparedPeriod,
    after: ComparedPeriod,
    by: Group,
    conditions: Sequence[Condition],
    *,
    as_json: bool = False,
) -> None:
    """Prints the comparison of two periods, group by group."""
    groups = compared(store, before, after, by, conditions)
    if not groups and not as_json:
        say(f"No call in {store.place} is over and in one of the periods.")
    _print([(dict(zip(by, group, strict=True)), each) for group, each in groups], as_json=as_json)


def _print(found: Sequence[tuple[Mapping[str, str], Comparison]], *, as_json: bool) -> None:
    """Prints comparisons, each of calls that have some values in common."""
    if as_json:
        print_document([comparison_document(each, group) for group, each in found])
        return
    for group, each in found:
        common = ", ".join(
            f"{name.removeprefix('labels.')} {value or 'unknown'}" for name, value in group.items()
        )
        print_line(f"{common}: {each.verdict()}" if common else each.verdict())
        print_line(f"A: {each.names[0]}. B: {each.names[1]}.")
        output_console().print(changes_table(each.changes, each.calls, subgoals=each.subgoals))
        for line in flipped_lines(each.subgoals):
            print_line(line)
        print_line()
    if (
        remark := remark_on_chance(change for _, each in found for change in each.changes)
    ) is not None:
        say(remark)
