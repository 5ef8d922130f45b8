"""A planned call on a real phone line as pipecat's observers report it: the records of pipecat-ai 1.14, as JSON.

There is no simulated caller: the time at which sound left the far end is unknown. Each event is `{"type", "timestamp", "data"}`:
`timestamp` is the epoch millisecond at which the observer saw it, `data` the observer's record without nulls, whose own
times are epoch seconds. Speech of the user is back-dated by the delay of the detector.
"""

import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from streamer.sources.simulator.eva_sources import Emission, misheard
from streamer.sources.simulator.plan import CallPlan, Speech, Step, ToolRun, Turn

_VAD_START_MS = 200
_VAD_STOP_MS = 200
_BOT_SILENCE_MS = 350
"""Pipecat calls the bot silent after this much silence, and does not date the end back."""
_TURN_END_MS = 2500
"""A turn of pipecat's turn counter ends after this much silence of the bot, or when the user speaks."""
_OUTPUT_TRANSPORT_MS = 30

_STT, _LLM, _TTS, _OUTPUT = "DeepgramSTTService#0", "OpenAILLMService#0", "CartesiaTTSService#0", "OutputTransport#0"
_MODELS: Final = {_STT: "nova-3", _LLM: "gpt-4.1-mini", _TTS: "sonic-3"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def phone_events(plan: CallPlan, rng: random.Random, *, voice_detector: bool) -> list[Emission]:
    """Everything that pipecat's observers report of a call, in the order in which they report it.

    Args:
        plan: The call.
        rng: Draws the small delays.
        voice_detector: False for a bot whose transcriber owns turn taking: it has no voice activity detector, so there
            is no `user_speech_*` record and no latency measured by pipecat itself.
    """
    emissions: list[Emission] = []
    for number, turn in enumerate(plan.turns):
        if turn.noise and voice_detector:
            emissions += _user_speech(turn.noise)
        if turn.user:
            emissions += _user_turn(turn, turn.user, rng, voice_detector=voice_detector)
        for index, step in enumerate(turn.steps):
            emissions += _step_records(step, f"call_{number}_{index}", rng)
        emissions += _bot_speech(plan, number)
        if turn.user and voice_detector:
            emissions += _latency_records(turn, turn.user)
    return _with_turn_counter(sorted(emissions, key=lambda item: item.produced_ms), plan)


def _record(at_ms: int, kind: str, data: Mapping[str, Any]) -> Emission:
    present = {key: value for key, value in data.items() if value is not None}
    return Emission(at_ms, {"type": kind, "timestamp": at_ms, "data": present})


def _speech_event(seen_ms: int, kind: str, at_ms: int, started_ms: int | None = None) -> Emission:
    started_at = None if started_ms is None else _seconds(started_ms)
    return _record(seen_ms, "speech_event", {"kind": kind, "timestamp": _seconds(at_ms), "started_at": started_at})


def _user_speech(speech: Speech) -> Iterator[Emission]:
    start_ms, end_ms = speech.start_ms, speech.end_ms
    yield _speech_event(start_ms + _VAD_START_MS, "user_speech_started", start_ms)
    yield _speech_event(end_ms + _VAD_STOP_MS, "user_speech_stopped", end_ms, start_ms)


def _user_turn(turn: Turn, user: Speech, rng: random.Random, *, voice_detector: bool) -> Iterator[Emission]:
    if voice_detector:
        yield from _user_speech(user)
    started_ms = user.start_ms + _VAD_START_MS + (5 if voice_detector else rng.randint(150, 400))
    stopped_ms = max(turn.heard_ms, started_ms + 200)
    yield _speech_event(started_ms, "user_turn_started", started_ms)
    if turn.awkward == "user_barge_in":
        yield _speech_event(started_ms + 2, "interruption", started_ms + 2)
    yield _speech_event(stopped_ms, "user_turn_stopped", stopped_ms, started_ms)
    message = {"content": misheard(rng, user.text), "timestamp": _iso(started_ms)}
    yield _record(stopped_ms + 3, "user_message", message)
    transcribed = {"kind": "stt", "processor": _STT, "model": _MODELS[_STT], "timestamp": _seconds(stopped_ms)}
    audio_seconds = (user.end_ms - user.start_ms) / 1000
    yield _record(stopped_ms, "service_usage", {**transcribed, "audio_seconds": audio_seconds})


def _bot_speech(plan: CallPlan, number: int) -> Iterator[Emission]:
    """The speeches of the bot in a turn and, after them, their text as one message."""
    speeches = [step.speech for step in plan.turns[number].steps if step.speech]
    for speech in speeches:
        stopped_ms = speech.end_ms + (0 if speech.cut_off else _BOT_SILENCE_MS)  # an interruption stops it at once
        yield _speech_event(speech.start_ms, "bot_speech_started", speech.start_ms)
        yield _speech_event(stopped_ms, "bot_speech_stopped", stopped_ms, speech.start_ms)
    if speeches:
        content = " ".join(speech.spoken for speech in speeches)
        message = {"content": content, "interrupted": speeches[-1].cut_off, "timestamp": _iso(speeches[0].start_ms)}
        yield _record(speeches[-1].end_ms + _BOT_SILENCE_MS + 5, "assistant_message", message)


def _step_records(step: Step, call_id: str, rng: random.Random) -> Iterator[Emission]:
    tokens = rng.randint(400, 2200)
    common = {"processor": _LLM, "model": _MODELS[_LLM], "timestamp": _seconds(step.decided_ms)}
    waited_seconds = (step.decided_ms - step.asked_ms) / 1000
    yield _record(step.decided_ms, "service_latency", {"kind": "ttfb", **common, "seconds": waited_seconds})
    usage = {"prompt_tokens": tokens, "completion_tokens": 40, "total_tokens": tokens + 40}
    yield _record(step.decided_ms + 40, "service_usage", {"kind": "llm", **common, **usage})
    if step.speech:
        start_ms = step.speech.start_ms
        common = {"processor": _TTS, "model": _MODELS[_TTS], "timestamp": _seconds(start_ms - _OUTPUT_TRANSPORT_MS)}
        waited_seconds = max(0, start_ms - _OUTPUT_TRANSPORT_MS - step.decided_ms) / 1000
        seen_ms = start_ms - _OUTPUT_TRANSPORT_MS
        yield _record(seen_ms, "service_latency", {"kind": "ttfb", **common, "seconds": waited_seconds})
        yield _record(seen_ms, "service_usage", {"kind": "tts", **common, "characters": len(step.speech.text)})
    if step.tool:
        yield from _function_call(step.tool, call_id)


def _function_call(tool: ToolRun, call_id: str) -> Iterator[Emission]:
    common = {"function_name": tool.name, "tool_call_id": call_id}
    asked_ms, running_ms, settled_ms = tool.called_ms, tool.called_ms + 3, tool.answered_ms
    opened = {"kind": "function_call_started", **common, "timestamp": _seconds(asked_ms), "arguments": tool.parameters}
    yield _record(asked_ms, "function_call_event", opened)
    running = {
        "kind": "function_call_in_progress", **common, "timestamp": _seconds(running_ms), "blocking": True,
        "group_id": f"group_{call_id}", "arguments": tool.parameters, "started_at": _seconds(asked_ms),
    }  # fmt: skip
    yield _record(running_ms, "function_call_event", running)
    settled = {"kind": "function_call_failed" if tool.failed else "function_call_completed", **common}
    times = {"timestamp": _seconds(settled_ms), "in_progress_at": _seconds(running_ms)}
    error = tool.response["message"] if tool.failed else None
    # Results stay in the bot: the observer reports them only if configured.
    yield _record(settled_ms, "function_call_event", {**settled, **times, "error": error})


def _latency_records(turn: Turn, user: Speech) -> Iterator[Emission]:
    """Latency of pipecat from the user's silence to the first sound of the bot, and its breakdown."""
    spoken = next((step.speech for step in turn.steps if step.speech), None)
    if spoken is None or turn.heard_ms < user.end_ms + _VAD_STOP_MS:
        return  # no answer, or one that began before the user was silent
    latency_seconds = (spoken.start_ms - user.end_ms) / 1000
    yield _record(spoken.start_ms, "user_bot_latency", {"latency_seconds": latency_seconds})
    contributions = list(_contributions(turn, user, spoken))
    functions = [
        {
            "function_name": step.tool.name, "start_time": _seconds(step.tool.called_ms),
            "duration_secs": (step.tool.answered_ms - step.tool.called_ms) / 1000,
        }
        for step in turn.steps if step.tool and step.tool.answered_ms <= spoken.start_ms
    ]  # fmt: skip
    first = turn.steps[0]
    ttfb = {"processor": _LLM, "model": _MODELS[_LLM], "start_time": _seconds(first.asked_ms)}
    breakdown = {
        "ttfb": [{**ttfb, "duration_secs": (first.decided_ms - first.asked_ms) / 1000}],
        "contributions": contributions,
        "measured_from": "user_silence",
        "total_secs": latency_seconds,
        "user_turn_start_time": _seconds(user.end_ms),
        "user_turn_secs": (turn.heard_ms - user.end_ms) / 1000,
        "function_calls": functions,
    }
    yield _record(spoken.start_ms, "latency_breakdown", breakdown)


def _contributions(turn: Turn, user: Speech, spoken: Speech) -> Iterator[dict[str, Any]]:
    """Named stretches without gaps from the user's last sound to the bot's first; they sum to the latency."""
    marks: list[tuple[int, str, str, str, str]] = []  # until when (ms), key, label, owner, kind of owner
    vad_ms = user.end_ms + _VAD_STOP_MS
    transcribed_ms = (vad_ms + turn.heard_ms) // 2
    marks.append((vad_ms, "endpointing_wait", "endpointing wait", "config: VAD stop_secs", "setting"))
    marks.append((transcribed_ms, "transcription", "transcription", _STT, "service"))
    marks.append((turn.heard_ms, "turn_detection", "turn detection", "config: user turn strategies", "setting"))
    for step in turn.steps:
        marks.append((step.decided_ms, "llm_inference", "LLM inference", _LLM, "service"))
        if step.speech:
            break
        if step.tool:
            marks.append((step.tool.called_ms, "llm_tool_call", "LLM tool call", _LLM, "service"))
            marks.append((step.tool.answered_ms, "function_handler", "function handler", step.tool.name, "bot"))
    marks.append((spoken.start_ms - _OUTPUT_TRANSPORT_MS, "speech_synthesis", "speech synthesis", _TTS, "service"))
    marks.append((spoken.start_ms, "output_transport", "output transport", _OUTPUT, "pipeline"))
    begun_ms = user.end_ms
    for until_ms, key, label, owner, owner_kind in marks:
        named = {"key": key, "label": label, "owner": owner, "owner_kind": owner_kind}
        yield {**named, "start_time": _seconds(begun_ms), "duration_secs": (until_ms - begun_ms) / 1000}
        begun_ms = until_ms


def _with_turn_counter(emissions: list[Emission], plan: CallPlan) -> list[Emission]:
    """Adds pipecat's own turn numbers, which count from the start of the pipeline and follow its rules, not ours."""
    counted: list[Emission] = []
    number, turn_started_ms, bot_speaking, bot_spoke, silent_since_ms = 0, plan.start_ms, False, False, None

    def begin(at_ms: int) -> None:
        nonlocal number, turn_started_ms, bot_spoke
        number, turn_started_ms, bot_spoke = number + 1, at_ms, False
        counted.append(_record(at_ms, "turn_started", {"turn_number": number}))

    def end(at_ms: int, *, was_interrupted: bool) -> None:
        duration_secs = (at_ms - turn_started_ms) / 1000
        data = {"turn_number": number, "duration_secs": duration_secs, "was_interrupted": was_interrupted}
        counted.append(_record(at_ms, "turn_ended", data))

    begin(plan.start_ms)
    is_open = True
    for emission in emissions:
        if is_open and silent_since_ms is not None and emission.produced_ms >= silent_since_ms + _TURN_END_MS:
            end(silent_since_ms + _TURN_END_MS, was_interrupted=False)
            is_open = False
        kind = emission.event["data"].get("kind")
        if kind == "user_turn_started" and (bot_speaking or bot_spoke or not is_open):
            if is_open:
                end(emission.produced_ms, was_interrupted=bot_speaking)
            begin(emission.produced_ms)
            is_open, bot_speaking, silent_since_ms = True, False, None
        elif kind == "bot_speech_started":
            bot_speaking, bot_spoke, silent_since_ms = True, True, None
        elif kind == "bot_speech_stopped" and bot_speaking:
            bot_speaking, silent_since_ms = False, emission.produced_ms
        counted.append(emission)
    if is_open:
        end(max(plan.hang_up_ms, counted[-1].produced_ms), was_interrupted=True)  # the end of a call flushes its turn
    return sorted(counted, key=lambda item: item.produced_ms)


def _seconds(at_ms: int) -> float:
    return at_ms / 1000


def _iso(at_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds")
