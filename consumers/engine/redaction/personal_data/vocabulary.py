"""Words that give digits and names beside them a meaning. English, and some words of forms in other languages."""

from collections.abc import Mapping
from typing import Final


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
