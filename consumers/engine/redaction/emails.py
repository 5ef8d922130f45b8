"""Finds email addresses, written or dictated."""

import re
from collections.abc import Iterator
from typing import Final

from consumers.engine.redaction.languages import NUMBER_WORDS
from consumers.engine.redaction.vocabulary import (
    AT_NOUNS,
    AT_SIGNS,
    AT_THE_RATE,
    DOTS,
    DOTTED_ENDS,
    LABEL_JOINERS,
    LOCAL_JOINERS,
    MAIL_PROVIDERS,
    MAIL_WORDS,
    MAILBOXES,
    NO_LABELS,
    NO_MAILBOXES,
    SIGNS,
    SPOKEN_SIGNS,
    TOP_LEVELS,
    TWO_WORDS,
    WORDS_OF_A_SENTENCE,
)
from consumers.engine.redaction.words import CharSpan, Word, WordKind, Words

MAX_LOCAL_CHARS: Final = 64
MAX_LABEL_WORDS: Final = 3
"""Words of one part of a domain that are spoken apart: "at big company dot com"."""
MAX_SPELLED: Final = 24
MAX_LABELS: Final = 6
MAX_EXTRA_WORDS: Final = 3
"""Further words before the at that may be part of the address, if no other word is there."""
NEAR_WORDS: Final = 10

