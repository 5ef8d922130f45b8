"""Endpoints may do anything to the judge (no network here): any reply is an outcome, an unsent
question costs nothing.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.judge import ask
from consumers.judge import endpoint as transport
from consumers.judge.endpoint import Endpoint
from consumers.judge.prompts import question_of
from consumers.judge.reply import MAX_REPORTED_TOKENS, Reply, RequestTries
from schemas.closed_sets import TrialOutcome, UnjudgedReason
from schemas.judging import Judged, JudgeVerdict, TokenUse, Unjudged
from tests.support.calls.judge_questions import (
    ScriptedEndpoint,
    answer,
    judge_settings,
    question,
    running_judge,
)
from tests.support.patience import patient

QUESTION = question_of(question(), "structured")
ANSWER: dict[str, Any] = {
    "choices": [
        {
            "message": {"content": '{"explanation": "x", "grade": "C"}', "refusal": None},
            "finish_reason": "stop",
        }
    ],
    "usage": {
        "prompt_tokens": 5,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 2},
    },
}


class Body(httpx2.AsyncByteStream):
    """A body that comes in pieces."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._content), 65_536):
            yield self._content[start : start + 65_536]


def response(body: bytes, status: int = 200, **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.Response(status, headers=named, stream=Body(body))


class FakeNetwork(httpx2.AsyncBaseTransport):
    """Each try ends as `ends` says in turn; None never ends. The tries in `not_sent` end before the
    question is written.

    Attributes:
        requests: The requests that were written.
    """

    def __init__(
        self, *ends: httpx2.Response | Exception | None, not_sent: tuple[int, ...] = ()
    ) -> None:
        self.requests: list[httpx2.Request] = []
        self.begun = asyncio.Event()
        self._ends = list(ends)
        self._not_sent = not_sent
        self._tries = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        end = self._ends[self._tries]
        self._tries += 1
        trace = request.extensions["trace"]
        await trace("connection.connect_tcp.started", {})
        await trace(
            "http11.send_request_headers.started", {"request": SimpleNamespace(method=b"CONNECT")}
        )
        if self._tries not in self._not_sent:
            await trace(
                "http11.send_request_headers.started", {"request": SimpleNamespace(method=b"POST")}
            )
            self.requests.append(request)
        self.begun.set()
        if end is None:
            await asyncio.Event().wait()
        if isinstance(end, httpx2.Response):
            return end
        raise end or AssertionError("never")


async def reply_of(
    network: httpx2.AsyncBaseTransport, **settings: Any
) -> tuple[Reply, RequestTries]:
    delivery = RequestTries()
    endpoint = Endpoint(judge_settings(**{"max_retries": 0, **settings}), "key", network)
    try:
        return await endpoint.ask(QUESTION, 10, delivery), delivery
    finally:
        await endpoint.close()


async def verdict_of(network: FakeNetwork, **settings: Any) -> JudgeVerdict:
    given_settings = judge_settings(**{"max_retries": 0, **settings})
    async with running_judge(given_settings, Endpoint(given_settings, "key", network)) as (
        judge,
        _,
    ):
        return await judge.ask(question(trials=1))


odd = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from(
        [
            10**400,
            -1,
            MAX_REPORTED_TOKENS + 1,
            1e308,
            float("nan"),
            float("inf"),
            -0.5,
            "",
            "\x00",
            "9" * 5_000,
        ]
    )
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    ),
    max_leaves=5,
)
paths = st.sampled_from(
    [
        (),
        ("choices",),
        ("choices", 0),
        ("choices", 0, "message"),
        ("choices", 0, "message", "content"),
        ("choices", 0, "message", "refusal"),
        ("choices", 0, "finish_reason"),
        ("usage",),
        ("usage", "prompt_tokens"),
        ("usage", "completion_tokens"),
        ("usage", "prompt_tokens_details"),
        ("usage", "prompt_tokens_details", "cached_tokens"),
    ]
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Answers with up to three odd parts, also in the text of the model, and sometimes no JSON at
    all.
    """
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=50))
    text = {"explanation": "x", "grade": "C"} | draw(
        st.dictionaries(st.sampled_from(["explanation", "grade"]), odd)
    )
    whole: Any = json.loads(json.dumps(ANSWER))
    whole["choices"][0]["message"]["content"] = json.dumps(text)
    for path in draw(st.lists(paths, max_size=3)):
        whole = _replaced(whole, path, draw(odd))
    return json.dumps(whole).encode()


def _replaced(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    """The value with a part replaced; the same where an earlier replacement has taken the path
    away.
    """
    if not path:
        return new
    head, *rest = path
    if isinstance(value, dict) and head in value:
        return value | {head: _replaced(value[head], tuple(rest), new)}
    if isinstance(value, list) and head == 0 and value:
        return [_replaced(value[0], tuple(rest), new), *value[1:]]
    return value


headers = st.dictionaries(
    st.sampled_from(
        [
            "retry-after",
            "retry-after-ms",
            "x-should-retry",
            "content-type",
            "content-encoding",
            "location",
            "set-cookie",
        ]
    ),
    st.sampled_from(
        [
            "",
            "0",
            "-1",
            "nan",
            "true",
            "gzip",
            "identity",
            "text/plain; charset=zlib",
            "http://",
            "//[",
            "a=b; domain=",
            "1" + "0" * 400,
            "Fri, 31 Dec 99999999999 23:59:59 GMT",
        ]
    ),
    max_size=3,
)


@given(
    bodies(),
    st.sampled_from(
        [200, 200, 200, 201, 204, 101, 302, 307, 400, 401, 408, 409, 429, 500, 599, 999]
    ),
    headers,
)
def test_whatever_an_endpoint_answers_there_is_a_verdict(
    body: bytes, status: int, named: dict[str, str]
) -> None:
    network = FakeNetwork(httpx2.Response(status, headers=named, stream=Body(body)))
    verdict = asyncio.run(asyncio.wait_for(verdict_of(network), patient(10)))
    assert isinstance(verdict.result, Judged | Unjudged)
    assert 0 <= verdict.tokens.prompt <= MAX_REPORTED_TOKENS
    assert JudgeVerdict.model_validate_json(verdict.model_dump_json()) == verdict


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            {name: count}
            for name in ("prompt", "cached", "answer")
            for count in (10**400, -1, MAX_REPORTED_TOKENS + 1)
        ),
        {"prompt": 0},
        {"answer": 0},
        {"prompt": 0, "answer": 0},
        {"prompt": 1},
        {"cached": 2_001},
    ],
)
async def test_a_count_that_cannot_be_is_charged_as_none(wrong: dict[str, int]) -> None:
    """The judge itself compares the count with its bounds and with the texts, whichever endpoint
    takes the questions.
    """
    settings = judge_settings()
    tokens = TokenUse(**{"prompt": 2_000, "answer": 100} | wrong)
    counted = ScriptedEndpoint(lambda _: answer("C", tokens=tokens))
    silent = ScriptedEndpoint(lambda _: answer("C"))
    verdicts = []
    for endpoint in (counted, silent):
        async with running_judge(settings, endpoint) as (judge, _), asyncio.timeout(patient(10)):
            verdicts.append(await judge.ask(question()))
    assert verdicts[0].result == Judged(is_completed=True)
    assert verdicts[0].cost == verdicts[1].cost > 0
    assert verdicts[0].tokens == TokenUse()


async def test_answers_that_are_free_by_their_count_fill_the_budget() -> None:
    endpoint = ScriptedEndpoint(lambda _: answer("C", tokens=TokenUse()))
    settings = judge_settings(budget_per_call=0.05)
    async with running_judge(settings, endpoint) as (judge, _), asyncio.timeout(patient(10)):
        verdicts = [
            await judge.ask(question(trials=1, subgoal_id=str(number))) for number in range(20)
        ]
    assert verdicts[0].result == Judged(is_completed=True)
    assert verdicts[-1].result == Unjudged(reason=UnjudgedReason.OVER_BUDGET)
    assert sum(verdict.cost for verdict in verdicts) <= 0.05


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (httpx2.ConnectError("refused"), TrialOutcome.UNAVAILABLE),
        (httpx2.ConnectTimeout("silence"), TrialOutcome.TIMED_OUT),
        (httpx2.PoolTimeout("no place"), TrialOutcome.TIMED_OUT),
        (httpx2.ProxyError("403"), TrialOutcome.UNAVAILABLE),
    ],
)
async def test_what_never_left_costs_nothing(error: Exception, outcome: TrialOutcome) -> None:
    """Neither money nor the only place in the minute: the second question need not wait."""
    network = FakeNetwork(error, error, response(json.dumps(ANSWER).encode()), not_sent=(1, 2))
    limits = {
        "max_requests_per_minute": 6,
        "budget_per_hour": 0.012,
        "max_tokens_per_minute": 10_000,
    }
    settings = judge_settings(**limits, max_retries=0)
    async with (
        running_judge(settings, Endpoint(settings, "key", network)) as (judge, _),
        asyncio.timeout(patient(5)),
    ):
        verdicts = [await judge.ask(question(trials=1, subgoal_id=name)) for name in "abc"]
    for verdict in verdicts[:2]:
        assert [one.outcome for one in verdict.answers] == [outcome]
        assert (verdict.cost, verdict.requests) == (0, 0)
    assert verdicts[2].result == Judged(is_completed=True)


async def test_repeats_take_places_in_the_minute_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three requests may go out at once, and the first question took all three."""
    monkeypatch.setattr(ask, "LONGEST_VERDICT_MS", 1_000)
    endpoint = ScriptedEndpoint(lambda _: Reply(TrialOutcome.UNAVAILABLE, requests=3))
    settings = judge_settings(max_requests_per_minute=18)
    async with running_judge(settings, endpoint) as (judge, _), asyncio.timeout(patient(10)):
        verdicts = [await judge.ask(question(trials=1, subgoal_id=name)) for name in "ab"]
    reasons = [UnjudgedReason.UNAVAILABLE, UnjudgedReason.DEADLINE]
    assert [verdict.result for verdict in verdicts] == [
        Unjudged(reason=reason) for reason in reasons
    ]
    assert len(endpoint.questions) == 1


async def test_silence_after_a_request_has_left_costs_what_it_may() -> None:
    verdict = await verdict_of(FakeNetwork(httpx2.ReadTimeout("silence")))
    assert verdict.cost > 0.008
    assert verdict.requests == 1


@pytest.mark.parametrize(("not_sent", "requests"), [((1,), 0), ((), 1)])
async def test_a_question_that_is_cut_off_costs_only_what_left(
    not_sent: tuple[int, ...], requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask, "LONGEST_VERDICT_MS", 50)
    verdict = await verdict_of(FakeNetwork(None, not_sent=not_sent))
    assert verdict.result == Unjudged(reason=UnjudgedReason.DEADLINE)
    assert verdict.requests == requests
    assert (verdict.cost > 0) == bool(requests)


async def test_the_tries_that_left_are_counted() -> None:
    network = FakeNetwork(
        httpx2.ConnectError(""), response(b"", 500), httpx2.ReadError(""), not_sent=(1,)
    )
    reply, delivery = await reply_of(network, max_retries=2)
    assert (reply.outcome, reply.requests) == (TrialOutcome.UNAVAILABLE, 3)
    assert (delivery.departed, delivery.tries_that_stayed) == ({2, 3}, 1)


async def test_headers_and_parameters_of_the_settings_go_with_each_request() -> None:
    network = FakeNetwork(response(b"{}"))
    await reply_of(
        network,
        base_url="https://ours.example.com/openai/deployments/judge",
        headers={"api-key": "{api_key}", "x-team": "voice quality"},
        query={"api-version": "2024-10-21"},
    )
    (request,) = network.requests
    assert str(request.url) == (
        "https://ours.example.com/openai/deployments/judge/chat/completions?api-version=2024-10-21"
    )
    assert (request.headers["api-key"], request.headers["x-team"]) == ("key", "voice quality")


async def test_what_goes_out_and_what_comes_back_is_bounded() -> None:
    body = json.dumps(ANSWER).encode()
    network = FakeNetwork(
        response(body + b" " * (transport.MAX_REPLY_BYTES - len(body)), set_cookie="a=b")
    )
    reply, delivery = await reply_of(network)
    assert (reply.outcome, reply.tokens) == (
        TrialOutcome.ANSWERED,
        TokenUse(prompt=5, cached=2, answer=1),
    )
    assert (delivery.faults, delivery.tries) == (set(), 1)
    assert network.requests[0].headers["accept-encoding"] == "identity"
    reply, delivery = await reply_of(FakeNetwork(response(body + b" " * transport.MAX_REPLY_BYTES)))
    assert (reply.outcome, delivery.faults) == (TrialOutcome.UNREADABLE, {"too_large"})
    reply, delivery = await reply_of(FakeNetwork(response(body, content_encoding="br")))
    assert (reply.outcome, delivery.faults) == (TrialOutcome.UNREADABLE, {"compressed"})


async def test_the_status_of_an_error_counts_however_large_it_is() -> None:
    large = response(b" " * (transport.MAX_REPLY_BYTES + 1), 429)
    reply, delivery = await reply_of(FakeNetwork(large))
    assert (reply.outcome, delivery.faults) == (TrialOutcome.RATE_LIMITED, {"too_large"})


async def test_what_the_client_trips_over_is_a_failure_of_the_endpoint() -> None:
    network = FakeNetwork(RuntimeError("key"), response(json.dumps(ANSWER).encode()))
    reply, _ = await reply_of(network)
    assert reply.outcome == TrialOutcome.UNAVAILABLE


@pytest.mark.parametrize(
    ("environment", "proxy"),
    [
        ({}, None),
        ({"https_proxy": "http://proxy:3128"}, "http://proxy:3128"),
        ({"https_proxy": "proxy:3128"}, "http://proxy:3128"),
        ({"all_proxy": "http://all:1"}, "http://all:1"),
        ({"http_proxy": "http://other:1"}, None),
        ({"https_proxy": "http://proxy:3128", "no_proxy": "judge.example"}, None),
        ({"https_proxy": "http://proxy:3128", "no_proxy": "*"}, None),
    ],
)
def test_the_proxy_of_the_environment_is_used(
    environment: dict[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert transport._proxy_for(httpx2.URL("https://judge.example/v1")) == proxy
