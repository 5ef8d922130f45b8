"""Numbers, years and months in words are read as five languages say them, and characters in other
forms as what they show.
"""

import pytest
from num2words import num2words

from consumers.engine.redaction.numbers import said_number
from consumers.engine.redaction.redactor import Redactor
from consumers.engine.redaction.words import CharSpan, Words, in_plain
from schemas.redaction import RedactionRules

REDACTOR = Redactor(RedactionRules(phone_regions=("US", "GB", "DE", "FR", "ES", "IT")))
BORN = {
    "en": "born on the fourth of July {}",
    "de": "geboren am vierten Juli {}",
    "fr": "né le quatre juillet {}",
    "es": "nací el cuatro de julio de {}",
    "it": "nato il quattro luglio {}",
}
MONTHS = {
    ("born on the third of {}"): (
        "January February March April May June July August September October November December"
    ),
    ("geboren am dritten {}"): (
        "Januar Februar März April Mai Juni Juli August September Oktober November Dezember"
    ),
    "né le trois {}": (
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre"
    ),
    "nací el tres de {}": (
        "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre"
    ),
    "nato il tre {}": (
        "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre "
        "dicembre"
    ),
}


def _spoken(number: int, language: str, form: str = "cardinal") -> str:
    spoken: str = num2words(number, lang=language, to=form)
    # num2words loses an i of Italian's eighteen behind a hundred
    return spoken.replace("dicotto", "diciotto")


@pytest.mark.parametrize("language", ["en", "de", "fr", "fr_CH", "fr_BE", "es", "it"])
def test_every_number_that_a_language_has_is_read(language: str) -> None:
    """The words are those of num2words. In English the hundreds are digits: "eight hundred five
    five five".
    """
    for number in range(100 if language == "en" else 1_000):
        spoken = _spoken(number, language)
        words = Words(spoken)
        said = said_number(words, 0)
        assert said is not None, spoken
        assert (said.digits, said.last) == (str(number), len(words.all) - 1), spoken


@pytest.mark.parametrize("language", BORN)
def test_every_year_of_birth_is_read(language: str) -> None:
    for year in range(1900, 2026):
        spoken = _spoken(year, language, "year")
        text = BORN[language].format(spoken)
        left = REDACTOR.redact(text)
        assert left.endswith("[BIRTH_DATE]"), (text, left)
        assert not left.removesuffix(" [BIRTH_DATE]").endswith(
            ("four", "vierten", "quatre", "cuatro", "quattro")
        ), left


@pytest.mark.parametrize("born", MONTHS)
def test_every_month_is_read(born: str) -> None:
    for month in MONTHS[born].split():
        for form in (month, month.upper(), month.translate(str.maketrans("éûä", "eua"))):
            text = born.format(form)
            assert REDACTOR.redact(f"{text}, ja").endswith("[BIRTH_DATE], ja"), text


@pytest.mark.parametrize(
    ("said", "digits"),
    [
        ("einundvierzig", "41"),
        ("ein und vierzig", "41"),
        ("quarante-et-un", "41"),
        ("septante et un", "71"),
        ("quatre-vingt-dix-huit", "98"),
        ("zéro quatre vingt-deux", "04"),
        ("seiscientos doce", "612"),
        ("six cent un deux trois", "600"),
        ("trecentoquarantasette", "347"),
        ("doppelnull", "00"),
        ("zweimal die fünf", "55"),
        ("triple siete", "777"),
        ("eight hundred five", "800"),
    ],
)
def test_a_number_ends_where_people_end_it(said: str, digits: str) -> None:
    number = said_number(Words(said), 0)
    assert number is not None
    assert number.digits == digits


@pytest.mark.parametrize(
    "text",
    [
        "it is due once, four one five, five five five",
        "sei so nett und gib acht auf elf Leute",
        "dos o tres, cinco o seis, siete o ocho",
        "the dos and don'ts, one or two set aside",
    ],
)
def test_words_that_are_numbers_in_another_language_are_no_digits(text: str) -> None:
    assert REDACTOR.redact(text) == text


def test_digits_of_one_number_are_said_in_one_language() -> None:
    number = "four one five, five five five, two six seven one"
    assert REDACTOR.redact(f"it is due {number}") == "it is due [PHONE]"
    mixed = "four uno five, fünf five cinq, two sechs seven uno"
    assert REDACTOR.redact(mixed) == mixed


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("J\uff21NE\uff20EXAMPLE\uff0eCOM!", "[EMAIL]!"),
        ("\uff14\uff11\uff11\uff11 1111 1111 1111\u00a0ok", "[CARD]\u00a0ok"),
        ("4111\u200b1111\u00ad1111\u2060 1111", "[CARD]"),
        ("ne\u0301 le 4 juillet 1976 a\u0300 Lyon", "ne\u0301 le [BIRTH_DATE] a\u0300 Lyon"),
        ("le caf\u00e9 \u2460 \ufb01n \u00bd", "le caf\u00e9 \u2460 \ufb01n \u00bd"),
    ],
)
def test_characters_in_other_forms_are_what_they_show(text: str, left: str) -> None:
    assert REDACTOR.redact(text) == left


def test_places_in_the_plain_text_are_those_of_the_original() -> None:
    source = "\ufb01ne e\u0301 \uff20\u200bx"
    plain = in_plain(source)
    assert plain.text == "fine \u00e9 @x"
    words = Words(source)
    shown = [
        source[begin:end]
        for begin, end in (words.origin(CharSpan(word.start, word.end)) for word in words.all)
    ]
    assert shown == ["\ufb01ne", "e\u0301", "\uff20", "x"]
