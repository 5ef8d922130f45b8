"""One shape of a turn from any source: the speech of both sides, their words by purpose, and the
caller's wait.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum, auto
from functools import cached_property
from itertools import chain
from math import inf
from typing import Final, Literal, NamedTuple, Protocol

from consumers.engine.turns.bot import (
    MESSAGE_RANK,
    BotTurn,
    BotTurnMachine,
    Gap,
    RankedWords,
    TextPiece,
    spoken_once,
)
from consumers.engine.turns.eva import (
    EvaHistory,
    Pieces,
    TraceEntry,
    TurnState,
    chars_of,
    joined,
    text_mark,
)
from consumers.engine.turns.eva_text import without_eva_labels
from consumers.engine.turns.normal_text import without_bracketed
from consumers.engine.turns.timeline import (
    PairedUse,
    Sounds,
    Source,
    Spans,
    Times,
    TimeSpan,
    ToolEntry,
    ToolPayload,
    ToolUses,
    TurnView,
    key_time_ms,
    ms_of,
)
from schemas.closed_sets import Anchor
from schemas.units import MS_PER_SECOND

# The words of a turn by source, and one table that chooses the sources for each purpose.
#
# A turn's words come from up to five sources that differ: a caller is misunderstood, an answer is
# cut off, a log has words that were not heard. Texts are joined when they are read, and not before.

PLACEHOLDER: Final = "[user audio]"
"""Placeholder in the log of an audio-LLM agent until the caller is transcribed; it has no words."""

Texts = tuple[str, ...]
"""Utterances of one side of a turn from one source, as the source wrote them."""


class TimedText(NamedTuple):
    """An utterance with its time.

    Attributes:
        told_ms: When it was told, in ms since 1970; None when unknown.
        text: The words.
        is_begin: Whether that is the time at which it began, as its source says.
    """

    told_ms: int | None
    text: str
    is_begin: bool = False


class WordSource(IntEnum):
    """Sources of words.

    Attributes:
        LOG: The agent's log: its transcript of the caller, and its model's text.
        TRACE: The log's answers in a call that a simulated caller hears, as EVA's trace has them.
        CALLER: The simulated caller: its intended words, and the words it heard.
        SYNTHESIS: The text sent to speech synthesis; of an ElevenLabs agent's answer, the part that
            was heard.
        HEARD: The part that was heard of an answer that the caller cut off, as pipecat's messages
            have it.
        LABELLED: The same as SYNTHESIS in a call that a simulated caller hears, with EVA's labels
            of who cut off whom.
        BOT: The bot's own reports: pipecat's messages, and an ElevenLabs agent's transcript of the
            caller.
        MEANT: All that the bot gave to speech synthesis, heard or not; of an ElevenLabs agent's
            answer the original.
    """

    LOG = auto()
    TRACE = auto()
    CALLER = auto()
    SYNTHESIS = auto()
    HEARD = auto()
    LABELLED = auto()
    BOT = auto()
    MEANT = auto()


class Purpose(IntEnum):
    """Purposes for which words are read.

    Attributes:
        TALK: Amount of speech and questions of each side.
        JUDGED: Goals and judges.
        SPOKEN: The words that transcript and report show.
        WRITTEN: The original of an answer that was cut off, for the transcript.
        MEANT: The reference of EVA's word errors.
        UNDERSTOOD: The text that they compare with it.
        TOLD: The context of a call that its bot alone hears: what the agent understood, and what it
            meant to say.
    """

    TALK = auto()
    JUDGED = auto()
    SPOKEN = auto()
    WRITTEN = auto()
    MEANT = auto()
    UNDERSTOOD = auto()
    TOLD = auto()


class SaidWords(Protocol):
    """The words of one turn. Each adapter of a machine implements it."""

    @property
    def mark(self) -> int:
        """A number that changes with the known words, of every source but the trace; cheaper than
        the words.
        """

    @property
    def logged_times_ms(self) -> tuple[int, ...]:
        """The times of the turn's entries in EVA's trace; none where the bot alone
        hears the call.
        """

    @property
    def is_corrected(self) -> bool:
        """Whether an ElevenLabs agent reported the part of its answer that was heard."""

    def texts(self, source: WordSource, *, is_user: bool) -> Texts:
        """The texts of this source for one side; empty without any."""

    def timed_texts(self, source: WordSource, *, is_user: bool) -> list[TimedText]:
        """The same texts, each with the time at which it was told."""

    def first_logged_ms(self, *, is_user: bool) -> int | None:
        """Time of the first logged words of one side; None without any."""


class _Order(NamedTuple):
    """Sources for each side, the best one first, and the function that joins their texts."""

    user: tuple[WordSource, ...]
    assistant: tuple[WordSource, ...]
    joined: Callable[[Texts], str]


def _without_marks(texts: Texts) -> str:
    return without_bracketed(" ".join(texts))


def _as_written(texts: Texts) -> str:
    return " ".join(text for each in texts if (text := each.strip()))


def _as_told(texts: Texts) -> str:
    return _as_written(tuple(each.replace(PLACEHOLDER, "") for each in texts))


def _readable(texts: Texts) -> str:
    return " ".join(
        text for each in texts if (text := without_eva_labels(each.replace(PLACEHOLDER, " ")))
    )


_AS_UNDERSTOOD: Final = (WordSource.LOG, WordSource.BOT, WordSource.CALLER)
"""The agent answers to the words it understood. Its log has them first; the caller's intended words
are the last resort.
"""

WORDS_BY_PURPOSE: Final[Mapping[Purpose, _Order]] = {
    # Words that sounded: synthesis got them; otherwise pipecat logged them, cut where the bot was
    # cut off; otherwise the caller heard them. Words of the log alone come last, since many of them
    # may never have sounded.
    Purpose.TALK: _Order(
        _AS_UNDERSTOOD,
        (
            WordSource.HEARD,
            WordSource.SYNTHESIS,
            WordSource.BOT,
            WordSource.CALLER,
            WordSource.LABELLED,
            WordSource.LOG,
        ),
        _without_marks,
    ),
    # Words the agent meant, as EVA's and agent-inspect's judges read them: they rate the model and
    # not the line. So the log comes before pipecat's texts, and labels stay, since EVA's prompts
    # explain them. But words that are known not to have been heard reach no goal.
    Purpose.JUDGED: _Order(
        _AS_UNDERSTOOD,
        (
            WordSource.HEARD,
            WordSource.LABELLED,
            WordSource.CALLER,
            WordSource.SYNTHESIS,
            WordSource.LOG,
            WordSource.BOT,
        ),
        _as_written,
    ),
    # Words the caller heard, for people to read. Without the log: it has the whole of an answer
    # that was cut off.
    Purpose.SPOKEN: _Order(
        _AS_UNDERSTOOD,
        (WordSource.HEARD, WordSource.SYNTHESIS, WordSource.BOT, WordSource.CALLER),
        _readable,
    ),
    # The log alone: it has the model's own words.
    Purpose.WRITTEN: _Order((), (WordSource.TRACE, WordSource.LOG), _readable),
    # EVA's pairs: the caller's intended words with the agent's transcript, the agent's intended
    # words with the ones the caller heard.
    Purpose.MEANT: _Order((WordSource.CALLER,), (WordSource.LABELLED,), " ".join),
    Purpose.UNDERSTOOD: _Order((WordSource.LOG,), (WordSource.CALLER,), " ".join),
    # Of the agent the text that went to synthesis, also the part that was never heard; the log has
    # it too.
    Purpose.TOLD: _Order(
        _AS_UNDERSTOOD, (WordSource.MEANT, WordSource.LOG, WordSource.BOT), _as_told
    ),
}
"""Sources of words by purpose."""


# One shape of a turn, for either machine: when each side was heard, its words, the tools.
#
# Two adapters build it, one from EVA's turns and one from the bot's own view. They are the only
# places that know both the machines and this shape. Everything that measures, judges or shows a
# turn reads it and no machine.

Segments = tuple[tuple[float, float], ...]


class HeardSide(NamedTuple):
    """One side of a turn.

    Attributes:
        words: The words of the turn.
        heard: Its sounds.
        texts_s: Times at which its words came to the log or to speech synthesis, for a side without
            sound.
        reports_s: Times at which an ElevenLabs agent reported its words.
        is_user: Whether it is the user's side.
        has_gaps: Whether a start or an end of its sounds was lost, so that their length is unknown.
    """

    words: SaidWords
    heard: Sounds = Sounds()
    texts_s: Times = ()
    reports_s: Times = ()
    is_user: bool = False
    has_gaps: bool = False

    @property
    def starts(self) -> Times:
        """Starts of its sounds."""
        return self.heard.starts

    @property
    def ends(self) -> Times:
        """Ends of its sounds."""
        return self.heard.ends

    @property
    def is_open(self) -> bool:
        """Whether a sound has no end yet."""
        return len(self.ends) < len(self.starts)

    @property
    def segments(self) -> Segments:
        """(start, end) of each sound by place, in epoch seconds; an open sound has an
        infinite end.
        """
        ends = self.ends
        return tuple(
            (start_s, ends[at] if at < len(ends) else inf) for at, start_s in enumerate(self.starts)
        )

    def sounds(self, end_s: float) -> Segments:
        """(start, end) of each sound in epoch seconds, each start with its own end; an open one
        ends at `end_s`, or at once.
        """
        return tuple(
            (start_s, max(start_s, end_s) if stop_s is None else stop_s)
            for start_s, stop_s in self.heard.pairs()
        )

    def spans(self, end_ms: int | None) -> Spans:
        """Each sound in ms; an open one ends at `end_ms`, or is left out if that is None."""
        found = []
        for start_s, stop_s in self.heard.pairs():
            stop_ms = end_ms if stop_s is None else ms_of(stop_s)
            if stop_ms is not None:
                found.append(TimeSpan(ms_of(start_s), stop_ms))
        return tuple(found)

    @property
    def logged_ms(self) -> int | None:
        """Time at which its words were first logged; None when unknown."""
        times_s = self.texts_s or self.reports_s
        return (
            int(times_s[0] * MS_PER_SECOND)
            if times_s
            else self.words.first_logged_ms(is_user=self.is_user)
        )

    @property
    def begin_ms(self) -> float | None:
        """Time at which it began to speak, otherwise at which its words were logged; None when both
        are unknown.
        """
        return self.starts[0] * MS_PER_SECOND if self.starts else self.logged_ms

    def timed(self, purpose: Purpose) -> tuple[WordSource | None, list[TimedText]]:
        """The best source for this purpose that has words, and its texts that have any; None and
        nothing without one.
        """
        order = WORDS_BY_PURPOSE[purpose]
        for source in order.user if self.is_user else order.assistant:
            texts = [
                each
                for each in self.words.timed_texts(source, is_user=self.is_user)
                if each.text.strip()
            ]
            if texts:
                return source, texts
        return None, []

    def said(self, purpose: Purpose) -> str:
        """Its words, by the best source for this purpose that has any; empty without one."""
        joined = WORDS_BY_PURPOSE[purpose].joined
        return next((text for texts in self._texts(purpose) if (text := joined(texts))), "")

    def wording(self, purpose: Purpose) -> str | None:
        """The same words to the letter; None where no source for this purpose has a text, not even
        an empty one.
        """
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
        answer_before_end_s: End of the agent's last sound of the turn before, infinite while it is
            open; None without one.
        endpointing_s: Time that the bot took to rule that the caller had finished; None if not
            reported.
        user_interrupted: Whether the user began to speak over the assistant; of EVA's turns it is
            EVA's flag.
        assistant_interrupted: Whether the assistant began to speak over the user.
        is_fallback: Whether the agent's turn-end timer stepped in.
        silent_from_s: The user's last end, or the latest moment of the user's turn that is known;
            None without one.
        is_cut: Whether the caller spoke over the assistant's answer in this turn; only the bot's
            own view knows it immediately.
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
    def is_barge_in(self) -> bool:
        """Whether the user began to speak over the assistant, by the sounds."""
        return self.view is not None and self.view.user_interrupted

    @property
    def rests_on_open_sound(self) -> bool:
        """Whether an open sound hides a value: one of its own, or of the answer before it that was
        spoken over.
        """
        is_over_open = self.user_interrupted and self.answer_before_end_s == inf
        return self.user.is_open or self.assistant.is_open or is_over_open


class HeardSides(NamedTuple):
    """Sides whose sound the events of a call have, and who reports it. Without sound, silence is
    unknown and not zero.
    """

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

    def __init__(
        self, tools: ToolUses, sides: HeardSides, current: int, last_tool: ToolEntry | None
    ) -> None:
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
        """Time in ms at which a call that is over fell silent for good; `last_ms` is the time of
        its last event.
        """

    @abstractmethod
    def _build(self, number: int, tools: Sequence[PairedUse]) -> HeardTurn | None:
        """Builds the turn from the machine's state."""


