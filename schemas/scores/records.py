"""Records of `scores`: every kind, its values, and what all of them have."""

import hashlib
from enum import StrEnum
from typing import Annotated, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, computed_field
from pydantic_core import from_json

from schemas.closed_sets import (
    Anchor,
    CloseReason,
    InterruptionCause,
    PipelineType,
    Speaker,
    ToolOutcome,
    UnscoredReason,
)
from schemas.goals.goal_set import GoalSet
from schemas.judging import TrialAnswer
from schemas.scores.latency_stages import ServiceKind, Stage, StageSource
from schemas.wire import is_none

# The common part of all records of the `scores` topic: subject, revision, status and origin.

SCHEMA_VERSION = 2


class TurnStatus(StrEnum):
    """How far a turn can still change.

    - `open`: it is the newest turn
    - `provisional`: the call has left it
    - `settled`: every stream has moved past it
    - `final`: the call is over
    """

    OPEN = "open"
    PROVISIONAL = "provisional"
    SETTLED = "settled"
    FINAL = "final"


class TurnOutcome(StrEnum):
    """How a turn of the caller ended. Every turn that is left or over has one, unless lost events hide it or
    nothing shows that this agent can be heard.

    - `answered`: the assistant answered, and the caller let it finish
    - `interrupted`: the assistant answered, and the caller spoke over it
    - `unanswered`: no answer, although the call went on
    - `abandoned`: no answer, and the call ended: the caller hung up, or said goodbye
    - `failed`: no answer, and the agent reported an error in the turn
    """

    ANSWERED = "answered"
    INTERRUPTED = "interrupted"
    UNANSWERED = "unanswered"
    ABANDONED = "abandoned"
    FAILED = "failed"


class ScoreModel(BaseModel):
    """Base of the records and their parts: immutable, and validation errors do not repeat the input."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


class Scored(ScoreModel):
    """A known value."""

    outcome: Literal["scored"] = "scored"
    value: float


class Unscored(ScoreModel):
    """The reason why a value is unknown."""

    outcome: Literal["unscored"] = "unscored"
    reason: UnscoredReason


WITHDRAWN = Unscored(reason=UnscoredReason.WITHDRAWN)
"""The result of a record that later events made void: there is no such turn, subgoal or latency any more."""


class NotApplicable(ScoreModel):
    """The reason why this turn or call cannot have the score."""

    outcome: Literal["not_applicable"] = "not_applicable"
    reason: str


Result = Annotated[Scored | Unscored | NotApplicable, Field(discriminator="outcome")]


class CallLabels(ScoreModel):
    """Labels of a call's metrics; `unknown` until a `call_started` names them."""

    agent: str = "unknown"
    tenant: str = "unknown"
    environment: str = "unknown"
    pipeline_type: PipelineType = PipelineType.CASCADE


class CallRecord(ScoreModel):
    """Fields of every record of `scores`.

    `revision` is the place in the log that decided the record, twice: the offset in `events` of the event, or of the tick that
    told the time. So it needs no memory, and is the same whoever folds the log. Of the records of one subject (`name`, `turn`,
    `index`) of a conversation one with a greater or equal revision replaces those in front of it, and the newest before `closed` is
    final. When another version of the code takes the call over, it publishes every value once again, with the odd number between
    what was decided by then and what comes: see `revision_again`. `is_first` marks the first revision that has a value, which
    counters count. `offsets` has, under `events`, the offset of the last event of the call that was evaluated before it.
    `caused_at_ms` is the broker's time of the record that caused it.
    """

    schema_version: int = SCHEMA_VERSION
    conversation_id: str
    turn: int | None = None
    index: int = 0
    revision: int
    status: TurnStatus
    is_first: bool = False
    input_hash: str
    offsets: dict[str, int]
    event_time_ms: int | None
    caused_at_ms: int
    labels: CallLabels
    code_version: str

    @computed_field(description="Identifies the record: the same log gives the same ids.")  # type: ignore[prop-decorator]  # mypy cannot stack decorators on property
    @property
    def record_id(self) -> str:
        """The record's id: a hash of (conversation, name, turn, index, revision, status, input hash). One step may change a
        subject twice.
        """
        identity = (
            self.conversation_id, getattr(self, "name", ""), self.turn, self.index, self.revision, self.status, self.input_hash,
        )  # fmt: skip
        return hashlib.blake2b("\x00".join(map(str, identity)).encode(), digest_size=16).hexdigest()


