"""Where the judge's group has come, and the writing of verdicts with that progress in one
transaction.
"""

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, OutOfOrderSequenceNumber, ProducerFenced
from aiokafka.structs import OffsetAndMetadata
from pydantic import Field, TypeAdapter, ValidationError

from consumers.judge.limits import Budget
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.kafka.polling import GroupReader
from consumers.runtime.process import OperatorError, in_time, wall_clock_ms
from schemas.events.envelope import envelope_headers
from schemas.judging import VERDICT_SOURCE, VERDICT_TYPE, JudgeRequest, JudgeVerdict
from schemas.topics import JUDGE_VERDICTS_TOPIC

# Progress in one partition of `judge.requests`: an offset to commit, with a note beside it.
#
# Questions are answered in any order, and a committed offset says only that all before it are
# answered. The note names the answered ones after it, and the money that the process has spent in
# this hour: `["5", 496000, {"ava": 0.25}]` says that the first and the third question from the
# offset on need no answer.

MAX_SPAN: Final = 8_000
"""Most offsets from the oldest open question to the newest one that is read. Each is a bit of the
note, in hexadecimal.
"""
MAX_NOTE_CHARS: Final = 4_000
"""Longest note: a broker takes 4,096 characters by default. Of many agents, only those that cost
most find room.
"""

