"""No request and no record holds the event loop, whatever its size: every step of it is short, in
processor time.
"""

import asyncio
import functools
import gc
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import httpx2 as httpx
import pytest
from aiokafka import TopicPartition
from prometheus_client import CollectorRegistry

from consumers.console import api, site
from consumers.console.fleet import Fleet
from consumers.console.pages import Site
from consumers.console.past import LotsQuery, PastFound, PastQuery, Usual, Versions
from consumers.console.service import ConsoleRole
from consumers.console.settings import ConsoleSettings
from consumers.console.site import ConsoleSite
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.http import ConnectionBounds, HttpListener
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import wall_clock_ms
from consumers.runtime.registry import Instruments
from consumers.store.changes import Lot, LotCalls
from consumers.store.rows import StoredCall
from schemas.annotations import Annotation
from schemas.rows import CallRow, Labels, WordsRow, encode
from tests.support.calls.console_calls import HeldCalls, call_row
from tests.support.calls.long_calls import long_call
from tests.support.fakes.broker_records import BrokerRecord
from tests.support.held_loop import in_short_steps
from tests.support.patience import patient

TURNS = 900
RUNNING = 10_000
STREAMS = 400
SECONDS = 120


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """A collection of all that the tests keep takes half a second, in whichever step it comes."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Past:
    """A history in which every search finds a page of calls, and which has every call."""

    def __init__(self) -> None:
        self.calls = HeldCalls(*long_call(TURNS))

    def find(self, asked: PastQuery) -> PastFound:
        return PastFound(
            [
                {"conversation_id": f"past-{number}", "labels.agent": asked.agent}
                for number in range(50)
            ],
            100,
        )

    def table(self, asked: PastQuery, _site: Site, _redact: Callable[[str], str] | None) -> bytes:
        return f"conversation_id,{asked.sort}\n".encode() * 10_000

    def versions(self, asked: LotsQuery) -> Versions:
        return Versions(None, [LotCalls(Lot(asked.a_agent, "1"), 1, 0, 0, {})] * 200)

    def lots_table(self, asked: LotsQuery) -> bytes:
        return f"Agent,{asked.sort}\n".encode() * 10_000

    def usual(self, call: CallRow) -> Usual:
        return Usual(call.labels.agent, 1, {})

    def call(self, conversation_id: str, at_ms: int | None = None) -> StoredCall | None:
        return self.calls.call("long", at_ms) if conversation_id.startswith("past") else None

    def annotations_of(self, _conversation_id: str) -> Sequence[Annotation] | None:
        return ()


@functools.cache
def many_calls() -> Fleet:
    """Very many running calls, a third of them in trouble."""
    fleet, now_ms = Fleet(), wall_clock_ms()
    for number in range(RUNNING):
        labels = Labels(agent=f"agent-{number % 40}", tenant=f"tenant-{number % 7}")
        failing = {"lookup": 1} if number % 3 == 0 else {}
        fleet.put_row(
            call_row(f"run-{number}", labels=labels, known_ms=now_ms, failing_tools=failing)
        )
    return fleet


class Serving:
    """The site with a call of very many turns that nobody has looked at, and very many running
    calls.
    """

    def __init__(self) -> None:
        self.fleet = many_calls()
        settings = ConsoleSettings.model_validate({"port": 0})
        instruments = Instruments(CollectorRegistry(), ["console"])
        self.calls = HeldCalls(*long_call(TURNS))
        self.site = ConsoleSite(
            settings, self.fleet, self.calls, None, Past(), Redactor(), instruments, "1"
        )
        bounds = ConnectionBounds(
            request_seconds=patient(SECONDS),
            answer_seconds=patient(SECONDS),
            most_connections=2 * STREAMS,
        )
        self.listener = HttpListener(
            "127.0.0.1", 0, self.site.routes(), lambda _: None, bounds=bounds, without_it="Nothing"
        )

    def client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(
            base_url=self.listener.address, timeout=patient(SECONDS), limits=limits
        )


@asynccontextmanager
async def serving() -> AsyncIterator[Serving]:
    made = Serving()
    await made.listener.start()
    try:
        yield made
    finally:
        made.site.streams.close()
        await made.site.close(patient(SECONDS))
        await made.listener.stop()


REQUESTS = {
    "the page of a long call": ["/calls/long"],
    "its report": ["/report/long"],
    "its parts": ["/parts/calls/long"],
    "its parts at a moment": ["/parts/calls/long?at_ms=1790001000000"],
    "its report at a moment": ["/report/long?at_ms=1790001000000"],
    "the API of it": [f"{api.PREFIX}/calls/long"],
    "the API of it at a moment": [f"{api.PREFIX}/calls/long?at_ms=1790001000000"],
    "a past call": ["/calls/past-1"],
    "running calls": [
        "/",
        "/?text=run-99",
        "/?sort=latency&bad=1",
        "/?agent=agent-3",
        "/?tenant=none",
    ],
    "the API of running calls": [f"{api.PREFIX}/calls?limit=1000", f"{api.PREFIX}/fleet"],
    "searches": ["/past?text=badge", "/past.csv", "/versions", "/compare?id=past-1&id=past-2"],
}


@pytest.mark.parametrize("what", REQUESTS)
async def test_a_request_holds_the_loop_for_a_moment_only(what: str) -> None:
    async def asked() -> None:
        async with serving() as made, made.client() as client:
            for path in REQUESTS[what]:
                readers = [asyncio.create_task(read(client, path)) for _ in range(5)]
                assert {await each for each in readers} <= {200, 503}, path

    await in_short_steps(asked)


async def read(client: httpx.AsyncClient, path: str) -> int:
    """Reads an answer piece by piece, so that the test itself takes no long step."""
    async with client.stream("GET", path) as answer:
        async for _ in answer.aiter_raw():
            pass
        return answer.status_code


async def test_the_page_of_a_long_call_that_goes_on_holds_nobody_up() -> None:
    async def followed() -> None:
        async with (
            serving() as made,
            made.client() as client,
            client.stream("GET", "/live/calls/long") as answer,
        ):
            pieces = answer.aiter_raw()
            await until_said(pieces, b"last_ms")
            made.calls.note(long_call(TURNS)[-1:])
            await until_said(pieces, b"last_ms")

    await in_short_steps(followed)


async def until_said(pieces: AsyncIterator[bytes], text: bytes) -> None:
    tail = b""
    async with asyncio.timeout(patient(SECONDS)):
        while text not in tail:
            tail = tail[-len(text) :] + await anext(pieces)


@pytest.mark.parametrize("is_shared", [True, False])
async def test_many_streams_hold_nobody_up(*, is_shared: bool) -> None:
    """Different choices are bounded; who shows the same as others is not refused."""

    async def followed() -> list[int]:
        async with serving() as made, made.client() as client, asyncio.TaskGroup() as group:
            answered = asyncio.Semaphore(0)
            followers = [
                group.create_task(follow(client, "run" if is_shared else f"run-{number}", answered))
                for number in range(STREAMS)
            ]
            async with asyncio.timeout(patient(SECONDS)):
                for _ in range(STREAMS):
                    await answered.acquire()
            for _ in range(3):
                await made.site.tick()
            made.site.streams.close()
            return list(await asyncio.gather(*followers))

    statuses = await in_short_steps(followed)
    expected = (STREAMS, 0) if is_shared else (site.MAX_CHOICES, STREAMS - site.MAX_CHOICES)
    assert (statuses.count(200), statuses.count(503)) == expected


async def follow(client: httpx.AsyncClient, text: str, answered: asyncio.Semaphore) -> int:
    async with client.stream("GET", "/live/now", params={"text": text}) as answer:
        answered.release()
        async for _ in answer.aiter_raw():
            pass
        return answer.status_code


async def test_a_poll_of_thousands_of_rows_holds_nobody_up() -> None:
    values = [encode(row) for row in long_call(TURNS) if not isinstance(row, WordsRow)]
    records = [
        BrokerRecord("scores", offset, 0, b"long", values[offset % len(values)])
        for offset in range(5_000)
    ]

    async def read_anew() -> None:
        instruments = Instruments(CollectorRegistry(), ["console"])
        role = ConsoleRole(KafkaSettings(), ConsoleSettings(), Redactor(), instruments)
        # its first step is one of the loop too
        await asyncio.create_task(role.read_records({TopicPartition("scores", 0): records}))

    await in_short_steps(read_anew)
