"""Bounds the work of asking judges in one step: each question carries the call up to its turn, and there can be many."""

from collections.abc import Iterable
from itertools import chain, islice
from typing import Final

from schemas.judging import MAX_TRANSCRIPT_ITEMS, TranscriptItem, transcript_chars

MAX_WORK_PER_STEP: Final = 50_000
"""Transcript entries that one step may put into questions, some 0.3 s of work. Further questions wait until the call leaves the
next turn or the next answer comes. Only a text that changes long afterwards asks for more: about every turn since.
"""
_WORK_OF_A_QUESTION: Final = 100
_CHARS_OF_AN_ENTRY: Final = 64
"""Characters that cost as much to read as one entry."""


class AskingBudget:
    """Counts the work that one step may still spend on questions."""

    def __init__(self) -> None:
        """Starts with nothing asked."""
        self._left = MAX_WORK_PER_STEP

    @property
    def is_spent(self) -> bool:
        """Whether the next question must wait."""
        return self._left <= 0

    def transcript(self, turns: Iterable[tuple[TranscriptItem, ...]]) -> tuple[TranscriptItem, ...]:
        """The turns as the transcript of a question that is asked now."""
        items = tuple(islice(chain.from_iterable(turns), MAX_TRANSCRIPT_ITEMS))
        self._left -= _WORK_OF_A_QUESTION + len(items) + transcript_chars(items) // _CHARS_OF_AN_ENTRY
        return items
