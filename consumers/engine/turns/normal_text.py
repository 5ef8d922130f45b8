"""Normal spelling of texts that are compared."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final
from unicodedata import category

from whisper_normalizer.basic import BasicTextNormalizer

from consumers.engine.spelling.alphabets import ALPHABETIC, spelling_of
from consumers.engine.spelling.characters import SPELLINGS as CHARACTERS

MAX_CHARS: Final = 5_000
"""Characters read of one text: five minutes of speech in one turn. The cost of a comparison is
quadratic in them.
"""

_REMEMBERED_PIECES: Final = 512
"""Pieces of text kept with their normal form, 5 MB at most: the two sides of a turn mostly agree,
and a call that closes is compared once more.
"""

_REMEMBERED_LANGUAGES: Final = 64
"""Languages of calls whose rules are known at once: some installations have ten."""

_ESCAPE = re.compile(
    r"""\\(?:(?P<octal>[0-7]{1,3})
          |(?P<known>u[0-9a-fA-F]{4}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[\\'"abfnrtv])
          |(?P<broken>[uUxN]|\Z))""",
    re.VERBOSE,
)
_APOSTROPHE = re.compile("[\u2018\u2019\u00b4`]")
_APOSTROPHE_OF_EVA = re.compile("[\u00b4`]")
_SPELLED_LETTERS = re.compile(r"\b(?:[a-zA-Z] ){2,}[a-zA-Z]\b")
_SPOKEN_DASH = re.compile(r"(?<=\w)\s+dash\s+(?=\w)", re.IGNORECASE)
_HYPHENATED = re.compile(r"\b\w+(?:-\w+)+")
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_LIST_COMMA = re.compile(r"(?<!\d),(?!\d)")
_LEADING_ZEROS = re.compile(r"\b0+(\d+)\b")
_ONLY_WORDS = re.compile("[a-z0-9 ]*")
_GAP_BEFORE_SUFFIX = re.compile(r"(?<=\d)\s+(?=(?:st|nd|rd|th)\b)")


class _UnreadableEscapeError(ValueError):
    """A backslash sequence that stops short; no caller says one, so the text stays unchanged."""


def without_bracketed(text: str) -> str:
    """The text without bracketed marks (who cut off whom, sounds), by shortest match.

    Example:
        >>> without_bracketed("[user interrupts] Yes [pause] please. ")
        'Yes  please.'
    """
    return "".join(_between_labels(text)).strip() if "[" in text else text.strip()


def _between_labels(text: str) -> Iterator[str]:
    """Yields the text outside of brackets. It reads every character once, however many brackets
    stay open.
    """
    at = 0
    while (begin := text.find("[", at)) >= 0 and (end := text.find("]", begin)) >= 0:
        line_end = text.find("\n", begin, end)
        if line_end < 0:
            yield text[at:begin]
            at = end + 1
        else:
            yield text[at : line_end + 1]
            at = line_end + 1
    yield text[at:]


def normalised(text: str, language: str = "en", *, as_eva: bool = False) -> str:
    """The text in one spelling, words separated by single blanks; only `MAX_CHARS` of it are read.

    A text that breaks the rules is normalised as far as they got, as in EVA.

    Args:
        text: Spoken or understood words, without labels.
        language: Its language, as a code with or without a region. Numbers, fillers and
            abbreviations are read in the languages of EVA.
        as_eva: Whether the result must be EVA's: all of the text is read, a typographic apostrophe
            parts words, because EVA's pattern of apostrophes lacks it, and an unknown region is an
            unknown language.

    Example:
        >>> normalised("I'll fly to L A X on March twenty-fifth, at nine fifteen.")
        'i will fly to lax on march 25th at 915'
        >>> normalised("I will fly to LAX on March 25th, at 915")
        'i will fly to lax on march 25th at 915'
    """
    if not as_eva:
        text = text[:MAX_CHARS]
    try:
        text = _without_escapes(text)
    except _UnreadableEscapeError:
        return text
    text = (_APOSTROPHE_OF_EVA if as_eva else _APOSTROPHE).sub("'", text)
    text = _SPELLED_LETTERS.sub(lambda found: found.group().replace(" ", "").upper(), text)
    text = _SPOKEN_DASH.sub(" ", text)
    if "-" in text:
        text = _HYPHENATED.sub(_joined_if_number, text)
    rules = rules_of(language, as_eva=as_eva)
    try:
        # Vowel signs are part of the word: without them a word of Hindi would fall into syllables.
        pieces = [
            _spelled(piece, rules, keeps_vowel_signs=not as_eva)
            for piece in _LIST_COMMA.split(text)
        ]
    except ValueError:  # a number is longer than Python writes
        return text
    joined = _LEADING_ZEROS.sub(r"\1", " ".join([piece for piece in pieces if piece]))
    return _GAP_BEFORE_SUFFIX.sub("", joined)


@lru_cache(maxsize=_REMEMBERED_LANGUAGES)
def rules_of(language: str, *, as_eva: bool = False) -> str:
    """The language whose rules a text is spelled by; empty where there are none but case and
    punctuation.

    Example:
        >>> rules_of("fr_ca"), rules_of("de-AT"), rules_of("zh-TW"), rules_of("it"), rules_of("de-AT", as_eva=True)
        ('fr-CA', 'de', 'zh', '', '')
    """
    if not as_eva:
        base, dash, region = language.replace("_", "-").partition("-")
        language = f"{base.lower()}{dash}{region.upper()}"
    base = language.split("-")[0]
    if base in CHARACTERS:
        return base
    if language in ALPHABETIC:
        return language
    return base if base in ALPHABETIC and not as_eva else ""


def _without_escapes(text: str) -> str:
    r"""`caf\u00e9` as it is meant: some recognisers write JSON's escapes into their texts."""
    if "\\" not in text or not text.isascii():
        return text
    text = _ESCAPE.sub(_escaped_character, text)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _escaped_character(found: re.Match[str]) -> str:
    if found["broken"] is not None:
        raise _UnreadableEscapeError(found.group())
    if found["octal"] is not None:
        return chr(int(found["octal"], 8))
    return found.group().encode().decode("unicode_escape")


def _joined_if_number(found: re.Match[str]) -> str:
    """`919-696-3901` and `WZH-89B` are said without the hyphens; `wishy-washy` is not a number; a
    date has three parts.
    """
    group = found.group()
    if _ISO_DATE.fullmatch(group):
        return group.replace("-", " ")
    return group.replace("-", "") if any(map(str.isdigit, group)) else group


def _without_punctuation(text: str) -> str:
    if _ONLY_WORDS.fullmatch(text):
        return text.strip()
    return "".join([each for each in text.lower() if category(each)[0] != "P"]).strip()


@lru_cache(maxsize=_REMEMBERED_PIECES)
def _spelled(piece: str, rules: str, *, keeps_vowel_signs: bool) -> str:
    """A piece by the rules of a language; without a language by case and punctuation alone."""
    if rules in CHARACTERS:
        spelled = CHARACTERS[rules](piece)
    elif rules:
        spelled = spelling_of(rules)(piece)
    else:
        spelled = BasicTextNormalizer(preserve_marks=keeps_vowel_signs)(piece)
    return _without_punctuation(spelled)
