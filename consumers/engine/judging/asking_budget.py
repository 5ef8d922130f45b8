"""How much a call may ask its judges in one step: each question carries the call up to its turn, and there can be many."""

from collections.abc import Iterable
from itertools import chain, islice
from typing import Final

from schemas.judging import MAX_TRANSCRIPT_ITEMS, TranscriptItem, transcript_chars

MAX_WORK_PER_STEP: Final = 50_000
"""Entries of transcripts that one step puts to judges, some 0.3 s of work. Questions beyond it wait until the call leaves the next
turn or the next answer comes. Only a text that changes long afterwards asks for more: about every turn since."""
_WORK_OF_A_QUESTION: Final = 100
_CHARS_OF_AN_ENTRY: Final = 64
"""Characters of texts that take as long to read as an entry does."""


class AskingBudget:
    """Counts how much one step may still ask."""

    def __init__(self) -> None:
        """Nothing is asked yet."""
        self._left = MAX_WORK_PER_STEP

    @property
    def is_spent(self) -> bool:
        """Whether the next question must wait."""
        return self._left <= 0

    def transcript(self, turns: Iterable[tuple[TranscriptItem, ...]]) -> tuple[TranscriptItem, ...]:
        """These turns as a question has them, which is put now."""
        items = tuple(islice(chain.from_iterable(turns), MAX_TRANSCRIPT_ITEMS))
        self._left -= _WORK_OF_A_QUESTION + len(items) + transcript_chars(items) // _CHARS_OF_AN_ENTRY
        return items
