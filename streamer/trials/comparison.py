"""Compares repeated calls of one goal set: success, progress, pass@k, pass^k, agreement of the judge, and errors. Pure.

A trial is one call. All figures are over the trials of one version of one goal set. A trial whose success nobody knows counts
as a trial and in no figure that needs its success: unknown is not zero.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from consumers.engine.agent_inspect import K_VALUE, NO_OF_TRIALS, pass_at_k, pass_hat_k
from schemas.closed_sets import UnjudgedReason
from schemas.goals.goal_set import GoalSet
from streamer.trials.trial import SubgoalOutcome, Trial

_NOT_JUDGED: Final = frozenset(reason.value for reason in UnjudgedReason)


class Passes(NamedTuple):
    """How likely one, and all, of k trials succeed; both None where there are fewer than k trials with a known success.

    With n trials, of which c succeed: pass@k = 1 - C(n-c, k) / C(n, k), the unbiased estimate of "Evaluating Large Language
    Models Trained on Code" (Chen et al., 2021); pass^k = C(c, k) / C(n, k), the estimate of "tau-bench" (Yao et al., 2024).
    """

    k: int
    at_k: float | None
    hat_k: float | None


class Judging(NamedTuple):
    """Work of the judge on the subgoals that a model checks.

    Attributes:
        polled: Subgoals with at least one vote, over all trials.
        unanimous: Those of them whose votes are all the same.
        votes: Votes on them, in the verdicts that decided.
        with_majority: Votes that agree with the majority of their verdict.
        unscored: Subgoals without a verdict of the judge, by reason, for example `invalid_answers`.
    """

    polled: int
    unanimous: int
    votes: int
    with_majority: int
    unscored: Counter[str]

    @property
    def agreement(self) -> float | None:
        """Share of the votes that agree with the majority of their verdict; None without a vote."""
        return self.with_majority / self.votes if self.votes else None


@dataclass(frozen=True, slots=True)
class SubgoalErrors:
    """One subgoal over all trials; `missed` are the trials that did not reach it, `unknown` counts the others by reason."""

    subgoal_id: str
    details: str
    reached: int
    missed: tuple[Trial, ...]
    unknown: Counter[str]


@dataclass(frozen=True, slots=True)
class Stalled:
    """The trials without success, with a known progress that ends in the same turn. With None they progress to their last turn."""

    turn: int | None
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class ToolErrors:
    """A tool that fails in trials without success, up to the turn in which they stall."""

    tool: str
    failures: int
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class GoalSetTrials:
    """The trials of one version of a goal set, at least one."""

    goal_set: GoalSet
    version: str
    trials: tuple[Trial, ...]

    @cached_property
    def known(self) -> tuple[bool, ...]:
        """Success of each trial of which it is known."""
        return tuple(trial.success for trial in self.trials if isinstance(trial.success, bool))

    @cached_property
    def unscored(self) -> Counter[str]:
        """The other trials, by the reason why their success is unknown."""
        return Counter(trial.success for trial in self.trials if isinstance(trial.success, str))

    @property
    def success_rate(self) -> float | None:
        """Share of successes among the trials with a known success; None without any."""
        return sum(self.known) / len(self.known) if self.known else None

    @property
    def mean_progress(self) -> float | None:
        """Mean of the trials whose progress is known; None without any."""
        values = [trial.progress for trial in self.trials if not isinstance(trial.progress, str)]
        return sum(values) / len(values) if values else None

    def passes(self, k: int) -> Passes:
        """The two estimates for one k, 1 or more."""
        if k > len(self.known):
            return Passes(k, None, None)
        config = {NO_OF_TRIALS: len(self.known), K_VALUE: k}
        return Passes(k, pass_at_k(self.known, config), pass_hat_k(self.known, config))

    @cached_property
    def judging(self) -> Judging:
        """The judge's votes and errors."""
        judged_ids = {subgoal.id for subgoal in self.goal_set.subgoals if subgoal.is_judged}
        judged = [each for each in self._outcomes() if each.subgoal_id in judged_ids]
        votes = [(each.votes_complete, each.votes_incomplete) for each in judged]
        polled = [each for each in votes if any(each)]
        return Judging(
            len(polled),
            sum(not min(each) for each in polled),
            sum(map(sum, polled)),
            sum(map(max, polled)),
            Counter(each.finding for each in judged if each.finding in _NOT_JUDGED),
        )

    @cached_property
    def subgoals(self) -> list[SubgoalErrors]:
        """The subgoals; those that are missed most come first, otherwise in the order of the set."""
        found = []
        for index, subgoal in enumerate(self.goal_set.subgoals):
            findings = [(trial, trial.subgoals[index].finding) for trial in self.trials]
            missed = tuple(trial for trial, finding in findings if finding is False)
            unknown = Counter(finding for _, finding in findings if isinstance(finding, str))
            reached = sum(finding is True for _, finding in findings)
            found.append(SubgoalErrors(subgoal.id, subgoal.details, reached, missed, unknown))
        return sorted(found, key=lambda each: -len(each.missed))

    @cached_property
    def stalls(self) -> list[Stalled]:
        """By turn, the trials without success; most trials first."""
        by_turn: defaultdict[int | None, list[Trial]] = defaultdict(list)
        for trial in self._without_success():
            by_turn[trial.stall_turn].append(trial)
        stalls = [Stalled(turn, tuple(trials)) for turn, trials in by_turn.items()]
        return sorted(stalls, key=lambda each: (-len(each.trials), each.turn is None, each.turn or 0))

    @cached_property
    def failed_tools(self) -> list[ToolErrors]:
        """By tool, the trials without success in which it fails up to the stall; most trials first."""
        failures: Counter[str] = Counter()
        by_tool: defaultdict[str, list[Trial]] = defaultdict(list)
        for trial in self._without_success():
            counts = Counter(each.tool for each in trial.failed_before_stall)
            failures += counts
            for tool in counts:
                by_tool[tool].append(trial)
        tools = [ToolErrors(tool, failures[tool], tuple(trials)) for tool, trials in by_tool.items()]
        return sorted(tools, key=lambda each: (-len(each.trials), -each.failures, each.tool))

    def _without_success(self) -> Iterator[Trial]:
        """Trials that failed and whose progress is known. A subgoal without a verdict may have been reached later."""
        return (trial for trial in self.trials if trial.success is False and not isinstance(trial.progress, str))

    def _outcomes(self) -> Iterator[SubgoalOutcome]:
        return (subgoal for trial in self.trials for subgoal in trial.subgoals)


