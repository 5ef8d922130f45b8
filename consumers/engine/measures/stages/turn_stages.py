"""The stages of one turn: the best source's number, the other sources' numbers, and whether they disagree."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from consumers.engine.measures.stages.values import SOURCES, STAGE_PLACES, STAGES, Reported, Reports
from consumers.engine.turns.timeline.turn_view import MS_DIGITS
from schemas.scores.all_records import Anchor
from schemas.scores.latency_stages import CONVAI_NAMES, FROM_USER_SILENCE, Stage, StageSource

DISAGREEMENT_MS = 200
"""Difference in ms that two sources may have: one step of a voice detector, or the way over the line."""
DISAGREEMENT_SHARE = 0.2
"""And share of the larger number. Beyond both they disagree: a clock is skewed, or one of them measures something else."""

MS_PER_SECOND = 1000
SECOND_DIGITS = 6
_FROM_A_RECORD = frozenset({StageSource.ELEVENLABS, StageSource.RUN})
_SPEECH = SOURCES.index(StageSource.SPEECH)


def disagree(one_ms: float, other_ms: float) -> bool:
    """Whether two numbers for the same stage differ by more than measuring it twice explains.

    Example:
        >>> disagree(300, 480), disagree(3000, 3500), disagree(300, 700)
        (False, False, True)
    """
    return abs(one_ms - other_ms) > max(DISAGREEMENT_MS, DISAGREEMENT_SHARE * max(one_ms, other_ms))


class StageReading(NamedTuple):
    """One stage in plain values: places in the lists of stages and sources, milliseconds, the model's name."""

    stage: int
    source: int
    latency_ms: float
    model: str
    others_ms: tuple[tuple[int, float], ...]

    @property
    def is_disputed(self) -> bool:
        """Whether another source differs beyond the tolerance."""
        return any(disagree(self.latency_ms, other_ms) for _, other_ms in self.others_ms)

    def fields(self) -> dict[str, Any]:
        """The fields of a `StageLatency`; made together with its record it costs half as much."""
        stage = STAGES[self.stage]
        fields: dict[str, Any] = {"stage": stage, "latency_ms": self.latency_ms, "source": SOURCES[self.source]}
        if stage in FROM_USER_SILENCE:
            # A source that measures from the end of the user's speech has that from a detector; a record made after the call
            # does not name its source.
            fields["anchor"] = Anchor.RECORD if SOURCES[self.source] in _FROM_A_RECORD else Anchor.VAD
        if self.model:
            fields["model"] = self.model
        if self.others_ms:
            fields["others_ms"] = {SOURCES[place]: other_ms for place, other_ms in self.others_ms}
            fields["is_disputed"] = self.is_disputed
        return fields


def stage_readings(reports: Reports, heard_ms: float | None) -> list[StageReading]:
    """The measured stages, in the order of the list of stages.

    Voice to voice has a score of its own from the times of speech, `heard_ms`; it appears here where others measured it too.
    """
    readings = []
    for stage, by_source in reports.items():
        found = [(place, by_source[source]) for place, source in enumerate(SOURCES) if source in by_source]
        source, best = found[0]
        others = tuple([(place, _ms(other)) for place, other in found[1:]])
        if stage is Stage.VOICE_TO_VOICE and heard_ms is not None:
            others = (*others, (_SPEECH, heard_ms))
        readings.append(StageReading(STAGE_PLACES[stage], source, _ms(best), best.model, others))
    return sorted(readings)


def convai_seconds(reports: Reports, heard_ms: float | None) -> dict[str, float]:
    """Seconds by ElevenLabs' name; voice to voice as heard, where no other source has it and the user waited. The run's own
    latencies are for comparison: those as heard come before them.
    """
    seconds = {
        name: round(reports[stage][_best_source(reports[stage])].seconds, SECOND_DIGITS)
        for stage, name in CONVAI_NAMES.items()
        if reports.get(stage) and _best_source(reports[stage]) is not StageSource.RUN
    }
    if heard_ms is not None and heard_ms >= 0:
        seconds.setdefault(CONVAI_NAMES[Stage.VOICE_TO_VOICE], round(heard_ms / MS_PER_SECOND, SECOND_DIGITS))
    return seconds


def _best_source(by_source: Mapping[StageSource, Reported]) -> StageSource:
    """The best source among those present."""
    return next(source for source in SOURCES if source in by_source)


def _ms(found: Reported) -> float:
    return round(found.seconds * MS_PER_SECOND, MS_DIGITS)
