"""Finds input records that were deleted before they were read, and reports the calls that are incomplete because of it."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from consumers.evaluator.ownership.assignment import Assignment
from consumers.evaluator.reading.input_gaps import InputMadeAnewError, losses
from consumers.runtime.registry import Instruments

ASK_EVERY_SECONDS: Final = 1.0
"""How often the broker is asked for the first offsets of inputs with new gaps: each transaction of a producer leaves a gap."""
ANSWER_SECONDS: Final = 10.0
"""How long the broker may take to answer before it is asked again."""
GIVE_UP_SECONDS: Final = 3.0
"""How long the commit after an input was created again may take: well within the session timeout."""

log = structlog.get_logger()


class LostRecords:
    """Counts and logs records that were deleted unread."""

    def __init__(self, assignment: Assignment, instruments: Instruments) -> None:
        """Stores its parts.

        Args:
            assignment: Has the gaps of each input.
            instruments: Where losses are counted.
        """
        self._assignment = assignment
        self._instruments = instruments

    async def watch_for_ever(self, consumer: Callable[[], Any]) -> bool:
        """Asks whenever there are gaps, and does not return.

        Args:
            consumer: Gives the client that reads the inputs.
        """
        while True:
            await asyncio.sleep(ASK_EVERY_SECONDS)
            await self.ask(consumer())

    async def ask(self, consumer: Any) -> None:
        """Asks once for the first offsets of the inputs with gaps, and reports lost records."""
        gaps = self._assignment.gaps.take()
        if not gaps:
            return
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                log_starts = await consumer.beginning_offsets(list(gaps))
        except (KafkaError, TimeoutError) as error:
            self._assignment.gaps.put_back(gaps)
            log.debug("log_starts_not_told", error=str(error) or type(error).__name__)
            return
        for loss in losses(gaps, log_starts):
            self._instruments.inc("callgauge_input_records_lost_total", (), loss.records)
            log.error(
                "input_not_where_it_was",
                record=f"{loss.tp.topic}[{loss.tp.partition}]@{loss.first}",
                seen=f"the topic begins at {loss.log_start} now",
                records=loss.records,
                what_happens_now="These records were deleted before they were read. Reading goes on after them; calls that "
                "were open are incomplete, and calls that were in them alone are missing.",
                what_to_do="Keep inputs for longer than the longest outage, and give the evaluator room to catch up; see "
                "`callgauge doctor`.",
            )
            owned = self._assignment.active.get(loss.tp.partition)
            if owned is not None:
                owned.partition.records_lost()

    async def give_up(self, error: InputMadeAnewError, consumer: Any) -> None:
        """Commits new start offsets of inputs that were created again, for the successor. Then the role must end.

        An input that is shorter now than the position of its reading was created again as well.

        Args:
            error: Names the input in which it was seen.
            consumer: The client that reads the inputs.
        """
        log.error(
            "input_not_where_it_was",
            record=f"{error.tp.topic}[{error.tp.partition}]@{error.expected}",
            seen=f"offset {error.seen} came",
            what_happens_now="The topic was made anew, or lost its end. The evaluator ends, and the next one reads this input "
            "from its first record.",
            what_to_do="Stop the evaluators before you delete their inputs.",
        )
        active = self._assignment.active
        read = {
            TopicPartition(topic, number): offset
            for number, owned in active.items()
            for topic, offset in owned.partition.next_offsets.items()
        }
        active[error.tp.partition].partition.records_lost()
        for owned in active.values():  # so that nobody commits for them any more
            owned.partition.drop()
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                ends = await consumer.end_offsets(list(read))
                anew = [tp for tp, offset in read.items() if ends[tp] < offset or tp == error.tp]
                firsts = await consumer.beginning_offsets(anew)
                await consumer.commit({tp: OffsetAndMetadata(firsts[tp], "") for tp in anew})
        except (KafkaError, TimeoutError) as failed:
            log.warning("commit_failed", error=str(failed) or type(failed).__name__)
