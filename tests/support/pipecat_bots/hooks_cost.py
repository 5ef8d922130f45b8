"""Cost of the observer's own hooks for each frame, without pipecat around them: `python -m
tests.support.pipecat_bots.hooks_cost`.
"""

import asyncio
import gc
import json
import time
from types import SimpleNamespace
from typing import Any, Final

from callgauge_send.events import encoded
from pipecat.processors.frame_processor import FrameDirection
from pipecat_callgauge import CallgaugeObserver

from tests.support.pipecat_bots.fleet import PROCESSORS, turn

TURNS: Final = 50
ROUNDS: Final = 5


async def _turns_seconds() -> float:
    """Processor seconds of some turns: each frame is processed by every processor, and pushed for
    the first time once.
    """
    observer = CallgaugeObserver(conversation_id="c", sink=lambda event: void(encoded(event)))
    before = SimpleNamespace(name="Before#0")
    steps: list[tuple[Any, list[Any]]] = []
    for frame in [each for _ in range(TURNS) for each in turn()]:
        named: dict[str, Any] = {
            "frame": frame,
            "direction": FrameDirection.DOWNSTREAM,
            "timestamp": 0,
        }
        push = SimpleNamespace(**named, source=before, destination=None, first_push=True)
        steps.append(
            (
                push,
                [SimpleNamespace(**named, processor=SimpleNamespace(previous=before))] * PROCESSORS,
            )
        )
    gc.collect()
    begin = time.process_time()
    for push, processed in steps:
        await observer.on_push_frame(push)
        for each in processed:
            await observer.on_process_frame(each)
    return (time.process_time() - begin) / len(steps)


def void(_value: bytes) -> None:
    """Takes the bytes and forgets them."""


async def _best() -> float:
    return min([await _turns_seconds() for _ in range(ROUNDS)])


if __name__ == "__main__":
    print(json.dumps({"us_per_frame": asyncio.run(_best()) * 1e6}))
