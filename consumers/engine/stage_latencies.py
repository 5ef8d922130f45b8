"""Latency by stage and turn: what sources report is filed under the turn in whose time it began.

The turn of a value follows from times alone, so it does not matter whether a number comes before or after the sound that
makes the turn; when a turn moves, so do its numbers. Endpointing is also known from the speech itself, and a tool's run from
the audit log or an ElevenLabs agent's events: they stand beside what is reported.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from consumers.engine.call_memory import CallMemory, Subject
from consumers.engine.effects import Count, Effect, PublishScore
from consumers.engine.limits import Limits
from consumers.engine.live_side import LiveSide
from consumers.engine.record_book import RecordBook, hash_of
from consumers.engine.speaking import SpeakingMachine
from consumers.engine.stage_reading import Used, findings_of
from consumers.engine.stage_values import STAGES, Reported, Reports, StageValues
from consumers.engine.tool_uses import ToolUses
from consumers.engine.turn_metrics import TokenUsage, TurnMetrics
from consumers.engine.turn_stages import MS_PER_SECOND, SECOND_DIGITS, convai_seconds, told
from consumers.engine.turn_view import view_of_audio, view_of_speaking, voice_to_voice_ms
from consumers.engine.turn_windows import TurnWindows
from schemas.codec import InputSource
from schemas.latency_stages import CONVAI_METRICS, MAX_STAGE_SECONDS, Stage, StageSource
from schemas.metric_context import MetricContext
from schemas.scores import AnyScoreRecord, Scored, TurnStatus
from schemas.stage_scores import TurnStages
from schemas.wire import MAX_NAME_CHARS

NAME = "stage_latencies"
MAX_UNKNOWN_KEYS = 32
"""Names without a stage that are kept of a call, for whoever looks into it."""

_UNMAPPED = "callgauge_stage_values_unmapped_total"
_LIMIT = "callgauge_limits_hit_total"


class StageLatencies:
    """The stages of one call.

    Attributes:
        has_news: Something was reported since the turns were last followed.
        unknown_keys: What was reported under a name that no table has.
    """

    def __init__(self, book: RecordBook, limits: Limits, memory: CallMemory | None = None) -> None:
        self.has_news = False
        self.unknown_keys: set[str] = set()
        self._book = book
        self._max_values = limits.max_stage_values_per_call
        self._values = StageValues()
        self._used: list[Used] = []
        self._windows = TurnWindows()
        self._has_windows = False
        self._tools = ToolUses()
        self._tool_runs_ms: dict[int, dict[int, tuple[StageSource, int]]] = {}
        self._convai: dict[int, Mapping[str, float]] = {}
        self._stale: set[int] = set()
        self._bases: dict[int, object] = {}
        self._said: set[int] = set()
        self._unspoken: set[int] = set()  # nothing is said of them before they change
        self._counted: dict[int, int] = {} if memory is None else dict(memory.known_stages)
        self._unsaid: dict[int, int] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._is_full = False

    def observe(self, source: InputSource, event: Any, time_ms: int) -> None:
        """Take what the event reports; one that reports nothing costs a look at its type."""
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

    def take_convai(self, turn: int, seconds: Mapping[str, float]) -> None:
        """An ElevenLabs record has these metrics for a turn, in seconds by name; they replace what it had for it before."""
        if self._convai.get(turn, {}) == seconds:
            return
        self._convai[turn] = seconds  # replaced, never changed: what was computed from it is compared with it
        self._stale.add(turn)
        self.has_news = True
        self._unknown(InputSource.ELEVENLABS, [name for name in seconds if name not in CONVAI_METRICS])

    def follow(self, live: LiveSide, touched: Iterable[int], time_ms: int, out: list[Effect]) -> None:
        """These turns may have changed, and those that something was reported of have."""
        self.has_news = False
        if self._counts:
            if not self._book.is_silent:
                out += [Count(metric, (label,), by) for (metric, label), by in self._counts.items()]
            self._counts.clear()
        self._find_stale(live, touched)
        for turn in sorted(self._stale) if len(self._stale) > 1 else self._stale:
            record = self._record(live, turn, time_ms, is_over=False)
            if record is not None:
                live.announce(out)
                out.append(PublishScore(record))
        self._stale.clear()

    def final_records(self, live: LiveSide, _context: MetricContext, last_ms: int | None) -> list[AnyScoreRecord]:
        """The stages of every turn once more, as final."""
        turns = sorted(live.machine.turns)
        self._find_stale(live, turns)
        self._stale.clear()
        records = [self._record(live, turn, last_ms, is_over=True) for turn in turns]
        return [record for record in records if record is not None]

    def take_back(self, subjects: Iterable[Subject], out: list[Effect]) -> None:
        """Withdraw what an earlier evaluator said of turns that this one does not know."""
        for name, turn, _ in subjects:
            record = self._taken_back(turn, None) if name == NAME and turn is not None else None
            if record is not None:
                out.append(PublishScore(record))

    def turn_metrics(self, live: LiveSide, turn: int) -> TurnMetrics:
        """What a transcript says of the turn, as of when the turns were last followed."""
        heard = _heard(live, turn, is_over=True)
        if heard is None:
            return TurnMetrics({}, {})
        seconds = convai_seconds(self._reports(turn, self._own(turn, heard)), heard.voice_to_voice_ms)
        recorded = None if live.record is None else live.record.usage(turn)
        return TurnMetrics(seconds, recorded or self._usage(turn))

    def _usage(self, turn: int) -> Mapping[str, TokenUsage]:
        """Tokens by model. Several may have counted the same ones: the best of those who did is believed."""
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
            self._is_full = self.has_news = True
            self._counts[_LIMIT, "stage_values"] += 1
        return False

    def _unknown(self, source: InputSource, keys: list[str]) -> None:
        if keys:
            self.has_news = True
            self._counts[_UNMAPPED, source.value] += len(keys)
            room = MAX_UNKNOWN_KEYS - len(self.unknown_keys)
            self.unknown_keys.update(key[:MAX_NAME_CHARS] for key in keys[:room])

    def _is_stale_at(self, begin_s: float) -> None:
        turn = self._windows.turn_at(begin_s)
        if turn is not None:
            self._stale.add(turn)
        if turn not in self._unspoken:
            self.has_news = True

    def _find_stale(self, live: LiveSide, touched: Iterable[int]) -> None:
        machine = live.machine
        self._stale.update(touched)
        if self._values or self._used:
            if not self._has_windows:  # most calls need none, and turns change often
                self._has_windows = True
                touched = set(machine.turns)
            self._stale |= self._windows.update(machine, touched)
        for (turn, index), use in self._tools.follow(machine.last_tool).items():
            runs = self._tool_runs_ms.setdefault(turn, {})
            # How long pipecat's run is in the record itself.
            if use is None or use.duration_ms is None or use.source is InputSource.PIPECAT:
                runs.pop(index, None)
            else:
                runs[index] = StageSource(use.source), use.duration_ms
            self._stale.add(turn)

    def _record(self, live: LiveSide, turn: int, time_ms: int | None, *, is_over: bool) -> TurnStages | None:
        """What is to be said of the turn. Nothing before an answer has been spoken: it would change with every number."""
        slice_ = self._values.slice(*self._windows.window(turn))
        convai = self._convai.get(turn)
        is_measured = bool(slice_[0] or convai or turn in self._tool_runs_ms or type(live.machine) is SpeakingMachine)
        heard = _heard(live, turn, is_over=is_over) if is_measured else None
        if heard is None:
            self._bases.pop(turn, None)
            if is_measured:
                self._unspoken.add(turn)
            return self._withdrawn(turn, time_ms)
        self._unspoken.discard(turn)
        own = self._own(turn, heard)
        basis = slice_, own, heard.voice_to_voice_ms, convai
        if self._bases.get(turn) == basis and not is_over:
            return None
        self._bases[turn] = basis
        stages = told(self._reports(turn, own), heard.voice_to_voice_ms)
        if not stages:
            return self._withdrawn(turn, time_ms)
        self._said.add(turn)
        known = sum(1 << each.stage for each in stages)
        return self._book.record(
            TurnStages, (NAME, turn, 0), TurnStatus.FINAL if is_over else live.turns.status(turn),
            (hash_of(tuple(tuple(each) for each in stages)),), event_time_ms=time_ms,
            stages=[each.fields() for each in stages], first_known=self._first_known(turn, known),
        )  # fmt: skip

    def _first_known(self, turn: int, known: int) -> tuple[Stage, ...]:
        """The stages of `known` that no record had before. What a replay finds in silence is said as one record, if at all."""
        if self._book.is_silent:
            self._unsaid[turn] = known
            counted = self._counted.get(turn, 0)
        else:
            counted = self._counted.get(turn, 0) | self._unsaid.pop(turn, 0)
            self._counted[turn] = counted | known
        return tuple(stage for place, stage in enumerate(STAGES) if known & ~counted & 1 << place)

    def _withdrawn(self, turn: int, time_ms: int | None) -> TurnStages | None:
        if turn not in self._said:
            return None
        self._said.discard(turn)
        if self._book.is_silent:
            self._unsaid.pop(turn, None)
        return self._taken_back(turn, time_ms)

    def _taken_back(self, turn: int, time_ms: int | None) -> TurnStages | None:
        return self._book.record(
            TurnStages, (NAME, turn, 0), TurnStatus.OPEN, ("withdrawn",), event_time_ms=time_ms, has_value=False,
            stages=(), is_withdrawn=True,
        )  # fmt: skip

    def _own(self, turn: int, heard: "_Heard") -> tuple[tuple[Stage, StageSource, float], ...]:
        """What follows from the times of speech and of tools."""
        runs = self._tool_runs_ms.get(turn, {})
        own = []
        if heard.endpointing_s is not None:
            own.append((Stage.ENDPOINTING, StageSource.SPEECH, heard.endpointing_s))
        for teller in (StageSource.ELEVENLABS, StageSource.AUDIT):
            told_ms = [duration_ms for source, duration_ms in runs.values() if source is teller]
            if told_ms:
                own.append((Stage.TOOL_RUN, teller, sum(told_ms) / MS_PER_SECOND))
        return tuple(own)

    def _reports(self, turn: int, own: Iterable[tuple[Stage, StageSource, float]]) -> Reports:
        """What everybody says of the turn."""
        reports = self._values.reports(*self._windows.window(turn))
        by_name = self._convai.get(turn, {})
        # A copy stands behind what it copies, which thereby counts.
        known = sorted(CONVAI_METRICS.keys() & by_name, key=lambda name: CONVAI_METRICS[name].is_copy)
        found = [(CONVAI_METRICS[name].stage, StageSource.ELEVENLABS, by_name[name]) for name in known]
        for stage, source, seconds in (*own, *found):
            if 0 < seconds <= MAX_STAGE_SECONDS:
                reports.setdefault(stage, {}).setdefault(source, Reported(0, round(seconds, SECOND_DIGITS), ""))
        return reports


class _Heard(NamedTuple):
    """What is known of a turn from its sounds: how long the user waited (negative where nobody waited), how long the ruling took."""

    voice_to_voice_ms: float | None
    endpointing_s: float | None


def _heard(live: LiveSide, turn: int, *, is_over: bool) -> _Heard | None:
    """None for a turn that is not there, or in which the assistant has not spoken yet and still may."""
    machine = live.machine
    endpointing_s = None
    if isinstance(machine, SpeakingMachine):
        spoken = machine.turns.get(turn)
        if spoken is None or not (is_over or turn < machine.turn or spoken.bot_ends):
            return None
        view = view_of_speaking(spoken, has_bot_events=machine.has_bot_events)
        if spoken.vad_ends and spoken.release_ends:
            endpointing_s = spoken.release_ends[-1] - spoken.vad_ends[-1]
    else:
        state = machine.turns.get(turn)
        if state is None or not (is_over or turn < machine.turn or state.assistant_ends):
            return None
        view = view_of_audio(state)
    waited = voice_to_voice_ms(view)
    return _Heard(waited.value if isinstance(waited, Scored) else None, endpointing_s)
