"""The real client against an endpoint that misbehaves over real HTTP: every fault is an outcome,
none a crash or a guess.
"""

import asyncio
import json
from typing import Any

import pytest
import structlog

from consumers.judge.endpoint import Endpoint
from consumers.judge.prompts import question_of
from consumers.judge.reply import Reply, RequestTries
from schemas.closed_sets import TrialOutcome, UnjudgedReason
from schemas.judging import Judged, TokenUse, Unjudged
from tests.support.calls.judge_questions import judge_settings, question, running_judge, talk
from tests.support.fakes.scripted_openai import Asked, Does, Script, fails, grades, scripted_openai


async def reply_to(
    script: Script, timeout_seconds: float = 10, **settings: Any
) -> tuple[Reply, list[Asked]]:
    with scripted_openai(script) as server:
        given = judge_settings(base_url=server.url, **settings)
        endpoint = Endpoint(given, "key")
        try:
            reply = await endpoint.ask(
                question_of(question(), given.answer_form), timeout_seconds, RequestTries()
            )
        finally:
            await endpoint.close()
        return reply, server.asked


async def test_an_answer_comes_with_its_tokens() -> None:
    reply, asked = await reply_to(lambda _: grades("C"))
    assert (reply.outcome, reply.requests) == (TrialOutcome.ANSWERED, 1)
    assert json.loads(reply.text or "")["grade"] == "C"
    assert reply.tokens == TokenUse(
        prompt=asked[0].prompt_chars // 4, cached=0, answer=len(reply.text or "") // 4
    )
    body = asked[0].body
    assert (body["model"], body["temperature"], body["max_completion_tokens"]) == (
        "gpt-4.1",
        0.0,
        1_000,
    )
    assert body["response_format"]["json_schema"]["strict"] is True
    assert asked[0].headers["authorization"] == "Bearer key"


async def test_what_an_older_endpoint_does_not_know_is_not_sent() -> None:
    _, asked = await reply_to(
        lambda _: grades("C"),
        answer_form="grade",
        temperature="default",
        answer_limit_name="max_tokens",
    )
    assert asked[0].body.keys() == {"model", "messages", "max_tokens"}


@pytest.mark.parametrize(
    ("does", "outcome", "requests"),
    [
        (Does(refusal="I will not judge that"), TrialOutcome.REFUSED, 1),
        (Does(text="", finish_reason="content_filter"), TrialOutcome.REFUSED, 1),
        (Does(text='{"explanation": "tu', finish_reason="length"), TrialOutcome.TRUNCATED, 1),
        (Does(body=b'{"choices": ['), TrialOutcome.UNREADABLE, 1),
        (Does(body=b"<html>busy</html>"), TrialOutcome.UNREADABLE, 1),
        (Does(body=b'{"choices": []}'), TrialOutcome.UNREADABLE, 1),
        (Does(body=b"[1, 2]"), TrialOutcome.UNREADABLE, 1),
        (Does(body=b'{"choices": [{"message": "hello"}]}'), TrialOutcome.UNREADABLE, 1),
        (fails(400), TrialOutcome.REJECTED, 1),
        (fails(401), TrialOutcome.REJECTED, 1),
        (fails(404), TrialOutcome.REJECTED, 1),
        (fails(500), TrialOutcome.UNAVAILABLE, 2),
        (fails(503), TrialOutcome.UNAVAILABLE, 2),
        (fails(429, retry_after_ms="10"), TrialOutcome.RATE_LIMITED, 2),
        (fails(429, retry_after="600"), TrialOutcome.RATE_LIMITED, 1),  # longer than anybody waits
        (grades("C", cut_at=60), TrialOutcome.UNAVAILABLE, 2),
        (grades("C", cut_at=0), TrialOutcome.UNAVAILABLE, 2),
    ],
    ids=lambda value: repr(value)[:60] if isinstance(value, Does) else str(value),
)
async def test_a_fault_is_an_outcome(does: Does, outcome: TrialOutcome, requests: int) -> None:
    reply, asked = await reply_to(lambda _: does, max_retries=1)
    assert (reply.outcome, reply.requests, len(asked)) == (outcome, requests, requests)


async def test_a_request_that_is_rejected_is_told_once() -> None:
    with scripted_openai(lambda _: fails(401)) as server, structlog.testing.capture_logs() as lines:
        given = judge_settings(base_url=server.url)
        endpoint = Endpoint(given, "key")
        for _ in range(3):
            await endpoint.ask(question_of(question(), given.answer_form), 10, RequestTries())
        await endpoint.close()
    assert [(line["event"], line["status"], line["log_level"]) for line in lines] == [
        ("judge_request_rejected", 401, "error")
    ]


