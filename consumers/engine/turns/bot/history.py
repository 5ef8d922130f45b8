"""The bot's own view of who speaks, as a timeline: speech moments of pipecat's stream, tools and transcripts of the audit log,
events of an ElevenLabs agent.
"""

from math import inf

from consumers.engine.turns.bot.bot_turn import SAME_MOMENT_SECONDS, SpeechMoment, Words
from consumers.engine.turns.bot.spoken_text import SpokenText, TextPiece
from consumers.engine.turns.bot.turn_machine import BotTurnMachine
from consumers.engine.turns.timeline.elements import AGENT_RANK, AUDIT_RANK, PIPECAT_RANK, TIME_SHIFT, order_key
from consumers.engine.turns.timeline.timeline import Replays, Timeline

MOMENT_BY_KIND = {
    "user_speech_started": SpeechMoment.VAD_STARTED,
    "user_speech_stopped": SpeechMoment.VAD_STOPPED,
    "user_turn_started": SpeechMoment.TURN_STARTED,
    "user_turn_stopped": SpeechMoment.TURN_RELEASED,
    "bot_speech_started": SpeechMoment.BOT_STARTED,
    "bot_speech_stopped": SpeechMoment.BOT_STOPPED,
}
"""Moments by pipecat's `SpeechEvent` kinds; its `interruption` adds nothing to the starts."""

MOMENT_BY_LINE = {
    "user_started_speaking": SpeechMoment.TURN_STARTED,
    "user_stopped_speaking": SpeechMoment.TURN_RELEASED,
}
"""EVA's lines for the turn decision."""

_START_OF = {
    SpeechMoment.VAD_STOPPED: SpeechMoment.VAD_STARTED,
    SpeechMoment.TURN_RELEASED: SpeechMoment.TURN_STARTED,
    SpeechMoment.BOT_STOPPED: SpeechMoment.BOT_STARTED,
}
_OF_DETECTOR = (SpeechMoment.VAD_STARTED, SpeechMoment.VAD_STOPPED)
_RULINGS = (SpeechMoment.TURN_STARTED, SpeechMoment.TURN_RELEASED)
_OF_THE_BOT = (SpeechMoment.BOT_STARTED, SpeechMoment.BOT_STOPPED)
_BORDERS = (SpeechMoment.VAD_STARTED, SpeechMoment.TURN_STARTED)
"""Moments at which a turn of the caller can begin, so that the bot's further words are another piece."""

_AGENT_PLACES = {
    SpeechMoment.AGENT_HEARD: 0,
    SpeechMoment.TOOL_CALL: 1,
    SpeechMoment.TOOL_RESPONSE: 2,
    SpeechMoment.AGENT_SAID: 3,
    SpeechMoment.AGENT_CUT_OFF: 4,
}
"""Order of an agent's events that a bridge receives in the same millisecond: the usual course of a turn."""
_MAX_ORDERED_ID = 0xFFFF


