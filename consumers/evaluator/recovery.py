"""Recovery: the order of a partition as its former owners wrote it, and folding it again, silently, until the state is theirs."""

import asyncio
import hashlib
import json
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pydantic
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from pydantic import ValidationError
from pydantic_core import from_json

import consumers.engine
import schemas
from consumers.engine.admission import Arrival
from consumers.engine.effects import Effect, OpenCall, PublishScore, RequestVerdict
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.evaluator.reading import Records
from consumers.evaluator.settings import EvaluatorSettings
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import OperatorError
from schemas.closed_sets import InputSource
from schemas.goals.goal_set import GoalSet
from schemas.judging import JudgeRequest
from schemas.order import (
    Closed,
    Evicted,
    Fold,
    GoalsChosen,
    OrderDecoder,
    OrderError,
    OrderStart,
    Positions,
    Renumbered,
    Step,
    TimePassed,
    start_in,
    writer_in,
)
from schemas.quarantine import UndecodableRecord
from schemas.scores.live_view import Subject
from schemas.scores.records import AnyScoreRecord, GoalsFact, TurnValues, next_generation
from schemas.topics import SOURCE_BY_TOPIC

# The order of a partition as its former owners wrote it, and the place in it from which a successor must read.

MAX_NOTE_CHARS: Final = 512
"""Longest commit note that is read. The broker accepts 4,096 characters, and ours has some 20."""
MAX_STARTS: Final = 4_096
"""Most starts that are remembered: eleven hours of them. Beyond that every second one is dropped, and a successor reads more than
it needs."""
UNPUBLISHED: Final = ""
"""Version of steps whose results were not published: an owner took them to catch up with one that wrote no order."""


@cache
def code_digest() -> str:
    """Returns a digest of the source of the engine and the contract, of Python and of pydantic, in hexadecimal.

    A version number is not enough, because two builds of one version may differ, above all in a checkout.
    """
    digest = hashlib.sha256(f"{sys.implementation.cache_tag} {sys.version} pydantic {pydantic.VERSION}\n".encode())
    for package in (consumers.engine, schemas):
        root = Path(str(package.__file__)).parent
        for path in sorted(path for path in root.rglob("*") if path.suffix in {".py", ".so", ".pyd"}):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root)} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def order_version(settings: EvaluatorSettings) -> str:
    """Returns the version in the starts of `order`: equal for processes that publish the same records after the same steps."""
    deciding = settings.model_dump(
        mode="json", include={"code_version", "limits", "goals", "redaction", "writes_transcripts"}
    )
    deciding["code"] = code_digest()
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:16]


class CommitNote(NamedTuple):
    """The note beside a committed offset, for the next owner of the partition.

    Attributes:
        order: First offset of the partition of `order` that a successor must read; None in a note of a release without `order`.
        scores: First offset of `scores` that it must read if there is no order.
        is_anew: Whether the input was created again, so that it must be read from here whatever the order says.
        read: Offset after the last record of the input that was folded, for people who look at the lag.
        writer: Id of the producer that may write the partition; None if the note does not say.
    """

    order: int | None
    scores: int = 0
    is_anew: bool = False
    read: int = 0
    writer: str | None = None

    def text(self) -> str:
        """Returns the note as text for the broker."""
        if self.is_anew:
            return json.dumps({"anew": True})
        writer = {} if self.writer is None else {"writer": self.writer}
        return json.dumps({"order": self.order, "read": self.read, **writer})

    @classmethod
    def parse(cls, text: str, offset: int = 0) -> "CommitNote | None":
        """Reads the note beside an offset. Returns None if callgauge did not write it, or not beside this offset, which is beyond what
        was folded then: the offset is not ours.
        """
        try:
            note = json.loads(text) if text and len(text) <= MAX_NOTE_CHARS else None
        except ValueError:
            return None
        if not isinstance(note, dict):
            return None
        order, scores = note.get("order"), note.get("scores")
        if note.get("anew") is True:
            return cls(None, is_anew=True)
        read = note.get("read", offset)
        if not isinstance(read, int) or read < offset:
            return None
        if isinstance(order, int) and order >= 0:
            writer = note.get("writer")
            return cls(order, writer=writer if isinstance(writer, str) else None)
        return cls(None, scores) if isinstance(scores, int) and scores >= 0 else None


class PlacedStart(NamedTuple):
    """A record of `order` with a start: when it was written, the positions of the inputs before it, and its offset."""

    at_ms: int
    positions: Positions
    offset: int


