"""Turns by EVA's rules: the state of its processor, one transition for each element, and the
context at the end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from hashlib import blake2b
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from consumers.engine.turns.eva_text import (
    ASSISTANT_INTERRUPTS,
    CUT_ITSELF_OFF,
    CUT_OFF_BY_ASSISTANT,
    CUT_OFF_BY_USER,
    EMPTY_UTTERANCES,
    LIKELY_INTERRUPTION,
    PAUSE,
    USER_INTERRUPTS,
    SpokenText,
    TextGroup,
    TextStream,
)
from consumers.engine.turns.timeline import (
    AUDIT_RANK,
    SIMULATOR_RANK,
    TIME_SHIFT,
    ElementKind,
    Replays,
    Sounds,
    Timeline,
    Times,
    ToolEntry,
    ToolPayload,
    TurnSounds,
    order_key,
)
from schemas.closed_sets import PipelineType
from schemas.metric_context import AudioSegments, MetricContext

# The state of one turn, and one entry of the conversation trace: values that checkpoints can share.
#
# Texts grow by appending and are read on demand, so they are kept as pieces: joining them at every
# growth would make the cost of a turn quadratic in its words.


Piece = str | TextGroup
Pieces = Piece | tuple["Pieces", tuple[Piece, ...]]
"""A text: one piece, or a text and the pieces behind it, all joined by one blank. A text slot may
still grow.
"""


def grown(text: Pieces, *more: Piece) -> Pieces:
    """`text` with more pieces behind it, at a cost that does not grow with it.

    Example:
        >>> grown(grown("so", "I"), "say")
        (('so', ('I',)), ('say',))
    """
    return text, more


def joined(text: Pieces) -> str:
    """The pieces as one text.

    Example:
        >>> joined(grown(grown("so", "I"), "say"))
        'so I say'
    """
    pieces: list[Piece] = []
    while isinstance(text, tuple):
        text, more = text
        pieces += reversed(more)
    pieces.append(text)
    return " ".join(piece if isinstance(piece, str) else piece.text for piece in reversed(pieces))


def text_mark(text: str) -> int:
    """A number that differs for different texts and is the same in every process."""
    return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest())


def chars_of(text: Pieces) -> int:
    """Characters of the pieces, without the blanks between them.

    Example:
        >>> chars_of(grown(grown("so", "I"), "say"))
        6
    """
    chars = 0
    while isinstance(text, tuple):
        text, more = text
        chars += sum(len(piece) if isinstance(piece, str) else piece.length for piece in more)
    return chars + (len(text) if isinstance(text, str) else text.length)


def is_there(text: Pieces | None) -> bool:
    """Whether a text exists and is not empty, without joining it; two pieces have a blank between
    them.

    Example:
        >>> is_there(None), is_there(""), is_there("so"), is_there(grown("", ""))
        (False, False, True, True)
    """
    if isinstance(text, TextGroup):
        return text.length > 0
    return bool(text)


@dataclass(slots=True, eq=False)
class TurnState:
    """One turn. Every field is an immutable value, so a copy is shallow; `epoch` names the
    checkpoint that still shares it.

    Texts are None where the turn has none, which is not the same as empty. `user_interrupted` is
    EVA's flag: in a call without audit entries of the user, one interruption leaves it set in later
    turns, too. `spoke_over` says whether the user began to speak in this turn while the assistant
    was heard.
    """

    epoch: int
    transcribed_user: Pieces | None = None
    transcribed_assistant: Pieces | None = None
    intended_user: Pieces | None = None
    intended_assistant: Pieces | None = None
    segments: tuple[TextGroup, ...] = ()
    user_starts: Times = ()
    user_ends: Times = ()
    assistant_starts: Times = ()
    assistant_ends: Times = ()
    assistant_interrupted: bool = False
    user_interrupted: bool = False
    spoke_over: bool = False
    is_fallback: bool = False
    has_assistant_entry: bool = False

    @property
    def sounds(self) -> TurnSounds:
        """As the simulated caller reports them."""
        agent = Sounds(self.assistant_starts, self.assistant_ends)
        return TurnSounds(agent, Sounds(self.user_starts, self.user_ends))

    def has_user_end(self, end_ms: int) -> bool:
        """Whether the caller's sound ended in this turn at that millisecond."""
        return any(end_ms == int(end_s * 1000) for end_s in self.user_ends)

    def copied(self, epoch: int) -> "TurnState":
        """A copy that belongs to `epoch`."""
        copy = TurnState(epoch)
        for name in _KEPT_BY_A_COPY:
            setattr(copy, name, getattr(self, name))
        return copy


