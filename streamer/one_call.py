"""One call from the topics, as text: found by its id or the end of it, with its rows, its words and
what people say of it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError
from pydantic import ValidationError
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from consumers.console.api import call_detail
from consumers.engine.admission import Arrival, admit
from consumers.engine.evaluator import folded
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.history.annotations import MAX_OF_A_CALL
from consumers.history.opening import opened
from consumers.history.search import MAX_ROWS, CallSearch, Condition
from consumers.log.stretches import CallEvents, KeyRecords, only_of
from consumers.runtime.kafka.connection import (
    KafkaRefusedError,
    TopicsUnfitError,
    murmur2_place,
    partition_counts,
)
from consumers.runtime.kafka.ranges import onlooker, records_between
from consumers.runtime.process import OperatorError, first_of, wall_clock_ms
from consumers.store.rows import StoredCall
from consumers.view.calls import ReportedCall, parts_of
from consumers.view.contents import (
    cost_in_words,
    facts_of,
    filler_in_words,
    notes_of,
    part_in_words,
    people_of,
    subgoals_of,
    tags_of,
    tools_of,
    unmarked,
    verdict,
    wait_in_words,
)
from consumers.view.words import (
    counted,
    duration,
    expected_call,
    in_words,
    seconds,
    shortened,
    stage_in_words,
)
from schemas.annotations import ANNOTATION, Annotation
from schemas.closed_sets import CALL_JUDGES, InputSource, PipelineType
from schemas.log import Event, LogReader, placed_in
from schemas.metric_context import MetricContext
from schemas.rows import (
    DECODED,
    CallRow,
    OwnRow,
    RowError,
    ToolUse,
    TurnRow,
    WordsRow,
)
from schemas.topics import ANNOTATIONS_TOPIC, EVENTS_TOPIC, OWN_TOPIC, SCORES_TOPIC, WORDS_TOPIC
from schemas.units import to_seconds
from streamer.cluster.readers import ranges_since
from streamer.facts import LEAST_CHARS, is_wanted
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals
from streamer.terminal import error_console, print_wrapped, say
from streamer.time_bounds import shown_moment
from streamer.trials.calls import NewestRows

if TYPE_CHECKING:
    from streamer.served_calls import FolderReader  # which reads with this module

# Finds one call on the topics and reads all that they have of it. It uses no consumer group, so it
# disturbs no other reader.

MAX_CALLS: Final = 20
"""Calls kept whose ids end in the same way: as many as a person chooses from."""
NEWEST_MS: Final = 3_600_000
"""Unless a person says since when, this long is looked at first: most calls that somebody asks for
ran just now.
"""
DAY_MS: Final = 24 * NEWEST_MS
FOLLOW_MS: Final = 500
"""How long a call's rows are gathered before its text is written again."""
FETCH_WAIT_MS: Final = 20
"""How long the broker keeps a fetch that has nothing: a question about offsets waits behind it."""
REFRESH_SECONDS: Final = 0.1


class ReadRows:
    """What was read of a call: its newest rows, and its newest rows of words.

    Attributes:
        rows: Those of the call.
        words: Those of words, by turn.
        own: Those of measures of one's own, by measure and turn.
        unreadable: Values that could not be read, and were left out.
    """

    def __init__(self) -> None:
        self.rows = NewestRows()
        self.words: dict[int, WordsRow] = {}
        self.own: dict[tuple[str, int], OwnRow] = {}
        self.unreadable = 0

    def read_record(self, value: bytes, topic: str = SCORES_TOPIC) -> None:
        """Takes in the value of a record of `scores`, `words` or `scores.own`."""
        try:
            row = DECODED[topic](value)
        except RowError:
            self.unreadable += 1
            return
        match row:
            case WordsRow():
                self.words[row.turn] = row
            case OwnRow():
                self.own[row.measure, -(2**31) if row.turn is None else row.turn] = row
            case _:
                self.rows.add_row(row)

    def known(self) -> StoredCall:
        """The call as it is now.

        Raises:
            OperatorError: No row of the call came.
        """
        if self.rows.call is None:
            raise OperatorError(
                "There is no row of this call that this version can read, so it cannot be shown."
            )
        turns = tuple(self.rows.turns[turn] for turn in sorted(self.rows.turns))
        words = tuple(self.words[turn] for turn in sorted(self.words))
        return StoredCall(
            self.rows.call,
            turns,
            self.rows.goals,
            words,
            tuple(self.own[key] for key in sorted(self.own)),
        )


