"""Turns by the bot's own view: what pipecat and ElevenLabs agents report of speech, one transition
for each moment.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from itertools import chain
from math import inf
from operator import attrgetter
from typing import Any, Final, NamedTuple

from consumers.engine.turns.timeline import (
    AGENT_RANK,
    AUDIT_RANK,
    PIPECAT_RANK,
    TIME_SHIFT,
    Replays,
    Sounds,
    Timeline,
    ToolEntry,
    ToolPayload,
    TurnSounds,
    order_key,
)
from schemas.units import MS_PER_SECOND

# The bot's own texts in pieces, so that each lies in the turn in which it came, with or without
# EVA's turn markers.
#
# A phrase is a piece of its own. Single words are one piece until the caller's turn begins, a
# marker comes, or the words pause. EVA's groups (`turns/eva_text`) follow other rules, and its
# context reads those.

MAX_PAUSE_MS: Final = 1_000
"""Longest pause between two words of one piece. A caller who takes a turn speaks longer."""


class TextPiece:
    """One phrase, or a run of words; it may grow while it is the newest."""

    __slots__ = ("glue", "is_phrase", "key", "length", "parts")

    def __init__(self, glue: str, text: str, *, is_phrase: bool) -> None:
        self.key = 0
        self.glue = glue
        self.parts = [text]
        self.length = len(text)
        self.is_phrase = is_phrase

    @property
    def text(self) -> str:
        """The frames so far, joined."""
        if len(self.parts) > 1:
            self.parts = [self.glue.join(self.parts)]
        return self.parts[0]

    def append(self, frame: str) -> None:
        """Adds a frame at the end."""
        self.parts.append(frame)
        self.length += len(self.glue) + len(frame)


class PipecatTexts:
    """The texts of one call's pipecat stream, in stream order. Replies of the model count only
    while no text went to synthesis.
    """

    def __init__(self) -> None:
        self._open: TextPiece | None = None
        self._last_ms = -inf
        self._phrase: tuple[int, str] | None = None
        self._has_speech = False
        self._replies: list[TextPiece] = []

    def close(self) -> None:
        """Ends the open piece: another turn may begin."""
        self._open = None

    def speech(self, edits: "BotHistory", time_ms: int, frame: str) -> bool:
        """Adds a `tts_text` frame; returns whether it begins a piece."""
        if not self._has_speech:
            self._has_speech = True
            self._open = None
            for reply in self._replies:
                edits.displace_text(reply)
            self._replies.clear()
        if " " not in frame:
            return self._word(edits, time_ms, frame, " ")
        if self._phrase == (time_ms, frame):
            return False  # the record came twice
        self._phrase = time_ms, frame
        self._open = None
        edits.place_text(TextPiece(" ", frame, is_phrase=True), time_ms)
        return True

    def reply(self, edits: "BotHistory", time_ms: int, frame: str) -> bool:
        """Adds an `llm_response`, whole or a token with its own blanks; returns whether it begins a
        piece.
        """
        if self._has_speech:
            return False
        is_new = self._word(edits, time_ms, frame, "")
        if is_new and self._open is not None:
            self._replies.append(self._open)
        return is_new

    def _word(self, edits: "BotHistory", time_ms: int, frame: str, glue: str) -> bool:
        has_paused = abs(time_ms - self._last_ms) > MAX_PAUSE_MS
        self._last_ms = time_ms
        if self._open is not None and not has_paused:
            self._open.append(frame)
            return False
        self._open = TextPiece(glue, frame, is_phrase=False)
        edits.place_text(self._open, time_ms)
        return True


def spoken_once(pieces: Iterable[TextPiece]) -> list[TextPiece]:
    """These pieces without a phrase whose single words follow: it announced them.

    Example:
        >>> pieces = TextPiece(" ", "At nine.", is_phrase=True), TextPiece(" ", "At", is_phrase=False)
        >>> pieces[1].append("nine.")
        >>> [piece.text for piece in spoken_once(pieces)]
        ['At nine.']
    """
    kept: list[TextPiece] = []
    announced: str | None = None
    for piece in pieces:
        if (
            announced is not None
            and not piece.is_phrase
            and f"{piece.text} ".startswith(f"{announced} ")
        ):
            kept.pop()
        announced = piece.text if piece.is_phrase else None
        kept.append(piece)
    return kept


# One turn of a call as its bot heard it, and the moments and words that turns are made of.

SAME_MOMENT_SECONDS: Final = 0.25
"""Two equal moments this close are one: both halves of a broadcast, or a record that was sent
twice. No stretch of speech is so short that another can begin or end so soon after it.
"""
MAX_PENDING_SECONDS: Final = 3.0
"""Longest time from the end of a stretch of sound to the ruling that makes it a turn; a strategy
that waits for words takes one or two. An older stretch was a cough.
"""
MESSAGE_RANK: Final = 2
"""Rank of an answer's words that a bot sends as one message, among those of the other sources."""
MAX_NAMED_SOUNDS: Final = 4_096
"""Sounds of a call that are known by their ids; two hours have a quarter of them."""
FIRST_WORDS_SECONDS: Final = 0.3
"""Shortest time from the start of a sound that a detector hears to final words of it: one short
word, without the recogniser's own time. Earlier words are of the sound before.
"""


