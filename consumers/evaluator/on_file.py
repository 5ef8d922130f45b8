"""The evaluator of one machine: folds the log in a file, and writes what it decides into the same
file, with the place.

There is one log and one process, so there is no fencing and no assignment. All else is as
on Kafka: `Partition` folds, one transaction has whole decisions and the place behind them, and a
start folds again, silently, what was folded of the calls that are open.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Final, Never

from pydantic import ValidationError

from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.redaction.redactor import Redactor
from consumers.evaluator.decisions import (
    MAX_TRANSACTION_RECORDS,
    Decision,
    Outbox,
    Outlet,
    newest,
)
from consumers.evaluator.partition import FOLD_SECONDS, Partition, Recovery
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.version import version_of
from consumers.log.commits import NotWrittenError
from consumers.log.file import Decided, DecidedRecord, FileLog, FileTicks
from consumers.runtime.process import first_of, tune_python, wall_clock_ms
from consumers.runtime.registry import Instruments
from schemas.goals.goal_set import ChoosesGoals, GoalSet
from schemas.rows import CallRow, GoalsRow, RowError, decode
from schemas.units import to_seconds

TICK_SECONDS: Final = 0.5
"""Time between two ticks while a call is open."""
BATCH_RECORDS: Final = 250
"""Records of the log that are read at once."""
GATHER_SECONDS: Final = 0.02
"""How long records gather before they are read: to wake up, to write and to show costs the same for
one and for twenty.
"""
RETRY_SECONDS: Final = 1.0
"""Pause after a write that the disk refused."""
TRIM_SECONDS: Final = 2.0
"""Time between two looks for events that are too old. A step that finds some is followed by the
next at once.
"""
HAND_OVER_SECONDS: Final = 1.0
"""How long the last transaction may take when the role stops."""


class FileEvaluator:
    """Evaluates the calls of a log in a file until it is stopped.

    Attributes:
        ready: Set while it reads what comes.
        partition: The one partition.
    """

    def __init__(
        self,
        log_file: FileLog,
        settings: EvaluatorSettings,
        instruments: Instruments,
        goals: ChoosesGoals | None = None,
    ) -> None:
        """Nothing is read before `run`. The log is open by then."""
        self.ready = asyncio.Event()
        self._log = log_file
        self._settings = settings
        self._instruments = instruments
        self._outbox = Outbox(to_seconds(settings.write_interval_ms))
        evaluator = PartitionEvaluator(
            settings.limits,
            settings.code_version,
            ChosenGoals(goals, settings.goals),
            writes_transcripts=settings.writes_transcripts,
            redactor=Redactor(settings.redaction),
        )
        self.partition = Partition(
            Outlet(0, str, self._outbox),
            evaluator,
            instruments,
            version_of(settings),
            FileTicks(),
        )
        self._looked_at = time.monotonic()
        self._failures_counted = 0
        instruments.before_scrape(self.partition.count_events)
        instruments.before_scrape(self._count_failures)
        gauges: dict[str, Callable[[], dict[tuple[str, ...], float]]] = {
            "callgauge_log_file_bytes": lambda: {(): float(log_file.retention.bytes)},
            "callgauge_calls_open": lambda: {(): float(len(evaluator.open_calls))},
            "callgauge_scores_unwritten": lambda: {(): float(self._outbox.records)},
            "callgauge_source_last_event_timestamp_seconds": lambda: {
                (source,): to_seconds(time_ms)
                for source, time_ms in self.partition.last_event_ms.items()
            },
        }
        for name, value in gauges.items():
            instruments.read_gauge(name, value)

    async def run(self, stop: asyncio.Event) -> None:
        """Evaluates until `stop` is set, then writes what it has decided.

        Raises:
            Exception: Folding failed. The next start goes on from the last place that was written.
        """
        tune_python()
        try:
            await self._take_over()
            await first_of(
                stop.wait(),
                self._read_for_ever(),
                self._write_for_ever(),
                self._tick_for_ever(),
                self._trim_for_ever(),
            )
            self.ready.clear()
            self.partition.write_row(is_last=True)
            with contextlib.suppress(TimeoutError, NotWrittenError):
                async with asyncio.timeout(HAND_OVER_SECONDS):
                    while self._outbox.is_filled:
                        await self._write(self._outbox.first())
        finally:
            self.ready.clear()
            self.partition.drop()

    @property
    def known_ms(self) -> int:
        """Up to when what happened is folded: the newest tick says so, or a newer event. While no
        call is open there are no ticks, so the first event of one comes before any.
        """
        return max(self.partition.known_ms, self.partition.last_ms)

    def _count_failures(self) -> None:
        failures, before = self._log.commits.failures, self._failures_counted
        self._instruments.inc("callgauge_log_file_write_failures_total", (), failures - before)
        self._failures_counted = failures

    def problems(self) -> Sequence[str]:
        """Why the role is not ready, for `/readyz`."""
        if (fault := self._log.commits.fault) is not None:
            return (f"evaluator: the disk takes nothing: {fault}",)
        return () if self.ready.is_set() else ("evaluator: reading the calls that are open",)

    async def _take_over(self) -> None:
        """Folds what was folded of the calls that are open, up to the place of the last
        transaction.
        """
        row, first = self._log.row, self._log.first
        if row is None:
            self.partition.start(Recovery(None, first, first))
            return
        goals, sets = {}, dict[str, GoalSet]()
        for value in self._log.goals():
            # One of another version may have words or a check that this one does not know.
            with contextlib.suppress(RowError, ValidationError):
                each = decode(value)
                if isinstance(each, GoalsRow):
                    known = sets.get(each.digest)  # calls of an agent have the same
                    chosen = known or GoalSet.model_validate(each.goal_set)
                    sets[each.digest] = chosen
                    goals[each.conversation_id] = each.revision, chosen
        closed = self._log.closed_calls(self._settings.limits.max_closed_calls_remembered)
        start = min(max(first, row.first), row.place)
        self.partition.start(Recovery(row, start, row.place, closed, goals=goals, base=row.base))
        began = time.perf_counter()
        for record in self._log.read_of_open_calls(start, row.place):
            self.partition.move_to(record.offset)
            self.partition.fold(record, 0)
            if time.perf_counter() - began > FOLD_SECONDS:
                await asyncio.sleep(0)
                began = time.perf_counter()
        self.partition.move_to(row.place)
        with contextlib.suppress(NotWrittenError):  # the next start does it
            await self._log.settle(self.partition.evaluator.open_calls, row.place)

    async def _read_for_ever(self) -> Never:
        partition = self.partition
        while True:
            self._log.grown.clear()
            records = (
                () if self._is_behind() else self._log.read(partition.next_offset, BATCH_RECORDS)
            )
            polled_ms, began = wall_clock_ms(), time.perf_counter()
            for record in records:
                while partition.is_publishing_again:
                    partition.close_some()
                    await asyncio.sleep(0)
                if time.perf_counter() - began > FOLD_SECONDS:
                    await asyncio.sleep(0)
                    began = time.perf_counter()
                partition.fold(record, polled_ms)
            partition.close_some()
            partition.write_row()
            if records or partition.closing_calls:
                await asyncio.sleep(0)
                continue
            if not self.ready.is_set():
                await self._outbox.until(lambda: not self._outbox.is_filled)
                self.ready.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._log.grown.wait()
                    await asyncio.sleep(GATHER_SECONDS)

    def _is_behind(self) -> bool:
        return (
            self.partition.is_behind or self._outbox.records > self._settings.max_unwritten_records
        )

    async def _tick_for_ever(self) -> Never:
        """Tells time while a call is open. Without one nothing happens, and the disk is
        left alone.
        """
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self.partition.evaluator.next_wakeup() is not None:
                with contextlib.suppress(NotWrittenError):  # the log says so
                    await self._log.tick()

    async def _trim_for_ever(self) -> Never:
        while True:
            deleted = 0
            with contextlib.suppress(NotWrittenError):
                deleted = await self._log.trim()
            await asyncio.sleep(0 if deleted else TRIM_SECONDS)

    # Writing, as `Writer` does it on Kafka.

    async def _write_for_ever(self) -> Never:
        while True:
            await self._outbox.until_due()
            decided = self._outbox.first()
            try:
                await self._write(decided)
            except NotWrittenError:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if self._outbox.records < MAX_TRANSACTION_RECORDS:
                await asyncio.sleep(0)

    async def _write(self, decided: Sequence[Decision]) -> None:
        """Writes decisions. A transaction has whole decisions from the front of the outbox, and the
        place behind the last of them.
        """
        outlet, written = self.partition.outlet, newest(decided)
        calls = [each for each in written if isinstance(each, CallRow)]
        outgoing = [outlet.addressed(each) for each in written]
        await self._log.publish(
            Decided(
                [DecidedRecord(each.topic, each.key, each.value or b"") for each in outgoing],
                decided[-1].row,
                [each.conversation_id for each in calls if "started" in each.news],
                [each.conversation_id for each in calls if each.state == "closed"],
                {each.key.decode(): each.value or b"" for each in outgoing if each.kind == "goals"},
            )
        )
        for each in outgoing:
            if each.kind is not None:
                self._instruments.inc("callgauge_scores_published_total", (each.kind,))
        self._outbox.written(decided)
