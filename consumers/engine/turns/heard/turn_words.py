"""The words of a turn, by who knows them, and one table that says whose words serve which purpose.

A turn's words come from up to five sources that differ: the caller is understood wrongly, an answer is cut off, a log has what
nobody heard. Texts are joined when somebody reads them, and not before.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

from consumers.engine.turns.eva.spoken_prefix import without_eva_labels
from consumers.engine.turns.heard.normal_text import without_bracketed

PLACEHOLDER: Final = "[user audio]"
"""Stands in the log of an audio-LLM agent until somebody has transcribed the caller; it says nothing of the words."""

Texts = tuple[str, ...]
"""What one source has of one side of a turn: its utterances, as the source wrote them."""


class WordSource(Enum):
    """Who knows the words.

    Attributes:
        LOG: The agent's log: what it understood of the caller, and what its model wrote.
        TRACE: The log's answers in a call that a simulated caller hears, as EVA's trace has them.
        CALLER: The simulated caller: what it meant to say, and what it heard.
        SYNTHESIS: The text that speech synthesis got; of an ElevenLabs agent's answer, what was heard of it.
        LABELLED: The same in a call that a simulated caller hears, with EVA's labels of who cut off whom.
        BOT: What the bot itself reports: pipecat's messages, and an ElevenLabs agent's transcript of the caller.
    """

    LOG = auto()
    TRACE = auto()
    CALLER = auto()
    SYNTHESIS = auto()
    LABELLED = auto()
    BOT = auto()


class Purpose(Enum):
    """What words are read for.

    Attributes:
        TALK: Who spoke how much and asked what.
        JUDGED: Goals and judges.
        SPOKEN: What the transcript and the report show.
        WRITTEN: What the transcript shows as the original of an answer that was cut off.
        MEANT: What EVA's word errors take for right.
        UNDERSTOOD: What they compare with it.
    """

    TALK = auto()
    JUDGED = auto()
    SPOKEN = auto()
    WRITTEN = auto()
    MEANT = auto()
    UNDERSTOOD = auto()


class SaidWords(Protocol):
    """The words of one turn. The adapters of the two machines have one each."""

    @property
    def mark(self) -> int:
        """Another number when other words are known, of every source but the trace; cheaper than the words."""

    @property
    def logged_times_ms(self) -> tuple[int, ...]:
        """The times of the turn's entries in EVA's trace; none where the bot alone hears the call."""

    @property
    def is_corrected(self) -> bool:
        """Whether an ElevenLabs agent reported how much of its answer was heard."""

    def texts(self, source: WordSource, *, is_user: bool) -> Texts:
        """What this source has of one side; nothing where it has nothing."""

    def first_logged_ms(self, *, is_user: bool) -> int | None:
        """When the first words of one side were logged; None where no log has any."""


class _Order(NamedTuple):
    """Of each side the sources, the best one first, and how their texts become one."""

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
"""What the agent answers to is what it understood. Its log has that first, what the caller meant is the last resort."""

WORDS_BY_PURPOSE: Final[Mapping[Purpose, _Order]] = {
    # What sounded: synthesis got it, else pipecat wrote it down and cut it where the bot was cut off, else the caller heard it.
    # What is only in the log comes last, since much of it may never have sounded.
    Purpose.TALK: _Order(
        _AS_UNDERSTOOD,
        (WordSource.SYNTHESIS, WordSource.BOT, WordSource.CALLER, WordSource.LABELLED, WordSource.LOG),
        _without_marks,
    ),
    # What the agent meant to say, as EVA's and agent-inspect's judges read it: they rate the model and not the line. So the log
    # comes before what pipecat cut off, and labels stay, since EVA's prompts explain them.
    Purpose.JUDGED: _Order(
        _AS_UNDERSTOOD,
        (WordSource.LABELLED, WordSource.CALLER, WordSource.SYNTHESIS, WordSource.LOG, WordSource.BOT),
        _as_written,
    ),
    # What the caller really heard, for people to read. No log: it has the whole of an answer that was cut off.
    Purpose.SPOKEN: _Order(_AS_UNDERSTOOD, (WordSource.SYNTHESIS, WordSource.BOT, WordSource.CALLER), _readable),
    # The log and nothing else: that is where the model's own words are.
    Purpose.WRITTEN: _Order((), (WordSource.TRACE, WordSource.LOG), _readable),
    # EVA's pairs: of the caller what it meant and the agent understood, of the agent what it meant and the caller heard.
    Purpose.MEANT: _Order((WordSource.CALLER,), (WordSource.LABELLED,), " ".join),
    Purpose.UNDERSTOOD: _Order((WordSource.LOG,), (WordSource.CALLER,), " ".join),
}
"""Whose words serve which purpose."""
