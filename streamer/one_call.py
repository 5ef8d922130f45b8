"""One call from the topics, as text: found by its id or the end of it, with its events, its scores and its transcript."""

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import TopicAuthorizationFailedError
from pydantic import ValidationError
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from consumers.console.page.calls import ReportedCall, Said
from consumers.console.page.drawing import (
    clock,
    counted,
    duration,
    expected_call,
    in_words,
    not_judged,
    outcome,
    seconds,
    shortened,
)
from consumers.console.page.sections import unmarked
from consumers.console.reading import begins_call
from consumers.console.watched import MAX_SCORES, WatchedCall, past_call
from consumers.engine.redaction.redactor import Redactor
from consumers.engine.turns.timeline import PairedUse
from consumers.history.annotations import MAX_OF_A_CALL
from consumers.history.opening import opened
from consumers.history.search import MAX_ROWS, Condition, Question
from consumers.log.stretches import KeyRecords, Terms, events_of, only_of
from consumers.runtime.kafka.connection import KafkaRefusedError, TopicsUnfitError, murmur2_place, partition_counts
from consumers.runtime.kafka.ranges import onlooker, records_between
from consumers.runtime.process import OperatorError, first_of, wall_clock_ms
from schemas.annotations import ANNOTATION, Annotation
from schemas.closed_sets import CALL_JUDGES
from schemas.log import placed_in
from schemas.scores.records import (
    AgentErrorsFact,
    CallRecord,
    DeadAirFact,
    InterruptionFact,
    Scored,
    StallFact,
    TextRating,
    ToolUseFact,
    TurnOutcome,
    Unscored,
)
from schemas.topics import ANNOTATIONS_TOPIC, EVENTS_TOPIC, SCORES_TOPIC, TRANSCRIPTS_TOPIC
from schemas.transcript import TRANSCRIPT, TranscriptTurn
from schemas.units import to_seconds
from streamer.cluster.readers import ranges_since
from streamer.facts import LEAST_CHARS, is_wanted
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals
from streamer.terminal import error_console, print_line, say
from streamer.time_bounds import shown_moment

# Finds one call on the topics and reads all that they have of it. It uses no consumer group, so it disturbs no other reader.

MAX_CALLS: Final = 20
"""Calls kept whose ids end in the same way: as many as a person chooses from."""
NEWEST_MS: Final = 3_600_000
"""Unless a person says since when, this long is looked at first: most calls that somebody asks for ran just now."""
DAY_MS: Final = 24 * NEWEST_MS
CLOSED_TOGETHER_MS: Final = 60_000
"""The transcript is in the transaction that closes the call; the clocks of broker and evaluator may differ by so much."""
FOLLOW_MS: Final = 500
"""How long a call's records are gathered before its text is written again."""
FETCH_WAIT_MS: Final = 20
"""How long the broker keeps a fetch that has nothing: a question about offsets waits behind it."""
REFRESH_SECONDS: Final = 0.1


@dataclass(slots=True)
class FoundScores:
    """Records of `scores` of one call: their partition number, their values, and the offset up to which was read."""

    partition: int
    end: int
    values: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class FoundCalls:
    """The calls that were found, and what else was seen.

    Attributes:
        since_ms: From then on was looked.
        records: Records of `scores` that were looked at, those of others too.
        calls: By conversation id what was found of it.
        has_start: Ids of calls whose first record was among them.
    """

    since_ms: int
    records: int = 0
    calls: dict[str, FoundScores] = field(default_factory=dict)
    has_start: set[str] = field(default_factory=set)


@dataclass(slots=True)
class FoundCall:
    """One call, as far as the topics have it.

    Attributes:
        call: Its scores and its events.
        redactor: Redacts its words.
        transcript: Its transcript; None if there is none.
        remarks: Sentences about what is missing, and why.
        annotations: What people say of it.
    """

    call: WatchedCall
    redactor: Redactor
    transcript: tuple[TranscriptTurn, ...] | None = None
    remarks: list[str] = field(default_factory=list)
    annotations: list[Annotation] = field(default_factory=list)

    def reported(self, anchor_id: str = "c1") -> ReportedCall:
        """The call as the report draws it and `call` writes it; without events from its scores alone."""
        if self.call.events:
            shown = self.call.reported()
            shown.anchor_id = anchor_id
        else:
            shown = past_call(self.call.conversation_id, self.call.scores, self.redactor, self.transcript)
        shown.annotations = self.annotations
        return shown