def answers_of(
    turns: Mapping[int, HeardTurn], spoken: Mapping[int, str] | None = None
) -> dict[int, str]:
    """The agent's spoken words by turn, as transcript and report show them; empty for a turn
    without any.

    An answer that only the log has counts where its sound was heard, and in a call without any
    source of spoken words.

    Args:
        turns: The turns.
        spoken: What its side said in each (`Purpose.SPOKEN`), where that was looked up already.
    """
    if spoken is None:
        spoken = {number: turn.assistant.said(Purpose.SPOKEN) for number, turn in turns.items()}
    knows_speech = any(spoken.values())
    return {
        number: answer_of(turn, spoken[number], knows_speech=knows_speech)
        for number, turn in turns.items()
    }


def answer_of(turn: HeardTurn, spoken: str, *, knows_speech: bool) -> str:
    """The same of one turn; `knows_speech` is whether any turn of the call has spoken words."""
    if spoken or (knows_speech and not turn.assistant.starts):
        return spoken
    return turn.assistant.said(Purpose.WRITTEN)


def cut_off_turns(turns: Mapping[int, HeardTurn]) -> set[int]:
    """The turns in which the caller spoke over the agent; each time the one of the agent's sound.

    A barge-in is filed in the caller's turn, which is the next one, or the same where the agent had
    no text yet. Where no sound decides, it was the turn before. A correction is filed in the turn
    itself, also where the caller then hung up.
    """
    cut = {number for number, turn in turns.items() if turn.words.is_corrected}
    for number, turn in turns.items():
        if turn.is_barge_in:
            over = [
                each
                for each in (number - 1, number)
                if each in turns and _is_heard_at(turns[each], turn.user.starts)
            ]
            cut.update(over or [number - 1])
    return cut


