"""A text as words, each with its place, and the words near a place: the ground of every search.

Times, amounts and the like are no dictated digits; their places are found here too.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple

from consumers.engine.redaction.personal_data.vocabulary import NUMBER_WORDS

MAX_LOOKED_AT: Final = 60
"""Words and signs that are read on one side of a place, of any kind."""

_WORD: Final = re.compile(
    r"(?P<SEALED>\[[A-Z][A-Z_]{1,39}\])|(?P<NUMBER>\d+)|(?P<WORD>[^\W\d_]+(?:['\u2019][^\W\d_]+)?)"
    r"|(?P<AT>[(\[{<]\s?at\s?[)\]}>])|(?P<DOT>[(\[{<]\s?dot\s?[)\]}>])"
    r"|(?P<SIGN>\\[nrt]|</?[A-Za-z]{1,10}/?>|[^\w\s]|_)"  # an end of a line as JSON and messages write it; markup
)
_NO_DICTATION: Final = re.compile(
    r"(?<![\d:])\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?![\d:])"  # times
    r"|[$€£¥₹]\s?\d[\d.,]*"
    r"|(?<![\d.,])\d{1,3}(?:,\d{3}){1,4}(?![\d,])(?:\.\d+)?"  # 1,234,567
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


class Word(NamedTuple):
    """One word, in small letters, digits as ASCII; `start` and `end` are its place in the text."""

    text: str
    kind: WordKind
    start: int
    end: int


class Near(NamedTuple):
    """A word near another: its index, its distance in words, and whether a sentence ends in between."""

    place: int
    text: str
    distance: int
    is_beyond_sentence: bool


class Words:
    """The words of one text.

    Attributes:
        source: The text.
        all: Its words in order.
    """

    def __init__(self, source: str) -> None:
        """Reads the text once."""
        self.source = source
        self.all: Sequence[Word] = tuple(_read(source))

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

    def before(self, index: int, most: int) -> Iterator[Near]:
        """The words before one, the nearest first. Numbers, signs and tags are passed and not counted.

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
            yield Word(text.lower(), WordKind.WORD, start, end)
        elif name in _IN_BRACKETS:
            yield Word(*_IN_BRACKETS[name], start, end)
        else:
            kind = _KINDS[name]
            if kind is WordKind.NUMBER and not text.isascii():
                text = "".join(str(int(digit)) for digit in text)
            yield Word(text, kind, start, end)