def revision_at(place: int) -> int:
    """Returns the revision of what the record at a place of the log decides.

    >>> revision_at(7)
    14
    """
    return 2 * place


def revision_again(place: int) -> int:
    """Returns the revision of what is published once again in front of a place: above all that is decided by then, below all that follows.

    >>> revision_at(6) < revision_again(7) < revision_at(7)
    True
    """
    return 2 * place - 1


def schema_version_in(value: bytes) -> int | None:
    """Returns the schema version in a value of `scores` without validating the rest; None if it has none."""
    try:
        fields = from_json(value)
    except ValueError:
        return None
    version = fields.get("schema_version") if isinstance(fields, dict) else None
    return version if isinstance(version, int) else None


# EVA's metrics, as parts of the records of turns and calls: the timing of a turn, and each metric of the call.

EvaMetricName = Literal[
    "eva_turn_taking",
    "eva_response_speed",
    "eva_tool_call_validity",
    "eva_tool_schema_validity",
    "eva_conversation_correctly_finished",
    "eva_conversation_completed_on_time",
    "eva_conversation_valid_end",
    "eva_authentication_success",
    "eva_task_completion",
    "eva_a_mean",
    "eva_a_pass",
    "eva_x_mean",
    "eva_x_pass",
]
"""Names of EVA's metrics with the prefix `eva_`. `eva_tool_schema_validity` is ours, for agents whose tools do not name their
errors as EVA's do."""


class TurnTakingScore(ScoreModel):
    """How well a turn was timed, by EVA's `turn_taking` from 0 to 1: its latency, or how one side spoke over the other.

    The other fields are the evidence, set if they counted: `latency_ms` from the end of the user's speech to the answer;
    `overlap_ms` in which both spoke, in `interrupt_segments` stretches of the assistant's speech; `post_interrupt_latency_ms`
    from the end of that overlap to the answer; `yield_ms` for which the assistant kept speaking after the user had begun. A
    tool call in the turn allows for a later answer. `anchor` is how the end of the user's speech is known; only with `audio` is
    the score EVA's own.
    """

    result: Result
    reason: Literal["latency", "agent_interrupt", "user_interrupt", "dual_interrupt", "turn_end_fallback"] | None = None
    has_tool_call: bool = False
    latency_ms: float | None = None
    overlap_ms: float | None = None
    interrupt_segments: int | None = None
    post_interrupt_latency_ms: float | None = None
    yield_ms: float | None = None
    anchor: Anchor | None = None


class EvaMetricScore(ScoreModel):
    """One of EVA's metrics of the call so far, or of the whole call, on its own scale.

    The scale is from 0 to 1 and higher is better, except for `eva_response_speed`, the mean wait for an answer in seconds.
    `normalized` is None if EVA does not define it. `sub_metrics` has EVA's names, with None for values that EVA leaves open.
    `anchor` is the worst anchor of the turns behind the score; None if the score does not depend on sound.
    """

    result: Result
    normalized: float | None = None
    sub_metrics: dict[str, float | None] = Field(default_factory=dict)
    anchor: Anchor | None = None


# Latencies of the stages of a turn, as parts of the records of turns and calls.


class StageLatency(ScoreModel):
    """Latency of one stage of a turn.

    Attributes:
        stage: The stage.
        latency_ms: Latency by the best source that measured it.
        source: That source.
        anchor: How the end of the user's speech is known, for a stage that begins there; None for a stage that begins inside
            the agent.
        model: Name of the model, if the source reports it.
        others_ms: Latency of the same stage by other sources.
        is_disputed: Whether another source differs from `latency_ms` by more than the tolerance.
    """

    stage: Stage
    latency_ms: float
    source: StageSource
    anchor: Anchor | None = None
    model: str | None = None
    others_ms: dict[StageSource, float] = Field(default_factory=dict)
    is_disputed: bool = False


