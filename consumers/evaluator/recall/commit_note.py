"""The note beside a committed offset, for the next owner of the partition."""

import json
from typing import Final, NamedTuple

MAX_NOTE_CHARS: Final = 512
"""Longest commit note that is read. The broker accepts 4,096 characters, and ours has some 60."""


class SnapshotPlace(NamedTuple):
    """Place of a snapshot on its topic.

    Attributes:
        partition: The number of its partition there.
        first: Offset of its manifest.
        last: Offset of its last chunk.
    """

    partition: int
    first: int
    last: int


class CommitNote(NamedTuple):
    """The note beside a committed offset.

    Attributes:
        scores: First offset of the partition of `scores` that a successor must read.
        read: Offset after the last record of the input that any owner has processed.
        takeovers: Owners since the partition last made progress, the newest included; see `progress`.
        snapshot: Place of the state that this owner has handed over; None without one.
    """

    scores: int
    read: int
    takeovers: int = 0
    snapshot: SnapshotPlace | None = None

    def text(self) -> str:
        """Returns the note as text for the broker."""
        takeovers = {"takeovers": self.takeovers} if self.takeovers else {}
        snapshot = {} if self.snapshot is None else {"snapshot": self.snapshot}
        return json.dumps({"scores": self.scores, "read": self.read} | takeovers | snapshot)

    @classmethod
    def parse(cls, text: str) -> "CommitNote":
        """Reads a note from the broker. If callgauge did not write it, everything must be read."""
        try:
            note = json.loads(text) if text and len(text) <= MAX_NOTE_CHARS else {}
        except ValueError:
            note = {}
        scores, read = (note.get(name) if isinstance(note, dict) else None for name in ("scores", "read"))
        if not isinstance(scores, int) or not isinstance(read, int) or min(scores, read) < 0:
            return cls(0, 0)
        takeovers = note.get("takeovers", 0)
        if not isinstance(takeovers, int) or takeovers < 0:
            takeovers = 0
        return cls(scores, read, takeovers, _place_in(note.get("snapshot")))


def _place_in(found: object) -> SnapshotPlace | None:
    if not isinstance(found, list) or len(found) != 3 or not all(isinstance(each, int) and each >= 0 for each in found):
        return None
    place = SnapshotPlace(*found)
    return place if place.first < place.last else None
