"""The rows of a call: what the engine says of it, as the two tables have it.

Folding sets parts of the rows, marks what is changed, and notes what counts. `drain` makes copies
of the changed rows, so a step has one row of each turn and of its call at most.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from math import ceil
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import structs

from consumers.engine.end_of_call import set_end
from consumers.engine.redaction.redactor import CallRedactor, Redactor
from consumers.engine.turns.timeline import NO_SOUNDS, TurnSounds
from schemas.closed_sets import FAILED_USES, Anchor, Speaker, ToolOutcome
from schemas.rows import (
    MAX_LISTED_TOOLS,
    MAX_LISTED_TURNS,
    MAX_SILENCES,
    MAX_TOOLS,
    Answer,
    CallRow,
    Goals,
    GoalsRow,
    Row,
    Silence,
    ToolUse,
    TurnRow,
    Unscored,
    Waiting,
    WaitSource,
    number,
)
from schemas.scores.latency_stages import Stage, fits_whole_answer

NOT_OF_AN_ANSWER: Final = frozenset({Stage.VOICE_TO_VOICE, Stage.FIRST_SPEECH})
"""Stages that explain no wait: they are the wait itself."""
_ANSWERS: Final = {
    **dict.fromkeys(("answered", "interrupted"), "answered"),
    **dict.fromkeys(("unanswered", "abandoned", "failed"), "unanswered"),
}
"""Whether a turn was answered, by its outcome."""

Key = TypeVar("Key", int, float)


class _Moments:
    """What the row of a turn is made from and does not show.

    Attributes:
        answered_ms: The broker's time at which the wait was known; -1 before.
        waits: How often the caller has waited for an answer in this turn.
        sounds: Those that its newest row was made from.
        has_counted: News that are out, and are never out again.
        held: Interruptions that count once the call has left the turn.
        summed: The part of the call's sums that the turn has.
    """

    __slots__ = ("answered_ms", "has_counted", "held", "sounds", "summed", "waits")

    def __init__(self) -> None:
        self.answered_ms = -1
        self.waits = 0
        self.sounds = NO_SOUNDS
        self.has_counted: tuple[str, ...] = ()
        self.held: tuple[Speaker, ...] = ()
        self.summed: _Part | None = None


class CallRows:
    """The rows of one call. A text passes `redactor` before it enters one.

    Attributes:
        redactor: Takes personal data out of texts.
        revision: Revision of what the present step decides.
        counts: Whether values count when they are known for the first time; not in a call of which
            records are lost.
        is_silent: Whether no rows are made, because a former owner has written them.
        is_changed: Whether a row is another than before.
        call: The row of the call. The parts that follow from its turns are set when it is drained.
        turns: The rows of its turns, by number; withdrawn ones too.
    """

    def __init__(
        self,
        call: CallRow,
        redactor: Redactor | None = None,
        *,
        counts: bool = True,
        is_silent: bool = False,
    ) -> None:
        self.redactor = CallRedactor(redactor or Redactor())
        self.revision = 0
        self.counts = counts
        self.is_silent = is_silent
        self.is_changed = self._is_call_changed = False
        self.call = call
        self.turns: dict[int, TurnRow] = {}
        self._moments: dict[int, _Moments] = {}
        self._holding: set[int] = set()  # turns with interruptions that have not counted
        self._changed: set[int] = set()
        self._not_summed: set[int] = set()
        self._sums = _Sums()
        self._news: dict[int | None, dict[str, None]] = {}
        self._has_counted: set[str] = set()
        self._goals_row: GoalsRow | None = None

    # Setting parts.

    def announce(self, known_ms: int) -> None:
        """Has a row made, whatever is known of the call."""
        self._mark_call(known_ms)

    def set_call(self, known_ms: int, **parts: Any) -> None:
        """Sets parts of the row of the call."""
        call = self.call
        for name, part in parts.items():
            if getattr(call, name) != part:
                setattr(call, name, part)
                self._mark_call(known_ms)
                if name == "labels":  # every turn has them
                    for turn in self.turns:
                        self._mark(turn, known_ms)

    def set_turn(self, turn: int, known_ms: int, **parts: Any) -> bool:
        """Sets parts of the row of a turn; returns whether one is another than before."""
        row = self.turns.get(turn)
        is_changed = row is None
        if row is None:
            row = self.turns[turn] = TurnRow(conversation_id=self.call.conversation_id, turn=turn)
            self._moments[turn] = _Moments()
        for name, part in parts.items():
            if getattr(row, name) != part:
                setattr(row, name, part)
                is_changed = True
        if is_changed:
            self._mark(turn, known_ms)
        return is_changed

    def hear(self, turn: int, known_ms: int, sounds: TurnSounds) -> None:
        """Has the row of a turn made, without that of the call, because the agent's sounds of the
        turn are over; unless the newest row has them.
        """
        if turn not in self.turns:
            self.set_turn(turn, known_ms)
        if not sounds.agent.are_in_row_of(self._moments[turn].sounds.agent):
            self._mark_turn(turn, known_ms)

    def hear_all(self, known_ms: int, sounds_of: Callable[[int], TurnSounds]) -> None:
        """Has the rows made that lack sounds, at the close of the call."""
        for turn, moments in self._moments.items():
            sides = zip(sounds_of(turn), moments.sounds, strict=True)
            if not all(now.are_in_row_of(noted) for now, noted in sides):
                self._mark_turn(turn, known_ms)

    def note_sounds(self, sounds_of: Callable[[int], TurnSounds]) -> None:
        """Notes the sounds of the turns whose rows are made now."""
        for turn in self._changed:
            self._moments[turn].sounds = sounds_of(turn)

    def set_wait(
        self,
        turn: int,
        known_ms: int,
        wait_ms: float | Unscored,
        anchor: Anchor | None = None,
        source: WaitSource | None = None,
    ) -> None:
        """Sets the wait of a turn, which counts at its first value, or withdraws it."""
        is_changed = self.set_turn(
            turn, known_ms, wait_ms=wait_ms, anchor=anchor, wait_source=source
        )
        if not is_changed:
            return
        if "wait" in self._moments[turn].has_counted:
            self._has_news(turn, "wait_revised")
        if not isinstance(wait_ms, Unscored):
            self.waits(turn, known_ms, answered_ms=known_ms)
            self.count(turn, "wait")

    def set_tool(self, turn: int, known_ms: int, use: ToolUse | None, index: int) -> None:
        """Sets a use of a tool, which counts once; None withdraws it."""
        self.set_turn(turn, known_ms)
        row = self.turns[turn]
        if index >= MAX_TOOLS:
            left_out = index + 1 - MAX_TOOLS
            left_out = (
                max(row.tools_left_out, left_out)
                if use is not None
                else min(row.tools_left_out, left_out - 1)
            )
            self.set_turn(turn, known_ms, tools_left_out=left_out)
            return
        uses = [each for each in row.tools if each.index != index]
        if use is not None:
            insort(uses, use, key=lambda each: each.index)
            self.count(turn, f"tool.{index}")
        self.set_turn(turn, known_ms, tools=tuple(uses))

    def set_silence(self, turn: int, silence: Silence) -> None:
        """Adds a silence that became dead air, which counts once."""
        self.set_turn(turn, silence.known_ms)
        silences = (*self.turns[turn].dead_air, silence)
        self.set_turn(turn, silence.known_ms, dead_air=silences[-MAX_SILENCES:])
        self.waits(turn, silence.known_ms)
        self.count(turn, f"dead_air.{silence.number}")

    def end_silence(self, turn: int, number: int, until_ms: int, known_ms: int) -> None:
        """Sets until when a silence lasted, for good."""
        silences = self.turns[turn].dead_air
        ended = tuple(
            structs.replace(each, until_ms=until_ms) if each.number == number else each
            for each in silences
        )
        self.set_turn(turn, known_ms, dead_air=ended)

    def set_goals(self, known_ms: int, **parts: Any) -> None:
        """Sets parts of the progress towards the goals; `judged_turn`, `progress` and `is_stalled`
        follow from the turns.
        """
        if self.call.goals is not None:
            self.set_call(known_ms, goals=structs.replace(self.call.goals, **parts))

    def set_goals_row(self, row: GoalsRow) -> None:
        """Has the goal set of the call published."""
        self._goals_row = row

    # What counts.

    def count(self, turn: int | None, name: str) -> None:
        """Notes what counts from the next row on, of a turn or of the call. It counts once."""
        if turn is None:
            if name in self._has_counted:
                return
            self._has_counted.add(name)
        else:
            moments = self._moments[turn]
            if name in moments.has_counted:
                return
            moments.has_counted = (*moments.has_counted, _shared(name))
        self._has_news(turn, name)

    def waits(self, turn: int, known_ms: int, answered_ms: int | None = None) -> None:
        """Notes that the caller has waited in this turn: an answer came, or the wait became dead
        air. An answer and a silence of one turn are mostly one wait, whichever is known first; each
        further silence is a wait of its own.
        """
        self.set_turn(turn, known_ms)
        moments = self._moments[turn]
        if answered_ms is not None:
            moments.answered_ms = answered_ms
        waits = max(len(self.turns[turn].dead_air), int(moments.answered_ms >= 0))
        if waits > moments.waits:
            moments.waits = waits
            self.count(turn, f"user_turn.{waits}")

    def interrupts(self, turn: int, known_ms: int, by: Speaker, *, is_withdrawn: bool) -> None:
        """Notes who began to speak over the other, or that neither did. It counts once the call has
        left the turn.
        """
        self.set_turn(turn, known_ms)
        moments, interruptions = self._moments[turn], self.turns[turn].interruptions
        if is_withdrawn:
            moments.held = tuple(each for each in moments.held if each is not by)
            interruptions = tuple(each for each in interruptions if each is not by)
        elif by not in interruptions:
            moments.held = (*moments.held, by)
            self._holding.add(turn)
            interruptions = tuple(sorted((*interruptions, by), reverse=True))  # the caller first
        self.set_turn(turn, known_ms, interruptions=interruptions)

    def leave(self, through_turn: float, known_ms: int) -> None:
        """Counts what may be withdrawn in an open turn, now that the call has left it."""
        for turn in sorted(turn for turn in self._holding if turn <= through_turn):
            self._holding.discard(turn)
            moments = self._moments[turn]
            for by in moments.held:
                self.count(turn, f"interruption.{by.value}")
                self._mark(turn, known_ms)
            moments.held = ()

    # Rows out of it.

    def say_again(self) -> None:
        """Marks all rows as changed, without news: another version decides them."""
        self._changed = set(self.turns)
        self.is_changed = self._is_call_changed = True

    @property
    def has_answer(self) -> bool:
        """Whether a turn was answered."""
        return self._sums.numbers["answered"] > 0 or bool(self._sums.answered)

    def drain(
        self,
        completed: Callable[[TurnRow], None],
        revision: int | None = None,
        *,
        is_told: bool,
    ) -> Iterator[Row]:
        """The rows of what has changed since the last time: the goals, the turns in order, and the
        call.

        Args:
            completed: Sets in the copy of a row of a turn what is no reason to make one, and what
                need not be kept.
            revision: The revision of all of them, where a new version publishes them again.
            is_told: Whether an event said that the call ended.
        """
        if self._goals_row is not None:
            yield self._goals_row
        for turn in sorted(self._changed):
            row = self.turns[turn]
            if revision is not None:
                row.revision = revision
            copied = structs.replace(
                row, labels=self.call.labels, news=tuple(self._news.get(turn, ()))
            )
            completed(copied)
            yield copied
        if self._is_call_changed:
            self._sum_up()
            if self.call.state != "running":
                set_end(self.call, has_answer=self.has_answer, is_told=is_told)
            if revision is not None:
                self.call.revision = revision
            yield structs.replace(self.call, news=tuple(self._news.get(None, ())))
        self.pass_over()

    def pass_over(self) -> None:
        """Forgets what has changed: it is written."""
        self.is_changed = self._is_call_changed = False
        self._changed.clear()
        self._news.clear()
        self._goals_row = None

    def _has_news(self, turn: int | None, name: str) -> None:
        if self.counts:
            self._news.setdefault(turn, {})[name] = None

    def _mark(self, turn: int, known_ms: int) -> None:
        self._mark_turn(turn, known_ms)
        self._not_summed.add(turn)
        self._mark_call(known_ms)

    def _mark_turn(self, turn: int, known_ms: int) -> None:
        row = self.turns[turn]
        # a silence is known later than when it was due
        row.revision, row.known_ms = self.revision, max(row.known_ms, known_ms)
        self._changed.add(turn)
        self.is_changed = True

    def _mark_call(self, known_ms: int) -> None:
        self.call.revision, self.call.known_ms = self.revision, max(self.call.known_ms, known_ms)
        self.is_changed = self._is_call_changed = True
        self.count(None, "started")  # with its first row, whatever that says

    def _sum_up(self) -> None:
        """Sets what follows from the turns."""
        sums = self._sums
        for turn in sorted(self._not_summed):
            moments = self._moments[turn]
            before, moments.summed = moments.summed, _part_of(self.turns[turn])
            sums.replace(turn, before, moments.summed)
        self._not_summed.clear()
        sums.write(self.call)
        call = self.call
        call.answer = _answer(self.turns[sums.answered[-1]]) if sums.answered else None
        call.waiting = self._waiting()
        if call.goals is not None:
            call.goals = self._goals(call.goals)

    def _goals(self, goals: Goals) -> Goals:
        judged = self._sums.judged
        newest = self.turns[judged[-1]].progress if judged else None
        if newest is None:
            return structs.replace(
                goals, judged_turn=None, progress=None, is_stalled=bool(goals.stalls)
            )
        is_stalled = False
        if goals.stalls and self.call.state != "closed":
            place = bisect_left(judged, goals.stalls[-1].since_turn + 1)
            since = self.turns[judged[place - 1]].progress if place else None
            is_stalled = newest.reached == (0 if since is None else since.reached)
        return structs.replace(
            goals, judged_turn=judged[-1], progress=newest, is_stalled=is_stalled
        )

    def _waiting(self) -> Waiting | None:
        """The wait that became dead air and goes on: of the newest turn; in a call that is over,
        that of the last turn with dead air, unless the caller had an answer since.
        """
        sums = self._sums
        turn = sums.silent[-1] if sums.silent else -1
        is_followed = (
            turn != sums.there[-1]
            if self.call.state in {"running", "ended"} and sums.there
            else False
        )
        if turn < 0 or is_followed or (sums.answered and sums.answered[-1] > turn):
            return None
        answered_ms = self._moments[turn].answered_ms
        since = [
            each.known_ms - each.threshold_ms
            for each in self.turns[turn].dead_air
            if each.known_ms > answered_ms and each.until_ms is None
        ]
        return Waiting(turn, min(since), len(since)) if since else None


# The sums of a call. A row of it costs the same after ten turns and after a thousand.


class _Part(NamedTuple):
    """What a turn adds to the sums of its call. A withdrawn turn adds its silences alone: the
    caller did sit through them.
    """

    silences: int
    is_there: bool = False
    wait_ms: float | None = None
    answer: str = "unknown"
    interruptions: tuple[Speaker, ...] = ()
    tools: tuple[ToolUse, ...] = ()
    tools_left_out: int = 0
    is_judged: bool = False


def _part_of(row: TurnRow) -> _Part:
    silences = len(row.dead_air)
    if row.status == "withdrawn":
        return _Part(silences)
    return _Part(
        silences,
        is_there=True,
        wait_ms=number(row.wait_ms),
        answer=_ANSWERS.get(row.outcome or "", "unknown"),
        interruptions=row.interruptions,
        tools=row.tools,
        tools_left_out=row.tools_left_out,
        is_judged=row.progress is not None,
    )


class _Uses:
    """The uses of one tool: those that failed, and the others, each as turn and index in one
    number.
    """

    __slots__ = ("failed", "others")

    def __init__(self) -> None:
        self.failed: list[int] = []
        self.others: list[int] = []

    @property
    def failing(self) -> int:
        """How many of the newest ones failed, one after the other."""
        return (
            len(self.failed) - bisect_left(self.failed, self.others[-1])
            if self.others
            else len(self.failed)
        )


class _Sums:
    """What follows from the turns of a call, kept in order.

    Attributes:
        there: The turns that there are.
        answered: Those with a wait.
        judged: Those whose progress is known.
        silent: Those with dead air, one entry for each.
    """

    __slots__ = (
        "_failed",
        "_has_new_tools",
        "_interrupted",
        "_uses",
        "_waits_ms",
        "answered",
        "judged",
        "numbers",
        "silent",
        "there",
    )

    def __init__(self) -> None:
        self.there: list[int] = []
        self.answered: list[int] = []
        self.judged: list[int] = []
        self._waits_ms: list[float] = []
        self._interrupted: list[int] = []
        self.silent: list[int] = []
        self.numbers: Counter[str] = Counter()  # of fields of the row, and answered turns
        self._failed: Counter[str] = Counter()
        self._uses: dict[str, _Uses] = {}
        self._has_new_tools = False

    def replace(self, turn: int, before: _Part | None, now: _Part) -> None:
        """Has a turn count as it is now."""
        if before == now:
            return
        if before is not None:
            self._add(turn, before, -1)
        self._add(turn, now, 1)

    def _add(self, turn: int, part: _Part, sign: int) -> None:
        if part.is_there:
            _put(self.there, turn, sign)
        if part.wait_ms is not None:
            _put(self.answered, turn, sign)
            if turn >= 1 and part.wait_ms >= 0:
                _put(self._waits_ms, part.wait_ms, sign)
        if part.is_judged:
            _put(self.judged, turn, sign)
        for by in part.interruptions:
            _put(self._interrupted, turn, sign)
            self.numbers[f"{by.value}_interruptions"] += sign
        for _ in range(part.silences):
            _put(self.silent, turn, sign)
        self.numbers[part.answer] += sign
        self.numbers["tool_calls"] += sign * part.tools_left_out
        for use in part.tools:
            self._has_new_tools = True
            self.numbers["tool_calls"] += sign * (use.outcome is not None)
            if use.outcome in FAILED_USES:
                self._failed[use.tool] += sign
            uses = self._uses.setdefault(use.tool, _Uses())
            place = turn * MAX_TOOLS + use.index
            _put(uses.failed if use.outcome is ToolOutcome.ERROR else uses.others, place, sign)

    def write(self, call: CallRow) -> None:
        """Sets them in the row of the call."""
        numbers, silent = self.numbers, self.silent
        call.turn = self.there[-1] if self.there else None
        call.p50_ms, call.p95_ms, call.longest_wait_ms = (
            percentile(self._waits_ms, share) for share in (0.5, 0.95, 1.0)
        )
        call.unanswered = numbers["unanswered"]
        call.user_interruptions = numbers["user_interruptions"]
        call.assistant_interruptions = numbers["assistant_interruptions"]
        call.interrupted_turns = tuple(self._interrupted[-MAX_LISTED_TURNS:])
        call.dead_airs, call.dead_air_turns = len(silent), tuple(silent[-MAX_LISTED_TURNS:])
        call.tool_calls = numbers["tool_calls"]
        if self._has_new_tools:
            self._has_new_tools = False
            self._write_tools(call)

    def _write_tools(self, call: CallRow) -> None:
        used = sorted(tool for tool, uses in self._uses.items() if uses.failed or uses.others)
        failed = [tool for tool in used if self._failed[tool]][:MAX_LISTED_TOOLS]
        if len(used) > MAX_LISTED_TOOLS:  # each that failed was used
            used = sorted([*dict.fromkeys((*failed, *used))][:MAX_LISTED_TOOLS])
        call.used_tools = tuple(used)
        call.failed_tool_calls, call.failed_tools = self._failed.total(), tuple(failed)
        call.failing_tools = {
            tool: failing for tool in failed if (failing := self._uses[tool].failing)
        }


def _put(ascending: list[Key], value: Key, sign: int) -> None:
    if sign > 0:
        insort(ascending, value)
    else:
        del ascending[bisect_left(ascending, value)]


@lru_cache(maxsize=1_024)
def _shared(name: str) -> str:
    """The same text, which all calls share: each has some ten for each turn."""
    return name


def percentile(ascending: list[float], share: float) -> float | None:
    """The smallest of the values that at least this share of them does not exceed; None without
    any.

    Example:
        >>> percentile([1.0, 2.0, 9.0], 0.5), percentile([], 0.5)
        (2.0, None)
    """
    return ascending[max(0, ceil(share * len(ascending)) - 1)] if ascending else None


def _answer(row: TurnRow) -> Answer | None:
    wait_ms = number(row.wait_ms)
    if wait_ms is None:
        return None
    left_out = NOT_OF_AN_ANSWER
    known = {each.stage: each.latency_ms for each in row.stages}
    if not fits_whole_answer(known, wait_ms):
        left_out = left_out | {Stage.LLM_LAST_SENTENCE}
    stages = [each for each in row.stages if each.stage not in left_out]
    slowest = max(stages, key=lambda each: each.latency_ms, default=None)
    if slowest is None:
        return Answer(row.turn, wait_ms, row.anchor)
    return Answer(row.turn, wait_ms, row.anchor, slowest.stage, slowest.latency_ms)
