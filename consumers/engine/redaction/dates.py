"""Finds dates, and dates of birth among them."""

import re
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from consumers.engine.redaction.languages import (
    ANY_LANGUAGE,
    ENGLISH,
    FIRSTS,
    FRENCH,
    GERMAN,
    GERMAN_ORDINALS,
    HYPHENS,
    ITALIAN,
    MAY_BEGIN_A_NUMBER,
    MONTHS,
    SPANISH,
    THOUSANDS,
)
from consumers.engine.redaction.numbers import Digits, Run, SpokenNumber, said_number
from consumers.engine.redaction.vocabulary import (
    BIRTH_WORDS,
    BIRTHDAY_WORDS,
    CENTURIES,
    COPULAS,
    DAY_ENDINGS,
    DAY_NOUNS,
    DAY_PREPOSITIONS,
    DECADES,
    NO_BIRTH_WORDS,
    ORDINALS,
    OWNERS,
    PAUSING_WORDS,
    POINTERS,
    SAID_IN_DATES,
    SENTENCE_PREPOSITIONS,
    TEENS,
    TENS,
    THE,
    UNITS,
    VERBS_AT_THE_END,
    WORDS_OF_AN_ANSWER,
)
from consumers.engine.redaction.words import CharSpan, WordKind, Words

# Finds days as people write and say them: "3/14/85", "March 3rd, 1985", "the third of march
# nineteen eighty five".

OLD_TWO_DIGIT_YEAR: Final = 40
"""First two-digit year of the last century."""
_CENTURY: Final = 1900
_MOST_DAYS: Final = 31
_MONTHS_A_YEAR: Final = 12
_FIRST_YEAR: Final = 1880
_LAST_YEAR: Final = 2099

_MAY_BEGIN: Final = frozenset(
    {*MONTHS, *ORDINALS, *MAY_BEGIN_A_NUMBER, *GERMAN_ORDINALS, *FIRSTS, "the"}
)
"""Words with which a day or a year begins."""
_SPELLED_OUT: Final = SAID_IN_DATES | BIRTH_WORDS
_BEFORE_NUMBERS: Final = frozenset({"de", "del", "di", "du", ".", "/"})
"""Signs and words between a day and a month that is a number: 4 del 7, 4. 7., 4 / 7."""
_BEFORE_MONTHS: Final = frozenset({"of", "the", "-", "day"}) | _BEFORE_NUMBERS
_BEFORE_YEARS: Final = frozenset(
    {
        ",",
        ".",
        "of",
        "in",
        "the",
        "year",
        "-",
        "'",
        "\u2019",
        "de",
        "del",
        "di",
        "im",
        "en",
        "nel",
        "jahr",
        "año",
        "anno",
    }
)
_IN_A_YEAR: Final = frozenset({"in", "en", "nel", "im", "jahr", "jahre", "año", "anno", "el"})
_NUMERIC: Final = re.compile(
    r"(?<![\d.:/-])(?:(?P<y>\d{4})(?P<s>[-/.])(?P<m>\d{1,2})(?P=s)(?P<d>\d{1,2})"
    r"|(?P<a>\d{1,2})(?P<t>[-/.])(?P<b>\d{1,2})(?P=t)(?P<c>\d{4}|\d{2}))(?![\d:]|[-/.]\d)"
)


MOST_WORDS_BEFORE_A_YEAR: Final = 3
"""Words between "born" and a year: "en el año"."""


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
    """Every day in the text, from left to right; months with their year, and years behind "born
    in".
    """
    numeric = _numeric(words)
    if words.texts.isdisjoint(_SPELLED_OUT):
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
        year = _year(words, at)
        return None if year is None else Date(index, year.last, year.value, has_day=False)
    begin = index + 1 if words.all[index].text == "the" else index
    day, languages = _day_and_languages(words, begin)
    if day is None:
        return None
    month = day + 1
    while words.is_at(month, _BEFORE_MONTHS) and month <= day + 2:
        month += 1
    if words.is_at(month, MONTHS) and MONTHS[words.all[month].text] & languages:
        return _with_year(words, index, month)
    last = _numbered_month(words, month, languages, words.all[month - 1].text)
    date = None if last is None else _with_year(words, index, last)
    return date if date is not None and date.year is not None else None


