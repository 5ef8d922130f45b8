"""The inputs that EVA's rules need and a recorded call lacks: what is missing, what becomes of the
call, what to do.

EVA's rules refuse nothing of this. They make another result of it, with other turns or with none,
and EVA's metrics then have zeros and ones that nothing has measured. Pure, but for the names of
files beside the call.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from math import inf
from typing import Any, Final, NamedTuple

from consumers.engine.turns.eva_text import EMPTY_UTTERANCES
from schemas.events.simulator import USER_ROLES
from streamer.recordings.files import (
    PIPECAT_FILES,
    RESULT_FILE,
    SIMULATOR_FILES,
    Events,
    RecordedCall,
)
from streamer.sources.replay import event_time_ms

Event = Mapping[str, Any]

_MARKERS: Final = frozenset({"turn_start", "turn_end"})
_SPOKEN: Final = ("tts_text", "llm_response")
"""Texts of the assistant in the bot's log. In a call with one of the first, EVA leaves out the
second.
"""
_NO_TURN: Final = "EVA counts no turn of the {}, and its runner makes an error of every metric."
_SOUNDS: Final = frozenset({"audio_start", "audio_end"})


class EvaMiss(NamedTuple):
    """One input that EVA's rules miss.

    Attributes:
        missing: What the call does not have.
        effect: What EVA's rules make of the call without it.
        remedy: What to do.
        places: How often it is missing in the call; 0 where it is missing as a whole.
    """

    missing: str
    effect: str
    remedy: str
    places: int = 0

    def __str__(self) -> str:
        """The sentences about it, the same for each call that misses it."""
        return f"no {self.missing}. {self.effect} {self.remedy}"

    @property
    def often(self) -> str:
        """How often it is missing, behind the name of the call; empty for once, and for the whole
        call.
        """
        return f", {self.places} times" if self.places > 1 else ""


def is_of_eva(call: RecordedCall) -> bool:
    """Whether EVA's rules make the turns of the call: it is a record of a run, or a simulated
    caller heard it.
    """
    return call.directory is not None or bool(call.elevenlabs)


def miss_sentences(call: RecordedCall, *, wants_eva: bool = False) -> list[str]:
    """Sentences about what EVA's rules miss, as `eva_misses`; none of a call whose turns they do
    not make, unless EVA's results are wanted of it.
    """
    if not wants_eva and not is_of_eva(call):
        return []
    where = "" if call.directory is None else f" in {call.directory}"
    misses = eva_misses(call, wants_eva=wants_eva)
    return [f"Call {call.conversation_id}{where}{miss.often}: {miss}" for miss in misses]


def eva_misses(call: RecordedCall, *, wants_eva: bool = True) -> list[EvaMiss]:
    """The inputs that EVA's rules miss in a call, source by source.

    Args:
        call: The call.
        wants_eva: Whether EVA's own results are wanted. Only they have a value for an unknown
            reason of the end; callgauge's scores of the end are unknown then, and say so.
    """
    heard = _Heard(call)
    of_rules = (
        *_of_audit(call, heard),
        *_of_bot(call, heard),
        *_of_caller(call, heard),
        *_of_type(call),
    )
    return [*of_rules, *(_of_end(call) if wants_eva else ())]


class _Sound(NamedTuple):
    time_ms: int
    is_user: bool
    is_start: bool


class _Heard:
    """What a call shows of its two sides, whichever source says it.

    Attributes:
        sounds: The sounds that the simulated caller reports, in the order in which EVA reads them.
        spoken: Times of the assistant's texts in the bot's log, divided by turn markers.
        user: Whether the user made a sound or said something.
        assistant: Whether the assistant did.
    """

    def __init__(self, call: RecordedCall) -> None:
        events, entries = call.elevenlabs or (), call.audit or ()
        self.sounds = _sounds(events)
        self.spoken = _spoken(call.pipecat or ())
        kinds = {event.get("type") for event in events} | {
            entry.get("message_type") for entry in entries
        }
        self.user = not kinds.isdisjoint({"user", "user_speech"}) or any(
            each.is_user for each in self.sounds
        )
        self.assistant = (
            not kinds.isdisjoint({"assistant", "assistant_speech"})
            or any(not each.is_user for each in self.sounds)
            or bool(self.spoken)
        )

    def has_start(self, *, of_user: bool) -> bool:
        """Whether one side's sound begins anywhere."""
        return any(sound.is_start and sound.is_user is of_user for sound in self.sounds)

    def answered(self) -> Iterator[tuple[int, int]]:
        """Begin and end of the user's sounds that the assistant answered before the user began
        again.
        """
        begins = [sound.time_ms for sound in self.sounds if sound.is_user and sound.is_start]
        for begin_ms, next_ms in pairwise([*begins, inf]):
            later = [sound for sound in self.sounds if begin_ms <= sound.time_ms < next_ms]
            answer = next((sound for sound in later if sound.is_start and not sound.is_user), None)
            if answer is not None:
                end = next(
                    (sound for sound in later if sound.is_user and not sound.is_start), answer
                )
                yield int(begin_ms), end.time_ms


