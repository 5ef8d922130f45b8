"""One question to agent-inspect's judge: how large its vote is, and the verdict or the error that follows from it.

Nothing is asked here. A scorer is a generator: it yields ballots one by one, in agent-inspect's order, and is sent their votes.
"""

import math
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple, TypeVar

from consumers.engine.agent_inspect.errors import Code, EvaluationError
from consumers.engine.agent_inspect.traces import CheckedValue, Subgoal
from consumers.engine.judging.votes import grade_of

TRIALS = "num_judge_trials"
STOPS_EARLY = "optimize_judge_trials"
RETRY_WAVES = "max_retry_judge_trials"
KEEPS_COMPLETIONS = "include_judge_explanation"

Config = Mapping[str, Any]
"""Settings under agent-inspect's own keys. A key that is there counts, even when it holds None."""


class Ballot(NamedTuple):
    """One question to the judge and the size of its vote.

    Attributes:
        turn_index: The judge reads the conversation up to the turn with this index, from zero.
        place: Place of the subgoal in the sample; of a checked value, its number among the questions of the trace.
        about: The subgoal, or the value of a tool call that is checked.
        trials: Most answers to ask for; odd.
        stops_early: Whether asking ends once a majority is certain.
        retry_waves: How often invalid answers are asked again when it does not.
        reads_instruction: Whether the judge reads the user's instruction.
    """

    turn_index: int
    place: int
    about: Subgoal | CheckedValue
    trials: int
    stops_early: bool
    retry_waves: int
    reads_instruction: bool = False


class Vote(NamedTuple):
    """The end of a vote: the majority, None if the vote failed; and the completions that were kept on the way."""

    is_complete: bool | None
    completions: tuple[str, ...] = ()


Result = TypeVar("Result")
Asking = Generator[Ballot, Vote, Result]


class _Subject(NamedTuple):
    turn_index: int
    place: int
    about: Subgoal | CheckedValue
    reads_instruction: bool = False


def voted_on_subgoal(
    index: int, place: int, subgoal: Subgoal, config: Config, *, reads_instruction: bool = False
) -> Asking[Vote]:
    """A vote as subgoals are judged: both ways of voting, by `config`. Raises as `voted_on_value`."""
    subject = _Subject(index, place, subgoal, reads_instruction)
    stops_early = bool(config.get(STOPS_EARLY, False))
    return (yield from _voted(subject, config.get(TRIALS, 5), config.get(RETRY_WAVES, 5), stops_early=stops_early))


def voted_on_value(index: int, place: int, value: CheckedValue, config: Config) -> Asking[Vote]:
    """A vote as a tool's argument or output is checked: it always stops early, whatever `config` says.

    Raises:
        EvaluationError: 050000 when the number of trials is even or not positive, or an answer stays invalid after the last
            retry; 050007 when a vote that stops early can no longer be decided.
        TypeError: A setting is no number. It shows only when the setting is needed.
    """
    return (yield from _voted(_Subject(index, place, value), config.get(TRIALS, 5), 0, stops_early=True))


def _voted(subject: _Subject, trials: Any, retry_waves: Any, *, stops_early: bool) -> Asking[Vote]:
    if trials <= 0 or trials % 2 == 0:
        raise EvaluationError(Code.INVALID_VOTE, f"A vote needs an odd, positive number of trials; it was {trials}.")
    if not isinstance(trials, int):
        raise TypeError(f"A number of trials is a whole number; it was {trials!r}.")
    can_retry = isinstance(retry_waves, int | float)
    waves = max(0, math.ceil(retry_waves)) if can_retry else 0
    vote = yield Ballot(
        subject.turn_index, subject.place, subject.about, int(trials), stops_early, waves, subject.reads_instruction
    )
    if vote.is_complete is not None:
        return vote
    if stops_early:
        raise EvaluationError(Code.TOO_FEW_VALID_ANSWERS, "Too many answers of the judge were invalid for a majority.")
    if not can_retry:
        raise TypeError(f"A number of retry waves is a number; it was {retry_waves!r}.")
    raise EvaluationError(Code.INVALID_VOTE, "An answer of the judge stayed invalid to the last retry.")


def grade_parsed(completion: str) -> int:
    """The grade in a completion: 1 for complete, 0 for incomplete.

    Raises:
        EvaluationError: 050003 when there is none that counts.
    """
    grade = grade_of(completion)
    if grade is None:
        raise EvaluationError(Code.UNREADABLE_GRADE, "The judge's answer does not end with a grade.")
    return int(grade)
