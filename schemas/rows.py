"""The tables: what callgauge says of a turn and of a call, each as one row, and what was said in a
turn.

A row is the whole as it is now. Of the same turn, or of the same call, a row replaces those in
front of it, so no reader has to fold anything: the newest row is all there is to know. A measure of
the engine is a part of the row itself. Times are ms since 1970 unless they say otherwise, and a
field with its default is not on the wire. Rows are not changed by those who read them. Parts of the
row of a turn are not tracked by the garbage collector, because none leads back to itself.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, structs

from schemas.closed_sets import (
    Anchor,
    CallOutcome,
    CloseReason,
    InterruptionCause,
    PipelineType,
    Speaker,
    ToolOutcome,
    UnscoredReason,
)
from schemas.scores.latency_stages import ServiceKind, Stage, StageSource
from schemas.topics import OWN_TOPIC, SCORES_TOPIC, WORDS_TOPIC

MAX_ROW_BYTES: Final = 131_072
"""Largest row. A larger one loses texts and lists, and says which: the process that writes it goes
on.
"""
MAX_TEXT_BYTES: Final = 8_192
"""Largest text of one side in a row of `words`."""
MAX_TOOL_TEXT_BYTES: Final = 2_048
"""Largest arguments and largest answer of a tool in a row of `words`."""
MAX_TOOLS: Final = 50
"""Most tools of a turn in its rows: the first ones."""
MAX_SOUNDS: Final = 50
"""Most stretches of speech of one side of a turn in its row: the first ones."""
MAX_SILENCES: Final = 50
"""Most silences of a turn in its row: the newest ones."""
MAX_LISTED_TURNS: Final = 100
"""Most numbers of turns in a list of a row of a call: the newest ones."""
MAX_LISTED_TOOLS: Final = 50
"""Most names of tools in a row of a call, and of those that failed: the first ones in the order of
the alphabet.
"""


# A value: a number, or why there is none.


class Unscored(Struct, frozen=True, gc=False, tag_field="outcome", tag="unscored"):
    """The value is not known, for this reason."""

    reason: UnscoredReason


NO_TURN_JUDGED: Final = Unscored(UnscoredReason.NO_TURN_JUDGED)
"""The value of a goal before a turn was judged."""


class NotApplicable(Struct, frozen=True, gc=False, tag_field="outcome", tag="not_applicable"):
    """This turn or call cannot have the value, for this reason."""

    reason: str


Value = float | Unscored | NotApplicable
"""A value of a row. One that is known is the bare number."""


def number(value: Value | None) -> float | None:
    """The value if it is known.

    Example:
        >>> number(0.5), number(Unscored(UnscoredReason.NO_SUBGOALS)), number(None)
        (0.5, None, None)
    """
    return None if value is None or isinstance(value, (Unscored, NotApplicable)) else value


class Labels(Struct, frozen=True, omit_defaults=True):
    """Whose call it is.

    Attributes:
        agent: Name of the agent; `unknown` until a `call_started` says it.
        version: Version of the agent.
        tenant: Whose agent it is; `unknown` if no event says it.
        environment: Where it runs, for example `production`; `unknown` if no event says it.
        pipeline_type: How the agent is built.
    """

    agent: str = "unknown"
    version: str | None = None
    tenant: str = "unknown"
    environment: str = "unknown"
    pipeline_type: PipelineType = PipelineType.CASCADE


# Parts of a row of a turn.

TurnStatus = Literal["open", "provisional", "settled", "withdrawn"]
"""How far a turn can still change.

- `open`: it is the newest turn
- `provisional`: the call has left it
- `settled`: every stream has moved past it
- `withdrawn`: later events have shown that there is no such turn

What a row says is final once the row of its call is closed.
"""

TurnOutcome = Literal["answered", "interrupted", "unanswered", "abandoned", "failed"]
"""How a turn of the caller ended.

- `answered`: the assistant answered, and the caller let it finish
- `interrupted`: the assistant answered, and the caller spoke over it
- `unanswered`: no answer, although the call went on
- `abandoned`: no answer, and the call ended: the caller hung up, or said goodbye. Where the events
  of a call only stopped, it is not known, unless the caller asked again in vain