async def test_silence_is_waited_out_and_tried_again() -> None:
    reply, asked = await reply_to(lambda _: Does(hangs=True), timeout_seconds=1.0, max_retries=1)
    assert (reply.outcome, reply.requests, len(asked)) == (TrialOutcome.TIMED_OUT, 2, 2)


async def test_nobody_listens() -> None:
    endpoint = Endpoint(judge_settings(base_url="http://127.0.0.1:9/v1", max_retries=0), "key")
    reply = await endpoint.ask(question_of(question(), "structured"), 5, RequestTries())
    await endpoint.close()
    assert (reply.outcome, reply.requests) == (TrialOutcome.UNAVAILABLE, 1)


async def test_the_pause_that_the_endpoint_names_is_kept() -> None:
    reply, asked = await reply_to(
        lambda a: grades("C") if a.is_repeat else fails(429, retry_after="1")
    )
    assert (reply.outcome, reply.requests) == (TrialOutcome.ANSWERED, 2)
    assert asked[0].ended is not None
    assert asked[1].began - asked[0].ended >= 1.0, "a pause of the client's own would be shorter"


async def test_a_deadline_ends_what_the_endpoint_keeps_waiting() -> None:
    """A verdict never takes longer than its deadline, whatever `Retry-After` says."""
    with scripted_openai(lambda _: fails(429, retry_after="60")) as server:
        async with running_judge(judge_settings(base_url=server.url)) as (judge, _):
            asked = question()
            async with asyncio.timeout(50):  # the pause ends later, however busy the machine is
                verdict = await judge.ask(
                    asked.model_copy(update={"deadline_ms": asked.asked_at_ms + 500})
                )
    assert verdict.result == Unjudged(reason=UnjudgedReason.DEADLINE)
    assert {answer.outcome for answer in verdict.answers} == {TrialOutcome.TIMED_OUT}


async def test_transient_faults_cost_no_verdict() -> None:
    """Every request fails in one way or another before it is answered."""
    faults = [fails(429, retry_after_ms="20"), fails(500), grades("C", cut_at=40), fails(503)]

    def script(asked: Asked) -> Does:
        return grades("C") if asked.is_repeat else faults[len(server.asked) % len(faults)]

    with scripted_openai(script) as server:
        async with running_judge(judge_settings(base_url=server.url)) as (judge, instruments):
            verdicts = await asyncio.gather(
                *(judge.ask(question(subgoal_id=f"g{number}")) for number in range(4))
            )
    assert [verdict.result for verdict in verdicts] == [Judged(is_completed=True)] * 4
    assert len(server.asked) == 4 * 3 * 2
    assert sum(verdict.requests for verdict in verdicts) == len(server.asked)
    counted = instruments.registry.get_sample_value(
        "callgauge_judge_retries_total", {"model": "gpt-4.1"}
    )
    assert counted == 4 * 3


async def judged_turns(turns: int, *, stops_early: bool) -> tuple[int, int, float]:
    """Requests, characters, and share of them in prefixes that had been sent before, of a call that
    reaches nothing.
    """
    with scripted_openai(lambda _: grades("I")) as server:
        async with running_judge(judge_settings(base_url=server.url)) as (judge, _):
            for turn in range(1, turns + 1):
                asked = (
                    question(
                        turn=turn,
                        transcript=talk(turn),
                        subgoal_id=name,
                        subgoal=f"Subgoal {name} is done.",
                        stops_early=stops_early,
                    )
                    for name in "abc"
                )
                verdicts = await asyncio.gather(*map(judge.ask, asked))
                assert {verdict.result for verdict in verdicts} == {Judged(is_completed=False)}
        cached = sum(asked.cached_chars for asked in server.asked)
        return len(server.asked), server.prompt_chars, cached / server.prompt_chars


AGENT_INSPECT_CHARS = 5_460_000
"""Its requests for the same call: 20 turns, 3 subgoals, messages of 200 characters, 5 trials."""


@pytest.mark.parametrize(("stops_early", "requests"), [(True, 3 * 20 * 3), (False, 5 * 20 * 3)])
async def test_a_call_costs_a_third_of_the_characters(stops_early: bool, requests: int) -> None:
    sent, chars, cached_share = await judged_turns(20, stops_early=stops_early)
    assert sent == requests
    assert chars <= AGENT_INSPECT_CHARS / 3
    # the new part of a turn is read once, not once for each subgoal and trial
    assert cached_share > 0.85