def _is_heard_at(turn: HeardTurn, times_s: Iterable[float]) -> bool:
    return any(
        start_s <= time_s < end_s
        for time_s in times_s
        for start_s, end_s in turn.assistant.segments
    )


def last_end_s(starts: Times, ends: Times) -> float | None:
    """End of the last of these sounds, infinite while it is open; None without one.

    Example:
        >>> last_end_s((1.0, 3.0), (2.0, 4.0)), last_end_s((1.0,), ()), last_end_s((), ())
        (4.0, inf, None)
    """
    if not starts:
        return None
    return ends[len(starts) - 1] if len(ends) >= len(starts) else inf


# Turns as the bot heard them, read from its turn machine.

_NOTHING = BotTurn()
_WRITTEN_RANK = 1
_RANKS = {
    True: {WordSource.LOG: 0, WordSource.BOT: 1},
    False: {
        WordSource.SYNTHESIS: 0,
        WordSource.LOG: _WRITTEN_RANK,
        WordSource.BOT: MESSAGE_RANK,
        WordSource.HEARD: MESSAGE_RANK,
    },
}
"""Rank of a source's words in the machine."""


def view_of_bot_turn(machine: BotTurnMachine, number: int) -> TurnView:
    """The view of a turn: the user's end by the detector where it heard one, otherwise by the
    ruling, otherwise by the transcript.

    An ElevenLabs agent has the arrivals of its transcripts and answers. A cut-off shows that the
    user was heard. Where the end of the user's speech or the start of the answer was lost, the turn
    is not measured: another source's time is another's.
    """
    state = machine.turns[number]
    bot_starts = _starts_of_answer(machine, number)
    source: Source = "pipecat"
    is_speaking = False
    end_s: float | None = None
    anchor: Anchor | None = None
    unknown = Gap.BOT_START if machine.has_bot_events else 0
    if state.vad_starts:
        unknown |= Gap.VAD_END
        anchor = Anchor.VAD
        is_speaking = len(state.vad_ends) < len(state.vad_starts)
        end_s = None if is_speaking else state.vad_ends[-1]
    elif state.release_starts:
        anchor = Anchor.TURN_RELEASE
        unknown |= Gap.RULING
        is_speaking = len(state.release_ends) < len(state.release_starts)
        end_s = None if is_speaking else state.release_ends[-1]
    elif state.transcripts:
        anchor = Anchor.TRANSCRIPT
        source = "audit"
        end_s = state.transcripts[-1]
    elif state.agent_heard or state.user_interrupted:
        anchor = Anchor.ESTIMATED
        source = "elevenlabs"
        is_speaking = not state.agent_heard
        end_s = None if is_speaking else state.agent_heard[-1]
    return TurnView(
        has_user=anchor is not None,
        has_assistant=bool(bot_starts),
        is_user_speaking=is_speaking,
        user_end_s=end_s,
        assistant_start_s=bot_starts[0] if bot_starts else None,
        anchor=anchor,
        source=source if anchor is not None else None,
        user_interrupted=state.user_interrupted,
        assistant_interrupted=state.assistant_interrupted,
        are_times_exact=state.are_times_exact and not state.gaps & unknown,
        is_answered_in_text=bool(state.written) and not bot_starts,
    )


