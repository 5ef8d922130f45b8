"""A traced bot for pipecat from 1.0 on: separate services, or a realtime model that talks OpenAI's
protocol to a server on loopback.

It is run by its path, in an environment that has pipecat with `openai` and `tracing`. It prints
pipecat's own latencies and our observer's events as JSON, and sends pipecat's spans by OTLP.
"""

import argparse
import asyncio
import base64
import inspect
import json
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from importlib.metadata import version
from typing import Any, Final

from loguru import logger
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pipecat.adapters.schemas.function_schema import FunctionSchema
from pipecat.adapters.schemas.tools_schema import ToolsSchema
from pipecat.frames import frames
from pipecat.metrics.metrics import LLMTokenUsage
from pipecat.observers.user_bot_latency_observer import UserBotLatencyObserver
from pipecat.pipeline.pipeline import Pipeline
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.llm_service import LLMService
from pipecat.services.openai.realtime import events as realtime
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.services.settings import LLMSettings, STTSettings, TTSSettings
from pipecat.services.stt_service import STTService
from pipecat.services.tts_service import TTSService
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.turns.user_start import VADUserTurnStartStrategy
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import ExternalUserTurnStrategies, UserTurnStrategies
from pipecat.utils.time import time_now_iso8601
from pipecat.utils.tracing.service_decorators import traced_llm, traced_stt, traced_tts
from pipecat_callgauge import CallgaugeObserver
from websockets.asyncio.server import ServerConnection, serve

try:
    from pipecat.pipeline.worker import PipelineParams
    from pipecat.pipeline.worker import PipelineWorker as Worker
    from pipecat.workers.runner import WorkerRunner as Runner
except ImportError:  # before 1.3
    from pipecat.pipeline.runner import PipelineRunner as Runner
    from pipecat.pipeline.task import PipelineParams
    from pipecat.pipeline.task import PipelineTask as Worker

RATE: Final = 24_000
PIECE_S: Final = 0.02
LOUD: Final = b"\x00\x20" * int(RATE * PIECE_S)
QUIET: Final = bytes(len(LOUD))
DETECTOR_S: Final = 0.2
"""How long a detector takes to be sure."""
HEARD_S: Final = 0.15
THOUGHT_S: Final = 0.3
SPOKEN_S: Final = 0.1
"""How long a service of its own, or the realtime model, takes to its transcript, to its first word,
and to its first sound.
"""
SECONDS_A_WORD: Final = 0.15
LONG: Final = (
    "We have four rooms left. The red one looks over the lake. The blue one has a large desk. The "
    "green one is quiet."
)
ASKED: Final = (
    "Which rooms are there?",
    "Find my visit A1.",
    "Cancel my visit.",
    "Tell me about all rooms.",
    "Stop, the red one.",
    "Are you there?",
    "Thanks a lot.",
)
CUT: Final = 3
FAILS: Final = 5
"""Places of the question whose answer is cut off by the next one, and of the one that is answered
by an error.
"""
Answer = str | tuple[str, str, dict[str, Any]] | None
"""Words; a tool with the id of its call and its arguments; or None for an error."""
ANSWERS: Final[tuple[Answer, ...]] = (
    "Good day, what may I do?",
    "There are four rooms.",
    ("find_visit", "c1", {"code": "A1"}),
    "I have found it.",
    ("cancel_visit", "c2", {}),
    "I cannot cancel it.",
    LONG,
    "The red one is yours.",
    None,
    "Goodbye then.",
)
"""What the model answers to a question after the other; a tool's answer is such a question too."""


async def find_visit(call: Any) -> None:
    await asyncio.sleep(0.4)
    await call.result_callback({"status": "ok", "visit": "V7"})


async def cancel_visit(call: Any) -> None:
    await asyncio.sleep(0.1)
    await call.result_callback({"status": "error", "message": "the database is down"})


# Separate services.


