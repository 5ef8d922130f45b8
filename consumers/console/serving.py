"""The pages and the API, whatever brings the rows: what is open is brought up to date, and alerts
are asked for.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import httpx2 as httpx
import msgspec
import structlog
from pydantic import AliasChoices, AliasPath, BaseModel, Field, TypeAdapter, ValidationError

from consumers.console.fleet import Fleet
from consumers.console.pages import Alert, Alerts
from consumers.console.reading import ReadCalls
from consumers.console.settings import ConsoleSettings
from consumers.console.site import MAX_PAGES, Annotate, CallHistory, ConsoleSite
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.http import ConnectionBounds
from consumers.runtime.private_files import ensure_file, make_folder
from consumers.runtime.process import OperatorError, wall_clock_ms
from consumers.runtime.registry import Instruments
from consumers.store.rows import MAX_STORE_BYTES, Place
from schemas.rows import OwnRow, StoredRow, WordsRow
from schemas.units import MS_PER_SECOND

TICK_SECONDS: Final = 0.5
"""Least time from one state of the page of running calls to the next."""
TICK_SHARE: Final = 0.02
"""Share of a processor that bringing these pages up to date may take; with many calls it is done
less often.
"""
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
STOP_SECONDS: Final = 1.0
"""How long disconnecting may take."""
STORE_NAME: Final = "rows.sqlite"
"""Name of the file in the folder of the console."""
BAD_TIMES_NAME: Final = "bad-times.json"
"""Name of the file of bad times, there or in the folder of `serve`."""
KEEP_SECONDS: Final = 5.0
"""How often that file is written, at most."""
SPARE_CONNECTIONS: Final = 64
"""Connections beside two for each open page: probes, programs, and pages that are just loaded."""
ANSWER_SECONDS: Final = 6 * 3_600.0
"""How long a stream may last; then its page connects again and goes on."""
UNREAD_SECONDS: Final = 30.0
"""How long a reader may leave a full buffer unread. Then its connection ends, and a page that wakes
up comes again.
"""

log = structlog.get_logger()


class _GivenAlert(BaseModel):
    """An alert as Alertmanager and Prometheus have it; each has a word of its own for when it
    began.
    """

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    since: str = Field("", validation_alias=AliasChoices("startsAt", "activeAt"))
    state: str = ""


class _Rule(BaseModel):
    duration: float = Field(0.0, ge=0, le=MAX_RULE_SECONDS, allow_inf_nan=False)
    alerts: Annotated[list[_GivenAlert], Field(max_length=MAX_ALERTS)] = []


class _RuleGroup(BaseModel):
    rules: list[_Rule] = []


class _PrometheusAnswer(BaseModel):
    groups: list[_RuleGroup] = Field(validation_alias=AliasPath("data", "groups"))


_ALERTS: Final = TypeAdapter(Annotated[list[_GivenAlert], Field(max_length=MAX_ALERTS)])
_FIRING: Final = "/api/v2/alerts?active=true&silenced=false&inhibited=false"
_RULES: Final = "/api/v1/rules?type=alert"


class CallPages:
    """The state of the pages.

    Attributes:
        fleet: The running calls.
        calls: The rows of calls.
        site: Answers requests.
    """

    def __init__(
        self,
        settings: ConsoleSettings,
        redactor: Redactor,
        instruments: Instruments,
        *,
        annotate: Annotate | None = None,
        past: CallHistory | None = None,
        version: str = "unknown",
        max_bytes: int = MAX_STORE_BYTES,
        folder: Path | None = None,
    ) -> None:
        """Opens the store of rows.

        Args:
            settings: Who may read, and the bounds.
            redactor: Redacts the words of calls.
            instruments: Gets the metrics of the role.
            annotate: Writes what people say of calls; None where they cannot.
            past: Calls that are over; None without a history.
            version: Of callgauge.
            max_bytes: Bytes of rows that are kept; of the other calls history has them.
            folder: Where bad times are kept for the next process; None for that of the settings.

        Raises:
            OperatorError: The folder cannot be written.
            SetupError: Everybody in the network could read calls, and nobody has said that this is
                wanted.
        """
        self._settings = settings
        self.fleet = Fleet()
        self.calls = _opened(settings.folder, max_bytes)
        folder = folder or settings.folder
        self._bad_times = None if folder is None else folder / BAD_TIMES_NAME
        self._kept_edition = 0
        self._read_bad_times()
        for row in self.calls.open_calls():  # of an earlier process
            self.fleet.put_row(row)
        self.site = ConsoleSite(
            settings, self.fleet, self.calls, annotate, past, redactor, instruments, version
        )
        self._working: list[asyncio.Task[None]] = []

    @property
    def bounds(self) -> ConnectionBounds:
        """The bounds of a server of these routes: streams last, and each page has two
        connections.
        """
        return ConnectionBounds(
            answer_seconds=ANSWER_SECONDS,
            most_connections=2 * MAX_PAGES + SPARE_CONNECTIONS,
            unread_seconds=UNREAD_SECONDS,
        )

    def start(self) -> None:
        """Begins to bring pages up to date."""
        self._working = [
            asyncio.create_task(each)
            for each in (self._tick(), self._ask_for_alerts(), self._keep())
        ]

    async def stop(self) -> None:
        """Ends streams and drawing; bounded."""
        for task in self._working:
            task.cancel()
        if self._working:
            await asyncio.wait(self._working, timeout=STOP_SECONDS)
        await self._keep_bad_times()
        self.site.streams.close()  # the server waits for its answers, and a stream has no end
        await self.site.close(STOP_SECONDS)

    async def put_rows(
        self,
        rows: Sequence[StoredRow],
        values: Sequence[bytes],
        positions: Mapping[Place, int],
        *,
        are_new: bool,
    ) -> None:
        """Takes in rows.

        Args:
            rows: The rows, in order.
            values: The bytes of those of `scores`, for readers of the stream.
            positions: Where to read on behind them.
            are_new: Whether they came after the start, so that readers of the stream get them.
        """
        await asyncio.to_thread(self.calls.put, rows, positions)
        self.calls.note(rows)
        for row in rows:
            if not isinstance(row, WordsRow | OwnRow):
                self.fleet.put_row(row)
        if are_new:
            self.site.ring.put(values, wall_clock_ms())

    def _read_bad_times(self) -> None:
        if self._bad_times is None or not self._bad_times.exists():
            return
        try:
            self.fleet.bad_times.read(self._bad_times.read_bytes())
        except (OSError, msgspec.DecodeError) as error:
            aside = self._bad_times.with_suffix(".broken")
            with contextlib.suppress(OSError):
                self._bad_times.replace(aside)
            log.warning(
                "bad_times_not_read",
                role="console",
                file=str(self._bad_times),
                error=str(error),
                what_happens_now=f"The list of bad times begins anew; the file is {aside.name} now.",
                what_to_do="Delete it, unless a newer callgauge wrote it and will run here again.",
            )

    async def _keep_bad_times(self) -> None:
        """Writes the file, whole or not at all, if there is something new."""
        times, path = self.fleet.bad_times, self._bad_times
        if path is None or self._kept_edition == times.edition:
            return
        edition, value = times.edition, times.encode()
        try:
            await asyncio.to_thread(_write, path, value)
            self._kept_edition = edition
        except OSError as error:
            log.warning(
                "bad_times_not_kept",
                role="console",
                file=str(path),
                error=str(error),
                what_happens_now="They are shown until this process ends, and then forgotten.",
                what_to_do="See to the disk and to the rights of the folder.",
            )

    async def _keep(self) -> None:
        while True:
            await self._keep_bad_times()
            await asyncio.sleep(KEEP_SECONDS)

    async def _tick(self) -> None:
        due_at, idle_until = 0.0, 0.0
        while True:
            now = time.monotonic()
            if now >= due_at and (self.site.has_readers or now >= idle_until):
                took_seconds = 0.0
                try:
                    took_seconds = await self.site.tick()
                # one call that cannot be shown must not end the pages of all others for good
                except Exception:
                    log.exception("calls_not_shown", role="console")
                due_at, idle_until = (
                    time.monotonic() + took_seconds / TICK_SHARE,
                    now + IDLE_TICK_SECONDS,
                )
            await asyncio.sleep(TICK_SECONDS)

    async def _ask_for_alerts(self) -> None:
        if self._settings.alertmanager is None and self._settings.prometheus is None:
            return
        # made once: that takes 25 ms, in which nothing else is done
        async with alerts_client() as client:
            while True:
                self.site.alerts = await alerts_now(self._settings, client)
                await asyncio.sleep(ALERTS_SECONDS)


def _write(path: Path, value: bytes) -> None:
    ensure_file(new := path.with_suffix(".new"))
    new.write_bytes(value)
    new.replace(path)


def _opened(folder: Path | None, max_bytes: int) -> ReadCalls:
    if folder is None:
        return ReadCalls(max_bytes=max_bytes)
    try:
        make_folder(folder)
        ensure_file(folder / STORE_NAME)
        return ReadCalls(folder / STORE_NAME, max_bytes=max_bytes)
    except (OSError, sqlite3.Error) as error:
        raise OperatorError(
            f"Console: the folder {folder} cannot be used ({error}), so no page is served. Let "
            "console.folder be one that this user may write, or leave it out: then rows are kept "
            "in memory."
        ) from error


def alerts_client() -> httpx.AsyncClient:
    """What asks Alertmanager and Prometheus."""
    return httpx.AsyncClient(timeout=ALERTS_SECONDS / 2, follow_redirects=False)


async def alerts_now(settings: ConsoleSettings, client: httpx.AsyncClient) -> Alerts:
    """The alerts that fire by Alertmanager, and those that are about to by Prometheus, as far as
    the settings have their addresses.
    """
    alerts = Alerts()
    if settings.alertmanager is not None:
        firing, fault = await _alerts_of(
            client, settings.alertmanager.rstrip("/") + _FIRING, alerts_in
        )
        remark = "No alert fires." if fault is None else f"Alertmanager gives no alerts: {fault}."
        alerts = Alerts(firing, remark)
    if settings.prometheus is not None:
        near, fault = await _alerts_of(
            client, settings.prometheus.rstrip("/") + _RULES, near_alerts_in
        )
        remark = "" if fault is None else f"Prometheus gives no rules: {fault}."
        alerts = alerts._replace(near=near, remark_on_rules=remark)
    return alerts


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
    return _in_order(_alert(each) for each in _ALERTS.validate_json(body))


def near_alerts_in(body: bytes) -> Sequence[Alert]:
    """The alerts in an answer of Prometheus about its rules that are pending: the condition holds,
    but not for long enough yet.

    Raises:
        ValidationError: It is no such answer.
    """
    rules = (
        rule for group in _PrometheusAnswer.model_validate_json(body).groups for rule in group.rules
    )
    return _in_order(
        alert._replace(fires_ms=alert.since_ms + int(rule.duration * MS_PER_SECOND))
        for rule in rules
        for each in rule.alerts
        if each.state == "pending"
        for alert in (_alert(each),)
    )


def _alert(given: _GivenAlert) -> Alert:
    labels, runbook = given.labels, given.annotations.get("runbook_url", "")
    return Alert(
        name=labels.get("alertname", "alert"),
        severity=severity if (severity := labels.get("severity", "")) in _SEVERITIES else "info",
        whose={
            label: labels[label]
            for label in ("agent", "tenant", "environment")
            if labels.get(label)
        },
        summary=given.annotations.get("summary", ""),
        since_ms=_epoch_ms(given.since),
        what_to_do=given.annotations.get("runbook", ""),
        runbook=runbook if runbook.startswith(("https://", "http://")) else "",
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
