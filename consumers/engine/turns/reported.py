"""Reports of the bot itself: the finished record of an ElevenLabs agent, and uses of tools."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from pydantic_core import from_json

from consumers.engine.effects import Count, Effect
from consumers.engine.sources.facts import (
    INPUT_OF,
    Recorded,
    RecordedTurn,
    Teller,
    ToldWait,
    ToolFact,
    plain_words,
)
from consumers.engine.turns.bot import BotElementKind, BotHistory, BotTurnMachine
from consumers.engine.turns.timeline import MS_DIGITS, ToolPayload, TurnView
from schemas.closed_sets import Anchor
from schemas.units import MS_PER_SECOND
from schemas.wire import without_infinity

# Matches the turns of an ElevenLabs conversation record with the turns heard live.
#
# Entries of a record match live events by id. Without ids, turns match by place if both sides have
# as many, otherwise by the caller's words.

_PIECE_CHARS: Final = 64
"""Characters that cost as much to read as one turn."""


_NOTHING: Final = RecordedTurn("", frozenset(), None, {})


class AgentRecord:
    """One record, matched with the turns of a call.

    Attributes:
        agent_id: ElevenLabs' id of the agent; None where the record has none.
        entries: The entries of a record of a call that is over; empty for one that was fetched too
            early.
        ended_reason: Why the call ended, in ElevenLabs' words; None where the record does not say.
        ended_ms: When the call ended, in ms since 1970; 0 where the record does not say.
    """

    def __init__(self, record: Recorded) -> None:
        self.agent_id, self.entries = record.agent_id, record.entries
        self.ended_reason, self.ended_ms = record.ended_reason, record.ended_ms
        self._turns, self._worth = record.turns, record.worth
        self._places: dict[int, int] = {}
        self._place_by_id = {
            each: place for place, turn in enumerate(self._turns) for each in turn.ids
        }
        self._spoken = [place for place, turn in enumerate(self._turns) if turn.user_words]
        self._places_by_words: dict[str, list[int]] = {}
        for place in self._spoken:
            self._places_by_words.setdefault(self._turns[place].user_words, []).append(place)

    def is_worth_less_than(self, record: Recorded) -> bool:
        """Whether the other record is of a call that is over, is longer, or is newer."""
        return self._worth < record.worth

    @property
    def placed(self) -> dict[int, RecordedTurn]:
        """The matched live turns with their recorded ones."""
        return {turn: self._turns[place] for turn, place in self._places.items()}

    def place(self, machine: BotTurnMachine) -> int:
        """Matches each live turn with a turn of the record.

        Returns:
            The work done: turns and pieces of text read.
        """
        self._places = self._found(machine)
        return sum(
            1 + sum(1 + _pieces(words.ref) for words in said) for said in machine.words.values()
        )

    def forget(self) -> None:
        """Drops the matches: the live turns are others now."""
        self._places = {}

    def recorded(self, turn: int) -> RecordedTurn:
        """The values that the record has for a live turn; none without a match."""
        place = self._places.get(turn)
        return _NOTHING if place is None else self._turns[place]

    def revised(self, turn: int, view: TurnView) -> TurnView:
        """The view of a live turn with the record's latency in place of an estimate."""
        recorded_ms = self.recorded(turn).latency_ms
        if recorded_ms is None or view.anchor is not Anchor.ESTIMATED:
            return view
        return view._replace(recorded_ms=recorded_ms, anchor=Anchor.RECORD)

    def _found(self, machine: BotTurnMachine) -> dict[int, int]:
        by_id = self._place_by_id
        found: dict[int, int] = {}
        placed: set[int] = set()
        for turn in sorted(machine.words):
            said = [
                (words.is_user, words.event_id)
                for words in machine.words[turn]
                if words.event_id is not None
            ]
            place = next(
                (by_id[each] for each in sorted(said, reverse=True) if each in by_id), None
            )
            if place is not None and place not in placed:
                found[turn] = place
                placed.add(place)
        return found or self._found_by_words(machine)

    def _found_by_words(self, machine: BotTurnMachine) -> dict[int, int]:
        live = [
            (turn, words) for turn in sorted(machine.words) if (words := _user_words(machine, turn))
        ]
        found = (
            {0: 0} if self._turns and 0 in machine.words and not self._turns[0].user_words else {}
        )
        if len(live) == len(self._spoken):
            return found | {
                turn: place for (turn, _), place in zip(live, self._spoken, strict=True)
            }
        first = 0
        for turn, words in live:
            places = self._places_by_words.get(words, [])
            at = bisect_left(places, first)
            if at < len(places):
                found[turn] = places[at]
                first = places[at] + 1
        return found


