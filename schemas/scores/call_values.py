"""The two records of `scores` that hold measured values: a row for each turn, and one for the whole call."""

from typing import Final, Literal, get_args

from pydantic import Field

from schemas.scores.eva import EvaMetricName, EvaMetricScore, TurnTakingScore
from schemas.scores.latency_stages import Stage
from schemas.scores.record import Anchor, CallRecord, Result, ScoreModel, UnscoredReason
from schemas.scores.stages import EstimateError, StageAgreement, StageLatency
from schemas.scores.talk import SideDisagreement, SpeechScore, TranscriptDisagreement, TurnTalk, WordErrorRate

TurnValueName = Literal["voice_to_voice_latency_ms", "turn_taking", "estimate_error_ms", "conciseness", "speakability"]
"""Values of a turn that metrics count or observe once. `CallValues.unscored_turns` counts the turns without them."""

STAGE_PREFIX: Final = "stages."
"""Prefix of the name of a stage in `first_known`."""


class TextRating(ScoreModel):
    """A judge's rating of a text by one of EVA's metrics; `result` is from 0 to 1.

    Conciseness and speakability rate a turn, the greeting included. Faithfulness and conversation progression rate the call up
    to `through_turn`: for faithfulness the lowest rating so far counts, for conversation progression the newest. `rating` and
    `dimensions` are on EVA's scale.
    """

    result: Result
    through_turn: int
    rating: int | None = None
    dimensions: dict[str, int] = Field(default_factory=dict)
    failure_modes: tuple[str, ...] = ()


class TurnValues(CallRecord):
    """All measured values of one turn, published when the call leaves the turn, and again when a value changes.

    A value that was not measured is None. The record is withdrawn when later events show that there is no such turn.

    Attributes:
        voice_to_voice_ms: Voice-to-voice latency of the turn, as in its newest `voice_to_voice_latency_ms`, or why it is
            unknown.
        anchor: How the end of the user's speech is known.
        source: The stream with the events of that latency.
        stages: Latency of each stage of the answer that was measured.
        turn_taking: EVA's score of the timing of the turn.
        talk: Speech time and words of each side.
        stt_wer: Word error rate of the agent's transcript of a simulated caller; None without both texts.
        user_disagreement: Differences between the two transcripts of the user's speech.
        assistant_disagreement: Differences between the two transcripts of the assistant's speech.
        estimate_error: Error of the live estimate of an ElevenLabs agent's latency.
        conciseness: A judge's rating.
        speakability: A judge's rating.
        first_known: The values that no earlier revision had, which histograms observe now: names of `TurnValueName`, and
            names of stages behind `stages.`.
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


class FinalLatencies(ScoreModel):
    """The final voice-to-voice latencies with one anchor of the turns of a call; the greeting has none.

    Attributes:
        measured: Number of turns with a latency that is not negative.
        measured_ms: Sum of these latencies.
        overlapped: Number of turns with a negative latency: the assistant began before the user had ended.
    """

    measured: int
    measured_ms: float
    overlapped: int


class CallValues(CallRecord):
    """All measured values of a whole call, published at the close, and in long calls also while they run.

    A value that was not measured is None, and so is a value of the close while the call runs. A call that is over and waits for
    verdicts publishes it too, with `is_over` and without the values of the close.

    Attributes:
        is_over: Whether the call is over, so that at most verdicts can change its values.
        through_turn: The last turn that counts.
        speech: Speech time, monologues, pace and silences of the call.
        stt_wer: EVA's word error rate over all turns.
        transcript_disagreement: Differences between the transcripts of the two sides, over all turns.
        eva: EVA's metrics by name.
        stages: By stage, the number of turns in which several sources measured it and in which they disagree; at the close.
        tool_correctness: Share of the expected tool calls that were made as expected, among those due in the turns so far.
        success_final_turn: 1 when every subgoal was reached by the last turn that counts, otherwise 0; at the close.
        faithfulness: A judge's rating.
        conversation_progression: A judge's rating.
        latencies: By anchor, the final latencies of the turns that have one; at the close. The turns without one are in
            `unscored_turns`.
        unscored_turns: By value, the number of turns in which it is unknown, by reason; at the close.
        unscored_subgoals: Number of subgoals that could not be judged, by reason; at the close.
    """

    kind: Literal["score"] = "score"
    name: Literal["call"] = "call"
    is_over: bool = False
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
    latencies: dict[Anchor, FinalLatencies] = Field(default_factory=dict)
    unscored_turns: dict[TurnValueName, dict[UnscoredReason, int]] = Field(default_factory=dict)
    unscored_subgoals: dict[UnscoredReason, int] = Field(default_factory=dict)


TURN_VALUE_NAMES: Final[tuple[TurnValueName, ...]] = get_args(TurnValueName)
