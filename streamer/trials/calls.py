"""Repeated calls as trials: from recordings, files of rows, or the topics; and how two lots of them
differ.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic import ValidationError
from pydantic_core import from_json

from consumers.measures.own import mean_values
from consumers.store.changes import (
    MEASURES,
    MOST_DRAWS,
    Change,
    change_of,
    changes_json,
    draws_of_one,
)
from consumers.view.words import counted
from schemas.closed_sets import FAILED_USES, CloseReason, UnscoredReason
from schemas.columns import Flat
from schemas.goals.goal_set import GoalSet
from schemas.rows import (
    NO_TURN_JUDGED,
    CallRow,
    ExpectedTool,
    GoalsRow,
    NotApplicable,
    OwnRow,
    Row,
    RowError,
    SubgoalResult,
    TurnRow,
    Unscored,
    Value,
    WordsRow,
    decode,
    is_own,
    is_row,
)
from schemas.scores.trouble import bad_end
from streamer.recordings.files import RecordingError, raw_lines_of

# One call as a trial of its goal set, from its newest rows. Pure.


FaultKind = Literal["missed_subgoal", "failed_tool", "ending"]


class Fault(NamedTuple):
    """One thing that went wrong in a call.

    Attributes:
        kind: What it is.
        what: The id of the subgoal, the name of the tool, or how the call ended in words.
        turn: The turn in which it shows: of a subgoal the one after those in front of it in the set
            were reached, in which it was due; None if no turn is known.
    """

    kind: FaultKind
    what: str
    turn: int | None


class Quote(NamedTuple):
    """What was said and done in a turn, without personal data.

    Attributes:
        text: What both sides said, each cut, and which tools were used.
        last_words: The last words of what was said last, as a key: letters alone, and no capitals.
    """

    text: str
    last_words: str


@dataclass(frozen=True, slots=True)
class Trial:
    """One closed call that had goals.

    Attributes:
        conversation_id: Its id.
        place: Where a person finds the call: a file, or the address of its page; empty if neither
            is known.
        goal_set: Its goals.
        digest: Of the content of its goals: sets of one name and two contents have two.
        success: Whether every subgoal was reached by the last turn that counts, or why nobody
            knows.
        progress: Share of the subgoals that were reached, or why that is unknown.
        subgoals: What became of each subgoal, by its name, in the order of the goal set.
        stall_turn: In a call without success, the first turn after its last progress; None if there
            is no such turn.
        failed_tools: The tools that answered with an error, or not at all, in the order of turns.
        expected_tools: The expected tool calls, as far as they are known, in the order of the goal
            set.
        closed_at_ms: Broker time at which the call closed.
        words: What was said and done in the turns that reached a subgoal, or have a fault; empty
            where only scores are there.
        measures: The values of `MEASURES` in the row of the call; None for one that is not known.
        last_turn: Its newest turn; None without one.
        ending: How it ended, where that is a fault: the caller had no answer, or the agent an
            error; without success also any other end than a goodbye. None otherwise.
        own: By measure of one's own that gave numbers, its mean in the call.
    """

    conversation_id: str
    place: str
    goal_set: GoalSet
    digest: str
    success: bool | str
    progress: float | str
    subgoals: Mapping[str, SubgoalResult]
    stall_turn: int | None
    failed_tools: tuple[Fault, ...]
    expected_tools: tuple[ExpectedTool, ...] = ()
    closed_at_ms: int = 0
    words: Mapping[int, Quote] = field(default_factory=dict)
    measures: tuple[float | None, ...] = ()
    last_turn: int | None = None
    ending: str | None = None
    own: Mapping[str, float] = field(default_factory=dict)

    def measuring(self, own: Iterable[OwnRow]) -> "Trial":
        """The same with the values of measures of one's own."""
        return replace(self, own=mean_values(own))

    def quoting(self, words: Mapping[int, Quote]) -> "Trial":
        """The same with the words of the turns that matter, of the words of all turns."""
        turns = {each.reached_turn for each in self.subgoals.values()} | {
            each.turn for each in self.faults
        }
        return replace(self, words={turn: text for turn, text in words.items() if turn in turns})

    @property
    def missed(self) -> Iterator[str]:
        """The subgoals that were not reached, by id."""
        return (name for name, each in self.subgoals.items() if finding_of(each.result) is False)

    @property
    def failed_before_stall(self) -> Iterator[Fault]:
        """The tools that failed up to the turn in which the call stalls, that turn included; all if
        it does not stall.
        """
        last = self.stall_turn
        return (
            each
            for each in self.failed_tools
            if last is None or (each.turn is not None and each.turn <= last)
        )

    @property
    def faults(self) -> Iterator[Fault]:
        """What went wrong: the missed subgoals, without success the tools that failed up to the
        stall, and how the call ended.
        """
        due = 1
        for name, each in self.subgoals.items():
            if finding_of(each.result) is False:
                yield Fault(
                    "missed_subgoal",
                    name,
                    None if self.last_turn is None else min(due, self.last_turn),
                )
            due = max(due, 1 + (each.reached_turn or 0))
        if self.success is not True:
            yield from dict.fromkeys(self.failed_before_stall)
        if self.ending is not None:
            yield Fault("ending", self.ending, self.last_turn)


