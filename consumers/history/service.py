"""The history role: reads `scores`, `words`, `scores.own`, `transcripts` and `annotations`, and
keeps the calls in the store, each row exactly once.

The store has the place to read on from in the same transaction as the rows, so no consumer group is
used: one process reads all partitions, and a second one for the same folder is refused. It reads
with aiokafka, because it begins each partition at that place and holds some back until others have
caught up; FastStream's subscribers begin where a group is.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from consumers.engine.redaction.redactor import Redactor
from consumers.history.batches import batch_of
from consumers.history.settings import HistorySettings
from consumers.history.sqlite import HistoryBrokenError, SqliteHistory
from consumers.runtime.kafka.connection import KafkaSettings, partition_counts
from consumers.runtime.logs import about_record
from consumers.runtime.process import SetupError, finish_unless
from consumers.runtime.registry import Instruments
from schemas.topics import (
    ANNOTATIONS_TOPIC,
    OWN_TOPIC,
    SCORES_TOPIC,
    TRANSCRIPTS_TOPIC,
    WORDS_TOPIC,
)

POLL_MS: Final = 500
"""How long records may gather before they are written: a transaction of the disk costs the same for
one and for many.
"""
MAX_BATCH_RECORDS: Final = 2_000
"""Records of one transaction: a fifth of a second of work, after which readers see them."""
RETRY_SECONDS: Final = 5.0
"""Pause before a write that failed, or a broker that was away, is tried again."""
STOP_SECONDS: Final = 1.0
"""How long disconnecting may take."""
LOOK_SECONDS: Final = 60.0
"""How often it is asked whether a topic has got more partitions."""
MAX_SILENT_SECONDS: Final = 60.0
"""Time without a poll or a write after which only a restart helps."""
MAX_REFUSED_LINES: Final = 5
"""Most log lines about refused records of one poll."""

log = structlog.get_logger()


class HistoryRole:
    """Keeps past calls until it is stopped.

    Attributes:
        ready: Set while it reads.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: HistorySettings,
        instruments: Instruments,
        redactor: Redactor,
        *,
        reads_own: bool = False,
    ) -> None:
        """Nothing is opened or connected before `run`.

        Args:
            kafka: Where the topics are.
            settings: The folder, and what is kept there.
            instruments: Gets the metrics of the role.
            redactor: Redacts the notes of people, as far as their writers have not.
            reads_own: Whether it keeps values of measures of one's own.

        Raises:
            SetupError: There is no folder.
        """
        if settings.folder is None:
            raise SetupError(
                "History: there is no folder for past calls, so it does not start. Set "
                "history.folder, for example CALLGAUGE_HISTORY__FOLDER=history."
            )
        self.ready = asyncio.Event()
        self._folder = settings.folder
        self._settings = settings
        self._kafka = kafka
        self._instruments = instruments
        self._redactor = redactor
        self._reads_own = reads_own
        self._is_forgetting = False
        self._forgotten_calls = 0
        self._fault: str | None = None
        self._moved_at = time.monotonic()
        self._lag: dict[tuple[str, ...], float] = {}
        instruments.read_gauge("callgauge_history_lag_messages", lambda: dict(self._lag))
        instruments.read_gauge(
            "callgauge_history_forgotten_calls", lambda: {(): float(self._forgotten_calls)}
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Reads and writes until `stop` is set.

        Raises:
            HistoryFolderError: The folder cannot be used, or another process writes it.
            KafkaUnreachableError: No broker answers.
            TopicsUnfitError: A topic is missing.
        """
        store = await asyncio.to_thread(self._opened)
        try:
            while not stop.is_set():
                await self._read(store, stop)
        finally:
            self.ready.clear()
            await asyncio.to_thread(store.close)

    def problems(self) -> Sequence[str]:
        """Why nothing is kept now, for `/readyz`."""
        if self._fault is not None:
            return (f"history: {self._fault}",)
        return () if self.ready.is_set() else ("history: not reading",)

    def stalled(self) -> Sequence[str]:
        """Reasons why only a restart helps, for `/healthz`. A full disk, a broker that is away or a
        long deletion is none.
        """
        silent_seconds = time.monotonic() - self._moved_at
        if self.ready.is_set() and not self._is_forgetting and silent_seconds > MAX_SILENT_SECONDS:
            return (f"history: nothing was polled or written for {silent_seconds:.0f} s",)
        return ()

    def _opened(self) -> SqliteHistory:
        return SqliteHistory(
            self._folder,
            writes=True,
            keeps_words=self._settings.words,
            retention_days=self._settings.retention_days,
        )

    async def _read(self, store: SqliteHistory, stop: asyncio.Event) -> None:
        """Reads from the positions of the store until a topic has more partitions, a file is
        broken, or `stop` is set.
        """
        topics = [
            SCORES_TOPIC,
            ANNOTATIONS_TOPIC,
            *([WORDS_TOPIC, TRANSCRIPTS_TOPIC] if self._settings.words else []),
        ]
        topics += [OWN_TOPIC] if self._reads_own else []
        counts = await finish_unless(stop, partition_counts(self._kafka, topics))
        if counts is None:
            return
        consumer = self._kafka.consumer(
            "history",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_poll_records=MAX_BATCH_RECORDS,
        )
        try:
            await consumer.start()
            consumer.assign(
                [
                    TopicPartition(self._kafka.topic(topic), n)
                    for topic in topics
                    for n in range(counts[topic])
                ]
            )
            positions = await asyncio.to_thread(store.positions)
            for tp in consumer.assignment():
                # What the topic no longer has is passed over: reading begins at its first record
                # then.
                consumer.seek(tp, positions.get((tp.topic, tp.partition), 0))
            # What is to be forgotten is known before any call is kept.
            others = [
                tp
                for tp in consumer.assignment()
                if tp.topic != self._kafka.topic(ANNOTATIONS_TOPIC)
            ]
            behind = await consumer.end_offsets(consumer.assignment() - {*others})
            consumer.pause(*others)
            looked_at = time.monotonic()
            self.ready.set()
            while not stop.is_set():
                polled = await consumer.getmany(timeout_ms=POLL_MS)
                self._moved_at = time.monotonic()
                if polled and not await self._write(store, polled, stop):
                    return
                behind = {
                    tp: end for tp, end in behind.items() if await consumer.position(tp) < end
                }
                if not behind and others:
                    consumer.resume(*others)
                    others = []
                await self._note_lag(consumer)
                if time.monotonic() - looked_at > LOOK_SECONDS:
                    looked_at = time.monotonic()
                    if await partition_counts(self._kafka, topics) != counts:
                        return
        except HistoryBrokenError:  # logged where it was set aside
            return
        except (KafkaError, TimeoutError) as error:
            self._tell(str(error) or type(error).__name__, "See to the broker.")
            await finish_unless(stop, asyncio.sleep(RETRY_SECONDS))
        except (sqlite3.OperationalError, OSError) as error:
            self._tell_of_disk(error)
            await finish_unless(stop, asyncio.sleep(RETRY_SECONDS))
        finally:
            with contextlib.suppress(TimeoutError, KafkaError):
                async with asyncio.timeout(STOP_SECONDS):
                    await consumer.stop()

    async def _write(
        self,
        store: SqliteHistory,
        polled: Mapping[TopicPartition, Sequence[Any]],
        stop: asyncio.Event,
    ) -> bool:
        """Writes what was polled, again and again until it is written; returns whether reading can
        go on after it.
        """
        prefix = self._kafka.topic("")
        batch, refused = batch_of(
            {
                (tp.topic, tp.partition): (tp.topic.removeprefix(prefix), records)
                for tp, records in polled.items()
            },
            self._redactor.redact,
        )
        self._refuse(refused)
        while not stop.is_set():
            try:
                self._is_forgetting = batch.people.forgets
                left_out = await asyncio.to_thread(store.write, batch)
                if self._is_forgetting:
                    self._forgotten_calls = await asyncio.to_thread(store.forgotten_calls)
            except HistoryBrokenError:
                return False
            except (sqlite3.OperationalError, OSError) as error:
                self._instruments.inc("callgauge_history_write_failures_total")
                self._tell_of_disk(error)
                await finish_unless(stop, asyncio.sleep(RETRY_SECONDS))
            else:
                self._fault = None
                people = (
                    len(batch.people.annotations)
                    + len(batch.people.forgotten)
                    + len(batch.people.tenants)
                )
                records = len(batch.rows) + len(batch.transcripts) + people
                for outcome, count in left_out._asdict().items():
                    records -= count
                    if count:
                        self._instruments.inc("callgauge_history_records_total", (outcome,), count)
                self._instruments.inc("callgauge_history_records_total", ("written",), records)
                return True
            finally:
                self._is_forgetting = False
                self._moved_at = time.monotonic()
        return False

    async def _note_lag(self, consumer: AIOKafkaConsumer) -> None:
        lag: dict[tuple[str, ...], float] = dict.fromkeys(
            ((tp.topic,) for tp in consumer.assignment()), 0.0
        )
        for tp in consumer.assignment():
            if (end := consumer.highwater(tp)) is not None:
                lag[tp.topic,] += max(0, end - await consumer.position(tp))
        self._lag = lag

    def _refuse(self, refused: Sequence[tuple[Any, str]]) -> None:
        if refused:
            self._instruments.inc("callgauge_history_records_total", ("refused",), len(refused))
        for record, reason in refused[:MAX_REFUSED_LINES]:
            log.warning(
                "record_refused",
                role="history",
                **about_record(record),
                reason=reason,
                what_happens_now="History lacks it.",
            )
        if len(refused) > MAX_REFUSED_LINES:
            log.warning(
                "more_records_refused", role="history", records=len(refused) - MAX_REFUSED_LINES
            )

    def _tell_of_disk(self, error: Exception) -> None:
        self._tell(
            f"{self._folder}: {error}",
            "Make room on its disk, and see to the rights of the folder.",
        )

    def _tell(self, fault: str, what_to_do: str) -> None:
        """Logs a fault once for as long as it lasts."""
        if self._fault != fault:
            self._fault = fault
            log.error(
                "history_waits",
                problem=fault,
                what_to_do=what_to_do,
                what_happens_now=f"It is tried again every {RETRY_SECONDS:.0f} s; "
                "records wait in their topics, "
                "and the other roles go "
                "on.",
            )
