"""The console role: reads `scores` and `words`, and serves pages and an API of the calls that run, of one call, and of past ones.

It joins no consumer group and writes nothing but what people say of calls, so any number of consoles may run, and none disturbs an
evaluator. It reads with aiokafka, because it begins each partition at a time; FastStream's subscribers begin where a group is.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import httpx2 as httpx
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from consumers.console.fleet import Fleet
from consumers.console.pages import Alert
from consumers.console.reading import ReadCalls
from consumers.console.settings import ConsoleSettings
from consumers.console.site import Annotate, ConsoleSite, PastCalls
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.http import AddressInUseError, ConnectionBounds, HttpLimit, HttpListener
from consumers.runtime.kafka.connection import KafkaRefusedError, KafkaSettings, TopicsUnfitError, partition_counts
from consumers.runtime.private_files import ensure_file, make_folder
from consumers.runtime.process import OperatorError, finish_unless, tune_python, wall_clock_ms
from consumers.runtime.registry import Instruments
from consumers.store.rows import RowStore
from schemas.rows import Row, RowError, WordsRow, decode, decode_words
from schemas.topics import SCORES_TOPIC, WORDS_TOPIC
from schemas.units import MINUTE_MS, MS_PER_SECOND

POLL_MS: Final = 200
"""How long one poll waits for rows."""
POLL_BYTES: Final = 500_000
"""Rows for which the broker waits no longer: answers with a few rows each cost more than the rows."""
MAX_BATCH_RECORDS: Final = 500
"""Rows of one poll."""
STEP_SECONDS: Final = 0.005
"""How long rows are decoded before everything else has its turn; one more may come on top."""
TICK_SECONDS: Final = 0.5
"""Least time from one state of the page of running calls to the next."""
TICK_SHARE: Final = 0.02
"""Share of a processor that bringing these pages up to date may take; with many calls it is done less often."""
IDLE_TICK_SECONDS: Final = 5.0
"""The same while nobody looks: the moving lines go on."""
ALERTS_SECONDS: Final = 10.0
"""How often Alertmanager and Prometheus are asked."""
MAX_ALERTS_BYTES: Final = 2_000_000
"""Most bytes of an answer that are read."""
MAX_ALERTS: Final = 5_000
"""Most alerts of an answer, or of a rule."""
MAX_RULE_SECONDS: Final = 366 * 86_400.0
"""Longest time for which the condition of a rule must hold."""
RETRY_SECONDS: Final = 5.0
"""Pause before a broker that was away is tried again."""
LOOK_SECONDS: Final = 60.0
"""How often it is asked whether a topic has got more partitions."""
MAX_SILENT_SECONDS: Final = 60.0
"""Time without a poll after which only a restart helps."""
STOP_SECONDS: Final = 1.0
"""How long disconnecting may take."""
STORE_NAME: Final = "rows.sqlite"
"""Name of the file in the folder of the console."""
PORTS_TRIED: Final = 20
"""Ports from the usual one on, of which the first free one is taken unless a port was set."""
SPARE_CONNECTIONS: Final = 64
"""Connections beside two for each open page: probes, programs, and pages that are just loaded."""
ANSWER_SECONDS: Final = 6 * 3_600.0
"""How long a stream may last; then its page connects again and goes on."""
UNREAD_SECONDS: Final = 30.0
"""How long a reader may leave a full buffer unread. Then its connection ends, and a page that wakes up comes again."""

log = structlog.get_logger()


class _Given(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _GivenAlert(_Given):
    """An alert as Alertmanager and Prometheus have it; each has a word of its own for when it began."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    startsAt: str = ""  # noqa: N815  # Alertmanager's word
    activeAt: str = ""  # noqa: N815  # Prometheus' word
    state: str = ""


class _Rule(_Given):
    duration: float = Field(0.0, ge=0, le=MAX_RULE_SECONDS, allow_inf_nan=False)
    alerts: Annotated[list[_GivenAlert], Field(max_length=MAX_ALERTS)] = []


