"""A call as the report shows it: from score records and from a recording."""

import inspect
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise, zip_longest
from math import ceil
from statistics import median
from typing import Any, Final, NamedTuple, TypeVar

from consumers.console.page.drawing import MOST_CHARS, MS_PER_SECOND, Redacts, json_text, shortened
from consumers.engine.call import Call
from consumers.engine.measures.talk import LONG_SILENCE_MS
from consumers.engine.turns.heard import HeardSide, HeardSides, HeardTurn, Purpose, answers_of
from consumers.engine.turns.timeline import PairedUse, Span, merged
from schemas.annotations import Annotation
from schemas.closed_sets import Anchor, Speaker
from schemas.goals.goal_set import GoalSet
from schemas.metric_context import AudioSegments, MetricContext
from schemas.scores.live_view import Subject, is_withdrawn
from schemas.scores.records import (
    AnyScoreRecord,
    CallLabels,
    CallRecord,
    CallValues,
    ClosedFact,
    DeadAirFact,
    EstimateError,
    GoalsFact,
    InterruptionFact,
    NotApplicable,
    ProgressScore,
    Result,
    Scored,
    ScoreModel,
    SubgoalScore,
    ToolUseFact,
    TranscriptDisagreement,
    TurnStatus,
    TurnValues,
    Unscored,
    VoiceToVoiceLatency,
    WordErrorRate,
)

# Stretches of speech, of overlap and of silence. Times in epoch milliseconds. Pure.


class Stretch(NamedTuple):
    """Somebody speaks; times in epoch milliseconds. Where only the beginning is known both are the same."""

    speaker: Speaker
    turn: int
    start_ms: float
    end_ms: float


def in_order(stretches: Iterable[Stretch]) -> tuple[Stretch, ...]:
    """The stretches as they began."""
    return tuple(sorted(stretches, key=lambda each: (each.start_ms, each.end_ms, each.turn)))


class Interval(NamedTuple):
    """A piece of a call, in epoch milliseconds; `turn` is the one in which it began."""

    start_ms: float
    end_ms: float
    turn: int

    @property
    def length_ms(self) -> float:
        """How long it is."""
        return self.end_ms - self.start_ms


def overlaps(stretches: Sequence[Stretch], least_ms: float) -> list[Interval]:
    """Where both speak for at least so long; the turn is that of who came in."""
    users = _joined(each for each in stretches if each.speaker is Speaker.USER)
    assistants = _joined(each for each in stretches if each.speaker is Speaker.ASSISTANT)
    found, user_at, assistant_at = [], 0, 0
    while user_at < len(users) and assistant_at < len(assistants):
        user, assistant = users[user_at], assistants[assistant_at]
        second = max(user, assistant, key=lambda each: each.start_ms)
        both = Interval(second.start_ms, min(user.end_ms, assistant.end_ms), second.turn)
        if both.length_ms >= least_ms:
            found.append(both)
        if user.end_ms <= assistant.end_ms:
            user_at += 1
        else:
            assistant_at += 1
    return found


def silences(stretches: Sequence[Stretch], end_ms: float, least_ms: float) -> list[Interval]:
    """Where nobody speaks for at least so long, from the first sound to the end of the call; the turn is the one before."""
    heard = _joined(stretches)
    if not heard:
        return []
    gaps = [Interval(before.end_ms, after.start_ms, before.turn) for before, after in pairwise(heard)]
    gaps.append(Interval(heard[-1].end_ms, end_ms, heard[-1].turn))
    return [gap for gap in gaps if gap.length_ms >= least_ms]


def cut(quiet: Iterable[Interval], runs: Sequence[Span]) -> Iterator[Interval]:
    """The parts of silences outside of the runs; a run without a length cuts one in two all the same.

    Args:
        quiet: The silences, in any order.
        runs: When something ran; in order, and apart from each other.
    """
    for silence in quiet:
        start_ms = silence.start_ms
        # The run before may reach into the silence.
        for place in range(max(0, bisect_right(runs, start_ms, key=lambda run: run.start_ms) - 1), len(runs)):
            run = runs[place]
            if run.start_ms >= silence.end_ms:
                break
            if run.start_ms > start_ms:
                yield silence._replace(start_ms=start_ms, end_ms=run.start_ms)
            start_ms = max(start_ms, run.end_ms)
        if start_ms < silence.end_ms:
            yield silence._replace(start_ms=start_ms)


