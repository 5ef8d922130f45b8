"""The timing of a turn while the call runs, and at its end."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from consumers.engine.measures.eva.timing.heard_times import HeardTimes
from consumers.engine.measures.eva.timing.turn_scores import TurnScore, turn_score
from schemas.scores.record import Anchor, NotApplicable, Result, Scored, Unscored, UnscoredReason

NOT_ANSWERED: Final = NotApplicable(reason="the call ended before an answer")
_ANCHORS: Final = tuple(Anchor)


class TurnValue(NamedTuple):
    """A turn's score, or the reason for having none.

    Attributes:
        score: The score with its grounds; None when the turn has none.
        result: The same as a record has it.
        anchor: Source of the end of the user's speech.
        is_open: Whether a sound of the turn has no end yet.
    """

    score: TurnScore | None
    result: Result
    anchor: Anchor | None
    is_open: bool


def live_value(turn: int, heard: HeardTimes) -> TurnValue | None:
    """The turn as heard so far; None while one side was not heard, since nothing is known yet."""
    if heard.pending is not None and turn:
        return TurnValue(None, Unscored(reason=heard.pending), heard.anchor, heard.is_open)
    score = live_score(turn, heard)
    return None if score is None else TurnValue(score, Scored(value=score.score), heard.anchor, heard.is_open)


def live_score(turn: int, heard: HeardTimes) -> TurnScore | None:
    """The score of the turn as heard so far. The greeting has none, unless the fallback timer stepped in."""
    if heard.pending is not None or not (turn or heard.times.is_fallback):
        return None
    return turn_score(heard.times)


def final_value(heard: HeardTimes, score: TurnScore | None, *, is_last: bool) -> TurnValue:
    """The turn when the call is over.

    Args:
        heard: The turn.
        score: Its score by the rules for whole calls.
        is_last: Whether the call ended in it.
    """
    result: Result
    if score is not None:
        result = Scored(value=score.score)
    elif heard.pending is not None:
        result = Unscored(reason=heard.pending)
    elif not heard.times.user:
        result = Unscored(reason=UnscoredReason.NO_USER_SPEECH)
    else:
        result = NOT_ANSWERED if is_last else Unscored(reason=UnscoredReason.NO_ASSISTANT_SPEECH)
    return TurnValue(score, result, heard.anchor, is_open=False)


def why_silent(heard: Mapping[int, HeardTimes], *, has_speech_events: bool) -> UnscoredReason:
    """Why no turn of a call has a score: the pending reason of the first turn with both sides, or the side that was
    not heard.
    """
    pending = next((turn.pending for turn in heard.values() if turn.pending is not None), None)
    if pending is not None:
        return pending
    if not has_speech_events:
        return UnscoredReason.NO_SPEECH_EVENTS
    has_user = any(turn.times.user for turn in heard.values())
    return UnscoredReason.NO_ASSISTANT_SPEECH if has_user else UnscoredReason.NO_USER_SPEECH


def worst_anchor(values: Iterable[TurnValue]) -> Anchor | None:
    """The least certain anchor of the turns that have a score; None when none has one."""
    places = [_ANCHORS.index(value.anchor) for value in values if value.score is not None and value.anchor is not None]
    return _ANCHORS[max(places)] if places else None