@dataclass(slots=True)
class FoundCalls:
    """The calls that were found.

    Attributes:
        since_ms: From then on was looked.
        records: Records of `scores` that were looked at, those of others too.
        calls: By conversation id what was found of it.
    """

    since_ms: int
    records: int = 0
    calls: dict[str, ReadRows] = field(default_factory=dict)


@dataclass(slots=True)
class FoundCall:
    """One call, as far as the topics or history have it.

    Attributes:
        rows: Its rows.
        redactor: Redacts its other texts.
        newest: Takes in further rows of it; None for a call of history.
        has_words: Whether its words may be read.
        remarks: Sentences about what is missing, and why.
        annotations: What people say of it.
    """

    rows: StoredCall
    redactor: Redactor
    newest: ReadRows | None = None
    has_words: bool = True
    remarks: list[str] = field(default_factory=list)
    annotations: list[Annotation] = field(default_factory=list)

    def reported(self, anchor_id: str = "c1") -> ReportedCall:
        """The call as the report draws it and `call` writes it."""
        call, turns, goals, words, own = self.rows
        return ReportedCall(
            call, turns, goals, words, anchor_id, self.redactor, self.annotations, own
        )


@asynccontextmanager
async def call_reader(settings: Settings, wanted: str) -> AsyncIterator["CallSource"]:
    """A reader of the call whose id is the wanted text, or ends with it; it is connected.

    Args:
        settings: The cluster, and the rules of redaction.
        wanted: A conversation id, or its end; with less than `LEAST_CHARS` characters only a whole
            id is found.

    Raises:
        KafkaUnreachableError: No broker answers, at the start or later, or it refuses.
        TopicsUnfitError: There is no topic `scores`.
    """
    counts = await partition_counts(settings.kafka, [SCORES_TOPIC])
    options = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": FETCH_WAIT_MS}
    async with onlooker(
        settings.kafka, "call", key_deserializer=only_of(wanted.encode()), **options
    ) as consumer:
        yield CallSource(settings, wanted, consumer, counts[SCORES_TOPIC])


async def context_in_topics(settings: Settings, call: CallRow) -> MetricContext:
    """The metric context of a call, with its words as they are, from its events in the log so far.

    Raises:
        OperatorError: The log does not have its events, this user may not read them, or the broker
            does not answer.
    """
    try:
        async with call_reader(settings, call.conversation_id) as reader:
            return await reader.context_of(call)
    except (KafkaError, TimeoutError) as error:
        raise settings.kafka.unreachable(error) from error


