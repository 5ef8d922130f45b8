"""Settings of the engine: every bound with its default, its unit and its reason, and the rules of
judging goals.
"""

from functools import cached_property
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from schemas.closed_sets import TEXT_JUDGES, JudgeKind
from schemas.goals.goal_set import JudgeOptions
from schemas.judging import MAX_RETRY_WAVES, MAX_TRIALS, check_template, odd
from schemas.topics import TopicNeeds

MILLION: Final = 1_000_000
SECONDS_IN_MINUTE: Final = 60


class Price(BaseModel):
    """What a model costs, in one currency for all of them. An amount without a price makes the cost
    of its call unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: float | None = Field(None, ge=0, description="A million tokens of prompts.")
    cached: float | None = Field(
        None, ge=0, description="A million tokens from a cache; without it they cost as `input`."
    )
    cache_write: float | None = Field(
        None, ge=0, description="A million tokens into a cache; without it they cost as `input`."
    )
    output: float | None = Field(None, ge=0, description="A million tokens of answers.")
    characters: float | None = Field(
        None, ge=0, description="A million characters that are spoken."
    )
    audio_minute: float | None = Field(
        None, ge=0, description="A minute of sound that is transcribed."
    )


class LimitSettings(BaseModel):
    """What a person may set of one partition's evaluation: bounds, and the prices of the agents'
    models.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_record_bytes: int = Field(
        1_048_576,
        gt=0,
        description=(
            "Largest input record in bytes. Kafka's own default; our largest events are prompts of "
            "some 100 kB."
        ),
    )
    max_event_time_skew_ms: int = Field(
        24 * 3_600_000,
        ge=0,
        description=(
            "How far an event's time may lie from the broker's, in ms: a day forgives a wrong time "
            "zone; 0 = no check."
        ),
    )
    max_call_duration_ms: int = Field(
        4 * 3_600_000,
        gt=0,
        description=(
            "Longest call in ms, by the broker's clock. It bounds how far a replay must go back."
        ),
    )
    max_open_calls: int = Field(
        20_000,
        gt=0,
        description=(
            "Open calls per partition. At 110 kB each this is 2.2 GB; the quietest call is closed "
            "beyond it."
        ),
    )
    closing_grace_ms: int = Field(
        10_000,
        ge=0,
        description=(
            "From the end event to closing, in ms: transcripts arrive seconds after the last sound."
        ),
    )
    agent_record_grace_ms: int = Field(
        120_000,
        ge=0,
        description=(
            "From the end of a call to closing while its record is not there, of ElevenLabs or "
            "Vapi, in ms: they take a minute."
        ),
    )
    idle_ms: int = Field(
        300_000,
        gt=0,
        description=(
            "Silence of all streams after which a call counts as over, in ms. Callers are put on "
            "hold for minutes."
        ),
    )
    words: bool = Field(
        default=True,
        description=(
            "Whether what is said in calls, and what tools are asked and answer, is written to "
            "`words`, without personal data."
        ),
    )
    dead_air_ms: int = Field(
        3_000,
        gt=0,
        description=(
            "Silence after the user's speech that counts as dead air, in ms. Callers doubt the "
            "line after about this long."
        ),
    )
    delivery_allowance_ms: int = Field(
        500,
        ge=0,
        description=(
            "How long an event may be on its way before its absence counts as silence, in ms."
        ),
    )
    prices: dict[str, Price] = Field(
        default_factory=dict,
        examples=[
            '{"gpt-4o": {"input": 2.5, "cached": 1.25, "output": 10}, "sonic-2": {"characters": '
            "50}}"
        ],
        description="Prices of the agents' models by name, from which calls "
        "have their cost: of a million "
        "tokens or characters, or of a "
        "minute of sound, in US dollars, because the records of ElevenLabs have their prices in "
        "them.",
    )