_WORDS_OF_A_SENTENCE: Final = WORDS_OF_A_SENTENCE - NO_MAILBOXES
_IN_OTHER_LANGUAGES: Final = frozenset(
    {
        *AT_SIGNS,
        *AT_NOUNS,
        *SPOKEN_SIGNS,
        AT_THE_RATE[1],
        *DOTTED_ENDS,
        *(first for first, _ in TWO_WORDS),
    }
)
_NO_INITIALS: Final = frozenset({"a", "i", "à", "è", "é"})
"""Words of one letter that a sentence has before an address."""
_ATS: Final = frozenset({"@", "at"})
_LOCAL_REVERSED: Final = re.compile(r"[\w.%+'-]{1,64}")
_DOMAIN: Final = re.compile(r"[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
_TOP_LEVEL: Final = re.compile(r"[^\W\d_]{2,24}|xn--[\w-]{1,59}")


def find_emails(words: Words) -> Iterator[CharSpan]:
    """Places of addresses, from left to right. Written and spoken addresses do not overlap."""
    if words.texts.isdisjoint(_ATS) and words.texts.isdisjoint(AT_SIGNS):
        return
    if not words.texts.isdisjoint(_IN_OTHER_LANGUAGES):
        words = words.with_words(tuple(_in_english(words)))
    end = 0
    for index, word in enumerate(words.all):
        if word.text not in _ATS or word.start < end:
            continue
        span = _written(words.source, word.start) if word.text == "@" else None
        span = span or _said(words, index, end)
        if span is not None:
            end = span.end
            yield span


def _in_english(words: Words) -> Iterator[Word]:
    """The words of the text, with the signs of addresses as English has them."""
    index = 0
    while index < len(words.all):
        word = words.all[index]
        text, kind, last = SPOKEN_SIGNS.get(word.text, word.text), word.kind, index
        following = words.all[index + 1].text if index + 1 < len(words.all) else ""
        if word.text in AT_SIGNS:
            text, kind = "@", WordKind.SIGN
        elif (word.text, following) in TWO_WORDS:
            text, last = TWO_WORDS[word.text, following], index + 1
        elif word.text == "at":
            noun = index + 2 if following in LABEL_JOINERS else index + 1
            if words.is_at(noun, AT_NOUNS):
                text, kind, last = "@", WordKind.SIGN, noun
            elif following == AT_THE_RATE[0] and words.is_at(index + 2, AT_THE_RATE[1:]):
                text, kind, last = "@", WordKind.SIGN, index + 2
        elif word.text in DOTTED_ENDS:
            text = DOTTED_ENDS[word.text]
            yield Word("dot", kind, word.start, word.start)
        yield Word(text, kind, word.start, words.all[last].end)
        index = last + 1


def _written(source: str, at: int) -> CharSpan | None:
    before = _LOCAL_REVERSED.match(source[max(0, at - MAX_LOCAL_CHARS) : at][::-1])
    domain = _DOMAIN.match(source, at + 1)
    if before is None or domain is None:
        return None
    labels = domain[0].rstrip("-").split(".")
    # perhaps the number of the next sentence
    while labels and not _TOP_LEVEL.fullmatch(labels[-1]):
        labels.pop()
    local = before[0][::-1].lstrip(".'")
    return (
        CharSpan(at - len(local), at + 1 + len(".".join(labels)))
        if local and len(labels) > 1
        else None
    )


def _said(words: Words, at: int, not_before: int) -> CharSpan | None:
    if at == 0:
        return None
    is_announced = _is_announced(words, at)
    behind = at + 2 if words.is_at(at + 1, SIGNS) else at + 1
    last = _end_of_domain(words, behind, is_announced=is_announced)
    first, is_joined = _begin_of_local(words, at)
    if last is None or first is None or words.all[first].start < not_before:
        return None
    if not (words.all[at].text == "@" or behind > at + 1 or is_joined or is_announced):
        is_bare = all(near.text in WORDS_OF_A_SENTENCE for near in words.before(first, NEAR_WORDS))
        is_at_provider = any(word.text in MAIL_PROVIDERS for word in words.all[behind : last + 1])
        if words.all[at - 1].text in NO_MAILBOXES or not (is_bare or is_at_provider):
            return None
    return CharSpan(words.all[first].start, words.all[last].end)


def _is_announced(words: Words, at: int) -> bool:
    """Whether words around the at announce an address."""
    if words.texts.isdisjoint(MAIL_WORDS):
        return False
    around = (*words.before(at, NEAR_WORDS), *words.after(at, NEAR_WORDS))
    return any(near.text in MAIL_WORDS for near in around)


def _end_of_domain(words: Words, first: int, *, is_announced: bool) -> int | None:
    """The last word of the domain that begins with a word; in an announced address its last part
    may be any word.
    """
    index, last = first, None
    for _ in range(MAX_LABELS):
        label_end = _end_of_label(words, index)
        if label_end is None:
            return last
        is_provider = words.is_at(index, MAIL_PROVIDERS) and label_end == index
        if last is None and is_provider:
            last = label_end + 1 if words.is_at(label_end + 1, {"com"}) else label_end
        if not words.is_at(label_end + 1, DOTS):
            return last
        top = _end_of_top_level(words, label_end + 2, is_announced=is_announced and last is None)
        if top is not None:
            last = top
        index = label_end + 2
    return last


def _end_of_label(words: Words, first: int) -> int | None:
    """The last word of one part of a domain, of which a dot or something else follows."""
    index, said_apart, spelled = first, 0, 0
    while index < len(words.all):
        word = words.all[index]
        if word.text in DOTS or word.kind is WordKind.SEALED:
            break
        if word.text in LABEL_JOINERS:
            said_apart = max(0, said_apart - 1)
        elif word.kind is WordKind.SIGN or (
            index > first and word.text in {"at", "and", "or", "is"}
        ):
            break
        elif len(word.text) == 1 or word.kind is WordKind.NUMBER or word.text in NUMBER_WORDS:
            spelled += 1
        elif word.text in NO_LABELS:
            return None
        else:
            said_apart += 1
        if word.text in MAIL_PROVIDERS and index == first:
            return index
        if said_apart > MAX_LABEL_WORDS or spelled > MAX_SPELLED:
            return None
        index += 1
    return index - 1 if index > first else None


def _end_of_top_level(words: Words, index: int, *, is_announced: bool) -> int | None:
    """The last word of com, of uk, or of c o m spelled letter by letter."""
    if words.is_at(index, TOP_LEVELS):
        return index
    if index < len(words.all) and is_announced and _TOP_LEVEL.fullmatch(words.all[index].text):
        return index
    spelled, found = "", None
    for last in range(index, min(index + 3, len(words.all))):
        if len(words.all[last].text) != 1 or words.all[last].kind is not WordKind.WORD:
            break
        spelled += words.all[last].text
        found = last if spelled in TOP_LEVELS else found
    return found


def _begin_of_local(words: Words, at: int) -> tuple[int | None, bool]:
    """The first word of the part before an at, and whether it is joined as no sentence is: by dots,
    digits, letters.
    """
    index = at - 1
    if not _is_atom(words, index):
        return None, False
    is_mailbox = words.is_at(at, {"@"}) and words.is_at(index, MAILBOXES)
    if words.all[index].text in _WORDS_OF_A_SENTENCE and not is_mailbox:
        return None, False
    is_joined = _is_spelled(words, index)
    for _ in range(MAX_SPELLED):
        if (
            words.is_at(index - 1, LOCAL_JOINERS)
            and _is_atom(words, index - 2)
            and not _ends_sentence(words, index - 1)
        ):
            index, is_joined = index - 2, True
        elif (
            _is_spelled(words, index)
            and _is_atom(words, index - 1)
            and not _is_of_a_sentence(words, index - 1)
        ):
            index -= 1
        elif _is_spelled(words, index - 1) and words.all[index - 1].text not in _NO_INITIALS:
            index, is_joined = index - 1, True
        else:
            break
    extra = index
    for _ in range(MAX_EXTRA_WORDS + 1):
        if (
            not _is_atom(words, extra - 1)
            or _is_of_a_sentence(words, extra - 1)
            or words.is_at(extra - 1, _NO_INITIALS)
        ):
            return extra, is_joined
        extra -= 1
    return index, is_joined


def _is_atom(words: Words, index: int) -> bool:
    return 0 <= index < len(words.all) and words.all[index].kind in {WordKind.WORD, WordKind.NUMBER}


def _is_spelled(words: Words, index: int) -> bool:
    """Whether it is a single letter, or digits: dictated words."""
    if not _is_atom(words, index):
        return False
    word = words.all[index]
    return len(word.text) == 1 or word.kind is WordKind.NUMBER or word.text in NUMBER_WORDS


def _is_of_a_sentence(words: Words, index: int) -> bool:
    text = words.all[index].text
    return text in WORDS_OF_A_SENTENCE and (len(text) > 1 or not text.isascii())


def _ends_sentence(words: Words, index: int) -> bool:
    """Whether this dot ends a sentence: a space follows it, and none comes before."""
    return (
        words.all[index].text == "." and words.is_joined(index - 1) and not words.is_joined(index)
    )
