"""The measure of how a call sounds: talk, pace, monologues, silence, overlap and repeated questions, as a running record.

The arithmetic is in `conversation_measures` and `repeated_questions`; what is read of a turn in `speech_reading`.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from consumers.engine.call_memory import Subject
from consumers.engine.conversation_measures import CallMeasures, SideMeasures, SpokenTurn, measures_of
from consumers.engine.effects import Count, Effect, PublishScore
from consumers.engine.eva_metrics.word_errors import fingerprint
from consumers.engine.live_side import LiveSide
from consumers.engine.record_book import RecordBook
from consumers.engine.repeated_questions import RepeatedQuestions, questions_in
from consumers.engine.speech_reading import (
    HeardSides,
    has_turn,
    heard_sides,
    said_in,
    sound_end_ms,
    spans_of,
    tool_runs,
    turns_of,
    word_count,
)
from schemas.metric_context import MetricContext
from schemas.scores import AnyScoreRecord, NotApplicable, Result, Scored, TurnStatus, Unscored, UnscoredReason
from schemas.speech_scores import SideSpeech, SpeechScore

LONG_SILENCE_MS: Final = 3_000
"""From here on a silence is dead air and ends a monologue. Fixed, whatever `dead_air_ms` is, so that the values mean the same
everywhere, and in a back-test with other limits.
"""
LOOKED_AT_AGAIN: Final = 2
"""Turns before the newest whose texts may have come late. Older ones change only by a replay, which touches them."""
MAX_RUNNING_WORK: Final = 500_000
"""Turns, stretches of sound, tools and pieces of text read for the running values of one call, a second or two; beyond it only
the final ones are said. A call of two hours with 250 turns takes a quarter of it.
"""
_PIECE_CHARS: Final = 64
"""Characters of a text that take as long to read as a turn does."""

_SUBJECT: Final = ("speech", None, 0)
_WITHDRAWN: Final = Unscored(reason=UnscoredReason.WITHDRAWN)
_NO_EVENTS: Final = Unscored(reason=UnscoredReason.NO_SPEECH_EVENTS)
_NO_USER: Final = Unscored(reason=UnscoredReason.NO_USER_SPEECH)
_NO_ASSISTANT: Final = Unscored(reason=UnscoredReason.NO_ASSISTANT_SPEECH)
_NO_BEGINNING: Final = Unscored(reason=UnscoredReason.TIMES_UNKNOWN)
_NO_WORDS: Final = NotApplicable(reason="what this side said is in no transcript")
_RATIO_DIGITS = 4
_PACE_DIGITS = 1


class _Words(NamedTuple):
    mark: bytes
    user: int
    assistant: int


class SpeechMeasures:
    """Follows the turns of one call; a turn counts when it was left.

    Args:
        book: Makes the call's records.
    """

    def __init__(self, book: RecordBook) -> None:
        self._book = book
        self._end = 0
        self._work = 0
        self._words: dict[int, _Words] = {}
        self._of_user = RepeatedQuestions()
        self._of_assistant = RepeatedQuestions()

    def follow(self, live: LiveSide, touched: set[int], time_ms: int, out: list[Effect]) -> None:
        """Say what is known of the turns that were left, if one was left now or one of them has changed."""
        end = live.machine.turn
        looked_at = {turn for turn in touched if turn < end}
        if end != self._end:
            looked_at.update(range(end - LOOKED_AT_AGAIN, end))
            looked_at.update(turn for turn in self._words if turn >= end)  # the call has fallen back before them
        self._end = end
        if not looked_at or self._work > MAX_RUNNING_WORK:
            return
        for turn in looked_at:
            self._read(live, turn)
        record = self._record(live, TurnStatus.PROVISIONAL, time_ms, is_over=False)
        if record is not None:
            live.announce(out)
            out.append(PublishScore(record))
        if self._work > MAX_RUNNING_WORK and not self._book.is_silent:
            out.append(Count("callgauge_limits_hit_total", ("running_speech",)))

    def final_records(self, live: LiveSide, context: MetricContext, last_ms: int | None) -> Iterable[AnyScoreRecord]:
        """The values of the whole call."""
        del context
        turns = turns_of(live)
        self._end = max(turns, default=live.machine.turn) + 1
        for turn in {*turns, *self._words}:
            self._read(live, turn)
        record = self._record(live, TurnStatus.FINAL, last_ms, is_over=True)
        return [] if record is None else [record]

    def take_back(self, subjects: Iterable[Subject], out: list[Effect]) -> None:
        """Withdraw what an earlier evaluator said and this one does not know."""
        if _SUBJECT not in set(subjects):
            return
        side = SideSpeech(
            speech_ms=_WITHDRAWN,
            longest_monologue_ms=_WITHDRAWN,
            words_per_minute=_WITHDRAWN,
            repeated_questions=_WITHDRAWN,
        )
        record = self._book.record(
            SpeechScore, _SUBJECT, TurnStatus.OPEN, ("withdrawn",), event_time_ms=None, has_value=False,
            result=_WITHDRAWN, through_turn=0, source=None, user=side, assistant=side,
            overlap_ms=_WITHDRAWN, dead_air_ms=_WITHDRAWN, first_word_ms=_WITHDRAWN,
        )  # fmt: skip
        if record is not None:
            out.append(PublishScore(record))

    def _read(self, live: LiveSide, turn: int) -> None:
        """Take over the words of a turn, which is gone again if the call is not past it."""
        if turn >= self._end or not has_turn(live, turn):
            self._words.pop(turn, None)
            self._of_user.put(turn, frozenset())
            self._of_assistant.put(turn, frozenset())
            return
        said = said_in(live, turn)
        self._work += (len(said.user) + len(said.assistant)) // _PIECE_CHARS
        mark = fingerprint(said.user, said.assistant)
        known = self._words.get(turn)
        if known is None or known.mark != mark:
            self._words[turn] = _Words(mark, word_count(said.user), word_count(said.assistant))
            self._of_user.put(turn, questions_in(said.user))
            self._of_assistant.put(turn, questions_in(said.assistant))

    def _record(self, live: LiveSide, status: TurnStatus, time_ms: int | None, *, is_over: bool) -> SpeechScore | None:
        end_ms = sound_end_ms(live, time_ms) if is_over else None
        turns = {}
        for turn, words in self._words.items():
            user, assistant = spans_of(live, turn, end_ms)
            turns[turn] = SpokenTurn(user, assistant, words.user, words.assistant)
            self._work += 1 + len(user) + len(assistant)
        tools = list(tool_runs(live))
        self._work += len(tools)
        measured = measures_of(turns, tools, LONG_SILENCE_MS, end_ms)
        heard = heard_sides(live)
        unknown = _unknown(heard, measured)
        began_ms = live.history.first_time_ms()
        user_asks = self._of_user if any(words.user for words in self._words.values()) else None
        assistant_asks = self._of_assistant if any(words.assistant for words in self._words.values()) else None
        values = (
            measured, heard, began_ms, user_asks and (user_asks.count, user_asks.turns),
            assistant_asks and (assistant_asks.count, assistant_asks.turns),
        )  # fmt: skip
        return self._book.record(
            SpeechScore, _SUBJECT, status, values, event_time_ms=time_ms, has_value=unknown is None,
            result=unknown or Scored(value=round(measured.talk_ratio or 0.0, _RATIO_DIGITS)),
            through_turn=self._end - 1,
            source=heard.source,
            user=_side(measured.user, user_asks, None if heard.user else _NO_USER),
            assistant=_side(measured.assistant, assistant_asks, None if heard.assistant else _NO_ASSISTANT),
            overlap_ms=unknown or Scored(value=measured.overlap_ms),
            dead_air_ms=unknown or Scored(value=measured.dead_air_ms),
            first_word_ms=_first_word(began_ms, measured.first_assistant_ms, heard),
        )  # fmt: skip


def _unknown(heard: HeardSides, measured: CallMeasures) -> Unscored | None:
    """Why nothing is known that takes both sides."""
    if heard.source is None or measured.talk_ratio is None:
        return _NO_EVENTS
    if not heard.user:
        return _NO_USER
    return None if heard.assistant else _NO_ASSISTANT


def _side(measured: SideMeasures, asks: RepeatedQuestions | None, unheard: Unscored | None) -> SideSpeech:
    pace = measured.words_per_minute
    return SideSpeech(
        speech_ms=unheard or Scored(value=measured.speech_ms),
        longest_monologue_ms=unheard or Scored(value=measured.longest_ms),
        words_per_minute=unheard or (_NO_WORDS if pace is None else Scored(value=round(pace, _PACE_DIGITS))),
        repeated_questions=_NO_WORDS if asks is None else Scored(value=asks.count),
        repeated_in_turns=() if asks is None else asks.turns,
    )


def _first_word(began_ms: int | None, first_ms: int | None, heard: HeardSides) -> Result:
    if first_ms is None:
        return _NO_ASSISTANT if heard.source else _NO_EVENTS
    if began_ms is None or began_ms >= first_ms:
        return _NO_BEGINNING
    return Scored(value=first_ms - began_ms)
