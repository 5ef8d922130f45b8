"""The records of the `scores` topic: scores of a call, and facts about it."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from schemas.closed_sets import Anchor, CloseReason, Speaker, ToolOutcome, UnscoredReason
from schemas.goals.goal_set import GoalSet
from schemas.judging import TrialAnswer
from schemas.scores.call_values import (
    STAGE_PREFIX,
    TURN_VALUE_NAMES,
    CallValues,
    FinalLatencies,
    TextRating,
    TurnValueName,
    TurnValues,
)
from schemas.scores.eva import EvaMetricScore, TurnTakingScore
from schemas.scores.record import (
    SCHEMA_VERSION,
    WITHDRAWN,
    CallLabels,
    CallRecord,
    NotApplicable,
    Result,
    Scored,
    ScoreModel,
    TurnStatus,
    Unscored,
)
from schemas.scores.stages import EstimateError, StageAgreement, StageLatency
from schemas.scores.talk import (
    SideDisagreement,
    SideSpeech,
    SideTalk,
    SpeechScore,
    TranscriptDisagreement,
    TurnTalk,
    WordErrorRate,
)
from schemas.wire import is_none

__all__ = [
    "SCHEMA_VERSION",
    "SCORE_RECORD",
    "STAGE_PREFIX",
    "TURN_VALUE_NAMES",
    "WITHDRAWN",
    "Anchor",
    "AnyScoreRecord",
    "CallLabels",
    "CallRecord",
    "CallStartedFact",
    "CallValues",
    "CloseReason",
    "ClosedFact",
    "DeadAirFact",
    "EstimateError",
    "EvaMetricScore",
    "FinalLatencies",
    "GoalsFact",
    "InterruptionFact",
    "NotApplicable",
    "ProgressScore",
    "Result",
    "ScoreModel",
    "ScoreRecord",
    "Scored",
    "SideDisagreement",
    "SideSpeech",
    "SideTalk",
    "Speaker",
    "SpeechScore",
    "StageAgreement",
    "StageLatency",
    "StallFact",
    "SubgoalScore",
    "TextRating",
    "ToolOutcome",
    "ToolUseFact",
    "TranscriptDisagreement",
    "TurnStatus",
    "TurnTakingScore",
    "TurnTalk",
    "TurnValueName",
    "TurnValues",
    "Unscored",
    "UnscoredReason",
    "VoiceToVoiceLatency",
    "WordErrorRate",
]


class VoiceToVoiceLatency(CallRecord):
    """Milliseconds from the end of the user's last speech of a turn to the start of the assistant's answer.

    Negative when the assistant started before the user had ended.
    """

    kind: Literal["score"] = "score"
    name: Literal["voice_to_voice_latency_ms"] = "voice_to_voice_latency_ms"
    result: Result
    anchor: Anchor | None
    source: Literal["elevenlabs", "pipecat", "audit"] | None


class CallStartedFact(CallRecord):
    """The first record of a call. A revision has new labels of the call."""

    kind: Literal["fact"] = "fact"
    name: Literal["call_started"] = "call_started"


class InterruptionFact(CallRecord):
    """One side started to speak over the other in this turn. Withdrawn when later events show that it did not."""

    kind: Literal["fact"] = "fact"
    name: Literal["interruption_by_user", "interruption_by_assistant"]
    is_withdrawn: bool = False

    @property
    def by(self) -> Speaker:
        """The side that interrupted."""
        return Speaker.USER if self.name == "interruption_by_user" else Speaker.ASSISTANT


class DeadAirFact(CallRecord):
    """Nobody spoke and no tool ran for longer than the threshold after the user's audio ended. Never withdrawn."""

    kind: Literal["fact"] = "fact"
    name: Literal["dead_air"] = "dead_air"
    silent_since_ms: int
    threshold_ms: int


class ToolUseFact(CallRecord):
    """The outcome of a tool call. `duration_ms` is from call to response, as the audit log, the agent or pipecat reports it."""

    kind: Literal["fact"] = "fact"
    name: Literal["tool_call"] = "tool_call"
    tool: str
    outcome: ToolOutcome
    duration_ms: int | None
    is_withdrawn: bool = False


class GoalsFact(CallRecord):
    """The whole goal set of the call. Its progress is measured against this set, even if the set's source changes later."""

    kind: Literal["fact"] = "fact"
    name: Literal["goals"] = "goals"
    goal_set: GoalSet
    digest: str


class SubgoalScore(CallRecord):
    """Whether a subgoal is reached (1 or 0). `index` is its place in the goal set, `turn` is None.

    `reached_turn` is the turn that reached it. `votes_complete`, `votes_incomplete` and `trials` are from the judge's verdict that
    found it reached, or from the last verdict. `trials` is there if `include_judge_explanation` asks for it.
    """

    kind: Literal["score"] = "score"
    name: Literal["subgoal"] = "subgoal"
    result: Result
    subgoal_id: str
    checked_by: Literal["code", "judge"]
    reached_turn: int | None
    votes_complete: int = 0
    votes_incomplete: int = 0
    trials: tuple[TrialAnswer, ...] | None = Field(None, exclude_if=is_none)


class ProgressScore(CallRecord):
    """Progress of the call after a turn: `result` is the share of its subgoals that are reached.

    `auc` is agent-inspect's area under the progress curve, with the last value repeated up to the set's `max_turns`;
    `auc_if_ended_now` is the area of the turns so far. `ppt` is progress divided by the turn that first had that progress.
    `success` is 1 when every subgoal is reached. `reached` counts the reached subgoals, `missing` those without a verdict.
    """

    kind: Literal["score"] = "score"
    name: Literal["progress"] = "progress"
    result: Result
    auc: Result
    auc_if_ended_now: Result
    ppt: Result
    success: Result
    reached: int
    missing: int
    subgoals: int


class StallFact(CallRecord):
    """The call reached no further subgoal for too many turns or too long, while some are open. One record for each stall.

    `since_turn` is the turn of the last progress, 0 when there was none.
    """

    kind: Literal["fact"] = "fact"
    name: Literal["stall"] = "stall"
    since_turn: int
    by: Literal["turns", "seconds"]


class ClosedFact(CallRecord):
    """The call is over. `through` is the offset of the last record that was evaluated, by input; later ones are only counted."""

    kind: Literal["closed"] = "closed"
    name: Literal["closed"] = "closed"
    reason: CloseReason
    ended_reason: str | None
    turns: int
    events: int
    through: dict[str, int]


AnyScoreRecord = (
    VoiceToVoiceLatency
    | CallStartedFact
    | InterruptionFact
    | DeadAirFact
    | ToolUseFact
    | GoalsFact
    | SubgoalScore
    | ProgressScore
    | StallFact
    | TurnValues
    | CallValues
    | ClosedFact
)

ScoreRecord = Annotated[AnyScoreRecord, Field(discriminator="name")]

SCORE_RECORD: TypeAdapter[AnyScoreRecord] = TypeAdapter(ScoreRecord)
"""Reads one value of the `scores` topic."""
