"""A reader of a channel has the newest state, whichever version it comes from, and is sent only
what it lacks.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from consumers.console.channels import MAX_EVENTS, Channel, encoded

Boxes = dict[str, dict[str, str]]
BOXES = ("head", "calls")


@st.composite
def states(draw: st.DrawFn) -> Boxes:
    """A page with two boxes; a part is always in the same one, and its markup is one of three."""
    return {
        box: {
            f"{box}-{name}": draw(st.sampled_from("xyz"))
            for name in draw(st.permutations("abcd"))[: draw(st.integers(0, 4))]
        }
        for box in BOXES
    }


def applied(page: Boxes, news: Mapping[str, Any]) -> Boxes:
    """The page after a message, as `take` of console.js does it."""
    there = {part: markup for parts in page.values() for part, markup in parts.items()}
    morphed = {
        box: {part: news["parts"].get(part, markup) for part, markup in parts.items()}
        for box, parts in page.items()
    }
    for box, ids in news["order"].items():
        known = morphed.get(box, {}) | {
            part: markup for part, markup in news["parts"].items() if part not in there
        }
        morphed[box] = {part: known[part] for part in ids}
    return morphed


def news_of(channel: Channel, since: int = 0) -> dict[str, Any]:
    """What a reader is sent, with the id that it will come back with."""
    name, data, *rest = channel.event(since).decode().split("\n")
    assert (name, rest) == (f"id: {channel.name}.{channel.version}", ["", ""])
    news: dict[str, Any] = json.loads(data.removeprefix("data: "))
    return news


def in_order(page: Boxes) -> list[tuple[str, list[tuple[str, str]]]]:
    return [(box, list(page.get(box, {}).items())) for box in BOXES]


@given(st.lists(states(), min_size=1, max_size=8), st.data())
def test_the_newest_state_is_reached_from_every_version(
    updates: list[Boxes], data: st.DataObject
) -> None:
    channel = Channel("c")
    seen: dict[int, Boxes] = {}
    for state in updates:
        channel.update(encoded(state))
        seen[channel.version] = state
    known = data.draw(st.sampled_from(sorted(seen)))
    for _ in range(2):  # the second one is kept from the first
        assert in_order(applied(seen[known], news_of(channel, known))) == in_order(updates[-1])
        assert in_order(applied({}, news_of(channel))) == in_order(updates[-1])


@given(st.lists(states(), min_size=1, max_size=8))
def test_a_reader_who_follows_is_sent_nothing_that_he_has(updates: list[Boxes]) -> None:
    channel, page, version = Channel("c"), dict[str, dict[str, str]](), 0
    for state in updates:
        channel.update(encoded(state))
        if channel.version == version:
            assert in_order(page) == in_order(state)
            continue
        news = news_of(channel, version)
        before = {part: markup for parts in page.values() for part, markup in parts.items()}
        assert all(before.get(part) != markup for part, markup in news["parts"].items())
        assert all(version == 0 or list(page[box]) != ids for box, ids in news["order"].items())
        page, version = applied(page, news), channel.version


def test_the_same_state_is_no_news_but_facts_are() -> None:
    channel = Channel("c")
    channel.update(encoded({"head": {"a": "x"}}))
    channel.update(encoded({"head": {"a": "x"}}))
    assert channel.version == 1
    channel.update(encoded({"head": {"a": "x"}}), last_ms=7)
    assert channel.version == 2
    assert news_of(channel, 1) == {"parts": {}, "order": {}, "last_ms": 7}


def test_a_version_of_the_future_gets_everything() -> None:
    channel = Channel("c")
    channel.update(encoded({"head": {"a": "x"}}))
    for since in (-1, 2, 2**60):
        assert channel.event(since) == channel.event(0)


def test_events_for_few_versions_are_kept() -> None:
    channel = Channel("c")
    for number in range(3 * MAX_EVENTS):
        channel.update(encoded({"head": {"a": str(number)}}))
    for since in range(channel.version + 1):
        channel.event(since)
    assert len(channel._events) == MAX_EVENTS


async def test_a_reader_wakes_by_news_alone() -> None:
    channel = Channel("c")
    channel.update(encoded({"head": {"a": "x"}}))
    waiting = asyncio.create_task(channel.newer_than(1))
    await asyncio.sleep(0)
    channel.update(encoded({"head": {"a": "x"}}))
    await asyncio.sleep(0)
    assert not waiting.done()
    channel.update(encoded({"head": {"a": "y"}}))
    assert await waiting == 2
