"""One shape for a live turn, whichever events it was heard through, and what can be said of its latency."""

from typing import Literal, NamedTuple

from consumers.engine.speaking import SpeakingTurn
from consumers.engine.turn_state import TurnState
from schemas.scores import Anchor, Scored, Unscored, UnscoredReason

Source = Literal["elevenlabs", "pipecat", "audit"]
EVA_DIGITS = 6
"""Decimals of a second to which EVA rounds a latency; doing the same first makes ours equal to its, times 1000."""
MS_DIGITS = 3


class TurnView(NamedTuple):
    """A turn as heard. `user_end_s` is None while the user speaks or was not heard; `anchor` says how its end is known.

    `are_times_exact` is false where times say only what came first. `recorded_ms` is the latency that the agent's provider
    measured itself; the ends are then those of the estimate.
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

    @property
    def timing(self) -> tuple[object, ...]:
        """What a latency depends on."""
        return (*self[:7], self.are_times_exact, self.recorded_ms)

    @property
    def heard_ms(self) -> float | None:
        """From the end of the user's speech to the assistant's, as heard; None where that is not known."""
        if self.user_end_s is None or self.assistant_start_s is None or not self.are_times_exact:
            return None
        return round(round(self.assistant_start_s - self.user_end_s, EVA_DIGITS) * 1000, MS_DIGITS)


def rests_on_open_sound(turn: TurnState | SpeakingTurn, before: TurnState | SpeakingTurn | None) -> bool:
    """Whether something is not known of a turn because a sound has no end yet: its own, or the answer spoken over before it."""
    if _is_user_open(turn) or _is_assistant_open(turn):
        return True
    return turn.user_interrupted and before is not None and _is_assistant_open(before)


def _is_user_open(turn: TurnState | SpeakingTurn) -> bool:
    if isinstance(turn, TurnState):
        return len(turn.user_ends) < len(turn.user_starts)
    if turn.vad_starts:
        return len(turn.vad_ends) < len(turn.vad_starts)
    return len(turn.release_ends) < len(turn.release_starts)


def _is_assistant_open(turn: TurnState | SpeakingTurn) -> bool:
    if isinstance(turn, TurnState):
        return len(turn.assistant_ends) < len(turn.assistant_starts)
    return len(turn.bot_ends) < len(turn.bot_starts)


def view_of_audio(state: TurnState, fallback_end_s: float | None = None) -> TurnView:
    """The turn as the simulated caller heard it.

    Args:
        state: What EVA's rules filed under the turn.
        fallback_end_s: Where a stretch of sound without an end stops, once the call is over (EVA's rule E1).
    """
    starts, ends = state.user_starts, state.user_ends
    end_s = ends[len(starts) - 1] if starts and len(ends) >= len(starts) else fallback_end_s if starts else None
    return TurnView(
        has_user=bool(starts),
        has_assistant=bool(state.assistant_starts),
        is_user_speaking=bool(starts) and end_s is None,
        user_end_s=end_s,
        assistant_start_s=state.assistant_starts[0] if state.assistant_starts else None,
        anchor=Anchor.AUDIO,
        source="elevenlabs",
        user_interrupted=state.user_interrupted,
        assistant_interrupted=state.assistant_interrupted,
    )


def view_of_speaking(state: SpeakingTurn, *, has_bot_events: bool) -> TurnView:
    """The turn as the bot heard it: by the detector where it did, else by the turn ruling, else by the transcript.

    An ElevenLabs agent says when its transcripts and answers arrived. That it was cut off says that the user was heard.
    """
    bot_starts = (state.bot_starts if has_bot_events else state.bot_texts) or state.agent_said
    source: Source = "pipecat"
    is_speaking = False
    end_s: float | None = None
    anchor: Anchor | None = None
    if state.vad_starts:
        anchor = Anchor.VAD
        is_speaking = len(state.vad_ends) < len(state.vad_starts)
        end_s = None if is_speaking else state.vad_ends[-1]
    elif state.release_starts:
        anchor = Anchor.TURN_RELEASE
        is_speaking = len(state.release_ends) < len(state.release_starts)
        end_s = None if is_speaking else state.release_ends[-1]
    elif state.transcripts:
        anchor = Anchor.TRANSCRIPT
        source = "audit"
        end_s = state.transcripts[-1]
    elif state.agent_heard or state.user_interrupted:
        anchor = Anchor.ESTIMATED
        source = "elevenlabs"
        is_speaking = not state.agent_heard
        end_s = None if is_speaking else state.agent_heard[-1]
    return TurnView(
        has_user=anchor is not None,
        has_assistant=bool(bot_starts),
        is_user_speaking=is_speaking,
        user_end_s=end_s,
        assistant_start_s=bot_starts[0] if bot_starts else None,
        anchor=anchor,
        source=source if anchor is not None else None,
        user_interrupted=state.user_interrupted,
        assistant_interrupted=state.assistant_interrupted,
        are_times_exact=state.are_times_exact,
    )


def voice_to_voice_ms(view: TurnView) -> Scored | Unscored | None:
    """Silence the caller sat through: from the end of the user's last speech of the turn to the assistant's first.

    Returns:
        Milliseconds, negative when the assistant began before the user had finished; unscored while the user is still
        heard, and where times say only what came first; None while one side has not been heard, since nothing can be said yet.
    """
    if view.recorded_ms is not None:
        return Scored(value=view.recorded_ms)
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
