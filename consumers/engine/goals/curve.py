"""The curve of progress over turns: AUC, PPT and success, in O(1) a turn."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from consumers.engine.goals.checks import Undecided
from schemas.closed_sets import UnscoredReason
from schemas.goals.goal_set import DEFAULT_MAX_TURNS
from schemas.rows import Progress, Unscored, Value

# The area under a progress curve, equal to agent-inspect's to the last bit: numpy's trapezoid rule
# rounded to 4 places.
#
# At rounding ties the order of summation decides the last digit, so this adds in numpy's order,
# without numpy.

PLACES = 4
"""Decimal places of every progress, AUC and success value of agent-inspect."""

_BLOCK = 128  # numpy sums up to so many terms with eight accumulators, and halves longer sums
_LANES = 8


def sum_in_numpy_order(terms: Sequence[float]) -> float:
    """The sum in the order of numpy's pairwise summation, equal to the last bit.

    Added from left to right it would be 0.9999999999999999:

    >>> sum_in_numpy_order([0.1] * 10)
    1.0
    """
    count = len(terms)
    if count > _BLOCK:
        half = count // 2
        half -= half % _LANES
        return sum_in_numpy_order(terms[:half]) + sum_in_numpy_order(terms[half:])
    if count < _LANES:
        return _added(0.0, terms)
    whole = count - count % _LANES
    lanes = [_added(terms[lane], terms[lane + _LANES : whole : _LANES]) for lane in range(_LANES)]
    quarters = [lanes[lane] + lanes[lane + 1] for lane in range(0, _LANES, 2)]
    return _added((quarters[0] + quarters[1]) + (quarters[2] + quarters[3]), terms[whole:])


def area_under(heights: Sequence[float]) -> float:
    """Area under the polygon through `heights` at equal distances from 0 to 1; not rounded.

    Raises:
        ValueError: There are fewer than two heights.
    """
    if len(heights) < 2:
        raise ValueError(
            f"The area under a curve needs two points or more; there were {len(heights)}."
        )
    last = len(heights) - 1
    places = [index / last for index in range(last + 1)]
    return sum_in_numpy_order(
        [(places[i + 1] - places[i]) * (heights[i + 1] + heights[i]) / 2.0 for i in range(last)]
    )


def _added(start: float, terms: Sequence[float]) -> float:
    # Not sum(): from Python 3.12 on it corrects for lost bits, and numpy does not.
    total = start
    for term in terms:
        total += term
    return total


# Progress of one call turn by turn, the area under its curve, progress per turn and success, as
# verdicts come in.
#
# After the same verdicts the numbers are agent-inspect's for the call up to that turn. The
# difference is the cost: a verdict updates the known numbers, and the area takes a few additions
# per turn. Turns count from 1; the greeting is no turn here.

# 10 to the PLACES: rounded progress is a whole number of these parts of 1, so its sums are exact
_UNIT = 10_000


# Known after a turn: a number, or why there is none. None while a verdict is open.
_Known = float | UnscoredReason | None


class _Prefix(NamedTuple):
    """Turns 1 to one of them, summed up. The last three fields have a meaning only when `hole` is
    False.
    """

    turn: int
    reached: int
    missing: int
    last_reached_turn: int | None
    progress: _Known
    success: _Known
    hole: (
        UnscoredReason | bool | None
    )  # False: progress is known after each of the turns; otherwise why not, None for open
    first_units: int
    last_units: int
    sum_units: int


class ProgressCurve:
    """The verdicts of one call and the scores that follow from them.

    A subgoal is known by its place in the goal set, from 0. A verdict is about one subgoal after
    one turn and rests on that turn's input, which is everything up to it. A reached subgoal is not
    judged in later turns, so progress never falls, except when the input of the very turn that
    reached it changes: then the verdict is void and asked for again. A subgoal that code checks
    needs no verdicts: code says where it is reached, and can withdraw that.
    """

    def __init__(self, subgoals: int, max_turns: int = DEFAULT_MAX_TURNS) -> None:
        """Starts without turns.

        Args:
            subgoals: Number of subgoals in the goal set.
            max_turns: The last turn that is judged, and the width of the AUC.
        """
        self._max_turns = max_turns
        self._hashes: list[str | None] = []  # None: the turn was passed over
        self._verdicts: list[dict[int, bool | UnscoredReason]] = []
        self._reached_at: list[int | None] = [None] * subgoals
        self._by_code: set[int] = set()
        self._undecided: dict[int, Undecided] = {}
        self._prefixes: list[_Prefix] = []  # as far as they are computed and current

    @property
    def turns(self) -> int:
        """The highest turn that has an input, `max_turns` at most."""
        return len(self._hashes)

    @property
    def reached_at(self) -> tuple[int | None, ...]:
        """For each subgoal the first turn judged to have reached it; None without one."""
        return tuple(self._reached_at)

    def set_input(self, turn: int, input_hash: str) -> None:
        """Sets the input on which a turn is judged. Verdicts on another input of it become void.

        A turn that is passed over leaves later scores open until its input is set. Turns after
        `max_turns` are not judged.
        """
        if turn > self._max_turns or (turn <= self.turns and self._hashes[turn - 1] == input_hash):
            return
        while self.turns < turn:
            self._hashes.append(None)
            self._verdicts.append({})
        self._void(turn)
        self._hashes[turn - 1] = input_hash

    def remove_from(self, first_gone: int) -> None:
        """Removes this turn and all after it."""
        for turn in range(self.turns, max(first_gone, 1) - 1, -1):
            self._void(turn)
            del self._hashes[turn - 1], self._verdicts[turn - 1]

    def fold(
        self,
        turn: int,
        subgoal: int,
        verdict: bool | UnscoredReason,  # noqa: FBT001 - a verdict is data
        input_hash: str,
    ) -> bool:
        """Folds a verdict on one subgoal after one turn, judged on that input; a reason when it
        could not be judged.

        Returns:
            Whether it counts. It does not when the turn has another input by now.
        """
        if not 1 <= turn <= self.turns or self._hashes[turn - 1] != input_hash:
            return False
        self._verdicts[turn - 1][subgoal] = verdict
        reached_at = self._reached_at[subgoal]
        if verdict is True:
            self._reached_at[subgoal] = turn if reached_at is None else min(turn, reached_at)
        elif reached_at == turn:
            self._reached_at[subgoal] = self._first_reaching(subgoal)
        del self._prefixes[turn - 1 :]
        return True

    def know(
        self, subgoal: int, reached_at: int | None, undecided: Undecided | None = None
    ) -> None:
        """Sets the result of code for a subgoal, for all turns.

        Args:
            subgoal: Its place in the goal set.
            reached_at: The turn that reached it; None for not reached.
            undecided: First turn from which it is undecidable, and why; None if it is decidable.
        """
        is_new = subgoal not in self._by_code
        was_reached_at, was_undecided = before = (
            self._reached_at[subgoal],
            self._undecided.pop(subgoal, None),
        )
        if undecided is not None:
            self._undecided[subgoal] = undecided
        if not is_new and before == (reached_at, undecided):
            return
        self._by_code.add(subgoal)
        self._reached_at[subgoal] = reached_at
        turns = [turn for turn in (was_reached_at, reached_at) if turn is not None]
        turns += [each.since for each in (was_undecided, undecided) if each is not None]
        del self._prefixes[0 if is_new else min(turns) - 1 :]

    def open_questions(self) -> Iterator[tuple[int, int]]:
        """(turn, subgoal) pairs to be judged now: of each subgoal the first turn without a verdict.

        Only the first, because the verdict may make later ones needless.
        """
        for subgoal, reached_at in enumerate(self._reached_at):
            if subgoal in self._by_code:
                continue
            last = self.turns if reached_at is None else reached_at - 1
            for turn in range(1, last + 1):
                if self._hashes[turn - 1] is not None and subgoal not in self._verdicts[turn - 1]:
                    yield turn, subgoal
                    break

    def at(self, turn: int) -> Progress | None:
        """The scores of the call up to this turn, of which an input is known; after `max_turns`
        they do not change.

        - `auc` is agent-inspect's AUC of these turns: the last value is repeated for missing turns
        - `auc_if_ended_now` is as if `max_turns` were the last of them
        - `ppt` is progress divided by the turn that reached it first; it can fall while progress
          rises
        - `success` is known also when a missing verdict could not make it 1

        Returns:
            The scores; None while a verdict is open.
        """
        turn = min(turn, self._max_turns)
        if not self._reached_at:
            return _without_scores(UnscoredReason.NO_SUBGOALS)
        while len(self._prefixes) < turn:
            self._prefixes.append(self._next_prefix())
        last = self._prefixes[turn - 1]
        if last.progress is None or last.success is None or last.hole is None:
            return None
        if isinstance(last.hole, UnscoredReason):
            auc: Value = Unscored(last.hole)
            auc_now, ppt = auc, auc
        else:
            auc, auc_now = self._area(last, self._max_turns), self._area(last, turn)
            ppt = self._progress_per_turn(last)
        return Progress(
            _value(last.progress),
            auc,
            auc_now,
            ppt,
            _value(last.success),
            last.reached,
            last.missing,
            len(self._reached_at),
        )

    @property
    def now(self) -> Progress | None:
        """The scores of the call so far; None while a verdict is open."""
        if self.turns:
            return self.at(self.turns)
        return _without_scores(UnscoredReason.NO_TURN_JUDGED, len(self._reached_at))

    def _next_prefix(self) -> _Prefix:
        """The prefix that is one turn longer than the longest known one."""
        before = self._prefixes[-1] if self._prefixes else None
        turn = len(self._prefixes) + 1
        reached, last_reached_turn = 0, None
        causes: list[UnscoredReason | None] = []
        for subgoal, reached_at in enumerate(self._reached_at):
            if reached_at is not None and reached_at <= turn:
                reached += 1
                last_reached_turn = max(reached_at, last_reached_turn or 0)
                continue
            verdict = (
                self._by_code_after(turn, subgoal)
                if subgoal in self._by_code
                else self._verdicts[turn - 1].get(subgoal)
            )
            if verdict is not False:
                causes.append(verdict if isinstance(verdict, UnscoredReason) else None)
        progress = round(reached / len(self._reached_at), PLACES)
        at_most = round((reached + len(causes)) / len(self._reached_at), PLACES)
        cause = None if None in causes else next(iter(causes), None)
        hole: UnscoredReason | bool | None = cause if causes else False
        if before is not None and not isinstance(before.hole, bool):
            hole = None if hole is None else before.hole
        units = round(progress * _UNIT)
        return _Prefix(
            turn,
            reached,
            len(causes),
            last_reached_turn,
            cause if causes else progress,
            cause if causes and at_most == 1 else float(at_most == 1),
            hole,
            before.first_units if before else units,
            units,
            units + (before.sum_units if before else 0),
        )

    def _by_code_after(self, turn: int, subgoal: int) -> bool | UnscoredReason:
        """Code's result after a turn for a subgoal that it does not find reached."""
        undecided = self._undecided.get(subgoal)
        return undecided.reason if undecided is not None and turn >= undecided.since else False

    def _area(self, last: _Prefix, width: int) -> Value:
        """Area of the curve up to that turn, its last value repeated up to the turn `width`;
        rounded as agent-inspect rounds.
        """
        if width == 1:
            return Unscored(UnscoredReason.ONE_TURN_HAS_NO_AREA)
        doubled = (
            2 * last.sum_units
            + 2 * (width - last.turn) * last.last_units
            - last.first_units
            - last.last_units
        )
        units, rest = divmod(doubled, 2 * (width - 1))
        if rest != width - 1:
            return (units + (rest > width - 1)) / _UNIT
        # Exactly between two results agent-inspect's answer depends on the bits it loses when it
        # adds. Otherwise the nearest tie is at least 1 / (2 * _UNIT * MAX_TURNS) away, thousands of
        # times more than it can lose.
        heights = [prefix.last_units / _UNIT for prefix in self._prefixes[: last.turn]]
        return round(area_under(heights + heights[-1:] * (width - last.turn)), PLACES)

    def _progress_per_turn(self, last: _Prefix) -> float:
        progress = last.last_units / _UNIT
        return round(progress / (last.last_reached_turn or 1), PLACES)

    def _void(self, turn: int) -> None:
        """Makes the verdicts of this turn void."""
        self._verdicts[turn - 1] = {}
        for subgoal, reached_at in enumerate(self._reached_at):
            if reached_at == turn and subgoal not in self._by_code:
                self._reached_at[subgoal] = self._first_reaching(subgoal)
        del self._prefixes[turn - 1 :]

    def _first_reaching(self, subgoal: int) -> int | None:
        return next(
            (
                turn
                for turn, verdicts in enumerate(self._verdicts, 1)
                if verdicts.get(subgoal) is True
            ),
            None,
        )


def _without_scores(reason: UnscoredReason, subgoals: int = 0) -> Progress:
    gap = Unscored(reason)
    return Progress(gap, gap, gap, gap, gap, subgoals=subgoals)


def _value(known: float | UnscoredReason) -> Value:
    return Unscored(known) if isinstance(known, UnscoredReason) else known