class BotHistory:
    """Orders the moments of a call by their times, in whatever order they arrive."""

    def __init__(self, replays: Replays) -> None:
        self.machine = BotTurnMachine()
        self._replays = replays
        self.timeline = Timeline(self.machine, TIME_SHIFT, replays)
        self._pipecat_count = 0
        self._audit_count = 0
        self._words_count = 0
        self._starts_s: dict[SpeechMoment, float] = {}
        self._has_answers = False
        self._text = SpokenText()

    @property
    def has_moments(self) -> bool:
        """Whether there is any moment of speech or use of a tool."""
        return len(self.timeline) > self._words_count

    def said_in_log(self, time_ms: int, words: Words) -> None:
        """Adds words from the audit log."""
        self._words_count += 1
        self._has_answers = self._has_answers or not words.is_user
        self.audited(SpeechMoment.WORDS, time_ms, words)

    def said_to_pipecat(self, time_ms: int, words: Words) -> None:
        """Adds words from pipecat's stream."""
        self._words_count += 1
        self._has_answers = self._has_answers or not words.is_user
        self._insert(time_ms, SpeechMoment.WORDS, words)

    def is_start_unseen(self, moment: SpeechMoment) -> bool:
        """Whether a moment that is not added yet shows that somebody speaks whose start was lost: the bot stops that did not speak,
        or the caller's turn begins and the detector, which hears this call, has heard no sound.
        """
        if moment is SpeechMoment.TURN_STARTED:
            return self.machine.hears_detector and self.machine.vad_open_s is None and self.machine.pending_vad is None
        return moment is SpeechMoment.BOT_STOPPED and self.machine.bot_turn is None

    def spoken(self, moment: SpeechMoment, at_s: float, started_s: float | None = None) -> bool:
        """Adds the start or end of somebody's speech at `at_s` (epoch seconds).

        Args:
            moment: Its kind.
            at_s: When it happened.
            started_s: Of an end, the start of the same stretch, if the producer repeats it: it is added where it was lost.

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

    def _spoken(self, moment: SpeechMoment, at_s: float) -> None:
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
            self.machine.touch(self.machine.turns)
        self._starts_s[moment] = at_s
        self._insert(int(at_s * 1000), moment, at_s)

    def _insert(self, time_ms: int, moment: SpeechMoment, payload: object) -> int:
        self._pipecat_count += 1
        key = order_key(time_ms, PIPECAT_RANK, self._pipecat_count)
        self.timeline.insert(key, moment, payload)
        return key

    def synthesised(self, time_ms: int, frame: str) -> bool:
        """Adds text for speech synthesis; returns whether it begins a piece of text."""
        return self._text.speech(self, time_ms, frame)

    def replied(self, time_ms: int, frame: str) -> bool:
        """Adds a reply of the model, for calls without synthesis; returns whether it begins a piece of text."""
        return self._text.reply(self, time_ms, frame)

    def marked(self) -> None:
        """Notes one of EVA's turn markers: a border of texts."""
        self._text.close()

    def place_text(self, piece: TextPiece, time_ms: int) -> None:
        """Adds a piece of the bot's text."""
        self._hear_bot()
        piece.key = self._insert(time_ms, SpeechMoment.BOT_TEXT, piece)

    def displace_text(self, piece: TextPiece) -> None:
        """Removes a piece of the bot's text."""
        self.timeline.remove(piece.key)

    def audited(self, moment: SpeechMoment, time_ms: int, payload: object) -> None:
        """Adds a tool, or the agent's transcript of the caller, from the audit log."""
        self._audit_count += 1
        self.timeline.insert(order_key(time_ms, AUDIT_RANK, self._audit_count), moment, payload)

    def from_agent(self, moment: SpeechMoment, time_ms: int, event_id: int | None, payload: object) -> int:
        """Adds an event of an ElevenLabs agent; `payload` is not None.

        Returns:
            The key by which it can be changed. Equal times are ordered by id, then by the usual course of a turn, then by
            arrival.
        """
        if moment is SpeechMoment.AGENT_SAID:
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
        self.audited(SpeechMoment.FALLBACK, time_ms, None)

    def hear_transcripts(self, *, are_heard: bool) -> None:
        """Sets whether the agent's transcripts of the caller mark the end of a turn; a change folds everything again."""
        if are_heard is not self.machine.hears_transcripts:
            self.machine.hears_transcripts = are_heard
            self._fold_again()

    def report_answers(self) -> None:
        """Notes that the bot reports its answers as they were heard."""
        if not self.machine.reports_answers:
            self.machine.reports_answers = self.machine.have_words_changed = True

    def _hear_bot(self) -> None:
        """Notes that the bot speaks: its words alone are no answer. Answers that counted as such are folded again."""
        if self.machine.is_mute:
            self.machine.is_mute = False
            if self._has_answers:
                self._fold_again()

    def _fold_again(self) -> None:
        for first_key, _, _ in self.timeline:
            self.timeline.reread(first_key)
            break
