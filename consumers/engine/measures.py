"""What is measured of one call beside its turns: each measure follows the turns, and says its final values at the close."""

from collections.abc import Iterable
from typing import Any, Protocol

from consumers.engine.call_memory import CallMemory, Subject
from consumers.engine.effects import Count, Effect
from consumers.engine.estimate_errors import EstimateErrors
from consumers.engine.eva_scores import EvaScores
from consumers.engine.limits import Limits
from consumers.engine.live_side import LiveSide
from consumers.engine.record_book import RecordBook
from consumers.engine.running_values import are_said_at
from consumers.engine.speech_measures import SpeechMeasures
from consumers.engine.stage_latencies import StageLatencies
from consumers.engine.transcript_errors import TranscriptErrors
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
    """The measures of one call.

    Attributes:
        stages: How long the stages of each answer took.
        eva: EVA's metrics.
    """

    def __init__(self, book: RecordBook, limits: Limits, memory: CallMemory | None = None) -> None:
        self.stages = StageLatencies(book, limits, memory)
        self.eva = EvaScores(book)
        self._at_once: tuple[Measure, ...] = (self.stages, EstimateErrors(book), self.eva)
        self._transcripts = TranscriptErrors(book)
        self._by_turn: tuple[Measure, ...] = (SpeechMeasures(book), self._transcripts)
        self._touched: set[int] = set()
        self._unread: set[int] = set()
        self._turn = 0

    def observe(self, source: InputSource, event: Any, time_ms: int) -> None:
        """An event that changes no turn and says how long something took, or what it used."""
        self.stages.observe(source, event, time_ms)

    def follow(self, live: LiveSide, touched: set[int], time_ms: int, out: list[Effect]) -> None:
        """These turns may have changed. What is about the call as a whole is looked at when it comes to another turn."""
        self._take_recorded(live, touched)
        for measure in self._at_once:
            measure.follow(live, touched, time_ms, out)
        self._touched |= touched
        self._unread |= touched
        turn = live.machine.turn
        if turn == self._turn:
            return
        self._turn = turn
        if not are_said_at(turn):  # but texts are compared as they come, so that no step has those of many turns
            unread, self._unread = self._unread, set()
            self._transcripts.look(live, unread)
            return
        self._unread.clear()
        touched, self._touched = self._touched, set()
        for measure in self._by_turn:
            measure.follow(live, touched, time_ms, out)

    def compare_at_close(self, context: MetricContext) -> bool:
        """One step of what must be done before the final values can be said at once; returns whether it was the last."""
        return self._transcripts.compare_at_close(context)

    def final_records(self, live: LiveSide, context: MetricContext, last_ms: int | None) -> list[AnyScoreRecord]:
        """Every value once more, as final."""
        self._take_recorded(live, live.machine.turns)
        measures = (*self._at_once, *self._by_turn)
        return [record for measure in measures for record in measure.final_records(live, context, last_ms)]

    def closing_counts(self) -> list[Count]:
        """For the metrics, when every value was said as final."""
        return self.eva.closing_counts()

    def take_back(self, subjects: Iterable[Subject], out: list[Effect]) -> None:
        """Withdraw what an earlier evaluator said and this one does not know."""
        for measure in (*self._at_once, *self._by_turn):
            measure.take_back(subjects, out)

    def _take_recorded(self, live: LiveSide, turns: Iterable[int]) -> None:
        """What the record of an ElevenLabs agent has measured of these turns; nothing of one that it does not know."""
        record = live.record
        if record is not None:
            for turn in turns:
                self.stages.take_convai(turn, record.metrics(turn))
