"""Compares two transcripts of the same speech, neither of which is known to be right.

Both are aligned word by word as written, and only where they differ are the words brought into one spelling: "twenty five" and
"25", or "I'm" and "I am", are no difference. That is much cheaper than normalising everything, as `stt_wer` must.
"""

import re
from itertools import groupby

import jiwer

from consumers.engine.measures.words.word_errors import ErrorSums, TurnErrors, compare, counts_characters
from consumers.engine.turns.heard.normal_text import MAX_CHARS

_NOT_IN_WORDS = re.compile(r"[\W_]+")


def differences(one: str, other: str, language: str = "en") -> TurnErrors:
    """The words by which `other` differs from `one`, in the shape of word errors.

    Args:
        one: A side's intended words, without labels; they count as the reference.
        other: The words that the other side understood, without labels.
        language: The spoken language, as a two-letter code; languages without blanks between words are compared by character.

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
        keyed = [(key, word) for word in text[:MAX_CHARS].split() if (key := _NOT_IN_WORDS.sub("", word.lower()))]
        self.keys = [key for key, _ in keyed]
        self._words = [word for _, word in keyed]

    def text(self, start: int, end: int) -> str:
        return " ".join(self._words[start:end])