- `failed`: no answer, and the agent reported an error in the turn
"""

WaitSource = Literal["elevenlabs", "pipecat", "audit"]


class Sound(Struct, frozen=True, gc=False, array_like=True):
    """Somebody is heard, from and until a time on the call's own clock. Written as a list of one or
    two numbers.

    Attributes:
        start_ms: When it began.
        end_ms: When it ended; None while it goes on.
    """

    start_ms: int
    end_ms: int | None = None


class StageLatency(Struct, frozen=True, gc=False, omit_defaults=True):
    """Latency of one stage of a turn.

    Attributes:
        stage: The stage.
        latency_ms: Latency by the best source that measured it.
        source: That source.
        anchor: How the end of the user's speech is known, for a stage that begins there.
        model: Name of the model, if the source reports it.
        others_ms: Latency of the same stage by other sources.
        is_disputed: Whether another source differs from `latency_ms` by more than the tolerance.
    """

    stage: Stage
    latency_ms: float
    source: StageSource
    anchor: Anchor | None = None
    model: str | None = None
    others_ms: dict[StageSource, float] = {}
    is_disputed: bool = False


class Silence(Struct, frozen=True, omit_defaults=True):
    """Dead air: after the caller had finished, nobody spoke and no tool ran for longer than the
    threshold. It is never taken back.

    Attributes:
        number: Its number in the call, from 1.
        since_ms: When it began, on the call's own clock.
        known_ms: The broker's time at which it was known.
        threshold_ms: From when on a silence is dead air.
        until_ms: When the assistant was heard, on the call's own clock; None before. Once it is
            known it does not move.
    """

    number: int
    since_ms: int
    known_ms: int
    threshold_ms: int
    until_ms: int | None = None


class ToolUse(Struct, frozen=True, gc=False, omit_defaults=True):
    """A use of a tool.

    Attributes:
        index: Its number in the turn, from 0.
        tool: Name of the tool.
        outcome: How it ended.
        duration_ms: From the call of the tool to its answer, as a source reports it.
        called_ms: When it was called, on the call's own clock; None where no source says it.
    """

    index: int
    tool: str
    outcome: ToolOutcome | None = None
    duration_ms: int | None = None
    called_ms: int | None = None


class TurnTaking(Struct, frozen=True, gc=False, omit_defaults=True):
    """How well a turn was timed, by EVA's `turn_taking`: the fields after `result` are the
    evidence, set if they counted.

    Attributes:
        result: From 0 to 1. Only with the anchor `audio` it is EVA's own.
        reason: What decided it.
        has_tool_call: Whether a tool was called in the turn, which allows for a later answer.
        latency_ms: From the end of the user's speech to the answer.
        overlap_ms: Time in which both spoke.
        interrupt_segments: Stretches of the assistant's speech in which both spoke.
        post_interrupt_latency_ms: From the end of the overlap to the answer.
        yield_ms: How long the assistant kept speaking after the user had begun.
        anchor: How the end of the user's speech is known.
    """

    result: Value
    reason: (
        Literal[
            "latency", "agent_interrupt", "user_interrupt", "dual_interrupt", "turn_end_fallback"
        ]
        | None
    ) = None
    has_tool_call: bool = False
    latency_ms: float | None = None
    overlap_ms: float | None = None
    interrupt_segments: int | None = None
    post_interrupt_latency_ms: float | None = None
    yield_ms: float | None = None
    anchor: Anchor | None = None


class SideTalk(Struct, frozen=True, gc=False, omit_defaults=True):
    """Speech of one side in a turn.

    Attributes:
        speech_ms: Time in which it was heard. A sound that has not ended does not count yet.
        words: Number of its words; of an answer that was cut off, those that were heard. None if
            its text is not known.
    """

    speech_ms: Value
    words: int | None = None


class TurnTalk(Struct, frozen=True, gc=False, omit_defaults=True):
    """Speech time and words of both sides in a turn.

    Attributes:
        user: Of the caller.
        assistant: Of the agent.
        written_words: Words of the whole answer, as the agent wrote it, where the caller cut it off
            and a source has it.
    """

    user: SideTalk
    assistant: SideTalk
    written_words: int | None = None


class WordErrors(Struct, frozen=True, gc=False, omit_defaults=True):
    """EVA's `stt_wer`: word error rate of the agent's transcript against the text that a simulated
    caller meant to say.

    Attributes:
        result: All errors divided by all reference words; lower is better, and it can exceed 1.
        substitutions: Words transcribed as other words.
        deletions: Words missing in the transcript.
        insertions: Words in the transcript that the caller did not mean to say.
        reference_words: Words that the caller meant to say, in turns with a transcript.
        turns: Number of those turns.
        normalizer: Language whose rules brought both texts to one spelling; `basic` where there are
            none.
    """

    result: Value
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    reference_words: int = 0
    turns: int = 0
    normalizer: str | None = None


class Disagreement(Struct, frozen=True, gc=False, omit_defaults=True):
    """Differences between one side's intended words and the other side's transcript of them.

    Attributes:
        result: `differences` divided by `words`; lower is better, and it can exceed 1.
        differences: Words that are different, missing or additional.
        words: Words that the side meant to say.
        turns: Turns with both transcripts.
    """

    result: Value
    differences: int = 0
    words: int = 0
    turns: int = 0


class EstimateError(Struct, frozen=True):
    """Error of the live estimate of a turn's wait, against the record of the provider that came
    later.

    Attributes:
        error_ms: Estimate minus record: negative when it was too short.
        estimated_ms: The estimate.
        recorded_ms: The record.
    """

    error_ms: float
    estimated_ms: float
    recorded_ms: float


class Rating(Struct, frozen=True, omit_defaults=True):
    """A judge's rating of a text by one of EVA's metrics.

    Attributes:
        result: From 0 to 1.
        through_turn: The last turn that was rated.
        rating: On EVA's scale; for key entities how many were understood.
        dimensions: Ratings of its dimensions, on EVA's scale.
        not_applicable: Why a dimension was not judged.
        failure_modes: What was found wrong.
    """

    result: Value
    through_turn: int
    rating: int | None = None
    dimensions: dict[str, int] = {}
    not_applicable: dict[str, str] = {}
    failure_modes: tuple[str, ...] = ()


class Progress(Struct, frozen=True, omit_defaults=True):
    """Progress of a call towards its goals after a turn, as agent-inspect measures it.

    Attributes:
        result: The share of the subgoals that are reached.
        auc: Area under the progress curve, with the last value repeated up to the set's
            `max_turns`.
        auc_if_ended_now: Area of the turns so far.
        ppt: Progress divided by the turn that first had it.
        success: 1 if every subgoal is reached, otherwise 0.
        reached: Number of subgoals that are reached.
        missing: Number of subgoals without a verdict.
        subgoals: Number of subgoals.
    """

    result: Value
    auc: Value
    auc_if_ended_now: Value
    ppt: Value
    success: Value
    reached: int = 0
    missing: int = 0
    subgoals: int = 0


# Parts of a row of a call.


class Answer(Struct, frozen=True, omit_defaults=True):
    """The newest wait that has ended.

    Attributes:
        turn: Its turn.
        wait_ms: How long it took; negative when the assistant began before the user had ended.
        anchor: How the end of the user's speech is known.
        slowest_stage: The stage of the answer that took longest, once the call has left the turn.
        slowest_stage_ms: How long that stage took.
    """

    turn: int
    wait_ms: float
    anchor: Anchor | None = None
    slowest_stage: Stage | None = None
    slowest_stage_ms: float | None = None


class Waiting(Struct, frozen=True):
    """A caller who has finished, has no answer, and whose silence is dead air. In a call that is
    over it is how the call ended.

    Attributes:
        turn: The turn without an answer.
        since_ms: The broker's time from which nobody spoke; of several silences in one wait that of
            the first.
        silences: How many of its silences became dead air: the caller spoke again after each but
            the last.
    """

    turn: int
    since_ms: int
    silences: int


class Errors(Struct, frozen=True, omit_defaults=True):
    """The errors that the agent reported, also those from which it recovered.

    Attributes:
        number: How many.
        last_ms: The time of the newest, on the call's own clock.
        known_ms: The broker's time at which it was known.
        component: The service of the newest, if the bot names one.
    """

    number: int
    last_ms: int
    known_ms: int
    component: ServiceKind | None = None


class SubgoalResult(Struct, frozen=True, omit_defaults=True):
    """A subgoal of the call; its place in the list is that in the goal set.

    Attributes:
        result: 1 or 0.
        reached_turn: The turn that reached it.
        votes_complete: Votes of the judge that it is reached, in the verdict that found it so, or
            in the last one.
        votes_incomplete: Votes of the judge that it is not.
        trials: The judge's answers, if they are to be published.
    """

    result: Value
    reached_turn: int | None = None
    votes_complete: int = 0
    votes_incomplete: int = 0
    trials: tuple[Any, ...] = ()


class Stall(Struct, frozen=True):
    """The call reached no further subgoal for too many turns, or for too long.

    Attributes:
        since_turn: The turn of the last progress; 0 when there was none.
        by: Whether turns or seconds showed it.
    """

    since_turn: int
    by: Literal["turns", "seconds"]


class ToolDifference(Struct, frozen=True):
    """A part of a tool call that is not as the goal set expects it. Texts are JSON without personal
    data, cut to 200 characters.

    Attributes:
        parameter: Name of the argument; None for the output.
        expected: The expected value, or the condition in plain words that a judge found untrue.
        seen: The value; None if the call has no such argument.
    """

    parameter: str | None
    expected: str
    seen: str | None


class ExpectedTool(Struct, frozen=True, omit_defaults=True):
    """Whether an expected tool call of the goal set was made as expected.

    Attributes:
        index: Its place in the goal set.
        tool: Name of the tool.
        result: 1 or 0; one that names no turn is not applicable.
        turn: The turn in which it is expected.
        missed: What is not as expected.
        differences: What was expected and what was seen, at most 5.
        called_in_turns: Other turns in which the tool was called, if the call was missed; at most
            10.
    """

    index: int
    tool: str
    result: Value
    turn: int | None = None
    missed: tuple[Literal["name", "arguments", "output"], ...] = ()
    differences: tuple[ToolDifference, ...] = ()
    called_in_turns: tuple[int, ...] = ()


class Goals(Struct, frozen=True, omit_defaults=True):
    """Progress of the call towards its goals.

    Attributes:
        goal_set: Name of the goal set.
        digest: Which version of the set it is. The set itself is in a row `goals` of the call.
        subgoals: The subgoals, in the order of the set.
        by_judge: How many of them a judge decides; code decides the others.
        judged_turn: The newest turn whose progress is known.
        progress: Progress after that turn.
        stalls: When nothing was reached for too long.
        is_stalled: Whether that is so now.
        tool_correctness: Share of the expected tool calls that were made as expected, among those
            due by now.
        expected_tools: Each of these calls, and why it counts as made or not.
        success_final_turn: 1 if every subgoal was reached by the last turn that counts, otherwise
            0; once the call is closed.
        unscored_subgoals: Number of subgoals that could not be judged, by reason; once the call is
            closed.
    """

    goal_set: str
    digest: str
    subgoals: tuple[SubgoalResult, ...] = ()
    by_judge: int = 0
    judged_turn: int | None = None
    progress: Progress | None = None
    stalls: tuple[Stall, ...] = ()
    is_stalled: bool = False
    tool_correctness: Value | None = None
    expected_tools: tuple[ExpectedTool, ...] = ()
    success_final_turn: Value | None = None
    unscored_subgoals: dict[UnscoredReason, int] = {}


class SideSpeech(Struct, frozen=True, omit_defaults=True):
    """Speech of one side in a call.

    Attributes:
        speech_ms: Time in which it was heard.
        longest_monologue_ms: Its longest stretch of speech without a word of the other side and
            without a pause of 3 s.
        words_per_minute: Its pace in the turns with known words.
        repeated_questions: Questions that it had asked in an earlier turn in the same words.
        repeated_in_turns: The turns with repeated questions.
    """

    speech_ms: Value
    longest_monologue_ms: Value
    words_per_minute: Value
    repeated_questions: Value
    repeated_in_turns: tuple[int, ...] = ()


class Speech(Struct, frozen=True, omit_defaults=True):
    """Speech of both sides in a call.

    Attributes:
        result: The assistant's share of the speech time of both.
        user: Of the caller.
        assistant: Of the agent.
        overlap_ms: Time in which both were heard at once.
        dead_air_ms: Time in which the caller waited, with nobody speaking and no tool running. Only
            silences of 3 s or longer count, each with its whole length.
        first_word_ms: From the start of the call, or its first event, to the assistant's first
            sound.
        source: The stream of the speech events; None without any.
    """

    result: Value
    user: SideSpeech
    assistant: SideSpeech
    overlap_ms: Value
    dead_air_ms: Value
    first_word_ms: Value
    source: Literal["elevenlabs", "pipecat"] | None = None


class Eva(Struct, frozen=True, omit_defaults=True):
    """One of EVA's metrics of the call so far, or of the whole call.

    Attributes:
        result: On its own scale, from 0 to 1 and higher is better; for `eva_response_speed` the
            mean wait for an answer in seconds.
        normalized: From 0 to 1; None if EVA does not define it.
        sub_metrics: Parts of the score under EVA's names; None for values that EVA leaves open.
        anchor: The worst anchor of the turns behind it; None if it does not depend on sound.
    """

    result: Value
    normalized: float | None = None
    sub_metrics: dict[str, float | None] = {}
    anchor: Anchor | None = None


class ServiceUse(Struct, frozen=True, omit_defaults=True):
    """What one model of the agent used in a call.

    Attributes:
        kind: The kind of service.
        provider: Name of the provider.
        model: Name of the model.
        input_tokens: Tokens that went into the model and neither came from a cache nor went into
            one.
        cached_tokens: Tokens that came from a cache.
        cache_write_tokens: Tokens that went into a cache.
        output_tokens: Tokens of its answers.
        characters: Characters that were spoken.
        audio_seconds: Seconds of sound that were transcribed.
        cost: In US dollars; None without a price.
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


