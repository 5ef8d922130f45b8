"""Puts calls onto the topics until they end, time is over or a signal comes: for `replay` and `simulate`."""

import time
from collections.abc import Callable, Iterable
from typing import Final

from consumers.runtime.kafka.connection import require_access
from consumers.runtime.process import first_of
from streamer.cluster.rights import TRAFFIC_NEEDS
from streamer.help_facts import MAX_OPEN_CALLS
from streamer.settings.all_settings import Settings
from streamer.signals import over_after, stop_on_signals
from streamer.sources.publisher import EventPublisher, PlayProgress, play
from streamer.sources.replay.playback import PlayedCall

_REFRESH_SECONDS: Final = 0.1


async def publish_calls(
    settings: Settings,
    ce_source: str,
    calls: Callable[[], Iterable[PlayedCall]],
    speed: float | None,
    *,
    show: Callable[[PlayProgress], None],
    seconds: float | None = None,
    max_open_calls: int = MAX_OPEN_CALLS,
) -> tuple[bool, PlayProgress]:
    """Publishes calls until the last has ended, the time is over, or a signal comes.

    Args:
        settings: Where Kafka is.
        ce_source: The producer as the records name it.
        calls: Makes the calls; asked once access to the topics is certain.
        speed: How many times faster than recorded; None is as fast as possible.
        show: Gets the progress, some ten times a second and at the end.
        seconds: Longest duration; None is unlimited.
        max_open_calls: Bound of calls that run at the same time.

    Returns:
        Whether no signal came, and the last progress.

    Raises:
        KafkaUnreachableError: No broker answers, or the user lacks a right.
        PublishError: Records could not be written.
    """
    latest = PlayProgress(0, 0, 0, 0)
    next_look = 0.0

    def on_progress(progress: PlayProgress) -> None:
        nonlocal latest, next_look
        latest = progress
        if (now := time.monotonic()) >= next_look:
            next_look = now + _REFRESH_SECONDS
            show(progress)

    async def work() -> None:
        await require_access(settings.kafka, TRAFFIC_NEEDS)
        async with EventPublisher(settings.kafka, ce_source=ce_source) as publisher:
            playing = play(calls(), publisher, speed=speed, on_progress=on_progress, max_open_calls=max_open_calls)
            await first_of(over_after(seconds), playing)  # closing the publisher has a deadline of its own

    with stop_on_signals() as stop:
        await first_of(stop.wait(), work())
        completed = not stop.is_set()
    show(latest)
    return completed, latest
