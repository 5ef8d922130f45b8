"""The bot's own texts in pieces, so that each lies in the turn in which it came, with or without EVA's turn markers.

A phrase is a piece of its own. Single words are one piece until the caller's turn begins, a marker comes, or the words pause.
EVA's groups (`turns/eva/text_groups`) follow other rules, and its context reads those.
"""

from collections.abc import Iterable
from math import inf
from typing import Final, Protocol

MAX_PAUSE_MS: Final = 1_000
"""Longest pause between two words of one piece. A caller who takes a turn speaks longer."""


class TextPiece:
    """One phrase, or a run of words; it may grow while it is the newest."""

    __slots__ = ("glue", "is_phrase", "key", "length", "parts")

    def __init__(self, glue: str, text: str, *, is_phrase: bool) -> None:
        self.key = 0
        self.glue = glue
        self.parts = [text]
        self.length = len(text)
        self.is_phrase = is_phrase

    @property
    def text(self) -> str:
        """The frames so far, joined."""
        if len(self.parts) > 1:
            self.parts = [self.glue.join(self.parts)]
        return self.parts[0]

    def append(self, frame: str) -> None:
        """Adds a frame at the end."""
        self.parts.append(frame)
        self.length += len(self.glue) + len(frame)


class PieceEdits(Protocol):
    """Applies new and removed pieces to the timeline of the bot."""

    def place_text(self, piece: TextPiece, time_ms: int) -> None:
        """Adds the piece at this time, and sets its key."""

    def displace_text(self, piece: TextPiece) -> None:
        """Removes the piece."""


class SpokenText:
    """The texts of one call's pipecat stream, in stream order. Replies of the model count only while no text went to synthesis."""

    __slots__ = ("_has_speech", "_last_ms", "_open", "_phrase", "_replies")

    def __init__(self) -> None:
        self._open: TextPiece | None = None
        self._last_ms = -inf
        self._phrase: tuple[int, str] | None = None
        self._has_speech = False
        self._replies: list[TextPiece] = []

    def close(self) -> None:
        """Ends the open piece: another turn may begin."""
        self._open = None

    def speech(self, edits: PieceEdits, time_ms: int, frame: str) -> bool:
        """Adds a `tts_text` frame; returns whether it begins a piece."""
        if not self._has_speech:
            self._has_speech = True
            self._open = None
            for reply in self._replies:
                edits.displace_text(reply)
            self._replies.clear()
        if " " not in frame:
            return self._word(edits, time_ms, frame, " ")
        if self._phrase == (time_ms, frame):
            return False  # the record came twice
        self._phrase = time_ms, frame
        self._open = None
        edits.place_text(TextPiece(" ", frame, is_phrase=True), time_ms)
        return True

    def reply(self, edits: PieceEdits, time_ms: int, frame: str) -> bool:
        """Adds an `llm_response`, whole or a token with its own blanks; returns whether it begins a piece."""
        if self._has_speech:
            return False
        is_new = self._word(edits, time_ms, frame, "")
        if is_new and self._open is not None:
            self._replies.append(self._open)
        return is_new

    def _word(self, edits: PieceEdits, time_ms: int, frame: str, glue: str) -> bool:
        has_paused = abs(time_ms - self._last_ms) > MAX_PAUSE_MS
        self._last_ms = time_ms
        if self._open is not None and not has_paused:
            self._open.append(frame)
            return False
        self._open = TextPiece(glue, frame, is_phrase=False)
        edits.place_text(self._open, time_ms)
        return True


def texts_of(pieces: Iterable[TextPiece]) -> tuple[str, ...]:
    """The texts of these pieces, without a phrase whose single words follow: it announced them.

    Example:
        >>> pieces = TextPiece(" ", "At nine.", is_phrase=True), TextPiece(" ", "At", is_phrase=False)
        >>> pieces[1].append("nine.")
        >>> texts_of(pieces)
        ('At nine.',)
    """
    texts: list[str] = []
    announced: str | None = None
    for piece in pieces:
        if announced is not None and not piece.is_phrase and f"{piece.text} ".startswith(f"{announced} "):
            texts.pop()
        announced = piece.text if piece.is_phrase else None
        texts.append(piece.text)
    return tuple(texts)