def _numbered_month(words: Words, index: int, languages: int, before: str) -> int | None:
    """The last word of a month that is said as a number, as in "vierten siebten" and "cuatro del
    siete".
    """
    if index >= len(words.all):
        return None
    word = words.all[index]
    if word.text in GERMAN_ORDINALS:
        return (
            index if languages == GERMAN and GERMAN_ORDINALS[word.text] <= _MONTHS_A_YEAR else None
        )
    if before == "the" and word.text in ORDINALS:
        return index if languages & ENGLISH and int(ORDINALS[word.text]) <= _MONTHS_A_YEAR else None
    if before not in _BEFORE_NUMBERS:
        return None
    if word.kind is WordKind.NUMBER:
        return index if len(word.text) <= 2 and 1 <= int(word.text) <= _MONTHS_A_YEAR else None
    said = said_number(words, index)
    if said is None or not said.languages & languages & (FRENCH | SPANISH | ITALIAN):
        return None
    return said.last if 1 <= int(said.digits) <= _MONTHS_A_YEAR else None


def _with_year(words: Words, first: int, last: int) -> Date:
    at = last + 1
    while words.is_at(at, _BEFORE_YEARS) and at <= last + 3:
        at += 1
    year = _year(words, at)
    if year is None:
        return Date(first, last, None)
    return Date(first, year.last, year.value, has_century=year.has_century)


def _day_and_languages(words: Words, index: int) -> tuple[int | None, int]:
    """The last word of a day of the month that begins here, and the languages in which
    it is one.
    """
    day = _day(words, index)
    if day is not None:
        is_written = words.all[index].kind is WordKind.NUMBER
        said = None if is_written else said_number(words, index)
        others = said.languages if said is not None and said.last == day else 0
        return day, ANY_LANGUAGE if is_written else ENGLISH | others
    if not 0 <= index < len(words.all):
        return None, 0
    text = words.all[index].text
    if text in GERMAN_ORDINALS:
        return index, GERMAN
    if text in FIRSTS:
        return index, FIRSTS[text]
    said = said_number(words, index)
    if said is None or not said.digits.isdecimal() or not 1 <= int(said.digits) <= _MOST_DAYS:
        return None, 0
    return said.last, said.languages & ~ENGLISH


def _day(words: Words, index: int) -> int | None:
    """The last word of a day of the month in digits or in English that begins here."""
    if not 0 <= index < len(words.all):
        return None
    word = words.all[index]
    if word.kind is WordKind.NUMBER:
        if len(word.text) > 2 or not 1 <= int(word.text) <= _MOST_DAYS:  # a day has two digits
            return None
        return (
            index + 1 if words.is_joined(index) and words.is_at(index + 1, DAY_ENDINGS) else index
        )
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


class _Year(NamedTuple):
    """A year, its last word, and whether its century was said."""

    value: int
    last: int
    has_century: bool = True


def _year(words: Words, index: int) -> _Year | None:
    """The year that begins here."""
    if not 0 <= index < len(words.all):
        return None
    word = words.all[index]
    if word.kind is WordKind.NUMBER:
        is_year = len(word.text) in {2, 4} and not words.is_at(index + 1, {":", "%"})
        year = full_year(int(word.text)) if is_year else 0
        return _Year(year, index, len(word.text) > 2) if _FIRST_YEAR <= year <= _LAST_YEAR else None
    return _english_year(words, index) or _year_in_words(words, index)


def _english_year(words: Words, index: int) -> _Year | None:
    word = words.all[index]
    century = CENTURIES.get(word.text)
    if century is not None:
        at = index + 1
        at += words.is_at(at, {"-"})
        if words.is_at(at, {"hundred"}):
            at += 1
            at += words.is_at(at, {"and"})
            rest, last = _below_hundred(words, at)
            return _Year(century, at - 1) if rest is None else _Year(century + rest, last)
        rest, last = _below_hundred(words, at)
        if rest is not None:
            return _Year(century + rest, last)
    if word.text == "two" and words.is_at(index + 1, {"thousand"}):
        at = index + 2
        at += words.is_at(at, {"and"})
        rest, last = _below_hundred(words, at)
        return _Year(2000, index + 1) if rest is None else _Year(2000 + rest, last)
    if word.text in DECADES:
        rest, last = _below_hundred(words, index)
        if rest is not None and rest >= OLD_TWO_DIGIT_YEAR:
            return _Year(_CENTURY + rest, last, has_century=False)
    return None


