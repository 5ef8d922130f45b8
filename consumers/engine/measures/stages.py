"""Stages of a turn's latency: joined to turns, and reported by source."""

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple

from consumers.engine.effects import Count
from consumers.engine.limits import Limits
from consumers.engine.sources.facts import RANKS, Measured, Used
from consumers.engine.sources.findings import EventFindings
from consumers.engine.turns.bot import TokenUsage, TurnMetrics
from consumers.engine.turns.heard import HeardTurn, HeardTurns
from consumers.engine.turns.reported import AgentRecord
from consumers.engine.turns.timeline import MS_DIGITS, TimeSpan, length_ms, merged
from schemas.closed_sets import Anchor, InputSource
from schemas.rows import StageLatency
from schemas.scores.latency_stages import (
    CONVAI_METRICS,
    CONVAI_NAMES,
    FROM_USER_SILENCE,
    MAX_STAGE_SECONDS,
    MS,
    PARTS_OF_WAIT,
    RUNS_ON,
    SEVERAL,
    PartOfWait,
    ServiceKind,
    Several,
    Stage,
    StageSource,
)
from schemas.units import MS_PER_SECOND
from schemas.wire import MAX_NAME_CHARS

# The window of each turn of a call, to find the turn of a time.


class TurnWindows:
    """A turn's window reaches from its user's first sound to the next turn's; the first turn has no
    earlier end. Epoch seconds.
    """

    def __init__(self) -> None:
        self._begins_s: dict[int, float] = {}
        self._order: list[tuple[float, int]] = []

    def update(self, heard: HeardTurns, touched: Iterable[int]) -> set[int]:
        """Updates the windows of turns that may have changed; returns the turns with a new window,
        neighbours included.
        """
        moved: set[int] = set()
        # The start of a turn of transcripts depends on the speech before it.
        for turn in {turn for first in touched for turn in (first, first + 1)}:
            there = heard.turn(turn)
            begin_s = None if there is None else there.begin_s
            if begin_s != self._begins_s.get(turn):
                self._move(turn, begin_s, moved)
        return moved

    def window(self, turn: int) -> tuple[float, float]:
        """Start and end of the window, end excluded; equal for a turn without sound."""
        begin_s = self._begins_s.get(turn)
        if begin_s is None:
            return inf, inf
        place = bisect_left(self._order, (begin_s, turn))
        end_s = self._order[place + 1][0] if place + 1 < len(self._order) else inf
        return begin_s if place else -inf, end_s

    def turns(self) -> list[int]:
        """The turns that have a window."""
        return [turn for _, turn in self._order]

    @property
    def first_s(self) -> float:
        """Start of the first turn; infinite without one."""
        return self._order[0][0] if self._order else inf

    def turn_at(self, at_s: float) -> int | None:
        """The turn at that time, the first one before it; None without turns."""
        if not self._order:
            return None
        place = bisect_right(self._order, (at_s, inf))
        return self._order[max(0, place - 1)][1]

    def _move(self, turn: int, begin_s: float | None, moved: set[int]) -> None:
        order = self._order
        moved.add(turn)
        old_s = self._begins_s.pop(turn, None)
        if old_s is not None:
            place = bisect_left(order, (old_s, turn))
            del order[place]
            moved.update(each for _, each in order[max(0, place - 1) : place + 1])
        if begin_s is not None:
            self._begins_s[turn] = begin_s
            place = bisect_left(order, (begin_s, turn))
            moved.update(each for _, each in order[max(0, place - 1) : place + 1])
            order.insert(place, (begin_s, turn))


# What the sounds of a turn allow for a value that a source reports.

