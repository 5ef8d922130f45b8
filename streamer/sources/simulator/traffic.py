"""Simulated calls as events of each source, one after the other."""

import heapq
import itertools
import json
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, Final

from schemas.events.simulator import Source
from streamer.recordings.files import RecordedCall
from streamer.sources.publisher import PlayProgress
from streamer.sources.replay import DeliveryTimes, PlayedCall, WireEvent, in_time_order
from streamer.sources.simulator.plan import (
    SIMULATED_KINDS,
    CallKind,
    CallPlan,
    PlannedSpeech,
    PlannedStep,
    PlannedToolRun,
    PlannedTurn,
    plan_call,
)
from streamer.sources.simulator.profile import AGENTS, AWKWARD, DOMAINS, ProfileOf, always

# Metrics of the services of a simulated call: pipecat's metrics as EVA logs them, and the figures
# of the model.

_STT_METRICS = "CartesiaSTTService#0"
_TTS_METRICS = "CartesiaTTSService#1"
_STT_MODEL, _TTS_MODEL, _LLM_MODEL, _REALTIME_MODEL = (
    "ink-whisper",
    "sonic-3",
    "gpt-4.1-mini",
    "gpt-realtime",
)
_STARTED_MS: Final = 600
"""How long after the line is opened every service reports zeros."""
_PLAYBACK_MS: Final = 30
"""From the first byte of speech to its first sound on the line."""


@dataclass(frozen=True, slots=True)
class Emission:
    """An event and when it is produced (epoch ms); its own time, inside the event, may
    be earlier.
    """

    produced_ms: int
    event: Mapping[str, Any]


def pipecat_metrics(plan: CallPlan) -> Iterator[Emission]:
    """Metrics of pipecat's transcriber and speech synthesis; those of the model are in the audit
    log.
    """
    for processor in (_STT_METRICS, _TTS_METRICS):
        for kind in ("TTFBMetricsData", "ProcessingMetricsData"):
            yield _metric(plan.start_ms + _STARTED_MS, kind, processor, None, 0.0)
    for turn in plan.turns:
        if turn.user and turn.heard_ms > turn.user.end_ms:
            waited_s = (turn.heard_ms - turn.user.end_ms) / 1000
            yield _metric(turn.heard_ms, "TTFBMetricsData", _STT_METRICS, _STT_MODEL, waited_s)
        for step in turn.steps:
            first_byte_ms = step.speech.start_ms - _PLAYBACK_MS if step.speech else 0
            if step.speech and first_byte_ms > step.decided_ms:
                yield _metric(
                    step.decided_ms,
                    "TTSUsageMetricsData",
                    _TTS_METRICS,
                    _TTS_MODEL,
                    len(step.speech.text),
                )
                waited_s = (first_byte_ms - step.decided_ms) / 1000
                yield _metric(first_byte_ms, "TTFBMetricsData", _TTS_METRICS, _TTS_MODEL, waited_s)


def framework_metrics(plan: CallPlan) -> Iterator[Emission]:
    """Metrics of a speech-to-speech framework: one latency for the whole answer, and its tokens."""
    for turn in plan.turns:
        spoken = next((step.speech for step in turn.steps if step.speech), None)
        if (
            turn.user is None
            or spoken is None
            or spoken.start_ms - _PLAYBACK_MS <= turn.user.end_ms
        ):
            continue
        at_ms = spoken.start_ms - _PLAYBACK_MS
        waited_s = (at_ms - turn.user.end_ms) / 1000
        latency = {
            "type": "LatencyMetric",
            "stage": "model_response",
            "model": _REALTIME_MODEL,
            "value": waited_s,
        }
        yield Emission(at_ms, {"timestamp": at_ms, **latency})
        usage = {
            "prompt_tokens": 40 * len(turn.user.text.split()),
            "completion_tokens": 8 * len(spoken.text.split()),
        }
        usage["total_tokens"] = sum(usage.values())
        yield _metric(spoken.end_ms, "LLMTokenUsageMetricsData", "realtime", _REALTIME_MODEL, usage)


def model_figures(step: PlannedStep) -> dict[str, Any]:
    """Figures of one step of the model in the audit log."""
    said = step.speech.text if step.speech else ""
    usage = {"prompt_tokens": 900, "completion_tokens": 20 + 2 * len(said.split())}
    usage["total_tokens"] = sum(usage.values())
    return {
        "model": _LLM_MODEL,
        "latency_ms": float(step.decided_ms - step.asked_ms),
        "usage": usage,
    }


def _metric(at_ms: int, kind: str, processor: str, model: str | None, value: Any) -> Emission:
    return Emission(
        at_ms,
        {"timestamp": at_ms, "type": kind, "processor": processor, "model": model, "value": value},
    )


# A planned call in EVA's three sources: the simulated caller, the pipecat or framework log, the
# audit log.
#
# Each source sees the call through its own delays: silence is noticed late, transcripts come
# seconds after the sound, speech-to-speech models write their audit entries only when they are done
# and date them back.