def compared(trials: Iterable[Trial]) -> list[GoalSetTrials]:
    """The trials by goal set and version: sets by name, versions of a set in the order of their first trials."""
    by_version: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        by_version.setdefault((trial.goal_set.id, trial.version), []).append(trial)
    groups = [GoalSetTrials(own[0].goal_set, version, tuple(own)) for (_, version), own in by_version.items()]
    return sorted(groups, key=lambda each: each.goal_set.id)


def changed_sets(groups: Iterable[GoalSetTrials]) -> Iterator[Sequence[GoalSetTrials]]:
    """The versions of each goal set that has more than one among these trials."""
    by_name: defaultdict[str, list[GoalSetTrials]] = defaultdict(list)
    for group in groups:
        by_name[group.goal_set.id].append(group)
    return (versions for versions in by_name.values() if len(versions) > 1)


def differences(before: GoalSet, after: GoalSet) -> list[str]:
    """The differences of two versions of a goal set, as phrases."""
    old, new = ({subgoal.id: subgoal for subgoal in each.subgoals} for each in (before, after))
    named = {
        "new": [name for name in new if name not in old],
        "left out": [name for name in old if name not in new],
        "changed": [name for name in new if name in old and new[name] != old[name]],
    }
    phrases = [f"subgoals {how}: {', '.join(names)}" for how, names in named.items() if names]
    if not phrases and list(old) != list(new):
        phrases.append("the order of the subgoals")
    if before.max_turns != after.max_turns:
        phrases.append(f"max_turns {before.max_turns} to {after.max_turns}")
    others = {"user_instruction": "the user's instruction", "expected_tool_calls": "expected tool calls"}
    phrases += [text for name, text in others.items() if getattr(before, name) != getattr(after, name)]
    return phrases or ["the agents that it is for"]
