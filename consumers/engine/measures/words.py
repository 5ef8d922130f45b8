"""Word errors: between the transcripts of a call, and of speech recognition against the spoken
words.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, KeysView, Mapping
from functools import partial
from hashlib import blake2b
from itertools import groupby
from typing import Any, Final, NamedTuple

import jiwer

from consumers.engine.measures.results import MetricResult, failed
from consumers.engine.turns.heard import HeardSide, HeardTurns, Purpose
from consumers.engine.turns.live import LiveCall
from consumers.engine.turns.normal_text import MAX_CHARS, normalised, rules_of, without_bracketed
from schemas import rows
from schemas.closed_sets import PipelineType, UnscoredReason
from schemas.metric_context import MetricContext

# EVA's `stt_wer`: how well the speech of simulated callers is understood, word by word.
#
# A turn counts with the caller's intended words and the agent's transcript, both in one spelling
# (`normal_text`). The score is the errors of all turns by the words of all turns, so both sums are
# kept, and adding, replacing or removing a turn costs only that turn.

NO_PAIR: Final = "No user turns with both TTS text and transcript available"
"""EVA's error for a call in which no turn has both texts."""

_LANGUAGES_OF_CHARACTERS = frozenset({"ja", "zh", "ko"})
"""Written without blanks between words: characters are counted."""
_LISTED_ERRORS = 10
_DIGITS = 3


class ErrorSums(NamedTuple):
    """The sums of a rate; in words, or in characters for some languages."""

    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    reference_words: int = 0

    @property
    def errors(self) -> int:
        """All errors together."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Errors by reference words; it can exceed 1. Without a reference word every error counts
        whole, as in jiwer.
        """
        return self.errors / self.reference_words if self.reference_words else float(self.errors)

    def plus(self, other: "ErrorSums", sign: int = 1) -> "ErrorSums":
        """The sum of both, or with -1 the difference."""
        return ErrorSums(*(own + sign * theirs for own, theirs in zip(self, other, strict=True)))


class TurnErrors(NamedTuple):
    """One turn compared: its sums, and each error as (intended words, understood words), one of
    them empty for missing or surplus words.
    """

    sums: ErrorSums
    errors: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, list[Any]]:
        """The errors in EVA's encoding."""
        return {
            "substitutions": [
                {"expected": meant, "actual": heard}
                for meant, heard in self.errors
                if meant and heard
            ],
            "deletions": [meant for meant, heard in self.errors if not heard],
            "insertions": [heard for meant, heard in self.errors if not meant],
        }


Comparison = Callable[[str, str, str], TurnErrors]
"""Takes the intended words, the understood words and the language."""


