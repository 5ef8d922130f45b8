"""Takes personal data out of every text that leaves the engine."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import pairwise, takewhile
from typing import Any, Final

from pydantic_core import to_json

from consumers.engine.effects import Count
from consumers.engine.redaction.dates import WORDS_ABOUT_BIRTHS, find_birth_dates, has_numeric_date
from consumers.engine.redaction.emails import find_emails
from consumers.engine.redaction.languages import MAY_BEGIN_A_NUMBER
from consumers.engine.redaction.numbers import (
    CHECK_DIGITS,
    Digits,
    PhoneFinder,
    beginnings,
    find_cards,
    find_ibans,
)
from consumers.engine.redaction.numbers import FEWEST_CARD_DIGITS as FEWEST_OF_A_CARD
from consumers.engine.redaction.numbers import FEWEST_PHONE_DIGITS as FEWEST_OF_A_PHONE
from consumers.engine.redaction.vocabulary import (
    AT_SIGNS,
    BIRTHDAY_WORDS,
    DOTTED_ENDS,
    MAIL_PROVIDERS,
    SAID_IN_DATES,
    SPOKEN_SIGNS,
)
from consumers.engine.redaction.words import CharSpan, Words, in_plain
from schemas.closed_sets import CUSTOM, Detector
from schemas.goals.patterns import compiled
from schemas.redaction import RedactionRules, tag_of

# Decides from a few signs in a text which personal data it may hold, so that most texts are never
# read word by word.

FEWEST_DIGITS: Final = 4

_NUMBERS: Final = re.compile(r"\d+")
_LETTERS: Final = re.compile(r"[^\W\d_]+")
_AT_A_DOMAIN: Final = re.compile(r"\bat\s[\w-]{1,63}\.\w")
_TELLING_WORDS: Final = frozenset(
    {
        "dot",
        "point",
        "mail",
        *SPOKEN_SIGNS,
        *DOTTED_ENDS,
        *AT_SIGNS,
        *MAIL_PROVIDERS,
        *BIRTHDAY_WORDS,
        *WORDS_ABOUT_BIRTHS,
    }
    - {"b"}
)
_WORDS_OF_DAYS: Final = SAID_IN_DATES | WORDS_ABOUT_BIRTHS
_ALL: Final = frozenset(Detector)


def may_hold_any(text: str) -> bool:
    """Whether the text can hold a finding; nearly all speech ends here, after some microseconds."""
    text = in_plain(text).text
    if "@" in text or sum(map(len, _NUMBERS.findall(text))) >= FEWEST_DIGITS:
        return True
    lower = text.lower()
    # jane[at]example.com
    if "at)" in lower or "at]" in lower or _AT_A_DOMAIN.search(lower) is not None:
        return True
    if "birth" in lower or "d.o.b" in lower:
        return True
    said = _LETTERS.findall(lower)
    if not _TELLING_WORDS.isdisjoint(said):
        return True
    return not MAY_BEGIN_A_NUMBER.isdisjoint(said) and any(
        one in MAY_BEGIN_A_NUMBER and other in MAY_BEGIN_A_NUMBER for one, other in pairwise(said)
    )


def possible_detectors(text: str) -> frozenset[Detector]:
    """The detectors that may find something in a text for which `may_hold_any` is true. All others
    find nothing in it.

    Example:
        >>> possible_detectors("departure time: 08:15")
        frozenset()
    """
    text = in_plain(text).text
    if not text.isascii():  # other letters and digits have more forms than these signs
        return _ALL
    possible = set()
    said = frozenset(_LETTERS.findall(text.lower()))
    if "@" in text or "at" in said or not AT_SIGNS.isdisjoint(said):
        possible.add(Detector.EMAIL)
    if has_numeric_date(text) or not _WORDS_OF_DAYS.isdisjoint(said):
        possible.add(Detector.BIRTH_DATE)
    says_digits = not MAY_BEGIN_A_NUMBER.isdisjoint(said)
    digits = sum(map(len, _NUMBERS.findall(text)))
    if says_digits or digits >= FEWEST_OF_A_CARD:
        possible.add(Detector.CARD)
    if says_digits or digits >= FEWEST_OF_A_PHONE:
        possible.add(Detector.PHONE)
    if (says_digits or digits >= CHECK_DIGITS) and not beginnings().isdisjoint(said):
        possible.add(Detector.IBAN)
    return frozenset(possible)


# Removes personal data from texts before they leave the engine. Scores are computed on the original
# words.
#
# Each finding is replaced by its type in brackets, and no search looks into those again: redacting
# twice is redacting once.

MAX_ROUNDS: Final = 10
"""Most searches of a text: it is searched again after each replacement; the second search nearly
always finds nothing.
"""
LEAST_NUMBER: Final = 100_000
"""Smallest number with enough digits to be a finding."""
MOST_NUMBER: Final = 10**40
"""Largest number with few enough digits to be a finding."""
MAX_CHARS: Final = 20_000
"""Characters that are searched of one text, or of the texts of one JSON value: twenty minutes of
talk without an answer. The rest is left out and replaced by `TOO_LONG`. So many digits take 40 ms,
a text made to be slow takes 0.2 s.
"""
TOO_LONG: Final = "[TOO_LONG]"
MARGIN_CHARS: Final = 400
"""Longer than any finding: an account number dictated digit by digit has 150."""

_SEALED: Final = re.compile(r"\[[A-Z][A-Z_]{1,39}\]")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\W]+")
_KEYS_OF_A_PLACE: Final = 2
"""Keys above a value that give it a meaning: its own and the one around."""
_IN_ORDER: Final = (
    Detector.EMAIL,
    Detector.IBAN,
    Detector.CARD,
    Detector.BIRTH_DATE,
    Detector.PHONE,
)
"""The most certain detector first, so that no other takes a part of its finding."""


class Redactor:
    """Removes personal data by the rules. Deterministic, without a memory of texts.

    Attributes:
        rules: Rules of the search.
        counts: Findings by type since the reader last cleared them.
        looked_at_chars: Characters searched closely, ever; texts that cannot hold anything are not.
    """

    def __init__(self, rules: RedactionRules | None = None) -> None:
        """Without rules the default ones apply: everything is searched for."""
        self.rules = rules or RedactionRules()
        self.counts: Counter[str] = Counter()
        self.looked_at_chars = 0
        self._phones = PhoneFinder(self.rules.phone_regions)
        self._detectors = tuple(
            detector for detector in _IN_ORDER if detector in self.rules.detectors
        )
        self._patterns = {
            tag_of(name): compiled(pattern) for name, pattern in self.rules.patterns.items()
        }

    def redact(self, text: str) -> str:
        """The text with each finding replaced by its type.

        Example:
            >>> Redactor().redact("It's jane dot doe at example dot com, card four one one one, 1111 1111 1111.")
            "It's [EMAIL], card [CARD]."
        """
        if not self.rules.enabled:
            return text
        if len(text) > MAX_CHARS and self.is_worth_a_look(text):
            return self.beginning(text, MAX_CHARS) + TOO_LONG
        return self._redact(text, "")

    def beginning(self, text: str, most: int, key: str = "") -> str:
        """The redacted text up to about `most` characters. No finding is cut in its middle and so
        overlooked.

        Args:
            text: The text.
            most: Characters wanted.
            key: The key whose value it is, if known.

        Example:
            >>> Redactor().beginning("card 4111 1111 1111 1111 is mine", 12)
            'card [CARD] '
        """
        if not self.rules.enabled:
            return text[:most]
        read = text[: most + 2 * MARGIN_CHARS]
        redacted = self._redact(read, _words_of((key,)) if key else "")
        # Characters cut at the end of reading may be the beginning of a finding.
        certain = len(redacted) - (MARGIN_CHARS if len(read) < len(text) else 0)
        return redacted[: max(0, min(most, certain))]

    def redact_value(self, value: Any) -> Any:
        """A JSON value of the same shape. Texts are redacted, keys too, and numbers that are
        personal data become texts.

        A key explains its value, as words before it would: ten digits under `phone` are a telephone
        number.

        Example:
            >>> Redactor().redact_value({"customer": {"phone": 4155550123, "seats": 2}})
            {'customer': {'phone': '[PHONE]', 'seats': 2}}
        """
        return (
            _Value(self._redact, self.is_worth_a_look).redacted(value, ())
            if self.rules.enabled
            else value
        )

    def is_worth_a_look(self, text: str) -> bool:
        """Whether the text can hold a finding; otherwise redacting it changes nothing and costs
        nothing.
        """
        return self.rules.enabled and (bool(self._patterns) or may_hold_any(text))

    def _redact(self, text: str, lead: str) -> str:
        """Searches until nothing is found. `lead` are words before the text that are no
        part of it.
        """
        for _ in range(MAX_ROUNDS):
            redacted = self._look(text, lead)
            if redacted == text:
                break
            text = redacted
        return text

    def _look(self, text: str, lead: str) -> str:
        """Searches once with every detector."""
        if self._patterns:
            self.looked_at_chars += len(text)
        for tag, pattern in self._patterns.items():
            text = self._replaced(text, _matches(pattern, text), tag, CUSTOM)
        if not may_hold_any(lead + text):
            return text
        self.looked_at_chars += len(lead) + len(text)
        words = digits = possible = None
        for detector in self._detectors:
            if possible is None:
                possible = possible_detectors(lead + text)
            if detector not in possible:
                continue
            if words is None or digits is None:
                words = Words(lead + text)
                digits = Digits(words)
            places = map(words.origin, self._found(detector, words, digits))
            found = [span for span in places if span.end > len(lead)]
            if found:
                inside = (
                    CharSpan(max(0, span.start - len(lead)), span.end - len(lead)) for span in found
                )
                text = self._replaced(text, inside, tag_of(detector), detector.value)
                words = digits = possible = None
        return text

    def _found(self, detector: Detector, words: Words, digits: Digits) -> Iterable[CharSpan]:
        match detector:
            case Detector.EMAIL:
                return find_emails(words)
            case Detector.IBAN:
                return find_ibans(words, digits)
            case Detector.CARD:
                return find_cards(words, digits)
            case Detector.BIRTH_DATE:
                return find_birth_dates(words, digits, self.rules.latest_birth_year)
            case Detector.PHONE:
                return self._phones.find(words, digits)

    def _replaced(self, text: str, spans: Iterable[CharSpan], tag: str, counted: str) -> str:
        parts: list[str] = []
        end = 0
        for span in spans:
            parts += (text[end : span.start], tag)
            end = span.end
            self.counts[counted] += 1
        return "".join((*parts, text[end:])) if parts else text


class _Value:
    """A JSON value on its way through a redactor, which searches so much of it and no more."""

    def __init__(
        self, redact: Callable[[str, str], str], is_worth_a_look: Callable[[str], bool]
    ) -> None:
        self._redact = redact
        self._is_worth_a_look = is_worth_a_look
        self._left = MAX_CHARS
        self._plain: set[str] = set()
        self._leads: dict[tuple[str, ...], str] = {(): ""}

    def redacted(self, value: Any, keys: tuple[str, ...]) -> Any:
        if isinstance(value, str):
            return self._text(value, keys)
        if isinstance(value, dict):
            return self._mapping(value, keys)
        if isinstance(value, list | tuple):
            return [self.redacted(each, keys) for each in value]
        if isinstance(value, int | float):
            return self._number(value, keys)
        return self._mapping(value, keys) if isinstance(value, Mapping) else value

    def _number(self, value: float, keys: tuple[str, ...]) -> Any:
        if not isinstance(value, bool) and LEAST_NUMBER <= abs(value) < MOST_NUMBER:
            # 4155550123.0 is no other number than 4155550123.
            text = str(int(value) if float(value).is_integer() else value)
            redacted = self._text(text, keys)
            # A number stays a number or is replaced whole, so that the value stays JSON.
            return value if redacted == text else _SEALED.findall(redacted)[0]
        return value

    def _mapping(self, value: Mapping[Any, Any], keys: tuple[str, ...]) -> dict[Any, Any]:
        redacted: dict[Any, Any] = {}
        for key, each in value.items():
            name = self._text(key, ()) if isinstance(key, str) else key
            number = len(redacted)
            while name != key and (name in redacted or name in value):
                name, number = f"{name} {number}", number + 1  # a key of its own, as before
            redacted[name] = self.redacted(each, (*keys, str(name))[-_KEYS_OF_A_PLACE:])
        return redacted

    def _text(self, text: str, keys: tuple[str, ...]) -> str:
        lead = self._leads.get(keys)
        if lead is None:
            lead = self._leads[keys] = _words_of(keys)
        with_lead = lead + text
        if with_lead in self._plain:  # keys above all: each part of a list has the same ones
            return text
        if not self._is_worth_a_look(with_lead):
            self._plain.add(with_lead)
            return text
        self._left -= len(with_lead)
        return self._redact(text, lead) if self._left >= 0 else TOO_LONG


def _words_of(keys: tuple[str, ...]) -> str:
    """Keys as words before their value: `dateOfBirth` is "date of birth: "."""
    # No search reads further back for a value's meaning, and a producer may have keys of any
    # length.
    return (
        " ".join(_HUMP.sub(" ", _SEALED.sub(" ", key[-MARGIN_CHARS:])).strip() for key in keys)
        + ": "
    )


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[CharSpan]:
    """Findings of a pattern outside of earlier tags; a finding that reaches into a tag includes all
    of it.
    """
    sealed = [CharSpan(*found.span()) for found in _SEALED.finditer(text)]
    end = first = 0
    for found in pattern.finditer(text):
        start, stop = found.span()
        while first < len(sealed) and sealed[first].end <= start:
            first += 1
        # used at once
        touched = list(
            takewhile(lambda each: each.start < stop, sealed[first : first + stop - start + 1])  # noqa: B023
        )
        known = sum(min(each.end, stop) - max(each.start, start) for each in touched)
        if stop - start == known or start < end:
            continue
        if touched:
            start, stop = min(start, touched[0].start), max(stop, touched[-1].end)
        end = stop
        yield CharSpan(start, stop)


# Redacts the texts of one call: each once, and no step of the call more than a bound.
#
# The same words leave the engine several times: in questions to judges, in the rows of words, and
# in the transcript. The call keeps each text and each tool's value in which something was searched
# for, so that the next reader does not search it again.

MAX_CHARS_PER_STEP: Final = 20_000
"""Characters that one step of a call searches closely: 40 ms of digits, 0.2 s at worst. A turn with
tools has a few thousand, and most of its texts hold nothing and end at a glance. A transcript goes
on in the next step; the rest of a question to judges is left out.
"""
MAX_KEPT_TEXTS: Final = 4_096
"""Texts and values whose redaction is kept: two sides of 1,000 turns, and as many that have changed
since.
"""
_DIGEST_BYTES: Final = 16
_OF_A_VALUE: Final = b"\0"
_JSON: Final = b"\0"


class CallRedactor:
    """A redactor for one call. Texts beyond the bound of a step become `TOO_LONG`.

    Attributes:
        left_chars: Characters that the step may still redact. A step folds a record, lets time
            pass, or goes on with the close.
        texts_left_out: Number of texts left out since the last `drain_counts`.
    """

    def __init__(self, redactor: Redactor) -> None:
        """Starts with nothing redacted.

        Args:
            redactor: Has the rules, and is shared by the calls of a partition.
        """
        self.texts_left_out = 0
        self._redactor = redactor
        self.left_chars = MAX_CHARS_PER_STEP
        self._known: dict[bytes, Any] = {}
        self._has_values = False

    @property
    def has_room(self) -> bool:
        """Whether the step may redact more. The next text may exceed the bound once."""
        return self.left_chars > 0

    def redact(self, text: str) -> str:
        """Redacts a text, as `Redactor.redact` does."""
        if not self._redactor.is_worth_a_look(text):
            return text
        digest = _digest(text.encode(errors="surrogatepass"))
        known: str | None = self._known.get(digest)
        if known is not None:
            return known
        if not self.has_room:
            return self._left_out()
        redacted: str = self._counted(self._redactor.redact, text)
        self._keep(digest, text, redacted)
        return redacted

    def beginning(self, text: str, most: int) -> str:
        """Redacts the beginning of a text, as `Redactor.beginning` does."""
        if len(text) <= most:
            return self.redact(text)[:most]
        if self.has_room or not self._redactor.is_worth_a_look(text):
            beginning: str = self._counted(self._redactor.beginning, text, most)
            return beginning
        return self._left_out()

    def redact_value(self, value: Any) -> Any:
        """Redacts a JSON value, as `Redactor.redact_value` does."""
        digest = _digest_of(value) if self._has_values else b""
        if digest in self._known:
            return self._known[digest]
        if not self.has_room:
            return self._left_out()
        left_chars = self.left_chars
        redacted = self._counted(self._redactor.redact_value, value)
        if self.left_chars < left_chars:  # nearly all values hold nothing, and are only glanced at
            self._has_values = True
            self._keep(digest or _digest_of(value), value, redacted)
        return redacted

    def _keep(self, digest: bytes, original: Any, redacted: Any) -> None:
        # What is unchanged needs no second copy.
        self._known[digest] = original if redacted == original else redacted
        if len(self._known) > MAX_KEPT_TEXTS:
            del self._known[next(iter(self._known))]

    def drain_counts(self) -> list[Count]:
        """Counts of texts left out since the last drain."""
        left_out, self.texts_left_out = self.texts_left_out, 0
        return [Count("callgauge_limits_hit_total", ("redaction",), left_out)] if left_out else []

    def _counted(self, redact: Any, *arguments: Any) -> Any:
        before = self._redactor.looked_at_chars
        redacted = redact(*arguments)
        self.left_chars -= self._redactor.looked_at_chars - before
        return redacted

    def _left_out(self) -> str:
        self.texts_left_out += 1
        return TOO_LONG


def _digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=_DIGEST_BYTES).digest()


def _digest_of(value: Any) -> bytes:
    """Of a JSON value; a text as a value is redacted otherwise than as a text."""
    return _digest(
        _OF_A_VALUE
        + (
            value.encode(errors="surrogatepass")
            if isinstance(value, str)
            else _JSON + to_json(value)
        )
    )