def _joined(stretches: Iterable[Stretch]) -> list[Interval]:
    """As pieces that do not touch, in their order; each has the turn of its last stretch."""
    pieces: list[Interval] = []
    for _, turn, start_ms, end_ms in in_order(stretches):
        if pieces and start_ms <= pieces[-1].end_ms:
            last = pieces.pop()
            pieces.append(Interval(last.start_ms, max(last.end_ms, end_ms), turn))
        else:
            pieces.append(Interval(start_ms, end_ms, turn))
    return pieces


# Sound, words and tools of a recorded call, from the engine: speech with its times, texts, and uses of tools.

_OUTLIER_MS: Final = 600_000
"""An event whose clock is further than this from any sound says nothing of when the call was."""


class Said(NamedTuple):
    """Words of one speaker; `at_ms` is None where the call does not say when."""

    speaker: Speaker
    text: str
    at_ms: float | None


class TurnHeard(NamedTuple):
    """One turn: its words and actions, in this order.

    `meant_by_user` and `heard_by_user` are there in a call with a simulated user: what it meant to say, and what it
    understood the assistant to say.
    """

    turn: int
    items: tuple[Said | PairedUse, ...]
    meant_by_user: str | None = None
    heard_by_user: str | None = None


class HeardCall(NamedTuple):
    """One call; times in epoch milliseconds, and from `start_ms` to `end_ms` everything of it happened."""

    start_ms: float
    end_ms: float
    stretches: tuple[Stretch, ...]
    tools: tuple[PairedUse, ...]
    turns: tuple[TurnHeard, ...]

    @property
    def has_ends(self) -> bool:
        """Whether every stretch of speech has a known end."""
        return all(each.end_ms > each.start_ms for each in self.stretches)


def heard_in(call: Call, times_ms: Iterable[float]) -> HeardCall:
    """Reads from the engine the words of each side, with their times.

    Args:
        call: The call after its last event.
        times_ms: When its events were.
    """
    heard = call.live.heard()
    tools = tuple(call.live.turns.tools)
    if heard.is_simulated:
        context = call.context()
        stretches = in_order(
            chain(
                _from_audio(context.audio_timestamps_user_turns, Speaker.USER),
                _from_audio(context.audio_timestamps_assistant_turns, Speaker.ASSISTANT),
            )
        )
        turns = _turns_by_trace(context, tools)
    else:
        said = heard.turns(sorted(heard.numbers()))
        stretches = in_order(_from_bot(said, heard.sides))
        turns = _turns_by_bot(said)
    start_ms, end_ms = _span(times_ms, stretches)
    return HeardCall(start_ms, end_ms, stretches, tools, turns)


def _from_audio(segments: AudioSegments, speaker: Speaker) -> Iterator[Stretch]:
    for turn, heard in segments.items():
        for start_s, end_s in heard or ():
            start_ms = start_s * MS_PER_SECOND
            yield Stretch(speaker, turn, start_ms, max(start_ms, end_s * MS_PER_SECOND))


def _from_bot(turns: Mapping[int, HeardTurn], sides: HeardSides) -> Iterator[Stretch]:
    """Sound as the live turns take it; of a side without any the moments of its texts."""
    for number, turn in turns.items():
        user, assistant = turn.user, turn.assistant
        yield from _stretches(Speaker.USER, number, user.starts or user.texts_s, user.ends if user.starts else ())
        starts = assistant.starts if sides.assistant else assistant.texts_s
        yield from _stretches(Speaker.ASSISTANT, number, starts, assistant.ends)


def _stretches(speaker: Speaker, turn: int, starts: Sequence[float], ends: Sequence[float]) -> Iterator[Stretch]:
    for start_s, end_s in zip_longest(starts, ends[: len(starts)]):
        start_ms = start_s * MS_PER_SECOND
        yield Stretch(speaker, turn, start_ms, start_ms if end_s is None else max(start_ms, end_s * MS_PER_SECOND))


def _span(times_ms: Iterable[float], stretches: Sequence[Stretch]) -> tuple[float, float]:
    kept = list(times_ms)
    if stretches:
        first_ms, last_ms = stretches[0].start_ms, max(each.end_ms for each in stretches)
        near = [each for each in kept if first_ms - _OUTLIER_MS <= each <= last_ms + _OUTLIER_MS]
        kept = [first_ms, last_ms, *near]
    return min(kept, default=0.0), max(kept, default=0.0)