class CallWordErrors:
    """The turns of one call.

    Attributes:
        sums: The sums of all turns that count.
        turns: By id, the turns that count: both texts have words.

    Args:
        language: The spoken language, as a code with or without a region.
        comparing: Compares the two texts of a turn; they come without labels, and neither is empty.
        as_eva: Whether the numbers must be EVA's (`normalised`, `counts_characters`).
    """

    def __init__(
        self, language: str = "en", comparing: Comparison | None = None, *, as_eva: bool = False
    ) -> None:
        self._language = language
        self._as_eva = as_eva
        self._comparing = comparing or partial(compare, as_eva=as_eva)
        self._pairs: dict[int, bytes] = {}
        self.turns: dict[int, TurnErrors] = {}
        self.sums = ErrorSums()

    @property
    def known(self) -> KeysView[int]:
        """The turns of which both texts have been seen."""
        return self._pairs.keys()

    def put(self, turn: int, meant: str | None, understood: str | None) -> bool:
        """Adds or replaces a turn; a side without words removes it.

        Args:
            turn: Its id.
            meant: The speaker's intended words, labels included; None when unknown.
            understood: The words that the other side understood; None when unknown.

        Returns:
            Whether the sums or the turns may have changed.
        """
        if meant is None or understood is None:
            return self.remove(turn)
        pair = fingerprint(meant, understood)
        if self._pairs.get(turn) == pair:
            return False
        was_there = self.remove(turn)
        self._pairs[turn] = pair
        reference, hypothesis = without_bracketed(meant), without_bracketed(understood)
        if not reference or not hypothesis:
            return was_there
        compared = self._comparing(reference, hypothesis, self._language)
        self.turns[turn] = compared
        self.sums = self.sums.plus(compared.sums)
        return True

    def remove(self, turn: int) -> bool:
        """Removes a turn; true when it counted."""
        self._pairs.pop(turn, None)
        compared = self.turns.pop(turn, None)
        if compared is None:
            return False
        self.sums = self.sums.plus(compared.sums, -1)
        return True

    def put_all(self, meant: Mapping[int, str], understood: Mapping[int, str | None]) -> None:
        """Replaces all turns by those of a whole call; known turns cost nothing."""
        for turn in self._pairs.keys() - (meant.keys() & understood.keys()):
            self.remove(turn)
        for turn in meant.keys() & understood.keys():
            self.put(turn, meant[turn], understood[turn])

    def result(self) -> MetricResult:
        """The call in EVA's encoding."""
        if not self.turns:
            return failed(NO_PAIR)
        turns = {turn: self.turns[turn] for turn in sorted(self.turns)}
        sums, rate = self.sums, round(self.sums.rate, _DIGITS)
        by_character = counts_characters(self._language, as_eva=self._as_eva)
        accuracy = round(1 - min(1.0, self.sums.rate), _DIGITS)
        details = {
            "cer" if by_character else "wer": rate,
            "accuracy": accuracy,
            "language": self._language,
            "use_cer": by_character,
            "num_turns": len(turns),
            "per_turn_wer": {
                str(turn): round(compared.sums.rate, _DIGITS) for turn, compared in turns.items()
            },
            "per_turn_errors": {str(turn): compared.to_dict() for turn, compared in turns.items()},
            # EVA lists those of the first turn only, although it means all.
            "error_summary": _summary(next(iter(turns.values()))),
            "total_substitutions": sums.substitutions,
            "total_deletions": sums.deletions,
            "total_insertions": sums.insertions,
            "reference_words": sums.reference_words,
        }
        rates: dict[str, float | None] = {}
        if sums.reference_words:
            rates = {
                "substitution_rate": round(sums.substitutions / sums.reference_words, _DIGITS),
                "deletion_rate": round(sums.deletions / sums.reference_words, _DIGITS),
                "insertion_rate": round(sums.insertions / sums.reference_words, _DIGITS),
            }
        return MetricResult(rate, accuracy, details, sub_metrics=rates)


def stt_wer(context: MetricContext, language: str = "en") -> MetricResult:
    """EVA's metric of a whole call: the simulated caller's intended words against the agent's
    transcript.

    Args:
        context: EVA's context of the call.
        language: The spoken language, as EVA's code. Japanese, Chinese and Korean are counted by
            character.

    Returns:
        The score in EVA's encoding; its error when no turn has both texts.
    """
    errors = CallWordErrors(language, as_eva=True)
    errors.put_all(context.intended_user_turns, context.transcribed_user_turns)
    return errors.result()


def counts_characters(language: str, *, as_eva: bool = False) -> bool:
    """Whether characters are counted in place of words. EVA counts words where the language has a
    region ("zh-TW").
    """
    return (language if as_eva else rules_of(language)) in _LANGUAGES_OF_CHARACTERS


