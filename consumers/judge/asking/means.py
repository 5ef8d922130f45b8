"""The parts of a judge that all its questions share."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from consumers.engine.redaction.redactor import Redactor
from consumers.judge.asking.reply import Asks
from consumers.judge.asking.tally import Tally
from consumers.judge.limits.breaker import Breaker
from consumers.judge.limits.rate_limit import RateLimit
from consumers.judge.limits.spending import Budget
from consumers.judge.settings import JudgeSettings
from schemas.judging import JudgeRequest, TrialAnswer


class KeepsAnswers(Protocol):
    """Keeps single answers, so that a question that a process left open is not asked again whole."""

    def answers_to(self, request: JudgeRequest) -> Iterable[TrialAnswer]:
        """Returns the answers of earlier processes, oldest first."""

    def keep_answer(self, request: JudgeRequest, answer: TrialAnswer) -> None:
        """Keeps an answer before it counts."""


@dataclass(slots=True)
class Means:
    """The parts that all questions share: the endpoint and the limits.

    Attributes:
        slots: Limits the number of requests in flight.
        now_ms: The wall clock, for deadlines and budgets.
        redactor: Redacts the model's explanations.
        kept: Answers of earlier processes; None keeps none.
        waits_for_rate: Whether requests wait for the rate as long as it takes, and the deadline with them.
    """

    settings: JudgeSettings
    endpoint: Asks
    budget: Budget
    rate_limit: RateLimit
    breaker: Breaker
    tally: Tally
    slots: asyncio.Semaphore
    now_ms: Callable[[], int]
    redactor: Redactor
    kept: KeepsAnswers | None = None
    waits_for_rate: bool = False