def _user_words(machine: BotTurnMachine, turn: int) -> str:
    said = [words.ref for words in machine.words[turn] if words.is_user]
    return plain_words(" ".join(text for text in said if isinstance(text, str)))


def _pieces(ref: object) -> int:
    return len(ref) // _PIECE_CHARS if isinstance(ref, str) else 0


# The conversation records of one call with an ElevenLabs agent: chooses the best and matches it
# with the live turns.
#
# Several come when one is fetched while the call runs. Once matching has cost too much, it waits
# for the close, which always matches the most complete record.

MAX_RECORDS: Final = 16
"""Records of one call that are matched while it runs. A webhook sends one; a bridge that fetches
too early a few.
"""
MAX_PLACING_WORK: Final = 500_000
"""Turns and pieces of text read to match records while one call runs, half a second; words of two
hours that come after their record, one by one, take two fifths of it.
"""

_LIMIT: Final = "callgauge_limits_hit_total"


class AgentRecords:
    """The records of one call.

    Attributes:
        current: The record that is matched with the turns; None before the first.
        is_any: Whether one has come.
    """

    def __init__(self) -> None:
        self.current: AgentRecord | None = None
        self.is_any = False
        self._newest: AgentRecord | None = None
        self._count = 0
        self._work = 0

    def fold(self, record: Recorded) -> None:
        """Keeps a record if it is more complete than the best so far."""
        best = self._newest or self.current
        if best is None or best.is_worth_less_than(record):
            self._newest = AgentRecord(record)
            self.is_any = True

    def follow(self, machine: BotTurnMachine, out: list[Effect]) -> set[int]:
        """Matches a new record, and the current one again if the known words changed.

        Returns:
            The live turns with other recorded values than before.
        """
        was_over = self._work > MAX_PLACING_WORK
        record = self.current if machine.have_words_changed and not was_over else None
        if self._newest is not None and self._count <= MAX_RECORDS:
            self._count += 1
            if self._count <= MAX_RECORDS:
                record = self._newest
            else:
                out.append(Count(_LIMIT, ("agent_records",)))
        if record is None:
            return set()
        changed = self._place(record, machine)
        if self._work > MAX_PLACING_WORK and not was_over:
            out.append(Count(_LIMIT, ("placed_records",)))
        return changed

    def finish(self, machine: BotTurnMachine | None) -> None:
        """Matches the most complete record with the final words. In a call without a bot's turns
        (`machine` is None), match nothing.
        """
        record = self._newest or self.current
        if machine is None:
            self.current = record
        elif record is not None:
            self._place(record, machine)

    def forget(self) -> set[int]:
        """Drops the matches: the call's turns are EVA's from now on, and a record does not know
        them.

        Returns:
            The turns that had recorded values.
        """
        if self.current is None:
            return set()
        turns = set(self.current.placed)
        self.current.forget()
        return turns

    def _place(self, record: AgentRecord, machine: BotTurnMachine) -> set[int]:
        """Makes this record the current one; returns the turns with other recorded values than
        before.
        """
        before = {} if self.current is None else self.current.placed
        if record is self._newest:
            self._newest = None
        self.current = record
        self._work += record.place(machine)
        machine.have_words_changed = False
        return _changed(before, record.placed)


def _changed(before: Mapping[int, RecordedTurn], after: Mapping[int, RecordedTurn]) -> set[int]:
    pairs = {
        turn: (before.get(turn, _NOTHING), after.get(turn, _NOTHING))
        for turn in before.keys() | after.keys()
    }
    return {
        turn
        for turn, (old, new) in pairs.items()
        if old is not new and old.measured != new.measured
    }


# Uses of tools as an ElevenLabs agent or pipecat reports them: with the id of the call, in any
# order, repeatedly.


@dataclass(slots=True)
class _Tool:
    """One use of a tool, as far as its events have come: `call` and `reply` are its keys on the
    timeline.
    """

    call: int | None = None
    called_ms: int = 0
    arguments: object = None
    reply: int | None = None
    replied_ms: int = 0
    result: object = None
    result_is_error: bool = False
    is_exact: bool = True
    is_withheld: bool = False
    took_ms: int | None = None
    kind: str | None = None