def _turns_by_bot(turns: Mapping[int, HeardTurn]) -> tuple[TurnHeard, ...]:
    """The turns in the words of the transcript; a caller whom nobody has transcribed yet has the log's placeholder."""
    answers = answers_of(turns)
    found = []
    for number, turn in turns.items():
        items: list[Said | PairedUse] = []
        if words := turn.user.said(Purpose.SPOKEN) or turn.user.said(Purpose.JUDGED):
            items.append(Said(Speaker.USER, words, _first_ms(turn.user)))
        items += turn.tools
        if words := answers[number]:
            items.append(Said(Speaker.ASSISTANT, words, _first_ms(turn.assistant)))
        found.append(TurnHeard(number, tuple(items)))
    return tuple(found)


def _first_ms(side: HeardSide) -> float | None:
    times_s = side.starts or side.texts_s
    return times_s[0] * MS_PER_SECOND if times_s else None


def _turns_by_trace(context: MetricContext, tools: Sequence[PairedUse]) -> tuple[TurnHeard, ...]:
    """The turns in the order of EVA's trace; each tool is shown at its call, or at an answer without one."""
    waiting: dict[tuple[int, str], list[PairedUse]] = {}
    for use in reversed(tools):
        waiting.setdefault((use.turn, use.tool), []).append(use)
    items: dict[int, list[Said | PairedUse]] = {}
    for entry in context.conversation_trace:
        turn = int(entry["turn_id"])
        of_turn = items.setdefault(turn, [])
        if entry["type"] not in ("tool_call", "tool_response"):
            of_turn.append(Said(Speaker(entry["role"]), str(entry["content"] or ""), _time_of(entry)))
            continue
        uses = waiting.get((turn, str(entry["tool_name"])), [])
        # The answer to a tool call is shown with its call.
        if uses and (entry["type"] == "tool_call") is (uses[-1].called_at_ms is not None):
            of_turn.append(uses.pop())
    return tuple(
        TurnHeard(
            turn,
            tuple(of_turn),
            _otherwise(context.intended_user_turns.get(turn), context.transcribed_user_turns.get(turn)),
            _otherwise(context.transcribed_assistant_turns.get(turn), context.intended_assistant_turns.get(turn)),
        )
        for turn, of_turn in items.items()
    )


def _time_of(entry: Mapping[str, Any]) -> float | None:
    stamp = entry.get("timestamp")
    return float(stamp) if isinstance(stamp, int | float) else None


def _otherwise(text: str | None, shown: str | None) -> str | None:
    """The text, unless the same words are shown already."""
    if not text or (shown is not None and text.split() == shown.split()):
        return None
    return text


# One recorded call as a report shows it: the words and sounds, and the newest score records.

_LEAST_OVERLAP_MS: Final = 1.0
"""As in EVA: less is a matter of clocks."""

_MOMENTS: Final = (VoiceToVoiceLatency, InterruptionFact, ToolUseFact)

Record = TypeVar("Record", bound=CallRecord)
Revised = TypeVar("Revised", bound=AnyScoreRecord)


@dataclass(frozen=True, slots=True)
class DeadAir:
    """A silence in which the threshold was passed, and how often."""

    silence: Interval
    times: int


class Wait(NamedTuple):
    """How long the user waited for the answer of a turn, or why nobody knows; `anchor` is how the end of their speech is known, and
    `record` is the one that says so.
    """

    turn: int
    result: Result
    anchor: Anchor | None
    record: TurnValues | VoiceToVoiceLatency


class Earlier(NamedTuple):
    """What a record said in words before its last change, and until when, in epoch ms on the broker's clock."""

    text: str
    until_ms: int