@asynccontextmanager
async def call_reader(settings: Settings, wanted: str) -> AsyncIterator["CallReader"]:
    """A reader of the call whose id is the wanted text, or ends with it; it is connected.

    Args:
        settings: The cluster, the evaluator's limits, and the rules of redaction.
        wanted: A conversation id, or its end; with less than `LEAST_CHARS` characters only a whole id is found.

    Raises:
        KafkaUnreachableError: No broker answers, at the start or later, or it refuses.
        TopicsUnfitError: There is no topic `scores`.
    """
    counts = await partition_counts(settings.kafka, [SCORES_TOPIC])
    options = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": FETCH_WAIT_MS}
    async with onlooker(settings.kafka, "call", key_deserializer=only_of(wanted.encode()), **options) as consumer:
        yield CallReader(settings, wanted, consumer, counts[SCORES_TOPIC])


class CallReader:
    """Finds a call and reads it; to be had from `call_reader`."""

    def __init__(self, settings: Settings, wanted: str, consumer: AIOKafkaConsumer, partitions: int) -> None:
        self._kafka = settings.kafka
        self._limits = settings.limits
        self._redactor = Redactor(settings.redaction)
        self._wanted = wanted
        self._consumer = consumer
        self._partitions = partitions
        self._ends: dict[TopicPartition, int] = {}

    async def find(self, since_ms: int | None, show: Callable[[float], None]) -> FoundCalls:
        """Looks for the calls that are wanted; for a whole id first where its producers put it.

        Args:
            since_ms: Older scores are not looked at. None is a day, of which the last hour comes first: if one call began in it whose
                id ends in this way, older ones are not looked for.
            show: Called now and then with the share of a search that is done, from 0 to 1.

        Raises:
            KafkaError: The broker refuses.
            TimeoutError: It hands over nothing although there is more.
        """
        now_ms = wall_clock_ms()
        if since_ms is not None:
            return await self._found_since(since_ms, show)
        found = await self._found_since(now_ms - NEWEST_MS, show)
        if found.calls and found.calls.keys() <= found.has_start:
            return found
        return await self._found_since(now_ms - DAY_MS, show)

    async def _found_since(self, since_ms: int, show: Callable[[float], None]) -> FoundCalls:
        found = FoundCalls(since_ms)
        topic = self._kafka.topic(SCORES_TOPIC)
        own = murmur2_place(self._wanted.encode(), self._partitions)
        for numbers in ([own], [number for number in range(self._partitions) if number != own]):
            ranges = await ranges_since(self._consumer, [TopicPartition(topic, number) for number in numbers], since_ms)
            found.records += sum(end - start for start, end in ranges.values())
            async for record in records_between(self._consumer, ranges, show):
                if not isinstance(record.key, bytes) or record.value is None:
                    continue
                call = record.key.decode("utf-8", "replace")
                if is_wanted(call, self._wanted) and (call in found.calls or len(found.calls) < MAX_CALLS):
                    end = ranges[TopicPartition(topic, record.partition)][1]
                    of_call = found.calls.setdefault(call, FoundScores(record.partition, end))
                    if len(of_call.values) < MAX_SCORES:
                        of_call.values.append(record.value)
                    if begins_call(record.value):
                        found.has_start.add(call)
            if self._wanted in found.calls:  # other ids may end with it
                found.calls = {self._wanted: found.calls[self._wanted]}
                break
        return found

    async def read(self, name: str, scores: FoundScores) -> FoundCall:
        """All that the topics have of a call up to now.

        Args:
            name: Its conversation id.
            scores: What was found of it.

        Raises:
            KafkaError: The broker refuses to show the transcript.
            TimeoutError: It hands over nothing although there is more.
        """
        number = scores.partition
        found = FoundCall(WatchedCall(name, self._limits, self._redactor), self._redactor)
        for value in scores.values:
            found.call.take_score(value)
        self._ends = {TopicPartition(self._kafka.topic(SCORES_TOPIC), number): scores.end}
        if not found.call.scores:
            return found
        try:
            await self._read_events(found, number)
        except (KafkaRefusedError, TopicAuthorizationFailedError):
            found.remarks.append(
                f"This user may not read {self._kafka.topic(EVENTS_TOPIC)}, so words and the arguments and answers of tools are not shown."
            )
        if found.call.closed is not None:
            await self._read_transcript(found)
        await self._read_annotations(found)
        return found

    async def _read_annotations(self, found: FoundCall) -> None:
        """Reads what people say of the call.

        Raises:
            OperatorError: It was deleted on request.
        """
        name, labels = found.call.conversation_id, found.call.scores[-1].labels
        try:
            count = (await partition_counts(self._kafka, [ANNOTATIONS_TOPIC]))[ANNOTATIONS_TOPIC]
            topic = self._kafka.topic(ANNOTATIONS_TOPIC)
            keys = [each.encode() for each in (name, labels.tenant)]
            tps = [TopicPartition(topic, number) for number in sorted({murmur2_place(key, count) for key in keys})]
            first_ms = min(record.caused_at_ms for record in found.call.scores)
            ranges = await ranges_since(self._consumer, tps, first_ms)
            said = []
            for key in keys:
                found_of_key = KeyRecords(self._consumer, key)
                await found_of_key.read(ranges)
                said += await found_of_key.in_order()
        except TopicsUnfitError:  # nobody can have said anything
            return
        except (KafkaRefusedError, TopicAuthorizationFailedError):
            found.remarks.append("This user may not read annotations, so labels and notes of people are not shown.")
            return
        newest: dict[tuple[str, str | None], Annotation] = {}
        for record in said:
            try:
                each = None if record.value is None else ANNOTATION.validate_json(record.value)
            except ValidationError:
                continue
            if isinstance(each, Annotation):
                newest[each.by, each.label] = each.model_copy(update={"note": self._redactor.redact(each.note)})
            elif each is None or (each.tenant == labels.tenant and first_ms < each.at_ms):
                raise OperatorError(
                    f"Call {name} was deleted on request at {shown_moment(record.timestamp)} UTC, so it is not shown. The topics have its "
                    "records until their retention ends."
                )
        said_now = sorted((each for each in newest.values() if not each.is_withdrawn), key=lambda each: each.at_ms)
        found.annotations = said_now[-MAX_OF_A_CALL:]

    async def _read_events(self, found: FoundCall, number: int) -> None:
        first, closed = found.call.scores[0], found.call.closed
        await partition_counts(self._kafka, [EVENTS_TOPIC])  # says that it is missing, or that we may not see it
        tp = TopicPartition(self._kafka.topic(EVENTS_TOPIC), number)
        self._ends |= await self._consumer.end_offsets([tp])
        end = self._ends[tp]
        if closed is not None:
            end = min(end, closed.through.get(EVENTS_TOPIC, end) + 1)
        events = await events_of(
            self._kafka,
            self._consumer,
            tp,
            end,
            first,
            idle_ms=self._limits.idle_ms,
            longest_ms=self._limits.max_call_duration_ms,
        )
        for record in await events.in_order():
            found.call.take_event(record)
        found.call.leave_out(events.left_out)
        if not found.call.events:
            found.remarks.append(
                f"{tp.topic} does not have its events any more, so words and the arguments of tools are not known."
            )

    async def _read_transcript(self, found: FoundCall) -> None:
        closed = found.call.closed
        assert closed is not None  # noqa: S101 - a transcript is written when a call closes
        key = found.call.conversation_id.encode()
        counts = await partition_counts(self._kafka, [TRANSCRIPTS_TOPIC])
        tp = TopicPartition(self._kafka.topic(TRANSCRIPTS_TOPIC), murmur2_place(key, counts[TRANSCRIPTS_TOPIC]))
        since_ms = closed.caused_at_ms - CLOSED_TOGETHER_MS
        transcripts = KeyRecords(self._consumer, key)
        await transcripts.read(await ranges_since(self._consumer, [tp], since_ms))
        for record in await transcripts.in_order():
            try:
                found.transcript = TRANSCRIPT.validate_json(record.value or b"")
            except ValidationError:
                found.remarks.append("Its transcript is of a newer version, or of another program, and was left out.")
        if found.transcript is None:
            found.remarks.append(await self._why_no_transcript(tp, since_ms))

    async def _why_no_transcript(self, tp: TopicPartition, closed_ms: int) -> str:
        oldest = (await self._consumer.offsets_for_times({tp: 0}))[tp]
        begins = (await self._consumer.beginning_offsets([tp]))[tp]
        if begins and (oldest is None or oldest.timestamp > closed_ms):
            return f"There is no transcript: the call closed before the oldest record that {tp.topic} still has."
        return "There is no transcript: transcripts were off when the call closed, or it was too large for the topic."

    async def follow(self, found: FoundCall) -> AsyncIterator[None]:
        """Takes new records of the call in until it closes; yields after those that came together.

        Raises:
            KafkaError: The broker refuses.
        """
        key = found.call.conversation_id.encode()
        scores, terms = self._kafka.topic(SCORES_TOPIC), Terms()
        self._consumer.assign(list(self._ends))
        for tp, end in self._ends.items():
            self._consumer.seek(tp, end)
        while found.call.closed is None:
            batches = await self._consumer.getmany(timeout_ms=FOLLOW_MS)
            for tp, records in batches.items():
                for record in records:
                    if tp.topic != scores and (record.key == key or terms.begins_with(record)):
                        found.call.take_event(record)
                    elif record.key == key and record.value is not None:
                        found.call.take_score(record.value)
            yield
        await self._read_transcript(found)
        yield

    async def not_found(self, found: FoundCalls, since: str) -> OperatorError:
        """Why there is no such call: what is true of the reasons."""
        where, start = (
            f"{self._kafka.topic(SCORES_TOPIC)} at {self._kafka.bootstrap_servers}",
            f"No call with the id {self._wanted!r}",
        )
        if len(self._wanted) < LEAST_CHARS:
            return OperatorError(
                f"{start}: the end of an id needs {LEAST_CHARS} characters or more, and no whole id is like that."
            )
        if not found.records:
            return OperatorError(
                f"{start}: {where} has no record of the last {_age(found.since_ms)}, so no call was evaluated. Check that an evaluator "
                "runs, and the topic prefix; `callgauge doctor` checks whether anything arrives."
            )
        try:
            seen = await self._events_since(found.since_ms)
        except (KafkaRefusedError, TopicAuthorizationFailedError):
            seen = []
        if seen:
            return OperatorError(
                f"{start} has a score {since}, but {counted(len(seen), 'event')} of it came, the newest at {shown_moment(max(seen))} UTC. "
                "An evaluator has not read them, or refused them: `callgauge quarantine list` and `callgauge doctor` say which."
            )
        return OperatorError(
            f"{start} has a score or an event {since}: of {found.records} records in {where} none is of it. Look further back "
            "with --since 7d, or check the id and the topic prefix; `callgauge doctor` says whether a sequencer runs."
        )

    async def _events_since(self, since_ms: int) -> list[int]:
        """Times at their inputs of the events of the wanted call."""
        counts = await partition_counts(self._kafka, [EVENTS_TOPIC])
        tps = [TopicPartition(self._kafka.topic(EVENTS_TOPIC), number) for number in range(counts[EVENTS_TOPIC])]
        ranges = await ranges_since(self._consumer, tps, since_ms)
        seen = {
            placed.origin
            async for record in records_between(self._consumer, ranges)
            if isinstance(record.key, bytes) and is_wanted(record.key.decode("utf-8", "replace"), self._wanted)
            if (placed := placed_in(record.headers)) is not None  # an event may be in the log more than once
        }
        return [origin.time_ms for origin in seen]