class Limits(LimitSettings):
    """All bounds of one partition's evaluation: those of the settings, and those that users do not
    have to change.
    """

    max_record_parts: int = Field(
        25_000,
        gt=0,
        description="Most commas and opening brackets of one record: to read "
        "so many values takes 20 ms, "
        "in which no other call has a "
        "turn. The record of a whole ElevenLabs call may have twice as many: that of two hours has "
        "some 45,000.",
    )
    max_events_per_call: int = Field(
        50_000,
        gt=0,
        description="Events of one call. An hour has about 9,000; more is a loop in the producer.",
    )
    max_kept_bytes_per_call: int = Field(
        5 * 1_048_576,
        gt=0,
        description=(
            "Bytes of records whose texts or values one call keeps. Two talkative hours have 3.5 "
            "MB, 50,000 small tool events 4.4."
        ),
    )
    max_replayed_elements_per_call: int = Field(
        1_000_000,
        gt=0,
        description=(
            "Elements one call may fold again because events came late: some seconds of work. A "
            "bad day has 50,000."
        ),
    )
    max_turns_per_call: int = Field(
        1_000, gt=0, description="Turns of one call. Two hours have about 250."
    )
    max_closed_calls_remembered: int = Field(
        50_000,
        gt=0,
        description="Closed conversation ids kept to recognise what arrives after the end.",
    )
    max_stage_values_per_call: int = Field(
        8_192,
        gt=0,
        description=(
            "Latencies and token counts of one call that are kept. Two hours have about 6,000; "
            "later ones do not count."
        ),
    )
    max_remembered_ids: int = Field(
        4_096,
        gt=0,
        description=(
            "Event ids remembered per call and producer to recognise a repeat; reconnects repeat "
            "about 100."
        ),
    )
    allowed_lateness_ms: int = Field(
        5_000,
        ge=0,
        description=(
            "How far every stream must be past a turn before it is settled, in ms: one slow "
            "transcription."
        ),
    )
    call_values_every_ms: int = Field(
        30_000,
        gt=0,
        description=(
            "How often the values of a long call are published while it runs, at most, in ms: at a "
            "turn that it leaves."
        ),
    )

    @cached_property
    def small_record_bytes(self) -> int:
        """A record with at most so many bytes has neither too many of them nor too many values."""
        return min(self.max_record_bytes, self.max_record_parts)


def needs_of(limits: LimitSettings) -> TopicNeeds:
    """Returns the needs of these limits: topics must keep a call for long enough to be
    read again.
    """
    return TopicNeeds(
        longest_call_ms=limits.max_call_duration_ms,
        idle_ms=limits.idle_ms,
        max_record_bytes=limits.max_record_bytes,
    )


class GoalOptions(BaseModel):
    """What a person may set of progress and judging."""

    model_config = ConfigDict(frozen=True)

    asks_judge: bool = Field(
        default=False,
        description="Whether questions are put to the judge role. Without it "
        "subgoals that take a judge "
        "are unscored "
        "(judge_disabled), and everything else works.",
    )
    trials: Annotated[int, AfterValidator(odd)] = Field(
        5, gt=0, le=MAX_TRIALS, description="How often a judge is asked one question at most, odd."
    )
    include_judge_explanation: bool = Field(
        default=False,
        description=(
            "Whether the record of a subgoal has the trials of its verdict, with grades and "
            "explanations."
        ),
    )
    template_subgoal: Annotated[str, AfterValidator(check_template)] | None = Field(
        None,
        examples=["{call} Is {subgoal} done?"],
        description="A prompt of your own for subgoals, with the places {call} and {subgoal}.",
    )
    verdict_deadline_ms: int = Field(
        60_000,
        gt=0,
        description=(
            "From a question to where its answer is not waited for any more, in ms of broker time."
        ),
    )
    text_judges: tuple[JudgeKind, ...] = Field(
        (),
        description=f"EVA's metrics to be judged too: {', '.join(TEXT_JUDGES)}.",
    )
    stall_turns: int = Field(
        4, gt=0, description="Turns without a further subgoal after which a call is stuck."
    )
    stall_ms: int = Field(120_000, gt=0, description="The same in ms of broker time.")

    @field_validator("text_judges")
    @classmethod
    def _are_text_judges(cls, kinds: tuple[JudgeKind, ...]) -> tuple[JudgeKind, ...]:
        if wrong := [kind.value for kind in kinds if kind not in TEXT_JUDGES]:
            raise ValueError(f"expected some of {', '.join(TEXT_JUDGES)}, saw {', '.join(wrong)}")
        return kinds


class GoalRules(GoalOptions):
    """All rules of progress and judging. Goal sets may name some of them, by the names of
    agent-inspect's options.
    """

    stops_early: bool = Field(
        default=True, description="Whether asking ends once a majority is certain."
    )
    retry_waves: int = Field(
        5,
        ge=0,
        le=MAX_RETRY_WAVES,
        description="How often invalid answers are asked again when it does not.",
    )
    steady_words_ms: int = Field(
        1_000,
        ge=0,
        le=10_000,
        description="How long the words and tools of a turn must be the same "
        "before a judge is asked, in "
        "ms of broker time. "
        "Topics that arrive one after the other change them several times, and each change is a "
        "question that costs.",
    )

    def of(self, options: JudgeOptions) -> "GoalRules":
        """The rules of a call whose goal set has these options."""
        given = {
            "trials": options.num_judge_trials,
            "stops_early": options.optimize_judge_trials,
            "retry_waves": options.max_retry_judge_trials,
            "include_judge_explanation": options.include_judge_explanation,
            "template_subgoal": options.template_subgoal,
        }
        return self.model_copy(
            update={name: value for name, value in given.items() if value is not None}
        )