class EarSTTService(STTService):
    """Emits the transcriptions of the script."""

    def __init__(self) -> None:
        super().__init__(settings=STTSettings(model="ear-1", language=None), ttfs_p99_latency=0.4)

    def can_generate_metrics(self) -> bool:
        return True

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Any, None]:
        yield None

    @traced_stt
    async def _handle_transcription(
        self, transcript: str, is_final: bool, language: Any = None
    ) -> None:
        """Services call this after each final transcript; before 1.13 it makes the span."""

    async def hear(self, text: str, *, is_finalized: bool) -> None:
        await self.push_frame(
            frames.TranscriptionFrame(text, "caller", time_now_iso8601(), finalized=is_finalized)
        )
        await self._handle_transcription(text, True)


class MindLLMService(LLMService):
    """Gives one answer after the other."""

    def __init__(self) -> None:
        unset = (
            name
            for name in inspect.signature(LLMSettings).parameters
            if name not in ("extra", "model")
        )
        known: dict[str, Any] = {
            **dict.fromkeys(unset),
            "filter_incomplete_user_turns": False,
            "model": "mind-1",
        }
        super().__init__(settings=LLMSettings(**known))
        self.answers = list(ANSWERS)

    def can_generate_metrics(self) -> bool:
        return True

    async def process_frame(self, frame: Any, direction: Any) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, frames.LLMContextFrame):
            await self._answer(frame.context)
        else:
            await self.push_frame(frame, direction)

    @traced_llm
    async def _answer(self, context: LLMContext) -> None:
        try:
            answer = self.answers.pop(0)
            await self.push_frame(frames.LLMFullResponseStartFrame())
            await self.start_processing_metrics()
            await self.start_ttfb_metrics()
            await asyncio.sleep(THOUGHT_S)
            if answer is None:
                await self.push_error("the model is down")
                return
            await self.stop_ttfb_metrics()
            if isinstance(answer, tuple):
                name, call_id, arguments = answer
                call = frames.FunctionCallFromLLM(
                    function_name=name, tool_call_id=call_id, arguments=arguments, context=context
                )
                await self.run_function_calls([call])
            else:
                for word in answer.split():
                    await self._push_llm_text(word + " ")
                    await asyncio.sleep(0.01)
            await self.start_llm_usage_metrics(
                LLMTokenUsage(prompt_tokens=90, completion_tokens=30, total_tokens=120)
            )
        finally:
            await self.stop_processing_metrics()
            await self.push_frame(frames.LLMFullResponseEndFrame())


class MouthTTSService(TTSService):
    """Speaks a word in `SECONDS_A_WORD`."""

    def __init__(self) -> None:
        settings = TTSSettings(model="mouth-1", voice="v", language=None)
        super().__init__(
            settings=settings, sample_rate=RATE, push_start_frame=True, push_stop_frames=True
        )

    def can_generate_metrics(self) -> bool:
        return True

    @traced_tts
    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Any, None]:
        await self.start_ttfb_metrics()
        await self.start_tts_usage_metrics(text)
        await asyncio.sleep(SPOKEN_S)
        await self.stop_ttfb_metrics()
        for _ in range(round(len(text.split()) * SECONDS_A_WORD / PIECE_S)):
            yield frames.TTSAudioRawFrame(LOUD, RATE, 1, context_id=context_id)


# A realtime model.


