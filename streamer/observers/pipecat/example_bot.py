"""A pipecat bot in one file whose calls are scored by callgauge: Deepgram hears, OpenAI answers,
Cartesia speaks, in a browser.

    cd PATH_OF_CALLGAUGE
    pip install ./streamer/observers/send ./streamer/observers/pipecat
    pip install "pipecat-ai[daily,webrtc,runner,deepgram,openai,cartesia,silero]"
    export DEEPGRAM_API_KEY=... OPENAI_API_KEY=... CARTESIA_API_KEY=...
    export CALLGAUGE_URL=http://127.0.0.1:8070 CALLGAUGE_TOKEN=...   (`callgauge serve` prints both)
    python example_bot.py

Open the address that it prints, and speak. Only the lines with `CallgaugeObserver` are callgauge's.
"""

import os

from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.frames.frames import LLMRunFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.runner.types import RunnerArguments
from pipecat.runner.utils import create_transport
from pipecat.services.cartesia.tts import CartesiaTTSService
from pipecat.services.deepgram.stt import DeepgramSTTService
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.transports.base_transport import BaseTransport, TransportParams
from pipecat.workers.runner import WorkerRunner
from pipecat_callgauge import CallgaugeObserver

VOICE = "71a7ad14-091c-4e8e-a314-022ece01c121"
TASK = "You are the desk of a museum. Answer in one or two short sentences. Begin with a greeting."


async def run_bot(transport: BaseTransport, arguments: RunnerArguments) -> None:
    """Runs one call."""
    hears = DeepgramSTTService(api_key=os.environ["DEEPGRAM_API_KEY"])
    answers = OpenAILLMService(api_key=os.environ["OPENAI_API_KEY"])
    speaks = CartesiaTTSService(
        api_key=os.environ["CARTESIA_API_KEY"], settings=CartesiaTTSService.Settings(voice=VOICE)
    )
    context = LLMContext([{"role": "developer", "content": TASK}])
    turns = LLMContextAggregatorPair(
        context, user_params=LLMUserAggregatorParams(vad_analyzer=SileroVADAnalyzer())
    )
    pipeline = Pipeline(
        [
            transport.input(),
            hears,
            turns.user(),
            answers,
            speaks,
            transport.output(),
            turns.assistant(),
        ]
    )
    worker = PipelineWorker(
        pipeline,
        # without these, services report nothing
        params=PipelineParams(enable_metrics=True, enable_usage_metrics=True),
        observers=[CallgaugeObserver(agent="museum-desk", environment="try-out")],
    )

    @transport.event_handler("on_client_connected")
    async def greet(_transport: BaseTransport, _client: object) -> None:
        await worker.queue_frames([LLMRunFrame()])

    @transport.event_handler("on_client_disconnected")
    async def hang_up(_transport: BaseTransport, _client: object) -> None:
        await worker.cancel()

    runner = WorkerRunner(handle_sigint=arguments.handle_sigint)
    await runner.add_workers(worker)
    await runner.run()


async def bot(arguments: RunnerArguments) -> None:
    """Called by pipecat's runner for each connection."""
    params = {"webrtc": lambda: TransportParams(audio_in_enabled=True, audio_out_enabled=True)}
    await run_bot(await create_transport(arguments, params), arguments)


if __name__ == "__main__":
    from pipecat.runner.run import main

    main()
