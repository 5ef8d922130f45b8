"""agent-inspect's pass@k and pass^k: what repeated trials of one task say about its success."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from consumers.engine.agent_inspect.errors import Code, EvaluationError

K_VALUE = "k_value"
TRIALS = "no_of_trials"


def pass_at_k(success_scores: Sequence[float], config: Mapping[str, Any]) -> float:
    """How likely one of k trials succeeds.

    Raises:
        EvaluationError: 050009 when the settings make no sense or there are fewer scores than trials.
        TypeError: The scores do not add up to a whole number.
    """
    trials, k, successes = _counted(success_scores, config)
    if successes == 0:
        return 0.0
    if trials - successes < k:
        return 1.0
    return 1.0 - math.comb(trials - successes, k) / math.comb(trials, k)


def pass_hat_k(success_scores: Sequence[float], config: Mapping[str, Any]) -> float:
    """How likely all of k trials succeed. More scores than trials can make it exceed 1.

    Raises:
        EvaluationError: 050009 as for `pass_at_k`.
        TypeError: The scores do not add up to a whole number, and to k or more.
    """
    trials, k, successes = _counted(success_scores, config)
    if successes < k:
        return 0.0
    return math.comb(successes, k) / math.comb(trials, k)


def _counted(success_scores: Sequence[float], config: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Trials, k and the sum of all the scores that were given."""
    trials = config.get(TRIALS)
    k = config.get(K_VALUE, trials)
    if not trials or k <= 0 or trials <= 0 or k > trials:
        raise EvaluationError(Code.INVALID_VALUE, f"k must be between 1 and the number of trials; k {k} of {trials}.")
    if trials > len(success_scores):
        raise EvaluationError(Code.INVALID_VALUE, f"There are {len(success_scores)} scores of {trials} trials.")
    return trials, k, sum(success_scores)