class Note(Struct, frozen=True, omit_defaults=True):
    """Something that the agent's framework tells of a call, and that no sound shows.

    Attributes:
        what: An interruption with its cause, what looked like one and was none, or that another
            agent took over.
        at_ms: When, on the call's own clock.
        turn: The turn in which it was; None before the first.
        cause: Why the answer was cut off.
        is_resumed: Whether the agent went on speaking after what was no interruption.
        from_agent: The agent before the handoff.
        to_agent: The agent after it.
    """

    what: Literal["interruption", "false_interruption", "handoff"]
    at_ms: int
    turn: int | None = None
    cause: InterruptionCause | None = None
    is_resumed: bool | None = None
    from_agent: str | None = None
    to_agent: str | None = None


class FinalWaits(Struct, frozen=True):
    """The final waits with one anchor of the turns of a call; the greeting has none.

    Attributes:
        measured: Turns with a wait that is not negative.
        measured_ms: Sum of these waits.
        overlapped: Turns with a negative wait: the assistant began before the user had ended.
    """

    measured: int
    measured_ms: float
    overlapped: int


class Agreement(Struct, frozen=True):
    """Agreement of the sources of a stage over the turns of a call.

    Attributes:
        compared: Turns in which at least two sources measured the stage.
        disputed: Turns of these in which a source differs from the best one by more than the
            tolerance.
    """

    compared: int
    disputed: int


