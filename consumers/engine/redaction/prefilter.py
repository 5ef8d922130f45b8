"""Decides from a few signs in a text which personal data it may hold, so that most texts are never read word by word."""

import re
from typing import Final

from consumers.engine.redaction.personal_data.birth_dates import WORDS_ABOUT_BIRTHS
from consumers.engine.redaction.personal_data.cards import FEWEST_DIGITS as FEWEST_OF_A_CARD
from consumers.engine.redaction.personal_data.dates import SAID_IN_DATES, has_numeric_date
from consumers.engine.redaction.personal_data.ibans import CHECK_DIGITS, beginnings
from consumers.engine.redaction.personal_data.phones import FEWEST_DIGITS as FEWEST_OF_A_PHONE
from consumers.engine.redaction.personal_data.vocabulary import NUMBER_WORDS
from schemas.redaction import Detector

FEWEST_DIGITS: Final = 4

_NUMBERS: Final = re.compile(r"\d+")
_LETTERS: Final = re.compile(r"[a-z]+")
_TWO_NUMBER_WORDS: Final = re.compile(
    r"\b(?:{0})\b[\s,.;-]{{1,3}}(?:{0})\b".format("|".join(sorted(NUMBER_WORDS, key=len, reverse=True)))
)
_TELLING_WORDS: Final = frozenset({"dot", "point", "gmail", "yahoo", "outlook", "hotmail", "icloud", "birthday", "dob"})
_WORDS_OF_DAYS: Final = SAID_IN_DATES | WORDS_ABOUT_BIRTHS
_ALL: Final = frozenset(Detector)


def may_hold_any(text: str) -> bool:
    """Whether the text can hold a finding; nearly all speech ends here, after some microseconds."""
    if "@" in text or sum(map(len, _NUMBERS.findall(text))) >= FEWEST_DIGITS:
        return True
    lower = text.lower()
    if "at)" in lower or "at]" in lower:  # jane[at]example.com
        return True
    if "birth" in lower or "born" in lower or "d.o.b" in lower:
        return True
    said = _LETTERS.findall(lower)
    if not _TELLING_WORDS.isdisjoint(said):
        return True
    return not NUMBER_WORDS.isdisjoint(said) and _TWO_NUMBER_WORDS.search(lower) is not None


def possible_detectors(text: str) -> frozenset[Detector]:
    """The detectors that may find something in a text for which `may_hold_any` is true. All others find nothing in it.

    Example:
        >>> possible_detectors("departure time: 08:15")
        frozenset()
    """
    if not text.isascii():  # other letters and digits have more forms than these signs
        return _ALL
    possible = set()
    said = frozenset(_LETTERS.findall(text.lower()))
    if "@" in text or "at" in said:
        possible.add(Detector.EMAIL)
    if has_numeric_date(text) or not _WORDS_OF_DAYS.isdisjoint(said):
        possible.add(Detector.BIRTH_DATE)
    says_digits = not NUMBER_WORDS.isdisjoint(said)
    digits = sum(map(len, _NUMBERS.findall(text)))
    if says_digits or digits >= FEWEST_OF_A_CARD:
        possible.add(Detector.CARD)
    if says_digits or digits >= FEWEST_OF_A_PHONE:
        possible.add(Detector.PHONE)
    if (says_digits or digits >= CHECK_DIGITS) and not beginnings().isdisjoint(said):
        possible.add(Detector.IBAN)
    return frozenset(possible)
