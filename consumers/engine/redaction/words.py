"""A text as words, written or said, each with its place."""

import re
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple
from unicodedata import is_normalized, normalize

from consumers.engine.redaction.languages import NUMBER_WORDS

# A text in plain characters. Full-width digits, letters with loose accents and characters that
# nobody sees would hide what they spell.

_MARKS: Final = "\u0300-\u036f"
_UNSEEN: Final = "\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff"
_FIRST_UNSEEN: Final = re.compile(f"[{_UNSEEN}]")
_FIRST_MARK: Final = re.compile(f"[{_MARKS}]")
_NOT_PLAIN: Final = re.compile(
    rf"[{_UNSEEN}]|(?:[^\x00-\x7f]|[A-Za-z](?=[{_MARKS}]))[{_MARKS}]{{0,9}}"
)
_AS_THEY_ARE: Final = frozenset({"\u2026"})
"""Characters whose plain form says something else: an ellipsis is no end of three sentences."""
_FRACTION: Final = "\u2044"


class Plain(NamedTuple):
    """A text in plain characters.

    Attributes:
        text: The text.
        begins: Place in the original of each character's beginning; None when the places are the
            same.
        ends: Place of its end.
    """

    text: str
    begins: Sequence[int] | None = None
    ends: Sequence[int] | None = None


def in_plain(source: str) -> Plain:
    """A text in plain characters (NFKC, and without invisible characters).

    Example:
        >>> in_plain("jane\uff20example").text
        'jane@example'
    """
    if source.isascii() or (is_normalized("NFKC", source) and _FIRST_UNSEEN.search(source) is None):
        return Plain(source)
    forms = {ord(each): _plain_form(each) for each in set(source) if not each.isascii()}
    if all(len(form) == 1 for form in forms.values()) and _FIRST_MARK.search(source) is None:
        return Plain(source.translate(forms))
    parts: list[str] = []
    begins: list[int] = []
    ends: list[int] = []
    done = 0
    for found in _NOT_PLAIN.finditer(source):
        start, end = found.span()
        parts.append(source[done:start])
        begins += range(done, start)
        ends += range(done + 1, start + 1)
        plain = _plain_form(found[0])
        parts.append(plain)
        begins += [start] * len(plain)
        ends += [end] * len(plain)
        done = end
    parts.append(source[done:])
    begins += range(done, len(source))
    ends += range(done + 1, len(source) + 1)
    return Plain("".join(parts), begins, ends)


def _plain_form(character: str) -> str:
    if _FIRST_UNSEEN.match(character):
        return ""
    plain = normalize("NFKC", character)
    return character if character in _AS_THEY_ARE or _FRACTION in plain else plain


# A text as words, each with its place, and the words near a place: the ground of every search.
#
# Times, amounts and the like are no dictated digits; their places are found here too.

GERMAN_NUMBER: Final = "nummer"
MAX_LOOKED_AT: Final = 60
"""Words and signs that are read on one side of a place, of any kind."""

_WORD: Final = re.compile(
    r"(?P<SEALED>\[[A-Z][A-Z_]{1,39}\])|(?P<NUMBER>\d+)|(?P<WORD>[^\W\d_]+(?:['\u2019][^\W\d_]+)?)"
    r"|(?P<AT>[(\[{<]\s?(?i:at|ät|arobase|arroba|chiocciola)\s?[)\]}>])"
    r"|(?P<DOT>[(\[{<]\s?(?i:dot|punkt|point|punto)\s?[)\]}>])"
    # an end of a line as JSON and messages write it; markup
    r"|(?P<SIGN>\\[nrt]|</?[A-Za-z]{1,10}/?>|[^\w\s]|_)"
)
_NO_DICTATION: Final = re.compile(
    r"(?<![\d:])\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?![\d:])"  # times
    r"|[$€£¥₹]\s?\d[\d.,]*"
    r"|(?<![\d.,])\d{1,3}(?:,\d{3}){1,4}(?![\d,])(?:\.\d+)?"  # 1,234,567
    r"|(?<![\d.,])\d{1,3}(?:\.\d{3}){1,4},\d{1,2}(?!\d)"  # 1.234.567,89
    r"|(?<!\d)\d{4}-\d{2}-\d{2}(?!\d)(?!-\d)"  # days, and in the next lines too
    r"|(?<![\d./-])(?:0?[1-9]|[12]\d|3[01])([./-])(?:0?[1-9]|[12]\d|3[01])\1(?:(?:19|20)\d{2}|\d{2})(?![./-]?\d)"
)


class WordKind(Enum):
    """Kinds of words: letters, digits, one other character, or the tag of an earlier redaction."""

    WORD = "WORD"
    NUMBER = "NUMBER"
    SIGN = "SIGN"
    SEALED = "SEALED"