MOST_QUOTED_CHARS: Final = 160
"""Characters of one utterance of a quote."""
LAST_WORDS: Final = 8
"""Words of an utterance that are compared: the last ones."""
_WORD: Final = re.compile(r"[^\W\d_]+")


def words_by_turn(words: Iterable[WordsRow], turns: Mapping[int, TurnRow]) -> dict[int, Quote]:
    """By turn what was said and which tools were used, each utterance cut.

    Args:
        words: Rows of words of one call, without personal data as they are.
        turns: The rows of its turns.
    """
    found = {}
    for number, row in {each.turn: each for each in words}.items():
        said = [
            f'{side}: "{_shortened(text)}"'
            for side, text in (("user", row.user), ("assistant", row.assistant))
            if text
        ]
        uses = turns[number].tools if number in turns else ()
        tools = [
            f"{use.tool}: {'unanswered' if use.outcome is None else use.outcome.value}"
            for use in uses
        ]
        text = "; ".join([*said[:1], *tools, *said[1:]] if row.user else [*tools, *said])
        last = _WORD.findall((row.assistant or row.user or "").casefold())[-LAST_WORDS:]
        found[number] = Quote(text, " ".join(last))
    return found


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_QUOTED_CHARS else f"{text[: MOST_QUOTED_CHARS - 1]}…"


class NewestRows:
    """The newest rows of one call, as far as a trial needs them.

    Attributes:
        call: The row of the call; None before the first.
        goals: Its goal set; None without goals, or where the row of the set was not read.
        turns: The rows of its turns.
    """

    __slots__ = ("call", "goals", "turns")

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.call: CallRow | None = None
        self.goals: GoalsRow | None = None
        self.turns: dict[int, TurnRow] = {}
        for row in rows:
            self.add_row(row)

    def add_row(self, row: Row) -> None:
        """Takes one more row of the call."""
        match row:
            case TurnRow():
                known = self.turns.get(row.turn)
                if known is None or known.revision <= row.revision:
                    self.turns[row.turn] = row
            case CallRow():
                if self.call is None or self.call.revision <= row.revision:
                    self.call = row
            case GoalsRow():
                self.goals = row

    def trial(self, place: str) -> Trial | None:
        """The call as a trial; None if it has no goals.

        Raises:
            ValidationError: Its goal set is of another version.
        """
        if self.call is None or self.call.goals is None or self.goals is None:
            return None
        goals = self.call.goals
        goal_set = GoalSet.model_validate(self.goals.goal_set)
        success = goals.success_final_turn
        if success is None and goals.progress is not None:
            success = goals.progress.success
        known = finding_of(success)
        found = dict(enumerate(goals.subgoals))
        subgoals = {
            subgoal.id: found.get(place, _NOT_LOOKED_AT)
            for place, subgoal in enumerate(goal_set.subgoals)
        }
        return Trial(
            conversation_id=self.call.conversation_id,
            place=place,
            goal_set=goal_set,
            digest=goals.digest,
            success=known,
            progress=_shown(success if goals.progress is None else goals.progress.result),
            subgoals=subgoals,
            stall_turn=_stall_turn(subgoals.values(), goals.judged_turn or 0)
            if known is False
            else None,
            failed_tools=tuple(self._failed_tools()),
            expected_tools=goals.expected_tools,
            closed_at_ms=self.call.known_ms if self.call.state == "closed" else 0,
            measures=tuple(_known(each.of(self.call)) for each in MEASURES.values()),
            last_turn=self.call.turn,
            ending=_ending(self.call, is_failure=known is False),
        )

    def _failed_tools(self) -> Iterator[Fault]:
        for number in sorted(self.turns):
            row = self.turns[number]
            if row.status != "withdrawn":
                yield from (
                    Fault("failed_tool", use.tool, number)
                    for use in row.tools
                    if use.outcome in FAILED_USES
                )