def _age(since_ms: int) -> str:
    return duration(wall_clock_ms() - since_ms)


# One call as text or JSON: its turns with stages and tools, goals, ratings and words. Pure.

MOST_TOOL_CHARS: Final = 400
"""Characters of the arguments or the answer of a tool in a line; the report has more."""


_OUTCOMES: Final = {
    TurnOutcome.INTERRUPTED: "its answer was interrupted by the user",
    TurnOutcome.UNANSWERED: "unanswered, and the call went on",
    TurnOutcome.ABANDONED: "abandoned: the call ended without an answer",
    TurnOutcome.FAILED: "failed: the agent reported an error and gave no answer",
}


def call_lines(
    shown: ReportedCall, transcript: Sequence[TranscriptTurn] | None, remarks: Iterable[str] = ()
) -> Iterator[str]:
    """The lines of a call.

    Args:
        shown: The call; at least one of its records.
        transcript: Its transcript; None if there is none, and then its words are shown as far as its events have them.
        remarks: Sentences about what is missing.
    """
    yield from _head(shown)
    for each in shown.annotations:
        yield f"  {each.by}, {shown_moment(each.at_ms)} UTC: {shown.shown(each.words)}"
    yield from ("", "Turns:")
    yield from _turns(shown)
    yield from _goals(shown)
    yield from _ratings(shown)
    if transcript is not None:
        yield from ("", "Transcript:")
        for entry in transcript:
            yield from (f"  {_clock(entry.time_in_call_secs)}  {line}" for line in _spoken(entry))
    elif words := list(_words(shown)):
        yield from ("", "Words so far:" if shown.closed is None else "Words:", *words)
    missing = [*remarks, *([] if shown.closed else ["The call is not over. Its transcript is written when it closes."])]
    if missing:
        yield from ("", *missing)