class ReportedTools:
    """The tools of one call that one teller reports. Of repeated reports the earlier time and the
    fuller value count.
    """

    def __init__(self) -> None:
        self._tools: dict[str, _Tool] = {}

    def called(self, bot: BotHistory, run: ToolFact) -> bool:
        """Adds the call of a tool.

        Returns:
            Whether it is the first report of this call.
        """
        tool = self._tools.setdefault(run.call_id, _Tool())
        is_news = tool.call is None
        if run.value is not None:
            tool.arguments = run.value
        if tool.call is not None:
            bot.timeline.remove(tool.call)
        tool.called_ms = run.at_ms if is_news else min(tool.called_ms, run.at_ms)
        tool.is_exact = tool.is_exact and run.is_exact
        tool.kind = tool.kind or run.kind
        use = ToolPayload(
            run.name or "",
            tool.arguments,
            run.call_id,
            is_exact=tool.is_exact,
            source=INPUT_OF[run.teller],
            provider_id=_provider_id(run),
            kind=tool.kind,
        )
        tool.call = bot.from_agent(BotElementKind.TOOL_CALL, tool.called_ms, run.event_id, use)
        return is_news

    def answered(self, bot: BotHistory, run: ToolFact) -> bool:
        """Adds the answer of a tool, parsed if its text holds JSON, so that an error in it is
        found.

        Returns:
            Whether it is the first report of this answer.
        """
        tool = self._tools.setdefault(run.call_id, _Tool())
        is_news = tool.reply is None
        tool.result_is_error = tool.result_is_error or run.is_error
        if run.value is not None or tool.result is None:
            tool.is_withheld = run.is_withheld
        if run.value is not None:
            tool.result = _parsed(run.value)
        tool.is_exact = tool.is_exact and run.is_exact
        tool.took_ms = run.took_ms if tool.took_ms is None else tool.took_ms
        if tool.reply is not None:
            bot.timeline.remove(tool.reply)
        tool.replied_ms = run.at_ms if is_news else min(tool.replied_ms, run.at_ms)
        # A failure without a result gets an answer of its own, because EVA sees no answer in None.
        answer = (
            {"status": "error"} if tool.result is None and tool.result_is_error else tool.result
        )
        use = ToolPayload(
            run.name or "",
            answer,
            run.call_id,
            is_error=tool.result_is_error,
            is_withheld=tool.is_withheld and answer is tool.result,
            is_exact=tool.is_exact,
            took_ms=tool.took_ms,
            source=INPUT_OF[run.teller],
            provider_id=_provider_id(run),
            kind=run.kind,
        )
        tool.reply = bot.from_agent(
            BotElementKind.TOOL_RESPONSE, tool.replied_ms, run.event_id, use
        )
        return is_news

    def withdraw(self, bot: BotHistory) -> None:
        """Removes these tools from the timeline: a better source reports them."""
        for key in self._keys():
            bot.timeline.remove(key)
        self._tools.clear()

    def _keys(self) -> Iterator[int]:
        for tool in self._tools.values():
            yield from (key for key in (tool.call, tool.reply) if key is not None)


def _provider_id(run: ToolFact) -> str | None:
    return run.call_id if run.teller in (Teller.AGENT, Teller.RECORD) else None


def _parsed(result: object) -> object:
    if isinstance(result, str) and result.lstrip()[:1] in ("{", "["):
        try:
            return without_infinity(from_json(result, allow_inf_nan=False))
        except ValueError:
            return result
    return result


# Waits that the agent's framework measured itself, of turns in which no event tells when the answer
# was heard.

MAX_TOLD_WAITS: Final = 1_000
"""Waits of one call that are kept, the first ones: as many as a call may have turns."""


class ToldWaits:
    """The waits of one call, each with the stretch of time in which its turn lies. They do not
    depend on the order of arrival.
    """

    def __init__(self) -> None:
        self._waits: list[ToldWait] = []

    def __len__(self) -> int:
        return len(self._waits)

    def fold(self, wait: ToldWait, machine: BotTurnMachine) -> None:
        """Takes the wait of a turn, and touches the turns that it may belong to."""
        if len(self._waits) >= MAX_TOLD_WAITS:
            return
        self._waits.append(wait)
        machine.touched.update(
            number
            for number, turn in machine.turns.items()
            if any(wait.begin_s <= at_s <= wait.end_s for at_s in turn.transcripts)
        )

    def revised(self, machine: BotTurnMachine, number: int, view: TurnView) -> TurnView:
        """The view of a turn with the told wait, if its words are all that is known of the answer.
        The turn is the last one whose transcript lies in the stretch: of several waits, the
        framework keeps the last.
        """
        turn, following = machine.turns[number], machine.turns.get(number + 1)
        if (
            not view.is_answered_in_text
            or view.anchor is not Anchor.TRANSCRIPT
            or not turn.transcripts
        ):
            return view
        next_s = (
            following.transcripts[0] if following is not None and following.transcripts else inf
        )
        told_s = [
            each.seconds
            for each in self._waits
            if each.begin_s <= turn.transcripts[-1] <= each.end_s < next_s
        ]
        if not told_s:
            return view
        recorded_ms = round(min(told_s) * MS_PER_SECOND, MS_DIGITS)
        return view._replace(recorded_ms=recorded_ms, anchor=Anchor.VAD, source="pipecat")