_KEPT_BY_A_COPY = tuple(field.name for field in fields(TurnState) if field.name != "epoch")


class TraceEntry(NamedTuple):
    """One entry of the trace and, through `previous`, all before it.

    `role` is None for tools. `time_ms` is None for entries that EVA writes without a time.
    """

    previous: "TraceEntry | None"
    role: str | None
    kind: str
    turn: int
    content: Pieces | ToolPayload
    time_ms: int | None
    is_from_audit: bool = False
    is_nudge: bool = False


def in_order(last: TraceEntry | None) -> list[TraceEntry]:
    """The trace that ends with `last`, first entry first."""
    entries = []
    while last is not None:
        entries.append(last)
        last = last.previous
    entries.reverse()
    return entries


# EVA's single pass over the merged history as a machine: one element in, one transition.
#
# The rules and their quirks are the reference's; rule numbers in comments are those of EVA's
# processor as specified for this project (5.1 audit `user` to 5.11 `connection_state`). EVA's work
# after the pass is in `metric_context`.


class EvaTurnMachine:
    """State of the pass. `turns` has the state of each turn id; `turn` is 0 for the greeting and
    can become -1.

    `touched` has, since it was last emptied, every turn whose times, interruptions or tools may
    differ; a change of words alone does not touch a turn, and `reworded` has those that the call
    has left. `user_start_turn` and `assistant_start_turn` are the turns of the role's latest audio
    start (None before the first); the ends belong there.
    """

    # Each value that a checkpoint keeps, besides the turns; its annotation makes it one.
    turn: int = 0
    has_assistant_spoken: bool = False
    has_user_audio_begun: bool = False
    has_tool_run: bool = False
    is_advance_held: bool = False
    user_start_turn: int | None = None
    assistant_start_turn: int | None = None
    session_ended_ms: int | None = None
    is_user_audio_open: bool = False
    is_assistant_audio_open: bool = False
    is_user_interruption_pending: bool = False
    assistant_audio_turn: int = 0
    user_audio_turn: int = 0
    is_responding: bool = False
    has_user_speech: bool = False
    waiting_speeches: tuple[tuple[str, int], ...] = ()
    buffered_texts: frozenset[str] = frozenset()
    is_advance_owed: bool = False
    was_owed_advance_used: bool = False
    is_nudge_next: bool = False
    trace: TraceEntry | None = None
    last_tool: ToolEntry | None = None

    def __init__(self, pipeline_type: PipelineType, replays: Replays) -> None:
        self._replays = replays
        self._is_s2s = pipeline_type is PipelineType.S2S
        self._is_cascade = pipeline_type is PipelineType.CASCADE
        self._epoch = 0
        self.turns = dict[int, TurnState]()
        self.touched = set[int]()
        self.reworded = set[int]()

    def apply(self, kind: int, payload: Any, time_ms: int) -> None:
        """Applies one element of the history."""
        _RULES[kind](self, payload, time_ms)

    def freeze(self) -> object:
        """The state; turns are shared with it until they are next written."""
        self._epoch += 1
        # a dict takes twice the bytes
        return _read_fields(self), tuple(chain.from_iterable(self.turns.items()))

    def thaw(self, frozen: Any) -> None:
        """Returns to a frozen state; every turn that differs is touched."""
        fields, flat = frozen
        turns = dict(zip(flat[::2], flat[1::2], strict=True))
        for name, value in zip(_FIELDS, fields, strict=True):
            setattr(self, name, value)
        now = self.turns
        self.touched.update(
            number for number, state in now.items() if turns.get(number) is not state
        )
        self.touched.update(turns.keys() - now.keys())
        self._epoch += 1
        self.turns = turns

    def _heard(self, number: int) -> TurnState:
        """The turn, touched and ready for a change that the live view shows."""
        self.touched.add(number)
        return self._writable(number)

    def _writable(self, number: int) -> TurnState:
        if number < self.turn:
            self.reworded.add(number)
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
        """Appends `label` to the newest entry of that role and type, looking no further back than
        this turn's entries.
        """
        passed: list[TraceEntry] = []
        entry = self.trace
        while entry is not None and entry.turn == turn:
            if (
                entry.role == role
                and entry.kind == kind
                and not isinstance(entry.content, ToolPayload)
            ):
                entry = entry._replace(content=grown(entry.content, label))
                for later in reversed(passed):
                    entry = later._replace(previous=entry)
                self.trace = entry
                break
            passed.append(entry)
            entry = entry.previous
        self._replays.elements += len(passed)

    def _audit_user(self, text: str, time_ms: int) -> None:  # 5.1
        if self.is_advance_owed:
            self.has_assistant_spoken, self.is_advance_owed, self.was_owed_advance_used = (
                True,
                False,
                True,
            )
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
            self._annotate(
                self.turn,
                "user",
                "transcribed" if self._is_cascade else "intended",
                CUT_OFF_BY_ASSISTANT,
            )
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

    def _tool_call(self, use: ToolPayload, time_ms: int) -> None:  # 5.4
        self._tool(use, time_ms, is_response=False)

    def _tool_response(self, use: ToolPayload, time_ms: int) -> None:
        self._tool(use, time_ms, is_response=True)

    def _tool(self, use: ToolPayload, time_ms: int, *, is_response: bool) -> None:
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
        is_over = self.is_assistant_audio_open
        if is_over:
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
        state.spoke_over = state.spoke_over or is_over
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
        state.intended_user = (
            text if old is None or not has_old else grown(old, CUT_ITSELF_OFF, text)
        )
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


