"""Words that give the numbers and names beside them a meaning, in English, German, French, Spanish
and Italian.
"""

from typing import Final

from consumers.engine.redaction import languages
from consumers.engine.redaction.languages import ENGLISH, GERMAN_ORDINALS, MONTHS, digits_of, listed

# Spoken digits, in English.

UNITS: Final = digits_of(languages.UNITS[ENGLISH], 0) | languages.OTHER_UNITS[ENGLISH]
TEENS: Final = digits_of(languages.TEENS[ENGLISH], 10)
TENS: Final = digits_of(languages.TENS[ENGLISH], 2)

JOINING_WORDS: Final = listed(
    "dash hyphen space dot point slash minus bindestrich strich schrägstrich leerzeichen punkt "
    "tiret espace guion guión espacio trattino spazio punto barra"
)
PAUSING_WORDS: Final = listed(
    "and then uh um er erm hmm mhm okay ok yes yeah right so like next followed by comma pause "
    "sorry pardon und dann äh ähm ah ahm öhm also ja genau komma entschuldigung moment et puis "
    "ensuite euh heu oui alors virgule pardon désolé désolée y luego después eh este mmm sí bueno "
    "pues coma perdón e poi ehm allora sì ecco quindi virgola scusi scusa"
)
POINTERS: Final = listed(
    "is that's thats that was it's as being ist war das lautet est c'est était es era son è e' era "
    "sono"
)
"""With one of these a sentence goes on about the words before it: "..., that's my cell"."""

# Letters.

SPELLING_WORDS: Final = {
    word: word[0]
    for word in listed(
        "alpha alfa bravo charlie delta echo foxtrot golf hotel india juliet juliett kilo lima "
        "mike november oscar papa quebec romeo sierra tango uniform victor whiskey whisky xray "
        "yankee zulu"
    )
}


def _named(text: str) -> dict[str, str]:
    """Names of the letters from a to z, several with slashes between them."""
    names = zip("abcdefghijklmnopqrstuvwxyz", text.split(), strict=True)
    return {name: letter for letter, words in names for name in words.split("/")}


LETTER_NAMES: Final = (
    _named(
        "ay bee/be cee/see/sea dee ee eff/ef gee/jee aitch/haitch eye jay kay el/ell em en oh "
        "pee/pea cue/queue/kew ar/are ess/es tee/tea you/yu vee double_you/double_u ex/eks why/wye "
        "zee/zed"
    ),
    _named(
        "a/anton be/berta/bee tse/ce/cäsar/zäsar/caesar de/dora/dee e/emil ef/eff/friedrich "
        "ge/gustav ha/heinrich i/ida jot/julius/yott ka/kaufmann el/ell/ludwig em/emm/martha/marta "
        "en/enn/nordpol o/otto pe/paula ku/kuh/quelle er/err/richard es/ess/samuel/siegfried "
        "te/tee/theodor u/ulrich vau/fau/viktor we/weh/wilhelm ix/iks/xanthippe ypsilon "
        "zett/zacharias"
    ),
    _named(
        "a/anatole bé/berthe cé/célestin dé/désiré e/eugène effe/françois gé/gaston hache/henri "
        "i/irma ji/joseph ka/kléber elle/louis emme/marcel enne/nicolas o/oscar pé/pierre "
        "ku/quintal erre/raoul esse/suzanne té/thérèse u/ursule vé/victor "
        "double_vé/double_v/william ixe/xavier i_grec/yvonne zède/zoé"
    ),
    _named(
        "a be/barcelona ce de/dinamarca e/españa efe/francia ge/granada hache i/italia jota ka "
        "ele/león eme/madrid ene o/oviedo pe/portugal cu erre ese/sevilla te u uve "
        "uve_doble/doble_uve/doble_u equis ye/i_griega zeta"
    ),
    _named(
        "a/ancona bi/bologna ci/como di/domodossola e/empoli effe/firenze gi/genova acca i/imola "
        "gei kappa elle/livorno emme/milano enne/napoli o/otranto pi/palermo cu erre/roma "
        "esse/savona ti/torino u/udine vu/venezia doppia_vu/vu_doppia/doppia_v ics ipsilon/i_greca "
        "zeta/zara"
    ),
)
"""Letters as each language calls them, with towns and names of its spelling alphabet."""
LIKE: Final = frozenset({"wie", "comme", "come", "as", "like", "for", "in"})
"""Between a letter and a word that begins with it: "d wie Dora", "b as in bravo"."""

