"""The rules of judging goals and of calling a call stuck: the engine's settings that are no bounds."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from schemas.goals.goal_set import JudgeOptions
from schemas.judge_options import check_template, odd
from schemas.judging import MAX_RETRY_WAVES, MAX_TRIALS, TEXT_JUDGES, JudgeKind


class GoalRules(BaseModel):
    """Settings of progress and judging."""

    model_config = ConfigDict(frozen=True)

    asks_judge: bool = Field(
        default=False,
        description="Whether questions are put to the judge role. Without it subgoals that take a judge are unscored "
        "(judge_disabled), and everything else works.",
    )
    trials: Annotated[int, AfterValidator(odd)] = Field(
        5, gt=0, le=MAX_TRIALS, description="How often a judge is asked one question at most, odd."
    )
    stops_early: bool = Field(default=True, description="Whether asking ends once a majority is certain.")
    retry_waves: int = Field(
        5, ge=0, le=MAX_RETRY_WAVES, description="How often invalid answers are asked again when it does not."
    )
    include_judge_explanation: bool = Field(
        default=False,
        description="Whether the record of a subgoal has the trials of its verdict, with grades and explanations.",
    )
    template_subgoal: Annotated[str, AfterValidator(check_template)] | None = Field(
        None,
        examples=["{call} Is {subgoal} done?"],
        description="A prompt of your own for subgoals, with the places {call} and {subgoal}.",
    )
    verdict_deadline_ms: int = Field(
        60_000,
        gt=0,
        description="From a question to where its answer is not waited for any more, in ms of broker time.",
    )
    steady_words_ms: int = Field(
        1_000,
        ge=0,
        le=10_000,
        description="How long the words and tools of a turn must be the same before a judge is asked, in ms of broker time. "
        "Topics that arrive one after the other change them several times, and each change is a question that costs.",
    )
    text_judges: tuple[JudgeKind, ...] = Field(
        (),
        description="EVA's metrics to be judged too: conciseness, speakability, faithfulness, conversation_progression.",
    )
    stall_turns: int = Field(4, gt=0, description="Turns without a further subgoal after which a call is stuck.")
    stall_ms: int = Field(120_000, gt=0, description="The same in ms of broker time.")

    def of(self, options: JudgeOptions) -> "GoalRules":
        """The rules of a call whose goal set has these options."""
        given = {
            "trials": options.num_judge_trials,
            "stops_early": options.optimize_judge_trials,
            "retry_waves": options.max_retry_judge_trials,
            "include_judge_explanation": options.include_judge_explanation,
            "template_subgoal": options.template_subgoal,
        }
        return self.model_copy(update={name: value for name, value in given.items() if value is not None})

    @field_validator("text_judges")
    @classmethod
    def _are_text_judges(cls, kinds: tuple[JudgeKind, ...]) -> tuple[JudgeKind, ...]:
        if wrong := [kind.value for kind in kinds if kind not in TEXT_JUDGES]:
            raise ValueError(f"expected some of {', '.join(TEXT_JUDGES)}, saw {', '.join(wrong)}")
        return kinds