def compare(
    meant: str, understood: str, language: str = "en", *, as_eva: bool = False
) -> TurnErrors:
    """The fewest substitutions, deletions and insertions that turn one text into the other.

    Args:
        meant: The reference, without labels.
        understood: The hypothesis, without labels.
        language: See `stt_wer`.
        as_eva: Whether the numbers must be EVA's (`normalised`, `counts_characters`).

    Example:
        >>> compare("Code three foxtrot please", "code 3 fox trot")
        TurnErrors(sums=ErrorSums(substitutions=2, deletions=0, insertions=0, reference_words=4), errors=(('foxtrot please', 'fox trot'),))
    """
    meant, understood = (normalised(text, language, as_eva=as_eva) for text in (meant, understood))
    if counts_characters(language, as_eva=as_eva):
        aligned: jiwer.WordOutput | jiwer.CharacterOutput = jiwer.process_characters(
            meant, understood
        )
    elif meant == understood:
        return TurnErrors(ErrorSums(reference_words=len(meant.split())), ())
    else:
        aligned = jiwer.process_words(meant, understood)
    reference, hypothesis = aligned.references[0], aligned.hypotheses[0]
    errors = tuple(
        (
            " ".join(reference[chunk.ref_start_idx : chunk.ref_end_idx]),
            " ".join(hypothesis[chunk.hyp_start_idx : chunk.hyp_end_idx]),
        )
        for chunk in aligned.alignments[0]
        if chunk.type != "equal"
    )
    return TurnErrors(
        ErrorSums(aligned.substitutions, aligned.deletions, aligned.insertions, len(reference)),
        errors,
    )


def fingerprint(one: str, other: str) -> bytes:
    """Hash that recognises the same two texts again, without keeping them while the call lasts."""
    digest = blake2b(len(one).to_bytes(4), digest_size=12)
    digest.update((one + other).encode(errors="surrogatepass"))
    return digest.digest()


def _summary(turn: TurnErrors) -> dict[str, list[dict[str, Any]]]:
    listed = turn.to_dict()
    substitutions = [
        f"{each['expected']} \u2192 {each['actual']}" for each in listed["substitutions"]
    ]
    return {
        "top_substitutions": _top("error", substitutions),
        "top_deletions": _top("word", listed["deletions"]),
        "top_insertions": _top("word", listed["insertions"]),
    }


def _top(name: str, texts: Iterable[str]) -> list[dict[str, Any]]:
    return [
        {name: text, "count": count} for text, count in Counter(texts).most_common(_LISTED_ERRORS)
    ]


# Compares two transcripts of the same speech, neither of which is known to be right.
#
# Both are aligned word by word as written, and only where they differ are the words brought into
# one spelling: "twenty five" and "25", or "I'm" and "I am", are no difference. That is much cheaper
# than normalising everything, as `stt_wer` must.

_NOT_IN_WORDS = re.compile(r"[\W_]+")


def differences(one: str, other: str, language: str = "en") -> TurnErrors:
    """The words by which `other` differs from `one`, in the shape of word errors.

    Args:
        one: A side's intended words, without labels; they count as the reference.
        other: The words that the other side understood, without labels.
        language: The spoken language, as a two-letter code; languages without blanks between words
            are compared by character.

    Example:
        >>> differences("I'm on flight seven oh three.", "I am on the flight 703").errors
        (('', 'the'),)
    """
    if counts_characters(language):
        return compare(one, other, language)
    ours, theirs = _Words(one), _Words(other)
    if ours.keys == theirs.keys:
        return TurnErrors(ErrorSums(reference_words=len(ours.keys)), ())
    aligned = jiwer.process_words(" ".join(ours.keys), " ".join(theirs.keys))
    sums = ErrorSums(reference_words=aligned.hits)
    errors: tuple[tuple[str, str], ...] = ()
    for is_same, group in groupby(aligned.alignments[0], key=lambda chunk: chunk.type == "equal"):
        if is_same:
            continue
        first, *rest = group
        last = rest[-1] if rest else first
        part = compare(
            ours.text(first.ref_start_idx, last.ref_end_idx),
            theirs.text(first.hyp_start_idx, last.hyp_end_idx),
            language,
        )
        sums = sums.plus(part.sums)
        errors += part.errors
    return TurnErrors(sums, errors)


