"""Laws of redaction, for random texts."""

import json
import pickle
import re
from typing import Any, Final

from hypothesis import assume, example, given
from hypothesis import strategies as st
from stdnum import luhn

from consumers.engine.redaction.languages import GERMAN_ORDINALS, MONTHS, NUMBER_WORDS, PHRASES
from consumers.engine.redaction.numbers import Digits
from consumers.engine.redaction.redactor import Redactor, possible_detectors
from consumers.engine.redaction.vocabulary import (
    AT_SIGNS,
    BIRTH_WORDS,
    CARD_WORDS,
    COPULAS,
    LETTER_NAMES,
    MAIL_WORDS,
    NAMED_NUMBERS,
    NO_PHONE_WORDS,
    ORDINALS,
    PAUSING_WORDS,
    PHONE_WORDS,
    SPELLING_WORDS,
    SPOKEN_SIGNS,
    UNITS,
)
from consumers.engine.redaction.words import Words
from schemas.closed_sets import Detector
from schemas.redaction import RedactionRules, tag_of

EXAMPLES: Final = {
    Detector.CARD: "4111 1111 1111 1111",
    Detector.PHONE: "415-555-0142",
    Detector.EMAIL: "jane@example.com",
    Detector.IBAN: "DE89370400440532013000",
    Detector.BIRTH_DATE: "born on 14.03.1985",
}
"""A text of each type, which is taken out: a gate that does not know a type lets none through."""
TAGS = re.compile(rf"\[(?:{'|'.join(each.name for each in Detector)}|MINE)\]")
RULES = RedactionRules(
    patterns={"MINE": r"\bsecret.{0,5}"}, phone_regions=("US", "GB", "DE", "FR", "ES", "IT")
)

_words = st.sampled_from(
    sorted(
        BIRTH_WORDS
        | CARD_WORDS
        | MAIL_WORDS
        | NUMBER_WORDS
        | PAUSING_WORDS
        | PHONE_WORDS
        | NO_PHONE_WORDS
        | AT_SIGNS
        | NAMED_NUMBERS
        | COPULAS
        | {*SPOKEN_SIGNS, *GERMAN_ORDINALS, *LETTER_NAMES[1]}
        | {word for phrase in PHRASES for word in phrase.split("_")}
        | {*MONTHS, *ORDINALS, *SPELLING_WORDS}
    )
)
_pieces = st.one_of(
    _words,
    _words.map(str.title),
    st.integers(0, 10**17).map(str),
    st.integers(0, 99).map(str),
    st.sampled_from(
        [
            *EXAMPLES.values(),
            "1985-03-14",
            *(
                "jane dot doe at example dot com",
                "at",
                "@",
                "dot",
                "com",
                "gmail",
                "secret",
                "[CARD]",
                "[PHONE]",
                "[EMAIL]",
                "[",
            ),
            *(
                "]",
                "+",
                "(",
                ")",
                "-",
                "/",
                ":",
                "plus",
                "is",
                "my",
                "number",
                "'",
                "DE",
                "GB",
                "£",
                "É",
                "\uff14",
                "\u200d",
                "\n",
            ),
        ]
    ),
    st.text(max_size=4),
)
_joints = st.sampled_from(["", " ", " ", " ", ", ", ". ", "-", ".", "/"])
texts = st.lists(st.tuples(_pieces, _joints), max_size=25).map(
    lambda parts: "".join(map("".join, parts))
)
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        texts,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(texts, st.sampled_from(["phone", "dateOfBirth", "order_id"])),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)


@given(texts, st.sampled_from(["", "phone: ", "date of birth: ", "account de: "]))
@example("KW81 ABCDEF GHIJKL MNPQRS TUVWAB CD", "iban: ")
@example("call 5550142", "")
@example("4222222222222", "")
@example("3/14/85", "")
@example("jane dot doe at gmail", "")
@example("the 3rd of march 1985", "")
@example("0 3 1 4 8 5", "d.o.b.: ")
def test_a_detector_that_the_signs_in_a_text_rule_out_finds_nothing(text: str, lead: str) -> None:
    redactor = Redactor(RedactionRules(phone_regions=RULES.phone_regions))
    words = Words(lead + text)
    for detector in set(Detector) - possible_detectors(lead + text):
        assert list(redactor._found(detector, words, Digits(words))) == []


@given(texts)
@example("born [CARD] one two three four five six seven, march third nineteen eighty five")
def test_redacting_twice_is_redacting_once(text: str) -> None:
    once = Redactor(RULES).redact(text)
    assert Redactor(RULES).redact(once) == once


