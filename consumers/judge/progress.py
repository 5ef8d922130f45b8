"""Progress in one partition of `judge.requests`: an offset to commit, with a note beside it.

Questions are answered in any order, and a committed offset says only that all before it are answered. The note names the answered
ones after it, and the money that the process has spent in this hour: `["5", 496000, {"ava": 0.25}]` says that the first and the
third question from the offset on need no answer.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Final

from aiokafka.structs import OffsetAndMetadata
from pydantic import Field, TypeAdapter, ValidationError

MAX_SPAN: Final = 8_000
"""Most offsets from the oldest open question to the newest one that is read. Each is a bit of the note, in hexadecimal."""
MAX_NOTE_CHARS: Final = 4_000
"""Longest note: a broker takes 4,096 characters by default. Of many agents, only those that cost most find room."""

_Answered = Annotated[str, Field(pattern="^[0-9a-f]+$", max_length=MAX_SPAN // 4)]
_Money = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_NOTE: Final = TypeAdapter(tuple[_Answered, int, dict[str, _Money]])


class Progress:
    """The answered questions of one partition.

    Attributes:
        first: The first offset that needs an answer: a successor reads from here.
        hour: The hour of the note that was found, counted from 1970; 0 without one.
        spent: By agent, the money that the former owner had spent in that hour.
    """

    def __init__(self, committed: OffsetAndMetadata, begin: int, end: int) -> None:
        """Goes on from a former owner. If its note is damaged or not a judge's, nothing after the offset is answered.

        Args:
            committed: The offset and the note.
            begin: The first offset in the partition. Earlier ones were deleted.
            end: The offset after the last one. A commit beyond it is about a topic that was created again since.
        """
        offset, note = committed if 0 <= committed.offset <= end else (begin, "")
        try:
            answered, self.hour, self.spent = _NOTE.validate_json(note)
        except ValidationError:
            answered, self.hour, self.spent = "0", 0, {}
        self.first = self._next = offset
        self._answered = int(answered, 16) & (1 << min(MAX_SPAN, end - offset)) - 1  # a bit for each from the first on
        self._skip_to(begin)

    def is_full(self, offset: int) -> bool:
        """Whether this offset is too far from the oldest open question to be read now."""
        return self.first < self._next and offset - self.first >= MAX_SPAN

    def read(self, offset: int) -> bool:
        """Moves on to the question at this offset, the next one there is. Returns whether it is open."""
        if offset < self._next:  # the topic was created again
            self.first, self._answered = offset, 0
        elif self.first < self._next:
            self._answered |= ((1 << offset - self._next) - 1) << self._next - self.first
        else:  # nothing is open
            self._skip_to(offset)
        self._next = offset + 1
        self._advance()
        return self.is_open(offset)

    def is_open(self, offset: int) -> bool:
        """Whether the question at this offset needs an answer."""
        return offset >= self.first and not self._answered >> offset - self.first & 1

    def answer(self, offset: int) -> None:
        """Counts the question at this offset as answered, or as one that needs no answer."""
        if offset >= self.first:
            self._answered |= 1 << offset - self.first
            self._advance()

    def to_commit(self, hour: int, spent: Mapping[str, float]) -> OffsetAndMetadata:
        """Returns the offset and the note for a successor.

        Args:
            hour: The hour, counted from 1970.
            spent: By agent, the money that this process has spent in it.
        """
        answered = f"{self._answered & (1 << MAX_SPAN) - 1:x}"
        most = sorted(spent, key=spent.__getitem__, reverse=True)
        while len(note := json.dumps([answered, hour, {agent: spent[agent] for agent in most}])) > MAX_NOTE_CHARS:
            del most[len(most) // 2 :]
        return OffsetAndMetadata(self.first, note)

    def _skip_to(self, offset: int) -> None:
        self._answered >>= max(0, offset - self.first)
        self.first = max(self.first, offset)
        self._advance()

    def _advance(self) -> None:
        ones = (self._answered ^ self._answered + 1).bit_length() - 1  # how many, at the low end
        self._answered >>= ones
        self.first += ones