_FIELDS = tuple(EvaTurnMachine.__annotations__)
_read_fields = attrgetter(*_FIELDS)
# The rule of a kind is the method of its name.
_RULES = tuple(getattr(EvaTurnMachine, f"_{kind.name.lower()}") for kind in ElementKind)


# Core and tail: EVA's `MetricContext` of a call, computed on copies on demand.
#
# The core is the state of the turn machine (rules E2 to E6, E9). The tail is EVA's work when a call
# is over: fallback end times (E1), counts and aligned keys (E7, E8), the greeting and the last turn
# reconciled (E10).

Entry = dict[str, Any]
LATENCY_DIGITS = 6
MAX_SEARCHED_CHARS = 100_000_000
"""Characters in which replies of the log are searched, some 0.1 s; beyond it the rest counts as
spoken. Two hours have a million: only a turn with thousands of replies and as many utterances has
more.
"""


def metric_context(
    machine: EvaTurnMachine,
    pipeline_type: PipelineType,
    last_time_ms: int | None,
    ended_reason: str | None,
) -> MetricContext:
    """EVA's result for the events that the machine has applied.

    Args:
        machine: State after the last element; it is read, never changed.
        pipeline_type: Chooses EVA's rules.
        last_time_ms: Time of the last event of any source that counts: the end of a session without
            a reported end.
        ended_reason: Why the call ended, as its producer reported.
    """
    return _ContextBuilder(machine, pipeline_type, last_time_ms).result(ended_reason)


def latency_s(
    user: list[tuple[float, float]] | None, assistant: list[tuple[float, float]] | None
) -> float | None:
    """E9: first start of the assistant minus last end of the user, in seconds; None unless both
    have audio.
    """
    if not user or not assistant:
        return None
    return round(assistant[0][0] - user[-1][1], LATENCY_DIGITS)


def paired(starts: Times, ends: Times, fallback_end_s: float) -> list[tuple[float, float]]:
    """E2: starts and ends by index; a start without an end runs to the fallback, surplus ends are
    ignored.
    """
    return [(start, ends[i] if i < len(ends) else fallback_end_s) for i, start in enumerate(starts)]


class _ContextBuilder:
    def __init__(
        self, machine: EvaTurnMachine, pipeline_type: PipelineType, last_time_ms: int | None
    ) -> None:
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
                self._user_audio[number] = paired(
                    state.user_starts, state.user_ends, self._session_end_s
                )
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
        # E7
        num_assistant_turns = len(self._heard_assistant if self._is_s2s else self._meant_assistant)
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
        """E3: audit replies cut to the spoken part; a reply without one is dropped unless it is a
        nudge.
        """
        spoken: dict[int, SpokenText] = {}
        searched_chars = 0
        kept = []
        for entry in raw:
            if not entry.is_from_audit or isinstance(entry.content, ToolPayload):
                kept.append(entry)
                continue
            if entry.turn not in spoken:
                spoken[entry.turn] = SpokenText(
                    group.text for group in self._machine.turns[entry.turn].segments
                )
            content: str | None = joined(entry.content)
            if searched_chars <= MAX_SEARCHED_CHARS:
                searched_chars += spoken[entry.turn].chars
                content = spoken[entry.turn].prefix(joined(entry.content))
            if content is not None:
                kept.append(entry._replace(previous=None, content=content))
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
            trace.append(
                _said("user", self._meant_user[last_user_turn], "intended", last_user_turn)
            )
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
        is_in_trace = any(
            entry.get("role") == "assistant" and entry["turn_id"] == number for entry in trace
        )
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