def _year_in_words(words: Words, index: int) -> _Year | None:
    """A year in German, French, Spanish or Italian: neunzehnhundertsechsundsiebzig, mille neuf cent
    soixante-seize.
    """
    if words.all[index].text in {"mille", "mil"}:
        rest = said_number(words, index + 1) if index + 1 < len(words.all) else None
        if rest is None or not _FIRST_YEAR <= 1000 + int(rest.digits) < 2000:
            return None
        return _Year(1000 + int(rest.digits), rest.last)
    said = said_number(words, index)
    if said is None or said.languages == ENGLISH:
        return None
    value = int(said.digits)
    if value == 2 and words.is_at(said.last + 1, THOUSANDS):
        return _plus_years(words, SpokenNumber("2000", said.last + 1, said.languages))
    if len(said.digits) > 2 and _FIRST_YEAR <= value <= _LAST_YEAR:
        return _plus_years(words, said) if value % 100 == 0 else _Year(value, said.last)
    if len(said.digits) == 2 and value >= OLD_TWO_DIGIT_YEAR:
        return _Year(_CENTURY + value, said.last, has_century=False)
    return None


def _plus_years(words: Words, century: SpokenNumber) -> _Year:
    """A century and the years after it, in words of their own: deux mille cinq."""
    rest = said_number(words, century.last + 1) if century.last + 1 < len(words.all) else None
    if rest is None or len(rest.digits) > 2 or not rest.languages & century.languages:
        return _Year(int(century.digits), century.last)
    return _Year(int(century.digits) + int(rest.digits), rest.last)


def _below_hundred(words: Words, index: int) -> tuple[int | None, int]:
    """Eighty five, oh five, twelve; and the last word of it."""
    if index >= len(words.all):
        return None, index
    text = words.all[index].text
    unit = index + 2 if words.is_at(index + 1, HYPHENS) else index + 1
    if text in TEENS:
        return int(TEENS[text]), index
    if text in TENS:
        ones = UNITS.get(words.all[unit].text, "0") if unit < len(words.all) else "0"
        return (int(TENS[text] + ones), unit) if ones != "0" else (int(TENS[text]) * 10, index)
    if text in {"oh", "o", "zero"} and words.is_at(unit, UNITS):
        return int(UNITS[words.all[unit].text]), unit
    if text in UNITS:
        return int(UNITS[text]), index
    return None, index


def _goes_on(words: Words, index: int) -> bool:
    return index < len(words.all) and (
        words.all[index].kind is WordKind.NUMBER or words.all[index].text in MAY_BEGIN_A_NUMBER
    )


def _year_of_birth(words: Words, index: int) -> Date | None:
    """The year of "born in 1985", "geboren 1985" and "1985 geboren"."""
    year = _year(words, index)
    if year is None:
        return None
    is_in_words = words.all[index].kind is WordKind.WORD
    if (year.has_century or is_in_words) and _ends_with_born(words, year.last):
        return Date(index, year.last, year.value, has_day=False)
    at, steps = index - 1, 0
    while words.is_at(at, _IN_A_YEAR) and steps < MOST_WORDS_BEFORE_A_YEAR:
        at, steps = at - 1, steps + 1
    if not words.is_at(at, BIRTH_WORDS):
        return None
    # Digits may go on behind "born nineteen oh four", and then the four is a month.
    is_one = steps > 0 or (year.has_century and not _goes_on(words, year.last + 1))
    return Date(index, year.last, year.value, has_day=False) if is_one else None


# Finds dates of birth: dates called one, and full dates so long ago that in a call they are hardly
# anything else.
#
# The year decides about a date that no word explains: a caller was born before the rules' latest
# year, and bookings, bills and appointments are later. The engine has no clock, so the year is a
# setting.

NEAR_WORDS: Final = 8
"""Greatest distance of a word that names a date's meaning: chosen on the labelled sentences of
`tests/redaction`, as are the next ones.
"""
NEAR_WORDS_OF_A_BIRTHDAY: Final = 5
NEAR_WORDS_BEHIND: Final = 5
NEAR_WORDS_OF_OTHERS: Final = 6
MOST_WORDS_OF_A_NOUN: Final = 4
"""Words and hyphens from an article to its noun: "the next team meeting", "le rendez-vous"."""
MOST_DIGITS: Final = 8
_DIGITS_OF_A_SHORT_YEAR: Final = 6
_EARLIEST_YEAR: Final = 1900
_LAST_OF_DOB: Final = "b"
WORDS_ABOUT_BIRTHS: Final = frozenset({*BIRTH_WORDS, _LAST_OF_DOB})
_WORDS_ABOUT_DATES: Final = frozenset({*WORDS_ABOUT_BIRTHS, *BIRTHDAY_WORDS, *NO_BIRTH_WORDS})


