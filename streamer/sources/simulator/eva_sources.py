"""A planned call in EVA's three sources: the simulated caller, the pipecat or framework log, the audit log.

Each source sees the call through its own delays: silence is noticed late, transcripts come seconds after the sound,
speech-to-speech models write their audit entries only when they are done and date them back.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from streamer.sources.simulator.metrics import TimedEvent, framework_metrics, model_figures, pipecat_metrics
from streamer.sources.simulator.plan import CallPlan, Speech, Step, Turn


@dataclass(frozen=True, slots=True)
class Emission:
    """An event and when it is produced (epoch ms); its own time, inside the event, may be earlier."""

    produced_ms: int
    event: Mapping[str, Any]


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
OLD_CALLER: Final = CallerDialect("elevenlabs_user", "framework_agent", "elevenlabs_agent", "pipecat_assistant", {})

AUDIO_PLACEHOLDER: Final = "[user audio]"

_VAD_MS = 200
_USER_SILENCE_MS, _ASSISTANT_SILENCE_MS = 600, 200
"""How long the simulated caller listens to silence before it logs the end of a sound, dated back to the end."""
_WORD_BATCH_MS = 250
"""Words of speech synthesis leave in batches, so neighbours share a timestamp."""


def caller_events(plan: CallPlan, rng: random.Random, dialect: CallerDialect) -> list[Emission]:
    """The simulated caller's stream: connection, sounds with back-dated times, and texts of both sides."""
    emissions = [_connection(plan.start_ms + rng.randint(20, 90), "connected", {"server_url": "ws://caller.test/ws"})]
    emissions.append(_connection(plan.start_ms + rng.randint(300, 600), "session_started", {}))
    next_user_ms = [turn.user.start_ms if turn.user else None for turn in plan.turns[1:]] + [None]
    for turn, user_ms in zip(plan.turns, next_user_ms, strict=True):
        if turn.noise:
            emissions += _sounds(dialect.user, turn.noise, _USER_SILENCE_MS, rng)
            filtered = turn.noise.text, turn.noise.start_ms + rng.randint(200, 400)
            emissions.append(_said("user_speech", dialect.user_text, *filtered))
        if turn.user:
            emissions += _user_sounds(turn, turn.user, dialect, rng)
            said_ms = turn.user.start_ms + rng.randint(200, min(2500, turn.user.end_ms - turn.user.start_ms))
            emissions.append(_said("user_speech", dialect.user_text, turn.user.text, said_ms))
        for speech in _speeches(turn):
            emissions += _sounds(dialect.assistant, speech, _ASSISTANT_SILENCE_MS, rng)
            said_ms = speech.end_ms + rng.randint(700, 3900)
            if user_ms is not None and speech.end_ms + 700 < user_ms < speech.end_ms + 3900:
                said_ms = user_ms + rng.randint(-40, 40)  # the caller answers as soon as it has the words
            emissions.append(_said("assistant_speech", dialect.assistant_text, misheard(rng, speech.spoken), said_ms))
    last_ms = max(emission.produced_ms for emission in emissions)
    details = {"reason": plan.ended_reason}
    emissions.append(_connection(max(plan.hang_up_ms, last_ms) + rng.randint(800, 2500), "session_ended", details))
    numbered = enumerate(sorted(emissions, key=_by_production), start=1)
    return [Emission(item.produced_ms, _caller_event(item, number, dialect)) for number, item in numbered]


def _caller_event(emission: Emission, sequence: int, dialect: CallerDialect) -> dict[str, Any]:
    return {"timestamp": emission.produced_ms, "sequence": sequence, **emission.event, **dialect.extra}


def _connection(at_ms: int, state: str, details: Mapping[str, Any]) -> Emission:
    return Emission(at_ms, {"type": "connection_state", "data": {"state": state, "details": details}})


def _said(kind: str, source: str, text: str, at_ms: int) -> Emission:
    return Emission(at_ms, {"type": kind, "data": {"text": text, "source": source}})


