"""The reported stage latencies of one call, in the order in which the stages began, and their reports for one turn."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import NamedTuple

from consumers.engine.measures.stages.reading import RANKS, Measured
from schemas.scores.latency_stages import SEVERAL, Several, Stage, StageSource

MAX_VALUES_PER_TURN = 256
"""Values of one turn that count, the earliest ones. A turn with tools has about thirty; more is a loop in the producer."""

STAGES = tuple(Stage)
SOURCES = tuple(StageSource)
STAGE_PLACES: Mapping[Stage, int] = {stage: place for place, stage in enumerate(STAGES)}
_CODES = [(stage, source, rank) for stage in STAGES for source in SOURCES for rank in RANKS]
_CODE_OF = {meaning: code for code, meaning in enumerate(_CODES)}


class Reported(NamedTuple):
    """One source's value of one stage of a turn; `rank` is that of the values behind it."""

    rank: int
    seconds: float
    model: str


Reports = dict[Stage, dict[StageSource, Reported]]
"""The reports of one turn."""


class StageValues:
    """Reported values sorted by start, then by content, so that the order of arrival does not matter.

    They are stored as columns: a call has hundreds of them, and most are read once.
    """

    __slots__ = (
        "_begins_s",
        "_codes",
        "_models",
        "_seconds",
    )

    def __init__(self) -> None:
        self._begins_s = array("d")
        self._codes = array("H")
        self._seconds = array("d")
        self._models: list[str] = []

    def __len__(self) -> int:
        return len(self._models)

    def add(self, value: Measured) -> bool:
        """Keeps a value; false when an equal one is there already: its record came twice."""
        begins_s = self._begins_s
        begin_s = value.begin_s
        code = _CODE_OF[value.stage, value.source, value.rank]
        place = bisect_left(begins_s, begin_s)
        last = bisect_right(begins_s, begin_s, lo=place)
        if place < last:
            own = (code, value.seconds, value.model)
            place += bisect_left(range(place, last), own, key=self._says)
            if place < last and self._says(place) == own:
                return False
        begins_s.insert(place, begin_s)
        self._codes.insert(place, code)
        self._seconds.insert(place, value.seconds)
        self._models.insert(place, value.model)
        return True

    def _says(self, place: int) -> tuple[int, float, str]:
        return self._codes[place], self._seconds[place], self._models[place]

    def slice(self, from_s: float, until_s: float) -> tuple[int, float, float]:
        """A key of the values in a window, for comparison: their number, and the starts of the first and the last. Values are
        never removed.
        """
        begins_s = self._begins_s
        first, last = bisect_left(begins_s, from_s), bisect_left(begins_s, until_s)
        return (last - first, begins_s[first], begins_s[last - 1]) if first < last else (0, from_s, from_s)

    def reports(self, from_s: float, until_s: float) -> Reports:
        """The reports of the values that began from `from_s` to before `until_s` (epoch): the window of a turn."""
        found: Reports = {}
        asked: dict[StageSource, float] = {}
        first, last = bisect_left(self._begins_s, from_s), bisect_left(self._begins_s, until_s)
        for place in range(first, min(last, first + MAX_VALUES_PER_TURN)):
            stage, source, rank = _CODES[self._codes[place]]
            seconds, model = self._seconds[place], self._models[place]
            _take(found, stage, source, Reported(rank, seconds, model))
            # Pipecat measures the wait for the first sentence from the first token on; others from the request on.
            if stage is Stage.LLM_FIRST_TOKEN:
                asked[source] = seconds
            elif stage is Stage.SENTENCE_AGGREGATION and source in asked:
                _take(found, Stage.LLM_FIRST_SENTENCE, source, Reported(1, asked[source] + seconds, model))
        return found


def _take(found: Reports, stage: Stage, source: StageSource, value: Reported) -> None:
    """Adds a value of a turn; values come in their order."""
    by_source = found.get(stage)
    if by_source is None:
        found[stage] = {source: value}
        return
    known = by_source.get(source)
    if known is not None and value.rank >= known.rank:
        several = SEVERAL[stage]
        if value.rank > known.rank or several is Several.FIRST:
            return
        if several is Several.SUM:
            value = value._replace(seconds=known.seconds + value.seconds)
    by_source[source] = value