def call_document(found: FoundCall) -> dict[str, Any]:
    """The call for a program: the newest revision of each record; `transcript` is null if there is none."""
    return {
        "conversation_id": found.call.conversation_id,
        "records": [record.model_dump(mode="json") for record in found.call.newest()],
        "annotations": [each.model_dump(mode="json") for each in found.annotations],
        "transcript": None if found.transcript is None else [turn.model_dump(mode="json") for turn in found.transcript],
    }


def context_document(found: FoundCall) -> dict[str, Any]:
    """The metric context of the call as far as it has come, redacted.

    Raises:
        OperatorError: The topics do not have its events, or this user may not read them.
    """
    context = found.call.context()
    if context is None:
        raise OperatorError(f"Call {found.call.conversation_id} has no context: {' '.join(found.remarks)}")
    return {
        "id": found.call.conversation_id,
        "turns_by": context.turns_by,
        "context": found.redactor.redact_value(context.to_dict()),
    }


def _head(shown: ReportedCall) -> Iterator[str]:
    labels = shown.labels
    names = {"agent": labels.agent, "tenant": labels.tenant, "environment": labels.environment}
    yield f"{shown.conversation_id}: " + ", ".join(
        f"{name} {value}" for name, value in names.items() if value != "unknown"
    )
    first_ms = min((record.caused_at_ms for record in shown.records), default=0)
    closed = shown.closed
    if closed is None:
        yield f"  since {shown_moment(first_ms)} UTC, not over"
    else:
        reason = closed.ended_reason or in_words(closed.reason)
        began_ms = first_ms if closed.began_at_ms is None else closed.began_at_ms
        long = "" if closed.ended_at_ms is None else f"{duration(closed.ended_at_ms - began_ms)} long, "
        yield f"  {shown_moment(began_ms)} UTC, {long}{counted(closed.turns, 'turn')}, ended: {reason}"
    for errors in shown.of(AgentErrorsFact):
        of = "" if errors.component is None else f", of {errors.component}"
        yield f"  the agent reported {counted(errors.errors, 'error')}, the newest at {shown_moment(errors.last_ms)} UTC{of}"
    whole = shown.whole
    if whole is not None and isinstance(whole.cost, Scored):
        yield f"  its models cost {whole.cost.value:.6g} US dollars"
    for note in (None if whole is None else whole.notes) or ():
        yield f"  {'' if note.turn is None else f'turn {note.turn}: '}{shown.shown(note.in_words)}"


