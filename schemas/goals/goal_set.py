"""Goal sets: the purpose of a call, as subgoals that can be checked and expected tool calls.

A chosen set is published as a fact of its call, with its digest, so that the call and its replays keep it even if the source
changes. The checks of subgoals are in `checks`, and `formats` reads other projects' formats.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Final, Protocol

from pydantic import AfterValidator, Field, JsonValue, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from schemas.goals.checks import (
    MAX_CHECK_DEPTH,
    MAX_CHECKS_PER_SUBGOAL,
    AnyCheck,
    GoalModel,
    Judge,
    NonEmptyName,
    patterns_of,
    with_depths,
)
from schemas.goals.patterns import worst_steps
from schemas.judge_options import MAX_RETRY_WAVES, MAX_TRIALS, check_template, odd
from schemas.wire import is_none

MAX_SUBGOALS: Final = 50
"""Subgoals of one set. The largest published samples have eight; each one that a judge checks costs money per turn."""
MAX_EXPECTED_TOOL_CALLS: Final = 100
"""Tool calls that one set expects; a long call makes some thirty."""
MAX_EXPECTED_PARAMETERS: Final = 50
"""Arguments of one expected call."""
MAX_AGENTS: Final = 100
"""Agents that one set is for."""
MAX_DETAILS_CHARS: Final = 4_000
"""Longest text of one subgoal: it is part of every question about it."""
MAX_INSTRUCTION_CHARS: Final = 20_000
"""Longest instruction of the caller; part of every question too. Published ones have some 3,000 characters."""
MAX_SET_BYTES: Final = 262_144
"""Largest set as canonical JSON. It is written to `scores` with every call, in records of at most 1 MiB."""
MAX_SET_STEPS: Final = 20_000
"""Steps that all patterns of a set may take at each character, at worst: some 1.5 s for the longest text that is searched."""
MAX_TURNS: Final = 1_000
"""Most that `max_turns` may be: as many turns as a call may have."""
DEFAULT_MAX_TURNS: Final = 20
"""agent-inspect's default."""
MISTAKES_ERROR: Final = "goal_mistakes"
"""Type of a pydantic error whose context has `mistakes`: pairs of a path below it and a text."""

SubgoalId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
TurnOfSample = Annotated[int, Field(ge=-MAX_TURNS, le=MAX_TURNS)] | NonEmptyName | None
"""agent-inspect's `turn`: a 0-based index; texts, such as `all`, and None name no turn."""


class Subgoal(GoalModel):
    """One thing the call should get done.

    Attributes:
        id: Its name among the set's subgoals.
        details: The goal in plain words. A judge gets exactly this text; for a check by code it is an explanation.
        check: How it is checked.
        turn: Used by agent-inspect's static scores only; progress over turns ignores it.
    """

    id: SubgoalId
    details: str = Field(min_length=1, max_length=MAX_DETAILS_CHARS)
    check: AnyCheck
    turn: TurnOfSample = None

    @property
    def is_judged(self) -> bool:
        """Whether a judge checks it."""
        return isinstance(self.check, Judge)


class ExpectedParameter(GoalModel):
    """An argument of an expected call: equal to `value`, or as `check` says in plain words for a judge."""

    name: NonEmptyName
    value: JsonValue = None
    check: str | None = Field(None, min_length=1, max_length=MAX_DETAILS_CHARS)

    @model_validator(mode="after")
    def _is_one_of_two(self) -> "ExpectedParameter":
        _require_value_or_check(self)
        return self


class ExpectedOutput(GoalModel):
    """The answer to an expected call: equal to `value` (null when neither is given), or as `check` says."""

    value: JsonValue = None
    check: str | None = Field(None, min_length=1, max_length=MAX_DETAILS_CHARS)

    @model_validator(mode="after")
    def _is_one_of_two(self) -> "ExpectedOutput":
        _require_value_or_check(self)
        return self


class ExpectedToolCall(GoalModel):
    """A tool call that should be made.

    Attributes:
        tool: Its name.
        expected_parameters: Arguments that must be so; others are free.
        expected_output: None takes any answer.
        turn: The 0-based index of the turn it belongs to. agent-inspect leaves out calls that name no turn.
    """

    tool: NonEmptyName
    expected_parameters: tuple[ExpectedParameter, ...] = Field((), max_length=MAX_EXPECTED_PARAMETERS)
    expected_output: ExpectedOutput | None = None
    turn: TurnOfSample = None


class JudgeOptions(GoalModel):
    """How a judge is asked about the subgoals of a set, under the names of agent-inspect's options. None leaves it to the settings.

    Attributes:
        num_judge_trials: Most trials of a vote, odd.
        optimize_judge_trials: Whether asking ends once a majority is certain.
        max_retry_judge_trials: How often invalid answers are asked again when it does not.
        include_judge_explanation: Whether the record of a subgoal has the trials of its verdict: grades, explanations and, if the
            judge keeps them, whole answers.
        template_subgoal: A prompt of one's own, with the places of `judge_options.PLACES`.
    """

    num_judge_trials: Annotated[int, AfterValidator(odd)] | None = Field(None, gt=0, le=MAX_TRIALS, exclude_if=is_none)
    optimize_judge_trials: bool | None = Field(None, exclude_if=is_none)
    max_retry_judge_trials: int | None = Field(None, ge=0, le=MAX_RETRY_WAVES, exclude_if=is_none)
    include_judge_explanation: bool | None = Field(None, exclude_if=is_none)
    template_subgoal: Annotated[str, AfterValidator(check_template)] | None = Field(None, exclude_if=is_none)


