"""The inputs that EVA's rules need and a recorded call lacks: what is missing, what becomes of the
call, what to do.

EVA's rules refuse nothing of this. They make another result of it, with other turns or with none,
and EVA's metrics then have zeros and ones that nothing has measured. Pure.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from consumers.engine.turns.eva_text import EMPTY_UTTERANCES
from schemas.events.simulator import USER_ROLES
from streamer.recordings.files import RecordedCall

_NO_TURN: Final = "EVA counts no turn of the {}, and its runner makes an error of every metric."
_SOUNDS: Final = frozenset({"audio_start", "audio_end"})
_END: Final = "reason of the end"


class EvaNeed(NamedTuple):
    """One input that EVA's rules need.

    Attributes:
        missing: What a call does not have.
        name: The name that `_names_in` gives a call that has it.
        when: Names that a call has that needs it, all of them; empty for every call.
        effect: What EVA's rules make of a call without it.
        remedy: What to do.
        is_of_cascades: Whether a speech model does not need it: EVA does not open its bot's log.
    """

    missing: str
    name: str
    when: frozenset[str]
    effect: str
    remedy: str
    is_of_cascades: bool = False

    def __str__(self) -> str:
        """The sentences about it, the same for each call that misses it."""
        return f"no {self.missing}. {self.effect} {self.remedy}"


def _when(*names: str) -> frozenset[str]:
    return frozenset(names)


EVA_NEEDS: Final = (
    EvaNeed(
        "entry of the audit log",
        "audit",
        _when(),
        "EVA computes nothing of such a call. callgauge computes what the other sources show; the "
        "user's transcribed words and the tools are not known.",
        "Send the entries of the audit log: `user`, `assistant`, `tool_call`, `tool_response`.",
    ),
    EvaNeed(
        "`user` entry in the audit log",
        "audit user",
        _when("audit", "user"),
        f"The turns have no transcribed words of the user. {_NO_TURN.format('user')}",
        "Send what the agent understood of the user, as entries `user`.",
    ),
    EvaNeed(
        "`assistant` entry in the audit log",
        "audit assistant",
        _when("audit", "user", "assistant"),
        "The trace of the conversation has nothing that the assistant said, except perhaps the "
        "greeting and the last answer.",
        "Send the answers of the model, as entries `assistant`.",
        is_of_cascades=True,
    ),
    EvaNeed(
        "event `tts_text` or `llm_response` in the bot's log",
        "text of the bot",
        _when("assistant"),
        "What the assistant spoke is not known, so its turns have no intended texts. "
        f"{_NO_TURN.format('assistant')}",
        "Send the texts that were spoken; of a run, copy its framework_logs.jsonl.",
        is_of_cascades=True,
    ),
    EvaNeed(
        "`turn_start` or `turn_end` in the bot's log",
        "marker of the bot",
        _when("text of the bot", "audio_start of the user", "audio_start of the assistant"),
        "EVA takes texts without a marker between them for one, spoken in the turn of the first; "
        "without `assistant_speech` the turns are one.",
        "Send `turn_start` where the user begins to speak, and `turn_end` where the turn is over, "
        "in the order of the bot's log.",
        is_of_cascades=True,
    ),
    EvaNeed(
        "event of a simulated caller",
        "caller",
        _when(),
        "EVA has the times of sound, the user's intended words and the assistant's transcribed "
        "ones from it alone. There is no latency and no interruption, `turn_taking` is 0 and "
        "`conversation_valid_end` is left out.",
        "Of a run, copy its user_simulator_events.jsonl. Nothing needs to be done for a real "
        "caller: `callgauge score` measures the call by the events of its bot.",
    ),
    *(
        EvaNeed(
            f"`audio_start` of the {who}",
            f"audio_start of the {who}",
            _when("caller", who),
            "No turn has the sound of both sides, so there is no latency and no interruption, and "
            "`turn_taking` is 0.",
            f"Send `audio_start` and `audio_end` of the {who}.",
        )
        for who in ("user", "assistant")
    ),
    *(
        EvaNeed(
            f"`audio_end` of the {who}",
            f"audio_end of the {who}",
            _when(f"audio_start of the {who}"),
            f"The {who} counts as speaking on: what the other side says next counts as an "
            "interruption.",
            f"Send `audio_end` for every sound of the {who}.",
        )
        for who in ("user", "assistant")
    ),
    EvaNeed(
        "`user_speech` with words",
        "words of the user",
        _when("audio_start of the user"),
        "EVA takes every sound of the user for an empty one and takes its turn back, so turns can "
        "be misnumbered. They have no intended words of the user.",
        "Send what the simulated caller said, as `user_speech`.",
    ),
    EvaNeed(
        "`assistant_speech`",
        "words of the assistant",
        _when("audio_start of the assistant"),
        "The turns have no transcribed words of the assistant. Of a speech model the trace has "
        f"nothing that the assistant said: {_NO_TURN.format('assistant')}",
        "Send what the simulated caller understood of the assistant, as `assistant_speech`.",
    ),
    EvaNeed(
        "`connection_state` with `session_ended`",
        "end of the session",
        _when("caller"),
        "EVA takes the last event for the end of the call, and `conversation_valid_end` is 0 "
        "however it ended.",
        "Send it at the end, with the reason in `details`.",
    ),
    EvaNeed(
        "type of the agent",
        "type",
        _when(),
        "The agent counts as a cascade. If it is an audio model or a speech model, its turns, "
        "texts and trace come out wrong.",
        "Keep a record in the folder of its run, above which config.json is; otherwise send "
        "`pipeline_type` in `call_started`: `cascade`, `audio_llm` or `s2s`.",
    ),
    EvaNeed(
        _END,
        "end",
        _when(),
        "EVA counts an unknown reason as a good one: `conversation_completed_on_time` and "
        "`conversation_correctly_finished` are 1. callgauge's own scores of both are unknown.",
        "Of a run, copy its result.json; otherwise say it, as `reason` in `call_ended`.",
    ),
)
"""In the order of the sources."""


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
    return [f"Call {call.conversation_id}{where}: {miss}" for miss in misses]


def eva_misses(call: RecordedCall, *, wants_eva: bool = True) -> list[EvaNeed]:
    """The inputs that EVA's rules miss in a call, source by source.

    Args:
        call: The call.
        wants_eva: Whether EVA's own results are wanted. Only they have a value for an unknown
            reason of the end; callgauge's scores of the end are unknown then, and say so.
    """
    names = frozenset(_names_in(call))
    is_speech_model = call.pipeline_type == "s2s"
    return [
        need
        for need in EVA_NEEDS
        if need.when <= names
        and need.name not in names
        and not (is_speech_model and need.is_of_cascades)
        and (wants_eva or need.missing != _END)
    ]


def _names_in(call: RecordedCall) -> Iterator[str]:
    """What a call has, by the names that `EVA_NEEDS` asks for."""
    for entry in call.audit or ():
        kind = entry.get("message_type")
        yield from ("audit", f"audit {kind}", str(kind))
    for line in call.pipecat or ():
        match line.get("type"):
            case "tts_text" | "llm_response":
                yield from ("text of the bot", "assistant")
            case "turn_start" | "turn_end":
                yield "marker of the bot"
    for event in call.elevenlabs or ():
        yield "caller"
        yield from _names_of_caller(event)
    if call.names_pipeline_type:
        yield "type"
    if call.conversation_ended_reason is not None:
        yield "end"
    for event in call.control:
        if event.get("type") == "call_ended" and event.get("reason"):
            yield "end"


def _names_of_caller(event: Mapping[str, Any]) -> Iterator[str]:
    """What an event of the simulated caller tells of the two sides."""
    data = event.get("data")
    known: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    if event.get("event_type") in _SOUNDS:
        who = "user" if event.get("user") in USER_ROLES else "assistant"
        yield from (who, f"{event['event_type']} of the {who}")
    elif event.get("type") == "user_speech":
        yield "user"
        if str(known.get("text") or "").strip() not in EMPTY_UTTERANCES:
            yield "words of the user"
    elif event.get("type") == "assistant_speech":
        yield from ("assistant", "words of the assistant")
    elif event.get("type") == "connection_state" and known.get("state") == "session_ended":
        yield "end of the session"
