"""The measure of how well the sides of a call understand each other: EVA's `stt_wer`, and how far transcripts disagree.

Only a simulated caller says what was meant and what was understood, so real calls have neither. A turn is compared when it
was left; at the close EVA's own context decides, whose last turn may have been completed.
"""

from collections.abc import Iterable
from typing import Final

from consumers.engine.call_memory import Subject
from consumers.engine.effects import Count, Effect, PublishScore
from consumers.engine.eva_metrics.normal_text import MAX_CHARS
from consumers.engine.eva_metrics.word_errors import ErrorSums, WordErrors
from consumers.engine.live_side import LiveSide
from consumers.engine.record_book import RecordBook
from consumers.engine.speaking import SpeakingMachine
from consumers.engine.speech_measures import LOOKED_AT_AGAIN
from consumers.engine.turn_state import Pieces, joined
from consumers.engine.word_differences import differences
from schemas.call_events import PipelineType
from schemas.metric_context import MetricContext
from schemas.scores import AnyScoreRecord, NotApplicable, Result, Scored, TurnStatus, Unscored, UnscoredReason
from schemas.speech_scores import SideDisagreement, TranscriptDisagreement, WordErrorRate

MAX_RUNNING_CHARS: Final = 1_000_000
"""Characters compared for the running values of one call, a second or two; beyond it only the final ones are said. A call of
two hours has 300,000.
"""

MAX_CHARS_PER_STEP: Final = 50_000
"""Characters compared in one step of a call, some 0.3 s at worst; what is beyond waits for the next turn, or for the close."""
_SEEN_CHARS: Final = 64
"""Characters of texts that are the same as before, and are not compared again, that take as long as one that is."""

_WER: Final = ("stt_wer", None, 0)
_DISAGREEMENT: Final = ("transcript_disagreement", None, 0)
_WITHDRAWN: Final = Unscored(reason=UnscoredReason.WITHDRAWN)
_NO_USER: Final = Unscored(reason=UnscoredReason.NO_USER_SPEECH)
_NO_CALLER: Final = NotApplicable(reason="only a simulated caller knows what it meant to say")
_NO_TRANSCRIBER: Final = NotApplicable(reason="the agent hears sound: what it understood is in no transcript")
_ONE_TRANSCRIPT: Final = NotApplicable(reason="there are no two transcripts of it")
_RATE_DIGITS = 3  # as EVA rounds