class OrderStarts:
    """The starts in the order of one partition, oldest first. From the first on, every open call is in the order."""

    def __init__(self, starts: Sequence[PlacedStart], overlap_ms: int) -> None:
        """Begins with the starts of former owners.

        Args:
            starts: At least one, oldest first: those that were read, or the place where our own first one will be.
            overlap_ms: How long after its closing a call's records must still be recognised.
        """
        self._starts = deque(starts)
        self._overlap_ms = overlap_ms

    def add(self, start: PlacedStart) -> None:
        """Adds a start that was written."""
        self._starts.append(start)
        if len(self._starts) > MAX_STARTS:
            self._starts = deque(each for place, each in enumerate(self._starts) if place % 2 == 0)

    def offset_for(self, watermarks: Positions) -> int:
        """Returns the first offset of `order` that a successor needs if it reads the inputs from `watermarks`.

        From there on are the steps of every open call, and the ends of the calls that closed less than the overlap before.
        """
        starts = self._starts
        reached_ms = max((each.at_ms for each in starts if _is_below(each, watermarks)), default=starts[0].at_ms)
        while len(starts) > 1 and starts[1].at_ms <= reached_ms - self._overlap_ms and _is_below(starts[1], watermarks):
            starts.popleft()
        return starts[0].offset


def _is_below(start: PlacedStart, watermarks: Positions) -> bool:
    return all(position <= watermarks.get(source, position) for source, position in start.positions.items())


class ChosenThen(NamedTuple):
    """A goal set that calls got: its id, when the first fact about it was written to `scores`, and the calls."""

    goals_id: str
    at_ms: int
    calls: set[str]


class OrderLog:
    """The order of one partition, read in one pass before anything is folded.

    Attributes:
        starts: Its records with a start.
        closings: How often each call closes in it.
        goals: The goal sets of its calls, by digest.
        positions: By input, the offset after the last record folded in it.
        versions: Versions of its owners.
        writers: Ids of the producers that its marks and starts name.
        fault: Why it cannot be used; None if it can.
    """

    def __init__(self) -> None:
        self.starts: list[PlacedStart] = []
        self.closings: Counter[str] = Counter()
        self.goals: dict[str, ChosenThen] = {}
        self.positions: Positions = {}
        self.versions: set[str] = set()
        self.writers: set[str] = set()
        self.fault: str | None = None
        self._records: list[tuple[OrderStart | None, bytes]] = []
        self._decoder: OrderDecoder | None = None

    def take(self, record: Any) -> None:
        """Reads the next record. Records before the first start are of no use."""
        if isinstance(record, UndecodableRecord):
            self.fault = str(record)
        elif record.value is None and (writer := writer_in(record.headers)) is not None:  # a new owner
            self.writers.add(writer)
        if self.fault is not None or record.value is None:
            return
        try:
            start = start_in(record.headers)
            if start is None and self._decoder is None:
                return
            for step in self._each(start, record.value):
                if isinstance(step, Closed):
                    self.closings[step.conversation_id] += 1
                elif isinstance(step, GoalsChosen):
                    chosen = self.goals.setdefault(step.digest, ChosenThen(step.goals_id, record.timestamp, set()))
                    chosen.calls.add(step.conversation_id)
        except OrderError as error:
            self.fault = f"{record.topic}[{record.partition}]@{record.offset}: {error}"
            return
        self._records.append((start, record.value))
        if self._decoder is not None:
            self.positions = self._decoder.positions
        if start is not None:
            self.versions.add(start.version)
            if start.writer is not None:
                self.writers.add(start.writer)
            self.starts.append(PlacedStart(record.timestamp, start.positions, record.offset))

    def steps(self) -> Iterator[OrderStart | Step]:
        """Returns all steps once more, in order, with each start before the steps that follow it."""
        self._decoder = None
        for start, value in self._records:
            if start is not None:
                yield start
            yield from self._each(start, value)

    def _each(self, start: OrderStart | None, value: bytes) -> Iterator[Step]:
        if self._decoder is None:
            if start is None:
                raise OrderError("reading began before a start")
            self._decoder = OrderDecoder(start)
        elif start is not None:
            self._decoder.begin(start)
        yield from self._decoder.steps(value)


# Folds the inputs of a partition again in the order of its former owners, silently, until its state is theirs.

MAX_STEPS_AT_A_TIME: Final = 500
"""Steps that are taken before anything else has a turn: some 15 ms of work."""
MAX_WAITING_RECORDS: Final = 2_000
"""Records of an input that may wait for another one; then its reading pauses."""
MAX_KEPT_REQUESTS: Final = 256
"""Questions of a call that are asked once again; the oldest are left out."""