_NOT_LOOKED_AT: Final = SubgoalResult(NO_TURN_JUDGED)
_USUAL_ENDINGS: Final = frozenset({"goodbye", CloseReason.ENDED, CloseReason.SESSION_ENDED})


def _ending(call: CallRow, *, is_failure: bool) -> str | None:
    if (bad := bad_end(call)) is not None:
        return bad.removeprefix("ended: ")
    reason = call.ended_reason or call.close_reason
    return (
        str(reason) if is_failure and reason is not None and reason not in _USUAL_ENDINGS else None
    )


def _known(value: Flat) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _shown(value: Value | None) -> float | str:
    """The value, or why there is none."""
    match value:
        case None:
            return UnscoredReason.NO_TURN_JUDGED.value
        case Unscored(reason=reason):
            return reason.value
        case NotApplicable(reason=why):
            return why
        case known:
            return known


def finding_of(value: Value | None) -> bool | str:
    """Whether a value is 1, or why that is unknown."""
    shown = _shown(value)
    return shown if isinstance(shown, str) else shown == 1


def _stall_turn(subgoals: Iterable[SubgoalResult], last_turn: int) -> int | None:
    """The turn after the last one that reached a subgoal, if the call has such a turn."""
    after = 1 + max(
        (each.reached_turn for each in subgoals if each.reached_turn is not None), default=0
    )
    return after if after <= last_turn else None


# Keeps the newest rows of many calls at once, and makes a trial of each call that closes. Pure, and
# bounded.

MAX_TRIALS: Final = 50_000
"""Trials that are compared at once, some 3 kB each; further calls are left out and counted."""
MAX_OPEN_CALLS: Final = 20_000
"""Calls that are followed at once until they close, some 20 kB each; further ones are left out and
counted.
"""

NO_GOALS: Final = "without goals"
NOT_CLOSED: Final = "not over"
BEGAN_BEFORE: Final = "began before --since"
TOO_MANY: Final = "over the limit"
DAMAGED: Final = "with rows that cannot be read"


class Trials:
    """The trials so far. Equal goal sets are kept once.

    Attributes:
        found: In the order in which they were added.
        left_out: Calls that are no trials, by reason.
    """

    def __init__(self) -> None:
        self.found: list[Trial] = []
        self.left_out: Counter[str] = Counter()
        self._sets: dict[str, GoalSet] = {}

    def add(self, trial: Trial | None) -> None:
        """Adds one call; None is a call without goals."""
        if trial is None:
            self.left_out[NO_GOALS] += 1
        elif len(self.found) == MAX_TRIALS:
            self.left_out[TOO_MANY] += 1
        else:
            self.found.append(
                replace(trial, goal_set=self._sets.setdefault(trial.digest, trial.goal_set))
            )


