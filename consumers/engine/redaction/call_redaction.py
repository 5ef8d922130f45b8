"""Redacts the texts of one call: each once, and no step of the call more than a bound.

The same words leave the engine several times: in questions to judges, and in the transcript. The call keeps each redacted text,
so that the next reader does not search it again.
"""

from hashlib import blake2b
from typing import Any, Final

from consumers.engine.effects import Count
from consumers.engine.redaction.redactor import TOO_LONG, Redactor

MAX_CHARS_PER_STEP: Final = 50_000
"""Characters that one step of a call searches closely: some 0.4 s at worst. A turn with tools has a few thousand, and most of
its texts hold nothing and end at a glance. A transcript goes on in the next step; the rest of a question to judges is left out.
"""
MAX_KEPT_TEXTS: Final = 4_096
"""Texts whose redaction is kept: two sides of 1,000 turns, and as many that have changed since."""
_DIGEST_BYTES: Final = 16


class CallRedactor:
    """A redactor for one call. Texts beyond the bound of a step become `TOO_LONG`.

    Attributes:
        has_room: Whether the step may redact more.
        texts_left_out: Number of texts left out since the last `drain_counts`.
    """

    __slots__ = (
        "_known",
        "_left",
        "_redactor",
        "texts_left_out",
    )

    def __init__(self, redactor: Redactor) -> None:
        """Starts with nothing redacted.

        Args:
            redactor: Has the rules, and is shared by the calls of a partition.
        """
        self.texts_left_out = 0
        self._redactor = redactor
        self._left = MAX_CHARS_PER_STEP
        self._known: dict[bytes, str] = {}

    @property
    def has_room(self) -> bool:
        """Whether the step may redact more. The next text may exceed the bound once."""
        return self._left > 0

    def begin_step(self) -> None:
        """Begins a step: a record is folded, time passes, or the close goes on."""
        self._left = MAX_CHARS_PER_STEP

    def redact(self, text: str) -> str:
        """Redacts a text, as `Redactor.redact` does."""
        if not self._redactor.is_worth_a_look(text):
            return text
        digest = blake2b(text.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).digest()
        known = self._known.get(digest)
        if known is not None:
            return known
        if not self.has_room:
            return self._left_out()
        redacted: str = self._counted(self._redactor.redact, text)
        # An unchanged text needs no second copy.
        self._known[digest] = text if redacted == text else redacted
        if len(self._known) > MAX_KEPT_TEXTS:
            del self._known[next(iter(self._known))]
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
        return self._counted(self._redactor.redact_value, value) if self.has_room else self._left_out()

    def drain_counts(self) -> list[Count]:
        """Counts of texts left out since the last drain."""
        left_out, self.texts_left_out = self.texts_left_out, 0
        return [Count("callgauge_limits_hit_total", ("redaction",), left_out)] if left_out else []

    def _counted(self, redact: Any, *arguments: Any) -> Any:
        before = self._redactor.looked_at_chars
        redacted = redact(*arguments)
        self._left -= self._redactor.looked_at_chars - before
        return redacted

    def _left_out(self) -> str:
        self.texts_left_out += 1
        return TOO_LONG