class ReportedCall:
    """A call, with its state at the end, or as it is now.

    Attributes:
        conversation_id: Whose call it is.
        heard: Its words and sounds. While the call is open, speech of which no end is known goes on.
        records: The newest of each subject, in the order in which they were written.
        anchor_id: Beginning of the ids of its parts.
        annotations: What people say of it, in the order of their times.
    """

    def __init__(
        self,
        conversation_id: str,
        heard: HeardCall,
        records: Sequence[AnyScoreRecord],
        anchor_id: str,
        redactor: Redacts,
        history: Iterable[AnyScoreRecord] = (),
    ) -> None:
        """`history` has all revisions, in any order; without it nobody knows what a value was before."""
        self.conversation_id = conversation_id
        self.records = tuple(records)
        self._by_kind: dict[type, list[Any]] = {}
        for record in self.records:
            self._by_kind.setdefault(type(record), []).append(record)
        self.heard = heard = heard if self.closed is not None else _going_on(heard)
        self.anchor_id = anchor_id
        self.annotations: Sequence[Annotation] = ()
        self._redactor = redactor
        self._with_words = {turn.turn for turn in heard.turns}
        self._revisions: dict[Subject, list[AnyScoreRecord]] = {}
        for record in history:
            self._revisions.setdefault((record.name, record.turn, record.index), []).append(record)
        self.overlaps = overlaps(heard.stretches, _LEAST_OVERLAP_MS)
        self.dead_air = _dead_air(heard, self.of(DeadAirFact))

    def of(self, kind: type[Record]) -> list[Record]:
        """The records of one kind."""
        return [record for each, records in self._by_kind.items() if issubclass(each, kind) for record in records]

    @property
    def labels(self) -> CallLabels:
        """The newest labels of the call."""
        return self.records[-1].labels if self.records else CallLabels()

    @cached_property
    def closed(self) -> ClosedFact | None:
        """The `closed` fact; None while the call is open."""
        return next(iter(self.of(ClosedFact)), None)

    @property
    def is_over(self) -> bool:
        """Whether the call has ended; its scores may still change while it waits for verdicts."""
        return self.closed is not None or (self.whole is not None and self.whole.is_over)

    def status(self, record: AnyScoreRecord) -> TurnStatus:
        """How far a record can still change. A moment has the status of its turn, whose row is newer."""
        if self.closed is not None:
            return TurnStatus.FINAL
        row = self._rows.get(record.turn) if isinstance(record, _MOMENTS) else None
        return record.status if row is None else row.status

    def earlier(self, record: Revised, text_of: Callable[[Revised], str | None]) -> Earlier | None:
        """What a record said before its last change; None if it always said the same, or nothing.

        Args:
            record: The newest revision.
            text_of: What a revision says; None is nothing.
        """
        now, changed_by = text_of(record), record
        revisions = self._revisions.get((record.name, record.turn, record.index), ())
        for revision in sorted(revisions, key=lambda each: each.revision, reverse=True):
            if revision.revision >= record.revision or is_withdrawn(revision):
                continue
            text = text_of(revision)  # type: ignore[arg-type]  # revisions of one subject are of one kind
            if text is not None and text != now:
                return Earlier(text, changed_by.caused_at_ms)
            changed_by = revision  # type: ignore[assignment]
        return None

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

    @cached_property
    def _rows(self) -> dict[int | None, TurnValues]:
        return {row.turn: row for row in self.rows}

    @cached_property
    def whole(self) -> CallValues | None:
        """The measured values of the whole call."""
        return next(iter(self.of(CallValues)), None)

    @cached_property
    def latencies(self) -> list[Wait]:
        """By turn: how long the user waited. For the greeting nobody did."""
        waits = {
            record.turn: Wait(record.turn, record.result, record.anchor, record)
            for record in self.of(VoiceToVoiceLatency)
            if record.turn is not None
        }
        for row in self.rows:
            if row.turn is not None and row.turn >= 1:
                moment = waits.get(row.turn)  # it was published sooner, and its revisions say more
                record = row if moment is None or moment.result != row.voice_to_voice_ms else moment.record
                waits[row.turn] = Wait(row.turn, row.voice_to_voice_ms, row.anchor, record)
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
    def slowest_turn(self) -> int | None:
        """The turn with the longest of those."""
        return max(self.waits_ms, key=self.waits_ms.__getitem__, default=None)

    @property
    def dead_air_times(self) -> int | None:
        """How often there was dead air; None where it cannot be known."""
        times = sum(each.times for each in self.dead_air)
        is_heard = self.closed is None and bool(self.heard.stretches)
        return times if times or is_heard or self._measured_dead_air_ms is not None else None

    @property
    def dead_air_ms(self) -> float:
        """How long it was together: as measured over the whole call if the threshold is the same, otherwise as drawn."""
        measured_ms, facts = self._measured_dead_air_ms, self.of(DeadAirFact)
        if (
            self.closed is not None
            and facts
            and measured_ms is not None
            and all(fact.threshold_ms == LONG_SILENCE_MS for fact in facts)
        ):
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

    @property
    def unjudged_turns(self) -> list[int]:
        """The turns that were left and of which a judge's verdict is pending; empty once the call is closed.

        A turn has its progress as soon as every question about it is answered, or cannot be.
        """
        goals = self.goals
        if goals is None or self.closed is not None or not any(subgoal.is_judged for subgoal in goals.subgoals):
            return []
        judged = {record.turn for record in self.of(ProgressScore)}
        return [row.turn for row in self.rows if row.turn is not None and row.turn >= 1 and row.turn not in judged]

    def is_rated_later(self, row: TurnValues) -> bool:
        """Whether a judge's ratings of a turn that are not there are still to come: judges are asked about a turn that was left."""
        is_left = self.is_over or row is not self.rows[-1] or row.outcome is not None
        return self.closed is None and is_left and (row.turn or 0) >= 0

    def shown(self, text: str, most: int = MOST_CHARS) -> str:
        """A text of the call as a person may see it."""
        return shortened(self._redactor.redact(text), most)

    def shown_json(self, value: object) -> str:
        """The same for a value that a tool was given or answered."""
        return json_text(value, self._redactor)

    def offset_ms(self, time_ms: float) -> float:
        """A moment as counted from the start of the call."""
        return time_ms - self.heard.start_ms

    def has_words(self, turn: int) -> bool:
        """Whether the transcript has the turn."""
        return turn in self._with_words

    def turn_anchor(self, turn: int) -> str:
        """The id of a turn in the transcript."""
        return f"{self.anchor_id}-t{turn}"


