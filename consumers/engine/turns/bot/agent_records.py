"""The conversation records of one call with an ElevenLabs agent: chooses the best and matches it with the live turns.

Several come when one is fetched while the call runs. Once matching has cost too much, it waits for the close, which always
matches the most complete record.
"""

from collections.abc import Mapping
from typing import Final

from consumers.engine.effects import Count, Effect
from consumers.engine.turns.bot.agent_record import AgentRecord, RecordedTurn
from consumers.engine.turns.bot.turn_machine import BotTurnMachine
from schemas.events.elevenlabs_record import ConversationRecord

MAX_RECORDS: Final = 16
"""Records of one call that are matched while it runs. A webhook sends one; a bridge that fetches too early a few."""
MAX_PLACING_WORK: Final = 500_000
"""Turns and pieces of text read to match records while one call runs, half a second; words of two hours that come after their
record, one by one, take two fifths of it.
"""

_LIMIT: Final = "callgauge_limits_hit_total"
_NOTHING: Final = RecordedTurn("", frozenset(), None, {})


class AgentRecords:
    """The records of one call.

    Attributes:
        current: The record that is matched with the turns; None before the first.
        is_any: Whether one has come.
    """

    __slots__ = (
        "_count",
        "_newest",
        "_work",
        "current",
        "is_any",
    )

    def __init__(self) -> None:
        self.current: AgentRecord | None = None
        self.is_any = False
        self._newest: AgentRecord | None = None
        self._count = 0
        self._work = 0

    def fold(self, record: ConversationRecord) -> None:
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
        """Matches the most complete record with the final words. In a call without a bot's turns (`machine` is None), match
        nothing.
        """
        record = self._newest or self.current
        if machine is None:
            self.current = record
        elif record is not None:
            self._place(record, machine)

    def forget(self) -> set[int]:
        """Drops the matches: the call's turns are EVA's from now on, and a record does not know them.

        Returns:
            The turns that had recorded values.
        """
        if self.current is None:
            return set()
        turns = set(self.current.placed)
        self.current.forget()
        return turns

    def _place(self, record: AgentRecord, machine: BotTurnMachine) -> set[int]:
        """Makes this record the current one; returns the turns with other recorded values than before."""
        before = {} if self.current is None else self.current.placed
        if record is self._newest:
            self._newest = None
        self.current = record
        self._work += record.place(machine)
        machine.have_words_changed = False
        return _changed(before, record.placed)


def _changed(before: Mapping[int, RecordedTurn], after: Mapping[int, RecordedTurn]) -> set[int]:
    pairs = {turn: (before.get(turn, _NOTHING), after.get(turn, _NOTHING)) for turn in before.keys() | after.keys()}
    return {turn for turn, (old, new) in pairs.items() if old is not new and old.measured != new.measured}
