"""The `MetricContext` of any call: what its events add to EVA's, and that of a call which its bot
alone hears.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from consumers.engine.measures.eva import GOODBYE, SuppliedFacts
from consumers.engine.measures.eva_timing import told_tools
from consumers.engine.turns.heard import HeardSide, HeardSides, HeardTurn, Purpose, WordSource
from consumers.engine.turns.live import LiveCall
from consumers.engine.turns.timeline import (
    EVA_DIGITS,
    ElementKind,
    ToolEntry,
    ToolPayload,
    unmeasured_reason,
    voice_to_voice_ms,
)
from schemas.closed_sets import PipelineType, UnscoredReason
from schemas.metric_context import AudioSegments, MetricContext
from schemas.units import MS_PER_SECOND

# Facts of the call as a whole, which EVA's runner adds to its context.


class CallFacts(NamedTuple):
    """The facts of a call as a whole, as its events have them.

    Attributes:
        live: The call as it is now.
        supplied: What its producer says of the agent and of the states.
        pipeline_type: The agent's pipeline; a cascade where no event names it.
        agent_id: The agent; None where no event names it.
        ended_reason: Why the call ended, in its producer's words; None where no event says so.
        ended_ms: Time of its latest event, or of its end if that is later; 0 before both.
    """

    live: LiveCall
    supplied: SuppliedFacts
    pipeline_type: PipelineType
    agent_id: str | None
    ended_reason: str | None
    ended_ms: int


def with_facts(context: MetricContext, call: CallFacts) -> MetricContext:
    """EVA's context of a call with a simulated caller, with the facts that its events have."""
    history = call.live.history
    read = [(kind, payload) for _, kind, payload in history.timeline]
    tools = [
        use.name
        for kind, use in read
        if kind == ElementKind.TOOL_CALL and isinstance(use, ToolPayload)
    ]
    facts: dict[str, Any] = _facts(call)
    if history.has_audit:
        facts["num_turns"] = sum(kind == ElementKind.AUDIT_USER for kind, _ in read)
        facts["tools_called"] = list(dict.fromkeys(tools))
    facts["conversation_finished"] = is_finished(
        call.ended_reason or history.caller_line.last_reason
    )
    return context.model_copy(update=facts)


def _facts(call: CallFacts) -> dict[str, Any]:
    supplied, first_ms = call.supplied, call.live.first_ms
    has_length = first_ms is not None and call.ended_ms > first_ms
    return {
        "expected_scenario_db": supplied.expected_state,
        "final_scenario_db": supplied.final_state,
        "final_scenario_db_hash": supplied.final_state_hash,
        "agent_role": supplied.role,
        "agent_instructions": supplied.instructions,
        "agent_tools": None
        if supplied.tools is None
        else [tool.model_dump() for tool in supplied.tools],
        "current_date_time": supplied.current_date_time,
        "language": supplied.language,
        "duration_seconds": (call.ended_ms - (first_ms or 0)) / MS_PER_SECOND
        if has_length
        else None,
    }


def is_finished(reason: str | None) -> bool | None:
    """Whether the call ended with a goodbye: EVA's word for a call that was finished."""
    return None if reason is None else reason == GOODBYE


# The context of a call without a simulated caller, from its turns as the bot heard them.
#
# Numbers, waits and interruptions are those of the scores. Words stand under the turn of their
# sound. What no event of the call can tell is left out, and named with the reason.

NO_DATASET: Final = "no record of a dataset describes this call"
NOT_TOLD: Final = "no event of the call has it"
NO_FILES: Final = "no folder of files belongs to this call"
NO_SCRIPT: Final = "only the script of a simulated caller says what the user meant to say"
NO_LISTENER: Final = (
    "what the user hears is not transcribed; only of answers that were cut off, the part is known "
    "that was heard"
)
NO_USER_WORDS: Final = "no event of the call has words of the user"
NO_AGENT_WORDS: Final = "no event of the call has words of the assistant"
NO_SOUND: Final = "no event of the call says when this side began to speak and when it stopped"
NO_OVERLAP: Final = (
    "who spoke over whom shows in the sounds of both sides, and the events do not have both"
)
NO_END_REASON: Final = "no event says why the call ended"
NO_LENGTH: Final = "only one moment of the call is known"
NO_PIPELINE: Final = "no event names it, and a cascade is assumed"
NO_TIMER: Final = (
    "only an audit log in EVA's format tells when the agent's timer for the end of a turn stepped "
    "in"
)
NO_ARGUMENTS: Final = "no event has the arguments of every call"
NO_ANSWERS: Final = "no event has the answer of every call"
NOT_ALL_MEANT: Final = "of an answer that was cut off, only the part is known that was heard"

