"""Questions for tests of the judge, and a judge that is asked them without Kafka."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from consumers.judge.ask import QuestionAnswerer
from consumers.judge.prompts import JudgePrompt
from consumers.judge.reply import Asks, Reply, RequestTries
from consumers.judge.settings import JudgeSettings
from consumers.runtime.registry import Instruments
from schemas.closed_sets import JudgeKind, TrialOutcome
from schemas.judging import PROMPT_VERSIONS, JudgeRequest, TranscriptItem

MESSAGE_CHARS = 200


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def talk(turns: int, chars: int = MESSAGE_CHARS) -> tuple[TranscriptItem, ...]:
    """A call of so many turns, each message of so many characters."""
    return tuple(
        TranscriptItem(
            turn=turn, kind=kind, text=f"{kind} in turn {turn}: ".ljust(chars, "w")[:chars]
        )
        for turn in range(1, turns + 1)
        for kind in ("user", "assistant")
    )


def question(**fields: Any) -> JudgeRequest:
    """A question about a subgoal after turn 1, unless `fields` say otherwise."""
    kind = JudgeKind(fields.pop("kind", JudgeKind.SUBGOAL))
    now_ms = wall_clock_ms()
    turn = fields.pop("turn", 1)
    given: dict[str, Any] = {
        "conversation_id": "c-1",
        "transcript": talk(turn, 40),
        "prompt_version": PROMPT_VERSIONS[kind],
        "asked_at_ms": now_ms,
        "deadline_ms": now_ms + 30_000,
        "agent": "ava",
    }
    if kind is JudgeKind.SUBGOAL:
        given |= {"subgoal_id": "booked", "subgoal": "The flight is booked."}
    return JudgeRequest(kind=kind, turn=turn, **(given | fields))


def judge_settings(**settings: Any) -> JudgeSettings:
    """With a key, and limits that no test meets by accident."""
    given = {
        "api_key": SecretStr("key"),
        "max_requests_per_minute": 1_000_000,
        "max_tokens_per_minute": 1_000_000_000,
        "budget_per_call": 1_000.0,
        "budget_per_agent_hour": 1_000.0,
        "budget_per_hour": 1_000.0,
    }
    return JudgeSettings.model_validate(given | settings)


@asynccontextmanager
async def running_judge(
    settings: JudgeSettings, endpoint: Asks | None = None
) -> AsyncIterator[tuple[QuestionAnswerer, Instruments]]:
    """A judge that works, and its counters."""
    instruments = Instruments(CollectorRegistry(), ["judge"])
    judge = QuestionAnswerer(settings, instruments, endpoint)
    running = asyncio.create_task(judge.run())
    try:
        yield judge, instruments
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def answer(letter: str, **more: Any) -> Reply:
    """A reply with a structured answer about a subgoal."""
    return Reply(
        TrialOutcome.ANSWERED, json.dumps({"explanation": "told", "grade": letter}), **more
    )


class ScriptedEndpoint:
    """An endpoint inside the process: answers by its script, while the gate is open.

    Attributes:
        questions: Questions to it, in order.
        most_at_once: Questions on their way at the same time.
        gate: While it is not set, nothing is answered.
    """

    def __init__(self, script: Callable[[JudgePrompt], Reply]) -> None:
        self.script = script
        self.questions: list[JudgePrompt] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.most_at_once = 0
        self.is_closed = False
        self._at_once = 0
        self._news = asyncio.Event()

    async def ask(
        self, question: JudgePrompt, timeout_seconds: float, delivery: RequestTries
    ) -> Reply:
        self.questions.append(question)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        self._news.set()
        try:
            await self.gate.wait()
            return self.script(question)
        finally:
            self._at_once -= 1

    async def close(self) -> None:
        self.is_closed = True

    async def until_asked(self, count: int) -> None:
        """Waits until so many questions have come."""
        while len(self.questions) < count:
            self._news.clear()
            await self._news.wait()


def in_turn(*replies: Reply) -> Callable[[JudgePrompt], Reply]:
    """A script of replies one after the other; the last is repeated."""
    left = list(replies)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]