def _turns(shown: ReportedCall) -> Iterator[str]:
    """Each turn: its wait and what is of note, then the stages of the wait, and its tools with arguments and answers."""
    remarks: defaultdict[int, list[str]] = defaultdict(list)
    for wait in shown.latencies:
        remarks[wait.turn].append(_wait(wait.result, wait.anchor))
    rows = {row.turn or 0: row for row in shown.rows}
    for turn, row in rows.items():
        if row.after_tools_ms is not None:
            remarks[turn].append(f"first sound: a filler; answer after {seconds(row.after_tools_ms)}")
        if row.outcome in _OUTCOMES:
            remarks[turn].append(_OUTCOMES[row.outcome])
    for record in shown.records:
        if record.turn is not None and (remark := _remark(record)) is not None:
            remarks[record.turn].append(remark)
    tools: defaultdict[int, list[PairedUse]] = defaultdict(list)
    for use in shown.heard.tools:
        tools[use.turn].append(use)
    for turn in sorted({*remarks, *tools}):
        yield f"  turn {turn}: {'; '.join(remarks[turn])}"
        if turn in rows and rows[turn].stages:
            stages = (
                f"{in_words(each.stage)} {seconds(each.latency_ms)}{' (disputed)' if each.is_disputed else ''}"
                for each in rows[turn].stages
            )
            yield f"    stages: {', '.join(stages)}"
        for use in tools[turn]:
            yield f"    {shown.shown(use.tool)} was given {'nothing known' if use.lacks_arguments else _json(shown, use.arguments)}"
            if use.outcome is None:
                yield "      and has not answered"
            else:
                yield f"      and answered {'what is not sent' if use.is_withheld else _json(shown, use.answer)}"