class StageAgreement(ScoreModel):
    """Agreement of the sources of a stage over the turns of a call.

    Attributes:
        compared: Turns in which at least two sources measured the stage.
        disputed: Turns of these in which a source differs from the best one by more than the tolerance.
    """

    compared: int = 0
    disputed: int = 0


class EstimateError(ScoreModel):
    """Error of the live estimate of a turn's voice-to-voice latency, in ms: estimate minus record, negative when too short.

    Live events arrive when a transcript is ready, so the estimate lacks the time until then.
    """

    error_ms: float
    estimated_ms: float
    recorded_ms: float


# Speech times and differences between transcripts, as parts of the records of turns and calls.


class SideSpeech(ScoreModel):
    """Speech of one side in a call.

    Attributes:
        speech_ms: Time in which it was heard, in ms.
        longest_monologue_ms: Its longest stretch of speech without a word of the other side and without a pause of 3 s, in ms.
        words_per_minute: Its pace in the turns with known words.
        repeated_questions: Number of questions that it had asked in an earlier turn in the same words.
        repeated_in_turns: The turns with repeated questions.
    """

    speech_ms: Result
    longest_monologue_ms: Result
    words_per_minute: Result
    repeated_questions: Result
    repeated_in_turns: tuple[int, ...] = ()


class SpeechScore(ScoreModel):
    """Speech of both sides in a call: `result` is the assistant's share of the speech time of both, from 0 to 1.

    Attributes:
        source: The stream of the speech events; None without speech events.
        user: Speech of the caller.
        assistant: Speech of the agent.
        overlap_ms: Time in which both were heard at once, in ms.
        dead_air_ms: Time in which the caller waited, with nobody speaking and no tool running, in ms. Only silences of 3 s or
            longer count, each with its whole length.
        first_word_ms: Time from the start of the call, or its first event, to the assistant's first sound, in ms.
    """

    result: Result
    source: Literal["elevenlabs", "pipecat"] | None
    user: SideSpeech
    assistant: SideSpeech
    overlap_ms: Result
    dead_air_ms: Result
    first_word_ms: Result


class WordErrorRate(ScoreModel):
    """EVA's `stt_wer`: word error rate of the agent's transcript against the text that a simulated caller meant to say.

    Both texts are brought to one spelling first. For a call, it is all errors divided by all reference words. Lower is better,
    and it can exceed 1.

    Attributes:
        substitutions: Words transcribed as other words.
        deletions: Words missing in the transcript.
        insertions: Words in the transcript that the caller did not mean to say.
        reference_words: Words that the caller meant to say, in turns with a transcript.
        turns: Number of those turns.
        normalizer: The language whose rules brought the texts to one spelling: `en`, `fr-CA`. `basic` where there are none: then
            numbers, fillers and abbreviations stay as they were said. None in records of older versions.
    """

    result: Result
    substitutions: int
    deletions: int
    insertions: int
    reference_words: int
    turns: int
    normalizer: str | None = None


class SideDisagreement(ScoreModel):
    """Differences between one side's intended words and the other side's transcript of them; lower is better.

    Attributes:
        result: `differences` divided by `words`; it can exceed 1.
        differences: Words that are different, missing or additional, after both texts are brought to one spelling.
        words: Words that the side meant to say.
        turns: Number of turns with both transcripts.
    """

    result: Result
    differences: int = 0
    words: int = 0
    turns: int = 0


class TranscriptDisagreement(ScoreModel):
    """Differences between the two transcripts of each side's speech; `result` covers both sides together.

    If the spoken words themselves are not known, this is the nearest value to a word error rate. It does not show which of the
    two transcripts is wrong.
    """

    result: Result
    user: SideDisagreement
    assistant: SideDisagreement


