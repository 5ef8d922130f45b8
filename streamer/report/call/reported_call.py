"""One recorded call as a report shows it: the words and sounds, and the newest score records."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from statistics import median
from typing import Final, NamedTuple, TypeVar

from consumers.engine.measures.talk import LONG_SILENCE_MS
from consumers.engine.turns.timeline import PairedUse, Span, merged
from schemas.closed_sets import Anchor
from schemas.goals.goal_set import GoalSet
from schemas.scores.records import (
    AnyScoreRecord,
    CallLabels,
    CallRecord,
    CallValues,
    ClosedFact,
    DeadAirFact,
    GoalsFact,
    ProgressScore,
    Result,
    Scored,
    SubgoalScore,
    TurnValues,
    VoiceToVoiceLatency,
)
from streamer.report.call.hearing import HeardCall
from streamer.report.call.intervals import Interval, cut, overlaps, silences
from streamer.report.drawing.texts import MOST_CHARS, Redacts, json_text, shortened

_LEAST_OVERLAP_MS: Final = 1.0
"""As in EVA: less is a matter of clocks."""

Record = TypeVar("Record", bound=CallRecord)


@dataclass(frozen=True, slots=True)
class DeadAir:
    """A silence in which the threshold was passed, and how often."""

    silence: Interval
    times: int


class Wait(NamedTuple):
    """How long the user waited for the answer of a turn, or why nobody knows; `anchor` is how the end of their speech is known."""

    turn: int
    result: Result
    anchor: Anchor | None


class ReportedCall:
    """A call, with its state at the end.

    Attributes:
        conversation_id: Whose call it is.
        heard: Its words and sounds.
        records: The newest of each subject, in the order in which they were written.
        anchor_id: Beginning of the ids of its parts.
    """

    def __init__(
        self,
        conversation_id: str,
        heard: HeardCall,
        records: Sequence[AnyScoreRecord],
        anchor_id: str,
        redactor: Redacts,
    ) -> None:
        self.conversation_id = conversation_id
        self.heard = heard
        self.records = tuple(records)
        self.anchor_id = anchor_id
        self._redactor = redactor
        self.overlaps = overlaps(heard.stretches, _LEAST_OVERLAP_MS)
        self.dead_air = _dead_air(heard, self.of(DeadAirFact))

    def of(self, kind: type[Record]) -> list[Record]:
        """The records of one kind."""
        return [record for record in self.records if isinstance(record, kind)]

    @property
    def labels(self) -> CallLabels:
        """The newest labels of the call."""
        return self.records[-1].labels if self.records else CallLabels()

    @property
    def closed(self) -> ClosedFact | None:
        """The `closed` fact; None while the call is open."""
        return next(iter(self.of(ClosedFact)), None)

    @property
    def goals(self) -> GoalSet | None:
        """The goals of the call."""
        return next((record.goal_set for record in self.of(GoalsFact)), None)

    @property
    def length_ms(self) -> float:
        """From its first event to its last."""
        return self.heard.end_ms - self.heard.start_ms

    @cached_property
    def rows(self) -> list[TurnValues]:
        """The measured values of each turn, in the order of the turns."""
        return sorted(self.of(TurnValues), key=lambda record: record.turn or 0)

    @property
    def whole(self) -> CallValues | None:
        """The measured values of the whole call."""
        return next(iter(self.of(CallValues)), None)

    @cached_property
    def latencies(self) -> list[Wait]:
        """By turn: how long the user waited. For the greeting nobody did."""
        waits = {
            record.turn: Wait(record.turn, record.result, record.anchor)
            for record in self.of(VoiceToVoiceLatency)
            if record.turn is not None
        }
        for row in self.rows:
            if row.turn is not None and row.turn >= 1:
                waits[row.turn] = Wait(row.turn, row.voice_to_voice_ms, row.anchor)
        return [waits[turn] for turn in sorted(waits)]

    @cached_property
    def waits_ms(self) -> dict[int, float]:
        """The latencies that are known and not negative, by turn."""
        return {
            wait.turn: wait.result.value
            for wait in self.latencies
            if isinstance(wait.result, Scored) and wait.result.value >= 0
        }

    @property
    def median_wait_ms(self) -> float | None:
        """The median of those; None when there are none."""
        waits_ms = self.waits_ms
        return median(waits_ms.values()) if waits_ms else None

    @property
    def dead_air_times(self) -> int | None:
        """How often there was dead air; None where it cannot be known."""
        times = sum(each.times for each in self.dead_air)
        return times if times or self._measured_dead_air_ms is not None else None

    @property
    def dead_air_ms(self) -> float:
        """How long it was together: as measured over the whole call if the threshold is the same, otherwise as drawn."""
        measured_ms, facts = self._measured_dead_air_ms, self.of(DeadAirFact)
        if facts and measured_ms is not None and all(fact.threshold_ms == LONG_SILENCE_MS for fact in facts):
            return measured_ms
        return sum(each.silence.length_ms for each in self.dead_air)

    @property
    def _measured_dead_air_ms(self) -> float | None:
        speech = None if self.whole is None else self.whole.speech
        result = None if speech is None else speech.dead_air_ms
        return result.value if isinstance(result, Scored) else None

    @property
    def last_progress(self) -> ProgressScore | None:
        """Progress after the last turn that has a record of it."""
        return max(self.of(ProgressScore), key=lambda record: record.turn or 0, default=None)

    @property
    def subgoals(self) -> list[SubgoalScore]:
        """In the order of the goal set."""
        return sorted(self.of(SubgoalScore), key=lambda record: record.index)

    def shown(self, text: str, most: int = MOST_CHARS) -> str:
        """A text of the call as a person may see it."""
        return shortened(self._redactor.redact(text), most)

    def shown_json(self, value: object) -> str:
        """The same for a value that a tool was given or answered."""
        return json_text(value, self._redactor)

    def offset_ms(self, time_ms: float) -> float:
        """A moment as counted from the start of the call."""
        return time_ms - self.heard.start_ms

    def turn_anchor(self, turn: int) -> str:
        """The id of a turn in the transcript."""
        return f"{self.anchor_id}-t{turn}"


def _dead_air(heard: HeardCall, facts: Iterable[DeadAirFact]) -> list[DeadAir]:
    """The silences of the facts. Where a speech has no end, only the facts are known: its start, and the threshold."""
    quiet = silences(heard.stretches, heard.end_ms, 0) if heard.has_ends else []
    # As where dead air is found and measured: while a tool runs, waiting is explained.
    quiet = list(cut(quiet, merged(_runs(heard.tools, quiet), keeps_moments=True)))
    found: dict[Interval, int] = {}
    for fact in facts:
        since_ms = fact.silent_since_ms
        least = Interval(since_ms, since_ms + fact.threshold_ms, fact.turn or 0)
        # A fact has whole milliseconds.
        around = (each for each in quiet if each.start_ms - 1 <= since_ms < each.end_ms)
        silence = next(around, least)
        found[silence] = found.get(silence, 0) + 1
    return [DeadAir(silence, times) for silence, times in sorted(found.items())]


def _runs(tools: Iterable[PairedUse], quiet: Sequence[Interval]) -> Iterator[Span]:
    """When tools ran; one that never answered was waited for until somebody spoke."""
    ends_ms = [each.end_ms for each in quiet]
    for use in tools:
        start_ms = use.called_at_ms
        if start_ms is None:
            continue
        if use.duration_ms is not None:
            yield Span(start_ms, start_ms + use.duration_ms)
        elif (place := bisect_right(ends_ms, start_ms)) < len(ends_ms):
            yield Span(start_ms, ceil(ends_ms[place]))