_Answered = Annotated[str, Field(pattern="^[0-9a-f]+$", max_length=MAX_SPAN // 4)]
_Money = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_NOTE: Final = TypeAdapter(tuple[_Answered, int, dict[str, _Money]])


class AnsweredQuestions:
    """The answered questions of one partition.

    Attributes:
        first: The first offset that needs an answer: a successor reads from here.
        hour: The hour of the note that was found, counted from 1970; 0 without one.
        spent: By agent, the money that the former owner had spent in that hour.
    """

    def __init__(self, committed: OffsetAndMetadata, begin: int, end: int) -> None:
        """Goes on from a former owner. If its note is damaged or not a judge's, nothing after the
        offset is answered.

        Args:
            committed: The offset and the note.
            begin: The first offset in the partition. Earlier ones were deleted.
            end: The offset after the last one. A commit beyond it is about a topic that was created
                again since.
        """
        offset, note = committed if 0 <= committed.offset <= end else (begin, "")
        try:
            answered, self.hour, self.spent = _NOTE.validate_json(note)
        except ValidationError:
            answered, self.hour, self.spent = "0", 0, {}
        self.first = self._next = offset
        # a bit for each from the first on
        self._answered = int(answered, 16) & (1 << min(MAX_SPAN, end - offset)) - 1
        self._skip_to(begin)

    def is_full(self, offset: int) -> bool:
        """Whether this offset is too far from the oldest open question to be read now."""
        return self.first < self._next and offset - self.first >= MAX_SPAN

    def read(self, offset: int) -> bool:
        """Moves on to the question at this offset, the next one there is. Returns whether it is
        open.
        """
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
        while (
            len(note := json.dumps([answered, hour, {agent: spent[agent] for agent in most}]))
            > MAX_NOTE_CHARS
        ):
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


# Writes the verdicts on the questions of one partition, each in one transaction with the progress
# of the partition.

CLOSE_SECONDS: Final = 1.0
"""How long a producer may take to disconnect."""
TRANSACTION_TIMEOUT_MS: Final = 15_000
"""How long a transaction that a killed judge left open holds back later verdicts, if no other judge
takes its partition over.
"""


class VerdictWriteError(OperatorError):
    """Verdicts were perhaps not written. The role must end; the next owner asks the questions that
    have none.
    """


class PartitionWriter:
    """The producer of one partition of `judge.requests`, whose start fences off the former owner.

    Verdicts that come during a transaction share the next one. A broker without transactions, such
    as the demo's, gets the verdicts first and then the commit.

    Attributes:
        progress: The answered questions, also those whose verdicts wait here. It is there from
            `start` on.
        outgoing: Verdicts that wait to be written.
    """

    progress: AnsweredQuestions

    def __init__(
        self,
        partition: TopicPartition,
        kafka: KafkaSettings,
        group_id: str,
        reader: GroupReader[JudgeRequest],
        budget: Budget,
    ) -> None:
        self.outgoing: list[JudgeVerdict] = []
        self._partition = partition
        self._kafka = kafka
        self._group_id = group_id
        self._reader = reader
        self._budget = budget
        name = f"judge-{partition.partition}"
        transactional_id = f"{group_id}-{name}"
        self._producer = kafka.producer(name, transactional_id, TRANSACTION_TIMEOUT_MS)
        self._one_at_a_time = asyncio.Lock()
        self._has_changed = asyncio.Event()

    async def start(self) -> None:
        """Fences off the former owner, and goes on from its progress.

        Raises:
            KafkaError: The broker refused.
        """
        await self._producer.start()
        consumer, ours = self._reader.consumer, [self._partition]
        # Only now: until the former owner's last transaction has ended, the broker tells the
        # progress before it.
        # `committed` has no notes
        found = await consumer._coordinator.fetch_committed_offsets(ours)  # noqa: SLF001
        begins, ends = await consumer.beginning_offsets(ours), await consumer.end_offsets(ours)
        committed = found.get(self._partition, OffsetAndMetadata(-1, ""))
        self.progress = AnsweredQuestions(committed, begins[self._partition], ends[self._partition])
        self._budget.recall(self.progress.hour, self.progress.spent, wall_clock_ms())
        consumer.seek(self._partition, self.progress.first)

    def answer(self, offset: int) -> None:
        """Counts a question as answered, to be written soon."""
        self.progress.answer(offset)
        self._has_changed.set()

    def put(self, verdict: JudgeVerdict) -> None:
        """Adds the verdict on a question that was just answered."""
        self.outgoing.append(verdict)

    async def write_for_ever(self) -> None:
        """Writes whatever is answered, until cancelled; raises like `write`."""
        while True:
            await self._has_changed.wait()
            await self.write()

    async def write(self) -> None:
        """Writes what is answered by now.

        Raises:
            VerdictWriteError: Another judge owns the partition, or the broker refused.
        """
        async with self._one_at_a_time:
            if not self._has_changed.is_set():
                return
            self._has_changed.clear()
            outgoing, progress = (
                self.outgoing[:],
                self.progress.to_commit(*self._budget.spent(wall_clock_ms())),
            )
            try:
                await self._transaction(outgoing, {self._partition: progress})
            except KafkaError as error:
                raise VerdictWriteError(self._reason(error)) from error
            del self.outgoing[: len(outgoing)]

    async def stop(self) -> None:
        """Disconnects; bounded. The next owner's start aborts a transaction that is still open."""
        with contextlib.suppress(TimeoutError, KafkaError):
            await in_time(CLOSE_SECONDS, self._producer.stop())

    async def _transaction(
        self, outgoing: Sequence[JudgeVerdict], progress: dict[TopicPartition, OffsetAndMetadata]
    ) -> None:
        await self._producer.begin_transaction()
        await asyncio.gather(*[await self._send(verdict) for verdict in outgoing])
        await self._producer.send_offsets_to_transaction(progress, self._group_id)
        await self._producer.commit_transaction()

    async def _send(self, verdict: JudgeVerdict) -> Any:
        call = verdict.conversation_id
        return await self._producer.send(
            self._kafka.topic(JUDGE_VERDICTS_TOPIC),
            verdict.model_dump_json().encode(),
            key=call.encode(),
            headers=envelope_headers(
                event_id=verdict.request_id,
                source=VERDICT_SOURCE,
                event_type=VERDICT_TYPE,
                subject=call,
            ),
        )

    def _reason(self, error: KafkaError) -> str:
        name = f"{self._partition.topic}[{self._partition.partition}]"
        if isinstance(error, ProducerFenced | OutOfOrderSequenceNumber):
            return (
                f"Judge: another judge has {name} by now, because this one was silent for too "
                "long. It ends."
            )
        cause = error.__cause__ or error  # the client hides some errors behind one of its own
        return (
            f"Judge: the verdicts on questions of {name} were not taken by "
            f"{self._kafka.bootstrap_servers}: {str(cause) or type(cause).__name__}. The judge "
            "ends without committing them, and the next one asks these questions again. Check the "
            "broker, and the rights to write judge.verdicts and to use the transactional id."
        )
