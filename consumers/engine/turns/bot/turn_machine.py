"""Live turns of a call without a simulated caller, from the bot's own events.

A caller is heard at two layers. The voice activity detector (`vad`) hears sound, coughs included; the turn strategy
(`turn_release`) rules that it was a turn. Rulings advance turns where the call has them, and the detector's times are used
where it has them. A call with neither has the agent's transcript of the caller. The assistant is heard through its own
speech events, or, in a call without them, through the text sent to speech synthesis. An ElevenLabs agent has none of these:
its moments are the arrivals of its transcripts and answers.

Any of these moments can be lost or come twice, because an observer's queue is bounded and producers retry. A moment that is
missing makes a time unknown (`Gap`) and nothing more: who spoke over whom is decided when the stretch of speech that was
spoken over has its end, and a stretch without one proves nothing.
"""

from collections.abc import Callable, Iterable
from math import inf
from operator import attrgetter
from typing import Any

from consumers.engine.turns.bot.bot_turn import (
    MAX_PENDING_SECONDS,
    SAME_MOMENT_SECONDS,
    AgentWords,
    BotTurn,
    Gap,
    PendingSpeech,
    SpeechMoment,
    Words,
)
from consumers.engine.turns.bot.spoken_text import TextPiece
from consumers.engine.turns.timeline.elements import ToolUse
from consumers.engine.turns.timeline.tool_uses import ToolEntry

_FIELDS = (
    "turn", "answering", "has_bot_spoken", "bot_turn", "ruled_turn", "is_answered", "vad_turn", "vad_open_s",
    "pending_vad", "vad_closed_s", "ruling_closed_s", "bot_closed_s", "over_bot", "over_user", "unruled",
    "lacks_rulings", "has_user_events", "has_bot_events", "hears_agent", "last_tool",
)  # fmt: skip
_read_fields = attrgetter(*_FIELDS)
_EMPTY = BotTurn()


