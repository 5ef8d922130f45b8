"""Live turns of a call without a simulated caller, from the bot's own events.

A caller is heard at two layers. The voice activity detector (`vad`) hears sound, coughs included; the turn strategy
(`turn_release`) rules that it was a turn. Rulings advance turns where the call has them, and the detector's times are used
where it has them. A call with neither has the agent's transcript of the caller. The assistant is heard through its own
speech events, or, in a call without them, through the text sent to speech synthesis. An ElevenLabs agent has none of these:
its moments are the arrivals of its transcripts and answers.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from consumers.engine.turns.timeline.elements import ToolUse
from consumers.engine.turns.timeline.tool_uses import ToolEntry


class SpeechMoment(IntEnum):
    """Kinds of elements on the bot's timeline, with the layer that reports them."""

    VAD_STARTED = 0
    VAD_STOPPED = 1
    TURN_STARTED = 2
    TURN_RELEASED = 3
    USER_TEXT = 4
    BOT_STARTED = 5
    BOT_STOPPED = 6
    BOT_TEXT = 7
    TOOL_CALL = 8
    TOOL_RESPONSE = 9
    WORDS = 10
    AGENT_HEARD = 11
    AGENT_SAID = 12
    AGENT_CUT_OFF = 13
    FALLBACK = 14


class Words(NamedTuple):
    """Words of one speaker: the rank of their source (0 is best), and the text or its key in EVA's history.

    `event_id` is the one that an ElevenLabs agent gave it.
    """

    is_user: bool
    rank: int
    ref: int | str
    event_id: int | None = None


class AgentWords(NamedTuple):
    """One utterance in a conversation with an ElevenLabs agent; `is_exact` is false where its time gives only the order."""

    words: tuple[Words, ...]
    is_exact: bool


class BotTurn(NamedTuple):
    """One turn; times in epoch seconds, in the order of the moments."""

    vad_starts: tuple[float, ...] = ()
    vad_ends: tuple[float, ...] = ()
    release_starts: tuple[float, ...] = ()
    release_ends: tuple[float, ...] = ()
    transcripts: tuple[float, ...] = ()
    bot_starts: tuple[float, ...] = ()
    bot_ends: tuple[float, ...] = ()
    bot_texts: tuple[float, ...] = ()
    user_interrupted: bool = False
    assistant_interrupted: bool = False
    agent_heard: tuple[float, ...] = ()
    agent_said: tuple[float, ...] = ()
    are_times_exact: bool = True
    is_fallback: bool = False

    @property
    def times_s(self) -> Iterator[tuple[float, ...]]:
        """All moments of the turn, in groups."""
        return chain(self[:8], (self.agent_heard, self.agent_said))


_FIELDS = (
    "turn",
    "has_bot_spoken",
    "bot_turn",
    "is_vad_open",
    "is_release_open",
    "vad_turn",
    "pending_vad",
    "has_rulings",
    "has_user_events",
    "has_bot_events",
    "hears_agent",
    "last_tool",
)
_read_fields = attrgetter(*_FIELDS)
_EMPTY = BotTurn()


