"""No text costs the redactor more time than its length is worth: each of these has the maximum
length.
"""

from collections.abc import Callable
from typing import TypeVar

import pytest

from consumers.engine.redaction.redactor import MAX_CHARS, Redactor
from schemas.redaction import RedactionRules
from tests.support.held_loop import seconds_of, times_slower

T = TypeVar("T")

MOST_SECONDS = 30.0
"""Of a processor. They take 0.1 to 1.5 s; quadratic growth with the length takes many minutes."""

SHAPES = {
    "digits": "1",
    "digits apart": "4 ",
    "digits with pauses": "4, ",
    "beginnings of cards": "4111 ",
    "beginnings of cards with pauses": "4111, ",
    "said digits": "four ",
    "said digits with pauses": "four, ",
    "numbers": "415-555-0142, ",
    "numbers nobody has": "999 999 9999, ",
    "countries": "+49 ",
    "calls": "call 41 ",
    "ats": "a@",
    "said ats": "a at b ",
    "mails without an end": "a.b@c.",
    "said mails without an end": "jane at b dot c at ",
    "dots": "dot ",
    "spelled": "a b c at ",
    "accounts": "DE89 ",
    "spelled accounts": "d e 8 9 ",
    "dates": "1/2/",
    "said dates": "march three ",
    "born": "born in ",
    "times": "1:",
    "thousands": "1,234,",
    "versions": "1.2.85 ",
    "codes": "a1-",
    "parentheses": "(",
    "brackets": "[",
    "taken out": "[CARD]",
    "letters": "a",
    "wide digits": "\uff14 ",
    "digits with unseen signs": "4\u200b",
    "loose accents": "ne\u0301 ",
    "wide ats": "a\uff20",
    "ats of other languages": "a arroba b punto c ",
    "numbers of several words": "quatre vingt dix ",
    "numbers in one word": "neunhundertneunundneunzig ",
    "hundreds": "neuf cent ",
    "years": "mille neuf cent ",
    "days of numbers": "geboren am vierten siebten ",
    "letters by name": "de e gee bee ka elle ",
    "letters with examples": "d wie dora ",
    "named numbers": "order number is 4111 ",
    "underscores in two words": "tiret bas ",
}


def in_time(redact: Callable[[], T]) -> T:
    """What comes of it, within the time."""
    redacted, seconds = seconds_of(redact)
    assert seconds < MOST_SECONDS * times_slower()
    return redacted


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_long_text_costs_what_its_length_is_worth(shape: str) -> None:
    text = (shape * (MAX_CHARS // len(shape) + 1))[:MAX_CHARS]
    redactor = Redactor(RedactionRules(patterns={"MINE": r"\bq{1,20}.{0,20}"}))
    in_time(lambda: redactor.redact(text))


def test_so_does_a_value_with_many_texts() -> None:
    redacted = in_time(lambda: Redactor().redact_value([{"phone": "4155550142 "}] * 50_000))
    assert (redacted[0], redacted[-1]) == ({"phone": "[PHONE] "}, {"phone": "[TOO_LONG]"})


def test_and_a_pattern_that_fits_everywhere() -> None:
    redactor, text = Redactor(RedactionRules(patterns={"ANY": "."})), "[CARD]a" * (MAX_CHARS // 7)
    assert in_time(lambda: redactor.redact(text)) == "[CARD][ANY]" * (MAX_CHARS // 7)