class SideTalk(ScoreModel):
    """Speech of one side in a turn.

    Attributes:
        speech_ms: Time in which it was heard, in ms. Sounds that have not ended do not count yet.
        words: Number of its words; None if its text is not known. Of an answer that was cut off, those that were heard.
    """

    speech_ms: Result
    words: int | None = None


class TurnTalk(ScoreModel):
    """Speech time and words of both sides in a turn.

    Attributes:
        user: Of the caller.
        assistant: Of the agent.
        written_words: Number of words of the whole answer, as the agent wrote it, where the caller cut it off: the words of
            `assistant` are those of it that were heard. None otherwise, and where no source has the whole answer.
    """

    user: SideTalk
    assistant: SideTalk
    written_words: int | None = None


# The two records of `scores` that hold measured values: a row for each turn, and one for the whole call.

TurnValueName = Literal[
    "voice_to_voice_latency_ms",
    "turn_taking",
    "estimate_error_ms",
    "conciseness",
    "speakability",
    "transcription_accuracy_key_entities",
]
"""Values of a turn that metrics count or observe once. `CallValues.unscored_turns` counts the turns without them."""

STAGE_PREFIX: Final = "stages."
"""Prefix of the name of a stage in `first_known`."""


class TextRating(ScoreModel):
    """A judge's rating of a text by one of EVA's metrics; `result` is from 0 to 1.

    Conciseness, speakability and the accuracy of key entities rate a turn, the greeting included. Faithfulness and conversation
    progression rate the call up to `through_turn`: for faithfulness the lowest rating so far counts, for conversation progression
    the newest. The fidelity of a simulated caller rates the call that is over. `rating` and `dimensions` are on EVA's scale; for
    key entities, `rating` is how many were understood. `not_applicable` says why a dimension was not judged, by its name.
    """

    result: Result
    through_turn: int
    rating: int | None = None
    dimensions: dict[str, int] = Field(default_factory=dict)
    not_applicable: dict[str, str] = Field(default_factory=dict)
    failure_modes: tuple[str, ...] = ()


class ToolDifference(ScoreModel):
    """A part of a tool call that is not as the goal set expects it. Texts are JSON without personal data, cut to 200 characters.

    Attributes:
        parameter: Name of the argument; None for the output.
        expected: The expected value, or the condition in plain words that a judge found untrue.
        seen: The value; None if the call has no such argument.
    """

    parameter: str | None
    expected: str
    seen: str | None


class ExpectedToolCallScore(ScoreModel):
    """Whether an expected tool call of the goal set was made as expected: 1 or 0. One that names no turn is not applicable.

    If several calls of the tool were made in its turn, `differences` are those of the call with the fewest.

    Attributes:
        index: Its place in the goal set, from 0.
        tool: Name of the tool.
        turn: The turn in which it is expected, counted as in all records: turn 0 is the greeting, so it is the goal set's index
            plus 1. None if the goal set names none.
        missed: What is not as expected: `name` if the tool was not called in that turn, otherwise `arguments`, `output` or both.
        differences: What was expected and what was seen, at most 5.
        called_in_turns: Other turns in which a call was missed but the tool was called, at most 10.
    """

    index: int
    tool: str
    turn: int | None
    result: Result
    missed: tuple[Literal["name", "arguments", "output"], ...] = ()
    differences: tuple[ToolDifference, ...] = ()
    called_in_turns: tuple[int, ...] = ()


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
        transcription_accuracy_key_entities: A judge's rating: the share of the names, numbers and other key entities of a simulated
            caller that the agent's transcript has right.
        first_known: The values that no earlier revision had, which histograms observe now: names of `TurnValueName`, and
            names of stages behind `stages.`.
        is_withdrawn: Whether there is no such turn.
        outcome: How the turn ended; None while the call is in it, for the greeting, and where lost events hide it.
        after_tools_ms: Where the first sound of the answer was a filler ("One moment, please"): from the end of the user's speech
            to the first sound after the turn's tools had answered, in ms. None where no sound came before the tools were done.
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
    transcription_accuracy_key_entities: TextRating | None = None
    first_known: tuple[str, ...] = ()
    is_withdrawn: bool = False
    outcome: TurnOutcome | None = None
    after_tools_ms: float | None = None


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


