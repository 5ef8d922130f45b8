"""The rules of redaction are followed: detectors, countries, patterns of one's own, JSON, counts
and bounds.
"""

import json
import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from consumers.engine.redaction import redactor as redaction
from consumers.engine.redaction.redactor import MARGIN_CHARS, MAX_CHARS, TOO_LONG, Redactor
from schemas.closed_sets import REDACTION_TYPES, Detector
from schemas.metrics.catalogue import metric_named
from schemas.redaction import MAX_CUSTOM_PATTERNS, RedactionRules, tag_of

CARD = "4111 1111 1111 1111"
EVERYTHING = (
    f"card {CARD}, call 415-555-0142, mail jane@example.com, IBAN DE89370400440532013000, born 14 "
    "March 1985"
)
REDACTED = "card [CARD], call [PHONE], mail [EMAIL], IBAN [IBAN], born [BIRTH_DATE]"


def with_rules(**rules: Any) -> Redactor:
    return Redactor(RedactionRules.model_validate(rules))


def test_everything_is_on_by_default() -> None:
    assert RedactionRules().enabled
    assert Redactor().redact(EVERYTHING) == REDACTED


def test_switched_off_nothing_is_touched() -> None:
    off = with_rules(enabled=False)
    assert off.redact(EVERYTHING) == EVERYTHING
    assert off.redact_value({"phone": [EVERYTHING, 4111111111111111]}) == {
        "phone": [EVERYTHING, 4111111111111111]
    }
    assert off.beginning(EVERYTHING, 9) == EVERYTHING[:9]
    assert not off.counts


@pytest.mark.parametrize("detector", Detector)
def test_each_detector_is_one_of_its_own(detector: Detector) -> None:
    redacted = with_rules(detectors=[detector]).redact(EVERYTHING)
    assert redacted.count("[") == 1
    assert tag_of(detector) in redacted
    others = with_rules(detectors=[each for each in Detector if each is not detector]).redact(
        EVERYTHING
    )
    assert tag_of(detector) not in others
    assert others.count("[") == len(Detector) - 1


@pytest.mark.parametrize(
    ("regions", "number", "is_found"),
    [
        ("US", "it is four one five, five five five, oh one four two", True),
        ("GB", "it is four one five, five five five, oh one four two", False),
        ("GB", "it is oh two oh, seven nine four six, oh one oh two", True),
        ("US", "it is oh two oh, seven nine four six, oh one oh two", False),
        ("DE", "030 901820 ist es", True),
        ("US,DE", "030 901820 ist es", True),
        ("US", "030 901820 ist es", False),
        ("US", "+49 30 901820 ist es", True),
        ("US", "ruf an: 030 901820, Telefon", True),
    ],
)
def test_a_number_without_its_country_is_one_of_the_regions(
    regions: str, number: str, is_found: bool
) -> None:
    assert ("[PHONE]" in with_rules(phone_regions=regions.split(",")).redact(number)) is is_found


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("4111_1111_1111_1111.", "[CARD]."),
        ("<b>4111</b> 1111 1111<br/>1111", "<b>[CARD]"),
        (r'"card:\n4111\n1111\n1111\n1111\nyes"', r'"card:\n[CARD]\nyes"'),  # JSON as it is written
        ("4111 1111 1111 1112 is my card", "[CARD] is my card"),
        ("4111 1111 1111 1112. That's the visa card.", "[CARD]. That's the visa card."),
        ("jane (at) example (dot) com", "[EMAIL]"),
        ("jane[at]example.com", "[EMAIL]"),
        ("jane.doe { at } big-shop [dot] co [dot] uk", "[EMAIL]"),
    ],
)
def test_what_is_written_in_another_way_is_found(text: str, redacted: str) -> None:
    assert Redactor().redact(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "order_4111_1111_1111_1111",
        "4111_1111_1111_1111_x",
        "conv_20260101_4155550123",
        "_4155550123_",
        "4111 1111 1111 1112 is my order, paid by card",
        "4111 1111 1111 1112 is a gift card",
        "4111 1111 1111 1112 was sent. The card came later",
        "order 4111 1111 1111 1112 is on my card",
        "we met (at last) and said dot com",
        "1 < 2 > 0 and a<b>c",
    ],
)
def test_what_looks_like_it_and_is_something_else_stays(text: str) -> None:
    assert Redactor().redact(text) == text