def _uses(raw: list[TraceEntry], kind: str) -> list[ToolPayload]:
    return [
        entry.content
        for entry in raw
        if entry.kind == kind and isinstance(entry.content, ToolPayload)
    ]


def _said(role: str, content: str | None, kind: str, turn: int) -> Entry:
    return {"role": role, "content": content, "type": kind, "turn_id": turn}


def _grouped(entries: list[TraceEntry]) -> list[Entry]:
    """E4: neighbours of one role and turn are one entry, their texts joined by one blank; tools
    stay single.
    """
    grouped: list[Entry] = []
    texts: list[list[str]] = []
    open_role: str | None = None
    open_turn: int | None = None
    for entry in entries:
        content = entry.content
        if isinstance(content, ToolPayload):
            value_name = "parameters" if entry.kind == "tool_call" else "tool_response"
            grouped.append(
                {
                    "tool_name": content.name,
                    value_name: content.value,
                    "type": entry.kind,
                    "turn_id": entry.turn,
                }
            )
            open_role = None
        elif entry.role == open_role and entry.turn == open_turn:
            texts[-1].append(joined(content))
            continue
        else:
            grouped.append(
                {"role": entry.role, "content": "", "type": entry.kind, "turn_id": entry.turn}
            )
            texts.append([joined(content)])
            open_role, open_turn = entry.role, entry.turn
        if entry.time_ms is not None:
            grouped[-1]["timestamp"] = entry.time_ms
    for group, said in zip((each for each in grouped if "role" in each), texts, strict=True):
        group["content"] = " ".join(filter(None, said))
    return grouped


def _label_interruptions(trace: list[Entry], by_assistant: set[int], by_user: set[int]) -> None:
    """E5: labels the first reply of a turn in which the assistant interrupted, and a user entry of
    one in which the user did.
    """
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


# EVA's history of a call: its events by EVA's loading rules, the merged timeline, and the context
# at any moment.

MAX_PENDING_TEXT_UPDATES = 64
"""Text updates kept for audit entries that have not arrived yet; an audio-LLM call has one in
flight.
"""


class CallerLine(NamedTuple):
    """The end of the simulated caller's stream, in the stream's own order.

    Attributes:
        has_events: Whether the stream has any event.
        last_reason: Reason in the last event, if that is about the state of the line; otherwise
            None.
    """

    has_events: bool
    last_reason: str | None


