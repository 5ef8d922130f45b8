"""The judge role: reads questions from `judge.requests` and writes verdicts to `judge.verdicts`.

Questions are answered in any order. A verdict is in one transaction with the progress of its
question's partition, so a new owner asks exactly the questions without a committed verdict,
whatever happened to the former owner: those in progress of a killed process are asked again, and a
process that was frozen beyond its session can write nothing more. A new owner also counts the money
that the former one had spent in this hour. Only the budget of a single call starts again.

Verdicts are not read back. A question that is asked a second time at a later offset, as after an
upgrade of the evaluator, is answered once by one process, but its successor answers it again. That
verdict has the same `ce_id`, so the engine recognises the repeat.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import structlog
from aiokafka import TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import KafkaError

from consumers.engine.redaction.redactor import Redactor
from consumers.judge.ask import QuestionAnswerer
from consumers.judge.progress import PartitionWriter
from consumers.judge.settings import JudgeSettings
from consumers.runtime.kafka.connection import KafkaSettings, partition_counts
from consumers.runtime.kafka.polling import GroupReader
from consumers.runtime.process import end_tasks, first_of
from consumers.runtime.received import Batch, RecordPlace, Unreadable, UnreadableRecords
from consumers.runtime.registry import Instruments
from schemas.judging import JudgeRequest, JudgeVerdict
from schemas.topics import JUDGE_REQUESTS_TOPIC, JUDGE_VERDICTS_TOPIC

HAND_OVER_SECONDS: Final = 3.0
"""How long writing may take when partitions are revoked or the role stops: well within the session
timeout.
"""
FINISH_SECONDS: Final = 4.0
"""How long questions in progress may take when the role stops. The successor answers the others."""
MAX_BATCH_RECORDS: Final = 500
MAX_UNWRITTEN: Final = 2_000
"""Unwritten verdicts at which reading pauses. A verdict has 2 kB."""
PAUSE_SECONDS: Final = 0.05
"""How long reading pauses before it looks whether it may go on."""
MAX_ANSWERED: Final = 200_000
"""Most answered questions that are remembered, so that a repeat is not asked again: some 200 B
each.
"""

log = structlog.get_logger()


class _Question(NamedTuple):
    """Place of a question."""

    partition: TopicPartition
    offset: int


class JudgeWorker(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no type hints
    """Answers the questions of its assigned partitions until it is stopped."""

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: JudgeSettings,
        instruments: Instruments,
        *,
        group_id: str,
        redactor: Redactor | None = None,
    ) -> None:
        self.ready = asyncio.Event()
        self._kafka = kafka
        self._settings = settings
        self._instruments = instruments
        self._group_id = group_id
        self._judge = QuestionAnswerer(settings, instruments, redactor=redactor)
        self._places: dict[str, set[_Question]] = {}  # of questions without a verdict
        self._verdicts: list[JudgeVerdict] = []  # for no writer yet
        self._answered: OrderedDict[str, None] = OrderedDict()
        self._writers: dict[TopicPartition, PartitionWriter] = {}
        self._owning: asyncio.Task[None] | None = None
        # not while the group shares out partitions: ours may be another judge's by now
        self._has_taken_over = False
        self._is_leaving = False
        self._refusals = UnreadableRecords(
            "judge", "callgauge_judge_questions_refused_total", instruments
        )
        self.reader = GroupReader(
            kafka,
            "judge",
            JUDGE_REQUESTS_TOPIC,
            self.handle,
            message=JudgeRequest,
            decode=JudgeRequest.model_validate_json,
            group_id=group_id,
            max_records=MAX_BATCH_RECORDS,
            begins="earliest",
            listener=self,
            instruments=instruments,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Answers until `stop` is set, then finishes the questions in progress, commits and leaves
        the group.

        Raises:
            KafkaUnreachableError: No broker answers at the start.
            TopicsUnfitError: A topic is missing.
            Exception: Reading or writing failed. The process must end; its successor answers the
                questions that are not committed.
        """
        judging = asyncio.create_task(self._judge.run(), name="judging")
        judging.add_done_callback(self._on_done)
        try:
            await first_of(stop.wait(), self._read(), self.reader.failure())
            self.ready.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FINISH_SECONDS):
                    await self._judge.finish()
            await self._hand_over()
        finally:
            self.ready.clear()
            self._is_leaving = True
            await end_tasks([judging])
            await asyncio.gather(self.reader.stop(), self._let_go())
            log.info("judge_stopped")

    def problems(self) -> Sequence[str]:
        """Why the role is not ready, for `/readyz`."""
        if self.ready.is_set() and self._has_taken_over:
            return ()
        return ("judge: not reading questions; it waits for the broker and its partitions",)

    def stalled(self) -> Sequence[str]:
        """Reasons why only a restart helps, for `/healthz`. An endpoint or broker that does not
        answer is not one.
        """
        return self.reader.stalled()

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Writes the verdicts. Questions in progress go on, because most partitions usually come
        back.
        """
        await self._hand_over()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Drops the questions of partitions that are gone, and takes the assigned ones over."""
        if self._is_leaving:
            return
        # Nothing is awaited between the assignment and this line, so no record is fetched before
        # the progress is known.
        self.reader.consumer.pause(*assigned)
        gone = [
            request_id
            for request_id, places in self._places.items()
            if not any(place.partition in assigned for place in places)
        ]
        for request_id in gone:
            del self._places[request_id]
        self._judge.withdraw(gone)
        self._writers = {
            partition: PartitionWriter(
                partition, self._kafka, self._group_id, self.reader, self._judge.budget
            )
            for partition in assigned
        }
        self._owning = asyncio.create_task(self._own(), name="judge-partitions")
        self._owning.add_done_callback(self._on_done)

    async def _own(self) -> None:
        """Takes the assigned partitions over, then has their questions read, and writes the
        verdicts until cancelled.
        """
        writers = self._writers
        try:
            await asyncio.gather(*(writer.start() for writer in writers.values()))
        except KafkaError as error:
            raise self._kafka.unreachable(error) from error
        self._has_taken_over = True
        self._hand_out()
        self.reader.consumer.resume(*writers)
        self.ready.set()
        log.info(
            "judge_ready",
            partitions=sorted(tp.partition for tp in writers),
            asks=self._settings.is_on,
        )
        if writers:
            await first_of(*(writer.write_for_ever() for writer in writers.values()))

    async def _read(self) -> bool:
        """Starts the reader, which reads questions by itself until it fails."""
        # says what is missing
        await partition_counts(self._kafka, [JUDGE_REQUESTS_TOPIC, JUDGE_VERDICTS_TOPIC])
        await self.reader.start()
        return await self.reader.failure()

    async def handle(self, batch: Batch[JudgeRequest]) -> None:
        """Asks the questions that are open; waits while too much is unwritten."""
        # after a rebalance there are others, and the rest of these records is read again
        writers = self._writers
        for place, request in batch:
            partition = TopicPartition(place.topic, place.partition)
            writer = writers.get(partition)
            while self._reads_for(writers) and writer is not None:
                if not self._is_full(writer, place.offset):
                    if writer.progress.read(place.offset):
                        self._take_question(partition, writer, place, request)
                    break
                await asyncio.sleep(PAUSE_SECONDS)
        self._refusals.end_batch()

    def _reads_for(self, writers: Mapping[TopicPartition, PartitionWriter]) -> bool:
        return writers is self._writers and self._has_taken_over and not self._is_leaving

    def _is_full(self, writer: PartitionWriter, offset: int) -> bool:
        unwritten = sum(len(each.outgoing) for each in self._writers.values())
        return unwritten > MAX_UNWRITTEN or writer.progress.is_full(offset)

    def _take_question(
        self,
        partition: TopicPartition,
        writer: PartitionWriter,
        place: RecordPlace,
        request: JudgeRequest | Unreadable | None,
    ) -> None:
        if not isinstance(request, JudgeRequest):
            self._refusals.refuse(place, "it has no value" if request is None else request.reason)
            writer.answer(place.offset)
            return
        if request.request_id in self._answered:
            writer.answer(place.offset)
            return
        question = _Question(partition, place.offset)
        places = self._places.get(request.request_id)
        if places is not None:  # it is read again, or was asked again
            places.add(question)
            return
        self._places[request.request_id] = {question}
        self._judge.ask(request).add_done_callback(self._on_verdict)

    def _on_verdict(self, promised: "asyncio.Future[JudgeVerdict]") -> None:
        if not promised.cancelled():
            self._verdicts.append(promised.result())
            self._hand_out()

    def _hand_out(self) -> None:
        """Gives verdicts to the writers of their questions. While the group shares out partitions,
        they wait for the takeover.
        """
        while self._verdicts and self._has_taken_over:
            verdict = self._verdicts.pop()
            places = self._places.pop(verdict.request_id, None)
            if places is None:  # another judge's by now
                continue
            self._answered[verdict.request_id] = None
            if len(self._answered) > MAX_ANSWERED:
                self._answered.popitem(last=False)
            ours = [place for place in places if place.partition in self._writers]
            open_places = [
                place
                for place in ours
                if self._writers[place.partition].progress.is_open(place.offset)
            ]
            for place in open_places:
                self._writers[place.partition].answer(place.offset)
            for place in open_places[:1]:  # none if another judge has answered meanwhile
                self._writers[place.partition].put(verdict)

    async def _hand_over(self) -> None:
        """Writes the verdicts so far and gives the partitions up."""
        self._has_taken_over = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_SECONDS):
                await asyncio.gather(
                    *(writer.write() for writer in self._writers.values()), return_exceptions=True
                )
        if verdicts := sum(len(writer.outgoing) for writer in self._writers.values()):
            log.warning("handed_over_unwritten", role="judge", verdicts=verdicts)
            self._answered.clear()  # if their partitions come back, these are asked again
        await self._let_go()

    async def _let_go(self) -> None:
        owning, self._owning = self._owning, None
        if owning is not None:
            await end_tasks([owning])
        writers, self._writers = self._writers, {}
        await asyncio.gather(*(writer.stop() for writer in writers.values()))

    def _on_done(self, task: "asyncio.Task[Any]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.reader.fail(error)
