"""Writes the verdicts on the questions of one partition, each in one transaction with the progress of the partition."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, OutOfOrderSequenceNumber, ProducerFenced
from aiokafka.structs import OffsetAndMetadata

from consumers.judge.limits.spending import Budget
from consumers.judge.progress import Progress
from consumers.runtime.clock import wall_clock_ms
from consumers.runtime.errors import OperatorError
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.polling.commits import COMMIT_SECONDS
from consumers.runtime.polling.subscription import Subscription
from schemas.events.envelope import envelope_headers
from schemas.judging import VERDICT_SOURCE, VERDICT_TYPE, JudgeVerdict
from schemas.topics import JUDGE_VERDICTS_TOPIC

CLOSE_SECONDS: Final = 1.0
"""How long a producer may take to disconnect."""
TRANSACTION_TIMEOUT_MS: Final = 15_000
"""How long a transaction that a killed judge left open holds back later verdicts, if no other judge takes its partition over."""

Outgoing = tuple[JudgeVerdict, int | None]


class VerdictWriteError(OperatorError):
    """Verdicts were perhaps not written. The role must end; the next owner asks the questions that have none."""


class PartitionWriter:
    """The producer of one partition of `judge.requests`, whose start fences off the former owner.

    Verdicts that come during a transaction share the next one. A broker without transactions, such as the demo's, gets the
    verdicts first and then the commit.

    Attributes:
        progress: The answered questions, also those whose verdicts wait here. It is there from `start` on.
        outgoing: Verdicts that wait to be written.
    """

    progress: Progress

    def __init__(
        self, partition: TopicPartition, kafka: KafkaSettings, group_id: str, subscription: Subscription, budget: Budget
    ) -> None:
        """Stores its settings; `start` connects.

        Args:
            partition: The partition of the questions.
            kafka: Where the broker is.
            group_id: The group whose progress is written.
            subscription: Reads the questions.
            budget: Tells the money that is noted.
        """
        self.outgoing: list[Outgoing] = []
        self._partition = partition
        self._kafka = kafka
        self._group_id = group_id
        self._subscription = subscription
        self._budget = budget
        name = f"judge-{partition.partition}"
        transactional_id = None if kafka.is_embedded else f"{group_id}-{name}"
        self._producer = kafka.producer(name, transactional_id, TRANSACTION_TIMEOUT_MS)
        self._one_at_a_time = asyncio.Lock()
        self._has_changed = asyncio.Event()

    async def start(self) -> None:
        """Fences off the former owner, and goes on from its progress.

        Raises:
            KafkaError: The broker refused.
        """
        await self._producer.start()
        consumer, ours = self._subscription.consumer, [self._partition]
        # Only now: until the former owner's last transaction has ended, the broker tells the progress before it.
        found = await consumer._coordinator.fetch_committed_offsets(ours)  # noqa: SLF001  # `committed` has no notes
        begins, ends = await consumer.beginning_offsets(ours), await consumer.end_offsets(ours)
        committed = found.get(self._partition, OffsetAndMetadata(-1, ""))
        self.progress = Progress(committed, begins[self._partition], ends[self._partition])
        self._budget.recall(self.progress.hour, self.progress.spent, wall_clock_ms())
        consumer.seek(self._partition, self.progress.first)

    def answer(self, offset: int) -> None:
        """Counts a question as answered, to be written soon."""
        self.progress.answer(offset)
        self._has_changed.set()

    def put(self, verdict: JudgeVerdict, reply_partition: int | None) -> None:
        """Adds the verdict on a question that was just answered, and the partition for it; None if its key decides."""
        self.outgoing.append((verdict, reply_partition))

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
            outgoing, progress = self.outgoing[:], self.progress.to_commit(*self._budget.spent(wall_clock_ms()))
            try:
                await self._transaction(outgoing, {self._partition: progress})
            except KafkaError as error:
                raise VerdictWriteError(self._reason(error)) from error
            del self.outgoing[: len(outgoing)]

    async def stop(self) -> None:
        """Disconnects; bounded. The next owner's start aborts a transaction that is still open."""
        with contextlib.suppress(TimeoutError, KafkaError):
            await asyncio.wait_for(self._producer.stop(), CLOSE_SECONDS)

    async def _transaction(
        self, outgoing: Sequence[Outgoing], progress: dict[TopicPartition, OffsetAndMetadata]
    ) -> None:
        if not self._kafka.is_embedded:
            await self._producer.begin_transaction()
        await asyncio.gather(*[await self._send(*each) for each in outgoing])
        if self._kafka.is_embedded:
            with contextlib.suppress(KafkaError, TimeoutError):  # the next commit covers a failed one
                await self._subscription.commit(progress, COMMIT_SECONDS)
        else:
            await self._producer.send_offsets_to_transaction(progress, self._group_id)
            await self._producer.commit_transaction()

    async def _send(self, verdict: JudgeVerdict, reply_partition: int | None) -> Any:
        call = verdict.conversation_id
        return await self._producer.send(
            self._kafka.topic(JUDGE_VERDICTS_TOPIC),
            verdict.model_dump_json().encode(),
            key=call.encode(),
            partition=reply_partition,
            headers=envelope_headers(
                event_id=verdict.request_id, source=VERDICT_SOURCE, event_type=VERDICT_TYPE, subject=call
            ),
        )

    def _reason(self, error: KafkaError) -> str:
        name = f"{self._partition.topic}[{self._partition.partition}]"
        if isinstance(error, ProducerFenced | OutOfOrderSequenceNumber):
            return f"Judge: another judge has {name} by now, because this one was silent for too long. It ends."
        cause = error.__cause__ or error  # the client hides some errors behind one of its own
        return (
            f"Judge: the verdicts on questions of {name} were not taken by {self._kafka.bootstrap_servers}: "
            f"{str(cause) or type(cause).__name__}. The judge ends without committing them, and the next one asks these "
            "questions again. Check the broker, and the rights to write judge.verdicts and to use the transactional id."
        )