class EvaHistory:
    """Events of the three sources in, `context` out. The context is exact after every event, in
    whatever order the sources arrive.

    Each source must keep its own order; a change of the pipeline type folds everything again.
    """

    def __init__(self, pipeline_type: PipelineType = PipelineType.CASCADE) -> None:
        self.pipeline_type = pipeline_type
        self.replays = Replays()
        self.machine = EvaTurnMachine(pipeline_type, self.replays)
        self.timeline = Timeline(self.machine, TIME_SHIFT, self.replays)
        self.text_stream = TextStream(self, self.replays)
        self._audit_count = 0
        self._simulator_count = 0
        self._line_state: tuple[int, str | None] = (0, None)
        self._last_audit_ms: int | None = None
        self._last_simulator_ms: int | None = None
        self._last_user_key: int | None = None
        self._user_keys: dict[int, int] = {}
        self._text_updates: dict[int, str] = {}

    def audit(self, kind: ElementKind | None, time_ms: int, payload: object) -> int:
        """Adds an entry of the audit log; `kind` is None for one that no rule reads.

        Returns:
            Its key in the merged history.
        """
        self._audit_count += 1
        if self._last_audit_ms is None or time_ms > self._last_audit_ms:
            self._last_audit_ms = time_ms
        key = order_key(time_ms, AUDIT_RANK, self._audit_count)
        if kind is not None:
            self.timeline.insert(key, kind, payload)
        return key

    def text_at(self, key: int) -> str:
        """The current text of the element with this key; empty without one."""
        payload = self.timeline.payload(key)
        if isinstance(payload, TextGroup):
            return payload.text
        return payload if isinstance(payload, str) else ""

    def text_mark(self, key: int) -> int:
        """A number that changes with the text of the element with this key, for the price of a
        length; 0 without a text.
        """
        payload = self.timeline.payload(key)
        if isinstance(payload, TextGroup):
            return payload.length
        return text_mark(payload) if isinstance(payload, str) else 0

    def audit_user(self, time_ms: int, text: str, turn_id: int | None) -> int:
        """Adds the caller's turn as the agent received it, perhaps a placeholder.

        Returns:
            Its key in the merged history.
        """
        self._last_user_key = order_key(time_ms, AUDIT_RANK, self._audit_count + 1)
        if turn_id is not None:
            text = self._text_updates.pop(turn_id, text)
            self._user_keys[turn_id] = self._last_user_key
        return self.audit(ElementKind.AUDIT_USER, time_ms, text)

    def update_user_text(self, text: str, turn_id: int | None) -> bool:
        """Replaces a placeholder by the text: in the entry with `turn_id`, or in the last.

        Returns:
            False when there is no such entry and the update cannot wait for it.
        """
        key = self._last_user_key if turn_id is None else self._user_keys.get(turn_id)
        if key is not None:
            self.timeline.replace(key, text)
            return True
        if turn_id is None or len(self._text_updates) >= MAX_PENDING_TEXT_UPDATES:
            return False
        self._text_updates[turn_id] = text
        return True

    def simulator(self, kind: ElementKind | None, time_ms: int, payload: object) -> None:
        """Adds an event of the simulated caller; `kind` is None for one that no rule reads."""
        self._simulator_count += 1
        if (
            kind is ElementKind.USER_SPEECH
            and isinstance(payload, str)
            and payload.strip() in EMPTY_UTTERANCES
        ):
            return
        if self._last_simulator_ms is None or time_ms > self._last_simulator_ms:
            self._last_simulator_ms = time_ms
        if kind is not None:
            self.timeline.insert(
                order_key(time_ms, SIMULATOR_RANK, self._simulator_count), kind, payload
            )

    def line_state(self, details: object) -> None:
        """Notes the details of the simulated caller's newest event, which was about the line."""
        reason = details.get("reason") if isinstance(details, Mapping) else None
        self._line_state = (self._simulator_count, reason if isinstance(reason, str) else None)

    @property
    def has_audit(self) -> bool:
        """Whether there is any entry of the audit log."""
        return self._audit_count > 0

    @property
    def caller_line(self) -> CallerLine:
        """The end of the simulated caller's stream."""
        place, reason = self._line_state
        return CallerLine(
            self._simulator_count > 0, reason if place == self._simulator_count else None
        )

    def set_pipeline_type(self, pipeline_type: PipelineType) -> None:
        """Folds the call again from its first event by the rules of another pipeline."""
        if pipeline_type is self.pipeline_type:
            return
        elements = [element for element in self.timeline if element[1] != ElementKind.TEXT_GROUP]
        if pipeline_type is not PipelineType.S2S:
            elements += [
                (group.key, ElementKind.TEXT_GROUP, group)
                for group in self.text_stream.groups()
                if group.key is not None
            ]
            elements.sort(key=lambda element: element[0])
        touched = set(self.machine.turns)
        self.pipeline_type = pipeline_type
        self.machine = EvaTurnMachine(pipeline_type, self.replays)
        self.timeline = Timeline(self.machine, TIME_SHIFT, self.replays)
        for key, kind, payload in elements:
            self.timeline.insert(key, kind, payload)
        self.replays.elements += len(elements)
        self.machine.touched |= touched

    def place(self, group: TextGroup) -> None:
        """Adds a text group; in speech-to-speech calls it is no part of the history."""
        if group.key is None:
            return
        if self.pipeline_type is not PipelineType.S2S:
            self.timeline.insert(group.key, ElementKind.TEXT_GROUP, group)

    def displace(self, key: int) -> None:
        """Removes a text group."""
        if self.pipeline_type is not PipelineType.S2S:
            self.timeline.remove(key)

    def reread(self, group: TextGroup) -> None:
        """Replays from a text group that changed in a way that rules read."""
        if group.key is not None and self.pipeline_type is not PipelineType.S2S:
            self.timeline.reread(group.key)

    def release(self) -> None:
        """Cuts the cycle with the text stream."""
        del self.text_stream

    def session_end_s(self) -> float:
        """End of sound without an end (E1): the session's end, otherwise the last event; epoch
        seconds.
        """
        return (self.machine.session_ended_ms or self.last_time_ms() or 0) / 1000

    def last_time_ms(self) -> int | None:
        """Time of the last event of the merged history; None while it is empty."""
        times = [self._last_audit_ms, self._last_simulator_ms]
        if self.pipeline_type is not PipelineType.S2S:
            times.append(self.text_stream.last_time_ms())
        return max((time for time in times if time is not None), default=None)

    def context(self, ended_reason: str | None) -> MetricContext:
        """EVA's result for the events so far: the core with the tail added to a copy."""
        return metric_context(self.machine, self.pipeline_type, self.last_time_ms(), ended_reason)
