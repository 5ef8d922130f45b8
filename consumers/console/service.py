"""The console role: reads `scores`, `words` and `scores.own`, and serves pages and an API of the
calls that run, of one call, and of past ones.

It joins no consumer group and writes nothing but what people say of calls, so any number of
consoles may run, and none disturbs an evaluator. It reads with aiokafka, because it begins each
partition at a time; FastStream's subscribers begin where a group is.
"""

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from consumers.console.fleet import Runbook
from consumers.console.serving import STOP_SECONDS, CallPages
from consumers.console.settings import ConsoleSettings
from consumers.console.site import Annotate, CallHistory
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.http import AddressInUseError, HttpLimit, HttpListener
from consumers.runtime.kafka.connection import (
    KafkaRefusedError,
    KafkaSettings,
    TopicsUnfitError,
    partition_counts,
)
from consumers.runtime.process import finish_unless, tune_python, wall_clock_ms
from consumers.runtime.registry import Instruments
from consumers.store.rows import Place
from schemas.owners import row_in
from schemas.rows import DECODED, RowError, StoredRow
from schemas.topics import OWN_TOPIC, SCORES_TOPIC, WORDS_TOPIC
from schemas.units import HOUR_MS

SINCE_MS: Final = 2 * HOUR_MS
"""How far back rows are read at the start: the turns of running calls from before are not known."""
POLL_MS: Final = 200
"""How long one poll waits for rows."""
POLL_BYTES: Final = 500_000
"""Rows for which the broker waits no longer: answers with a few rows each cost more
than the rows.
"""
MAX_BATCH_RECORDS: Final = 500
"""Rows of one poll."""
STEP_SECONDS: Final = 0.005
"""How long rows are decoded before everything else has its turn; one more may come on top."""
RETRY_SECONDS: Final = 5.0
"""Pause before a broker that was away is tried again."""
LOOK_SECONDS: Final = 60.0
"""How often it is asked whether a topic has got more partitions."""
MAX_SILENT_SECONDS: Final = 60.0
"""Time without a poll after which only a restart helps."""
PORTS_TRIED: Final = 20
"""Ports from the usual one on, of which the first free one is taken unless a port was set."""

log = structlog.get_logger()


