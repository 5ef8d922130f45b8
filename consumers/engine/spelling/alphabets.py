"""English, German, Spanish, French and Hindi in one spelling, as EVA has it: numbers in digits,
without fillers, accents and marks.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from whisper_normalizer.english import EnglishSpellingNormalizer, EnglishTextNormalizer

from consumers.engine.spelling.characters import without_markup
from consumers.engine.spelling.number_words import (
    NumberRules,
    english,
    french,
    german,
    hindi,
    spanish,
    with_marks,
    without_marks,
)
from consumers.engine.spelling.spoken_numbers import SpokenNumbers

_FILLERS_OF_ENGLISH: Final = "hmm mm mhm mmm uh um"
_NOT_OF_EVA: Final = ("kinda", "sorta", "dunno", "cause")
"""Words that Whisper's newer rules write out and EVA's do not."""
_NO_DECIMAL: Final = re.compile(r"\.(?!\d)")
_MARK_ALONE: Final = re.compile(r"[.$\u00a2\u20ac\u00a3](?!\d)|(?<!\d)%")
_CURRENCY_BEHIND: Final = re.compile(r"(?<!\d)(\d+)\s*([$\u00a2\u20ac\u00a3])")
_GAP_BEHIND_CURRENCY: Final = re.compile(r"(?<=[$\u00a2\u20ac\u00a3])\s+(?=\d)")
_GAP_BEFORE_APOSTROPHE: Final = re.compile(r"\s+(?=')")
_COMMA_IN_NUMBER: Final = re.compile(r"(\d),(\d)")
_WORD: Final = re.compile("[a-z]+")
_PLAIN_SPEECH: Final = re.compile(r'[a-z\s,;:?!."-]*')
_LETTERS_ALONE: Final = re.compile(r"[a-z\s]*")


class Alphabetic:
    """One language.

    Args:
        rules: How it says numbers.
        fillers: Words that are left out.
        titles: Abbreviations, each with its words.
        thousands: What parts the thousands of a number; empty where commas do ("1,25,000") and the
            decimals have the point.
        letters: The letters of its script, as in a character class.
        has_marks: Whether accents are vowels, and stay.
    """

    def __init__(
        self,
        rules: NumberRules,
        fillers: str,
        titles: Mapping[str, str],
        thousands: str = ". ",
        *,
        letters: str = "a-z",
        has_marks: bool = False,
    ) -> None:
        self._numbers = SpokenNumbers(rules, letters)
        self._fillers = re.compile(rf"\b(?:{fillers.replace(' ', '|').replace('_', ' ')})\b")
        self._titles = [(re.compile(rf"\b{title}\b"), words) for title, words in titles.items()]
        self._thousands = [
            re.compile(rf"(\d){re.escape(mark)}(\d{{3}})(?!\d)") for mark in thousands
        ]
        self._decimal = r"\1.\2" if thousands else r"\1\2"
        self._in_plain_letters = with_marks if has_marks else without_marks

    def __call__(self, text: str) -> str:
        """The text in small letters, words parted by single blanks.

        Raises:
            ValueError: A number is longer than Python writes.
        """
        text = self._fillers.sub("", without_markup(text.lower()))
        for pattern, words in self._titles:
            text = pattern.sub(words, text)
        for pattern in self._thousands:
            text = pattern.sub(r"\1\2", text)
        text = _NO_DECIMAL.sub(" ", _COMMA_IN_NUMBER.sub(self._decimal, text))
        return without_lone_marks(self._numbers.written(self._in_plain_letters(text)))


def without_lone_marks(text: str) -> str:
    """The text with its currencies in front of their numbers, and without marks that belong to
    none.
    """
    text = _GAP_BEHIND_CURRENCY.sub("", _CURRENCY_BEHIND.sub(r"\2\1", text))
    return " ".join(_MARK_ALONE.sub(" ", text).split())


class English:
    """English without the rules that nothing in the text can meet: most speech is plain words, and
    trying every rule on each would cost more than all other work for a turn.
    """

    def __init__(self) -> None:
        rules = english()
        self._numbers = SpokenNumbers(rules, is_english=True)
        # "and" matters between numbers only, and "half" only behind "and a".
        self._number_words = frozenset(rules.words) - {"and"} | {"half"}
        self._fillers = re.compile(rf"\b(?:{_FILLERS_OF_ENGLISH.replace(' ', '|')})\b")
        self._filler_words = frozenset(_FILLERS_OF_ENGLISH.split())
        table = EnglishTextNormalizer().replacers
        written_out = [
            (pattern.replace(r"\b", ""), re.compile(pattern), words)
            for pattern, words in table.items()
        ]
        self._written_out = [each for each in written_out if each[0] not in _NOT_OF_EVA]
        self._abbreviations = frozenset(
            literal for literal, *_ in self._written_out if "'" not in literal
        )
        self._spellings: dict[str, str] = EnglishSpellingNormalizer().mapping

    def __call__(self, text: str) -> str:
        """The text in small letters, words parted by single blanks.

        Raises:
            ValueError: A number is longer than Python writes.
        """
        text = text.lower()
        words = _WORD.findall(text)
        has_rules = not (
            self._number_words.isdisjoint(words) and self._abbreviations.isdisjoint(words)
        )
        if not has_rules and _PLAIN_SPEECH.fullmatch(text):
            return self._american([word for word in words if word not in self._filler_words])
        return self.by_every_rule(text)

    def by_every_rule(self, text: str) -> str:
        """The same for any text in small letters."""
        text = _GAP_BEFORE_APOSTROPHE.sub("", self._fillers.sub("", without_markup(text)))
        for literal, pattern, words in self._written_out:
            if literal in text:
                text = pattern.sub(words, text)
        text = without_marks(_NO_DECIMAL.sub(" ", _COMMA_IN_NUMBER.sub(r"\1\2", text)))
        if not (_LETTERS_ALONE.fullmatch(text) and self._number_words.isdisjoint(text.split())):
            text = self._numbers.written(text)
        return without_lone_marks(self._american(text.split()))

    def _american(self, words: list[str]) -> str:
        return " ".join([self._spellings.get(word, word) for word in words])


def _german() -> Alphabetic:
    titles = {"hr": "herr", "fr": "frau", "dr": "doktor", "prof": "professor"}
    return Alphabetic(german(), "ah ahm hm hmm mhm mh ohm oh eh naja", titles)


def _spanish() -> Alphabetic:
    titles = {"sr": "senor", "sra": "senora", "srta": "senorita", "dr": "doctor", "dra": "doctora"}
    titles |= {"prof": "profesor", "profa": "profesora", "d": "don", "da": "dona"}
    return Alphabetic(spanish(), "eh em mmm hm hum pues bueno o_sea esto", titles)


_FRENCH_TITLES: Final = {
    "m": "monsieur",
    "mme": "madame",
    "mlle": "mademoiselle",
    "dr": "docteur",
    "dre": "docteure",
    "pr": "professeur",
    "pre": "professeure",
    "me": "maitre",
}


def _french() -> Alphabetic:
    titles = _FRENCH_TITLES | {"mgr": "monseigneur", "st": "saint", "ste": "sainte"}
    return Alphabetic(french(), "euh heu hum hmm hm mhm ah hein bah ben", titles)


def _canadian_french() -> Alphabetic:
    return Alphabetic(french(), "euh hum heu ben bah hein hm hmm mm mhm", _FRENCH_TITLES, " ")


def _hindi() -> Alphabetic:
    return Alphabetic(hindi(), "आह एह ओह", {}, "", letters="a-z\u0900-\u097f", has_marks=True)


_MAKERS: Final[Mapping[str, Callable[[], Callable[[str], str]]]] = {
    "en": English,
    "de": _german,
    "es": _spanish,
    "fr": _french,
    "fr-CA": _canadian_french,
    "hi": _hindi,
}
ALPHABETIC: Final = frozenset(_MAKERS)
"""The languages that are known here. Each is made when a text of it comes."""


@cache
def spelling_of(language: str) -> Callable[[str], str]:
    """How a text of one of these languages is brought to one spelling."""
    return _MAKERS[language]()
