"""Compares two lots of trials, as of two goal sets, prompts or versions: how far apart they are, and which calls flipped. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rich.table import Table

from consumers.console.page.drawing import counted, percent
from streamer.bootstrap import interval
from streamer.trials.calls import Trial

_UNKNOWN: Final = "-"

FIGURES: Final[Mapping[str, Callable[[Trial], float | bool | str]]] = {
    "Success": lambda trial: trial.success,
    "Progress": lambda trial: trial.progress,
}
"""What is compared of a trial; a text says why it is not known."""


class Flip(NamedTuple):
    """A subgoal that one of two evaluations of a call has reached, and the other has not.

    Attributes:
        subgoal_id: Its name, the same in both.
        is_won: Whether it is the second that reached it.
        turn: The turn that reached it.
        quote: What was said and done in that turn, redacted; None where the words of the call are not there.
    """

    subgoal_id: str
    is_won: bool
    turn: int | None
    quote: str | None = None


def flips(before: Trial, after: Trial) -> list[Flip]:
    """The subgoals of one call that flipped. One that only one of the two has, or whose finding is not known, did not flip."""
    then = {each.subgoal_id: each for each in before.subgoals}
    found = []
    for now in after.subgoals:
        was = then.get(now.subgoal_id)
        if was is not None and {was.finding, now.finding} == {True, False}:
            is_won = now.finding is True
            turn = (now if is_won else was).reached_turn
            words = (after if is_won else before).words
            found.append(Flip(now.subgoal_id, is_won, turn, None if turn is None else words.get(turn)))
    return found


class Apart(NamedTuple):
    """One figure of two lots.

    Attributes:
        a: Mean of those of the first whose value is known; None without any.
        b: The same of the second.
        low: Lower end of the 95 % bootstrap interval of b - a; None with fewer than two values in one of them.
        high: Its upper end.
        is_paired: Whether calls are resampled with both of their values: each value has a partner in the other lot.
    """

    a: float | None
    b: float | None
    low: float | None
    high: float | None
    is_paired: bool


@dataclass(frozen=True)
class Versus:
    """Two lots of trials, each at least one."""

    a: Sequence[Trial]
    b: Sequence[Trial]

    @property
    def pairs(self) -> list[tuple[Trial, Trial]]:
        """The calls whose id is once in each lot, in the order of the second."""
        counts = [Counter(trial.conversation_id for trial in lot) for lot in (self.a, self.b)]
        first = {trial.conversation_id: trial for trial in self.a}
        both = [trial for trial in self.b if all(count[trial.conversation_id] == 1 for count in counts)]
        return [(first[trial.conversation_id], trial) for trial in both]

    def apart(self, of: Callable[[Trial], float | bool | str]) -> Apart:
        """One figure with its interval."""
        known = [[float(value) for trial in lot if not isinstance(value := of(trial), str)] for lot in (self.a, self.b)]
        values = [(of(before), of(after)) for before, after in self.pairs]
        paired = [(x, y) for x, y in values if not isinstance(x, str) and not isinstance(y, str)]
        is_paired = len(paired) == len(known[0]) == len(known[1])
        lots = [[y - x for x, y in paired]] if is_paired else known
        means = [sum(lot) / len(lot) if lot else None for lot in known]
        low = high = None
        if min(map(len, lots)) > 1:
            low, high = interval(lots)
        return Apart(means[0], means[1], low, high, is_paired)

    def flipped(self) -> Iterator[tuple[str, list[Flip], bool | str, bool | str]]:
        """The calls with a subgoal that flipped or with another success: id, flips, success before and after."""
        for before, after in self.pairs:
            found = flips(before, after)
            if found or before.success != after.success:
                yield after.conversation_id, found, before.success, after.success


def versus_table(versus: Versus) -> Table:
    """The figures of both lots with the difference and its interval."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("")
    for head in ("A", "B", "B - A", "95 % interval"):
        table.add_column(head, justify="right")
    table.add_row("Trials", str(len(versus.a)), str(len(versus.b)), "", "")
    for name, of in FIGURES.items():
        apart = versus.apart(of)
        difference = None if apart.a is None or apart.b is None else apart.b - apart.a
        interval = _UNKNOWN if apart.low is None else f"{_points(apart.low)} to {_points(apart.high)}"
        table.add_row(name, _share(apart.a), _share(apart.b), _points(difference), interval)
    return table


def versus_lines(versus: Versus, names: tuple[str, str]) -> Iterator[str]:
    """What the lots are, how often each subgoal flipped, and each call that did."""
    yield f"A: {names[0]}. B: {names[1]}."
    pairs, flipped = versus.pairs, list(versus.flipped())
    if not pairs:
        yield "No call is once in both, so flips are not known, and the interval is that of two independent lots."
        return
    yield f"{counted(len(pairs), 'call')} in both, {len(flipped)} with another result."
    for subgoal, won, lost in by_subgoal(found for _, found, *_ in flipped):
        yield f"  {subgoal}: {won} won, {lost} lost"
    for call, found, before, after in flipped:
        success = [] if before == after else [f"success {_success(before)} to {_success(after)}"]
        yield f"  {call}: {', '.join([*success, *([flips_in_words(found)] if found else [])])}"
        yield from quotes(found)


def versus_json(versus: Versus, names: tuple[str, str]) -> dict[str, Any]:
    """The comparison as plain values; an unknown value is null."""
    flipped = list(versus.flipped())
    subgoals = by_subgoal(found for _, found, *_ in flipped)
    return {
        "a": {"name": names[0], "trials": len(versus.a)},
        "b": {"name": names[1], "trials": len(versus.b)},
        "figures": {name.lower(): versus.apart(of)._asdict() for name, of in FIGURES.items()},
        "calls_in_both": len(versus.pairs),
        "subgoals": [{"id": name, "won": won, "lost": lost} for name, won, lost in subgoals],
        "flipped": [
            {
                "conversation_id": call,
                "success": [None if isinstance(each, str) else each for each in (before, after)],
                "subgoals": [each._asdict() for each in found],
            }
            for call, found, before, after in flipped
        ],
    }


def by_subgoal(flipped: Iterable[Iterable[Flip]]) -> list[tuple[str, int, int]]:
    """Each subgoal that flipped with how often it was won and lost; most flips first."""
    counts = Counter((each.subgoal_id, each.is_won) for found in flipped for each in found)
    rows = [(name, counts[name, True], counts[name, False]) for name in dict.fromkeys(name for name, _ in counts)]
    return sorted(rows, key=lambda row: -row[1] - row[2])


def flips_in_words(found: Iterable[Flip]) -> str:
    """The flips of one call.

    Example:
        >>> flips_in_words([Flip("agreed", False, 1), Flip("booked", True, None)])
        'agreed lost (turn 1), booked won'
    """
    return ", ".join(
        f"{each.subgoal_id} {'won' if each.is_won else 'lost'}{'' if each.turn is None else f' (turn {each.turn})'}"
        for each in found
    )


def quotes(found: Iterable[Flip]) -> Iterator[str]:
    """The evidence of the flips of one call, in lines below it."""
    yield from (
        f"    turn {each.turn}: {each.quote}"
        for each in dict.fromkeys(each._replace(subgoal_id="", is_won=True) for each in found)
        if each.quote
    )


def _success(value: bool | str) -> str:  # noqa: FBT001 - the value itself
    return "unknown" if isinstance(value, str) else "yes" if value else "no"


def _share(value: float | None) -> str:
    return _UNKNOWN if value is None else percent(value)


def _points(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{'+' if value > 0 else ''}{percent(value)}"