class CallSource:
    """Finds a call and reads it; to be had from `call_reader`."""

    def __init__(
        self, settings: Settings, wanted: str, consumer: AIOKafkaConsumer, partitions: int
    ) -> None:
        self._kafka = settings.kafka
        self._limits = settings.all_limits
        self._redactor = Redactor(settings.redaction)
        self._wanted = wanted
        self._consumer = consumer
        self._partitions = partitions

    async def find(self, since_ms: int | None, show: Callable[[float], None]) -> FoundCalls:
        """Looks for the calls that are wanted; for a whole id first where its producers put it.

        Args:
            since_ms: Calls without a row since then are not looked for. None is a day, of which the
                last hour comes first: if a call had a row in it whose id ends in this way, older
                ones are not looked for.
            show: Called now and then with the share of a search that is done, from 0 to 1.

        Raises:
            KafkaError: The broker refuses.
            TimeoutError: It hands over nothing although there is more.
        """
        now_ms = wall_clock_ms()
        if since_ms is not None:
            return await self._found_since(since_ms, show)
        found = await self._found_since(now_ms - NEWEST_MS, show)
        if found.calls:
            return found
        return await self._found_since(now_ms - DAY_MS, show)

    async def _found_since(self, since_ms: int, show: Callable[[float], None]) -> FoundCalls:
        found = FoundCalls(since_ms)
        topic = self._kafka.topic(SCORES_TOPIC)
        own = murmur2_place(self._wanted.encode(), self._partitions)
        for numbers in ([own], [number for number in range(self._partitions) if number != own]):
            ranges = await ranges_since(
                self._consumer, [TopicPartition(topic, number) for number in numbers], since_ms
            )
            found.records += sum(end - start for start, end in ranges.values())
            async for record in records_between(self._consumer, ranges, show):
                if not isinstance(record.key, bytes) or record.value is None:
                    continue
                call = record.key.decode("utf-8", "replace")
                if is_wanted(call, self._wanted) and (
                    call in found.calls or len(found.calls) < MAX_CALLS
                ):
                    found.calls.setdefault(call, ReadRows()).read_record(record.value)
            if self._wanted in found.calls:  # other ids may end with it
                found.calls = {self._wanted: found.calls[self._wanted]}
                break
        return found

    async def read(self, name: str, found: FoundCalls) -> FoundCall:
        """All that the topics have of a call up to now.

        Args:
            name: Its conversation id.
            found: What was found.

        Raises:
            KafkaError: The broker refuses.
            OperatorError: It was deleted on request, or this version cannot read its rows.
            TimeoutError: The broker hands over nothing although there is more.
        """
        rows, key = found.calls[name], name.encode()
        row = rows.known().call
        scores, words = self._places(row)
        if row.first_known_ms < found.since_ms:  # it has rows from before
            rows = ReadRows()
            await self._take_all(rows, key, scores, row)
        call = FoundCall(rows.known(), self._redactor, rows)
        try:
            await partition_counts(
                self._kafka, [WORDS_TOPIC]
            )  # says that it is missing, or that we may not see it
            await self._take_all(rows, key, words, row, WORDS_TOPIC)
        except (KafkaRefusedError, TopicsUnfitError, TopicAuthorizationFailedError):
            call.has_words = False
            call.remarks.append(
                f"This user may not read {words.topic}, or there is none, so words and the "
                "arguments and answers of tools are not shown."
            )
        try:
            count = (await partition_counts(self._kafka, [OWN_TOPIC]))[OWN_TOPIC]
            own = TopicPartition(self._kafka.topic(OWN_TOPIC), murmur2_place(key, count))
            await self._take_all(rows, key, own, row, OWN_TOPIC)
        except TopicsUnfitError:  # nobody can have written any
            pass
        except (KafkaRefusedError, TopicAuthorizationFailedError):
            call.remarks.append(
                "This user may not read scores.own, so values of measures of one's own are not "
                "shown."
            )
        call.rows = rows.known()
        if rows.unreadable:
            say(f"{counted(rows.unreadable, 'row')} of another version left out.")
        if missing := call.reported().missing_turns:
            call.remarks.append(
                f"{scores.topic} does not have the rows of {counted(len(missing), 'turn')} any "
                "more."
            )
        await self._read_annotations(call)
        return call

    def _places(self, call: CallRow) -> tuple[TopicPartition, TopicPartition]:
        """The partitions of `scores` and of `words` that have a call."""
        scores, words = (
            TopicPartition(self._kafka.topic(name), call.partition)
            for name in (SCORES_TOPIC, WORDS_TOPIC)
        )
        return scores, words

    async def _take_all(
        self,
        rows: ReadRows,
        key: bytes,
        tp: TopicPartition,
        call: CallRow,
        topic: str = SCORES_TOPIC,
    ) -> None:
        """Takes in all that a partition has of a call, from its beginning on."""
        found = KeyRecords(self._consumer, key)
        await found.read(await ranges_since(self._consumer, [tp], call.first_known_ms))
        for record in await found.in_order():
            rows.read_record(record.value or b"", topic)

    async def _read_annotations(self, found: FoundCall) -> None:
        """Reads what people say of the call.

        Raises:
            OperatorError: It was deleted on request.
        """
        call = found.rows.call
        name, labels, first_ms = call.conversation_id, call.labels, call.first_known_ms
        try:
            count = (await partition_counts(self._kafka, [ANNOTATIONS_TOPIC]))[ANNOTATIONS_TOPIC]
            topic = self._kafka.topic(ANNOTATIONS_TOPIC)
            keys = [each.encode() for each in (name, labels.tenant)]
            tps = [
                TopicPartition(topic, number)
                for number in sorted({murmur2_place(key, count) for key in keys})
            ]
            ranges = await ranges_since(self._consumer, tps, first_ms)
            said = []
            for key in keys:
                found_of_key = KeyRecords(self._consumer, key)
                await found_of_key.read(ranges)
                said += await found_of_key.in_order()
        except TopicsUnfitError:  # nobody can have said anything
            return
        except (KafkaRefusedError, TopicAuthorizationFailedError):
            found.remarks.append(
                "This user may not read annotations, so labels and notes of people are not shown."
            )
            return
        newest: dict[tuple[str, str | None], Annotation] = {}
        for record in said:
            try:
                each = None if record.value is None else ANNOTATION.validate_json(record.value)
            except ValidationError:
                continue
            if isinstance(each, Annotation):
                newest[each.by, each.label] = each.model_copy(
                    update={"note": self._redactor.redact(each.note)}
                )
            elif each is None or (each.tenant == labels.tenant and first_ms < each.at_ms):
                raise OperatorError(
                    f"Call {name} was deleted on request at {shown_moment(record.timestamp)} UTC, "
                    "so it is not shown. The topics have its records until their retention ends."
                )
        said_now = sorted(
            (each for each in newest.values() if not each.is_withdrawn), key=lambda each: each.at_ms
        )
        found.annotations = said_now[-MAX_OF_A_CALL:]

    async def context(self, found: FoundCall) -> dict[str, Any]:
        """The metric context of the call, redacted. Raises as `context_of`."""
        return context_document(
            found.rows.call, await self.context_of(found.rows.call), self._redactor
        )

    async def context_of(self, call: CallRow) -> MetricContext:
        """The metric context of a call, with its words as they are, from its events in the log so
        far.

        Raises:
            KafkaError: The broker refuses.
            OperatorError: The log does not have its events, or this user may not read them.
            TimeoutError: The broker hands over nothing although there is more.
        """
        tp = TopicPartition(self._kafka.topic(EVENTS_TOPIC), call.partition)
        events, log = CallEvents(self._consumer, call.conversation_id.encode()), LogReader()
        try:
            await partition_counts(
                self._kafka, [EVENTS_TOPIC]
            )  # says that it is missing, or that we may not see it
            start, end = (await ranges_since(self._consumer, [tp], None))[tp]
            if call.state == "closed":  # what came later is no part of it
                end = min(end, call.last_place + 1)
            await events.read({tp: (max(start, call.first_place), end)})
        except (KafkaRefusedError, TopicAuthorizationFailedError) as error:
            raise OperatorError(
                f"Call {call.conversation_id} has no context: this user may not read {tp.topic}."
            ) from error
        found_events = [log.read(record) for record in await events.in_order()]
        return await asyncio.to_thread(
            context_from, call, found_events, tp.topic, self._limits, self._redactor
        )

    async def follow(self, found: FoundCall) -> AsyncIterator[None]:
        """Takes new rows of the call in until it closes; yields after those that came together. A
        call of history has none.

        Raises:
            KafkaError: The broker refuses.
        """
        call, rows = found.rows.call, found.newest
        if rows is None:
            return
        key, (scores, words) = call.conversation_id.encode(), self._places(call)
        tps = [scores, words] if found.has_words else [scores]
        # Rows of the last moments are taken once more: the newest replaces.
        starts = await ranges_since(self._consumer, tps, call.known_ms)
        self._consumer.assign(tps)
        for tp in tps:
            self._consumer.seek(tp, starts[tp][0])
        while found.rows.call.state != "closed":
            batches = await self._consumer.getmany(timeout_ms=FOLLOW_MS)
            for tp, records in batches.items():
                for record in records:
                    if record.key == key and record.value is not None:
                        rows.read_record(record.value, WORDS_TOPIC if tp == words else SCORES_TOPIC)
            found.rows = rows.known()
            yield

    async def not_found(self, found: FoundCalls, since: str) -> OperatorError:
        """Why there is no such call: what is true of the reasons."""
        where, start = (
            f"{self._kafka.topic(SCORES_TOPIC)} at {self._kafka.bootstrap_servers}",
            f"No call with the id {self._wanted!r}",
        )
        if len(self._wanted) < LEAST_CHARS:
            return OperatorError(
                f"{start}: the end of an id needs {LEAST_CHARS} characters or more, and no whole "
                "id is like that."
            )
        if not found.records:
            return OperatorError(
                f"{start}: {where} has no record of the last "
                f"{duration(wall_clock_ms() - found.since_ms)}, so no call was evaluated. Check "
                "that an evaluator runs, and the topic prefix; `callgauge doctor` checks whether "
                "anything arrives."
            )
        try:
            seen = await self._events_since(found.since_ms)
        except (KafkaRefusedError, TopicAuthorizationFailedError):
            seen = []
        if seen:
            return OperatorError(
                f"{start} has a row {since}, but {counted(len(seen), 'event')} of it came, the "
                f"newest at {shown_moment(max(seen))} UTC. An evaluator has not read them, or "
                "refused them: `callgauge quarantine list` and `callgauge doctor` say which."
            )
        return OperatorError(
            f"{start} has a row or an event {since}: of {found.records} records in {where} none is "
            "of it. Look further back with --since 7d, or check the id and the topic prefix; "
            "`callgauge doctor` says whether a sequencer runs."
        )

    async def _events_since(self, since_ms: int) -> list[int]:
        """Times at their inputs of the events of the wanted call."""
        counts = await partition_counts(self._kafka, [EVENTS_TOPIC])
        tps = [
            TopicPartition(self._kafka.topic(EVENTS_TOPIC), number)
            for number in range(counts[EVENTS_TOPIC])
        ]
        ranges = await ranges_since(self._consumer, tps, since_ms)
        seen = {
            placed.origin
            async for record in records_between(self._consumer, ranges)
            if isinstance(record.key, bytes)
            and is_wanted(record.key.decode("utf-8", "replace"), self._wanted)
            if (placed := placed_in(record.headers))
            is not None  # an event may be in the log more than once
        }
        return [origin.time_ms for origin in seen]


