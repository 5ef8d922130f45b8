"""The work of the command `simulate`: events as lines, and the progress as text."""

import json
from collections.abc import Iterable, Iterator
from operator import itemgetter

from streamer.sources.publisher import PlayProgress
from streamer.sources.replay.playback import PlayedCall


def event_lines(calls: Iterable[PlayedCall]) -> Iterator[str]:
    """The events of all calls in the order of their arrival, each with its conversation."""
    events = [(event.arrival_ms, call.conversation_id, event.value) for call in calls for event in call.events]
    for _, conversation_id, value in sorted(events, key=itemgetter(0)):
        yield json.dumps({"conversation_id": conversation_id, **json.loads(value)}, ensure_ascii=False)


def traffic_text(progress: PlayProgress) -> str:
    """The progress of simulated traffic, in words."""
    return (
        f"{progress.calls_started - progress.calls_finished} calls running, {progress.calls_finished} over, "
        f"{progress.events_published} events sent"
    )