class Server:
    """OpenAI's realtime API on loopback, as far as pipecat speaks it. With a detector of its own it
    rules who speaks, and answers.
    """

    def __init__(self, *, detects: bool) -> None:
        self.answers = list(ANSWERS)
        self.heard = list(ASKED)
        self._detects = detects
        self._socket: Any = None
        self._number = 0
        self._is_loud = False
        self._quiet_s = 0.0
        self._answering: asyncio.Task[None] | None = None
        self._hearing: set[asyncio.Task[None]] = set()

    async def talk(self, socket: ServerConnection) -> None:
        self._socket = socket
        await self._tell("session.created", session={})
        async for message in socket:
            event = json.loads(message)
            match event["type"]:
                case "session.update":
                    await self._tell("session.updated", session={})
                case "input_audio_buffer.append" if self._detects:
                    await self._listen(base64.b64decode(event["audio"]))
                case "input_audio_buffer.commit":
                    self._understand()
                case "conversation.item.create":
                    await self._tell("conversation.item.added", item=event["item"])
                case "response.create":
                    self._answer()
                case "response.cancel":
                    await self._cancel()

    async def _tell(self, kind: str, **fields: Any) -> None:
        self._number += 1
        await self._socket.send(
            json.dumps({"event_id": f"event_{self._number}", "type": kind, **fields})
        )

    async def _listen(self, sound: bytes) -> None:
        seconds = len(sound) / 2 / RATE
        if max(sound) > 0:
            self._quiet_s = 0.0
            if not self._is_loud:
                self._is_loud = True
                await self._tell("input_audio_buffer.speech_started", audio_start_ms=0, item_id="i")
                await self._cancel()
        else:
            self._quiet_s += seconds
            if self._is_loud and self._quiet_s >= DETECTOR_S:
                self._is_loud = False
                await self._tell("input_audio_buffer.speech_stopped", audio_end_ms=0, item_id="i")
                self._understand()
                self._answer()

    def _understand(self) -> None:
        async def understand() -> None:
            self._number += 1
            item = {"id": f"item_u{self._number}", "type": "message", "role": "user", "content": []}
            await self._tell("input_audio_buffer.committed", item_id=item["id"])
            await self._tell("conversation.item.added", item=item)
            await asyncio.sleep(HEARD_S)
            known = {"item_id": item["id"], "content_index": 0, "transcript": self.heard.pop(0)}
            await self._tell("conversation.item.input_audio_transcription.completed", **known)

        task = asyncio.create_task(understand())
        self._hearing.add(task)
        task.add_done_callback(self._hearing.discard)

    async def _cancel(self) -> None:
        task, self._answering = self._answering, None
        if task is not None and not task.done():
            task.cancel()

    def _answer(self) -> None:
        self._answering = asyncio.create_task(self._respond(self.answers.pop(0)))

    async def _respond(self, answer: Answer) -> None:
        self._number += 1
        name = f"resp_{self._number}"
        where = {"response_id": name, "item_id": f"item_{name}", "output_index": 0}
        response: dict[str, Any] = {
            "id": name,
            "object": "realtime.response",
            "status": "in_progress",
            "status_details": None,
            "output": [],
        }
        await self._tell("response.created", response=response)
        usage = {
            "total_tokens": 120,
            "input_tokens": 90,
            "output_tokens": 30,
            "input_token_details": {"cached_tokens": 10, "text_tokens": 40, "audio_tokens": 50},
            "output_token_details": {"text_tokens": 10, "audio_tokens": 20},
        }
        try:
            await asyncio.sleep(THOUGHT_S)
            if answer is None:
                details = {
                    "type": "failed",
                    "error": {
                        "type": "server_error",
                        "code": "down",
                        "message": "the model is down",
                    },
                }
                await self._tell(
                    "response.done",
                    response={
                        **response,
                        "status": "failed",
                        "status_details": details,
                        "usage": usage,
                    },
                )
                return
            if isinstance(answer, tuple):
                function, call_id, arguments = answer
                given = json.dumps(arguments)
                item: dict[str, Any] = {
                    "id": where["item_id"],
                    "type": "function_call",
                    "name": function,
                    "call_id": call_id,
                    "arguments": given,
                }
                await self._tell("conversation.item.added", item=item)
                await self._tell(
                    "response.function_call_arguments.done",
                    **where,
                    call_id=call_id,
                    arguments=given,
                )
            else:
                item = {
                    "id": where["item_id"],
                    "type": "message",
                    "role": "assistant",
                    "content": [],
                }
                await self._tell("conversation.item.added", item=item)
                await self._speak(answer, {**where, "content_index": 0})
                item = {**item, "content": [{"type": "output_audio", "transcript": answer}]}
            await self._tell("conversation.item.done", item=item)
        except asyncio.CancelledError:
            details = {"type": "cancelled", "reason": "turn_detected"}
            await self._tell(
                "response.done",
                response={
                    **response,
                    "status": "cancelled",
                    "status_details": details,
                    "usage": usage,
                },
            )
            raise
        await self._tell(
            "response.done",
            response={**response, "status": "completed", "output": [item], "usage": usage},
        )

    async def _speak(self, words: str, where: dict[str, Any]) -> None:
        """The sound comes four times as fast as it is heard."""
        for word in words.split():
            sound = LOUD * round(SECONDS_A_WORD / PIECE_S)
            await self._tell(
                "response.output_audio.delta", **where, delta=base64.b64encode(sound).decode()
            )
            await self._tell("response.output_audio_transcript.delta", **where, delta=word + " ")
            await asyncio.sleep(SECONDS_A_WORD / 4)
        await self._tell("response.output_audio_transcript.done", **where, transcript=words)
        await self._tell("response.output_audio.done", **where)