# Cards.

CARD_WORDS: Final = listed(
    "card cards visa mastercard amex maestro debit credit discover diners jcb pan karte karten "
    "kreditkarte kreditkartennummer kartennummer bankkarte girocard carte cartes bancaire tarjeta "
    "tarjetas carta"
)
NO_PAYMENT_CARDS: Final = listed(
    "order tracking reference confirmation booking invoice ticket gift loyalty membership "
    "geschenkkarte kundenkarte gutschein fidélité cadeau regalo fidelidad socio fedeltà bestellung "
    "auftrag buchung rechnung commande réservation facture billet pedido reserva factura billete "
    "ordine prenotazione fattura biglietto"
)
NAMED_NUMBERS: Final = listed(
    "order booking reservation ticket transaction tracking confirmation reference ref invoice "
    "flight serial parcel shipment consignment case bestellung bestellnummer auftrag "
    "auftragsnummer buchung buchungsnummer buchungscode reservierung reservierungsnummer "
    "ticketnummer rechnung rechnungsnummer flug flugnummer seriennummer sendung sendungsnummer "
    "vorgang vorgangsnummer commande réservation billet suivi colis référence facture vol série "
    "dossier pedido reserva billete boleto seguimiento envío referencia factura vuelo serie "
    "localizador ordine prenotazione biglietto spedizione tracciamento riferimento fattura volo "
    "matricola"
)
"""What a number is that stands right behind one of these: "your order number is 4417...", even if
it could be a card's.
"""
BETWEEN_NAME_AND_NUMBER: Final = listed(
    "is was are it's id code number numbers no nr nummer ist lautet war numéro est était número es "
    "era numero è"
)

# Telephones.

PHONE_WORDS: Final = listed(
    "phone phones telephone tel cell cellphone mobile landline fax whatsapp sms call calls called "
    "calling callback caller callers text texts texted dial dialed ring reach contact phoned "
    "voicemail msisdn ani telefon handy telefonnummer handynummer téléphone portable teléfono "
    "móvil telefono cellulare mobilnummer mobiltelefon rufnummer rückrufnummer festnetz "
    "festnetznummer anrufen anruf ruf rufen rufe zurückrufen zurückruft erreichen erreichbar "
    "erreicht durchwahl tél appelez appeler appelle rappelez rappeler rappelle joindre joignable "
    "fixe celular fijo llámame llámeme llame llama llamar llámenos llamen contacto chiamami chiami "
    "chiamare chiama chiamatemi richiamare richiamami richiami fisso recapito"
)
NO_PHONE_WORDS: Final = listed(
    "order orders confirmation confirm reference ref booking reservation record locator pnr ticket "
    "tickets tracking account acct membership member loyalty flyer invoice case claim policy "
    "serial model part sku item product code codes pin passcode password otp flight id identifier "
    "transaction receipt tax vat ssn social passport license licence customer meter vin isbn imei "
    "amount total balance price cost zip postcode postal version build timestamp shipment package "
    "parcel batch lot routing sort swift room gate seat terminal iban card dollars euros pounds "
    "points miles units extension docket file bestellnummer bestellung auftrag auftragsnummer "
    "buchung buchungsnummer buchungscode reservierung reservierungsnummer rechnung rechnungsnummer "
    "flug flugnummer ticketnummer kunde kundennummer vertrag vertragsnummer vorgang vorgangsnummer "
    "aktenzeichen konto kontonummer betrag euro sendung sendungsnummer paket seriennummer "
    "gutschein artikel artikelnummer postleitzahl plz zimmer punkte meilen steuernummer "
    "personalausweis reisepass karte kreditkarte fallnummer versicherungsnummer zählerstand "
    "commande réservation vol billet facture dossier référence suivi colis contrat client compte "
    "montant prix série chambre porte points sinistre postal carte confirmation passeport siret "
    "compteur pedido reserva vuelo billete boleto factura expediente referencia seguimiento envío "
    "paquete contrato cliente cuenta importe precio serie código habitación puerta puntos "
    "localizador póliza tarjeta confirmación pasaporte dni contador ordine prenotazione volo "
    "biglietto fattura pratica riferimento spedizione pacco contratto conto importo prezzo codice "
    "stanza camera uscita punti polizza tracciamento matricola carta conferma passaporto contatore"
)
PLUS: Final = frozenset({"+", "plus", "più", "piu", "más"})
OWNERS: Final = listed(
    "my your his her our their mein meine meiner meinen unsere ihre ihr deine mon ma votre notre "
    "son mi su tu nuestro mio suo nostro"
)
ARTICLES: Final = listed(
    "the my your his her our their this that der die das dem den meiner le la les mon ma el los mi "
    "il lo"
)
PLACE_WORDS: Final = listed(
    "on in for with of from under to auf für von unter zu sur pour de para con su per di del della"
)
CODES_OF_A_PLACE: Final = listed("area country dialing dialling city")
NUMBER_NOUNS: Final = listed("number numbers no nummer nr numéro número numero")
WORDS_ABOUT_NUMBERS: Final = frozenset({*PHONE_WORDS, *NO_PHONE_WORDS, *NUMBER_NOUNS})
WORDS_OF_AN_ANSWER: Final = listed(
    "it it's its is that is that's the sure yes yeah okay ok um uh er hmm so and my number one "
    "please thanks thank you well right alright of course a plus area again sorry no i said would "
    "be ja das ist die nummer meine bitte danke äh ähm also genau es oui c'est le numéro mon merci "
    "euh alors voilà sí es el número mi gracias eh pues claro sì è il numero mio grazie ehm allora "
    "ecco"
)

