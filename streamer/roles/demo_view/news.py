"""Records that are news, as lines for a reader. Pure: a record in, a line out."""

import time
from collections import deque
from typing import Final, NamedTuple

from schemas.scores.records import (
    AnyScoreRecord,
    ClosedFact,
    DeadAirFact,
    InterruptionFact,
    Scored,
    StallFact,
    SubgoalScore,
    VoiceToVoiceLatency,
)
from schemas.units import MS_PER_SECOND

SLOW_MS: Final = 1_500
"""The objective of voice agents is that 95 % of answers are faster."""
VERY_SLOW_MS: Final = 3_500
MOST_NEWS: Final = 50
"""Lines kept, more than a terminal shows below the table."""
ID_CHARS: Final = 6


class NewsLine(NamedTuple):
    """One line below the table: the broker's time of its cause, the text, and the colour."""

    time_ms: int
    text: str
    style: str


class News:
    """The newest lines of note; a fast answer is none."""

    def __init__(self) -> None:
        self._lines: deque[NewsLine] = deque(maxlen=MOST_NEWS)

    def fold(self, record: AnyScoreRecord) -> None:
        """Takes in one record."""
        text = plain_line(record)
        if text is not None and (style := _style(record)) is not None:
            clock = time.strftime("%H:%M:%S", time.localtime(record.caused_at_ms / MS_PER_SECOND))
            self._lines.append(NewsLine(record.caused_at_ms, f"{clock}  {text}", style))

    def newest(self, count: int) -> list[NewsLine]:
        """The newest lines, at most so many, in the order of their times: partitions are read one after the other."""
        return sorted(self._lines, key=lambda line: line.time_ms)[-count:] if count > 0 else []


def plain_line(record: AnyScoreRecord) -> str | None:
    """A record as one line for a reader; None when it is no news."""
    call = f"{short_id(record.conversation_id)} {record.labels.agent}"
    match record:
        case VoiceToVoiceLatency(turn=int(turn), result=Scored(value=latency_ms)) if record.is_first:
            by = "" if record.anchor is None else f" ({record.anchor.value})"
            return f"{call}: turn {turn} answered after {latency_ms:.0f} ms{by}"
        case InterruptionFact(turn=int(turn), is_withdrawn=False):
            return f"{call}: turn {turn} interrupted by the {record.by.value}"
        case DeadAirFact():
            return f"{call}: dead air"
        case SubgoalScore(reached_turn=int(turn)) if record.is_first:
            return f"{call}: turn {turn} reached the subgoal {record.subgoal_id}"
        case StallFact():
            return f"{call}: no subgoal reached since turn {record.since_turn}"
        case ClosedFact():
            return f"{call}: over ({record.ended_reason or record.reason.value}), {record.turns} turns"
        case _:
            return None


def short_id(conversation_id: str) -> str:
    """The end of a conversation id: its beginning is often the same for all calls."""
    return conversation_id[-ID_CHARS:]


def _style(record: AnyScoreRecord) -> str | None:
    """The colour of a line of note; None for a record that is none."""
    match record:
        case VoiceToVoiceLatency(result=Scored(value=latency_ms)):
            return None if latency_ms <= SLOW_MS else "yellow" if latency_ms <= VERY_SLOW_MS else "red"
        case SubgoalScore():
            return "green"
        case ClosedFact():
            return "dim"
        case InterruptionFact() | DeadAirFact() | StallFact() if record.revision == 1:
            return "yellow"
        case _:
            return None