# The rows.


class TurnRow(Struct, omit_defaults=True, kw_only=True, tag_field="row", tag="turn"):
    """One turn of a call, as it is now. Published when something happens in it, when the call
    leaves it, and when later events change it.

    Attributes:
        conversation_id: The call.
        turn: Its number; 0 is the greeting.
        revision: Twice the place in `events` of the record or tick that decided it; one less where
            another version says it again.
        known_ms: The broker's time of that record, or of the end of the silence that decided it.
        labels: Whose call it is.
        status: How far it can still change.
        news: What counts from this revision on, and is never taken back; see below.
        user_sounds: When the caller was heard.
        assistant_sounds: When the agent was heard.
        wait_ms: From the end of the caller's last sound to the start of the answer; negative where
            the answer came first.
        anchor: How the end of the caller's sound is known.
        wait_source: The stream with the events of the wait.
        after_tools_ms: Where the answer began with a filler ("One moment, please"): from the end of
            the caller's sound to the first sound after the turn's tools had answered.
        stages: Latency of each stage of the answer that was measured.
        interruptions: Who began to speak over the other.
        dead_air: Its silences that became dead air.
        tools: Uses of tools, in the order of their calls.
        tools_left_out: How many uses of tools there are beyond those.
        outcome: How it ended; None while the call is in it, for the greeting, and where lost events
            hide it.
        turn_taking: EVA's score of its timing.
        talk: Speech time and words of each side.
        stt_wer: Word error rate of the agent's transcript; None without both texts.
        user_disagreement: Differences between the two transcripts of the caller's speech.
        assistant_disagreement: Differences between the two transcripts of the agent's speech.
        estimate_error: Error of the live estimate of the wait, of an agent whose provider has a
            record.
        conciseness: A judge's rating.
        speakability: A judge's rating.
        transcription_accuracy_key_entities: A judge's rating: the share of the names, numbers and
            other key entities of a simulated caller that the agent's transcript has right.
        progress: Progress after this turn; None before it is judged, and without goals.
        left_out: Fields that are missing because the row was too large.
    """

    conversation_id: str
    turn: int
    revision: int = 0
    known_ms: int = 0
    labels: Labels = Labels()
    status: TurnStatus = "open"
    news: tuple[str, ...] = ()
    user_sounds: tuple[Sound, ...] = ()
    assistant_sounds: tuple[Sound, ...] = ()
    wait_ms: Value | None = None
    anchor: Anchor | None = None
    wait_source: WaitSource | None = None
    after_tools_ms: float | None = None
    stages: tuple[StageLatency, ...] = ()
    interruptions: tuple[Speaker, ...] = ()
    dead_air: tuple[Silence, ...] = ()
    tools: tuple[ToolUse, ...] = ()
    tools_left_out: int = 0
    outcome: TurnOutcome | None = None
    turn_taking: TurnTaking | None = None
    talk: TurnTalk | None = None
    stt_wer: WordErrors | None = None
    user_disagreement: Disagreement | None = None
    assistant_disagreement: Disagreement | None = None
    estimate_error: EstimateError | None = None
    conciseness: Rating | None = None
    speakability: Rating | None = None
    transcription_accuracy_key_entities: Rating | None = None
    progress: Progress | None = None
    left_out: tuple[str, ...] = ()


