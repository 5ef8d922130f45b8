"""Turns as a simulated caller heard them: EVA's own, read from its machine."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

from consumers.engine.turns.eva.history import EvaHistory
from consumers.engine.turns.eva.turn_state import Pieces, TraceEntry, TurnState, chars_of, joined
from consumers.engine.turns.heard.heard_turn import (
    MS_PER_SECOND,
    HeardSide,
    HeardSides,
    HeardTurn,
    HeardTurns,
    last_end_s,
)
from consumers.engine.turns.heard.turn_words import Texts, WordSource
from consumers.engine.turns.timeline.elements import ToolUse
from consumers.engine.turns.timeline.tool_uses import PairedUse, ToolUses
from consumers.engine.turns.timeline.turn_view import TurnView
from schemas.scores.all_records import Anchor

_SIDES = HeardSides(user=True, assistant=True, source="elevenlabs")


def view_of_eva_turn(state: TurnState, fallback_end_s: float | None = None) -> TurnView:
    """The view of a turn: who waited for whom.

    Args:
        state: State of the turn in EVA's machine.
        fallback_end_s: End of sound without an end, once the call is over (EVA's rule E1).
    """
    starts, ends = state.user_starts, state.user_ends
    end_s = ends[len(starts) - 1] if starts and len(ends) >= len(starts) else fallback_end_s if starts else None
    return TurnView(
        has_user=bool(starts),
        has_assistant=bool(state.assistant_starts),
        is_user_speaking=bool(starts) and end_s is None,
        user_end_s=end_s,
        assistant_start_s=state.assistant_starts[0] if state.assistant_starts else None,
        anchor=Anchor.AUDIO,
        source="elevenlabs",
        user_interrupted=state.user_interrupted,
        assistant_interrupted=state.assistant_interrupted,
    )


def views_by_the_caller(
    history: EvaHistory, numbers: Iterable[int] | None = None, fallback_end_s: float | None = None
) -> dict[int, TurnView]:
    """The views of the existing turns among `numbers`, or of all; see `view_of_eva_turn`."""
    turns = history.machine.turns
    there = turns if numbers is None else [number for number in numbers if number in turns]
    return {number: view_of_eva_turn(turns[number], fallback_end_s) for number in there}


class HeardByTheCaller(HeardTurns):
    """EVA's turns. The trace is read once, on demand, back to turn `since` and no further."""

    is_simulated = True

    def __init__(self, history: EvaHistory, tools: ToolUses, since: int | None = None) -> None:
        machine = history.machine
        super().__init__(tools, _SIDES, machine.turn, machine.last_tool)
        self._history = history
        self._states = machine.turns
        self._trace = _Trace(machine.trace, since)

    def numbers(self) -> set[int]:
        """Numbers of all turns."""
        return set(self._states)

    def sound_end_ms(self, last_ms: int | None) -> int:
        """EVA's end of the session, whatever the time of the last event."""
        del last_ms
        return round(self._history.session_end_s() * MS_PER_SECOND)

    def _build(self, number: int, tools: Sequence[PairedUse]) -> HeardTurn | None:
        state, before = self._states.get(number), self._states.get(number - 1)
        if state is None:
            return None
        words = _Words(state, number, self._trace)
        view = view_of_eva_turn(state)
        starts = state.user_starts or state.assistant_starts
        return HeardTurn(
            number,
            HeardSide(words, state.user_starts, state.user_ends, is_user=True),
            HeardSide(words, state.assistant_starts, state.assistant_ends, is_user=False),
            words,
            tools,
            view,
            (state.user_starts, state.user_ends, state.assistant_starts, state.assistant_ends),
            begin_s=starts[0] if starts else None,
            answer_before_end_s=None if before is None else last_end_s(before.assistant_starts, before.assistant_ends),
            user_interrupted=state.user_interrupted,
            assistant_interrupted=state.assistant_interrupted,
            is_fallback=state.is_fallback,
            silent_from_s=view.user_end_s,
        )


class _Trace:
    """EVA's trace by turn, from a turn on, or all of it."""

    def __init__(self, last: TraceEntry | None, since: int | None) -> None:
        self._last = last
        self._since = since

    @cached_property
    def entries(self) -> dict[int, list[TraceEntry]]:
        """The entries of each turn, the newest first."""
        entries: defaultdict[int, list[TraceEntry]] = defaultdict(list)
        entry = self._last
        while entry is not None and (self._since is None or entry.turn >= self._since):
            entries[entry.turn].append(entry)
            entry = entry.previous
        return entries


class _Words:
    """The words of one of EVA's turns; texts of the trace are read on demand."""

    __slots__ = ("_number", "_of_assistant", "_of_user", "_segments", "_trace")

    def __init__(self, state: TurnState, number: int, trace: _Trace) -> None:
        self._number = number
        self._trace = trace
        self._segments = state.segments
        self._of_user = {WordSource.LOG: state.transcribed_user, WordSource.CALLER: state.intended_user}
        self._of_assistant = {
            WordSource.LABELLED: state.intended_assistant, WordSource.CALLER: state.transcribed_assistant
        }  # fmt: skip

    @property
    def mark(self) -> int:
        # Late words add characters, and a replaced text creates the turn again.
        texts: list[Pieces | None] = [*self._of_user.values(), *self._of_assistant.values()]
        return sum(chars_of(text) for text in texts if text is not None) + sum(each.length for each in self._segments)

    @property
    def logged_times_ms(self) -> tuple[int, ...]:
        return tuple(entry.time_ms for entry in self._entries if entry.time_ms is not None)

    @property
    def is_corrected(self) -> bool:
        return False

    def texts(self, source: WordSource, *, is_user: bool) -> Texts:
        if source is WordSource.SYNTHESIS:
            return () if is_user or not self._segments else (" ".join(each.text for each in self._segments),)
        if source is WordSource.TRACE and not is_user:
            written = [entry.content for entry in reversed(self._entries) if entry.is_from_audit]
            return tuple(joined(content) for content in written if not isinstance(content, ToolUse))
        text = (self._of_user if is_user else self._of_assistant).get(source)
        return () if text is None else (joined(text),)

    def first_logged_ms(self, *, is_user: bool) -> int | None:
        role = "user" if is_user else "assistant"
        times_ms = (entry.time_ms for entry in reversed(self._entries) if entry.role == role)
        return next((time_ms for time_ms in times_ms if time_ms is not None), None)

    @property
    def _entries(self) -> list[TraceEntry]:
        return self._trace.entries.get(self._number, [])