class ConsoleRole:
    """Serves the pages until it is stopped.

    Attributes:
        ready: Set while it listens and has read `scores` up to its present end.
        console: What it serves.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: ConsoleSettings,
        redactor: Redactor,
        instruments: Instruments,
        *,
        annotate: Annotate | None = None,
        past: CallHistory | None = None,
        version: str = "unknown",
        names: Collection[str] = (),
        reads_own: bool = False,
        runbooks: Mapping[str, Runbook] | None = None,
    ) -> None:
        """Nothing is connected before `run`.

        Args:
            kafka: Where the topics are.
            settings: The address, who may read, and the bounds.
            redactor: Redacts the words of calls.
            instruments: Gets the metrics of the role.
            annotate: Writes what people say of calls; None where they cannot.
            past: Calls that are over; None without a history.
            version: Of callgauge.
            names: Names by which a proxy or a tunnel on this machine asks.
            reads_own: Whether values of measures of one's own are shown.
            runbooks: By alert its runbook; None where these are not known.

        Raises:
            OperatorError: The folder cannot be written.
            SetupError: Everybody in the network could read calls, and nobody has said that this is
                wanted.
        """
        self.ready = asyncio.Event()
        self._kafka = kafka
        self._settings = settings
        self.console = CallPages(
            settings, redactor, instruments, annotate=annotate, past=past, version=version
        )
        self.console.fleet.runbooks = runbooks or {}
        self._instruments = instruments
        self._names = names
        self._listener = self._at(settings.port)
        self._by_name = {kafka.topic(topic): topic for topic in DECODED}
        self._next: dict[TopicPartition, int] = {}
        self._moved_at = time.monotonic()
        self._fault: str | None = None
        self._beside = [
            *([WORDS_TOPIC] if settings.words else []),
            *([OWN_TOPIC] if reads_own else []),
        ]
        self._lacking: set[str] = set()

    @property
    def address(self) -> str:
        """Address of the first page, with the actual port; right once `ready` is set."""
        return f"{self._listener.address}/"

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until `stop` is set.

        Raises:
            AddressInUseError: The address is taken.
            KafkaUnreachableError: No broker answers.
            TopicsUnfitError: There is no topic `scores`.
        """
        tune_python()
        await partition_counts(self._kafka, [SCORES_TOPIC])
        await self._listen()
        self.console.start()
        try:
            while not stop.is_set():
                await self._read(stop)
        finally:
            self.ready.clear()
            await self.console.stop()
            await self._listener.stop()
            self.console.calls.close()

    def problems(self) -> Sequence[str]:
        """Why the pages are not up to date, for `/readyz`."""
        if self._fault is not None:
            return (f"console: {self._fault}",)
        return () if self.ready.is_set() else ("console: still reading scores",)

    def stalled(self) -> Sequence[str]:
        """Reasons why only a restart helps, for `/healthz`. A broker that is away is none."""
        silent_seconds = time.monotonic() - self._moved_at
        if self.ready.is_set() and silent_seconds > MAX_SILENT_SECONDS:
            return (f"console: nothing was polled for {silent_seconds:.0f} s",)
        return ()

    def _at(self, port: int) -> HttpListener:
        settings = self._settings
        return HttpListener(
            settings.host,
            port,
            self.console.site.routes(),
            partial(_count, self._instruments),
            bounds=self.console.bounds,
            without_it="The page of calls cannot be shown",
            names=self._names,
        )

    async def _listen(self) -> None:
        """Listens on the first free port.

        Raises:
            AddressInUseError: None is free.
        """
        ports = ports_of(self._settings)
        for port in ports:
            self._listener = self._at(port)
            try:
                await self._listener.start()
            except AddressInUseError:
                if port == ports[-1]:
                    raise
            else:
                break
        log.info("console_listens", address=self.address)

    async def _read(self, stop: asyncio.Event) -> None:
        """Reads rows until a topic has more partitions, the broker is away, or `stop` is set."""
        consumer = self._kafka.consumer(
            "console",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_poll_records=MAX_BATCH_RECORDS,
            fetch_max_wait_ms=POLL_MS,
            fetch_min_bytes=POLL_BYTES,
        )
        try:
            partitions = await self._partitions()
            await consumer.start()
            consumer.assign(partitions)
            behind = await self._go_back(consumer, partitions)
            looked_at = time.monotonic()
            while not stop.is_set():
                polled = await consumer.getmany(timeout_ms=POLL_MS)
                self._moved_at = time.monotonic()
                self._fault = None
                await self.read_records(polled)
                # by position, not by record: a transaction's marker has an offset and is no record
                if behind:
                    behind = {
                        tp: end for tp, end in behind.items() if await consumer.position(tp) < end
                    }
                if not behind:
                    self.ready.set()
                if time.monotonic() - looked_at > LOOK_SECONDS:
                    looked_at = time.monotonic()
                    if await self._partitions() != partitions:
                        return
        except (KafkaError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            if self._fault != reason:
                self._fault = reason
                log.warning(
                    "console_waits",
                    problem=reason,
                    what_to_do="See to the broker.",
                    what_happens_now=(
                        "Open pages show what was known, and say how old it is; it is tried again."
                    ),
                )
            self._moved_at = time.monotonic()
            await finish_unless(stop, asyncio.sleep(RETRY_SECONDS))
        finally:
            with contextlib.suppress(TimeoutError, KafkaError):
                async with asyncio.timeout(STOP_SECONDS):
                    await consumer.stop()

    async def _partitions(self) -> list[TopicPartition]:
        """The partitions that are read: those of `scores`, and those of `words` and `scores.own`
        where these are shown and this user may read them.
        """
        counts = dict(await partition_counts(self._kafka, [SCORES_TOPIC]))
        for topic in self._beside:
            try:
                counts |= await partition_counts(self._kafka, [topic])
                self._lacking.discard(topic)
            except (KafkaRefusedError, TopicsUnfitError) as error:
                if topic not in self._lacking:
                    log.warning(
                        "topic_not_shown",
                        role="console",
                        problem=str(error),
                        what_happens_now="It is tried again.",
                    )
                self._lacking.add(topic)
        return [
            TopicPartition(self._kafka.topic(name), n)
            for name, count in counts.items()
            for n in range(count)
        ]

    async def _go_back(
        self, consumer: AIOKafkaConsumer, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Moves each partition to where reading begins; returns the present ends."""
        ends: dict[TopicPartition, int] = await consumer.end_offsets(partitions)
        since_ms = max(0, wall_clock_ms() - SINCE_MS)
        at = await consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
        found = {tp: ends[tp] if at[tp] is None else at[tp].offset for tp in partitions}
        kept = {
            TopicPartition(*place): offset
            for place, offset in self.console.calls.positions().items()
        }
        if self.console.calls.since_ms is None:
            is_whole = all(kept.get(tp, -1) >= found[tp] for tp in partitions)
            self.console.calls.since_ms = 0 if is_whole else since_ms
        for tp in partitions:
            # It goes on after a fault, so that no reader gets a row twice, and after a restart,
            # where it keeps its rows.
            consumer.seek(tp, self._next.get(tp, max(found[tp], min(kept.get(tp, 0), ends[tp]))))
        return ends

    async def read_records(self, polled: Mapping[TopicPartition, Sequence[Any]]) -> None:
        """Takes in records, in steps between which everything else has its turn. A step is one
        transaction of the store, however many partitions it is of.
        """
        left = iter([(tp, record) for tp, records in polled.items() for record in records])
        while True:
            ends_at = time.perf_counter() + STEP_SECONDS
            rows: list[StoredRow] = []
            values: list[bytes] = []
            positions: dict[Place, int] = {}
            for tp, record in left:
                topic = self._by_name[tp.topic]
                row = self._row_of(topic, record.value)
                if row is None and (of_partition := row_in(record.headers)) is not None:
                    self.console.fleet.known.take_partition(
                        tp.partition, of_partition.known_ms, of_partition.event_ms
                    )
                if row is not None:
                    rows.append(row)
                    if topic == SCORES_TOPIC:
                        values.append(record.value)
                self._next[tp] = positions[tp.topic, tp.partition] = record.offset + 1
                if time.perf_counter() >= ends_at:
                    break
            if not positions:
                return
            await self.console.put_rows(rows, values, positions, are_new=self.ready.is_set())

    def _row_of(self, topic: str, value: object) -> StoredRow | None:
        """The row of a record; None for one that has none."""
        # a mark of an evaluator, or a record that the client cannot decode
        if not isinstance(value, bytes):
            return None
        try:
            return DECODED[topic](value)
        except RowError:
            self.console.fleet.unreadable += 1
            return None


def ports_of(settings: ConsoleSettings) -> Sequence[int]:
    """The ports to try: the one that was set; otherwise the usual one and those after it, for a
    second process of the machine.
    """
    is_set = "port" in settings.model_fields_set or settings.port == 0
    return (settings.port,) if is_set else range(settings.port, settings.port + PORTS_TRIED)


def _count(instruments: Instruments, limit: HttpLimit) -> None:
    instruments.inc("callgauge_http_limits_hit_total", (limit,))