class CallRow(Struct, omit_defaults=True, kw_only=True, tag_field="row", tag="call"):
    """One call, as it is now. Published when something changes, and once a minute while it runs.
    The closed row is its last one.

    Attributes:
        conversation_id: The call.
        revision: As in the row of a turn.
        known_ms: As in the row of a turn.
        labels: Whose call it is.
        state: `running`; `ended`: its end was announced, and late events can still change it;
            `over`: only verdicts can; `closed`: nothing can.
        news: What counts from this revision on, and is never taken back; see below.
        code_version: Version of callgauge.
        partition: The partition of `events` and `scores` that has the call.
        first_place: Offset in `events` of its first record.
        last_place: Offset in `events` of the last record that was folded.
        first_known_ms: The broker's time of its first record.
        last_known_ms: The broker's time of its last event so far.
        began_ms: The time of its first event, on its own clock; None for a call without a time.
        ended_ms: The time of its last event, on its own clock; once it is closed.
        traceparent: The span that the call is in, if the call says it.
        recording_url: Where its sound is kept, as it came: never redacted, with a secret in it if
            it is a signed address.
        recording_starts_ms: When that recording begins, on the call's own clock; None is at
            `began_ms`.
        turn: The newest turn.
        turns: Number of turns.
        events: Number of events.
        close_reason: Why it was closed.
        ended_reason: Why it ended, in the words of its producer.
        outcome: How it ended.
        in_vain_ms: How long its caller had waited when it ended, of one who got no answer any more.
        answer: The newest wait that has ended.
        waiting: A caller without an answer; in a call that is over, how it ended.
        p50_ms: Median of its waits, of two in the middle the shorter one. Negative ones are left
            out.
        p95_ms: The wait that 95 % of its waits do not exceed.
        longest_wait_ms: Its longest wait.
        unanswered: Turns without an answer.
        user_interruptions: How often the caller spoke over the agent.
        assistant_interruptions: How often the agent spoke over the caller.
        interrupted_turns: The turns with an interruption, one entry for each.
        dead_airs: How many silences became dead air.
        dead_air_turns: The turns with dead air, one entry for each.
        tool_calls: Uses of tools that have an outcome.
        used_tools: Names of the tools that were called, in the order of the alphabet.
        failed_tool_calls: Those that failed, or had no answer by the end.
        failed_tools: Names of the tools that failed, in the order of the alphabet.
        failing_tools: By tool, how many of its newest uses in a row failed; a tool that worked at
            last is not in it.
        errors: Errors that the agent reported.
        goals: Progress towards its goals; None without goals.
        through_turn: The last turn behind the values that follow.
        speech: Speech of both sides.
        stt_wer: EVA's word error rate over all turns.
        user_disagreement: Differences between the two transcripts of the caller's speech, over all
            turns.
        assistant_disagreement: Differences between the two transcripts of the agent's speech, over
            all turns.
        transcript_disagreement: Both sides together.
        eva: EVA's metrics by name.
        stages: By stage, in how many turns several sources measured it and disagreed; once it is
            closed.
        faithfulness: A judge's rating: the lowest so far.
        conversation_progression: A judge's rating: the newest.
        user_behavioral_fidelity: A judge's rating: 1 if a simulated caller did what its instruction
            says, otherwise 0.
        waits: By anchor, the final waits; once it is closed.
        unscored_turns: By value, in how many turns it is unknown, by reason; once it is closed.
        uses: What the models of the agent used; once it is closed.
        cost_dollars: Sum of their costs, or why it is not known; once it is closed, where there are
            uses.
        notes: What the agent's framework tells beside its events, at most 100; once it is closed.
        left_out: Fields that are missing because the row was too large.
    """

    conversation_id: str
    revision: int = 0
    known_ms: int = 0
    labels: Labels = Labels()
    state: Literal["running", "ended", "over", "closed"] = "running"
    news: tuple[str, ...] = ()
    code_version: str = ""
    partition: int = 0
    first_place: int = 0
    last_place: int = 0
    first_known_ms: int = 0
    last_known_ms: int = 0
    began_ms: int | None = None
    ended_ms: int | None = None
    traceparent: str | None = None
    recording_url: str | None = None
    recording_starts_ms: int | None = None
    turn: int | None = None
    turns: int = 0
    events: int = 0
    close_reason: CloseReason | None = None
    ended_reason: str | None = None
    outcome: CallOutcome = CallOutcome.RUNNING
    in_vain_ms: int | None = None
    answer: Answer | None = None
    waiting: Waiting | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    longest_wait_ms: float | None = None
    unanswered: int = 0
    user_interruptions: int = 0
    assistant_interruptions: int = 0
    interrupted_turns: tuple[int, ...] = ()
    dead_airs: int = 0
    dead_air_turns: tuple[int, ...] = ()
    tool_calls: int = 0
    used_tools: tuple[str, ...] = ()
    failed_tool_calls: int = 0
    failed_tools: tuple[str, ...] = ()
    failing_tools: dict[str, int] = {}
    errors: Errors | None = None
    goals: Goals | None = None
    through_turn: int | None = None
    speech: Speech | None = None
    stt_wer: WordErrors | None = None
    user_disagreement: Disagreement | None = None
    assistant_disagreement: Disagreement | None = None
    transcript_disagreement: Value | None = None
    eva: dict[str, Eva] = {}
    stages: dict[Stage, Agreement] = {}
    faithfulness: Rating | None = None
    conversation_progression: Rating | None = None
    user_behavioral_fidelity: Rating | None = None
    waits: dict[Anchor, FinalWaits] = {}
    unscored_turns: dict[str, dict[UnscoredReason, int]] = {}
    uses: tuple[ServiceUse, ...] = ()
    cost_dollars: Value | None = None
    notes: tuple[Note, ...] = ()
    left_out: tuple[str, ...] = ()


