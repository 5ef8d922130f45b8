"""Finds numbers of cards, accounts and telephones, in digits or dictated."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, cached_property
from string import ascii_lowercase
from typing import Final, NamedTuple

import phonenumbers
from stdnum import iban, luhn, numdb

from consumers.engine.redaction.languages import (
    ANY_LANGUAGE,
    BEGUN,
    ENGLISH,
    FRENCH,
    GERMAN,
    HUNDRED,
    HYPHENS,
    ITALIAN,
    MAY_BEGIN_A_NUMBER,
    PHRASES,
    REPEAT_WORDS,
    SPANISH,
)
from consumers.engine.redaction.vocabulary import (
    ARTICLES,
    BETWEEN_NAME_AND_NUMBER,
    CARD_WORDS,
    CODES_OF_A_PLACE,
    JOINING_WORDS,
    LETTER_NAMES,
    LIKE,
    NAMED_NUMBERS,
    NO_PAYMENT_CARDS,
    NO_PHONE_WORDS,
    NUMBER_NOUNS,
    OWNERS,
    PAUSING_WORDS,
    PHONE_WORDS,
    PLACE_WORDS,
    PLUS,
    POINTERS,
    SPELLING_WORDS,
    WORDS_ABOUT_NUMBERS,
    WORDS_OF_AN_ANSWER,
)
from consumers.engine.redaction.words import GERMAN_NUMBER, CharSpan, Near, WordKind, Words

# Finds digits as people dictate them: written or spoken, in groups, with pauses and fillers between
# them.

MAX_GAP_WORDS: Final = 6
"""Words and signs that may come between two groups of digits."""

_JOINING_SIGNS: Final = frozenset("-\u2010\u2011\u2013\u2014/()\u00b7_")
_PAUSING_SIGNS: Final = frozenset(",;\u2026")
_DIGITS_BELOW_HUNDRED: Final = 2
_LONGEST_CODE: Final = 16
"""Words and signs on one side of a number among which a letter makes all of it a code:
order_2026_0012.
"""


class Group(NamedTuple):
    """Digits said or written in one go: a number, "four", "forty-one", "double five"; from word
    `first` to word `last`.
    """

    digits: str
    first: int
    last: int
    is_spoken: bool
    languages: int = ANY_LANGUAGE


class SpokenNumber(NamedTuple):
    """A number in words: its digits, its last word, and the languages in which it is one."""

    digits: str
    last: int
    languages: int


class Run(NamedTuple):
    """Consecutive groups with nothing but pauses, dashes and the like between them.

    `pauses` says for each group whether there is a pause before it; there is one before the first.
    """

    groups: tuple[Group, ...]
    pauses: tuple[bool, ...]

    @property
    def length(self) -> int:
        """Number of its digits."""
        return sum(len(group.digits) for group in self.groups)

    def is_spoken(self, first: int, last: int) -> bool:
        """Whether any of the groups `first` to `last` is in words."""
        return any(group.is_spoken for group in self.groups[first : last + 1])

    def digits(self, first: int, last: int) -> str:
        """The digits of the groups `first` to `last`, both included."""
        return "".join(group.digits for group in self.groups[first : last + 1])


class Digits:
    """The dictated digits of a text."""

    def __init__(self, words: Words) -> None:
        self.words = words

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """All runs in order."""
        runs: list[Run] = []
        groups: list[Group] = []
        pauses: list[bool] = []
        languages = ANY_LANGUAGE
        for group in self._groups():
            pause = self._pause(groups[-1].last, group.first) if groups else True
            if pause is None or not languages & group.languages:
                runs.append(Run(tuple(groups), tuple(pauses)))
                groups, pauses, pause, languages = [], [], True, ANY_LANGUAGE
            languages &= group.languages
            groups.append(group)
            pauses.append(pause)
        return (*runs, Run(tuple(groups), tuple(pauses))) if groups else tuple(runs)

    def _groups(self) -> Iterator[Group]:
        words, index = self.words.all, 0
        while index < len(words):
            word = words[index]
            group = None
            if word.kind is WordKind.NUMBER:
                if index not in self.words.undictated and not self._is_part_of_a_code(index):
                    group = Group(word.text, index, index, is_spoken=False)
            elif word.text in MAY_BEGIN_A_NUMBER:
                group = self._spoken(index)
            if group is None:
                index += 1
            else:
                yield group
                index = group.last + 1

    def _spoken(self, index: int) -> Group | None:
        words = self.words
        said = said_number(words, index)
        if said is None:
            times = REPEAT_WORDS.get(words.all[index].text, 0)
            digit = words.all[index + 1].text if index + 1 < len(words.all) else ""
            return (
                Group(digit * times, index, index + 1, is_spoken=True)
                if times and _is_one_digit(digit)
                else None
            )
        if words.all[index].text == "o" and not self._is_zero(index):
            return None
        return Group(said.digits, index, said.last, is_spoken=True, languages=said.languages)

    def _is_zero(self, index: int) -> bool:
        """Whether an o is a digit: beside one that English has, not between two numbers of which
        one is meant.
        """
        for beside in (index - 1, index + 1):
            if 0 <= beside < len(self.words.all):
                text = self.words.all[beside].text
                if _is_one_digit(text) or PHRASES.get(text, ("", 0))[1] & ENGLISH:
                    return True
        return False

    def _is_part_of_a_code(self, index: int) -> bool:
        """Whether letters touch the digits: a booking code, a flight, the 3rd, an identifier."""
        if index > 0 and self._is_lettered(index, -1):
            return True
        return self._is_lettered(index, 1) and not self.words.is_at(index + 1, {"x", "ext"})

    def _is_lettered(self, index: int, step: int) -> bool:
        """Whether letters are joined to a number on one side, or an underscore that joins it to no
        other number.
        """
        words, at = self.words, index
        for _ in range(_LONGEST_CODE):
            if not words.is_joined(min(at, at + step)):
                break
            at += step
            if words.all[at].kind is WordKind.WORD:
                return True
            if words.all[at].kind is not WordKind.NUMBER and words.all[at].text != "_":
                at -= step
                break
        return words.all[at].text == "_"

    def _pause(self, last: int, first: int) -> bool | None:
        """Whether there is a pause between two groups; None when they are in different runs."""
        if first - last - 1 > MAX_GAP_WORDS:
            return None
        is_pause = False
        for index in range(last + 1, first):
            text = self.words.all[index].text
            if text in _PAUSING_SIGNS or text in PAUSING_WORDS:
                is_pause = True
            elif text == ".":
                is_pause = is_pause or not self.words.is_joined(index)
            elif text not in _JOINING_SIGNS and text not in JOINING_WORDS and not _is_layout(text):
                return None
        return is_pause


def said_number(words: Words, index: int) -> SpokenNumber | None:
    """The longest number in words that begins at an index, up to hundreds."""
    said = _phrase(words, index)
    if said is None:
        return None
    languages = said.languages & HUNDRED.get(_text(words, said.last + 1), 0)
    if languages and len(said.digits) <= _DIGITS_BELOW_HUNDRED and said.digits[0] != "0":
        said = SpokenNumber(f"{said.digits}00", said.last + 1, languages)
    elif (
        len(said.digits) <= _DIGITS_BELOW_HUNDRED
        or not said.digits.endswith("00")
        or said.digits[0] == "0"
    ):
        return said
    # In English "eight hundred five five five" are digits; the other languages add what follows.
    rest = None if said.languages == ENGLISH else _phrase(words, said.last + 1)
    if rest is None or not rest.languages & said.languages or rest.digits[0] == "0":
        return said
    is_one_of_many = (
        len(rest.digits) == 1 and len(PHRASES.get(_text(words, rest.last + 1), ("", 0))[0]) == 1
    )
    if is_one_of_many or len(rest.digits) > _DIGITS_BELOW_HUNDRED:
        return said
    return SpokenNumber(
        str(int(said.digits) + int(rest.digits)), rest.last, rest.languages & said.languages
    )


def _phrase(words: Words, index: int) -> SpokenNumber | None:
    """The longest phrase that begins at an index and is a number; hyphens may join its words."""
    phrase = _text(words, index)
    found, last = None, index
    while phrase:
        number = PHRASES.get(phrase)
        if number is not None:
            found = SpokenNumber(number[0], last, number[1])
        if phrase not in BEGUN:
            break
        last = last + 2 if words.is_at(last + 1, HYPHENS) and words.is_joined(last) else last + 1
        following = _text(words, last)
        phrase = f"{phrase}_{following}" if following else ""
    return found


def _text(words: Words, index: int) -> str:
    return words.all[index].text if index < len(words.all) else ""


def _is_one_digit(text: str) -> bool:
    return len(text) == 1 and text.isdecimal()


def _is_layout(text: str) -> bool:
    """Whether it is the end of a line, written as one, or markup."""
    return len(text) > 1 and text[0] in "\\<"


# Finds card numbers: by length, first digits and check digit, or by words that name a card.

MOST_CARD_DIGITS: Final = 19
FEWEST_SAID_TO_BE_ONE: Final = 13
"""Fewest digits of a number that words call a card's, so that one misheard digit hides nothing."""
NEAR_CARD_WORDS: Final = 8
NEAR_WORDS_BEHIND: Final = 4
"""Greatest distance of "card" behind a number: "that's my visa card"."""
FEWEST_CARD_DIGITS: Final = 13
WRITTEN_GROUP: Final = 4
"""Digits of a written group with which a card may begin in the middle of others."""