BEFORE_FIRST_TURN_SECONDS: Final = 60.0
"""How long before the first sound of the call a value may have begun: a cold bot takes up to a
minute to its greeting.
"""
DISAGREEMENT_MS: Final = 200
"""Difference in ms that two sources may have: one step of a voice detector, or the way over the
line.
"""
DISAGREEMENT_SHARE: Final = 0.2
"""And share of the larger number. Beyond both they disagree: a clock is skewed, or one of them
measures something else.
"""
LEAST_CHECKED_SECONDS: Final = DISAGREEMENT_MS * MS
"""A shorter value contradicts nothing by more than measuring explains."""
_EVERY_PART: Final = frozenset(PARTS_OF_WAIT)
_ANSWERING: Final = frozenset(
    stage for stage, part in PARTS_OF_WAIT.items() if part is PartOfWait.ANSWERING
)
_PARTS_BY_ANCHOR: Final = {
    Anchor.VAD: _EVERY_PART,
    Anchor.AUDIO: _EVERY_PART,
    Anchor.RECORD: _EVERY_PART,
    Anchor.TURN_RELEASE: _ANSWERING,
    Anchor.TRANSCRIPT: _ANSWERING,
}
"""The stages that lie in the wait, by the source of its beginning. An estimate bounds none."""
_OF_THE_USER: Final = FROM_USER_SILENCE | {
    stage for stage, part in PARTS_OF_WAIT.items() if part is PartOfWait.HEARING
}


def disagree(one_ms: float, other_ms: float) -> bool:
    """Whether two numbers for the same stage differ by more than measuring it twice explains.

    Example:
        >>> disagree(300, 480), disagree(3000, 3500), disagree(300, 700)
        (False, False, True)
    """
    return abs(one_ms - other_ms) > max(DISAGREEMENT_MS, DISAGREEMENT_SHARE * max(one_ms, other_ms))


def _exceeds(seconds: float, bound_s: float) -> bool:
    """Whether a length is beyond its bound by more than measuring explains."""
    return seconds > bound_s and disagree(
        seconds * MS_PER_SECOND, max(0.0, bound_s) * MS_PER_SECOND
    )


class StageBounds(NamedTuple):
    """What the sounds of a turn allow, in epoch seconds and seconds.

    Attributes:
        least_s: No value of the turn began before it.
        heard_s: Start of the user's first sound; minus infinity where it is not known.
        silent_s: End of the user's last sound; infinite without a wait.
        until_s: Start of the next turn.
        wait_s: The wait of the turn; infinite where it is not known, or where the assistant began
            first.
        parts: The stages that lie in it.
    """

    least_s: float
    heard_s: float
    silent_s: float
    until_s: float
    wait_s: float
    parts: frozenset[Stage]

    def allow(self, stage: Stage, seconds: float, begin_s: float = -inf) -> bool:
        """Whether the stage can have taken so long, by the sounds; `begin_s` is minus infinity
        where its start is not known.
        """
        tolerance_s = DISAGREEMENT_MS * MS
        # One that begins in the wait may go on after the first sound: another sound bridged the
        # time.
        if (
            begin_s < self.silent_s - tolerance_s
            and stage in self.parts
            and _exceeds(seconds, self.wait_s)
        ):
            return False
        if stage in RUNS_ON or begin_s == -inf:
            return True
        if begin_s < self.least_s or (
            stage in _OF_THE_USER and begin_s < self.heard_s - tolerance_s
        ):
            return False
        return seconds <= self.until_s - begin_s or not _exceeds(seconds, self.until_s - begin_s)


# The reported stage latencies of one call, in the order in which the stages began, and their
# reports for one turn.

MAX_VALUES_PER_TURN = 256
"""Values of one turn that count, the earliest ones. A turn with tools has about thirty; more is a
loop in the producer.
"""

