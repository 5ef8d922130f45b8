"""Offsets that reading has passed over: what was deleted before we read it, and inputs that were made anew.

The ends of transactions, aborted ones and compaction leave gaps between the offsets of records, so a gap alone says nothing.
It was a loss if the topic begins after the gap does: the broker has deleted what was there. An offset that comes again, on
the other hand, can only be of another topic with the same name, or of one that was cut off.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from aiokafka import TopicPartition

from consumers.runtime.errors import OperatorError

MAX_GAPS: Final = 1_000
"""Gaps of one input that wait for the broker to say where it begins, which it is asked once a second: more than there are
polls in that time. Beyond it the oldest is taken for the end of a transaction."""


class Gap(NamedTuple):
    """Offsets of one input that were not handed over: from `first` to before `end`."""

    first: int
    end: int


class Loss(NamedTuple):
    """Records of an input that were deleted before they were read.

    Attributes:
        tp: The input.
        first: Offset at which they began.
        records: How many offsets, which is how many records if no transactions ended there.
        log_start: Where the input begins now.
    """

    tp: TopicPartition
    first: int
    records: int
    log_start: int


class InputMadeAnewError(OperatorError):
    """An input hands over offsets again that it has handed over already, so they are of other records: the role must end."""

    def __init__(self, tp: TopicPartition, expected: int, seen: int) -> None:
        """Says which.

        Args:
            tp: The input.
            expected: Offset that was to come next.
            seen: Offset that came.
        """
        super().__init__(
            f"Input {tp.topic}[{tp.partition}]: offset {expected} was to come next, and {seen} came. The topic was deleted "
            "and made anew, or lost its end. What is open in this partition began in records that are gone, so the "
            "evaluator ends; the next one reads this input from its first record, and writes nothing twice. Stop the "
            "evaluators before you delete their inputs."
        )
        self.tp = tp
        self.expected = expected
        self.seen = seen


class InputGaps:
    """The offsets that each input has handed over, and the gaps between them that may be losses."""

    def __init__(self) -> None:
        """Knows of no input."""
        self._next: dict[TopicPartition, int] = {}
        self._gaps: dict[TopicPartition, deque[Gap]] = {}

    def handed_over(self, tp: TopicPartition, begins_at: int, first: int, last: int) -> None:
        """Takes note of the records of one poll.

        Args:
            tp: The input.
            begins_at: Where reading began; only the first time is it looked at.
            first: Offset of the first record.
            last: Of the last.

        Raises:
            InputMadeAnewError: The first one came already.
        """
        expected = self._next.get(tp, begins_at)
        if first < expected:
            raise InputMadeAnewError(tp, expected, first)
        if first > expected:
            self._gaps.setdefault(tp, deque(maxlen=MAX_GAPS)).append(Gap(expected, first))
        self._next[tp] = last + 1

    def forget_positions(self) -> None:
        """Reading begins elsewhere; what was passed over was passed over all the same."""
        self._next.clear()

    def take(self) -> dict[TopicPartition, deque[Gap]]:
        """The gaps to be asked about, which are here no longer."""
        gaps, self._gaps = self._gaps, {}
        return gaps

    def put_back(self, gaps: Mapping[TopicPartition, deque[Gap]]) -> None:
        """The broker did not answer: these are asked about again."""
        for tp, earlier in gaps.items():
            self._gaps[tp] = deque([*earlier, *self._gaps.get(tp, ())], MAX_GAPS)


def losses(gaps: Mapping[TopicPartition, deque[Gap]], log_starts: Mapping[TopicPartition, int]) -> Sequence[Loss]:
    """Which of the gaps were losses; one for each input at most.

    Args:
        gaps: By input, in the order of their offsets.
        log_starts: Where each input begins, asked for after the gaps were found.
    """
    found = []
    for tp, each in gaps.items():
        log_start = log_starts[tp]
        deleted = [gap for gap in each if gap.first < log_start]
        records = sum(min(gap.end, log_start) - gap.first for gap in deleted)
        if deleted:
            found.append(Loss(tp, deleted[0].first, records, log_start))
    return found
