"""Core and tail: EVA's `MetricContext` of a call, computed on copies on demand.

The core is the state of the turn machine (rules E2 to E6, E9). The tail is EVA's work when a call is over: fallback end
times (E1), counts and aligned keys (E7, E8), the greeting and the last turn reconciled (E10).
"""

from typing import Any

from consumers.engine.turns.eva.labels import ASSISTANT_INTERRUPTS, CUT_ITSELF_OFF, USER_INTERRUPTS
from consumers.engine.turns.eva.spoken_prefix import SpokenText
from consumers.engine.turns.eva.turn_machine import EvaTurnMachine
from consumers.engine.turns.eva.turn_state import Times, TraceEntry, in_order, joined
from consumers.engine.turns.timeline.elements import ToolUse
from schemas.events.call import PipelineType
from schemas.metric_context import AudioSegments, MetricContext

Entry = dict[str, Any]
LATENCY_DIGITS = 6
MAX_SEARCHED_CHARS = 100_000_000
"""Characters in which replies of the log are searched, some 0.1 s; beyond it the rest counts as spoken. Two hours have a
million: only a turn with thousands of replies and as many utterances has more.
"""


def metric_context(
    machine: EvaTurnMachine, pipeline_type: PipelineType, last_time_ms: int | None, ended_reason: str | None
) -> MetricContext:
    """EVA's result for the events that the machine has applied.

    Args:
        machine: State after the last element; it is read, never changed.
        pipeline_type: Chooses EVA's rules.
        last_time_ms: Time of the last event of any source that counts: the end of a session without a reported end.
        ended_reason: Why the call ended, as its producer reported.
    """
    return _ContextBuilder(machine, pipeline_type, last_time_ms).result(ended_reason)


def latency_s(user: list[tuple[float, float]] | None, assistant: list[tuple[float, float]] | None) -> float | None:
    """E9: first start of the assistant minus last end of the user, in seconds; None unless both have audio."""
    if not user or not assistant:
        return None
    return round(assistant[0][0] - user[-1][1], LATENCY_DIGITS)


def paired(starts: Times, ends: Times, fallback_end_s: float) -> list[tuple[float, float]]:
    """E2: starts and ends by index; a start without an end runs to the fallback, surplus ends are ignored."""
    return [(start, ends[i] if i < len(ends) else fallback_end_s) for i, start in enumerate(starts)]


