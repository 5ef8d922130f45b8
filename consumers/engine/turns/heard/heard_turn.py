"""One shape of a turn, for either machine: when each side was heard, its words, the tools.

Two adapters build it, `by_the_caller` from EVA's turns and `by_the_bot` from the bot's own view. They are the only places
that know both the machines and this shape. Everything that measures, judges or shows a turn reads it and no machine.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Literal, NamedTuple

from consumers.engine.turns.heard.turn_words import WORDS_BY_PURPOSE, Purpose, SaidWords, Texts
from consumers.engine.turns.timeline.spans import Span, Spans
from consumers.engine.turns.timeline.tool_uses import PairedUse, ToolEntry, ToolUses
from consumers.engine.turns.timeline.turn_view import TurnView

MS_PER_SECOND = 1_000
Times = tuple[float, ...]
"""Epoch seconds, in the order of filing."""
Segments = tuple[tuple[float, float], ...]


class HeardSide(NamedTuple):
    """One side of a turn.

    Attributes:
        words: The words of the turn.
        starts: Starts of its sounds.
        ends: Ends of its sounds; the last one may have no end yet.
        texts_s: Times at which its words came to the log or to speech synthesis, for a side without sound.
        reports_s: Times at which an ElevenLabs agent reported its words.
        is_user: Whether it is the user's side.
        is_paired_by_time: Whether a start belongs to the next end, as with a bot that is started twice and stops once;
            otherwise the first end is that of the first start, and so on, as EVA pairs them.
        has_gaps: Whether a start or an end of its sounds was lost, so that their length is unknown.
    """

    words: SaidWords
    starts: Times = ()
    ends: Times = ()
    texts_s: Times = ()
    reports_s: Times = ()
    is_user: bool = False
    is_paired_by_time: bool = False
    has_gaps: bool = False

    @property
    def is_open(self) -> bool:
        """Whether a sound has no end yet."""
        return len(self.ends) < len(self.starts)

    @property
    def segments(self) -> Segments:
        """(start, end) of each sound by place, in epoch seconds; an open sound has an infinite end."""
        ends = self.ends
        return tuple((start_s, ends[at] if at < len(ends) else inf) for at, start_s in enumerate(self.starts))

    def spans(self, end_ms: int | None) -> Spans:
        """Each sound in ms; an open one ends at `end_ms`, or is left out if that is None."""
        starts, ends = self.starts, self.ends
        found = []
        for at, start_s in enumerate(starts):
            place = bisect_left(ends, start_s) if self.is_paired_by_time else at
            stop_ms = _ms(ends[place]) if place < len(ends) else end_ms
            if stop_ms is not None:
                found.append(Span(_ms(start_s), stop_ms))
        return tuple(found)

    @property
    def logged_ms(self) -> int | None:
        """Time at which its words were first logged; None when unknown."""
        times_s = self.texts_s or self.reports_s
        return int(times_s[0] * MS_PER_SECOND) if times_s else self.words.first_logged_ms(is_user=self.is_user)

    def said(self, purpose: Purpose) -> str:
        """Its words, by the best source for this purpose that has any; empty without one."""
        joined = WORDS_BY_PURPOSE[purpose].joined
        return next((text for texts in self._texts(purpose) if (text := joined(texts))), "")

    def wording(self, purpose: Purpose) -> str | None:
        """The same words to the letter; None where no source for this purpose has a text, not even an empty one."""
        texts = next(self._texts(purpose), None)
        return None if texts is None else WORDS_BY_PURPOSE[purpose].joined(texts)

    def _texts(self, purpose: Purpose) -> Iterator[Texts]:
        order = WORDS_BY_PURPOSE[purpose]
        for source in order.user if self.is_user else order.assistant:
            if texts := self.words.texts(source, is_user=self.is_user):
                yield texts


class HeardTurn(NamedTuple):
    """One turn as it is now; later events do not change it.

    Attributes:
        number: 0 is the greeting; EVA can number a turn -1.
        user: The user's side.
        assistant: The assistant's side.
        words: The words of both sides, by source.
        tools: The uses of tools that began in it.
        view: Who waited for whom, and the anchor; None for a turn with words only.
        times_s: Every moment of the turn, in groups.
        begin_s: Start of the turn; None where it has no time.
        answer_before_end_s: End of the agent's last sound of the turn before, infinite while it is open; None without one.
        endpointing_s: Time that the bot took to rule that the caller had finished; None if not reported.
        user_interrupted: Whether the user began to speak over the assistant.
        assistant_interrupted: Whether the assistant began to speak over the user.
        is_fallback: Whether the agent's turn-end timer stepped in.
        silent_from_s: The user's last end, or the latest moment of the user's turn that is known; None without one.
        is_cut: Whether the caller spoke over the assistant's answer in this turn; only the bot's own view knows it at once.
    """

    number: int
    user: HeardSide
    assistant: HeardSide
    words: SaidWords
    tools: Sequence[PairedUse] = ()
    view: TurnView | None = None
    times_s: tuple[Times, ...] = ()
    begin_s: float | None = None
    answer_before_end_s: float | None = None
    endpointing_s: float | None = None
    user_interrupted: bool = False
    assistant_interrupted: bool = False
    is_fallback: bool = False
    silent_from_s: float | None = None
    is_cut: bool = False

    @property
    def has_tool_call(self) -> bool:
        """Whether a tool was called; a response without a call is no call."""
        return any(use.called_at_ms is not None for use in self.tools)

    @property
    def rests_on_open_sound(self) -> bool:
        """Whether an open sound hides a value: one of its own, or of the answer before it that was spoken over."""
        is_over_open = self.user_interrupted and self.answer_before_end_s == inf
        return self.user.is_open or self.assistant.is_open or is_over_open


class HeardSides(NamedTuple):
    """Sides whose sound the events of a call have, and who reports it. Without sound, silence is unknown and not zero."""

    user: bool
    assistant: bool
    source: Literal["elevenlabs", "pipecat"] | None


class HeardTurns(ABC):
    """The turns of a call as they are now, each built at most once, on demand. Not to be kept.

    Attributes:
        is_simulated: Whether a simulated caller hears the call.
        sides: Sides whose sound is known.
        current: The turn that the call is in.
        last_tool: The newest tool event; None before the first.
    """

    is_simulated: bool

    def __init__(self, tools: ToolUses, sides: HeardSides, current: int, last_tool: ToolEntry | None) -> None:
        self.sides = sides
        self.current = current
        self.last_tool = last_tool
        self._tools = tools
        self._built: dict[int, HeardTurn | None] = {}

    def turn(self, number: int) -> HeardTurn | None:
        """The turn with this number; None when there is none."""
        if number not in self._built:
            self._built[number] = self._build(number, self._tools.of_turn(number))
        return self._built[number]

    def turns(self, numbers: Iterable[int]) -> dict[int, HeardTurn]:
        """The existing turns among `numbers`, in the same order."""
        return {number: turn for number in numbers if (turn := self.turn(number)) is not None}

    @abstractmethod
    def numbers(self) -> set[int]:
        """Numbers of all turns."""

    @abstractmethod
    def sound_end_ms(self, last_ms: int | None) -> int:
        """Time in ms at which a call that is over fell silent for good; `last_ms` is the time of its last event."""

    @abstractmethod
    def _build(self, number: int, tools: Sequence[PairedUse]) -> HeardTurn | None:
        """Builds the turn from the machine's state."""