class BotTurnMachine:
    """State after the last moment. `turn` 0 is the greeting.

    `touched` has, since it was last emptied, every turn whose times, interruptions or tools may differ; a change of words alone
    sets `have_words_changed` instead, until the reader of the words clears it. `bot_turn` is the turn in which the bot speaks
    (None while silent), `pending_vad` a stretch of sound that no ruling has made a turn yet: (start, end or None, whether the
    bot spoke when it began). `hears_transcripts` is no state but a fact of the call: whether its transcripts mark the end of
    the caller's turn.
    """

    def __init__(self) -> None:
        self.turns: dict[int, BotTurn] = {}
        self.words: dict[int, tuple[Words, ...]] = {}
        self.touched: set[int] = set()
        self.have_words_changed = False
        self.turn = 0
        self.has_bot_spoken = False
        self.bot_turn: int | None = None
        self.is_vad_open = False
        self.is_release_open = False
        self.vad_turn: int | None = None
        self.pending_vad: tuple[float, float | None, bool] | None = None
        self.has_rulings = False
        self.has_user_events = False
        self.has_bot_events = False
        self.hears_agent = False
        self.last_tool: ToolEntry | None = None
        self.hears_transcripts = True

    def apply(self, kind: int, payload: Any, time_ms: int) -> None:
        """Applies one moment; `payload` is its exact time in epoch seconds, or the tool."""
        _RULES[kind](self, payload, time_ms)

    def touch(self, turns: Iterable[int]) -> None:
        """Marks turns as perhaps changed."""
        self.touched.update(turns)

    def drain_touched(self) -> set[int]:
        """Returns the touched turns, and begins to collect anew."""
        touched, self.touched = self.touched, set()
        return touched

    def freeze(self) -> object:
        """The state; turns are immutable, so a shallow copy is enough."""
        return _read_fields(self), dict(self.turns), dict(self.words)

    def thaw(self, frozen: Any) -> None:
        """Returns to a frozen state; every turn that differs is touched."""
        fields, turns, words = frozen
        for name, value in zip(_FIELDS, fields, strict=True):
            setattr(self, name, value)
        self.touched.update(number for number, state in self.turns.items() if turns.get(number) is not state)
        self.turns = dict(turns)
        self.words = dict(words)
        self.have_words_changed = True

    def _change(self, number: int, **changes: Any) -> None:
        self.touched.add(number)
        self.turns[number] = self.turns.get(number, _EMPTY)._replace(**changes)

    def _of(self, number: int) -> BotTurn:
        return self.turns.get(number, _EMPTY)

    def _user_begins(self, *, over_bot: bool) -> None:
        if self.has_bot_spoken or not self.turn:
            self.touched.add(self.turn)
            self.turn += 1
            self.has_bot_spoken = False
        if over_bot and not self._of(self.turn).user_interrupted:
            self._change(self.turn, user_interrupted=True)

    def _vad_started(self, at_s: float, _time_ms: int) -> None:
        self.has_user_events = True
        self.is_vad_open = True
        if self.has_rulings and not self.is_release_open:
            self.vad_turn = None
            self.pending_vad = (at_s, None, self.bot_turn is not None)
            return
        self._user_begins(over_bot=self.bot_turn is not None)
        self._file_vad(at_s, None)

    def _file_vad(self, start_s: float, end_s: float | None) -> None:
        state = self._of(self.turn)
        ends = state.vad_ends if end_s is None else (*state.vad_ends, end_s)
        self._change(self.turn, vad_starts=(*state.vad_starts, start_s), vad_ends=ends)
        self.vad_turn = self.turn if end_s is None else None

    def _vad_stopped(self, at_s: float, _time_ms: int) -> None:
        self.has_user_events = True
        self.is_vad_open = False
        if self.vad_turn is not None:
            self._change(self.vad_turn, vad_ends=(*self._of(self.vad_turn).vad_ends, at_s))
            self.vad_turn = None
        elif self.pending_vad is not None:
            self.pending_vad = (self.pending_vad[0], at_s, self.pending_vad[2])

    def _turn_started(self, at_s: float, _time_ms: int) -> None:
        self.has_user_events = self.has_rulings = True
        if self.is_release_open:
            return  # EVA's log repeats every ruling
        self.is_release_open = True
        pending, self.pending_vad = self.pending_vad, None
        self._user_begins(over_bot=self.bot_turn is not None or (pending is not None and pending[2]))
        if pending is not None:
            self._file_vad(pending[0], pending[1])
        state = self._of(self.turn)
        self._change(self.turn, release_starts=(*state.release_starts, at_s))

    def _turn_released(self, at_s: float, _time_ms: int) -> None:
        self.has_user_events = True
        if not self.is_release_open:
            return
        self.is_release_open = False
        self._change(self.turn, release_ends=(*self._of(self.turn).release_ends, at_s))

    def _user_text(self, at_s: float, _time_ms: int) -> None:
        if self.has_user_events or self.hears_agent or not self.hears_transcripts:
            return
        self._user_begins(over_bot=False)
        self._change(self.turn, transcripts=(*self._of(self.turn).transcripts, at_s))

    def _bot_started(self, at_s: float, _time_ms: int) -> None:
        if not self.has_bot_events:  # from now on text begins no turn's answer
            self.has_bot_events = True
            self.touched.update(self.turns)
        self.has_bot_spoken = True
        self.bot_turn = self.turn
        state = self._of(self.turn)
        is_over_user = self.vad_turn == self.turn if state.vad_starts else self.is_release_open
        self._change(
            self.turn,
            bot_starts=(*state.bot_starts, at_s),
            assistant_interrupted=state.assistant_interrupted or (is_over_user and self.turn > 0),
        )

    def _bot_stopped(self, at_s: float, _time_ms: int) -> None:
        if self.bot_turn is not None:
            self._change(self.bot_turn, bot_ends=(*self._of(self.bot_turn).bot_ends, at_s))
            self.bot_turn = None

    def _words(self, words: Words, _time_ms: int) -> None:
        # Words are no part of a turn as it is heard: only judging, transcripts and counts of words read them.
        self.words[self.turn] = (*self.words.get(self.turn, ()), words)
        self.have_words_changed = True

    def _bot_text(self, key: int, time_ms: int) -> None:
        self._words(Words(is_user=False, rank=0, ref=key), time_ms)
        if self.has_bot_events:
            return
        self.has_bot_spoken = True
        self._change(self.turn, bot_texts=(*self._of(self.turn).bot_texts, time_ms / 1000))

    def _agent_heard(self, said: AgentWords, time_ms: int) -> None:
        if not self.has_user_events:
            self.hears_agent = True
            self._user_begins(over_bot=False)
            state = self._of(self.turn)
            self._change(
                self.turn,
                agent_heard=(*state.agent_heard, time_ms / 1000),
                are_times_exact=state.are_times_exact and said.is_exact,
            )
        for words in said.words:
            self._words(words, time_ms)

    def _agent_said(self, said: AgentWords, time_ms: int) -> None:
        for words in said.words:
            self._words(words, time_ms)
        if self.has_bot_events:
            return
        self.has_bot_spoken = True
        state = self._of(self.turn)
        is_first = not state.agent_said  # only the first answer ends a latency
        self._change(
            self.turn,
            agent_said=(*state.agent_said, time_ms / 1000),
            are_times_exact=state.are_times_exact and (said.is_exact or not is_first),
        )

    def _agent_cut_off(self, _payload: None, _time_ms: int) -> None:
        if not self.has_user_events:
            self._user_begins(over_bot=True)

    def _fallback(self, _payload: None, _time_ms: int) -> None:
        self._change(self.turn, is_fallback=True)

    def _tool_call(self, use: ToolUse, time_ms: int) -> None:
        self._tool(use, time_ms, is_response=False)

    def _tool_response(self, use: ToolUse, time_ms: int) -> None:
        self._tool(use, time_ms, is_response=True)

    def _tool(self, use: ToolUse, time_ms: int, *, is_response: bool) -> None:
        self._change(self.turn)
        self.last_tool = ToolEntry(self.last_tool, self.turn, use, time_ms, is_response=is_response)


