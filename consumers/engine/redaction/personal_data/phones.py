"""Finds telephone numbers: with a country code, written as one, or dictated digits that the words around name.

Any other number may as well be an order's or a code. It counts only where the text has nothing else, as in an answer.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import phonenumbers

from consumers.engine.redaction.personal_data.digit_runs import Digits, Group, Run
from consumers.engine.redaction.personal_data.span import Span
from consumers.engine.redaction.personal_data.vocabulary import (
    ARTICLES,
    CODES_OF_A_PLACE,
    NO_PHONE_WORDS,
    NUMBER_NOUNS,
    OWNERS,
    PHONE_WORDS,
    PLACE_WORDS,
    PLUS,
    POINTERS,
    WORDS_ABOUT_NUMBERS,
    WORDS_OF_AN_ANSWER,
)
from consumers.engine.redaction.personal_data.words import Near, WordKind, Words

FEWEST_DIGITS: Final = 7
FEWEST_WITH_COUNTRY: Final = 8
FEWEST_WITHOUT_A_WORD: Final = 9
MOST_DIGITS: Final = 15
"""Most digits of a telephone number in E.164."""
MOST_DIGITS_OF_A_RUN: Final = 200
"""Most consecutive digits with nothing but pauses between them; more are a table, which nobody dictates."""
NEAR_WORDS: Final = 8
"""Greatest distance of a word that names a number's meaning: chosen on the labelled sentences of `tests/redaction`, as are the
next ones.
"""
NEAR_WORDS_OF_OTHERS: Final = 5
NEAR_WORDS_BEHIND: Final = 4
MOST_BARE_WORDS: Final = 8
"""Words and signs on either side of a number in an answer that consists of it."""

_COUNTRY_PREFIXES: Final = ("00", "011")
_NORTH_AMERICA: Final = 1
_NORTH_AMERICAN_GROUPS: Final = ([3, 3, 4], [1, 3, 3, 4])


class _Plan(NamedTuple):
    """The form of a country's numbers without its code.

    Attributes:
        region: The country.
        begins_with_zero: Whether they are written with a 0 in front.
        lengths: Numbers of digits without that 0.
    """

    region: str
    begins_with_zero: bool
    lengths: frozenset[int]

    def fits(self, number: str) -> bool:
        """Whether these digits are a number of the country."""
        if self.begins_with_zero and not number.startswith("0"):
            return False
        if self.lengths.isdisjoint((len(number), len(number) - 1)):
            return False
        parsed = _parsed(number, self.region)
        return parsed is not None and phonenumbers.is_valid_number_for_region(parsed, self.region)


class PhoneFinder:
    """Finds telephone numbers as some countries write them."""

    def __init__(self, regions: Sequence[str]) -> None:
        """Prepares the rules of the countries.

        Args:
            regions: Two-letter codes of countries whose numbers are known without their code. Unknown ones have no numbers.
        """
        self._plans = tuple(plan for plan in map(_plan, regions) if plan is not None)
        self._american = next(
            (region for region in regions if phonenumbers.country_code_for_region(region) == _NORTH_AMERICA), None
        )

    def find(self, words: Words, digits: Digits) -> Iterator[Span]:
        """Places of telephone numbers, from left to right."""
        for run in digits.runs:
            is_table = run.length > MOST_DIGITS_OF_A_RUN
            first = 0
            while first < len(run.groups):
                last = self._last_of_phone(words, run, first, is_table=is_table)
                if last is not None:
                    yield _span(words, run, first, last)
                first = first + 1 if last is None else last + 1

    def _last_of_phone(self, words: Words, run: Run, first: int, *, is_table: bool) -> int | None:
        """The last group of the number that begins at a group; a number by its own form comes before one that words name."""
        lasts = _candidates(run, first, is_table=is_table)
        for last in lasts:
            if self._is_one(words, run, first, last):
                return last
        for last in lasts:
            is_short = FEWEST_DIGITS <= len(run.digits(first, last)) <= MOST_DIGITS
            if is_short and not _is_marked(words, run, first) and _said(words, run, first, last):
                return last
        return None

    def _is_one(self, words: Words, run: Run, first: int, last: int) -> bool:
        number = run.digits(first, last)
        if _has_country_code(words, run.groups[first].first, number):
            return True
        if not FEWEST_WITHOUT_A_WORD <= len(number) <= MOST_DIGITS or _is_marked(words, run, first):
            return False
        is_spoken = run.is_spoken(first, last)
        is_in_groups = last > first and not is_spoken
        if is_in_groups and self._american is not None and _has_american_groups(run, first, last):
            is_possible = _is_possible(number, self._american)
            return is_possible and not _is_of_something_else(words, run.groups[first].first)
        is_dictated = is_in_groups or is_spoken or _is_bare(words, run)
        if not is_dictated or _said(words, run, first, last) is False:
            return False
        # North America writes its numbers in the groups above, or in none, or one digit after the other.
        return any(
            plan.fits(number)
            for plan in self._plans
            if plan.begins_with_zero or not is_in_groups or all(map(_is_single, run.groups[first : last + 1]))
        )


def _plan(region: str) -> _Plan | None:
    metadata = phonenumbers.PhoneMetadata.metadata_for_region(region)
    if metadata is None or metadata.general_desc is None:
        return None
    return _Plan(region, metadata.national_prefix == "0", frozenset(metadata.general_desc.possible_length))


def _candidates(run: Run, first: int, *, is_table: bool) -> list[int]:
    """Last groups of numbers that may begin at a group, the longest number first. In a table they have no pauses inside."""
    if not run.pauses[first] and _is_single(run.groups[first]):
        return []
    lasts, count = [], 0
    for index in range(first, len(run.groups)):
        count += len(run.groups[index].digits)
        if count > MOST_DIGITS + len(_COUNTRY_PREFIXES[-1]) or (is_table and index > first and run.pauses[index]):
            break
        is_end = index + 1 == len(run.groups) or run.pauses[index + 1]
        if count >= FEWEST_DIGITS and (is_end or not _is_single(run.groups[index + 1])):
            lasts.append(index)
    return lasts[::-1]


def _has_country_code(words: Words, begin: int, number: str) -> bool:
    """Whether a number has its country's code: +49, plus four nine, or 0049, which may also begin something else."""
    if words.is_at(begin - 1, PLUS) or (words.is_at(begin - 1, {"("}) and words.is_at(begin - 2, PLUS)):
        return FEWEST_WITH_COUNTRY <= len(number) <= MOST_DIGITS and _is_possible(f"+{number}", None)
    for prefix in _COUNTRY_PREFIXES:
        full = number.removeprefix(prefix)
        if full != number and FEWEST_WITH_COUNTRY <= len(full) <= MOST_DIGITS:
            parsed = _parsed(f"+{full}", None)
            if parsed is not None and phonenumbers.is_valid_number(parsed):
                return True
    return False