def _starts_of_answer(machine: BotTurnMachine, number: int) -> tuple[float, ...]:
    """Starts of the bot's speech; in a call without any, the times of its texts.

    Where a detector hears the caller, the producer may report the bot's speech too, and its first
    start may be lost: there, the text of a turn counts when the call has left it.
    """
    state = machine.turns[number]
    if machine.has_bot_events:
        return state.bot_starts or state.agent_said
    may_be_reported = machine.hears_detector and number >= machine.turn and not machine.is_over
    return (() if may_be_reported else state.bot_texts) or state.agent_said


class HeardByTheBot(HeardTurns):
    """The bot's turns, including those with words only."""

    is_simulated = False

    def __init__(self, machine: BotTurnMachine, history: EvaHistory, tools: ToolUses) -> None:
        user, assistant = machine.has_user_events, machine.has_bot_events
        sides = HeardSides(user, assistant, "pipecat" if user or assistant else None)
        super().__init__(tools, sides, machine.turn, machine.last_tool)
        self._machine = machine
        self._history = history

    def numbers(self) -> set[int]:
        """Numbers of all turns."""
        return {*self._machine.turns, *self._machine.words}

    def sound_end_ms(self, last_ms: int | None) -> int:
        """The time of the last event."""
        return last_ms or 0

    def _build(self, number: int, tools: Sequence[PairedUse]) -> HeardTurn | None:
        machine = self._machine
        state = machine.turns.get(number)
        said = machine.words.get(number, ())
        if state is None and not said:
            return None
        heard, before = state or _NOTHING, machine.turns.get(number - 1, _NOTHING)
        # The heard part of a cut-off answer is in the bot's own message, if it sends messages.
        words = _Words(said, self._history, is_unheard=heard.is_cut and machine.reports_answers)
        sounds = heard.sounds
        gap = Gap.VAD if heard.vad_starts else Gap.RULING
        return HeardTurn(
            number,
            HeardSide(
                words,
                sounds.caller,
                heard.transcripts,
                heard.agent_heard,
                is_user=True,
                has_gaps=bool(heard.gaps & gap),
            ),
            HeardSide(
                words,
                sounds.agent,
                heard.bot_texts,
                heard.agent_said,
                is_user=False,
                has_gaps=bool(heard.gaps & Gap.BOT),
            ),
            words,
            tools,
            None if state is None else view_of_bot_turn(machine, number),
            tuple(heard.times_s),
            begin_s=sounds.caller.starts[0] if sounds.caller.starts else _begin_s(heard, before),
            answer_before_end_s=last_end_s(before.bot_starts, before.bot_ends),
            endpointing_s=_endpointing_s(heard),
            user_interrupted=heard.user_interrupted,
            assistant_interrupted=heard.assistant_interrupted,
            is_fallback=heard.is_fallback,
            is_cut=heard.is_cut,
            silent_from_s=_silent_from_s(heard),
        )


