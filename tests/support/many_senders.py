"""Many calls of one process that send at a steady rate, whatever becomes of the broker: what a
fleet of bots asks of the sender.

`python -m tests.support.many_senders --rate 10000 --seconds 60` prints its figures as JSON.
"""

import argparse
import asyncio
import json
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from callgauge_send import Call

from tests.support.patience import unserved_seconds

TICK_S: Final = 0.01
EVERY_MB: Final = 1_048_576
EVENT: Final[dict[str, Any]] = {
    "kind": "bot_speech_stopped",
    "timestamp": 1_790_000_000.25,
    "started_at": 1_790_000_000.0,
}


def resident_mb() -> float:
    """The memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / EVERY_MB


class Watch:
    """How late the event loop was at most, and the most memory, a hundred times a second."""

    def __init__(self) -> None:
        self.late_s = 0.0
        self.most_mb = 0.0

    async def look(self) -> None:
        while True:
            begin = time.monotonic()
            await asyncio.sleep(TICK_S)
            self.late_s = max(self.late_s, time.monotonic() - begin - TICK_S)
            self.most_mb = max(self.most_mb, resident_mb())


async def send(calls: Sequence[Call], rate: int, seconds: float) -> tuple[int, float]:
    """Sends so many events a second, in turn for each call.

    Returns:
        Their number, and the longest `send` in seconds, but for the time in which there was no
        processor for it.
    """
    sent, longest_s, begin = 0, 0.0, time.monotonic()
    while (passed_s := time.monotonic() - begin) < seconds:
        for _ in range(int(rate * passed_s) - sent):
            before = time.perf_counter() - unserved_seconds()
            calls[sent % len(calls)].send("speech_event", data={**EVENT, "n": sent})
            longest_s = max(longest_s, time.perf_counter() - unserved_seconds() - before)
            sent += 1
        await asyncio.sleep(TICK_S)
    return sent, longest_s


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rate", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument(
        "--catch-up", type=float, default=120.0, help="how long to wait for what still waits"
    )
    parser.add_argument("--name", default="many")
    given = parser.parse_args()
    calls = [
        Call(conversation_id=f"{given.name}-{number}", agent="many")
        for number in range(given.calls)
    ]
    before_mb, watch = resident_mb(), Watch()
    watching = asyncio.create_task(watch.look())
    sent, longest_s = await send(calls, given.rate, given.seconds)
    waiting = sum(call.waiting for call in calls)
    begin = time.monotonic()
    while any(call.waiting for call in calls) and time.monotonic() - begin < given.catch_up:  # noqa: ASYNC110 - a count, which signals nothing
        await asyncio.sleep(0.1)
    caught_up_s = time.monotonic() - begin
    watching.cancel()
    whole = await asyncio.gather(*(call.end() for call in calls))
    figures = {
        "sent": sent,
        "lost": sum(sum(call.lost.values()) for call in calls),
        "is_whole": all(whole),
        "waiting": waiting,
        "caught_up_s": caught_up_s,
        "longest_send_ms": 1000 * longest_s,
        "late_ms": 1000 * watch.late_s,
        "grown_mb": watch.most_mb - before_mb,
        "cpu_s": time.process_time(),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    asyncio.run(main())