def context_from(
    call: CallRow, events: Iterable[object], place: str, limits: Limits, redactor: Redactor
) -> MetricContext:
    """The metric context of a call, with its words as they are, from what the log has of it in
    order; `place` names the log.

    Raises:
        OperatorError: It has no event of the call any more.
    """
    admitted = (
        admit(event.source, event, limits, redactor)
        for event in events
        if isinstance(event, Event)
        and event.source is not InputSource.JUDGE  # verdicts decide scores alone
    )
    arrivals = [each for each in admitted if isinstance(each, Arrival)]
    if not arrivals:
        raise OperatorError(
            f"Call {call.conversation_id} has no context: {place} does not have its events any "
            "more."
        )
    return folded(arrivals, PipelineType.CASCADE, None, limits).context()


def context_document(call: CallRow, context: MetricContext, redactor: Redactor) -> dict[str, Any]:
    """The metric context of a call for a program, redacted."""
    return {
        "id": call.conversation_id,
        "turns_by": context.turns_by,
        "context": redactor.redact_value(context.to_dict()),
    }


# One call as text or JSON: its turns with stages and tools, goals, ratings and words. Pure.

MOST_TOOL_CHARS: Final = 400
"""Characters of the arguments or the answer of a tool in a line; the report has more."""


def call_lines(shown: ReportedCall, remarks: Iterable[str] = ()) -> Iterator[str]:
    """The lines of a call; `remarks` are sentences about what is missing."""
    yield from _head(shown)
    for who, words in people_of(shown):
        yield f"  {who}: {words}"
    yield from ("", "Turns:")
    yield from _turns(shown)
    yield from _goals(shown)
    yield from _ratings(shown)
    yield from _own(shown)
    if said := list(_words(shown)):
        yield from ("", "Words:" if shown.is_closed else "Words so far:", *said)
    missing = [*remarks, *([] if shown.is_closed else [f"{_how_far(shown)}."])]
    yield from ("", *missing) if missing else ()