def _silent_from_s(state: BotTurn) -> float | None:
    """The user's last end; where it was lost, the latest known moment of the user's turn."""
    if (
        state.vad_starts
        and len(state.vad_ends) == len(state.vad_starts)
        and not state.gaps & Gap.VAD_END
    ):
        return state.vad_ends[-1]
    known = (
        *state.release_ends[-1:],
        *state.vad_starts[-1:],
        *state.transcripts[-1:],
        *state.agent_heard[-1:],
    )
    return max(known, default=None)


def _endpointing_s(state: BotTurn) -> float | None:
    """From the user's last sound to the ruling; None unless both are known."""
    heard, ruled = state.vad_ends, state.release_ends
    are_known = len(heard) == len(state.vad_starts) and len(ruled) == len(state.release_starts)
    if not heard or not ruled or not are_known or state.gaps & (Gap.VAD_END | Gap.RULING_END):
        return None
    return ruled[-1] - heard[-1]


def _begin_s(state: BotTurn, before: BotTurn) -> float | None:
    """Start of a turn whose caller has no sound.

    A transcript comes after the caller has spoken, and its latency began before it: at the earliest
    after the bot's last words of the turn before.
    """
    if state.transcripts:
        return (
            (before.bot_starts or before.bot_texts or before.written)[-1:] or state.transcripts
        )[0]
    return min(chain(*state.times_s), default=None)


