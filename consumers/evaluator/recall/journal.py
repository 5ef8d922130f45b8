"""The journal of a partition: which steps its owner took since it began, in order, as far as they lead to what is written.

The engine is deterministic: a successor that restores a state and takes the same steps after it has the same state, and decides the
same records. So each transaction of scores carries a piece of the journal, with the steps up to the last of its records.
"""

import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from consumers.evaluator.recall.journal_piece import CLOSE_SOME, JournalPlace, Piece, Step, encoded

MAX_PENDING_STEPS: Final = 50_000
"""Most steps that wait for a transaction: minutes of a partition that decides nothing, in some 100 kB of a piece. Beyond it the journal
ends, and the next snapshot begins another one."""


class Journal:
    """Steps of one partition that no written piece has yet.

    Attributes:
        has_ended: Whether steps are missing, so that no further piece is written.
    """

    def __init__(self, positions: Mapping[str, int], unwritten: int) -> None:
        """Starts before the next step.

        Args:
            positions: By topic, the offset after the last folded record.
            unwritten: Groups of records that are decided and not written.
        """
        self.has_ended = False
        self._id = secrets.token_hex(16)
        self._positions = dict(positions)
        self._time_ms = 0
        self._first_step = 0
        self._steps: list[Step] = []
        self._written = 0
        self._decided = unwritten
        self._deciding: deque[tuple[int, int, int]] = (
            deque()
        )  # steps with groups: steps so far, groups before and after
        self._covered = 0

    @classmethod
    def ended(cls) -> "Journal":
        """Returns a journal of nothing."""
        journal = cls({}, 0)
        journal.end()
        return journal

    @property
    def place(self) -> JournalPlace | None:
        """The present moment, as a snapshot names it; None after the end."""
        if self.has_ended:
            return None
        steps = self._first_step + len(self._steps)
        return JournalPlace(journal_id=self._id, steps=steps, groups=self._decided, written=self._written)

    def folded(self, topic: str, offset: int, groups: int) -> None:
        """Notes that a record was folded, and how many groups that decided."""
        self._note((topic, offset), groups)

    def time_passed(self, now_ms: int, groups: int) -> None:
        """Notes that broker time passed in the engine, up to `now_ms`, and how many groups that decided."""
        self._note((None, now_ms), groups)

    def closed_some(self, groups: int) -> None:
        """Notes that the engine took a step of closing calls, and how many groups that decided."""
        self._note(CLOSE_SOME, groups)

    def end(self) -> None:
        """Ends the journal, because a step was taken that it cannot repeat."""
        self.has_ended = True
        self._steps.clear()
        self._deciding.clear()

    def piece(self, checks: Sequence[int], scores: int) -> Piece | None:
        """Returns the piece for the transaction with the next groups; None after the end.

        Args:
            checks: A checksum of each of the groups.
            scores: Number of records of `scores` in the transaction.
        """
        if self.has_ended:
            return None
        end = self._written + len(checks)
        covered = left = 0
        for steps, before, after in self._deciding:
            if before >= end:
                break
            covered, left = max(0, steps - self._first_step), max(0, after - end)
        try:
            steps_text = encoded(self._steps[:covered], self._positions, self._time_ms)
        except ValueError:  # an offset came twice: the input was made anew, and the evaluator ends
            self.end()
            return None
        self._covered = covered
        return Piece(
            journal_id=self._id,
            first_step=self._first_step,
            steps=covered,
            positions=dict(self._positions),
            time_ms=self._time_ms,
            first_group=self._written,
            checks=tuple(checks),
            left=left,
            scores=scores,
            encoded=steps_text,
        )

    def wrote(self, groups: int) -> None:
        """Notes that the next groups are written, with the latest piece."""
        self._written += groups
        while self._deciding and self._deciding[0][2] <= self._written:
            self._deciding.popleft()
        covered, self._covered = self._covered, 0
        for topic, value in self._steps[:covered]:
            if topic is not None:
                self._positions[topic] = value + 1
            elif (topic, value) != CLOSE_SOME:
                self._time_ms = value
        del self._steps[:covered]
        self._first_step += covered

    def _note(self, step: Step, groups: int) -> None:
        if self.has_ended:
            return
        steps = self._steps
        if len(steps) >= MAX_PENDING_STEPS:
            self.end()
            return
        steps.append(step)
        if groups:
            before = self._decided
            self._decided = before + groups
            self._deciding.append((self._first_step + len(steps), before, self._decided))
