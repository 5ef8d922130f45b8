"""The judge role: reads questions from `judge.requests` and writes verdicts to `judge.verdicts`.

Questions are answered in any order. The offset of a question is committed when it and all before it are answered, and an answer
counts once the broker has accepted it. A new owner of a partition first reads the verdicts on its questions, so answered
questions are not asked again, whatever happened to the former owner. Questions in progress of a killed process are asked again.
A process that was frozen beyond its session may write a second verdict. It has the same `ce_id`, so the engine recognises the
repeat.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import structlog
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata
from faststream import AckPolicy
from pydantic import ValidationError

from consumers.engine.redaction.redactor import Redactor
from consumers.judge.asking.judge import Judge
from consumers.judge.ledger import Answered, partition_number_in, read_verdicts
from consumers.judge.open_offsets import OpenOffsets
from consumers.judge.settings import JudgeSettings
from consumers.runtime.clock import wall_clock_ms
from consumers.runtime.errors import OperatorError
from consumers.runtime.kafka.connection import KafkaSettings, partition_counts
from consumers.runtime.logs import about_record
from consumers.runtime.polling.commits import COMMIT_SECONDS
from consumers.runtime.polling.subscription import Subscription
from consumers.runtime.registry import Instruments
from consumers.runtime.stopping import first_of
from schemas.events.envelope import envelope_headers
from schemas.judging import (
    REPLY_PARTITION_HEADER,
    REQUEST_PARTITION_HEADER,
    VERDICT_SOURCE,
    VERDICT_TYPE,
    JudgeRequest,
    JudgeVerdict,
)
from schemas.topics import JUDGE_REQUESTS_TOPIC, JUDGE_VERDICTS_TOPIC
from schemas.undecodable import UndecodableRecord
from schemas.units import HOUR_MS

COMMIT_INTERVAL_SECONDS: Final = 1.0
HAND_OVER_SECONDS: Final = 3.0
"""How long writing and committing may take when partitions are revoked: well within the session timeout."""
FINISH_SECONDS: Final = 4.0
"""How long questions in progress may take when the role stops. The successor answers the others."""
CLOSE_SECONDS: Final = 1.0
MAX_SILENT_SECONDS: Final = 30.0
"""Time without a tick after which the role counts as stuck. Ticks are at most the interval of commits and the time of one apart."""
MAX_BATCH_RECORDS: Final = 500
MAX_UNWRITTEN: Final = 2_000
"""Unwritten verdicts at which reading pauses. A verdict has 2 kB."""
MAX_REFUSED_LINES: Final = 10
"""Log lines about refused records of one poll."""

log = structlog.get_logger()


class VerdictWriteError(OperatorError):
    """A verdict could not be written. End the process without committing its question."""


class _Place(NamedTuple):
    """Place of a question, and the partition for its answer; None if the key decides."""

    partition: TopicPartition
    offset: int
    reply_partition: int | None


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
        """Wires the role; nothing is connected before `run`.

        Args:
            kafka: Where the broker is.
            settings: Endpoint, rates and budgets.
            instruments: Built for the role `judge`, perhaps among others.
            group_id: The consumer group; its members share the questions.
            redactor: Redacts the model's explanations; None for the default rules.
        """
        self.ready = asyncio.Event()
        self._kafka = kafka
        self._settings = settings
        self._instruments = instruments
        self._judge = Judge(settings, instruments, redactor=redactor)
        self._answered = Answered(settings.max_remembered_verdicts)
        self._offsets = OpenOffsets()
        self._committed: dict[TopicPartition, int] = {}
        self._places: dict[str, set[_Place]] = {}
        self._reply_partitions = 0
        self._producer: AIOKafkaProducer | None = None
        # Not while the group shares out partitions: ours may be another judge's by now.
        self._may_write = asyncio.Event()
        self._writing: set[asyncio.Task[None]] = set()
        self._sending = 0
        self._nothing_sent = asyncio.Event()
        self._nothing_sent.set()
        self._loading: asyncio.Task[None] | None = None
        self._is_leaving = False
        self._ticked_at: float | None = None
        self._refused_lines = 0
        self._subscription = Subscription(
            kafka,
            "judge",
            [JUDGE_REQUESTS_TOPIC],
            self._take,
            group_id=group_id,
            max_records=MAX_BATCH_RECORDS,
            ack_policy=AckPolicy.MANUAL,
            listener=self,
            options={"auto_offset_reset": "earliest"},
            instruments=instruments,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Answers until `stop` is set, then finishes the questions in progress, commits and leaves the group.

        Raises:
            KafkaUnreachableError: No broker answers at the start.
            TopicsUnfitError: A topic is missing.
            Exception: Reading or writing failed. The process must end; its successor answers the questions that are not
                committed.
        """
        judging = asyncio.create_task(self._judge.run(), name="judging")
        judging.add_done_callback(self._on_done)
        try:
            await first_of(stop.wait(), self._subscription.failure(), self._read())
            self.ready.clear()
            await self._finish()
            await self._hand_over()
        finally:
            self.ready.clear()
            self._is_leaving = True
            await self._stop_loading()
            for task in (judging, *self._writing):
                task.cancel()
            await asyncio.gather(judging, *self._writing, return_exceptions=True)
            await asyncio.gather(self._subscription.stop(), self._stop_producer())
            log.info("judge_stopped")

    def problems(self) -> Sequence[str]:
        """Why the role is not ready, for `/readyz`."""
        if self.ready.is_set() and self._may_write.is_set():
            return ()
        return ("judge: not reading questions; it waits for the broker, its partitions and the verdicts on them",)

    def stalled(self) -> Sequence[str]:
        """Reasons why only a restart helps, for `/healthz`. An endpoint or broker that does not answer is not one."""
        if self._ticked_at is None or not self.ready.is_set():
            return ()
        silent_seconds = time.monotonic() - self._ticked_at
        if silent_seconds > MAX_SILENT_SECONDS:
            return (f"judge: no tick for {silent_seconds:.0f} s",)
        return self._subscription.stalled()

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Writes and commits the verdicts. Questions in progress go on, because most partitions usually come back."""
        await self._stop_loading()
        await self._hand_over()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Drops the questions of partitions that are gone, and reads the earlier verdicts of the assigned ones."""
        if self._is_leaving:
            return
        # Nothing is awaited between the assignment and this line, so no record is fetched before the verdicts are known.
        self._subscription.consumer.pause(*assigned)
        self._offsets.keep_only(set())
        self._committed.clear()
        gone = [
            request_id
            for request_id, places in self._places.items()
            if not any(place.partition in assigned for place in places)
        ]
        for request_id in gone:
            del self._places[request_id]
        self._judge.withdraw(gone)
        self._loading = asyncio.create_task(self._take_over(assigned), name="judge-takeover")
        self._loading.add_done_callback(self._on_done)

    async def _take_over(self, assigned: set[TopicPartition]) -> None:
        """Reads the earlier verdicts, then starts to read questions and to write verdicts."""
        consumer = self._subscription.consumer
        try:
            firsts = await consumer.beginning_offsets(list(assigned))
            starts = {tp: max(firsts[tp], await consumer.committed(tp) or 0) for tp in assigned}
            if (
                starts and not self._kafka.is_embedded
            ):  # which ends with its process, so nobody has written there before
                now_ms, overlap_ms = wall_clock_ms(), self._settings.ledger_overlap_ms
                # The spending of this hour is read back too.
                from_ms = min(now_ms - overlap_ms, now_ms - now_ms % HOUR_MS)
                await read_verdicts(self._kafka, starts, from_ms, overlap_ms, self._recall)
        except KafkaError as error:
            raise self._kafka.unreachable(error) from error
        for tp, start in starts.items():
            self._offsets.begin_partition(tp, start)
            consumer.seek(tp, start)
        consumer.resume(*starts)
        self._may_write.set()
        self.ready.set()
        log.info("judge_ready", partitions=sorted(tp.partition for tp in starts), asks=self._settings.is_on)

    def _recall(self, verdict: JudgeVerdict) -> None:
        if verdict.request_id not in self._answered:
            self._answered.add(verdict.request_id)
            self._judge.recall(verdict)

    async def _read(self) -> bool:
        """Starts the subscription, which reads questions by itself, then commits at each tick."""
        counts = await partition_counts(self._kafka, [JUDGE_REQUESTS_TOPIC, JUDGE_VERDICTS_TOPIC])
        self._reply_partitions = counts[JUDGE_VERDICTS_TOPIC]
        self._producer = self._kafka.producer("judge")
        try:
            await self._producer.start()
        except KafkaError as error:
            raise self._kafka.unreachable(error) from error
        await self._subscription.start()
        while True:
            self._ticked_at = time.monotonic()
            await asyncio.sleep(COMMIT_INTERVAL_SECONDS)
            await self._commit(COMMIT_SECONDS)

    async def _take(self, records: Sequence[Any]) -> None:
        self._refused_lines = 0
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            if (
                self._offsets.is_ours(partition) and not self._is_leaving
            ):  # otherwise it is read again, here or elsewhere
                self._offsets.read(partition, record.offset)
                self._take_question(partition, record)
        if self._refused_lines > MAX_REFUSED_LINES:
            log.warning("more_questions_refused", records=self._refused_lines - MAX_REFUSED_LINES)
        while len(self._writing) > MAX_UNWRITTEN and not self._is_leaving:
            await asyncio.wait(self._writing, return_when=asyncio.FIRST_COMPLETED)

    def _take_question(self, partition: TopicPartition, record: Any) -> None:
        if isinstance(record, UndecodableRecord):
            self._refuse_question(partition, record, str(record))
            return
        try:
            request = JudgeRequest.model_validate_json(record.value or b"")
        except ValidationError as error:
            self._refuse_question(partition, record, str(error).partition("\n")[0])
            return
        if request.request_id in self._answered:
            self._offsets.answered(partition, record.offset)
            return
        place = _Place(partition, record.offset, self._reply_partition(record))
        places = self._places.get(request.request_id)
        if places is not None:  # it is read again, or was asked again
            places.add(place)
            return
        self._places[request.request_id] = {place}
        self._judge.ask(request).add_done_callback(self._on_verdict)

    def _refuse_question(self, partition: TopicPartition, record: Any, reason: str) -> None:
        self._instruments.inc("callgauge_judge_questions_refused_total")
        self._refused_lines += 1
        if self._refused_lines <= MAX_REFUSED_LINES:
            log.warning("question_refused", **about_record(record), reason=reason)
        self._offsets.answered(partition, record.offset)

    def _reply_partition(self, record: Any) -> int | None:
        number = partition_number_in(record, REPLY_PARTITION_HEADER)
        return number if number is not None and number < self._reply_partitions else None

    def _on_verdict(self, promised: "asyncio.Future[JudgeVerdict]") -> None:
        if promised.cancelled() or self._is_leaving:
            return
        task = asyncio.create_task(self._write(promised.result()))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        task.add_done_callback(self._on_done)

    async def _write(self, verdict: JudgeVerdict) -> None:
        """Writes a verdict if its question is still ours, then marks the question answered."""
        await self._may_write.wait()
        request_id = verdict.request_id
        places = self._places.get(request_id)
        if not places:
            return
        if request_id not in self._answered:
            self._sending += 1
            self._nothing_sent.clear()
            try:
                await self._send(verdict, next(iter(places)))
            except KafkaError as error:
                raise VerdictWriteError(
                    f"Judge: the verdict on {request_id} of conversation {verdict.conversation_id} was not taken by "
                    f"{self._kafka.bootstrap_servers}: {str(error) or type(error).__name__}. The judge ends without "
                    "committing its question, and the next one asks it again. Check the broker and the right to write "
                    "judge.verdicts."
                ) from error
            finally:
                self._sending -= 1
                if not self._sending:
                    self._nothing_sent.set()
            self._answered.add(request_id)
        for place in self._places.pop(request_id, ()):
            self._offsets.answered(place.partition, place.offset)

    async def _send(self, verdict: JudgeVerdict, place: _Place) -> None:
        if self._producer is None:
            raise RuntimeError("a verdict before the start, or after the end")
        headers = [
            *envelope_headers(
                event_id=verdict.request_id,
                source=VERDICT_SOURCE,
                event_type=VERDICT_TYPE,
                subject=verdict.conversation_id,
            ),
            (REQUEST_PARTITION_HEADER, str(place.partition.partition).encode()),
        ]
        await self._producer.send_and_wait(
            self._kafka.topic(JUDGE_VERDICTS_TOPIC),
            verdict.model_dump_json().encode(),
            key=verdict.conversation_id.encode(),
            partition=place.reply_partition,
            headers=headers,
        )

    async def _finish(self) -> None:
        """Waits for the questions in progress and their verdicts, within a time limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINISH_SECONDS):
                await self._judge.finish()
                if self._writing:
                    await asyncio.wait(self._writing)

    async def _hand_over(self) -> None:
        """Stops writing verdicts, and commits the answered questions."""
        self._may_write.clear()
        try:
            async with asyncio.timeout(HAND_OVER_SECONDS):
                await self._nothing_sent.wait()
                await self._commit(HAND_OVER_SECONDS)
        except TimeoutError:
            log.warning("hand_over_overdue", role="judge", verdicts=self._sending)

    async def _commit(self, deadline_seconds: float) -> None:
        offsets = {
            partition: to for partition, to in self._offsets.to_commit().items() if self._committed.get(partition) != to
        }
        if not offsets:
            return
        try:
            places = {partition: OffsetAndMetadata(to, "") for partition, to in offsets.items()}
            if await self._subscription.commit(places, deadline_seconds):
                self._committed.update(offsets)
        except (KafkaError, TimeoutError) as error:
            log.warning("commit_failed", role="judge", error=str(error) or type(error).__name__)

    async def _stop_loading(self) -> None:
        loading, self._loading = self._loading, None
        if loading is not None and not loading.done():
            loading.cancel()
            await asyncio.wait([loading])

    async def _stop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            await asyncio.wait_for(producer.stop(), CLOSE_SECONDS)
        except (TimeoutError, KafkaError) as error:
            log.warning("producer_not_stopped", role="judge", error=str(error) or type(error).__name__)

    def _on_done(self, task: "asyncio.Task[Any]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._subscription.fail(error)
