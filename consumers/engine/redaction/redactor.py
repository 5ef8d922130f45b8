"""Removes personal data from texts before they leave the engine. Scores are computed on the original words.

Each finding is replaced by its type in brackets, and no search looks into those again: redacting twice is redacting once.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any, Final

from consumers.engine.redaction.personal_data.birth_dates import find_birth_dates
from consumers.engine.redaction.personal_data.cards import find_cards
from consumers.engine.redaction.personal_data.digit_runs import Digits
from consumers.engine.redaction.personal_data.emails import find_emails
from consumers.engine.redaction.personal_data.ibans import find_ibans
from consumers.engine.redaction.personal_data.phones import PhoneFinder
from consumers.engine.redaction.personal_data.span import Span
from consumers.engine.redaction.personal_data.words import Words
from consumers.engine.redaction.prefilter import may_hold_any, possible_detectors
from schemas.goals.patterns import compiled
from schemas.redaction import CUSTOM, Detector, RedactionRules, tag_of

MAX_ROUNDS: Final = 10
"""Most searches of a text: it is searched again after each replacement; the second search nearly always finds nothing."""
LEAST_NUMBER: Final = 100_000
"""Smallest number with enough digits to be a finding."""
MOST_NUMBER: Final = 10**40
"""Largest number with few enough digits to be a finding."""
MAX_CHARS: Final = 50_000
"""Characters that are searched of one text, or of the texts of one JSON value: an hour of talk without an answer. The rest is
left out and replaced by `TOO_LONG`. At worst that many take half a second.
"""
TOO_LONG: Final = "[TOO_LONG]"
MARGIN_CHARS: Final = 400
"""Longer than any finding: an account number dictated digit by digit has 150."""

_SEALED: Final = re.compile(r"\[[A-Z][A-Z_]{1,39}\]")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\W]+")
_KEYS_OF_A_PLACE: Final = 2
"""Keys above a value that give it a meaning: its own and the one around."""
_IN_ORDER: Final = (Detector.EMAIL, Detector.IBAN, Detector.CARD, Detector.BIRTH_DATE, Detector.PHONE)
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
        self._detectors = tuple(detector for detector in _IN_ORDER if detector in self.rules.detectors)
        self._patterns = {tag_of(name): compiled(pattern) for name, pattern in self.rules.patterns.items()}

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
        """The redacted text up to about `most` characters. No finding is cut in its middle and so overlooked.

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
        """A JSON value of the same shape. Texts are redacted, keys too, and numbers that are personal data become texts.

        A key explains its value, as words before it would: ten digits under `phone` are a telephone number.

        Example:
            >>> Redactor().redact_value({"customer": {"phone": 4155550123, "seats": 2}})
            {'customer': {'phone': '[PHONE]', 'seats': 2}}
        """
        return _Value(self._redact, self.is_worth_a_look).redacted(value, ()) if self.rules.enabled else value

    def is_worth_a_look(self, text: str) -> bool:
        """Whether the text can hold a finding; otherwise redacting it changes nothing and costs nothing."""
        return self.rules.enabled and (bool(self._patterns) or may_hold_any(text))

    def _redact(self, text: str, lead: str) -> str:
        """Searches until nothing is found. `lead` are words before the text that are no part of it."""
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
            found = [span for span in self._found(detector, words, digits) if span.end > len(lead)]
            if found:
                places = (Span(max(0, span.start - len(lead)), span.end - len(lead)) for span in found)
                text = self._replaced(text, places, tag_of(detector), detector.value)
                words = digits = possible = None
        return text

    def _found(self, detector: Detector, words: Words, digits: Digits) -> Iterable[Span]:
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

    def _replaced(self, text: str, spans: Iterable[Span], tag: str, counted: str) -> str:
        parts: list[str] = []
        end = 0
        for span in spans:
            parts += (text[end : span.start], tag)
            end = span.end
            self.counts[counted] += 1
        return "".join((*parts, text[end:])) if parts else text


class _Value:
    """A JSON value on its way through a redactor, which searches so much of it and no more."""

    def __init__(self, redact: Callable[[str, str], str], is_worth_a_look: Callable[[str], bool]) -> None:
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
    # No search reads further back for a value's meaning, and a producer may have keys of any length.
    return " ".join(_HUMP.sub(" ", _SEALED.sub(" ", key[-MARGIN_CHARS:])).strip() for key in keys) + ": "


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[Span]:
    """Findings of a pattern outside of earlier tags; a finding that reaches into a tag includes all of it."""
    sealed = [Span(*found.span()) for found in _SEALED.finditer(text)]
    end = first = 0
    for found in pattern.finditer(text):
        start, stop = found.span()
        while first < len(sealed) and sealed[first].end <= start:
            first += 1
        touched = list(takewhile(lambda each: each.start < stop, sealed[first : first + stop - start + 1]))  # noqa: B023  # used at once
        known = sum(min(each.end, stop) - max(each.start, start) for each in touched)
        if stop - start == known or start < end:
            continue
        if touched:
            start, stop = min(start, touched[0].start), max(stop, touched[-1].end)
        end = stop
        yield Span(start, stop)