class ServiceUse(ScoreModel):
    """What one model of the agent used in a call, and what it cost.

    Attributes:
        kind: The kind of service.
        provider: Name of the provider; None if no source has it.
        model: Name of the model; None if no source has it.
        input_tokens: Tokens that went into the model and neither came from a cache nor went into one.
        cached_tokens: Tokens that came from a cache.
        cache_write_tokens: Tokens that went into a cache.
        output_tokens: Tokens of its answers.
        characters: Characters that were spoken.
        audio_seconds: Seconds of sound that were transcribed.
        cost: In US dollars, by the price table, otherwise by the record of an ElevenLabs agent; None without a price.
    """

    kind: ServiceKind
    provider: str | None = None
    model: str | None = None
    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    characters: int = 0
    audio_seconds: float = 0.0
    cost: float | None = None


class FrameworkNote(ScoreModel):
    """Something that the agent's framework tells of a call, and that no sound shows.

    Attributes:
        what: An interruption with its cause, what looked like one and was none, or that another agent took over.
        at_ms: When, on the call's own clock.
        turn: The turn in which it was; None before the first.
        cause: Why the answer was cut off.
        is_resumed: Whether the agent went on speaking after what was no interruption.
        from_agent: The agent before the handoff; None if it is not told.
        to_agent: The agent after it.
    """

    what: Literal["interruption", "false_interruption", "handoff"]
    at_ms: int
    turn: int | None = None
    cause: InterruptionCause | None = None
    is_resumed: bool | None = None
    from_agent: str | None = None
    to_agent: str | None = None

    @property
    def in_words(self) -> str:
        """What happened, after the number of the turn."""
        match self.what:
            case "handoff":
                return f"{self.from_agent or 'an agent'} handed the call to {self.to_agent or 'another one'}"
            case "false_interruption":
                went_on = {None: "", True: ": the agent went on", False: ": the agent did not go on"}[self.is_resumed]
                return f"what looked like an interruption was none{went_on}"
            case _:
                cause = InterruptionCause.UNKNOWN if self.cause is None else self.cause
                return f"the answer was cut off: {_CAUSES[cause]}"


_CAUSES: Final = {
    InterruptionCause.USER_SPEECH: "the user began to speak",
    InterruptionCause.USER_TURN: "the user's turn was over",
    InterruptionCause.PROGRAM: "the agent's own code did it",
    InterruptionCause.UNKNOWN: "for an unknown cause",
}


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
        expected_tool_calls: Each of these calls, and why it counts as made or not; at the close all that the goal set expects.
            Left out if it expects none.
        success_final_turn: 1 when every subgoal was reached by the last turn that counts, otherwise 0; at the close.
        faithfulness: A judge's rating.
        conversation_progression: A judge's rating.
        user_behavioral_fidelity: A judge's rating: 1 if a simulated caller did what its instruction says, otherwise 0.
        latencies: By anchor, the final latencies of the turns that have one; at the close. The turns without one are in
            `unscored_turns`.
        unscored_turns: By value, the number of turns in which it is unknown, by reason; at the close.
        unscored_subgoals: Number of subgoals that could not be judged, by reason; at the close.
        uses: What the models of the agent used, by kind and model; at the close. Left out if no source tells it.
        cost: Sum of their costs in US dollars, or why it is not known; at the close, where there are uses.
        notes: What the agent's framework tells beside its events, in the order of time, at most 100; at the close. Left out without any.
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
    expected_tool_calls: tuple[ExpectedToolCallScore, ...] | None = Field(None, exclude_if=is_none)
    success_final_turn: Result | None = None
    faithfulness: TextRating | None = None
    conversation_progression: TextRating | None = None
    user_behavioral_fidelity: TextRating | None = None
    latencies: dict[Anchor, FinalLatencies] = Field(default_factory=dict)
    unscored_turns: dict[TurnValueName, dict[UnscoredReason, int]] = Field(default_factory=dict)
    unscored_subgoals: dict[UnscoredReason, int] = Field(default_factory=dict)
    uses: tuple[ServiceUse, ...] | None = Field(None, exclude_if=is_none)
    cost: Result | None = Field(None, exclude_if=is_none)
    notes: tuple[FrameworkNote, ...] | None = Field(None, exclude_if=is_none)


