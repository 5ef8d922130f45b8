"""What stands beside a committed offset, for whoever owns the partition next."""

import json
from typing import Final, NamedTuple

MAX_NOTE_CHARS: Final = 512
"""Longest commit note looked at; the broker takes 4,096, and ours has some 40."""


class CommitNote(NamedTuple):
    """What stands beside a committed offset.

    Attributes:
        scores: First offset of the partition of `scores` that a successor must read.
        read: Offset after the last record of the input that was read and dealt with.
    """

    scores: int
    read: int

    def text(self) -> str:
        """As the broker keeps it."""
        return json.dumps({"scores": self.scores, "read": self.read})

    @classmethod
    def parse(cls, text: str) -> "CommitNote":
        """From what the broker kept; when that is not ours, everything must be read."""
        try:
            note = json.loads(text) if text and len(text) <= MAX_NOTE_CHARS else {}
        except ValueError:
            note = {}
        scores, read = (note.get(name) if isinstance(note, dict) else None for name in ("scores", "read"))
        if not isinstance(scores, int) or not isinstance(read, int) or min(scores, read) < 0:
            return cls(0, 0)
        return cls(scores, read)
