"""Measures how well the sides of a call understand each other: EVA's `stt_wer`, and the disagreement of transcripts.

Only a simulated caller reports intended and understood words, so real calls have neither measure. A turn is compared when the
call leaves it; at the close EVA's own context decides, because it may complete the last turn.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from consumers.engine.measures.words.word_differences import differences
from consumers.engine.measures.words.word_errors import ErrorSums, TurnErrors, WordErrors, compare
from consumers.engine.turns.heard.heard_turn import HeardSide, HeardTurns
from consumers.engine.turns.heard.normal_text import MAX_CHARS
from consumers.engine.turns.heard.turn_words import Purpose
from consumers.engine.turns.live_call import LiveCall
from schemas.events.call import PipelineType
from schemas.metric_context import MetricContext
from schemas.scores.all_records import NotApplicable, Result, Scored, Unscored, UnscoredReason

MAX_RUNNING_CHARS: Final = 1_000_000
"""Characters compared for the running values of one call, a second or two; beyond it turns are compared at the close. A call of
two hours has 300,000.
"""

MAX_CHARS_PER_STEP: Final = 50_000
"""Characters compared in one step of a call, some 0.3 s at worst; further turns wait for the next turn, or for the close."""
_SEEN_CHARS: Final = 64
"""Characters of unchanged texts whose recognition costs as much as comparing one character."""

_NO_USER: Final = Unscored(reason=UnscoredReason.NO_USER_SPEECH)
_NO_CALLER: Final = NotApplicable(reason="only a simulated caller knows what it meant to say")
_NO_TRANSCRIBER: Final = NotApplicable(reason="the agent hears sound: no transcript has the words that it understood")
_ONE_TRANSCRIPT: Final = NotApplicable(reason="there are no two transcripts of it")
_RATE_DIGITS = 3  # as EVA rounds


class TurnDifferences(NamedTuple):
    """The differences in a turn: of the user's side by EVA's `stt_wer`, and by disagreement of each side; None where one
    transcript is unknown.
    """

    stt: ErrorSums | None
    user: ErrorSums | None
    assistant: ErrorSums | None

    def fields(self) -> dict[str, Any]:
        """Its fields in a turn's record."""
        return {
            "stt_wer": None if self.stt is None else _error_fields(self.stt, 1, None),
            "user_disagreement": None if self.user is None else _side_fields(self.user, 1),
            "assistant_disagreement": None if self.assistant is None else _side_fields(self.assistant, 1),
        }


class CallDifferences(NamedTuple):
    """The differences in a call, in plain values, and the fields of a `WordErrorRate` and of a `TranscriptDisagreement`; either
    is None where it is known only at the close.
    """

    inputs: tuple[Any, ...]
    stt_wer: dict[str, Any] | None
    disagreement: dict[str, Any] | None