TURN_VALUE_NAMES: Final[tuple[TurnValueName, ...]] = get_args(TurnValueName)


# The records of the `scores` topic: scores of a call, and facts about it.

__all__ = [
    "SCHEMA_VERSION",
    "SCORE_RECORD",
    "STAGE_PREFIX",
    "TURN_VALUE_NAMES",
    "WITHDRAWN",
    "AgentErrorsFact",
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
    "ExpectedToolCallScore",
    "FinalLatencies",
    "FrameworkNote",
    "GoalsFact",
    "InterruptionFact",
    "NotApplicable",
    "ProgressScore",
    "Result",
    "ScoreModel",
    "ScoreRecord",
    "Scored",
    "ServiceUse",
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
    "ToolDifference",
    "ToolOutcome",
    "ToolUseFact",
    "TranscriptDisagreement",
    "TurnOutcome",
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
    """The first record of a call. A revision has new labels of the call, the agent's version, or the span that the call is in
    (`traceparent`), if the call says them.
    """

    kind: Literal["fact"] = "fact"
    name: Literal["call_started"] = "call_started"
    version: str | None = Field(None, exclude_if=is_none)
    traceparent: str | None = Field(None, exclude_if=is_none)


class InterruptionFact(CallRecord):
    """One side started to speak over the other in this turn. Withdrawn when later events show that it did not."""

    kind: Literal["fact"] = "fact"
    name: Literal["interruption_by_user", "interruption_by_assistant"]
    is_withdrawn: bool = False

    @property
    def by(self) -> Speaker:
        """The side that interrupted."""
        return Speaker.USER if self.name == "interruption_by_user" else Speaker.ASSISTANT

    @property
    def in_words(self) -> str:
        """What happened, after the number of the turn. The turn of a user who interrupts is the one that begins with it; the answer that
        was cut off is of the turn before.
        """
        return "began by interrupting the agent" if self.by is Speaker.USER else "interrupted by the agent"


class DeadAirFact(CallRecord):
    """Nobody spoke and no tool ran for longer than the threshold after the user's audio ended. Never withdrawn."""

    kind: Literal["fact"] = "fact"
    name: Literal["dead_air"] = "dead_air"
    silent_since_ms: int
    threshold_ms: int


class AgentErrorsFact(CallRecord):
    """The agent reported errors in this call, also ones from which it recovered: a processor of a pipecat bot, or ElevenLabs.

    Published at the first, then whenever their number has doubled or the last record of them is 10 s old, and at the close.

    Attributes:
        errors: How many so far.
        last_ms: The time of the newest, on the call's own clock.
        component: The service of the newest, if the bot names one of these kinds.
    """

    kind: Literal["fact"] = "fact"
    name: Literal["agent_errors"] = "agent_errors"
    errors: int
    last_ms: int
    component: ServiceKind | None = None


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
    """The call is over. `through` is the offset in `events` of the last record that was evaluated; later ones are only counted.
    `began_at_ms` and `ended_at_ms` are the times of its first and its last event, in ms since 1970; None for a call without a time.
    """

    kind: Literal["closed"] = "closed"
    name: Literal["closed"] = "closed"
    reason: CloseReason
    ended_reason: str | None
    turns: int
    events: int
    through: dict[str, int]
    began_at_ms: int | None = None
    ended_at_ms: int | None = None


AnyScoreRecord = (
    VoiceToVoiceLatency
    | CallStartedFact
    | InterruptionFact
    | DeadAirFact
    | ToolUseFact
    | AgentErrorsFact
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