@dataclass(frozen=True, slots=True)
class CallerDialect:
    """The role names and the extra field of a version of the simulated caller."""

    user: str
    assistant: str
    user_text: str
    assistant_text: str
    extra: Mapping[str, str]


NEW_CALLER: Final = CallerDialect(
    "simulated_user", "assistant", "simulated_user", "assistant", {"provider": "elevenlabs"}
)
OLD_CALLER: Final = CallerDialect(
    "elevenlabs_user", "framework_agent", "elevenlabs_agent", "pipecat_assistant", {}
)

AUDIO_PLACEHOLDER: Final = "[user audio]"

_VAD_MS = 200
_USER_SILENCE_MS, _ASSISTANT_SILENCE_MS = 600, 200
"""How long the simulated caller listens to silence before it logs the end of a sound, dated back to
the end.
"""
_WORD_BATCH_MS = 250
"""Words of speech synthesis leave in batches, so neighbours share a timestamp."""


def caller_events(plan: CallPlan, rng: random.Random, dialect: CallerDialect) -> list[Emission]:
    """The simulated caller's stream: connection, sounds with back-dated times, and texts of both
    sides.
    """
    emissions = [
        _connection(
            plan.start_ms + rng.randint(20, 90), "connected", {"server_url": "ws://caller.test/ws"}
        )
    ]
    emissions.append(_connection(plan.start_ms + rng.randint(300, 600), "session_started", {}))
    next_user_ms = [turn.user.start_ms if turn.user else None for turn in plan.turns[1:]] + [None]
    for turn, user_ms in zip(plan.turns, next_user_ms, strict=True):
        if turn.noise:
            emissions += _sounds(dialect.user, turn.noise, _USER_SILENCE_MS, rng)
            filtered = turn.noise.text, turn.noise.start_ms + rng.randint(200, 400)
            emissions.append(_said("user_speech", dialect.user_text, *filtered))
        if turn.user:
            emissions += _user_sounds(turn, turn.user, dialect, rng)
            said_ms = turn.user.start_ms + rng.randint(
                200, min(2500, turn.user.end_ms - turn.user.start_ms)
            )
            emissions.append(_said("user_speech", dialect.user_text, turn.user.text, said_ms))
        for speech in _speeches(turn):
            emissions += _sounds(dialect.assistant, speech, _ASSISTANT_SILENCE_MS, rng)
            said_ms = speech.end_ms + rng.randint(700, 3900)
            if user_ms is not None and speech.end_ms + 700 < user_ms < speech.end_ms + 3900:
                # the caller answers as soon as it has the words
                said_ms = user_ms + rng.randint(-40, 40)
            emissions.append(
                _said(
                    "assistant_speech",
                    dialect.assistant_text,
                    misheard(rng, speech.spoken),
                    said_ms,
                )
            )
    last_ms = max(emission.produced_ms for emission in emissions)
    details = {"reason": plan.ended_reason}
    emissions.append(
        _connection(
            max(plan.hang_up_ms, last_ms) + rng.randint(800, 2500), "session_ended", details
        )
    )
    numbered = enumerate(sorted(emissions, key=_by_production), start=1)
    return [
        Emission(item.produced_ms, _caller_event(item, number, dialect))
        for number, item in numbered
    ]


def _caller_event(emission: Emission, sequence: int, dialect: CallerDialect) -> dict[str, Any]:
    return {
        "timestamp": emission.produced_ms,
        "sequence": sequence,
        **emission.event,
        **dialect.extra,
    }


def _connection(at_ms: int, state: str, details: Mapping[str, Any]) -> Emission:
    return Emission(
        at_ms, {"type": "connection_state", "data": {"state": state, "details": details}}
    )


def _said(kind: str, source: str, text: str, at_ms: int) -> Emission:
    return Emission(at_ms, {"type": kind, "data": {"text": text, "source": source}})


def _user_sounds(
    turn: PlannedTurn, user: PlannedSpeech, dialect: CallerDialect, rng: random.Random
) -> list[Emission]:
    start, end = _sounds(dialect.user, user, _USER_SILENCE_MS, rng)
    if turn.awkward == "missing_audio_end":
        return [start]
    if turn.awkward == "late_audio_end" and turn.steps:
        # The answer covers the silence: the end is noticed, and dated, only when the answer is
        # over.
        noticed_ms = max(speech.end_ms for speech in _speeches(turn)) + rng.randint(300, 600)
        return [start, _sound("audio_end", dialect.user, noticed_ms, noticed_ms, rng)]
    return [start, end]


def _sounds(
    role: str, speech: PlannedSpeech, silence_ms: int, rng: random.Random
) -> tuple[Emission, Emission]:
    noticed_ms = speech.end_ms + silence_ms + rng.randint(-30, 60)
    start = _sound("audio_start", role, speech.start_ms, speech.start_ms + rng.randint(1, 4), rng)
    return start, _sound("audio_end", role, speech.end_ms, noticed_ms, rng)