def _own(shown: ReportedCall) -> Iterator[str]:
    """The values of measures of one's own, a line for each measure."""
    of_measure: dict[str, dict[str, list[str]]] = {}
    for each in shown.own:
        value = (
            each.label or f"unmeasured ({each.reason})" if each.value is None else f"{each.value:g}"
        )
        turns = of_measure.setdefault(each.measure, {}).setdefault(value, [])
        turns += [] if each.turn is None else [str(each.turn)]
    if of_measure:
        yield from ("", "Measures of one's own:")
    for name, values in of_measure.items():
        said = (
            f"{value} in turn {', '.join(turns)}" if turns else value
            for value, turns in values.items()
        )
        yield f"  {name}: {shown.shown('; '.join(said))}"


def call_document(found: FoundCall) -> Any:
    """The call for a program: its rows as the API of the console gives them."""
    return msgspec.json.decode(call_detail(found.rows, found.annotations, words=found.has_words))


def _how_far(shown: ReportedCall) -> str:
    """How far a call is that has not closed."""
    if shown.row.state == "running":
        return "The call is not over"
    return "The call is over; its final values come some seconds later"


def _head(shown: ReportedCall) -> Iterator[str]:
    row, facts = shown.row, dict(facts_of(shown))
    began, ended = facts.pop("Began"), facts.pop("Ended")
    yield f"{shown.conversation_id}: " + ", ".join(
        f"{name.lower()} {value}" for name, value in facts.items()
    )
    if shown.is_closed:
        yield (
            f"  {began}, {duration(shown.length_ms)} long, {counted(row.turns, 'turn')}, ended: "
            f"{ended}"
        )
    else:
        yield f"  since {began}: {_how_far(shown)[:1].lower()}{_how_far(shown)[1:]}"
    yield f"  {verdict(shown)}"
    if isinstance(row.cost_dollars, float):
        yield f"  its models cost {cost_in_words(row.cost_dollars)}"
    for turn, text in notes_of(shown):
        yield f"  {'' if turn is None else f'turn {turn}: '}{text}"