class _ContextBuilder:
    def __init__(self, machine: EvaTurnMachine, pipeline_type: PipelineType, last_time_ms: int | None) -> None:
        self._machine = machine
        self._pipeline_type = pipeline_type
        self._is_s2s = pipeline_type is PipelineType.S2S
        self._session_end_s = (machine.session_ended_ms or last_time_ms or 0) / 1000  # E1
        turns = machine.turns
        self._heard_user: dict[int, str] = {}
        self._heard_assistant: dict[int, str | None] = {}
        self._meant_user: dict[int, str] = {}
        self._meant_assistant: dict[int, str] = {}
        self._user_audio: AudioSegments = {}
        self._assistant_audio: AudioSegments = {}
        for number in sorted(turns):
            state = turns[number]
            if state.transcribed_user is not None:
                self._heard_user[number] = joined(state.transcribed_user)
            if state.transcribed_assistant is not None:
                self._heard_assistant[number] = joined(state.transcribed_assistant)
            if state.intended_user is not None:
                self._meant_user[number] = joined(state.intended_user)
            if state.intended_assistant is not None:
                self._meant_assistant[number] = joined(state.intended_assistant)
            if state.user_starts:
                self._user_audio[number] = paired(state.user_starts, state.user_ends, self._session_end_s)
            if state.assistant_starts:
                self._assistant_audio[number] = paired(
                    state.assistant_starts, state.assistant_ends, self._session_end_s
                )

    def result(self, ended_reason: str | None) -> MetricContext:
        turns = self._machine.turns
        raw = in_order(self._machine.trace)
        interrupted_by_assistant = {n for n, state in turns.items() if state.assistant_interrupted}
        interrupted_by_user = {n for n, state in turns.items() if state.user_interrupted}
        trace = _grouped(raw if self._is_s2s else self._validated(raw))
        _label_interruptions(trace, interrupted_by_assistant, interrupted_by_user)
        calls = [
            {"tool_name": use.name, "tool_parameters": use.value}
            for use in _uses(raw, "tool_call")
            if use.name and use.value is not None
        ]
        responses = [
            {"tool_name": use.name, "tool_response": use.value}
            for use in _uses(raw, "tool_response")
            if use.value is not None
        ]
        num_assistant_turns = len(self._heard_assistant if self._is_s2s else self._meant_assistant)  # E7
        num_user_turns = len(self._heard_user)
        self._align()
        latencies = {}
        for number, audio in self._user_audio.items():
            latency = latency_s(audio, self._assistant_audio.get(number))
            if latency is not None:
                latencies[number] = latency
        trace = self._reconciled(trace)
        return MetricContext.model_construct(
            transcribed_assistant_turns=_by_turn(self._heard_assistant),
            transcribed_user_turns=_by_turn(self._heard_user),
            intended_assistant_turns=_by_turn(self._meant_assistant),
            intended_user_turns=_by_turn(self._meant_user),
            audio_timestamps_assistant_turns=_by_turn(self._assistant_audio),
            audio_timestamps_user_turns=_by_turn(self._user_audio),
            num_assistant_turns=num_assistant_turns,
            num_user_turns=num_user_turns,
            num_tool_calls=len(calls),
            tool_called=[str(use["tool_name"]).lower() for use in calls],
            tool_params=calls,
            tool_responses=responses,
            conversation_trace=trace,
            assistant_interrupted_turns=frozenset(interrupted_by_assistant),
            user_interrupted_turns=frozenset(interrupted_by_user),
            fallback_turn_ids=frozenset(n for n, state in turns.items() if state.is_fallback),
            conversation_ended_reason=ended_reason,
            pipeline_type=self._pipeline_type,
            latency_assistant_turns=_by_turn(latencies),
        )

    def _validated(self, raw: list[TraceEntry]) -> list[TraceEntry]:
        """E3: audit replies cut to the spoken part; a reply without one is dropped unless it is a nudge."""
        spoken: dict[int, SpokenText] = {}
        searched_chars = 0
        kept = []
        for entry in raw:
            if not entry.is_from_audit or isinstance(entry.content, ToolUse):
                kept.append(entry)
                continue
            if entry.turn not in spoken:
                spoken[entry.turn] = SpokenText(group.text for group in self._machine.turns[entry.turn].segments)
            content: str | None = joined(entry.content)
            if searched_chars <= MAX_SEARCHED_CHARS:
                searched_chars += spoken[entry.turn].chars
                content = spoken[entry.turn].prefix(joined(entry.content))
            if content is not None:
                kept.append(entry.after(None, content))
            elif entry.is_nudge:
                kept.append(entry)
        return kept

    def _align(self) -> None:
        """E8: every turn known to a role has both texts and an audio entry."""
        for number in {*self._heard_user, *self._meant_user, *self._user_audio}:
            self._heard_user.setdefault(number, "")
            self._meant_user.setdefault(number, "")
            self._user_audio.setdefault(number, None)
        for number in {*self._heard_assistant, *self._meant_assistant, *self._assistant_audio}:
            self._heard_assistant.setdefault(number, "")
            self._meant_assistant.setdefault(number, "")
            self._assistant_audio.setdefault(number, None)

    def _reconciled(self, trace: list[Entry]) -> list[Entry]:
        """E10: the greeting comes first, the last turn is complete."""
        greeting = self._meant_assistant.get(0)
        if not trace:
            return [_said("assistant", greeting, "intended", 0)] if greeting else []
        if trace[0].get("role") == "user" and trace[0]["turn_id"] > 0:
            self._put_greeting_first(trace, greeting)
        if not self._meant_user:
            return trace
        last_user_turn, last = max(self._meant_user), trace[-1]
        if last_user_turn > last["turn_id"]:
            trace.append(_said("user", self._meant_user[last_user_turn], "intended", last_user_turn))
        else:
            self._mark_tail(trace, last)
        if not self._heard_user.get(last_user_turn):
            self._heard_user[last_user_turn] = self._meant_user[last_user_turn]
        return trace

    def _put_greeting_first(self, trace: list[Entry], greeting: str | None) -> None:
        for place, entry in enumerate(trace):
            if entry.get("role") == "assistant" and entry["turn_id"] == 0:
                trace.insert(0, trace.pop(place))
                return
        if greeting:
            trace.insert(0, _said("assistant", greeting, "intended", 0))
        else:
            trace.insert(0, _said("assistant", self._heard_assistant.get(0), "transcribed", 0))

    def _mark_tail(self, trace: list[Entry], last: Entry) -> None:
        """Marks a call that ends with the assistant as cut off, even after a clean goodbye."""
        if last.get("role") == "assistant":
            last["content"] = f"{last['content']} {CUT_ITSELF_OFF}"
            self._label_tail_texts(last["turn_id"])
            return
        if not self._meant_assistant:
            return
        number = max(self._meant_assistant)
        is_in_trace = any(entry.get("role") == "assistant" and entry["turn_id"] == number for entry in trace)
        if number >= last["turn_id"] and not is_in_trace and self._meant_assistant[number]:
            content = f"{self._meant_assistant[number]} {CUT_ITSELF_OFF}"
            trace.append(_said("assistant", content, "intended", number))
            self._label_tail_texts(number)

    def _label_tail_texts(self, number: int) -> None:
        meant = self._meant_assistant.get(number)
        if meant and not self._is_s2s:
            meant = self._meant_assistant[number] = f"{meant} {CUT_ITSELF_OFF}"
        heard = self._heard_assistant.get(number)
        self._heard_assistant[number] = f"{heard} {CUT_ITSELF_OFF}" if heard else meant


