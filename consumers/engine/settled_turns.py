"""Turns that were settled, and whether what was known of them then still holds when the call is over."""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from consumers.engine.effects import Count
from consumers.engine.eva_metrics.turn_values import TurnValue
from consumers.engine.live_side import LiveSide
from schemas.call_events import PipelineType


class ChangeCause(StrEnum):
    """Why a settled turn is something else in the end.

    An event came later than is waited for; the log of a speech-to-speech agent, which is back-dated by a whole utterance; an
    event in order showed that turns were to be counted otherwise; or only the end of the call made the difference.
    """

    LATE_EVENT = "late_event"
    BACKDATED_LOG = "backdated_log"
    COUNTED_ANEW = "counted_anew"
    END_OF_CALL = "end_of_call"


class SettledTurns:
    """Keeps of each settled turn what was known of it when it was settled, once that changes."""

    def __init__(self) -> None:
        self._then: dict[int, TurnValue | None] = {}
        self._causes: dict[int, ChangeCause] = {}
        self._settled = 0
        self._changed: Counter[ChangeCause] = Counter()

    def changed(self, live: LiveSide, turn: int, old: TurnValue | None, time_ms: int) -> None:
        """The turn is not what it was any more.

        Args:
            live: The call's turns.
            turn: Which.
            old: What was known of it until now.
            time_ms: Time of the event that did it.
        """
        turns = live.turns
        if turn not in turns.ever_settled or turn in turns.just_settled or turn in self._then:
            return
        self._then[turn] = old
        if time_ms >= live.newest_ms:
            self._causes[turn] = ChangeCause.COUNTED_ANEW
        elif live.history.pipeline_type is PipelineType.S2S:
            self._causes[turn] = ChangeCause.BACKDATED_LOG
        else:
            self._causes[turn] = ChangeCause.LATE_EVENT

    def close(self, live: LiveSide, now: Mapping[int, TurnValue], final: Mapping[int, TurnValue]) -> None:
        """Compare with what the whole call says.

        Args:
            live: The call's turns.
            now: What is known of the turns before the call is looked at as a whole.
            final: What they are.
        """
        for turn in sorted(live.turns.ever_settled):
            then = self._then[turn] if turn in self._then else now.get(turn)
            self._settled += 1
            if _score(then) != _score(final.get(turn)):
                self._changed[self._causes.get(turn, ChangeCause.END_OF_CALL)] += 1

    def counts(self) -> list[Count]:
        """For the metrics, when the call is over."""
        counts = [Count("callgauge_settled_turns_total", (), self._settled)] if self._settled else []
        return counts + [
            Count("callgauge_settled_turns_changed_total", (cause.value,), self._changed[cause])
            for cause in ChangeCause
            if self._changed[cause]
        ]


def _score(value: TurnValue | None) -> object:
    return None if value is None else value.score
