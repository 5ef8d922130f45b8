"""Measures of one's own on recorded calls."""

from collections.abc import Callable, Iterable
from functools import cache

from consumers.measures.files import FoundMeasures, MeasureSettings
from consumers.measures.own import Calls, Measure, given_to, own_row
from consumers.runtime.process import SetupError
from schemas.metric_context import MetricContext
from schemas.rows import CallRow, OwnRow, Row, TurnRow, WordsRow
from streamer.offline.contexts import recorded_context
from streamer.offline.scoring import RecordedScoring
from streamer.terminal import say


class OwnMeasures:
    """Measures that are called on the newest rows of recorded calls, in this process."""

    def __init__(
        self, settings: MeasureSettings, measures: Iterable[Measure] | None = None
    ) -> None:
        """Takes these measures, or reads those of the settings and says what cannot be used.

        Raises:
            SetupError: One of these is no measure.
        """
        if measures is None:
            found = FoundMeasures(settings.folder)
            measures = found.measures.values()
            for sentence in found.mistakes:
                say(sentence)
        measures = [*measures]
        for each in measures:
            if not isinstance(each, Measure):
                raise SetupError(
                    f"{each!r} is no measure: put @measure in front of its function. Nothing was "
                    "scored."
                )
        self._calls = [Calls(each, settings.seconds) for each in measures]

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._calls)

    def of(self, scoring: RecordedScoring) -> list[OwnRow]:
        """Their values of a call that was scored: by measure, then by turn."""
        context = cache(lambda: recorded_context(scoring.call)[0])
        return self.of_rows(scoring.newest_rows(), scoring.words, context)

    def of_rows(
        self,
        newest: Iterable[Row],
        words: Iterable[WordsRow],
        context: Callable[[], MetricContext] | None = None,
    ) -> list[OwnRow]:
        """Their values of a call whose newest rows these are. Without a context, those that ask for
        one are left out.
        """
        rows = [*newest]
        by_turn = {row.turn: row for row in words}
        turns = [row for row in rows if isinstance(row, TurnRow) and row.status != "withdrawn"]
        call = next((row for row in rows if isinstance(row, CallRow)), None)
        return [
            own_row(calls.measure, row, calls.call(given))
            for calls in self._calls
            if context is not None or "context" not in calls.measure.wants
            for row, given in given_to(calls.measure, call, turns, by_turn, context)
        ]
