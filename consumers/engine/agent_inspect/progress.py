"""agent-inspect's judging of subgoals: turn by turn for calls that are played freely, once each for scripted ones."""

from collections.abc import Sequence
from typing import NamedTuple

from consumers.engine.agent_inspect.curves import Score, progress_of, success_of
from consumers.engine.agent_inspect.judging import KEEPS_COMPLETIONS, Asking, Config, voted_on_subgoal
from consumers.engine.agent_inspect.traces import Subgoal, Turn, require_fillable, require_judgeable

MAX_TURNS = "max_turns"
KEEPS_VALIDATIONS = "include_validation_results"


class Validation(NamedTuple):
    """The verdict on one subgoal.

    Attributes:
        subgoal: The subgoal.
        is_completed: The verdict.
        completions: The judge's completions behind it, if they are asked for.
        turn_index: Index of the turn after which it was judged, from zero.
        place: Place of the subgoal in the sample.
    """

    subgoal: Subgoal
    is_completed: bool
    completions: tuple[str, ...]
    turn_index: int
    place: int


class TurnProgress(NamedTuple):
    """Progress after one turn.

    `explained` holds subgoals completed earlier, in that order, then all that were judged in this turn; `validations`
    the same, but only on the last entry and only when asked for.
    """

    progress: float
    explained: tuple[Validation, ...]
    validations: tuple[Validation, ...] | None


class StaticProgress(NamedTuple):
    """Progress of a scripted conversation and the verdicts behind it, in the order of judging."""

    progress: float
    validations: tuple[Validation, ...]

    @property
    def success(self) -> Score:
        """Whether every subgoal that was judged is completed."""
        return success_of(self.progress)


def progress_through_turns(
    turns: Sequence[Turn],
    subgoals: Sequence[Subgoal],
    config: Config,
    user_instruction: str | None = None,
) -> Asking[list[TurnProgress]]:
    """Judges every open subgoal after every turn, up to `max_turns` of them; a shorter call repeats its last progress.

    Raises:
        InvalidInputValueError: 050004 without subgoals; 050008 when a turn in reach has no text or a subgoal no details.
        EvaluationError: A vote failed: 050000 or 050007.
        IndexError: There are no turns.
        KeyError: The prompt template of `config` names a missing value.
        TypeError: `max_turns` is no whole number, or a value of the trace does not fit into a prompt.
    """
    max_turns = config.get(MAX_TURNS, 20)
    reached = min(max_turns, len(turns))
    pending = list(enumerate(subgoals))
    completed: list[Validation] = []
    judged: list[Validation] = []
    entries: list[TurnProgress] = []
    for index in range(reached):
        completed += [each for each in judged if each.is_completed]
        judged = []
        for place, subgoal in pending:
            require_judgeable(turns[: index + 1], subgoal)
            require_fillable(config, user_instruction)
            judged.append((yield from _validated(index, place, subgoal, config, is_dynamic=True)))
        for each in judged:
            if each.is_completed:  # the first that is equal leaves: of two equal ones it may be the other
                del pending[[subgoal for _, subgoal in pending].index(each.subgoal)]
        known = (*completed, *judged)
        entries.append(TurnProgress(progress_of([each.is_completed for each in known]), known, None))
    if max_turns > reached:
        entries += [entries[-1]] * (max_turns - reached)
    if entries and config.get(KEEPS_VALIDATIONS, False):
        entries[-1] = entries[-1]._replace(validations=(*completed, *judged))
    return entries


def static_progress(turns: Sequence[Turn], subgoals: Sequence[Subgoal], config: Config) -> Asking[StaticProgress]:
    """Judges each subgoal once, after the turn it names; one that names no turn of the conversation is left out silently.

    Raises:
        InvalidInputValueError: 050004 when all were left out; 050008 as for `progress_through_turns`.
        EvaluationError: A vote failed: 050000 or 050007.
        TypeError: A value of the trace does not fit into a prompt.
    """
    validations = []
    for index in range(len(turns)):
        for place, subgoal in enumerate(subgoals):
            if subgoal.turn == index:
                require_judgeable(turns[: index + 1], subgoal)
                validations.append((yield from _validated(index, place, subgoal, config, is_dynamic=False)))
    return StaticProgress(progress_of([each.is_completed for each in validations]), tuple(validations))


def _validated(index: int, place: int, subgoal: Subgoal, config: Config, *, is_dynamic: bool) -> Asking[Validation]:
    vote = yield from voted_on_subgoal(index, place, subgoal, config, reads_instruction=is_dynamic)
    completions = vote.completions if config.get(KEEPS_COMPLETIONS, False) else ()
    return Validation(subgoal, bool(vote.is_complete), completions, index, place)