_RULE_BY_KIND: dict[SpeechMoment, Callable[[BotTurnMachine, Any, int], None]] = {
    SpeechMoment.VAD_STARTED: BotTurnMachine._vad_started,
    SpeechMoment.VAD_STOPPED: BotTurnMachine._vad_stopped,
    SpeechMoment.TURN_STARTED: BotTurnMachine._turn_started,
    SpeechMoment.TURN_RELEASED: BotTurnMachine._turn_released,
    SpeechMoment.USER_TEXT: BotTurnMachine._user_text,
    SpeechMoment.BOT_STARTED: BotTurnMachine._bot_started,
    SpeechMoment.BOT_STOPPED: BotTurnMachine._bot_stopped,
    SpeechMoment.BOT_TEXT: BotTurnMachine._bot_text,
    SpeechMoment.TOOL_CALL: BotTurnMachine._tool_call,
    SpeechMoment.TOOL_RESPONSE: BotTurnMachine._tool_response,
    SpeechMoment.WORDS: BotTurnMachine._words,
    SpeechMoment.AGENT_HEARD: BotTurnMachine._agent_heard,
    SpeechMoment.AGENT_SAID: BotTurnMachine._agent_said,
    SpeechMoment.AGENT_CUT_OFF: BotTurnMachine._agent_cut_off,
    SpeechMoment.FALLBACK: BotTurnMachine._fallback,
}
_RULES = tuple(_RULE_BY_KIND[kind] for kind in SpeechMoment)
