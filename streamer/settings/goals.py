"""Settings of goals: the sources of goal sets, and the rules of judging."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import NoDecode

from consumers.engine.limits import GoalRules
from consumers.judge.settings import JudgeSettings
from schemas.closed_sets import TEXT_JUDGES, JudgeKind
from schemas.judging import TemplateError, check_template

AGENT_INSPECT_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "num_judge_trials": "trials",
        "optimize_judge_trials": "stops_early",
        "max_retry_judge_trials": "retry_waves",
        "include_judge_explanation": "include_judge_explanation",
    }
)
"""Settings by the names of agent-inspect's options."""


def _template_in(path: Path) -> str:
    """The text of a template's file."""
    return check_template(path.read_text(encoding="utf-8"))


def _checked(path: Path) -> Path:
    """The path, if there is a template that can be used."""
    try:
        _template_in(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the file cannot be read as text: {error}") from error
    except TemplateError as error:
        raise ValueError(f"in this file, {error}") from error
    return path


class GoalSettings(GoalRules):
    """The engine's rules as settings, and the sources of goal sets. Without a source calls have no goals."""

    model_config = ConfigDict(extra="forbid")

    folder: Path | None = Field(
        None,
        examples=["goals"],
        description="folder of goal files (.yaml, .yml, .json, .jsonl), read again when one changes",
    )
    template_subgoal_file: Annotated[Path, AfterValidator(_checked)] | None = Field(
        None,
        examples=["/etc/callgauge/judge-prompt.txt"],
        description="file with a prompt of your own for subgoals; goal sets with a template of their own have that",
    )
    reads_topic: bool = Field(default=False, description="whether the topic `goals` is read too")
    asks_judge: bool = Field(
        default=False,
        description="whether the evaluator puts questions to the judge role; one that runs in the same process with a key "
        "is asked in any case",
    )

    text_judges: Annotated[tuple[JudgeKind, ...], NoDecode] = Field(
        (),
        examples=["conciseness,speakability"],
        description="EVA's metrics to be judged besides those of judge.text_judges, separated by commas",
    )

    @model_validator(mode="before")
    @classmethod
    def _reads_agent_inspect_s_names(cls, given: object) -> object:
        """Takes options under agent-inspect's names too."""
        if not isinstance(given, dict):
            return given
        for name, ours in AGENT_INSPECT_NAMES.items():
            if name != ours and name in given and ours in given:
                raise ValueError(f"goals.{name} and goals.{ours} are the same setting; set one of them")
        return {AGENT_INSPECT_NAMES.get(name, name): value for name, value in given.items()}

    @field_validator("text_judges", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """A text with commas, as the environment gives it, or the names one by one."""
        names = [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value
        if isinstance(names, list) and (unknown := [name for name in names if name not in TEXT_JUDGES]):
            raise ValueError(f"{unknown[0]!r} is none of {', '.join(TEXT_JUDGES)}")
        return names

    @property
    def template(self) -> str | None:
        """The template of the settings; None if there is none."""
        if self.template_subgoal is not None or self.template_subgoal_file is None:
            return self.template_subgoal
        return _template_in(self.template_subgoal_file)

    @property
    def agent_inspect_options(self) -> dict[str, object]:
        """The options that are set, under agent-inspect's names; its own defaults hold for the others."""
        fields = self.model_fields_set
        options = {name: getattr(self, ours) for name, ours in AGENT_INSPECT_NAMES.items() if ours in fields}
        return options if self.template is None else {**options, "template_subgoal": self.template}

    def rules(self, judge: JudgeSettings, *, has_judge: bool) -> GoalRules:
        """The rules of an evaluator.

        Args:
            judge: Of the judge role. It names the metrics to be judged for both roles.
            has_judge: Whether that role runs in the same process.
        """
        text_judges = tuple(kind for kind in TEXT_JUDGES if kind in judge.text_judges or kind in self.text_judges)
        asks_judge = self.asks_judge or (has_judge and judge.is_on)
        given = {"asks_judge": asks_judge, "text_judges": text_judges, "template_subgoal": self.template}
        return self.model_copy(update=given)
