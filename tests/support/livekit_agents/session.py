"""One agent session of real LiveKit without a room: its own detector, speech and model interfaces,
with sound in memory.

`python session.py NAME` plays a call with the LiveKit of that Python, from 1.2 on, and prints
LiveKit's own figures as JSON. It imports nothing of ours but `callgauge_livekit`, because each
version of LiveKit has an environment of its own.
"""

import argparse
import array
import asyncio
import inspect
import json
import math
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final

from callgauge_livekit import Attached, attach
from livekit import rtc
from livekit.agents import (
    Agent,
    AgentSession,
    APIStatusError,
    function_tool,
    llm,
    stt,
    telemetry,
    tts,
    vad,
)
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS
from livekit.agents.voice import io
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

RATE: Final = 16_000
PIECE: Final = RATE // 50
PIECE_S: Final = 0.02
LOUD: Final = array.array("h", [int(9_000 * math.sin(i / 5)) for i in range(PIECE)]).tobytes()
QUIET: Final = bytes(2 * PIECE)
SILENCE_S: Final = 0.2
"""Silence after which the detector is sure."""
SPOKEN_S: Final = 0.4
ANSWER_S: Final = 0.3
LONG_S: Final = 4.0


class Detector(vad.VAD):
    """Hears whatever is louder than silence."""

    def __init__(self) -> None:
        super().__init__(capabilities=vad.VADCapabilities(update_interval=PIECE_S))

    def stream(self) -> "Detecting":
        return Detecting(self)


class Detecting(vad.VADStream):
    async def _main_task(self) -> None:
        speaking, spoken, quiet, samples = False, 0.0, 0.0, 0
        async for frame in self._input_ch:
            if not isinstance(frame, rtc.AudioFrame):
                continue
            samples += frame.samples_per_channel
            if max(frame.data) > 1_000:
                spoken, quiet = spoken + PIECE_S, 0.0
            else:
                quiet += PIECE_S
            kinds = [vad.VADEventType.INFERENCE_DONE]
            if quiet == 0 and not speaking:
                speaking, spoken = True, PIECE_S
                kinds.insert(0, vad.VADEventType.START_OF_SPEECH)
            elif speaking and quiet >= SILENCE_S:
                speaking = False
                kinds.insert(0, vad.VADEventType.END_OF_SPEECH)
            for kind in kinds:
                self._event_ch.send_nowait(
                    vad.VADEvent(
                        type=kind,
                        samples_index=samples,
                        timestamp=time.time(),
                        speech_duration=spoken,
                        silence_duration=quiet,
                        frames=[frame],
                        speaking=speaking,
                        probability=float(quiet == 0),
                        raw_accumulated_speech=0.0 if quiet else spoken,
                        raw_accumulated_silence=quiet,
                    )
                )
                if kind is vad.VADEventType.END_OF_SPEECH:
                    # the next events are about silence: LiveKit interrupts by the length of speech
                    # alone
                    spoken = 0.0


class Ear(stt.STT):
    """Understands question after question."""

    def __init__(self) -> None:
        super().__init__(capabilities=stt.STTCapabilities(streaming=False, interim_results=False))
        self._heard = 0

    async def _recognize_impl(
        self, buffer: Any, *, language: Any, conn_options: Any
    ) -> stt.SpeechEvent:
        await asyncio.sleep(0.05)
        self._heard += 1
        said = stt.SpeechData(language="en", text=f"Question {self._heard}.")
        return stt.SpeechEvent(type=stt.SpeechEventType.FINAL_TRANSCRIPT, alternatives=[said])


class Mind(llm.LLM):
    """Answers the last question: with words, a tool with its arguments, or an error. Asked again,
    it says the same.
    """

    def chat(
        self,
        *,
        chat_ctx: Any,
        tools: Any = None,
        conn_options: Any = DEFAULT_API_CONNECT_OPTIONS,
        **_: Any,
    ) -> "Thinking":
        return Thinking(self, chat_ctx=chat_ctx, tools=tools or [], conn_options=conn_options)


