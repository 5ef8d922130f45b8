"""Where an evaluator gets goal sets from: a folder that is watched, or a compacted topic."""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from consumers.runtime.kafka.connection import KafkaSettings, KafkaUnreachableError, TopicsUnfitError, partition_counts
from consumers.runtime.kafka.ranges import STALL_SECONDS, onlooker
from consumers.runtime.logs import about_record
from consumers.runtime.process import finish_unless, pause_unless
from schemas.goals.goal_set import GoalSet, read_goals
from schemas.quarantine import UndecodableRecord
from schemas.topics import GOALS_TOPIC
from streamer.cluster.readers import POLL_MS
from streamer.goals.files import (
    DocumentError,
    FileMistake,
    FileState,
    GoalFile,
    GoalFolderError,
    GoalIndex,
    doubles_in,
    goal_files_of,
    read_goal_file,
    read_json,
    sample_sets,
)

# The topic `goals`: one record for each goal set. The newest record of a key counts; a record without a value deletes
# the set.
#
# It is read from its beginning, in no consumer group and beside the subscription of the inputs, by each process for
# itself.

RETRY_SECONDS: Final = 10.0
"""How long until the topic is tried again that was not there, or whose broker was away."""
METADATA_MS: Final = 60_000
"""How long until partitions that were added to the topic are seen."""
MAX_BATCH_RECORDS: Final = 500
"""Records of one poll, which are in memory together."""
MAX_SETS: Final = 10_000
"""Goal sets that are kept; a set has some kilobytes."""

log = structlog.get_logger()


class GoalRecordError(Exception):
    """A record that is no goal set; the text says why, as a sentence without a full stop."""


class GoalsTopic:
    """The goal sets on the topic `goals`, followed for as long as the process runs.

    A record that is no goal set is logged, counted and ignored. A missing topic or an unreachable broker is logged too: calls
    go on without goals, or with the goals that were read before.

    Attributes:
        index: The present goal sets; replaced as a whole. Of two sets for one agent, the one whose id comes
            first in the alphabet is found.
        refused: Number of records that were no goal sets.
        tried: Set when the topic was read to its end, or could not be read.
    """

    def __init__(self, kafka: KafkaSettings) -> None:
        self.index = GoalIndex()
        self.refused = 0
        self.tried = asyncio.Event()
        self._kafka = kafka
        self._warned_of = ""

    async def follow(self, stop: asyncio.Event) -> None:
        """Reads the topic, and later records, until `stop` is set."""
        try:
            while not stop.is_set():
                try:
                    await self._read(stop)
                except (KafkaError, KafkaUnreachableError, TopicsUnfitError, TimeoutError) as error:
                    self._tell(str(error))
                    self.tried.set()
                    await pause_unless(stop, RETRY_SECONDS)
        finally:
            self.tried.set()  # nobody has to wait any longer

    async def _read(self, stop: asyncio.Event) -> None:
        """From the beginning, until `stop` is set or the topic has more partitions than before."""
        count = await finish_unless(stop, partition_counts(self._kafka, [GOALS_TOPIC]))
        if count is None:
            return
        partitions = [TopicPartition(self._kafka.topic(GOALS_TOPIC), number) for number in range(count[GOALS_TOPIC])]
        options = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "metadata_max_age_ms": METADATA_MS}
        async with onlooker(self._kafka, "goals", **options) as consumer:
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            sets: dict[str, GoalSet] = {}
            await self._catch_up(consumer, sets, stop)
            while not stop.is_set() and not self._has_grown(consumer, len(partitions)):
                if await self._take_batch(consumer, sets):
                    self._use(sets)

    async def _catch_up(self, consumer: AIOKafkaConsumer, sets: dict[str, GoalSet], stop: asyncio.Event) -> None:
        """Reads to the present end of the topic. Until then the earlier goal sets count."""
        clock = asyncio.get_running_loop().time
        ends = await consumer.end_offsets(consumer.assignment())
        patience = clock() + STALL_SECONDS
        # By position, not by record: a transaction's marker has an offset and is no record.
        while not stop.is_set() and any([await consumer.position(tp) < end for tp, end in ends.items()]):
            if await self._take_batch(consumer, sets):
                patience = clock() + STALL_SECONDS
            elif clock() > patience:
                raise TimeoutError(f"nothing more of {self._kafka.topic(GOALS_TOPIC)} for {STALL_SECONDS:.0f} s")
        if not stop.is_set():
            self._use(sets)
            self._warned_of = ""
            self.tried.set()
            log.info("goals_topic_read", goal_sets=len(sets), refused=self.refused)

    async def _take_batch(self, consumer: AIOKafkaConsumer, sets: dict[str, GoalSet]) -> bool:
        """Takes the records that have arrived; returns whether there were any."""
        batches = await consumer.getmany(timeout_ms=POLL_MS, max_records=MAX_BATCH_RECORDS)
        for records in batches.values():
            for record in records:
                self._take(record, sets)
        return bool(batches)

    def _take(self, record: Any, sets: dict[str, GoalSet]) -> None:
        try:
            goals_id = _id_of(record)
            if record.value is None:
                sets.pop(goals_id, None)
                return
            goals = _goals_in(goals_id, record.value)
            _require_room(sets, goals_id)
        except GoalRecordError as error:
            self.refused += 1
            where = {name: value for name, value in about_record(record).items() if name != "conversation_id"}
            now = "the record before it with the same key counts, as long as the topic has it"
            log.warning("goal_record_refused", error=f"{error}.", now=now, **where)
            return
        sets[goals_id] = goals

    def _tell(self, problem: str) -> None:
        """Why the topic is not read now, once for as long as it lasts."""
        if self._warned_of != problem:
            log.warning("goals_topic_unread", error=problem, goal_sets=len(self.index))
        self._warned_of = problem

    def _use(self, sets: dict[str, GoalSet]) -> None:
        self.index = GoalIndex(sets[goals_id] for goals_id in sorted(sets))

    def _has_grown(self, consumer: AIOKafkaConsumer, count: int) -> bool:
        return len(consumer.partitions_for_topic(self._kafka.topic(GOALS_TOPIC)) or ()) > count


