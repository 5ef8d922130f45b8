"""One test bot: pipecat's own pipeline, aggregators and turn strategies around the vendors, with
pipecat's observers beside ours.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from pipecat.frames.frames import (
    CancelFrame,
    ClientConnectedFrame,
    EndFrame,
    Frame,
    LLMRunFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.observers.base_observer import BaseObserver
from pipecat.observers.user_bot_latency_observer import UserBotLatencyObserver
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.turns.user_start import VADUserTurnStartStrategy
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipecat.workers.runner import WorkerRunner
from pipecat_callgauge import CallgaugeObserver

from tests.support.patience import patient
from tests.support.pipecat_bots.vendors import (
    Answer,
    EarSTTService,
    Line,
    MindLLMService,
    MouthTTSService,
)

DETECTOR_SECONDS = 0.2
"""How long the detector takes to be sure of a start, and of an end."""
QUIET_SECONDS = 1.0
"""After so much silence an answer is over. Between two sentences are 0.15 s."""
MOST_SECONDS = 30
"""How long a caller waits for anything that the bot must do."""

Tool = Callable[[Any], Awaitable[None]]


def patient_turns(**more: Any) -> UserTurnStrategies:
    """The detector begins a turn; 0.4 s without speech after the transcription end it."""
    given: dict[str, Any] = {
        "start": [VADUserTurnStartStrategy()],
        "stop": [SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0.4)],
        **more,
    }
    return UserTurnStrategies(**given)


@dataclass
class Call:
    """A scripted call: the model's answers, the parts of the bot, and the caller's acts."""

    plan: list[Answer]
    caller: Callable[["Bot"], Awaitable[None]]
    turns: Callable[[], Any] = patient_turns
    synthesis: dict[str, Any] | None = field(default_factory=dict)
    tools: dict[str, Tool] = field(default_factory=dict)
    schemas: list[Any] = field(default_factory=list)
    attaches_late: bool = False
    ends_by_cancelling: bool = False


class Microphone(FrameProcessor):
    """The caller's end of the pipeline."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        await self.push_frame(frame, direction)


class Bot:
    """One call. `said` are the times at which the caller begins and ends to speak, `latencies_s`
    pipecat's measurements.
    """

    def __init__(
        self,
        name: str,
        call: Call,
        observer: CallgaugeObserver,
        *beside: BaseObserver,
        is_traced: bool = False,
    ) -> None:
        self.name = name
        self.said: list[tuple[str, float]] = []
        self.latencies_s: list[float] = []
        self.first_speech_s: list[float] = []
        self._call = call
        self._observer = observer
        self._microphone, self.ear, self._model = (
            Microphone(),
            EarSTTService(),
            MindLLMService(call.plan),
        )
        self._called: set[str] = set()
        for tool, handler in call.tools.items():
            self._model.register_function(tool, self._noting(tool, handler))
        context = LLMContext([], tools=call.schemas) if call.schemas else LLMContext([])
        turns = LLMUserAggregatorParams(user_turn_strategies=call.turns())
        pair = LLMContextAggregatorPair(context, user_params=turns)
        self.line = Line()
        speech = [] if call.synthesis is None else [MouthTTSService(**call.synthesis)]
        processors = [
            self._microphone,
            self.ear,
            pair.user(),
            self._model,
            *speech,
            self.line,
            pair.assistant(),
        ]
        pipecats = UserBotLatencyObserver()
        pipecats.add_event_handler(
            "on_latency_measured", lambda _, seconds: self.latencies_s.append(seconds)
        )
        pipecats.add_event_handler(
            "on_first_bot_speech_latency", lambda _, seconds: self.first_speech_s.append(seconds)
        )
        self.worker = PipelineWorker(
            Pipeline(processors),
            params=PipelineParams(enable_metrics=True, enable_usage_metrics=True),
            observers=[pipecats, *beside, *([] if call.attaches_late else [observer])],
            cancel_on_idle_timeout=False,
            enable_rtvi=False,
            conversation_id=name,
            enable_tracing=is_traced,
        )
        self._ready = asyncio.Event()
        self.worker.add_event_handler("on_pipeline_started", lambda *_: self._ready.set())

    def _noting(self, tool: str, handler: Tool) -> Tool:
        async def noted(call: Any) -> None:
            self._called.add(tool)
            await handler(call)

        return noted

    def attach(self) -> None:
        """Attaches our observer to the running worker."""
        self.worker.add_observer(self._observer)

    async def greet(self) -> None:
        """Lets the bot speak first, to the end."""
        await self.begin_to_greet()
        await self.answered()

    async def begin_to_greet(self) -> None:
        """Lets the bot speak first, and returns at once."""
        self.ear.heard_s = time.time()
        await self.worker.queue_frame(LLMRunFrame())

    async def answered(self) -> None:
        """Waits until the bot has answered the last words, and is silent."""
        await self.hears()
        await self._until(
            "the bot is silent", lambda: time.time() - self.line.last_s > patient(QUIET_SECONDS)
        )

    async def hears(self) -> None:
        """Waits for the first sound of the bot's answer to the last words."""
        await self._until("an answer", lambda: self.line.last_s > self.ear.heard_s)

    async def model_is_asked(self, times: int) -> None:
        """Waits until the model was asked so many times in this call."""
        await self._until(f"question {times} to the model", lambda: self._model.asked >= times)

    async def tool_is_called(self, tool: str) -> None:
        """Waits until the bot has called a tool."""
        await self._until(f"a call of {tool}", lambda: tool in self._called)

    async def _until(self, what: str, is_so: Callable[[], bool]) -> None:
        until = time.monotonic() + patient(MOST_SECONDS)
        while not is_so():
            if time.monotonic() > until:
                raise TimeoutError(f"{self.name}: {what} did not come")
            await asyncio.sleep(0.02)

    async def begin_to_speak(self) -> None:
        """The caller speaks; the detector notices."""
        self.said.append(("began", time.time()))
        await asyncio.sleep(DETECTOR_SECONDS)
        await self._microphone.broadcast_frame(
            VADUserStartedSpeakingFrame, start_secs=DETECTOR_SECONDS
        )

    async def fall_silent(self) -> None:
        """The caller ends; the detector notices."""
        self.said.append(("ended", time.time()))
        await asyncio.sleep(DETECTOR_SECONDS)
        await self._microphone.broadcast_frame(
            VADUserStoppedSpeakingFrame, stop_secs=DETECTOR_SECONDS
        )

    async def say(
        self, seconds: float, text: str, *, heard_after: float = 0.1, is_final: bool = True
    ) -> None:
        """The caller says something, and the recognition understands it a little later."""
        await self.begin_to_speak()
        await asyncio.sleep(seconds - DETECTOR_SECONDS)
        await self.fall_silent()
        await asyncio.sleep(heard_after)
        await self.ear.hear(text, is_final=is_final)

    async def run(self) -> None:
        """Plays the call to its end."""
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(self.worker)

        async def play() -> None:
            await self._ready.wait()
            last: Frame = CancelFrame()
            try:
                await self.worker.queue_frame(ClientConnectedFrame())
                await self._call.caller(self)
                last = last if self._call.ends_by_cancelling else EndFrame()
            finally:  # a worker without its last frame runs on, also when its task is cancelled
                await self.worker.queue_frame(last)

        await asyncio.gather(runner.run(), play())
