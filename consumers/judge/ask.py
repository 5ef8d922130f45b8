"""Asks the judge: one question becomes requests, replies, votes and a verdict, within the bounds of
time and money.
"""

import asyncio
import contextlib
import hashlib
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Never, Protocol

import structlog

from consumers.engine.goals.questions import Voting
from consumers.engine.redaction.redactor import Redactor
from consumers.judge.limits import (
    Breaker,
    Budget,
    BudgetName,
    Promise,
    RateLimit,
    WaitingLine,
    WaitingQuestion,
)
from consumers.judge.prompts import (
    JudgePrompt,
    ParsedAnswer,
    not_applicable_to,
    question_of,
    read_answer,
)
from consumers.judge.reply import Asks, Reply, ReplyFault, RequestTries
from consumers.judge.settings import JudgeSettings
from consumers.runtime.process import end_tasks, wall_clock_ms
from consumers.runtime.registry import Instruments
from schemas.closed_sets import JudgeKind, TrialOutcome, UnjudgedReason
from schemas.judging import (
    MAX_RAW_ANSWER_CHARS,
    MAX_TRANSCRIPT_CHARS,
    Judged,
    JudgeRequest,
    JudgeVerdict,
    NotRateable,
    Rated,
    TokenUse,
    TrialAnswer,
    Unjudged,
    VerdictResult,
    Votes,
    is_known_prompt,
    transcript_chars,
)
from schemas.units import MS_PER_SECOND, to_seconds

# Counts the judge's requests and verdicts.


class JudgeCounts:
    """The judge's counters."""

    def __init__(self, instruments: Instruments, model: str) -> None:
        self._instruments = instruments
        self._model = model

    def request(
        self,
        reply: Reply,
        outcome: TrialOutcome,
        used: TokenUse | None,
        cost: float,
        faults: Collection[ReplyFault],
    ) -> None:
        """Counts a finished request to the model, with its retries, and the tokens that it used as
        far as they are known.
        """
        labels = (self._model, outcome)
        self._instruments.inc("callgauge_judge_requests_total", labels)
        self._instruments.observe(
            "callgauge_judge_request_seconds", labels, to_seconds(reply.latency_ms)
        )
        self._instruments.inc("callgauge_judge_retries_total", (self._model,), reply.requests - 1)
        self._instruments.inc("callgauge_judge_cost_total", labels, cost)
        for fault in faults:
            self._instruments.inc("callgauge_judge_reply_faults_total", (self._model, fault))
        tokens = used or TokenUse()
        for kind, count in (
            ("prompt", tokens.prompt - tokens.cached),
            ("cached", tokens.cached),
            ("answer", tokens.answer),
        ):
            self._instruments.inc("callgauge_judge_tokens_total", (*labels, kind), max(0, count))

    def verdict(self, verdict: JudgeVerdict, redactions: Counter[str]) -> None:
        """Counts a verdict, and the redactions in answers since the last verdict, which it then
        clears.
        """
        for kind, count in redactions.items():
            self._instruments.inc("callgauge_judge_redactions_total", (kind,), count)
        redactions.clear()
        self._instruments.inc(
            "callgauge_judge_verdicts_total", (verdict.kind, _outcome_of(verdict))
        )
        self._instruments.observe(
            "callgauge_judge_verdict_seconds", (verdict.kind,), to_seconds(verdict.latency_ms)
        )
        if not verdict.votes.is_unanimous:
            self._instruments.inc("callgauge_judge_votes_not_unanimous_total", (self._model,))


def _outcome_of(verdict: JudgeVerdict) -> str:
    match verdict.result:
        case Judged(is_completed=is_completed):
            return "complete" if is_completed else "incomplete"
        case Rated():
            return "rated"
        case NotRateable():
            return "not_applicable"
        case Unjudged(reason=reason):
            return reason


# The parts of a judge that all its questions share.


