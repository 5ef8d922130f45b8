"""Finds dates of birth: dates called one, and full dates so long ago that in a call they are hardly anything else.

The year decides about a date that no word explains: a caller was born before the rules' latest year, and bookings, bills and
appointments are later. The engine has no clock, so the year is a setting.
"""

from collections.abc import Iterator
from typing import Final

from consumers.engine.redaction.personal_data.dates import Date, find_dates, full_year, is_day
from consumers.engine.redaction.personal_data.digit_runs import Digits, Run
from consumers.engine.redaction.personal_data.span import Span
from consumers.engine.redaction.personal_data.vocabulary import BIRTH_WORDS, BIRTHDAY_WORDS, NO_BIRTH_WORDS, POINTERS
from consumers.engine.redaction.personal_data.words import Words

NEAR_WORDS: Final = 8
"""Greatest distance of a word that names a date's meaning: chosen on the labelled sentences of `tests/redaction`, as are the
next ones.
"""
NEAR_WORDS_OF_A_BIRTHDAY: Final = 5
NEAR_WORDS_BEHIND: Final = 4
NEAR_WORDS_OF_OTHERS: Final = 6
MOST_DIGITS: Final = 8
_DIGITS_OF_A_SHORT_YEAR: Final = 6
_EARLIEST_YEAR: Final = 1900
_LAST_OF_DOB: Final = "b"
WORDS_ABOUT_BIRTHS: Final = frozenset({*BIRTH_WORDS, _LAST_OF_DOB})
_WORDS_ABOUT_DATES: Final = frozenset({*WORDS_ABOUT_BIRTHS, *BIRTHDAY_WORDS, *NO_BIRTH_WORDS})


def find_birth_dates(words: Words, digits: Digits, latest_year: int) -> Iterator[Span]:
    """Places of dates of birth.

    Args:
        words: The text.
        digits: The dictated digits in it.
        latest_year: Last year of a full date that counts as one without a word about it.
    """
    taken = 0
    says_what = not words.texts.isdisjoint(_WORDS_ABOUT_DATES)
    for date in find_dates(words):
        said = _said(words, date, latest_year) if says_what else None
        if said or (said is None and _is_long_ago(words, date, latest_year)):
            span = Span(words.all[date.first].start, words.all[date.last].end)
            taken = span.end
            yield span
    if taken == 0 and not words.texts.isdisjoint(WORDS_ABOUT_BIRTHS):
        yield from _dictated(words, digits)


def _said(words: Words, date: Date, latest_year: int) -> bool | None:
    """Whether the words around a date make it a date of birth; None when no word decides."""
    for near in words.before(date.first, NEAR_WORDS):
        if near.text in BIRTH_WORDS or _is_spelled_dob(words, near.place):
            return True
        if near.text in BIRTHDAY_WORDS and near.distance <= NEAR_WORDS_OF_A_BIRTHDAY:
            return _is_old(date, latest_year) or date.year is None
        if near.text in NO_BIRTH_WORDS and near.distance <= NEAR_WORDS_OF_OTHERS:
            return False
    is_first = True
    for near in words.after(date.last, NEAR_WORDS_BEHIND):
        if is_first and near.text not in POINTERS:
            break
        is_first = False
        if near.text in BIRTH_WORDS or near.text in BIRTHDAY_WORDS:
            return True
    return None


def _is_old(date: Date, latest_year: int) -> bool:
    return date.year is not None and _EARLIEST_YEAR <= date.year <= latest_year


def _is_long_ago(words: Words, date: Date, latest_year: int) -> bool:
    """Whether it is a date of birth although no word says so."""
    # Without a word about it 3/14/85 is one, while 3.14.85 may be a version and "march fourteenth, eighty five" two numbers.
    is_certain = date.has_century or words.is_at(date.first + 1, {"/"})
    return _is_old(date, latest_year) and date.has_day and is_certain


def _is_spelled_dob(words: Words, index: int) -> bool:
    """Whether a word is the last of d o b, or of d.o.b."""
    for letter in "bod":
        if not words.is_at(index, {letter}):
            return False
        index -= 2 if words.is_at(index - 1, {"."}) else 1
    return True


def _dictated(words: Words, digits: Digits) -> Iterator[Span]:
    """Digits behind "date of birth" that can be a day, dictated one by one or in groups."""
    for run in digits.runs:
        if _is_asked_for(words, run):
            last = _end_of_day(run)
            if last is not None:
                yield Span(words.all[run.groups[0].first].start, words.all[run.groups[last].last].end)


def _is_asked_for(words: Words, run: Run) -> bool:
    return any(
        near.text in BIRTH_WORDS or _is_spelled_dob(words, near.place)
        for near in words.before(run.groups[0].first, NEAR_WORDS_OF_A_BIRTHDAY)
    )


def _end_of_day(run: Run) -> int | None:
    """The last group of the longest day at the beginning of the run."""
    number, found = "", None
    for index, group in enumerate(run.groups):
        number += group.digits
        if len(number) > MOST_DIGITS:
            break
        if _can_be_a_day(number) or _is_day_by_day(run, index):
            found = index
    return found


def _is_day_by_day(run: Run, last: int) -> bool:
    """Whether day, month and year are groups of their own."""
    if last < 2:  # three parts
        return False
    one, other, year = run.digits(0, 0), run.digits(1, 1), run.digits(2, last)
    has_parts = len(one) <= 2 >= len(other) and len(year) in {2, 4}
    return has_parts and is_day(int(one), int(other)) and _is_year(full_year(int(year)))


def _can_be_a_day(number: str) -> bool:
    if len(number) in {5, 7}:
        number = "0" + number
    if len(number) == _DIGITS_OF_A_SHORT_YEAR:
        return is_day(int(number[:2]), int(number[2:4]))
    if len(number) != MOST_DIGITS:
        return False
    at_end, at_begin = full_year(int(number[4:])), full_year(int(number[:4]))
    return (_is_year(at_end) and is_day(int(number[:2]), int(number[2:4]))) or (
        _is_year(at_begin) and is_day(int(number[4:6]), int(number[6:]))
    )


def _is_year(year: int) -> bool:
    return _EARLIEST_YEAR - 20 <= year <= _EARLIEST_YEAR + 199