# E-mail addresses.

AT_SIGNS: Final = listed(
    "arobase arobas arrobase arrobas arroba chiocciola chiocciolina klammeraffe klammeraffen ät"
)
"""Names of the sign. "At" is none: sentences have it too."""
AT_NOUNS: Final = frozenset({"zeichen"})
SIGNS: Final = listed("sign symbol")
DOTS: Final = listed("dot . point period")
SPOKEN_SIGNS: Final = {
    **dict.fromkeys(("punkt", "punto", "puntino"), "dot"),
    **dict.fromkeys(("unterstrich", "underscore", "sottolineato"), "underscore"),
    **dict.fromkeys(("bindestrich", "tiret", "guion", "guión", "trattino"), "dash"),
    **dict.fromkeys(("moins", "menos", "meno"), "minus"),
    **dict.fromkeys(("più", "más"), "plus"),
}
"""Signs of addresses in other languages, in English."""
TWO_WORDS: Final = {
    **dict.fromkeys(
        (("tiret", "bas"), ("guion", "bajo"), ("guión", "bajo"), ("barra", "baja")), "underscore"
    ),
    **dict.fromkeys((("trattino", "basso"), ("sous", "tiret"), ("linea", "bassa")), "underscore"),
    ("g", "mail"): "gmail",
    ("hot", "mail"): "hotmail",
    ("proton", "mail"): "protonmail",
}
"""Parts of addresses in two words."""
AT_THE_RATE: Final = ("the", "rate")
"""Behind an at it is the sign, in India."""
DOTTED_ENDS: Final = {
    dot + top: top
    for dot in ("punto", "dot", "punkt")
    for top in ("com", "net", "org", "es", "it", "de", "fr", "mx")
}
"""A dot and the end of an address in one word: puntocom."""
LABEL_JOINERS: Final = listed("dash - hyphen minus")
LOCAL_JOINERS: Final = frozenset({*DOTS, *LABEL_JOINERS, "underscore", "_", "plus", "+"})
TOP_LEVELS: Final = listed(
    "com net org edu gov mil int io co uk us ca au nz de fr es it nl be ch at se no dk fi ie pl cz "
    "pt br mx in jp cn kr eu info biz me tv app dev ai health bank email online shop store xyz"
)
MAIL_PROVIDERS: Final = listed(
    "gmail googlemail yahoo outlook hotmail icloud aol protonmail proton gmx msn ymail fastmail "
    "comcast verizon freenet posteo wanadoo laposte virgilio tiscali"
)
MAIL_WORDS: Final = listed(
    "email emails e-mail mail mailbox inbox address emailed e cc reach contact write mailto "
    "adresse mailadresse emailadresse mailen schreiben courriel mél messagerie écrivez correo "
    "correos dirección escríbame escríbeme posta indirizzo scrivimi scriva"
)
WORDS_OF_A_SENTENCE: Final = listed(
    "the a an my your his her our their its is it's it are was were be to and or of for on in at "
    "by with from me i you we they that that's this these those so then just as email e-mail mail "
    "address send sent write contact reach cc use yes yeah okay ok sure no um uh it'll i'm under "
    "called spelled please name new old work personal lowercase capital der die das dem den ein "
    "eine mein meine meiner ihre ist lautet war und oder an auf für unter mit von zu zur zum ich "
    "wir sie er bitte ja genau also adresse mailadresse emailadresse schreiben schicken senden le "
    "la les un une mon ma votre c'est est et ou à au sur pour par je vous il oui alors adresse "
    "courriel mél écrivez envoyez el los una mi su es en para con por yo usted sí correo "
    "electrónico dirección envíe envíelo escriba escríbame lo gli mia mio suo sua è per con da del "
    "della sì posta elettronica indirizzo scriva mandi invii"
)
NO_MAILBOXES: Final = listed(
    "look looking looked shop shopping order ordered ordering available us me him her them it here "
    "there more online visit go going buy bought check checked found find meet live work works "
    "working stay staying arrive sign log seen up out back information details deals prices "
    "tickets site website page is are was be team book booked booking hosted sold everything "
    "anything store customers listed posted"
)
"""Words before the at of a place on the web, not of an address: "look at example dot com"."""
MAILBOXES: Final = frozenset({"contact", "mail", "email", "service"})
"""Words of a sentence that are the mailbox where the sign follows."""
NO_LABELS: Final = listed("the my our your this that a an")