class Gap:
    """Unknown times of a turn, because a moment was lost, as bits.

    Attributes:
        VAD: Start or end of a stretch that the detector heard.
        RULING: Start or end of a ruling.
        BOT: Start or end of a stretch of the bot's speech.
        VAD_END: The end of the newest stretch that the detector heard.
        RULING_END: The end of the newest ruling.
        BOT_START: The start of the bot's first stretch.
    """

    VAD: Final = 1
    RULING: Final = 2
    BOT: Final = 4
    VAD_END: Final = 8
    RULING_END: Final = 16
    BOT_START: Final = 32


class BotElementKind(IntEnum):
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


class RankedWords(NamedTuple):
    """Words of one speaker: the rank of their source (0 is best), and the text, the bot's text or
    its key in EVA's history.

    `event_id` is the one that an ElevenLabs agent gave it. `is_cut` marks the heard part of an
    answer that was cut off, `is_turn` the words of the caller at the end of a turn. `sounded_s` is
    a moment of their sound (epoch seconds), where the source tells it beside the time of the
    record; `sound_id` names that sound.
    """

    is_user: bool
    rank: int
    ref: int | str | TextPiece
    event_id: int | None = None
    is_cut: bool = False
    is_turn: bool = False
    sounded_s: float | None = None
    sound_id: str | None = None
    at_ms: int | None = None


class AgentWords(NamedTuple):
    """One utterance in a conversation with an ElevenLabs agent; `is_exact` is false where its time
    gives only the order.
    """

    words: tuple[RankedWords, ...]
    is_exact: bool


class BotTurn(NamedTuple):
    """One turn; times in epoch seconds, in the order of the moments.

    Starts and ends of the detector, the rulings and the bot belong together by their places; only
    the last end can be missing. A stretch of which one end was lost has no length and lies at the
    known end; `gaps` says so. `is_cut` means that the caller spoke over the bot's speech of this
    turn. `written` has the times of the words with which a bot that never speaks answered.
    """

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
    gaps: int = 0
    is_cut: bool = False
    written: tuple[float, ...] = ()

    def has_user_end(self, end_ms: int) -> bool:
        """Whether the caller ended in this turn at that millisecond, by any of the reports that
        know it.
        """
        return any(
            end_ms == int(end_s * 1000)
            for end_s in (*self.vad_ends, *self.release_ends, *self.transcripts)
        )

    @property
    def sounds(self) -> TurnSounds:
        """The caller's are those that the detector heard, otherwise those that the rulings made."""
        caller = Sounds(self.vad_starts, self.vad_ends, are_paired_by_time=True)
        if not self.vad_starts:
            caller = Sounds(self.release_starts, self.release_ends, are_paired_by_time=True)
        return TurnSounds(Sounds(self.bot_starts, self.bot_ends, are_paired_by_time=True), caller)

    @property
    def times_s(self) -> Iterator[tuple[float, ...]]:
        """All moments of the turn, in groups."""
        return chain(self[:8], (self.agent_heard, self.agent_said))

    @property
    def user_start_s(self) -> float | None:
        """The caller's first moment, of sound or ruling; None without any, and where a start was
        lost.
        """
        return (
            None
            if self.gaps & (Gap.VAD | Gap.RULING)
            else min((*self.vad_starts[:1], *self.release_starts[:1]), default=None)
        )

    @property
    def user_end_s(self) -> float | None:
        """End of the caller's last sound, otherwise of the last ruling; None without either, and
        while it is open.
        """
        starts, ends = self.vad_starts, self.vad_ends
        if not starts:
            starts, ends = self.release_starts, self.release_ends
        return ends[-1] if ends and len(ends) == len(starts) else None


class PendingSpeech(NamedTuple):
    """A stretch of sound that no ruling has made a turn yet: its start and end, None while unknown,
    and whether the bot spoke when it began.
    """

    start_s: float | None
    end_s: float | None
    is_over_bot: bool