PRECISION_SECONDS = 0.005
"""Error of a start that is computed from a whole millisecond and a length."""
OF_A_REQUEST = frozenset(
    {
        Stage.LLM_FIRST_TOKEN,
        Stage.LLM_FIRST_SENTENCE,
        Stage.SENTENCE_AGGREGATION,
        Stage.TTS_FIRST_BYTE,
    }
)
"""Stages of one request to the model of which the first counts."""
_NO_OTHERS: dict[StageSource, float] = {}
"""Of every stage that one source alone has measured: an empty dict for each takes more than the
rest of it.
"""
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
    """Reported values sorted by start, then by content, so that the order of arrival does not
    matter.

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

    def longest(self, from_s: float, until_s: float) -> Iterator[Measured]:
        """The values that began in a window and are so long that sounds may contradict them."""
        for place in range(
            bisect_left(self._begins_s, from_s), bisect_left(self._begins_s, until_s)
        ):
            if self._seconds[place] > LEAST_CHECKED_SECONDS:
                stage, source, rank = _CODES[self._codes[place]]
                yield Measured(
                    self._begins_s[place],
                    stage,
                    source,
                    self._seconds[place],
                    rank,
                    self._models[place],
                )

    def reports(
        self,
        from_s: float,
        until_s: float,
        silent_from_s: float | None = None,
        allow: Callable[[Stage, float, float], bool] | None = None,
    ) -> Reports:
        """The reports of the values that began in the window of a turn.

        Args:
            from_s: Start of the window (epoch).
            until_s: Its end, excluded.
            silent_from_s: End of the user's last speech before the answer; None when unknown. A
                request to the model that was replaced by one after it was not answered, so it and
                the rest of its values do not count.
            allow: Says of a stage, its seconds and its start whether the sounds of the turn allow
                them; None allows all.
        """
        found: Reports = {}
        asked: dict[StageSource, tuple[float, str]] = {}
        covered_s: dict[tuple[StageSource, int], float] = {}
        first, last = bisect_left(self._begins_s, from_s), bisect_left(self._begins_s, until_s)
        last = min(last, first + MAX_VALUES_PER_TURN)
        answered_s = (
            -inf if silent_from_s is None else self._answered_from_s(first, last, silent_from_s)
        )
        for place in range(first, last):
            stage, source, rank = _CODES[self._codes[place]]
            seconds, model = self._seconds[place], self._models[place]
            begin_s = self._begins_s[place]
            if (
                seconds > LEAST_CHECKED_SECONDS
                and allow is not None
                and not allow(stage, seconds, begin_s)
            ):
                continue
            if begin_s < answered_s and stage in OF_A_REQUEST and source is StageSource.PIPECAT:
                continue
            if stage is Stage.TOOL_RUN:  # the one stage that is a union, of values of one rank
                begun_s = max(begin_s, covered_s.get((source, rank), -inf))
                covered_s[source, rank] = max(begun_s, begin_s + seconds)
                seconds = covered_s[source, rank] - begun_s
            _add_value(found, stage, source, Reported(rank, seconds, model))
            # Pipecat measures the wait for the first sentence from the first token on; others from
            # the request on.
            if stage is Stage.LLM_FIRST_TOKEN:
                asked[source] = seconds, model
            elif stage is Stage.SENTENCE_AGGREGATION and source in asked:
                waited_s, model = asked[source]
                _add_value(
                    found, Stage.LLM_FIRST_SENTENCE, source, Reported(1, waited_s + seconds, model)
                )
        return found

    def _answered_from_s(self, first: int, last: int, silent_from_s: float) -> float:
        """Start of the request that was answered: the first after the user's last sound, otherwise
        the last before it.
        """
        before_s = -inf
        for place in range(first, last):
            if _CODES[self._codes[place]][:2] == _FIRST_TOKEN:
                begin_s = self._begins_s[place]
                if begin_s >= silent_from_s - PRECISION_SECONDS:
                    return begin_s
                before_s = begin_s
        return before_s


def _add_value(found: Reports, stage: Stage, source: StageSource, value: Reported) -> None:
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


# The stages of one turn: the best source's number, the other sources' numbers, and whether they
# disagree.

SECOND_DIGITS = 6
_FROM_A_RECORD = frozenset({StageSource.ELEVENLABS, StageSource.RUN})
_FROM_SPEECH = frozenset({Anchor.AUDIO, Anchor.RECORD, Anchor.VAD})
"""Anchors at the end of the user's speech itself."""
_SOURCE_PLACES: Mapping[StageSource, int] = {source: place for place, source in enumerate(SOURCES)}


def stages_in_row(reports: Reports, heard_ms: float | None) -> tuple[StageLatency, ...]:
    """The measured stages, in the order of the list of stages.

    Voice to voice has a score of its own from the times of speech, `heard_ms`; it appears here
    where others measured it too, unless it does not begin at the end of the user's speech (None).
    """
    stages = []
    for stage in sorted(reports, key=STAGE_PLACES.__getitem__):
        source, *others = sorted(reports[stage], key=_SOURCE_PLACES.__getitem__)
        best = reports[stage][source]
        others_ms = {other: _ms(reports[stage][other]) for other in others} or _NO_OTHERS
        if stage is Stage.VOICE_TO_VOICE and heard_ms is not None:
            others_ms = others_ms | {StageSource.SPEECH: heard_ms}
        latency_ms, anchor = _ms(best), None
        if stage in FROM_USER_SILENCE:
            # A source that measures from the end of the user's speech has that from a detector; a
            # record made after the call does not name its source.
            anchor = Anchor.RECORD if source in _FROM_A_RECORD else Anchor.VAD
        is_disputed = any(disagree(latency_ms, other_ms) for other_ms in others_ms.values())
        stages.append(
            StageLatency(
                stage, latency_ms, source, anchor, best.model or None, others_ms, is_disputed
            )
        )
    return tuple(stages)


