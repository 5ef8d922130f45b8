"""The role measures on Kafka: reads rows of `scores`, and of `words` if a function asks for them,
and writes rows of `scores.own`.

It commits the offset from which on a successor needs rows: that of the first row of the oldest call
that is not counted. A note beside it says up to which offset the closes are counted. What is in
front of that only shows which calls are open. So no value is lost, and values that were counted by
the last commit are counted once; of those that are written again the last one counts.

A new group begins with the calls that close from then on; their rows are those of the last two
hours.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any, Final, Never

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from consumers.engine.redaction.redactor import Redactor
from consumers.measures.files import MeasureSettings
from consumers.measures.live import ContextOf, LiveMeasures, Reached
from consumers.runtime.kafka.connection import (
    KafkaRefusedError,
    KafkaSettings,
    TopicsUnfitError,
    partition_counts,
)
from consumers.runtime.kafka.polling import COMMIT_SECONDS, GroupReader
from consumers.runtime.process import end_tasks, first_of, wall_clock_ms
from consumers.runtime.received import Batch, Unreadable
from consumers.runtime.registry import Instruments
from schemas.rows import Row, RowError, decode, decode_words, encode
from schemas.topics import OWN_TOPIC, SCORES_TOPIC, WORDS_TOPIC
from schemas.units import HOUR_MS, MINUTE_MS

SINCE_MS: Final = 2 * HOUR_MS
"""How far back a new group reads the rows of calls that are open."""
CLOCKS_MS: Final = MINUTE_MS
"""How much earlier than its first row the words of a call are looked for."""
MAX_BATCH_RECORDS: Final = 500
COMMIT_INTERVAL_SECONDS: Final = 1.0
"""Time between commits: after a crash the values of this time are counted again."""
HAND_OVER_SECONDS: Final = 3.0
"""How long the last values may take when partitions are revoked or the role stops."""
STOP_SECONDS: Final = 1.0
"""How long disconnecting may take."""
WORDS_MS: Final = 200
"""How long one poll waits for words."""

_NOTE: Final[msgspec.json.Decoder[tuple[int, int]]] = msgspec.json.Decoder(tuple[int, int])
"""Beside the committed offset: up to where closes are counted, and since when words are needed, in
broker time.
"""

log = structlog.get_logger()


# the library has no type hints
class MeasuresRole(ConsumerRebalanceListener):  # type: ignore[misc]
    """Measures until it is stopped."""

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: MeasureSettings,
        instruments: Instruments,
        *,
        group_id: str,
        redactor: Redactor,
        context_of: ContextOf,
    ) -> None:
        """Nothing is read before `run`."""
        self.ready = asyncio.Event()
        self._kafka = kafka
        self._live = LiveMeasures(settings, instruments, redactor, context_of)
        self._owned: dict[TopicPartition, Reached] = {}  # as it was committed last
        self._owning: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()  # an older place must not be committed after a newer one
        self._producer: AIOKafkaProducer | None = None
        self._words: AIOKafkaConsumer | None = None
        self._lacks_words = False
        self.reader = GroupReader(
            kafka,
            "measures",
            SCORES_TOPIC,
            self.handle,
            message=dict[str, Any],  # as for the exporter
            decode=decode,
            group_id=group_id,
            max_records=MAX_BATCH_RECORDS,
            begins="latest",
            listener=self,
            instruments=instruments,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Measures until `stop` is set, then writes, commits and leaves the group.

        Raises:
            KafkaUnreachableError: No broker answers.
            TopicsUnfitError: A topic is missing.
            Exception: Reading or writing failed. Its successor goes on from the last commit.
        """
        try:
            await first_of(
                stop.wait(), self.reader.failure(), self._live.follow_files(), self._work()
            )
        finally:
            self.ready.clear()
            await self._hand_over()
            await self.reader.stop()
            for client in (self._producer, self._words):
                await _stopped(client)

    def problems(self) -> Sequence[str]:
        """Why the role is not ready, for `/readyz`. A mistake in a function is none: it costs its
        value.
        """
        return (
            ()
            if self.ready.is_set()
            else ("measures: not reading scores; it waits for the broker and its partitions",)
        )

    def stalled(self) -> Sequence[str]:
        """Reasons why only a restart helps, for `/healthz`."""
        return self.reader.stalled()

    # Partitions: each goes on where the one before has come.

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Writes what there is, commits, and gives all partitions up."""
        await self._hand_over()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Has the assigned partitions taken over."""
        # Nothing is awaited between the assignment and this line, so no record is fetched before
        # the place is known.
        self.reader.consumer.pause(*assigned)
        self._owning = asyncio.create_task(self._own(assigned), name="measures-partitions")
        self._owning.add_done_callback(self._on_done)

    async def _own(self, assigned: set[TopicPartition]) -> None:
        consumer = self.reader.consumer
        # `committed` has no notes
        found = await consumer._coordinator.fetch_committed_offsets([*assigned])  # noqa: SLF001
        ends, since_ms = await consumer.end_offsets(assigned), wall_clock_ms() - SINCE_MS
        begins = await consumer.offsets_for_times(dict.fromkeys(assigned, since_ms))
        owned = {}
        for tp in assigned:
            begin = ends[tp] if begins[tp] is None else begins[tp].offset
            owned[tp] = Reached(begin, ends[tp], since_ms)
            with contextlib.suppress(msgspec.DecodeError, KeyError):
                first, note = found[tp]
                counted, words_since_ms = _NOTE.decode(note.encode())
                if first <= counted <= ends[tp]:  # otherwise the topic was recreated
                    owned[tp] = Reached(first, counted, words_since_ms)
            consumer.seek(tp, owned[tp].first)
            self._live.begin(tp.partition, owned[tp])
        await _stopped(self._words)
        self._words, self._lacks_words = None, False
        self._owned = owned
        consumer.resume(*assigned)
        self.ready.set()
        log.info("measures_ready", partitions=sorted(tp.partition for tp in assigned))

    async def _hand_over(self) -> None:
        owning, self._owning = self._owning, None
        if owning is not None:
            await end_tasks([owning])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_SECONDS):
                await self._write(HAND_OVER_SECONDS)
        self._live.end()
        self._owned = {}

    def _on_done(self, task: "asyncio.Task[Any]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.reader.fail(error)

    # Rows in, values out.

    async def _work(self) -> Never:
        await partition_counts(self._kafka, [SCORES_TOPIC, OWN_TOPIC])
        await self._live.read.wait()
        producer = self._kafka.producer("measures")
        try:
            await producer.start()
        except KafkaError as error:
            raise self._kafka.unreachable(error) from error
        self._producer = producer
        await self.reader.start()
        while True:
            ends_at = time.monotonic() + COMMIT_INTERVAL_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(COMMIT_INTERVAL_SECONDS):
                    await self._live.changed.wait()
            # others come beside it
            await asyncio.sleep(max(0.0, min(WORDS_MS / 1_000, ends_at - time.monotonic())))
            await self._write(COMMIT_SECONDS)

    async def handle(self, batch: Batch[Row]) -> None:
        """Takes rows in."""
        owned = self._owned
        # Read later, and taken first: the words of a turn are there when its row says that it is
        # left.
        await self._read_words()
        if owned is not self._owned:  # it is read again, here or elsewhere
            return
        for place, row in batch:
            if TopicPartition(place.topic, place.partition) not in owned:
                continue
            # Without one it is a row of the partition, or of another version.
            self._live.read_row(
                place.partition, place.offset, None if isinstance(row, Unreadable) else row
            )

    async def _read_words(self) -> None:
        """Reads words up to their present end, if a function asks for them and this user may read
        them.
        """
        if not self._live.wants_words or self._lacks_words:
            return
        if self._words is None:
            await self._begin_words()
        if (words := self._words) is None:
            return
        behind = await words.end_offsets(words.assignment())
        while behind:
            for records in (await words.getmany(timeout_ms=WORDS_MS)).values():
                for record in records:
                    with contextlib.suppress(RowError):  # of another version
                        self._live.take_words(decode_words(record.value or b""))
            behind = {tp: end for tp, end in behind.items() if await words.position(tp) < end}

    async def _begin_words(self) -> None:
        try:
            await partition_counts(self._kafka, [WORDS_TOPIC])
        except (KafkaRefusedError, TopicsUnfitError) as error:
            self._lacks_words = True
            log.warning(
                "words_not_read",
                role="measures",
                problem=str(error),
                what_happens_now="Functions get no words.",
                what_to_do="Give this user the right to read them, and restart the role.",
            )
            return
        self._words = reader = self._kafka.consumer(
            "measures-words", enable_auto_commit=False, auto_offset_reset="earliest"
        )
        await reader.start()
        since = {
            TopicPartition(self._kafka.topic(WORDS_TOPIC), tp.partition): max(
                0, (reached.since_ms or 0) - CLOCKS_MS
            )
            for tp, reached in self._owned.items()
        }
        reader.assign([*since])
        ends = await reader.end_offsets(since)
        for tp, found in (await reader.offsets_for_times(since)).items():
            reader.seek(tp, ends[tp] if found is None else found.offset)

    async def _write(self, seconds: float) -> None:
        """Writes the values that came, then commits how far their calls are done.

        Raises:
            KafkaError: The broker did not take them.
        """
        async with self._writing:
            rows = self._live.values()
            reached = {tp: self._live.reached(tp.partition) for tp in self._owned}
            if self._producer is not None:
                sent = [
                    await self._sent(self._producer, encode(row), row.conversation_id)
                    for row in rows
                ]
                await asyncio.gather(*sent)
                self._live.written(len(rows))
            places = {
                tp: _place(each) for tp, each in reached.items() if each != self._owned.get(tp)
            }
            try:
                if places and await self.reader.commit(places, seconds):
                    self._owned.update({tp: reached[tp] for tp in places if tp in self._owned})
            except (KafkaError, TimeoutError) as error:
                log.warning(
                    "commit_failed", role="measures", error=str(error) or type(error).__name__
                )

    async def _sent(self, producer: AIOKafkaProducer, value: bytes, conversation_id: str) -> Any:
        return await producer.send(
            self._kafka.topic(OWN_TOPIC), value, key=conversation_id.encode()
        )


def _place(reached: Reached) -> OffsetAndMetadata:
    note = msgspec.json.encode((reached.counted, reached.since_ms or wall_clock_ms()))
    return OffsetAndMetadata(reached.first, note.decode())


async def _stopped(client: AIOKafkaConsumer | AIOKafkaProducer | None) -> None:
    if client is not None:
        with contextlib.suppress(TimeoutError, KafkaError):
            async with asyncio.timeout(STOP_SECONDS):
                await client.stop()