def _turns(shown: ReportedCall) -> Iterator[str]:
    """Each turn: its wait and what is of note, then the stages of the wait, and its tools with
    arguments and answers.
    """
    stalled = (
        [] if shown.row.goals is None else [stall.since_turn for stall in shown.row.goals.stalls]
    )
    for row in shown.turns:
        tools = tools_of(row, shown.words.get(row.turn))
        remarks = [
            *_remarks(row, tools),
            *(f"no subgoal since turn {turn}" for turn in stalled if turn == row.turn),
        ]
        if not remarks:
            continue
        yield f"  turn {row.turn}: {'; '.join(remarks)}"
        if row.stages:
            stages = (
                f"{stage_in_words(each.stage)} "
                f"{seconds(each.latency_ms)}{' (disputed)' if each.is_disputed else ''}"
                for each in row.stages
            )
            yield f"    stages: {'; '.join(stages)}"
        for tool, _, texts in tools:
            if texts.arguments or texts.answer:
                yield f"    {tool} was given {_line(texts.arguments) or 'nothing known'}"
                yield (
                    "      and "
                    f"{f'answered {_line(texts.answer)}' if texts.answer else 'has not answered, as far as is known'}"
                )


def _remarks(row: TurnRow, tools: Iterable[tuple[str, ToolUse, object]]) -> Iterator[str]:
    if row.turn >= 1 and row.wait_ms is not None:
        yield wait_in_words(row.wait_ms, row.anchor)
    if (filler := filler_in_words(row)) is not None:
        yield filler
    yield from tags_of(row)
    if row.dead_air:
        times = f", {len(row.dead_air)} times" * (len(row.dead_air) > 1)
        yield f"dead air over {to_seconds(row.dead_air[0].threshold_ms):g} s{times}"
    for tool, use, _ in tools:
        # A log that gives both ends of a use one time says nothing of how long it took.
        yield (
            f"{tool}: "
            f"{use.outcome or 'no answer yet'}{f' in {seconds(use.duration_ms)}' if use.duration_ms else ''}"
        )


