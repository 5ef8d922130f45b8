"""Times at which both sides were heard in a turn, as known now: the input of the turn's score while the call runs."""

from math import inf
from typing import Final, NamedTuple

from consumers.engine.measures.eva.timing.turn_scores import TurnTimes
from consumers.engine.turns.heard.heard_turn import HeardTurn
from consumers.engine.turns.timeline.turn_view import EVA_DIGITS, TurnView, voice_to_voice_ms
from schemas.scores.record import Anchor, Scored, Unscored, UnscoredReason


class HeardTimes(NamedTuple):
    """One turn as heard so far. An open sound has an infinite end.

    Attributes:
        times: Input of its score.
        anchor: Source of the end of the user's speech; None while unknown.
        pending: Why there is no score yet although both sides were heard; None if there is nothing to wait for.
        is_open: Whether a sound of the turn has no end yet.
    """

    times: TurnTimes
    anchor: Anchor | None
    pending: UnscoredReason | None
    is_open: bool


MAX_LIVE_SOUNDS: Final = 256
"""Stretches of sound of one side in a turn up to which it is scored while the call runs. A minute of it has some ten; a loop
would make each event cost as much as all before it.
"""


def may_be_scored(turn: HeardTurn, view: TurnView) -> bool:
    """Whether the turn has anything to score: both sides, or the fallback timer. Most events of a turn change nothing here."""
    return (view.has_user and (view.has_assistant or view.is_answered_in_text)) or turn.is_fallback


def is_scored_at_the_close(turn: HeardTurn) -> bool:
    """Whether the turn has more than `MAX_LIVE_SOUNDS`: its last live value stays until the close."""
    return max(len(turn.assistant.starts), len(turn.user.starts)) > MAX_LIVE_SOUNDS


def heard_times(turn: HeardTurn, view: TurnView) -> HeardTimes:
    """The turn as EVA's formulas read it. A side without sound gets one without length where the view has a time of it."""
    user, assistant = turn.user.segments, turn.assistant.segments
    if not user and view.user_end_s is not None:
        user = ((view.user_end_s, view.user_end_s),)
    if not assistant and view.assistant_start_s is not None:
        assistant = ((view.assistant_start_s, view.assistant_start_s),)
    waited = voice_to_voice_ms(view)
    times = TurnTimes(
        user=user,
        assistant=assistant,
        assistant_before_end_s=turn.answer_before_end_s,
        latency_s=round(waited.value / 1000, EVA_DIGITS) if isinstance(waited, Scored) else None,
        has_tool_call=turn.has_tool_call,
        is_fallback=turn.is_fallback,
        assistant_interrupted=turn.assistant_interrupted,
        user_interrupted=turn.user_interrupted,
    )
    anchor = view.anchor or (Anchor.ESTIMATED if turn.is_fallback else None)
    pending = waited.reason if isinstance(waited, Unscored) else None
    is_over_other = times.assistant_interrupted or times.user_interrupted
    if is_over_other and (turn.user.has_gaps or turn.assistant.has_gaps) and may_be_scored(turn, view):
        pending = UnscoredReason.TIMES_UNKNOWN  # for how long one spoke over the other is not known
    return _known(times, anchor, pending)


def _known(times: TurnTimes, anchor: Anchor | None, pending: UnscoredReason | None) -> HeardTimes:
    is_user_open = bool(times.user) and times.user[-1][1] == inf
    is_assistant_open = bool(times.assistant) and times.assistant[-1][1] == inf
    if times.is_fallback:
        pending = None
    elif times.user and times.assistant and pending is None:
        if is_user_open:
            pending = UnscoredReason.USER_STILL_SPEAKING
        elif times.user_interrupted and times.assistant_before_end_s == inf:
            pending = UnscoredReason.ASSISTANT_STILL_SPEAKING
    return HeardTimes(times, anchor, pending, is_user_open or is_assistant_open)
