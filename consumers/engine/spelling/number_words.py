"""The number words of the languages that EVA reads, and how each language puts numbers together.

The lists are those of EVA, gaps included: a word that EVA does not know stays a word here too, so
that both count the same errors. "ninth", "einundzwanzigste" and "soixante-dix-septième" are such
words.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple
from unicodedata import category, normalize

from whisper_normalizer.basic import remove_symbols_and_diacritics
from whisper_normalizer.english import EnglishNumberNormalizer


class Kind(Enum):
    """What a word does to the number that is being read."""

    ZERO = auto()
    ONES = auto()
    """A number that is added to a ten or a hundred: up to 19, and whatever else a language has one
    word for.
    """
    TENS = auto()
    SCALE = auto()
    """Multiplies what was said before it."""
    SIGN = auto()
    CURRENCY = auto()
    PERCENT = auto()
    AND = auto()
    POINT = auto()
    REPEAT = auto()


class NumberWord(NamedTuple):
    """One word.

    Attributes:
        amount: Its number; of a repeat, how often the next digit is said.
        suffix: What stays behind the digits of an ordinal or a plural, which end a number; None for
            others.
        mark: What is written for a sign, a currency or a percent.
        second: The word that must follow, as in "per cent".
    """

    kind: Kind
    amount: int = 0
    suffix: str | None = None
    mark: str = ""
    second: str | None = None


Words = dict[str, NumberWord]


@dataclass(frozen=True, slots=True)
class NumberRules:
    """How a language says numbers.

    Attributes:
        words: Its number words, in the spelling that is left when marks are taken off.
        is_joined_after: The kinds of words after which "and" belongs to the number.
        says_digits: Whether ones behind ones are digits: "seven one two".
        teens_after: The last two digits to which a number from 10 to 19 is added: "soixante dix" is
            70.
        twenties: Words for twenty that multiply four to nine in front of them: "quatre vingts".
        says_ones_first: Whether ones come before tens, and compounds are written as one word:
            "zweihunderteinundzwanzig".
    """

    words: Mapping[str, NumberWord]
    is_joined_after: frozenset[Kind] = frozenset({Kind.SCALE, Kind.TENS})
    says_digits: bool = False
    teens_after: frozenset[int] = frozenset({0})
    twenties: frozenset[str] = field(default=frozenset())
    says_ones_first: bool = False


def without_marks(text: str) -> str:
    """The text in plain letters: accents taken off, symbols replaced by blanks, except those that
    numbers are written with.
    """
    return str(remove_symbols_and_diacritics(text, keep=MARKS_OF_NUMBERS))


def with_marks(text: str) -> str:
    """The text with its accents, because in its script they are vowels; symbols replaced by blanks
    as in `without_marks`.
    """
    return "".join(
        " " if category(each)[0] in "SP" and each not in MARKS_OF_NUMBERS else each
        for each in normalize("NFC", text)
    )


MARKS_OF_NUMBERS: Final = ".%$\u00a2\u20ac\u00a3"
"""A point, percent, and the signs of dollar, cent, euro and pound."""


def _numbered(text: str, first: int = 1, step: int = 1) -> Iterator[tuple[str, int]]:
    """The words of a list that counts; spellings of one number are parted by a slash."""
    for index, spellings in enumerate(text.split()):
        for spelling in spellings.split("/"):
            yield spelling, first + index * step


def _of(kind: Kind, amounts: Iterable[tuple[str, int]], suffix: str | None = None) -> Words:
    return {word: NumberWord(kind, amount, suffix) for word, amount in amounts}


def _plain(words: Words, spelling: Callable[[str], str] = without_marks) -> Words:
    return {spelling(word): meaning for word, meaning in words.items()}


def english() -> NumberRules:
    """English as Whisper reads it, whose table this is."""
    table = EnglishNumberNormalizer()
    words: Words = {word: NumberWord(Kind.ZERO) for word in table.zeros}
    kinds = {
        Kind.ONES: (table.ones, table.ones_suffixed),
        Kind.TENS: (table.tens, table.tens_suffixed),
        Kind.SCALE: (table.multipliers, table.multipliers_suffixed),
    }
    for kind, (cardinals, suffixed) in kinds.items():
        words |= _of(kind, cardinals.items())
        words |= {
            word: NumberWord(kind, amount, suffix) for word, (amount, suffix) in suffixed.items()
        }
    words |= {
        word: NumberWord(Kind.SIGN, mark=mark) for word, mark in table.preceding_prefixers.items()
    }
    words |= {
        word: NumberWord(Kind.CURRENCY, mark=mark)
        for word, mark in table.following_prefixers.items()
    }
    words |= {
        "percent": NumberWord(Kind.PERCENT, mark="%"),
        "per": NumberWord(Kind.PERCENT, mark="%", second="cent"),
        "and": NumberWord(Kind.AND),
        "point": NumberWord(Kind.POINT),
        "double": NumberWord(Kind.REPEAT, 2),
        "triple": NumberWord(Kind.REPEAT, 3),
    }
    return NumberRules(words, is_joined_after=frozenset({Kind.SCALE}), says_digits=True)


def german() -> NumberRules:
    """German. Ordinals of 20 and more are known where they are one plain word, as "zwanzigste"."""
    ones = (
        "eins/ein/eine/einer/eines/einem/einen zwei/zwo drei vier fünf sechs sieben acht neun zehn "
        "elf zwölf"
    )
    teens = "dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn"
    tens = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig"
    scales = {
        "hundert": 10**2,
        "tausend": 10**3,
        "million": 10**6,
        "milliarde": 10**9,
        "billion": 10**12,
    }
    stems = "ers zwei drit vier fünf sechs sieb ach neun zehn elf zwölf"
    endings = ("te", "ter", "tes", "tem", "ten")

    def ordinals(amounts: Iterable[tuple[str, int]], kind: Kind) -> Words:
        return _of(
            kind, ((stem + ending, amount) for stem, amount in amounts for ending in endings), ""
        )

    words = {
        "null": NumberWord(Kind.ZERO),
        "und": NumberWord(Kind.AND),
        "komma": NumberWord(Kind.POINT),
    }
    words |= _of(Kind.ONES, _numbered(f"{ones} {teens}"))
    words |= _of(Kind.TENS, _numbered(tens, 20, 10))
    words |= _of(Kind.SCALE, scales.items())
    words |= {
        f"{word.removesuffix('e')}en": words[word] for word in ("million", "milliarde", "billion")
    }
    words |= ordinals(_numbered(f"{stems} {teens}"), Kind.ONES)
    words |= ordinals(((f"{ten}s", amount) for ten, amount in _numbered(tens, 20, 10)), Kind.TENS)
    words |= ordinals(
        ((f"{scale.removesuffix('e')}s", amount) for scale, amount in scales.items()), Kind.SCALE
    )
    return NumberRules(_plain(words), says_ones_first=True)


def spanish() -> NumberRules:
    """Spanish. An ordinal leaves "o" or "a" behind its digits."""
    ones = (
        "un/uno/una dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce "
        "quince dieciséis"
    )
    more_ones = "diecisiete dieciocho diecinueve"
    twenties = (
        "veintiuno/veintiún/veintiuna veintidós veintitrés veinticuatro veinticinco veintiséis "
        "veintisiete"
    )
    hundreds = (
        "doscientos/doscientas trescientos/trescientas cuatrocientos/cuatrocientas "
        "quinientos/quinientas"
    )
    more_hundreds = (
        "seiscientos/seiscientas setecientos/setecientas ochocientos/ochocientas "
        "novecientos/novecientas"
    )
    ordinals = (
        "primer segund tercer cuart quint sext séptim octav noven décim undécim duodécim "
        "decimotercer decimocuart"
    )
    more_ordinals = "decimoquint decimosext decimoséptim decimoctav decimonoven"
    ordinal_tens = (
        "vigésim trigésim cuadragésim quincuagésim sexagésim septuagésim octogésim nonagésim"
    )
    scales = {"cien": 10**2, "ciento": 10**2, "mil": 10**3, "millón": 10**6, "millones": 10**6}
    scales |= {"billón": 10**12, "billones": 10**12, "trillón": 10**18, "trillones": 10**18}

    words = {
        "cero": NumberWord(Kind.ZERO),
        "y": NumberWord(Kind.AND),
        "coma": NumberWord(Kind.POINT),
    }
    words |= _of(Kind.ONES, _numbered(f"{ones} {more_ones}"))
    words |= _of(Kind.ONES, _numbered(f"{twenties} veintiocho veintinueve", 21))
    words |= _of(Kind.ONES, _numbered(f"{hundreds} {more_hundreds}", 200, 100))
    words |= _of(
        Kind.TENS,
        _numbered("veinte treinta cuarenta cincuenta sesenta setenta ochenta noventa", 20, 10),
    )
    words |= _of(Kind.SCALE, scales.items())
    of_scales = {"centésim": 10**2, "milésim": 10**3, "millonésim": 10**6}
    for ending in ("o", "a"):
        words |= _of(
            Kind.ONES,
            ((s + ending, n) for s, n in _numbered(f"{ordinals} {more_ordinals}")),
            ending,
        )
        words |= _of(
            Kind.TENS, ((s + ending, n) for s, n in _numbered(ordinal_tens, 20, 10)), ending
        )
        words |= _of(Kind.SCALE, ((s + ending, n) for s, n in of_scales.items()), ending)
    words |= _of(Kind.ONES, {"primer": 1, "tercer": 3, "decimotercer": 13}.items(), "o")
    return NumberRules(_plain(words))


def french() -> NumberRules:
    """French of France and of Canada, with "quatre-vingts" and "soixante-dix"."""
    ones = (
        "un/une deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze "
        "seize"
    )
    ordinals = "un deux trois quatr cinqu six sept huit neuv dix onz douz treiz quatorz quinz seiz"
    tens = "vingt/vingts trente quarante cinquante soixante"
    ordinal_tens = "vingt trent quarant cinquant soixant septant huitant/octant nonant"
    scales = {"cent": 10**2, "mille": 10**3, "million": 10**6, "milliard": 10**9, "billion": 10**12}
    others = {
        "premier": (1, "er"),
        "première": (1, "ere"),
        "second": (2, "d"),
        "seconde": (2, "de"),
    }

    def ordinal(amounts: Iterable[tuple[str, int]], kind: Kind) -> Words:
        return _of(kind, ((f"{stem}ième", amount) for stem, amount in amounts), "e")

    words = {
        "zéro": NumberWord(Kind.ZERO),
        "et": NumberWord(Kind.AND),
        "virgule": NumberWord(Kind.POINT),
    }
    words |= _of(Kind.ONES, _numbered(ones))
    words |= _of(Kind.TENS, _numbered(tens, 20, 10))
    words |= _of(Kind.SCALE, scales.items())
    words |= {f"{word}s": words[word] for word in ("cent", "million", "milliard", "billion")}
    words |= _of(Kind.SCALE, (("millier", 10**3), ("milliers", 10**3)))
    words |= ordinal(_numbered(ordinals), Kind.ONES)
    words |= ordinal(_numbered(ordinal_tens, 20, 10), Kind.TENS)
    words |= ordinal(
        ((scale.removesuffix("e"), amount) for scale, amount in scales.items()), Kind.SCALE
    )
    words |= {
        word: NumberWord(Kind.ONES, amount, suffix) for word, (amount, suffix) in others.items()
    }
    return NumberRules(
        _plain(words),
        teens_after=frozenset({0, 60, 80}),
        twenties=frozenset({"vingt", "vingts", "vingtieme"}),
    )


def hindi() -> NumberRules:
    """Hindi. It has a word for each number up to 99, mostly in several spellings."""
    ones = """
        एक दो तीन चार पांच/पाँच छह/छः/छे सात आठ नौ दस ग्यारह/ग्यारहा बारह तेरह चौदह पंद्रह/पन्द्रह
        सोलह सत्रह अठारह उन्नीस बीस इक्कीस/इकीस बाईस तेईस/तेइस चौबीस पच्चीस छब्बीस/छब्बिस सत्ताईस
        अट्ठाईस/अठाईस उनतीस/उनत्तीस तीस इकतीस/इकत्तीस बत्तीस तैंतीस चौंतीस/चौतीस पैंतीस छत्तीस
        सैंतीस अड़तीस उनतालीस/उनतालिस चालीस इकतालीस बयालीस तैंतालीस चवालीस/चौवालीस पैंतालीस छियालीस
        सैंतालीस अड़तालीस उनचास पचास इक्यावन/इकावन बावन तिरेपन/त्रेपन चौवन/चउवन पचपन छप्पन सत्तावन
        अट्ठावन/अठावन उनसठ साठ इकसठ/इकसट बासठ तिरसठ चौंसठ/चौसठ पैंसठ छियासठ सड़सठ अड़सठ
        उनहत्तर/उनहतर सत्तर इकहत्तर/इकहतर बहत्तर तिहत्तर चौहत्तर पचहत्तर छिहत्तर/छिहतर सतहत्तर/सतहतर
        अठहत्तर/अठहतर उन्यासी/उनासी अस्सी इक्यासी/इकासी बयासी तिरासी चौरासी पचासी छियासी सत्तासी
        अट्ठासी/अठासी नवासी नब्बे इक्यानवे/इकानवे बानवे तिरानवे/त्रानवे चौरानवे/चौरेनवे
        पचानवे/पंचानवे छियानवे सत्तानवे अट्ठानवे निन्यानवे/निनानवे
    """
    scales = {
        "सौ": 10**2,
        "सैकड़ा": 10**2,
        "सैकड़े": 10**2,
        "हज़ार": 10**3,
        "हजार": 10**3,
        "लाख": 10**5,
        "मिलियन": 10**6,
    }
    scales |= {"करोड़": 10**7, "अरब": 10**9, "बिलियन": 10**9, "खरब": 10**11}
    stems = "पांच/पाँच _ सात आठ नौ दस ग्यारह बारह तेरह चौदह पंद्रह/पन्द्रह सोलह सत्रह अठारह उन्नीस"
    irregular = {
        "पह": (1, "ला ली ले"),
        "दूस": (2, "रा री रे"),
        "तीस": (3, "रा री रे"),
        "चौ": (4, "था थी थे"),
        "छ": (6, "ठा ठी ठे"),
    }

    words = {zero: NumberWord(Kind.ZERO) for zero in ("शून्य", "जीरो", "ज़ीरो", "सिफर", "सिफ़र")}
    words |= {"और": NumberWord(Kind.AND), "दशमलव": NumberWord(Kind.POINT)}
    words |= _of(Kind.ONES, _numbered(ones))
    words |= _of(Kind.SCALE, scales.items())
    for ending in ("वां", "वीं", "वें"):
        regular = ((stem + ending, amount) for stem, amount in _numbered(stems, 5) if stem != "_")
        words |= _of(Kind.ONES, regular, ending)
    for stem, (amount, endings) in irregular.items():
        words |= {
            stem + ending: NumberWord(Kind.ONES, amount, ending) for ending in endings.split()
        }
    return NumberRules(_plain(words, with_marks))
