"""Numbers, dates and signs as people say them in English, German, French, Spanish and Italian."""

from collections.abc import Collection, Iterator, Mapping
from itertools import product
from typing import Final

# A number word says its languages, one bit each: "sei" is six in Italian, and digits of one number
# are said in one language. Without that "due at five" would hold a two, and "once" an eleven.

ENGLISH: Final = 1
GERMAN: Final = 2
FRENCH: Final = 4
SPANISH: Final = 8
ITALIAN: Final = 16
ANY_LANGUAGE: Final = 31
"""The languages of what is written in digits."""

HYPHENS: Final = frozenset("-\u2010\u2011\u2013\u2014")

_PLAIN: Final = str.maketrans(
    dict(zip("áéíóúàèìòùâêîôûäöüñç", "aeiouaeiouaeiouaounc", strict=True)) | {"ß": "ss"}
)
_TWO_LETTERS: Final = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"})


_SHORTEST_WITHOUT_ACCENTS: Final = 4
"""Letters of a word that is also known without its accents. A shorter one is then another word: né
and ne, ät and at.
"""


def listed(text: str) -> frozenset[str]:
    """The words of a text, each also without its accents: not every writer sets them."""
    words = text.split()
    return frozenset(
        [
            *words,
            *(word.translate(_PLAIN) for word in words if len(word) >= _SHORTEST_WITHOUT_ACCENTS),
        ]
    )


# Numbers. A phrase is a number as it is said without a pause; hyphens between its words do not
# count.

UNITS: Final = {
    ENGLISH: "zero one two three four five six seven eight nine",
    GERMAN: "null eins zwei drei vier fünf sechs sieben acht neun",
    FRENCH: "zéro un deux trois quatre cinq six sept huit neuf",
    SPANISH: "cero uno dos tres cuatro cinco seis siete ocho nueve",
    ITALIAN: "zero uno due tre quattro cinque sei sette otto nove",
}
TEENS: Final = {
    ENGLISH: "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen",
    GERMAN: "zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn",
    FRENCH: "dix onze douze treize quatorze quinze seize dix_sept dix_huit dix_neuf",
    SPANISH: "diez once doce trece catorce quince dieciséis diecisiete dieciocho diecinueve",
    ITALIAN: (
        "dieci undici dodici tredici quattordici quindici sedici diciassette diciotto diciannove"
    ),
}
TENS: Final = {
    ENGLISH: "twenty thirty forty fifty sixty seventy eighty ninety",
    GERMAN: "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
    FRENCH: "vingt trente quarante cinquante soixante septante huitante nonante",
    SPANISH: "veinte treinta cuarenta cincuenta sesenta setenta ochenta noventa",
    ITALIAN: "venti trenta quaranta cinquanta sessanta settanta ottanta novanta",
}
OTHER_UNITS: Final = {
    ENGLISH: {"oh": "0", "o": "0", "nought": "0", "naught": "0", "niner": "9"},
    GERMAN: {"zwo": "2"},
    FRENCH: {"une": "1"},
    SPANISH: {},
    ITALIAN: {},
}
REPEATS: Final = {
    ENGLISH: {"double": 2, "triple": 3, "treble": 3, "quadruple": 4},
    GERMAN: {
        "doppel": 2,
        "doppelt": 2,
        "zweimal": 2,
        "dreimal": 3,
        "viermal": 4,
        "zweimal_die": 2,
        "dreimal_die": 3,
    },
    FRENCH: {
        "double": 2,
        "triple": 3,
        "deux_fois": 2,
        "trois_fois": 3,
        "deux_fois_le": 2,
        "trois_fois_le": 3,
    },
    SPANISH: {
        "doble": 2,
        "triple": 3,
        "dos_veces": 2,
        "tres_veces": 3,
        "dos_veces_el": 2,
        "tres_veces_el": 3,
    },
    ITALIAN: {
        "doppio": 2,
        "doppia": 2,
        "triplo": 3,
        "tripla": 3,
        "due_volte": 2,
        "tre_volte": 3,
        "due_volte_il": 2,
        "tre_volte_il": 3,
    },
}
REPEAT_WORDS: Final = {
    word: times for words in REPEATS.values() for word, times in words.items() if "_" not in word
}
"""Words before a digit that say how often it comes: double five, double 5."""
HUNDRED: Final = {"hundred": ENGLISH, "hundert": GERMAN, "cent": FRENCH, "cents": FRENCH}
THOUSANDS: Final = frozenset({"thousand", "tausend", "mille", "mil", "mila"})
_STEMS: Final = "ein zwei drei vier fünf sechs sieben acht neun"
_SPANISH_HUNDREDS: Final = (
    "cien doscientos trescientos cuatrocientos quinientos seiscientos setecientos ochocientos "
    "novecientos"
)


def digits_of(text: str, first: int) -> dict[str, str]:
    """Words in their order, each with its number as digits."""
    return {word: str(first + place) for place, word in enumerate(text.split())}