def convai_seconds(reports: Reports, heard_ms: float | None) -> dict[str, float]:
    """Seconds by ElevenLabs' name; voice to voice as heard, where no other source has it and the
    user waited. The run's own latencies are for comparison: those as heard come before them.
    """
    seconds = {
        name: round(by_source[best].seconds, SECOND_DIGITS)
        for stage, name in CONVAI_NAMES.items()
        if (by_source := reports.get(stage))
        and (best := _best_source(by_source)) is not StageSource.RUN
    }
    if heard_ms is not None and heard_ms >= 0:
        seconds.setdefault(
            CONVAI_NAMES[Stage.VOICE_TO_VOICE], round(heard_ms / MS_PER_SECOND, SECOND_DIGITS)
        )
    return seconds


def _best_source(by_source: Mapping[StageSource, Reported]) -> StageSource:
    """The best source among those present."""
    return min(by_source, key=_SOURCE_PLACES.__getitem__)


def _ms(found: Reported) -> float:
    return round(found.seconds * MS_PER_SECOND, MS_DIGITS)


# Latency by stage and turn: a reported value is filed under the turn in whose time it began.
#
# The turn of a value follows from times alone, so it does not matter whether a number comes before
# or after the sound that creates the turn; when a turn moves, so do its numbers. Endpointing also
# follows from the speech itself, and a tool's run from the audit log or an ElevenLabs agent's
# events: these are sources beside the reports.

MAX_UNKNOWN_KEYS = 32
"""Unknown names that are kept of a call, for debugging."""

_UNMAPPED = "callgauge_stage_values_unmapped_total"
CONTRADICTED: Final = "callgauge_stage_values_contradicted_total"
"""The counter of values that the sounds of their turn do not allow, by source and stage."""
_LIMIT = "callgauge_limits_hit_total"