class Thinking(llm.LLMStream):
    async def _run(self) -> None:
        await asyncio.sleep(0.1)
        kinds = [(item.type, getattr(item, "role", "")) for item in self._chat_ctx.items]
        asked = max(
            (place for place, kind in enumerate(kinds) if kind == ("message", "user")), default=None
        )
        turn = (
            0
            if asked is None
            else int(self._chat_ctx.items[asked].text_content.split()[-1].strip("."))
        )
        has_result = any(kind == "function_call_output" for kind, _ in kinds[asked or 0 :])
        said = ANSWERS.get((turn, has_result), f"Answer {turn}.")
        if isinstance(said, Exception):
            raise said
        if isinstance(said, tuple):
            name, arguments = said
            call = llm.FunctionToolCall(
                name=name, arguments=json.dumps(arguments), call_id=f"call_{name}"
            )
            delta = llm.ChoiceDelta(role="assistant", tool_calls=[call])
        else:
            delta = llm.ChoiceDelta(role="assistant", content=said)
        self._event_ch.send_nowait(llm.ChatChunk(id="c", delta=delta))
        usage = llm.CompletionUsage(completion_tokens=7, prompt_tokens=20, total_tokens=27)
        self._event_ch.send_nowait(llm.ChatChunk(id="c", usage=usage))


class Mouth(tts.TTS):
    """Speaks for as long as the script says: a long line is long."""

    def __init__(self) -> None:
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=False), sample_rate=RATE, num_channels=1
        )

    def synthesize(
        self, text: str, *, conn_options: Any = DEFAULT_API_CONNECT_OPTIONS
    ) -> "Speaking":
        return Speaking(tts=self, input_text=text, conn_options=conn_options)


class Speaking(tts.ChunkedStream):
    async def _run(self, output: Any) -> None:
        output.initialize(request_id="r", sample_rate=RATE, num_channels=1, mime_type="audio/pcm")
        await asyncio.sleep(0.05)
        seconds = LONG_S if len(self._input_text) > 60 else ANSWER_S
        for _ in range(int(seconds / PIECE_S)):
            output.push(LOUD)
        output.flush()


class Microphone(io.AudioInput):
    """Sound while somebody speaks, otherwise silence, in real time."""

    def __init__(self) -> None:
        arguments = (
            {"label": "memory"}
            if "label" in inspect.signature(io.AudioInput.__init__).parameters
            else {}
        )
        super().__init__(**arguments)
        self.pieces = 0
        self._due: float | None = None

    def __aiter__(self) -> AsyncIterator[rtc.AudioFrame]:
        return self

    async def __anext__(self) -> rtc.AudioFrame:
        self._due = (self._due or time.monotonic()) + PIECE_S
        await asyncio.sleep(max(0.0, self._due - time.monotonic()))
        if self.pieces > 0:
            self.pieces -= 1
            return rtc.AudioFrame(LOUD, RATE, 1, PIECE)
        return rtc.AudioFrame(QUIET, RATE, 1, PIECE)

    async def speak(self, seconds: float) -> None:
        self.pieces = int(seconds / PIECE_S)
        while self.pieces:  # noqa: ASYNC110 - a count, which signals nothing
            await asyncio.sleep(PIECE_S)