class GoalSet(JudgeOptions):
    """The purpose of a call.

    Attributes:
        id: Its name in `call_started`, and the key on the topic `goals`.
        agents: Agents whose calls get it if they name no set. Without agents, only calls that name it get it.
        user_instruction: The caller's instruction or wish, for the judge; None when it is not known.
        subgoals: Its subgoals, in the order in which they are shown and judged.
        expected_tool_calls: Tool calls that should be made, for tool correctness.
        max_turns: Turns to which progress is padded, as agent-inspect does; later turns do not count there.
    """

    id: NonEmptyName
    agents: tuple[NonEmptyName, ...] = Field((), max_length=MAX_AGENTS)
    user_instruction: str | None = Field(None, max_length=MAX_INSTRUCTION_CHARS)
    subgoals: tuple[Subgoal, ...] = Field(min_length=1, max_length=MAX_SUBGOALS)
    expected_tool_calls: tuple[ExpectedToolCall, ...] = Field((), max_length=MAX_EXPECTED_TOOL_CALLS)
    max_turns: int = Field(DEFAULT_MAX_TURNS, ge=1, le=MAX_TURNS)

    @cached_property
    def digest(self) -> str:
        """Hash of the content, the same in every process; a missing value counts as its default."""
        return hashlib.blake2b(self.canonical(), digest_size=16).hexdigest()

    def canonical(self) -> bytes:
        """The set as JSON in one fixed form."""
        # Without defaults, so that a field of a later version does not change the digest of sets that do not use it.
        plain = self.model_dump(mode="json", exclude_defaults=True)
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @model_validator(mode="after")
    def _keeps_the_bounds(self) -> "GoalSet":
        mistakes = [*self._doubled(), *self._too_large_checks(), *self._too_costly()]
        if not mistakes and (size := len(self.canonical())) > MAX_SET_BYTES:
            mistakes = [((), f"has {size} bytes as JSON, and {MAX_SET_BYTES} are allowed; shorten its texts")]
        if mistakes:
            texts = "; ".join(text for _, text in mistakes)
            raise PydanticCustomError(MISTAKES_ERROR, "{texts}", {"texts": texts, "mistakes": mistakes})
        return self

    def _doubled(self) -> Iterator["PlacedText"]:
        counts = Counter(subgoal.id for subgoal in self.subgoals)
        seen = set()
        for index, subgoal in enumerate(self.subgoals):
            if subgoal.id in seen:
                times = counts[subgoal.id]
                yield ("subgoals", index, "id"), f"{subgoal.id!r} names {times} subgoals; give each one its own"
            seen.add(subgoal.id)
        for index, agent in enumerate(self.agents):
            if agent in self.agents[:index]:
                yield ("agents", index), f"{agent!r} is there twice; leave one out"

    def _too_large_checks(self) -> Iterator["PlacedText"]:
        for index, subgoal in enumerate(self.subgoals):
            depths = [depth for _, depth in with_depths(subgoal.check)]
            if max(depths) > MAX_CHECK_DEPTH:
                text = f"checks are nested {max(depths)} deep, and {MAX_CHECK_DEPTH} are allowed; make several subgoals"
                yield ("subgoals", index, "check"), text
            elif len(depths) > MAX_CHECKS_PER_SUBGOAL:
                text = (
                    f"has {len(depths)} checks, and {MAX_CHECKS_PER_SUBGOAL} are allowed; make several subgoals of it"
                )
                yield ("subgoals", index, "check"), text

    def _too_costly(self) -> Iterator["PlacedText"]:
        steps = 0
        for index, subgoal in enumerate(self.subgoals):
            steps += sum(worst_steps(pattern) for pattern in patterns_of(subgoal.check))
            if steps > MAX_SET_STEPS:
                yield (
                    ("subgoals", index, "check"),
                    f"with this one, the patterns of the set may take {steps:,} steps at each character, and "
                    f"{MAX_SET_STEPS:,} are allowed; use fewer or shorter repetitions",
                )
                return


PlacedText = tuple[tuple[str | int, ...], str]
"""A path below something, and the mistake there."""


class ChoosesGoals(Protocol):
    """A source of goal sets for the evaluator."""

    def choose(self, goals_id: str | None, agent: str | None) -> GoalSet | None:
        """Chooses the set of a call that begins now.

        Args:
            goals_id: The set that the call names; None when it names none.
            agent: The call's agent; None when it is not known.

        Returns:
            The named set, or the agent's set if the call names none; None when there is none. An unknown name gives None
            instead of the agent's set, because progress towards other goals than the call's own would be wrong.
        """


def _require_value_or_check(expected: ExpectedParameter | ExpectedOutput) -> None:
    if expected.check is not None and expected.value is not None:
        raise ValueError("has both value and check; give value for an exact match, or check for a judge")
