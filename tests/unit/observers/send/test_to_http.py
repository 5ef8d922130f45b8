"""Events over HTTP: CloudEvents that the ingest reads, and each of its answers taken for what it
says.
"""

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from callgauge_send import to_http as module
from callgauge_send.events import Rank
from callgauge_send.outbox import LOSS, UNREAD, EventOutbox
from callgauge_send.sender import LaterError, Settled
from callgauge_send.to_http import BATCH, ToHttp
from hypothesis import given
from hypothesis import strategies as st

from streamer.sources.http.body import posted_events

LOG = logging.getLogger("callgauge")


class Ingest:
    """Answers as it is told, and keeps what it got."""

    def __init__(self) -> None:
        self.status, self.said = 202, dict[str, Any]()
        self.headers = dict[str, str]()
        self.bodies: list[bytes] = []
        self.asked: list[web.Request] = []
        self.odd: set[bytes] = set()
        """A body with one of these in it is refused as a whole."""
        self.odd_status = 400

    async def events(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        self.asked.append(request)
        if any(each in self.bodies[-1] for each in self.odd):
            return web.json_response({"error": "no JSON"}, status=self.odd_status)
        return web.json_response(self.said, status=self.status, headers=self.headers)


@pytest.fixture
def ingest() -> Ingest:
    return Ingest()


@pytest.fixture
async def way(ingest: Ingest) -> AsyncIterator[ToHttp]:
    application = web.Application()
    application.router.add_post("/events", ingest.events)
    async with TestServer(application) as server:
        way = ToHttp(str(server.make_url("/events")), "the-token", LOG)
        await way.open()
        yield way
        await way.close()


def box_of(*values: bytes, call: str = "c") -> EventOutbox:
    box = EventOutbox(call, "s")
    for value in values:
        box.put(Rank.SPEECH, "speech_event", value)
    return box


async def sent(way: ToHttp, box: EventOutbox) -> tuple[BaseException | None, list[int]]:
    """The failure of one round, and the sequences of the records that are settled."""
    settled: Settled = set()
    failure = await way.send({box: box.next_records(2_000)}, settled)
    return failure, sorted(sequence for _, sequence in settled)


async def test_events_arrive_as_cloud_events_that_identify_a_repeat(
    way: ToHttp, ingest: Ingest
) -> None:
    assert await sent(way, box_of(b'{"type":"a"}', b'{"type":"b"}', call='of "Ü"')) == (
        None,
        [1, 2],
    )
    assert ingest.asked[0].headers["Authorization"] == "Bearer the-token"
    assert ingest.asked[0].headers["Content-Type"] == BATCH
    first, second = posted_events(ingest.bodies[0], BATCH, {})
    assert (first.fault, first.event, second.event) == (None, {"type": "a"}, {"type": "b"})
    assert first.attributes == {
        "specversion": "1.0",
        "id": "1",
        "source": "s",
        "type": "callgauge.pipecat.speech_event.v1",
        "subject": 'of "Ü"',
        "sequence": "1",
        "datacontenttype": "application/json",
    }


@given(st.text(min_size=1))
def test_every_call_id_arrives_as_it_is(call: str) -> None:
    box = box_of(b"{}", call=call)
    ((_, _, text),) = next(iter(module._batches({box: box.next_records(1)})))
    (posted,) = posted_events(b"[" + text + b"]", BATCH, {})
    assert posted.fault is None
    assert posted.attributes is not None
    assert posted.attributes["subject"] == call.encode("utf-8", "replace").decode()


async def test_large_events_go_in_several_bodies(
    way: ToHttp, ingest: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BODY_BYTES", 1_000)
    assert await sent(way, box_of(*[b'"%b"' % (b"x" * 600)] * 3)) == (None, [1, 2, 3])
    assert len(ingest.bodies) == 3


@pytest.mark.parametrize(("status", "pause"), [(503, 5.0), (429, 5.0)])
async def test_a_server_that_asks_for_a_pause_gets_it(
    way: ToHttp, ingest: Ingest, status: int, pause: float
) -> None:
    ingest.status, ingest.headers = status, {"Retry-After": "5"}
    box = box_of(b"{}")
    settled: Settled = set()
    with pytest.raises(LaterError) as failure:
        await way.send({box: box.next_records(1)}, settled)
    assert failure.value.seconds == pause
    assert settled == set()


@pytest.mark.parametrize("status", [302, 401, 403, 404, 408, 415, 500, 502])
async def test_any_other_failure_keeps_the_events(way: ToHttp, ingest: Ingest, status: int) -> None:
    ingest.status, ingest.said = status, {"error": "Expected `Authorization: Bearer`"}
    failure, settled = await sent(way, box_of(b"{}"))
    assert f"status {status}" in str(failure)
    assert "Authorization" in str(failure)
    assert settled == []


@pytest.mark.parametrize("status", [400, 413])
async def test_an_event_that_makes_a_body_unreadable_is_lost_alone_and_said_once(
    way: ToHttp, ingest: Ingest, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    ingest.odd, ingest.odd_status = {b'"odd"'}, status
    for _ in range(2):
        ingest.bodies.clear()
        ours = box_of(*[b'{"n":%d}' % number for number in range(30)], b'"odd"', b"{}")
        others = [box_of(b"{}", call=f"other {number}") for number in range(20)]
        settled: Settled = set()
        assert (
            await way.send(
                {ours: ours.next_records(50)} | {box: box.next_records(50) for box in others},
                settled,
            )
            is None
        )
        assert len(settled) == 52
        assert (ours.lost, [dict(box.lost) for box in others]) == ({"speech": 1}, [{}] * 20)
        taken = [body for body in ingest.bodies if b'"odd"' not in body]
        assert sum(body.count(b"specversion") for body in taken) == 51
        assert [body.index(b'"n":29') for body in taken if b'"n":29' in body]
        assert len(ingest.bodies) < 2 * 7
    (said,) = [record.message for record in caplog.records]
    assert f"status {status}" in said


async def test_bodies_without_end_that_cannot_be_read_take_a_bounded_round(
    way: ToHttp, ingest: Ingest
) -> None:
    ingest.status = 400
    box = box_of(*[b"{}"] * 500)
    rounds = 0
    while len(box):
        taken, settled = box.next_records(2_000), set[tuple[EventOutbox, int]]()
        assert await way.send({box: taken}, settled) is None
        box.settle([record for record in taken if (box, record.sequence) not in settled])
        ingest.status = 202 if box.lost["speech"] > 100 else 400
        rounds += 1
        assert len(ingest.bodies) <= rounds * module.MAX_POSTS
    assert box.lost["speech"] < 200


@pytest.mark.parametrize("status", [302, 401, 403, 404, 415])
async def test_a_sender_that_stays_refused_loses_its_events_and_says_what_to_do(
    way: ToHttp,
    ingest: Ingest,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
) -> None:
    ingest.status = status
    assert (await sent(way, box_of(b"{}")))[1] == []
    monkeypatch.setattr(module, "GIVE_UP_SECONDS", 0.0)
    for _ in range(2):
        box = box_of(b"{}", b"{}")
        failure, settled = await sent(way, box)
        # a failure still, so the sender pauses
        assert (str(failure), settled) == (f"status {status}: {{}}", [1, 2])
        assert box.lost == {"speech": 2}
    (said,) = [record.message for record in caplog.records]
    assert f"status {status}" in said
    assert "Check" in said or "in front" in said
    ingest.status = 202
    box = box_of(b"{}")
    assert await sent(way, box) == (None, [1])
    monkeypatch.undo()
    ingest.status = status
    assert (await sent(way, box_of(b"{}")))[1] == []  # from here on it has time again


@pytest.mark.parametrize("status", [408, 500, 502])
async def test_a_server_in_trouble_refuses_nobody(
    way: ToHttp, ingest: Ingest, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(module, "GIVE_UP_SECONDS", 0.0)
    ingest.status = status
    for _ in range(2):
        assert (await sent(way, box_of(b"{}")))[1] == []


async def test_a_long_answer_is_read_to_its_end(way: ToHttp, ingest: Ingest) -> None:
    refused = [
        {"line": place, "reason": "text_too_long", "what": "x" * 2_000} for place in range(1, 101)
    ]
    ingest.status, ingest.said = 207, {"refused_events": 100, "refused": refused}
    box = box_of(*[b"{}"] * 150)
    await sent(way, box)
    assert box.lost == {"speech": 100}


async def test_refused_events_are_counted_as_lost_and_said_once(
    way: ToHttp, ingest: Ingest, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = {"line": 2, "reason": "text_too_long", "what_to_do": "Shorten it."}
    ingest.status, ingest.said = (
        207,
        {"accepted_events": 2, "refused_events": 1, "refused": [refusal]},
    )
    for _ in range(2):
        box = box_of(b"{}", b"{}", b"{}")
        assert await sent(way, box) == (None, [1, 2, 3])
        assert box.lost == {"speech": 1}
    (said,) = [record.message for record in caplog.records]
    assert "text_too_long" in said
    assert "Shorten it." in said


async def test_refusals_that_are_only_counted_are_counted(way: ToHttp, ingest: Ingest) -> None:
    ingest.status, ingest.said = 207, {"refused_events": 3, "refused": [{"line": 1}]}
    box = box_of(b"{}", b"{}", b"{}", b"{}")
    await sent(way, box)
    assert box.lost == {"speech": 1, UNREAD: 2}


async def test_a_refused_report_of_losses_is_not_reported_again(
    way: ToHttp, ingest: Ingest
) -> None:
    ingest.status, ingest.said = 422, {"refused_events": 1, "refused": [{"line": 1}]}
    box = EventOutbox("c", "s")
    box.lose("words")
    records = box.next_records(5)
    assert [record.type for record in records] == [LOSS]
    settled: Settled = set()
    await way.send({box: records}, settled)
    box.settle([])
    assert box.is_empty.is_set()


async def test_what_is_not_understood_is_said(
    way: ToHttp, ingest: Ingest, caplog: pytest.LogCaptureFixture
) -> None:
    ingest.said = {
        "not_understood": [{"events": 1, "what": "type 'x' is not known", "what_to_do": "..."}]
    }
    await sent(way, box_of(b"{}"))
    assert ["type 'x' is not known" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize(
    "said",
    [
        [],
        "text",
        {"refused": "x", "refused_events": "y"},
        {"refused": [1, {"line": "2"}, {"line": 99}]},
        {"refused": 5, "not_understood": 7},
        {"refused": [{"reason": []}], "not_understood": [{"what": {}}, 3]},
    ],
)
async def test_an_answer_of_another_shape_ends_nothing(
    way: ToHttp, ingest: Ingest, said: Any
) -> None:
    ingest.status, ingest.said = 207, said
    assert await sent(way, box_of(b"{}")) == (None, [1])