class _Words:
    """The words of a text: as aligned (small letters and digits only), and as written."""

    def __init__(self, text: str) -> None:
        words = text[:MAX_CHARS].split()
        # Nearly all words have no signs, and to search one for them costs more.
        keys = [
            key if (key := word.lower()).isalnum() else _NOT_IN_WORDS.sub("", key) for word in words
        ]
        if "" in keys:
            words = [word for word, key in zip(words, keys, strict=True) if key]
            keys = [key for key in keys if key]
        self.keys, self._words = keys, words

    def text(self, start: int, end: int) -> str:
        return " ".join(self._words[start:end])


# Measures how well the sides of a call understand each other: EVA's `stt_wer`, and the disagreement
# of transcripts.
#
# Only a simulated caller reports intended and understood words, so real calls have neither measure.
# A turn is compared when the call leaves it; at the close EVA's own context decides, because it may
# complete the last turn.

MAX_RUNNING_CHARS: Final = 1_000_000
"""Characters compared for the running values of one call, a second or two; beyond it turns are
compared at the close. A call of two hours has 300,000.
"""

MAX_CHARS_PER_STEP: Final = 50_000
"""Characters compared in one step of a call, some 0.3 s at worst; further turns wait for the next
turn, or for the close.
"""
_SEEN_CHARS: Final = 64
"""Characters of unchanged texts whose recognition costs as much as comparing one character."""

_NO_USER: Final = rows.Unscored(UnscoredReason.NO_USER_SPEECH)
_NO_CALLER: Final = rows.NotApplicable("only a simulated caller knows what it meant to say")
_NO_TRANSCRIBER: Final = rows.NotApplicable(
    "the agent hears sound: no transcript has the words that it understood"
)
_ONE_TRANSCRIPT: Final = rows.NotApplicable("there are no two transcripts of it")
_RATE_DIGITS = 3  # as EVA rounds


class Differences(NamedTuple):
    """The differences in a turn, or in a call, as rows have them; None where they are not known, or
    not yet.

    Attributes:
        stt_wer: Errors in the agent's transcript of the user.
        user: Differences between both transcripts of the user.
        assistant: Differences between both transcripts of the agent.
        both: Those of both sides together; of a call only.
    """

    stt_wer: rows.WordErrors | None
    user: rows.Disagreement | None
    assistant: rows.Disagreement | None
    both: rows.Value | None = None


