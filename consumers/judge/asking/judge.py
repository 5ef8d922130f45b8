"""Answers questions, each once, in order of urgency and by its deadline, with a verdict or the reason why there is none."""

import asyncio
import contextlib
import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Never

import structlog

from consumers.engine.redaction.redactor import Redactor
from consumers.judge.asking.means import KeepsAnswers, Means
from consumers.judge.asking.poll import Poll
from consumers.judge.asking.reply import Asks
from consumers.judge.asking.tally import Tally
from consumers.judge.asking.verdict import verdict_of
from consumers.judge.limits.breaker import Breaker
from consumers.judge.limits.rate_limit import RateLimit
from consumers.judge.limits.spending import Budget, BudgetName
from consumers.judge.limits.waiting_line import Waiting, WaitingLine
from consumers.judge.settings import JudgeSettings
from consumers.runtime.clock import wall_clock_ms
from consumers.runtime.registry import Instruments
from schemas.judging import (
    MAX_TRANSCRIPT_CHARS,
    JudgeKind,
    JudgeRequest,
    JudgeVerdict,
    Unjudged,
    UnjudgedReason,
    VerdictResult,
    is_known_prompt,
    transcript_chars,
)
from schemas.units import to_seconds

LEAST_PAUSE_MS: Final = 100
"""Shortest pause before checking again whether a broken endpoint may be tried."""
_HASH_VALUES: Final = 2**64

log = structlog.get_logger()


def is_sampled(conversation_id: str, ratio: float) -> bool:
    """Whether a call is in the sample. Only its id decides, so the result is the same for all questions, processes and restarts."""
    digest = hashlib.blake2b(conversation_id.encode(), digest_size=8, person=b"sample").digest()
    return int.from_bytes(digest, "big") < ratio * _HASH_VALUES


@dataclass(frozen=True, slots=True)
class _Running:
    waiting: Waiting
    poll: Poll
    task: "asyncio.Task[None]"


class Judge:
    """Answers the questions of one process. It knows nothing of Kafka.

    Attributes:
        budget: The money spent and left.
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
            kept: Keeps each answer to a subgoal's question over the end of the process; None keeps none.
            waits_for_rate: Whether the time for an answer begins when a question is put to the model, and is longer by the time that
                its requests wait for the rate. For recorded calls, where nobody waits for a verdict.
        """
        self._redactor = redactor or Redactor()
        self._kept = kept
        self._waits_for_rate = waits_for_rate
        self._settings = settings
        self._endpoint = endpoint if endpoint is not None else _endpoint_of(settings)
        self.budget = Budget(settings.allowance)
        self._breaker = Breaker(settings.breaker_failures, settings.breaker_pause_ms)
        self._tally = Tally(instruments, settings.model)
        self._line = WaitingLine(settings.max_waiting_questions, skips_superseded=settings.skips_superseded)
        self._rate_limit = RateLimit(settings.max_requests_per_minute, settings.max_tokens_per_minute)
        self._slots = asyncio.Semaphore(settings.max_concurrent_requests)
        self._promised: dict[str, asyncio.Future[JudgeVerdict]] = {}
        self._running: dict[int, _Running] = {}
        self._numbers = 0
        self._is_finishing = False
        self._changed = asyncio.Event()
        self._failure: asyncio.Future[Never] = asyncio.get_running_loop().create_future()
        instruments.read_gauge("callgauge_judge_waiting_questions", lambda: {(): float(len(self._line))})
        instruments.read_gauge("callgauge_judge_waiting_seconds", self._waiting_seconds)
        instruments.read_gauge("callgauge_judge_budget_left", self._budget_left)

    def ask(self, request: JudgeRequest) -> "asyncio.Future[JudgeVerdict]":
        """Starts to answer a question. If it is asked again meanwhile, both get the same verdict.

        Returns:
            The future verdict, done by the deadline while `run` runs. It is cancelled when the question is withdrawn.
        """
        known = self._promised.get(request.request_id)
        if known is not None:
            return known
        promised: asyncio.Future[JudgeVerdict] = asyncio.get_running_loop().create_future()
        self._promised[request.request_id] = promised
        now_ms = wall_clock_ms()
        self._numbers += 1
        deadline_ms = min(request.deadline_ms, now_ms + self._settings.longest_verdict_ms)
        waiting = Waiting(request, now_ms, deadline_ms, self._numbers)
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
            tasks = [running.task for running in self._running.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._endpoint is not None:
                await self._endpoint.close()

    def _obstacle(self, request: JudgeRequest, now_ms: int) -> UnjudgedReason | None:
        """Returns the reason why the question will never be put to the model; None if it may be."""
        settings = self._settings
        is_off = request.kind is not JudgeKind.SUBGOAL and request.kind not in settings.text_judges
        if self._endpoint is None or is_off:
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
        # No more than there are places for: who waits for a place cannot be overtaken by somebody more urgent.
        while self._room() > 0 and not self._breaker.wait_ms(now_ms) and (waiting := self._line.take()) is not None:
            self._breaker.begin(now_ms)
            self._start(waiting)

    def _room(self) -> int:
        if self._is_finishing:
            return 0
        busy = sum(running.poll.wave for running in self._running.values())
        return self._settings.max_concurrent_requests - busy

    def _start(self, waiting: Waiting) -> None:
        if self._endpoint is None:
            raise RuntimeError("a question waits although nobody can be asked")
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
        )
        waited_ms = wall_clock_ms() - waiting.arrived_ms if self._waits_for_rate else 0
        poll = Poll(waiting.request, means, waiting.deadline_ms + waited_ms)
        task = asyncio.create_task(self._decide(waiting, poll), name=f"judge-{waiting.request_id[:8]}")
        self._running[waiting.number] = _Running(waiting, poll, task)
        task.add_done_callback(lambda ended: self._ended(waiting, ended))

    async def _decide(self, waiting: Waiting, poll: Poll) -> None:
        result: VerdictResult
        try:
            result = await poll.run()
        except TimeoutError:
            result = Unjudged(reason=UnjudgedReason.DEADLINE)
        self._answer(waiting, result, poll)

    def _ended(self, waiting: Waiting, task: "asyncio.Task[None]") -> None:
        del self._running[waiting.number]
        self._line.finished(waiting)
        self._changed.set()
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _answer(self, waiting: Waiting, result: VerdictResult, poll: Poll | None = None) -> None:
        promised = self._promised.pop(waiting.request_id, None)
        if promised is None:  # withdrawn
            return
        verdict = verdict_of(waiting.request, result, poll, arrived_ms=waiting.arrived_ms, now_ms=wall_clock_ms())
        self._tally.verdict(verdict, self._redactor.counts)
        if not promised.cancelled():  # the asker does not wait any more; the cost is counted all the same
            promised.set_result(verdict)

    async def _until_something_changes(self) -> None:
        """Waits until a question arrives or ends, the next deadline passes, or a broken endpoint may be tried."""
        now_ms = wall_clock_ms()
        due_ms = [] if self._line.next_deadline_ms is None else [self._line.next_deadline_ms - now_ms]
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
    from consumers.judge.asking.endpoint import (
        Endpoint,  # the client is a second of imports, which only who asks should pay
    )

    return Endpoint(settings, settings.api_key.get_secret_value())
