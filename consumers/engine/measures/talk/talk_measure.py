"""Measures how a call sounds: talk, pace, monologues, silence, overlap and repeated questions.

The arithmetic is in `talk_arithmetic` and `repeated_questions`.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from consumers.engine.measures.talk.repeated_questions import RepeatedQuestions, questions_in
from consumers.engine.measures.talk.talk_arithmetic import CallMeasures, SideMeasures, SpokenTurn, ToolRun, measures_of
from consumers.engine.turns.heard.heard_turn import HeardSide, HeardSides, HeardTurn, HeardTurns
from consumers.engine.turns.heard.turn_words import Purpose
from consumers.engine.turns.live_call import LiveCall
from consumers.engine.turns.timeline.spans import length_ms, merged
from consumers.engine.turns.timeline.tool_uses import PairedUse
from schemas.scores.all_records import NotApplicable, Result, Scored, Unscored, UnscoredReason

LONG_SILENCE_MS: Final = 3_000
"""Least silence that is dead air here and ends a monologue. Fixed, whatever `dead_air_ms` is, so that the values mean the same
everywhere, and in a back-test with other limits.
"""
MAX_RUNNING_WORK: Final = 500_000
"""Turns, stretches of sound, tools and pieces of text read for the running values of one call, a second or two; beyond it only
the final ones are published. A call of two hours with 250 turns takes a quarter of it.
"""
_PIECE_CHARS: Final = 64
"""Characters that cost as much to read as one turn."""

_NO_EVENTS: Final = Unscored(reason=UnscoredReason.NO_SPEECH_EVENTS)
_NO_USER: Final = Unscored(reason=UnscoredReason.NO_USER_SPEECH)
_NO_ASSISTANT: Final = Unscored(reason=UnscoredReason.NO_ASSISTANT_SPEECH)
_NO_TIMES: Final = Unscored(reason=UnscoredReason.TIMES_UNKNOWN)
_NO_WORDS: Final = NotApplicable(reason="no transcript has the words of this side")
GAPS: Final = -1
"""Stands for a time that is unknown because a start or an end of sound was lost."""
_RATIO_DIGITS = 4
_PACE_DIGITS = 1


class Talk(NamedTuple):
    """Time for which each side was heard in a turn, in ms, and its number of words; None where unknown, and `GAPS` where a
    start or an end of its sounds was lost.
    """

    user_ms: int | None
    assistant_ms: int | None
    user_words: int | None
    assistant_words: int | None

    def fields(self) -> dict[str, Any]:
        """The fields of a `TurnTalk`."""
        return {
            "user": {"speech_ms": _known(self.user_ms, _NO_USER), "words": self.user_words},
            "assistant": {"speech_ms": _known(self.assistant_ms, _NO_ASSISTANT), "words": self.assistant_words},
        }


class Speech(NamedTuple):
    """Measures of a call's sound and words.

    Attributes:
        inputs: Plain values from which the fields follow.
        fields: The fields of a `SpeechScore`.
        work: Work done for it: turns, stretches of sound, tools and pieces of text.
    """

    inputs: tuple[Any, ...]
    fields: dict[str, Any]
    work: int


def word_count(text: str) -> int:
    """Words in a text, as blanks part them.

    Example:
        >>> word_count("It's $1.50 at 4 p.m.")
        5
    """
    return len(text.split())


def talk_of(turn: HeardTurn, sides: HeardSides, end_ms: int | None) -> Talk:
    """The talk of a turn; an open sound ends at `end_ms`, or is left out."""
    user, assistant = turn.user.said(Purpose.TALK), turn.assistant.said(Purpose.TALK)
    return Talk(
        _heard_ms(turn.user, end_ms) if sides.user else None,
        _heard_ms(turn.assistant, end_ms) if sides.assistant else None,
        word_count(user) if user else None,
        word_count(assistant) if assistant else None,
    )


def speech_of(live: LiveCall, heard: HeardTurns, turns: Iterable[int], last_ms: int | None, *, is_over: bool) -> Speech:
    """Measures the call.

    Args:
        live: The call.
        heard: Its turns.
        turns: Numbers of the turns that count.
        last_ms: Time of its last event.
        is_over: Whether it is over: open sound ends then, and the caller may have waited until then.
    """
    end_ms = heard.sound_end_ms(last_ms) if is_over else None
    user_asks, assistant_asks = RepeatedQuestions(), RepeatedQuestions()
    has_user_words = has_assistant_words = has_user_gaps = has_assistant_gaps = False
    work = 0
    spoken = {}
    for number, turn in heard.turns(turns).items():
        user, assistant = turn.user.spans(end_ms), turn.assistant.spans(end_ms)
        by_user, by_assistant = turn.user.said(Purpose.TALK), turn.assistant.said(Purpose.TALK)
        spoken[number] = SpokenTurn(user, assistant, word_count(by_user), word_count(by_assistant))
        user_asks.put(number, questions_in(by_user))
        assistant_asks.put(number, questions_in(by_assistant))
        has_user_words |= bool(by_user)
        has_assistant_words |= bool(by_assistant)
        has_user_gaps |= _has_gaps(turn.user, is_over=is_over)
        has_assistant_gaps |= _has_gaps(turn.assistant, is_over=is_over)
        work += 1 + len(user) + len(assistant) + (len(by_user) + len(by_assistant)) // _PIECE_CHARS
    tools = [_run(use.called_at_ms, use) for use in live.turns.tools if use.called_at_ms is not None]
    measured = measures_of(spoken, tools, LONG_SILENCE_MS, end_ms)
    sides = heard.sides
    unknown = _unknown(sides, measured) or (_NO_TIMES if has_user_gaps or has_assistant_gaps else None)
    began_ms = live.first_ms
    of_user = user_asks if has_user_words else None
    of_assistant = assistant_asks if has_assistant_words else None
    inputs = (
        measured, sides, began_ms, of_user and (of_user.count, of_user.turns),
        of_assistant and (of_assistant.count, of_assistant.turns), has_user_gaps, has_assistant_gaps,
    )  # fmt: skip
    fields = {
        "result": unknown or Scored(value=round(measured.talk_ratio or 0.0, _RATIO_DIGITS)),
        "source": sides.source,
        "user": _side(measured.user, of_user, _unheard(_NO_USER, is_heard=sides.user, has_gaps=has_user_gaps)),
        "assistant": _side(
            measured.assistant,
            of_assistant,
            _unheard(_NO_ASSISTANT, is_heard=sides.assistant, has_gaps=has_assistant_gaps),
        ),
        "overlap_ms": unknown or Scored(value=measured.overlap_ms),
        "dead_air_ms": unknown or Scored(value=measured.dead_air_ms),
        "first_word_ms": _first_word(began_ms, measured.first_assistant_ms, sides),
    }
    return Speech(inputs, fields, work + len(tools))


def _run(start_ms: int, use: PairedUse) -> ToolRun:
    return ToolRun(start_ms, None if use.duration_ms is None else start_ms + use.duration_ms)


def _heard_ms(side: HeardSide, end_ms: int | None) -> int:
    return GAPS if _has_gaps(side, is_over=end_ms is not None) else length_ms(merged(side.spans(end_ms)))


def _has_gaps(side: HeardSide, *, is_over: bool) -> bool:
    """Whether the length of its sounds is unknown. The bot reports its ends itself, so the end that is missing after the call
    was lost, or the line went down first.
    """
    return side.has_gaps or (is_over and side.is_paired_by_time and side.is_open)


def _known(value: int | None, unknown: Unscored) -> Result:
    return unknown if value is None else _NO_TIMES if value == GAPS else Scored(value=value)


def _unknown(sides: HeardSides, measured: CallMeasures) -> Unscored | None:
    """Why the values of both sides together are unknown; None when they are known."""
    if sides.source is None or measured.talk_ratio is None:
        return _NO_EVENTS
    if not sides.user:
        return _NO_USER
    return None if sides.assistant else _NO_ASSISTANT


def _unheard(reason: Unscored, *, is_heard: bool, has_gaps: bool) -> Unscored | None:
    """Why the times of a side are unknown; None when they are known."""
    if not is_heard:
        return reason
    return _NO_TIMES if has_gaps else None


def _side(measured: SideMeasures, asks: RepeatedQuestions | None, unheard: Unscored | None) -> dict[str, Any]:
    pace = measured.words_per_minute
    return {
        "speech_ms": unheard or Scored(value=measured.speech_ms),
        "longest_monologue_ms": unheard or Scored(value=measured.longest_ms),
        "words_per_minute": unheard or (_NO_WORDS if pace is None else Scored(value=round(pace, _PACE_DIGITS))),
        "repeated_questions": _NO_WORDS if asks is None else Scored(value=asks.count),
        "repeated_in_turns": () if asks is None else asks.turns,
    }


def _first_word(began_ms: int | None, first_ms: int | None, sides: HeardSides) -> Result:
    if first_ms is None:
        return _NO_ASSISTANT if sides.source else _NO_EVENTS
    if began_ms is None or began_ms >= first_ms:
        return _NO_TIMES
    return Scored(value=first_ms - began_ms)