def _json(shown: ReportedCall, value: object) -> str:
    """A value in one line, redacted and cut."""
    return shortened(" ".join(shown.shown_json(value).split()), MOST_TOOL_CHARS)


def _words(shown: ReportedCall) -> Iterator[str]:
    """What was said, by its events."""
    for turn in shown.heard.turns:
        for item in turn.items:
            if isinstance(item, Said):
                at = "" if item.at_ms is None else clock(shown.offset_ms(item.at_ms))
                yield f"  {at:>4}  {item.speaker}: {unmarked(shown.shown(item.text))}"


def _wait(result: object, anchor: str | None) -> str:
    if isinstance(result, Scored):
        by = f" ({anchor})" if anchor else ""
        if result.value < 0:
            return f"the agent began {to_seconds(-result.value):.2f} s before the user had finished{by}"
        return f"answered after {to_seconds(result.value):.2f} s{by}"
    return f"no latency ({result.reason.value})" if isinstance(result, Unscored) else "no latency"


def _remark(record: CallRecord) -> str | None:
    match record:
        case InterruptionFact():
            return record.in_words
        case DeadAirFact():
            return f"dead air over {to_seconds(record.threshold_ms):g} s"
        case ToolUseFact():
            # A log that gives both ends of a use one time says nothing of how long it took.
            took = f" in {to_seconds(record.duration_ms):.2f} s" if record.duration_ms else ""
            return f"{record.tool}: {record.outcome.value}{took}"
        case StallFact():
            return f"no subgoal since turn {record.since_turn}"
    return None


def _goals(shown: ReportedCall) -> Iterator[str]:
    goals = shown.goals
    if goals is None:
        yield from ("", "No goals: no goal set is for this call (goals.folder, or its call_started).")
        return
    scores = {record.index: record for record in shown.subgoals}
    reached = sum(record.reached_turn is not None for record in scores.values())
    yield from ("", f"Goals {goals.id}: {reached} of {len(goals.subgoals)} reached")
    for index, subgoal in enumerate(goals.subgoals):
        score = scores.get(index)
        if score is not None and score.reached_turn is not None:
            state = f"reached in turn {score.reached_turn}"
        elif score is not None and isinstance(score.result, Unscored):
            state = f"not known ({score.result.reason.value})"
        else:
            state = "not reached"
        yield f"  {subgoal.id}: {state}"
    whole = shown.whole
    for found in () if whole is None else whole.expected_tool_calls or ():
        yield f"  expected tool call {expected_call(found)}"


def _ratings(shown: ReportedCall) -> Iterator[str]:
    """Yields the ratings of the whole call by text judges, each with the dimensions that they could not judge."""
    whole = shown.whole
    rated = {} if whole is None else {kind.value: getattr(whole, kind) for kind in CALL_JUDGES}
    judged = {name: rating for name, rating in rated.items() if isinstance(rating, TextRating)}
    if judged:
        yield from ("", "Judged:")
    for name, rating in judged.items():
        left_out = f"; {not_judged(rating.not_applicable)}" if rating.not_applicable else ""
        yield f"  {in_words(name)} up to turn {rating.through_turn}: {outcome(name, rating.result)}{left_out}"


def _spoken(entry: TranscriptTurn) -> Iterator[str]:
    if entry.message:
        yield f"{entry.role}: {entry.message}{' [interrupted]' if entry.interrupted else ''}"
    for call in entry.tool_calls:
        yield f"{entry.role}: uses {call.tool_name}"


def _clock(seconds: int) -> str:
    return f"{seconds // 60}:{seconds % 60:02}"


# The work of the command `call`: finds the one call that is meant, and shows it.


async def the_call(settings: Settings, wanted: str, since_ms: int | None, since: str) -> FoundCall:
    """The one call whose id is the wanted text, or ends with it.

    Args:
        settings: As `call_reader` needs them.
        wanted: A conversation id, or its end.
        since_ms: As in `CallReader.find`.
        since: The same in words, for messages.

    Raises:
        OperatorError: There is none, or there are several; or no broker answers, or it refuses.
    """
    async with call_reader(settings, wanted) as reader:
        return (await _one(reader, settings, wanted, since_ms, since))[0]