_IF_EMPTY: Final[Mapping[str, str]] = {
    "record_id": NO_DATASET,
    "user_goal": NO_DATASET,
    "user_persona": NO_DATASET,
    "initial_scenario_db": NO_DATASET,
    "initial_scenario_db_hash": NO_DATASET,
    "final_scenario_db": NO_DATASET,
    "final_scenario_db_hash": NO_DATASET,
    "expected_scenario_db": NO_DATASET,
    "agent_id": NOT_TOLD,
    "agent_role": NOT_TOLD,
    "agent_instructions": NOT_TOLD,
    "agent_tools": NOT_TOLD,
    "current_date_time": NOT_TOLD,
    "language": NOT_TOLD,
    "transcribed_user_turns": NO_USER_WORDS,
    "intended_user_turns": NO_SCRIPT,
    "intended_assistant_turns": NO_AGENT_WORDS,
    "audio_timestamps_user_turns": NO_SOUND,
    "audio_timestamps_assistant_turns": NO_SOUND,
    "fallback_turn_ids": NO_TIMER,
    "conversation_ended_reason": NO_END_REASON,
    "conversation_finished": NO_END_REASON,
    "duration_seconds": NO_LENGTH,
    "output_dir": NO_FILES,
    "audio_assistant_path": NO_FILES,
    "audio_user_path": NO_FILES,
    "audio_mixed_path": NO_FILES,
}
"""Why a field is unknown if it has no value."""

_NOTHING: Final[tuple[object, ...]] = (None, {}, frozenset[int]())
_TOLD_AFTERWARDS: Final = (WordSource.HEARD, WordSource.BOT)
"""Sources that tell an answer when it is over."""

Turns = Mapping[int, HeardTurn]
Entry = dict[str, Any]


def context_by_the_bot(call: CallFacts) -> MetricContext:
    """The context of a call as its bot heard it, as far as its events have come."""
    heard = call.live.heard()
    turns = heard.turns(sorted(heard.numbers()))
    tools = _in_order(heard.last_tool)
    made = [entry.use for entry in tools if not entry.is_response]
    params, responses = told_tools(heard.last_tool)
    end_s = call.ended_ms / MS_PER_SECOND
    waits_s, unmeasured = _waits(call.live, turns)
    values: dict[str, Any] = {
        **_facts(call),
        "transcribed_user_turns": _known(
            {n: turn.user.said(Purpose.TOLD) for n, turn in turns.items()}
        ),
        "transcribed_assistant_turns": _known({n: _heard_part(turn) for n, turn in turns.items()}),
        "intended_assistant_turns": _known(
            {n: turn.assistant.said(Purpose.TOLD) for n, turn in turns.items()}
        ),
        "audio_timestamps_user_turns": _sounds({n: turn.user for n, turn in turns.items()}, end_s),
        "audio_timestamps_assistant_turns": _sounds(
            {n: turn.assistant for n, turn in turns.items()}, end_s
        ),
        "num_turns": sum(n > 0 for n in turns),
        "num_user_turns": sum(_is_heard(turn.user) for turn in turns.values()),
        "num_assistant_turns": sum(_is_heard(turn.assistant) for turn in turns.values()),
        "num_tool_calls": len(made),
        "tool_called": [use.name.lower() for use in made],
        "tools_called": list(dict.fromkeys(use.name for use in made)),
        "tool_params": params,
        "tool_responses": responses,
        "conversation_trace": list(_trace(turns, tools)),
        "assistant_interrupted_turns": frozenset(
            n for n, turn in turns.items() if turn.assistant_interrupted
        ),
        "user_interrupted_turns": frozenset(
            n for n, turn in turns.items() if turn.user_interrupted
        ),
        "fallback_turn_ids": frozenset(n for n, turn in turns.items() if turn.is_fallback),
        "latency_assistant_turns": waits_s,
        "conversation_ended_reason": call.ended_reason,
        "conversation_finished": is_finished(call.ended_reason),
        "pipeline_type": call.pipeline_type,
        "agent_id": call.agent_id,
    }
    unknown = {name: reason for name, reason in _IF_EMPTY.items() if values.get(name) in _NOTHING}
    unknown.update(_reasons(call, turns, heard.sides))
    if unmeasured:
        unknown["latency_assistant_turns"] = "; ".join(
            f"{_named(those)}: {why}" for why, those in unmeasured.items()
        )
    return MetricContext.model_construct(
        **values, turns_by="bot", unknown=dict(sorted(unknown.items()))
    )


