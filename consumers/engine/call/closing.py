"""The close of a call, in bounded steps: texts not yet compared, the final records, the transcript.

No record is folded any more when it begins, so time may pass between two steps. The result is one effect, at the end.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final

from consumers.engine.call.transcripts.from_record import RecordedTranscript
from consumers.engine.call.transcripts.from_turns import TranscriptWriter, transcript_bytes
from consumers.engine.effects import CloseCall, Count, Effect
from consumers.engine.goals.judged_scores import JudgedScores
from consumers.engine.measures.measures import Measures
from consumers.engine.records.revisions import Cause, Revisions
from consumers.engine.redaction.call_redaction import CallRedactor
from consumers.engine.turns.live_call import LiveCall
from schemas.metric_context import MetricContext
from schemas.scores.all_records import AnyScoreRecord, ClosedFact, CloseReason, TurnStatus

MOST_RECORDS_OF_ONE_STEP: Final = 1_000
"""A close with more final records than this makes them in a step of their own."""
_TOO_LARGE = Count("callgauge_limits_hit_total", ("transcript",))


@dataclass
class Closing:
    """A call that is over.

    Attributes:
        conversation_id: Id of the call.
        revisions: Makes its records.
        live: Its turns.
        measures: Its measures.
        judged: Its goals and text judges.
        context: EVA's context of the whole call.
        records: Final records so far: first those of the live call.
        reason: Why it closes.
        ended_reason: Why the call ended, as its producer reported.
        cause: Time of its last event, and broker time of its end.
        events: Number of its events.
        writes_transcript: Whether it gets a transcript.
    """

    conversation_id: str
    revisions: Revisions
    live: LiveCall
    measures: Measures
    judged: JudgedScores
    context: MetricContext
    records: list[AnyScoreRecord]
    reason: CloseReason
    ended_reason: str | None
    cause: Cause
    events: int
    writes_transcript: bool
    _has_begun: bool = False
    _has_compared: bool = False
    _has_final_records: bool = False
    _writer: TranscriptWriter | RecordedTranscript | None = None

    def go_on(self, redactor: CallRedactor, out: list[Effect]) -> bool:
        """Does as much as fits into one step; returns whether the close is done, with its effect in `out`."""
        is_large = len(self.records) > MOST_RECORDS_OF_ONE_STEP
        if is_large and not self._has_begun:
            self._has_begun = True  # the records of the live call are work enough for one step
            return False
        if not self._has_compared:
            self._has_compared = self.measures.compare_at_close(self.context)
            if is_large or not self._has_compared:
                return False
        if not self._has_final_records:
            self._has_final_records = True
            self._make_final_records(out)
            if is_large:
                return False
        transcript = None
        if self.writes_transcript:
            if self._writer is None:
                self._writer = self._transcript_writer(redactor)
            if not self._writer.is_too_large and not self._writer.go_on(lambda: redactor.has_room):
                return False
            transcript = None if self._writer.is_too_large else transcript_bytes(self._writer.turns)
            if transcript is None:
                out.append(_TOO_LARGE)
        out.append(CloseCall(self.conversation_id, tuple(self.records), transcript))
        return True

    def _transcript_writer(self, redactor: CallRedactor) -> TranscriptWriter | RecordedTranscript:
        record, agent = self.live.record, self.revisions.labels.agent
        if record is not None and record.entries:
            return RecordedTranscript(self.conversation_id, record.entries, record.agent_id or agent, redactor)
        metrics_of = partial(self.measures.stages.turn_metrics, self.live.heard(), record)
        return TranscriptWriter(self.conversation_id, self.live, agent, redactor, metrics_of)

    def _make_final_records(self, out: list[Effect]) -> None:
        cause = self.cause
        self.records += self.judged.final_records(cause)
        self.records += self.measures.final_records(self.live, self.context, cause, self.judged)
        out += self.measures.closing_counts()
        revisions, reason = self.revisions, self.reason
        ended_reason = None if self.ended_reason is None else revisions.redactor.redact(self.ended_reason)
        closed = revisions.make(
            ClosedFact, ("closed", None, 0), TurnStatus.FINAL, (reason, ended_reason), cause, reason=reason,
            ended_reason=ended_reason, turns=self.live.turns.highest_turn, events=self.events,
            through=revisions.offsets_by_topic(),
        )  # fmt: skip
        if closed is not None:
            self.records.append(closed)