MOST_WORDS_OF_A_NAME: Final = 4
"""Words and signs between a name and its number: "order number is:"."""

_NAMING_SIGNS: Final = frozenset({":", "=", "#"})
_FIRST_DIGITS: Final = "23456"
_CARD: Final = re.compile(
    r"4\d{12}(?:\d{3}){0,2}"
    r"|(?:5[1-5]\d\d|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}"
    r"|3[47]\d{13}"
    r"|3(?:0[0-5]|[689]\d)\d{11}"
    r"|(?:6011|64[4-9]\d|65\d\d|62\d\d|35(?:2[89]|[3-8]\d))\d{12,15}"
    r"|(?:50|5[6-9]|6[37])\d{14}(?:\d{2,3})?"
)


def find_cards(words: Words, digits: Digits) -> Iterator[CharSpan]:
    """Places of card numbers, from left to right."""
    says_card = not words.texts.isdisjoint(CARD_WORDS)
    for run in digits.runs:
        first = 0
        while first < len(run.groups):
            last = _last_of_card(run, first) if _may_begin(run, first) else None
            if last is not None and _is_named(words, run.groups[first].first):
                first = last + 1
                while first < len(run.groups) and not run.pauses[first]:
                    first += 1
                continue
            if last is None and says_card and run.pauses[first]:
                last = _end_of_said_one(words, run, first)
            if last is not None:
                yield CharSpan(
                    words.all[run.groups[first].first].start, words.all[run.groups[last].last].end
                )
            first = first + 1 if last is None else last + 1