def _user_sounds(turn: Turn, user: Speech, dialect: CallerDialect, rng: random.Random) -> list[Emission]:
    start, end = _sounds(dialect.user, user, _USER_SILENCE_MS, rng)
    if turn.awkward == "missing_audio_end":
        return [start]
    if turn.awkward == "late_audio_end" and turn.steps:
        # The answer covers the silence: the end is noticed, and dated, only when the answer is over.
        noticed_ms = max(speech.end_ms for speech in _speeches(turn)) + rng.randint(300, 600)
        return [start, _sound("audio_end", dialect.user, noticed_ms, noticed_ms, rng)]
    return [start, end]


def _sounds(role: str, speech: Speech, silence_ms: int, rng: random.Random) -> tuple[Emission, Emission]:
    noticed_ms = speech.end_ms + silence_ms + rng.randint(-30, 60)
    start = _sound("audio_start", role, speech.start_ms, speech.start_ms + rng.randint(1, 4), rng)
    return start, _sound("audio_end", role, speech.end_ms, noticed_ms, rng)


def _sound(kind: str, role: str, sound_ms: int, logged_ms: int, rng: random.Random) -> Emission:
    audio_seconds = (sound_ms * 1000 + rng.randrange(1000)) / 1_000_000
    return Emission(logged_ms, {"event_type": kind, "user": role, "audio_timestamp": audio_seconds})


def pipecat_events(plan: CallPlan, rng: random.Random, *, announce_phrases: bool) -> list[Emission]:
    """The pipecat log of a cascade or audio-LLM agent: turn markers, voice activity, transcripts, words as spoken.

    Args:
        plan: The call.
        rng: Draws the small delays.
        announce_phrases: Whether the speech service announces each phrase whole before its words.
    """
    log = _PipecatLog(plan.conversation_id)
    log.line(plan.start_ms, "turn_start", {"frame": "StartFrame#0"}, "PipelineTask#0::Source", "RTVIProcessor#0")
    for turn in plan.turns:
        if turn.noise:
            log.voice_activity(turn.noise, turn.noise.end_ms + _VAD_MS, was_interrupted=False)
        if turn.user:
            barged_in = turn.awkward == "user_barge_in"
            log.voice_activity(
                turn.user, max(turn.heard_ms - 5, turn.user.start_ms + 2 * _VAD_MS), was_interrupted=barged_in
            )
            for text, at_ms in _fragments(turn.user, rng):
                log.line(
                    at_ms, "transcript", {"frame": f" {text}"}, "CartesiaSTTService#0", "UserTranscriptProcessor#0"
                )
        for step in turn.steps:
            if step.speech:
                frame = {"frame": step.speech.text}
                log.line(step.decided_ms, "llm_response", frame, "BenchmarkAgentProcessor#0", "CartesiaTTSService#1")
                log.words(step.speech, announced=announce_phrases and not step.speech.cut_off)
    return _with_metrics(log.emissions, pipecat_metrics(plan))


class _PipecatLog:
    def __init__(self, conversation_id: str) -> None:
        self.emissions: list[Emission] = []
        self._conversation_id = conversation_id
        self._frames = 0

    def line(self, at_ms: int, kind: str, data: Mapping[str, Any], source: str, destination: str) -> None:
        event = {"type": kind, "data": data, "timestamp": at_ms, "source": source, "destination": destination}
        self.emissions.append(Emission(at_ms, {**event, "conversation_id": self._conversation_id}))

    def voice_activity(self, speech: Speech, stopped_ms: int, *, was_interrupted: bool) -> None:
        """Turn markers and both ends of a speech; start and end are written once per destination, so twice."""
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

    def words(self, speech: Speech, *, announced: bool) -> None:
        route = ("CartesiaTTSService#1", "AssistantTranscriptProcessor#0")
        words = speech.spoken.split()
        if announced and len(words) > 1:
            self.line(speech.start_ms + 99, "tts_text", {"frame": speech.spoken}, *route)
        said_ms = speech.end_ms - speech.start_ms - 250
        for index, word in enumerate(words):
            offset_ms = round(said_ms * index / len(words)) // _WORD_BATCH_MS * _WORD_BATCH_MS
            self.line(speech.start_ms + 100 + offset_ms, "tts_text", {"frame": word}, *route)