def _sounds(events: Iterable[Event]) -> list[_Sound]:
    found = (
        _Sound(time_ms, event.get("user") in USER_ROLES, event["event_type"] == "audio_start")
        for event in events
        if event.get("event_type") in _SOUNDS and (time_ms := event_time_ms(event)) is not None
    )
    return sorted(found, key=lambda sound: sound.time_ms)


def _spoken(lines: Events) -> list[list[int]]:
    kinds = {line.get("type") for line in lines}
    spoken = next((kind for kind in _SPOKEN if kind in kinds), None)
    kept = (line for line in lines if line.get("type") == spoken or line.get("type") in _MARKERS)
    blocks = groupby(kept, lambda line: line.get("type") == spoken)
    return (
        [[event_time_ms(line) or 0 for line in block] for is_spoken, block in blocks if is_spoken]
        if spoken
        else []
    )


def _of_audit(call: RecordedCall, heard: _Heard) -> Iterator[EvaMiss]:
    if not call.audit:
        yield EvaMiss(
            "entry of the audit log",
            "EVA computes nothing of such a call. callgauge computes what the other sources show; "
            "the user's transcribed words and the tools are not known.",
            "Send the entries of the audit log: `user`, `assistant`, `tool_call`, `tool_response`.",
        )
        return
    kinds = {entry.get("message_type") for entry in call.audit}
    if heard.user and "user" not in kinds:
        yield EvaMiss(
            "`user` entry in the audit log",
            f"The turns have no transcribed words of the user. {_NO_TURN.format('user')}",
            "Send what the agent understood of the user, as entries `user`.",
        )
    if call.pipeline_type != "s2s" and "assistant" not in kinds and any(heard.answered()):
        yield EvaMiss(
            "`assistant` entry in the audit log",
            "The trace of the conversation has nothing that the assistant said, except perhaps the "
            "greeting and the last answer.",
            "Send the answers of the model, as entries `assistant`.",
        )


def _of_bot(call: RecordedCall, heard: _Heard) -> Iterator[EvaMiss]:
    """What the bot's log lacks. Of a speech model EVA does not open it."""
    if call.pipeline_type == "s2s":
        return
    lacks_file = call.directory is not None and not any(
        (call.directory / name).is_file() for name in PIPECAT_FILES
    )
    if lacks_file or (heard.assistant and not heard.spoken):
        yield EvaMiss(
            f"file {_one_of(PIPECAT_FILES)}"
            if lacks_file
            else "event `tts_text` or `llm_response` in the bot's log",
            "What the assistant spoke is not known, so its turns have no intended texts. "
            f"{_NO_TURN.format('assistant')}",
            "Copy the file from the run, if there is one."
            if lacks_file
            else "Send the texts that were spoken.",
        )
    if merged := _merged_turns(call, heard):
        hears = any(event.get("type") == "assistant_speech" for event in call.elevenlabs or ())
        yield EvaMiss(
            "`turn_start` or `turn_end` between the assistant's texts of two turns",
            "EVA takes texts without a marker between them for one, spoken in the turn of the "
            "first. The later turn has no intended text, "
            "and its answer is not in the "
            f"trace{'' if hears else '; without `assistant_speech` the two turns are one'}.",
            "Send `turn_start` where the user begins to speak, and `turn_end` where the turn is "
            "over, in the order of the bot's log.",
            merged,
        )


def _merged_turns(call: RecordedCall, heard: _Heard) -> int:
    """How often the user took a turn, and the assistant's texts before and after it have no marker
    between them.

    A text that comes while the user speaks was on its way already, and a user who speaks while the
    assistant goes on took no turn. Where no sound of the user is known, the entries of the audit
    log say when the user spoke.
    """
    turns = list(heard.answered())
    if not heard.has_start(of_user=True):
        times = (
            event_time_ms(each) for each in call.audit or () if each.get("message_type") == "user"
        )
        turns = [(time_ms, time_ms) for time_ms in times if time_ms is not None]
    return sum(
        min(block) < begin_ms and max(block) > end_ms
        for block in heard.spoken
        for begin_ms, end_ms in turns
    )