# Live turns of a call without a simulated caller, from the bot's own events.
#
# A caller is heard at two layers. The voice activity detector (`vad`) hears sound, coughs included;
# the turn strategy (`turn_release`) rules that it was a turn. Rulings advance turns where the call
# has them, and the detector's times are used where it has them. A call with neither has the agent's
# transcript of the caller, or messages with the caller's words: these tell the order of turns and
# no time. The assistant is heard through its own speech events, or, in a call without them, through
# the text sent to speech synthesis. An ElevenLabs agent has none of these: its moments are the
# arrivals of its transcripts and answers.
#
# Any of these moments can be lost or come twice, because an observer's queue is bounded and
# producers retry. A moment that is missing makes a time unknown (`Gap`) and nothing more: who spoke
# over whom is decided when the stretch of speech that was spoken over has its end, and a stretch
# without one proves nothing.

_EMPTY = BotTurn()


class BotTurnMachine:
    """State after the last moment. `turn` 0 is the greeting.

    `touched` has, since it was last emptied, every turn whose times, interruptions or tools may
    differ; a change of words alone sets `have_words_changed` instead, until the reader of the words
    clears it. `reworded` has the turns whose words may differ, but for pieces of a text that grows.

    `bot_turn` is the turn in which the bot speaks, `ruled_turn` the one of the open ruling,
    `vad_turn` the one of the open stretch of sound, each None without one. `answering` is the turn
    to which the bot's words belong: one that the caller has finished. `is_answered` means that the
    bot has answered during a ruling whose end is overdue. `over_bot` and `over_user` are turns that
    one side began while the other spoke, not confirmed yet; `unruled` is such a turn from before
    the first ruling.

    Six attributes are no state but facts of the call, whenever they become known: whether
    transcripts mark the end of the caller's turn (`hears_transcripts`), a turn strategy rules
    (`has_rulings`), a detector hears the caller (`hears_detector`), the bot reports its answers as
    they were heard (`reports_answers`), no event shows that it speaks (`is_mute`), it `is_over`.

    `reads_log` says that the agent's own transcripts mark the turns of a caller who is not heard;
    messages then repeat them.

    Words can come after the next sound has begun. `latest_words_s` is how long after the end of a
    sound they may still be of it, and `name_sound` gives a sound the id by which its words name it.
    """

    # Each value that a checkpoint keeps, besides turns and words; its annotation makes it one.
    turn: int = 0
    answering: int = 0
    has_bot_spoken: bool = False
    bot_turn: int | None = None
    ruled_turn: int | None = None
    is_answered: bool = False
    vad_turn: int | None = None
    vad_open_s: float | None = None
    pending_vad: PendingSpeech | None = None
    vad_closed_s: float = -inf
    ruling_closed_s: float = -inf
    bot_closed_s: float = -inf
    over_bot: int | None = None
    over_user: int | None = None
    unruled: int | None = None
    lacks_rulings: bool = False
    has_user_events: bool = False
    has_bot_events: bool = False
    hears_agent: bool = False
    reads_log: bool = False
    last_tool: ToolEntry | None = None

    def __init__(self, latest_words_s: float = 0.0) -> None:
        self.latest_words_s = latest_words_s
        self._sounds_s = dict[str, float]()
        self.turns = dict[int, BotTurn]()
        self.words = dict[int, tuple[RankedWords, ...]]()
        self.touched = set[int]()
        self.reworded = set[int]()
        self.have_words_changed = False
        self.hears_transcripts = self.is_mute = True
        self.has_rulings = self.hears_detector = self.reports_answers = self.is_over = False

    def apply(self, kind: int, payload: Any, time_ms: int) -> None:
        """Applies one moment; `payload` is its exact time in epoch seconds, or the tool."""
        _RULES[kind](self, payload, time_ms)

    def name_sound(self, sound_id: str, start_s: float) -> None:
        """Notes the start of a sound of the caller, before its moment is applied."""
        if len(self._sounds_s) < MAX_NAMED_SOUNDS:
            self._sounds_s.setdefault(sound_id, start_s)

    def was_answered(self, time_ms: int) -> bool:
        """Whether an ElevenLabs agent had answered in the newest turn by then."""
        return any(said_s <= time_ms / 1000 for said_s in self._of(self.turn).agent_said[:1])

    def freeze(self) -> object:
        """The state; turns are immutable, so a shallow copy is enough."""
        # a dict takes twice the bytes
        turns, words = map(chain.from_iterable, (self.turns.items(), self.words.items()))
        return _read_fields(self), tuple(turns), tuple(words)

    def thaw(self, frozen: Any) -> None:
        """Returns to a frozen state; every turn that differs is touched."""
        fields, *flat = frozen
        turns, words = (dict(zip(each[::2], each[1::2], strict=True)) for each in flat)
        for name, value in zip(_FIELDS, fields, strict=True):
            setattr(self, name, value)
        self.touched.update(
            number for number, state in self.turns.items() if turns.get(number) is not state
        )
        self.reworded.update(
            number for number, said in self.words.items() if words.get(number) is not said
        )
        self.turns = turns
        self.words = words
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
        """Notes that the user spoke over the bot; before the first ruling, a stretch that is over
        may have been a cough.
        """
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
        is_old = (
            pending is not None
            and pending.end_s is not None
            and at_s - pending.end_s > MAX_PENDING_SECONDS
        )
        return None if is_old else pending

    # The rulings.

    def _turn_started(self, at_s: float, _time_ms: int) -> None:
        self.has_user_events = True
        if self.ruled_turn is not None:
            state = self._of(self.ruled_turn)
            if at_s - state.release_starts[-1] < SAME_MOMENT_SECONDS:
                return  # EVA's log repeats every ruling
            gaps = state.gaps | Gap.RULING | Gap.RULING_END
            self._change(
                self.ruled_turn,
                release_ends=(*state.release_ends, state.release_starts[-1]),
                gaps=gaps,
            )
            if self.over_user == self.ruled_turn and not state.vad_starts:
                self.over_user = None
        self._file_pending(self._take_pending(at_s))
        state = self._of(self.turn)
        gaps = state.gaps & ~Gap.RULING_END
        self._change(self.turn, release_starts=(*state.release_starts, at_s), gaps=gaps)
        self.ruled_turn, self.is_answered = self.turn, False

    def _file_pending(self, pending: PendingSpeech | None) -> None:
        """Begins a turn by a ruling, with the sound that it rules on."""
        self._user_begins(
            over_bot=self.bot_turn is not None or (pending is not None and pending.is_over_bot)
        )
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
        if self.has_user_events or self.hears_agent:
            return
        self.reads_log = True
        self._user_begins(over_bot=False)
        self.answering = self.turn
        # Where a model hears the sound itself, its transcript tells the order and no time.
        heard = (at_s,) if self.hears_transcripts else ()
        self._change(self.turn, transcripts=(*self._of(self.turn).transcripts, *heard))

    # The bot.

    def _bot_started(self, at_s: float, _time_ms: int) -> None:
        self._hear_bot_events()
        if self.bot_turn is not None:
            state = self._of(self.bot_turn)
            start_s = state.bot_starts[-1]
            if at_s - start_s < SAME_MOMENT_SECONDS:
                return
            self._change(
                self.bot_turn, bot_ends=(*state.bot_ends, start_s), gaps=state.gaps | Gap.BOT
            )
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
        is_over_user = (
            self.vad_turn == self.turn if state.vad_starts else self.ruled_turn is not None
        )
        if is_over_user and self.turn > 0:
            self.over_user = self.turn
        self.is_answered = (
            self.ruled_turn is not None and bool(state.vad_starts) and not is_over_user
        )
        self._change(self.turn, bot_starts=(*state.bot_starts, at_s))

    def _hear_bot_events(self) -> None:
        if not self.has_bot_events:  # from now on text begins no turn's answer
            self.has_bot_events = True
            self.touched.update(self.turns)

    def _bot_stopped(self, at_s: float, _time_ms: int) -> None:
        if self.bot_turn is not None:
            state = self._of(self.bot_turn)
            is_cut = self.over_bot is not None
            self._change(
                self.bot_turn, bot_ends=(*state.bot_ends, at_s), is_cut=state.is_cut or is_cut
            )
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

    def _words(self, words: RankedWords, time_ms: int) -> None:
        # Words are no part of a turn as it is heard: only judging, transcripts and counts of words
        # read them.
        turn = self.turn if self.hears_agent else self.answering
        if words.is_turn and not (self.has_user_events or self.hears_agent or self.reads_log):
            # Nothing else tells that the caller has spoken; when, these words do not tell.
            self._user_begins(over_bot=False)
            self.answering = turn = self.turn
            self._change(turn)
        elif words.is_user:
            turn = self._turn_of_caller(words, time_ms / 1000)
        elif turn > 1 and words.rank == MESSAGE_RANK and words.sounded_s is None:
            turn = self._turn_of_message(turn, time_ms / 1000)
        self.words[turn] = (*self.words.get(turn, ()), words)
        self.have_words_changed = True
        self.reworded.add(turn)
        if self.is_mute and not words.is_user:
            self.has_bot_spoken = True
            self._change(turn, written=(*self._of(turn).written, time_ms / 1000))

    def _turn_of_caller(self, words: RankedWords, at_s: float) -> int:
        """The turn of the sound that these words of the caller are of; they came at `at_s`."""
        if words.sound_id in self._sounds_s:
            words = words._replace(sounded_s=self._sounds_s[words.sound_id])
        pending = self.pending_vad if self.ruled_turn is None else None
        turn = self.turn
        if pending is not None:
            if self._are_of_a_sound_before(
                words, at_s, pending.start_s, turn, is_open=pending.end_s is None
            ):
                return self._sounded(words, turn)
            if words.is_turn:  # the ruling was lost: words prove that it came
                self._file_pending(self._take_pending(at_s))
            return self.turn
        state = self._of(turn)
        is_open = (self.vad_turn if state.vad_starts else self.ruled_turn) == turn
        is_first = len(state.vad_starts or state.release_starts) == 1
        if not self._are_of_a_sound_before(
            words, at_s, state.user_start_s, turn - 1, is_open=is_open and is_first
        ):
            return turn
        turn = self._sounded(words, turn - 1)
        self.touched.add(turn)  # the call has left it
        return turn

    def _turn_of_message(self, turn: int, at_s: float) -> int:
        """The turn of the answer that a message without a time of its own has the words of. A bot
        sends it when the answer is over, or before its sound: so it is of the answer that ended
        last, where that one has no words yet and no new one is heard.
        """
        before = self._of(turn - 1)
        is_over = len(before.bot_ends) == len(before.bot_starts) > 0 and self.bot_turn is None
        if (
            not is_over
            or self._of(turn).bot_starts
            or at_s - before.bot_ends[-1] > self.latest_words_s
        ):
            return turn
        if any(not each.is_user for each in self.words.get(turn - 1, ())):
            return turn
        self.touched.add(turn - 1)  # the call has left it
        return turn - 1

    def _are_of_a_sound_before(
        self, words: RankedWords, at_s: float, start_s: float | None, turn: int, *, is_open: bool
    ) -> bool:
        """Whether words came after the caller's newest sound began and are of an earlier one.

        Args:
            words: The words.
            at_s: When they came.
            start_s: When the newest sound began; None when unknown.
            turn: The turn of the sound before it.
            is_open: Whether the newest sound is the first of its turn and has not ended.
        """
        if start_s is None or turn < 1:
            return False
        if words.sounded_s is not None:
            return words.sounded_s < start_s - SAME_MOMENT_SECONDS
        # Without a time of their own they are of the sound that ended last before they came, where
        # that one has none yet.
        state = self._of(turn)
        end_s = state.user_end_s
        if not is_open or end_s is None or at_s - end_s > self.latest_words_s:
            return False
        is_too_soon = self.hears_detector and at_s - start_s < FIRST_WORDS_SECONDS
        return is_too_soon or not any(
            each.is_user and each.rank == words.rank for each in self.words.get(turn, ())
        )

    def _sounded(self, words: RankedWords, turn: int) -> int:
        """The turn, at most this one, in which the words sounded, by their own time."""
        if words.sounded_s is not None:
            while (
                turn > 1
                and (self._of(turn).user_start_s or 0.0) - SAME_MOMENT_SECONDS > words.sounded_s
            ):
                turn -= 1
        return turn

    def _bot_text(self, piece: TextPiece, time_ms: int) -> None:
        self._words(RankedWords(is_user=False, rank=0, ref=piece), time_ms)
        if self.has_bot_events:
            return
        self.has_bot_spoken = True
        turn = self.answering
        self._change(turn, bot_texts=(*self._of(turn).bot_texts, time_ms / 1000))

    def _agent_heard(self, said: AgentWords, time_ms: int) -> None:
        if not self.has_user_events:
            self.hears_agent = True
            at_s, is_exact = time_ms / 1000, said.is_exact
            answered_s = self._begin_answered(said.words[0].event_id, at_s)
            if answered_s is None:
                self._user_begins(over_bot=False)
            else:
                at_s, is_exact = answered_s, False  # only the order is known
            self.answering = self.turn
            state = self._of(self.turn)
            self._change(
                self.turn,
                agent_heard=(*state.agent_heard, at_s),
                are_times_exact=state.are_times_exact and is_exact,
            )
        for words in said.words:
            self._words(words, time_ms)

    def _begin_answered(self, event_id: int | None, at_s: float) -> float | None:
        """Begins the turn of words that come after their answer, and gives it the answer. The ids
        of an ElevenLabs agent grow, so an answer with the same id or a higher one is of these
        words.

        Returns:
            The time of the answer; None where these words come before it.
        """
        turn, state = self.turn, self._of(self.turn)
        said = self.words.get(turn, ())
        ids = [each.event_id for each in said if not each.is_user and each.rank == 0]
        place = _first_from(event_id, ids)
        if (
            place is None
            or len(ids) != len(state.agent_said)
            or at_s - state.agent_said[place] > self.latest_words_s
        ):
            return None
        if place or not turn:
            of_answer = [not each.is_user and each.event_id in ids[place:] for each in said]
            self._part(
                turn, of_answer, agent_said=(state.agent_said[:place], state.agent_said[place:])
            )
        return state.agent_said[place]

    def _part(
        self,
        turn: int,
        are_later: list[bool],
        **times_s: tuple[tuple[float, ...], tuple[float, ...]],
    ) -> None:
        """Makes the newest turn two: each has its part of the words and times."""
        said = self.words.get(turn, ())
        self.words[turn], self.words[turn + 1] = (
            tuple(
                words
                for words, is_later in zip(said, are_later, strict=True)
                if is_later is of_later
            )
            for of_later in (False, True)
        )
        self.turn = turn + 1
        self._change(turn, **{name: earlier for name, (earlier, _) in times_s.items()})
        self._change(turn + 1, **{name: later for name, (_, later) in times_s.items()})
        if self.turns[turn] == _EMPTY and not self.words[turn]:
            del self.turns[turn], self.words[turn]

    def _agent_said(self, said: AgentWords, time_ms: int) -> None:
        turn, is_late = self._turn_of_answer(said.words[0].event_id, time_ms / 1000)
        if not is_late:
            for words in said.words:
                self._words(words, time_ms)
            if self.has_bot_events:
                return
            self.has_bot_spoken = True
        else:
            self.words[turn] = (*self.words.get(turn, ()), *said.words)
            self.have_words_changed = True
            self.reworded.add(turn)
        state = self._of(turn)
        is_first = not state.agent_said  # only the first answer ends a latency
        is_exact = said.is_exact and not is_late
        self._change(
            turn,
            agent_said=(*state.agent_said, time_ms / 1000),
            are_times_exact=state.are_times_exact and (is_exact or not is_first),
        )

    def _turn_of_answer(self, event_id: int | None, at_s: float) -> tuple[int, bool]:
        """The turn of an answer, and whether it comes after words of the caller that followed it,
        as their ids tell.
        """
        turn, state = self.turn, self._of(self.turn)
        said = self.words.get(turn, ())
        ids = [each.event_id for each in said if each.is_user]
        place = None if event_id is None else _first_from(event_id + 1, ids)
        if (
            place is None
            or len(ids) != len(state.agent_heard)
            or at_s - state.agent_heard[place] > self.latest_words_s
        ):
            return turn, False
        if not place:
            return turn - 1, True
        first = ids[place] or 0
        are_later = [each.event_id is not None and each.event_id >= first for each in said]
        answers = sum(
            not later and not each.is_user and each.rank == 0
            for each, later in zip(said, are_later, strict=True)
        )
        self._part(
            turn,
            are_later,
            agent_heard=(state.agent_heard[:place], state.agent_heard[place:]),
            agent_said=(state.agent_said[:answers], state.agent_said[answers:]),
        )
        self.answering = self.turn
        return turn, True

    def _agent_cut_off(self, _payload: None, _time_ms: int) -> None:
        if not self.has_user_events:
            self._user_begins(over_bot=False)
            if not self._of(self.turn).user_interrupted:
                self._change(self.turn, user_interrupted=True)

    def _fallback(self, _payload: None, _time_ms: int) -> None:
        self._change(self.turn, is_fallback=True)

    def _tool_call(self, use: ToolPayload, time_ms: int) -> None:
        self._tool(use, time_ms, is_response=False)

    def _tool_response(self, use: ToolPayload, time_ms: int) -> None:
        self._tool(use, time_ms, is_response=True)

    def _tool(self, use: ToolPayload, time_ms: int, *, is_response: bool) -> None:
        self._change(self.turn)
        self.last_tool = ToolEntry(self.last_tool, self.turn, use, time_ms, is_response=is_response)