def _id_of(record: Any) -> str:
    if isinstance(record, UndecodableRecord):
        raise GoalRecordError(f"{record.what}, {record.expected_and_seen}")
    try:
        goals_id = (record.key or b"").decode()
    except UnicodeDecodeError as error:
        raise GoalRecordError("its key is not UTF-8; the key is the id of the goal set") from error
    if not goals_id:
        raise GoalRecordError("it has no key; the key is the id of the goal set")
    return goals_id


def _require_room(sets: Mapping[str, GoalSet], goals_id: str) -> None:
    if len(sets) >= MAX_SETS and goals_id not in sets:
        raise GoalRecordError(f"there are {MAX_SETS} goal sets already; take some away with records without a value")


def _goals_in(goals_id: str, value: bytes) -> GoalSet:
    """The one goal set in a record, in any of the formats."""
    try:
        document = read_json(value.decode())
    except UnicodeDecodeError as error:
        raise GoalRecordError("its value is not UTF-8") from error
    except DocumentError as error:
        raise GoalRecordError(str(error)) from error
    found = read_goals(document.value, fallback_id=goals_id)
    if found.mistakes:
        first = found.mistakes[0]
        more = f" (and {len(found.mistakes) - 1} more mistakes)" if len(found.mistakes) > 1 else ""
        raise GoalRecordError(f"{first.place or 'goal set'}: {first.text}{more}")
    if len(found.sets) != 1:
        raise GoalRecordError(f"it holds {len(found.sets)} goal sets; write each one to a record of its own")
    goals = found.sets[0][1]
    if goals.id != goals_id:
        raise GoalRecordError(f"its key is {goals_id!r} and its id {goals.id!r}; they must be the same")
    return goals


# A folder of goal files that may change at any time: changed files are read again, broken files are not used.


