"""One question to agent-inspect's judge: the waves it sends, the completions it keeps, the verdict or the error."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from consumers.engine.agent_inspect.errors import Code, EvaluationError
from consumers.engine.judging.votes import VoteFailure, Voting, grade_of

TRIALS = "num_judge_trials"
STOPS_EARLY = "optimize_judge_trials"
RETRY_WAVES = "max_retry_judge_trials"
KEEPS_COMPLETIONS = "include_judge_explanation"

Config = Mapping[str, Any]
"""Settings under agent-inspect's own keys. A key that is there counts, even when it holds None."""

_OK = 200


class JudgeAnswer(NamedTuple):
    """The outcome of one request to a judge; failures are statuses, never exceptions."""

    status: int
    text: str | None

    @property
    def vote(self) -> bool | None:
        """The vote in it; None when it is invalid."""
        return grade_of(self.text) if self.status == _OK and self.text and self.text.strip() else None

    @property
    def is_kept(self) -> bool:
        """Whether its text is among the kept completions: blank and unreadable ones are, an empty one is not."""
        return self.status == _OK and bool(self.text)


Judge = Callable[[int], Sequence[JudgeAnswer]]
"""Sends so many identical requests, one wave, and returns their answers."""


class Vote(NamedTuple):
    """How a vote came out, and the completions that were kept on the way."""

    is_complete: bool
    completions: tuple[str, ...]


def voted(judge: Judge, trials: Any, retry_waves: Any, *, stops_early: bool) -> Vote:
    """Ask until the vote is decided.

    Raises:
        EvaluationError: 050000 when `trials` is even or not positive, or an answer stays invalid after the last retry;
            050007 when a vote that stops early can no longer be decided.
        TypeError: A setting is no number. It shows only when the setting is needed.
    """
    if trials <= 0 or trials % 2 == 0:
        raise EvaluationError(Code.INVALID_VOTE, f"A vote needs an odd, positive number of trials; it was {trials}.")
    if not isinstance(trials, int):
        raise TypeError(f"A number of trials is a whole number; it was {trials!r}.")
    can_retry = isinstance(retry_waves, int | float)
    voting = Voting(
        int(trials), stops_early=stops_early, retry_waves=max(0, math.ceil(retry_waves)) if can_retry else 0
    )
    kept: list[str] = []
    while wave := voting.next_wave:
        answers = judge(wave)
        kept += [answer.text for answer in answers if answer.is_kept and answer.text]
        voting.fold([answer.vote for answer in answers])
    if voting.failure is VoteFailure.RETRIES_EXHAUSTED:
        if not can_retry:
            raise TypeError(f"A number of retry waves is a number; it was {retry_waves!r}.")
        raise EvaluationError(Code.INVALID_VOTE, "An answer of the judge stayed invalid to the last retry.")
    if voting.failure is VoteFailure.TOO_FEW_VALID:
        raise EvaluationError(Code.TOO_FEW_VALID_ANSWERS, "Too many answers of the judge were invalid for a majority.")
    return Vote(bool(voting.verdict), tuple(kept))


def voted_on_subgoal(judge: Judge, config: Config) -> Vote:
    """A vote as subgoals are judged: both ways of voting, by `config`."""
    return voted(
        judge, config.get(TRIALS, 5), config.get(RETRY_WAVES, 5), stops_early=bool(config.get(STOPS_EARLY, False))
    )


def voted_on_tool(judge: Judge, config: Config) -> Vote:
    """A vote as a tool's argument or output is checked: it always stops early, whatever `config` says."""
    return voted(judge, config.get(TRIALS, 5), 0, stops_early=True)


def grade_parsed(completion: str) -> int:
    """The grade in a completion: 1 for complete, 0 for incomplete.

    Raises:
        EvaluationError: 050003 when there is none that counts.
    """
    grade = grade_of(completion)
    if grade is None:
        raise EvaluationError(Code.UNREADABLE_GRADE, "The judge's answer does not end with a grade.")
    return int(grade)