def _line(text: str) -> str:
    """A text in one line, cut."""
    return shortened(" ".join(text.split()), MOST_TOOL_CHARS)


def _words(shown: ReportedCall) -> Iterator[str]:
    """What was said, turn by turn."""
    for turn, words in sorted(shown.words.items()):
        for speaker, text in (("caller", words.user), ("agent", words.assistant)):
            if text:
                yield f"  {turn:>4}  {speaker}: {unmarked(text)}"


def _goals(shown: ReportedCall) -> Iterator[str]:
    goals, found = shown.goals, shown.row.goals
    if goals is None or found is None:
        yield from (
            "",
            "No goals: no goal set is for this call (goals.folder, or its call_started).",
        )
        return
    reached = sum(each.reached_turn is not None for each in found.subgoals)
    yield from ("", f"Goals {goals.id}: {reached} of {len(goals.subgoals)} reached")
    for subgoal, state, turn, _ in subgoals_of(shown):
        yield f"  {subgoal.id}: {state.lower()}{'' if turn is None else f'turn {turn}'}"
    for expected in found.expected_tools:
        yield f"  expected tool call {expected_call(expected)}"


def _ratings(shown: ReportedCall) -> Iterator[str]:
    """Yields the ratings of the whole call by text judges, each with the dimensions that they could
    not judge.
    """
    judged = [part for part in parts_of(shown.row) if part.name in CALL_JUDGES]
    if judged:
        yield from ("", "Judged:")
    for part in judged:
        yield (
            f"  {in_words(part.name)} up to turn {part.fields['through_turn']}: "
            f"{part_in_words(shown, part)}"
        )


# The work of the command `call`: finds the one call that is meant, and shows it.


@asynccontextmanager
async def found_call(
    settings: Settings, wanted: str, since_ms: int | None, since: str, folder: Path | None = None
) -> AsyncIterator[tuple[FoundCall, "CallSource | FolderReader"]]:
    """The one call whose id is the wanted text, or ends with it, and what reads more of it.

    Args:
        settings: As `call_reader` needs them.
        wanted: A conversation id, or its end.
        since_ms: As in `CallReader.find`.
        since: The same in words, for messages.
        folder: The folder of a `serve` that has it; None for the topics.

    Raises:
        OperatorError: There is none, or there are several; or no broker answers, or it refuses.
    """
    if folder is not None:
        from streamer.served_calls import FolderReader

        of_folder = FolderReader(settings, folder)
        yield of_folder.call(wanted), of_folder
        return
    async with call_reader(settings, wanted) as reader:
        yield await _one(reader, settings, wanted, since_ms, since), reader