def _sound(kind: str, role: str, sound_ms: int, logged_ms: int, rng: random.Random) -> Emission:
    audio_seconds = (sound_ms * 1000 + rng.randrange(1000)) / 1_000_000
    return Emission(logged_ms, {"event_type": kind, "user": role, "audio_timestamp": audio_seconds})


def pipecat_events(plan: CallPlan, rng: random.Random, *, announce_phrases: bool) -> list[Emission]:
    """The pipecat log of a cascade or audio-LLM agent: turn markers, voice activity, transcripts,
    words as spoken.

    Args:
        plan: The call.
        rng: Draws the small delays.
        announce_phrases: Whether the speech service announces each phrase whole before its words.
    """
    log = _PipecatLog(plan.conversation_id)
    log.line(
        plan.start_ms,
        "turn_start",
        {"frame": "StartFrame#0"},
        "PipelineTask#0::Source",
        "RTVIProcessor#0",
    )
    for turn in plan.turns:
        if turn.noise:
            log.voice_activity(turn.noise, turn.noise.end_ms + _VAD_MS, was_interrupted=False)
        if turn.user:
            barged_in = turn.awkward == "user_barge_in"
            log.voice_activity(
                turn.user,
                max(turn.heard_ms - 5, turn.user.start_ms + 2 * _VAD_MS),
                was_interrupted=barged_in,
            )
            for text, at_ms in _fragments(turn.user, rng):
                log.line(
                    at_ms,
                    "transcript",
                    {"frame": f" {text}"},
                    "CartesiaSTTService#0",
                    "UserTranscriptProcessor#0",
                )
        for step in turn.steps:
            if step.speech:
                frame = {"frame": step.speech.text}
                log.line(
                    step.decided_ms,
                    "llm_response",
                    frame,
                    "BenchmarkAgentProcessor#0",
                    "CartesiaTTSService#1",
                )
                log.words(step.speech, announced=announce_phrases and not step.speech.cut_off)
    return sorted([*log.emissions, *pipecat_metrics(plan)], key=_by_production)


class _PipecatLog:
    def __init__(self, conversation_id: str) -> None:
        self.emissions: list[Emission] = []
        self._conversation_id = conversation_id
        self._frames = 0

    def line(
        self, at_ms: int, kind: str, data: Mapping[str, Any], source: str, destination: str
    ) -> None:
        event = {
            "type": kind,
            "data": data,
            "timestamp": at_ms,
            "source": source,
            "destination": destination,
        }
        self.emissions.append(Emission(at_ms, {**event, "conversation_id": self._conversation_id}))

    def voice_activity(
        self, speech: PlannedSpeech, stopped_ms: int, *, was_interrupted: bool
    ) -> None:
        """Turn markers and both ends of a speech; start and end are written once per destination,
        so twice.
        """
        started_ms = speech.start_ms + _VAD_MS
        route = ("LLMUserAggregator#0", "BenchmarkAgentProcessor#0")
        started = {"frame": f"UserStartedSpeakingFrame#{self._frames}"}
        self.line(started_ms, "turn_end", {**started, "was_interrupted": was_interrupted}, *route)
        self.line(started_ms, "turn_start", started, *route)
        for kind, frame_name, at_ms in (
            ("user_started_speaking", "UserStartedSpeakingFrame", started_ms),
            ("user_stopped_speaking", "UserStoppedSpeakingFrame", stopped_ms),
        ):
            for copy, destination in enumerate(("BenchmarkAgentProcessor#0", "UserObserver#0")):
                frame = {"frame": f"{frame_name}#{self._frames + copy}"}
                self.line(at_ms, kind, frame, "LLMUserAggregator#0", destination)
        self._frames += 2

    def words(self, speech: PlannedSpeech, *, announced: bool) -> None:
        route = ("CartesiaTTSService#1", "AssistantTranscriptProcessor#0")
        words = speech.spoken.split()
        if announced and len(words) > 1:
            self.line(speech.start_ms + 99, "tts_text", {"frame": speech.spoken}, *route)
        said_ms = speech.end_ms - speech.start_ms - 250
        for index, word in enumerate(words):
            offset_ms = round(said_ms * index / len(words)) // _WORD_BATCH_MS * _WORD_BATCH_MS
            self.line(speech.start_ms + 100 + offset_ms, "tts_text", {"frame": word}, *route)


def framework_events(plan: CallPlan) -> list[Emission]:
    """The framework log of a speech-to-speech agent: replies as text, and the spoken part of
    interrupted ones.
    """
    emissions = []
    for speech in (speech for turn in plan.turns for speech in _speeches(turn)):
        written_ms = min(speech.end_ms, speech.start_ms + 400)
        emissions.append(_framework_line(written_ms, "llm_response", speech.text))
        if speech.cut_off:
            emissions.append(
                _framework_line(
                    speech.end_ms + 30, "s2s_transcript", f"{speech.spoken} [interrupted]"
                )
            )
    return sorted([*emissions, *framework_metrics(plan)], key=_by_production)


def _framework_line(at_ms: int, kind: str, frame: str) -> Emission:
    return Emission(at_ms, {"timestamp": at_ms, "type": kind, "data": {"frame": frame}})


