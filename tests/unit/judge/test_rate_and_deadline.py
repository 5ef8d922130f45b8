"""More questions than the rate lets through by their deadline: what is asked, what is paid, and how long it takes."""

import asyncio
import time
from collections.abc import Iterator
from typing import Final

import pytest

from consumers.judge import ask as asking
from consumers.judge.prompts import Question
from consumers.judge.reply import Delivery, Reply
from schemas.closed_sets import UnjudgedReason
from schemas.judging import JudgeVerdict, Unjudged
from streamer.offline import judge_in_process
from streamer.offline.judge_in_process import JudgeInProcess
from tests.support.calls.judge_questions import ScriptedEndpoint, answer, judge_settings, question, running_judge
from tests.support.jumping_loop import JumpingLoop

A_MINUTE: Final = 12
AT_ONCE: Final = 2
"""Two requests leave at once, then one each five seconds."""
ANSWER_SECONDS: Final = 4.0
DEADLINE_SECONDS: Final = 30
SETTINGS: Final = judge_settings(max_requests_per_minute=A_MINUTE)


class SlowEndpoint(ScriptedEndpoint):
    """Answers after some seconds; keeps the times at which it was asked."""

    def __init__(self) -> None:
        super().__init__(lambda _: answer("C"))
        self.asked_seconds: list[float] = []

    async def ask(self, question: Question, timeout_seconds: float, delivery: Delivery) -> Reply:
        self.asked_seconds.append(asyncio.get_running_loop().time())
        await asyncio.sleep(ANSWER_SECONDS)
        return await super().ask(question, timeout_seconds, delivery)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[JumpingLoop]:
    made = JumpingLoop()
    monkeypatch.setattr(time, "monotonic", made.time)
    for module in (asking, judge_in_process):
        monkeypatch.setattr(module, "wall_clock_ms", made.wall_clock_ms)
    yield made
    made.close()


def late(verdict: JudgeVerdict) -> bool:
    return verdict.result == Unjudged(reason=UnjudgedReason.DEADLINE)


def test_a_request_that_leaves_has_half_of_the_time_for_its_answer(loop: JumpingLoop) -> None:
    """A question without such a place is not asked, and so costs nothing."""
    endpoint = SlowEndpoint()
    begin = loop.time()

    async def ask() -> list[JudgeVerdict]:
        async with running_judge(SETTINGS, endpoint) as (judge, _):
            now_ms = loop.wall_clock_ms()
            given = {"trials": 1, "asked_at_ms": now_ms, "deadline_ms": now_ms + 1_000 * DEADLINE_SECONDS}
            return await asyncio.gather(*(judge.ask(question(subgoal_id=str(n), **given)) for n in range(10)))

    verdicts = loop.finish(ask())
    asked = [verdict for verdict in verdicts if verdict.requests]
    assert [round(at - begin) for at in endpoint.asked_seconds] == [0, 0, 5, 10, 15]
    assert len(asked) == 5
    assert not any(map(late, asked))
    assert all(late(verdict) and verdict.cost == 0 for verdict in verdicts if verdict not in asked)


@pytest.mark.parametrize("concurrent", [1, 3, 16])
def test_a_question_of_a_recorded_call_waits_for_the_rate_however_long(loop: JumpingLoop, concurrent: int) -> None:
    """Also between its trials: these three take two waves of two and one."""
    endpoint = SlowEndpoint()
    begin = loop.time()
    count, trials = 20, 3

    async def ask() -> list[JudgeVerdict]:
        settings = SETTINGS.model_copy(update={"max_concurrent_requests": concurrent})
        judge = JudgeInProcess(settings, endpoint)
        running = asyncio.create_task(judge.run())
        given = {"trials": trials, "stops_early": False, "asked_at_ms": 0, "deadline_ms": 1_000 * DEADLINE_SECONDS}
        questions = [question(subgoal_id=str(n), **given) for n in range(count)]
        verdicts = await asyncio.gather(*map(judge.answer_whatever_the_rate, questions))
        running.cancel()
        return verdicts

    verdicts = loop.finish(ask())
    assert not any(map(late, verdicts))
    assert [verdict.requests for verdict in verdicts] == [trials] * count
    rate_seconds = (count * trials - AT_ONCE) * 60 / A_MINUTE
    spent_seconds = loop.time() - begin
    assert rate_seconds <= spent_seconds
    if concurrent > 1:
        assert spent_seconds <= rate_seconds + 2 * ANSWER_SECONDS
