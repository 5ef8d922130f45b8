"""Puts one question to the model, in waves and within the limits, until it is decided."""

import asyncio
import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from consumers.engine.goals.questions import Voting
from consumers.judge.asking.means import Means
from consumers.judge.asking.reply import Delivery, Reply
from consumers.judge.limits.spending import Promise
from consumers.judge.prompting.answers import Answer, read_answer
from consumers.judge.prompting.questions import Question, question_of
from schemas.judging import (
    MAX_RAW_ANSWER_CHARS,
    Judged,
    JudgeKind,
    JudgeRequest,
    TokenUse,
    TrialAnswer,
    TrialOutcome,
    Unjudged,
    UnjudgedReason,
    VerdictResult,
    Votes,
)
from schemas.units import MS_PER_SECOND, to_seconds

_ENDPOINT_FAILED: Final = frozenset(
    {TrialOutcome.RATE_LIMITED, TrialOutcome.REJECTED, TrialOutcome.UNAVAILABLE, TrialOutcome.TIMED_OUT}
)
_HAS_ANSWER: Final = frozenset({TrialOutcome.ANSWERED, TrialOutcome.TRUNCATED})
_REASONS: Final = (
    (frozenset({TrialOutcome.REFUSED}), UnjudgedReason.REFUSED),
    (frozenset({TrialOutcome.REJECTED}), UnjudgedReason.REJECTED),
    (_ENDPOINT_FAILED, UnjudgedReason.UNAVAILABLE),
)
"""Reason of a failed vote by the outcomes of its invalid answers. Other mixtures are `INVALID_ANSWERS`."""

_PERHAPS_CHARGED: Final = frozenset(TrialOutcome) - {
    TrialOutcome.RATE_LIMITED,
    TrialOutcome.REJECTED,
    TrialOutcome.UNAVAILABLE,
}
"""Outcomes that cost the highest possible amount if the tokens were not counted. Errors, and requests that never reached the
endpoint, cost nothing."""


_IS_KEPT: Final = frozenset(
    {TrialOutcome.ANSWERED, TrialOutcome.UNREADABLE, TrialOutcome.TRUNCATED, TrialOutcome.REFUSED}
)
"""Outcomes that are the model's own answer. The others are failures of the endpoint, so their trial is asked again."""

_MOST_WAIT: Final = 0.5
"""Part of the time that is left in which a request may wait for the rate. The rest is for its answer: a request that is cut off
is paid all the same."""


