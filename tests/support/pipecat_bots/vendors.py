"""The vendors of the test bots: speech recognition, model, synthesis and a line, at the pace of
real ones. All around is pipecat's.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from pipecat.frames.frames import (
    Frame,
    FunctionCallFromLLM,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    OutputAudioRawFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
)
from pipecat.metrics.metrics import LLMTokenUsage
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.llm_service import LLMService
from pipecat.services.settings import LLMSettings, STTSettings, TTSSettings
from pipecat.services.stt_service import STTService
from pipecat.services.tts_service import TTSService
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.utils.time import time_now_iso8601
from pipecat.utils.tracing.service_decorators import traced_llm, traced_stt, traced_tts

RATE = 16_000
WORD_SECONDS = 0.2
SYNTHESIS_SECONDS = 0.15


@dataclass
class Answer:
    """The model's reaction to a question: after some seconds it says something, calls tools, or
    fails.
    """

    after_seconds: float
    text: str = ""
    tools: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    fails: bool = False


class EarSTTService(STTService):
    """Emits the transcriptions of the script.

    Attributes:
        heard_s: When it last heard something; 0 before.
    """

    def __init__(self) -> None:
        super().__init__(settings=STTSettings(model="ear-1", language=None), ttfs_p99_latency=0.3)
        self.heard_s = 0.0

    def can_generate_metrics(self) -> bool:
        return True

    @traced_stt
    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        yield None

    async def hear(self, text: str, *, is_final: bool = True) -> None:
        self.heard_s = time.time()
        await self.push_frame(
            TranscriptionFrame(text, "caller", time_now_iso8601(), finalized=is_final)
        )


class MindLLMService(LLMService):
    """Gives one answer of its plan after the other.

    Attributes:
        asked: How often it was asked.
    """

    def __init__(self, plan: list[Answer]) -> None:
        unset: dict[str, Any] = dict.fromkeys(
            (
                "system_instruction",
                "temperature",
                "max_tokens",
                "top_p",
                "top_k",
                "frequency_penalty",
                "presence_penalty",
                "seed",
                "user_turn_completion_config",
            )
        )
        super().__init__(
            settings=LLMSettings(**unset, model="mind-1", filter_incomplete_user_turns=False)
        )
        self._plan = list(plan)
        self.asked = 0

    def can_generate_metrics(self) -> bool:
        return True

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMContextFrame):
            self.asked += 1
            await self._answer(
                frame.context, self._plan.pop(0) if self._plan else Answer(0.2, "That is all.")
            )
        else:
            await self.push_frame(frame, direction)

    @traced_llm
    async def _answer(self, context: LLMContext, answer: Answer) -> None:
        try:
            await self.push_frame(LLMFullResponseStartFrame())
            await self.start_processing_metrics()
            await self.start_ttfb_metrics()
            await asyncio.sleep(answer.after_seconds)
            if answer.fails:
                await self.push_error("the model is down")
                return
            await self.stop_ttfb_metrics()
            if answer.tools:
                await asyncio.sleep(0.05)
                calls = [
                    FunctionCallFromLLM(
                        function_name=name, tool_call_id=number, arguments=given, context=context
                    )
                    for name, number, given in answer.tools
                ]
                await self.run_function_calls(calls)
            for word in answer.text.split():
                await self._push_llm_text(word + " ")
                await asyncio.sleep(0.02)
            await self.start_llm_usage_metrics(
                LLMTokenUsage(prompt_tokens=90, completion_tokens=30, total_tokens=120)
            )
        finally:
            await self.stop_processing_metrics()
            await self.push_frame(LLMFullResponseEndFrame())


class MouthTTSService(TTSService):
    """Speaks a word in `WORD_SECONDS`; `times_words` as services do that know when each word is
    heard.
    """

    def __init__(self, *, times_words: bool = False, has_text: bool = True) -> None:
        super().__init__(
            settings=TTSSettings(model="mouth-1", voice="v", language=None),
            sample_rate=RATE,
            push_start_frame=True,
            push_stop_frames=True,
            push_text_frames=has_text and not times_words,
        )
        self._times_words = times_words

    def can_generate_metrics(self) -> bool:
        return True

    @traced_tts
    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        await self.start_ttfb_metrics()
        await self.start_tts_usage_metrics(text)
        await asyncio.sleep(SYNTHESIS_SECONDS)
        await self.stop_ttfb_metrics()
        words = text.split()
        if self._times_words:
            # pipecat gives it no types
            await self.start_word_timestamps()  # type: ignore[no-untyped-call]
            timed = [(word, place * WORD_SECONDS) for place, word in enumerate(words)]
            await self.add_word_timestamps(timed, context_id)
        for _ in range(2 * max(1, len(words))):
            sound = b"\x00\x20" * int(RATE * WORD_SECONDS / 2)
            yield TTSAudioRawFrame(sound, RATE, 1, context_id=context_id)


class Line(BaseOutputTransport):
    """Takes sound as fast as it is heard.

    Attributes:
        sounds: When a silence ended.
        last_s: When the newest sound ended; 0 before the first.
    """

    def __init__(self) -> None:
        super().__init__(TransportParams(audio_out_enabled=True, audio_out_sample_rate=RATE))
        self.sounds: list[float] = []
        self.last_s = 0.0

    async def start(self, frame: Any) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        now = time.time()
        if now - self.last_s > 0.25:
            self.sounds.append(now)
        await asyncio.sleep(len(frame.audio) / 2 / frame.sample_rate)
        self.last_s = time.time()
        return True
