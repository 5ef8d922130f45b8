"""Finds bank accounts: a country, two check digits and the form of that country's accounts, written or spelled letter by
letter.
"""

import re
from collections.abc import Iterator
from functools import cache
from string import ascii_lowercase
from typing import Final

from stdnum import iban, numdb

from consumers.engine.redaction.personal_data.digit_runs import Digits, Group
from consumers.engine.redaction.personal_data.span import Span
from consumers.engine.redaction.personal_data.vocabulary import SPELLING_WORDS
from consumers.engine.redaction.personal_data.words import WordKind, Words

MOST_LETTERS_OF_A_GROUP: Final = 6
"""Longest group of letters in an account; a longer one is a word, and ends the account."""
MAX_GAP_WORDS: Final = 3
NEAR_WORDS: Final = 6

CHECK_DIGITS: Final = 2

_CUES: Final = frozenset({"iban", "ibans"})
_GAPS: Final = frozenset({"-", "\u2013", ",", ".", "and", "then", "uh", "um", "space", "dash", "hyphen"})
_PARTS: Final = re.compile(r"(\d+)!")


class _Spelling:
    """The letters and digits of a text from some word on, word by word."""

    def __init__(self, words: Words, digits: Digits) -> None:
        self._words = words
        self._groups: dict[int, Group] = {group.first: group for run in digits.runs for group in run.groups}

    def part(self, index: int) -> tuple[str, int] | None:
        """The characters of the word at an index, and the index of its last word; None when it has none."""
        word = self._words.all[index]
        group = self._groups.get(index)
        if group is not None:
            return group.digits, group.last
        if word.kind is WordKind.NUMBER:
            return word.text, index
        if word.kind is WordKind.WORD and word.text.isascii():
            letters = SPELLING_WORDS.get(word.text, word.text)
            return (letters, index) if len(letters) <= MOST_LETTERS_OF_A_GROUP else None
        return None

    def next(self, index: int) -> int | None:
        """The index of the next word after pauses and dashes; None when something other follows."""
        for following in range(index + 1, min(index + 2 + MAX_GAP_WORDS, len(self._words.all))):
            if self._words.all[following].text not in _GAPS:
                return following
        return None


def find_ibans(words: Words, digits: Digits) -> Iterator[Span]:
    """Places of bank accounts, from left to right."""
    may_begin = beginnings()
    if words.texts.isdisjoint(may_begin):
        return
    spelling = _Spelling(words, digits)
    index = 0
    while index < len(words.all):
        last = _last_of_account(words, spelling, index) if words.all[index].text in may_begin else None
        if last is not None:
            yield Span(words.all[index].start, words.all[last].end)
        index = index + 1 if last is None else last + 1


@cache
def beginnings() -> frozenset[str]:
    """Words with which an account can begin: countries that have accounts, and letters of which they may be spelled."""
    letters = [*ascii_lowercase]
    countries = [one + other for one in letters for other in letters if _length((one + other).upper())]
    return frozenset({*letters, *countries, *SPELLING_WORDS})


def _last_of_account(words: Words, spelling: _Spelling, first: int) -> int | None:
    """The last word of the account that begins with this word."""
    account, at, length = "", first, 0
    while True:
        part = spelling.part(at)
        if part is None:
            return None
        account, last = account + part[0].upper(), part[1]
        if not length and len(account) >= 2:  # the letters of the country
            length = _length(account[:2])
        beginning = account[:4]
        if (len(account) >= 2 and not length) or (beginning[2:] and not beginning[2:].isdecimal()):  # as above
            return None
        if len(account) >= length > 0:
            break
        following = spelling.next(last)
        if following is None:
            return None
        at = following
    is_one = len(account) == length and (
        iban.is_valid(account, check_country=False) or _is_said_to_be_one(words, first)
    )
    return last if is_one else None


def _is_said_to_be_one(words: Words, first: int) -> bool:
    """Whether words call it an IBAN; then one misheard letter hides nothing."""
    if words.texts.isdisjoint(_CUES):
        return False
    return any(near.text in _CUES for near in words.before(first, NEAR_WORDS))


@cache
def _length(country: str) -> int:
    """Length of an account of that country in letters and digits; 0 when it has none."""
    if not country.isalpha():
        return 0
    (_, facts), *_rest = numdb.get("iban").info(country)
    return 4 + sum(int(count) for count in _PARTS.findall(facts["bban"])) if "bban" in facts else 0
