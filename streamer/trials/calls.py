"""Repeated calls as trials: from recordings, files of scores, or the topics."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from pydantic_core import from_json

from consumers.console.page.calls import Said, heard_in
from consumers.console.page.drawing import Redacts, shortened
from consumers.engine.call import Call
from schemas.closed_sets import FAILED_USES, UnscoredReason
from schemas.goals.goal_set import GoalSet
from schemas.scores.live_view import Subject, newest_scores
from schemas.scores.records import (
    SCORE_RECORD,
    AnyScoreRecord,
    CallStartedFact,
    CallValues,
    ClosedFact,
    ExpectedToolCallScore,
    GoalsFact,
    NotApplicable,
    ProgressScore,
    Result,
    Scored,
    SubgoalScore,
    ToolUseFact,
    Unscored,
)
from streamer.recordings.elements import SCORE_FIELDS
from streamer.recordings.files import RecordingError, raw_lines_of

# One call as a trial of its goal set, folded from its score records. Pure.

READ_NAMES: Final = frozenset({"call_started", "goals", "subgoal", "progress", "call", "tool_call", "closed"})
"""Names of the records that a trial is made of; a reader may leave out all others before it decodes them."""


@dataclass(frozen=True, slots=True)
class SubgoalOutcome:
    """The end of one subgoal in one call.

    Attributes:
        subgoal_id: Its name in the goal set.
        finding: Whether it was reached, or why nobody knows.
        reached_turn: The turn that reached it.
        votes_complete: Votes of the judge for "reached", in the verdict that decided; 0 for a check by code.
        votes_incomplete: Votes against it in the same verdict.
    """

    subgoal_id: str
    finding: bool | str
    reached_turn: int | None = None
    votes_complete: int = 0
    votes_incomplete: int = 0


@dataclass(frozen=True, slots=True)
class FailedTool:
    """A tool that answered with an error, or not at all, and the turn in which it was called; None if no turn is known."""

    tool: str
    turn: int | None


@dataclass(frozen=True, slots=True)
class Trial:
    """One closed call that had goals.

    Attributes:
        conversation_id: Its id.
        place: Where a person finds the call: a file, or the address of its page; empty if neither is known.
        goal_set: Its goals.
        version: Digest of the goals: sets of one name and two contents have two.
        success: Whether every subgoal was reached by the last turn that counts, or why nobody knows.
        progress: Share of the subgoals that were reached, or why nobody knows.
        subgoals: In the order of the goal set.
        stall_turn: In a call without success, the first turn after its last progress; None if there is no such turn.
        failed_tools: In the order of writing.
        expected_tools: The expected tool calls, as far as they are known, in the order of the goal set.
        closed_at_ms: Broker time at which the call closed.
        words: What was said and done in the turns that reached a subgoal; empty where only the scores of the call are there.
    """

    conversation_id: str
    place: str
    goal_set: GoalSet
    version: str
    success: bool | str
    progress: float | str
    subgoals: tuple[SubgoalOutcome, ...]
    stall_turn: int | None
    failed_tools: tuple[FailedTool, ...]
    expected_tools: tuple[ExpectedToolCallScore, ...] = ()
    closed_at_ms: int = 0
    words: Mapping[int, str] = field(default_factory=dict)

    def quoting(self, words: Mapping[int, str]) -> "Trial":
        """The same with the words of the turns that reached a subgoal, of the words of all turns."""
        turns = {each.reached_turn for each in self.subgoals}
        return replace(self, words={turn: text for turn, text in words.items() if turn in turns})

    @property
    def missed(self) -> Iterator[str]:
        """The subgoals that were not reached, by id."""
        return (subgoal.subgoal_id for subgoal in self.subgoals if subgoal.finding is False)

    @property
    def failed_before_stall(self) -> Iterator[FailedTool]:
        """The tools that failed up to the turn in which the call stalls, that turn included; all if it does not stall."""
        last = self.stall_turn
        return (each for each in self.failed_tools if last is None or (each.turn is not None and each.turn <= last))


MOST_QUOTED_CHARS: Final = 160
"""Characters of one utterance of a quote."""


def words_by_turn(call: Call, redactor: Redacts) -> dict[int, str]:
    """By turn what was said and which tools were used, redacted, each utterance cut.

    Args:
        call: The call after its last event.
        redactor: Redacts the words.
    """
    found = {}
    for turn in heard_in(call, ()).turns:
        parts = [
            f'{item.speaker}: "{shortened(redactor.redact(item.text), MOST_QUOTED_CHARS)}"'
            if isinstance(item, Said)
            else f"{redactor.redact(item.tool)}: {item.outcome or 'unanswered'}"
            for item in turn.items
        ]
        found[turn.turn] = "; ".join(parts)
    return found


class CallFold:
    """The newest records of one call, as far as a trial needs them; records may come in any number of revisions.

    Attributes:
        has_start: Whether the first record of the call was among them.
        closed_at_ms: Broker time of the record that says that the call is over; None before it.
    """

    __slots__ = ("_newest", "closed_at_ms", "has_start")

    def __init__(self, records: Iterable[AnyScoreRecord] = ()) -> None:
        self._newest: dict[Subject, AnyScoreRecord] = {}
        self.has_start = False
        self.closed_at_ms: int | None = None
        for record in records:
            self.take(record)

    def take(self, record: AnyScoreRecord) -> None:
        """Folds one more record of the call."""
        match record:
            case CallStartedFact():
                self.has_start = self.has_start or record.is_first  # further ones have new labels
            case ClosedFact():
                self.closed_at_ms = record.caused_at_ms
            case GoalsFact() | SubgoalScore() | ProgressScore() | CallValues() | ToolUseFact():
                subject = (record.name, record.turn, record.index)
                known = self._newest.get(subject)
                if known is None or known.revision <= record.revision:
                    self._newest[subject] = record

    def trial(self, conversation_id: str, place: str) -> Trial | None:
        """The call as a trial; None if it has no goals."""
        records = list(newest_scores(self._newest.values()).values())
        goals = next((record for record in records if isinstance(record, GoalsFact)), None)
        if goals is None:
            return None
        last = max((r for r in records if isinstance(r, ProgressScore)), key=lambda r: r.turn or 0, default=None)
        whole = next((record for record in records if isinstance(record, CallValues)), None)
        success = None if whole is None else whole.success_final_turn
        if success is None and last is not None:
            success = last.success
        known = finding_of(success)
        found = {record.index: record for record in records if isinstance(record, SubgoalScore)}
        subgoals = tuple(
            _outcome(subgoal.id, found.get(index)) for index, subgoal in enumerate(goals.goal_set.subgoals)
        )
        tools = (record for record in records if isinstance(record, ToolUseFact) and record.outcome in FAILED_USES)
        return Trial(
            conversation_id=conversation_id,
            place=place,
            goal_set=goals.goal_set,
            version=goals.digest,
            success=known,
            progress=_value(last.result) if last is not None else _value(success),
            subgoals=subgoals,
            stall_turn=_stall_turn(subgoals, (last and last.turn) or 0) if known is False else None,
            failed_tools=tuple(FailedTool(tool.tool, tool.turn) for tool in tools),
            expected_tools=(whole and whole.expected_tool_calls) or (),
            closed_at_ms=self.closed_at_ms or 0,
        )


def _value(result: Result | None) -> float | str:
    """The value, or why there is none."""
    match result:
        case Scored(value=value):
            return value
        case Unscored(reason=reason):
            return reason.value
        case NotApplicable(reason=why):
            return why
    return UnscoredReason.NO_TURN_JUDGED.value


def finding_of(result: Result | None) -> bool | str:
    """Whether a result is 1, or why nobody knows."""
    value = _value(result)
    return value if isinstance(value, str) else value == 1


def _outcome(subgoal_id: str, record: SubgoalScore | None) -> SubgoalOutcome:
    if record is None:
        return SubgoalOutcome(subgoal_id, UnscoredReason.NO_TURN_JUDGED.value)
    votes = (record.votes_complete, record.votes_incomplete)
    return SubgoalOutcome(subgoal_id, finding_of(record.result), record.reached_turn, *votes)


def _stall_turn(subgoals: Iterable[SubgoalOutcome], last_turn: int) -> int | None:
    """The turn after the last one that reached a subgoal, if the call has such a turn."""
    after = 1 + max((each.reached_turn for each in subgoals if each.reached_turn is not None), default=0)
    return after if after <= last_turn else None


# Folds the score records of many calls at once, and makes a trial of each call that closes. Pure, and bounded.

MAX_TRIALS: Final = 50_000
"""Trials that are compared at once, some 3 kB each; further calls are left out and counted."""
MAX_OPEN_CALLS: Final = 20_000
"""Calls that are followed at once until they close, some 20 kB each; further ones are left out and counted."""

NO_GOALS: Final = "without goals"
NOT_CLOSED: Final = "not over"
BEGAN_BEFORE: Final = "began before --since"
TOO_MANY: Final = "over the limit"
DAMAGED: Final = "with records that cannot be read"


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
            self.found.append(replace(trial, goal_set=self._sets.setdefault(trial.version, trial.goal_set)))


class CallFolds:
    """The calls whose records come mixed, until each closes."""

    def __init__(self, trials: Trials, place_of: Callable[[str], str], since_ms: int = 0) -> None:
        """Begins without a call.

        Args:
            trials: Gets the trial of each call that closes.
            place_of: The place of a call by its id, as `Trial.place`.
            since_ms: Calls that closed before this are no trials, and records before it may be missing; 0 for neither.
        """
        self._trials = trials
        self._place_of = place_of
        self._since_ms = since_ms
        self._folds: dict[str, CallFold] = {}
        self._damaged: set[str] = set()

    def take(self, conversation_id: str, record: AnyScoreRecord) -> None:
        """Folds one record. Records of an id after its `closed` are another call."""
        fold = self._folds.get(conversation_id)
        if fold is None:
            if len(self._folds) == MAX_OPEN_CALLS:
                self._trials.left_out[TOO_MANY] += record.name == "closed"
                return
            fold = self._folds[conversation_id] = CallFold()
        fold.take(record)
        if fold.closed_at_ms is None:
            return
        del self._folds[conversation_id]
        is_damaged = conversation_id in self._damaged
        self._damaged.discard(conversation_id)
        if fold.closed_at_ms < self._since_ms:
            return
        if is_damaged:
            self._trials.left_out[DAMAGED] += 1
            return
        trial = fold.trial(conversation_id, self._place_of(conversation_id))
        if trial is None and self._since_ms and not fold.has_start:
            self._trials.left_out[BEGAN_BEFORE] += 1
        else:
            self._trials.add(trial)

    def damage(self, conversation_id: str) -> None:
        """Notes that a record of this call cannot be read: without it the call would be another one."""
        if len(self._damaged) < MAX_OPEN_CALLS:
            self._damaged.add(conversation_id)

    def damage_open_calls(self) -> None:
        """Notes that a record cannot be read and can be of any open call."""
        for conversation_id in self._folds:
            self.damage(conversation_id)

    def end(self) -> None:
        """Counts the calls that did not close."""
        if self._folds:
            self._trials.left_out[NOT_CLOSED] += len(self._folds)
        self._folds.clear()


# Reads the trials in files of score records, as `callgauge score` prints them or a reader of `scores` keeps them.

_SUFFIXES: Final = (".jsonl", ".jsonl.gz")
MOST_MISTAKES: Final = 5
"""Lines of one file that are named; the others are counted."""


def holds_scores(path: Path) -> bool:
    """Whether the first line of a file is a score record. A file that cannot be read is left to the reader of recordings."""
    if not (path.is_file() and path.name.endswith(_SUFFIXES)):
        return False
    try:
        first = next((text for _, text in raw_lines_of(path) if text.strip()), b"")
        fields = from_json(first)
    except (RecordingError, ValueError):
        return False
    return isinstance(fields, dict) and fields.keys() >= SCORE_FIELDS


def read_score_file(path: Path, trials: Trials) -> Iterator[str]:
    """Adds the calls of a file. A call with a line that cannot be read is left out; the others are not concerned.

    Yields:
        A sentence for each of the first lines that cannot be read, and one for the others together.
    """
    folds = CallFolds(trials, lambda call: f"{path} ({call})")
    mistakes = 0
    try:
        for number, text in raw_lines_of(path):
            if (seen := fold_line(text, folds)) is None:
                continue
            mistakes += 1
            if mistakes <= MOST_MISTAKES:
                yield (
                    f"{path}:{number}: this line cannot be read: expected a score record of this version; seen {seen}. Its "
                    "call is left out; the others are not concerned. Write the file again with `callgauge score`."
                )
    except RecordingError as error:
        error.consequence = "The calls before it are compared; the rest of the file is left out."
        yield str(error)
    folds.end()
    if mistakes > MOST_MISTAKES:
        yield f"{path}: {mistakes - MOST_MISTAKES} further lines cannot be read."


def fold_line(text: bytes, folds: CallFolds, call: str | None = None) -> str | None:
    """Folds a record; returns the fault if it cannot be read. `call` is its call where the key of the record says it."""
    try:
        fields, fault = from_json(text), "JSON without conversation_id and name"
    except ValueError:
        fields, fault = None, "no JSON"
    named, name = (fields.get(key) if isinstance(fields, dict) else None for key in ("conversation_id", "name"))
    conversation_id = named if call is None else call
    if not isinstance(conversation_id, str) or not isinstance(name, str):
        if call is None:
            folds.damage_open_calls()  # it is of one of them
        else:
            folds.damage(call)
        return fault
    if name not in READ_NAMES:
        return None
    try:
        record = SCORE_RECORD.validate_json(text)
    except ValidationError as error:
        folds.damage(conversation_id)
        first = error.errors(include_url=False, include_input=False)[0]
        return f"a record {name} in which {'.'.join(map(str, first['loc'][1:])) or 'a field'} is wrong"
    folds.take(conversation_id, record)
    return None
