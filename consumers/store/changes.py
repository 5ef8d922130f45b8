"""Compares the calls of two lots, measure by measure: how far apart their means are, and whether
that is more than chance. Pure.
"""

import math
import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any, Final, Literal, NamedTuple

from schemas.columns import CALL_COLUMNS, Column

_NO_MEASURES: Final = frozenset(
    {"revision", "partition", "first_place", "last_place", "turn", "through_turn"}
)
MEASURES: Final[Mapping[str, Column]] = {
    column.name: column
    for column in CALL_COLUMNS
    if column.kind != "text"
    and column.name not in _NO_MEASURES
    and not column.name.endswith(
        ("_turn", ".turn", "known_ms", "last_ms", "since_ms", "starts_ms", "ed_ms", "an_ms")
    )
}
"""Numbers of a call of which a mean says something: no places, no moments, no numbers of turns."""
SEED: Final = 1
"""The same values have the same interval, whenever and wherever it is computed."""
MOST_RESAMPLES: Final = 2_000
LEAST_RESAMPLES: Final = 200
MOST_DRAWS: Final = 5_000_000
"""Draws for one interval: some seconds. With many values fewer resamples are as good."""
_TAIL: Final = 0.025
LEAST_CALLS: Final = 5
"""Calls of each lot below which no bootstrap says anything."""
MOST_DRAWS_OF_ALL: Final = 4_000_000
"""Draws for all intervals of one comparison: a second or two."""
LEAST_DRAWS: Final = 20_000
"""Draws for one of them."""


class Change(NamedTuple):
    """One measure of two lots of calls.

    Attributes:
        measure: Name of its column.
        before: Its mean over the calls of the first lot in which it is known; None without any.
        after: The same of the second.
        calls_before: Number of these calls.
        calls_after: The same of the second.
        low: Lower end of the 95 % interval of the change; None with too few calls in a lot.
        high: Its upper end.
        is_paired: Whether calls are resampled with both of their values: each value has a partner
            in the other lot.
    """

    measure: str
    before: float | None
    after: float | None
    calls_before: int
    calls_after: int
    low: float | None
    high: float | None
    is_paired: bool = False

    @property
    def change(self) -> float | None:
        """How much higher it is in the second lot; None if it is unknown in one of them."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def is_more_than_chance(self) -> bool | None:
        """Whether the interval of the change is on one side of 0; None without an interval."""
        return None if self.low is None or self.high is None else self.low > 0 or self.high < 0


def change_of(
    measure: str,
    before: Sequence[float],
    after: Sequence[float],
    pairs: Sequence[tuple[float, float]] = (),
    most_draws: int = MOST_DRAWS,
    *,
    is_share: bool | None = None,
) -> Change:
    """Compares the known values of one measure.

    Args:
        measure: Its name.
        before: Those of the first lot.
        after: Those of the second.
        pairs: Both values of the calls that are in both lots.
        most_draws: About how many values are drawn for the interval.
        is_share: Whether the mean is the share of the calls that have something; None where the
            name says it.
    """
    if is_share is None:
        is_share = measure_of(measure).unit == "share"
    is_paired = len(pairs) == len(before) == len(after)
    # of the same calls in another order it is the same
    before, after = sorted(before), sorted(after)
    lots = [[now - then for then, now in pairs]] if is_paired else [before, after]
    mean, mean_after = (sum(lot) / len(lot) if lot else None for lot in (before, after))
    low = high = None
    if is_share and not is_paired and before and after and _are_shares(before, after):
        low, high = interval_of_shares(before, after)
    elif not is_paired and min(map(len, lots)) >= LEAST_CALLS and _is_one_alike(before, after):
        low, high = _interval_of_parts(before, after)
    elif min(map(len, lots)) >= (2 if is_paired else LEAST_CALLS):
        low, high = interval(lots, most_draws)
    return Change(measure, mean, mean_after, len(before), len(after), low, high, is_paired)


def draws_of_one(intervals: int) -> int:
    """How many values may be drawn for one of so many intervals."""
    return max(LEAST_DRAWS, MOST_DRAWS_OF_ALL // max(1, intervals))


def changes_json(changes: Iterable[Change]) -> dict[str, Mapping[str, float | bool | None]]:
    """The same measures as plain values; an unknown value is null."""
    return {
        each.measure: _plain(each)
        for each in changes
        if each.before is not None or each.after is not None
    }


def _plain(each: Change) -> Mapping[str, Any]:
    known = each._asdict()
    del known["measure"]
    return known | {"change": each.change, "is_more_than_chance": each.is_more_than_chance}


def remark_on_chance(changes: Iterable[Change]) -> str | None:
    """What a reader of many intervals must know; None without one."""
    judged = sum(each.is_more_than_chance is not None for each in changes)
    if not judged:
        return None
    by_chance = round(judged * 0.05)
    return (
        f"{judged} changes have an interval. If nothing had changed, about {by_chance} would be "
        "called better or worse, higher or lower."
    )


# How far two shares may be apart from chance alone. In few calls that all came out the same, a
# bootstrap sees no chance at all: it draws the same again and again.


def _are_shares(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether calls either have it or not; or have parts of it, all of them the same in one lot."""
    if not all(0.0 <= value <= 1.0 for lot in (before, after) for value in lot):
        return False
    is_binary = all(value in {0.0, 1.0} for lot in (before, after) for value in lot)
    return is_binary or any(_is_constant(lot) for lot in (before, after))