def _is_named(words: Words, begin: int) -> bool:
    """Whether words right before a number name it, and not a card: "your order number is",
    "Ticket:".
    """
    at = begin - 1
    for _ in range(MOST_WORDS_OF_A_NAME):
        if not words.is_at(at, _NAMING_SIGNS) and not words.is_at(at, BETWEEN_NAME_AND_NUMBER):
            break
        at -= 1
    if not words.is_at(at, NAMED_NUMBERS):
        return False
    return words.texts.isdisjoint(CARD_WORDS) or not any(
        near.text in CARD_WORDS for near in words.before(begin, NEAR_CARD_WORDS)
    )


def is_card_number(digits: str) -> bool:
    """Whether these digits have the form of a card's, and the check digit fits."""
    return _CARD.fullmatch(digits) is not None and luhn.is_valid(digits)


def _may_begin(run: Run, first: int) -> bool:
    group = run.groups[first]
    return run.pauses[first] or (not group.is_spoken and len(group.digits) >= WRITTEN_GROUP)


def _last_of_card(run: Run, first: int) -> int | None:
    """The last group of the longest card number that begins here."""
    text, found = "", None
    if run.groups[first].digits[0] not in _FIRST_DIGITS:
        return None
    for index in range(first, len(run.groups)):
        text += run.groups[index].digits
        if len(text) > MOST_CARD_DIGITS:
            break
        if len(text) >= FEWEST_CARD_DIGITS and is_card_number(text):
            found = index
    return found