class GoalsRow(Struct, kw_only=True, tag_field="row", tag="goals"):
    """The goal set of a call, written once, when the call gets it. Its progress is measured against
    this set for ever.

    Attributes:
        conversation_id: The call.
        revision: As in the row of a turn.
        digest: The same as in the row of the call.
        goal_set: The set, as in a file of goals.
    """

    conversation_id: str
    revision: int
    digest: str
    goal_set: dict[str, Any]


class ToolWords(Struct, frozen=True, omit_defaults=True):
    """What a tool was asked, and what it answered: JSON without personal data.

    Attributes:
        index: Its number in the turn, as in the row of the turn.
        tool: Name of the tool.
        arguments: What it was asked.
        answer: What it answered.
    """

    index: int
    tool: str
    arguments: str = ""
    answer: str = ""


class WordsRow(Struct, omit_defaults=True, kw_only=True, tag_field="row", tag="words"):
    """What was said in one turn, without personal data. Of the topic `words`, which has rights and
    a retention of its own.

    Attributes:
        conversation_id: The call.
        turn: Its number.
        revision: As in the row of a turn.
        known_ms: As in the row of a turn.
        tenant: Whose agent it is.
        user: What the caller said, as the agent's transcript has it; where there is none, as the
            caller meant it.
        assistant: What the agent said; of an answer that was cut off, what was heard.
        written: The whole answer, as the agent wrote it, where the caller cut it off.
        tools: Uses of tools.
        left_out: What is missing because it was too large, or too many.
    """

    conversation_id: str
    turn: int
    revision: int = 0
    known_ms: int = 0
    tenant: str = "unknown"
    user: str = ""
    assistant: str = ""
    written: str = ""
    tools: tuple[ToolWords, ...] = ()
    left_out: tuple[str, ...] = ()


