"""EVA's `stt_wer`: how well the speech of simulated callers is understood, word by word.

A turn counts with the caller's intended words and the agent's transcript, both in one spelling (`normal_text`). The score is
the errors of all turns by the words of all turns, so both sums are kept, and adding, replacing or removing a turn costs only
that turn.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import jiwer

from consumers.engine.records.eva_result import MetricResult, failed
from consumers.engine.turns.heard.normal_text import normalised, without_bracketed
from schemas.metric_context import MetricContext

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
        """Errors by reference words; it can exceed 1. Without a reference word every error counts whole, as in jiwer."""
        return self.errors / self.reference_words if self.reference_words else float(self.errors)

    def plus(self, other: "ErrorSums", sign: int = 1) -> "ErrorSums":
        """The sum of both, or with -1 the difference."""
        return ErrorSums(*(own + sign * theirs for own, theirs in zip(self, other, strict=True)))


class TurnErrors(NamedTuple):
    """One turn compared: its sums, and each error as (intended words, understood words), one of them empty for missing or
    surplus words.
    """

    sums: ErrorSums
    errors: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, list[Any]]:
        """The errors in EVA's encoding."""
        return {
            "substitutions": [{"expected": meant, "actual": heard} for meant, heard in self.errors if meant and heard],
            "deletions": [meant for meant, heard in self.errors if not heard],
            "insertions": [heard for meant, heard in self.errors if not meant],
        }


Comparison = Callable[[str, str, str], TurnErrors]
"""Takes the intended words, the understood words and the language."""


class WordErrors:
    """The turns of one call, by turn id, and their sums.

    Args:
        language: The spoken language, as a two-letter code.
        comparing: Compares the two texts of a turn; they come without labels, and neither is empty.
    """

    def __init__(self, language: str = "en", comparing: Comparison | None = None) -> None:
        self._language = language
        self._comparing = comparing or compare
        self._pairs: dict[int, bytes] = {}
        self._compared: dict[int, TurnErrors] = {}
        self._sums = ErrorSums()

    @property
    def sums(self) -> ErrorSums:
        """The sums of all turns that count."""
        return self._sums

    @property
    def turns(self) -> Mapping[int, TurnErrors]:
        """The turns that count: both texts have words."""
        return self._compared

    def knows(self, turn: int) -> bool:
        """Whether both texts of the turn have been seen."""
        return turn in self._pairs

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
        self._compared[turn] = compared
        self._sums = self._sums.plus(compared.sums)
        return True

    def remove(self, turn: int) -> bool:
        """Removes a turn; true when it counted."""
        self._pairs.pop(turn, None)
        compared = self._compared.pop(turn, None)
        if compared is None:
            return False
        self._sums = self._sums.plus(compared.sums, -1)
        return True

    def put_all(self, meant: Mapping[int, str], understood: Mapping[int, str | None]) -> None:
        """Replaces all turns by those of a whole call; known turns cost nothing."""
        for turn in self._pairs.keys() - (meant.keys() & understood.keys()):
            self.remove(turn)
        for turn in meant.keys() & understood.keys():
            self.put(turn, meant[turn], understood[turn])

    def result(self) -> MetricResult:
        """The call in EVA's encoding."""
        if not self._compared:
            return failed(NO_PAIR)
        turns = {turn: self._compared[turn] for turn in sorted(self._compared)}
        sums, rate = self._sums, round(self._sums.rate, _DIGITS)
        by_character = counts_characters(self._language)
        accuracy = round(1 - min(1.0, self._sums.rate), _DIGITS)
        details = {
            "cer" if by_character else "wer": rate,
            "accuracy": accuracy,
            "language": self._language,
            "use_cer": by_character,
            "num_turns": len(turns),
            "per_turn_wer": {str(turn): round(compared.sums.rate, _DIGITS) for turn, compared in turns.items()},
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
    """EVA's metric of a whole call: the simulated caller's intended words against the agent's transcript.

    Args:
        context: EVA's context of the call.
        language: The spoken language, as a two-letter code. Japanese, Chinese and Korean are counted by character.

    Returns:
        The score in EVA's encoding; its error when no turn has both texts.
    """
    errors = WordErrors(language, partial(compare, as_eva=True))
    errors.put_all(context.intended_user_turns, context.transcribed_user_turns)
    return errors.result()


def counts_characters(language: str) -> bool:
    """Whether characters are counted in place of words."""
    return language.split("-")[0] in _LANGUAGES_OF_CHARACTERS


def compare(meant: str, understood: str, language: str = "en", *, as_eva: bool = False) -> TurnErrors:
    """The fewest substitutions, deletions and insertions that turn one text into the other.

    Args:
        meant: The reference, without labels.
        understood: The hypothesis, without labels.
        language: See `stt_wer`.
        as_eva: Whether the spelling must be EVA's (`normalised`).

    Example:
        >>> compare("Code three foxtrot please", "code 3 fox trot")
        TurnErrors(sums=ErrorSums(substitutions=2, deletions=0, insertions=0, reference_words=4), errors=(('foxtrot please', 'fox trot'),))
    """
    meant, understood = (normalised(text, language, as_eva=as_eva) for text in (meant, understood))
    if counts_characters(language):
        aligned: jiwer.WordOutput | jiwer.CharacterOutput = jiwer.process_characters(meant, understood)
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
    substitutions = [f"{each['expected']} \u2192 {each['actual']}" for each in listed["substitutions"]]
    return {
        "top_substitutions": _top("error", substitutions),
        "top_deletions": _top("word", listed["deletions"]),
        "top_insertions": _top("word", listed["insertions"]),
    }


def _top(name: str, texts: Iterable[str]) -> list[dict[str, Any]]:
    return [{name: text, "count": count} for text, count in Counter(texts).most_common(_LISTED_ERRORS)]
