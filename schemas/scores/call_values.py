"""The two records of `scores` that hold measured values: a row for each turn, and one for the whole call."""

from typing import Final, Literal, get_args

from pydantic import Field

from schemas.scores.eva import EvaMetricName, EvaMetricScore, TurnTakingScore
from schemas.scores.latency_stages import Stage
from schemas.scores.record import Anchor, CallRecord, Result, ScoreModel, UnscoredReason
from schemas.scores.stages import EstimateError, StageAgreement, StageLatency
from schemas.scores.talk import SideDisagreement, SpeechScore, TranscriptDisagreement, TurnTalk, WordErrorRate

TurnValueName = Literal["voice_to_voice_latency_ms", "turn_taking", "estimate_error_ms", "conciseness", "speakability"]
"""Values of a turn that are counted or observed once, or of which it is counted why they are not known."""

STAGE_PREFIX: Final = "stages."
"""Before the name of a stage in `first_known`."""


class TextRating(ScoreModel):
    """How a judge rates a text by one of EVA's metrics, from 0 to 1 (`result`).

    Conciseness and speakability are about a turn, the greeting included. Faithfulness and conversation progression are about
    the call up to `through_turn`: of the one the lowest rating so far counts, of the other the newest. `rating` and
    `dimensions` are on EVA's scale.
    """

    result: Result
    through_turn: int
    rating: int | None = None
    dimensions: dict[str, int] = Field(default_factory=dict)
    failure_modes: tuple[str, ...] = ()


class TurnValues(CallRecord):
    """Everything measured of one turn: published when the call leaves it, and again when a value changes.

    A part is None where nobody measured it. The record is withdrawn when later events show that there is no such turn.

    Attributes:
        voice_to_voice_ms: What the newest `voice_to_voice_latency_ms` of the turn says, or why there is none.
        anchor: How the end of the user's speech is known.
        source: Whose events tell.
        stages: How long the stages of the answer took; a stage that nobody measured is not in it.
        turn_taking: How well the turn was timed, by EVA.
        talk: Who spoke how long.
        stt_wer: What the agent understood against what a simulated caller meant to say; None where no text tells.
        user_disagreement: By how many words the two transcripts of the user's side differ.
        assistant_disagreement: By how many those of the assistant's side do.
        estimate_error: How far the live estimate of an ElevenLabs agent's latency was off.
        conciseness: A judge's rating.
        speakability: A judge's rating.
        first_known: The values that no earlier revision had, the ones that histograms take: names of `TurnValueName`, and
            stages with `stages.` before their name.
        is_withdrawn: Whether there is no such turn.
    """

    kind: Literal["score"] = "score"
    name: Literal["turn"] = "turn"
    voice_to_voice_ms: Result
    anchor: Anchor | None = None
    source: Literal["elevenlabs", "pipecat", "audit"] | None = None
    stages: tuple[StageLatency, ...] = ()
    turn_taking: TurnTakingScore | None = None
    talk: TurnTalk | None = None
    stt_wer: WordErrorRate | None = None
    user_disagreement: SideDisagreement | None = None
    assistant_disagreement: SideDisagreement | None = None
    estimate_error: EstimateError | None = None
    conciseness: TextRating | None = None
    speakability: TextRating | None = None
    first_known: tuple[str, ...] = ()
    is_withdrawn: bool = False


class CallValues(CallRecord):
    """Everything measured of a whole call: published at the close, and in long calls while they run.

    A part is None where nobody measured it, or while the call runs and it is known only at the close.

    Attributes:
        through_turn: The last turn that counts.
        speech: Who spoke how much, and how.
        stt_wer: EVA's word error rate of all turns.
        transcript_disagreement: How far the transcripts of the two sides differ, of all turns.
        eva: EVA's metrics by name.
        stages: By stage, in how many turns several sources measured it, and how often they disagree; at the close.
        tool_correctness: The share of the expected tool calls that were made as expected, of those due in the turns so far.
        success_final_turn: 1 when every subgoal was reached by the call's last turn that counts, else 0; at the close.
        faithfulness: A judge's rating.
        conversation_progression: A judge's rating.
        unscored_turns: By value, in how many turns it is not known, by reason; at the close.
        unscored_subgoals: How many subgoals nobody could judge, by reason; at the close.
    """

    kind: Literal["score"] = "score"
    name: Literal["call"] = "call"
    through_turn: int
    speech: SpeechScore | None = None
    stt_wer: WordErrorRate | None = None
    transcript_disagreement: TranscriptDisagreement | None = None
    eva: dict[EvaMetricName, EvaMetricScore] = Field(default_factory=dict)
    stages: dict[Stage, StageAgreement] = Field(default_factory=dict)
    tool_correctness: Result | None = None
    success_final_turn: Result | None = None
    faithfulness: TextRating | None = None
    conversation_progression: TextRating | None = None
    unscored_turns: dict[TurnValueName, dict[UnscoredReason, int]] = Field(default_factory=dict)
    unscored_subgoals: dict[UnscoredReason, int] = Field(default_factory=dict)


TURN_VALUE_NAMES: Final[tuple[TurnValueName, ...]] = get_args(TurnValueName)