class KeepsAnswers(Protocol):
    """Keeps single answers, so that a question that a process left open is not asked
    again whole.
    """

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
        waits_for_rate: Whether requests wait for the rate as long as it takes, and the deadline
            with them.
        invalid: Gets the beginning of each answer that is none, redacted.
    """

    settings: JudgeSettings
    endpoint: Asks
    budget: Budget
    rate_limit: RateLimit
    breaker: Breaker
    tally: JudgeCounts
    slots: asyncio.Semaphore
    now_ms: Callable[[], int]
    redactor: Redactor
    kept: KeepsAnswers | None = None
    waits_for_rate: bool = False
    invalid: deque[str] = field(default_factory=lambda: deque(maxlen=1))


# Puts one question to the model, in waves and within the limits, until it is decided.

_ENDPOINT_FAILED: Final = frozenset(
    {
        TrialOutcome.RATE_LIMITED,
        TrialOutcome.REJECTED,
        TrialOutcome.UNAVAILABLE,
        TrialOutcome.TIMED_OUT,
    }
)
_HAS_ANSWER: Final = frozenset({TrialOutcome.ANSWERED, TrialOutcome.TRUNCATED})
_REASONS: Final = (
    (frozenset({TrialOutcome.REFUSED}), UnjudgedReason.REFUSED),
    (frozenset({TrialOutcome.REJECTED}), UnjudgedReason.REJECTED),
    (_ENDPOINT_FAILED, UnjudgedReason.UNAVAILABLE),
)
"""Reason of a failed vote by the outcomes of its invalid answers. Other mixtures are
`INVALID_ANSWERS`.
"""

_PERHAPS_CHARGED: Final = frozenset(TrialOutcome) - {
    TrialOutcome.RATE_LIMITED,
    TrialOutcome.REJECTED,
    TrialOutcome.UNAVAILABLE,
}
"""Outcomes that cost the highest possible amount if the tokens were not counted, or by a count that
cannot be. Errors, and requests that never reached the endpoint, cost nothing.
"""


_IS_KEPT: Final = frozenset(
    {TrialOutcome.ANSWERED, TrialOutcome.UNREADABLE, TrialOutcome.TRUNCATED, TrialOutcome.REFUSED}
)
"""Outcomes that are the model's own answer. The others are failures of the endpoint, so their trial
is asked again.
"""

_MOST_WAIT: Final = 0.5
"""Part of the time that is left in which a request may wait for the rate. The rest is for its
answer: a request that is cut off is paid all the same.
"""


@dataclass(slots=True)
class Poll:
    """The trials of one question so far. After a cut-off at the deadline, it has the results until
    then.

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
            self.voting = Voting(
                request.trials, stops_early=request.stops_early, retry_waves=request.retry_waves
            )
            self.wave = self.voting.next_wave
            if self.means.kept is not None:
                self._kept.extend(self.means.kept.answers_to(request))

    @property
    def votes(self) -> Votes:
        """Votes of the trials; all zero for EVA's metrics."""
        voting = self.voting
        if voting is None:
            return Votes()
        return Votes(
            complete=voting.votes_complete,
            incomplete=voting.votes_incomplete,
            invalid=voting.votes_invalid,
        )

    async def run(self) -> VerdictResult:
        """Asks until there is a result.

        Raises:
            TimeoutError: There is none by the deadline.
        """
        async with asyncio.timeout(
            to_seconds(max(0, self.deadline_ms - self.means.now_ms()))
        ) as self._limit:
            return await self._result()

    async def _result(self) -> VerdictResult:
        question = question_of(self.request, self.means.settings.answer_form)
        if self.voting is not None:
            return await self._vote(question, self.voting)
        answers = await self._wave(question, 1)
        if answers is None:
            return Unjudged(reason=UnjudgedReason.OVER_BUDGET)
        return (
            self._failed() if answers[0] is None or answers[0].rating is None else answers[0].rating
        )

    async def _vote(self, question: JudgePrompt, voting: Voting) -> VerdictResult:
        while voting.next_wave:
            grades = [
                self._recall(self._kept.popleft())
                for _ in range(min(voting.next_wave, len(self._kept)))
            ]
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
        invalid = {
            answer.outcome for answer in self.answers if answer.outcome is not TrialOutcome.ANSWERED
        }
        reason = next(
            (reason for outcomes, reason in _REASONS if invalid <= outcomes),
            UnjudgedReason.INVALID_ANSWERS,
        )
        return Unjudged(reason=reason)

    async def _wave(self, question: JudgePrompt, count: int) -> list[ParsedAnswer | None] | None:
        """Sends `count` requests at once; None when there is no money for all of them."""
        means, request, now_ms = self.means, self.request, self.means.now_ms()
        most = TokenUse(prompt=question.most_tokens, answer=means.settings.max_answer_tokens)
        most_cost = means.settings.prices.cost_of(most)
        promise = means.budget.promise(
            request.conversation_id, request.agent, most_cost * count, now_ms
        )
        if promise is None:
            return None
        self.wave = count
        with promise:
            trial = _Trial(question, most.prompt + most.answer, most_cost, promise)
            patience_ms = (
                math.inf if means.waits_for_rate else _MOST_WAIT * max(0, self.deadline_ms - now_ms)
            )
            waits_ms = means.rate_limit.reserve(
                time.monotonic() * MS_PER_SECOND, trial.most_tokens, count, patience_ms
            )
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

    async def _ask(self, trial: "_Trial", wait_ms: float) -> ParsedAnswer | None:
        """Sends one request in its turn, and returns its answer; None for an invalid one."""
        means = self.means
        self._trials += 1
        number = self._trials
        sent_at: float | None = None
        delivery = RequestTries()
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
                cut_off = Reply(
                    TrialOutcome.TIMED_OUT, requests=max(1, delivery.tries), latency_ms=latency_ms
                )
                self._learn(cut_off, delivery, None, number, trial)
                if (
                    means.now_ms() >= self.deadline_ms
                ):  # before that, it was cut off because another judge owns the question
                    means.breaker.failed(means.now_ms())
        answer = None
        if reply.outcome in _HAS_ANSWER:
            form, left_out = means.settings.answer_form, not_applicable_to(self.request)
            answer = read_answer(self.request.kind, form, reply.text, means.redactor, left_out)
            if answer is None:
                means.invalid.append(
                    means.redactor.beginning(reply.text or "", MAX_RAW_ANSWER_CHARS)
                )
        outcome = self._learn(reply, delivery, answer, number, trial)
        if outcome in _ENDPOINT_FAILED:
            means.breaker.failed(means.now_ms())
        else:
            means.breaker.succeeded()
        return answer

    def _raw(self, reply: Reply) -> str | None:
        """Returns the whole answer as a verdict keeps it; a refusal is none."""
        if (
            not self.means.settings.keeps_raw_answers
            or reply.text is None
            or reply.outcome not in _HAS_ANSWER
        ):
            return None
        return self.means.redactor.beginning(reply.text, MAX_RAW_ANSWER_CHARS)

    def _learn(
        self,
        reply: Reply,
        delivery: RequestTries,
        answer: ParsedAnswer | None,
        number: int,
        trial: "_Trial",
    ) -> TrialOutcome:
        """Notes the result of one request, and its cost."""
        means = self.means
        outcome = _outcome(reply, answer)
        used = reply.believed_tokens(trial.question.chars)
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
        raw = self._raw(reply)
        trial_answer = TrialAnswer(
            trial=number,
            outcome=outcome,
            grade=grade,
            explanation=explanation,
            raw=raw,
            latency_ms=reply.latency_ms,
        )
        self.answers.append(trial_answer)
        if means.kept is not None and self.voting is not None and outcome in _IS_KEPT:
            means.kept.keep_answer(self.request, trial_answer)
        means.tally.request(reply, outcome, used, cost, delivery.faults)
        return outcome