def _reasons(call: CallFacts, turns: Turns, sides: HeardSides) -> Iterator[tuple[str, str]]:
    """Fields that are unknown in part, or for a reason that depends on the call."""
    yield "transcribed_assistant_turns", NO_LISTENER
    if call.supplied.pipeline_type is None and call.pipeline_type is PipelineType.CASCADE:
        yield "pipeline_type", NO_PIPELINE
    if not (sides.user and sides.assistant):
        yield "assistant_interrupted_turns", NO_OVERLAP
        # a hosted agent says itself that it was cut off
        if not any(turn.user.reports_s for turn in turns.values()):
            yield "user_interrupted_turns", NO_OVERLAP
    uses = [use for turn in turns.values() for use in turn.tools]
    if any(use.lacks_arguments for use in uses):
        yield "tool_params", NO_ARGUMENTS
    if any(use.is_withheld or use.outcome is None for use in uses):
        yield "tool_responses", NO_ANSWERS
    if cut := [n for n, turn in turns.items() if _lacks_what_was_not_heard(turn)]:
        yield "intended_assistant_turns", f"{_named(cut)}: {NOT_ALL_MEANT}"
    if lost := [n for n, turn in turns.items() if turn.user.has_gaps]:
        yield (
            "audio_timestamps_user_turns",
            f"a start or an end of a sound was lost in {_named(lost)}",
        )
    if lost := [n for n, turn in turns.items() if turn.assistant.has_gaps]:
        yield (
            "audio_timestamps_assistant_turns",
            f"a start or an end of a sound was lost in {_named(lost)}",
        )


def _named(turns: Sequence[int]) -> str:
    """
    Example:
        >>> _named([2]), _named([2, 3])
        ('turn 2', 'turns 2, 3')
    """
    return f"turn{'s' if len(turns) > 1 else ''} {', '.join(map(str, turns))}"


def _known(words: Mapping[int, str]) -> dict[int, str]:
    return {number: text for number, text in words.items() if text}


def _heard_part(turn: HeardTurn) -> str:
    """The part of the answer that was heard, where the producer tells that it was cut off there."""
    is_told = turn.words.is_corrected or turn.words.texts(WordSource.HEARD, is_user=False)
    return turn.assistant.said(Purpose.SPOKEN) if is_told else ""


def _lacks_what_was_not_heard(turn: HeardTurn) -> bool:
    source, _ = turn.assistant.timed(Purpose.TOLD)
    return source is WordSource.BOT and bool(turn.words.texts(WordSource.HEARD, is_user=False))


def _is_heard(side: HeardSide) -> bool:
    return bool(side.starts or side.said(Purpose.TOLD))


def _sounds(sides: Mapping[int, HeardSide], end_s: float) -> AudioSegments:
    """The sounds of one side by turn; as in EVA's context None for a turn with words alone, if any
    other has sound.
    """
    if not any(side.starts for side in sides.values()):
        return {}
    found: AudioSegments = {}
    for number, side in sides.items():
        if side.starts:
            found[number] = list(side.sounds(end_s))
        elif side.said(Purpose.TOLD):
            found[number] = None
    return found