class TranscriptErrors:
    """Follows the turns of one call.

    Args:
        book: Makes the call's records.
        language: What is spoken, as a two-letter code.
    """

    def __init__(self, book: RecordBook, language: str = "en") -> None:
        self._book = book
        self._of_user = WordErrors(language)
        self._of_assistant = WordErrors(language, differences)
        self._end = 0
        self._chars = 0
        self._waiting: set[int] = set()
        self._changed: set[int] = set()
        self._has_changed = False
        self._is_full = False

    def look(self, live: LiveSide, touched: set[int]) -> None:
        """Compare the turns that were left, and those of them that have changed. Over the limit each is compared once more at
        the close, and before that only if it never was.
        """
        machine = live.machine
        if isinstance(machine, SpeakingMachine):
            return  # no simulated caller is heard
        end = machine.turn
        looked_at = {turn for turn in touched if turn < end}
        if end != self._end:
            looked_at.update(range(end - LOOKED_AT_AGAIN, end))
            looked_at.update(turn for turn in {*self._of_user.turns, *self._of_assistant.turns} if turn >= end)
        self._end = end
        self._waiting |= looked_at
        until = self._chars + MAX_CHARS_PER_STEP
        for turn in sorted(self._waiting):
            if self._chars >= until:
                break
            self._waiting.discard(turn)
            state = machine.turns.get(turn) if turn < end else None
            if self._chars > MAX_RUNNING_CHARS and state is not None and self._of_user.knows(turn):
                continue
            meant, understood = (None, None) if state is None else (state.intended_user, state.transcribed_user)
            if self._put(self._of_user, turn, meant, understood):
                self._changed.add(turn)
            said, heard = (None, None) if state is None else (state.intended_assistant, state.transcribed_assistant)
            if self._put(self._of_assistant, turn, said, heard):
                self._has_changed = True

    def follow(self, live: LiveSide, touched: set[int], time_ms: int, out: list[Effect]) -> None:
        """Say what is known of the turns that were left, if one was left now or one of them has changed."""
        if isinstance(live.machine, SpeakingMachine) or self._is_full:
            return
        self.look(live, touched)
        records: list[AnyScoreRecord | None] = []
        changed, self._changed = self._changed, set()
        if changed and live.history.pipeline_type is PipelineType.CASCADE:
            records.append(self._error_rate(changed, None, TurnStatus.PROVISIONAL, time_ms))
        if changed or self._has_changed:
            records.append(self._disagreement(TurnStatus.PROVISIONAL, time_ms))
        self._has_changed = False
        if any(records):
            live.announce(out)
            out.extend([PublishScore(record) for record in records if record is not None])
        self._is_full = self._chars > MAX_RUNNING_CHARS
        if self._is_full and not self._book.is_silent:
            out.append(Count("callgauge_limits_hit_total", ("running_comparison",)))

    def compare_at_close(self, context: MetricContext) -> bool:
        """Compare turns as EVA's own context has them, as many as one step may; returns whether all are."""
        until = self._chars + MAX_CHARS_PER_STEP
        for errors, one, other in (
            (self._of_user, context.intended_user_turns, context.transcribed_user_turns),
            (self._of_assistant, context.intended_assistant_turns, context.transcribed_assistant_turns),
        ):
            for turn in one.keys() & other.keys():
                if self._chars >= until:
                    return False
                if errors.put(turn, one[turn], other[turn]):
                    self._chars += _compared_chars(one[turn], other[turn])
        return True

    def final_records(self, live: LiveSide, context: MetricContext, last_ms: int | None) -> Iterable[AnyScoreRecord]:
        """The values of the whole call, by EVA's own context of it."""
        self._end = live.machine.turn + 1
        inapplicable = None
        if context.is_audio_native:
            inapplicable = _NO_TRANSCRIBER
        elif not any(context.intended_user_turns.values()):
            inapplicable = _NO_CALLER
        self._of_user.put_all(context.intended_user_turns, context.transcribed_user_turns)
        self._of_assistant.put_all(context.intended_assistant_turns, context.transcribed_assistant_turns)
        records = [
            self._error_rate(self._of_user.turns, inapplicable, TurnStatus.FINAL, last_ms),
            self._disagreement(TurnStatus.FINAL, last_ms),
        ]
        return [record for record in records if record is not None]

    def take_back(self, subjects: Iterable[Subject], out: list[Effect]) -> None:
        """Withdraw what an earlier evaluator said and this one does not know."""
        records: list[AnyScoreRecord | None] = []
        gone = set(subjects)
        if _WER in gone:
            records.append(self._error_rate((), _WITHDRAWN, TurnStatus.OPEN, None))
        if _DISAGREEMENT in gone:
            records.append(self._disagreement(TurnStatus.OPEN, None, _WITHDRAWN))
        out.extend([PublishScore(record) for record in records if record is not None])

    def _put(self, errors: WordErrors, turn: int, meant: Pieces | None, understood: Pieces | None) -> bool:
        one, other = (None if text is None else joined(text) for text in (meant, understood))
        if not errors.put(turn, one, other):
            self._chars += (len(one or "") + len(other or "")) // _SEEN_CHARS
            return False
        self._chars += _compared_chars(one, other)
        return True

    def _error_rate(
        self, turns: Iterable[int], unknown: Unscored | NotApplicable | None, status: TurnStatus, time_ms: int | None
    ) -> WordErrorRate | None:
        errors = self._of_user
        if unknown is None and not errors.turns:
            unknown = _NO_USER
        sums, compared = (errors.sums, errors.turns) if unknown is None else (ErrorSums(), {})
        return self._book.record(
            WordErrorRate, _WER, status, (tuple(sums), len(compared), unknown and unknown.reason),
            event_time_ms=time_ms, has_value=unknown is None,
            result=unknown or _scored(sums),
            through_turn=self._end - 1,
            substitutions=sums.substitutions, deletions=sums.deletions, insertions=sums.insertions,
            reference_words=sums.reference_words, turns=len(compared),
            by_turn={turn: round(compared[turn].sums.rate, _RATE_DIGITS) for turn in sorted(turns) if turn in compared},
        )  # fmt: skip

    def _disagreement(
        self, status: TurnStatus, time_ms: int | None, withdrawn: Unscored | None = None
    ) -> TranscriptDisagreement | None:
        sides = self._of_user, self._of_assistant
        result = withdrawn or _result(sides)
        values = (*(tuple(side.sums) for side in sides), *(len(side.turns) for side in sides), withdrawn is None)
        return self._book.record(
            TranscriptDisagreement, _DISAGREEMENT, status, values, event_time_ms=time_ms,
            has_value=isinstance(result, Scored), result=result, through_turn=self._end - 1,
            user=_side(self._of_user), assistant=_side(self._of_assistant),
        )  # fmt: skip


def _compared_chars(one: str | None, other: str | None) -> int:
    return min(len(one or "") + len(other or ""), 2 * MAX_CHARS)


def _side(errors: WordErrors) -> SideDisagreement:
    sums = errors.sums
    return SideDisagreement(
        result=_result([errors]), differences=sums.errors, words=sums.reference_words, turns=len(errors.turns)
    )


def _result(sides: Iterable[WordErrors]) -> Result:
    sums = ErrorSums()
    are_compared = False
    for side in sides:
        sums = sums.plus(side.sums)
        are_compared |= bool(side.turns)
    return _scored(sums) if are_compared else _ONE_TRANSCRIPT


def _scored(sums: ErrorSums) -> Scored:
    return Scored(value=round(sums.rate, _RATE_DIGITS))
