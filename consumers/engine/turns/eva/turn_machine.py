"""EVA's single pass over the merged history as a machine: one element in, one transition.

The rules and their quirks are the reference's; rule numbers in comments are those of EVA's processor as specified for
this project (5.1 audit `user` to 5.11 `connection_state`). EVA's work after the pass is in `metric_context`.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from operator import attrgetter
from typing import Any

from consumers.engine.turns.eva.labels import (
    ASSISTANT_INTERRUPTS,
    CUT_ITSELF_OFF,
    CUT_OFF_BY_ASSISTANT,
    CUT_OFF_BY_USER,
    LIKELY_INTERRUPTION,
    PAUSE,
    USER_INTERRUPTS,
)
from consumers.engine.turns.eva.text_groups import TextGroup
from consumers.engine.turns.eva.turn_state import TraceEntry, TurnState, grown, is_there
from consumers.engine.turns.timeline.elements import ElementKind, ToolUse
from consumers.engine.turns.timeline.timeline import Replays
from consumers.engine.turns.timeline.tool_uses import ToolEntry
from schemas.events.call import PipelineType

_FIELDS = (
    "turn",
    "has_assistant_spoken",
    "has_user_audio_begun",
    "has_tool_run",
    "is_advance_held",
    "user_start_turn",
    "assistant_start_turn",
    "session_ended_ms",
    "is_user_audio_open",
    "is_assistant_audio_open",
    "is_user_interruption_pending",
    "assistant_audio_turn",
    "user_audio_turn",
    "is_responding",
    "has_user_speech",
    "waiting_speeches",
    "buffered_texts",
    "is_advance_owed",
    "was_owed_advance_used",
    "is_nudge_next",
    "trace",
    "last_tool",
)
_read_fields = attrgetter(*_FIELDS)


class EvaTurnMachine:
    """State of the pass. `turns` has the state of each turn id; `turn` is 0 for the greeting and can become -1.

    `touched` has, since it was last emptied, every turn whose times, interruptions or tools may differ; a change of words alone
    does not touch a turn. `user_start_turn` and `assistant_start_turn` are the turns of the role's latest audio start (None
    before the first); the ends belong there.
    """

    def __init__(self, pipeline_type: PipelineType, replays: Replays) -> None:
        self._replays = replays
        self._is_s2s = pipeline_type is PipelineType.S2S
        self._is_cascade = pipeline_type is PipelineType.CASCADE
        self._epoch = 0
        self.turns: dict[int, TurnState] = {}
        self.touched: set[int] = set()
        self.turn = 0
        self.has_assistant_spoken = False
        self.has_user_audio_begun = False
        self.has_tool_run = False
        self.is_advance_held = False
        self.user_start_turn: int | None = None
        self.assistant_start_turn: int | None = None
        self.session_ended_ms: int | None = None
        self.is_user_audio_open = False
        self.is_assistant_audio_open = False
        self.is_user_interruption_pending = False
        self.assistant_audio_turn = 0
        self.user_audio_turn = 0
        self.is_responding = False
        self.has_user_speech = False
        self.waiting_speeches: tuple[tuple[str, int], ...] = ()
        self.buffered_texts: frozenset[str] = frozenset()
        self.is_advance_owed = False
        self.was_owed_advance_used = False
        self.is_nudge_next = False
        self.trace: TraceEntry | None = None
        self.last_tool: ToolEntry | None = None

    def apply(self, kind: int, payload: Any, time_ms: int) -> None:
        """Applies one element of the history."""
        _RULES[kind](self, payload, time_ms)

    def touch(self, turns: Iterable[int]) -> None:
        """Marks turns as perhaps changed."""
        self.touched.update(turns)

    def drain_touched(self) -> set[int]:
        """Returns the touched turns, and begins to collect anew."""
        touched, self.touched = self.touched, set()
        return touched

    def freeze(self) -> object:
        """The state; turns are shared with it until they are next written."""
        self._epoch += 1
        return _read_fields(self), tuple(chain.from_iterable(self.turns.items()))  # a dict takes twice the bytes

    def thaw(self, frozen: Any) -> None:
        """Returns to a frozen state; every turn that differs is touched."""
        fields, flat = frozen
        turns = dict(zip(flat[::2], flat[1::2], strict=True))
        for name, value in zip(_FIELDS, fields, strict=True):
            setattr(self, name, value)
        now = self.turns
        self.touched.update(number for number, state in now.items() if turns.get(number) is not state)
        self.touched.update(turns.keys() - now.keys())
        self._epoch += 1
        self.turns = turns

    def _heard(self, number: int) -> TurnState:
        """The turn, touched and ready for a change that the live view shows."""
        self.touched.add(number)
        return self._writable(number)

    def _writable(self, number: int) -> TurnState:
        state = self.turns.get(number)
        if state is None:
            self.touched.add(number)
            state = self.turns[number] = TurnState(self._epoch)
        elif state.epoch != self._epoch:
            state = self.turns[number] = state.copied(self._epoch)
        return state

    def _advance(self, *, from_audio: bool, is_bypassed: bool = False) -> None:
        if self.is_advance_held and not is_bypassed:
            self.is_advance_held = False
            if not from_audio:
                self.has_assistant_spoken = False
                return
        if self.has_assistant_spoken:
            self.touched.add(self.turn)
            self.turn += 1
            self.touched.add(self.turn)
            self.has_assistant_spoken = self.has_user_audio_begun = self.has_tool_run = False

    def _annotate(self, turn: int, role: str, kind: str, label: str) -> None:
        """Appends `label` to the newest entry of that role and type, looking no further back than this turn's entries."""
        passed: list[TraceEntry] = []
        entry = self.trace
        while entry is not None and entry.turn == turn:
            if entry.role == role and entry.kind == kind and not isinstance(entry.content, ToolUse):
                entry = entry.after(entry.previous, grown(entry.content, label))
                for later in reversed(passed):
                    entry = later.after(entry)
                self.trace = entry
                break
            passed.append(entry)
            entry = entry.previous
        self._replays.elements += len(passed)

    def _audit_user(self, text: str, time_ms: int) -> None:  # 5.1
        if self.is_advance_owed:
            self.has_assistant_spoken, self.is_advance_owed, self.was_owed_advance_used = True, False, True
        if self.is_user_audio_open:
            self.has_assistant_spoken = False
        self._advance(from_audio=False, is_bypassed=self._is_s2s)
        state = self._writable(self.turn)
        old = state.transcribed_user
        if (is_there(old) and state.user_interrupted) or self.is_user_interruption_pending:
            text = f"{USER_INTERRUPTS} {text}"
            self.is_user_interruption_pending = False
        if self._is_cascade:
            self.trace = TraceEntry(self.trace, "user", "transcribed", self.turn, text, time_ms)
        if old is None or not is_there(old):
            state.transcribed_user = text
        elif state.assistant_interrupted:
            state.transcribed_user = grown(old, ASSISTANT_INTERRUPTS, text)
        else:
            state.transcribed_user = grown(old, text)

    def _audit_assistant(self, text: str, time_ms: int) -> None:  # 5.2
        if self._is_s2s:
            return
        state = self._writable(self.turn)
        if state.assistant_interrupted and not state.has_assistant_entry:
            text = f"{ASSISTANT_INTERRUPTS} {text}"
            self._annotate(self.turn, "user", "transcribed" if self._is_cascade else "intended", CUT_OFF_BY_ASSISTANT)
        state.has_assistant_entry = True
        self.trace = TraceEntry(
            self.trace,
            "assistant",
            "intended",
            self.turn,
            text,
            time_ms,
            is_from_audit=True,
            is_nudge=self.is_nudge_next,
        )
        self.is_nudge_next = False

    def _fallback(self, _payload: object, _time_ms: int) -> None:  # 5.3
        self._heard(self.turn).is_fallback = True
        self.is_nudge_next = True

    def _tool_call(self, use: ToolUse, time_ms: int) -> None:  # 5.4
        self._tool(use, time_ms, is_response=False)

    def _tool_response(self, use: ToolUse, time_ms: int) -> None:
        self._tool(use, time_ms, is_response=True)

    def _tool(self, use: ToolUse, time_ms: int, *, is_response: bool) -> None:
        self.has_tool_run = True
        self._heard(self.turn)
        self.last_tool = ToolEntry(self.last_tool, self.turn, use, time_ms, is_response=is_response)
        kind = "tool_response" if is_response else "tool_call"
        self.trace = TraceEntry(self.trace, None, kind, self.turn, use, time_ms)

    def _text_group(self, group: TextGroup, _time_ms: int) -> None:  # 5.5
        self.has_assistant_spoken = True
        turn = self.turn
        state = self._writable(turn)
        has_label = False
        meant = state.intended_assistant
        if meant is not None and is_there(meant):
            if state.user_interrupted:
                self._annotate(turn, "assistant", "intended", CUT_OFF_BY_USER)
                separator = CUT_OFF_BY_USER
            else:
                if state.assistant_interrupted:
                    self._annotate(turn, "assistant", "intended", CUT_ITSELF_OFF)
                separator = PAUSE if self.has_tool_run else CUT_ITSELF_OFF
            state.intended_assistant = grown(meant, separator, group)
        else:
            has_label = state.assistant_interrupted
            state.intended_assistant = grown(ASSISTANT_INTERRUPTS, group) if has_label else group
        state.segments = (*state.segments, group)
        if group.is_error_sentence and not has_label:
            state.has_assistant_entry = True
            self.trace = TraceEntry(self.trace, "assistant", "intended", turn, group.text, None)

    def _user_audio_start(self, time_s: float, _time_ms: int) -> None:  # 5.6
        if self.is_assistant_audio_open:
            state = self._writable(self.turn)
            if state.intended_assistant is not None:
                state.intended_assistant = grown(state.intended_assistant, CUT_OFF_BY_USER)
            if state.transcribed_assistant is not None:
                state.transcribed_assistant = grown(state.transcribed_assistant, CUT_OFF_BY_USER)
            self._annotate(self.turn, "assistant", "intended", CUT_OFF_BY_USER)
            self.is_user_interruption_pending = True
        self.has_user_speech = False
        if self.was_owed_advance_used and self.is_assistant_audio_open:
            self.has_assistant_spoken = False
        elif self.is_advance_owed:
            self.has_assistant_spoken, self.is_advance_owed = True, False
        self.was_owed_advance_used = False
        self._advance(from_audio=True)
        state = self._heard(self.turn)
        if self.is_user_interruption_pending:
            state.user_interrupted = True
        self.is_user_audio_open = self.has_user_audio_begun = True
        self.user_audio_turn = self.turn
        self.is_responding = False
        waiting, self.waiting_speeches = self.waiting_speeches, ()
        for text, speech_ms in waiting:
            self._file_user_speech(text, speech_ms)
        state = self._writable(self.turn)
        state.user_starts = (*state.user_starts, time_s)
        self.user_start_turn = self.turn

    def _assistant_audio_start(self, time_s: float, _time_ms: int) -> None:  # 5.7
        self.is_assistant_audio_open = True
        self.assistant_audio_turn = self.turn
        state = self._heard(self.turn)
        if not self.is_user_audio_open:
            self.is_responding = True
            if self._is_s2s:
                self.has_assistant_spoken = True
        elif self.has_user_audio_begun:
            state.assistant_interrupted = True
            if not self.has_tool_run:
                self.is_advance_held = True
        state.assistant_starts = (*state.assistant_starts, time_s)
        self.assistant_start_turn = self.turn

    def _user_audio_end(self, time_s: float, _time_ms: int) -> None:  # 5.8
        if self.user_start_turn is not None:
            state = self._heard(self.user_start_turn)
            state.user_ends = (*state.user_ends, time_s)
        self.is_user_audio_open = False
        if not self.has_user_speech and self.has_user_audio_begun:
            self.touched.add(self.turn)
            self.turn -= 1
            self.touched.add(self.turn)
            self.has_user_audio_begun, self.is_advance_owed = False, True

    def _assistant_audio_end(self, time_s: float, _time_ms: int) -> None:
        if self.assistant_start_turn is not None:
            state = self._heard(self.assistant_start_turn)
            state.assistant_ends = (*state.assistant_ends, time_s)
        self.is_assistant_audio_open = False

    def _user_speech(self, text: str, time_ms: int) -> None:  # 5.9 a
        if not self.is_user_audio_open and self.is_responding:
            self.waiting_speeches = (*self.waiting_speeches, (text, time_ms))
            self.buffered_texts = self.buffered_texts | {text}
            self.has_user_speech = True
        elif text in self.buffered_texts:
            self.buffered_texts = self.buffered_texts - {text}
        else:
            self._file_user_speech(text, time_ms)

    def _file_user_speech(self, text: str, time_ms: int) -> None:  # 5.9 b
        turn = self.user_audio_turn
        state = self._writable(turn)
        old = state.intended_user
        has_old = is_there(old)
        if not has_old and self.is_user_interruption_pending:
            text = f"{USER_INTERRUPTS} {text}"
        state.intended_user = text if old is None or not has_old else grown(old, CUT_ITSELF_OFF, text)
        self.has_user_speech = True
        if self._is_cascade:
            return
        content = text
        if has_old and state.user_interrupted:
            content = f"{USER_INTERRUPTS} {text}"
        elif self.is_user_interruption_pending:
            content = f"{USER_INTERRUPTS} {text}"
            self.is_user_interruption_pending = False
        self.trace = TraceEntry(self.trace, "user", "intended", turn, content, time_ms)

    def _assistant_speech(self, text: str, time_ms: int) -> None:  # 5.10
        turn = self.assistant_audio_turn
        if turn == self.turn:
            self.has_assistant_spoken = True
        state = self._writable(turn)
        old = state.transcribed_assistant
        if old is None or not is_there(old):
            if state.assistant_interrupted:
                text = f"{ASSISTANT_INTERRUPTS} {text}"
            state.transcribed_assistant = text
        elif state.user_interrupted:
            state.transcribed_assistant = grown(old, USER_INTERRUPTS, text)
        elif state.assistant_interrupted:
            state.transcribed_assistant = grown(old, CUT_ITSELF_OFF, text)
        else:
            state.transcribed_assistant = grown(old, LIKELY_INTERRUPTION, text)
        if self._is_s2s:
            state.has_assistant_entry = True
            self.trace = TraceEntry(self.trace, "assistant", "transcribed", turn, text, time_ms)

    def _session_ended(self, _payload: object, time_ms: int) -> None:  # 5.11
        self.session_ended_ms = time_ms