def _waits(live: LiveCall, turns: Turns) -> tuple[dict[int, float], dict[str, list[int]]]:
    """The wait for the answer by turn, in seconds, as the scores have it; and the answered turns
    without one, by the reason.
    """
    waits_s: dict[int, float] = {}
    unmeasured: dict[str, list[int]] = {}
    for number, turn in turns.items():
        view = live.turns.view(number)
        wait = None if view is None or number < 1 else voice_to_voice_ms(view)
        if isinstance(wait, float):
            waits_s[number] = round(wait / MS_PER_SECOND, EVA_DIGITS)
        elif number > 0 and _is_heard(turn.assistant):
            reason = UnscoredReason.NO_SPEECH_EVENTS
            if wait is not None:
                reason = wait.reason
            elif view is not None:
                reason = unmeasured_reason(view, has_speech_events=live.has_speech_events)
            unmeasured.setdefault(reason.value, []).append(number)
    return waits_s, unmeasured


class _Step(NamedTuple):
    """A tool event or a text of an answer, with the time in ms by which they are ordered."""

    at_ms: float
    tool: ToolEntry | None
    text: str


def _trace(turns: Turns, tools: Sequence[ToolEntry]) -> Iterator[Entry]:
    """The entries of words and tools, turn by turn: first the user's words, then answers and tools
    in the order of time.

    Of an answer it has the part that was heard, as EVA's trace has. Texts between two tool events
    are one entry.
    """
    steps: dict[int, list[_Step]] = {number: _answers(turn) for number, turn in turns.items()}
    for entry in tools:
        steps.setdefault(entry.turn, []).append(_Step(entry.time_ms, entry, ""))
    for number in sorted(steps):
        if number in turns and (words := turns[number].user.said(Purpose.TOLD)):
            yield _entry("user", words, "transcribed", number, turns[number].user.begin_ms)
        in_order = sorted(steps[number], key=attrgetter("at_ms"))
        for is_text, group in groupby(in_order, key=lambda step: step.tool is None):
            several = list(group)
            if is_text:
                text = " ".join(step.text for step in several)
                yield _entry("assistant", text, "intended", number, several[0].at_ms)
            else:
                yield from (
                    _tool_entry(step.tool, number) for step in several if step.tool is not None
                )


def _answers(turn: HeardTurn) -> list[_Step]:
    """The texts of the answer. A text that comes with its sound, or after it, stands where the
    sound began.
    """
    side = turn.assistant
    source, texts = (None, []) if turn.is_cut or _heard_part(turn) else side.timed(Purpose.WRITTEN)
    if not texts:
        source, texts = side.timed(Purpose.JUDGED)
    steps: list[_Step] = []
    begins_ms = (
        [start_s * MS_PER_SECOND for start_s in side.starts] if source in _TOLD_AFTERWARDS else []
    )
    latest_ms = side.begin_ms or 0.0
    for place, (told_ms, text, is_begin) in enumerate(texts):
        latest_ms = latest_ms if told_ms is None else told_ms
        if begins_ms and not is_begin:
            latest_ms = (
                begins_ms[place]
                if len(texts) == len(begins_ms)
                else _began_ms(begins_ms, latest_ms)
            )
        steps.append(_Step(latest_ms, None, text.strip()))
    return steps


def _began_ms(begins_ms: Sequence[float], told_ms: float) -> float:
    """The start of the newest sound at that time. Words that come before every sound are those of
    the last one: they are the outcome.
    """
    return max((begin_ms for begin_ms in begins_ms if begin_ms <= told_ms), default=begins_ms[-1])


def _entry(role: str, content: str, kind: str, turn: int, at_ms: float | None) -> Entry:
    entry: Entry = {"role": role, "content": content, "type": kind, "turn_id": turn}
    return entry if at_ms is None else {**entry, "timestamp": int(at_ms)}


def _tool_entry(entry: ToolEntry, turn: int) -> Entry:
    kind, value = (
        ("tool_response", "tool_response") if entry.is_response else ("tool_call", "parameters")
    )
    return {
        "tool_name": entry.use.name,
        value: entry.use.value,
        "type": kind,
        "turn_id": turn,
        "timestamp": entry.time_ms,
    }


def _in_order(last: ToolEntry | None) -> list[ToolEntry]:
    """The tool events of the chain that ends with `last`, the first one first."""
    entries: list[ToolEntry] = []
    while last is not None:
        entries.append(last)
        last = last.previous
    return entries[::-1]