Admits = Callable[[InputSource, Any], object]
"""Decodes a record: an `Arrival`, or something else if it was refused."""


class Withheld:
    """Unpublished decisions of the engine: the newest record of each subject of a call, and its questions."""

    def __init__(self) -> None:
        self._records: dict[str, dict[Subject, AnyScoreRecord]] = {}
        self._requests: dict[str, dict[str, JudgeRequest]] = {}

    def take(self, effects: Iterable[Effect]) -> None:
        """Keeps the records and questions among the effects."""
        for effect in effects:
            match effect:
                case PublishScore(record):
                    by_subject = self._records.setdefault(record.conversation_id, {})
                    by_subject[record.name, record.turn, record.index] = record
                case RequestVerdict(request):
                    requests = self._requests.setdefault(request.conversation_id, {})
                    requests[request.request_id] = request
                    if len(requests) > MAX_KEPT_REQUESTS:
                        del requests[next(iter(requests))]
                case _:
                    pass

    def of(self, conversation_id: str, least_revision: int) -> tuple[AnyScoreRecord | JudgeRequest, ...]:
        """Returns the records of a call with this revision, which count nothing a second time, and its questions."""
        again: list[AnyScoreRecord | JudgeRequest] = []
        for record in self._records.pop(conversation_id, {}).values():
            counted: dict[str, Any] = {"first_known": ()} if isinstance(record, TurnValues) else {}
            again.append(record.model_copy(update={"revision": least_revision, "is_first": False, **counted}))
        again += self._requests.pop(conversation_id, {}).values()
        return tuple(again)


