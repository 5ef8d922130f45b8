"""The reported stage latencies of one call, in the order in which the stages began, and their reports for one turn."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from consumers.engine.measures.stages.reading import RANKS, Measured
from schemas.scores.latency_stages import SEVERAL, Several, Stage, StageSource

MAX_VALUES_PER_TURN = 256
"""Values of one turn that count, the earliest ones. A turn with tools has about thirty; more is a loop in the producer."""

PRECISION_SECONDS = 0.005
"""Error of a start that is computed from a whole millisecond and a length."""
OF_A_REQUEST = frozenset(
    {Stage.LLM_FIRST_TOKEN, Stage.LLM_FIRST_SENTENCE, Stage.SENTENCE_AGGREGATION, Stage.TTS_FIRST_BYTE}
)
"""Stages of one request to the model of which the first counts."""
_FIRST_TOKEN = (Stage.LLM_FIRST_TOKEN, StageSource.PIPECAT)
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

    def reports(self, from_s: float, until_s: float, silent_from_s: float | None = None) -> Reports:
        """The reports of the values that began in the window of a turn.

        Args:
            from_s: Start of the window (epoch).
            until_s: Its end, excluded.
            silent_from_s: End of the user's last speech before the answer; None when unknown. A request to the model that was
                replaced by one after it was not answered, so it and the rest of its values do not count.
        """
        found: Reports = {}
        asked: dict[StageSource, tuple[float, str]] = {}
        covered_s: dict[tuple[Stage, StageSource], float] = {}
        first, last = bisect_left(self._begins_s, from_s), bisect_left(self._begins_s, until_s)
        last = min(last, first + MAX_VALUES_PER_TURN)
        answered_s = -inf if silent_from_s is None else self._answered_from_s(first, last, silent_from_s)
        for place in range(first, last):
            stage, source, rank = _CODES[self._codes[place]]
            seconds, model = self._seconds[place], self._models[place]
            begin_s = self._begins_s[place]
            if begin_s < answered_s and stage in OF_A_REQUEST and source is StageSource.PIPECAT:
                continue
            if stage is Stage.TOOL_RUN:  # the one stage that is a union
                begun_s = max(begin_s, covered_s.get((stage, source), -inf))
                covered_s[stage, source] = max(begun_s, begin_s + seconds)
                seconds = covered_s[stage, source] - begun_s
            _take(found, stage, source, Reported(rank, seconds, model))
            # Pipecat measures the wait for the first sentence from the first token on; others from the request on.
            if stage is Stage.LLM_FIRST_TOKEN:
                asked[source] = seconds, model
            elif stage is Stage.SENTENCE_AGGREGATION and source in asked:
                waited_s, model = asked[source]
                _take(found, Stage.LLM_FIRST_SENTENCE, source, Reported(1, waited_s + seconds, model))
        return found

    def _answered_from_s(self, first: int, last: int, silent_from_s: float) -> float:
        """Start of the request that was answered: the first after the user's last sound, otherwise the last before it."""
        before_s = -inf
        for place in range(first, last):
            if _CODES[self._codes[place]][:2] == _FIRST_TOKEN:
                begin_s = self._begins_s[place]
                if begin_s >= silent_from_s - PRECISION_SECONDS:
                    return begin_s
                before_s = begin_s
        return before_s


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
        if several is Several.UNION and value.rank == known.rank:
            value = value._replace(seconds=known.seconds + value.seconds)
    by_source[source] = value