@pytest.mark.parametrize(("year", "is_found"), [(1984, False), (1985, True), (2009, True)])
def test_until_when_an_unexplained_date_is_one_of_birth_is_a_rule(
    year: int, is_found: bool
) -> None:
    redactor = with_rules(latest_birth_year=year)
    assert ("[BIRTH_DATE]" in redactor.redact("It's March 14, 1985.")) is is_found
    assert redactor.redact("I was born on March 14, 1985.") == "I was born on [BIRTH_DATE]."


def test_a_pattern_of_one_s_own_is_replaced_by_its_name() -> None:
    redactor = with_rules(
        patterns={"BOOKING_CODE": r"\bBK-?\d{6}\b", "SEAT": r"\bseat \d{1,2}[a-f]\b"}
    )
    assert redactor.redact(f"bk123456 in Seat 12c, {CARD}") == "[BOOKING_CODE] in [SEAT], [CARD]"
    assert redactor.counts == {"custom": 2, "card": 1}


@pytest.mark.parametrize(
    ("pattern", "text", "redacted"),
    [
        ("X{0,1}", "a Xb", "a [MINE]b"),  # digits that fit no form are no personal data
        (".", "[CARD]", "[CARD]"),
        ("CARD", "[CARD]", "[CARD]"),
        ("id .{1,20}", "id [CARD] and", "[MINE]"),  # a tag is kept whole
        ("e .{0,3}", "the [CARD].", "th[MINE]."),
        ("[A-Z]{1,9}", "ab [CARD] cd", "[MINE] [CARD] [MINE]"),
        ("MINE", "MINE", "[MINE]"),
    ],
)
def test_patterns_leave_what_was_taken_out_alone(pattern: str, text: str, redacted: str) -> None:
    redactor = with_rules(patterns={"MINE": pattern})
    assert (redactor.redact(text), redactor.redact(redacted)) == (redacted, redacted)


