"""Whatever an endpoint answers over real HTTP, the judge goes on: a verdict says why there is none,
and memory is bounded.
"""

import asyncio
import gzip
import json
import socket
import threading
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import structlog

from consumers.judge import ask
from consumers.judge.endpoint import MAX_REPLY_BYTES
from consumers.runtime.registry import Instruments
from schemas.closed_sets import TrialOutcome, UnjudgedReason
from schemas.judging import Judged, JudgeVerdict, Unjudged
from tests.support.calls.judge_questions import (
    judge_settings,
    question,
    running_judge,
    wall_clock_ms,
)
from tests.support.fakes.scripted_openai import Asked, Does, fails, grades, scripted_openai
from tests.support.patience import patient

KEY = "sk-of-the-judge"
BOMB = gzip.compress(b"\0" * 64_000_000)
ANSWER = {
    "choices": [
        {"message": {"content": '{"explanation": "x", "grade": "C"}'}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 500, "completion_tokens": 9},
}


def unjudged(reason: str) -> Unjudged:
    return Unjudged(reason=UnjudgedReason(reason))


def counting(tokens: str) -> Does:
    """A good answer with this in place of its count of prompt tokens."""
    body = json.dumps(ANSWER).replace('"prompt_tokens": 500', f'"prompt_tokens": {tokens}')
    return Does(body=body.encode())


def faults_in(instruments: Instruments) -> Mapping[str, float]:
    read, name = instruments.registry.get_sample_value, "callgauge_judge_reply_faults_total"
    counted = {
        fault: read(name, {"model": "gpt-4.1", "cause": fault})
        for fault in ("too_large", "compressed", "redirected", "token_count")
    }
    return {fault: value for fault, value in counted.items() if value}


async def judged_after(
    does: Does, **settings: Any
) -> tuple[JudgeVerdict, Mapping[str, float], int]:
    """The verdict on a question with this answer, the fault of the answer, and the bytes of an
    endless one.

    The same judge has a verdict on the next question, which is answered well.
    """

    def script(asked: Asked) -> Does:
        return does if "first" in asked.user else grades("C")

    given = {"api_key": KEY, "max_retries": 0, **settings}
    with scripted_openai(script) as server:
        async with running_judge(judge_settings(base_url=server.url, **given)) as (
            judge,
            instruments,
        ):
            async with asyncio.timeout(patient(30)):
                verdict = await judge.ask(question(subgoal="first", trials=1))
                faults = faults_in(instruments)
                after = await judge.ask(question(subgoal="second", subgoal_id="second", trials=1))
        endless_bytes = server.endless_bytes
    assert after.result == Judged(is_completed=True)
    return verdict, faults, endless_bytes


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        pytest.param(Does(body=b'{"choices":' + b"[" * 200_000), "invalid_answers", id="deep"),
        pytest.param(Does(text="[" * 200_000), "invalid_answers", id="deep text"),
        pytest.param(
            Does(text='{"a":' * 100_000 + "}"), "invalid_answers", id="deep text of objects"
        ),
        pytest.param(
            Does(text='{"explanation": "x", "grade": ' + "9" * 100_000 + "}"),
            "invalid_answers",
            id="digits",
        ),
        pytest.param(Does(body=b"9" * 900_000), "invalid_answers", id="one number"),
        pytest.param(
            Does(body=json.dumps(ANSWER).replace('"x', '"\\ud800').encode()),
            "invalid_answers",
            id="surrogate",
        ),
        pytest.param(Does(body=b"\xff\xfe\x00"), "invalid_answers", id="no UTF-8"),
        pytest.param(Does(body=b"<html>busy</html>"), "invalid_answers", id="HTML"),
        pytest.param(Does(body=b""), "invalid_answers", id="nothing"),
        pytest.param(Does(body=b"NaN"), "invalid_answers", id="NaN"),
        pytest.param(
            Does(body=b'{"choices":[' + b'{"message":{}},' * 50_000 + b'{"message":{}}]}'),
            "invalid_answers",
            id="many choices",
        ),
        pytest.param(Does(resets=True), "unavailable", id="reset"),
        pytest.param(grades("C", cut_at=30), "unavailable", id="cut"),
        pytest.param(Does(status=999, body=b"{}"), "unavailable", id="status 999"),
        pytest.param(
            Does(status=500, body=b'{"error":' + b"[" * 200_000), "unavailable", id="deep error"
        ),
        pytest.param(
            Does(status=400, headers={"content-type": "text/plain; charset=zlib"}, body=b"\0" * 9),
            "rejected",
            id="charset that unpacks",
        ),
        pytest.param(
            Does(status=400, body=b'{"error": {"code": {"a": [1]}, "message": 1}}'),
            "rejected",
            id="odd error",
        ),
        pytest.param(
            grades(
                "C", headers={"connection": "upgrade", "set-cookie": "a=b; domain=" + "x" * 9_000}
            ),
            "",
            id="odd headers",
        ),
    ],
)
async def test_whatever_it_answers_there_is_a_verdict(does: Does, reason: str) -> None:
    verdict, _, _ = await judged_after(does)
    assert verdict.result == (unjudged(reason) if reason else Judged(is_completed=True))


