"""How much of a reply was really spoken: EVA's check of audit texts against the text handed to speech synthesis (E3)."""

from collections.abc import Sequence

from consumers.engine.labels import ALL_LABELS

MIN_SPOKEN_CHARS = 20
"""A shorter common beginning (in normalised characters) is taken for chance."""


def without_labels(text: str) -> str:
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
    return "".join(character for character in without_labels(text) if character.isalnum()).lower()


def spoken_prefix(text: str, segments: Sequence[str]) -> str | None:
    """`text` as far as the segments spoke it.

    Returns:
        The whole text if one segment, or all joined, contain it; else its longest beginning in words that some segment
        begins with; None when that is shorter than `MIN_SPOKEN_CHARS` or there is nothing to compare. A label in
        `text` counts as words in the cut, as the reference does.
    """
    wanted = normalised(text)
    spoken = [segment for segment in map(normalised, segments) if segment]
    if not wanted or not spoken:
        return None
    if any(wanted in segment for segment in spoken) or wanted in "".join(spoken):
        return text
    words = without_labels(text).split()
    sizes = []
    length = 0
    for word in words:
        length += len(normalised(word))
        sizes.append(length)
    kept = max(_words_within(sizes, _common_length(wanted, segment)) for segment in spoken)
    if kept == 0 or sizes[kept - 1] < MIN_SPOKEN_CHARS:
        return None
    return " ".join(text.split()[:kept])


def _common_length(wanted: str, segment: str) -> int:
    length = 0
    for ours, theirs in zip(wanted, segment, strict=False):
        if ours != theirs:
            break
        length += 1
    return length


def _words_within(sizes: Sequence[int], length: int) -> int:
    """How many whole words fit into `length` characters; words without letters or digits cost nothing."""
    count = 0
    for size in sizes:
        if size > length:
            break
        count += 1
    return count