def _end_of_said_one(words: Words, run: Run, first: int) -> int | None:
    """The last group of a number that begins here and that words before or just behind it call a
    card's.
    """
    if run.groups[first].digits[0] not in _FIRST_DIGITS:
        return None
    last = _end_of_dictation(run, first)
    if last is None:
        return None
    for near in words.before(run.groups[first].first, NEAR_CARD_WORDS):
        if near.text in NO_PAYMENT_CARDS:
            return None
        if near.text in CARD_WORDS:
            return None if _is_of_another_kind(words, near.place) else last
    return last if _is_called_one_behind(words, run.groups[last].last) else None


def _is_called_one_behind(words: Words, last: int) -> bool:
    """Whether a sentence begins or goes on behind a number with "that's my card", or the like."""
    behind = list(words.after(last, NEAR_WORDS_BEHIND))
    if not behind or behind[0].text not in POINTERS:
        return False
    for near in behind[1:]:
        if near.is_beyond_sentence != behind[0].is_beyond_sentence or near.text in NO_PAYMENT_CARDS:
            return False
        if near.text in CARD_WORDS:
            return True
    return False


def _is_of_another_kind(words: Words, card: int) -> bool:
    """Whether this card pays nothing: a gift card."""
    return any(words.is_at(card - step, NO_PAYMENT_CARDS) for step in (1, 2))


def _end_of_dictation(run: Run, first: int) -> int | None:
    """The last group of a number as long as a card's that ends with a pause or with the
    dictation.
    """
    count, found = 0, None
    for index in range(first, len(run.groups)):
        count += len(run.groups[index].digits)
        if count > MOST_CARD_DIGITS:
            break
        is_end = index + 1 == len(run.groups) or run.pauses[index + 1]
        if count >= FEWEST_SAID_TO_BE_ONE and is_end:
            found = index
    return found


# Finds bank accounts: a country, two check digits and the form of that country's accounts, written
# or spelled letter by letter.

MOST_LETTERS_OF_A_GROUP: Final = 6
"""Longest group of letters in an account; a longer one is a word, and ends the account."""
MAX_IBAN_GAP_WORDS: Final = 3
NEAR_IBAN_WORDS: Final = 6

CHECK_DIGITS: Final = 2

_CUES: Final = frozenset({"iban", "ibans"})
_GAPS: Final = frozenset({"-", "\u2013", ",", ".", *PAUSING_WORDS, *JOINING_WORDS}) - {"e", "y"}
_ALPHABETS: Final = tuple(
    zip((ENGLISH, GERMAN, FRENCH, SPANISH, ITALIAN), LETTER_NAMES, strict=True)
)
_LONG_NAMES: Final = tuple(
    frozenset(name for name in names if len(name) > 1) for names in LETTER_NAMES
)
_PARTS: Final = re.compile(r"(\d+)!")


class _Spelling:
    """The letters and digits of a text from some word on, word by word."""

    def __init__(
        self, words: Words, digits: Digits, language: int, names: Mapping[str, str]
    ) -> None:
        """Reads letters by their names in one language; without a language, letters by
        themselves.
        """
        self._words = words
        self._language = language
        self._names = names
        self._groups: dict[int, Group] = {
            group.first: group for run in digits.runs for group in run.groups
        }

    def part(self, index: int) -> tuple[str, int] | None:
        """The characters of the word at an index, and the index of its last word; None when it has
        none.
        """
        word = self._words.all[index]
        group = self._groups.get(index)
        if group is not None and group.languages & self._language:
            return group.digits, group.last
        if word.kind is WordKind.NUMBER:
            return word.text, index
        if word.kind is not WordKind.WORD:
            return None
        names = self._names
        if (
            names
            and (of_two := names.get(f"{word.text}_{_text(self._words, index + 1)}")) is not None
        ):
            return of_two, index + 1
        letters = names.get(word.text) or SPELLING_WORDS.get(word.text, word.text)
        if len(letters) == 1:
            return letters, self._end_of_example(index, letters)
        return (
            (letters, index)
            if letters.isascii() and len(letters) <= MOST_LETTERS_OF_A_GROUP
            else None
        )

    def _end_of_example(self, index: int, letter: str) -> int:
        """The last word of a letter with an example: "d wie Dora", "b as in bravo"."""
        end = index + 1
        while self._words.is_at(end, LIKE) and end <= index + 2:
            end += 1
        example = _text(self._words, end)
        is_one = end > index + 1 and len(example) > 1 and example.startswith(letter)
        return end if is_one else index

    def next(self, index: int) -> int | None:
        """The index of the next word after pauses and dashes; None when something other follows."""
        for following in range(
            index + 1, min(index + 2 + MAX_IBAN_GAP_WORDS, len(self._words.all))
        ):
            if self._words.all[following].text not in _GAPS:
                return following
        return None