@dataclass(frozen=True, slots=True)
class _Trial:
    """The common parts of the requests of one wave.

    Attributes:
        most_tokens: Most tokens of one request.
        most_cost: Highest cost of one request.
        promise: The money set aside for all requests.
    """

    question: JudgePrompt
    most_tokens: int
    most_cost: float
    promise: Promise


def _all_of(used: TokenUse | None, most_tokens: int) -> int:
    """Returns the tokens of one request; without a count, the most it may have."""
    return most_tokens if used is None else used.prompt + used.answer


def _outcome(reply: Reply, answer: ParsedAnswer | None) -> TrialOutcome:
    """Returns the outcome of the request after reading its text."""
    if answer is not None:
        return TrialOutcome.ANSWERED
    return TrialOutcome.UNREADABLE if reply.outcome is TrialOutcome.ANSWERED else reply.outcome


# Builds the verdict on a question.

MAX_KEPT_ANSWERS: Final = 100
"""Answers kept in a verdict, the newest, so that it fits a Kafka record with any number
of trials.
"""
MAX_RAW_CHARS: Final = 100_000
"""Characters of all whole answers in a verdict, for the same reason; of the others, grade and
explanation are kept.
"""
_COST_DIGITS: Final = 9


def verdict_of(
    request: JudgeRequest, result: VerdictResult, poll: Poll | None, *, arrived_ms: int, now_ms: int
) -> JudgeVerdict:
    """Builds the record of a verdict.

    Args:
        request: The question.
        result: The decision, or why there is none.
        poll: The trials; None when the model was not asked.
        arrived_ms: When the question arrived at this judge.
        now_ms: The time of the verdict.
    """
    answered = JudgeVerdict(
        timestamp=now_ms,
        request_id=request.request_id,
        conversation_id=request.conversation_id,
        kind=request.kind,
        turn=request.turn,
        goal_set=request.goal_set,
        subgoal_id=request.subgoal_id,
        input_hash=request.input_hash,
        prompt_version=request.prompt_version,
        result=result,
        agent=request.agent,
        waited_ms=max(0, now_ms - arrived_ms),
        latency_ms=max(0, now_ms - arrived_ms),
    )
    if poll is None or not poll.answers:
        return answered
    asked = {
        "votes": poll.votes,
        "answers": _kept(poll.answers),
        "confidence": poll.votes.confidence,
        "model": poll.means.settings.model,
        "tokens": poll.tokens,
        "cost": round(poll.cost, _COST_DIGITS),
        "requests": poll.requests,
        "waited_ms": max(0, (poll.first_sent_ms or now_ms) - arrived_ms),
    }
    return answered.model_copy(update=asked)