@pytest.mark.parametrize(
    "tokens",
    [
        "1" + "0" * 400,
        "-1",
        "0",
        "10000001",
        "1e400",
        "NaN",
        "Infinity",
        "2.5",
        '"many"',
        "null",
        "[]",
        '{"a": 1}',
        '"\\u0000"',
    ],
)
async def test_a_count_of_tokens_that_cannot_be_is_not_taken(tokens: str) -> None:
    """The answer counts all the same, and costs the most it can, as without a count."""
    verdict, faults, _ = await judged_after(counting(tokens))
    assert verdict.result == Judged(is_completed=True)
    assert faults == {"token_count": 1}
    assert (verdict.tokens.prompt, verdict.tokens.answer) == (0, 0)
    assert 1_000 * 8 / 1_000_000 < verdict.cost < 0.02


async def test_the_largest_count_is_taken() -> None:
    verdict, faults, _ = await judged_after(counting("10000000"))
    assert (verdict.tokens.prompt, faults) == (10_000_000, {})


async def test_an_answer_without_end_is_read_to_the_bound_only() -> None:
    verdict, faults, endless_bytes = await judged_after(Does(body=b"", endless=b" " * 2**16))
    assert verdict.result == unjudged("invalid_answers")
    assert [answer.outcome for answer in verdict.answers] == [TrialOutcome.UNREADABLE]
    assert faults == {"too_large": 1}
    assert endless_bytes < 50 * MAX_REPLY_BYTES, (
        "what the machine's socket buffers take, and no more"
    )


async def test_an_answer_of_the_bound_is_read() -> None:
    body = json.dumps(ANSWER).encode()
    verdict, faults, _ = await judged_after(Does(body=body + b" " * (MAX_REPLY_BYTES - len(body))))
    assert (verdict.result, faults) == (Judged(is_completed=True), {})
    verdict, faults, _ = await judged_after(
        Does(body=body + b" " * (MAX_REPLY_BYTES - len(body) + 1))
    )
    assert (verdict.result, faults) == (unjudged("invalid_answers"), {"too_large": 1})


async def test_an_answer_that_is_compressed_all_the_same_is_not_unpacked() -> None:
    tracemalloc.start()
    try:
        verdict, faults, _ = await judged_after(
            Does(body=BOMB, headers={"content-encoding": "gzip"})
        )
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (verdict.result, faults) == (unjudged("invalid_answers"), {"compressed": 1})
    assert peak_bytes < 20_000_000  # unpacked it has 64 MB


