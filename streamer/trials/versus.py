"""Compares two lots of trials, as of two goal sets, prompts or versions: how far apart they are,
and which calls flipped. Pure.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

from consumers.console.page.drawing import counted
from consumers.store.changes import (
    MEASURES,
    MOST_DRAWS,
    Change,
    change_of,
    changes_json,
    draws_of_one,
)
from streamer.trials.calls import Trial

SHARES: Final[Mapping[str, Callable[[Trial], float | bool | str]]] = {
    "success": lambda trial: trial.success,
    "progress": lambda trial: trial.progress,
}
"""What is compared of a trial beside the measures of its call; a text says why it is not known."""


class Flip(NamedTuple):
    """A subgoal that one of two evaluations of a call has reached, and the other has not.

    Attributes:
        subgoal_id: Its name, the same in both.
        is_won: Whether it is the second that reached it.
        turn: The turn that reached it.
        quote: What was said and done in that turn, redacted; None where the words of the call are
            not there.
    """

    subgoal_id: str
    is_won: bool
    turn: int | None
    quote: str | None = None


def flips(before: Trial, after: Trial) -> list[Flip]:
    """The subgoals of one call that flipped. One that only one of the two has, or whose finding is
    not known, did not flip.
    """
    then = {each.subgoal_id: each for each in before.subgoals}
    found = []
    for now in after.subgoals:
        was = then.get(now.subgoal_id)
        if was is not None and {was.finding, now.finding} == {True, False}:
            is_won = now.finding is True
            turn = (now if is_won else was).reached_turn
            words = (after if is_won else before).words
            quote = words[turn].text if turn is not None and turn in words else None
            found.append(Flip(now.subgoal_id, is_won, turn, quote))
    return found


@dataclass(frozen=True)
class Versus:
    """Two lots of trials, each at least one."""

    a: Sequence[Trial]
    b: Sequence[Trial]

    @cached_property
    def pairs(self) -> list[tuple[Trial, Trial]]:
        """The calls whose id is once in each lot, in the order of the second."""
        counts = [Counter(trial.conversation_id for trial in lot) for lot in (self.a, self.b)]
        first = {trial.conversation_id: trial for trial in self.a}
        both = [
            trial for trial in self.b if all(count[trial.conversation_id] == 1 for count in counts)
        ]
        return [(first[trial.conversation_id], trial) for trial in both]

    def changes(self) -> list[Change]:
        """How far success, progress, each measure of a call and each of one's own are apart."""
        draws = draws_of_one(len(MEASURES))
        shares = [self._change(name, of, MOST_DRAWS) for name, of in SHARES.items()]
        own = dict.fromkeys(name for trial in (*self.a, *self.b) for name in trial.own)
        return [
            *shares,
            *(
                self._change(name, partial(_measured, place), draws)
                for place, name in enumerate(MEASURES)
            ),
            *(self._change(name, partial(_own, name), draws) for name in own),
        ]

    def _change(
        self, name: str, of: Callable[[Trial], float | bool | str | None], draws: int
    ) -> Change:
        before, after = (
            [float(known) for trial in lot if (known := _known(of(trial))) is not None]
            for lot in (self.a, self.b)
        )
        both = [(_known(of(then)), _known(of(now))) for then, now in self.pairs]
        pairs = [(then, now) for then, now in both if then is not None and now is not None]
        return change_of(name, before, after, pairs, draws)

    def flipped(self) -> Iterator[tuple[str, list[Flip], bool | str, bool | str]]:
        """The calls with a subgoal that flipped or with another success: id, flips, success before
        and after.
        """
        for before, after in self.pairs:
            found = flips(before, after)
            if found or before.success != after.success:
                yield after.conversation_id, found, before.success, after.success


def versus_lines(versus: Versus, names: tuple[str, str]) -> Iterator[str]:
    """What the lots are, how often each subgoal flipped, and each call that did."""
    yield f"A: {names[0]}. B: {names[1]}."
    pairs, flipped = versus.pairs, list(versus.flipped())
    if not pairs:
        yield (
            "No call is once in both, so flips are not known, and the interval is that of two "
            "independent lots."
        )
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
        "measures": changes_json(versus.changes()),
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
    rows = [
        (name, counts[name, True], counts[name, False])
        for name in dict.fromkeys(name for name, _ in counts)
    ]
    return sorted(rows, key=lambda row: -row[1] - row[2])


def flips_in_words(found: Iterable[Flip]) -> str:
    """The flips of one call.

    Example:
        >>> flips_in_words([Flip("agreed", False, 1), Flip("booked", True, None)])
        'agreed lost (turn 1), booked won'
    """
    return ", ".join(
        f"{each.subgoal_id} "
        f"{'won' if each.is_won else 'lost'}{'' if each.turn is None else f' (turn {each.turn})'}"
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
    if isinstance(value, str):
        return "unknown"
    return "yes" if value else "no"


def _known(value: float | bool | str | None) -> float | None:  # noqa: FBT001 - the value itself
    return None if value is None or isinstance(value, str) else float(value)


def _measured(place: int, trial: Trial) -> float | None:
    return trial.measures[place] if trial.measures else None


def _own(name: str, trial: Trial) -> float | None:
    return trial.own.get(name)