def _is_one_alike(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether the values of one lot are all the same, and those of the other are not the same."""
    is_one = _is_constant(before) or _is_constant(after)
    is_the_same = before[0] == before[-1] == after[0] == after[-1]
    return is_one and not is_the_same and min(before[0], after[0]) >= 0


def _interval_of_parts(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """The interval of two means, each as a share of the greatest value: chance moves no mean of
    values from 0 to that more than it moves a share.
    """
    most = max(before[-1], after[-1])
    low, high = interval_of_shares(*([each / most for each in lot] for lot in (before, after)))
    return low * most, high * most


def _is_constant(ascending: Sequence[float]) -> bool:
    return ascending[0] == ascending[-1]


def interval_of_shares(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % interval of the difference of two shares, by Newcombe (1998, method 10) from
    Wilson's interval of each.

    Example:
        >>> low, high = interval_of_shares([1.0] * 48 + [0.0] * 32, [1.0] * 56 + [0.0] * 14)
        >>> round(low, 4), round(high, 4)  # as in the paper
        (0.0524, 0.3339)
        >>> low, high = interval_of_shares([1.0] * 6, [1.0] * 88 + [0.0] * 29)
        >>> round(low, 2), round(high, 2)
        (-0.33, 0.15)
    """
    counts = [(sum(lot) / len(lot), len(lot)) for lot in (before, after)]
    return _ends_of_shares(*counts)


def _ends_of_shares(before: tuple[float, int], after: tuple[float, int]) -> tuple[float, float]:
    """The same of two shares, each with its number of calls."""
    (p, p_calls), (q, q_calls) = before, after
    (p_low, p_high), (q_low, q_high) = _wilson(p, p_calls), _wilson(q, q_calls)
    return q - p - math.hypot(q - q_low, p_high - p), q - p + math.hypot(q_high - q, p - p_low)


def _wilson(share: float, calls: int) -> tuple[float, float]:
    z2 = _NORMAL**2 / calls
    middle = share + z2 / 2
    reach = math.sqrt(z2 * (share * (1 - share) + z2 / 4))
    return (middle - reach) / (1 + z2), (middle + reach) / (1 + z2)


_NORMAL: Final = 1.959964
"""95 % of a normal distribution are within so many standard deviations."""

# The bootstrap interval: how far a mean, or the difference of two, may be from chance alone.


def interval(lots: Sequence[Sequence[float]], most_draws: int = MOST_DRAWS) -> tuple[float, float]:
    """Returns the 95 % interval of the last lot's mean less the first's, or of the mean of the only
    lot.

    Where the fewest resamples of all values are more draws than allowed, each resample has fewer
    values, and its distance from the mean is scaled by the root of their share: the bootstrap of m
    out of n.

    Args:
        lots: One or two lots, each with a value or more.
        most_draws: About how many values are drawn in all.

    Example:
        >>> low, high = interval([[0.0, 1.0] * 50, [3.0, 4.0] * 50])
        >>> 2.8 < low < 3 < high < 3.2
        True
    """
    rng = random.Random(SEED)  # noqa: S311 - nothing is secret
    size = sum(map(len, lots))
    resamples = max(LEAST_RESAMPLES, min(MOST_RESAMPLES, most_draws // size))
    share = min(1.0, most_draws / (resamples * size))
    means = [sum(lot) / len(lot) for lot in lots]
    found = []
    for _ in range(resamples):
        resampled = [_mean(rng, lot, mean, share) for lot, mean in zip(lots, means, strict=True)]
        found.append(resampled[-1] - (resampled[0] if len(resampled) > 1 else 0.0))
    found.sort()
    cut = round(resamples * _TAIL)
    return found[cut], found[-cut - 1]


def _mean(rng: random.Random, lot: Sequence[float], mean: float, share: float) -> float:
    drawn = math.ceil(len(lot) * share)
    resampled = sum(rng.choices(lot, k=drawn)) / drawn
    return (
        resampled if drawn == len(lot) else mean + (resampled - mean) * math.sqrt(drawn / len(lot))
    )


# What people compare versions by: the measures with their words, which way is better, and what can
# be said of a change.

SHARE_DRAWS: Final = 400_000
"""Draws for the interval of a share: up to 200 calls as many resamples as for trials."""
MOST_FLIPPED: Final = 20
"""Calls that are named for one subgoal."""

Judgement = Literal[
    "better", "worse", "higher", "lower", "no worse", "no different", "unclear", "unknown"
]
"""What can be said of a change: `no different` where the whole interval is within what matters, `no
worse` where its bad end is, `unclear` where more calls are needed, `unknown` without an interval.
"""


class ComparedMeasure(NamedTuple):
    """A measure by which people compare two lots of calls.

    Attributes:
        name: Of its column.
        title: What it is called.
        unit: `ms`, `share`, `dollars`, or nothing for a number.
        better: 1 where more is better, -1 where less is, 0 where neither is.
        matters: The least difference that matters, in its unit; None for a tenth of the first mean.
    """

    name: str
    title: str
    unit: Literal["ms", "share", "dollars", ""] = ""
    better: Literal[-1, 0, 1] = -1
    matters: float | None = None


SUCCESS: Final = ComparedMeasure("success", "All goals reached", "share", 1, 0.05)
PROGRESS: Final = ComparedMeasure("goals.progress.result", "Subgoals reached", "share", 1, 0.05)
BAD_ENDS: Final = ComparedMeasure("ended_badly", "Ended badly", "share", -1, 0.05)
WAIT: Final = ComparedMeasure("p50_ms", "Median wait", "ms", -1, 100)
SLOW_WAIT: Final = ComparedMeasure("p95_ms", "Slow wait, p95", "ms", -1, 200)
# a call that breaks off is a cheap one
COST: Final = ComparedMeasure("cost_dollars", "Cost", "dollars", 0)
SUBGOAL: Final = ComparedMeasure("", "", "share", 1, 0.05)
"""A subgoal that some of the calls reached."""
COMPARED: Final = (
    *(SUCCESS, PROGRESS, BAD_ENDS, WAIT, SLOW_WAIT),
    ComparedMeasure("speech.first_word_ms", "First word after", "ms", -1, 100),
    ComparedMeasure("unanswered", "Unanswered turns per call", matters=0.1),
    ComparedMeasure("dead_airs", "Dead air", matters=0.1),
    ComparedMeasure("assistant_interruptions", "Interruptions by the agent", matters=0.1),
    ComparedMeasure("user_interruptions", "Interruptions by the caller", matters=0.1),
    ComparedMeasure("failed_tool_calls", "Failed tools", matters=0.1),
    ComparedMeasure("stt_wer.result", "Word errors", "share", -1, 0.02),
    ComparedMeasure("faithfulness.result", "Faithfulness", "", 1),
    ComparedMeasure("conversation_progression.result", "Progression", "", 1),
    ComparedMeasure("turns", "Turns", "", 0),
    ComparedMeasure("length_ms", "Length", "ms", 0),
    COST,
)
"""The measures of a page and of a table of two versions, in their order."""
LONGEST_WAIT: Final = ComparedMeasure("worst_wait_ms", "Longest wait", "ms", -1, 200)
UNANSWERED: Final = ComparedMeasure("unanswered_share", "Unanswered turns", "share")
LISTED: Final = (
    WAIT._replace(title="Median wait for answers"),
    SLOW_WAIT._replace(title="p95 wait for answers"),
    *(LONGEST_WAIT, UNANSWERED),
    *(BAD_ENDS, SUCCESS, PROGRESS, COST._replace(title="Cost per call")),
)
"""The measures of a list of versions or of other lots of calls, in their order."""


USUAL_SINCE: Final = "30d"
"""How far back the calls of a lot go that does not say it."""


class Lot(NamedTuple):
    """The calls of one side of a comparison: those to which all of this applies. Empty is any.

    Attributes:
        agent: Name of the agent.
        version: Its version.
        tenant: Whose agent it is.
        environment: Where it runs.
        since: From when on, as people write it.
        until: Before when.
    """

    agent: str = ""
    version: str = ""
    tenant: str = ""
    environment: str = ""
    since: str = ""
    until: str = ""

    @property
    def labels(self) -> dict[str, str]:
        """The labels that its calls have, by the name of the label."""
        return {
            name: value
            for name, value in self._asdict().items()
            if value and name not in {"since", "until"}
        }

    def name_beside(self, other: "Lot") -> str:
        """What it is called beside another one: what is only its own, or all of it.

        >>> Lot("desk", "2").name_beside(Lot("desk", "1")), Lot().name_beside(Lot(since="7d"))
        ('version 2', 'all calls')
        >>> Lot("desk", since="7d").name_beside(Lot("desk", until="7d"))
        'the lot since 7d'
        """
        if self.days and self.labels == other.labels:
            return self.days
        mine = {name: value for name, value in self._asdict().items() if value}
        own = {name: value for name, value in mine.items() if getattr(other, name) != value} or mine
        said = [
            value if name in {"agent", "tenant"} else f"{name} {value}"
            for name, value in own.items()
        ]
        of_time = "the lot " * bool(own and not own.keys() - {"since", "until"})
        return of_time + ", ".join(said) or "all calls"

    @property
    def days(self) -> str:
        """The day or the week whose calls it has; empty for another stretch of time.

        >>> Lot(since="2026-02-28", until="2026-03-01").days, Lot(since="7d").days
        ('2026-02-28', '')
        >>> Lot(since="2026-11-23", until="2026-11-30").days
        'week of 2026-11-23'
        """
        try:
            length = date.fromisoformat(self.until) - date.fromisoformat(self.since)
        except ValueError:
            return ""
        return {1: self.since, 7: f"week of {self.since}"}.get(length.days, "")


_BY_NAME: Final = {measure.name: measure for measure in COMPARED} | {"progress": PROGRESS}


def measure_of(name: str) -> ComparedMeasure:
    """The measure of a column; one that people do not compare versions by is called as it is."""
    return _BY_NAME.get(name) or ComparedMeasure(name, name, better=0)


class LotCalls(NamedTuple):
    """The calls of a lot that are over and began in a period.

    Attributes:
        lot: What they have in common: a version of an agent, or one label, or their day.
        calls: How many.
        first_ms: When the first of them began, in epoch ms.
        last_ms: The same of the last.
        values: By name of a measure of `LISTED` its mean over the calls, of the longest wait the
            longest, also one in vain, of unanswered turns their share of all turns; unknown ones are left out.
        judged: Of how many calls it is known whether they reached all goals.
        unjudged: How many others with goals there are: a mean leaves them out.
        unanswered: How many turns had no answer.
        in_vain: How many callers waited when the call ended.
        in_vain_ms: How long that was at most; None without one.
    """

    lot: Lot
    calls: int
    first_ms: float
    last_ms: float
    values: Mapping[str, float]
    judged: int = 0
    unjudged: int = 0
    unanswered: int = 0
    in_vain: int = 0
    in_vain_ms: float | None = None


class SubgoalChange(NamedTuple):
    """How often calls of two lots reached a subgoal.

    Attributes:
        goal_set: Name of its goal set.
        name: Its name.
        change: The share of the calls that reached it.
        flipped: Calls of the second lot with another result than most of the first have,
            `MOST_FLIPPED` at most.
        others: How many more of them there are.
    """

    goal_set: str
    name: str
    change: Change
    flipped: Sequence[str]
    others: int


class Comparison(NamedTuple):
    """Two lots of calls that are over.

    Attributes:
        lots: Which.
        calls: How many calls each has.
        changes: The measures that at least one lot has.
        subgoals: The subgoals, those with the surest change first.
        is_over: Whether the day or week of the second lot is over.
    """

    lots: tuple[Lot, Lot]
    calls: tuple[int, int]
    changes: Sequence[Change]
    subgoals: Sequence[SubgoalChange]
    is_over: bool = True

    @property
    def names(self) -> tuple[str, str]:
        """What the lots are called."""
        a, b = self.lots
        return a.name_beside(b), b.name_beside(a)

    def verdict(self) -> str:
        """Whether the second lot is better, in a sentence."""
        if not all(self.calls):
            return (
                f"There is no call of {self.names[bool(self.calls[0])]} that is over: nothing can "
                "be compared."
            )
        known = {change.measure: change for change in self.changes}
        said = [
            _clause(measure, known[measure.name], words)
            for measure, words in (
                (WAIT, ("is faster", "is slower", "is no slower", "speed")),
                (
                    BAD_ENDS,
                    (
                        "ends badly less often",
                        "ends badly more often",
                        "ends badly no more often",
                        "bad ends",
                    ),
                ),
                (SUCCESS, ("goals better", "goals worse", "goals no worse", "goals")),
            )
            if measure.name in known
        ]
        name = self.names[1] + (", which is not over," * (not self.is_over))
        sentence = f"{name[:1].upper()}{name[1:]} {'; '.join(said) or 'has no measure to compare'}."
        judged = {
            judgement(measure, known[measure.name])
            for measure in (WAIT, BAD_ENDS, SUCCESS)
            if measure.name in known
        }
        in_short = _in_short(judged) if self.is_over else "That may change."
        return f"{sentence} {in_short}".strip()


def _in_short(judged: Collection[Judgement]) -> str:
    """Sums several judgements up in a plain sentence; empty without any."""
    if not judged:
        return ""
    if {"better", "worse"} <= {*judged}:
        return "So it is better in one and worse in another."
    has_unclear = bool({"unclear", "unknown"} & {*judged})
    if "worse" in judged and has_unclear:
        return "So it is worse; for some measures there are too few calls to say."
    if "worse" in judged:
        return "So it is worse, and there are enough calls to say so."
    if "better" in judged and has_unclear:
        return "So far it is better, but there are too few calls to say so of everything."
    if "better" in judged:
        return "So it is better, and there are enough calls to say so."
    if {*judged} <= {"no worse", "no different"}:
        return "So it is no worse."
    return "So there are too few calls to say whether it is better."


def _clause(measure: ComparedMeasure, change: Change, words: tuple[str, str, str, str]) -> str:
    better, worse, no_worse, what = words
    match judgement(measure, change):
        case "better" | "worse" as judged:
            apart = shown(measure, abs(change.change or 0), is_apart=True)
            return (
                f"{better if judged == 'better' else worse} by {apart} "
                f"{ends(measure, change, is_size=True)}"
            )
        case "no worse" | "no different":
            return no_worse
        case _:
            return f"{what}: not enough calls to say"


def judgement(measure: ComparedMeasure, change: Change) -> Judgement:
    """What can be said of a change."""
    if change.low is None or change.high is None:
        return "unknown"
    limit = _matters(measure, change)
    if max(abs(change.low), abs(change.high)) <= limit:
        return "no different"
    if change.is_more_than_chance:
        is_higher = change.low > 0
        if not measure.better:
            return "higher" if is_higher else "lower"
        return "better" if is_higher == (measure.better > 0) else "worse"
    worst = -change.high if measure.better < 0 else change.low
    return "no worse" if measure.better and limit and -worst <= limit else "unclear"


MOST_MORE_CALLS: Final = 10_000
"""Above this the exact number helps no one."""


def worse_than_the_others(lots: Sequence[LotCalls]) -> Iterator[tuple[LotCalls, str]]:
    """The lots of which more calls end badly than of all others together, or fewer reach all goals,
    by more than chance, each with that in words; first the one that has most such calls too many.
    """
    found: list[tuple[float, LotCalls, str]] = []
    said = (BAD_ENDS, "ends badly more often"), (SUCCESS, "reaches all goals less often")
    for measure, words in said:
        shares = [_share_of(each, measure) for each in lots]
        with_it, known = (sum(of[place] for of in shares) for place in (0, 1))
        for each, (mine, calls) in zip(lots, shares, strict=True):
            if min(calls, known - calls) < LEAST_CALLS:
                continue
            rest = known - calls
            share, others = mine / calls, (with_it - mine) / rest
            low, high = _ends_of_shares((others, rest), (share, calls))
            change = Change(measure.name, others, share, rest, calls, low, high)
            if judgement(measure, change) == "worse":
                apart = abs(change.change or 0)
                how_far = shown(measure, apart, is_apart=True)
                text = f"{words} by {how_far} {ends(measure, change, is_size=True)}"
                found.append((apart * calls, each, text))
    by_lot: defaultdict[Lot, list[tuple[float, LotCalls, str]]] = defaultdict(list)
    for one in found:
        by_lot[one[1].lot].append(one)
    # a call that ended badly mostly missed its goals too, and counts once
    for of in sorted(by_lot.values(), key=lambda of: -max(too_many for too_many, _, _ in of)):
        number = max(1, round(max(too_many for too_many, _, _ in of)))
        texts = " and ".join(text for _, _, text in of)
        yield (
            of[0][1],
            f"{texts} (about {number:,} more such call{'s' * (number > 1)} than expected)",
        )


def _share_of(lot: LotCalls, measure: ComparedMeasure) -> tuple[int, int]:
    """Of how many calls a share is 1, and of how many it is known."""
    known = lot.judged if measure is SUCCESS else lot.calls
    return round(lot.values.get(measure.name, 0.0) * known), known


def more_calls_in_words(measure: ComparedMeasure, change: Change) -> str:
    """How many more calls of each lot are needed to tell, in words; empty if there are enough."""
    more = more_calls(measure, change)
    number = f"more than {MOST_MORE_CALLS:,}" if more > MOST_MORE_CALLS else f"{more:,}"
    return f"{number} more call{'s' * (more > 1)}" * bool(more)


def more_calls(measure: ComparedMeasure, change: Change) -> int:
    """About how many more calls of each lot are needed until something can be said, if they are
    like those there are; 0 if there are enough.
    """
    limit = _matters(measure, change)
    judged = judgement(measure, change)
    if judged == "unknown" and change.change is not None:
        return max(1, LEAST_CALLS - min(change.calls_before, change.calls_after))
    if judged != "unclear" or not limit or change.low is None or change.high is None:
        return 0
    least, apart = min(change.calls_before, change.calls_after), change.change or 0
    # on which side of 0 the interval is, or that its bad end is within the limit
    good = apart * measure.better if measure.better else -abs(apart)
    told_from = max(abs(apart), limit + good)
    reach = max(change.high - apart, apart - change.low)  # that of shares is wider on one side
    return max(1, math.ceil(least * (reach / told_from) ** 2) - least)


def _matters(measure: ComparedMeasure, change: Change) -> float:
    return abs(change.before or 0) / 10 if measure.matters is None else measure.matters


def shown(
    measure: ComparedMeasure, value: float | None, *, is_apart: bool = False, has_sign: bool = False
) -> str:
    """A value of a measure with its unit; unknown is a dash. How far two shares are apart is told
    in points.

    >>> shown(WAIT, 1234.5), shown(SUCCESS, 0.25), shown(SUCCESS, -0.25, is_apart=True), shown(WAIT, None)
    ('1.23 s', '25 %', '\u221225 points', '\u2013')
    >>> shown(WAIT, -1.0, is_apart=True, has_sign=True)
    '0.00 s'
    """
    if value is None:
        return _UNKNOWN
    digits = _digits(measure, value)
    sign = ""
    if digits.strip("0.,"):  # otherwise it is less than can be shown
        sign = "\u2212" if value < 0 else "+" * has_sign
    end = " points" if is_apart and measure.unit == "share" else _ENDS[measure.unit]
    return f"{sign}{digits}{end}"


class Told(NamedTuple):
    """A change of a measure in words.

    Attributes:
        values: It in the first and in the second lot; unknown is a dash.
        apart: How much more it is in the second, with its unit.
        ends: The interval of that.
        judged: What can be said of it.
        more: How many more calls are needed to tell; empty if there are enough.
    """

    values: tuple[str, str]
    apart: str
    ends: str
    judged: Judgement
    more: str


def told(measure: ComparedMeasure, change: Change) -> Told:
    """A change in words, as pages and tables have it."""
    return Told(
        (shown(measure, change.before), shown(measure, change.after)),
        shown(measure, change.change, is_apart=True, has_sign=True),
        ends(measure, change),
        judgement(measure, change),
        more_calls_in_words(measure, change),
    )


_UNKNOWN: Final = "\u2013"
_ENDS: Final = {"ms": " s", "share": " %", "dollars": " $", "": ""}


def _digits(measure: ComparedMeasure, value: float) -> str:
    if not measure.unit and isinstance(value, int):  # of one call, and no mean
        return f"{abs(value):,}"
    if measure.unit == "share":
        percent = abs(value) * 100
        return f"{percent:,.{0 if percent >= 10 or not percent else 1}f}"
    if measure.unit == "dollars":
        return f"{abs(value):,.4f}"
    size = abs(value) / 1_000 if measure.unit == "ms" else abs(value)
    return f"{size:,.{2 if size < 10 else 1}f}"


def ends(measure: ComparedMeasure, change: Change, *, is_size: bool = False) -> str:
    """The interval of a change in its unit, or of its size; a dash without one.

    >>> ends(WAIT, Change("p50_ms", 900, 1310, 40, 40, 360.0, 470.0))
    '[0.36, 0.47]'
    """
    if change.low is None or change.high is None:
        return _UNKNOWN
    low, high = (
        (-change.high, -change.low) if is_size and change.high < 0 else (change.low, change.high)
    )
    return "[{}, {}]".format(*("\u2212" * (end < 0) + _digits(measure, end) for end in (low, high)))


# Two calls.

CALL_MEASURES: Final = tuple(
    LONGEST_WAIT if each.name == "p95_ms" else each  # of some ten waits both are mostly the same
    for each in COMPARED
    if each.name in {*MEASURES, "length_ms"}
)
"""Measures by which two calls are compared."""


class Beside(NamedTuple):
    """Two calls compared, A and B, of which A is the base.

    Attributes:
        sentence: What is better in B, what is worse, and by how much.
        measures: The measures that at least one has, each with its title.
        goals: By name of a subgoal the same, and whether it was reached in words.
    """

    sentence: str
    measures: Sequence[tuple[str, Told]]
    goals: Mapping[str, Told]


_CLAUSES: Final = {
    "p50_ms": ("answers {} sooner", "answers {} later"),
    LONGEST_WAIT.name: ("longest wait {} shorter", "longest wait {} longer"),
    "speech.first_word_ms": ("first word {} sooner", "first word {} later"),
    "unanswered": ("unanswered turns: {} fewer", "unanswered turns: {} more"),
    "dead_airs": ("dead airs: {} fewer", "dead airs: {} more"),
    "assistant_interruptions": (
        "interruptions by the agent: {} fewer",
        "interruptions by the agent: {} more",
    ),
    "user_interruptions": (
        "interruptions by the caller: {} fewer",
        "interruptions by the caller: {} more",
    ),
    "failed_tool_calls": ("failed tools: {} fewer", "failed tools: {} more"),
    "stt_wer.result": ("word errors {} lower", "word errors {} higher"),
}
"""By measure the words for a call that is better or worse by so much; others have their title."""


def calls_beside(
    a: Mapping[str, float], b: Mapping[str, float], goals: Mapping[str, Told]
) -> Beside:
    """Compares two calls by their known measures, and by subgoals that are compared already."""
    said: dict[str, list[str]] = {
        judged: [f"{verb} {len(names)} subgoal{'s' * (len(names) > 1)} more ({_some_of(names)})"]
        if (names := [name for name, each in goals.items() if each.judged == judged])
        else []
        for judged, verb in (("better", "reaches"), ("worse", "misses"))
    }
    measures = []
    for measure in CALL_MEASURES:
        if measure.name in {*a, *b}:
            change = alone(measure, a.get(measure.name), b.get(measure.name))
            each = told(measure, change)
            measures.append((measure.title, each))
            says_it = (measure is not PROGRESS or not goals) and (
                # sooner to a greeting is no praise where nobody was answered
                measure.name != "speech.first_word_ms" or WAIT.name in {*a, *b}
            )
            if each.judged in said and says_it:
                words = _CLAUSES.get(measure.name, (f"{measure.title.lower()} by {{}}",) * 2)
                size = shown(measure, abs(change.change or 0), is_apart=True)
                said[each.judged].append(words[each.judged == "worse"].format(size))
    parts = (f"{name.title()} in B: {', '.join(of)}." for name, of in said.items() if of)
    return Beside(" ".join(parts) or "B is neither better nor worse.", measures, goals)


MOST_NAMED: Final = 3
"""Subgoals that a sentence names."""


def _some_of(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + f" and {more} more" * (more > 0)


def alone(measure: ComparedMeasure, before: float | None, after: float | None) -> Change:
    """The change from one call to another: no chance is in it, it is what it is."""
    apart = None if before is None or after is None else after - before
    return Change(measure.name, before, after, 1, 1, apart, apart)
