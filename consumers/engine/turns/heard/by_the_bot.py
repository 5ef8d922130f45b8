"""Turns as the bot heard them, read from its turn machine."""

from collections.abc import Iterable, Sequence
from itertools import chain

from consumers.engine.turns.bot.bot_turn import BotTurn, Gap, Words
from consumers.engine.turns.bot.spoken_text import TextPiece, texts_of
from consumers.engine.turns.bot.turn_machine import BotTurnMachine
from consumers.engine.turns.eva.history import EvaHistory
from consumers.engine.turns.eva.turn_state import text_mark
from consumers.engine.turns.heard.heard_turn import HeardSide, HeardSides, HeardTurn, HeardTurns, last_end_s
from consumers.engine.turns.heard.turn_words import Texts, WordSource
from consumers.engine.turns.timeline.elements import key_time_ms
from consumers.engine.turns.timeline.tool_uses import PairedUse, ToolUses
from consumers.engine.turns.timeline.turn_view import Source, TurnView
from schemas.scores.all_records import Anchor

_NOTHING = BotTurn()
_WRITTEN_RANK = 1
_RANKS = {
    True: {WordSource.LOG: 0, WordSource.BOT: 1},
    False: {WordSource.SYNTHESIS: 0, WordSource.LOG: _WRITTEN_RANK, WordSource.BOT: 2, WordSource.HEARD: 2},
}
"""Rank of a source's words in the machine."""


def view_of_bot_turn(machine: BotTurnMachine, number: int) -> TurnView:
    """The view of a turn: the user's end by the detector where it heard one, otherwise by the ruling, otherwise by the
    transcript.

    An ElevenLabs agent has the arrivals of its transcripts and answers. A cut-off shows that the user was heard. Where the end
    of the user's speech or the start of the answer was lost, the turn is not measured: another source's time is another's.
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
        is_answered_in_text=state.is_written and not bot_starts,
    )


def _starts_of_answer(machine: BotTurnMachine, number: int) -> tuple[float, ...]:
    """Starts of the bot's speech; in a call without any, the times of its texts.

    Where a detector hears the caller, the producer may report the bot's speech too, and its first start may be lost: there, the
    text of a turn counts when the call has left it.
    """
    state = machine.turns[number]
    if machine.has_bot_events:
        return state.bot_starts or state.agent_said
    may_be_reported = machine.hears_detector and number >= machine.turn and not machine.is_over
    return (() if may_be_reported else state.bot_texts) or state.agent_said


def views_by_the_bot(machine: BotTurnMachine, numbers: Iterable[int] | None = None) -> dict[int, TurnView]:
    """The views of the existing turns among `numbers`, or of all; see `view_of_bot_turn`."""
    turns = machine.turns
    there = turns if numbers is None else [number for number in numbers if number in turns]
    return {number: view_of_bot_turn(machine, number) for number in there}


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
        starts, ends, gap = heard.vad_starts, heard.vad_ends, Gap.VAD
        if not starts:
            starts, ends, gap = heard.release_starts, heard.release_ends, Gap.RULING
        return HeardTurn(
            number,
            HeardSide(
                words,
                starts,
                ends,
                heard.transcripts,
                heard.agent_heard,
                is_user=True,
                is_paired_by_time=True,
                has_gaps=bool(heard.gaps & gap),
            ),
            HeardSide(
                words,
                heard.bot_starts,
                heard.bot_ends,
                heard.bot_texts,
                heard.agent_said,
                is_user=False,
                is_paired_by_time=True,
                has_gaps=bool(heard.gaps & Gap.BOT),
            ),
            words,
            tools,
            None if state is None else view_of_bot_turn(machine, number),
            tuple(heard.times_s),
            begin_s=starts[0] if starts else _begin_s(heard, before),
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
    if state.vad_starts and len(state.vad_ends) == len(state.vad_starts) and not state.gaps & Gap.VAD_END:
        return state.vad_ends[-1]
    known = (*state.release_ends[-1:], *state.vad_starts[-1:], *state.transcripts[-1:], *state.agent_heard[-1:])
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

    A transcript comes after the caller has spoken, and its latency began before it: at the earliest after the bot's last words
    of the turn before.
    """
    if state.transcripts:
        return ((before.bot_starts or before.bot_texts)[-1:] or state.transcripts)[0]
    return min(chain(*state.times_s), default=None)


class _Words:
    """The words of one turn; words in the log are looked up on demand."""

    __slots__ = ("_history", "_is_unheard", "_said")

    def __init__(self, said: Sequence[Words], history: EvaHistory, *, is_unheard: bool = False) -> None:
        self._said = said
        self._history = history
        self._is_unheard = is_unheard

    @property
    def mark(self) -> int:
        mark_at = self._history.text_mark
        mark = int(self._is_unheard)
        for words in self._said:
            ref = words.ref
            mark += mark_at(ref) if isinstance(ref, int) else text_mark(ref) if isinstance(ref, str) else ref.length
        return mark

    @property
    def logged_times_ms(self) -> tuple[int, ...]:
        return ()

    @property
    def is_corrected(self) -> bool:
        # Only a corrected answer has a text of this rank. The audit log's words are keys in EVA's history.
        return any(
            not words.is_user and words.rank == _WRITTEN_RANK and isinstance(words.ref, str) for words in self._said
        )

    def texts(self, source: WordSource, *, is_user: bool) -> Texts:
        rank = _RANKS[is_user].get(source)
        said = [words for words in self._said if words.is_user is is_user and words.rank == rank]
        if source is WordSource.HEARD and not any(words.is_cut for words in said):
            return ()
        if source is WordSource.SYNTHESIS:
            pieces = [words.ref for words in said if isinstance(words.ref, TextPiece)]
            if pieces:
                return () if self._is_unheard else texts_of(pieces)
        text_at = self._history.text_at
        return tuple(
            words.ref if isinstance(words.ref, str) else text_at(words.ref)
            for words in said
            if not isinstance(words.ref, TextPiece)
        )

    def first_logged_ms(self, *, is_user: bool) -> int | None:
        refs = (words.ref for words in self._said if words.is_user is is_user)
        keys = (ref.key if isinstance(ref, TextPiece) else ref for ref in refs)
        return next((key_time_ms(key) for key in keys if isinstance(key, int)), None)