def _first_from(event_id: int | None, ids: list[int | None]) -> int | None:
    """The place from which on all ids are this one or higher; None without one, and where an id is
    not known.
    """
    if event_id is None or None in ids:
        return None
    place = next(
        (place for place, each in enumerate(ids) if each is not None and each >= event_id), None
    )
    are_higher = place is not None and all(
        each is not None and each >= event_id for each in ids[place:]
    )
    return place if are_higher else None


_FIELDS = tuple(BotTurnMachine.__annotations__)
_read_fields = attrgetter(*_FIELDS)
# The rule of a kind of moment is the method of its name.
_RULES = tuple(getattr(BotTurnMachine, f"_{kind.name.lower()}") for kind in BotElementKind)


# The bot's own view of who speaks, as a timeline: speech moments of pipecat's stream, tools and
# transcripts of the audit log, events of an ElevenLabs agent.

_START_OF = {
    BotElementKind.VAD_STOPPED: BotElementKind.VAD_STARTED,
    BotElementKind.TURN_RELEASED: BotElementKind.TURN_STARTED,
    BotElementKind.BOT_STOPPED: BotElementKind.BOT_STARTED,
}
_OF_DETECTOR = (BotElementKind.VAD_STARTED, BotElementKind.VAD_STOPPED)
_RULINGS = (BotElementKind.TURN_STARTED, BotElementKind.TURN_RELEASED)
_OF_THE_BOT = (BotElementKind.BOT_STARTED, BotElementKind.BOT_STOPPED)
_BORDERS = (BotElementKind.VAD_STARTED, BotElementKind.TURN_STARTED)
"""Moments at which a turn of the caller can begin, so that the bot's further words are another
piece.
"""