def _kept(answers: Iterable[TrialAnswer]) -> tuple[TrialAnswer, ...]:
    """Returns the answers in the order of asking, as far as they fit."""
    newest_first = sorted(answers, key=lambda answer: answer.trial, reverse=True)[:MAX_KEPT_ANSWERS]
    kept = []
    left = MAX_RAW_CHARS
    for answer in newest_first:
        left -= len(answer.raw or "")
        kept.append(answer if left >= 0 else answer.model_copy(update={"raw": None}))
    return tuple(reversed(kept))


# Answers questions, each once, in order of urgency and by its deadline, with a verdict or the
# reason why there is none.

LONGEST_VERDICT_MS: Final = 600_000
"""Longest that a verdict may take, whatever deadline its question names."""
MAX_WAITING_QUESTIONS: Final = 2_000
"""Questions that wait, some 20 kB each; the least urgent of more is not asked."""
BREAKER_FAILURES: Final = 10
"""Failures in a row after which the endpoint is left alone."""
BREAKER_PAUSE_MS: Final = 15_000
"""How long it is left alone."""
LEAST_PAUSE_MS: Final = 100
"""Shortest pause before checking again whether a broken endpoint may be tried."""
_HASH_VALUES: Final = 2**64

log = structlog.get_logger()


def is_sampled(conversation_id: str, ratio: float) -> bool:
    """Whether a call is in the sample. Only its id decides, so the result is the same for all
    questions, processes and restarts.
    """
    digest = hashlib.blake2b(conversation_id.encode(), digest_size=8, person=b"sample").digest()
    return int.from_bytes(digest, "big") < ratio * _HASH_VALUES


@dataclass(frozen=True, slots=True)
class _Running:
    waiting: WaitingQuestion
    poll: Poll
    task: "asyncio.Task[None]"