class TranscriptErrors:
    """Compares the turns of one call.

    Args:
        language: The spoken language, as a two-letter code.
    """

    __slots__ = (
        "_changed_at_close",
        "_chars",
        "_of_assistant",
        "_of_user",
        "_waiting",
    )

    def __init__(self, language: str = "en") -> None:
        self._of_user = WordErrors(language, _compared)
        self._of_assistant = WordErrors(language, _differing)
        self._chars = 0
        self._waiting: set[int] = set()
        self._changed_at_close: frozenset[int] = frozenset()

    @property
    def is_over_limit(self) -> bool:
        """Whether so much has been compared that turns wait for the close."""
        return self._chars > MAX_RUNNING_CHARS

    def compare(self, heard: HeardTurns, turns: Iterable[int]) -> set[int]:
        """Compares these turns, and those that wait, as far as one step may. Over the limit only turns that never were.

        Returns:
            The turns that were compared although they are not among `turns`.
        """
        if not heard.is_simulated:
            return set()
        asked = set(turns)
        self._waiting |= asked
        until = self._chars + MAX_CHARS_PER_STEP
        compared = set()
        for number in sorted(self._waiting):
            if self._chars >= until:
                break
            self._waiting.discard(number)
            turn = heard.turn(number) if number < heard.current else None
            if self.is_over_limit and turn is not None and self._of_user.knows(number):
                continue
            is_new = self._put(self._of_user, number, turn and turn.user)
            if self._put(self._of_assistant, number, turn and turn.assistant) or is_new:
                compared.add(number)
        return compared - asked

    def compare_at_close(self, context: MetricContext) -> bool:
        """Compares turns as EVA's own context has them, as many as one step may; returns whether all are."""
        until = self._chars + MAX_CHARS_PER_STEP
        for errors, one, other in self._pairs(context):
            for turn in one.keys() & other.keys():
                if self._chars >= until:
                    return False
                if errors.put(turn, one[turn], other[turn]):
                    self._changed_at_close |= {turn}
                    self._chars += _compared_chars(one[turn], other[turn])
        return True

    def finish(self, context: MetricContext) -> frozenset[int]:
        """Replaces the turns by those of EVA's final context, after the comparison.

        Returns:
            The turns whose differences have changed by that.
        """
        for errors, one, other in self._pairs(context):
            gone = errors.turns.keys() - (one.keys() & other.keys())
            self._changed_at_close |= gone
            errors.put_all(one, other)
        return self._changed_at_close

    def of_turn(self, live: LiveCall, turn: int) -> TurnDifferences:
        """The differences in a turn, as far as it was compared."""
        user, assistant = (errors.turns.get(turn) for errors in (self._of_user, self._of_assistant))
        user_sums = None if user is None else user.sums
        is_cascade = live.history.pipeline_type is PipelineType.CASCADE
        return TurnDifferences(
            user_sums if is_cascade else None, user_sums, None if assistant is None else assistant.sums
        )

    def of_call(self, live: LiveCall, context: MetricContext | None) -> CallDifferences:
        """The differences in the call so far; at its end by EVA's context, with the reason where nothing can be compared."""
        errors = self._of_user
        unknown: Unscored | NotApplicable | None = None
        if context is not None and context.is_audio_native:
            unknown = _NO_TRANSCRIBER
        elif context is not None and not any(context.intended_user_turns.values()):
            unknown = _NO_CALLER
        elif not errors.turns:
            unknown = _NO_USER
        has_rate = context is not None or (unknown is None and live.history.pipeline_type is PipelineType.CASCADE)
        sums, turns = (errors.sums, len(errors.turns)) if unknown is None else (ErrorSums(), 0)
        sides = (errors.sums, len(errors.turns)), (self._of_assistant.sums, len(self._of_assistant.turns))
        has_sides = context is not None or any(turns for _, turns in sides)
        inputs = (has_rate and (sums, turns, unknown and unknown.reason), has_sides and sides)
        both = sides[0][0].plus(sides[1][0])
        is_compared = any(turns for _, turns in sides)
        disagreement = {
            "result": _scored(both) if is_compared else _ONE_TRANSCRIPT,
            "user": _side_fields(*sides[0]),
            "assistant": _side_fields(*sides[1]),
        }
        rate = _error_fields(sums, turns, unknown)
        return CallDifferences(inputs, rate if has_rate else None, disagreement if has_sides else None)

    def _pairs(
        self, context: MetricContext
    ) -> tuple[tuple[WordErrors, Mapping[int, str], Mapping[int, str | None]], ...]:
        return (
            (self._of_user, context.intended_user_turns, context.transcribed_user_turns),
            (self._of_assistant, context.intended_assistant_turns, context.transcribed_assistant_turns),
        )

    def _put(self, errors: WordErrors, turn: int, side: HeardSide | None) -> bool:
        one, other = (side and side.wording(purpose) for purpose in (Purpose.MEANT, Purpose.UNDERSTOOD))
        if not errors.put(turn, one, other):
            self._chars += (len(one or "") + len(other or "")) // _SEEN_CHARS
            return False
        self._chars += _compared_chars(one, other)
        return True


def _compared(meant: str, understood: str, language: str) -> TurnErrors:
    """Compares two texts for their sums alone: the differing words are not published, and would be kept until the close."""
    return TurnErrors(compare(meant, understood, language).sums, ())


def _differing(one: str, other: str, language: str) -> TurnErrors:
    return TurnErrors(differences(one, other, language).sums, ())


def _compared_chars(one: str | None, other: str | None) -> int:
    return min(len(one or "") + len(other or ""), 2 * MAX_CHARS)


def _scored(sums: ErrorSums) -> Scored:
    return Scored(value=round(sums.rate, _RATE_DIGITS))


def _error_fields(sums: ErrorSums, turns: int, unknown: Unscored | NotApplicable | None) -> dict[str, Any]:
    return {
        "result": unknown or _scored(sums),
        "substitutions": sums.substitutions,
        "deletions": sums.deletions,
        "insertions": sums.insertions,
        "reference_words": sums.reference_words,
        "turns": turns,
    }


def _side_fields(sums: ErrorSums, turns: int) -> dict[str, Any]:
    result: Result = _scored(sums) if turns else _ONE_TRANSCRIPT
    return {"result": result, "differences": sums.errors, "words": sums.reference_words, "turns": turns}
