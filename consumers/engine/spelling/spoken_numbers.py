"""Writes the numbers of a text in digits: "two hundred and five" as 205, as EVA does, so that
spelling is no error.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from consumers.engine.spelling.number_words import Kind, NumberRules, NumberWord

_NUMERAL: Final = re.compile(r"\d+(?:\.\d+)?")
_CENTS: Final = re.compile(r"([\u20ac\u00a3$])([0-9]+) (and )?\u00a2([0-9]{1,2})\b")
_CENTS_ALONE: Final = re.compile(r"[\u20ac\u00a3$]0.([0-9]{1,2})\b")
_ENGLISH_HALF: Final = re.compile(r"\band\s+a\s+half\b")
_ENGLISH_ONE: Final = re.compile(r"\b1(s?)\b")
_ENGLISH_SUFFIX: Final = re.compile(r"([0-9])\s+(st|nd|rd|th|s)\b")
_MOST_PARTS: Final = 10
"""How often a German compound is parted, as in EVA: each time one more word comes off
every part.
"""


class SpokenNumbers:
    """Reads the numbers of one language.

    Args:
        rules: How the language says them.
        letters: The letters of its script, as in a character class: numbers and letters are parted.
        is_english: Whether English's own rules hold: halves, "1st", and "one" where a number is a
            lone 1.
    """

    def __init__(
        self, rules: NumberRules, letters: str = "a-z", *, is_english: bool = False
    ) -> None:
        self._rules = rules
        self._is_english = is_english
        self._marks = frozenset(word.mark for word in rules.words.values() if word.mark) - {"%"}
        self._before_digit = re.compile(rf"([{letters}])([0-9])")
        self._behind_digit = re.compile(rf"([0-9])([{letters}])")
        self._compounds, self._turned = (
            _german_compounds(rules.words) if rules.says_ones_first else ((), ())
        )

    def written(self, text: str) -> str:
        """The text with its numbers in digits; it comes in small letters, without accents and
        symbols.

        Raises:
            ValueError: A number is longer than Python writes.
        """
        if self._is_english:
            text = self._with_halves(text)
        text = self._parted(self._in_order(text))
        if self._is_english:
            text = _ENGLISH_SUFFIX.sub(r"\1\2", text)
        text = self._parted(" ".join(_Reading(self._rules, self._marks, text.split()).read()))
        text = _CENTS.sub(self._with_cents, text)
        text = _CENTS_ALONE.sub(lambda found: f"\u00a2{int(found[1])}", text)
        return _ENGLISH_ONE.sub(r"one\1", text) if self._is_english else text

    def _parted(self, text: str) -> str:
        return self._behind_digit.sub(r"\1 \2", self._before_digit.sub(r"\1 \2", text))

    def _with_cents(self, found: re.Match[str]) -> str:
        if found[3] and not self._is_english:
            return found[0]
        return f"{found[1]}{found[2]}.{int(found[4]):02d}"

    def _with_halves(self, text: str) -> str:
        *segments, last = _ENGLISH_HALF.split(text)
        parts = []
        for segment in segments:
            if segment.strip():
                word = self._rules.words.get(segment.split()[-1])
                kinds = (Kind.ZERO, Kind.ONES, Kind.TENS, Kind.SCALE)
                is_number = word is not None and word.suffix is None and word.kind in kinds
                parts += [segment, "point five" if is_number else "and a half"]
        return " ".join([*parts, last] if last.strip() else parts)

    def _in_order(self, text: str) -> str:
        """German numbers from the large to the small: "zweihunderteinundzwanzig" is "zwei hundert
        zwanzig ein".
        """
        for _ in range(_MOST_PARTS):
            before = text
            for pattern in self._compounds:
                text = pattern.sub(r"\1 \2", text)
            if text == before:
                break
        for pattern in self._turned:
            text = pattern.sub(r"\2 \1", text)
        return text


def _german_compounds(
    words: Mapping[str, NumberWord],
) -> tuple[tuple[re.Pattern[str], ...], tuple[re.Pattern[str], ...]]:
    """Patterns of words that are written together, and of ones in front of tens."""

    def any_of(*kinds: Kind) -> str:
        # The longest first within a kind: "einer" before "ein". The kinds keep their order, as in
        # EVA.
        lists = [
            [word for word, its in words.items() if its.kind is kind and its.suffix is None]
            for kind in kinds
        ]
        return "|".join(word for each in lists for word in sorted(each, key=len, reverse=True))

    ones, tens, scales = map(any_of, (Kind.ONES, Kind.TENS, Kind.SCALE))
    parts = rf"\b({ones})({scales})", rf"\b({scales})({any_of(Kind.ONES, Kind.TENS)})"
    turned = rf"\b({ones})und({tens})\b", rf"\b({ones})\s+und\s+({tens})\b"
    return tuple(map(re.compile, parts)), tuple(map(re.compile, turned))


class _Reading:
    """One text, word by word: the number that grows, and the words that are done."""

    def __init__(self, rules: NumberRules, marks: frozenset[str], words: list[str]) -> None:
        self._rules = rules
        self._marks = marks
        self._words = words
        self._done: list[str] = []
        self._value: int | str | None = None
        """A number as text has digits that were said one by one, a point, or a zero in front."""
        self._mark = ""
        """A sign or a currency that belongs in front of the next word that is done."""

    def read(self) -> list[str]:
        """All words, numbers in digits."""
        at = 0
        while at < len(self._words):
            at += self._read(at)
        self._end_number()
        return self._done

    def _meaning(self, at: int) -> NumberWord | None:
        return self._rules.words.get(self._words[at]) if 0 <= at < len(self._words) else None

    def _is_numeral(self, at: int) -> bool:
        return at < len(self._words) and _NUMERAL.fullmatch(self._words[at]) is not None

    def _put(self, text: str) -> None:
        self._done.append(self._mark + text)
        self._value, self._mark = None, ""

    def _end_number(self) -> None:
        if self._value is not None:
            self._put(str(self._value))

    def _end_with(self, text: str) -> None:
        self._end_number()
        self._put(text)

    def _read(self, at: int) -> int:
        """Reads the word there, and says how many words that took."""
        text, word = self._words[at], self._meaning(at)
        mark = text[0] if text[0] in self._marks else ""
        if _NUMERAL.fullmatch(text.removeprefix(mark)):
            self._read_numeral(text.removeprefix(mark), mark)
        elif word is None:
            self._end_with(text)
        elif word.kind in (Kind.ZERO, Kind.ONES, Kind.TENS, Kind.SCALE):
            self._read_number_word(at, word)
        elif word.kind is Kind.SIGN:
            self._end_number()
            if self._may_be_number(at + 1):
                self._mark = word.mark
            else:
                self._put(text)
        elif word.kind is Kind.CURRENCY and self._value is not None:
            self._mark = word.mark
            self._end_number()
        elif word.kind is Kind.PERCENT and self._value is not None:
            return self._read_percent(at, word)
        elif word.kind in (Kind.CURRENCY, Kind.PERCENT) or not self._may_be_number(at + 1):
            self._end_with(text)
        elif word.kind is Kind.AND:
            before = self._meaning(at - 1)
            if (
                before is None
                or before.suffix is not None
                or before.kind not in self._rules.is_joined_after
            ):
                self._end_with(text)
        elif word.kind is Kind.REPEAT:
            return self._read_repeat(at, word)
        elif self._is_numeral(at + 1) or self._is_number_word(
            at + 1, Kind.ZERO, Kind.ONES, Kind.TENS
        ):
            self._value = f"{self._value or ''}."
        return 1

    def _may_be_number(self, at: int) -> bool:
        return self._meaning(at) is not None or self._is_numeral(at)

    def _is_number_word(self, at: int, *kinds: Kind) -> bool:
        word = self._meaning(at)
        return word is not None and word.suffix is None and word.kind in kinds

    def _read_numeral(self, digits: str, mark: str) -> None:
        amount = _fraction(digits)
        if amount is None:
            return  # more digits than Python reads: EVA leaves them out
        if isinstance(self._value, str) and self._value.endswith("."):
            self._value += mark + digits
            return
        self._end_number()
        self._mark = mark or self._mark
        self._value = amount.numerator if amount.denominator == 1 else digits

    def _read_number_word(self, at: int, word: NumberWord) -> None:
        if word.kind is Kind.ZERO:
            self._value = f"{self._value or ''}0"
            return
        if word.kind is Kind.ONES:
            self._value = self._with_ones(at, word.amount)
        elif word.kind is Kind.TENS:
            self._value = self._with_tens(self._words[at], word.amount)
        else:
            self._value = self._scaled(word.amount)
        if word.suffix is not None:
            self._put(f"{self._value}{word.suffix}")

    def _with_ones(self, at: int, amount: int) -> int | str:
        value = self._value
        if value is None:
            return amount
        says_digits = self._rules.says_digits and self._is_number_word(at - 1, Kind.ONES)
        if isinstance(value, str) or says_digits:
            replaces_zero = amount < 10 and self._is_number_word(at - 1, Kind.TENS)
            return f"{str(value)[:-1] if replaces_zero else value}{amount}"
        fits = value % 10 == 0 if amount < 10 else value % 100 in self._rules.teens_after
        return value + amount if fits else f"{value}{amount}"

    def _with_tens(self, text: str, amount: int) -> int | str:
        value = self._value
        if value is None:
            return amount
        if isinstance(value, int):
            if text in self._rules.twenties and 4 <= value % 100 <= 9:
                return value // 100 * 100 + value % 100 * 20
            if value % 100 == 0:
                return value + amount
        return f"{value}{amount}"

    def _scaled(self, scale: int) -> int:
        value = self._value
        if value is None:
            return scale
        if isinstance(value, int):
            thousands, rest = divmod(value, 1000)
            return thousands * 1000 + rest * scale
        amount = _fraction(value)
        if amount is not None and (amount * scale).denominator == 1:
            return (amount * scale).numerator
        self._end_number()
        return scale

    def _read_percent(self, at: int, word: NumberWord) -> int:
        if word.second is None:
            self._put(f"{self._value}{word.mark}")
        elif self._words[at + 1 : at + 2] == [word.second]:
            self._put(f"{self._value}{word.mark}")
            return 2
        else:
            self._end_with(self._words[at])
        return 1

    def _read_repeat(self, at: int, word: NumberWord) -> int:
        digit = self._meaning(at + 1)
        if digit is None or not self._is_number_word(at + 1, Kind.ZERO, Kind.ONES):
            self._end_with(self._words[at])
            return 1
        self._value = f"{self._value or ''}{str(digit.amount) * word.amount}"
        return 2


def _fraction(digits: str) -> Fraction | None:
    try:
        return Fraction(digits)
    except ValueError:
        return None