def _numbered(text: str, first: int, step: int = 1) -> dict[str, int]:
    return {word: first + step * place for place, word in enumerate(text.split())}


def _german() -> Iterator[tuple[str, int]]:
    """The numbers above twenty: one word in writing, of which a recogniser makes several."""
    below = {
        **_numbered(UNITS[GERMAN], 0),
        **_numbered(TEENS[GERMAN], 10),
        **_numbered(TENS[GERMAN], 20, 10),
    }
    for (stem, unit), (tens, value) in product(
        _numbered(_STEMS, 1).items(), _numbered(TENS[GERMAN], 20, 10).items()
    ):
        below[f"{stem}und{tens}"] = value + unit
        yield f"{stem}_und_{tens}", value + unit
    yield from below.items()
    del below["null"]
    for stem, hundreds in {"": 1, **_numbered(_STEMS, 1)}.items():
        if stem:
            yield f"{stem}hundert", hundreds * 100
        for rest, value in below.items():
            yield f"{stem}hundert{rest}", hundreds * 100 + value


def _french() -> Iterator[tuple[str, int]]:
    """Also the seventies and nineties of Switzerland and Belgium."""
    units = {**_numbered(UNITS[FRENCH], 0), "une": 1}
    teens = _numbered(TEENS[FRENCH], 10)
    yield from teens.items()
    for tens, value in {**_numbered(TENS[FRENCH], 20, 10), "octante": 80}.items():
        yield tens, value
        for unit, digit in units.items():
            if digit:
                yield f"{tens}_{unit}", value + digit
                yield f"{tens}_et_{unit}", value + digit
    for teen, value in teens.items():
        yield f"soixante_{teen}", 60 + value
        yield f"soixante_et_{teen}", 60 + value
    for eighty in ("quatre_vingt", "quatre_vingts"):
        yield eighty, 80
        for word, value in (*units.items(), *teens.items()):
            if value:
                yield f"{eighty}_{word}", 80 + value
                yield f"{eighty}_et_{word}", 80 + value
    yield "cent", 100


def _spanish() -> Iterator[tuple[str, int]]:
    units = _numbered(UNITS[SPANISH], 0)
    yield from _numbered(TEENS[SPANISH], 10).items()
    for unit, digit in {**units, "dós": 2, "trés": 3, "séis": 6}.items():
        if digit:
            yield f"veinti{unit}", 20 + digit
    for tens, value in _numbered(TENS[SPANISH], 20, 10).items():
        yield tens, value
        for unit, digit in units.items():
            if digit:
                yield f"{tens}_y_{unit}", value + digit
                yield f"{tens}_{unit}", value + digit
    yield from {**_numbered(_SPANISH_HUNDREDS, 100, 100), "ciento": 100}.items()


def _italian() -> Iterator[tuple[str, int]]:
    units = {**_numbered(UNITS[ITALIAN], 0), "tré": 3}
    below = {
        **{word: digit for word, digit in units.items() if digit},
        **_numbered(TEENS[ITALIAN], 10),
    }
    for tens, value in _numbered(TENS[ITALIAN], 20, 10).items():
        below[tens] = value
        for unit, digit in units.items():
            if digit:
                below[(tens[:-1] if unit[0] in "uo" else tens) + unit] = value + digit
                yield f"{tens}_{unit}", value + digit
    yield from below.items()
    stems = ("", *UNITS[ITALIAN].split()[2:])
    for stem, hundreds in zip(stems, range(1, 10), strict=True):
        yield f"{stem}cento", hundreds * 100
        for rest, value in below.items():
            yield f"{stem}cento{rest}", hundreds * 100 + value
            if rest[0] == "o":
                yield f"{stem}cent{rest}", hundreds * 100 + value


def _english() -> Iterator[tuple[str, int]]:
    yield from _numbered(TEENS[ENGLISH], 10).items()
    for tens, value in _numbered(TENS[ENGLISH], 20, 10).items():
        yield tens, value
        for unit, digit in _numbered(UNITS[ENGLISH], 0).items():
            if digit:
                yield f"{tens}_{unit}", value + digit
        yield f"{tens}_niner", value + 9


_LARGER: Final = {
    ENGLISH: _english,
    GERMAN: _german,
    FRENCH: _french,
    SPANISH: _spanish,
    ITALIAN: _italian,
}


def _phrases(language: int) -> Iterator[tuple[str, str]]:
    """Every phrase of a language with its digits."""
    units = digits_of(UNITS[language], 0) | OTHER_UNITS[language]
    yield from units.items()
    for phrase, value in _LARGER[language]():
        yield phrase, str(value)
    for (repeat, times), (word, digit) in product(REPEATS[language].items(), units.items()):
        yield f"{repeat}_{word}", digit * times
        if repeat == "doppel":
            yield repeat + word, digit * times
    if language == FRENCH:  # telephone numbers are said in pairs: zéro quatre, vingt-deux
        yield "zéro_quatre", "04"