def find_ibans(words: Words, digits: Digits) -> Iterator[CharSpan]:
    """Places of bank accounts, from left to right."""
    may_begin = beginnings()
    if words.texts.isdisjoint(may_begin):
        return
    spellings = [_Spelling(words, digits, ANY_LANGUAGE, {})]
    for (language, names), long_names in zip(_ALPHABETS, _LONG_NAMES, strict=True):
        if not words.texts.isdisjoint(long_names):
            spellings.append(_Spelling(words, digits, language, names))
    index = 0
    while index < len(words.all):
        last = None
        if words.all[index].text in may_begin:
            ends = (_last_of_account(words, spelling, index) for spelling in spellings)
            last = next((end for end in ends if end is not None), None)
        if last is not None:
            yield CharSpan(words.all[index].start, words.all[last].end)
        index = index + 1 if last is None else last + 1


@cache
def beginnings() -> frozenset[str]:
    """Words with which an account can begin: countries that have accounts, and letters of which
    they may be spelled.
    """
    letters = [*ascii_lowercase]
    countries = [
        one + other for one in letters for other in letters if _length((one + other).upper())
    ]
    return frozenset(
        {*letters, *countries, *SPELLING_WORDS, *(name for names in LETTER_NAMES for name in names)}
    )


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
        # as above
        if (len(account) >= 2 and not length) or (beginning[2:] and not beginning[2:].isdecimal()):
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
    return any(near.text in _CUES for near in words.before(first, NEAR_IBAN_WORDS))


@cache
def _length(country: str) -> int:
    """Length of an account of that country in letters and digits; 0 when it has none."""
    if not country.isalpha():
        return 0
    (_, facts), *_rest = numdb.get("iban").info(country)
    return 4 + sum(int(count) for count in _PARTS.findall(facts["bban"])) if "bban" in facts else 0


# Finds telephone numbers: with a country code, written as one, or dictated digits that the words
# around name.
#
# Any other number may as well be an order's or a code. It counts only where the text has nothing
# else, as in an answer.

FEWEST_PHONE_DIGITS: Final = 7
FEWEST_WITH_COUNTRY: Final = 8
FEWEST_WITHOUT_A_WORD: Final = 9
MOST_PHONE_DIGITS: Final = 15
"""Most digits of a telephone number in E.164."""
MOST_DIGITS_OF_A_RUN: Final = 200
"""Most consecutive digits with nothing but pauses between them; more are a table, which no caller
dictates.
"""
NEAR_WORDS: Final = 8
"""Greatest distance of a word that names a number's meaning: chosen on the labelled sentences of
`tests/redaction`, as are the next ones.
"""
NEAR_WORDS_OF_OTHERS: Final = 5
MOST_BARE_WORDS: Final = 8
"""Words and signs on either side of a number in an answer that consists of it."""

_COUNTRY_PREFIXES: Final = ("00", "011")
_NORTH_AMERICA: Final = 1
_NORTH_AMERICAN_GROUPS: Final = ([3, 3, 4], [1, 3, 3, 4])
_USUAL_GROUPS: Final = (
    [3, 3, 3],
    [3, 3, 4],
    [3, 2, 2, 2],
    [2, 3, 2, 2],
    [2, 3, 3],
    [2, 3, 4],
    [3, 6],
    [3, 7],
    [2, 4, 4],
)
"""Groups in which countries write numbers that need not begin with a 0: 612 345 678, 347 123 4567,
91 123 45 67.
"""


