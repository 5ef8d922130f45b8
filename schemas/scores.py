"""The records of the `scores` topic: scores of a call and facts about it, each with what is needed to trust it."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from schemas.elevenlabs_scores import EstimateError
from schemas.eva_scores import EvaMetricScore, TurnTakingScore
from schemas.goals import GoalSet
from schemas.score_record import (
    SCHEMA_VERSION,
    Anchor,
    CallLabels,
    CallRecord,
    NotApplicable,
    Result,
    Scored,
    ScoreModel,
    TurnStatus,
    Unscored,
    UnscoredReason,
)
from schemas.speech_scores import SideDisagreement, SideSpeech, SpeechScore, TranscriptDisagreement, WordErrorRate
from schemas.stage_scores import StageLatency, TurnStages

__all__ = [
    "SCHEMA_VERSION",
    "SCORE_RECORD",
    "Anchor",
    "AnyScoreRecord",
    "CallLabels",
    "CallRecord",
    "CallStartedFact",
    "CloseReason",
    "ClosedFact",
    "DeadAirFact",
    "EstimateError",
    "EvaMetricScore",
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
    "Speaker",
    "SpeechScore",
    "StageLatency",
    "StallFact",
    "SubgoalScore",
    "SuccessFinalTurn",
    "TextJudgeScore",
    "ToolCorrectnessScore",
    "ToolOutcome",
    "ToolUseFact",
    "TranscriptDisagreement",
    "TurnFact",
    "TurnStages",
    "TurnStatus",
    "TurnTakingScore",
    "Unscored",
    "UnscoredReason",
    "VoiceToVoiceLatency",
    "WordErrorRate",
]


class CloseReason(StrEnum):
    """Why a call was closed."""

    ENDED = "ended"
    SESSION_ENDED = "session_ended"
    IDLE = "idle"
    LIMIT_DURATION = "limit_duration"
    LIMIT_EVENTS = "limit_events"
    LIMIT_TURNS = "limit_turns"
    LIMIT_KEPT_BYTES = "limit_kept_bytes"
    LIMIT_REPLAYS = "limit_replays"
    LIMIT_OPEN_CALLS = "limit_open_calls"


class Speaker(StrEnum):
    """Who."""

    USER = "user"
    ASSISTANT = "assistant"


class ToolOutcome(StrEnum):
    """How a tool call went; `unanswered` when the call closed without a response."""

    SUCCESS = "success"
    ERROR = "error"
    UNANSWERED = "unanswered"


class VoiceToVoiceLatency(CallRecord):
    """Milliseconds from the end of the user's last speech of a turn to the assistant's first; negative when it spoke over them."""

    kind: Literal["score"] = "score"
    name: Literal["voice_to_voice_latency_ms"] = "voice_to_voice_latency_ms"
    result: Result
    anchor: Anchor | None
    source: Literal["elevenlabs", "pipecat", "audit"] | None


class CallStartedFact(CallRecord):
    """A call is seen for the first time, or its labels became known (a revision)."""

    kind: Literal["fact"] = "fact"
    name: Literal["call_started"] = "call_started"


class TurnFact(CallRecord):
    """A turn reached a status: started (`open`), left (`provisional`), passed by every stream (`settled`), `final`."""

    kind: Literal["fact"] = "fact"
    name: Literal["turn"] = "turn"
    is_withdrawn: bool = False


class InterruptionFact(CallRecord):
    """Someone started to speak over the other in this turn; withdrawn when later events show that they did not."""

    kind: Literal["fact"] = "fact"
    name: Literal["interruption_by_user", "interruption_by_assistant"]
    is_withdrawn: bool = False

    @property
    def by(self) -> Speaker:
        """Who interrupted."""
        return Speaker.USER if self.name == "interruption_by_user" else Speaker.ASSISTANT


class DeadAirFact(CallRecord):
    """Nobody spoke and no tool ran for longer than the threshold after the user's audio ended; never taken back."""

    kind: Literal["fact"] = "fact"
    name: Literal["dead_air"] = "dead_air"
    silent_since_ms: int
    threshold_ms: int


