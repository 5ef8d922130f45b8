"""Notices records that were deleted before they were read, and inputs that were created again."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from consumers.evaluator.partition import Partition
from consumers.evaluator.recovery import CommitNote
from consumers.runtime.process import OperatorError
from consumers.runtime.registry import Instruments

ASK_EVERY_SECONDS: Final = 1.0
"""How often the broker is asked for the first offsets of inputs with new gaps: each transaction of a producer leaves a gap."""
ANSWER_SECONDS: Final = 10.0
"""How long the broker may take to answer before it is asked again."""
GIVE_UP_SECONDS: Final = 3.0
"""How long the commit after an input was created again may take: well within the session timeout."""
MAX_GAPS: Final = 1_000
"""Most gaps of one input that wait for the next answer of the broker: more than polls in a second. Beyond it a gap counts as the
end of a transaction."""

log = structlog.get_logger()


class Gap(NamedTuple):
    """Offsets of one input without a record, from `first` to before `end`."""

    first: int
    end: int


class InputMadeAnewError(OperatorError):
    """An offset of an input came twice, so the records are others and the topic was created again. The role must end."""

    def __init__(self, tp: TopicPartition, expected: int, seen: int) -> None:
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
    """The next offset of each input, and the gaps before it that may be losses.

    Attributes:
        gaps: By input, in the order of their offsets.
    """

    def __init__(self) -> None:
        self.gaps: dict[TopicPartition, list[Gap]] = {}
        self._next: dict[TopicPartition, int] = {}

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
            gaps = self.gaps.setdefault(tp, [])
            if len(gaps) < MAX_GAPS:
                gaps.append(Gap(expected, first))
        self._next[tp] = last + 1

    def forget_positions(self) -> None:
        """Forgets the positions, because reading begins elsewhere. The gaps stay."""
        self._next.clear()


class LostRecords:
    """Counts and logs records that were deleted unread, and names the calls that are incomplete because of it."""

    def __init__(
        self, gaps: InputGaps, active: Callable[[], Mapping[int, Partition]], instruments: Instruments
    ) -> None:
        self._gaps = gaps
        self._active = active
        self._instruments = instruments

    async def watch_for_ever(self, consumer: Callable[[], Any]) -> bool:
        """Asks the client that reads the inputs whenever there are gaps, and does not return."""
        while True:
            await asyncio.sleep(ASK_EVERY_SECONDS)
            await self.ask(consumer())

    async def ask(self, consumer: Any) -> None:
        """Asks once for the first offsets of the inputs with gaps, and reports lost records."""
        gaps = {tp: list(each) for tp, each in self._gaps.gaps.items()}
        if not gaps:
            return
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                log_starts = await consumer.beginning_offsets(list(gaps))
        except (KafkaError, TimeoutError) as error:
            log.debug("log_starts_not_told", error=str(error) or type(error).__name__)
            return
        for tp, asked in gaps.items():
            del self._gaps.gaps[tp][: len(asked)]
            if not self._gaps.gaps[tp]:
                del self._gaps.gaps[tp]
            self._report(tp, asked, log_starts[tp])

    def _report(self, tp: TopicPartition, gaps: list[Gap], log_start: int) -> None:
        deleted = [gap for gap in gaps if gap.first < log_start]
        if not deleted:
            return
        records = sum(
            min(gap.end, log_start) - gap.first for gap in deleted
        )  # with the ends of transactions among them
        self._instruments.inc("callgauge_input_records_lost_total", (), records)
        log.error(
            "input_not_where_it_was",
            record=f"{tp.topic}[{tp.partition}]@{deleted[0].first}",
            seen=f"the topic begins at {log_start} now",
            records=records,
            what_happens_now="These records were deleted before they were read. Reading goes on after them; calls that "
            "were open are incomplete, and calls that were in them alone are missing.",
            what_to_do="Keep inputs for longer than the longest outage, and give the evaluator room to catch up; see "
            "`callgauge doctor`.",
        )
        if (owned := self._active().get(tp.partition)) is not None:
            owned.records_lost()

    async def give_up(self, error: InputMadeAnewError, consumer: Any) -> None:
        """Commits new start offsets of inputs that were created again, for the successor. Then the role must end.

        An input that is shorter now than the position of its reading was created again as well. Their note says so: the successor
        does not use the order of the partition.
        """
        log.error(
            "input_not_where_it_was",
            record=f"{error.tp.topic}[{error.tp.partition}]@{error.expected}",
            seen=f"offset {error.seen} came",
            what_happens_now="The topic was made anew, or lost its end. The evaluator ends, and the next one reads this input "
            "from its first record.",
            what_to_do="Stop the evaluators before you delete their inputs.",
        )
        active = self._active()
        read = {
            TopicPartition(topic, number): offset
            for number, owned in active.items()
            for topic, offset in owned.next_offsets.items()
        }
        active[error.tp.partition].records_lost()
        for owned in active.values():  # so that nobody commits for them any more
            owned.drop()
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                ends = await consumer.end_offsets(list(read))
                anew = [tp for tp, offset in read.items() if ends[tp] < offset or tp == error.tp]
                firsts = await consumer.beginning_offsets(anew)
                note = CommitNote(None, is_anew=True).text()
                await consumer.commit({tp: OffsetAndMetadata(firsts[tp], note) for tp in anew})
        except (KafkaError, TimeoutError) as failed:
            log.warning("commit_failed", error=str(failed) or type(failed).__name__)