class _RuleGroup(_Given):
    rules: list[_Rule] = []


class _RuleGroups(_Given):
    groups: list[_RuleGroup] = []


class _PrometheusAnswer(_Given):
    data: _RuleGroups


_ALERTS: Final = TypeAdapter(Annotated[list[_GivenAlert], Field(max_length=MAX_ALERTS)])
_FIRING: Final = "/api/v2/alerts?active=true&silenced=false&inhibited=false"
_RULES: Final = "/api/v1/rules?type=alert"


class ConsoleFolderError(OperatorError):
    """The folder for the rows cannot be used."""


class ConsoleRole:
    """Serves the pages until it is stopped.

    Attributes:
        ready: Set while it listens and has read `scores` up to its present end.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: ConsoleSettings,
        redactor: Redactor,
        instruments: Instruments,
        *,
        annotate: Annotate | None = None,
        past: PastCalls | None = None,
        version: str = "unknown",
        names: Collection[str] = (),
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

        Raises:
            ConsoleFolderError: The folder cannot be written.
            ConsoleOpenError: Everybody in the network could read calls, and nobody has said that this is wanted.
        """
        self.ready = asyncio.Event()
        self._kafka = kafka
        self._settings = settings
        self._fleet = Fleet()
        self._calls = ReadCalls(_opened(settings.folder))
        for row in self._calls.open_calls():  # of an earlier process
            self._fleet.take(row)
        self._site = ConsoleSite(settings, self._fleet, self._calls, annotate, past, redactor, instruments, version)
        self._instruments = instruments
        self._names = names
        self._listener = self._at(settings.port)
        self._next: dict[TopicPartition, int] = {}
        self._moved_at = time.monotonic()
        self._fault: str | None = None
        self._lacks_words = False

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
        work = [asyncio.create_task(each) for each in (self._tick(), self._ask_for_alerts())]
        try:
            while not stop.is_set():
                await self._read(stop)
        finally:
            self.ready.clear()
            for task in work:
                task.cancel()
            await asyncio.wait(work, timeout=STOP_SECONDS)
            self._site.streams.close()  # the server waits for its answers, and a stream has no end
            await self._site.close(STOP_SECONDS)
            await self._listener.stop()
            self._calls.close()

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
        bounds = ConnectionBounds(
            answer_seconds=ANSWER_SECONDS,
            most_connections=2 * settings.max_pages + SPARE_CONNECTIONS,
            unread_seconds=UNREAD_SECONDS,
        )
        return HttpListener(
            settings.host, port, self._site.routes(), partial(_count, self._instruments), bounds=bounds,
            without_it="The page of calls cannot be shown", names=self._names,
        )  # fmt: skip

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
            "console", enable_auto_commit=False, auto_offset_reset="earliest", max_poll_records=MAX_BATCH_RECORDS,
            fetch_max_wait_ms=POLL_MS, fetch_min_bytes=POLL_BYTES,
        )  # fmt: skip
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
                for tp, records in polled.items():
                    await self.take(tp, records)
                if behind:  # by position, not by record: a transaction's marker has an offset and is no record
                    behind = {tp: end for tp, end in behind.items() if await consumer.position(tp) < end}
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
                    "console_waits", problem=reason, what_to_do="See to the broker.",
                    what_happens_now="Open pages show what was known, and say how old it is; it is tried again.",
                )  # fmt: skip
            self._moved_at = time.monotonic()
            await finish_unless(stop, asyncio.sleep(RETRY_SECONDS))
        finally:
            with contextlib.suppress(TimeoutError, KafkaError):
                async with asyncio.timeout(STOP_SECONDS):
                    await consumer.stop()

    async def _partitions(self) -> list[TopicPartition]:
        """The partitions that are read: those of `scores`, and those of `words` where words are shown and this user may read them."""
        counts = dict(await partition_counts(self._kafka, [SCORES_TOPIC]))
        if self._settings.words:
            try:
                counts |= await partition_counts(self._kafka, [WORDS_TOPIC])
                self._lacks_words = False
            except (KafkaRefusedError, TopicsUnfitError) as error:
                if not self._lacks_words:
                    log.warning(
                        "words_not_shown", role="console", problem=str(error), what_happens_now="It is tried again."
                    )
                self._lacks_words = True
        return [TopicPartition(self._kafka.topic(name), n) for name, count in counts.items() for n in range(count)]

    async def _go_back(self, consumer: AIOKafkaConsumer, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Moves each partition to where reading begins; returns the present ends."""
        ends: dict[TopicPartition, int] = await consumer.end_offsets(partitions)
        since_ms = max(0, wall_clock_ms() - self._settings.since_minutes * MINUTE_MS)
        if self._kafka.is_embedded:  # it knows no times, and has little
            since, found = 0, dict.fromkeys(partitions, 0)
        else:
            at = await consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
            since, found = since_ms, {tp: ends[tp] if at[tp] is None else at[tp].offset for tp in partitions}
        kept = {TopicPartition(*place): offset for place, offset in self._calls.positions().items()}
        if self._calls.since_ms is None:
            is_whole = all(kept.get(tp, -1) >= found[tp] for tp in partitions)
            self._calls.since_ms = 0 if is_whole else since
        for tp in partitions:
            # It goes on after a fault, so that no reader gets a row twice, and after a restart, where it keeps its rows.
            consumer.seek(tp, self._next.get(tp, max(found[tp], min(kept.get(tp, 0), ends[tp]))))
        return ends

    async def take(self, tp: TopicPartition, records: Sequence[Any]) -> None:
        """Takes in records of one partition, in steps between which everything else has its turn."""
        left = iter(records)
        is_over, has_words = False, tp.topic == self._kafka.topic(WORDS_TOPIC)
        while not is_over:
            ends_at = time.perf_counter() + STEP_SECONDS
            rows: list[Row | WordsRow] = []
            values: list[bytes] = []
            while time.perf_counter() < ends_at:
                record = next(left, None)
                if record is None:
                    is_over = True
                    break
                row = self._row_of(record.value, has_words=has_words)
                if row is not None:
                    rows.append(row)
                    values.append(record.value)
                self._next[tp] = record.offset + 1
            await asyncio.to_thread(self._calls.put, rows, {(tp.topic, tp.partition): self._next.get(tp, 0)})
            self._calls.note(rows)
            for row in rows:
                if not isinstance(row, WordsRow):
                    self._fleet.take(row)
            if self.ready.is_set() and not has_words:
                self._site.take(values)

    def _row_of(self, value: object, *, has_words: bool) -> Row | WordsRow | None:
        """The row of a record; None for one that has none."""
        if not isinstance(value, bytes):  # a mark of an evaluator, or a record that the client cannot decode
            return None
        try:
            return decode_words(value) if has_words else decode(value)
        except RowError:
            self._fleet.unreadable += 1
            return None

    async def _tick(self) -> None:
        due_at, idle_until = 0.0, 0.0
        while True:
            now = time.monotonic()
            if now >= due_at and (self._site.has_readers or now >= idle_until):
                took_seconds = 0.0
                try:
                    took_seconds = await self._site.tick()
                except Exception:  # one call that cannot be shown must not end the pages of all others for good
                    log.exception("calls_not_shown", role="console")
                due_at, idle_until = time.monotonic() + took_seconds / TICK_SHARE, now + IDLE_TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)

    async def _ask_for_alerts(self) -> None:
        alertmanager, prometheus = self._settings.alertmanager, self._settings.prometheus
        if alertmanager is None and prometheus is None:
            return
        async with httpx.AsyncClient(timeout=ALERTS_SECONDS / 2, follow_redirects=False) as client:
            while True:
                alerts = self._site.alerts
                if alertmanager is not None:
                    firing, fault = await _alerts_of(client, alertmanager.rstrip("/") + _FIRING, alerts_in)
                    remark = "No alert fires." if fault is None else f"Alertmanager gives no alerts: {fault}."
                    alerts = alerts._replace(firing=firing, remark=remark)
                if prometheus is not None:
                    near, fault = await _alerts_of(client, prometheus.rstrip("/") + _RULES, near_alerts_in)
                    remark = "" if fault is None else f"Prometheus gives no rules: {fault}."
                    alerts = alerts._replace(near=near, remark_on_rules=remark)
                self._site.alerts = alerts
                await asyncio.sleep(ALERTS_SECONDS)


def _opened(folder: Path | None) -> RowStore:
    if folder is None:
        return RowStore()
    try:
        make_folder(folder)
        ensure_file(folder / STORE_NAME)
        return RowStore(folder / STORE_NAME)
    except (OSError, sqlite3.Error) as error:
        raise ConsoleFolderError(
            f"Console: the folder {folder} cannot be used ({error}), so no page is served. Let console.folder be one that this user may "
            "write, or leave it out: then rows are kept in memory."
        ) from error


def ports_of(settings: ConsoleSettings) -> Sequence[int]:
    """The ports to try: the one that was set; otherwise the usual one and those after it, for a second process of the machine."""
    is_set = "port" in settings.model_fields_set or settings.port == 0
    return (settings.port,) if is_set else range(settings.port, settings.port + PORTS_TRIED)


async def _alerts_of(
    client: httpx.AsyncClient, address: str, read: Callable[[bytes], Sequence[Alert]]
) -> tuple[Sequence[Alert], str | None]:
    """The alerts of an answer; the name of the fault where there are none because of one."""
    try:
        async with asyncio.timeout(ALERTS_SECONDS), client.stream("GET", address) as answer:
            answer.raise_for_status()
            body = bytearray()
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > MAX_ALERTS_BYTES:
                    break
        return read(bytes(body)), None
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValidationError) as error:
        return (), type(error).__name__


def alerts_in(body: bytes) -> Sequence[Alert]:
    """The alerts in an answer of Alertmanager, the longest firing of the most severe first.

    Raises:
        ValidationError: It is no such answer.
    """
    return _in_order(_alert(each, each.startsAt) for each in _ALERTS.validate_json(body))


def near_alerts_in(body: bytes) -> Sequence[Alert]:
    """The alerts in an answer of Prometheus about its rules that are pending: the condition holds, but not for long enough yet.

    Raises:
        ValidationError: It is no such answer.
    """
    rules = (rule for group in _PrometheusAnswer.model_validate_json(body).data.groups for rule in group.rules)
    return _in_order(
        alert._replace(fires_ms=alert.since_ms + int(rule.duration * MS_PER_SECOND))
        for rule in rules
        for each in rule.alerts
        if each.state == "pending"
        for alert in (_alert(each, each.activeAt),)
    )


def _alert(given: _GivenAlert, since: str) -> Alert:
    labels = given.labels
    return Alert(
        name=labels.get("alertname", "alert"),
        severity=severity if (severity := labels.get("severity", "")) in _SEVERITIES else "info",
        who=", ".join(labels[label] for label in ("agent", "tenant", "environment") if labels.get(label)),
        summary=given.annotations.get("summary", ""),
        since_ms=_epoch_ms(since),
    )


def _in_order(alerts: Iterable[Alert]) -> list[Alert]:
    return sorted(alerts, key=lambda each: (_SEVERITIES.index(each.severity), each.since_ms))


_SEVERITIES: Final = ("critical", "warning", "info")


def _epoch_ms(text: str) -> int:
    from datetime import datetime

    try:
        return int(datetime.fromisoformat(text).timestamp() * MS_PER_SECOND)
    except ValueError:
        return wall_clock_ms()


def _count(instruments: Instruments, limit: HttpLimit) -> None:
    instruments.inc("callgauge_http_limits_hit_total", (limit,))