class GoalFolder:
    """The goal sets of a folder.

    If a file becomes broken, the log reports it and its last valid sets stay. The sets of a deleted file go. A call keeps
    its set in every case.

    Attributes:
        index: The present goal sets; replaced as a whole.
        broken: The mistakes of each broken file.
    """

    def __init__(self, folder: Path) -> None:
        self.index = GoalIndex()
        self.broken: dict[Path, tuple[FileMistake, ...]] = {}
        self._folder = folder
        self._states: dict[Path, FileState] = {}
        self._good: dict[Path, GoalFile] = {}
        self._warned_of: set[str] = set()

    def load(self) -> None:
        """Reads everything for the first time. It waits for the disk, so a thread should do it.

        Raises:
            GoalFolderError: It cannot be read as a folder.
        """
        self._read(goal_files_of(self._folder))

    def reload(self) -> None:
        """Reads the files that changed since the last time. It waits for the disk, so call it in a thread."""
        try:
            states = goal_files_of(self._folder)
        except GoalFolderError as error:
            self._tell([f"{error} What was read before stays in use."])
            return
        if states != self._states:
            self._read(states)

    def _read(self, states: dict[Path, FileState]) -> None:
        for path in [path for path, state in states.items() if self._states.get(path) != state]:
            self._take(read_goal_file(path))
        for path in self._states.keys() - states.keys():
            self.broken.pop(path, None)
            if self._good.pop(path, None) is not None:
                log.info("goal_file_gone", file=str(path))
        self._states = states
        # By name, so that which file comes first does not depend on which one was changed last.
        files = [self._good[path] for path in sorted(self._good)]
        self.index = GoalIndex(placed.goals for file in files for placed in file.sets)
        self._tell(map(str, doubles_in(files)))

    def _take(self, file: GoalFile) -> None:
        if not file.mistakes:
            self.broken.pop(file.path, None)
            self._good[file.path] = file
            log.info("goal_file_read", file=str(file.path), goal_sets=[placed.goals.id for placed in file.sets][:20])
            return
        self.broken[file.path] = file.mistakes
        log.error(
            "goal_file_broken",
            file=str(file.path),
            mistakes=len(file.mistakes),
            first=f"{file.mistakes[0]}.",
            now="its earlier content stays in use" if file.path in self._good else "no goals come from it",
            remedy=f"callgauge goals check {file.path}",
        )

    def _tell(self, problems: Iterable[str]) -> None:
        """Problems of the folder as a whole, each once for as long as it lasts."""
        current = set(problems)
        for problem in sorted(current - self._warned_of):
            log.warning("goal_folder_problem", problem=problem)
        self._warned_of = current


# The sources of goal sets: a folder of files, the topic `goals`, both, or none.

POLL_SECONDS: Final = 2.0
"""Interval of the folder checks: a saved file is in use before a person has placed the next call."""
MAX_NAMES_TOLD: Final = 100
"""Bound of logged unknown goal sets, each logged once; the first ones show the fault."""


class GoalSources:
    """Chooses the goals of calls; a `schemas.goals.goal_set.ChoosesGoals`. The folder is asked first, then the topic.

    The sample call and simulated calls name sets that callgauge brings. They count only where neither has that set nor one
    for the agent.

    Attributes:
        ready: Set when every source was read once, or could not be; calls that begin before may miss their goals.
    """

    def __init__(
        self, folder: GoalFolder | None, topic: GoalsTopic | None, *, poll_seconds: float = POLL_SECONDS
    ) -> None:
        """Nothing is read before `run`; the folder is looked at every `poll_seconds`."""
        self.ready = asyncio.Event()
        self._folder = folder
        self._topic = topic
        self._poll_seconds = poll_seconds
        self._samples = GoalIndex()
        self._unknown: set[str] = set()

    def choose(self, goals_id: str | None, agent: str | None) -> GoalSet | None:
        """The set that a call names, or without a name its agent's; None when there is none."""
        indexes = [source.index for source in (self._folder, self._topic) if source is not None]
        sample = None
        if goals_id is not None:
            found = next((goals for index in indexes if (goals := index.named(goals_id)) is not None), None)
            if found is not None:
                return found
            sample = self._samples.named(goals_id)
            if sample is None:
                self._tell_unknown(goals_id)
                return None
        if agent is None:
            return sample
        return next((goals for index in indexes if (goals := index.of_agent(agent)) is not None), sample)

    async def run(self, stop: asyncio.Event) -> None:
        """Reads the sources and follows their changes until `stop` is set.

        Raises:
            GoalFolderError: The folder cannot be read at the start.
        """
        self._samples = GoalIndex(await asyncio.to_thread(lambda: list(sample_sets())))
        if self._folder is not None:
            await asyncio.to_thread(self._folder.load)
        async with asyncio.TaskGroup() as tasks:
            if self._folder is not None:
                tasks.create_task(self._watch(self._folder, stop))
            if self._topic is not None:
                tasks.create_task(self._topic.follow(stop))
                await self._topic.tried.wait()
            self.ready.set()

    async def _watch(self, folder: GoalFolder, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await asyncio.to_thread(folder.reload)
            await pause_unless(stop, self._poll_seconds)

    def _tell_unknown(self, goals_id: str) -> None:
        """A call named a set that nobody knows: once for each name."""
        if goals_id not in self._unknown and len(self._unknown) < MAX_NAMES_TOLD:
            self._unknown.add(goals_id)
            log.warning("goal_set_unknown", goal_set=goals_id, now="calls that name it have no goals")