_RULE_BY_KIND: dict[ElementKind, Callable[[EvaTurnMachine, Any, int], None]] = {
    ElementKind.AUDIT_USER: EvaTurnMachine._audit_user,
    ElementKind.AUDIT_ASSISTANT: EvaTurnMachine._audit_assistant,
    ElementKind.FALLBACK: EvaTurnMachine._fallback,
    ElementKind.TOOL_CALL: EvaTurnMachine._tool_call,
    ElementKind.TOOL_RESPONSE: EvaTurnMachine._tool_response,
    ElementKind.TEXT_GROUP: EvaTurnMachine._text_group,
    ElementKind.USER_AUDIO_START: EvaTurnMachine._user_audio_start,
    ElementKind.USER_AUDIO_END: EvaTurnMachine._user_audio_end,
    ElementKind.ASSISTANT_AUDIO_START: EvaTurnMachine._assistant_audio_start,
    ElementKind.ASSISTANT_AUDIO_END: EvaTurnMachine._assistant_audio_end,
    ElementKind.USER_SPEECH: EvaTurnMachine._user_speech,
    ElementKind.ASSISTANT_SPEECH: EvaTurnMachine._assistant_speech,
    ElementKind.SESSION_ENDED: EvaTurnMachine._session_ended,
}
_RULES = tuple(_RULE_BY_KIND[kind] for kind in ElementKind)
