"""Many bots in one process, each a real worker with six processors: the observer's cost, and its
behaviour in an outage.

`python -m tests.support.pipecat_bots.fleet` prints its figures as JSON. Its frames are those of a
call, without vendors.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from loguru import logger
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    EndFrame,
    Frame,
    MetricsFrame,
    OutputAudioRawFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.metrics.metrics import TTFBMetricsData, TTSUsageMetricsData
from pipecat.observers.base_observer import BaseObserver
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.workers.runner import WorkerRunner
from pipecat_callgauge import CallgaugeObserver

from tests.support.patience import unserved_seconds
from tests.support.pipecat_bots.shares import Part, Samples

PROCESSORS: Final = 6
FRAMES_OF_A_TURN: Final = 200
"""Sound of four seconds in pieces of 20 ms."""
PLAYED: Final = "played"
"""Printed after the last turn, while the calls are still open."""
WATCH_SECONDS: Final = 0.01
SOUND: Final = b"\0" * 640


class Passing(FrameProcessor):
    """Passes every frame on."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        await self.push_frame(frame, direction)


def turn() -> list[Frame]:
    """The frames of one turn: as many events as a turn of a real bot has, and its sound."""
    metrics = [
        MetricsFrame(data=[TTFBMetricsData(processor=f"{kind}Service#0", model="m", value=0.2)])
        for kind in ("STT", "LLM", "TTS")
    ] + [
        MetricsFrame(data=[TTSUsageMetricsData(processor="TTSService#0", model="m", value=30)])
        for _ in range(6)
    ]
    sound: list[Frame] = [OutputAudioRawFrame(SOUND, 16_000, 1) for _ in range(FRAMES_OF_A_TURN)]
    return [
        VADUserStartedSpeakingFrame(start_secs=0.2),
        UserStartedSpeakingFrame(),
        VADUserStoppedSpeakingFrame(stop_secs=0.2),
        UserStoppedSpeakingFrame(),
        *metrics,
        BotStartedSpeakingFrame(),
        *sound,
        BotStoppedSpeakingFrame(),
    ]


class Fleet:
    """Workers of one process.

    Attributes:
        delays_s: How late the event loop was, a hundred times a second: bots wait for as long, and
            for a processor besides.
        busy_s: For how long it computed without turning, in processor time: other work on the
            machine does not count.
        samples: Processor time by part, if it was asked for.
    """

    def __init__(
        self, observers: Sequence[BaseObserver | None], samples: Samples | None = None
    ) -> None:
        self.delays_s: list[float] = []
        self.busy_s: list[float] = []
        self.samples = samples
        self._workers = [
            PipelineWorker(
                Pipeline([Passing() for _ in range(PROCESSORS)]),
                observers=[] if each is None else [each],
                cancel_on_idle_timeout=False,
                enable_rtvi=False,
                enable_turn_tracking=False,
            )
            for each in observers
        ]

    async def play(
        self, turns: int, pause_s: float = 0.0, linger_s: float = 0.0, *, with_sound: bool = True
    ) -> float:
        """Lets every bot have so many turns, and stay on the line a little longer.

        Returns:
            The processor seconds from the first frame to the last.
        """
        runner = WorkerRunner(handle_sigint=False)
        ready = []
        for worker in self._workers:
            started = asyncio.Event()
            worker.add_event_handler(
                "on_pipeline_started", lambda *_, started=started: started.set()
            )
            ready.append(started)
        await runner.add_workers(*self._workers)
        spent = 0.0

        async def go() -> None:
            nonlocal spent
            for each in ready:
                await each.wait()
            gc.collect()
            # a pass over the workers themselves takes longer than any frame, with and without an
            # observer
            gc.freeze()
            watch = asyncio.create_task(self._watch())
            sampling = contextlib.ExitStack()
            if self.samples is not None:
                sampling.enter_context(self.samples.sampled())
            begin = time.process_time()
            for _ in range(turns):
                for frame in turn():
                    if with_sound or not isinstance(frame, OutputAudioRawFrame):
                        for worker in self._workers:
                            await worker.queue_frame(type(frame)(**_fields(frame)))
                        await asyncio.sleep(0)
                await asyncio.sleep(pause_s)
            for worker in self._workers:
                await worker.flush_pipeline(60.0)
            spent = time.process_time() - begin
            sampling.close()
            print(PLAYED, flush=True)
            await asyncio.sleep(linger_s)
            watch.cancel()
            for worker in self._workers:
                await worker.queue_frame(EndFrame())

        await asyncio.gather(runner.run(), go())
        return spent

    async def _watch(self) -> None:
        while True:
            begin, begin_busy = time.monotonic() - unserved_seconds(), time.thread_time()
            await asyncio.sleep(WATCH_SECONDS)
            self.delays_s.append(
                max(0.0, time.monotonic() - unserved_seconds() - begin - WATCH_SECONDS)
            )
            self.busy_s.append(time.thread_time() - begin_busy)