@dataclass(slots=True)
class Poll:
    """The trials of one question so far. After a cut-off at the deadline, it has the results until then.

    Answers that an earlier process kept count as trials and cost nothing.

    Attributes:
        wave: Number of requests in flight, or about to be sent.
        voting: The votes so far; None for EVA's metrics.
        cost: Cost so far, in the currency of the prices.
        first_sent_ms: When the first request was sent; None before.
    """

    request: JudgeRequest
    means: Means
    deadline_ms: int
    wave: int = 1
    voting: Voting | None = None
    answers: list[TrialAnswer] = field(default_factory=list)
    tokens: TokenUse = field(default_factory=TokenUse)
    cost: float = 0.0
    requests: int = 0
    first_sent_ms: int | None = None
    _trials: int = 0
    _kept: deque[TrialAnswer] = field(default_factory=deque)
    _limit: asyncio.Timeout | None = None

    def __post_init__(self) -> None:
        request = self.request
        if request.kind is JudgeKind.SUBGOAL:
            self.voting = Voting(request.trials, stops_early=request.stops_early, retry_waves=request.retry_waves)
            self.wave = self.voting.next_wave
            if self.means.kept is not None:
                self._kept.extend(self.means.kept.answers_to(request))

    @property
    def votes(self) -> Votes:
        """Votes of the trials; all zero for EVA's metrics."""
        voting = self.voting
        if voting is None:
            return Votes()
        return Votes(complete=voting.votes_complete, incomplete=voting.votes_incomplete, invalid=voting.votes_invalid)

    async def run(self) -> VerdictResult:
        """Asks until there is a result.

        Raises:
            TimeoutError: There is none by the deadline.
        """
        async with asyncio.timeout(to_seconds(max(0, self.deadline_ms - self.means.now_ms()))) as self._limit:
            return await self._result()

    async def _result(self) -> VerdictResult:
        question = question_of(self.request, self.means.settings.answer_form)
        if self.voting is not None:
            return await self._vote(question, self.voting)
        answers = await self._wave(question, 1)
        if answers is None:
            return Unjudged(reason=UnjudgedReason.OVER_BUDGET)
        return self._failed() if answers[0] is None or answers[0].rating is None else answers[0].rating

    async def _vote(self, question: Question, voting: Voting) -> VerdictResult:
        while voting.next_wave:
            grades = [self._recall(self._kept.popleft()) for _ in range(min(voting.next_wave, len(self._kept)))]
            if len(grades) < voting.next_wave:
                answers = await self._wave(question, voting.next_wave - len(grades))
                if answers is None:
                    return Unjudged(reason=UnjudgedReason.OVER_BUDGET)
                grades += [None if answer is None else answer.grade for answer in answers]
            voting.fold(grades)
        return self._failed() if voting.verdict is None else Judged(is_completed=voting.verdict)

    def _recall(self, answer: TrialAnswer) -> bool | None:
        """Counts the answer of an earlier process, and returns its grade."""
        self._trials += 1
        self.answers.append(answer.model_copy(update={"trial": self._trials}))
        return answer.grade

    def _failed(self) -> Unjudged:
        invalid = {answer.outcome for answer in self.answers if answer.outcome is not TrialOutcome.ANSWERED}
        reason = next((reason for outcomes, reason in _REASONS if invalid <= outcomes), UnjudgedReason.INVALID_ANSWERS)
        return Unjudged(reason=reason)

    async def _wave(self, question: Question, count: int) -> list[Answer | None] | None:
        """Sends `count` requests at once; None when there is no money for all of them."""
        means, request, now_ms = self.means, self.request, self.means.now_ms()
        most = TokenUse(prompt=question.most_tokens, answer=means.settings.max_answer_tokens)
        most_cost = means.settings.prices.cost_of(most)
        promise = means.budget.promise(request.conversation_id, request.agent, most_cost * count, now_ms)
        if promise is None:
            return None
        self.wave = count
        with promise:
            trial = _Trial(question, most.prompt + most.answer, most_cost, promise)
            patience_ms = math.inf if means.waits_for_rate else _MOST_WAIT * max(0, self.deadline_ms - now_ms)
            waits_ms = means.rate_limit.reserve(time.monotonic() * MS_PER_SECOND, trial.most_tokens, count, patience_ms)
            if waits_ms is None:
                raise TimeoutError("the rate limit leaves no time for it")
            if means.waits_for_rate:
                self._postpone(waits_ms[-1])
            return await asyncio.gather(*(self._ask(trial, wait_ms) for wait_ms in waits_ms))

    def _postpone(self, wait_ms: float) -> None:
        """Moves the deadline by the longest wait of a wave."""
        self.deadline_ms += math.ceil(wait_ms)
        if self._limit is not None and (at := self._limit.when()) is not None:
            self._limit.reschedule(at + to_seconds(wait_ms))

    async def _ask(self, trial: "_Trial", wait_ms: float) -> Answer | None:
        """Sends one request in its turn, and returns its answer; None for an invalid one."""
        means = self.means
        self._trials += 1
        number = self._trials
        sent_at: float | None = None
        delivery = Delivery()
        reply: Reply | None = None
        try:
            await asyncio.sleep(to_seconds(wait_ms))
            async with means.slots:
                sent_at = time.monotonic()
                if self.first_sent_ms is None:
                    self.first_sent_ms = means.now_ms()
                reply = await means.endpoint.ask(
                    trial.question, to_seconds(means.settings.request_timeout_ms), delivery
                )
        finally:
            if sent_at is None:
                means.rate_limit.give_back(trial.most_tokens)
            elif reply is None:
                latency_ms = round((time.monotonic() - sent_at) * MS_PER_SECOND)
                cut_off = Reply(TrialOutcome.TIMED_OUT, requests=max(1, delivery.tries), latency_ms=latency_ms)
                self._learn(cut_off, delivery, None, number, trial)
                if (
                    means.now_ms() >= self.deadline_ms
                ):  # before that, it was cut off because another judge owns the question
                    means.breaker.failed(means.now_ms())
        answer = None
        if reply.outcome in _HAS_ANSWER:
            answer = read_answer(self.request.kind, means.settings.answer_form, reply.text, means.redactor)
        outcome = self._learn(reply, delivery, answer, number, trial)
        if outcome in _ENDPOINT_FAILED:
            means.breaker.failed(means.now_ms())
        else:
            means.breaker.succeeded()
        return answer

    def _raw(self, reply: Reply) -> str | None:
        """Returns the whole answer as a verdict keeps it; a refusal is none."""
        if not self.means.settings.keeps_raw_answers or reply.text is None or reply.outcome not in _HAS_ANSWER:
            return None
        return self.means.redactor.beginning(reply.text, MAX_RAW_ANSWER_CHARS)

    def _learn(
        self, reply: Reply, delivery: Delivery, answer: Answer | None, number: int, trial: "_Trial"
    ) -> TrialOutcome:
        """Notes the result of one request, and its cost."""
        means = self.means
        outcome = _outcome(reply, answer)
        used = reply.believed_tokens
        if used is None and reply.tokens is not None:
            delivery.faults.add("token_count")
        sent = max(0, reply.requests - delivery.tries_that_stayed)
        cost = 0.0
        if used is not None:
            cost = means.settings.prices.cost_of(used)
        elif sent and outcome in _PERHAPS_CHARGED:
            cost = trial.most_cost
        if sent:
            means.rate_limit.correct(trial.most_tokens, _all_of(used, trial.most_tokens), sent - 1)
        else:
            means.rate_limit.give_back(trial.most_tokens)
        trial.promise.settle(trial.most_cost, cost, means.now_ms())
        self.tokens += used or TokenUse()
        self.cost += cost
        self.requests += sent
        grade, explanation = (None, "") if answer is None else (answer.grade, answer.explanation)
        trial_answer = TrialAnswer(
            trial=number, outcome=outcome, grade=grade, explanation=explanation, raw=self._raw(reply),
            latency_ms=reply.latency_ms,
        )  # fmt: skip
        self.answers.append(trial_answer)
        if means.kept is not None and self.voting is not None and outcome in _IS_KEPT:
            means.kept.keep_answer(self.request, trial_answer)
        means.tally.request(reply, outcome, cost, delivery.faults)
        return outcome


@dataclass(frozen=True, slots=True)
class _Trial:
    """The common parts of the requests of one wave.

    Attributes:
        most_tokens: Most tokens of one request.
        most_cost: Highest cost of one request.
        promise: The money set aside for all requests.
    """

    question: Question
    most_tokens: int
    most_cost: float
    promise: Promise


def _all_of(used: TokenUse | None, most_tokens: int) -> int:
    """Returns the tokens of one request; without a count, the most it may have."""
    return most_tokens if used is None else used.prompt + used.answer


def _outcome(reply: Reply, answer: Answer | None) -> TrialOutcome:
    """Returns the outcome of the request after reading its text."""
    if answer is not None:
        return TrialOutcome.ANSWERED
    return TrialOutcome.UNREADABLE if reply.outcome is TrialOutcome.ANSWERED else reply.outcome
