"""Finds card numbers: by length, first digits and check digit, or by words that name a card."""

import re
from collections.abc import Iterator
from typing import Final

from stdnum import luhn

from consumers.engine.redaction.personal_data.digit_runs import Digits, Run
from consumers.engine.redaction.personal_data.span import Span
from consumers.engine.redaction.personal_data.vocabulary import CARD_WORDS, NO_PAYMENT_CARDS, POINTERS
from consumers.engine.redaction.personal_data.words import Words

MOST_DIGITS: Final = 19
FEWEST_SAID_TO_BE_ONE: Final = 13
"""Fewest digits of a number that words call a card's, so that one misheard digit hides nothing."""
NEAR_WORDS: Final = 8
NEAR_WORDS_BEHIND: Final = 4
"""Greatest distance of "card" behind a number: "that's my visa card"."""
FEWEST_DIGITS: Final = 13
WRITTEN_GROUP: Final = 4
"""Digits of a written group with which a card may begin in the middle of others."""

_FIRST_DIGITS: Final = "23456"
_CARD: Final = re.compile(
    r"4\d{12}(?:\d{3}){0,2}"
    r"|(?:5[1-5]\d\d|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}"
    r"|3[47]\d{13}"
    r"|3(?:0[0-5]|[689]\d)\d{11}"
    r"|(?:6011|64[4-9]\d|65\d\d|62\d\d|35(?:2[89]|[3-8]\d))\d{12,15}"
    r"|(?:50|5[6-9]|6[37])\d{14}(?:\d{2,3})?"
)


def find_cards(words: Words, digits: Digits) -> Iterator[Span]:
    """Places of card numbers, from left to right."""
    says_card = not words.texts.isdisjoint(CARD_WORDS)
    for run in digits.runs:
        first = 0
        while first < len(run.groups):
            last = _last_of_card(run, first) if _may_begin(run, first) else None
            if last is None and says_card and run.pauses[first]:
                last = _end_of_said_one(words, run, first)
            if last is not None:
                yield Span(words.all[run.groups[first].first].start, words.all[run.groups[last].last].end)
            first = first + 1 if last is None else last + 1


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
        if len(text) > MOST_DIGITS:
            break
        if len(text) >= FEWEST_DIGITS and is_card_number(text):
            found = index
    return found


def _end_of_said_one(words: Words, run: Run, first: int) -> int | None:
    """The last group of a number that begins here and that words before or just behind it call a card's."""
    if run.groups[first].digits[0] not in _FIRST_DIGITS:
        return None
    last = _end_of_dictation(run, first)
    if last is None:
        return None
    for near in words.before(run.groups[first].first, NEAR_WORDS):
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
    """The last group of a number as long as a card's that ends with a pause or with the dictation."""
    count, found = 0, None
    for index in range(first, len(run.groups)):
        count += len(run.groups[index].digits)
        if count > MOST_DIGITS:
            break
        is_end = index + 1 == len(run.groups) or run.pauses[index + 1]
        if count >= FEWEST_SAID_TO_BE_ONE and is_end:
            found = index
    return found
