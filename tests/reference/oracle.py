"""The reference result: one call's three streams in, the batch context out, everything computed
anew.

Written only from the numbered rules of the processor specification (P, M, 5.x and E numbers in the
comments). It is literal rather than fast and shares no code with the engine. The engine's
properties compare against it.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Json = dict[str, Any]

ASSISTANT_INTERRUPTS = "[assistant interrupts]"
USER_INTERRUPTS = "[user interrupts]"
CUT_BY_USER = "[likely cut off by user]"
CUT_BY_ASSISTANT = "[likely cut off by assistant]"
CUT_ITSELF = "[speaker likely cut itself off]"
LIKELY_INTERRUPTION = "[likely interruption]"
PAUSE = "[pause]"
LABELS = (
    ASSISTANT_INTERRUPTS,
    USER_INTERRUPTS,
    CUT_BY_USER,
    CUT_BY_ASSISTANT,
    CUT_ITSELF,
    LIKELY_INTERRUPTION,
    PAUSE,
)
GENERIC_ERROR = "I'm sorry, I encountered an error processing your request."
ROLES = {
    "simulated_user": "user",
    "elevenlabs_user": "user",
    "assistant": "assistant",
    "framework_agent": "assistant",
    "pipecat_agent": "assistant",
}
NO_SPEECH = {"", "...", "......", ".", ",", "?", "!"}
MINIMUM_KEPT_CHARACTERS = 20  # a shorter spoken prefix counts as a chance match


class Event(NamedTuple):
    """One entry of the merged history; `data` is the audit value, the group's text or the
    simulator's other keys.
    """

    time_ms: int
    source: str
    type: str
    data: Any


def batch_context(call: Json) -> Json:
    """Recompute the context of a wire-level call, or of any prefix of its streams, in the
    conformance encoding.
    """
    pipeline_type, reason, history = given(call)
    machine = Machine(pipeline_type)
    for event in history:
        machine.step(event)
    return finish(machine, history, reason)


def turns_spoken_over(call: Json) -> set[int]:
    """The turns in which the user began to speak while the assistant was heard, whatever EVA's flag
    says of them.
    """
    pipeline_type, _, history = given(call)
    machine, is_heard, turns = Machine(pipeline_type), False, set[int]()
    for event in history:
        machine.step(event)
        if event.source != "simulator" or event.type not in {"audio_start", "audio_end"}:
            continue
        if event.data["user"] != "user":
            is_heard = event.type == "audio_start"
        elif event.type == "audio_start" and is_heard:
            turns.add(machine.turn)
    return turns


def given(call: Json) -> tuple[str, str | None, list[Event]]:
    """The kind of agent, why the call ended, and its history, of a wire-level call or of any prefix
    of its streams.
    """
    pipeline_type = call.get("pipeline_type") or "cascade"
    reason = call.get("conversation_ended_reason")
    audit = list(call.get("audit") or [])
    for control in call.get("control") or []:
        if control["type"] == "call_started":
            pipeline_type = control.get("pipeline_type") or pipeline_type
        elif control["type"] == "call_ended":
            reason = control.get("reason") or reason
        elif control["type"] == "user_text_updated":
            replace_user_text(audit, control)
    pipecat = [] if pipeline_type == "s2s" else call.get("pipecat") or []  # F2
    return pipeline_type, reason, merged_history(audit, pipecat, call.get("user_sim") or [])


def merged_history(
    audit: Iterable[Json], pipecat: Iterable[Json], simulator: Iterable[Json]
) -> list[Event]:
    history = [
        *audit_events(audit),
        *text_groups(spoken_lines(pipecat)),
        *simulator_events(simulator),
    ]
    # M1: stable, so a tie keeps source order, then file order
    return sorted(history, key=lambda event: event.time_ms)


def replace_user_text(audit: list[Json], control: Json) -> None:
    """A2: an update names its entry by place or by `turn_id`, or means the last `user` entry; no
    entry, no change.

    A `replaces_index` of null says that no `user` entry had arrived when the update did.
    """
    users = [index for index, entry in enumerate(audit) if entry.get("message_type") == "user"]
    if "replaces_index" in control:
        users = [index for index in users if index == control["replaces_index"]]
    elif control.get("turn_id") is not None:
        users = [index for index in users if audit[index].get("turn_id") == control["turn_id"]]
    for index in users[-1:]:
        audit[index] = {**audit[index], "value": control["text"]}


def audit_events(entries: Iterable[Json]) -> list[Event]:
    # A1
    return [
        Event(int(e["timestamp"]), "audit", e.get("message_type", "unknown"), e["value"])
        for e in entries
    ]


def simulator_events(lines: Iterable[Json]) -> list[Event]:
    events = []
    for line in lines:
        if line.get("type") == "user_speech" and line["data"]["text"].strip() in NO_SPEECH:  # S2
            continue
        if line.get("timestamp") is None:  # S3
            continue
        kind = line.get("type") or line.get("event_type") or "unknown"
        data = {
            key: value
            for key, value in line.items()
            if key not in ("timestamp", "type", "event_type")
        }
        if "user" in data:
            data["user"] = ROLES.get(data["user"], data["user"])  # S1
        events.append(Event(int(line["timestamp"]), "simulator", kind, data))
    return events


def spoken_lines(lines: Iterable[Json]) -> list[Json]:
    # P1
    kept = [
        line
        for line in lines
        if line.get("type") in ("turn_start", "turn_end", "tts_text", "llm_response")
    ]
    if any(line["type"] == "tts_text" for line in kept):
        kept = [line for line in kept if line["type"] != "llm_response"]  # P2
        stamps = Counter(line["timestamp"] for line in kept if line["type"] == "tts_text")
        # P3
        kept = [line for line in kept if not (is_phrase(line) and stamps[line["timestamp"]] > 1)]
        kept = [line for index, line in enumerate(kept) if not is_preview(kept, index)]  # P4
    return kept


def text_groups(lines: Iterable[Json]) -> list[Event]:
    events = []
    for kind, run in itertools.groupby(lines, key=lambda line: str(line["type"])):  # P5
        group = list(run)
        first = group[0]
        if first.get("timestamp", 0) is None:
            continue
        key = next(iter(first["data"]), "frame")
        frames = [str(line["data"].get(key, "")) for line in group]
        text = (" " if kind == "tts_text" else "").join(frames)
        events.append(Event(int(first.get("timestamp", 0)), "pipecat", kind, text))
    return events


def is_phrase(line: Json) -> bool:
    return line["type"] == "tts_text" and " " in line["data"]["frame"]


def is_preview(kept: Sequence[Json], index: int) -> bool:
    """P4: whether the line is a phrase that the next tokens, one for each word, spell
    out exactly.
    """
    if not is_phrase(kept[index]):
        return False
    frame = kept[index]["data"]["frame"]
    count = len(frame.split())
    following = kept[index + 1 : index + 1 + count]
    if len(following) < count or any(
        line["type"] != "tts_text" or is_phrase(line) for line in following
    ):
        return False
    return bool(frame == " ".join(line["data"]["frame"] for line in following))


def joined(*parts: str) -> str:
    return " ".join(parts)


@dataclass
class Machine:
    """Section 4: the state of the single pass, and section 5: one method per event rule."""

    pipeline_type: str
    turn: int = 0
    spoke: bool = False
    ustart: bool = False
    proc: bool = False
    hold: bool = False
    starts: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    ends: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    lastkey: dict[str, tuple[str, int]] = field(default_factory=dict)
    session_end: float | None = None
    uopen: bool = False
    aopen: bool = False
    a_int: set[int] = field(default_factory=set)
    u_int: set[int] = field(default_factory=set)
    pend_u: bool = False
    a_turn: int = 0
    u_turn: int = 0
    resp: bool = False
    uspeech: bool = False
    buf: list[Event] = field(default_factory=list)
    bufset: set[str] = field(default_factory=set)
    padv: bool = False
    padv_used: bool = False
    nudge: bool = False
    transcribed_user: dict[int, str] = field(default_factory=dict)
    transcribed_assistant: dict[int, str] = field(default_factory=dict)
    intended_assistant: dict[int, str] = field(default_factory=dict)
    intended_user: dict[int, str] = field(default_factory=dict)
    segments: dict[int, list[str]] = field(default_factory=dict)
    trace: list[Json] = field(default_factory=list)
    fallback_turns: set[int] = field(default_factory=set)

    def step(self, event: Event) -> None:
        rules: dict[tuple[str, str], Callable[[Event], None]] = {
            ("audit", "user"): self.audit_user,
            ("audit", "assistant"): self.audit_assistant,
            ("audit", "turn_fallback"): self.turn_fallback,
            ("audit", "tool_call"): self.tool_call,
            ("audit", "tool_response"): self.tool_response,
            ("pipecat", "tts_text"): self.text_group,
            ("pipecat", "llm_response"): self.text_group,
            ("simulator", "audio_start"): self.audio_start,
            ("simulator", "audio_end"): self.audio_end,
            ("simulator", "user_speech"): self.user_speech,
            ("simulator", "assistant_speech"): self.assistant_speech,
            ("simulator", "connection_state"): self.connection_state,
        }
        rule = rules.get((event.source, event.type))
        if rule is not None:
            rule(event)

    @property
    def is_s2s(self) -> bool:
        return self.pipeline_type == "s2s"

    def advance(self, *, from_audio: bool, bypass: bool = False) -> None:
        if self.hold and not bypass:
            self.hold = False
            if not from_audio:
                self.spoke = False
                return
        if self.spoke:
            self.turn += 1
            self.spoke = self.ustart = self.proc = False

    def annotate(self, turn: int, role: str, kind: str, label: str) -> None:
        for entry in reversed(self.trace):
            if entry["turn_id"] != turn:
                return
            if entry.get("role") == role and entry["type"] == kind:
                entry["content"] = joined(entry["content"], label)
                return

    def say(self, role: str, kind: str, turn: int, content: str, time_ms: int | None) -> Json:
        entry: Json = {"role": role, "content": content, "type": kind, "turn_id": turn}
        if time_ms is not None:
            entry["timestamp"] = time_ms
        self.trace.append(entry)
        return entry

    def audit_user(self, event: Event) -> None:  # 5.1
        if self.padv:
            self.spoke, self.padv, self.padv_used = True, False, True
        if self.uopen:
            self.spoke = False
        self.advance(from_audio=False, bypass=self.is_s2s)
        turn, content = self.turn, event.data
        old = self.transcribed_user.get(turn, "")
        if (old and turn in self.u_int) or self.pend_u:
            content = joined(USER_INTERRUPTS, content)
            self.pend_u = False
        if self.pipeline_type == "cascade":
            self.say("user", "transcribed", turn, content, event.time_ms)
        if not old:
            self.transcribed_user[turn] = content
        elif turn in self.a_int:
            self.transcribed_user[turn] = joined(old, ASSISTANT_INTERRUPTS, content)
        else:
            self.transcribed_user[turn] = joined(old, content)

    def audit_assistant(self, event: Event) -> None:  # 5.2
        if self.is_s2s:
            return
        turn, content = self.turn, event.data
        spoken_of = any(
            entry.get("role") == "assistant" and entry["turn_id"] == turn for entry in self.trace
        )
        if turn in self.a_int and not spoken_of:
            content = joined(ASSISTANT_INTERRUPTS, content)
            kind = "transcribed" if self.pipeline_type == "cascade" else "intended"
            self.annotate(turn, "user", kind, CUT_BY_ASSISTANT)
        entry = self.say("assistant", "intended", turn, content, event.time_ms)
        entry["audit_source"] = True
        entry["nudge"] = self.nudge
        self.nudge = False

    def turn_fallback(self, event: Event) -> None:  # 5.3
        self.fallback_turns.add(self.turn)
        self.nudge = True

    def tool_call(self, event: Event) -> None:  # 5.4
        self.tool(event, "parameters")

    def tool_response(self, event: Event) -> None:
        self.tool(event, "response", "tool_response")

    def tool(self, event: Event, wire_key: str, trace_key: str = "parameters") -> None:
        self.proc = True
        self.trace.append(
            {
                "tool_name": event.data.get("tool"),
                trace_key: event.data.get(wire_key),
                "type": event.type,
                "turn_id": self.turn,
                "timestamp": event.time_ms,
            }
        )

    def text_group(self, event: Event) -> None:  # 5.5
        self.spoke = True
        turn, text = self.turn, event.data
        old = self.intended_assistant.get(turn, "")
        if old:
            if turn in self.u_int:
                self.annotate(turn, "assistant", "intended", CUT_BY_USER)
            elif turn in self.a_int:
                self.annotate(turn, "assistant", "intended", CUT_ITSELF)
            separator = CUT_BY_USER if turn in self.u_int else PAUSE if self.proc else CUT_ITSELF
            self.intended_assistant[turn] = joined(old, separator, text)
        else:
            if turn in self.a_int:
                text = joined(ASSISTANT_INTERRUPTS, text)
            self.intended_assistant[turn] = text
        self.segments.setdefault(turn, []).append(text)
        if text == GENERIC_ERROR:
            self.say("assistant", "intended", turn, text, None)

    def audio_start(self, event: Event) -> None:
        role = event.data["user"]
        if role == "user":
            self.user_audio_start()
        else:
            self.assistant_audio_start()
        key = (role, self.turn)
        self.starts.setdefault(key, []).append(event.data["audio_timestamp"])
        self.lastkey[role] = key

    def user_audio_start(self) -> None:  # 5.6
        if self.aopen:
            for texts in (self.intended_assistant, self.transcribed_assistant):
                if self.turn in texts:
                    texts[self.turn] = joined(texts[self.turn], CUT_BY_USER)
            self.annotate(self.turn, "assistant", "intended", CUT_BY_USER)
            self.pend_u = True
        self.uspeech = False
        if self.padv_used and self.aopen:
            self.padv_used = self.spoke = False
        elif self.padv:
            self.spoke, self.padv = True, False
        self.padv_used = False
        self.advance(from_audio=True)
        if self.pend_u:
            self.u_int.add(self.turn)
        self.uopen = self.ustart = True
        self.u_turn = self.turn
        self.resp = False
        waiting, self.buf = self.buf, []
        for speech in waiting:
            self.record_user_speech(speech)

    def assistant_audio_start(self) -> None:  # 5.7
        self.aopen = True
        self.a_turn = self.turn
        if not self.uopen:
            self.resp = True
            if self.is_s2s:
                self.spoke = True
        elif self.ustart:
            self.a_int.add(self.turn)
            if not self.proc:
                self.hold = True

    def audio_end(self, event: Event) -> None:  # 5.8
        role = event.data["user"]
        if role in self.lastkey:
            self.ends.setdefault(self.lastkey[role], []).append(event.data["audio_timestamp"])
        if role == "assistant":
            self.aopen = False
            return
        self.uopen = False
        if not self.uspeech and self.ustart:
            self.turn -= 1
            self.ustart, self.padv = False, True

    def user_speech(self, event: Event) -> None:  # 5.9 a
        text = event.data["data"]["text"]
        if not self.uopen and self.resp:
            self.buf.append(event)
            self.bufset.add(text)
            self.uspeech = True
        elif text in self.bufset:
            self.bufset.remove(text)
        else:
            self.record_user_speech(event)

    def record_user_speech(self, event: Event) -> None:  # 5.9 b
        turn, text = self.u_turn, event.data["data"]["text"]
        old = self.intended_user.get(turn, "")
        if not old and self.pend_u:
            text = joined(USER_INTERRUPTS, text)
        self.intended_user[turn] = joined(old, CUT_ITSELF, text) if old else text
        self.uspeech = True
        if self.pipeline_type == "cascade":
            return
        content = text
        if old and turn in self.u_int:
            content = joined(USER_INTERRUPTS, text)
        elif self.pend_u:
            content = joined(USER_INTERRUPTS, text)
            self.pend_u = False
        self.say("user", "intended", turn, content, event.time_ms)

    def assistant_speech(self, event: Event) -> None:  # 5.10
        turn, text = self.a_turn, event.data["data"]["text"]
        if turn == self.turn:
            self.spoke = True
        old = self.transcribed_assistant.get(turn)
        if not old:
            if turn in self.a_int:
                text = joined(ASSISTANT_INTERRUPTS, text)
            self.transcribed_assistant[turn] = text
        else:
            separator = LIKELY_INTERRUPTION
            if turn in self.u_int:
                separator = USER_INTERRUPTS
            elif turn in self.a_int:
                separator = CUT_ITSELF
            self.transcribed_assistant[turn] = joined(old, separator, text)
        if self.is_s2s:
            self.say("assistant", "transcribed", turn, text, event.time_ms)

    def connection_state(self, event: Event) -> None:  # 5.11
        if event.data["data"]["state"] == "session_ended":
            self.session_end = event.time_ms / 1000


def finish(machine: Machine, history: Sequence[Event], reason: str | None) -> Json:
    """Section 6, in its order E1 to E10, and the conformance encoding."""
    session_end = machine.session_end or (history[-1].time_ms / 1000 if history else 0.0)  # E1
    audio: dict[str, dict[int, list[list[float]] | None]] = {"user": {}, "assistant": {}}
    for (role, turn), starts in machine.starts.items():  # E2
        ends = machine.ends.get((role, turn), [])
        audio[role][turn] = [
            [start, ends[i] if i < len(ends) else session_end] for i, start in enumerate(starts)
        ]
    raw = machine.trace
    trace = group_trace(raw if machine.is_s2s else validated(raw, machine.segments))  # E3, E4
    label_interruptions(trace, machine)  # E5
    tool_params = [  # E6
        {"tool_name": entry["tool_name"], "tool_parameters": entry["parameters"]}
        for entry in raw
        if entry.get("tool_name") and entry.get("parameters") is not None
    ]
    tool_responses = [
        {"tool_name": entry["tool_name"], "tool_response": entry["tool_response"]}
        for entry in raw
        if entry.get("tool_name") is not None and entry.get("tool_response") is not None
    ]
    spoken = machine.transcribed_assistant if machine.is_s2s else machine.intended_assistant
    num_assistant_turns, num_user_turns = len(spoken), len(machine.transcribed_user)  # E7
    align(machine.transcribed_user, machine.intended_user, audio["user"])  # E8
    align(machine.transcribed_assistant, machine.intended_assistant, audio["assistant"])
    latency = {}
    for turn, heard in audio["user"].items():  # E9
        answered = audio["assistant"].get(turn)
        if heard and answered:
            latency[turn] = round(answered[0][0] - heard[-1][1], 6)
    trace = reconcile(trace, machine)  # E10
    return {
        "transcribed_assistant_turns": encoded(machine.transcribed_assistant),
        "transcribed_user_turns": encoded(machine.transcribed_user),
        "intended_assistant_turns": encoded(machine.intended_assistant),
        "intended_user_turns": encoded(machine.intended_user),
        "audio_timestamps_assistant_turns": encoded(audio["assistant"]),
        "audio_timestamps_user_turns": encoded(audio["user"]),
        "num_assistant_turns": num_assistant_turns,
        "num_user_turns": num_user_turns,
        "num_tool_calls": len(tool_params),
        "tool_called": [call["tool_name"].lower() for call in tool_params],
        "tool_params": tool_params,
        "tool_responses": tool_responses,
        "conversation_trace": trace,
        "assistant_interrupted_turns": sorted(machine.a_int),
        "user_interrupted_turns": sorted(machine.u_int),
        "fallback_turn_ids": sorted(machine.fallback_turns),
        "conversation_ended_reason": reason,
        "pipeline_type": machine.pipeline_type,
        "is_audio_native": machine.pipeline_type != "cascade",
        "latency_assistant_turns": encoded(latency),
    }


def encoded(turns: dict[int, Any]) -> Json:
    return {str(turn): turns[turn] for turn in sorted(turns)}


def without_labels(text: str) -> str:
    text = joined(*text.split())
    for label in LABELS:
        text = text.replace(label, "")
    return joined(*text.split())


def normalised(text: str) -> str:
    return letters(without_labels(text))


def letters(text: str) -> str:
    return "".join(character.lower() for character in text if character.isalnum())


def truncated(text: str, segments: Sequence[str]) -> str | None:
    """E3: `text` as far as `segments` spoke it; None if they did not."""
    wanted = normalised(text)
    spoken = [segment for segment in map(normalised, segments) if segment]
    if not wanted or not spoken:
        return None
    if any(wanted in segment for segment in [*spoken, "".join(spoken)]):
        return text
    words = without_labels(text).split()
    for count in range(len(words), 0, -1):
        prefix = letters(joined(*words[:count]))
        if any(segment.startswith(prefix) for segment in spoken):
            return joined(*text.split()[:count]) if len(prefix) >= MINIMUM_KEPT_CHARACTERS else None
    return None


def validated(raw: Iterable[Json], segments: dict[int, list[str]]) -> list[Json]:
    kept = []
    for entry in raw:
        if entry.get("audit_source"):
            content = truncated(entry["content"], segments.get(entry["turn_id"], []))
            if content is not None:
                entry = {**entry, "content": content}
            elif not entry["nudge"]:
                continue
        kept.append(entry)
    return kept


def group_trace(entries: Iterable[Json]) -> list[Json]:
    trace = []
    # E4
    for (role, _turn), run in itertools.groupby(
        entries, key=lambda entry: (entry.get("role"), entry["turn_id"])
    ):
        group = [
            {key: value for key, value in e.items() if key not in ("audit_source", "nudge")}
            for e in run
        ]
        if role is None:
            trace += group
        else:
            trace.append(
                {**group[0], "content": joined(*(e["content"] for e in group if e["content"]))}
            )
    return trace


def label_interruptions(trace: Iterable[Json], machine: Machine) -> None:
    for role, turns, label in (
        ("assistant", machine.a_int, ASSISTANT_INTERRUPTS),
        ("user", machine.u_int, USER_INTERRUPTS),
    ):
        for turn in turns:
            entries = [
                entry for entry in trace if entry.get("role") == role and entry["turn_id"] == turn
            ]
            looked_at = entries[:1] if role == "assistant" else entries
            if entries and not any(entry["content"].startswith(label) for entry in looked_at):
                entries[0]["content"] = joined(label, entries[0]["content"])


def align(transcribed: dict[int, str], intended: dict[int, str], audio: dict[int, Any]) -> None:
    for turn in {*transcribed, *intended, *audio}:
        transcribed.setdefault(turn, "")
        intended.setdefault(turn, "")
        audio.setdefault(turn, None)


def reconcile(trace: list[Json], machine: Machine) -> list[Json]:
    intended, transcribed = machine.intended_assistant, machine.transcribed_assistant
    if not trace:  # a
        greeting = intended.get(0)
        return (
            [{"role": "assistant", "content": greeting, "type": "intended", "turn_id": 0}]
            if greeting
            else []
        )
    if trace[0].get("role") == "user" and trace[0]["turn_id"] > 0:  # b
        moved = next((e for e in trace if e.get("role") == "assistant" and e["turn_id"] == 0), None)
        if moved is not None:
            trace = [moved, *(entry for entry in trace if entry is not moved)]
        elif intended.get(0):
            trace.insert(
                0, {"role": "assistant", "content": intended[0], "type": "intended", "turn_id": 0}
            )
        else:
            content = transcribed.get(0)
            trace.insert(
                0, {"role": "assistant", "content": content, "type": "transcribed", "turn_id": 0}
            )
    if not machine.intended_user:  # c
        return trace
    latest, last = max(machine.intended_user), trace[-1]
    said, heard = machine.intended_user[latest], machine.transcribed_user
    if latest > last["turn_id"]:  # d
        trace.append({"role": "user", "content": said, "type": "intended", "turn_id": latest})
    elif last.get("role") == "assistant":  # e
        last["content"] = joined(last["content"], CUT_ITSELF)
        label_tail(machine, last["turn_id"])
    elif intended:
        turn = max(intended)
        present = any(
            entry.get("role") == "assistant" and entry["turn_id"] == turn for entry in trace
        )
        if turn >= last["turn_id"] and not present and intended[turn]:
            content = joined(intended[turn], CUT_ITSELF)
            trace.append(
                {"role": "assistant", "content": content, "type": "intended", "turn_id": turn}
            )
            label_tail(machine, turn)
    if not heard.get(latest):  # d, f
        heard[latest] = said
    return trace


def label_tail(machine: Machine, turn: int) -> None:
    intended = machine.intended_assistant
    transcribed: dict[int, Any] = machine.transcribed_assistant
    if intended.get(turn) and not machine.is_s2s:
        intended[turn] = joined(intended[turn], CUT_ITSELF)
    if transcribed.get(turn):
        transcribed[turn] = joined(transcribed[turn], CUT_ITSELF)
    else:
        # None for a nudge in a turn without any assistant text
        transcribed[turn] = intended.get(turn)
