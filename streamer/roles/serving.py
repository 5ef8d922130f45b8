"""Everything on one machine, for `serve` and for the demo: the log in a file, every role in this
process, one address.
"""

import asyncio
import contextlib
import secrets
import shlex
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Never, Protocol

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector
from pydantic import SecretStr

from consumers.console.serving import CallPages
from consumers.console.settings import MIN_TOKEN_CHARS
from consumers.engine.redaction.redactor import Redactor
from consumers.evaluator.on_file import FileEvaluator
from consumers.evaluator.settings import EvaluatorSettings
from consumers.exporter.counting import RowCounts
from consumers.exporter.settings import ExporterSettings
from consumers.history.on_file import FileHistory
from consumers.history.sqlite import SqliteHistory
from consumers.log.commits import NotWrittenError
from consumers.log.file import Decided, DecidedRecord, FileLog
from consumers.measures.on_file import FileMeasures
from consumers.runtime.http import (
    ConnectionBounds,
    HttpLimit,
    HttpListener,
    MetricsRoutes,
    is_loopback,
)
from consumers.runtime.private_files import network_kind, write_secret
from consumers.runtime.process import OperatorError, end_tasks, wall_clock_ms, watch_loop
from consumers.runtime.received import RecordPlace
from consumers.runtime.registry import Instruments
from schemas.annotations import Annotation
from schemas.closed_sets import RoleName
from schemas.log import OutgoingRecord
from schemas.metric_context import MetricContext
from schemas.metrics.process import LOOP_METRIC
from schemas.rows import DECODED, CallRow, Labels, OwnRow, RowError, StoredRow, WordsRow
from schemas.topics import SCORES_TOPIC, TRANSCRIPTS_TOPIC
from streamer.deploy_files import runbooks
from streamer.facts import ADDRESS_FILE, KEY_FILE, TOKEN_FILE, installed_version
from streamer.goals.sources import GoalFolder, GoalSources
from streamer.history.said import annotation, record_in_log
from streamer.roles.folder_commands import FolderCommands
from streamer.roles.past_calls import StoredCalls
from streamer.roles.state import state_of
from streamer.settings.all_settings import Settings
from streamer.sources.http.receiver import BOUNDS, Receiver
from streamer.sources.outgoing import NotAcknowledgedError, ProducerBrokenError

SHOWN_RECORDS: Final = 500
"""Rows that are counted and shown in one step."""
MAX_SHOWN_SECONDS: Final = 0.25
"""How long rows may wait to be counted although nobody said that there are any."""
MAX_KEPT_BYTES: Final = 64 * 2**20
"""Rows in memory for the pages of calls that run; those of others are asked of history."""
STOP_SECONDS: Final = 1.5
"""How long a role may take to end."""

log = structlog.get_logger()


class _Role(Protocol):
    ready: asyncio.Event

    async def run(self, stop: asyncio.Event) -> None: ...

    def problems(self) -> Sequence[str]: ...


class _Filer(_Role, Protocol):
    next: int


class FileWriter:
    """Writes events of ingest into the log."""

    def __init__(self, log_file: FileLog) -> None:
        self.broken = asyncio.Event()  # a disk that takes nothing now may take something later
        self._log = log_file

    @property
    def is_away(self) -> bool:
        """Whether the disk takes nothing."""
        return self._log.commits.fault is not None

    def failure(self) -> ProducerBrokenError:
        """Never asked for."""
        return ProducerBrokenError("the log is broken")

    async def write(self, records: Sequence[OutgoingRecord]) -> None:
        """Writes records; returns when they are on the disk.

        Raises:
            NotAcknowledgedError: The disk did not take them.
        """
        try:
            await self._log.append(records)
        except NotWrittenError as error:
            raise NotAcknowledgedError from error