async def the_call(
    settings: Settings, wanted: str, since_ms: int | None, since: str, folder: Path | None = None
) -> FoundCall:
    """The call. Arguments and errors as of `found_call`."""
    async with found_call(settings, wanted, since_ms, since, folder) as (found, _):
        return found


async def context_of(
    settings: Settings, wanted: str, since_ms: int | None, since: str, folder: Path | None = None
) -> dict[str, Any]:
    """The metric context of a call. Arguments and errors as of `found_call`, and as of
    `CallReader.context`.
    """
    async with found_call(settings, wanted, since_ms, since, folder) as (found, reader):
        return await reader.context(found)


async def follow_call(
    settings: Settings, wanted: str, since_ms: int | None, since: str, folder: Path | None = None
) -> None:
    """Prints the call, and until it closes or a signal comes each line that is new or another.
    Arguments and errors as of `found_call`.
    """

    async def shown() -> None:
        async with found_call(settings, wanted, since_ms, since, folder) as (found, reader):
            printed: set[str] = set()
            print_call(found, printed)
            async for _ in reader.follow(found):
                print_call(found, printed)

    with stop_on_signals() as stop:
        await first_of(stop.wait(), shown())


def in_history(settings: Settings, wanted: str) -> FoundCall | None:
    """The call of the history whose id is the wanted text, or ends with it; None without one, or
    without a history.

    Raises:
        OperatorError: There are several, or the folder cannot be read.
    """
    if not settings.history.is_read:
        return None
    with opened(settings.history) as store:
        name, call = wanted, store.call(wanted)
        if call is None:
            ending = CallSearch(
                0, wall_clock_ms() + 1, [Condition("conversation_id", "~", wanted)], most=MAX_ROWS
            )
            names = [str(row["conversation_id"]) for row in store.find(ending)]
            names = [name for name in names if is_wanted(name, wanted)]
            names = list(dict.fromkeys(names))[:MAX_CALLS]
            if not names:
                return None
            _require_one(names, wanted)
            name = names[0]
            call = store.call(name)
        annotations, place = store.annotations_of([name]).get(name, []), store.place
    if call is None:
        return None
    remark = f"The topics do not have it; this is from the history in {place}."
    return FoundCall(call, Redactor(settings.redaction), remarks=[remark], annotations=annotations)


def _require_one(names: Sequence[str], wanted: str) -> None:
    if len(names) > 1:
        more = " or more" if len(names) == MAX_CALLS else ""
        listed = "".join(f"\n  {name}" for name in names)
        raise OperatorError(
            f"{len(names)}{more} calls end with {wanted!r}; give more of the id:{listed}"
        )


def print_call(found: FoundCall, printed: set[str]) -> None:
    """Prints the lines of a call that were not printed before, and notes them."""
    is_first = not printed
    for line in call_lines(found.reported(), found.remarks):
        if is_first or line not in printed:
            print_wrapped(line)
        printed.add(line)


@contextmanager
def searching() -> Iterator[Callable[[float], None]]:
    """A bar on a terminal while a topic is searched; gives what moves it."""
    console = error_console()
    columns = (TextColumn("searching the topics"), BarColumn(), TaskProgressColumn())
    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        auto_refresh=False,
    ) as bar:
        task, shown_at = bar.add_task("", total=1.0), 0.0

        def show(share: float) -> None:
            nonlocal shown_at
            if (now := time.monotonic()) - shown_at >= REFRESH_SECONDS:
                shown_at = now
                bar.update(task, completed=share, refresh=True)

        yield show


async def _one(
    reader: CallSource, settings: Settings, wanted: str, since_ms: int | None, since: str
) -> FoundCall:
    """The only call that was found on the topics, or in history."""
    with searching() as show:
        found = await reader.find(since_ms, show)
    if not found.calls:
        if (past := in_history(settings, wanted)) is not None:
            return past
        raise await reader.not_found(found, since)
    _require_one(list(found.calls), wanted)
    return await reader.read(next(iter(found.calls)), found)
