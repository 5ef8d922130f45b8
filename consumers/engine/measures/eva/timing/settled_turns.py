"""Compares settled turns with their final values."""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from hashlib import blake2b

from consumers.engine.effects import Count
from consumers.engine.measures.eva.timing.turn_values import TurnValue
from consumers.engine.turns.live_call import LiveCall
from schemas.events.call import PipelineType


class ChangeCause(StrEnum):
    """Causes of a different final value of a settled turn.

    An event came later than the allowed lateness; the log of a speech-to-speech agent, which is back-dated by a whole
    utterance; an event in order changed the count of turns; or only the end of the call made the difference.
    """

    LATE_EVENT = "late_event"
    BACKDATED_LOG = "backdated_log"
    COUNTED_ANEW = "counted_anew"
    END_OF_CALL = "end_of_call"


class SettledTurns:
    """Keeps the score of each turn as settled, and the cause of its first change."""

    __slots__ = (
        "_causes",
        "_changed",
        "_settled",
        "_then",
    )

    def __init__(self) -> None:
        self._then: dict[int, bytes] = {}
        self._causes: dict[int, ChangeCause] = {}
        self._settled = 0
        self._changed: Counter[ChangeCause] = Counter()

    def settle(self, turn: int, value: TurnValue | None) -> None:
        """Notes that the turn is settled with this value; a turn that was settled before keeps its first value."""
        self._then.setdefault(turn, _score(value))

    def changed(self, live: LiveCall, turn: int, value: TurnValue | None, time_ms: int | None) -> None:
        """Notes the value of a settled turn after an event at this time touched it."""
        if turn in self._causes or turn not in self._then or self._then[turn] == _score(value):
            return
        if time_ms is not None and time_ms >= live.newest_ms:
            self._causes[turn] = ChangeCause.COUNTED_ANEW
        elif live.history.pipeline_type is PipelineType.S2S:
            self._causes[turn] = ChangeCause.BACKDATED_LOG
        else:
            self._causes[turn] = ChangeCause.LATE_EVENT

    def close(self, final: Mapping[int, TurnValue]) -> None:
        """Compares with the final values."""
        for turn in sorted(self._then):
            self._settled += 1
            if self._then[turn] != _score(final.get(turn)):
                self._changed[self._causes.get(turn, ChangeCause.END_OF_CALL)] += 1

    def counts(self) -> list[Count]:
        """Counts for the metrics, at the end of the call."""
        counts = [Count("callgauge_settled_turns_total", (), self._settled)] if self._settled else []
        return counts + [
            Count("callgauge_settled_turns_changed_total", (cause.value,), self._changed[cause])
            for cause in ChangeCause
            if self._changed[cause]
        ]


def _score(value: TurnValue | None) -> bytes:
    """Equal bytes for equal scores; a few for each turn, however much evidence the score has."""
    return blake2b(repr(None if value is None else value.score).encode(), digest_size=8).digest()