@pytest.mark.parametrize(
    ("name", "pattern", "words"),
    [
        ("booking", "x", "capital letters"),
        ("B2", "x", "capital letters"),
        ("B", "x", "capital letters"),
        ("B" * 41, "x", "capital letters"),
        ("CARD", "x", "callgauge itself"),
        ("CUSTOM", "x", "callgauge itself"),
        ("OK", "x+", "repeats without a bound"),
        ("OK", "(x", "unterminated subpattern"),
        ("OK", "(a|b){1,9}c{1,99}", "steps at each character"),
    ],
)
def test_patterns_that_do_not_fit_are_refused(name: str, pattern: str, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        RedactionRules.model_validate({"patterns": {name: pattern}})


def test_there_are_so_many_patterns_at_most() -> None:
    names = [f"P_{'X' * number}" for number in range(MAX_CUSTOM_PATTERNS + 1)]
    with pytest.raises(ValidationError, match="at most"):
        RedactionRules.model_validate({"patterns": dict.fromkeys(names, "x")})


def test_in_json_keys_tell_what_values_are() -> None:
    assert Redactor().redact_value(
        {
            "customer": {"phoneNumber": "4155550142", "date_of_birth": "19850314", "name": "Jo"},
            "order_number": "4155550142",
            "total": 4155550142,
            "seats": [12, True, None, 1.5],
        }
    ) == {
        "customer": {"phoneNumber": "[PHONE]", "date_of_birth": "[BIRTH_DATE]", "name": "Jo"},
        "order_number": "4155550142",
        "total": 4155550142,
        "seats": [12, True, None, 1.5],
    }


def test_numbers_that_are_personal_data_become_texts() -> None:
    value = {
        "card": 4111111111111111,
        "as_float": 4111111111111111.0,
        "contact": {"mobile": [4155550142, 4155550142.0]},
        "n": 10**5000,
    }
    redacted = Redactor().redact_value(value)
    mobile = ["[PHONE]", "[PHONE]"]
    assert redacted == {
        "card": "[CARD]",
        "as_float": "[CARD]",
        "contact": {"mobile": mobile},
        "n": 10**5000,
    }
    assert Redactor().redact_value(float("nan")) != 0


def test_keys_are_redacted_and_none_is_lost() -> None:
    value = {"a@example.com": 1, "b@example.com": 2, "[EMAIL]": 3, "plain": 4}
    redacted = Redactor().redact_value(value)
    assert (sorted(redacted.values()), redacted["[EMAIL]"]) == ([1, 2, 3, 4], 3)
    assert "example" not in json.dumps(redacted)
    assert Redactor().redact_value(redacted) == redacted


def test_what_is_taken_out_is_counted_by_type() -> None:
    redactor = Redactor()
    redactor.redact(EVERYTHING)
    redactor.redact_value({"cards": [CARD, CARD]})
    assert redactor.counts == {"card": 3, "phone": 1, "email": 1, "iban": 1, "birth_date": 1}


@pytest.mark.parametrize(
    "metric", ["callgauge_redactions_total", "callgauge_judge_redactions_total"]
)
def test_every_type_is_in_the_metric_catalogue(metric: str) -> None:
    assert metric_named(metric).label_set[0].values == REDACTION_TYPES


def test_a_redactor_survives_a_snapshot() -> None:
    redactor = with_rules(patterns={"MINE": "secret"}, phone_regions=["GB"])
    redactor.redact(f"secret {CARD}")
    moved = pickle.loads(pickle.dumps(redactor))  # noqa: S301  # our own bytes
    assert (moved.rules, moved.counts) == (redactor.rules, redactor.counts)
    assert moved.redact(f"a secret, {EVERYTHING}") == redactor.redact(f"a secret, {EVERYTHING}")


@pytest.mark.parametrize("most", range(0, 60, 7))
def test_a_beginning_never_shows_a_part_of_what_it_cuts(most: int) -> None:
    for text in (f"pay with {CARD} today", f"{'a ' * 20}{CARD}{' b' * 3_000}", f"{CARD}, " * 400):
        shown = Redactor().beginning(text, most)
        assert len(shown) <= most
        assert "11" not in shown, shown


def test_a_beginning_that_ends_within_something_shows_none_of_it() -> None:
    """However much was taken out before: the last read text may be the first half of a number."""
    spelled = "four one one one, one one one one, one one one one, one one one one. "
    for missing in range(MARGIN_CHARS):
        text = spelled * 20 + "x" * missing + f" {CARD} is mine"
        assert "11" not in Redactor().beginning(text, 1_000)


def test_the_key_of_a_value_counts_for_its_beginning() -> None:
    assert Redactor().beginning("4155550142", 80, "data.phone") == "[PHONE]"
    assert Redactor().beginning("4155550142", 80, "data.order_id") == "4155550142"


def test_what_is_too_long_is_left_out_and_said() -> None:
    long = "word " * (MAX_CHARS // 5)
    assert Redactor().redact(long) == long
    assert Redactor().redact(f"{long}and {CARD}").endswith(TOO_LONG)
    assert "1111" not in Redactor().redact(f"{long}and {CARD}")
    value = Redactor().redact_value([f"{CARD} {long[:-100]}", f"{long[:-100]} {CARD}", "fine"])
    assert value[1:] == [TOO_LONG, "fine"]


@pytest.mark.parametrize(
    "text",
    [
        "I would like to change my flight, please.",
        "Someone at the door, and often more than one of them.",
        "",
        "a",
        ".",
    ],
)
def test_a_text_that_can_hold_nothing_is_not_looked_into(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(redaction, "Words", None)
    assert Redactor().redact(text) == text
    with pytest.raises(TypeError):
        Redactor().redact("call 415-555-0142")


def test_a_long_value_has_its_numbers_looked_at_by_their_keys() -> None:
    passengers = [{"name": f"p{number}", "phone": 4155550100 + number} for number in range(50)]
    redacted = Redactor().redact_value({"passengers": passengers})
    assert {each["phone"] for each in redacted["passengers"]} == {"[PHONE]"}