def find_birth_dates(words: Words, digits: Digits, latest_year: int) -> Iterator[CharSpan]:
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
        if said or (
            said is None
            and _is_long_ago(words, date, latest_year)
            and not _is_of_something_else(words, date)
        ):
            span = CharSpan(words.all[date.first].start, words.all[date.last].end)
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
    return True if _is_called_one_behind(words, date.last) else None


def _is_called_one_behind(words: Words, last: int) -> bool:
    """Whether a sentence goes on behind a day with "is my birthday", or ends with "geboren"."""
    if _ends_with_born(words, last):
        return True
    behind = list(words.after(last, NEAR_WORDS_BEHIND))
    return (
        bool(behind)
        and behind[0].text in POINTERS
        and any(near.text in BIRTH_WORDS or near.text in BIRTHDAY_WORDS for near in behind)
    )


def _is_old(date: Date, latest_year: int) -> bool:
    return date.year is not None and _EARLIEST_YEAR <= date.year <= latest_year


def _is_long_ago(words: Words, date: Date, latest_year: int) -> bool:
    """Whether it is a date of birth although no word says so."""
    # Without a word about it 3/14/85 is one, while 3.14.85 may be a version and "march fourteenth,
    # eighty five" two numbers.
    is_certain = date.has_century or words.is_at(date.first + 1, {"/"})
    return _is_old(date, latest_year) and date.has_day and is_certain


def _is_of_something_else(words: Words, date: Date) -> bool:
    """Whether the words right before a date say when something was: "the meeting is at", "we met
    there on".
    """
    at = date.first - 1
    is_placed = words.is_at(at, DAY_PREPOSITIONS)
    at -= is_placed
    at -= words.is_at(at + 1, SENTENCE_PREPOSITIONS) and words.is_at(at, {","})
    if words.is_at(at, COPULAS):
        return _is_about_a_thing(words, at, THE | OWNERS if is_placed else THE)
    if not is_placed or at < 0:
        return False
    if words.all[at].kind is WordKind.NUMBER:  # the first day of several: "from 2001-05-06 to"
        return True
    if words.all[at].kind is not WordKind.WORD:
        return False
    return words.all[at].text not in WORDS_OF_AN_ANSWER and words.all[at].text not in PAUSING_WORDS


def _ends_with_born(words: Words, last: int) -> bool:
    """Whether the verb comes right behind, as in German: "am 4. Juli geboren". With "geboren am"
    the day comes later.
    """
    return words.is_at(last + 1, VERBS_AT_THE_END) and not words.is_at(
        last + 2, DAY_PREPOSITIONS | _IN_A_YEAR
    )


def _is_about_a_thing(words: Words, copula: int, articles: Collection[str]) -> bool:
    """Whether a noun with its article is what is or was then; "this is" and "das ist" have none."""
    if words.is_at(copula - 1, DAY_NOUNS):
        return False
    for at in range(copula - 2, max(-1, copula - 2 - MOST_WORDS_OF_A_NOUN), -1):
        if words.all[at].kind is not WordKind.WORD and words.all[at].text not in HYPHENS:
            return False
        if words.all[at].text in articles:
            return True
    return False


def _is_spelled_dob(words: Words, index: int) -> bool:
    """Whether a word is the last of d o b, or of d.o.b."""
    for letter in "bod":
        if not words.is_at(index, {letter}):
            return False
        index -= 2 if words.is_at(index - 1, {"."}) else 1
    return True


def _dictated(words: Words, digits: Digits) -> Iterator[CharSpan]:
    """Digits behind "date of birth" that can be a day, dictated one by one or in groups."""
    for run in digits.runs:
        if _is_asked_for(words, run):
            last = _end_of_day(run)
            if last is not None:
                yield CharSpan(
                    words.all[run.groups[0].first].start, words.all[run.groups[last].last].end
                )


def _is_asked_for(words: Words, run: Run) -> bool:
    if _is_called_one_behind(words, run.groups[-1].last):
        return True
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