class OwnRow(Struct, omit_defaults=True, kw_only=True, tag_field="row", tag="own"):
    """A value of a measure of one's own, of a turn or of a call: a number, a label, or why there is
    neither.

    Attributes:
        conversation_id: The call.
        measure: Name of the measure.
        turn: Number of the turn; None of a call.
        revision: That of the row that it was computed from.
        known_ms: As in that row.
        labels: Whose call it is.
        value: A number.
        label: A label.
        reason: Why there is neither.
    """

    conversation_id: str
    measure: str
    turn: int | None = None
    revision: int = 0
    known_ms: int = 0
    labels: Labels = Labels()
    value: float | None = None
    label: str | None = None
    reason: str | None = None


Row = TurnRow | CallRow | GoalsRow
"""A row of `scores`."""
StoredRow = Row | WordsRow | OwnRow
"""A row of any table."""


def kind_of(row: Row) -> str:
    """What a row is of: `turn`, `call` or `goals`."""
    return str(row.__struct_config__.tag)


def revision_at(place: int) -> int:
    """The revision of what the record, or tick, at a place of the log decides.

    >>> revision_at(7)
    14
    """
    return 2 * place


def revision_again(place: int) -> int:
    """The revision of what is said once again in front of a place: above all that is decided by
    then, below all that follows.

    >>> revision_at(6) < revision_again(7) < revision_at(7)
    True
    """
    return 2 * place - 1