class StageLatencies:
    """The stages of one call.

    Attributes:
        unknown_keys: Reported names that no table has.
    """

    def __init__(self, limits: Limits) -> None:
        self.unknown_keys: set[str] = set()
        self._max_values = limits.max_stage_values_per_call
        self._values = StageValues()
        self._used: list[Used] = []
        self._windows = TurnWindows()
        self._has_windows = False
        self._convai: dict[int, Mapping[str, float]] = {}
        self._of_the_run_s: dict[int, float] = {}
        self._stale: set[int] = set()
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._is_full = False

    def observe(self, findings: EventFindings, time_ms: int) -> None:
        """Folds the reports of one event, which came at `time_ms`."""
        for value in findings.measured:
            # A source reports a stage when it is over: so the stage began at least that long
            # before.
            latest_s = time_ms / MS_PER_SECOND - value.seconds
            if value.begin_s > latest_s + PRECISION_SECONDS and value.stage not in RUNS_ON:
                value = value._replace(begin_s=latest_s)
            if self._has_room() and self._values.add(value):
                self._is_stale_at(value.begin_s)
        for used in findings.used:
            place = bisect_left(self._used, used)
            if self._has_room() and self._used[place : place + 1] != [used]:
                self._used.insert(place, used)
        if findings.unknown:
            self._unknown(findings.source, findings.unknown)

    def fold_convai(self, turn: int, seconds: Mapping[str, float]) -> None:
        """Replaces the metrics that an ElevenLabs record has for a turn, in seconds by name."""
        if self._convai.get(turn, {}) == seconds:
            return
        # replaced, never changed: values computed from it are compared with it
        self._convai[turn] = seconds
        self._stale.add(turn)
        self._unknown(
            InputSource.ELEVENLABS, [name for name in seconds if name not in CONVAI_METRICS]
        )

    def fold_run(
        self, heard: HeardTurns, turns: Iterable[int], latencies_ms: Sequence[float]
    ) -> None:
        """Takes the latencies that the run measured itself, at the close: only then is it known
        which turns have one.

        Args:
            heard: The turns of the call.
            turns: Their numbers, in order.
            latencies_ms: The latencies in the order of the turns. They name no turn, so unless
                there is one for each turn with a latency they belong to none.
        """
        answered = [
            number
            for number, turn in heard.turns(turns).items()
            if number >= 1 and turn.view is not None and turn.view.heard_ms is not None
        ]
        if len(answered) == len(latencies_ms):
            by_turn_ms = dict(zip(answered, latencies_ms, strict=True))
            self._of_the_run_s = {
                turn: latency_ms / MS_PER_SECOND for turn, latency_ms in by_turn_ms.items()
            }
            self._stale.update(answered)
        else:
            self._counts[_UNMAPPED, InputSource.AUDIT.value] += len(latencies_ms)

    def drain_counts(self) -> list[Count]:
        """Counts of reports without a stage, and at the close of those that the sounds contradict,
        since the last drain.
        """
        counts = [
            Count(metric, tuple(labels), by) for (metric, *labels), by in self._counts.items()
        ]
        self._counts.clear()
        return counts

    def stale_turns(self, heard: HeardTurns, touched: Iterable[int]) -> set[int]:
        """Turns whose reported values may have changed since the last call.

        Args:
            heard: The turns of the call.
            touched: Turns that may have changed.
        """
        stale, self._stale = self._stale, set()
        if self._values or self._used:
            if not self._has_windows:  # most calls need none, and turns change often
                self._has_windows = True
                touched = heard.numbers()
            stale |= self._windows.update(heard, touched)
        return stale

    def stages_of(self, heard: HeardTurns, number: int) -> tuple[StageLatency, ...]:
        """The measured stages of a turn, in the order of the list of stages."""
        turn = heard.turn(number)
        if turn is None or turn.view is None:
            return ()
        is_reported = self._values or number in self._convai or number in self._of_the_run_s
        if heard.is_simulated and not is_reported and not turn.tools:
            return ()
        # A source measures from the end of the user's speech; from a transcript or a ruling on, the
        # wait is another one.
        is_from_silence = turn.view.anchor in _FROM_SPEECH
        return stages_in_row(self._reports(turn), turn.view.heard_ms if is_from_silence else None)

    def count_contradicted(self, heard: HeardTurns) -> None:
        """Counts the values that the sounds do not allow: at the close, when every
        sound is known.
        """
        for number, turn in heard.turns(self._windows.turns() if self._values else ()).items():
            window = self._windows.window(number)
            bounds = self._bounds(turn, window)
            for value in self._values.longest(*window):
                if not bounds.allow(value.stage, value.seconds, value.begin_s):
                    self._counts[CONTRADICTED, value.source.value, value.stage.value] += 1
        for number, turn in heard.turns(self._convai).items():
            bounds = self._bounds(turn, self._windows.window(number))
            for stage, seconds in _in_record(self._convai[number]):
                if not bounds.allow(stage, seconds):
                    self._counts[CONTRADICTED, StageSource.ELEVENLABS.value, stage.value] += 1

    def turn_metrics(
        self, heard: HeardTurns, record: AgentRecord | None, number: int
    ) -> TurnMetrics:
        """The metrics of a turn for a transcript, as of the last `follow`."""
        turn = heard.turn(number)
        if turn is None or turn.view is None:
            return TurnMetrics({}, {})
        seconds = convai_seconds(self._reports(turn), turn.view.heard_ms)
        recorded = None if record is None else record.recorded(number).usage
        return TurnMetrics(seconds, recorded or self._usage(number))

    @property
    def used(self) -> Sequence[Used]:
        """What the models used, in the order of time, by all sources."""
        return self._used

    def _usage(self, turn: int) -> Mapping[str, TokenUsage]:
        """Tokens by model. Several sources may count the same ones: the best of them wins."""
        from_s, until_s = self._windows.window(turn)
        first, last = (
            bisect_left(self._used, at_s, key=attrgetter("at_s")) for at_s in (from_s, until_s)
        )
        used = [each for each in self._used[first:last] if each.kind is ServiceKind.LLM]
        best = min((each.rank for each in used), default=0)
        usage: dict[str, TokenUsage] = {}
        for each in used:
            if each.rank == best:
                known = usage.get(each.model)
                usage[each.model] = each.usage if known is None else known.plus(each.usage)
        return usage

    def _has_room(self) -> bool:
        if len(self._values) + len(self._used) < self._max_values:
            return True
        if not self._is_full:
            self._is_full = True
            self._counts[_LIMIT, "stage_values"] += 1
        return False

    def _unknown(self, source: InputSource, keys: list[str]) -> None:
        if keys:
            self._counts[_UNMAPPED, source.value] += len(keys)
            room = MAX_UNKNOWN_KEYS - len(self.unknown_keys)
            self.unknown_keys.update(key[:MAX_NAME_CHARS] for key in keys[:room])

    def _is_stale_at(self, begin_s: float) -> None:
        turn = self._windows.turn_at(begin_s)
        if turn is not None:
            self._stale.add(turn)

    def _own(self, turn: HeardTurn) -> list[tuple[Stage, StageSource, float]]:
        """Stages that follow from the times of speech and of tools."""
        own = []
        if turn.endpointing_s is not None:
            own.append((Stage.ENDPOINTING, StageSource.SPEECH, turn.endpointing_s))
        for teller in (StageSource.ELEVENLABS, StageSource.AUDIT) if turn.tools else ():
            # The record itself has the time of pipecat's run.
            runs = [
                TimeSpan(use.called_at_ms, use.called_at_ms + use.duration_ms)
                for use in turn.tools
                if use.duration_ms is not None
                and use.called_at_ms is not None
                and use.source.value == teller.value
            ]
            if runs:
                own.append((Stage.TOOL_RUN, teller, length_ms(merged(runs)) / MS_PER_SECOND))
        return own

    def _reports(self, turn: HeardTurn) -> Reports:
        """All reports of the turn that its sounds allow."""
        window = self._windows.window(turn.number)
        bounds = self._bounds(turn, window)
        reports = self._values.reports(*window, turn.silent_from_s, bounds.allow)
        by_name = self._convai.get(turn.number)
        recorded = _in_record(by_name) if by_name else ()
        found = [
            (stage, StageSource.ELEVENLABS, seconds)
            for stage, seconds in recorded
            if seconds <= LEAST_CHECKED_SECONDS or bounds.allow(stage, seconds)
        ]
        if turn.number in self._of_the_run_s:
            found.append((Stage.VOICE_TO_VOICE, StageSource.RUN, self._of_the_run_s[turn.number]))
        for stage, source, seconds in (*self._own(turn), *found):
            if 0 < seconds <= MAX_STAGE_SECONDS:
                reports.setdefault(stage, {}).setdefault(
                    source, Reported(0, round(seconds, SECOND_DIGITS), "")
                )
        return reports

    def _bounds(self, turn: HeardTurn, window: tuple[float, float]) -> StageBounds:
        """What the sounds of the turn allow for a value."""
        view, (from_s, until_s) = turn.view, window
        least_s = self._windows.first_s - BEFORE_FIRST_TURN_SECONDS if from_s == -inf else from_s
        heard_s = turn.user.starts[0] if turn.user.starts and not turn.user.has_gaps else -inf
        recorded_s = self._convai.get(turn.number, {}).get(CONVAI_NAMES[Stage.VOICE_TO_VOICE])
        anchor, heard_ms = (None, None) if view is None else (view.anchor, view.heard_ms)
        wait_s = None if heard_ms is None else heard_ms / MS_PER_SECOND
        silent_s = inf if view is None or view.user_end_s is None else view.user_end_s
        if anchor is Anchor.ESTIMATED:  # the record measured the wait; when it began is not known
            anchor, wait_s, silent_s = Anchor.RECORD, recorded_s, inf
        if anchor is None or wait_s is None or not 0 < wait_s <= MAX_STAGE_SECONDS:
            return StageBounds(least_s, heard_s, inf, until_s, inf, frozenset())
        return StageBounds(least_s, heard_s, silent_s, until_s, wait_s, _PARTS_BY_ANCHOR[anchor])


def _in_record(by_name: Mapping[str, float]) -> list[tuple[Stage, float]]:
    """The stages of an ElevenLabs record's turn. A copy follows its original, which
    thereby wins.
    """
    known = sorted(CONVAI_METRICS.keys() & by_name, key=lambda name: CONVAI_METRICS[name].is_copy)
    return [(CONVAI_METRICS[name].stage, by_name[name]) for name in known]
