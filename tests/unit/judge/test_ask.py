"""The judge with an endpoint inside the process: its questions, its verdicts from the answers, and
when it gives up.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry

from consumers.judge import ask as asking
from consumers.judge.ask import QuestionAnswerer
from consumers.judge.prompts import JudgePrompt
from consumers.judge.reply import Reply, RequestTries
from consumers.runtime.registry import Instruments
from schemas.closed_sets import JudgeKind, TrialOutcome, UnjudgedReason
from schemas.judging import (
    MAX_TRANSCRIPT_CHARS,
    Judged,
    JudgeVerdict,
    NotRateable,
    Rated,
    TokenUse,
    TranscriptItem,
    Unjudged,
    Votes,
)
from schemas.units import HOUR_MS
from streamer.offline import judge_in_process
from streamer.offline.judge_in_process import JudgeInProcess
from tests.support.calls.judge_questions import (
    ScriptedEndpoint,
    answer,
    in_turn,
    judge_settings,
    question,
    running_judge,
    wall_clock_ms,
)
from tests.support.jumping_loop import JumpingLoop
from tests.support.patience import patient

C, I = answer("C"), answer("I")  # noqa: E741 - the grades are called so
X = Reply(TrialOutcome.ANSWERED, "no answer")
FAILED = Reply(TrialOutcome.UNAVAILABLE)
REFUSED = Reply(TrialOutcome.REFUSED, "no")
REJECTED = Reply(TrialOutcome.REJECTED)
LIMITED = Reply(TrialOutcome.RATE_LIMITED, requests=3)
REPLIES = {"C": C, "I": I, "X": X, "F": FAILED, "R": REFUSED, "J": REJECTED, "L": LIMITED}


def unjudged(reason: str) -> Unjudged:
    return Unjudged(reason=UnjudgedReason(reason))


async def verdict_on(
    replies: str | list[Reply], settings: dict[str, Any] | None = None, **fields: Any
) -> JudgeVerdict:
    script = [REPLIES[letter] for letter in replies] if isinstance(replies, str) else replies
    async with running_judge(
        judge_settings(**(settings or {})), ScriptedEndpoint(in_turn(*script))
    ) as (judge, _):
        return await judge.ask(question(**fields))


@asynccontextmanager
async def held(**settings: Any) -> AsyncIterator[tuple[QuestionAnswerer, ScriptedEndpoint]]:
    """A judge whose endpoint thinks until the test opens its gate; then every answer is C."""
    endpoint = ScriptedEndpoint(lambda _: C)
    endpoint.gate.clear()
    async with running_judge(judge_settings(**settings), endpoint) as (judge, _):
        yield judge, endpoint


@pytest.mark.parametrize(
    ("replies", "fields", "result", "asked"),
    [
        ("CCC", {}, True, 3),
        ("III", {}, False, 3),
        ("CCIC", {}, True, 4),
        ("CIICI", {}, False, 5),
        ("CCXC", {}, True, 4),
        ("CXIXC", {}, "invalid_answers", 5),
        ("X" * 3, {}, "invalid_answers", 3),
        ("FFF", {}, "unavailable", 3),
        ("FLF", {}, "unavailable", 3),
        ("RRR", {}, "refused", 3),
        ("JJJ", {}, "rejected", 3),
        ("RFX", {}, "invalid_answers", 3),
        ("C", {"trials": 1}, True, 1),
        ("CIC", {"stops_early": False, "trials": 3}, True, 3),
        ("CCICI", {"stops_early": False}, True, 5),
        ("CCXCC" + "C", {"stops_early": False}, True, 6),
        ("CCFCC" + "F" + "F", {"stops_early": False, "retry_waves": 2}, "unavailable", 7),
    ],
)
async def test_votes_are_agent_inspect_s(
    replies: str, fields: dict[str, Any], result: object, asked: int
) -> None:
    verdict = await verdict_on(replies, **fields)
    expected = Judged(is_completed=result) if isinstance(result, bool) else unjudged(str(result))
    assert verdict.result == expected
    assert [one.trial for one in verdict.answers] == list(range(1, asked + 1))
    assert sum(verdict.votes.model_dump().values()) == asked


async def test_a_verdict_tells_how_it_came_about() -> None:
    tokens = TokenUse(prompt=1_000, cached=400, answer=100)
    replies = [answer(letter, tokens=tokens, requests=2, latency_ms=7) for letter in "CCIC"]
    asked = question(subgoal_id="paid", goal_set={"id": "set", "digest": "d"}, turn=4)
    async with running_judge(judge_settings(), ScriptedEndpoint(in_turn(*replies))) as (
        judge,
        instruments,
    ):
        verdict = await judge.ask(asked)
    assert (verdict.votes, verdict.confidence) == (Votes(complete=3, incomplete=1), 0.75)
    assert verdict.tokens == TokenUse(prompt=4_000, cached=1_600, answer=400)
    assert verdict.cost == pytest.approx(4 * (600 * 2 + 400 * 0.5 + 100 * 8) / 1_000_000)
    assert (verdict.requests, verdict.model, verdict.agent) == (8, "gpt-4.1", "ava")
    assert [
        (one.outcome, one.grade, one.explanation, one.latency_ms) for one in verdict.answers
    ] == [(TrialOutcome.ANSWERED, letter == "C", "told", 7) for letter in "CCIC"]
    same = (
        "request_id",
        "conversation_id",
        "kind",
        "turn",
        "subgoal_id",
        "goal_set",
        "input_hash",
        "prompt_version",
    )
    assert [getattr(verdict, name) for name in same] == [getattr(asked, name) for name in same]
    assert JudgeVerdict.model_validate_json(verdict.model_dump_json()) == verdict
    read = instruments.registry.get_sample_value
    assert read("callgauge_judge_votes_not_unanimous_total", {"model": "gpt-4.1"}) == 1
    assert read("callgauge_judge_retries_total", {"model": "gpt-4.1"}) == 4
    labels = {"model": "gpt-4.1", "outcome": "answered"}
    assert read("callgauge_judge_tokens_total", {**labels, "kind": "prompt"}) == 2_400
    assert read("callgauge_judge_cost_total", labels) == pytest.approx(verdict.cost)


async def test_a_wave_and_the_subgoals_of_a_turn_are_asked_side_by_side() -> None:
    async with held() as (judge, endpoint):
        promised = [judge.ask(question(subgoal_id=name)) for name in "abc"]
        await endpoint.until_asked(9)
        endpoint.gate.set()
        await asyncio.gather(*promised)
    assert (len(endpoint.questions), endpoint.most_at_once) == (9, 9)
    assert endpoint.is_closed


async def test_no_more_are_on_their_way_than_may_be() -> None:
    async with held(max_concurrent_requests=4) as (judge, endpoint):
        promised = [judge.ask(question(subgoal_id=str(number))) for number in range(20)]
        await endpoint.until_asked(4)
        endpoint.gate.set()
        await asyncio.gather(*promised)
    assert (len(endpoint.questions), endpoint.most_at_once) == (60, 4)


async def test_a_call_at_risk_overtakes() -> None:
    async with held(max_concurrent_requests=1) as (judge, endpoint):
        first = judge.ask(question(subgoal="first", trials=1))
        await endpoint.until_asked(1)
        others = [
            judge.ask(question(subgoal=name, trials=1, subgoal_id=name))
            for name in ("second", "third")
        ]
        urgent = judge.ask(question(subgoal="urgent", trials=1, subgoal_id="urgent", priority=9))
        endpoint.gate.set()
        await asyncio.gather(first, urgent, *others)
    assert [asked.user.split("Subgoal: ")[1].split('"')[1] for asked in endpoint.questions] == [
        "first",
        "urgent",
        "second",
        "third",
    ]


async def test_the_same_question_is_asked_once() -> None:
    endpoint = ScriptedEndpoint(lambda _: C)
    async with running_judge(judge_settings(), endpoint) as (judge, _):
        again = question(deadline_ms=wall_clock_ms() + 60_000, asked_at_ms=5, priority=3)
        one, other = await asyncio.gather(judge.ask(question()), judge.ask(again))
    assert one is other
    assert len(endpoint.questions) == 3


@pytest.mark.parametrize(
    ("settings", "fields", "reason"),
    [
        ({"sample_ratio": 0}, {}, "not_sampled"),
        ({}, {"prompt_version": "subgoal.0"}, "unknown_prompt"),
        ({}, {"deadline_ms": 5}, "deadline"),
        ({"budget_per_call": 0}, {}, "over_budget"),
        ({"max_requests_per_minute": 1}, {}, "deadline"),
        (
            {},
            {
                "transcript": [TranscriptItem(turn=1, kind="user", text="x" * 30_000)]
                * (MAX_TRANSCRIPT_CHARS // 30_000 + 1)
            },
            "too_long",
        ),
    ],
)
async def test_why_nobody_is_asked(
    settings: dict[str, Any], fields: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "LONGEST_VERDICT_MS", 1_000)
    endpoint = ScriptedEndpoint(lambda _: C)
    async with running_judge(judge_settings(**settings), endpoint) as (judge, instruments):
        verdict = await judge.ask(question(**fields))
    assert verdict.result == unjudged(reason)
    assert (verdict.model, verdict.requests, verdict.cost, verdict.confidence) == ("", 0, 0.0, None)
    assert endpoint.questions == []
    labels = {"kind": verdict.kind, "outcome": reason}
    assert instruments.registry.get_sample_value("callgauge_judge_verdicts_total", labels) == 1


@pytest.mark.parametrize("settings", [{"api_key": None}, {"enabled": False}])
async def test_without_a_key_or_switched_off_it_says_so_at_once(settings: dict[str, Any]) -> None:
    async with running_judge(judge_settings(**settings)) as (judge, _):
        promised = judge.ask(question())
        assert promised.done()
    assert promised.result().result == unjudged("judge_disabled")


async def test_money_that_runs_out_in_the_middle_ends_the_vote() -> None:
    """Three answers are paid for; the fourth would be too many, so there is no verdict, and no
    guess.
    """
    tokens = TokenUse(prompt=100_000, answer=10)
    settings = {"budget_per_call": 0.605, "price_prompt": 2.0}
    verdict = await verdict_on([answer(letter, tokens=tokens) for letter in "CCIC"], settings)
    assert verdict.result == unjudged("over_budget")
    assert verdict.votes == Votes(complete=2, incomplete=1)
    assert verdict.cost == pytest.approx(0.6, abs=0.001)


async def test_what_is_not_counted_costs_what_it_may_and_an_error_nothing() -> None:
    assert (await verdict_on("CCC")).cost > 3 * 1_000 * 8 / 1_000_000
    assert (await verdict_on("FFF")).cost == 0
    assert (await verdict_on("JJJ")).cost == 0


async def test_the_deadline_ends_what_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "LONGEST_VERDICT_MS", 50)
    endpoint = ScriptedEndpoint(lambda _: C)
    endpoint.gate.clear()
    async with (
        running_judge(judge_settings(), endpoint) as (judge, _),
        asyncio.timeout(patient(10)),
    ):
        verdict = await judge.ask(question())
        assert endpoint._at_once == 0
    assert verdict.result == unjudged("deadline")
    assert [one.outcome for one in verdict.answers] == [TrialOutcome.TIMED_OUT] * 3
    assert verdict.votes == Votes()
    assert verdict.cost > 0  # the endpoint may charge for it all the same


async def test_who_waits_behind_a_slow_endpoint_is_told_by_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "LONGEST_VERDICT_MS", 50)
    async with held(max_concurrent_requests=1) as (judge, _):
        verdicts = await asyncio.gather(
            *(judge.ask(question(subgoal_id=str(number))) for number in range(10))
        )
    assert {verdict.result for verdict in verdicts} == {unjudged("deadline")}


async def test_an_endpoint_that_fails_is_left_alone_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "BREAKER_FAILURES", 3)
    monkeypatch.setattr(asking, "BREAKER_PAUSE_MS", 30)
    endpoint = ScriptedEndpoint(in_turn(*[FAILED] * 3, C))
    async with running_judge(judge_settings(), endpoint) as (judge, _):
        opened = []
        for name, result in (("a", unjudged("unavailable")), ("b", Judged(is_completed=True))):
            assert (await judge.ask(question(subgoal_id=name))).result == result
            opened.append(judge._breaker.is_open)
    assert opened == [True, False]
    assert len(endpoint.questions) == 6


async def test_one_question_tries_whether_it_answers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "BREAKER_FAILURES", 3)
    monkeypatch.setattr(asking, "BREAKER_PAUSE_MS", 300)
    endpoint = ScriptedEndpoint(in_turn(*[FAILED] * 3, C))
    settings = judge_settings(max_concurrent_requests=30)
    async with running_judge(settings, endpoint) as (judge, _):
        await judge.ask(question(subgoal_id="a"))
        endpoint.gate.clear()
        promised = [judge.ask(question(subgoal_id=name)) for name in "bcde"]
        await endpoint.until_asked(6)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(endpoint.questions) == 6
        endpoint.gate.set()
        await asyncio.gather(*promised)
    assert len(endpoint.questions) == 3 + 4 * 3


async def test_while_it_is_left_alone_questions_wait_and_are_told_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "BREAKER_FAILURES", 3)
    monkeypatch.setattr(asking, "BREAKER_PAUSE_MS", 60000)
    endpoint = ScriptedEndpoint(lambda _: FAILED)
    async with running_judge(judge_settings(), endpoint) as (judge, _):
        await judge.ask(question(subgoal_id="a"))
        verdict = await judge.ask(question(subgoal_id="b", deadline_ms=wall_clock_ms() + 60))
    assert verdict.result == unjudged("circuit_open")
    assert len(endpoint.questions) == 3


async def test_a_full_line_sheds_the_least_urgent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MAX_WAITING_QUESTIONS", 2)
    async with held(max_concurrent_requests=1) as (judge, endpoint):
        first = judge.ask(question(subgoal_id="first"))
        await endpoint.until_asked(1)
        waiting = [judge.ask(question(subgoal_id=name)) for name in "ab"]
        assert judge.ask(question(subgoal_id="late")).result().result == unjudged("queue_full")
        urgent = judge.ask(question(subgoal_id="urgent", priority=1))
        assert waiting[1].result().result == unjudged("queue_full")
        endpoint.gate.set()
        await asyncio.gather(first, waiting[0], urgent)


async def test_progression_is_asked_one_at_a_time_for_each_call() -> None:
    endpoint = ScriptedEndpoint(lambda _: X)
    endpoint.gate.clear()
    kind = JudgeKind.CONVERSATION_PROGRESSION
    async with running_judge(judge_settings(), endpoint) as (judge, _):
        promised = [judge.ask(question(kind=kind, turn=turn)) for turn in (1, 2, 3)]
        await endpoint.until_asked(1)
        promised.append(judge.ask(question(kind=kind, turn=1, conversation_id="other")))
        await endpoint.until_asked(2)
        later = judge.ask(question(kind=kind, turn=4))
        assert len(endpoint.questions) == 2
        endpoint.gate.set()
        verdicts = await asyncio.gather(*promised, later)
    superseded = [verdict.result == unjudged("superseded") for verdict in verdicts]
    assert superseded.count(True) == len(verdicts) - len(endpoint.questions)
    assert superseded[3:] == [False, False]


def rates(**fields: Any) -> Reply:
    told = ", ".join(f'"{name}": {value}' for name, value in fields.items())
    return Reply(TrialOutcome.ANSWERED, f'{{"explanation": "told", {told}}}')


@pytest.mark.parametrize(
    ("kind", "reply", "result"),
    [
        ("speakability", rates(rating=0), Rated(rating=0, normalised=0.0)),
        (
            "conciseness",
            rates(rating=2, failure_modes='["verbosity_or_filler"]'),
            Rated(rating=2, normalised=0.5, failure_modes=("verbosity_or_filler",)),
        ),
        (
            "conciseness",
            rates(rating="null", failure_modes="[]"),
            NotRateable(reason="the assistant says nothing in this turn"),
        ),
        ("conciseness", rates(rating=7, failure_modes="[]"), unjudged("invalid_answers")),
        ("faithfulness", REFUSED, unjudged("refused")),
    ],
)
async def test_eva_s_metrics_are_asked_once(kind: str, reply: Reply, result: object) -> None:
    endpoint = ScriptedEndpoint(lambda _: reply)
    async with running_judge(judge_settings(), endpoint) as (judge, _):
        verdict = await judge.ask(question(kind=kind))
    assert verdict.result == result
    assert (len(endpoint.questions), verdict.votes, verdict.confidence) == (1, Votes(), None)


async def test_what_is_withdrawn_is_neither_asked_nor_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "BREAKER_FAILURES", 1)
    async with held(max_concurrent_requests=3) as (judge, endpoint):
        asked, waits, stays = (question(subgoal_id=name) for name in "abc")
        promised = [judge.ask(one) for one in (asked, waits, stays)]
        await endpoint.until_asked(3)
        judge.withdraw({asked.request_id, waits.request_id})
        assert [one.cancelled() for one in promised] == [True, True, False]
        await endpoint.until_asked(6)  # the remaining question has the places now
        assert not judge._breaker.is_open  # the endpoint is not to blame
        again = judge.ask(asked)  # it may come back at once
        endpoint.gate.set()
        results = [(await one).result for one in (promised[2], again)]
        assert results == [Judged(is_completed=True)] * 2
    assert len(endpoint.questions) == 9


async def test_who_waits_no_more_does_no_harm() -> None:
    endpoint = ScriptedEndpoint(lambda _: C)
    endpoint.gate.clear()
    async with running_judge(judge_settings(), endpoint) as (judge, instruments):
        promised = [judge.ask(question(subgoal_id=name)) for name in "ab"]
        await endpoint.until_asked(6)
        promised[0].cancel()
        endpoint.gate.set()
        assert (await promised[1]).result == Judged(is_completed=True)
        labels = {"kind": "subgoal", "outcome": "complete"}
        assert instruments.registry.get_sample_value("callgauge_judge_verdicts_total", labels) == 2


async def test_what_an_earlier_judge_spent_counts() -> None:
    endpoint = ScriptedEndpoint(lambda _: C)
    async with running_judge(judge_settings(budget_per_agent_hour=1.0), endpoint) as (judge, _):
        now_ms = wall_clock_ms()
        judge.budget.recall(now_ms // HOUR_MS - 1, {"other": 0.999}, now_ms)
        judge.budget.recall(now_ms // HOUR_MS, {"ava": 0.999}, now_ms)
        assert (await judge.ask(question(subgoal_id="later"))).result == unjudged("over_budget")
        assert (await judge.ask(question(agent="other"))).result == Judged(is_completed=True)


async def test_finishing_answers_what_was_begun_and_begins_nothing() -> None:
    async with held(max_concurrent_requests=1) as (judge, endpoint):
        first, second = (judge.ask(question(subgoal_id=name)) for name in "ab")
        await endpoint.until_asked(1)
        finishing = asyncio.create_task(judge.finish())
        endpoint.gate.set()
        await finishing
        for _ in range(50):
            await asyncio.sleep(0)
        assert (first.done(), second.done()) == (True, False)
    assert len(endpoint.questions) == 3


async def test_a_mistake_of_ours_ends_the_judge() -> None:
    def script(_: object) -> Reply:
        raise ZeroDivisionError

    judge = QuestionAnswerer(
        judge_settings(), Instruments(CollectorRegistry(), ["judge"]), ScriptedEndpoint(script)
    )
    judge.ask(question())
    async with asyncio.timeout(patient(5)):
        with pytest.raises(ZeroDivisionError):
            await judge.run()


async def test_gauges_show_the_line_and_the_money() -> None:
    endpoint = ScriptedEndpoint(lambda _: C)
    endpoint.gate.clear()
    async with running_judge(judge_settings(max_concurrent_requests=1), endpoint) as (
        judge,
        instruments,
    ):
        promised = [judge.ask(question(subgoal_id=name)) for name in "abc"]
        await endpoint.until_asked(1)
        instruments.refresh()
        read = instruments.registry.get_sample_value
        assert read("callgauge_judge_waiting_questions") == 2
        assert (read("callgauge_judge_waiting_seconds") or 0) >= 0
        assert 999 < (read("callgauge_judge_budget_left", {"budget": "hour"}) or 0) < 1_000
        endpoint.gate.set()
        await asyncio.gather(*promised)


async def test_whole_answers_are_kept_if_asked_for_without_personal_data_and_up_to_a_bound() -> (
    None
):
    replies = [
        answer("C"),
        Reply(TrialOutcome.ANSWERED, "No idea, jane@example.com."),
        REFUSED,
        FAILED,
        answer("C"),
    ]
    replies.append(Reply(TrialOutcome.ANSWERED, "x" * 5_000))
    fields: dict[str, Any] = {"trials": 3, "stops_early": False, "retry_waves": 1}
    plain = await verdict_on(list(replies), **fields)
    kept = await verdict_on(list(replies), {"keeps_raw_answers": True}, **fields)
    assert [each.raw for each in plain.answers] == [None] * 5
    assert [each.raw for each in kept.answers[:4]] == [
        replies[0].text,
        "No idea, [EMAIL].",
        None,
        None,
    ]
    long = await verdict_on(
        [replies[5]], {"keeps_raw_answers": True}, trials=51, stops_early=False, retry_waves=0
    )
    lengths = [len(each.raw or "") for each in long.answers]
    assert lengths == [0] * (51 - 25) + [4_000] * 25, "the newest fit"


# More questions than the rate lets through by their deadline: what is asked, what is paid, and how
# long it takes.


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

    async def ask(
        self, question: JudgePrompt, timeout_seconds: float, delivery: RequestTries
    ) -> Reply:
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
            given = {
                "trials": 1,
                "asked_at_ms": now_ms,
                "deadline_ms": now_ms + 1_000 * DEADLINE_SECONDS,
            }
            return await asyncio.gather(
                *(judge.ask(question(subgoal_id=str(n), **given)) for n in range(10))
            )

    verdicts = loop.finish(ask())
    asked = [verdict for verdict in verdicts if verdict.requests]
    assert [round(at - begin) for at in endpoint.asked_seconds] == [0, 0, 5, 10, 15]
    assert len(asked) == 5
    assert not any(map(late, asked))
    assert all(late(verdict) and verdict.cost == 0 for verdict in verdicts if verdict not in asked)


@pytest.mark.parametrize("concurrent", [1, 3, 16])
def test_a_question_of_a_recorded_call_waits_for_the_rate_however_long(
    loop: JumpingLoop, concurrent: int
) -> None:
    """Also between its trials: these three take two waves of two and one."""
    endpoint = SlowEndpoint()
    begin = loop.time()
    count, trials = 20, 3

    async def ask() -> list[JudgeVerdict]:
        settings = SETTINGS.model_copy(update={"max_concurrent_requests": concurrent})
        judge = JudgeInProcess(settings, endpoint)
        running = asyncio.create_task(judge.run())
        given = {
            "trials": trials,
            "stops_early": False,
            "asked_at_ms": 0,
            "deadline_ms": 1_000 * DEADLINE_SECONDS,
        }
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
