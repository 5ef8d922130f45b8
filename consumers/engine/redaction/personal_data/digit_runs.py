"""Finds digits as people dictate them: written or spoken, in groups, with pauses and fillers between them."""

from collections.abc import Iterator
from functools import cached_property
from typing import Final, NamedTuple

from consumers.engine.redaction.personal_data.vocabulary import (
    JOINING_WORDS,
    NUMBER_WORDS,
    PAUSING_WORDS,
    REPEATS,
    TEENS,
    TENS,
    UNITS,
)
from consumers.engine.redaction.personal_data.words import WordKind, Words

MAX_GAP_WORDS: Final = 6
"""Words and signs that may come between two groups of digits."""

_JOINING_SIGNS: Final = frozenset("-\u2010\u2011\u2013\u2014/()\u00b7_")
_PAUSING_SIGNS: Final = frozenset(",;\u2026")
_LONGEST_CODE: Final = 16
"""Words and signs on one side of a number among which a letter makes all of it a code: order_2026_0012."""


class Group(NamedTuple):
    """Digits said or written in one go: a number, "four", "forty-one", "double five"; from word `first` to word `last`."""

    digits: str
    first: int
    last: int
    is_spoken: bool


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
        """Starts without a search; digits are searched on demand."""
        self.words = words

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """All runs in order."""
        runs: list[Run] = []
        groups: list[Group] = []
        pauses: list[bool] = []
        for group in self._groups():
            pause = self._pause(groups[-1].last, group.first) if groups else True
            if pause is None:
                runs.append(Run(tuple(groups), tuple(pauses)))
                groups, pauses, pause = [], [], True
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
            elif word.text in NUMBER_WORDS:
                group = self._spoken(index)
            if group is None:
                index += 1
            else:
                yield group
                index = group.last + 1

    def _spoken(self, index: int) -> Group | None:
        words = self.words
        text = words.all[index].text
        last = index
        if text in REPEATS:
            last = index + 1
            digit = words.all[last].text if last < len(words.all) else ""
            digit = UNITS.get(digit, digit)
            return Group(digit * REPEATS[text], index, last, is_spoken=True) if _is_one_digit(digit) else None
        if text in UNITS:
            digits = UNITS[text]
        elif text in TEENS:
            digits = TEENS[text]
        elif text in TENS:
            unit = index + 2 if words.is_at(index + 1, _JOINING_SIGNS) and words.is_joined(index) else index + 1
            ones = UNITS.get(words.all[unit].text, "0") if unit < len(words.all) else "0"
            digits, last = (TENS[text] + ones, unit) if ones != "0" else (TENS[text] + "0", index)
        else:
            return None
        if digits != "0" and words.is_at(last + 1, {"hundred"}):
            return Group(digits + "00", index, last + 1, is_spoken=True)
        return Group(digits, index, last, is_spoken=True)

    def _is_part_of_a_code(self, index: int) -> bool:
        """Whether letters touch the digits: a booking code, a flight, the 3rd, an identifier."""
        if index > 0 and self._is_lettered(index, -1):
            return True
        return self._is_lettered(index, 1) and not self.words.is_at(index + 1, {"x", "ext"})

    def _is_lettered(self, index: int, step: int) -> bool:
        """Whether letters are joined to a number on one side, or an underscore that joins it to no other number."""
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


def _is_one_digit(text: str) -> bool:
    return len(text) == 1 and text.isdecimal()


def _is_layout(text: str) -> bool:
    """Whether it is the end of a line, written as one, or markup."""
    return len(text) > 1 and text[0] in "\\<"
