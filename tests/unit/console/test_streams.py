"""A stream ends when its reader leaves or the console stops; forged ids of events are never gone on
from.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.console import streams
from consumers.console.channels import Channel, encoded
from consumers.console.site import MAX_BURST, MAX_RING, RING_MS, _Ring
from consumers.console.streams import Streams, events_of, version_in

NOW_MS = 1_790_000_000_000


class Reader:
    """A connection: what was sent to it, and whether it has left or reads no more."""

    def __init__(self) -> None:
        self.sent: deque[dict[str, Any]] = deque()
        self.leaves = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()

    async def receive(self) -> dict[str, Any]:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        self.sent.append(message)

    @property
    def text(self) -> str:
        return b"".join(each.get("body", b"") for each in self.sent).decode()


async def forever(ended: asyncio.Event) -> AsyncIterator[bytes]:
    try:
        yield b"data: 1\n\n"
        await asyncio.Event().wait()
    finally:
        ended.set()


async def turns(most: int = 20) -> None:
    for _ in range(most):
        await asyncio.sleep(0)


async def test_a_reader_who_leaves_ends_its_stream() -> None:
    open_ones, reader, ended = Streams(5), Reader(), asyncio.Event()
    answer = asyncio.create_task(open_ones.answer(reader.receive, reader.send, forever(ended)))
    await turns()
    assert len(open_ones) == 1
    assert "data: 1" in reader.text
    reader.leaves.set()
    await answer
    assert ended.is_set()
    assert len(open_ones) == 0


async def test_closing_ends_every_stream_and_lets_nobody_in() -> None:
    open_ones, readers = Streams(5), [Reader() for _ in range(3)]
    ends = [asyncio.Event() for _ in readers]
    answers = [
        asyncio.create_task(open_ones.answer(reader.receive, reader.send, forever(ended)))
        for reader, ended in zip(readers, ends, strict=True)
    ]
    await turns()
    open_ones.close()
    await asyncio.gather(*answers)
    assert all(ended.is_set() for ended in ends)
    assert all(reader.sent[-1]["more_body"] is False for reader in readers)
    assert open_ones.is_full
    assert len(open_ones) == 0


async def test_it_is_full_at_the_bound() -> None:
    open_ones, reader = Streams(2), Reader()
    answers = [
        asyncio.create_task(open_ones.answer(reader.receive, reader.send, forever(asyncio.Event())))
        for _ in range(2)
    ]
    await turns()
    full = open_ones.is_full
    reader.leaves.set()
    await asyncio.gather(*answers)
    assert full
    assert not open_ones.is_full


async def test_who_cancels_the_answer_ends_the_stream() -> None:
    open_ones, reader, ended = Streams(2), Reader(), asyncio.Event()
    answer = asyncio.create_task(open_ones.answer(reader.receive, reader.send, forever(ended)))
    await turns()
    answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answer
    assert ended.is_set()
    assert len(open_ones) == 0


# The ids of events.


@pytest.mark.parametrize(
    "forged",
    [
        "",
        ".",
        "c",
        "c.",
        ".1",
        "c.-1",
        "c.1.0",
        "c. 1",
        "c.\u0661",
        "c.\u00b2",
        "d.1",
        "c.1e3",
        "c." + "9" * 16,
        "c.0x1",
        "C.1",
        "c.1\n",
    ],
)
def test_a_forged_id_begins_anew(forged: str) -> None:
    assert version_in(forged, "c") == 0


@given(st.text(max_size=40))
def test_no_id_breaks_a_stream(text: str) -> None:
    assert 0 <= version_in(text, "c") < 10**15


async def test_a_reader_goes_on_from_its_version() -> None:
    channel = Channel("c")
    for text in "xy":
        channel.update(encoded({"head": {"a": text, "b": "z"}}))
    for since, expected in ((1, {"a": "y"}), (0, {"a": "y", "b": "z"}), (99, {"a": "y", "b": "z"})):
        events = events_of(channel, since, lambda: NOW_MS)
        assert await anext(events) == b'event: clock\ndata: {"now":%d}\n\n' % NOW_MS
        name, _, data = (await anext(events)).decode().partition("\ndata: ")
        assert name == "id: c.2"
        assert json.loads(data)["parts"] == expected


async def test_a_slow_reader_skips_states_and_a_still_page_beats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "BEAT_SECONDS", 0.0)
    channel = Channel("c")
    channel.update(encoded({"head": {"a": "0"}}))
    events = events_of(channel, 1, lambda: NOW_MS)
    await anext(events)
    assert await anext(events) == b"event: beat\ndata: 0\n\n"
    for number in range(5):
        channel.update(encoded({"head": {"a": str(number + 1)}}))
    assert b'"a":"5"' in await anext(events)
    assert await anext(events) == b"event: beat\ndata: 0\n\n"


# The ring of score records.


def numbers(events: bytes) -> list[int]:
    return [
        int(line[6:])
        for line in events.decode().splitlines()
        if line.startswith("data: ") and "{" not in line
    ]


async def test_a_reader_of_records_resumes_without_loss_or_doubles() -> None:
    ring = _Ring()
    for number in range(10):
        ring.put([b"%d" % number], NOW_MS)
    events = ring.events(f"{ring.name}.4")
    assert numbers(await anext(events)) == [4, 5, 6, 7, 8, 9]
    ring.put([b"10"], NOW_MS)
    assert numbers(await anext(events)) == [10]
    last = ring.events(f"{ring.name}.11")
    ring.put([b"11"], NOW_MS)
    assert numbers(await anext(last)) == [11]


@pytest.mark.parametrize(
    "forged",
    [
        "other.1",
        "{0}.0",
        "{0}.99",
        "{0}.",
        "{0}",
        "{0}.-1",
        "{0}.\u0664",
        "{0}.9999999999999999999",
    ],
)
async def test_an_id_that_is_not_known_is_a_gap(forged: str) -> None:
    ring = _Ring()
    for number in range(3):
        ring.put([b"%d" % number], NOW_MS + number * RING_MS)
    events = ring.events(forged.format(ring.name))
    assert (await anext(events)).startswith(b"event: gap\n")
    ring.put([b"3"], NOW_MS + 2 * RING_MS)
    assert numbers(await anext(events)) == [3]


async def test_a_new_reader_gets_new_records_alone() -> None:
    ring = _Ring()
    ring.put([b"0"], NOW_MS)
    events = ring.events("")
    first = asyncio.ensure_future(anext(events))
    await turns()
    ring.put([b"1"], NOW_MS)
    assert numbers(await first) == [1]


async def test_a_reader_who_is_overtaken_is_told() -> None:
    ring = _Ring()
    events = ring.events("")
    first = asyncio.ensure_future(anext(events))
    await turns()
    ring.put([b"0"], NOW_MS)
    assert numbers(await first) == [0]
    for number in range(1, 5):
        ring.put([b"%d" % number], NOW_MS)
    ring.put([b"5"], NOW_MS + RING_MS + 1)
    assert (await anext(events)).startswith(b"event: gap\n")
    assert numbers(await anext(events)) == [5]


async def test_the_ring_and_its_writes_are_bounded() -> None:
    ring = _Ring()
    for number in range(MAX_RING + 1):
        ring.put([b"%d" % number], NOW_MS)
    events = ring.events(f"{ring.name}.1")
    assert len(numbers(await anext(events))) == MAX_BURST