def _spellings(phrase: str) -> Collection[str]:
    """A phrase as it is written with and without accents, umlauts and sharp s."""
    if phrase.isascii():
        return (phrase,)
    return {
        phrase,
        phrase.replace("ß", "ss"),
        phrase.translate(_PLAIN),
        phrase.translate(_TWO_LETTERS),
    }


def _all_phrases() -> tuple[dict[str, tuple[str, int]], set[str]]:
    phrases: dict[str, tuple[str, int]] = {}
    begun: set[str] = set()
    for language in _LARGER:
        for phrase, digits in _phrases(language):
            for spelling in _spellings(phrase):
                phrases[spelling] = (digits, language | phrases.get(spelling, (digits, 0))[1])
                end = spelling.find("_")
                while end > 0:
                    begun.add(spelling[:end])
                    end = spelling.find("_", end + 1)
    return phrases, begun


PHRASES, BEGUN = _all_phrases()
"""Phrases, their words joined by underscores, with their digits and languages; and beginnings with
which a longer one begins.
"""
_FIRST_OF_SEVERAL: Final = frozenset(begun for begun in BEGUN if "_" not in begun)


def _years() -> dict[str, int]:
    years = {"neunzehnhundert": 1900, "achtzehnhundert": 1800, "zweitausend": 2000, "duemila": 2000}
    for word, (digits, languages) in PHRASES.items():
        value = int(digits) if "_" not in word else 0
        if languages & GERMAN and 0 < value < 100:
            for century in ("neunzehnhundert", "achtzehnhundert", "zweitausend", "zweitausendund"):
                years[century + word] = years[century.removesuffix("und")] + value
        if languages & ITALIAN and 0 < value < 100:
            years[f"duemila{word}"] = 2000 + value
        if languages & ITALIAN and 800 <= value < 1000:
            years[f"mille{word}"] = 1000 + value
    return years


WHOLE_YEARS: Final = _years()
"""Years in one word, as German and Italian write them."""
PHRASES.update({word: (str(year), GERMAN | ITALIAN) for word, year in WHOLE_YEARS.items()})
NUMBER_WORDS: Final = frozenset(
    [*(phrase for phrase in PHRASES if "_" not in phrase), *REPEAT_WORDS, *HUNDRED, *THOUSANDS]
)
"""Words that are a number, or a part of one."""
MAY_BEGIN_A_NUMBER: Final = NUMBER_WORDS | _FIRST_OF_SEVERAL
"""Words with which a number may begin; "ein" is none, but for "ein und vierzig"."""


# Dates.


def _bits(words: Mapping[int, str]) -> dict[str, int]:
    """Each word of some languages, with the languages that have it."""
    bits: dict[str, int] = {}
    for language, text in words.items():
        for word in text.split():
            for spelling in _spellings(word):
                bits[spelling] = bits.get(spelling, 0) | language
    return bits


MONTHS: Final = _bits(
    {
        ENGLISH: "january february march april may june july august "
        "september october november december "
        "jan feb mar apr jun jul aug sep sept oct nov dec",
        GERMAN: "januar jänner februar märz april mai juni juli august september oktober november "
        "dezember "
        "jan feb apr jun jul aug sep sept okt nov dez",
        FRENCH: "janvier février mars avril mai juin juillet août "
        "septembre octobre novembre décembre "
        "janv févr avr juil sept oct nov déc",
        SPANISH: "enero febrero marzo abril mayo junio julio agosto septiembre setiembre octubre "
        "noviembre diciembre "
        "ene feb mar abr jun jul sep sept oct nov dic",
        ITALIAN: "gennaio febbraio marzo aprile maggio giugno luglio "
        "agosto settembre ottobre novembre "
        "dicembre "
        "gen feb mar apr giu lug sett ott nov dic",
    }
)
FIRSTS: Final = {"premier": FRENCH, "première": FRENCH, "primero": SPANISH, "primo": ITALIAN}
"""The first of a month, in languages that count its other days as numbers."""
_ORDINAL_STEMS: Final = (
    "erst zweit dritt viert fünft sechst siebt acht neunt zehnt elft zwölft dreizehnt vierzehnt "
    "fünfzehnt sechzehnt siebzehnt achtzehnt neunzehnt zwanzigst"
)


def _ordinals() -> dict[str, int]:
    stems = _numbered(_ORDINAL_STEMS, 1) | {"siebent": 7, "dreißigst": 30, "einunddreißigst": 31}
    for stem, unit in _numbered(_STEMS, 1).items():
        stems[f"{stem}undzwanzigst"] = 20 + unit
    return {
        spelling: day
        for stem, day in stems.items()
        for ending in ("e", "en", "er")
        for spelling in _spellings(stem + ending)
    }


GERMAN_ORDINALS: Final = _ordinals()
"""Days and months: am vierten siebten."""
