"""Finds the spoken part of a reply: EVA's check of audit texts against the text sent to speech synthesis (E3)."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from consumers.engine.turns.eva.labels import ALL_LABELS

MIN_SPOKEN_CHARS = 20
"""Shortest common beginning, in normalised characters, that is no coincidence."""
_NO_LETTERS_OR_DIGITS: Final = re.compile(r"[\W_]+")


def without_eva_labels(text: str) -> str:
    """`text` with every label and every run of blanks as one blank."""
    for label in ALL_LABELS:
        text = text.replace(label, " ")
    return " ".join(text.split())


def normalised(text: str) -> str:
    """Letters and digits of `text` only, lower case, labels left out.

    Example:
        >>> normalised("[assistant interrupts] Sure, flight  AB-12!")
        'sureflightab12'
    """
    kept = _NO_LETTERS_OR_DIGITS.sub("", _without_labels(text))
    # Letter by letter: the form of a last sigma would depend on the letters behind it.
    return kept.lower() if kept.isascii() else "".join(map(str.lower, kept))


def _without_labels(text: str) -> str:
    """As EVA compares texts: a label that touches a word leaves no blank behind."""
    for label in ALL_LABELS:
        text = text.replace(label, "")
    return " ".join(text.split())


class SpokenText:
    """The text that speech synthesis got in one turn, normalised once for all replies that are compared with it.

    Attributes:
        chars: Its letters and digits.
    """

    def __init__(self, segments: Iterable[str]) -> None:
        """Reads the segments, in their order."""
        spoken = [segment for segment in map(normalised, segments) if segment]
        self._joined = "".join(spoken)
        self._sorted = sorted(set(spoken))
        self.chars = len(self._joined)

    def prefix(self, text: str) -> str | None:
        """The part of `text` that the segments spoke.

        Returns:
            The whole text if one segment, or all joined, contain it; otherwise its longest beginning in words that some segment
            begins with; None when that is shorter than `MIN_SPOKEN_CHARS` or there is nothing to compare. A label in
            `text` counts as words in the cut, as the reference does.
        """
        wanted = normalised(text)
        if not wanted or not self._joined:
            return None
        if wanted in self._joined:
            return text
        sizes = []
        length = 0
        for word in _without_labels(text).split():
            length += len(normalised(word))
            sizes.append(length)
        # In sorted texts a neighbour of the place shares the longest beginning.
        place = bisect_left(self._sorted, wanted)
        nearest = self._sorted[max(0, place - 1) : place + 1]
        kept = _words_within(sizes, max(_common_length(wanted, segment) for segment in nearest))
        if kept == 0 or sizes[kept - 1] < MIN_SPOKEN_CHARS:
            return None
        return " ".join(text.split()[:kept])


def spoken_prefix(text: str, segments: Iterable[str]) -> str | None:
    """The part of `text` that the segments spoke; see `SpokenText.prefix`."""
    return SpokenText(segments).prefix(text)


def _common_length(wanted: str, segment: str) -> int:
    length = 0
    for ours, theirs in zip(wanted, segment, strict=False):
        if ours != theirs:
            break
        length += 1
    return length


def _words_within(sizes: Sequence[int], length: int) -> int:
    """Number of whole words that fit into `length` characters; words without letters or digits cost nothing."""
    count = 0
    for size in sizes:
        if size > length:
            break
        count += 1
    return count