class TranscriptErrors:
    """Compares the turns of one call. Until it is known which language they are in, they count as
    English, which is EVA's default.
    """

    def __init__(self) -> None:
        self._language = "en"
        self._of_user, self._of_assistant = _of_both_sides(self._language)
        self._chars = 0
        self._waiting: set[int] = set()
        self._changed_at_close: frozenset[int] = frozenset()

    @property
    def is_over_limit(self) -> bool:
        """Whether so much has been compared that turns wait for the close."""
        return self._chars > MAX_RUNNING_CHARS

    @property
    def normalizer(self) -> str:
        """The language whose rules the words are spelled by; `basic` where there are none."""
        return rules_of(self._language) or "basic"

    def speaks(self, language: str) -> None:
        """Takes the language; turns that were compared in another one wait to be compared again."""
        if language == self._language:
            return
        if not self.is_over_limit:  # otherwise the close compares them, as it does all others
            self._waiting |= self._of_user.known | self._of_assistant.known
        self._language = language
        self._of_user, self._of_assistant = _of_both_sides(language)

    def compare(self, heard: HeardTurns, turns: Iterable[int]) -> set[int]:
        """Compares these turns, and those that wait, as far as one step may. Over the limit only
        turns that never were.

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
            if self.is_over_limit and turn is not None and number in self._of_user.known:
                continue
            is_new = self._put(self._of_user, number, turn and turn.user)
            if self._put(self._of_assistant, number, turn and turn.assistant) or is_new:
                compared.add(number)
        return compared - asked

    def compare_at_close(self, context: MetricContext) -> bool:
        """Compares turns as EVA's own context has them, as many as one step may; returns whether
        all are.
        """
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

    def of_turn(self, live: LiveCall, turn: int) -> Differences:
        """The differences in a turn, as far as it was compared."""
        user, assistant = (errors.turns.get(turn) for errors in (self._of_user, self._of_assistant))
        has_rate = user is not None and live.history.pipeline_type is PipelineType.CASCADE
        return Differences(
            self._rate(user.sums, 1) if user is not None and has_rate else None,
            None if user is None else _disagreement(user.sums, 1),
            None if assistant is None else _disagreement(assistant.sums, 1),
        )

    def of_call(self, live: LiveCall, context: MetricContext | None) -> Differences:
        """The differences in the call so far; at its end by EVA's context, with the reason where
        nothing can be compared.
        """
        user, assistant = self._of_user, self._of_assistant
        rate: rows.WordErrors | None = None
        if context is not None and context.is_audio_native:
            rate = rows.WordErrors(_NO_TRANSCRIBER, normalizer=self.normalizer)
        elif context is not None and not any(context.intended_user_turns.values()):
            rate = rows.WordErrors(_NO_CALLER, normalizer=self.normalizer)
        elif context is not None and not user.turns:
            rate = rows.WordErrors(_NO_USER, normalizer=self.normalizer)
        elif user.turns and (
            context is not None or live.history.pipeline_type is PipelineType.CASCADE
        ):
            rate = self._rate(user.sums, len(user.turns))
        is_compared = bool(user.turns or assistant.turns)
        if context is None and not is_compared:
            return Differences(rate, None, None)
        return Differences(
            rate,
            _disagreement(user.sums, len(user.turns)),
            _disagreement(assistant.sums, len(assistant.turns)),
            _rounded(user.sums.plus(assistant.sums)) if is_compared else _ONE_TRANSCRIPT,
        )

    def _rate(self, sums: ErrorSums, turns: int) -> rows.WordErrors:
        return rows.WordErrors(_rounded(sums), *sums, turns, self.normalizer)

    def _pairs(
        self, context: MetricContext
    ) -> tuple[tuple[CallWordErrors, Mapping[int, str], Mapping[int, str | None]], ...]:
        return (
            (self._of_user, context.intended_user_turns, context.transcribed_user_turns),
            (
                self._of_assistant,
                context.intended_assistant_turns,
                context.transcribed_assistant_turns,
            ),
        )

    def _put(self, errors: CallWordErrors, turn: int, side: HeardSide | None) -> bool:
        one, other = (
            side and side.wording(purpose) for purpose in (Purpose.MEANT, Purpose.UNDERSTOOD)
        )
        if not errors.put(turn, one, other):
            self._chars += (len(one or "") + len(other or "")) // _SEEN_CHARS
            return False
        self._chars += _compared_chars(one, other)
        return True


def _of_both_sides(language: str) -> tuple[CallWordErrors, CallWordErrors]:
    return CallWordErrors(language, _compared), CallWordErrors(language, _differing)


def _compared(meant: str, understood: str, language: str) -> TurnErrors:
    """Compares two texts for their sums alone: the differing words are not published, and would be
    kept until the close.
    """
    return TurnErrors(compare(meant, understood, language).sums, ())


def _differing(one: str, other: str, language: str) -> TurnErrors:
    return TurnErrors(differences(one, other, language).sums, ())


def _compared_chars(one: str | None, other: str | None) -> int:
    return min(len(one or "") + len(other or ""), 2 * MAX_CHARS)


def _rounded(sums: ErrorSums) -> float:
    return round(sums.rate, _RATE_DIGITS)


def _disagreement(sums: ErrorSums, turns: int) -> rows.Disagreement:
    return rows.Disagreement(
        _rounded(sums) if turns else _ONE_TRANSCRIPT, sums.errors, sums.reference_words, turns
    )