@given(texts)
def test_nothing_but_what_is_taken_out_changes(text: str) -> None:
    redactor = Redactor(RULES)
    redacted = redactor.redact(text)
    assert re.fullmatch(".*?".join(map(re.escape, TAGS.split(redacted))), text, re.DOTALL)
    assert redactor.counts.total() >= len(TAGS.findall(redacted)) - len(TAGS.findall(text))
    if not redactor.counts:
        assert redacted == text


def test_each_type_has_an_example_that_is_taken_out() -> None:
    assert {*EXAMPLES} == {*Detector}, "give the new type a text"
    for detector, text in EXAMPLES.items():
        assert tag_of(detector) in Redactor(RULES).redact(text)


@given(texts, st.sampled_from(sorted(tag_of(name) for name in ("card", "phone", "mine"))))
def test_what_was_taken_out_is_not_looked_into(text: str, tag: str) -> None:
    """Nothing is found in a tag, whatever is around it."""
    assert tag in Redactor(RULES).redact(f"{text} | {tag} | {text}") or "secret" in text


@given(values)
@example({"018100000": 1_000_000})  # a key that was taken out says nothing of its value
def test_json_stays_json_of_the_same_shape(value: Any) -> None:
    redacted = Redactor(RULES).redact_value(value)
    assert json.loads(json.dumps(redacted)) == redacted
    assert _shape(redacted) == _shape(value)
    assert Redactor(RULES).redact_value(redacted) == redacted


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {place: _shape(each) for place, each in enumerate(value.values())}
    if isinstance(value, list):
        return [_shape(each) for each in value]
    return None


@given(st.lists(texts, max_size=4))
def test_a_redactor_that_was_moved_says_the_same(texts: list[str]) -> None:
    """It has no memory: earlier texts change nothing."""
    used = Redactor(RULES)
    for text in texts:
        # our own
        assert (
            pickle.loads(pickle.dumps(used)).redact(text)  # noqa: S301
            == used.redact(text)
            == Redactor(RULES).redact(text)
        )


_SAID = {digit: word for word, digit in UNITS.items() if len(word) > 1}


@st.composite
def spoken_cards(draw: st.DrawFn) -> tuple[str, str]:
    """A card number, and a spoken or written form of it: each four digits in one go, or each digit
    by itself.
    """
    first = draw(st.sampled_from(["4", "51", "55", "2221", "6011", "3528"]))
    digits = first + draw(st.text("0123456789", min_size=15 - len(first), max_size=15 - len(first)))
    digits += luhn.calc_check_digit(digits)
    groups = []
    for begin in range(0, 16, 4):
        group = digits[begin : begin + 4]
        is_written = draw(st.booleans())
        groups.append(group if is_written else " ".join(_SAID[digit] for digit in group))
    pauses = st.sampled_from([" ", ", ", " - ", ", um, ", " and then "])
    said = groups[0]
    for group in groups[1:]:
        said += draw(pauses) + group
    return digits, said


@given(
    spoken_cards(),
    st.sampled_from(["", "it is ", "My card: ", "so, ", "yes the visa "]),
    st.sampled_from(["", ".", ", thanks", " okay?"]),
)
def test_a_card_number_leaves_in_no_form(card: tuple[str, str], before: str, after: str) -> None:
    digits, said = card
    redacted = Redactor().redact(before + said + after)
    assert redacted == f"{before}[CARD]{after}"
    left = "".join(group.digits for run in Digits(Words(redacted)).runs for group in run.groups)
    assert not left
    assert Redactor().redact_value({"n": int(digits)}) == {"n": "[CARD]"}


@given(st.lists(st.sampled_from(sorted(UNITS)), min_size=1, max_size=6))
def test_few_digits_are_nothing(words: list[str]) -> None:
    text = f"the gate is {' '.join(words)} and the room {''.join(UNITS[word] for word in words)}"
    assert Redactor().redact(text) == text


@given(
    st.from_regex(r"[A-Z0-9]{6}", fullmatch=True),
    st.integers(0, 23),
    st.integers(0, 59),
    st.integers(1, 9999),
)
def test_codes_times_amounts_and_flights_stay(
    code: str, hour: int, minute: int, number: int
) -> None:
    assume(not code.isdigit())
    text = (
        f"Your code is {code}, flight LH {number} at {hour:02}:{minute:02}, {number}.{minute:02} "
        f"euros, order number 41555{number:05}."
    )
    assert Redactor().redact(text) == text
