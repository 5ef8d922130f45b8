"""The bot's own view of who speaks, as a timeline: speech moments of pipecat's stream, tools and transcripts of the audit log,
events of an ElevenLabs agent.
"""

from typing import Any

from consumers.engine.turns.bot.turn_machine import BotTurnMachine, SpeechMoment, Words
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

    @property
    def has_moments(self) -> bool:
        """Whether there is any moment of speech or use of a tool."""
        return len(self.timeline) > self._words_count

    def said_in_log(self, time_ms: int, words: Words) -> None:
        """Adds words from the audit log."""
        self._words_count += 1
        self.audited(SpeechMoment.WORDS, time_ms, words)

    def said_to_pipecat(self, time_ms: int, words: Words) -> None:
        """Adds words from pipecat's stream."""
        self._words_count += 1
        self._pipecat_count += 1
        self.timeline.insert(order_key(time_ms, PIPECAT_RANK, 2 * self._pipecat_count), SpeechMoment.WORDS, words)

    def spoken(self, moment: SpeechMoment, at_s: float) -> None:
        """Adds the start or end of somebody's speech at `at_s` (epoch seconds)."""
        self._pipecat_count += 1
        self.timeline.insert(order_key(int(at_s * 1000), PIPECAT_RANK, 2 * self._pipecat_count), moment, at_s)

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
        index = min(event_id or 0, _MAX_ORDERED_ID) << 16 | _AGENT_PLACES[moment] << 13
        key = order_key(time_ms, AGENT_RANK, index)
        while self.timeline.payload(key) is not None:
            key += 1
        self.timeline.insert(key, moment, payload)
        return key

    def fell_back(self, time_ms: int) -> None:
        """Adds a step of the agent's turn-end timer."""
        self._words_count += 1  # a fallback tells nothing about speech
        self.audited(SpeechMoment.FALLBACK, time_ms, None)

    def hear_transcripts(self, *, are_heard: bool) -> None:
        """Sets whether the agent's transcripts of the caller mark the end of a turn; a change folds everything again."""
        if are_heard is not self.machine.hears_transcripts:
            self.machine.hears_transcripts = are_heard
            for first_key, _, _ in self.timeline:
                self.timeline.reread(first_key)
                break

    def text_placed(self, key: int) -> None:
        """Adds the start of a group of the bot's text at `key`."""
        self.timeline.insert(_text_key(key), SpeechMoment.BOT_TEXT, key)

    def text_displaced(self, key: int) -> None:
        """Removes the group of the bot's text at `key`."""
        self.timeline.remove(_text_key(key))

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["machine"], state["timeline"]
        state["elements"] = list(self.timeline)
        state["hears_transcripts"] = self.machine.hears_transcripts
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        elements, hears_transcripts = state.pop("elements"), state.pop("hears_transcripts")
        self.__dict__.update(state)
        self.machine = BotTurnMachine()
        self.machine.hears_transcripts = hears_transcripts
        self.timeline = Timeline(self.machine, TIME_SHIFT, self._replays)
        for key, kind, payload in elements:
            self.timeline.insert(key, kind, payload)
        self.machine.drain_touched()
        self.machine.have_words_changed = False  # at a snapshot, all words have been followed


def _text_key(key: int) -> int:
    """Odd places are texts and even ones speech, so that the two numberings of the pipecat stream cannot collide."""
    time_part, index = key >> TIME_SHIFT, key & 0xFFFFFFFF
    return order_key(time_part, PIPECAT_RANK, 2 * index + 1)