class OneMachine:
    """Every role in this process, on the log of a folder.

    Attributes:
        ready: Set when every role is.
        log: The log.
        history: Past calls.
        token: What senders of events have to send.
        opens_pages: Whether readers of pages have to send it, too.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        host: str,
        port: int,
        *,
        watch: Callable[[bytes], None] | None = None,
    ) -> None:
        """Opens the log. Call it inside a running event loop.

        Args:
            settings: The settings of all roles.
            folder: Where the log and the history are.
            host: Address to listen on.
            port: Port to listen on; 0 takes a free one.
            watch: Called with each row of `scores` that is decided from now on.

        Raises:
            LogFileError: The folder cannot be used.
        """
        self.ready = asyncio.Event()
        self.log = FileLog(folder)
        self.log.open()
        if (kind := network_kind(folder)) is not None:
            log.warning(
                "folder_on_a_network",
                folder=str(folder),
                kind=kind,
                what_happens_now=(
                    "It works while one process alone uses the folder; locks may not hold there, "
                    "and two can damage the log."
                ),
                what_to_do="Choose a --folder on a disk of this machine.",
            )
        self.token = token_of(folder, settings)
        self._folder = folder
        self._watch = watch
        settings = self._settings = _on_one_machine(settings, folder, host, port, self.token)
        self.opens_pages = settings.console.token == SecretStr(self.token)
        roles: list[RoleName] = ["evaluator", "exporter", "history", "console", "ingest"]
        if settings.judge.is_on:
            roles.append("judge")
        if settings.measures.is_on:
            roles.append("measures")
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        instruments = self._instruments = Instruments(self.registry, roles, settings.max_series)
        build: dict[tuple[str, ...], float] = {(installed_version(),): 1.0}
        instruments.read_gauge("callgauge_build_info", lambda: build)
        redactor = Redactor(settings.redaction)
        self._goals = GoalSources(
            None if settings.goals.folder is None else GoalFolder(settings.goals.folder), None
        )
        with instruments.registering("evaluator"):
            self._evaluator = FileEvaluator(
                self.log, _evaluator_settings(settings, roles), instruments, self._goals
            )
        with instruments.registering("exporter"):
            exporter = ExporterSettings(otlp=settings.otlp, code_version=installed_version())
            self._counts = RowCounts(exporter, instruments)
        with instruments.registering("history"):
            self.history = FileHistory(self.log, self._open_history, instruments, self._shown)
        with instruments.registering("console"):
            self.console = CallPages(
                settings.console,
                redactor,
                instruments,
                annotate=partial(self._annotate, redactor),
                past=StoredCalls(settings.history, settings.console_url),
                version=installed_version(),
                max_bytes=MAX_KEPT_BYTES,
                folder=folder,
            )
        self.console.fleet.runbooks = runbooks(settings.console.contacts)
        self.console.fleet.doctor = f"callgauge doctor --folder {shlex.quote(str(folder))}"
        with instruments.registering("ingest"):
            self._receiver = Receiver(
                settings.ingest, settings.all_limits, FileWriter(self.log), instruments, redactor
            )
        self._roles: list[_Role] = [self._evaluator, self.history]
        if settings.judge.is_on:
            from consumers.judge.on_file import FileJudge

            with instruments.registering("judge"):
                self._roles.append(
                    FileJudge(self.log, settings.judge, instruments, Redactor(settings.redaction))
                )
        self._filer: _Filer | None = None
        if settings.transcripts.folder is not None:
            from streamer.roles.transcript_files import FileFiler, TranscriptFiles

            files = TranscriptFiles(settings.transcripts.folder)
            self._filer = FileFiler(self.log, files, instruments)
            self._roles.append(self._filer)
        self._measures: FileMeasures | None = None
        if settings.measures.is_on:
            with instruments.registering("measures"):
                self._measures = FileMeasures(
                    self.log,
                    settings.measures,
                    instruments,
                    Redactor(settings.redaction),
                    self._context_of,
                )
            self._roles.append(self._measures)
        row = self.log.row
        self._event_ms = 0 if row is None else row.event_ms  # until the calls are folded again
        self._offsets = dict.fromkeys(DECODED, 0)
        self._has_shown = asyncio.Event()
        self._commands = FolderCommands(self.log)
        told = partial(state_of, settings, roles, instruments, wall_clock_ms())
        self._metrics = MetricsRoutes(
            _token_of_metrics(settings, host),
            instruments,
            not_ready=self._problems,
            state=lambda: told(problems=self._problems()).model_dump_json(),
        )
        self._listener = HttpListener(
            host,
            port,
            [
                *self._receiver.routes,
                *self._metrics.routes,
                *self._commands.routes,
                *self.console.site.routes(),
            ],
            partial(_count, instruments),
            bounds=_bounds(self.console.bounds),
            without_it="Nothing can be received or shown",
            names=settings.http_names,
        )

    @property
    def address(self) -> str:
        """Where it listens, without a path; right once `ready` is set."""
        return self._listener.address

    async def run(self, stop: asyncio.Event) -> None:
        """Works until `stop` is set.

        Raises:
            AddressInUseError: The address is taken.
            Exception: The failure of a role. The next start goes on from the last transaction.
        """
        ending = asyncio.Event()
        working: list[asyncio.Task[Any]] = []
        beside: list[asyncio.Task[Any]] = []
        try:
            await self._listener.start()
            goals = asyncio.create_task(self._follow_goals(ending), name="goals")
            working.append(goals)
            await _either(self._goals.ready.wait(), goals)
            await self._show_open_calls()
            working += [
                asyncio.create_task(role.run(ending), name=type(role).__name__)
                for role in self._roles
            ]
            self.console.start()
            beside = [
                asyncio.create_task(each) for each in (self._show_for_ever(), self._announce())
            ]
            beside.append(
                asyncio.create_task(watch_loop(partial(self._instruments.observe, LOOP_METRIC, ())))
            )
            stopped = asyncio.create_task(stop.wait())
            beside.append(stopped)
            done, _ = await asyncio.wait([*working, *beside], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            ending.set()
            self.ready.clear()
            if working:
                await asyncio.wait(working, timeout=STOP_SECONDS)
            await end_tasks([*working, *beside])
            await self.console.stop()
            await self._listener.stop()
            self._receiver.close()
            self._metrics.close()
            self.console.calls.close()
            await self._counts.close()
            await self.log.close()
            for name in (ADDRESS_FILE, KEY_FILE):
                (self._folder / name).unlink(missing_ok=True)

    async def _follow_goals(self, ending: asyncio.Event) -> None:
        await self._goals.run(ending)  # without a folder there is nothing to follow
        await ending.wait()

    async def _announce(self) -> Never:
        for role in self._roles:
            await role.ready.wait()
        decided = self.log.next_offset(SCORES_TOPIC)
        while self._offsets[SCORES_TOPIC] < decided:
            self._has_shown.clear()
            await self._has_shown.wait()
        write_secret(self._folder / KEY_FILE, self._commands.key)
        (self._folder / ADDRESS_FILE).write_text(self.address + "\n", encoding="utf-8")
        self.ready.set()
        await asyncio.Event().wait()
        raise AssertionError

    def _problems(self) -> list[str]:
        return [problem for role in self._roles for problem in role.problems()]

    def _open_history(self) -> SqliteHistory:
        history = self._settings.history
        return SqliteHistory(
            self._history_folder,
            writes=True,
            keeps_words=history.words,
            retention_days=history.retention_days,
        )

    @property
    def _history_folder(self) -> Path:
        return self._settings.history.folder or self._folder / "history"

    # Rows: counted and shown as soon as they are on the disk.

    def _shown(self, topic: str) -> int:
        if topic == TRANSCRIPTS_TOPIC and self._filer is not None:
            return self._filer.next
        shown = self._offsets.get(topic, 2**62)
        return (
            shown if self._measures is None else min(shown, self._measures.next.get(topic, shown))
        )

    async def _show_open_calls(self) -> None:
        """Shows the calls that were open when the process before this one ended."""
        rows = await self.history.open_calls(
            () if self._measures is None else self._measures.uncounted()
        )
        self.console.fleet.agents.counts_from_ms = wall_clock_ms()
        await self.console.put_rows(rows, [], {}, are_new=False)
        if self._measures is not None:
            self._measures.know(rows)
        now_ms = wall_clock_ms()
        for row in rows:
            if not isinstance(row, WordsRow | OwnRow):
                self._counts.count_row(
                    RecordPlace(SCORES_TOPIC, 0, 0, now_ms, None), row, now_ms, has_counted=True
                )
        await self._show(has_counted=True)

    async def _show_for_ever(self) -> Never:
        while True:
            self.log.decided.clear()
            if not await self._show(has_counted=False):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(MAX_SHOWN_SECONDS):
                        await self.log.decided.wait()

    async def _show(self, *, has_counted: bool) -> int:
        """Counts and shows the next rows; returns how many there were."""
        shown = 0
        # first: of old knowledge pages say that no evaluator runs
        is_known = self._evaluator.ready.is_set()
        event_ms = self._evaluator.partition.event_ms if is_known else self._event_ms
        self.console.fleet.known.take_partition(0, self._evaluator.known_ms, event_ms)
        for topic in self._offsets:
            while records := self.log.records(topic, self._offsets[topic], SHOWN_RECORDS):
                await self._show_records(records, has_counted=has_counted)
                self._offsets[topic] = records[-1].offset + 1
                shown += len(records)
        self._has_shown.set()
        return shown

    async def _show_records(self, records: Sequence[DecidedRecord], *, has_counted: bool) -> None:
        rows: list[StoredRow] = []
        values: list[bytes] = []
        now_ms = wall_clock_ms()
        for topic, key, value, offset, at_ms in records:
            try:
                row = DECODED[topic](value)
            except RowError:  # of another version
                continue
            rows.append(row)
            if not isinstance(row, WordsRow | OwnRow):
                values.append(value)
                self._counts.count_row(
                    RecordPlace(topic, 0, offset, at_ms, key), row, now_ms, has_counted=has_counted
                )
        self._counts.refusals.end_batch()
        if self._watch is not None:
            for value in values:
                self._watch(value)
        await self.console.put_rows(rows, values, {}, are_new=not has_counted)

    async def _context_of(self, call: CallRow) -> MetricContext:
        from streamer.served_calls import context_in  # brings the clients of Kafka

        return await asyncio.to_thread(context_in, self._settings, self._folder, call)

    async def _annotate(
        self,
        redactor: Redactor,
        conversation_id: str,
        by: str,
        label: str | None,
        note: str | None,
        labels: Labels,
        *,
        withdraws: bool,
    ) -> Annotation:
        said = annotation(by, label, note, labels, redactor, withdraws=withdraws)
        try:
            await self.log.publish(Decided([record_in_log(conversation_id, said)]))
        except NotWrittenError as error:
            raise DiskError(f"the disk took nothing: {error}") from error
        return said


class WeakTokenError(OperatorError):
    """A token could be guessed."""

    exit_code = 2


class DiskError(OperatorError):
    """The disk takes nothing now."""

    is_away = True


def token_of(folder: Path, settings: Settings) -> str:
    """The token of senders: that of the settings, or the one of the folder, which is made at the
    first start.
    """
    if settings.ingest.token is not None:
        return settings.ingest.token.get_secret_value()
    place = folder / TOKEN_FILE
    if not place.exists():
        write_secret(place, secrets.token_urlsafe(24))
    return place.read_text(encoding="utf-8").strip()


def _on_one_machine(settings: Settings, folder: Path, host: str, port: int, token: str) -> Settings:
    """The settings with what a folder and one address decide. Where others can reach pages, these
    need the token of senders unless they have one.
    """
    secret, is_reached = SecretStr(token), _is_reached_by_others(settings, host)
    if is_reached and len(token) < MIN_TOKEN_CHARS:
        name = ", ".join(settings.http_names) or host
        raise WeakTokenError(
            f"The token of senders has {len(token)} characters, and at {name} it opens the pages "
            f"of calls: expected {MIN_TOKEN_CHARS} or more. Take one from `openssl rand -hex 16`, "
            "or leave the setting out: then one is made."
        )
    console: dict[str, Any] = {"host": host, "port": port}
    if is_reached and settings.console.token is None and not settings.console.is_public:
        console["token"] = secret
    kept = {"folder": settings.history.folder or folder / "history", "clickhouse_url": None}
    history = settings.history.model_copy(update=kept)
    return settings.model_copy(
        update={
            "console": settings.console.model_copy(update=console),
            "ingest": settings.ingest.model_copy(
                update={"host": host, "port": port, "token": secret}
            ),
            "history": history,
        }
    )


def _is_reached_by_others(settings: Settings, host: str) -> bool:
    """Whether more than this machine reaches the address: itself, or by a proxy or a tunnel, whose
    name is set.
    """
    return not is_loopback(host) or bool(settings.http_names)


def _token_of_metrics(settings: Settings, host: str) -> SecretStr | None:
    """Of `/metrics`: where others can reach it, it needs a token as the pages do."""
    return settings.http_token or (
        settings.console.token if _is_reached_by_others(settings, host) else None
    )


def _evaluator_settings(settings: Settings, roles: Sequence[RoleName]) -> EvaluatorSettings:
    return EvaluatorSettings(
        limits=settings.all_limits,
        goals=settings.goal_rules(roles),
        code_version=installed_version(),
        redaction=settings.redaction,
        writes_transcripts=settings.transcripts.enabled,
    )


def _bounds(of_pages: ConnectionBounds) -> ConnectionBounds:
    """Those of the pages, with the time that a large body needs."""
    return ConnectionBounds(
        BOUNDS.request_seconds,
        of_pages.answer_seconds,
        max(BOUNDS.most_connections, of_pages.most_connections),
        of_pages.unread_seconds,
    )


async def _either(ready: Awaitable[Any], working: "asyncio.Task[Any]") -> None:
    """Waits until this holds; raises what ends the work before."""

    async def held() -> None:
        await ready

    waiting = asyncio.create_task(held())
    try:
        await asyncio.wait([waiting, working], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        await end_tasks([waiting])


def _count(instruments: Instruments, limit: HttpLimit) -> None:
    instruments.inc("callgauge_http_limits_hit_total", (limit,))
