"""The evaluator role: reads the four inputs, folds them in the engine, and writes the resulting records.

Records are folded under one lock, a poll or a tick at a time. Offsets are committed after the records that follow from them.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog
from aiokafka import TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import IllegalOperation, KafkaError, ProducerFenced

from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.redaction.redactor import Redactor
from consumers.evaluator.assignment import (
    Assignment,
    ClosingTurns,
    NotCoPartitionedError,
    assigned_numbers,
    read_gauges,
)
from consumers.evaluator.group import GroupWatch
from consumers.evaluator.lost_records import InputMadeAnewError, LostRecords
from consumers.evaluator.partition import MisreadRecords, Offsets, Partition
from consumers.evaluator.reading import runs_by_partition
from consumers.evaluator.recovery import order_version
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.takeover import Takeover
from consumers.evaluator.topics import (
    SLOW_SECONDS,
    STUCK_COMMIT_SECONDS,
    STUCK_JOIN_SECONDS,
    STUCK_WRITE_SECONDS,
    Standstill,
    TopicWatch,
    require_fit_topics,
)
from consumers.evaluator.writer import FencedError, Outlet, Writer
from consumers.runtime.kafka.broker_clock import BrokerClock
from consumers.runtime.kafka.connection import KafkaSettings, KafkaUnreachableError
from consumers.runtime.kafka.log_ends import LogEnds
from consumers.runtime.kafka.polling import COMMIT_SECONDS, Placement, Subscription
from consumers.runtime.process import END_SECONDS, OperatorError, StuckTaskError, end_tasks, first_of, tune_python
from consumers.runtime.registry import Instruments
from schemas.goals.goal_set import ChoosesGoals
from schemas.topics import INPUT_TOPICS, SOURCE_BY_TOPIC
from schemas.units import to_seconds

HAND_OVER_SECONDS: Final = 3.0
"""How long writing (two thirds) and committing may take at a revocation or stop: well within the session timeout."""
CLOSE_SECONDS: Final = 1.0
"""How long a producer may take to disconnect."""
DECODE_SECONDS: Final = 0.01
"""How long records are decoded before others have their turn."""
SMALL_POLL_BYTES: Final = 65_536
"""Polls with at most so many bytes are decoded where they are folded: that takes 20 ms at most, and a look at the clock for each record
takes time too."""
LARGE_BYTES: Final = 65_536
"""A record with more bytes has a turn of its own: it may take 40 ms."""
MAX_SILENT_SECONDS: Final = 30.0
"""Time without a tick after which the role counts as stuck. Ticks are a tenth of a second apart."""

TAKE_AGAIN_SECONDS: Final = 2.0
"""Pause before partitions that another process has claimed are taken over again: four heartbeats, of which one tells us if the group has
given them to it."""
MAX_TAKEOVERS: Final = 10
"""Takeovers in a row after which the role ends. A frozen owner that wakes, or a takeover of a rebalance ago, costs one or two."""
STEADY_SECONDS: Final = 60.0
"""How long partitions must be ours until the next takeover is a first one."""
PATIENCE_SECONDS: Final = 0.5
"""How long reading waits for the writer before it pauses: some transactions. The client drops the fetched records of a paused
partition, so with a backlog, an immediate pause costs more than the wait."""
FETCH_BYTES: Final = 128 * 1_024
"""Most bytes of one input partition in one answer of the broker. With a backlog, each keeps as much in memory, and one input can
run as far ahead of another. A larger record comes alone."""
HEARTBEAT_MS: Final = 500
"""Time between heartbeats, which notice a rebalance. After an orderly stop, partitions have no owner for that long."""

log = structlog.get_logger()


class SharedNameError(OperatorError):
    """Another process writes a partition that the group assigns to us, so two installations share a group name."""


class Evaluator(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no type hints
    """Evaluates the calls of its assigned partitions until it is stopped."""

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: EvaluatorSettings,
        instruments: Instruments,
        goals: ChoosesGoals | None = None,
    ) -> None:
        self._goals = goals
        self.ready = asyncio.Event()
        self._kafka = kafka
        self._settings = settings
        self._instruments = instruments
        self._misread = MisreadRecords(instruments)
        self._sources = {kafka.topic(topic): source for topic, source in SOURCE_BY_TOPIC.items()}
        clock = BrokerClock(instruments)
        self._version = order_version(settings)
        self._takeover = Takeover(kafka, settings, instruments, self._sources, self._version, goals)
        self._log_ends = LogEnds(kafka, self._sources, clock.steady_ms, self._read_from)
        self._placement = Placement(self._sources, instruments)
        self._assignment = Assignment(self._sources, self._log_ends.ends, clock)
        self._closing_turns = ClosingTurns(settings.max_unwritten_records)
        self._lost_records = LostRecords(self._assignment.gaps, lambda: self._assignment.active, instruments)
        self._lock = asyncio.Lock()
        self._loading: asyncio.Task[None] | None = None
        self._writer: Writer | None = None  # of this assignment
        self._writing: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._is_full = False  # too much is unwritten, so nothing is read
        self._group = GroupWatch(kafka, settings, self._sources)
        self._topic_watch = TopicWatch(kafka, settings, lambda error: self._subscription.fail(error))  # noqa: PLW0108  # made below
        self._ticked_at: float | None = None
        self._committed_at = time.monotonic()
        self._joining_since: float | None = None
        self._is_leaving = False  # once true, polled records are our successor's
        self._rebalances = 0  # records polled before the latest one began are read again
        self._has_polled = False  # whether the client counts records as read that no partition has
        self._generation = -1
        self._subscription = Subscription(
            kafka,
            "evaluator",
            INPUT_TOPICS,
            self._take,
            group_id=settings.group_id,
            max_records=settings.max_batch_records,
            listener=self,
            poll_interval_ms=settings.poll_interval_ms,
            options={
                "auto_offset_reset": "earliest",
                # The only assignor of the client that gives a member the same numbers of all topics.
                "partition_assignment_strategy": [RangePartitionAssignor],
                "group_instance_id": settings.group_instance_id,
                "session_timeout_ms": settings.session_timeout_ms,
                "heartbeat_interval_ms": min(HEARTBEAT_MS, settings.session_timeout_ms // 3),
                "max_partition_fetch_bytes": FETCH_BYTES,
            },
            instruments=instruments,
        )
        read_gauges(instruments, self._assignment, settings, self._sources)

    async def run(self, stop: asyncio.Event) -> None:
        """Evaluates until `stop` is set, then writes, commits and leaves the group. `ready` is set while it reads.

        Raises:
            KafkaUnreachableError: No broker answers at the start.
            TopicsUnfitError: Topics are missing, or are not as exactly-once scores need them.
            Exception: Taking over, folding or writing failed. The role must end; its successor reads from the commit.
        """
        tune_python()
        try:
            await first_of(stop.wait(), self._subscription.failure(), self._read())
            self.ready.clear()
            self._is_leaving = True
            await self._hand_over()
        finally:
            self.ready.clear()
            self._is_leaving = True
            self._topic_watch.stop()
            async with contextlib.AsyncExitStack() as ending:  # in the other order, each whatever becomes of the others
                ending.push_async_callback(self._disconnect)
                ending.push_async_callback(self._stop_writing)
                ending.callback(self._give_up_all)
                ending.push_async_callback(self._stop_loading)

    async def _disconnect(self) -> None:
        await asyncio.gather(self._subscription.stop(), self._takeover.stop(), self._log_ends.stop(), *self._closing)

    def problems(self) -> Sequence[str]:
        """Why the role is not ready, for `/readyz`."""
        if self._is_leaving:
            return ("evaluator: leaving",)
        if problems := self._group.problems():
            return problems
        if waiting := self._assignment.waiting:
            return (f"evaluator: taking over partitions {', '.join(map(str, sorted(waiting)))}",)
        if not self.ready.is_set():
            return ("evaluator: not reading the inputs",)
        still, now = self._standstill(), time.monotonic()
        if still is not None and now - still.since > SLOW_SECONDS:
            return (f"evaluator: {still.what} for {now - still.since:.0f} s",)
        return ()

    def stalled(self) -> Sequence[str]:
        """Reasons why only a restart helps, for `/healthz`. A broker that does not answer is not one."""
        if self._ticked_at is None:
            return ()
        silent_seconds = time.monotonic() - self._ticked_at
        if silent_seconds > MAX_SILENT_SECONDS:
            return (f"evaluator: no tick for {silent_seconds:.0f} s",)
        return self._subscription.stalled()

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Writes and commits the folded records. State is kept, because most partitions usually come back at once."""
        self._joining_since = time.monotonic()
        try:
            await self._give_back()
        except StuckTaskError as error:  # the client would log it and go on, without an owner for anything
            self._give_up_all()
            self._subscription.fail(error)

    async def _give_back(self) -> None:
        self._rebalances += 1
        await self._stop_loading()
        await self._hand_over()
        # Another owner may fence its producer off from now on. Without its last transaction, only `order` knows what is written.
        if not await self._stop_writing():
            self._assignment.keep_only(())
        if self._assignment.owned:
            log.info("partitions_revoked", partitions=sorted(self._assignment.owned))
        was_put_out = self._group.our_id and not self._subscription.member_id
        if was_put_out and not self._is_leaving and await self._group.lost_to_twin():
            self._give_up_all()
            self._subscription.fail(await self._group.until_alone())

    def _give_up_all(self) -> None:
        self.ready.clear()
        self._assignment.keep_only(())

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Keeps the partitions that stay, gives up the others, and starts to take over new ones."""
        self._joining_since = None
        self._rebalances += 1
        if self._is_leaving:
            return
        self._group.our_id = self._subscription.member_id
        try:
            numbers = assigned_numbers(assigned, self._sources)
        except NotCoPartitionedError as error:
            # Before anything is awaited: the client reads on from what is committed, which would look like an input made anew.
            self._is_leaving = True
            self._give_up_all()
            # A topic that is gone looks like this, and is the likelier reason.
            misfit = await self._topic_watch.misfit()
            self._subscription.fail(misfit or NotCoPartitionedError(f"{error}{await self._group.blame()}"))
            return
        assignment = self._assignment
        kept = set(assignment.of_ours(numbers)) if self._was_member_throughout() else set()
        self._generation = self._subscription.generation
        assignment.keep_only(kept)
        consumer = self._subscription.consumer
        self._has_polled = False  # from here on each input is read from where its partition is
        for number in kept:
            for topic, offset in assignment.owned[number].next_offsets.items():
                consumer.seek(TopicPartition(topic, number), offset)
        new = [number for number in numbers if number not in kept]
        # Nothing is awaited between the assignment and this line, so no record is fetched before the state is there.
        self._add_new(new)
        log.info("partitions_assigned", partitions=numbers, new=new)
        self._loading = asyncio.create_task(self._own(sorted(kept), new), name="takeover")
        self._loading.add_done_callback(self._on_done)

    def _read_from(self, leaders: Mapping[TopicPartition, int]) -> None:
        self._subscription.read_from(leaders)

    def _was_member_throughout(self) -> bool:
        """Whether this member was in every rebalance, so that no other can have had its partitions in between."""
        return self._subscription.generation == self._generation + 1

    def _add_new(self, numbers: Sequence[int]) -> None:
        self._subscription.consumer.pause(*self._assignment.inputs_of(numbers))
        self._assignment.owned |= {number: self._new_partition(number) for number in numbers}

    def _new_partition(self, number: int) -> Partition:
        settings, limits, version = self._settings, self._settings.limits, self._settings.code_version
        redactor = Redactor(settings.redaction)  # of this partition alone: its counts are drained with the engine's
        goals, writes = ChosenGoals(self._goals, settings.goals), settings.writes_transcripts
        return Partition(
            Outlet(number, self._kafka, settings),
            PartitionEvaluator(limits, version, goals, writes_transcripts=writes, redactor=redactor),
            limits,
            self._sources,
            self._instruments,
            redactor,
            self._misread,
            goals,
            self._version,
        )

    async def _own(self, kept: Sequence[int], new: Sequence[int]) -> None:
        """Takes the partitions of an assignment over and has them written. When another process turns out to have claimed them, all are
        taken over again, with nothing kept, unless the group gives them away meanwhile.

        Raises:
            SharedNameError: It goes on like this.
        """
        numbers = sorted([*kept, *new])
        takeovers = 0
        while True:
            began = time.monotonic()
            try:
                await self._take_over(kept, new)
                if self._writing is None:  # nothing is ours
                    return
                await asyncio.wait([self._writing])  # which goes on until it fails, also when this is cancelled
                self._writing.result()
            except FencedError as error:
                why = str(error)
                self._instruments.inc("callgauge_partitions_fenced_total", (), len(numbers))
            except (ProducerFenced, IllegalOperation):  # the latter where its transaction ended between two records
                why = "another process claimed them at the same moment"
            takeovers = 1 if time.monotonic() - began > STEADY_SECONDS else takeovers + 1
            if takeovers >= MAX_TAKEOVERS:
                raise SharedNameError(
                    f"Partitions {', '.join(map(str, numbers))}: {why}, {takeovers} times in a row, but the group "
                    f"{self._settings.group_id} gives them to us. Nothing of them is evaluated here, so the evaluator ends. Check that "
                    "no other installation uses this group's name, and that each evaluator_instance is used once."
                )
            log.warning("taking_over_again", partitions=numbers, why=why)
            self._rebalances += 1
            self._give_up_all()
            self._has_polled = False
            kept, new = (), numbers
            self._add_new(numbers)
            await self._stop_writing()
            await asyncio.sleep(TAKE_AGAIN_SECONDS)

    async def _take_over(self, kept: Sequence[int], numbers: Sequence[int]) -> None:
        assignment, consumer = self._assignment, self._subscription.consumer
        new = [assignment.owned[number] for number in numbers]
        if kept or new:
            try:
                writer = self._writer = Writer(self._kafka, self._settings, self._instruments)
                await writer.start()
                self._writing = asyncio.create_task(writer.run(), name="writer")
                await self._takeover.keep([assignment.owned[number] for number in kept], writer.id)
                for number in kept:
                    writer.add(assignment.owned[number].outlet)
                if new:
                    await self._takeover.take(new, consumer, writer.id)
            except ProducerFenced:
                raise
            except KafkaError as error:
                raise self._kafka.unreachable(error) from error
            for owned in new:
                for topic, offset in owned.next_offsets.items():
                    consumer.seek(TopicPartition(topic, owned.number), offset)
                writer.add(owned.outlet)
            consumer.resume(*assignment.inputs_of(numbers))
        log.info("evaluator_ready", group=self._settings.group_id, partitions=sorted(assignment.owned))
        self.ready.set()
        await self._group.tell_strangers()

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._subscription.fail(error)

    async def _stop_writing(self) -> bool:
        """Stops the writer of this assignment; disconnecting goes on in the background. Returns whether its last write is known."""
        writer, writing = self._writer, self._writing
        self._writer = self._writing = None
        if writer is None:
            return True
        try:
            if writing is not None and not writing.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CLOSE_SECONDS):
                        await writer.until_idle()
            if writing is not None:
                await end_tasks([writing])  # if it has failed, nothing is kept
        finally:
            closing = asyncio.create_task(writer.stop(CLOSE_SECONDS))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        return writer.writing_since is None

    async def _stop_loading(self) -> None:
        loading, self._loading = self._loading, None
        if loading is not None and not loading.done():
            await end_tasks([loading], 2 * END_SECONDS)  # a claim that is cancelled disconnects first

    async def _read(self) -> bool:
        """Starts the subscription, which folds records by itself, then lets time pass."""
        await require_fit_topics(self._kafka, self._settings)
        try:
            await self._takeover.start()
        except KafkaError as error:
            raise self._kafka.unreachable(error) from error
        await self._log_ends.start()
        try:
            await self._subscription.start()
        except KafkaUnreachableError as error:  # also where a stranger shares partitions out in another way than we do
            blame = await self._group.blame()
            # So the client reports that our instance name has another owner, as it knows no such refusal.
            if blame and "UnknownError" in str(error.__cause__):
                raise SharedNameError(
                    f"The group {self._settings.group_id} does not let this process in.{blame}"
                ) from error
            raise KafkaUnreachableError(f"{error}{blame}") from error
        asking = self._log_ends.ask_for_ever(lambda: self._assignment.inputs_of(self._assignment.active))
        watching = self._lost_records.watch_for_ever(lambda: self._subscription.consumer)
        return await first_of(self._tick_for_ever(), self._commit_for_ever(), asking, watching)

    async def _tick_for_ever(self) -> bool:
        while True:
            self._ticked_at = time.monotonic()
            has_more = self._closing_turns.has_more or self._assignment.has_more_to_replay
            await asyncio.sleep(0 if has_more else to_seconds(self._settings.tick_ms))
            async with self._lock:
                await self._let_time_pass()
            self._topic_watch.look(self._standstill())

    def _standstill(self) -> Standstill | None:
        """Returns the part that has stood still for longest; None while all goes on. Less than `SLOW_SECONDS` of it says little."""
        found: list[Standstill] = []
        if self._joining_since is not None and self._group.twin is None:
            what = f"the group {self._settings.group_id} has given this member no partitions"
            found.append(Standstill(what, self._joining_since, STUCK_JOIN_SECONDS))
        if (waiting_since := self._assignment.waiting_since) is not None:
            found.append(Standstill("scores have waited to be written", waiting_since, STUCK_WRITE_SECONDS))
        if self._assignment.active:
            found.append(Standstill("no offset was committed", self._committed_at, STUCK_COMMIT_SECONDS))
        return min(found, key=lambda each: each.since, default=None)

    async def _let_time_pass(self) -> None:
        if self._has_polled:  # a call would close without its last records
            return
        await self._assignment.look(self._subscription.consumer)
        self._assignment.advance()
        self._closing_turns.close_some(self._assignment.active)
        self._pause_leading_inputs(may_stop=False)

    async def _commit_for_ever(self) -> bool:
        while True:
            await asyncio.sleep(to_seconds(self._settings.commit_interval_ms))
            await self._commit()

    async def _take(self, records: Sequence[Any]) -> None:
        # Records of the current assignment only, without a wait before this line. After a rebalance or a takeover, reading
        # starts again at the partition's own offsets, so these records come again.
        rebalances = self._rebalances
        self._has_polled = True
        await self._decode(records)
        async with self._lock:
            if rebalances != self._rebalances or self._is_leaving:
                return
            assignment, active = self._assignment, self._assignment.active
            polled = {number: runs for number, runs in runs_by_partition(records).items() if number in active}
            try:
                assignment.polled(polled)
            except InputMadeAnewError as error:
                await self._lost_records.give_up(error, self._subscription.consumer)
                raise
            consumer = self._subscription.consumer
            self._placement.look([run for runs in polled.values() for run in runs], consumer)
            await assignment.look(consumer, polled)  # of the others a tick sees how time passes
            for number, runs in polled.items():
                assignment.fold(number, runs)
            self._closing_turns.close_some(active)
            self._has_polled = False
        if not self._is_full and assignment.unwritten_records > self._settings.max_unwritten_records:
            await assignment.until_written(PATIENCE_SECONDS)
        if rebalances == self._rebalances and not self._is_leaving:
            self._pause_leading_inputs()  # without a wait since we looked

    async def _decode(self, records: Sequence[Any]) -> None:
        """Decodes the records of a poll, and gives others their turn now and then: a poll can have megabytes."""
        if sum(map(_bytes_of, records)) <= SMALL_POLL_BYTES:
            return
        began = time.perf_counter()
        for record in records:
            is_large = record.value is not None and len(record.value) > LARGE_BYTES
            if is_large or time.perf_counter() - began > DECODE_SECONDS:
                await asyncio.sleep(0)
                began = time.perf_counter()
            if (partition := self._assignment.owned.get(record.partition)) is not None:
                partition.decode(record)
        await asyncio.sleep(0)  # what follows is a step of its own

    def _pause_leading_inputs(self, *, may_stop: bool = True) -> None:
        """Pauses inputs that are far ahead of another, and partitions with too many calls to close. While too many records are
        unwritten, it pauses all, until half of them are written.
        """
        assignment = self._assignment
        share = 2 if self._is_full else 1
        is_full = assignment.unwritten_records * share > self._settings.max_unwritten_records
        self._is_full = is_full and (may_stop or self._is_full)
        assignment.pause_leading_inputs(
            self._subscription.consumer, assignment.active if self._is_full else self._closing_turns.behind
        )

    async def _commit(self) -> None:
        """Commits the folded offsets of each partition whose decisions up to them are written."""
        rebalances = self._rebalances
        async with self._lock:
            offsets = self._assignment.to_commit()
        if rebalances == self._rebalances:
            await self._commit_offsets(offsets, COMMIT_SECONDS)

    async def _hand_over(self) -> None:
        """Writes and commits the folded records before the partitions are given up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_SECONDS), self._lock:
                for owned in self._assignment.active.values():
                    owned.write_steps()
                await self._assignment.until_written(HAND_OVER_SECONDS * 2 / 3)
                offsets = self._assignment.to_commit()  # those of an earlier moment, and then those of now
                await self._commit_offsets(offsets | self._assignment.to_commit(), HAND_OVER_SECONDS)
        if unwritten := self._assignment.unwritten_records:
            log.warning("handed_over_unwritten", scores=unwritten)

    async def _commit_offsets(self, offsets: Offsets, seconds: float) -> None:
        # Of a partition that another process has claimed meanwhile, only that one commits.
        ours = set(self._assignment.inputs_of(self._assignment.active))
        changed = self._assignment.not_committed({tp: at for tp, at in offsets.items() if tp in ours})
        if not changed:
            self._committed_at = time.monotonic()
            return
        try:
            is_done = await self._subscription.commit(changed, seconds)
        except (KafkaError, TimeoutError) as error:  # costs a longer replay at most; the next second brings another try
            log.warning("commit_failed", error=str(error) or type(error).__name__)
            return
        if is_done:
            self._committed_at = time.monotonic()
            self._assignment.committed(changed)


def _bytes_of(record: Any) -> int:
    return len(record.value or b"")