# The caller's end, and the bot.


class Microphone(FrameProcessor):
    """Sound while the caller speaks, otherwise silence, in real time."""

    is_loud = False

    async def process_frame(self, frame: Any, direction: Any) -> None:
        await super().process_frame(frame, direction)
        await self.push_frame(frame, direction)

    async def listen(self) -> None:
        due = time.monotonic()
        while True:
            due += PIECE_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await self.push_frame(
                frames.InputAudioRawFrame(LOUD if self.is_loud else QUIET, RATE, 1)
            )


class Line(BaseOutputTransport):
    """Takes sound as fast as it is heard."""

    last_s = 0.0

    def __init__(self) -> None:
        super().__init__(TransportParams(audio_out_enabled=True, audio_out_sample_rate=RATE))

    async def start(self, frame: Any) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: Any) -> bool:
        self.last_s = time.time()
        await asyncio.sleep(len(frame.audio) / 2 / frame.sample_rate)
        self.last_s = time.time()
        return True


class Bot:
    """One call."""

    def __init__(
        self, given: argparse.Namespace, url: str, sink: Callable[[dict[str, Any]], None]
    ) -> None:
        self._given = given
        self.latencies_ms: list[float] = []
        self._microphone, self.line = Microphone(), Line()
        self._ear = EarSTTService() if given.kind == "cascade" else None
        model = MindLLMService() if self._ear is not None else self._realtime(url)
        tools: tuple[tuple[str, Callable[[Any], Awaitable[None]], list[str]], ...] = (
            ("find_visit", find_visit, ["code"]),
            ("cancel_visit", cancel_visit, []),
        )
        schemas = []
        for name, handler, required in tools:
            model.register_function(name, handler)
            schemas.append(
                FunctionSchema(
                    name, f"To {name}.", {each: {"type": "string"} for each in required}, required
                )
            )
        patient = UserTurnStrategies(
            start=[VADUserTurnStartStrategy()],
            stop=[SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0.2)],
        )
        strategies = ExternalUserTurnStrategies() if given.kind == "realtime" else patient
        # Before 1.13 the strategy waits for a transcript, which a realtime model sends after the
        # turn.
        stops_s = 0.4 if given.kind == "realtime-local" else 5.0
        pair = LLMContextAggregatorPair(
            LLMContext([], tools=ToolsSchema(standard_tools=schemas)),
            user_params=LLMUserAggregatorParams(
                user_turn_strategies=strategies, user_turn_stop_timeout=stops_s
            ),
        )
        services = (
            [self._ear, pair.user(), model, MouthTTSService()]
            if self._ear is not None
            else [pair.user(), model]
        )
        pipecats = UserBotLatencyObserver()
        pipecats.add_event_handler(
            "on_latency_measured", lambda _, seconds: self.latencies_ms.append(1000 * seconds)
        )
        observer = CallgaugeObserver(
            conversation_id="call",
            agent="any-service",
            sink=sink,
            pipeline_type="cascade" if self._ear is not None else "s2s",
        )
        known = inspect.signature(Worker.__init__).parameters
        wanted: dict[str, Any] = {
            "cancel_on_idle_timeout": False,
            "enable_rtvi": False,
            "enable_tracing": True,
            "enable_turn_tracking": True,
            "conversation_id": "call",
        }
        self.worker = Worker(
            Pipeline([self._microphone, *services, self.line, pair.assistant()]),
            params=PipelineParams(
                enable_metrics=True,
                enable_usage_metrics=True,
                audio_in_sample_rate=RATE,
                audio_out_sample_rate=RATE,
            ),
            observers=[pipecats, observer],
            **{name: value for name, value in wanted.items() if name in known},
        )
        self._ready = asyncio.Event()
        self.worker.add_event_handler("on_pipeline_started", lambda *_: self._ready.set())

    def _realtime(self, url: str) -> Any:
        detection = False if self._given.kind == "realtime-local" else realtime.TurnDetection()
        sound = realtime.AudioConfiguration(
            input=realtime.AudioInput(
                transcription=realtime.InputAudioTranscription(), turn_detection=detection
            )
        )
        settings = OpenAIRealtimeLLMService.Settings(
            session_properties=realtime.SessionProperties(audio=sound)
        )
        return OpenAIRealtimeLLMService(api_key="none", base_url=url, settings=settings)

    async def play(self) -> None:
        await self._ready.wait()
        listening = asyncio.create_task(self._microphone.listen())
        await self.worker.queue_frame(frames.ClientConnectedFrame())
        await self.worker.queue_frame(frames.LLMRunFrame())
        await self._answered(0.0)
        for place, text in enumerate(ASKED):
            began_s = await self._say(text)
            if place == FAILS:
                await asyncio.sleep(2.0)  # nobody answers
            elif place == CUT:
                await self._heard_after(began_s)
                await asyncio.sleep(1.2)
            else:
                await self._answered(began_s)
        listening.cancel()
        await self.worker.queue_frame(frames.EndFrame())

    async def _say(self, text: str) -> float:
        """Says something; the time after which an answer to it is heard."""
        self._microphone.is_loud = True
        await self._detect(frames.VADUserStartedSpeakingFrame, start_secs=DETECTOR_S)
        await asyncio.sleep(0.6)
        self._microphone.is_loud = False
        await self._detect(frames.VADUserStoppedSpeakingFrame, stop_secs=DETECTOR_S)
        fell_silent_s = time.time()
        if self._ear is not None:
            await asyncio.sleep(HEARD_S)
            await self._ear.hear(text, is_finalized=self._given.finalized)
        return fell_silent_s

    async def _detect(self, kind: Any, **seconds: float) -> None:
        await asyncio.sleep(DETECTOR_S)
        if self._given.kind != "realtime":
            await self._microphone.broadcast_frame(kind, **seconds)

    async def _answered(self, since_s: float) -> None:
        await self._heard_after(since_s)
        await self._until(lambda: time.time() - self.line.last_s > 0.9)

    async def _heard_after(self, since_s: float) -> None:
        await self._until(lambda: self.line.last_s > since_s)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not is_so():  # noqa: ASYNC110 - times of sounds signal nothing
                await asyncio.sleep(PIECE_S)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "kind",
        choices=["cascade", "realtime", "realtime-local"],
        help="whose detector: the server's, or the bot's own",
    )
    parser.add_argument(
        "--finalized",
        action="store_true",
        help="transcripts of separate services say that they are final",
    )
    parser.add_argument("--traces", required=True, help="send the spans there")
    given = parser.parse_args()
    provider = TracerProvider(resource=Resource.create({"service.name": "any-service"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(given.traces)))
    trace.set_tracer_provider(provider)
    events: list[dict[str, Any]] = []
    server = Server(detects=given.kind == "realtime")
    async with serve(server.talk, "127.0.0.1", 0) as socket:
        bot = Bot(given, f"ws://127.0.0.1:{socket.sockets[0].getsockname()[1]}", events.append)
        runner = Runner(handle_sigint=False)
        if hasattr(runner, "add_workers"):
            await runner.add_workers(bot.worker)
            running = runner.run()
        else:
            running = runner.run(bot.worker)
        await asyncio.wait_for(asyncio.gather(running, bot.play()), 150)
    provider.shutdown()  # it sends what is left
    figures = {"pipecat": version("pipecat-ai"), "latencies_ms": bot.latencies_ms}
    print(json.dumps({"calls": {"call": figures}, "events": {"call": events}}))


if __name__ == "__main__":
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    asyncio.run(main())
