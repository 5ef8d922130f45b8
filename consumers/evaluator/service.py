"""The evaluator role: reads the log, folds it in the engine, and writes the resulting records."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import structlog
from aiokafka import OffsetAndMetadata, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import IllegalOperation, KafkaError, ProducerFenced

from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.redaction.redactor import Redactor
from consumers.evaluator.group import GroupWatch
from consumers.evaluator.partition import Partition
from consumers.evaluator.refusals import MisreadRecords
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.takeover import Takeover, version_of
from consumers.evaluator.topics import (
    SLOW_SECONDS,
    STUCK_JOIN_SECONDS,
    STUCK_WRITE_SECONDS,
    Standstill,
    TopicWatch,
    require_fit_topics,
)
from consumers.evaluator.writer import FencedError, Outlet, Writer
from consumers.runtime.kafka.connection import KafkaSettings, KafkaUnreachableError
from consumers.runtime.kafka.polling import COMMIT_SECONDS, Subscription
from consumers.runtime.process import (
    END_SECONDS,
    OperatorError,
    StuckTaskError,
    end_tasks,
    first_of,
    tune_python,
    wall_clock_ms,
)
from consumers.runtime.registry import Instruments
from schemas.goals.goal_set import ChoosesGoals
from schemas.topics import EVENTS_TOPIC
from schemas.units import to_seconds

HAND_OVER_SECONDS: Final = 3.0
"""How long writing (two thirds) and committing may take at a revocation or stop: well within the session timeout."""
CLOSE_SECONDS: Final = 1.0
"""How long a producer may take to disconnect."""
FOLD_SECONDS: Final = 0.01
"""How long records are folded before others have their turn."""
LARGE_BYTES: Final = 65_536
"""A record with more bytes has a turn of its own: it may take 40 ms."""
MAX_SILENT_SECONDS: Final = 30.0
"""Time without a look at the partitions after which the role counts as stuck. They are a tenth of a second apart."""
STALE_MS: Final = 5_000
"""Age at which the end of the log that the broker reported is out of date. It reports it several times a second."""

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
"""Most bytes of one partition in one answer of the broker. With a backlog, each keeps as much in memory. A larger record comes alone."""
EMPTY_ANSWER_MS: Final = 500
"""How long the broker waits for anything at all before it answers: ticks come twice a second."""
HEARTBEAT_MS: Final = 500
"""Time between heartbeats, which notice a rebalance. After an orderly stop, partitions have no owner for that long."""

log = structlog.get_logger()

# Decides which partition closes calls next.

MAX_CLOSING_CALLS: Final = 200
"""Calls of a partition that may be over and not closed: beyond it, its reading pauses until half of them are closed."""


class ClosingTurns:
    """Whose calls close next: each partition in its turn, so that none waits for all the calls of another.

    Attributes:
        has_more: Whether there was more to close after the last step. Then the next one should come soon.
        behind: Partitions of which too many calls are over and not closed: they read no more until half of these are closed.
    """

    def __init__(self, max_unwritten_records: int) -> None:
        self.has_more = False
        self.behind: set[int] = set()
        self._last = -1
        self._max_unwritten_records = max_unwritten_records

    def close_some(self, active: Mapping[int, Partition]) -> None:
        """Takes one step of one partition, which closes as many calls as fit into it.

        Never more than one, because heartbeats wait for it: thousands of calls can be over at once.
        """
        ready = [
            number
            for number, owned in active.items()
            if owned.closing_calls and owned.outbox.records <= self._max_unwritten_records
        ]
        if ready:
            self._last = min((each for each in ready if each > self._last), default=min(ready))
            active[self._last].close_some()
        self.behind = {
            number
            for number in ready
            if active[number].closing_calls > MAX_CLOSING_CALLS / (2 if number in self.behind else 1)
        }
        self.has_more = len(ready) > 1 or any(active[number].closing_calls for number in ready)


class SharedNameError(OperatorError):
    """Another process writes a partition that the group assigns to us, so two installations share a group name."""


class LogMadeAnewError(OperatorError):
    """An offset of the log came twice, so it was deleted and made anew, or lost its end. The role must end."""


class Evaluator(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no type hints
    """Evaluates the calls of its assigned partitions until it is stopped.

    Attributes:
        ready: Set while it reads.
        owned: The partitions of this process by number. A rebalance removes some and adds others; the rest keep their state.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: EvaluatorSettings,
        instruments: Instruments,
        goals: ChoosesGoals | None = None,
    ) -> None:
        self._goals = goals
        self.ready = asyncio.Event()
        self.owned: dict[int, Partition] = {}
        self._kafka = kafka
        self._settings = settings
        self._instruments = instruments
        self._misread = MisreadRecords(instruments)
        self._events = kafka.topic(EVENTS_TOPIC)
        self._version = version_of(settings)
        self._takeover = Takeover(kafka, settings)
        self._closing_turns = ClosingTurns(settings.max_unwritten_records)
        self._loading: asyncio.Task[None] | None = None
        self._writer: Writer | None = None  # of this assignment
        self._writing: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._is_full = False  # too much is unwritten, so nothing is read
        self._paused: set[int] = set()
        self._group = GroupWatch(kafka, settings, [self._events])
        self._topic_watch = TopicWatch(kafka, settings, lambda error: self._subscription.fail(error))  # noqa: PLW0108  # made below
        self._ticked_at: float | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._joining_since: float | None = None
        self._is_leaving = False  # once true, polled records are our successor's
        self._rebalances = 0  # records polled before the latest one began are read again
        self._generation = -1
        self._subscription = Subscription(
            kafka,
            "evaluator",
            [EVENTS_TOPIC],
            self._take,
            group_id=settings.group_id,
            max_records=settings.max_batch_records,
            listener=self,
            poll_interval_ms=EMPTY_ANSWER_MS,
            enough_bytes=1,  # the sequencer has let events gather
            options={
                "auto_offset_reset": "earliest",
                "partition_assignment_strategy": [RangePartitionAssignor],
                "group_instance_id": settings.group_instance_id,
                "session_timeout_ms": settings.session_timeout_ms,
                "heartbeat_interval_ms": min(HEARTBEAT_MS, settings.session_timeout_ms // 3),
                "max_partition_fetch_bytes": FETCH_BYTES,
            },
            instruments=instruments,
        )
        self._register_gauges()

    async def run(self, stop: asyncio.Event) -> None:
        """Evaluates until `stop` is set, then writes, commits and leaves the group. `ready` is set while it reads.

        Raises:
            KafkaUnreachableError: No broker answers at the start.
            TopicsUnfitError: Topics are missing, or are not as exactly-once scores need them.
            Exception: Taking over, folding or writing failed. The role must end; its successor goes on from the last row.
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
        await asyncio.gather(self._subscription.stop(), *self._closing)

    def problems(self) -> Sequence[str]:
        """Why the role is not ready, for `/readyz`."""
        if self._is_leaving:
            return ("evaluator: leaving",)
        if problems := self._group.problems():
            return problems
        if waiting := sorted(number for number, each in self.owned.items() if not each.is_active or each.is_recovering):
            return (f"evaluator: taking over partitions {', '.join(map(str, waiting))}",)
        if not self.ready.is_set():
            return ("evaluator: not reading the log",)
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
            return (f"evaluator: no look at the partitions for {silent_seconds:.0f} s",)
        return self._subscription.stalled()

    @property
    def active(self) -> dict[int, Partition]:
        """The partitions whose records are folded, by number."""
        return {number: each for number, each in self.owned.items() if each.is_active}

    @property
    def _unwritten_records(self) -> int:
        return sum(each.outbox.records for each in self.owned.values())

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
        # Another owner may fence its producer off from now on. Whether its last transaction was made, only `scores` knows then.
        if not await self._stop_writing():
            self._keep_only(())
        if self.owned:
            log.info("partitions_revoked", partitions=sorted(self.owned))
        was_put_out = self._group.our_id and not self._subscription.member_id
        if was_put_out and not self._is_leaving and await self._group.lost_to_twin():
            self._give_up_all()
            self._subscription.fail(await self._group.until_alone())

    def _give_up_all(self) -> None:
        self.ready.clear()
        self._keep_only(())

    def _keep_only(self, numbers: Collection[int]) -> None:
        for number in [number for number in self.owned if number not in numbers]:
            gone = self.owned.pop(number)
            gone.count_events()  # also what it folded since the last scrape: a successor counts it as replayed
            gone.drop()
        self._paused.clear()
        self._committed.clear()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Keeps the partitions that stay, gives up the others, and starts to take over new ones."""
        self._joining_since = None
        self._rebalances += 1
        if self._is_leaving:
            return
        self._group.our_id = self._subscription.member_id
        numbers = sorted(tp.partition for tp in assigned)
        kept = {number for number in numbers if number in self.active} if self._was_member_throughout() else set()
        self._generation = self._subscription.generation
        self._keep_only(kept)
        for number in kept:  # otherwise the client begins at what is committed
            self._subscription.consumer.seek(self._tp(number), self.owned[number].next_offset)
        new = [number for number in numbers if number not in kept]
        # Nothing is awaited between the assignment and this line, so no record is fetched before the state is there.
        self._add_new(new)
        log.info("partitions_assigned", partitions=numbers, new=new)
        self._loading = asyncio.create_task(self._own(sorted(kept), new), name="takeover")
        self._loading.add_done_callback(self._on_done)

    def _tp(self, number: int) -> TopicPartition:
        return TopicPartition(self._events, number)

    def _was_member_throughout(self) -> bool:
        """Whether this member was in every rebalance, so that no other can have had its partitions in between."""
        return self._subscription.generation == self._generation + 1

    def _add_new(self, numbers: Sequence[int]) -> None:
        self._subscription.consumer.pause(*map(self._tp, numbers))
        self.owned |= {number: self._new_partition(number) for number in numbers}

    def _new_partition(self, number: int) -> Partition:
        settings, limits, version = self._settings, self._settings.limits, self._settings.code_version
        redactor = Redactor(settings.redaction)  # of this partition alone: its counts are drained with the engine's
        goals, writes = ChosenGoals(self._goals, settings.goals), settings.writes_transcripts
        return Partition(
            Outlet(number, self._kafka),
            PartitionEvaluator(limits, version, goals, writes_transcripts=writes, redactor=redactor),
            limits,
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
            kept, new = (), numbers
            self._add_new(numbers)
            await self._stop_writing()
            await asyncio.sleep(TAKE_AGAIN_SECONDS)

    async def _take_over(self, kept: Sequence[int], new: Sequence[int]) -> None:
        consumer, owned = self._subscription.consumer, self.owned
        if kept or new:
            try:
                writer = self._writer = Writer(self._kafka, self._settings, self._instruments)
                await writer.start()
                self._writing = asyncio.create_task(writer.run(), name="writer")
                await self._takeover.claim(kept, writer.id)
                for number in kept:
                    writer.add(owned[number].outlet)
                if new:
                    await self._takeover.take([owned[number] for number in new], consumer, writer.id)
            except ProducerFenced:
                raise
            except (KafkaError, TimeoutError) as error:
                raise self._kafka.unreachable(error) from error
            for number in new:
                consumer.seek(self._tp(number), owned[number].next_offset)
                writer.add(owned[number].outlet)
            consumer.resume(*map(self._tp, new))
        log.info("evaluator_ready", group=self._settings.group_id, partitions=sorted(owned))
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
            await self._subscription.start()
        except KafkaUnreachableError as error:  # also where a stranger shares partitions out in another way than we do
            blame = await self._group.blame()
            # So the client reports that our instance name has another owner, as it knows no such refusal.
            if blame and "UnknownError" in str(error.__cause__):
                raise SharedNameError(
                    f"The group {self._settings.group_id} does not let this process in.{blame}"
                ) from error
            raise KafkaUnreachableError(f"{error}{blame}") from error
        return await first_of(self._tick_for_ever(), self._commit_for_ever())

    async def _tick_for_ever(self) -> bool:
        while True:
            self._ticked_at = time.monotonic()
            await asyncio.sleep(0 if self._closing_turns.has_more else to_seconds(self._settings.tick_ms))
            self._closing_turns.close_some(self.active)
            for partition in self.owned.values():
                partition.write_row()
            self._pause_or_resume(may_stop=False)
            self._topic_watch.look(self._standstill())

    def _standstill(self) -> Standstill | None:
        """Returns the part that has stood still for longest; None while all goes on. Less than `SLOW_SECONDS` of it says little."""
        found: list[Standstill] = []
        if self._joining_since is not None and self._group.twin is None:
            what = f"the group {self._settings.group_id} has given this member no partitions"
            found.append(Standstill(what, self._joining_since, STUCK_JOIN_SECONDS))
        found += [
            Standstill("scores have waited to be written", since, STUCK_WRITE_SECONDS)
            for each in self.active.values()
            if (since := each.outbox.waiting_since) is not None
        ]
        return min(found, key=lambda each: each.since, default=None)

    async def _take(self, records: Sequence[Any]) -> None:
        """Folds the records of a poll, and gives others their turn now and then: a poll can have megabytes."""
        # Records of the current assignment only. After a rebalance or a takeover, reading starts again at the partition's own offset,
        # so these records come again.
        rebalances, polled_ms = self._rebalances, wall_clock_ms()
        began = time.perf_counter()
        for record in records:
            partition = self.owned.get(record.partition)
            while partition is not None and partition.is_active and partition.is_publishing_again:
                partition.close_some()
                await asyncio.sleep(0)
            is_large = record.value is not None and len(record.value) > LARGE_BYTES
            if is_large or time.perf_counter() - began > FOLD_SECONDS:
                await asyncio.sleep(0)
                began = time.perf_counter()
            if rebalances != self._rebalances or self._is_leaving:
                return
            if partition is not None and partition.is_active:
                if record.offset < partition.next_offset:
                    raise self._made_anew(partition, record)
                partition.fold(record, polled_ms)
        self._closing_turns.close_some(self.active)
        if not self._is_full and self._unwritten_records > self._settings.max_unwritten_records:
            await self._until_written(PATIENCE_SECONDS)
        if rebalances == self._rebalances and not self._is_leaving:
            self._pause_or_resume()  # without a wait since we looked

    def _made_anew(self, partition: Partition, record: Any) -> LogMadeAnewError:
        partition.drop()
        return LogMadeAnewError(
            f"Log {record.topic}[{record.partition}]: offset {partition.next_offset} was to come next, and {record.offset} came. The topic "
            "was deleted and made anew, or lost its end. The evaluator ends; the next one reads it from its first record, and publishes "
            "nothing of what happened before the time that was reached. Do not delete it while calls run."
        )

    def _pause_or_resume(self, *, may_stop: bool = True) -> None:
        """Pauses partitions with too many calls to close. While too many records are unwritten, it pauses all, until half of them
        are written.
        """
        is_full = self._unwritten_records * (2 if self._is_full else 1) > self._settings.max_unwritten_records
        self._is_full = is_full and (may_stop or self._is_full)
        full = self.active.keys() if self._is_full else self._closing_turns.behind
        consumer = self._subscription.consumer
        for number in self.active:
            if number in full and number not in self._paused:
                consumer.pause(self._tp(number))
                self._paused.add(number)
            elif number in self._paused and number not in full:
                consumer.resume(self._tp(number))
                self._paused.remove(number)

    async def _until_written(self, seconds: float) -> None:
        """Waits until everything that is decided by now is written, but no longer than this."""
        writing = [asyncio.ensure_future(each.outbox.until_written()) for each in self.active.values()]
        if writing:
            try:
                await asyncio.wait(writing, timeout=seconds)
            finally:
                await end_tasks(writing)

    async def _hand_over(self) -> None:
        """Writes what is decided, and the places reached, before the partitions are given up."""
        for partition in self.owned.values():
            partition.write_row(is_last=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_SECONDS):
                await self._until_written(HAND_OVER_SECONDS * 2 / 3)
                await self._commit(HAND_OVER_SECONDS)
        if unwritten := self._unwritten_records:
            log.warning("handed_over_unwritten", scores=unwritten)

    async def _commit_for_ever(self) -> bool:
        while True:
            await asyncio.sleep(to_seconds(self._settings.commit_interval_ms))
            await self._commit(COMMIT_SECONDS)

    async def _commit(self, seconds: float) -> None:
        """Commits the places of the rows that are written. Nobody reads on from there: they are for tools that show the lag."""
        places = {self._tp(number): each.outlet.place for number, each in self.active.items()}
        changed = {tp: place for tp, place in places.items() if place is not None and self._committed.get(tp) != place}
        if not changed:
            return
        try:
            offsets = {tp: OffsetAndMetadata(place, "") for tp, place in changed.items()}
            if await self._subscription.commit(offsets, seconds):
                self._committed |= changed
        except (KafkaError, TimeoutError) as error:  # the next second brings another try
            log.warning("commit_failed", error=str(error) or type(error).__name__)

    # The gauges on `/metrics`, read at each scrape.

    def _register_gauges(self) -> None:
        read, owned = self._instruments.read_gauge, self.owned.values
        read("callgauge_calls_open", lambda: {(): float(sum(len(each.evaluator.open_calls) for each in owned()))})
        read("callgauge_scores_unwritten", lambda: {(): float(self._unwritten_records)})
        read("callgauge_consumer_lag_messages", lambda: self._of_active(self._lag_messages))
        read("callgauge_consumer_lag_seconds", lambda: self._of_active(self._lag_seconds))
        read("callgauge_watermark_lag_messages", lambda: self._of_active(lambda each: each.next_offset - each.first))
        read("callgauge_source_last_event_timestamp_seconds", self._newest_events)
        self._instruments.before_scrape(self._count_events)

    def _count_events(self) -> None:
        for each in self.owned.values():
            each.count_events()

    def _of_active(self, value: Callable[[Partition], float | None]) -> dict[tuple[str, ...], float]:
        values = {number: value(each) for number, each in self.active.items()}
        labels = self._settings.group_id, self._events
        return {(*labels, str(number)): float(each) for number, each in values.items() if each is not None}

    def _lag_messages(self, partition: Partition) -> float | None:
        """Records that are not folded, as far as the broker has told; None if it has not."""
        tp, consumer = self._tp(partition.number), self._subscription.consumer
        end = consumer.highwater(tp) if tp in consumer.assignment() else None
        return None if end is None else max(0, end - partition.next_offset)

    def _lag_seconds(self, partition: Partition) -> float | None:
        """At most how old the oldest record is that is not folded: while the broker does not answer, there may be one."""
        behind = self._lag_messages(partition)
        if behind is None:
            return None
        now_ms = wall_clock_ms()
        answered_ms = self._subscription.consumer.last_poll_timestamp(self._tp(partition.number)) or 0
        if behind:
            return to_seconds(max(0, now_ms - partition.last_ms)) if partition.last_ms else None
        return to_seconds(now_ms - answered_ms) if now_ms - answered_ms > STALE_MS else 0.0

    def _newest_events(self) -> dict[tuple[str, ...], float]:
        newest: dict[str, int] = {}
        for each in self.owned.values():
            for source, time_ms in each.last_event_ms.items():
                newest[source] = max(time_ms, newest.get(source, 0))
        return {(source,): to_seconds(time_ms) for source, time_ms in newest.items()}
