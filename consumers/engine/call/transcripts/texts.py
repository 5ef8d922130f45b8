"""Redacts the texts and the tool values of a transcript, and leaves values out that are too long."""

from typing import Any, Final, Protocol

from pydantic_core import from_json, to_json

MAX_VALUE_CHARS: Final = 100_000
"""Longest parameters or answer of a tool in a transcript. A longer value is left out before it is redacted."""
MAX_TOOL_TEXT_CHARS: Final = 1_000
"""Longest parameters or answer of a tool that stay in a transcript that would be too large otherwise."""


class Redacts(Protocol):
    """Removes personal data from texts."""

    def redact(self, text: str) -> str:
        """The text without personal data."""

    def redact_value(self, value: Any) -> Any:
        """The JSON value without personal data in any of its texts."""


class TranscriptTexts:
    """The texts of one transcript.

    Attributes:
        longest_value: Characters of the longest tool value that is not left out.
    """

    def __init__(self, redactor: Redacts | None) -> None:
        """Takes the redactor; None leaves every text unchanged."""
        self.longest_value = MAX_VALUE_CHARS
        self._redactor = redactor

    def text(self, text: str) -> str | None:
        """The text without personal data; None for an empty one."""
        if not text:
            return None
        return text if self._redactor is None else self._redactor.redact(text)

    def value(self, value: Any) -> Any:
        """A JSON value of the same shape without personal data; None for one that is too long."""
        if length(value) > self.longest_value:
            return None
        return value if self._redactor is None else self._redactor.redact_value(value)

    def parameters(self, value: object, chars: int) -> str:
        """The arguments of a tool as JSON text; `chars` is their `length`."""
        return left_out(chars) if chars > self.longest_value else self._json(_parsed(value), value)

    def answer(self, value: object, chars: int) -> str:
        """The answer of a tool as text, other values than texts as JSON; `chars` is its `length`."""
        if chars > self.longest_value:
            return left_out(chars)
        answer = _parsed(value)
        return (self.text(answer) or "") if isinstance(answer, str) else self._json(answer, value)

    def _json(self, value: object, logged: object) -> str:
        """The value as JSON without personal data, redacted text by text, so that it stays valid JSON.

        Args:
            value: The value.
            logged: The value as logged. A text stays as logged if nothing was redacted.
        """
        redacted = value if self._redactor is None else self._redactor.redact_value(value)
        if isinstance(logged, str) and logged is not value and redacted == value:
            return logged
        return to_json(redacted, inf_nan_mode="null").decode()  # JSON has no word for infinity


def length(value: object) -> int:
    """Characters of a tool's value, as JSON if it is no text."""
    return len(value) if isinstance(value, str) else len(to_json(value, inf_nan_mode="null"))


def left_out(chars: int) -> str:
    """The text in place of a value of this many characters."""
    return f'{{"left_out_characters":{chars}}}'


def _parsed(value: object) -> object:
    """A tool's value, parsed where it is a text that holds a JSON object or list, so that its parts can be redacted."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return from_json(value, allow_inf_nan=False)
        except ValueError:
            return value
    return value