class _Words:
    """The words of one turn; words in the log are looked up on demand."""

    __slots__ = ("_history", "_is_unheard", "_said")

    def __init__(
        self, said: Sequence[RankedWords], history: EvaHistory, *, is_unheard: bool = False
    ) -> None:
        self._said = said
        self._history = history
        self._is_unheard = is_unheard

    @property
    def mark(self) -> int:
        mark_at = self._history.text_mark
        mark = int(self._is_unheard)
        for words in self._said:
            ref = words.ref
            if isinstance(ref, int):
                mark += mark_at(ref)
            elif isinstance(ref, str):
                mark += text_mark(ref)
            else:
                mark += ref.length
        return mark

    @property
    def logged_times_ms(self) -> tuple[int, ...]:
        return ()

    @property
    def is_corrected(self) -> bool:
        # Only a corrected answer has a text of this rank. The audit log's words are keys in EVA's
        # history.
        return any(
            not words.is_user and words.rank == _WRITTEN_RANK and isinstance(words.ref, str)
            for words in self._said
        )

    def texts(self, source: WordSource, *, is_user: bool) -> Texts:
        return tuple(self._text(words) for words in self._of(source, is_user=is_user))

    def timed_texts(self, source: WordSource, *, is_user: bool) -> list[TimedText]:
        return [
            TimedText(_told_ms(words), self._text(words), is_begin=words.sounded_s is not None)
            for words in self._of(source, is_user=is_user)
        ]

    def first_logged_ms(self, *, is_user: bool) -> int | None:
        refs = (words.ref for words in self._said if words.is_user is is_user)
        keys = (ref.key if isinstance(ref, TextPiece) else ref for ref in refs)
        return next((key_time_ms(key) for key in keys if isinstance(key, int)), None)

    def _of(self, source: WordSource, *, is_user: bool) -> list[RankedWords]:
        if source is WordSource.MEANT:
            return [] if is_user else self._meant()
        rank = _RANKS[is_user].get(source)
        said = [words for words in self._said if words.is_user is is_user and words.rank == rank]
        if source is WordSource.HEARD and not any(words.is_cut for words in said):
            return []
        if (
            source is WordSource.SYNTHESIS
            and self._is_unheard
            and any(isinstance(each.ref, TextPiece) for each in said)
        ):
            return []
        return _spoken_once(said)

    def _meant(self) -> list[RankedWords]:
        said: list[RankedWords] = []
        for words in self._said:
            if words.is_user or isinstance(words.ref, int):
                continue
            if words.rank == _RANKS[False][WordSource.SYNTHESIS]:
                said.append(words)
            elif words.rank == _WRITTEN_RANK and said:
                # the original of a corrected answer follows the part of it that was heard
                said[-1] = words
        return _spoken_once(said)

    def _text(self, words: RankedWords) -> str:
        match words.ref:
            case TextPiece(text=text):
                return text
            case str(text):
                return text
            case key:
                return self._history.text_at(key)


def _spoken_once(said: list[RankedWords]) -> list[RankedWords]:
    """The words without what was said twice: once in pieces, of those then the pieces count."""
    pieces = [words.ref for words in said if isinstance(words.ref, TextPiece)]
    if not pieces:
        return said
    kept = set(spoken_once(pieces))
    return [words for words in said if words.ref in kept]


