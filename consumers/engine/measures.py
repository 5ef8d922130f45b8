"""What is measured of one call beside its turns: each measure follows the turns, and says its final values at the close."""

from collections.abc import Iterable
from typing import Any, Protocol

from consumers.engine.call_memory import Subject
from consumers.engine.effects import Effect
from consumers.engine.live_side import LiveSide
from consumers.engine.record_book import RecordBook
from schemas.codec import InputSource
from schemas.metric_context import MetricContext
from schemas.scores import AnyScoreRecord


class Measure(Protocol):
    """One measure of one call. Effects are appended to `out`."""

    def follow(self, live: LiveSide, touched: set[int], time_ms: int, out: list[Effect]) -> None:
        """These turns may have changed; `time_ms` is the time of the event that did it."""

    def final_records(self, live: LiveSide, context: MetricContext, last_ms: int | None) -> Iterable[AnyScoreRecord]:
        """Every value once more, as final. `context` is EVA's of the whole call, `last_ms` the time of its last event."""

    def take_back(self, subjects: Iterable[Subject], out: list[Effect]) -> None:
        """Withdraw of these what is the measure's own: an earlier evaluator said it, and this one does not know it."""


class Measures:
    """The measures of one call."""

    def __init__(self, _book: RecordBook) -> None:
        self._all: tuple[Measure, ...] = ()

    def observe(self, _source: InputSource, _event: Any, _time_ms: int) -> None:
        """An event that changes no turn and says how long something took, or what it used."""

    def follow(self, live: LiveSide, touched: set[int], time_ms: int, out: list[Effect]) -> None:
        """These turns may have changed."""
        for measure in self._all:
            measure.follow(live, touched, time_ms, out)

    def final_records(self, live: LiveSide, context: MetricContext, last_ms: int | None) -> list[AnyScoreRecord]:
        """Every value once more, as final."""
        return [record for measure in self._all for record in measure.final_records(live, context, last_ms)]

    def take_back(self, subjects: Iterable[Subject], out: list[Effect]) -> None:
        """Withdraw what an earlier evaluator said and this one does not know."""
        for measure in self._all:
            measure.take_back(subjects, out)