async def test_a_trickle_is_ended_by_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never silent for long enough to count as failed, and never done."""
    monkeypatch.setattr(ask, "LONGEST_VERDICT_MS", 400)
    trickle = Does(body=b"", endless=b" ", pause_seconds=0.05)
    verdict, _, _ = await judged_after(trickle, request_timeout_ms=300, max_retries=2)
    assert verdict.result == unjudged("deadline")
    assert [answer.outcome for answer in verdict.answers] == [TrialOutcome.TIMED_OUT]
    assert verdict.cost > 0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_refused_and_named(status: int) -> None:
    with scripted_openai(lambda _: grades("C")) as thief, structlog.testing.capture_logs() as lines:
        elsewhere = {"location": f"{thief.url}/chat/completions?key={KEY}"}
        verdict, faults, _ = await judged_after(Does(status=status, headers=elsewhere))
        assert thief.asked == []
    assert (verdict.result, faults) == (unjudged("rejected"), {"redirected": 1})
    (line,) = [line for line in lines if line["event"] == "judge_request_rejected"]
    assert (line["status"], line["log_level"]) == (status, "error")
    assert "judge.base_url" in line["what_to_do"]
    assert KEY not in str(lines)
    assert "first" not in str(lines)


async def test_no_error_of_an_endpoint_gets_into_the_log() -> None:
    """It may send back the key, or words of the call."""
    body = json.dumps(
        {"error": {"code": f"{KEY} first", "message": f"{KEY} first", "type": KEY}}
    ).encode()
    with structlog.testing.capture_logs() as lines:
        await judged_after(Does(status=401, body=body))
    (line,) = [line for line in lines if line["event"] == "judge_request_rejected"]
    assert line["code"] is None
    assert KEY not in str(lines)


PAUSES = {
    "never, too long": "1" + "0" * 400,
    "never, a date": "Fri, 31 Dec 9998 23:59:59 GMT",
    "negative": "-5",
    "no number": "nan",
    "infinite": "inf",
    "a date long ago": "Thu, 01 Jan 1970 00:00:00 GMT",
    "no such date": "Fri, 31 Dec 99999999999999999999 99:99:99 GMT",
    "words": "soon",
    "empty": "",
}


async def test_no_pause_that_an_endpoint_names_ends_the_judge() -> None:
    def script(asked: Asked) -> Does:
        if asked.is_repeat:
            return grades("C")
        return fails(
            429,
            retry_after=next(pause for name, pause in PAUSES.items() if f'"{name}"' in asked.user),
        )

    with scripted_openai(script) as server:
        async with (
            running_judge(judge_settings(base_url=server.url, max_retries=1)) as (judge, _),
            asyncio.timeout(patient(30)),
        ):
            asked = [
                judge.ask(question(subgoal=name, subgoal_id=name, trials=1)) for name in PAUSES
            ]
            verdicts = dict(zip(PAUSES, await asyncio.gather(*asked), strict=True))
    for name, verdict in verdicts.items():
        is_put_off = name.startswith("never")
        assert verdict.result == (
            unjudged("unavailable") if is_put_off else Judged(is_completed=True)
        ), name


async def test_cookies_are_not_kept() -> None:
    numbers = iter(range(100))

    def script(_: Asked) -> Does:
        return grades("C", headers={"set-cookie": f"n{next(numbers)}=1; path=/"})

    with scripted_openai(script) as server:
        async with running_judge(judge_settings(base_url=server.url)) as (judge, _):
            await judge.ask(question())
            await judge.ask(question(subgoal_id="next"))
        assert len(server.asked) == 6
        assert all("cookie" not in asked.headers for asked in server.asked)
        assert {asked.headers["accept-encoding"] for asked in server.asked} == {"identity"}


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


async def two_verdicts(base_url: str, max_retries: int) -> tuple[JudgeVerdict, JudgeVerdict]:
    """Of an endpoint that does not answer. One request may go out at once; the next has to wait for
    longer than there is.
    """
    settings = judge_settings(base_url=base_url, max_retries=max_retries, max_requests_per_minute=6)
    async with running_judge(settings) as (judge, _), asyncio.timeout(patient(30)):
        first, second = question(trials=1), question(trials=1, subgoal_id="other")
        return await judge.ask(first), await judge.ask(
            second.model_copy(update={"deadline_ms": wall_clock_ms() + 5_000})
        )


@contextmanager
def no_tls() -> Iterator[int]:
    """The port of a server that answers a handshake with words."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with suppress(OSError):  # the server was closed
                while True:
                    taken, _ = server.accept()
                    with taken:
                        taken.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                        taken.recv(65_536)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(patient(10))


@pytest.mark.parametrize(
    "base_url",
    ["http://127.0.0.1:{free}/v1", "https://nowhere.invalid/v1", "https://127.0.0.1:{no_tls}/v1"],
)
async def test_a_connection_that_is_refused_costs_no_budget(base_url: str) -> None:
    """Nor an unknown name, nor TLS that fails: the second question need not wait, and no money is
    gone.
    """
    with no_tls() as port:
        verdicts = await two_verdicts(base_url.format(free=free_port(), no_tls=port), max_retries=1)
    for verdict in verdicts:
        assert verdict.result == unjudged("unavailable")
        assert (verdict.cost, verdict.requests) == (0, 0)


@pytest.mark.parametrize(
    "does", [Does(resets=True), grades("C", cut_at=20), fails(500)], ids=["reset", "cut", "500"]
)
async def test_a_request_that_may_have_arrived_costs_its_budget(does: Does) -> None:
    with scripted_openai(lambda _: does) as server:
        one, other = await two_verdicts(server.url, max_retries=0)
        assert len(server.asked) == 1
    assert (one.result, one.requests) == (unjudged("unavailable"), 1)
    assert other.result == unjudged("deadline")  # the rate limit leaves no time for it