class Loudspeaker(io.AudioOutput):
    """Plays in real time, and can be cut off."""

    def __init__(self) -> None:
        known = inspect.signature(io.AudioOutput.__init__).parameters
        arguments: dict[str, Any] = {"sample_rate": RATE}
        if "label" in known:
            arguments["label"] = "memory"
        if "capabilities" in known:
            arguments["capabilities"] = io.AudioOutputCapabilities(pause=False)
        super().__init__(**arguments)
        self.began_s = 0.0
        """When the first sound of the newest answer was played."""
        self._seconds = 0.0
        self._began: float | None = None
        self._playing: asyncio.Task[None] | None = None
        self._cut = asyncio.Event()

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        if self._began is None:
            self._began, self._seconds = time.time(), 0.0
            self.began_s = self._began
            if hasattr(self, "on_playback_started"):
                self.on_playback_started(created_at=self._began)
        self._seconds += frame.duration

    def flush(self) -> None:
        super().flush()
        if self._began is not None:
            self._playing = asyncio.create_task(self._play(self._began, self._seconds))

    def clear_buffer(self) -> None:
        if self._began is not None:
            self._cut.set()
            if self._playing is None or self._playing.done():
                self._playing = asyncio.create_task(self._play(self._began, self._seconds))

    async def _play(self, began: float, seconds: float) -> None:
        was_cut = True
        try:
            await asyncio.wait_for(self._cut.wait(), max(0.0, began + seconds - time.time()))
        except TimeoutError:
            was_cut = False
        self._began = None
        self._cut.clear()
        self.on_playback_finished(
            playback_position=min(seconds, time.time() - began), interrupted=was_cut
        )


class Guard(Agent):
    """The agent after the handoff."""

    def __init__(self) -> None:
        super().__init__(instructions="You guard the door.")

    async def on_enter(self) -> None:
        self.session.generate_reply()


class Desk(Agent):
    """The agent at the start."""

    def __init__(self) -> None:
        super().__init__(instructions="You are a desk.")

    @function_tool
    async def find_badge(self, color: str) -> str:
        """Finds a badge."""
        await asyncio.sleep(0.3)
        return f"the {color} badge is B7"

    @function_tool
    async def open_drawer(self) -> str:
        """Opens the drawer."""
        raise RuntimeError("the drawer is stuck")

    @function_tool
    async def call_guard(self) -> Agent:
        """Calls the guard."""
        return Guard()


LONG: Final = (
    "This is a very long answer about badges, and about all their colours in all the rooms of the "
    "whole house."
)
CUT: Final = 4
FAILS: Final = 6


ANSWERS: Final[dict[tuple[int, bool], Any]] = {
    (0, False): "The guard comes.",
    (2, False): ("find_badge", {"color": "blue"}),
    (3, False): ("open_drawer", {}),
    (CUT, False): LONG,
    (FAILS, False): APIStatusError("the model is down", status_code=400, retryable=False),
    (8, False): ("call_guard", {}),
}
"""What is answered to a question, before its tool and after it: a tool, a failing tool, a long
answer that is cut, an error, a handoff. Before any question the guard speaks, whom nobody has
asked.
"""


def options() -> dict[str, Any]:
    """The session's options under the names of this version."""
    known = inspect.signature(AgentSession.__init__).parameters
    if "turn_handling" in known:
        return {
            "turn_handling": {
                "turn_detection": "vad",
                "preemptive_generation": {"enabled": False},
                "endpointing": {"min_delay": 0.1, "max_delay": 0.3},
                "interruption": {"mode": "vad", "min_duration": 0.2},
            },
            **({"aec_warmup_duration": None} if "aec_warmup_duration" in known else {}),
        }
    wanted = {
        "turn_detection": "vad",
        "min_endpointing_delay": 0.1,
        "max_endpointing_delay": 0.3,
        "min_interruption_duration": 0.2,
        "preemptive_generation": False,
        "false_interruption_timeout": None,
    }
    return {name: value for name, value in wanted.items() if name in known}