_KINDS: Final = {kind.name: kind for kind in WordKind}
_IN_BRACKETS: Final = {"AT": ("@", WordKind.SIGN), "DOT": ("dot", WordKind.WORD)}
"""Readings of (at) and [dot]: only addresses have them."""
_ELIDED: Final = frozenset({"l", "d", "dell", "all", "nell", "dall", "sull", "un"})
"""Articles and prepositions that are written together with a noun: l'adresse, dell'ordine."""


class Word(NamedTuple):
    """One word, in small letters, digits as ASCII; `start` and `end` are its place in the text."""

    text: str
    kind: WordKind
    start: int
    end: int


class Near(NamedTuple):
    """A word near another: its index, its distance in words, and whether a sentence ends in
    between.
    """

    place: int
    text: str
    distance: int
    is_beyond_sentence: bool


class Words:
    """The words of one text.

    Attributes:
        source: The text in plain characters.
        all: Its words in order.
    """

    def __init__(self, source: str) -> None:
        self._plain = in_plain(source)
        self.source = self._plain.text
        self.all: Sequence[Word] = tuple(_read(self.source))

    def origin(self, span: "CharSpan") -> "CharSpan":
        """Where a place of the plain text is in the original."""
        if self._plain.begins is None or self._plain.ends is None:
            return span
        return CharSpan(self._plain.begins[span.start], self._plain.ends[span.end - 1])

    def with_words(self, all_words: Sequence[Word]) -> "Words":
        """The same text, read as other words."""
        other = copy(self)
        other.all = all_words
        other.__dict__.pop("texts", None)
        return other

    @cached_property
    def undictated(self) -> frozenset[int]:
        """Indexes of the numbers that are times, amounts or dates."""
        hidden = set()
        words, index = self.all, 0
        for found in _NO_DICTATION.finditer(self.source):
            while index < len(words) and words[index].end <= found.start():
                index += 1
            while index < len(words) and words[index].start < found.end():
                hidden.add(index)
                index += 1
        return frozenset(hidden)

    @cached_property
    def texts(self) -> frozenset[str]:
        """All words that occur."""
        return frozenset([word.text for word in self.all])

    @cached_property
    def has_german_number(self) -> bool:
        """Whether there is a word like Mitgliedsnummer."""
        return any(text.endswith(GERMAN_NUMBER) for text in self.texts)

    def before(self, index: int, most: int) -> Iterator[Near]:
        """The words before one, the nearest first. Numbers, signs and tags are passed and not
        counted.

        So the distance of words does not change when something between them is redacted.
        """
        return self._near(range(index - 1, max(-1, index - 1 - MAX_LOOKED_AT), -1), most)

    def after(self, index: int, most: int) -> Iterator[Near]:
        """The words after one; otherwise as `before`."""
        return self._near(range(index + 1, min(len(self.all), index + 1 + MAX_LOOKED_AT)), most)

    def is_joined(self, index: int) -> bool:
        """Whether this word and the next are joined without a space."""
        return index + 1 < len(self.all) and self.all[index].end == self.all[index + 1].start

    def is_at(self, index: int, texts: Collection[str]) -> bool:
        """Whether there is a word at this index, and it is one of these."""
        return 0 <= index < len(self.all) and self.all[index].text in texts

    def _near(self, indexes: range, most: int) -> Iterator[Near]:
        distance, is_beyond = 0, False
        for index in indexes:
            word = self.all[index]
            if word.kind is WordKind.WORD and word.text not in NUMBER_WORDS:
                distance += 1
                yield Near(index, word.text, distance, is_beyond)
                if distance == most:
                    return
            elif word.text in {"!", "?"} or (word.text == "." and not self.is_joined(index)):
                is_beyond = True


def _read(source: str) -> Iterator[Word]:
    for found in _WORD.finditer(source):
        start, end = found.span()
        text, name = source[start:end], found.lastgroup or ""
        if name == "WORD":
            yield _looked_up(text, start, end)
        elif name in _IN_BRACKETS:
            yield Word(*_IN_BRACKETS[name], start, end)
        else:
            kind = _KINDS[name]
            if kind is WordKind.NUMBER and not text.isascii():
                text = "".join(str(int(digit)) for digit in text)
            yield Word(text, kind, start, end)


def _looked_up(text: str, start: int, end: int) -> Word:
    """A word as vocabularies have it: in small letters, without an article that lost its vowel."""
    lower = text.lower()
    if lower.isalpha():
        return Word(lower, WordKind.WORD, start, end)
    lower = lower.replace("\u2019", "'")
    article, _, noun = lower.partition("'")
    if article in _ELIDED:
        return Word(noun, WordKind.WORD, start + len(article) + 1, end)
    return Word(lower, WordKind.WORD, start, end)


# The place of a finding in a text.


class CharSpan(NamedTuple):
    """The characters from `start` up to `end`, which is excluded."""

    start: int
    end: int