async def follow_call(settings: Settings, wanted: str, since_ms: int | None, since: str) -> None:
    """Prints the call, and until it closes or a signal comes each line that is new or another. Arguments and errors as of `the_call`."""

    async def shown() -> None:
        async with call_reader(settings, wanted) as reader:
            found, is_of_topics = await _one(reader, settings, wanted, since_ms, since)
            printed: set[str] = set()
            print_call(found, printed)
            if found.call.closed is None and is_of_topics:
                async for _ in reader.follow(found):
                    print_call(found, printed)

    with stop_on_signals() as stop:
        await first_of(stop.wait(), shown())


def in_history(settings: Settings, wanted: str) -> FoundCall | None:
    """The call of the history whose id is the wanted text, or ends with it; None without one, or without a history.

    Raises:
        OperatorError: There are several, or the folder cannot be read.
    """
    if not settings.history.is_read:
        return None
    with opened(settings.history) as store:
        name, (records, transcript) = wanted, store.call_records(wanted)
        if not records:
            ending = Question(0, wall_clock_ms() + 1, [Condition("conversation_id", "~", wanted)], most=MAX_ROWS)
            names = [str(row["conversation_id"]) for row in store.find(ending)]
            names = [name for name in names if is_wanted(name, wanted)]
            names = list(dict.fromkeys(names))[:MAX_CALLS]
            if not names:
                return None
            _require_one(names, wanted)
            name = names[0]
            records, transcript = store.call_records(name)
        annotations, place = store.annotations_of([name]).get(name, []), store.place
    redactor = Redactor(settings.redaction)
    found = FoundCall(WatchedCall(name, settings.limits, redactor), redactor, annotations=annotations)
    for record in records:
        found.call.take_score(record.model_dump_json().encode())
    if transcript is not None:
        found.transcript = TRANSCRIPT.validate_json(transcript)
    found.remarks.append(
        f"The topics do not have it; this is from the history in {place}, which keeps no arguments of tools."
    )
    return found


def _require_one(names: Sequence[str], wanted: str) -> None:
    if len(names) > 1:
        more = " or more" if len(names) == MAX_CALLS else ""
        listed = "".join(f"\n  {name}" for name in names)
        raise OperatorError(f"{len(names)}{more} calls end with {wanted!r}; give more of the id:{listed}")


def print_call(found: FoundCall, printed: set[str]) -> None:
    """Prints the lines of a call that were not printed before, and notes them."""
    is_first = not printed
    for line in call_lines(found.reported(), found.transcript, found.remarks):
        if is_first or line not in printed:
            print_line(line)
        printed.add(line)


@contextmanager
def searching() -> Iterator[Callable[[float], None]]:
    """A bar on a terminal while a topic is searched; gives what moves it."""
    console = error_console()
    columns = (TextColumn("searching the topics"), BarColumn(), TaskProgressColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal, auto_refresh=False
    ) as bar:
        task, shown_at = bar.add_task("", total=1.0), 0.0

        def show(share: float) -> None:
            nonlocal shown_at
            if (now := time.monotonic()) - shown_at >= REFRESH_SECONDS:
                shown_at = now
                bar.update(task, completed=share, refresh=True)

        yield show


async def _one(
    reader: CallReader, settings: Settings, wanted: str, since_ms: int | None, since: str
) -> tuple[FoundCall, bool]:
    """The only call that was found, and whether the topics have it; otherwise the history has."""
    with searching() as show:
        found = await reader.find(since_ms, show)
    if not found.calls:
        if (past := in_history(settings, wanted)) is not None:
            return past, False
        raise await reader.not_found(found, since)
    _require_one(list(found.calls), wanted)
    ((name, scores),) = found.calls.items()
    call = await reader.read(name, scores)
    if not call.call.scores:
        raise OperatorError(
            f"The scores of {name} are of a newer version, or of another program: this version cannot read them."
        )
    if name not in found.has_start:
        call.remarks.append(
            f"Its first scores are older than {shown_moment(found.since_ms)} UTC and were left out: give a longer --since."
        )
    if call.call.left_out:
        say(
            f"{call.call.left_out} records were left out: of a newer version, of another program, or refused by the evaluator."
        )
    return call, True