def framework_events(plan: CallPlan) -> list[Emission]:
    """The framework log of a speech-to-speech agent: replies as text, and the spoken part of interrupted ones."""
    emissions = []
    for speech in (speech for turn in plan.turns for speech in _speeches(turn)):
        written_ms = min(speech.end_ms, speech.start_ms + 400)
        emissions.append(_framework_line(written_ms, "llm_response", speech.text))
        if speech.cut_off:
            emissions.append(_framework_line(speech.end_ms + 30, "s2s_transcript", f"{speech.spoken} [interrupted]"))
    return _with_metrics(emissions, framework_metrics(plan))


def _framework_line(at_ms: int, kind: str, frame: str) -> Emission:
    return Emission(at_ms, {"timestamp": at_ms, "type": kind, "data": {"frame": frame}})


def audit_entries(plan: CallPlan, rng: random.Random) -> tuple[list[Emission], list[Emission]]:
    """The audit log in the order in which it is written, and the updates of its placeholders (audio-LLM only)."""
    entries: list[Emission] = []
    updates: list[Emission] = []
    for number, turn in enumerate(plan.turns):
        if number == 0:
            continue  # the greeting is spoken by the pipeline and is in no audit log
        if turn.user and plan.kind == "s2s":
            written_ms = max(turn.heard_ms, turn.user.end_ms) + rng.randint(200, 900)
            entries.append(_entry(written_ms, "user", misheard(rng, turn.user.text), turn.user.start_ms))
        elif turn.user and plan.kind == "audio_llm":
            entries.append(_entry(turn.heard_ms, "user", AUDIO_PLACEHOLDER, turn_id=number))
            at_ms = turn.heard_ms + rng.randint(1500, 4000)
            update = {"type": "user_text_updated", "timestamp": at_ms, "text": misheard(rng, turn.user.text)}
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


def _step_entries(plan: CallPlan, step: Step) -> Iterator[Emission]:
    said = step.speech.text if step.speech else ""
    if plan.kind != "s2s":
        yield _entry(step.decided_ms, "llm_call", {"agent": plan.agent, "response": said}, **model_figures(step))
        if said:  # empty replies are not recorded
            yield _entry(step.decided_ms, "assistant", said)
    elif step.speech:
        written_ms = (
            step.speech.end_ms + 50 if step.speech.cut_off else (step.speech.start_ms + step.speech.end_ms) // 2
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


def _entry(written_ms: int, message_type: str, value: Any, dated_ms: int | None = None, **extra: Any) -> Emission:
    display_name, kind, by_bot = _AUDIT_LOOKS[message_type]
    stamp = str(written_ms if dated_ms is None else dated_ms)
    entry = {"value": value, "displayName": display_name, "type": kind, "isBotMessage": by_bot, "timestamp": stamp}
    return Emission(written_ms, {**entry, "message_type": message_type, **extra})


def misheard(rng: random.Random, text: str) -> str:
    """The text as a transcriber hears it: mostly right, some words lost, less punctuation."""
    words = [word.rstrip(",") for word in text.split() if rng.random() > 0.03]
    return " ".join(words) or text


def _fragments(speech: Speech, rng: random.Random) -> Iterator[tuple[str, int]]:
    words = misheard(rng, speech.text).split()
    done = 0
    while done < len(words):
        taken = rng.randint(3, 7)
        fraction = min(1.0, (done + taken) / len(words))
        heard_ms = speech.start_ms + round((speech.end_ms - speech.start_ms) * fraction)
        yield " ".join(words[done : done + taken]), min(heard_ms + 150, speech.end_ms + 240)
        done += taken


def _speeches(turn: Turn) -> Iterable[Speech]:
    return [step.speech for step in turn.steps if step.speech]


def _with_metrics(lines: Iterable[Emission], metrics: Iterable[TimedEvent]) -> list[Emission]:
    return sorted([*lines, *(Emission(at_ms, event) for at_ms, event in metrics)], key=_by_production)


def _by_production(emission: Emission) -> int:
    return emission.produced_ms
