"""A scripted bot for any version of pipecat: plain processors push the frames of a call at the pace
of one.

It is run by its path, in an environment of its own that has pipecat and aiokafka only. It prints
pipecat's own latencies as JSON.
"""

import asyncio
import inspect
import json
import os
import sys
from importlib.metadata import version
from typing import Any

from loguru import logger
from pipecat.frames import frames
from pipecat.metrics.metrics import TTFBMetricsData
from pipecat.pipeline.pipeline import Pipeline
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams

try:
    from pipecat.pipeline.worker import PipelineParams
    from pipecat.pipeline.worker import PipelineWorker as Worker
    from pipecat.workers.runner import WorkerRunner as Runner
except ImportError:  # before 1.3
    from pipecat.pipeline.runner import PipelineRunner as Runner
    from pipecat.pipeline.task import PipelineParams
    from pipecat.pipeline.task import PipelineTask as Worker
try:
    from pipecat.observers import user_bot_latency_observer as latency_observers
except ImportError:  # before 0.0.102
    HAS_LATENCIES = False
else:
    HAS_LATENCIES = True

VAD_SECONDS = 0.2
Interruption: Any = getattr(frames, "InterruptionFrame", None) or getattr(
    frames, "StartInterruptionFrame", None
)


class Part(FrameProcessor):
    """Passes everything on, and sends the script's frames both ways."""

    async def process_frame(self, frame: Any, direction: Any) -> None:
        await super().process_frame(frame, direction)
        await self.push_frame(frame, direction)

    async def tell(self, kind: Any, **fields: Any) -> None:
        await tell(self, kind, **fields)


class Line(BaseOutputTransport):
    """The end at which words are heard. It plays no sound: the script says when the bot speaks."""

    async def process_frame(self, frame: Any, direction: Any) -> None:
        await FrameProcessor.process_frame(self, frame, direction)
        await self.push_frame(frame, direction)


async def tell(part: Any, kind: Any, **fields: Any) -> None:
    """Pushes a frame both ways, with the fields that this version knows."""
    known = {
        name: value for name, value in fields.items() if name in inspect.signature(kind).parameters
    }
    if hasattr(part, "broadcast_frame"):
        await part.broadcast_frame(kind, **known)
    else:
        await part.push_frame(kind(**known))
        await part.push_frame(kind(**known), FrameDirection.UPSTREAM)


def word(text: str) -> Any:
    names = inspect.signature(frames.TTSTextFrame).parameters
    more: dict[str, Any] = {}
    for name in ("text_type", "aggregated_by"):
        if name in names and not more:
            more[name] = "word"
    return frames.TTSTextFrame(text, **more)


