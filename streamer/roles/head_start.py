"""A head start of the demo: the past of calls that are under way, written before any role reads, so that the first screen is full."""

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from streamer.sources.publisher import EventPublisher
from streamer.sources.replay.playback import PlayedCall, WireEvent

HEAD_START_MS: Final = 60_000
"""Age of the oldest call at the first screen: it has had answers, a goal and an interruption by then."""


def split_at(traffic: Iterator[PlayedCall], head_ms: int) -> tuple[list[tuple[str, WireEvent]], Iterator[PlayedCall]]:
    """Splits traffic at a moment.

    Args:
        traffic: Calls in the order in which they start.
        head_ms: The moment, in milliseconds since the traffic began.

    Returns:
        The events before it, each with its conversation id, in the order of their arrival; and the calls from then on,
        with starts that count from the moment. Calls that are under way come first, with the rest of their events.
    """
    past: list[tuple[int, int, str, WireEvent]] = []
    under_way: list[PlayedCall] = []
    later: Iterator[PlayedCall] = iter(())
    numbers = itertools.count()
    for call in traffic:
        if call.start_offset_ms >= head_ms:
            later = itertools.chain([call], traffic)
            break
        begins_ms = call.events[0].arrival_ms - call.start_offset_ms
        cut = [event for event in call.events if event.arrival_ms - begins_ms < head_ms]
        past += ((event.arrival_ms, next(numbers), call.conversation_id, event) for event in cut)
        if rest := call.events[len(cut) :]:
            offset_ms = rest[0].arrival_ms - begins_ms - head_ms
            under_way.append(replace(call, events=rest, start_offset_ms=offset_ms))
    moved = (replace(call, start_offset_ms=call.start_offset_ms - head_ms) for call in later)
    under_way.sort(key=lambda call: call.start_offset_ms)
    return [(call, event) for _, _, call, event in sorted(past)], heapq.merge(
        under_way, moved, key=lambda call: call.start_offset_ms
    )


async def publish_past(past: list[tuple[str, WireEvent]], publisher: EventPublisher) -> None:
    """Sends events as their producers had done it then: each record has the time of its arrival."""
    for conversation_id, event in past:
        await publisher.publish(conversation_id, event, sent_ms=event.arrival_ms)
    await publisher.flush()
