"""The cheap view of a live turn, for either machine: who waited for whom, and how long.

Moments are published from it at every event that touches a turn; building a whole `HeardTurn` each time would cost more. The
adapters `by_the_caller` and `by_the_bot` make both.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

from schemas.scores.all_records import Anchor, Scored, Unscored, UnscoredReason

Source = Literal["elevenlabs", "pipecat", "audit"]
EVA_DIGITS = 6
"""Decimals of a second to which EVA rounds a latency; rounding first makes ours equal to its, times 1000."""
MS_DIGITS = 3


class TurnView(NamedTuple):
    """A turn as heard. `user_end_s` is None while the user speaks or was not heard; `anchor` names the source of that end.

    `are_times_exact` is false where times give only the order. `recorded_ms` is the latency that the agent's provider measured
    itself; the ends are then estimates. `is_answered_in_text` means that the assistant's answer was never spoken.
    """

    has_user: bool
    has_assistant: bool
    is_user_speaking: bool
    user_end_s: float | None
    assistant_start_s: float | None
    anchor: Anchor | None
    source: Source | None
    user_interrupted: bool
    assistant_interrupted: bool
    are_times_exact: bool = True
    recorded_ms: float | None = None
    is_answered_in_text: bool = False

    @property
    def timing(self) -> tuple[object, ...]:
        """The fields that a latency depends on."""
        return (*self[:7], self.are_times_exact, self.recorded_ms)

    @property
    def heard_ms(self) -> float | None:
        """Latency in ms as heard, from the end of the user's speech to the start of the assistant's; None when unknown."""
        if self.user_end_s is None or self.assistant_start_s is None or not self.are_times_exact:
            return None
        return round(round(self.assistant_start_s - self.user_end_s, EVA_DIGITS) * 1000, MS_DIGITS)


def voice_to_voice_ms(view: TurnView) -> Scored | Unscored | None:
    """Silence the caller sat through: from the end of the user's last speech of the turn to the assistant's first.

    Returns:
        Milliseconds, negative when the assistant began before the user had finished; unscored while the user is still
        heard, where times give only the order, and where the answer was never spoken; None while one side has not been heard,
        since nothing is known yet.
    """
    if view.recorded_ms is not None:
        return Scored(value=view.recorded_ms)
    if view.has_user and view.is_answered_in_text:
        return Unscored(reason=UnscoredReason.ANSWERED_IN_TEXT)
    if not view.has_user or view.assistant_start_s is None:
        return None
    if view.user_end_s is None:
        return Unscored(reason=UnscoredReason.USER_STILL_SPEAKING)
    heard_ms = view.heard_ms
    return Unscored(reason=UnscoredReason.TIMES_UNKNOWN) if heard_ms is None else Scored(value=heard_ms)


def unmeasured_reason(view: TurnView, *, has_speech_events: bool) -> UnscoredReason:
    """Why a turn of an ended call has no latency."""
    if not has_speech_events:
        return UnscoredReason.NO_SPEECH_EVENTS
    return UnscoredReason.NO_USER_SPEECH if not view.has_user else UnscoredReason.NO_ASSISTANT_SPEECH


class HasUserEnds(Protocol):
    """A turn of either machine."""

    def has_user_end(self, end_ms: int) -> bool:
        """Whether the caller ended in this turn at that millisecond."""


def turn_with_user_end(turns: Mapping[int, HasUserEnds], end_ms: int, otherwise: int) -> int:
    """The last of the turns in which the caller ended then; `otherwise` without one.

    When a silence is decided, every input is known up to it. When its beginning was read, others could still number its turn.
    """
    return next((number for number in sorted(turns, reverse=True) if turns[number].has_user_end(end_ms)), otherwise)
