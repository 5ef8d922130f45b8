"""Latency by stage and turn: a reported value is filed under the turn in whose time it began.

The turn of a value follows from times alone, so it does not matter whether a number comes before or after the sound that
creates the turn; when a turn moves, so do its numbers. Endpointing also follows from the speech itself, and a tool's run from
the audit log or an ElevenLabs agent's events: these are sources beside the reports.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from consumers.engine.effects import Count
from consumers.engine.limits import Limits
from consumers.engine.measures.stages.reading import Used, findings_of
from consumers.engine.measures.stages.turn_stages import (
    MS_PER_SECOND,
    SECOND_DIGITS,
    StageReading,
    convai_seconds,
    stage_readings,
)
from consumers.engine.measures.stages.turn_windows import TurnWindows
from consumers.engine.measures.stages.values import Reported, Reports, StageValues
from consumers.engine.turns.bot.agent_record import AgentRecord
from consumers.engine.turns.bot.usage import TokenUsage, TurnMetrics
from consumers.engine.turns.heard.heard_turn import HeardTurn, HeardTurns
from consumers.engine.turns.timeline.spans import Span, length_ms, merged
from schemas.closed_sets import InputSource
from schemas.scores.latency_stages import CONVAI_METRICS, MAX_STAGE_SECONDS, Stage, StageSource
from schemas.wire import MAX_NAME_CHARS

MAX_UNKNOWN_KEYS = 32
"""Unknown names that are kept of a call, for debugging."""

_UNMAPPED = "callgauge_stage_values_unmapped_total"
_LIMIT = "callgauge_limits_hit_total"


class StageLatencies:
    """The stages of one call.

    Attributes:
        unknown_keys: Reported names that no table has.
    """

    __slots__ = (
        "_convai",
        "_counts",
        "_has_windows",
        "_is_full",
        "_max_values",
        "_of_the_run_s",
        "_stale",
        "_used",
        "_values",
        "_windows",
        "unknown_keys",
    )

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
        self._counts: Counter[tuple[str, str]] = Counter()
        self._is_full = False

    def observe(self, source: InputSource, event: Any, time_ms: int) -> None:
        """Folds the reports of the event; an event without any costs a look at its type."""
        findings = findings_of(event, time_ms)
        if findings is None:
            return
        for value in findings.measured:
            if self._has_room() and self._values.add(value):
                self._is_stale_at(value.begin_s)
        for used in findings.used:
            place = bisect_left(self._used, used)
            if self._has_room() and self._used[place : place + 1] != [used]:
                self._used.insert(place, used)
        self._unknown(source, findings.unknown)

    def fold_convai(self, turn: int, seconds: Mapping[str, float]) -> None:
        """Replaces the metrics that an ElevenLabs record has for a turn, in seconds by name."""
        if self._convai.get(turn, {}) == seconds:
            return
        self._convai[turn] = seconds  # replaced, never changed: values computed from it are compared with it
        self._stale.add(turn)
        self._unknown(InputSource.ELEVENLABS, [name for name in seconds if name not in CONVAI_METRICS])

    def fold_run(self, heard: HeardTurns, turns: Iterable[int], latencies_ms: Sequence[float]) -> None:
        """Takes the latencies that the run measured itself, at the close: only then is it known which turns have one.

        Args:
            heard: The turns of the call.
            turns: Their numbers, in order.
            latencies_ms: The latencies in the order of the turns. They name no turn, so unless there is one for each turn with a
                latency they belong to none.
        """
        answered = [
            number
            for number, turn in heard.turns(turns).items()
            if number >= 1 and turn.view is not None and turn.view.heard_ms is not None
        ]
        if len(answered) == len(latencies_ms):
            by_turn_ms = dict(zip(answered, latencies_ms, strict=True))
            self._of_the_run_s = {turn: latency_ms / MS_PER_SECOND for turn, latency_ms in by_turn_ms.items()}
            self._stale.update(answered)
        else:
            self._counts[_UNMAPPED, InputSource.AUDIT.value] += len(latencies_ms)

    def drain_counts(self) -> list[Count]:
        """Counts of reports without a stage, since the last drain."""
        counts = [Count(metric, (label,), by) for (metric, label), by in self._counts.items()]
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

    def stages_of(self, heard: HeardTurns, number: int) -> list[StageReading]:
        """The measured stages of a turn, in the order of the list of stages."""
        turn = heard.turn(number)
        if turn is None or turn.view is None:
            return []
        is_reported = self._values or number in self._convai or number in self._of_the_run_s
        if heard.is_simulated and not is_reported and not turn.tools:
            return []
        return stage_readings(self._reports(turn), turn.view.heard_ms)

    def agreement(self, heard: HeardTurns, turns: Iterable[int]) -> dict[int, tuple[int, int]]:
        """By the place of a stage: turns in which several sources measured it, and turns in which they disagree."""
        found: dict[int, tuple[int, int]] = {}
        for turn in turns:
            for stage in self.stages_of(heard, turn):
                if stage.others_ms:
                    compared, disputed = found.get(stage.stage, (0, 0))
                    found[stage.stage] = (compared + 1, disputed + stage.is_disputed)
        return found

    def turn_metrics(self, heard: HeardTurns, record: AgentRecord | None, number: int) -> TurnMetrics:
        """The metrics of a turn for a transcript, as of the last `follow`."""
        turn = heard.turn(number)
        if turn is None or turn.view is None:
            return TurnMetrics({}, {})
        seconds = convai_seconds(self._reports(turn), turn.view.heard_ms)
        recorded = None if record is None else record.usage(number)
        return TurnMetrics(seconds, recorded or self._usage(number))

    def _usage(self, turn: int) -> Mapping[str, TokenUsage]:
        """Tokens by model. Several sources may count the same ones: the best of them wins."""
        from_s, until_s = self._windows.window(turn)
        first, last = (bisect_left(self._used, at_s, key=attrgetter("at_s")) for at_s in (from_s, until_s))
        used = self._used[first:last]
        best = min((each.rank for each in used), default=0)
        usage: dict[str, TokenUsage] = {}
        for each in used:
            if each.rank == best:
                usage[each.model] = usage.get(each.model, TokenUsage()).plus(each.usage)
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
        for teller in (StageSource.ELEVENLABS, StageSource.AUDIT):
            # The record itself has the time of pipecat's run.
            runs = [
                Span(use.called_at_ms, use.called_at_ms + use.duration_ms)
                for use in turn.tools
                if use.duration_ms is not None and use.called_at_ms is not None and use.source.value == teller.value
            ]
            if runs:
                own.append((Stage.TOOL_RUN, teller, length_ms(merged(runs)) / MS_PER_SECOND))
        return own

    def _reports(self, turn: HeardTurn) -> Reports:
        """All reports of the turn."""
        reports = self._values.reports(*self._windows.window(turn.number), turn.silent_from_s)
        by_name = self._convai.get(turn.number, {})
        # A copy follows its original, which thereby wins.
        known = sorted(CONVAI_METRICS.keys() & by_name, key=lambda name: CONVAI_METRICS[name].is_copy)
        found = [(CONVAI_METRICS[name].stage, StageSource.ELEVENLABS, by_name[name]) for name in known]
        if turn.number in self._of_the_run_s:
            found.append((Stage.VOICE_TO_VOICE, StageSource.RUN, self._of_the_run_s[turn.number]))
        for stage, source, seconds in (*self._own(turn), *found):
            if 0 < seconds <= MAX_STAGE_SECONDS:
                reports.setdefault(stage, {}).setdefault(source, Reported(0, round(seconds, SECOND_DIGITS), ""))
        return reports
