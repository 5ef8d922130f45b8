"""What the speech measures read of a call's turns: stretches of sound, and the words of each side."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from consumers.engine.conversation_measures import Span, Spans, ToolRun
from consumers.engine.eva_metrics.normal_text import without_labels
from consumers.engine.history import EvaHistory
from consumers.engine.live_side import LiveSide
from consumers.engine.speaking import SpeakingMachine, SpeakingTurn, Words
from consumers.engine.turn_state import Pieces, TurnState, joined

MS_PER_SECOND = 1_000
_PREFERRED_RANKS = {True: (0, 1), False: (0, 2, 1)}
"""Of the user the log before pipecat's record; of the assistant speech synthesis, then pipecat's record, cut where it was."""


class SaidTexts(NamedTuple):
    """What was said in a turn, without labels; empty where it is not known."""

    user: str = ""
    assistant: str = ""


class HeardSides(NamedTuple):
    """Whose sound the events of a call tell of, and whose events those are. Where none do, silence is not zero."""

    user: bool
    assistant: bool
    source: Literal["elevenlabs", "pipecat"] | None


def heard_sides(live: LiveSide) -> HeardSides:
    """Whose sound is known."""
    machine = live.machine
    if not isinstance(machine, SpeakingMachine):
        return HeardSides(user=True, assistant=True, source="elevenlabs")
    user, assistant = machine.has_user_events, machine.has_bot_events
    return HeardSides(user, assistant, "pipecat" if user or assistant else None)


def turns_of(live: LiveSide) -> set[int]:
    """Every turn of the call."""
    machine = live.machine
    return {*machine.turns, *machine.words} if isinstance(machine, SpeakingMachine) else {*machine.turns}


def has_turn(live: LiveSide, turn: int) -> bool:
    """Whether the call has this turn."""
    machine = live.machine
    return turn in machine.turns or (isinstance(machine, SpeakingMachine) and turn in machine.words)


def sound_end_ms(live: LiveSide, last_ms: int | None) -> int | None:
    """When a call that is over fell silent for good: EVA's end of the session, or its last event at `last_ms`."""
    return last_ms if isinstance(live.machine, SpeakingMachine) else _ms(live.history.session_end_s())


def word_count(text: str) -> int:
    """Words in a text, as blanks part them.

    Example:
        >>> word_count("It's $1.50 at 4 p.m.")
        5
    """
    return len(text.split())


def spans_of(live: LiveSide, turn: int, end_ms: int | None) -> tuple[Spans, Spans]:
    """When user and assistant were heard in a turn.

    Args:
        live: The call.
        turn: Its id.
        end_ms: Where a stretch ends that has no end yet; None leaves it out.
    """
    machine = live.machine
    if isinstance(machine, SpeakingMachine):
        heard = machine.turns.get(turn, SpeakingTurn())
        user = (heard.vad_starts, heard.vad_ends) if heard.vad_starts else (heard.release_starts, heard.release_ends)
        return _by_time(*user, end_ms), _by_time(heard.bot_starts, heard.bot_ends, end_ms)
    state = machine.turns.get(turn)
    if state is None:
        return (), ()
    return (
        _by_place(state.user_starts, state.user_ends, end_ms),
        _by_place(state.assistant_starts, state.assistant_ends, end_ms),
    )


def said_in(live: LiveSide, turn: int) -> SaidTexts:
    """What each side said in a turn: of the user what was understood, of the assistant what was spoken."""
    machine = live.machine
    if isinstance(machine, SpeakingMachine):
        said = machine.words.get(turn, ())
        return SaidTexts(_best(said, live.history, is_user=True), _best(said, live.history, is_user=False))
    state = machine.turns.get(turn)
    if state is None:
        return SaidTexts()
    return SaidTexts(_first(state.transcribed_user, state.intended_user), _spoken(state))


def tool_runs(live: LiveSide) -> Iterator[ToolRun]:
    """When tools ran, as the turns were last seen."""
    for use in live.turns.tools:
        start_ms = use.called_at_ms
        if start_ms is not None:
            yield ToolRun(start_ms, None if use.duration_ms is None else start_ms + use.duration_ms)


def _ms(time_s: float) -> int:
    return round(time_s * MS_PER_SECOND)


def _by_place(starts: Sequence[float], ends: Sequence[float], end_ms: int | None) -> Spans:
    """EVA's pairing: the first end is that of the first start, and so on."""
    spans = [Span(_ms(start_s), _ms(end_s)) for start_s, end_s in zip(starts, ends, strict=False)]
    if end_ms is not None:
        spans += [Span(_ms(start_s), end_ms) for start_s in starts[len(ends) :]]
    return tuple(spans)


def _by_time(starts: Sequence[float], ends: Sequence[float], end_ms: int | None) -> Spans:
    """Each start with the next end: a bot that is started twice before it stops is heard once."""
    spans = []
    for start_s in starts:
        place = bisect_left(ends, start_s)
        stop_ms = _ms(ends[place]) if place < len(ends) else end_ms
        if stop_ms is not None:
            spans.append(Span(_ms(start_s), stop_ms))
    return tuple(spans)


def _first(*texts: Pieces | None) -> str:
    return next((said for text in texts if text is not None and (said := without_labels(joined(text)))), "")


def _spoken(state: TurnState) -> str:
    synthesised = without_labels(" ".join(group.text for group in state.segments))
    return synthesised or _first(state.transcribed_assistant, state.intended_assistant)


def _best(said: Sequence[Words], history: EvaHistory, *, is_user: bool) -> str:
    for rank in _PREFERRED_RANKS[is_user]:
        texts = [
            words.ref if isinstance(words.ref, str) else history.text_at(words.ref)
            for words in said
            if words.is_user is is_user and words.rank == rank
        ]
        text = without_labels(" ".join(texts))
        if text:
            return text
    return ""