def _told_ms(words: RankedWords) -> int | None:
    match words.ref:
        case TextPiece(key=key):
            return key_time_ms(key)
        case int(key):
            return key_time_ms(key)
    return words.at_ms


# Turns as a simulated caller heard them: EVA's own, read from its machine.

_SIDES = HeardSides(user=True, assistant=True, source="elevenlabs")


def view_of_eva_turn(state: TurnState, fallback_end_s: float | None = None) -> TurnView:
    """The view of a turn: who waited for whom.

    Args:
        state: State of the turn in EVA's machine.
        fallback_end_s: End of sound without an end, once the call is over (EVA's rule E1).
    """
    starts, ends = state.user_starts, state.user_ends
    end_s = None
    if starts:
        end_s = ends[len(starts) - 1] if len(ends) >= len(starts) else fallback_end_s
    return TurnView(
        has_user=bool(starts),
        has_assistant=bool(state.assistant_starts),
        is_user_speaking=bool(starts) and end_s is None,
        user_end_s=end_s,
        assistant_start_s=state.assistant_starts[0] if state.assistant_starts else None,
        anchor=Anchor.AUDIO,
        source="elevenlabs",
        user_interrupted=state.spoke_over,
        assistant_interrupted=state.assistant_interrupted,
    )


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
        words = _CallerWords(state, number, self._trace)
        sounds, view = state.sounds, view_of_eva_turn(state)
        starts = state.user_starts or state.assistant_starts
        return HeardTurn(
            number,
            HeardSide(words, sounds.caller, is_user=True),
            HeardSide(words, sounds.agent, is_user=False),
            words,
            tools,
            view,
            (state.user_starts, state.user_ends, state.assistant_starts, state.assistant_ends),
            begin_s=starts[0] if starts else None,
            answer_before_end_s=None
            if before is None
            else last_end_s(before.assistant_starts, before.assistant_ends),
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


class _CallerWords:
    """The words of one of EVA's turns; texts of the trace are read on demand."""

    __slots__ = ("_number", "_of_assistant", "_of_user", "_segments", "_trace")

    def __init__(self, state: TurnState, number: int, trace: _Trace) -> None:
        self._number = number
        self._trace = trace
        self._segments = state.segments
        self._of_user = {
            WordSource.LOG: state.transcribed_user,
            WordSource.CALLER: state.intended_user,
        }
        self._of_assistant = {
            WordSource.LABELLED: state.intended_assistant,
            WordSource.CALLER: state.transcribed_assistant,
        }

    @property
    def mark(self) -> int:
        # Late words add characters, and a replaced text creates the turn again.
        texts: list[Pieces | None] = [*self._of_user.values(), *self._of_assistant.values()]
        return sum(chars_of(text) for text in texts if text is not None) + sum(
            each.length for each in self._segments
        )

    @property
    def logged_times_ms(self) -> tuple[int, ...]:
        return tuple(entry.time_ms for entry in self._entries if entry.time_ms is not None)

    @property
    def is_corrected(self) -> bool:
        return False

    def texts(self, source: WordSource, *, is_user: bool) -> Texts:
        if source is WordSource.SYNTHESIS:
            return (
                ()
                if is_user or not self._segments
                else (" ".join(each.text for each in self._segments),)
            )
        if source is WordSource.TRACE and not is_user:
            written = [entry.content for entry in reversed(self._entries) if entry.is_from_audit]
            return tuple(
                joined(content) for content in written if not isinstance(content, ToolPayload)
            )
        text = (self._of_user if is_user else self._of_assistant).get(source)
        return () if text is None else (joined(text),)

    def timed_texts(self, source: WordSource, *, is_user: bool) -> list[TimedText]:
        return [TimedText(None, text) for text in self.texts(source, is_user=is_user)]

    def first_logged_ms(self, *, is_user: bool) -> int | None:
        role = "user" if is_user else "assistant"
        times_ms = (entry.time_ms for entry in reversed(self._entries) if entry.role == role)
        return next((time_ms for time_ms in times_ms if time_ms is not None), None)

    @property
    def _entries(self) -> list[TraceEntry]:
        return self._trace.entries.get(self._number, [])