class _Plan(NamedTuple):
    """The form of a country's numbers without its code.

    Attributes:
        region: The country.
        begins_with_zero: Whether they are written with a 0 in front.
        is_american: Whether it is one of North America's, which have groups of their own.
        lengths: Numbers of digits without that 0.
    """

    region: str
    begins_with_zero: bool
    is_american: bool
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
            regions: Two-letter codes of countries whose numbers are known without their code.
                Unknown ones have no numbers.
        """
        self._plans = tuple(plan for plan in map(_plan, regions) if plan is not None)
        self._american = next(
            (
                region
                for region in regions
                if phonenumbers.country_code_for_region(region) == _NORTH_AMERICA
            ),
            None,
        )

    def find(self, words: Words, digits: Digits) -> Iterator[CharSpan]:
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
        """The last group of the number that begins at a group; a number by its own form comes
        before one that words name.
        """
        lasts = _candidates(run, first, is_table=is_table)
        for last in lasts:
            if self._is_one(words, run, first, last):
                return last
        for last in lasts:
            is_short = FEWEST_PHONE_DIGITS <= len(run.digits(first, last)) <= MOST_PHONE_DIGITS
            if is_short and not _is_marked(words, run, first) and _said(words, run, first, last):
                return last
        return None

    def _is_one(self, words: Words, run: Run, first: int, last: int) -> bool:
        number = run.digits(first, last)
        if _has_country_code(words, run.groups[first].first, number):
            return True
        if not FEWEST_WITHOUT_A_WORD <= len(number) <= MOST_PHONE_DIGITS or _is_marked(
            words, run, first
        ):
            return False
        is_spoken = run.is_spoken(first, last)
        is_in_groups = last > first and not is_spoken
        if (
            is_in_groups
            and self._american is not None
            and _has_groups(run, first, last, _NORTH_AMERICAN_GROUPS)
        ):
            is_possible = _is_possible(number, self._american)
            return is_possible and not _is_of_something_else(words, run.groups[first].first)
        is_dictated = is_in_groups or is_spoken or _is_bare(words, run)
        if not is_dictated or _said(words, run, first, last) is False:
            return False
        # Many a row of numbers is as long as a telephone's: without a 0 in front the groups have to
        # be a telephone's too.
        has_groups = not is_in_groups or all(map(_is_single, run.groups[first : last + 1]))
        is_usual = has_groups or _has_groups(run, first, last, _USUAL_GROUPS)
        return any(
            plan.fits(number)
            for plan in self._plans
            if plan.begins_with_zero or has_groups or (is_usual and not plan.is_american)
        )


def _plan(region: str) -> _Plan | None:
    metadata = phonenumbers.PhoneMetadata.metadata_for_region(region)
    if metadata is None or metadata.general_desc is None:
        return None
    is_american = metadata.country_code == _NORTH_AMERICA
    return _Plan(
        region,
        metadata.national_prefix == "0",
        is_american,
        frozenset(metadata.general_desc.possible_length),
    )


def _candidates(run: Run, first: int, *, is_table: bool) -> list[int]:
    """Last groups of numbers that may begin at a group, the longest number first. In a table they
    have no pauses inside.
    """
    if not run.pauses[first] and _is_single(run.groups[first]):
        return []
    lasts, count = [], 0
    for index in range(first, len(run.groups)):
        count += len(run.groups[index].digits)
        if count > MOST_PHONE_DIGITS + len(_COUNTRY_PREFIXES[-1]) or (
            is_table and index > first and run.pauses[index]
        ):
            break
        is_end = index + 1 == len(run.groups) or run.pauses[index + 1]
        if count >= FEWEST_PHONE_DIGITS and (is_end or not _is_single(run.groups[index + 1])):
            lasts.append(index)
    return lasts[::-1]


def _has_country_code(words: Words, begin: int, number: str) -> bool:
    """Whether a number has its country's code: +49, plus four nine, or 0049, which may also begin
    something else.
    """
    if words.is_at(begin - 1, PLUS) or (
        words.is_at(begin - 1, {"("}) and words.is_at(begin - 2, PLUS)
    ):
        return FEWEST_WITH_COUNTRY <= len(number) <= MOST_PHONE_DIGITS and _is_possible(
            f"+{number}", None
        )
    for prefix in _COUNTRY_PREFIXES:
        full = number.removeprefix(prefix)
        if full != number and FEWEST_WITH_COUNTRY <= len(full) <= MOST_PHONE_DIGITS:
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


def _has_groups(run: Run, first: int, last: int, usual: Collection[Sequence[int]]) -> bool:
    """Whether it is grouped like 415-555-0100 or (415) 555 0100, without pauses."""
    lengths = [len(group.digits) for group in run.groups[first : last + 1]]
    return lengths in usual and not any(run.pauses[first + 1 : last + 1])


def _is_single(group: Group) -> bool:
    """Whether it is dictated rather than written, so that a number begins and ends with a pause."""
    return group.is_spoken or len(group.digits) == 1


def _span(words: Words, run: Run, first: int, last: int) -> CharSpan:
    begin, end = run.groups[first].first, run.groups[last].last
    if words.is_at(begin - 1, {"("}):
        begin -= 1
    if words.is_at(begin - 1, PLUS):
        begin -= 1
    return CharSpan(words.all[begin].start, words.all[end].end)


def _is_of_something_else(words: Words, begin: int) -> bool:
    """Whether the words just before name something else; a number in the form of a telephone's
    needs more than a hint.
    """
    for near in words.before(begin, NEAR_WORDS_OF_OTHERS):
        if near.is_beyond_sentence or near.text in PHONE_WORDS:
            return False
        if _is_something_else(near.text):
            return True
    return False


def _said(words: Words, run: Run, first: int, last: int) -> bool | None:
    """Whether the words around call it a telephone number; False for something else, None when no
    word decides. The nearest word before it decides.
    """
    if words.texts.isdisjoint(WORDS_ABOUT_NUMBERS) and not words.has_german_number:
        return None
    begin, end = run.groups[first].first, run.groups[last].last
    for near in words.before(begin, NEAR_WORDS):
        if near.text in PHONE_WORDS or (
            near.text == "code" and words.is_at(near.place - 1, CODES_OF_A_PLACE)
        ):
            return True
        if _is_something_else(near.text) and not _is_where_it_stands(words, near):
            return False
        if near.text in NUMBER_NOUNS and words.is_at(near.place - 1, OWNERS):
            return True
    is_pointed_at = False
    for near in words.after(end, NEAR_WORDS_BEHIND):
        is_pointed_at = is_pointed_at or (near.distance == 1 and near.text in POINTERS)
        if near.text in PHONE_WORDS:
            return True
        if is_pointed_at and _is_something_else(near.text):
            return False
    return None


def _is_something_else(text: str) -> bool:
    """Whether it names something that has a number and is no telephone: order, Bestellung,
    Mitgliedsnummer.
    """
    return text in NO_PHONE_WORDS or (
        text.endswith(GERMAN_NUMBER) and text not in PHONE_WORDS and text != GERMAN_NUMBER
    )


def _is_where_it_stands(words: Words, near: Near) -> bool:
    """Whether a word only names the place of the number: "the phone number on the account is"."""
    is_place = words.is_at(near.place - 1, ARTICLES) and words.is_at(near.place - 2, PLACE_WORDS)
    return near.distance > 1 and (is_place or words.is_at(near.place - 1, {"on"}))


def _is_bare(words: Words, run: Run) -> bool:
    """Whether the text is this number and a few words without meaning for it."""
    begin, end = run.groups[0].first, run.groups[-1].last
    if begin > MOST_BARE_WORDS or len(words.all) - end > MOST_BARE_WORDS:
        return False
    around = [
        word
        for word in (*words.all[:begin], *words.all[end + 1 :])
        if word.kind is not WordKind.SIGN
    ]
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