def audit_entries(plan: CallPlan, rng: random.Random) -> tuple[list[Emission], list[Emission]]:
    """The audit log in the order in which it is written, and the updates of its placeholders
    (audio-LLM only).
    """
    entries: list[Emission] = []
    updates: list[Emission] = []
    for number, turn in enumerate(plan.turns):
        if number == 0:
            continue  # the greeting is spoken by the pipeline and is in no audit log
        if turn.user and plan.kind == "s2s":
            written_ms = max(turn.heard_ms, turn.user.end_ms) + rng.randint(200, 900)
            entries.append(
                _entry(written_ms, "user", misheard(rng, turn.user.text), turn.user.start_ms)
            )
        elif turn.user and plan.kind == "audio_llm":
            entries.append(_entry(turn.heard_ms, "user", AUDIO_PLACEHOLDER, turn_id=number))
            at_ms = turn.heard_ms + rng.randint(1500, 4000)
            update = {
                "type": "user_text_updated",
                "timestamp": at_ms,
                "text": misheard(rng, turn.user.text),
            }
            updates.append(Emission(at_ms, {**update, "turn_id": number}))
        elif turn.user:
            entries.append(_entry(turn.heard_ms, "user", misheard(rng, turn.user.text)))
        elif plan.kind in ("cascade", "audio_llm"):
            content = "(The user has been silent. Ask whether they are still there.)"
            text = "[TURN-END FALLBACK after 12s] no user speech captured"
            entries.append(_entry(turn.heard_ms, "turn_fallback", text, llm_content=content))
        for step in turn.steps:
            entries += _step_entries(plan, step)
    return sorted(entries, key=_by_production), updates


def _step_entries(plan: CallPlan, step: PlannedStep) -> Iterator[Emission]:
    said = step.speech.text if step.speech else ""
    if plan.kind != "s2s":
        yield _entry(
            step.decided_ms,
            "llm_call",
            {"agent": plan.agent, "response": said},
            **model_figures(step),
        )
        if said:  # empty replies are not recorded
            yield _entry(step.decided_ms, "assistant", said)
    elif step.speech:
        written_ms = (
            step.speech.end_ms + 50
            if step.speech.cut_off
            else (step.speech.start_ms + step.speech.end_ms) // 2
        )
        text = f"{step.speech.spoken} [interrupted]" if step.speech.cut_off else said
        yield _entry(written_ms, "assistant", text, step.speech.start_ms)
    if step.tool:
        call = {"tool": step.tool.name, "parameters": step.tool.parameters}
        yield _entry(step.tool.called_ms, "tool_call", call)
        response = {"tool": step.tool.name, "response": step.tool.response}
        yield _entry(step.tool.answered_ms, "tool_response", response)


_AUDIT_LOOKS: Final[Mapping[str, tuple[str, str, bool]]] = {
    "user": ("User", "text", False),
    "turn_fallback": ("User", "text", False),
    "assistant": ("Bot", "text", True),
    "llm_call": ("LLM", "text", True),
    "tool_call": ("Tool", "tool_call", True),
    "tool_response": ("Tool Response", "tool_response", True),
}


def _entry(
    written_ms: int, message_type: str, value: Any, dated_ms: int | None = None, **extra: Any
) -> Emission:
    display_name, kind, by_bot = _AUDIT_LOOKS[message_type]
    stamp = str(written_ms if dated_ms is None else dated_ms)
    entry = {
        "value": value,
        "displayName": display_name,
        "type": kind,
        "isBotMessage": by_bot,
        "timestamp": stamp,
    }
    return Emission(written_ms, {**entry, "message_type": message_type, **extra})


def misheard(rng: random.Random, text: str) -> str:
    """The text as a transcriber hears it: mostly right, some words lost, less punctuation."""
    words = [word.rstrip(",") for word in text.split() if rng.random() > 0.03]
    return " ".join(words) or text


def _fragments(speech: PlannedSpeech, rng: random.Random) -> Iterator[tuple[str, int]]:
    words = misheard(rng, speech.text).split()
    done = 0
    while done < len(words):
        taken = rng.randint(3, 7)
        fraction = min(1.0, (done + taken) / len(words))
        heard_ms = speech.start_ms + round((speech.end_ms - speech.start_ms) * fraction)
        yield " ".join(words[done : done + taken]), min(heard_ms + 150, speech.end_ms + 240)
        done += taken


def _speeches(turn: PlannedTurn) -> Iterable[PlannedSpeech]:
    return [step.speech for step in turn.steps if step.speech]


def _by_production(emission: Emission) -> int:
    return emission.produced_ms


# A planned call on a real phone line as pipecat's observers report it: the records of pipecat-ai
# 1.14, as JSON.
#
# There is no simulated caller: the time at which sound left the far end is unknown. Each event is
# `{"type", "timestamp", "data"}`: `timestamp` is the epoch millisecond at which the observer saw
# it, `data` the observer's record without nulls, whose own times are epoch seconds. Speech of the
# user is back-dated by the delay of the detector.

