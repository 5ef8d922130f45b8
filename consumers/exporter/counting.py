"""Counting rows: what is new in them goes into the metrics, and gauges take the newest row of each
running call.
"""

import asyncio
from typing import Final

from consumers.exporter.otlp import Evaluation, EvaluationSender, FinalScores
from consumers.exporter.projection import (
    Counted,
    OpenCalls,
    UncountableRowError,
    exemplar_of,
    project,
)
from consumers.exporter.settings import ExporterSettings
from consumers.runtime.process import wall_clock_ms
from consumers.runtime.received import RecordPlace, UnreadableRecords
from consumers.runtime.registry import Instruments
from schemas.metrics.process import STEP_METRIC
from schemas.rows import CallRow, Row
from schemas.units import to_seconds

REFUSED_METRIC: Final = "callgauge_scores_refused_total"


class RowCounts:
    """Counts the rows that it is given.

    Attributes:
        open: The running calls.
        refusals: The rows that cannot be counted.
    """

    def __init__(self, settings: ExporterSettings, instruments: Instruments) -> None:
        self.open = OpenCalls(settings.max_active_calls, settings.forget_after_ms)
        self.refusals = UnreadableRecords("exporter", REFUSED_METRIC, instruments)
        self._instruments = instruments
        self._final_scores = FinalScores()
        self._otlp = None if settings.otlp.endpoint is None else self._sender(settings)
        instruments.before_scrape(self._sum_up)
        instruments.read_gauge("callgauge_calls_active", self.open.running)
        instruments.read_gauge("callgauge_calls_with_goals_active", self.open.with_goals)
        instruments.read_gauge("callgauge_progress_active", self.open.progress)
        instruments.read_gauge("callgauge_subgoals_active", self.open.subgoals)

    async def close(self) -> None:
        """Sends what waits for an OTLP endpoint."""
        if self._otlp is not None:
            await asyncio.to_thread(self._otlp.close)

    def count_row(self, place: RecordPlace, row: Row, now_ms: int, *, has_counted: bool) -> None:
        """Counts what is new in a row, unless that was done; the gauges take it in either case."""
        if not has_counted:
            try:
                self._count(place, row, now_ms)
            except UncountableRowError as error:
                self.refusals.refuse(place, str(error))
                return
        if isinstance(row, CallRow):
            self._count_forgotten(self.open.replace_row(row, place.partition, now_ms))
        if self._otlp is not None:
            events = self._evaluations(row)
            if not has_counted:
                self._otlp.put(events)

    def _count(self, place: RecordPlace, row: Row, now_ms: int) -> None:
        instruments = self._instruments
        samples = list(project(row, now_ms, is_over=self.open.is_over(row.conversation_id)))
        exemplar = exemplar_of(row)
        for sample in samples:
            if isinstance(sample, Counted):
                instruments.inc(
                    sample.metric, sample.labels, sample.by, exemplar if sample.by else None
                )
            else:
                instruments.observe(sample.metric, sample.labels, sample.value, exemplar)
        instruments.observe(STEP_METRIC, ("counted",), to_seconds(max(0, now_ms - place.timestamp)))

    def _evaluations(self, row: Row) -> list[Evaluation]:
        before = self._final_scores.left_out
        events = self._final_scores.keep_row(row)
        if (left_out := self._final_scores.left_out - before) > 0:
            self._count_otlp("not_kept", left_out)
        return events

    def _sender(self, settings: ExporterSettings) -> EvaluationSender:
        return EvaluationSender(settings.otlp, settings.code_version, self._count_otlp)

    def _count_otlp(self, outcome: str, events: int) -> None:
        self._instruments.inc("callgauge_otlp_events_total", (outcome,), events)

    def _sum_up(self) -> None:
        self._count_forgotten(self.open.forget_silent(wall_clock_ms()))
        self.open.sum_up()

    def _count_forgotten(self, calls: int) -> None:
        if calls:
            self._instruments.inc("callgauge_calls_forgotten_total", (), calls)
