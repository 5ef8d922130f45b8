"""Finds the offset of `scores` from which a successor must read, by marks of how far inputs and scores had come in the past."""

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

MARK_EVERY_MS: Final = 10_000
"""Time between two marks: a successor reads at most this much more of `scores` than it needs."""
MAX_MARKS: Final = 4_096
"""Most marks kept: eleven hours of them. Beyond that every second mark is dropped, and a successor reads more than it needs."""


class Mark(NamedTuple):
    """One moment: every score written later is at `scores_end` or after it, everything folded later at `positions` or after."""

    at_ms: int
    positions: Mapping[str, int]
    scores_end: int


class LedgerMarks:
    """The marks of one partition, oldest first. The first is where its owner itself began."""

    def __init__(self, first: Mark, overlap_ms: int) -> None:
        """Knows the first mark.

        Args:
            first: Where the owner began to read.
            overlap_ms: How long after its closing a call's records must still be recognised.
        """
        self._marks = deque([first])
        self._overlap_ms = overlap_ms

    def note(self, mark: Mark) -> None:
        """A mark of now, if the last is old enough. Nothing folded may be unwritten."""
        if mark.at_ms - self._marks[-1].at_ms < MARK_EVERY_MS:
            return
        self._marks.append(mark)
        if len(self._marks) > MAX_MARKS:
            self._marks = deque(mark for place, mark in enumerate(self._marks) if place % 2 == 0)

    def start_for(self, watermarks: Mapping[str, int]) -> int:
        """Returns the first offset of `scores` that a successor needs if it reads the inputs from `watermarks`.

        From there on are the records of every open call, and of every call that closed less than the overlap before the
        watermarks. An input record of a call that closed earlier is not recognised as late.
        """
        marks = self._marks
        reached_ms = max((mark.at_ms for mark in marks if _is_below(mark, watermarks)), default=marks[0].at_ms)
        while len(marks) > 1 and marks[1].at_ms <= reached_ms - self._overlap_ms:
            marks.popleft()
        return marks[0].scores_end


def _is_below(mark: Mark, watermarks: Mapping[str, int]) -> bool:
    return all(position <= watermarks.get(topic, position) for topic, position in mark.positions.items())
