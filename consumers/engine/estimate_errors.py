"""How far the live estimate of an ElevenLabs agent's latencies was from what the record of the conversation has."""

from collections.abc import Iterable
from typing import Final

from consumers.engine.call_memory import Subject
from consumers.engine.effects import Effect, PublishScore
from consumers.engine.live_side import LiveSide
from consumers.engine.record_book import RecordBook
from consumers.engine.turn_view import MS_DIGITS
from schemas.elevenlabs_scores import EstimateError
from schemas.metric_context import MetricContext
from schemas.scores import AnyScoreRecord, Scored, TurnStatus, Unscored, UnscoredReason

NAME: Final = "estimate_error_ms"


class EstimateErrors:
    """Says of each turn whose estimate a record has replaced how far the two are apart."""

    def __init__(self, book: RecordBook) -> None:
        self._book = book

    def follow(self, live: LiveSide, touched: set[int], time_ms: int, out: list[Effect]) -> None:
        """These turns may have changed."""
        for turn in sorted(touched) if live.record is not None else ():
            record = self._record(live, turn, live.turns.status(turn), time_ms)
            if record is not None:
                out.append(PublishScore(record))

    def final_records(self, live: LiveSide, _context: MetricContext, last_ms: int | None) -> list[AnyScoreRecord]:
        """Every error once more, as final."""
        turns = sorted(live.turns.turns) if live.record is not None else ()
        records = [self._record(live, turn, TurnStatus.FINAL, last_ms) for turn in turns]
        return [record for record in records if record is not None]

    def take_back(self, subjects: Iterable[Subject], out: list[Effect]) -> None:
        """Withdraw what an earlier evaluator said of turns that this one does not know."""
        for name, turn, _ in subjects:
            record = self._withdrawn(turn, None) if name == NAME and turn is not None else None
            if record is not None:
                out.append(PublishScore(record))

    def _record(self, live: LiveSide, turn: int, status: TurnStatus, time_ms: int | None) -> EstimateError | None:
        view = live.turns.view(turn)
        if turn < 1 or view is None or view.recorded_ms is None or view.heard_ms is None:
            return self._withdrawn(turn, time_ms)
        recorded_ms, estimated_ms = view.recorded_ms, view.heard_ms
        return self._book.record(
            EstimateError, (NAME, turn, 0), status, (estimated_ms, recorded_ms), event_time_ms=time_ms,
            result=Scored(value=round(estimated_ms - recorded_ms, MS_DIGITS)),
            estimated_ms=estimated_ms, recorded_ms=recorded_ms,
        )  # fmt: skip

    def _withdrawn(self, turn: int, time_ms: int | None) -> EstimateError | None:
        subject = (NAME, turn, 0)
        if subject not in self._book.published:
            return None
        return self._book.record(
            EstimateError, subject, TurnStatus.OPEN, ("withdrawn",), event_time_ms=time_ms, has_value=False,
            result=Unscored(reason=UnscoredReason.WITHDRAWN), is_withdrawn=True,
        )  # fmt: skip