# Dates.

DAY_ENDINGS: Final = frozenset(["st", "nd", "rd", "th", "er", "re", "o", "a"])
ORDINALS: Final = digits_of(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
    "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth",
    1,
) | {"thirtieth": "30"}
DECADES: Final = frozenset(TENS) - {"twenty"}
CENTURIES: Final = {"eighteen": 1800, "nineteen": 1900, "twenty": 2000}
BIRTH_WORDS: Final = listed(
    "born birth birthdate dob geboren geburtsdatum naissance né née nacimiento nació nacido nacida "
    "nascita nato nata geboortedatum nascimento geb geborene geborener geburtsjahr nací naciste "
    "nacimos naciste nacque nacqui nasce jahrgang"
)
VERBS_AT_THE_END: Final = frozenset({"geboren"})
BIRTHDAY_WORDS: Final = listed(
    "birthday birthdays geburtstag anniversaire cumpleaños compleanno cumplo cumple compio compie"
)
NO_BIRTH_WORDS: Final = listed(
    "since founded established opened issued built bought purchased joined installed released "
    "published moved started signed married wedding anniversary graduated version film movie album "
    "song war law act treaty recorded invented launched registered manufactured construction "
    "constructed erected company flew historic dated contract policy warranty effective seit "
    "gegründet gekauft unterschrieben unterzeichnet geheiratet hochzeit erbaut gebaut eröffnet "
    "veröffentlicht vertrag firma gesetz krieg rechnung bestellung lieferung depuis fondée fondé "
    "signé signée marié mariée mariage acheté construit ouvert publié contrat entreprise société "
    "guerre loi facture desde fundada fundado fundó firmado firmé casado casada casamos boda "
    "comprado compré construido inaugurado contrato empresa guerra ley factura pedido dal fondata "
    "fondato firmato sposato sposata sposati matrimonio comprato costruito inaugurato contratto "
    "azienda società legge fattura ordine purchase expiry expires expiration delivery kaufdatum "
    "rechnungsdatum lieferdatum ausstellungsdatum ablaufdatum gültig achat livraison échéance "
    "compra entrega vencimiento acquisto consegna scadenza login visit besuch visite visita"
)
COPULAS: Final = listed("is was are were ist war est était es era fue è fu")
THE: Final = listed(
    "the a an this that der die das dieser diese dieses le la les ce cette el los las este esta il "
    "lo i gli questo questa"
)
DAY_NOUNS: Final = listed("date datum fecha data day one it that this es das ce c'est")
SENTENCE_PREPOSITIONS: Final = frozenset({"on", "at", "from", "until", "to"})
"""Those with which no day begins that is said by itself; "am" and "le" are said in an
answer too.
"""
DAY_PREPOSITIONS: Final = listed("on at from until to by am um bis ab le du au el al il hasta")

SAID_IN_DATES: Final = frozenset({*MONTHS, *GERMAN_ORDINALS, "born", "birth"})
"""A text without any of these words spells out no date."""
