"""When both sides were heard in a turn, as far as it is known now: what the turn's score is computed from while the call runs."""

from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple

from consumers.engine.eva_metrics.turn_scores import Segments, TurnTimes
from consumers.engine.live_side import LiveSide
from consumers.engine.speaking import SpeakingMachine, SpeakingTurn
from consumers.engine.turn_view import EVA_DIGITS, TurnView, voice_to_voice_ms
from schemas.score_record import Anchor, Scored, Unscored, UnscoredReason


class HeardTimes(NamedTuple):
    """One turn as heard so far. A sound without an end goes on for ever.

    Attributes:
        times: What its score is computed from.
        anchor: How the end of the user's speech is known; None while it is not.
        pending: Why there is no score yet although both sides were heard; None if there is nothing to wait for.
        is_open: Whether a sound of the turn has no end yet.
    """

    times: TurnTimes
    anchor: Anchor | None
    pending: UnscoredReason | None
    is_open: bool


MAX_LIVE_SOUNDS: Final = 256
"""Stretches of sound of one side in a turn up to which it is scored while the call runs. A minute of it has some ten; a loop
would make each event cost as much as all before it."""


def may_be_scored(live: LiveSide, turn: int) -> bool:
    """Whether there is anything in the turn to score: both sides, or the fallback timer. Most that happens in a turn adds none."""
    machine = live.machine
    if isinstance(machine, SpeakingMachine):
        heard = machine.turns.get(turn)
        view = live.turns.view(turn)
        return heard is not None and view is not None and (view.has_assistant or heard.is_fallback)
    state = machine.turns.get(turn)
    return state is not None and (state.is_fallback or (bool(state.assistant_starts) and bool(state.user_starts)))


def is_scored_at_the_close(live: LiveSide, turn: int) -> bool:
    """Whether the turn has more than `MAX_LIVE_SOUNDS`: until the close what was said of it last stands."""
    machine = live.machine
    if isinstance(machine, SpeakingMachine):
        heard = machine.turns.get(turn)
        return heard is not None and max(len(heard.bot_starts), len(heard.vad_starts)) > MAX_LIVE_SOUNDS
    state = machine.turns.get(turn)
    return state is not None and max(len(state.assistant_starts), len(state.user_starts)) > MAX_LIVE_SOUNDS


def heard_times(live: LiveSide, turn: int, *, has_tool_call: bool) -> HeardTimes | None:
    """The turn as the simulated caller heard it, or else the bot; None when there is no such turn."""
    machine = live.machine
    if isinstance(machine, SpeakingMachine):
        return _heard_by_the_bot(machine, turn, live.turns.view(turn), has_tool_call=has_tool_call)
    state = machine.turns.get(turn)
    if state is None:
        return None
    before = machine.turns.get(turn - 1)
    user = _spans(state.user_starts, state.user_ends)
    assistant = _spans(state.assistant_starts, state.assistant_ends)
    answers_before = () if before is None else _spans(before.assistant_starts, before.assistant_ends)
    times = TurnTimes(
        user=user,
        assistant=assistant,
        assistant_before_end_s=answers_before[-1][1] if answers_before else None,
        latency_s=_latency_s(user[-1][1], assistant[0][0]) if user and assistant else None,
        has_tool_call=has_tool_call,
        is_fallback=state.is_fallback,
        assistant_interrupted=state.assistant_interrupted,
        user_interrupted=state.user_interrupted,
    )
    return _known(times, Anchor.AUDIO)


def _heard_by_the_bot(
    machine: SpeakingMachine, turn: int, view: TurnView | None, *, has_tool_call: bool
) -> HeardTimes | None:
    state = machine.turns.get(turn)
    if state is None or view is None:
        return None
    user = _spans(state.vad_starts, state.vad_ends) or _spans(state.release_starts, state.release_ends)
    if not user and view.user_end_s is not None:
        user = ((view.user_end_s, view.user_end_s),)
    assistant: Segments = _spans(state.bot_starts, state.bot_ends) if machine.has_bot_events else ()
    if not assistant and view.assistant_start_s is not None:
        assistant = ((view.assistant_start_s, view.assistant_start_s),)
    before = machine.turns.get(turn - 1, _NOBODY)
    spoken_before = _spans(before.bot_starts, before.bot_ends)
    waited = voice_to_voice_ms(view)
    times = TurnTimes(
        user=user,
        assistant=assistant,
        assistant_before_end_s=spoken_before[-1][1] if spoken_before else None,
        latency_s=round(waited.value / 1000, EVA_DIGITS) if isinstance(waited, Scored) else None,
        has_tool_call=has_tool_call,
        is_fallback=state.is_fallback,
        assistant_interrupted=state.assistant_interrupted,
        user_interrupted=state.user_interrupted,
    )
    anchor = view.anchor or (Anchor.ESTIMATED if state.is_fallback else None)
    return _known(times, anchor, waited.reason if isinstance(waited, Unscored) else None)


_NOBODY = SpeakingTurn()


def _known(times: TurnTimes, anchor: Anchor | None, pending: UnscoredReason | None = None) -> HeardTimes:
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


def _latency_s(user_end_s: float, assistant_start_s: float) -> float | None:
    return None if user_end_s == inf else round(assistant_start_s - user_end_s, EVA_DIGITS)


def _spans(starts: Sequence[float], ends: Sequence[float]) -> Segments:
    """Starts and ends by place, as EVA pairs them."""
    return tuple((start_s, ends[place] if place < len(ends) else inf) for place, start_s in enumerate(starts))
