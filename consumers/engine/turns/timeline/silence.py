"""The moments that a watch for dead air reads, in the broker's order."""

from enum import IntEnum
from typing import NamedTuple


class BrokerMoment(NamedTuple):
    """Broker time of a record; of two at the same time, the lower input rank comes first."""

    broker_ms: int
    input_rank: int


class HeardBy(IntEnum):
    """The source of a report of speech, from the poorest up; a call's best one counts from its first report on."""

    TRANSCRIPT = 1
    BOT = 2
    CALLER = 3


class SilenceKind(IntEnum):
    """Kinds of moments that begin, explain or end a silence."""

    USER_ENDED = 0
    SPEECH_STARTED = 1
    TOOL_CALLED = 2
    TOOL_ANSWERED = 3
    LINE_DOWN = 4
    FUNCTION_CALLED = 5
    FUNCTION_SETTLED = 6
    USER_STARTED = 7
    SOMEONE_SPOKE = 8
    WORDS_CAME = 9
    FUNCTIONS_GAVE_WAY = 10


class SilenceMoment(NamedTuple):
    """One moment; sorts in the order of application. `place` is its number among the call's moments, so a comparison never goes
    beyond it. `due_at_ms` is the broker time at which a silence that begins here becomes dead air, or words that begin here
    would be over; 0 where neither begins.
    `heard_by` is the source of a report of speech. A moment without it counts for every source.
    """

    broker_ms: int
    input_rank: int
    place: int
    kind: SilenceKind
    time_ms: int
    due_at_ms: int
    turn: int
    heard_by: HeardBy
