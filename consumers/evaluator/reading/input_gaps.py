"""Gaps between the offsets that were read: records deleted before we read them, and inputs that were created again.

Transactions and compaction leave gaps between the offsets of records, so a gap alone proves nothing. It is a loss if the topic
now begins after the start of the gap: then the broker has deleted its records. An offset that comes again is of a new topic
with the same name, or of a topic that lost its end.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from aiokafka import TopicPartition

from consumers.runtime.errors import OperatorError

MAX_GAPS: Final = 1_000
"""Most gaps of one input that wait for the next answer of the broker, which comes once a second: more than polls in that time.
Beyond it the oldest gap counts as the end of a transaction."""


class Gap(NamedTuple):
    """Offsets of one input without a record, from `first` to before `end`."""

    first: int
    end: int


class Loss(NamedTuple):
    """Records of an input that were deleted before they were read.

    Attributes:
        tp: The input.
        first: Offset of the first lost record.
        records: Number of lost offsets, an upper bound of the records, because ends of transactions take offsets too.
        log_start: First offset of the input now.
    """

    tp: TopicPartition
    first: int
    records: int
    log_start: int


class InputMadeAnewError(OperatorError):
    """An offset of an input came twice, so the records are others and the topic was created again. The role must end."""

    def __init__(self, tp: TopicPartition, expected: int, seen: int) -> None:
        """Writes the message.

        Args:
            tp: The input.
            expected: The next offset.
            seen: The offset that came instead.
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
    """Tracks the offsets read of each input, and the gaps between them that may be losses."""

    def __init__(self) -> None:
        """Starts without inputs."""
        self._next: dict[TopicPartition, int] = {}
        self._gaps: dict[TopicPartition, deque[Gap]] = {}

    def handed_over(self, tp: TopicPartition, begins_at: int, first: int, last: int) -> None:
        """Notes the records of one poll.

        Args:
            tp: The input.
            begins_at: Offset at which reading began. Only used the first time.
            first: Offset of the first record.
            last: Offset of the last record.

        Raises:
            InputMadeAnewError: The first offset came before.
        """
        expected = self._next.get(tp, begins_at)
        if first < expected:
            raise InputMadeAnewError(tp, expected, first)
        if first > expected:
            self._gaps.setdefault(tp, deque(maxlen=MAX_GAPS)).append(Gap(expected, first))
        self._next[tp] = last + 1

    def forget_positions(self) -> None:
        """Forgets the positions, because reading begins elsewhere. The gaps stay."""
        self._next.clear()

    def take(self) -> dict[TopicPartition, deque[Gap]]:
        """Returns the gaps to ask the broker about, and removes them."""
        gaps, self._gaps = self._gaps, {}
        return gaps

    def put_back(self, gaps: Mapping[TopicPartition, deque[Gap]]) -> None:
        """Adds gaps again, because the broker did not answer."""
        for tp, earlier in gaps.items():
            self._gaps[tp] = deque([*earlier, *self._gaps.get(tp, ())], MAX_GAPS)


def losses(gaps: Mapping[TopicPartition, deque[Gap]], log_starts: Mapping[TopicPartition, int]) -> Sequence[Loss]:
    """Returns the gaps that were losses, at most one for each input.

    Args:
        gaps: Gaps by input, in the order of their offsets.
        log_starts: First offset of each input, asked for after the gaps were found.
    """
    found = []
    for tp, each in gaps.items():
        log_start = log_starts[tp]
        deleted = [gap for gap in each if gap.first < log_start]
        records = sum(min(gap.end, log_start) - gap.first for gap in deleted)
        if deleted:
            found.append(Loss(tp, deleted[0].first, records, log_start))
    return found
