"""One turn of a call as its bot heard it, and the moments and words that turns are made of."""

from collections.abc import Iterator
from enum import IntEnum
from itertools import chain
from typing import Final, NamedTuple

from consumers.engine.turns.bot.spoken_text import TextPiece

SAME_MOMENT_SECONDS: Final = 0.25
"""Two equal moments this close are one: both halves of a broadcast, or a record that was sent twice. No stretch of speech is so
short that another can begin or end so soon after it.
"""
MAX_PENDING_SECONDS: Final = 3.0
"""Longest time from the end of a stretch of sound to the ruling that makes it a turn; a strategy that waits for words takes
one or two. An older stretch was a cough.
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
    """Words of one speaker: the rank of their source (0 is best), and the text, the bot's text or its key in EVA's history.

    `event_id` is the one that an ElevenLabs agent gave it. `is_cut` marks the heard part of an answer that was cut off,
    `is_turn` the words of the caller at the end of a turn.
    """

    is_user: bool
    rank: int
    ref: int | str | TextPiece
    event_id: int | None = None
    is_cut: bool = False
    is_turn: bool = False


class AgentWords(NamedTuple):
    """One utterance in a conversation with an ElevenLabs agent; `is_exact` is false where its time gives only the order."""

    words: tuple[Words, ...]
    is_exact: bool


class BotTurn(NamedTuple):
    """One turn; times in epoch seconds, in the order of the moments.

    Starts and ends of the detector, the rulings and the bot belong together by their places; only the last end can be missing.
    A stretch of which one end was lost has no length and lies at the known end; `gaps` says so. `is_cut` means that the caller
    spoke over the bot's speech of this turn, `is_written` that a bot that never speaks answered in words.
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
    is_written: bool = False

    def has_user_end(self, end_ms: int) -> bool:
        """Whether the caller ended in this turn at that millisecond, by any of the reports that know it."""
        return any(end_ms == int(end_s * 1000) for end_s in (*self.vad_ends, *self.release_ends, *self.transcripts))

    @property
    def times_s(self) -> Iterator[tuple[float, ...]]:
        """All moments of the turn, in groups."""
        return chain(self[:8], (self.agent_heard, self.agent_said))


class PendingSpeech(NamedTuple):
    """A stretch of sound that no ruling has made a turn yet: its start and end, None while unknown, and whether the bot spoke
    when it began.
    """

    start_s: float | None
    end_s: float | None
    is_over_bot: bool
