"""Texts of a call as a report shows them: redacted, then cut to a bound."""

import json
from typing import Any, Final, Protocol

MOST_CHARS: Final = 4_000
"""Characters of one text that are shown; a spoken turn has a few hundred, the answer of a tool may have megabytes."""

_TOO_DEEP: Final = "(nested too deep to be shown)"


class Redacts(Protocol):
    """Redacts personal data in texts."""

    def redact(self, text: str) -> str:
        """The text with placeholders in place of personal data."""

    def redact_value(self, value: Any) -> Any:
        """The same for a value of JSON, in all its texts."""


def shortened(text: str, most: int = MOST_CHARS) -> str:
    """The beginning of a text that is too long, and how much more there was.

    Example:
        >>> shortened("abcdef", 4)
        'abcd … (2 more characters)'
    """
    if len(text) <= most:
        return text
    return f"{text[:most]} … ({len(text) - most:,} more characters)"


def json_text(value: object, redactor: Redacts) -> str:
    """A value of JSON on indented lines, redacted and cut."""
    try:
        return shortened(
            json.dumps(
                _with_shown_keys(redactor.redact_value(value), redactor), ensure_ascii=False, indent=2, default=str
            )
        )
    except RecursionError:  # a value that fits one line may be nested too deep for indented lines
        return _TOO_DEEP


def _with_shown_keys(value: Any, redactor: Redacts) -> Any:
    """A tool may be given words of the caller as keys; values are redacted already."""
    match value:
        case dict():
            return {redactor.redact(str(key)): _with_shown_keys(each, redactor) for key, each in value.items()}
        case list() | tuple():
            return [_with_shown_keys(each, redactor) for each in value]
    return value