class MixedCalls:
    """The calls whose rows come mixed, until each closes."""

    def __init__(self, trials: Trials, place_of: Callable[[str], str], since_ms: int = 0) -> None:
        """Begins without a call.

        Args:
            trials: Gets the trial of each call that closes.
            place_of: The place of a call by its id, as `Trial.place`.
            since_ms: Calls that closed before this are no trials, and rows before it may be
                missing; 0 for neither.
        """
        self._trials = trials
        self._place_of = place_of
        self._since_ms = since_ms
        self._calls: dict[str, NewestRows] = {}
        self._damaged: set[str] = set()

    def add_row(self, row: Row) -> None:
        """Takes one row. Rows of an id after its closed one are of another call."""
        conversation_id = row.conversation_id
        is_closed = isinstance(row, CallRow) and row.state == "closed"
        rows = self._calls.get(conversation_id)
        if rows is None:
            if len(self._calls) == MAX_OPEN_CALLS:
                self._trials.left_out[TOO_MANY] += is_closed
                return
            rows = self._calls[conversation_id] = NewestRows()
        rows.add_row(row)
        if is_closed:
            del self._calls[conversation_id]
            self._close(conversation_id, rows)

    def _close(self, conversation_id: str, rows: NewestRows) -> None:
        is_damaged = conversation_id in self._damaged
        self._damaged.discard(conversation_id)
        if rows.call is None or rows.call.known_ms < self._since_ms:
            return
        if is_damaged:
            self._trials.left_out[DAMAGED] += 1
            return
        if rows.call.goals is not None and rows.goals is None and self._since_ms:
            self._trials.left_out[BEGAN_BEFORE] += 1  # its goal set was written before
            return
        try:
            self._trials.add(rows.trial(self._place_of(conversation_id)))
        # goals of another version, with a check that this one does not know
        except ValidationError:
            self._trials.left_out[DAMAGED] += 1

    def damage(self, conversation_id: str | None) -> None:
        """Notes that a row of this call cannot be read: without it the call would be another one.
        A row that does not say its call can be of any open one: None.
        """
        for name in self._calls if conversation_id is None else (conversation_id,):
            if len(self._damaged) < MAX_OPEN_CALLS:
                self._damaged.add(name)

    def end(self) -> None:
        """Counts the calls that did not close."""
        if self._calls:
            self._trials.left_out[NOT_CLOSED] += len(self._calls)
        self._calls.clear()


# Reads the trials in files of rows, as `callgauge score` prints them or a reader of `scores` keeps
# them.

_SUFFIXES: Final = (".jsonl", ".jsonl.gz")
MOST_MISTAKES: Final = 5
"""Lines of one file that are named; the others are counted."""


def holds_rows(path: Path) -> bool:
    """Whether the first line of a file is a row. A file that cannot be read is left to the reader
    of recordings.
    """
    if not (path.is_file() and path.name.endswith(_SUFFIXES)):
        return False
    try:
        first = next((text for _, text in raw_lines_of(path) if text.strip()), b"")
    except RecordingError:
        return False
    return is_row(first)


def read_rows_file(path: Path, trials: Trials) -> Iterator[str]:
    """Adds the calls of a file. A call with a line that cannot be read is left out; the others are
    not concerned.

    Yields:
        A sentence for each of the first lines that cannot be read, and one for the others together.
    """
    calls = MixedCalls(trials, lambda call: f"{path} ({call})")
    mistakes = 0
    try:
        for number, text in raw_lines_of(path):
            if (seen := take_line(text, calls)) is None:
                continue
            mistakes += 1
            if mistakes <= MOST_MISTAKES:
                yield (
                    f"{path}:{number}: this line cannot be read: expected a row of this version; "
                    f"seen {seen}. Its call is left out; the others are not concerned. Write the "
                    "file again with `callgauge score`."
                )
    except RecordingError as error:
        error.consequence = "The calls before it are compared; the rest of the file is left out."
        yield str(error)
    calls.end()
    if mistakes > MOST_MISTAKES:
        yield f"{path}: {mistakes - MOST_MISTAKES} further lines cannot be read."


def take_line(text: bytes, calls: MixedCalls, call: str | None = None) -> str | None:
    """Takes a row; returns the fault if it cannot be read. `call` is its call where the key of the
    record says it.

    Values of one's own measures are passed over.
    """
    if is_own(text):
        return None
    try:
        calls.add_row(decode(text))
    except RowError as error:
        calls.damage(call or _call_in(text))
        return str(error)
    return None


def _call_in(text: bytes) -> str | None:
    """The call that a row names which cannot be read otherwise."""
    try:
        fields = from_json(text)
    except ValueError:
        return None
    named = fields.get("conversation_id") if isinstance(fields, dict) else None
    return named if isinstance(named, str) else None


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
    found = []
    for name, now in after.subgoals.items():
        was = before.subgoals.get(name)
        if was is not None and {finding_of(was.result), finding_of(now.result)} == {True, False}:
            is_won = finding_of(now.result) is True
            turn = (now if is_won else was).reached_turn
            words = (after if is_won else before).words
            quote = words[turn].text if turn is not None and turn in words else None
            found.append(Flip(name, is_won, turn, quote))
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
            [known for trial in lot if (known := _known(of(trial))) is not None]
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


def _measured(place: int, trial: Trial) -> float | None:
    return trial.measures[place] if trial.measures else None


def _own(name: str, trial: Trial) -> float | None:
    return trial.own.get(name)