def _uses(raw: list[TraceEntry], kind: str) -> list[ToolUse]:
    return [entry.content for entry in raw if entry.kind == kind and isinstance(entry.content, ToolUse)]


def _said(role: str, content: str | None, kind: str, turn: int) -> Entry:
    return {"role": role, "content": content, "type": kind, "turn_id": turn}


def _grouped(entries: list[TraceEntry]) -> list[Entry]:
    """E4: neighbours of one role and turn are one entry, their texts joined by one blank; tools stay single."""
    grouped: list[Entry] = []
    texts: list[list[str]] = []
    open_role: str | None = None
    open_turn: int | None = None
    for entry in entries:
        content = entry.content
        if isinstance(content, ToolUse):
            value_name = "parameters" if entry.kind == "tool_call" else "tool_response"
            grouped.append(
                {"tool_name": content.name, value_name: content.value, "type": entry.kind, "turn_id": entry.turn}
            )
            open_role = None
        elif entry.role == open_role and entry.turn == open_turn:
            texts[-1].append(joined(content))
            continue
        else:
            grouped.append({"role": entry.role, "content": "", "type": entry.kind, "turn_id": entry.turn})
            texts.append([joined(content)])
            open_role, open_turn = entry.role, entry.turn
        if entry.time_ms is not None:
            grouped[-1]["timestamp"] = entry.time_ms
    for group, said in zip((each for each in grouped if "role" in each), texts, strict=True):
        group["content"] = " ".join(filter(None, said))
    return grouped


def _label_interruptions(trace: list[Entry], by_assistant: set[int], by_user: set[int]) -> None:
    """E5: labels the first reply of a turn in which the assistant interrupted, and a user entry of one in which the user did."""
    said: dict[tuple[str, int], list[Entry]] = {}
    for entry in trace:
        if "role" in entry:
            said.setdefault((entry["role"], entry["turn_id"]), []).append(entry)
    for number in by_assistant:
        replies = said.get(("assistant", number))
        if replies and not replies[0]["content"].startswith(ASSISTANT_INTERRUPTS):
            replies[0]["content"] = f"{ASSISTANT_INTERRUPTS} {replies[0]['content']}"
    for number in by_user:
        entries = said.get(("user", number))
        if entries and not any(each["content"].startswith(USER_INTERRUPTS) for each in entries):
            entries[0]["content"] = f"{USER_INTERRUPTS} {entries[0]['content']}"


def _by_turn(values: dict[int, Any]) -> dict[int, Any]:
    return {number: values[number] for number in sorted(values)}