_AGENT_PLACES = {
    BotElementKind.AGENT_HEARD: 0,
    BotElementKind.TOOL_CALL: 1,
    BotElementKind.TOOL_RESPONSE: 2,
    BotElementKind.AGENT_SAID: 3,
    BotElementKind.AGENT_CUT_OFF: 4,
}
"""Order of an agent's events that a bridge receives in the same millisecond: the usual course of a
turn.
"""
_MAX_ORDERED_ID = 0xFFFF


class BotHistory:
    """Orders the moments of a call by their times, in whatever order they arrive."""

    def __init__(self, replays: Replays, latest_words_ms: int = 0) -> None:
        self.machine = BotTurnMachine(latest_words_ms / MS_PER_SECOND)
        self._replays = replays
        self.timeline = Timeline(self.machine, TIME_SHIFT, replays)
        self._pipecat_count = 0
        self._audit_count = 0
        self._words_count = 0
        self._starts_s: dict[BotElementKind, float] = {}
        self._has_answers = False
        self._text = PipecatTexts()

    @property
    def has_moments(self) -> bool:
        """Whether there is any moment of speech or use of a tool."""
        return len(self.timeline) > self._words_count

    def said_in_log(self, time_ms: int, words: RankedWords) -> None:
        """Adds words from the audit log."""
        self._words_count += 1
        self._has_answers = self._has_answers or not words.is_user
        self.audited(BotElementKind.WORDS, time_ms, words)

    def said_to_pipecat(self, time_ms: int, words: RankedWords) -> None:
        """Adds words from pipecat's stream."""
        self._words_count += 1
        self._has_answers = self._has_answers or not words.is_user
        self._insert(time_ms, BotElementKind.WORDS, words)

    def said_in_record(self, said: Iterable[tuple[int, RankedWords]]) -> None:
        """Adds words that a record has of the call, with the times in ms at which they
        were said.
        """
        found = []
        for time_ms, words in said:
            self._words_count += 1
            self._pipecat_count += 1
            self._has_answers = self._has_answers or not words.is_user
            found.append(
                (order_key(time_ms, PIPECAT_RANK, self._pipecat_count), BotElementKind.WORDS, words)
            )
        self.timeline.insert_all(found)

    def is_start_unseen(self, moment: BotElementKind) -> bool:
        """Whether a moment that is not added yet shows that somebody speaks whose start was lost:
        the bot stops that did not speak, or the caller's turn begins and the detector, which hears
        this call, has heard no sound.
        """
        if moment is BotElementKind.TURN_STARTED:
            return (
                self.machine.hears_detector
                and self.machine.vad_open_s is None
                and self.machine.pending_vad is None
            )
        return moment is BotElementKind.BOT_STOPPED and self.machine.bot_turn is None

    def spoken(self, moment: BotElementKind, at_s: float, started_s: float | None = None) -> bool:
        """Adds the start or end of somebody's speech at `at_s` (epoch seconds).

        Args:
            moment: Its kind.
            at_s: When it happened.
            started_s: Of an end, the start of the same stretch, if the producer repeats it: it is
                added where it was lost.

        Returns:
            Whether a lost start was added.
        """
        start = _START_OF.get(moment)
        is_found = (
            start is not None
            and started_s is not None
            and started_s <= at_s
            and abs(self._starts_s.get(start, -inf) - started_s) >= SAME_MOMENT_SECONDS
        )
        if is_found and start is not None and started_s is not None:
            self._spoken(start, started_s)
        self._spoken(moment, at_s)
        return is_found

    def _spoken(self, moment: BotElementKind, at_s: float) -> None:
        if moment in _BORDERS:
            self._text.close()
        if moment in _RULINGS and not self.machine.has_rulings:
            self.machine.has_rulings = True
            if self.machine.hears_detector:
                self._fold_again()
        if moment in _OF_THE_BOT:
            self._hear_bot()
        if moment in _OF_DETECTOR and not self.machine.hears_detector:
            self.machine.hears_detector = True
            self.machine.touched.update(self.machine.turns)
        self._starts_s[moment] = at_s
        self._insert(int(at_s * 1000), moment, at_s)

    def _insert(self, time_ms: int, moment: BotElementKind, payload: object) -> int:
        self._pipecat_count += 1
        key = order_key(time_ms, PIPECAT_RANK, self._pipecat_count)
        self.timeline.insert(key, moment, payload)
        return key

    def synthesised(self, time_ms: int, frame: str) -> bool:
        """Adds text for speech synthesis; returns whether it begins a piece of text."""
        return self._text.speech(self, time_ms, frame)

    def replied(self, time_ms: int, frame: str) -> bool:
        """Adds a reply of the model, for calls without synthesis; returns whether it begins a piece
        of text.
        """
        return self._text.reply(self, time_ms, frame)

    def marked(self) -> None:
        """Notes one of EVA's turn markers: a border of texts."""
        self._text.close()

    def place_text(self, piece: TextPiece, time_ms: int) -> None:
        """Adds a piece of the bot's text."""
        self._hear_bot()
        piece.key = self._insert(time_ms, BotElementKind.BOT_TEXT, piece)

    def displace_text(self, piece: TextPiece) -> None:
        """Removes a piece of the bot's text."""
        self.timeline.remove(piece.key)

    def audited(self, moment: BotElementKind, time_ms: int, payload: object) -> None:
        """Adds a tool, or the agent's transcript of the caller, from the audit log."""
        self._audit_count += 1
        self.timeline.insert(order_key(time_ms, AUDIT_RANK, self._audit_count), moment, payload)

    def from_agent(
        self, moment: BotElementKind, time_ms: int, event_id: int | None, payload: object
    ) -> int:
        """Adds an event of an ElevenLabs agent; `payload` is not None.

        Returns:
            The key by which it can be changed. Equal times are ordered by id, then by the usual
            course of a turn, then by arrival.
        """
        if moment is BotElementKind.AGENT_SAID:
            self._hear_bot()
        index = min(event_id or 0, _MAX_ORDERED_ID) << 16 | _AGENT_PLACES[moment] << 13
        key = order_key(time_ms, AGENT_RANK, index)
        while self.timeline.payload(key) is not None:
            key += 1
        self.timeline.insert(key, moment, payload)
        return key

    def fell_back(self, time_ms: int) -> None:
        """Adds a step of the agent's turn-end timer."""
        self._words_count += 1  # a fallback says nothing about speech
        self.audited(BotElementKind.FALLBACK, time_ms, None)

    def hear_transcripts(self, *, are_heard: bool) -> None:
        """Sets whether the agent's transcripts of the caller mark the end of a turn; a change folds
        everything again.
        """
        if are_heard is not self.machine.hears_transcripts:
            self.machine.hears_transcripts = are_heard
            self._fold_again()

    def report_answers(self) -> None:
        """Notes that the bot reports its answers as they were heard."""
        if not self.machine.reports_answers:
            self.machine.reports_answers = self.machine.have_words_changed = True

    def _hear_bot(self) -> None:
        """Notes that the bot speaks: its words alone are no answer. Answers that counted as such
        are folded again.
        """
        if self.machine.is_mute:
            self.machine.is_mute = False
            if self._has_answers:
                self._fold_again()

    def _fold_again(self) -> None:
        for first_key, _, _ in self.timeline:
            self.timeline.reread(first_key)
            break


# The numbers of one turn for a transcript: stage latencies, and tokens.

PRICE_DIGITS: Final = 12
"""Decimals of a price: a token costs some millionths, and sums of such numbers have noise far
behind.
"""


class TokenUsage(NamedTuple):
    """Tokens of one model in one turn. `input_tokens` neither came from a cache nor went into one.

    Prices are in USD; 0 where no source has one.
    """

    input_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    input_price: float = 0.0
    cache_read_price: float = 0.0
    cache_write_price: float = 0.0
    output_price: float = 0.0

    def plus(self, other: "TokenUsage") -> "TokenUsage":
        """The sum of both."""
        both = [mine + its for mine, its in zip(self, other, strict=True)]
        tokens, prices = both[:4], both[4:]
        if not any(prices):
            return TokenUsage(*map(int, tokens))
        return TokenUsage(*map(int, tokens), *(round(price, PRICE_DIGITS) for price in prices))


class TurnMetrics(NamedTuple):
    """Seconds by ElevenLabs' name of the stage (`convai_*`), for the user's and the agent's entry;
    tokens by model.

    A stage without a measurement is absent. A model without a name is the empty text.
    """

    seconds: Mapping[str, float]
    usage: Mapping[str, TokenUsage]