async def play(
    call: str, turns: int, attached_to: Callable[[Any, str], Attached], *, pause_s: float = 0.0
) -> dict[str, Any]:
    """Plays a call and returns LiveKit's figures of it."""
    session: Any = AgentSession(
        vad=Detector(),
        stt=stt.StreamAdapter(stt=Ear(), vad=Detector()),
        llm=Mind(),
        tts=Mouth(),
        **options(),
    )
    theirs: dict[str, Any] = {"e2e_ms": [], "heard_ms": [], "items": [], "errors": 0, "handoffs": 0}
    microphone, loudspeaker = Microphone(), Loudspeaker()
    stops_s: list[float] = []
    spoke_s = 0.0
    attached = attached_to(session, call)
    state = asyncio.Event()

    answers = 0

    @session.on("agent_state_changed")
    def _(event: Any) -> None:
        nonlocal answers, spoke_s
        answers += event.new_state == "speaking"
        spoke_s = event.created_at if event.new_state == "speaking" else spoke_s
        state.set()

    @session.on("user_state_changed")
    def _(event: Any) -> None:
        if event.old_state == "speaking":
            stops_s[:] = [event.created_at]

    @session.on("conversation_item_added")
    def _(event: Any) -> None:
        kind = getattr(event.item, "type", "")
        theirs["handoffs"] += kind == "agent_handoff"
        if kind == "message":
            theirs["items"].append(
                [event.item.role, event.item.text_content, event.item.interrupted]
            )
            metrics = getattr(event.item, "metrics", None) or {}
            if event.item.role == "user" and (stopped_s := metrics.get("stopped_speaking_at")):
                stops_s.append(stopped_s)
            if (latency := metrics.get("e2e_latency")) is not None:
                theirs["e2e_ms"].append(1000 * latency)
                begun_s = (loudspeaker.began_s, spoke_s)
                theirs["heard_ms"].append(
                    [1000 * (began_s - stop_s) for began_s in begun_s for stop_s in stops_s]
                )

    @session.on("error")
    def _(event: Any) -> None:
        theirs["errors"] += 1

    def _is_above(count: int) -> bool:
        return answers > count

    async def until(is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(60.0):  # as long as a busy machine needs
            while not is_so():
                state.clear()
                await state.wait()

    session.input.audio, session.output.audio = microphone, loudspeaker
    await session.start(Desk())
    await asyncio.sleep(0.3)
    for turn in range(1, turns + 1):
        await asyncio.sleep(pause_s)
        before = answers
        await microphone.speak(SPOKEN_S)
        if turn == FAILS:
            await asyncio.sleep(1.0)  # nobody answers
            continue
        await until(partial(_is_above, before))
        if turn == CUT:
            await asyncio.sleep(0.8)  # the next turn cuts this answer
        else:
            await until(lambda: session.agent_state == "listening")
            await asyncio.sleep(0.25)
    await asyncio.sleep(0.5)
    await session.aclose()
    began = time.monotonic()
    theirs["is_whole"] = await attached.ended()
    return {
        **theirs,
        "id": attached.conversation_id,
        "end_s": time.monotonic() - began,
        "lost": dict(attached.lost),
    }


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("calls", nargs="+")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument(
        "--sink", action="store_true", help="print the events, in the place of sending them"
    )
    parser.add_argument("--url", help="send the calls over HTTP whose name begins with `http`")
    parser.add_argument("--token")
    parser.add_argument(
        "--traces", help="send the spans of the calls there, with headers as the environment says"
    )
    parser.add_argument("--attach", help="the line of code that attaches the observer to `session`")
    given = parser.parse_args()
    events: dict[str, list[Any]] = {call: [] for call in given.calls}

    def attached(session: Any, call: str) -> Attached:
        if given.attach:
            names: dict[str, Any] = {"session": session}
            exec(given.attach.replace("attach(", "attached = attach("), names)  # noqa: S102 - the code of our page
            by_page: Attached = names["attached"]
            return by_page
        if given.sink:
            return attach(session, conversation_id=call, agent="livekit", sink=events[call].append)
        over_http = {"url": given.url, "token": given.token} if call.startswith("http") else {}
        return attach(session, conversation_id=call, agent="livekit", **over_http)

    provider = TracerProvider(resource=Resource({"service.name": "livekit"}))
    if given.traces:
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(given.traces)))
        telemetry.set_tracer_provider(provider)
    figures = await asyncio.gather(
        *(play(call, given.turns, attached, pause_s=given.pause) for call in given.calls)
    )
    provider.shutdown()  # it sends what is left
    print(json.dumps({"calls": dict(zip(given.calls, figures, strict=True)), "events": events}))


if __name__ == "__main__":
    asyncio.run(main())