class Call:
    """A greeting, a question that needs a tool, an answer that is interrupted, and a
    last answer.
    """

    def __init__(self, started: asyncio.Event) -> None:
        self._started = started
        self.mic, self.ear, self.turns, self.mind, self.mouth = (
            Part(name=name)
            for name in ("Mic", "AnSTTService#0", "Turns", "AnLLMService#0", "ATTSService#0")
        )
        self.line = Line(TransportParams())
        self.after = Part(name="After")
        self.parts = [self.mic, self.ear, self.turns, self.mind, self.mouth, self.line, self.after]

    async def play(self) -> None:
        await self._started.wait()
        await asyncio.sleep(0.3)
        await self._bot_says("Good day.", 0.6)
        await self._user_says("Find A1.", 0.8)
        tool = {
            "function_name": "find",
            "tool_call_id": "c1",
            "arguments": {"code": "A1"},
            "cancel_on_interruption": True,
        }
        await self.mind.tell(frames.FunctionCallInProgressFrame, **tool)
        await asyncio.sleep(0.3)
        await self.mind.tell(frames.FunctionCallResultFrame, **tool, result={"status": "error"})
        answer = asyncio.create_task(
            self._bot_says("I have found it and read all of it to you now.", 4.0)
        )
        await asyncio.sleep(1.7)
        await self._user_begins()
        await tell(self.turns, Interruption)
        answer.cancel()
        await tell(self.line, frames.BotStoppedSpeakingFrame)
        await asyncio.sleep(0.6)
        await self._user_ends("Stop.")
        await self._bot_says("As you like.", 0.5)
        await asyncio.sleep(0.3)

    async def _user_begins(self) -> None:
        await asyncio.sleep(VAD_SECONDS)
        await self.mic.tell(frames.VADUserStartedSpeakingFrame, start_secs=VAD_SECONDS)
        await self.turns.tell(frames.UserStartedSpeakingFrame)

    async def _user_ends(self, text: str) -> None:
        await asyncio.sleep(VAD_SECONDS)
        await self.mic.tell(frames.VADUserStoppedSpeakingFrame, stop_secs=VAD_SECONDS)
        await asyncio.sleep(0.1)
        await self.ear.push_frame(
            frames.TranscriptionFrame(text, "caller", "2026-11-22T18:00:00.000+00:00")
        )
        if hasattr(frames, "LLMContextUserTurnFrame"):
            await self.turns.tell(
                frames.LLMContextUserTurnFrame, text=text, timestamp="2026-11-22T18:00:00.000+00:00"
            )
        await self.turns.tell(frames.UserStoppedSpeakingFrame)

    async def _user_says(self, text: str, seconds: float) -> None:
        await self._user_begins()
        await asyncio.sleep(seconds)
        await self._user_ends(text)

    async def _bot_says(self, text: str, seconds: float) -> None:
        await self.mind.push_frame(frames.LLMFullResponseStartFrame())
        await asyncio.sleep(0.2)
        metric = TTFBMetricsData(processor=self.mind.name, model="m", value=0.2)
        await self.mind.push_frame(frames.MetricsFrame(data=[metric]))
        await tell(self.line, frames.BotStartedSpeakingFrame)
        words = text.split()
        for each in words:
            await self.mouth.push_frame(word(each))
            await asyncio.sleep(seconds / len(words))
        await tell(self.line, frames.BotStoppedSpeakingFrame)


async def main(conversation_id: str) -> None:
    """Plays the call. Without a setup file the observer is an argument of the worker."""
    latencies: list[float] = []
    observers: list[Any] = []
    if HAS_LATENCIES:
        pipecats = latency_observers.UserBotLatencyObserver()
        pipecats.add_event_handler(
            "on_latency_measured", lambda _, seconds: latencies.append(seconds)
        )
        observers.append(pipecats)
    if not os.environ.get("PIPECAT_SETUP_FILES"):
        from pipecat_callgauge import CallgaugeObserver

        observers.append(CallgaugeObserver(conversation_id=conversation_id, agent="any-version"))
    started = asyncio.Event()
    call = Call(started)
    known = inspect.signature(Worker.__init__).parameters
    wanted: dict[str, Any] = {
        "cancel_on_idle_timeout": False,
        "enable_rtvi": False,
        "conversation_id": conversation_id,
    }
    worker = Worker(
        Pipeline(call.parts),
        params=PipelineParams(enable_metrics=True),
        observers=observers,
        **{name: value for name, value in wanted.items() if name in known},
    )
    worker.add_event_handler("on_pipeline_started", lambda *_: started.set())
    runner = Runner(handle_sigint=False)
    if hasattr(runner, "add_workers"):
        await runner.add_workers(worker)
        running = runner.run()
    else:
        running = runner.run(worker)

    async def play() -> None:
        await call.play()
        await worker.queue_frame(frames.EndFrame())

    await asyncio.wait_for(asyncio.gather(running, play()), 100)
    sys.stdout.write(
        json.dumps(
            {"pipecat": version("pipecat-ai"), "latencies_ms": [1000 * each for each in latencies]}
        )
        + "\n"
    )


if __name__ == "__main__":
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    asyncio.run(main(sys.argv[1]))