def _is_marked(words: Words, run: Run, first: int) -> bool:
    """Whether a sign marks it as something else: #415..., ORD-415..."""
    begin = run.groups[first].first
    if words.is_at(begin - 1, {"#"}):
        return True
    if begin < 2 or not words.is_at(begin - 1, {"-", "/", "_"}) or not words.is_joined(begin - 1):
        return False
    return words.all[begin - 2].kind is WordKind.WORD and words.is_joined(begin - 2)


def _has_american_groups(run: Run, first: int, last: int) -> bool:
    """Whether it is grouped like 415-555-0100 or (415) 555 0100."""
    lengths = [len(group.digits) for group in run.groups[first : last + 1]]
    return lengths in _NORTH_AMERICAN_GROUPS and not any(run.pauses[first + 1 : last + 1])


def _is_single(group: Group) -> bool:
    """Whether it is dictated rather than written, so that a number begins and ends with a pause."""
    return group.is_spoken or len(group.digits) == 1


def _span(words: Words, run: Run, first: int, last: int) -> Span:
    begin, end = run.groups[first].first, run.groups[last].last
    if words.is_at(begin - 1, {"("}):
        begin -= 1
    if words.is_at(begin - 1, PLUS):
        begin -= 1
    return Span(words.all[begin].start, words.all[end].end)


def _is_of_something_else(words: Words, begin: int) -> bool:
    """Whether the words just before name something else; a number in the form of a telephone's needs more than a hint."""
    for near in words.before(begin, NEAR_WORDS_OF_OTHERS):
        if near.is_beyond_sentence or near.text in PHONE_WORDS:
            return False
        if near.text in NO_PHONE_WORDS:
            return True
    return False


def _said(words: Words, run: Run, first: int, last: int) -> bool | None:
    """Whether the words around call it a telephone number; False for something else, None when no word decides. The nearest
    word before it decides.
    """
    if words.texts.isdisjoint(WORDS_ABOUT_NUMBERS):
        return None
    begin, end = run.groups[first].first, run.groups[last].last
    for near in words.before(begin, NEAR_WORDS):
        if near.text in PHONE_WORDS or (near.text == "code" and words.is_at(near.place - 1, CODES_OF_A_PLACE)):
            return True
        if near.text in NO_PHONE_WORDS and not _is_where_it_stands(words, near):
            return False
        if near.text in NUMBER_NOUNS and words.is_at(near.place - 1, OWNERS):
            return True
    is_pointed_at = False
    for near in words.after(end, NEAR_WORDS_BEHIND):
        is_pointed_at = is_pointed_at or (near.distance == 1 and near.text in POINTERS)
        if near.text in PHONE_WORDS:
            return True
        if is_pointed_at and near.text in NO_PHONE_WORDS:
            return False
    return None


def _is_where_it_stands(words: Words, near: Near) -> bool:
    """Whether a word only names the place of the number: "the phone number on the account is"."""
    is_place = words.is_at(near.place - 1, ARTICLES) and words.is_at(near.place - 2, PLACE_WORDS)
    return near.distance > 1 and (is_place or words.is_at(near.place - 1, {"on"}))


def _is_bare(words: Words, run: Run) -> bool:
    """Whether the text is this number and a few words without meaning for it."""
    begin, end = run.groups[0].first, run.groups[-1].last
    if begin > MOST_BARE_WORDS or len(words.all) - end > MOST_BARE_WORDS:
        return False
    around = [word for word in (*words.all[:begin], *words.all[end + 1 :]) if word.kind is not WordKind.SIGN]
    return all(word.text in WORDS_OF_AN_ANSWER for word in around)


def _parsed(number: str, region: str | None) -> phonenumbers.PhoneNumber | None:
    try:
        return phonenumbers.parse(number, region)
    except phonenumbers.NumberParseException:
        return None


def _is_possible(number: str, region: str | None) -> bool:
    """Whether it has the length of numbers in the region."""
    parsed = _parsed(number, region)
    return parsed is not None and phonenumbers.is_possible_number(parsed)
