"""The words of a turn by source, and one table that chooses the sources for each purpose.

A turn's words come from up to five sources that differ: a caller is misunderstood, an answer is cut off, a log has words that
nobody heard. Texts are joined when they are read, and not before.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum, auto
from typing import Final, NamedTuple, Protocol

from consumers.engine.turns.eva.spoken_prefix import without_eva_labels
from consumers.engine.turns.heard.normal_text import without_bracketed

PLACEHOLDER: Final = "[user audio]"
"""Placeholder in the log of an audio-LLM agent until the caller is transcribed; it has no words."""

Texts = tuple[str, ...]
"""Utterances of one side of a turn from one source, as the source wrote them."""


class WordSource(IntEnum):
    """Sources of words.

    Attributes:
        LOG: The agent's log: its transcript of the caller, and its model's text.
        TRACE: The log's answers in a call that a simulated caller hears, as EVA's trace has them.
        CALLER: The simulated caller: its intended words, and the words it heard.
        SYNTHESIS: The text sent to speech synthesis; of an ElevenLabs agent's answer, the part that was heard.
        HEARD: The part that was heard of an answer that the caller cut off, as pipecat's messages have it.
        LABELLED: The same as SYNTHESIS in a call that a simulated caller hears, with EVA's labels of who cut off whom.
        BOT: The bot's own reports: pipecat's messages, and an ElevenLabs agent's transcript of the caller.
    """

    LOG = auto()
    TRACE = auto()
    CALLER = auto()
    SYNTHESIS = auto()
    HEARD = auto()
    LABELLED = auto()
    BOT = auto()


class Purpose(IntEnum):
    """Purposes for which words are read.

    Attributes:
        TALK: Amount of speech and questions of each side.
        JUDGED: Goals and judges.
        SPOKEN: The words that transcript and report show.
        WRITTEN: The original of an answer that was cut off, for the transcript.
        MEANT: The reference of EVA's word errors.
        UNDERSTOOD: The text that they compare with it.
    """

    TALK = auto()
    JUDGED = auto()
    SPOKEN = auto()
    WRITTEN = auto()
    MEANT = auto()
    UNDERSTOOD = auto()


class SaidWords(Protocol):
    """The words of one turn. Each adapter of a machine implements it."""

    @property
    def mark(self) -> int:
        """A number that changes with the known words, of every source but the trace; cheaper than the words."""

    @property
    def logged_times_ms(self) -> tuple[int, ...]:
        """The times of the turn's entries in EVA's trace; none where the bot alone hears the call."""

    @property
    def is_corrected(self) -> bool:
        """Whether an ElevenLabs agent reported the part of its answer that was heard."""

    def texts(self, source: WordSource, *, is_user: bool) -> Texts:
        """The texts of this source for one side; empty without any."""

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


def _readable(texts: Texts) -> str:
    return " ".join(text for each in texts if (text := without_eva_labels(each.replace(PLACEHOLDER, " "))))


_AS_UNDERSTOOD: Final = (WordSource.LOG, WordSource.BOT, WordSource.CALLER)
"""The agent answers to the words it understood. Its log has them first; the caller's intended words are the last resort."""

WORDS_BY_PURPOSE: Final[Mapping[Purpose, _Order]] = {
    # Words that sounded: synthesis got them; otherwise pipecat logged them, cut where the bot was cut off; otherwise the caller
    # heard them. Words of the log alone come last, since many of them may never have sounded.
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
    # Words the agent meant, as EVA's and agent-inspect's judges read them: they rate the model and not the line. So the log
    # comes before pipecat's texts, and labels stay, since EVA's prompts explain them. But words that are known not to have been
    # heard reach no goal.
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
    # Words the caller heard, for people to read. Without the log: it has the whole of an answer that was cut off.
    Purpose.SPOKEN: _Order(
        _AS_UNDERSTOOD, (WordSource.HEARD, WordSource.SYNTHESIS, WordSource.BOT, WordSource.CALLER), _readable
    ),
    # The log alone: it has the model's own words.
    Purpose.WRITTEN: _Order((), (WordSource.TRACE, WordSource.LOG), _readable),
    # EVA's pairs: the caller's intended words with the agent's transcript, the agent's intended words with the ones the caller
    # heard.
    Purpose.MEANT: _Order((WordSource.CALLER,), (WordSource.LABELLED,), " ".join),
    Purpose.UNDERSTOOD: _Order((WordSource.LOG,), (WordSource.CALLER,), " ".join),
}
"""Sources of words by purpose."""