def answers_of(turns: Mapping[int, HeardTurn]) -> dict[int, str]:
    """The agent's spoken words by turn, as transcript and report show them; empty for a turn without any.

    An answer that only the log has counts where its sound was heard, and in a call without any source of spoken words.
    """
    spoken = {number: turn.assistant.said(Purpose.SPOKEN) for number, turn in turns.items()}
    knows_speech = any(spoken.values())
    return {
        number: spoken[number]
        or ("" if knows_speech and not turn.assistant.starts else turn.assistant.said(Purpose.WRITTEN))
        for number, turn in turns.items()
    }


def cut_off_turns(turns: Mapping[int, HeardTurn]) -> set[int]:
    """The turns in which the caller spoke over the agent; each time the one of the agent's sound.

    A barge-in is filed in the caller's turn, which is the next one, or the same where the agent had no text yet. Where no
    sound decides, it was the turn before. A correction is filed in the turn itself, also where the caller then hung up.
    """
    cut = {number for number, turn in turns.items() if turn.words.is_corrected}
    for number, turn in turns.items():
        if turn.user_interrupted:
            over = [
                each for each in (number - 1, number) if each in turns and _is_heard_at(turns[each], turn.user.starts)
            ]
            cut.update(over or [number - 1])
    return cut


def _is_heard_at(turn: HeardTurn, times_s: Iterable[float]) -> bool:
    return any(start_s <= time_s < end_s for time_s in times_s for start_s, end_s in turn.assistant.segments)


def last_end_s(starts: Times, ends: Times) -> float | None:
    """End of the last of these sounds, infinite while it is open; None without one.

    Example:
        >>> last_end_s((1.0, 3.0), (2.0, 4.0)), last_end_s((1.0,), ()), last_end_s((), ())
        (4.0, inf, None)
    """
    if not starts:
        return None
    return ends[len(starts) - 1] if len(ends) >= len(starts) else inf


def _ms(time_s: float) -> int:
    return round(time_s * MS_PER_SECOND)