class Replay:
    """Takes the steps of a partition's order once more. Records of calls that the order closes are skipped, undecoded.

    Attributes:
        positions: By input, the offset after the last record that was folded or skipped.
        replayed: By input, how many of them.
        time_ms: Broker time up to which silence is decided.
        lost: Records that the order has and the inputs do not have any more.
        read_to: By input, the offset up to which it was read.
        withheld: Results of the open calls that another version published.
    """

    def __init__(
        self,
        log: OrderLog,
        starts: Positions,
        ends: Positions,
        version: str,
        evaluator: PartitionEvaluator,
        admits: Admits,
        goals: ChosenGoals | None = None,
        sets: Mapping[str, GoalSet] | None = None,
        firsts: Positions | None = None,
    ) -> None:
        """Starts before the first step.

        Args:
            log: The order, as it was read.
            starts: By input, the first record of the oldest open call. All earlier records are of closed calls.
            ends: By input, the offset at which it ends.
            version: This process's own, from `order_version`.
            evaluator: Folds the records.
            admits: Decodes them.
            goals: Gives the calls what they got then.
            sets: Goal sets of that time, by digest.
            firsts: By input, the offset at which it begins, if that is after its start.
        """
        self.positions = dict(starts)
        self.replayed = dict.fromkeys(starts, 0)
        self.time_ms = 0
        self.lost = 0
        self.read_to: dict[InputSource, int] = {}
        self.withheld = Withheld()
        self._steps: Iterator[OrderStart | Step] = log.steps()
        self._step: Fold | None = None
        self._closings = log.closings.copy()
        self._ends = ends
        self._firsts = firsts or {}
        self._version = version
        self._written_by: str | None = None  # until the first start
        self._evaluator = evaluator
        self._admits = admits
        self._goals = goals or ChosenGoals()
        self._sets = sets or {}
        self._goals.logged = {}
        self._version_of: dict[str, str | None] = {}  # by call that the order leaves open: who published its records
        self._least_revisions: dict[str, int] = {}  # of these calls, where it is not 1
        self._evicted: str | None = None
        is_cut = any(first > starts.get(source, 0) for source, first in self._firsts.items())
        self._withholds = is_cut or log.versions != {version}
        self._waiting: dict[InputSource, deque[Any]] = {source: deque() for source in starts}

    def put(self, source: InputSource, records: Records) -> None:
        """Takes records of an input that were read, in order."""
        self._waiting[source].extend(records)

    def clear(self) -> None:
        """Drops the records that wait: reading begins again at `positions`."""
        self.read_to.clear()
        for waiting in self._waiting.values():
            waiting.clear()

    @property
    def can_go_on(self) -> bool:
        """Whether the next step needs no record that was not read yet."""
        return self._step is None or self.waits(self._step.source)

    def waits(self, source: InputSource) -> bool:
        """Whether a record of this input waits."""
        return bool(self._waiting[source])

    def is_full(self, source: InputSource, *, is_paused: bool) -> bool:
        """Whether reading of this input should pause, or stay paused."""
        return len(self._waiting[source]) * (2 if is_paused else 1) > MAX_WAITING_RECORDS

    def go_on(self) -> bool:
        """Takes some steps, as far as their records are there; returns whether the last one is taken."""
        for _ in range(MAX_STEPS_AT_A_TIME):
            step = self._step or next(self._steps, None)
            if step is None:
                return True
            if isinstance(step, Fold):
                if not self._fold(step):
                    self._step = step
                    return False
                self._step = None
            else:
                self._take(step)
        return False

    def rest(self) -> Sequence[tuple[InputSource, Records]]:
        """Returns the records behind the last step, which belong to nobody's order yet."""
        return [(source, tuple(waiting)) for source, waiting in self._waiting.items() if waiting]

    def of_other_versions(self) -> Sequence[Renumbered]:
        """Returns the open calls whose records another version published, with the first revision of the next generation; all of them
        after a loss, because the state is not that of the former owner, those of which no record is left included.
        """
        return [
            Renumbered(conversation_id, next_generation(self._least_revisions.get(conversation_id, 1)), not self.lost)
            for conversation_id, version in self._version_of.items()
            if self.lost or version != self._version
        ]

    def _fold(self, step: Fold) -> bool:
        """Folds or skips the record of a step; returns whether it did: the record may not be there yet."""
        source, offset, opened = step
        if opened is not None and not self._closings[opened]:
            self._version_of[opened] = self._written_by
        if offset < self.positions[source]:
            self._evicted = (
                None  # the record is of a call that closed before reading begins, or whose first record was lost
            )
            return True
        record = self._record(source, offset)
        is_gone = not self._firsts.get(source, 0) <= offset < self._ends[source] or offset < self.read_to.get(source, 0)
        if record is None and not is_gone and not self._waiting[source]:
            return False
        self.positions[source] = offset + 1
        evicted, self._evicted = self._evicted, None
        if record is None:
            self.lost += 1
            return True
        self.replayed[source] += 1
        if (record.key or b"").decode("utf-8", "replace") in self._version_of:
            arrival = self._admits(source, record)
            if isinstance(arrival, Arrival):
                opening = None if opened is None else OpenCall(evicted)
                self._withhold(self._evaluator.receive_again(arrival, opening))
                self._goals.logged = {}
        return True

    def _withhold(self, effects: Iterable[Effect]) -> None:
        if self._withholds:
            self.withheld.take(effects)

    def _record(self, source: InputSource, offset: int) -> Any:
        """Returns the record at this offset; None while it is not there, or if it is gone."""
        waiting = self._waiting[source]
        while waiting and waiting[0].offset < offset:
            waiting.popleft()
        return waiting.popleft() if waiting and waiting[0].offset == offset else None

    def _take(self, step: OrderStart | Step) -> None:
        match step:
            case OrderStart(version=version, time_ms=time_ms):
                is_first, self._written_by = self._written_by is None, version
                if is_first:
                    self.time_ms = time_ms
                    self._evaluator.pass_time(time_ms)
            case TimePassed(now_ms):
                self.time_ms = now_ms
                self._withhold(self._evaluator.pass_time(now_ms))
                self._goals.logged = {}
            case Evicted(conversation_id):
                self._evicted = conversation_id
            case Closed(conversation_id):
                self._closings[conversation_id] -= 1
                self._evaluator.has_closed(conversation_id)
            case Renumbered(conversation_id, least_revision, counts):
                if not self._closings[conversation_id]:
                    self._version_of[conversation_id] = self._written_by
                    self._least_revisions[conversation_id] = least_revision
                    self._evaluator.renumber(conversation_id, least_revision, counts=counts)
            case GoalsChosen(conversation_id, _, digest) if digest in self._sets:
                self._goals.logged = {**(self._goals.logged or {}), conversation_id: self._sets[digest]}
            case _:
                pass


# Reads back what the former owners of partitions wrote, before their inputs are folded again.

POLL_MS: Final = 200
MAX_POLL_RECORDS: Final = 2_000
MAX_SILENT_SECONDS: Final = 30.0
"""How long reading may wait for a record that the broker says is there."""
MAX_ODD_RECORD_LINES: Final = 5
"""Log lines of one reading about records that no callgauge wrote."""

log = structlog.get_logger()


class ReadBackError(OperatorError):
    """The end of a topic was not reached. Without it scores would be published twice, so the process must end."""


