"""Finds dates, and dates of birth among them."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from consumers.engine.redaction.numbers import Digits, Run
from consumers.engine.redaction.words import (
    BIRTH_WORDS,
    BIRTHDAY_WORDS,
    CENTURIES,
    DAY_ENDINGS,
    DECADES,
    MONTHS,
    NO_BIRTH_WORDS,
    ORDINALS,
    POINTERS,
    TEENS,
    TENS,
    UNITS,
    Span,
    WordKind,
    Words,
)

# Finds days as people write and say them: "3/14/85", "March 3rd, 1985", "the third of march nineteen eighty five".

OLD_TWO_DIGIT_YEAR: Final = 40
"""First two-digit year of the last century."""
_CENTURY: Final = 1900
_MOST_DAYS: Final = 31
_MONTHS_A_YEAR: Final = 12
_FIRST_YEAR: Final = 1880
_LAST_YEAR: Final = 2099

SAID_IN_DATES: Final = frozenset({*MONTHS, "born", "birth"})
"""A text without any of these words spells out no date."""
_MAY_BEGIN: Final = frozenset({*MONTHS, *ORDINALS, *UNITS, *TEENS, *TENS, "the"})
"""Words with which a day or a year begins."""
_NUMERIC: Final = re.compile(
    r"(?<![\d.:/-])(?:(?P<y>\d{4})(?P<s>[-/.])(?P<m>\d{1,2})(?P=s)(?P<d>\d{1,2})"
    r"|(?P<a>\d{1,2})(?P<t>[-/.])(?P<b>\d{1,2})(?P=t)(?P<c>\d{4}|\d{2}))(?![\d:]|[-/.]\d)"
)


class Date(NamedTuple):
    """A day in a text, from word `first` to word `last`.

    Attributes:
        year: The year in full; None without one.
        has_day: Whether more than the month or the year is given.
        has_century: Whether the year has its century: 1985, nineteen eighty five.
    """

    first: int
    last: int
    year: int | None
    has_day: bool = True
    has_century: bool = True


def find_dates(words: Words) -> Iterator[Date]:
    """Every day in the text, from left to right; months with their year, and years behind "born in"."""
    numeric = _numeric(words)
    if words.texts.isdisjoint(SAID_IN_DATES):
        yield from numeric.values()
        return
    index = 0
    while index < len(words.all):
        word = words.all[index]
        if word.kind is not WordKind.NUMBER and word.text not in _MAY_BEGIN:
            index += 1
            continue
        date = numeric.get(index) or _in_words(words, index) or _year_of_birth(words, index)
        if date is not None:
            yield date
        index = index + 1 if date is None else date.last + 1


def has_numeric_date(text: str) -> bool:
    """Whether something in the text has the form of a day in figures."""
    return _NUMERIC.search(text) is not None


def full_year(year: int) -> int:
    """A year of two digits with its century.

    Example:
        >>> full_year(85), full_year(7), full_year(1985)
        (1985, 2007, 1985)
    """
    if year > 99:  # two digits
        return year
    return year + (_CENTURY if year >= OLD_TWO_DIGIT_YEAR else _CENTURY + 100)


def is_day(first: int, second: int) -> bool:
    """Whether two numbers can be a day and a month, in either order."""
    return 1 <= min(first, second) <= _MONTHS_A_YEAR and 1 <= max(first, second) <= _MOST_DAYS


def _numeric(words: Words) -> dict[int, Date]:
    """Days in figures, by the index of their first word."""
    found: dict[int, Date] = {}
    index = 0
    for match in _NUMERIC.finditer(words.source):
        while words.all[index].end <= match.start():
            index += 1
        last = index
        while words.all[last].end < match.end():
            last += 1
        if match["y"] is not None:
            year, one, other = int(match["y"]), int(match["m"]), int(match["d"])
        else:
            year, one, other = full_year(int(match["c"])), int(match["a"]), int(match["b"])
        if is_day(one, other) and _FIRST_YEAR <= year <= _LAST_YEAR:
            has_century = match["y"] is not None or len(match["c"]) > 2
            found[index] = Date(index, last, year, has_century=has_century)
    return found


def _in_words(words: Words, index: int) -> Date | None:
    """March 3rd 1985, or the 3rd of March 1985; the year may be missing."""
    if words.all[index].text in MONTHS:
        at = index + 1
        at += words.is_at(at, {"."})
        at += words.is_at(at, {"the"})
        day = _day(words, at)
        if day is not None:
            return _with_year(words, index, day)
        at += words.is_at(at, {"of", ","})
        year, last = _year(words, at)
        return None if year is None else Date(index, last, year, has_day=False)
    begin = index + 1 if words.all[index].text == "the" else index
    day = _day(words, begin)
    if day is None:
        return None
    month = day + 1
    while words.is_at(month, {"of", "-", ".", "day"}) and month <= day + 2:
        month += 1
    if not words.is_at(month, MONTHS):
        return None
    return _with_year(words, index, month)


def _with_year(words: Words, first: int, last: int) -> Date:
    at = last + 1
    while words.is_at(at, {",", ".", "of", "in", "the", "year", "-", "'", "\u2019"}) and at <= last + 3:
        at += 1
    year, end = _year(words, at)
    if year is None:
        return Date(first, last, None)
    return Date(first, end, year, has_century=len(words.all[at].text) > 2 and words.all[at].text not in DECADES)


def _day(words: Words, index: int) -> int | None:
    """The last word of a day of the month that begins here."""
    if not 0 <= index < len(words.all):
        return None
    word = words.all[index]
    if word.kind is WordKind.NUMBER:
        if len(word.text) > 2 or not 1 <= int(word.text) <= _MOST_DAYS:  # a day has two digits
            return None
        return index + 1 if words.is_joined(index) and words.is_at(index + 1, DAY_ENDINGS) else index
    if word.text in ORDINALS or word.text in TEENS:
        return index
    if word.text in {"twenty", "thirty"}:
        unit = index + 2 if words.is_at(index + 1, {"-"}) else index + 1
        if unit < len(words.all) and (
            int(ORDINALS.get(words.all[unit].text, "10")) < 10 or words.all[unit].text in UNITS
        ):  # units
            return unit
        return index
    return index if UNITS.get(word.text, "0") != "0" else None


def _year(words: Words, index: int) -> tuple[int | None, int]:
    """The year that begins here, and its last word."""
    if not 0 <= index < len(words.all):
        return None, index
    word = words.all[index]
    if word.kind is WordKind.NUMBER:
        is_year = len(word.text) in {2, 4} and not words.is_at(index + 1, {":", "%"})
        year = full_year(int(word.text)) if is_year else 0
        return (year, index) if _FIRST_YEAR <= year <= _LAST_YEAR else (None, index)
    century = CENTURIES.get(word.text)
    if century is not None:
        at = index + 1
        at += words.is_at(at, {"-"})
        if words.is_at(at, {"hundred"}):
            at += 1
            at += words.is_at(at, {"and"})
            rest, last = _below_hundred(words, at)
            return (century, at - 1) if rest is None else (century + rest, last)
        rest, last = _below_hundred(words, at)
        if rest is not None:
            return century + rest, last
    if word.text == "two" and words.is_at(index + 1, {"thousand"}):
        at = index + 2
        at += words.is_at(at, {"and"})
        rest, last = _below_hundred(words, at)
        return (2000, index + 1) if rest is None else (2000 + rest, last)
    if word.text in TENS:
        rest, last = _below_hundred(words, index)
        if rest is not None and rest >= OLD_TWO_DIGIT_YEAR:
            return _CENTURY + rest, last
    return None, index


def _below_hundred(words: Words, index: int) -> tuple[int | None, int]:
    """Eighty five, oh five, twelve; and the last word of it."""
    if index >= len(words.all):
        return None, index
    text = words.all[index].text
    if text in TEENS:
        return int(TEENS[text]), index
    if text in TENS:
        unit = index + 2 if words.is_at(index + 1, {"-"}) else index + 1
        ones = UNITS.get(words.all[unit].text, "0") if unit < len(words.all) else "0"
        return (int(TENS[text] + ones), unit) if ones != "0" else (int(TENS[text]) * 10, index)
    if text in {"oh", "o", "zero"} and index + 1 < len(words.all) and words.all[index + 1].text in UNITS:
        return int(UNITS[words.all[index + 1].text]), index + 1
    if text in UNITS:
        return int(UNITS[text]), index
    return None, index


def _year_of_birth(words: Words, index: int) -> Date | None:
    """The year of "born in 1985"."""
    if not (words.is_at(index - 1, {"in"}) and words.is_at(index - 2, {"born", "birth"})):
        return None
    year, last = _year(words, index)
    return None if year is None else Date(index, last, year, has_day=False)


# Finds dates of birth: dates called one, and full dates so long ago that in a call they are hardly anything else.
#
# The year decides about a date that no word explains: a caller was born before the rules' latest year, and bookings,
# bills and appointments are later. The engine has no clock, so the year is a setting.

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