_VAD_START_MS = 200
_VAD_STOP_MS = 200
_BOT_SILENCE_MS = 350
"""Pipecat calls the bot silent after this much silence, and does not date the end back."""
_TURN_END_MS = 2500
"""A turn of pipecat's turn counter ends after this much silence of the bot, or when the user
speaks.
"""
_OUTPUT_TRANSPORT_MS = 30

_STT, _LLM, _TTS, _OUTPUT = (
    "DeepgramSTTService#0",
    "OpenAILLMService#0",
    "CartesiaTTSService#0",
    "OutputTransport#0",
)
_MODELS: Final = {_STT: "nova-3", _LLM: "gpt-4.1-mini", _TTS: "sonic-3"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def phone_events(plan: CallPlan, rng: random.Random, *, voice_detector: bool) -> list[Emission]:
    """Everything that pipecat's observers report of a call, in the order in which they report it.

    Args:
        plan: The call.
        rng: Draws the small delays.
        voice_detector: False for a bot whose transcriber owns turn taking: it has no voice activity
            detector, so there is no `user_speech_*` record and no latency measured by pipecat
            itself.
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
    return _with_turn_counter(sorted(emissions, key=_by_production), plan)


def _record(at_ms: int, kind: str, data: Mapping[str, Any]) -> Emission:
    present = {key: value for key, value in data.items() if value is not None}
    return Emission(at_ms, {"type": kind, "timestamp": at_ms, "data": present})


def _speech_event(seen_ms: int, kind: str, at_ms: int, started_ms: int | None = None) -> Emission:
    started_at = None if started_ms is None else _seconds(started_ms)
    return _record(
        seen_ms,
        "speech_event",
        {"kind": kind, "timestamp": _seconds(at_ms), "started_at": started_at},
    )


def _user_speech(speech: PlannedSpeech) -> Iterator[Emission]:
    start_ms, end_ms = speech.start_ms, speech.end_ms
    yield _speech_event(start_ms + _VAD_START_MS, "user_speech_started", start_ms)
    yield _speech_event(end_ms + _VAD_STOP_MS, "user_speech_stopped", end_ms, start_ms)


def _user_turn(
    turn: PlannedTurn, user: PlannedSpeech, rng: random.Random, *, voice_detector: bool
) -> Iterator[Emission]:
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
    transcribed = {
        "kind": "stt",
        "processor": _STT,
        "model": _MODELS[_STT],
        "timestamp": _seconds(stopped_ms),
    }
    audio_seconds = (user.end_ms - user.start_ms) / 1000
    yield _record(stopped_ms, "service_usage", {**transcribed, "audio_seconds": audio_seconds})


def _bot_speech(plan: CallPlan, number: int) -> Iterator[Emission]:
    """The speeches of the bot in a turn and, after them, their text as one message."""
    speeches = [step.speech for step in plan.turns[number].steps if step.speech]
    for speech in speeches:
        # an interruption stops it immediately
        stopped_ms = speech.end_ms + (0 if speech.cut_off else _BOT_SILENCE_MS)
        yield _speech_event(speech.start_ms, "bot_speech_started", speech.start_ms)
        yield _speech_event(stopped_ms, "bot_speech_stopped", stopped_ms, speech.start_ms)
    if speeches:
        content = " ".join(speech.spoken for speech in speeches)
        message = {
            "content": content,
            "interrupted": speeches[-1].cut_off,
            "timestamp": _iso(speeches[0].start_ms),
        }
        yield _record(speeches[-1].end_ms + _BOT_SILENCE_MS + 5, "assistant_message", message)


def _step_records(step: PlannedStep, call_id: str, rng: random.Random) -> Iterator[Emission]:
    tokens = rng.randint(400, 2200)
    common = {"processor": _LLM, "model": _MODELS[_LLM], "timestamp": _seconds(step.decided_ms)}
    waited_seconds = (step.decided_ms - step.asked_ms) / 1000
    yield _record(
        step.decided_ms, "service_latency", {"kind": "ttfb", **common, "seconds": waited_seconds}
    )
    usage = {"prompt_tokens": tokens, "completion_tokens": 40, "total_tokens": tokens + 40}
    yield _record(step.decided_ms + 40, "service_usage", {"kind": "llm", **common, **usage})
    if step.speech:
        start_ms = step.speech.start_ms
        common = {
            "processor": _TTS,
            "model": _MODELS[_TTS],
            "timestamp": _seconds(start_ms - _OUTPUT_TRANSPORT_MS),
        }
        waited_seconds = max(0, start_ms - _OUTPUT_TRANSPORT_MS - step.decided_ms) / 1000
        seen_ms = start_ms - _OUTPUT_TRANSPORT_MS
        yield _record(
            seen_ms, "service_latency", {"kind": "ttfb", **common, "seconds": waited_seconds}
        )
        yield _record(
            seen_ms, "service_usage", {"kind": "tts", **common, "characters": len(step.speech.text)}
        )
    if step.tool:
        yield from _function_call(step.tool, call_id)


def _function_call(tool: PlannedToolRun, call_id: str) -> Iterator[Emission]:
    common = {"function_name": tool.name, "tool_call_id": call_id}
    asked_ms, running_ms, settled_ms = tool.called_ms, tool.called_ms + 3, tool.answered_ms
    opened = {
        "kind": "function_call_started",
        **common,
        "timestamp": _seconds(asked_ms),
        "arguments": tool.parameters,
    }
    yield _record(asked_ms, "function_call_event", opened)
    running = {
        "kind": "function_call_in_progress",
        **common,
        "timestamp": _seconds(running_ms),
        "blocking": True,
        "group_id": f"group_{call_id}",
        "arguments": tool.parameters,
        "started_at": _seconds(asked_ms),
    }
    yield _record(running_ms, "function_call_event", running)
    settled = {
        "kind": "function_call_failed" if tool.failed else "function_call_completed",
        **common,
    }
    times = {"timestamp": _seconds(settled_ms), "in_progress_at": _seconds(running_ms)}
    error = tool.response["message"] if tool.failed else None
    # Results stay in the bot: the observer reports them only if configured.
    yield _record(settled_ms, "function_call_event", {**settled, **times, "error": error})


def _latency_records(turn: PlannedTurn, user: PlannedSpeech) -> Iterator[Emission]:
    """Latency of pipecat from the user's silence to the first sound of the bot, and its
    breakdown.
    """
    spoken = next((step.speech for step in turn.steps if step.speech), None)
    if spoken is None or turn.heard_ms < user.end_ms + _VAD_STOP_MS:
        return  # no answer, or one that began before the user was silent
    latency_seconds = (spoken.start_ms - user.end_ms) / 1000
    yield _record(spoken.start_ms, "user_bot_latency", {"latency_seconds": latency_seconds})
    contributions = list(_contributions(turn, user, spoken))
    functions = [
        {
            "function_name": step.tool.name,
            "start_time": _seconds(step.tool.called_ms),
            "duration_secs": (step.tool.answered_ms - step.tool.called_ms) / 1000,
        }
        for step in turn.steps
        if step.tool and step.tool.answered_ms <= spoken.start_ms
    ]
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


def _contributions(
    turn: PlannedTurn, user: PlannedSpeech, spoken: PlannedSpeech
) -> Iterator[dict[str, Any]]:
    """Named stretches without gaps from the user's last sound to the bot's first; they sum to the
    latency.
    """
    vad_ms = user.end_ms + _VAD_STOP_MS
    transcribed_ms = (vad_ms + turn.heard_ms) // 2
    # until when (ms), key, label, owner, kind of owner
    marks: list[tuple[int, str, str, str, str]] = [
        (vad_ms, "endpointing_wait", "endpointing wait", "config: VAD stop_secs", "setting"),
        (transcribed_ms, "transcription", "transcription", _STT, "service"),
        (
            turn.heard_ms,
            "turn_detection",
            "turn detection",
            "config: user turn strategies",
            "setting",
        ),
    ]
    for step in turn.steps:
        marks.append((step.decided_ms, "llm_inference", "LLM inference", _LLM, "service"))
        if step.speech:
            break
        if step.tool:
            marks += [
                (step.tool.called_ms, "llm_tool_call", "LLM tool call", _LLM, "service"),
                (
                    step.tool.answered_ms,
                    "function_handler",
                    "function handler",
                    step.tool.name,
                    "bot",
                ),
            ]
    marks += [
        (
            spoken.start_ms - _OUTPUT_TRANSPORT_MS,
            "speech_synthesis",
            "speech synthesis",
            _TTS,
            "service",
        ),
        (spoken.start_ms, "output_transport", "output transport", _OUTPUT, "pipeline"),
    ]
    begun_ms = user.end_ms
    for until_ms, key, label, owner, owner_kind in marks:
        named = {"key": key, "label": label, "owner": owner, "owner_kind": owner_kind}
        yield {
            **named,
            "start_time": _seconds(begun_ms),
            "duration_secs": (until_ms - begun_ms) / 1000,
        }
        begun_ms = until_ms


def _with_turn_counter(emissions: list[Emission], plan: CallPlan) -> list[Emission]:
    """Adds pipecat's own turn numbers, which count from the start of the pipeline and follow its
    rules, not ours.
    """
    counted: list[Emission] = []
    number, turn_started_ms, bot_speaking, bot_spoke, silent_since_ms = (
        0,
        plan.start_ms,
        False,
        False,
        None,
    )

    def begin(at_ms: int) -> None:
        nonlocal number, turn_started_ms, bot_spoke
        number, turn_started_ms, bot_spoke = number + 1, at_ms, False
        counted.append(_record(at_ms, "turn_started", {"turn_number": number}))

    def end(at_ms: int, *, was_interrupted: bool) -> None:
        duration_secs = (at_ms - turn_started_ms) / 1000
        data = {
            "turn_number": number,
            "duration_secs": duration_secs,
            "was_interrupted": was_interrupted,
        }
        counted.append(_record(at_ms, "turn_ended", data))

    begin(plan.start_ms)
    is_open = True
    for emission in emissions:
        if (
            is_open
            and silent_since_ms is not None
            and emission.produced_ms >= silent_since_ms + _TURN_END_MS
        ):
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
        # the end of a call flushes its turn
        end(max(plan.hang_up_ms, counted[-1].produced_ms), was_interrupted=True)
    return sorted(counted, key=_by_production)


def _seconds(at_ms: int) -> float:
    return at_ms / 1000


def _iso(at_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds")


# Seeded calls like live ones, difficult ones included: interruptions by both sides, late events,
# slow tools.
#
# About half of them come from a real phone line (pipecat's own records, no simulated caller), the
# others from EVA's three sources and its three kinds of pipeline. The same seed gives the same
# bytes.

PHONE_SHARE: Final = 0.5
"""Share of phone calls, when no kind is asked for."""
_KIND_WEIGHTS: Final = (60, 20, 20)  # of cascade, audio_llm and s2s among the others

_OLD_CALLER_PROBABILITY, _ANNOUNCED_PROBABILITY = 0.15, 0.2
_NO_DETECTOR_PROBABILITY, _NO_AUDIT_PROBABILITY = 0.15, 0.25
_LATE_MIN_MS, _LATE_MAX_MS = 1500, 5000

ALWAYS_AWKWARD: Final = always(AWKWARD)
"""The default of tests; the same seed makes the same bytes in every version."""

RAMP_UP_MS: Final = 20_000
"""Calls of simulated traffic begin one after the other within this time, so that the first is there
at once.
"""
_PAUSE_MIN_MS, _PAUSE_MAX_MS = 500, 4000


@dataclass(frozen=True, slots=True)
class SimulatedCall:
    """A simulated call, the delivery of its events, and its difficulties.

    Attributes:
        call: The call with its control events.
        delivery: The events that are produced late or sent twice.
        features: Names of its difficulties, for example `user_barge_in`.
    """

    call: RecordedCall
    delivery: DeliveryTimes
    features: frozenset[str]

    def wire_events(self) -> Iterator[WireEvent]:
        """The call's events in the order in which they are produced, late and repeated ones
        included.
        """
        return in_time_order(self.call, self.delivery)


def simulate_call(
    seed: int,
    *,
    start_ms: int,
    kind: CallKind | None = None,
    tenant: str | None = None,
    environment: str | None = "simulated",
    version: str | None = None,
    profile_of: ProfileOf = ALWAYS_AWKWARD,
    agents: Collection[str] = AGENTS,
    names_goals: bool = False,
) -> SimulatedCall:
    """Simulates one call.

    Args:
        seed: Decides everything about the call. Seed and start make its conversation id.
        start_ms: Epoch milliseconds at which the line is opened.
        kind: `phone`, or a pipeline of EVA's simulator; None draws one, about half of them phone
            calls.
        tenant: Named in `call_started`, when given.
        environment: Named in `call_started`, when given.
        version: Named in `call_started` as that of the agent, when given.
        profile_of: How well the agent of the call does.
        agents: The agents that callers may reach.
        names_goals: Whether `call_started` names the goal set of the agent.
    """
    rng = random.Random(f"call {seed}")  # noqa: S311 - play, not secrets
    drawn_kind = kind or _draw_kind(rng)
    conversation_id = f"sim-{start_ms}-{seed}"
    domains = [domain for domain in DOMAINS if domain.agent in agents]
    plan = plan_call(
        rng,
        conversation_id=conversation_id,
        start_ms=start_ms,
        kind=drawn_kind,
        profile_of=profile_of,
        domains=domains,
    )
    profile = profile_of(plan.agent, start_ms)
    features = set(plan.features)

    def happens(feature: str, probability: float) -> bool:
        if rng.random() < probability:
            features.add(feature)
            return True
        return False

    streams: dict[Source, list[Emission]] = {}
    audit, updates = audit_entries(plan, rng)
    if plan.kind == "phone":
        voice_detector = not happens("no_voice_detector", _NO_DETECTOR_PROBABILITY)
        streams["pipecat"] = phone_events(plan, rng, voice_detector=voice_detector)
        if not happens("no_audit", _NO_AUDIT_PROBABILITY):
            streams["audit"] = audit
    else:
        streams["audit"] = audit
        if plan.kind == "s2s":
            streams["pipecat"] = framework_events(plan)
        else:
            announce = happens("announced_phrases", _ANNOUNCED_PROBABILITY)
            streams["pipecat"] = pipecat_events(plan, rng, announce_phrases=announce)
        dialect = OLD_CALLER if happens("old_role_names", _OLD_CALLER_PROBABILITY) else NEW_CALLER
        streams["elevenlabs"] = caller_events(plan, rng, dialect)

    if not profile.sends_audit:
        streams.pop("audit", None)
    delays_ms = _back_dated(streams)
    source = rng.choice(list(streams))
    if happens("late_events", profile.late):
        # One event is held up and its source queues behind it. Early enough for the queue to empty
        # before the end.
        index = rng.randrange(max(1, len(streams[source]) * 2 // 3))
        held_ms = rng.randint(_LATE_MIN_MS, _LATE_MAX_MS)
        delays_ms[source, index] = delays_ms.get((source, index), 0) + held_ms
    repeated = set()
    if happens("repeated_record", profile.repeated):
        repeated.add((source, rng.randrange(len(streams[source]))))

    call = RecordedCall(
        conversation_id=plan.conversation_id,
        pipeline_type="cascade" if plan.kind == "phone" else plan.kind,
        conversation_ended_reason=plan.ended_reason,
        audit=_stream(streams, "audit"),
        pipecat=_stream(streams, "pipecat"),
        elevenlabs=_stream(streams, "elevenlabs"),
        control=_control(
            plan,
            streams,
            updates,
            agent=plan.agent,
            tenant=tenant,
            environment=environment,
            version=version,
            goals=plan.agent if names_goals else None,
        ),
    )
    return SimulatedCall(call, DeliveryTimes(delays_ms, frozenset(repeated)), frozenset(features))


def _draw_kind(rng: random.Random) -> CallKind:
    if rng.random() < PHONE_SHARE:
        return "phone"
    return rng.choices(SIMULATED_KINDS, weights=_KIND_WEIGHTS)[0]


def _stream(streams: dict[Source, list[Emission]], source: Source) -> tuple[Any, ...] | None:
    return tuple(emission.event for emission in streams[source]) if source in streams else None


def _back_dated(streams: dict[Source, list[Emission]]) -> dict[tuple[Source, int], int]:
    """How long after their own time events are produced, where they are."""
    return {
        (source, index): late_ms
        for source, emissions in streams.items()
        for index, emission in enumerate(emissions)
        if (late_ms := emission.produced_ms - int(emission.event["timestamp"])) > 0
    }


def _control(
    plan: CallPlan,
    streams: dict[Source, list[Emission]],
    updates: Sequence[Emission],
    **facts: str | None,
) -> tuple[dict[str, Any], ...]:
    pipeline_type = "cascade" if plan.kind == "phone" else plan.kind
    started = {"type": "call_started", "timestamp": plan.start_ms, "pipeline_type": pipeline_type}
    started |= {key: value for key, value in facts.items() if value is not None}
    produced = itertools.chain(*streams.values(), updates)
    end_ms = max(plan.hang_up_ms, *(emission.produced_ms for emission in produced))
    ended = {"type": "call_ended", "timestamp": end_ms, "reason": plan.ended_reason}
    return (started, *(dict(update.event) for update in updates), ended)


def simulated_traffic(
    seed: int,
    *,
    concurrent_calls: int,
    start_ms: int,
    limit: int | None = None,
    of_start: Callable[[int], Mapping[str, Any]] = lambda _start_ms: {},
    **of_each_call: Any,
) -> Iterator[PlayedCall]:
    """Calls on a number of lines; each line calls again seconds after it hung up. Calls are made
    lazily, one by one.

    Args:
        seed: Decides all calls.
        concurrent_calls: Number of lines; nearly all are busy after the ramp-up.
        start_ms: Epoch milliseconds of the first call.
        limit: Number of calls; None never ends.
        of_start: Further arguments of `simulate_call` for a call that starts at this epoch
            millisecond.
        of_each_call: Further arguments of `simulate_call`.

    Yields:
        Calls in the order in which they start.
    """
    if concurrent_calls < 1:
        raise ValueError(f"concurrent_calls is {concurrent_calls}, expected at least 1")
    rng = random.Random(f"traffic {seed}")  # noqa: S311 - play, not secrets
    spacing_ms = min(1500, RAMP_UP_MS // concurrent_calls)
    # ascending: already a heap
    lines_free_ms = [start_ms + line * spacing_ms for line in range(concurrent_calls)]
    for _ in itertools.count() if limit is None else range(limit):
        begin_ms = lines_free_ms[0]
        simulated = simulate_call(
            rng.getrandbits(40), start_ms=begin_ms, **of_each_call, **of_start(begin_ms)
        )
        events = tuple(simulated.wire_events())
        heapq.heapreplace(
            lines_free_ms, events[-1].arrival_ms + rng.randint(_PAUSE_MIN_MS, _PAUSE_MAX_MS)
        )
        yield PlayedCall(
            simulated.call.conversation_id, events, start_offset_ms=begin_ms - start_ms
        )


# The work of the command `simulate`: events as lines, and the progress as text.


def event_lines(calls: Iterable[PlayedCall]) -> Iterator[str]:
    """The events of all calls in the order of their arrival, each with its conversation."""
    events = [
        (event.arrival_ms, call.conversation_id, event.value)
        for call in calls
        for event in call.events
    ]
    for _, conversation_id, value in sorted(events, key=itemgetter(0)):
        yield json.dumps(
            {"conversation_id": conversation_id, **json.loads(value)}, ensure_ascii=False
        )


def traffic_text(progress: PlayProgress) -> str:
    """The progress of simulated traffic, in words."""
    return (
        f"{progress.calls_started - progress.calls_finished} calls running, "
        f"{progress.calls_finished} over, {progress.events_published} events sent"
    )