async def read_back(
    kafka: KafkaSettings,
    topic: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    takes: Mapping[int, Callable[[Any], None]],
) -> None:
    """Passes every committed record of some partitions of a topic on, in order.

    Args:
        kafka: The cluster.
        topic: Full name of the topic.
        starts: By partition number, the first offset to read.
        ends: By partition number, the offset to read up to, which our own mark proves to be there.
        takes: By partition number, the function that takes the records.

    Raises:
        ReadBackError: The end was not reached.
        KafkaError: The broker refused.
    """
    unread = {TopicPartition(topic, number): end for number, end in ends.items() if starts[number] < end}
    if not unread:
        return
    consumer = kafka.consumer("read-back", enable_auto_commit=False, max_poll_records=MAX_POLL_RECORDS)
    try:
        await consumer.start()
        consumer.assign(list(unread))
        for tp in unread:
            consumer.seek(tp, starts[tp.partition])
        await _read(consumer, unread, takes)
    finally:
        await consumer.stop()


async def _read(
    consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int], takes: Mapping[int, Callable[[Any], None]]
) -> None:
    loop = asyncio.get_running_loop()
    unread = dict(ends)
    heard_at = loop.time()
    while True:
        # By position and not by record count: the end of a transaction takes an offset and is no record.
        unread = {tp: end for tp, end in unread.items() if await consumer.position(tp) < end}
        if not unread:
            return
        batches = await consumer.getmany(*unread, timeout_ms=POLL_MS)
        if batches:
            heard_at = loop.time()
        elif loop.time() - heard_at > MAX_SILENT_SECONDS:
            behind = ", ".join(f"{tp.topic}[{tp.partition}] before {end}" for tp, end in sorted(unread.items()))
            raise ReadBackError(
                f"Recovery: nothing came for {MAX_SILENT_SECONDS:.0f} s, with records outstanding in {behind}. Without them "
                "scores would be written twice, so the evaluator ends. Check the broker and whether a transaction of "
                "another producer hangs there."
            )
        for tp, batch in batches.items():
            for record in batch:
                if record.offset < ends[tp]:
                    takes[tp.partition](record)


class PublishedCalls:
    """The calls of one partition as `scores` has them, where there is no order. It reads records of any version.

    Attributes:
        open: Ids of the calls that have records and did not close.
        closed: Ids of the calls that closed, in order.
        reached: By input, the offset after the last record that any score covers.
        generation: First revision of a generation that no record has.
    """

    def __init__(self) -> None:
        self.open: dict[str, None] = {}
        self.closed: dict[str, None] = {}
        self.reached: dict[InputSource, int] = {}
        self.generation = next_generation(0)
        self._odd = 0

    def take(self, record: Any) -> None:
        """Reads the next record."""
        if not isinstance(record, UndecodableRecord) and record.value is None:
            return  # a new owner
        fields = _fields_of(record)
        conversation_id, offsets, revision = (fields.get(name) for name in ("conversation_id", "offsets", "revision"))
        if not isinstance(conversation_id, str) or not isinstance(offsets, dict) or not isinstance(revision, int):
            self._odd += 1
            if self._odd <= MAX_ODD_RECORD_LINES:
                log.warning(
                    "score_not_ours", record=f"{record.topic}[{record.partition}]@{record.offset}",
                    what_happens_now="It is passed over.",
                    what_to_do="Find who writes there, and give the right to write `scores` to evaluators alone.",
                )  # fmt: skip
            return
        self.generation = max(self.generation, next_generation(revision))
        for topic, offset in offsets.items():
            source = SOURCE_BY_TOPIC.get(topic)
            if source is not None and isinstance(offset, int):
                self.reached[source] = max(self.reached.get(source, 0), offset + 1)
        self.open[conversation_id] = None
        if fields.get("name") == "closed":
            del self.open[conversation_id]
            self.closed.pop(conversation_id, None)
            self.closed[conversation_id] = None


class PublishedGoals:
    """Goal sets that `scores` has, by digest."""

    def __init__(self, wanted: set[str]) -> None:
        self.wanted = wanted
        self.found: dict[str, GoalSet] = {}

    def take(self, record: Any) -> None:
        """Reads the next record."""
        fields = _fields_of(record)
        if fields.get("name") != "goals" or fields.get("digest") not in self.wanted:
            return
        try:
            goal_set = GoalsFact.model_validate_json(record.value).goal_set
        except ValidationError:  # of another version, with a check that this one does not know
            return
        self.found[goal_set.digest] = goal_set
        self.wanted.discard(goal_set.digest)


def _fields_of(record: Any) -> dict[str, Any]:
    try:
        fields = from_json(record.value or b"")
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
