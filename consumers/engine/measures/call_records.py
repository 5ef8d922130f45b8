"""The record of a call: all measures of it as a whole, while it runs and at its end."""

from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any, Final, NamedTuple

from consumers.engine.judging.ratings import Outcome, rating_fields
from consumers.engine.measures.eva.live_scores import Metrics, metric_fields, metric_inputs
from consumers.engine.measures.stages.values import STAGES
from consumers.engine.measures.talk.talk_measure import Speech
from consumers.engine.measures.words.transcript_errors import CallDifferences
from consumers.engine.records.revisions import Cause, Fields, Revisions
from consumers.engine.records.score_values import GoalValues, Value, result_of
from consumers.engine.turns.timeline.turn_view import MS_DIGITS
from schemas.judging import JudgeKind
from schemas.scores.all_records import Anchor, CallValues, Result, TurnStatus, UnscoredReason
from schemas.scores.latency_stages import Stage

SUBJECT: Final = ("call", None, 0)


class CallMeasured(NamedTuple):
    """The measured values of a call, before they become a record.

    Attributes:
        through_turn: The last turn that counts.
        speech: Measures of its sound and words.
        differences: Differences between its transcripts.
        metrics: EVA's metrics.
        agreement: By the place of a stage: turns in which several sources measured it, and turns in which they disagree.
        ratings: Judges' ratings of the call, each with the turn up to which it counts.
        goals: Values of its goals; None without any.
        latencies: By anchor, the latencies of the turns that have one, in ms; at the close.
        unscored_turns: By value, the number of turns without it, by reason; at the close.
        is_over: Whether the call is over.
    """

    through_turn: int
    speech: Speech
    differences: CallDifferences
    metrics: Metrics
    agreement: Mapping[int, tuple[int, int]]
    ratings: Mapping[JudgeKind, tuple[Outcome, int]]
    goals: GoalValues | None
    latencies: Mapping[Anchor, Sequence[float]]
    unscored_turns: Mapping[str, Mapping[UnscoredReason, int]]
    is_over: bool

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Plain values from which all fields follow."""
        return (
            self.is_over,
            self.through_turn,
            self.speech.inputs,
            self.differences.inputs,
            metric_inputs(self.metrics),
            tuple(sorted(self.agreement.items())),
            tuple(self.ratings.items()),
            self.goals,
            tuple((anchor, tuple(latencies_ms)) for anchor, latencies_ms in sorted(self.latencies.items())),
            tuple((name, tuple(sorted(counts.items()))) for name, counts in sorted(self.unscored_turns.items())),
        )

    def fields(self) -> Fields:
        """The fields of a `CallValues`."""
        fields: dict[str, Any] = {
            "is_over": self.is_over,
            "through_turn": self.through_turn,
            "speech": self.speech.fields,
            "stt_wer": self.differences.stt_wer,
            "transcript_disagreement": self.differences.disagreement,
            "eva": metric_fields(self.metrics),
            "stages": dict(sorted(map(_agreed, self.agreement.items()))),
            "latencies": {anchor: _counted(latencies_ms) for anchor, latencies_ms in sorted(self.latencies.items())},
            "unscored_turns": self.unscored_turns,
        }
        fields |= {kind.value: rating_fields(*rated) for kind, rated in self.ratings.items()}
        if self.goals is not None:
            fields["tool_correctness"] = _result(self.goals.tool_correctness)
            fields["success_final_turn"] = _result(self.goals.success_final_turn)
            fields["unscored_subgoals"] = dict(self.goals.unscored_subgoals)
        return fields


def call_record(revisions: Revisions, measured: CallMeasured, cause: Cause, *, is_final: bool) -> CallValues | None:
    """The record of the call, if it differs from the published one; at its close in any case."""
    return revisions.make(
        CallValues, SUBJECT, TurnStatus.FINAL if is_final else TurnStatus.PROVISIONAL, (is_final, *measured.inputs), cause,
        fields=measured.fields,
    )  # fmt: skip


def _counted(latencies_ms: Sequence[float]) -> dict[str, float]:
    measured = [each for each in latencies_ms if each >= 0]
    return {
        "measured": len(measured),
        "measured_ms": round(fsum(measured), MS_DIGITS),
        "overlapped": len(latencies_ms) - len(measured),
    }


def _agreed(agreed: tuple[int, tuple[int, int]]) -> tuple[Stage, dict[str, int]]:
    stage, (compared, disputed) = agreed
    return STAGES[stage], {"compared": compared, "disputed": disputed}


def _result(value: Value) -> Result | None:
    return None if value is None else result_of(value)