class QuestionAnswerer:
    """Answers the questions of one process. It knows nothing of Kafka.

    Attributes:
        budget: The money spent and left.
        invalid: The beginning of the newest answer that was none, redacted; empty before the first.
    """

    def __init__(
        self,
        settings: JudgeSettings,
        instruments: Instruments,
        endpoint: Asks | None = None,
        redactor: Redactor | None = None,
        kept: KeepsAnswers | None = None,
        *,
        waits_for_rate: bool = False,
    ) -> None:
        """Builds its parts; `run` starts to ask. Call it inside a running event loop.

        Args:
            settings: Endpoint, rates and budgets.
            instruments: Built for the role `judge`, perhaps among others.
            endpoint: Replaces the endpoint of the settings in tests.
            redactor: Redacts the model's explanations; None for the default rules.
            kept: Keeps each answer to a subgoal's question over the end of the process; None keeps
                none.
            waits_for_rate: Whether the time for an answer begins when a question is put to the
                model, and is longer by the time that its requests wait for the rate. For recorded
                calls, where no verdict is awaited.
        """
        self.invalid: deque[str] = deque(maxlen=1)
        self._redactor = redactor or Redactor()
        self._kept = kept
        self._waits_for_rate = waits_for_rate
        self._settings = settings
        self._endpoint = endpoint if endpoint is not None else _endpoint_of(settings)
        self.budget = Budget(settings.allowance)
        self._breaker = Breaker(BREAKER_FAILURES, BREAKER_PAUSE_MS)
        self._tally = JudgeCounts(instruments, settings.model)
        self._line = WaitingLine(MAX_WAITING_QUESTIONS)
        self._rate_limit = RateLimit(
            settings.max_requests_per_minute, settings.max_tokens_per_minute
        )
        self._slots = asyncio.Semaphore(settings.max_concurrent_requests)
        self._promised: dict[str, asyncio.Future[JudgeVerdict]] = {}
        self._running: dict[int, _Running] = {}
        self._numbers = 0
        self._is_finishing = False
        self._changed = asyncio.Event()
        self._failure: asyncio.Future[Never] = asyncio.get_running_loop().create_future()
        instruments.read_gauge(
            "callgauge_judge_waiting_questions", lambda: {(): float(len(self._line))}
        )
        instruments.read_gauge("callgauge_judge_waiting_seconds", self._waiting_seconds)
        instruments.read_gauge("callgauge_judge_budget_left", self._budget_left)

    def ask(self, request: JudgeRequest) -> "asyncio.Future[JudgeVerdict]":
        """Starts to answer a question. If it is asked again meanwhile, both get the same verdict.

        Returns:
            The future verdict, done by the deadline while `run` runs. It is cancelled when the
            question is withdrawn.
        """
        known = self._promised.get(request.request_id)
        if known is not None:
            return known
        promised: asyncio.Future[JudgeVerdict] = asyncio.get_running_loop().create_future()
        self._promised[request.request_id] = promised
        now_ms = wall_clock_ms()
        self._numbers += 1
        deadline_ms = min(request.deadline_ms, now_ms + LONGEST_VERDICT_MS)
        waiting = WaitingQuestion(request, now_ms, deadline_ms, self._numbers)
        if (reason := self._obstacle(request, now_ms)) is not None:
            self._answer(waiting, Unjudged(reason=reason))
            return promised
        for leaving, why in list(self._line.put(waiting)):
            self._answer(leaving, Unjudged(reason=why))
        self._changed.set()
        return promised

    def withdraw(self, request_ids: Collection[str]) -> None:
        """Drops questions that another judge owns now."""
        self._line.withdraw(request_ids)
        for running in self._running.values():
            if running.waiting.request_id in request_ids:
                running.task.cancel()
        for request_id in request_ids:
            if (promised := self._promised.pop(request_id, None)) is not None:
                promised.cancel()

    async def finish(self) -> None:
        """Starts no more questions, and waits for those in progress."""
        self._is_finishing = True
        if self._running:
            await asyncio.wait([running.task for running in self._running.values()])

    async def run(self) -> Never:
        """Puts questions to the model until cancelled.

        Raises:
            Exception: A fault of callgauge. Faults of the model or the network become verdicts.
        """
        try:
            while True:
                self._changed.clear()
                self._start_what_may()
                await self._until_something_changes()
                if self._failure.done():
                    self._failure.result()
        finally:
            await end_tasks(running.task for running in self._running.values())
            if self._endpoint is not None:
                await self._endpoint.close()

    def _obstacle(self, request: JudgeRequest, now_ms: int) -> UnjudgedReason | None:
        """Returns the reason why the question will never be put to the model; None if it may be."""
        settings = self._settings
        if self._endpoint is None:
            return UnjudgedReason.JUDGE_DISABLED
        if not is_sampled(request.conversation_id, settings.sample_ratio):
            return UnjudgedReason.NOT_SAMPLED
        if not is_known_prompt(request.kind, request.prompt_version, request.template):
            return UnjudgedReason.UNKNOWN_PROMPT
        if transcript_chars(request.transcript) > MAX_TRANSCRIPT_CHARS:
            return UnjudgedReason.TOO_LONG
        return UnjudgedReason.DEADLINE if request.deadline_ms <= now_ms else None

    def _start_what_may(self) -> None:
        now_ms = wall_clock_ms()
        late = UnjudgedReason.CIRCUIT_OPEN if self._breaker.is_open else UnjudgedReason.DEADLINE
        for expired in self._line.expired(now_ms):
            self._answer(expired, Unjudged(reason=late))
        # No more than there are places for: who waits for a place cannot be overtaken by somebody
        # more urgent.
        while (
            self._room() > 0
            and not self._breaker.wait_ms(now_ms)
            and (waiting := self._line.pop()) is not None
        ):
            self._breaker.begin(now_ms)
            self._start(waiting)

    def _room(self) -> int:
        if self._is_finishing:
            return 0
        busy = sum(running.poll.wave for running in self._running.values())
        return self._settings.max_concurrent_requests - busy

    def _start(self, waiting: WaitingQuestion) -> None:
        if self._endpoint is None:
            raise RuntimeError("a question waits although no model can be asked")
        means = Means(
            settings=self._settings,
            endpoint=self._endpoint,
            budget=self.budget,
            rate_limit=self._rate_limit,
            breaker=self._breaker,
            tally=self._tally,
            slots=self._slots,
            now_ms=wall_clock_ms,
            redactor=self._redactor,
            kept=self._kept,
            waits_for_rate=self._waits_for_rate,
            invalid=self.invalid,
        )
        waited_ms = wall_clock_ms() - waiting.arrived_ms if self._waits_for_rate else 0
        poll = Poll(waiting.request, means, waiting.deadline_ms + waited_ms)
        task = asyncio.create_task(
            self._decide(waiting, poll), name=f"judge-{waiting.request_id[:8]}"
        )
        self._running[waiting.number] = _Running(waiting, poll, task)
        task.add_done_callback(lambda ended: self._ended(waiting, ended))

    async def _decide(self, waiting: WaitingQuestion, poll: Poll) -> None:
        result: VerdictResult
        try:
            result = await poll.run()
        except TimeoutError:
            result = Unjudged(reason=UnjudgedReason.DEADLINE)
        self._answer(waiting, result, poll)

    def _ended(self, waiting: WaitingQuestion, task: "asyncio.Task[None]") -> None:
        del self._running[waiting.number]
        self._line.finished(waiting)
        self._changed.set()
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _answer(
        self, waiting: WaitingQuestion, result: VerdictResult, poll: Poll | None = None
    ) -> None:
        promised = self._promised.pop(waiting.request_id, None)
        if promised is None:  # withdrawn
            return
        verdict = verdict_of(
            waiting.request, result, poll, arrived_ms=waiting.arrived_ms, now_ms=wall_clock_ms()
        )
        self._tally.verdict(verdict, self._redactor.counts)
        # the asker does not wait any more; the cost is counted all the same
        if not promised.cancelled():
            promised.set_result(verdict)

    async def _until_something_changes(self) -> None:
        """Waits until a question arrives or ends, the next deadline passes, or a broken endpoint
        may be tried.
        """
        now_ms = wall_clock_ms()
        due_ms = (
            [] if self._line.next_deadline_ms is None else [self._line.next_deadline_ms - now_ms]
        )
        if len(self._line) and self._breaker.is_open:
            due_ms.append(max(LEAST_PAUSE_MS, self._breaker.wait_ms(now_ms)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(to_seconds(max(1, min(due_ms))) if due_ms else None):
                await self._changed.wait()

    def _waiting_seconds(self) -> Mapping[tuple[str, ...], float]:
        oldest_ms = self._line.oldest_ms
        return {(): 0.0 if oldest_ms is None else to_seconds(max(0, wall_clock_ms() - oldest_ms))}

    def _budget_left(self) -> Mapping[tuple[str, ...], float]:
        left: Mapping[BudgetName, float] = self.budget.left(wall_clock_ms())
        return {(name,): amount for name, amount in left.items()}


def _endpoint_of(settings: JudgeSettings) -> Asks | None:
    if not settings.is_on or settings.api_key is None:
        return None
    from consumers.judge.endpoint import Endpoint

    return Endpoint(settings, settings.api_key.get_secret_value())