class BotTurnMachine:
    """State after the last moment. `turn` 0 is the greeting.

    `touched` has, since it was last emptied, every turn whose times, interruptions or tools may differ; a change of words alone
    sets `have_words_changed` instead, until the reader of the words clears it.

    `bot_turn` is the turn in which the bot speaks, `ruled_turn` the one of the open ruling, `vad_turn` the one of the open
    stretch of sound, each None without one. `answering` is the turn to which the bot's words belong: one that the caller has
    finished. `is_answered` means that the bot has answered during a ruling whose end is overdue. `over_bot` and `over_user` are
    turns that one side began while the other spoke, not confirmed yet; `unruled` is such a turn from before the first ruling.

    Six attributes are no state but facts of the call, whenever they become known: whether transcripts mark the end of the
    caller's turn (`hears_transcripts`), a turn strategy rules (`has_rulings`), a detector hears the caller (`hears_detector`),
    the bot reports its answers as they were heard (`reports_answers`), no event shows that it speaks (`is_mute`), it `is_over`.
    """

    def __init__(self) -> None:
        self.turns: dict[int, BotTurn] = {}
        self.words: dict[int, tuple[Words, ...]] = {}
        self.touched: set[int] = set()
        self.have_words_changed = False
        self.turn = self.answering = 0
        self.has_bot_spoken = False
        self.bot_turn: int | None = None
        self.ruled_turn: int | None = None
        self.is_answered = False
        self.vad_turn: int | None = None
        self.vad_open_s: float | None = None
        self.pending_vad: PendingSpeech | None = None
        self.vad_closed_s = self.ruling_closed_s = self.bot_closed_s = -inf
        self.over_bot: int | None = None
        self.over_user: int | None = None
        self.unruled: int | None = None
        self.lacks_rulings = False
        self.has_user_events = self.has_bot_events = self.hears_agent = False
        self.last_tool: ToolEntry | None = None
        self.hears_transcripts = self.is_mute = True
        self.has_rulings = self.hears_detector = self.reports_answers = self.is_over = False

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
        if not over_bot or self._of(self.turn).user_interrupted:
            return
        if self.bot_turn is None:  # it has stopped since
            self._spoke_over(self.turn)
        else:
            self.over_bot = self.turn

    def _spoke_over(self, turn: int) -> None:
        """Notes that the user spoke over the bot; before the first ruling, a stretch that is over may have been a cough."""
        if self.has_rulings or self.lacks_rulings or self.vad_open_s is not None:
            self._change(turn, user_interrupted=True)
        else:
            self.unruled = turn

    # The detector.

    def _vad_started(self, at_s: float, _time_ms: int) -> None:
        self.has_user_events = True
        if self.vad_open_s is not None:
            if at_s - self.vad_open_s < SAME_MOMENT_SECONDS:
                return
            self._lose_vad_end()
        self.vad_open_s = at_s
        over_bot = self.bot_turn is not None
        if self._awaits_ruling:
            self.pending_vad = PendingSpeech(at_s, None, over_bot)
            return
        self._user_begins(over_bot=over_bot)
        self._file_vad(at_s, None)

    @property
    def _awaits_ruling(self) -> bool:
        return self.has_rulings and (self.ruled_turn is None or self.is_answered)

    def _file_vad(self, start_s: float | None, end_s: float | None) -> None:
        state = self._of(self.turn)
        gaps = state.gaps & ~Gap.VAD_END
        ends = state.vad_ends
        if start_s is None:
            start_s, gaps = end_s or 0.0, gaps | Gap.VAD
        if end_s is not None:
            ends = (*ends, end_s)
        self._change(self.turn, vad_starts=(*state.vad_starts, start_s), vad_ends=ends, gaps=gaps)
        self.vad_turn = self.turn if end_s is None else None

    def _lose_vad_end(self) -> None:
        """The detector hears a new start: the end of the stretch before it was lost."""
        turn, self.vad_turn = self.vad_turn, None
        self.vad_open_s = self.pending_vad = None
        if turn is not None:
            state = self._of(turn)
            gaps = state.gaps | Gap.VAD | Gap.VAD_END
            self._change(turn, vad_ends=(*state.vad_ends, state.vad_starts[-1]), gaps=gaps)
            if self.over_user == turn:
                self.over_user = None

    def _vad_stopped(self, at_s: float, _time_ms: int) -> None:
        self.has_user_events = True
        if self.vad_open_s is None:
            if at_s - self.vad_closed_s < SAME_MOMENT_SECONDS:
                return
            self._vad_stopped_alone(at_s)
        elif self.vad_turn is not None:
            self._change(self.vad_turn, vad_ends=(*self._of(self.vad_turn).vad_ends, at_s))
            self._confirm_over_user(self.vad_turn)
        elif self.pending_vad is not None:
            self.pending_vad = self.pending_vad._replace(end_s=at_s)
        if not self.has_rulings:
            self.answering = self.turn
        self.vad_turn = self.vad_open_s = None
        self.vad_closed_s = at_s

    def _vad_stopped_alone(self, at_s: float) -> None:
        """The start was lost, or came before anybody watched."""
        if self._awaits_ruling:
            self.pending_vad = PendingSpeech(None, at_s, is_over_bot=False)
            return
        if self.ruled_turn is None:
            self._user_begins(over_bot=False)
        self._file_vad(None, at_s)

    def _take_pending(self, at_s: float) -> PendingSpeech | None:
        pending, self.pending_vad = self.pending_vad, None
        is_old = pending is not None and pending.end_s is not None and at_s - pending.end_s > MAX_PENDING_SECONDS
        return None if is_old else pending

    # The rulings.

    def _turn_started(self, at_s: float, _time_ms: int) -> None:
        self.has_user_events = True
        if self.ruled_turn is not None:
            state = self._of(self.ruled_turn)
            if at_s - state.release_starts[-1] < SAME_MOMENT_SECONDS:
                return  # EVA's log repeats every ruling
            gaps = state.gaps | Gap.RULING | Gap.RULING_END
            self._change(self.ruled_turn, release_ends=(*state.release_ends, state.release_starts[-1]), gaps=gaps)
            if self.over_user == self.ruled_turn and not state.vad_starts:
                self.over_user = None
        self._file_pending(self._take_pending(at_s))
        state = self._of(self.turn)
        gaps = state.gaps & ~Gap.RULING_END
        self._change(self.turn, release_starts=(*state.release_starts, at_s), gaps=gaps)
        self.ruled_turn, self.is_answered = self.turn, False

    def _file_pending(self, pending: PendingSpeech | None) -> None:
        """Begins a turn by a ruling, with the sound that it rules on."""
        self._user_begins(over_bot=self.bot_turn is not None or (pending is not None and pending.is_over_bot))
        if pending is not None:
            self._file_vad(pending.start_s, pending.end_s)

    def _turn_released(self, at_s: float, _time_ms: int) -> None:
        self.has_user_events = True
        ruled, self.ruled_turn = self.ruled_turn, None
        if ruled is not None:
            state = self._of(ruled)
            self._change(ruled, release_ends=(*state.release_ends, at_s))
            if not state.vad_starts:
                self._confirm_over_user(ruled)
        elif at_s - self.ruling_closed_s < SAME_MOMENT_SECONDS:
            return
        else:
            pending = self._take_pending(at_s)
            if pending is not None or self.has_bot_spoken or not self.turn:
                self._file_pending(pending)
        if ruled != self.turn:  # the ruling began before the turn, or its start was lost
            state = self._of(self.turn)
            gaps = (state.gaps & ~Gap.RULING_END) | (Gap.RULING if ruled is None else 0)
            starts, ends = (*state.release_starts, at_s), (*state.release_ends, at_s)
            self._change(self.turn, release_starts=starts, release_ends=ends, gaps=gaps)
        self.answering = self.turn
        self.is_answered = False
        self.ruling_closed_s = at_s

    def _confirm_over_user(self, turn: int) -> None:
        if self.over_user == turn:
            self._change(turn, assistant_interrupted=True)
            self.over_user = None

    def _user_text(self, at_s: float, _time_ms: int) -> None:
        if self.has_user_events or self.hears_agent or not self.hears_transcripts:
            return
        self._user_begins(over_bot=False)
        self.answering = self.turn
        self._change(self.turn, transcripts=(*self._of(self.turn).transcripts, at_s))

    # The bot.

    def _bot_started(self, at_s: float, _time_ms: int) -> None:
        self._hear_bot_events()
        if self.bot_turn is not None:
            state = self._of(self.bot_turn)
            start_s = state.bot_starts[-1]
            if at_s - start_s < SAME_MOMENT_SECONDS:
                return
            self._change(self.bot_turn, bot_ends=(*state.bot_ends, start_s), gaps=state.gaps | Gap.BOT)
            self.over_bot = None
        state = self._of(self.turn)
        if state.vad_starts and not self.has_rulings:
            self.lacks_rulings = True  # it answers without a ruling
            if self.unruled is not None:
                self._spoke_over(self.unruled)
                self.unruled = None
                state = self._of(self.turn)
        self.has_bot_spoken = True
        self.bot_turn = self.answering = self.turn
        is_over_user = self.vad_turn == self.turn if state.vad_starts else self.ruled_turn is not None
        if is_over_user and self.turn > 0:
            self.over_user = self.turn
        self.is_answered = self.ruled_turn is not None and bool(state.vad_starts) and not is_over_user
        self._change(self.turn, bot_starts=(*state.bot_starts, at_s))

    def _hear_bot_events(self) -> None:
        if not self.has_bot_events:  # from now on text begins no turn's answer
            self.has_bot_events = True
            self.touched.update(self.turns)

    def _bot_stopped(self, at_s: float, _time_ms: int) -> None:
        if self.bot_turn is not None:
            state = self._of(self.bot_turn)
            is_cut = self.over_bot is not None
            self._change(self.bot_turn, bot_ends=(*state.bot_ends, at_s), is_cut=state.is_cut or is_cut)
            if self.over_bot is not None:
                self._spoke_over(self.over_bot)
                self.over_bot = None
            self.bot_turn = None
        elif at_s - self.bot_closed_s < SAME_MOMENT_SECONDS:
            return
        else:
            self._hear_bot_events()
            self.has_bot_spoken = True
            state = self._of(self.turn)
            gaps = state.gaps | Gap.BOT | (0 if state.bot_starts else Gap.BOT_START)
            starts, ends = (*state.bot_starts, at_s), (*state.bot_ends, at_s)
            self._change(self.turn, bot_starts=starts, bot_ends=ends, gaps=gaps)
        self.bot_closed_s = at_s

    def _words(self, words: Words, time_ms: int) -> None:
        # Words are no part of a turn as it is heard: only judging, transcripts and counts of words read them.
        if words.is_user and words.is_turn and self.ruled_turn is None and self.pending_vad is not None:
            self._file_pending(self._take_pending(time_ms / 1000))  # the ruling was lost: words prove that it came
        turn = self.turn if words.is_user or self.hears_agent else self.answering
        self.words[turn] = (*self.words.get(turn, ()), words)
        self.have_words_changed = True
        if self.is_mute and not words.is_user:
            self.has_bot_spoken = True
            self._change(turn, is_written=True)

    def _bot_text(self, piece: TextPiece, time_ms: int) -> None:
        self._words(Words(is_user=False, rank=0, ref=piece), time_ms)
        if self.has_bot_events:
            return
        self.has_bot_spoken = True
        turn = self.answering
        self._change(turn, bot_texts=(*self._of(turn).bot_texts, time_ms / 1000))

    def _agent_heard(self, said: AgentWords, time_ms: int) -> None:
        if not self.has_user_events:
            self.hears_agent = True
            self._user_begins(over_bot=False)
            self.answering = self.turn
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
            self._user_begins(over_bot=False)
            if not self._of(self.turn).user_interrupted:
                self._change(self.turn, user_interrupted=True)

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