def _going_on(heard: HeardCall) -> HeardCall:
    """The newest speech of each side, if its end is not known yet, up to now."""
    newest: dict[Speaker, int] = {stretch.speaker: place for place, stretch in enumerate(heard.stretches)}
    stretches = tuple(
        each._replace(end_ms=heard.end_ms)
        if place == newest[each.speaker] and each.end_ms <= each.start_ms < heard.end_ms
        else each
        for place, each in enumerate(heard.stretches)
    )
    return heard._replace(stretches=stretches)


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


# The values in a row of a turn, or in the record of a call, one by one under their names. Pure.

LATENCY: Final = "voice_to_voice_latency_ms"
_OF_ANY_RECORD: Final = frozenset({*CallRecord.model_fields, "kind", "name"})
_NO_VALUES: Final = _OF_ANY_RECORD | {
    *("through_turn", "first_known", "is_withdrawn", "is_over"),
    *("voice_to_voice_ms", "anchor", "source", "eva", "expected_tool_calls"),
}
"""Fields without a value: those of the record itself, and those that have a shape of their own here."""


class ScorePart(NamedTuple):
    """One value.

    Attributes:
        name: Its name, as of a record of its own.
        result: Its value; None for a score of several numbers.
        fields: Its other values, by name.
        meaning: Its description in the contract; empty where the name says all.
    """

    name: str
    result: Result | None
    fields: Mapping[str, Any]
    meaning: str = ""


def parts_of(record: TurnValues | CallValues) -> Iterator[ScorePart]:
    """Every measured value, but no latency of the greeting, for which nobody waits."""
    if isinstance(record, TurnValues):
        if record.turn is not None and record.turn >= 1:
            yield ScorePart(LATENCY, record.voice_to_voice_ms, {"anchor": record.anchor, "source": record.source})
    else:
        for metric, score in record.eva.items():
            yield part_of(metric, score)
    for name in type(record).model_fields:
        value = getattr(record, name)
        if name not in _NO_VALUES and value not in (None, (), {}):
            part = part_of(name, value)
            if isinstance(record, CallValues) and isinstance(value, WordErrorRate | TranscriptDisagreement):
                part = part._replace(fields={"through_turn": record.through_turn, **part.fields})
            yield part


def part_of(name: str, value: object) -> ScorePart:
    """A value as one part; of a record, the fields that only its kind has."""
    match value:
        case Scored() | Unscored() | NotApplicable():
            return ScorePart(name, value, {})
        case EstimateError(error_ms=error_ms):
            others = {"estimated_ms": value.estimated_ms, "recorded_ms": value.recorded_ms}
            return ScorePart("estimate_error_ms", Scored(value=error_ms), others, _meaning(value))
        case ScoreModel():
            own = type(value).model_fields.keys() - (_OF_ANY_RECORD if isinstance(value, CallRecord) else set())
            fields = {field: getattr(value, field) for field in type(value).model_fields if field in own}
            return ScorePart(name, fields.pop("result", None), fields, _meaning(value))
        case _:
            return ScorePart(name, None, {name: value})


def _meaning(value: ScoreModel) -> str:
    return (inspect.getdoc(type(value)) or "").split("\n\n")[0].replace("`", "").replace("\n", " ")
