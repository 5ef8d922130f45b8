"""Words of a text, written or said, and the vocabulary that marks personal data."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple

# Words that give digits and names beside them a meaning. English, and some words of forms in other languages.


def _listed(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _numbered(text: str, first: int) -> Mapping[str, str]:
    return {word: str(number) for number, word in enumerate(text.split(), first)}


# Spoken digits.

UNITS: Final = {
    **_numbered("zero one two three four five six seven eight nine", 0),
    "oh": "0", "o": "0", "nought": "0", "naught": "0", "niner": "9",
}  # fmt: skip
TEENS: Final = _numbered("ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen", 10)
TENS: Final = _numbered("twenty thirty forty fifty sixty seventy eighty ninety", 2)
REPEATS: Final = {"double": 2, "triple": 3, "treble": 3, "quadruple": 4}
NUMBER_WORDS: Final = frozenset({*UNITS, *TEENS, *TENS, *REPEATS, "hundred", "thousand"})

JOINING_WORDS: Final = _listed("dash hyphen space dot point slash minus")
PAUSING_WORDS: Final = _listed(
    "and then uh um er erm hmm mhm okay ok yes yeah right so like next followed by comma pause"
)
POINTERS: Final = _listed("is that's thats that was it's as being")
"""With one of these a sentence goes on about the words before it: "..., that's my cell"."""

# Letters.

SPELLING_WORDS: Final = {
    word: word[0]
    for word in _listed(
        "alpha alfa bravo charlie delta echo foxtrot golf hotel india juliet juliett kilo lima mike november oscar papa quebec "
        "romeo sierra tango uniform victor whiskey whisky xray yankee zulu"
    )
}

# Cards.

CARD_WORDS: Final = _listed("card cards visa mastercard amex maestro debit credit discover diners jcb pan")
NO_PAYMENT_CARDS: Final = _listed(
    "order tracking reference confirmation booking invoice ticket gift loyalty membership"
)

# Telephones.

PHONE_WORDS: Final = _listed(
    "phone phones telephone tel cell cellphone mobile landline fax whatsapp sms call calls called calling callback caller "
    "callers text texts texted dial dialed ring reach contact phoned voicemail msisdn ani telefon handy telefonnummer "
    "handynummer téléphone portable teléfono móvil telefono cellulare"
)
NO_PHONE_WORDS: Final = _listed(
    "order orders confirmation confirm reference ref booking reservation record locator pnr ticket tickets tracking account "
    "acct membership member loyalty flyer invoice case claim policy serial model part sku item product code codes pin "
    "passcode password otp flight id identifier transaction receipt tax vat ssn social passport license licence customer "
    "meter vin isbn imei amount total balance price cost zip postcode postal version build timestamp shipment package parcel "
    "batch lot routing sort swift room gate seat terminal iban card dollars euros pounds points miles units extension docket "
    "file bestellnummer"
)
PLUS: Final = frozenset({"+", "plus"})
OWNERS: Final = _listed("my your his her our their")
ARTICLES: Final = _listed("the my your his her our their this that")
PLACE_WORDS: Final = _listed("on in for with of from under to")
CODES_OF_A_PLACE: Final = _listed("area country dialing dialling city")
NUMBER_NOUNS: Final = _listed("number numbers no")
WORDS_ABOUT_NUMBERS: Final = frozenset({*PHONE_WORDS, *NO_PHONE_WORDS, *NUMBER_NOUNS})
WORDS_OF_AN_ANSWER: Final = _listed(
    "it it's its is that that's the sure yes yeah okay ok um uh er hmm so and my number one please thanks thank you well right "
    "alright of course a plus area again sorry no i said would be"
)

# E-mail addresses.

SIGNS: Final = _listed("sign symbol")
DOTS: Final = _listed("dot . point period")
LABEL_JOINERS: Final = _listed("dash - hyphen minus")
LOCAL_JOINERS: Final = frozenset({*DOTS, *LABEL_JOINERS, "underscore", "_", "plus", "+"})
TOP_LEVELS: Final = _listed(
    "com net org edu gov mil int io co uk us ca au nz de fr es it nl be ch at se no dk fi ie pl cz pt br mx in jp cn kr eu "
    "info biz me tv app dev ai health bank email online shop store xyz"
)
MAIL_PROVIDERS: Final = _listed(
    "gmail googlemail yahoo outlook hotmail icloud aol protonmail proton gmx msn ymail fastmail comcast verizon"
)
MAIL_WORDS: Final = _listed("email emails e-mail mail mailbox inbox address emailed e cc reach contact write mailto")
WORDS_OF_A_SENTENCE: Final = _listed(
    "the a an my your his her our their its is it's it are was were be to and or of for on in at by with from me i you we they "
    "that that's this these those so then just as email e-mail mail address send sent write contact reach cc use yes yeah "
    "okay ok sure no um uh it'll i'm under called spelled please name new old work personal lowercase capital"
)
NO_MAILBOXES: Final = _listed(
    "look looking looked shop shopping order ordered ordering available us me him her them it here there more online visit go "
    "going buy bought check checked found find meet live work works working stay staying arrive sign log seen up out back "
    "information details deals prices tickets site website page is are was be team book booked booking hosted sold "
    "everything anything store customers listed posted"
)
"""Words before the at of a place on the web, not of an address: "look at example dot com"."""
NO_LABELS: Final = _listed("the my our your this that a an")

# Dates.

MONTHS: Final = _listed(
    "january february march april may june july august september october november december jan feb mar apr jun jul aug sep "
    "sept oct nov dec"
)
DAY_ENDINGS: Final = _listed("st nd rd th")
ORDINALS: Final = {
    **_numbered(
        "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth "
        "sixteenth seventeenth eighteenth nineteenth twentieth", 1,
    ),
    "thirtieth": "30",
}  # fmt: skip
DECADES: Final = frozenset(TENS) - {"twenty"}
CENTURIES: Final = {"eighteen": 1800, "nineteen": 1900, "twenty": 2000}
BIRTH_WORDS: Final = _listed(
    "born birth birthdate dob geboren geburtsdatum naissance né née nacimiento nació nacido nacida nascita nato nata "
    "geboortedatum nascimento"
)
BIRTHDAY_WORDS: Final = _listed("birthday birthdays geburtstag anniversaire cumpleaños")
NO_BIRTH_WORDS: Final = _listed(
    "since founded established opened issued built bought purchased joined installed released published moved started signed "
    "married wedding anniversary graduated version film movie album song war law act treaty recorded invented launched "
    "registered manufactured construction constructed erected company flew historic dated contract policy warranty effective"
)


# A text as words, each with its place, and the words near a place: the ground of every search.
#
# Times, amounts and the like are no dictated digits; their places are found here too.

MAX_LOOKED_AT: Final = 60
"""Words and signs that are read on one side of a place, of any kind."""

_WORD: Final = re.compile(
    r"(?P<SEALED>\[[A-Z][A-Z_]{1,39}\])|(?P<NUMBER>\d+)|(?P<WORD>[^\W\d_]+(?:['\u2019][^\W\d_]+)?)"
    r"|(?P<AT>[(\[{<]\s?at\s?[)\]}>])|(?P<DOT>[(\[{<]\s?dot\s?[)\]}>])"
    r"|(?P<SIGN>\\[nrt]|</?[A-Za-z]{1,10}/?>|[^\w\s]|_)"  # an end of a line as JSON and messages write it; markup
)
_NO_DICTATION: Final = re.compile(
    r"(?<![\d:])\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?![\d:])"  # times
    r"|[$€£¥₹]\s?\d[\d.,]*"
    r"|(?<![\d.,])\d{1,3}(?:,\d{3}){1,4}(?![\d,])(?:\.\d+)?"  # 1,234,567
    r"|(?<!\d)\d{4}-\d{2}-\d{2}(?!\d)(?!-\d)"  # days, and in the next lines too
    r"|(?<![\d./-])(?:0?[1-9]|[12]\d|3[01])([./-])(?:0?[1-9]|[12]\d|3[01])\1(?:(?:19|20)\d{2}|\d{2})(?![./-]?\d)"
)


class WordKind(Enum):
    """Kinds of words: letters, digits, one other character, or the tag of an earlier redaction."""

    WORD = "WORD"
    NUMBER = "NUMBER"
    SIGN = "SIGN"
    SEALED = "SEALED"


_KINDS: Final = {kind.name: kind for kind in WordKind}
_IN_BRACKETS: Final = {"AT": ("@", WordKind.SIGN), "DOT": ("dot", WordKind.WORD)}
"""Readings of (at) and [dot]: only addresses have them."""


class Word(NamedTuple):
    """One word, in small letters, digits as ASCII; `start` and `end` are its place in the text."""

    text: str
    kind: WordKind
    start: int
    end: int


class Near(NamedTuple):
    """A word near another: its index, its distance in words, and whether a sentence ends in between."""

    place: int
    text: str
    distance: int
    is_beyond_sentence: bool


class Words:
    """The words of one text.

    Attributes:
        source: The text.
        all: Its words in order.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.all: Sequence[Word] = tuple(_read(source))

    @cached_property
    def undictated(self) -> frozenset[int]:
        """Indexes of the numbers that are times, amounts or dates."""
        hidden = set()
        words, index = self.all, 0
        for found in _NO_DICTATION.finditer(self.source):
            while index < len(words) and words[index].end <= found.start():
                index += 1
            while index < len(words) and words[index].start < found.end():
                hidden.add(index)
                index += 1
        return frozenset(hidden)

    @cached_property
    def texts(self) -> frozenset[str]:
        """All words that occur."""
        return frozenset([word.text for word in self.all])

    def before(self, index: int, most: int) -> Iterator[Near]:
        """The words before one, the nearest first. Numbers, signs and tags are passed and not counted.

        So the distance of words does not change when something between them is redacted.
        """
        return self._near(range(index - 1, max(-1, index - 1 - MAX_LOOKED_AT), -1), most)

    def after(self, index: int, most: int) -> Iterator[Near]:
        """The words after one; otherwise as `before`."""
        return self._near(range(index + 1, min(len(self.all), index + 1 + MAX_LOOKED_AT)), most)

    def is_joined(self, index: int) -> bool:
        """Whether this word and the next are joined without a space."""
        return index + 1 < len(self.all) and self.all[index].end == self.all[index + 1].start

    def is_at(self, index: int, texts: Collection[str]) -> bool:
        """Whether there is a word at this index, and it is one of these."""
        return 0 <= index < len(self.all) and self.all[index].text in texts

    def _near(self, indexes: range, most: int) -> Iterator[Near]:
        distance, is_beyond = 0, False
        for index in indexes:
            word = self.all[index]
            if word.kind is WordKind.WORD and word.text not in NUMBER_WORDS:
                distance += 1
                yield Near(index, word.text, distance, is_beyond)
                if distance == most:
                    return
            elif word.text in {"!", "?"} or (word.text == "." and not self.is_joined(index)):
                is_beyond = True


def _read(source: str) -> Iterator[Word]:
    for found in _WORD.finditer(source):
        start, end = found.span()
        text, name = source[start:end], found.lastgroup or ""
        if name == "WORD":
            yield Word(text.lower(), WordKind.WORD, start, end)
        elif name in _IN_BRACKETS:
            yield Word(*_IN_BRACKETS[name], start, end)
        else:
            kind = _KINDS[name]
            if kind is WordKind.NUMBER and not text.isascii():
                text = "".join(str(int(digit)) for digit in text)
            yield Word(text, kind, start, end)


# The place of a finding in a text.


class Span(NamedTuple):
    """The characters from `start` up to `end`, which is excluded."""

    start: int
    end: int