def _p99_ms(seconds: Sequence[float]) -> float:
    ordered = sorted(seconds)
    return ordered[int(0.99 * (len(ordered) - 1))] * 1000 if ordered else 0.0


def _fields(frame: Frame) -> dict[str, Any]:
    """The arguments with which an equal frame is made: each bot has its own."""
    names = ("start_secs", "stop_secs", "data", "audio", "sample_rate", "num_channels")
    return {name: getattr(frame, name) for name in names if hasattr(frame, name)}


def _observer(arguments: argparse.Namespace, number: int) -> BaseObserver | None:
    if arguments.bare:
        return BaseObserver(observe_every_push=False)
    return (
        CallgaugeObserver(conversation_id=f"{arguments.name}-{number}", agent="fleet")
        if arguments.observed
        else None
    )


async def _run(arguments: argparse.Namespace) -> dict[str, float]:
    observers: list[BaseObserver | None] = [
        _observer(arguments, number) for number in range(arguments.bots)
    ]
    samples = Samples() if arguments.shares else None
    fleet = Fleet(observers, samples)
    seconds = await fleet.play(
        arguments.turns, arguments.pause, arguments.linger, with_sound=not arguments.silent
    )
    of_a_turn = [
        each for each in turn() if not (arguments.silent and isinstance(each, OutputAudioRawFrame))
    ]
    frames = arguments.bots * arguments.turns * len(of_a_turn)
    lost = [sum(each.lost.values()) for each in observers if isinstance(each, CallgaugeObserver)]
    shares = (
        {}
        if samples is None
        else {f"{each}_us": samples.seconds[each] / frames * 1e6 for each in Part}
    )
    return {
        "us_per_frame": seconds / frames * 1e6,
        "frames": frames,
        "lost": sum(lost),
        "turns": arguments.turns,
        "delay_p99_ms": _p99_ms(fleet.delays_s),
        "delay_max_ms": max(fleet.delays_s, default=0.0) * 1000,
        "busy_p99_ms": _p99_ms(fleet.busy_s),
        "busy_max_ms": max(fleet.busy_s, default=0.0) * 1000,
        **shares,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.pipecat_bots.fleet", description=__doc__
    )
    parser.add_argument("--bots", type=int, default=200)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each turn")
    parser.add_argument("--linger", type=float, default=0.0, help="seconds after the last turn")
    parser.add_argument("--silent", action="store_true", help="events only, no sound")
    parser.add_argument(
        "--observed",
        action="store_true",
        help="with the observer, to Kafka as the environment says",
    )
    parser.add_argument(
        "--bare", action="store_true", help="with an observer of pipecat that does nothing"
    )
    parser.add_argument("--shares", action="store_true", help="samples whose processor time it is")
    parser.add_argument("--name", default="fleet", help="start of the conversation ids")
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    print(json.dumps(asyncio.run(_run(parser.parse_args()))))


if __name__ == "__main__":
    main()