def _of_caller(call: RecordedCall, heard: _Heard) -> Iterator[EvaMiss]:
    events = call.elevenlabs
    if not events:
        is_record = call.directory is not None
        yield EvaMiss(
            f"file {_one_of(SIMULATOR_FILES)}" if is_record else "simulated caller",
            "EVA has the times of sound, the user's intended words and the assistant's transcribed "
            "ones from it alone. There is no latency and no interruption, `turn_taking` is 0 and "
            "`conversation_valid_end` is left out.",
            "Copy the file from the run."
            if is_record
            else (
                "Nothing needs to be done for a real caller: `callgauge score` measures the call "
                "by the events of its bot."
            ),
        )
        return
    if undated := sum(event_time_ms(event) is None for event in events):
        yield EvaMiss(
            "`timestamp` in an event of the simulated caller",
            "EVA and callgauge leave the event out.",
            "Send the moment of logging, in milliseconds since 1970.",
            undated,
        )
    if heard.user and not heard.has_start(of_user=True):
        yield _without_sound("user")
    if heard.assistant and not heard.has_start(of_user=False):
        yield _without_sound("assistant")
    yield from _endless(heard.sounds)
    if heard.has_start(of_user=True) and not any(map(_has_words, events)):
        yield EvaMiss(
            "`user_speech` with words",
            "EVA takes every sound of the user for an empty one and takes its turn back, so turns "
            "can be misnumbered. They have no intended words of the user.",
            "Send what the simulated caller said, as `user_speech`.",
        )
    if heard.has_start(of_user=False) and not any(
        event.get("type") == "assistant_speech" for event in events
    ):
        yield EvaMiss(
            "`assistant_speech`",
            f"The trace has nothing that the assistant said. {_NO_TURN.format('assistant')}"
            if call.pipeline_type == "s2s"
            else "The turns have no transcribed words of the assistant.",
            "Send what the simulated caller understood of the assistant, as `assistant_speech`.",
        )
    if not any(
        event.get("type") == "connection_state" and _data(event).get("state") == "session_ended"
        for event in events
    ):
        yield EvaMiss(
            "`connection_state` with `session_ended`",
            "EVA takes the last event for the end of the call, and `conversation_valid_end` is 0 "
            "however it ended.",
            "Send it at the end, with the reason in `details`.",
        )


def _without_sound(who: str) -> EvaMiss:
    return EvaMiss(
        f"`audio_start` of the {who}",
        "No turn has the sound of both sides, so there is no latency and no interruption, and "
        "`turn_taking` is 0.",
        f"Send `audio_start` and `audio_end` of the {who}.",
    )


_EFFECT_OF_NO_END: Final = {
    "user": (
        "The user counts as speaking on: the answer counts as an interruption, and the turn's "
        "latency is wrong or unknown."
    ),
    "assistant": (
        "The assistant counts as speaking on: what the user says next counts as an interruption."
    ),
}


def _endless(sounds: Sequence[_Sound]) -> Iterator[EvaMiss]:
    """Sounds without an end after which somebody spoke. The last sound of a call may have been cut
    off by the call's end.
    """
    for who in ("user", "assistant"):
        is_user = who == "user"
        missing, is_open, is_followed = 0, False, False
        for sound in sounds:
            if sound.is_user is not is_user:
                is_followed |= sound.is_start
                continue
            missing += is_open and sound.is_start
            is_open, is_followed = sound.is_start, False
        missing += is_open and is_followed
        if missing:
            effect, remedy = (
                _EFFECT_OF_NO_END[who],
                f"Send `audio_end` for every sound of the {who}.",
            )
            yield EvaMiss(
                f"`audio_end` of the {who} after its `audio_start`", effect, remedy, missing
            )


def _has_words(event: Event) -> bool:
    text = _data(event).get("text")
    return (
        event.get("type") == "user_speech"
        and isinstance(text, str)
        and text.strip() not in EMPTY_UTTERANCES
    )


def _data(event: Event) -> Event:
    data = event.get("data")
    return data if isinstance(data, Mapping) else {}


def _of_type(call: RecordedCall) -> Iterator[EvaMiss]:
    is_record = call.directory is not None
    if not call.names_pipeline_type:
        yield EvaMiss(
            "`config.json` of the run above the record"
            if is_record
            else "`pipeline_type` in `call_started`",
            "The agent counts as a cascade. If it is an audio model or a speech model, its turns, "
            "texts and trace come out wrong.",
            "Keep the record in the folder of its run."
            if is_record
            else "Send `cascade`, `audio_llm` or `s2s`.",
        )


def _of_end(call: RecordedCall) -> Iterator[EvaMiss]:
    is_record = call.directory is not None
    is_told = any(
        event.get("type") == "call_ended" and event.get("reason") for event in call.control
    )
    if call.conversation_ended_reason is None and not is_told:
        yield EvaMiss(
            f"reason of the end{f' in {RESULT_FILE}' if is_record else ''}",
            "EVA counts an unknown reason as a good one: `conversation_completed_on_time` and "
            "`conversation_correctly_finished` are 1. callgauge's own scores of both are unknown.",
            "Copy the file from the run."
            if is_record
            else (
                "Say it: as `reason` in `call_ended`, or as `conversation_ended_reason` in the "
                "line of the call."
            ),
        )


def _one_of(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