class ToolUseFact(CallRecord):
    """A tool call came to its outcome; `duration_ms` from call to response, by who reports it: audit log, agent, pipecat."""

    kind: Literal["fact"] = "fact"
    name: Literal["tool_call"] = "tool_call"
    tool: str
    outcome: ToolOutcome
    duration_ms: int | None
    is_withdrawn: bool = False


class GoalsFact(CallRecord):
    """The goal set of the call, whole: what its progress is measured against, whatever becomes of the set's source."""

    kind: Literal["fact"] = "fact"
    name: Literal["goals"] = "goals"
    goal_set: GoalSet
    digest: str


class SubgoalScore(CallRecord):
    """Whether a subgoal is reached (1 or 0); `index` is its place in the goal set, `turn` None.

    `reached_turn` is the turn that reached it; `votes_complete` and `votes_incomplete` are those of the judge's verdict that
    says so or was the last.
    """

    kind: Literal["score"] = "score"
    name: Literal["subgoal"] = "subgoal"
    result: Result
    subgoal_id: str
    checked_by: Literal["code", "judge"]
    reached_turn: int | None
    votes_complete: int = 0
    votes_incomplete: int = 0


class ProgressScore(CallRecord):
    """How far the call is after a turn: the share of its subgoals that are reached (`result`) and what follows from it.

    `auc` is agent-inspect's area under the progress curve, the last value repeated up to the set's `max_turns`;
    `auc_if_ended_now` that of the turns so far alone. `ppt` is progress divided by the turn that reached it first. `success`
    is 1 when every subgoal is reached. `reached` and `missing` count subgoals: reached, and without a verdict.
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


class SuccessFinalTurn(CallRecord):
    """1 when every subgoal was reached by the call's last turn that counts, else 0; said when the call closes."""

    kind: Literal["score"] = "score"
    name: Literal["success_final_turn"] = "success_final_turn"
    result: Result


class ToolCorrectnessScore(CallRecord):
    """The share of the expected tool calls that were made as expected, of those due in the turns so far."""

    kind: Literal["score"] = "score"
    name: Literal["tool_correctness"] = "tool_correctness"
    result: Result


class TextJudgeScore(CallRecord):
    """How a judge rates the text of a turn or a call by one of EVA's metrics, from 0 to 1 (`result`).

    Conciseness and speakability are about `turn`, the greeting included. Faithfulness and conversation progression are about
    the call up to `through_turn` (`turn` is None): of the one the lowest rating so far counts, of the other the newest.
    `rating` and `dimensions` are on EVA's scale.
    """

    kind: Literal["score"] = "score"
    name: Literal["conciseness", "speakability", "faithfulness", "conversation_progression"]
    result: Result
    through_turn: int
    rating: int | None = None
    dimensions: dict[str, int] = Field(default_factory=dict)
    failure_modes: tuple[str, ...] = ()


class StallFact(CallRecord):
    """No further subgoal was reached for too many turns or too long, while some are open; said once for each stall.

    `since_turn` is the turn of the last progress, 0 when there was none.
    """

    kind: Literal["fact"] = "fact"
    name: Literal["stall"] = "stall"
    since_turn: int
    by: Literal["turns", "seconds"]


class ClosedFact(CallRecord):
    """The call is over: `through` is the last offset of each input that counted; what comes later is only counted."""

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
    | TurnFact
    | InterruptionFact
    | DeadAirFact
    | ToolUseFact
    | GoalsFact
    | SubgoalScore
    | ProgressScore
    | SuccessFinalTurn
    | ToolCorrectnessScore
    | TextJudgeScore
    | StallFact
    | TurnStages
    | SpeechScore
    | WordErrorRate
    | TranscriptDisagreement
    | EstimateError
    | TurnTakingScore
    | EvaMetricScore
    | ClosedFact
)

ScoreRecord = Annotated[AnyScoreRecord, Field(discriminator="name")]

SCORE_RECORD: TypeAdapter[AnyScoreRecord] = TypeAdapter(ScoreRecord)
"""Reads one value of the `scores` topic."""