# `news`: what counts from a revision on, by name.
#
# Of a turn: `turn` (the call has left it for the first time), `wait` (the first value of its wait),
# `wait_revised`, `user_turn.N` (the caller waits for an answer, for the Nth time in this turn),
# `stages.NAME`, `turn_taking`, `estimate_error`, a judge's rating by its name, `interruption.user`
# and `interruption.assistant` (once the call has left the turn), `dead_air.N` and `tool.N` (by
# `number` and `index`).
#
# Of a call: `started`, `errors` (the first), `goals`, `subgoal.N` (reached), `stall.N`, `closed`.

STAGE_NEWS: Final = "stages."
"""What the name of a stage stands behind in `news`."""


def united(older: tuple[str, ...], newer: tuple[str, ...]) -> tuple[str, ...]:
    """The news of a row that takes the place of an unpublished one.

    Example:
        >>> united(("turn", "wait"), ("wait", "tool.0"))
        ('turn', 'wait', 'tool.0')
    """
    return tuple(dict.fromkeys((*older, *newer))) if older else newer


# On the wire.

_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final[msgspec.json.Decoder[Row]] = msgspec.json.Decoder(Row)
_OWN: Final[msgspec.json.Decoder[OwnRow]] = msgspec.json.Decoder(OwnRow)
_WORDS: Final[msgspec.json.Decoder[WordsRow]] = msgspec.json.Decoder(WordsRow)
_ROW_BEGINS: Final = b'{"row":'
_OWN_BEGINS: Final = b'{"row":"own"'
_CUT_FIRST: Final[dict[str, Any]] = {
    "notes": (),
    "goals": None,
    "uses": (),
    "stages": (),
    "tools": (),
    "user_sounds": (),
    "assistant_sounds": (),
    "unscored_turns": {},
}
"""Fields that a row loses when it is too large, in this order, and what stands there then. Without
them it is far below the bound.
"""

RowError = msgspec.DecodeError
"""Bytes that are no row: no JSON, or JSON of another shape. `str` of it says what and where."""


def encode(row: StoredRow) -> bytes:
    """The row as it is on the wire. One that is too large loses fields, and names them in
    `left_out`.
    """
    value = _ENCODER.encode(row)
    if isinstance(row, WordsRow) and len(value) > MAX_ROW_BYTES:
        return _ENCODER.encode(
            structs.replace(row, tools=(), written="", left_out=(*row.left_out, "tools", "written"))
        )
    if len(value) <= MAX_ROW_BYTES or not isinstance(row, (TurnRow, CallRow)):
        return value
    for name, empty in _CUT_FIRST.items():
        if len(value) > MAX_ROW_BYTES and getattr(row, name, empty) != empty:
            row = structs.replace(
                row, **{name: _smaller(row, name, empty), "left_out": (*row.left_out, name)}
            )
            value = _ENCODER.encode(row)
    return value


def _smaller(row: TurnRow | CallRow, name: str, empty: Any) -> Any:
    """What is left of a field. Goals keep what counts, and lose the texts."""
    if name != "goals" or not isinstance(row, CallRow) or row.goals is None:
        return empty
    subgoals = tuple(structs.replace(each, trials=()) for each in row.goals.subgoals)
    return structs.replace(row.goals, subgoals=subgoals, expected_tools=())


def is_row(value: bytes) -> bool:
    """Whether a value of `scores` is a row."""
    return value.startswith(_ROW_BEGINS)


def is_own(value: bytes) -> bool:
    """Whether a value is a row of one's own measures."""
    return value.startswith(_OWN_BEGINS)


def decode(value: bytes) -> Row:
    """A row of `scores`.

    Raises:
        RowError: It is none.

    Example:
        >>> decode(encode(TurnRow(conversation_id="c", turn=1, wait_ms=912.0))).wait_ms
        912.0
    """
    return _DECODER.decode(value)


def decode_words(value: bytes) -> WordsRow:
    """A row of `words`.

    Raises:
        RowError: It is none.
    """
    return _WORDS.decode(value)


def decode_own(value: bytes) -> OwnRow:
    """A row of `scores.own`.

    Raises:
        RowError: It is none.
    """
    return _OWN.decode(value)


DECODED: Final[Mapping[str, Callable[[bytes], StoredRow]]] = {
    SCORES_TOPIC: decode,
    WORDS_TOPIC: decode_words,
    OWN_TOPIC: decode_own,
}
"""What reads a row, by its topic."""
