"""The evaluator role: reads the log, folds it in the engine, and writes the resulting records."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from typing import Any, Final, Never

import structlog
from aiokafka import OffsetAndMetadata, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import KafkaError

from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.redaction.redactor import Redactor
from consumers.evaluator.decisions import Outbox, Outlet
from consumers.evaluator.group import GroupWatch
from consumers.evaluator.partition import FOLD_SECONDS, Partition
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.takeover import Takeover
from consumers.evaluator.topics import (
    STUCK_JOIN_SECONDS,
    STUCK_WRITE_SECONDS,
    Standstill,
    TopicWatch,
    require_fit_topics,
)
from consumers.evaluator.version import version_of
from consumers.evaluator.writer import FencedError, Writer
from consumers.runtime.kafka.connection import METADATA_AGE_MS, KafkaSettings, KafkaUnreachableError
from consumers.runtime.kafka.polling import (
    CLOSE_SECONDS,
    COMMIT_SECONDS,
    HAND_OVER_SECONDS,
    HEARTBEAT_MS,
    SLOW_SECONDS,
    GroupCommits,
    PollWatch,
)
from consumers.runtime.process import (
    END_SECONDS,
    OperatorError,
    StuckTaskError,
    end_tasks,
    first_of,
    in_time,
    tune_python,
    wall_clock_ms,
)
from consumers.runtime.registry import Instruments
from schemas.goals.goal_set import ChoosesGoals
from schemas.topics import EVENTS_TOPIC
from schemas.units import to_seconds

LARGE_BYTES: Final = 65_536
"""A record with more bytes has a turn of its own: it may take 40 ms."""
MAX_POLL_SECONDS: Final = 1.0
"""How long a poll may take. While the group reassigns its partitions, the client's would not
come back.
"""
MAX_SILENT_SECONDS: Final = 30.0
"""Time without a poll after which the role counts as stuck. They are a second apart at most."""
STALE_MS: Final = 5_000
"""Age at which the end of the log that the broker reported is out of date. It reports it several
times a second.
"""

FETCH_BYTES: Final = 128 * 1_024
"""Most bytes of one partition in one answer of the broker. With a backlog, each keeps as much in
memory. A larger record comes alone.
"""
EMPTY_ANSWER_MS: Final = 500
"""How long the broker waits for anything at all before it answers: ticks come twice a second."""
RECOVERED_AT_ONCE: Final = 2
"""Partitions that are folded again at a time: one, and one whose records come meanwhile. With all,
none were live before the last.
"""
CLAIM_AGAIN_SECONDS: Final = (1.0, 2.0, 4.0)
"""Pauses before partitions are claimed once more: meanwhile a heartbeat tells a former owner that
they are not his any more.
"""

log = structlog.get_logger()


class SharedNameError(OperatorError):
    """Another process has claimed partitions that the group assigns to us: two installations share
    a name, or we were frozen.
    """


class OvertakenError(SharedNameError):
    """The same, and nothing says that it goes on: who joins a group can be overtaken by the last
    claim of a former owner.
    """

    passes = True


class ClaimOvertakenError(OvertakenError):
    """The same before anything was taken over: it can be claimed once more."""


class LogMadeAnewError(OperatorError):
    """An offset of the log came twice, so it was deleted and recreated, or lost its end. The role
    must end.
    """


class Evaluator(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no type hints
    """Evaluates the calls of its assigned partitions until it is stopped.

    Attributes:
        ready: Set while it reads.
        owned: The partitions of this process by number. A rebalance removes some and adds others;
            the rest keep their state.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: EvaluatorSettings,
        instruments: Instruments,
        goals: ChoosesGoals | None = None,
    ) -> None:
        """Nothing is connected before `run`. Call it inside a running event loop."""
        self._goals = goals
        self.ready = asyncio.Event()
        self.owned: dict[int, Partition] = {}
        self._kafka = kafka
        self._settings = settings
        self._instruments = instruments
        self._events = kafka.topic(EVENTS_TOPIC)
        self._version = version_of(settings)
        self._takeover = Takeover(kafka, settings)
        self._outbox = Outbox(to_seconds(settings.write_interval_ms))
        self._group = GroupWatch(kafka, settings, [self._events])
        self._topic_watch = TopicWatch(kafka, settings)
        self._consumer: Any = None  # there is one before anything is owned
        self._polls = PollWatch("evaluator", instruments)
        self._commits = GroupCommits(self)
        self._committed: dict[TopicPartition, int] = {}
        self._failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._owning: asyncio.Task[None] | None = None  # of this assignment
        self._writer: Writer | None = None
        self._looked_at: float | None = None
        self._joining_since: float | None = None
        self._is_leaving = False  # once true, polled records are our successor's
        self._rebalances = 0  # records polled before the latest one began are read again
        self._generation = -1
        self._closed_last = -1
        self._register_gauges()

    async def run(self, stop: asyncio.Event) -> None:
        """Evaluates until `stop` is set, then writes, commits and leaves the group. `ready` is set
        while it reads.

        Raises:
            KafkaUnreachableError: No broker answers at the start.
            TopicsUnfitError: Topics are missing, or are not as exactly-once scores need them.
            Exception: Taking over, folding or writing failed. The role must end; its successor goes
                on from the last row.
        """
        tune_python()
        try:
            await first_of(stop.wait(), self._fail_with(), self._evaluate())
            self._leave()
            await self._hand_over()
        finally:
            self._leave()
            try:
                await self._end_owning()
            finally:
                self._give_up_all()
                await self._disconnect()

    def _leave(self) -> None:
        self.ready.clear()
        self._is_leaving = True

    def problems(self) -> Sequence[str]:
        """Why the role is not ready, for `/readyz`."""
        if self._is_leaving:
            return ("evaluator: leaving",)
        if problems := self._group.problems():
            return problems
        if waiting := sorted(
            number
            for number, each in self.owned.items()
            if not each.is_active or each.is_recovering
        ):
            return (f"evaluator: taking over partitions {', '.join(map(str, waiting))}",)
        if not self.ready.is_set():
            return ("evaluator: not reading the log",)
        still, now = self._standstill(), time.monotonic()
        if still is not None and now - still.since > SLOW_SECONDS:
            return (f"evaluator: {still.what} for {now - still.since:.0f} s",)
        return ()

    def stalled(self) -> Sequence[str]:
        """Reasons why only a restart helps, for `/healthz`. A broker that does not answer is not
        one.
        """
        if self._looked_at is None:
            return ()
        silent_seconds = time.monotonic() - self._looked_at
        if silent_seconds > MAX_SILENT_SECONDS:
            return (f"evaluator: no poll for {silent_seconds:.0f} s",)
        return self._polls.stalled()

    @property
    def active(self) -> dict[int, Partition]:
        """The partitions whose records are folded, by number."""
        return {number: each for number, each in self.owned.items() if each.is_active}

    def _fail(self, error: Exception) -> None:
        """Ends the role with an error. The first one counts."""
        if not self._failure.done():
            self._failure.set_result(error)

    async def _fail_with(self) -> Never:
        raise await asyncio.shield(self._failure)

    # The one loop.

    async def _evaluate(self) -> bool:
        await require_fit_topics(self._kafka, self._settings)
        await self._join()
        return await first_of(
            self._read_for_ever(),
            self._commit_for_ever(),
            self._topic_watch.follow(self._standstill),
        )

    async def _join(self) -> None:
        settings = self._settings
        self._consumer = self._kafka.consumer(
            "evaluator",
            group_id=settings.group_id,
            group_instance_id=settings.group_instance_id,
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=min(HEARTBEAT_MS, settings.session_timeout_ms // 3),
            partition_assignment_strategy=[_keeping_assignor()],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            # and it answers at the first byte: the sequencer has let events gather
            fetch_max_wait_ms=EMPTY_ANSWER_MS,
            max_partition_fetch_bytes=FETCH_BYTES,
            metadata_max_age_ms=METADATA_AGE_MS,
        )
        self._consumer.subscribe([self._events], listener=self._commits)
        try:
            await self._consumer.start()
        # also where a stranger shares partitions out in another way than we do
        except KafkaError as error:
            blame = await self._group.blame()
            # So the client reports that our instance name has another owner, as it knows no such
            # refusal.
            if blame and "UnknownError" in str(error):
                raise SharedNameError(
                    f"The group {settings.group_id} does not let this process in.{blame}"
                ) from error
            raise KafkaUnreachableError(f"{self._kafka.unreachable(error)}{blame}") from error

    async def _disconnect(self) -> None:
        if self._consumer is not None:
            # its stop fails with a cancellation when its own tasks have not run once
            await asyncio.sleep(0)
            with contextlib.suppress(TimeoutError):
                await in_time(CLOSE_SECONDS, self._consumer.stop())

    async def _read_for_ever(self) -> Never:
        while True:
            await self._go_round()

    async def _go_round(self) -> None:
        """Polls, folds what came, and closes calls that are over; but nothing of it while too much
        waits to be written.
        """
        self._looked_at = time.monotonic()
        await asyncio.sleep(0)  # a poll that finds something gives no other task a turn
        await self._until(self._has_room, to_seconds(self._settings.tick_ms))
        if self._has_room():
            await self._fold_records(await self._polls.watched(self._poll))
            self._close_some()
        for partition in self.owned.values():
            partition.write_row()

    def _has_room(self) -> bool:
        return self._outbox.records <= self._settings.max_unwritten_records

    async def _poll(self) -> tuple[Any, ...]:
        """Some records of the partitions that have not too much to publish first. If there is any
        of it, nothing is waited for.
        """
        self._recover_in_turn()
        active = self.active
        closing = [number for number, each in active.items() if each.closing_calls]
        reading = [self._tp(number) for number, each in active.items() if not each.is_behind]
        if active and not reading:
            return ()
        wait_ms = 0 if closing else self._settings.tick_ms
        try:
            async with asyncio.timeout(MAX_POLL_SECONDS):
                batches = await self._consumer.getmany(
                    *reading, timeout_ms=wait_ms, max_records=self._settings.max_batch_records
                )
        except TimeoutError:
            return ()
        return tuple(chain.from_iterable(batches.values()))

    def _recover_in_turn(self) -> None:
        """Has partitions read that were taken over, and are paused since. Of those that must
        recover, a few: the one with the oldest call is the first.
        """
        paused = {tp.partition for tp in self._consumer.paused()}
        if not paused:
            return
        active = self.active.values()
        waiting = [each for each in active if each.number in paused]
        room = RECOVERED_AT_ONCE - sum(
            each.is_recovering for each in active if each.number not in paused
        )
        for each in sorted(waiting, key=lambda each: (each.is_recovering, each.known_ms)):
            if each.is_recovering and room <= 0:
                break
            room -= each.is_recovering
            self._consumer.resume(self._tp(each.number))

    async def _fold_records(self, records: Sequence[Any]) -> None:
        """Folds the records of a poll, and gives others their turn now and then: a poll can have
        megabytes.
        """
        # Records of the current assignment only. After a rebalance, reading starts again at the
        # partition's own offset, so these records come again.
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
                try:
                    partition.fold(record, polled_ms)
                except Exception as error:
                    error.add_note(
                        f"while {record.topic}[{record.partition}]@{record.offset} was folded"
                    )
                    raise

    def _made_anew(self, partition: Partition, record: Any) -> LogMadeAnewError:
        partition.drop()
        return LogMadeAnewError(
            f"Log {record.topic}[{record.partition}]: offset {partition.next_offset} was to come "
            f"next, and {record.offset} came. The topic was deleted and recreated, or lost its "
            "end. The evaluator ends; the next one reads it from its first record, and publishes "
            "nothing of what happened before the time that was reached. Do not delete it while "
            "calls run."
        )

    def _close_some(self) -> None:
        """Closes calls that are over: some of one partition, the next time of the next one.
        Heartbeats wait for each step.
        """
        ready = [number for number, each in self.active.items() if each.closing_calls]
        if ready:
            self._closed_last = min(
                (each for each in ready if each > self._closed_last), default=min(ready)
            )
            self.owned[self._closed_last].close_some()

    def _standstill(self) -> Standstill | None:
        """Returns the part that has stood still for longest; None while all goes on. Less than
        `SLOW_SECONDS` of it says little.
        """
        found: list[Standstill] = []
        if self._joining_since is not None and self._group.twin is None:
            what = f"the group {self._settings.group_id} has given this member no partitions"
            found.append(Standstill(what, self._joining_since, STUCK_JOIN_SECONDS))
        if (since := self._outbox.waiting_since) is not None:
            found.append(Standstill("scores have waited to be written", since, STUCK_WRITE_SECONDS))
        return min(found, key=lambda each: each.since, default=None)

    # Rebalances: what goes is handed over, what stays is kept whole.

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Writes and commits the folded records. State is kept, because most partitions usually
        come back immediately.
        """
        self._joining_since = time.monotonic()
        try:
            await self._give_back()
        # the client would log it and go on, without an owner for anything
        except StuckTaskError as error:
            self._give_up_all()
            self._fail(error)

    async def _give_back(self) -> None:
        self._rebalances += 1
        await self._hand_over()
        # Another owner may fence its producer off from now on. Whether its last transaction was
        # made, only `scores` knows then.
        if not await self._end_owning():
            self._keep_only(())
        if self.owned:
            log.info("partitions_revoked", partitions=sorted(self.owned))
        # the group has put us out
        if self._group.our_id and not self._member_id() and not self._is_leaving:
            self._give_up_all()
            if (error := await self._group.stand_aside()) is not None:
                self._fail(error)

    def _give_up_all(self) -> None:
        self.ready.clear()
        self._keep_only(())

    def _keep_only(self, numbers: Collection[int]) -> None:
        for number in [number for number in self.owned if number not in numbers]:
            gone = self.owned.pop(number)
            # also what it folded since the last scrape: a successor counts it as replayed
            gone.count_events()
            gone.drop()
        self._committed.clear()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Keeps the partitions that stay, gives up the others, and starts to take over new ones."""
        self._joining_since = None
        self._rebalances += 1
        if self._is_leaving:
            return
        self._group.our_id = self._member_id()
        numbers = sorted(tp.partition for tp in assigned)
        kept: set[int] = set()
        if self._was_member_throughout():
            kept = {number for number in numbers if number in self.active}
        self._keep_only(kept)
        for number in kept:  # otherwise the client begins at what is committed
            self._consumer.seek(self._tp(number), self.owned[number].next_offset)
        new = [number for number in numbers if number not in kept]
        # Nothing is awaited between the assignment and this line, so no record is fetched before
        # the state is there.
        self._add_new(new)
        log.info("partitions_assigned", partitions=numbers, new=new)
        self._owning = asyncio.create_task(self._own(sorted(kept), new), name="owning")
        self._owning.add_done_callback(self._on_done)

    def _tp(self, number: int) -> TopicPartition:
        return TopicPartition(self._events, number)

    def _member_id(self) -> str:
        """Our id as a member of the group; empty while we are no member. A private attribute of the
        client.
        """
        # there is no other way to know
        return str(self._consumer._coordinator.member_id)  # noqa: SLF001

    def _was_member_throughout(self) -> bool:
        """Whether this member was in every rebalance, so that no other can have had its partitions
        in between.

        Each rebalance has the next number, so a gap shows one without us.
        """
        # as above
        before, self._generation = self._generation, int(self._consumer._coordinator.generation)  # noqa: SLF001
        return self._generation == before + 1

    def _add_new(self, numbers: Sequence[int]) -> None:
        self._consumer.pause(*map(self._tp, numbers))
        self.owned |= {number: self._new_partition(number) for number in numbers}

    def _new_partition(self, number: int) -> Partition:
        settings = self._settings
        evaluator = PartitionEvaluator(
            settings.limits,
            settings.code_version,
            ChosenGoals(self._goals, settings.goals),
            writes_transcripts=settings.writes_transcripts,
            # of this partition alone: its counts are drained with the engine's
            redactor=Redactor(settings.redaction),
            partition=number,
        )
        return Partition(
            Outlet(number, self._kafka.topic, self._outbox),
            evaluator,
            self._instruments,
            self._version,
        )

    async def _hand_over(self) -> None:
        """Writes what is decided, and the places reached, before the partitions are given up."""
        for partition in self.owned.values():
            partition.write_row(is_last=True)
        await self._until(lambda: not self._outbox.is_filled, HAND_OVER_SECONDS * 2 / 3)
        await self._commit(HAND_OVER_SECONDS / 3)
        if unwritten := self._outbox.records:
            log.warning("handed_over_unwritten", scores=unwritten)

    async def _until(self, holds: Callable[[], bool], seconds: float) -> None:
        """Waits for the writer until this holds, but no longer than so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._outbox.until(holds)

    # Owning partitions: from their takeover to the next rebalance they are written.

    async def _own(self, kept: Sequence[int], new: Sequence[int]) -> None:
        """Takes the partitions of an assignment over, and has them written until it is cancelled.

        The last claim of a former owner can come after ours. Then nothing is kept, and all are
        claimed once more. A role that ended for that would leave the group, which would share out
        everything again and bring more such claims: on a busy machine, without end.
        """
        numbers = sorted((*kept, *new))
        for pause_seconds in CLAIM_AGAIN_SECONDS:
            try:
                await self._own_once(kept, new)
            except ClaimOvertakenError as error:
                if self._joining_since is not None:  # the partitions go anyway
                    raise
                log.warning(
                    "claim_overtaken",
                    partitions=numbers,
                    error=str(error),
                    claimed_again_in_seconds=pause_seconds,
                )
            else:
                return
            kept, new = (), numbers
            self._rebalances += 1  # what was polled before is read again
            self._add_new(numbers)
            await asyncio.sleep(pause_seconds)
        await self._own_once(kept, new)

    async def _own_once(self, kept: Sequence[int], new: Sequence[int]) -> None:
        """Takes them over and has them written. What is kept is written meanwhile.

        Raises:
            ClaimOvertakenError: Another process claims them.
            OvertakenError: It has claimed them since. Nothing of them can be kept, so the role
                begins again.
            TwinError: The same, and it had our instance name and is gone.
            KafkaUnreachableError: They cannot be taken over.
            WriteError: It is not known what was written.
        """
        writing: asyncio.Task[Never] | None = None
        is_taken = False
        # at once: a stranger can be gone again before the partitions are taken over
        looking = asyncio.create_task(self._group.tell_strangers(), name="strangers")
        writer = self._writer = Writer(self._kafka, self._settings, self._instruments, self._outbox)
        try:
            if kept or new:
                await writer.start()
                await self._takeover.claim(kept, writer.id)
                writing = asyncio.create_task(writer.run(), name="writer")
            if new:
                await self._takeover.take_over(
                    [self.owned[number] for number in new], self._consumer, writer.id
                )
            for number in new:
                self._consumer.seek(self._tp(number), self.owned[number].next_offset)
            self._recover_in_turn()
            is_taken = True
            log.info(
                "evaluator_ready", group=self._settings.group_id, partitions=sorted(self.owned)
            )
            self.ready.set()
            await looking
            if writing is not None:
                # it would hold up a cancel of ours if it ignores its own
                await asyncio.wait([writing])
                writing.result()
        except FencedError as error:
            numbers = sorted(self.owned)
            overtaken = OvertakenError if is_taken else ClaimOvertakenError
            self._instruments.inc("callgauge_partitions_fenced_total", (), len(numbers))
            self._give_up_all()
            # the group is about to tell us
            if (told := await self._group.stand_aside()) is not None:
                raise told from error
            raise overtaken(
                f"Partitions {', '.join(map(str, numbers))}: {error}, but the group "
                f"{self._settings.group_id} gives them to us. So the evaluator gives all of them "
                "up and begins again. After a freeze of this process that is all. If it comes "
                "again, check that no other installation uses this group's name, and that each "
                "evaluator_instance is used once."
            ) from error
        except (KafkaError, TimeoutError) as error:
            raise self._kafka.unreachable(error) from error
        finally:
            self._writer = None
            try:
                await end_tasks([looking] if writing is None else [looking, writing])
            finally:
                await writer.stop(CLOSE_SECONDS)

    async def _end_owning(self) -> bool:
        """Ends taking over and writing. Returns whether it is known what was written."""
        owning, writer = self._owning, self._writer
        self._owning = None
        if owning is None:
            return True
        if writer is not None:
            await self._until(lambda: writer.writing_since is None, CLOSE_SECONDS)
        await end_tasks([owning], 2 * END_SECONDS)  # a claim that is cancelled disconnects first
        return writer is None or writer.writing_since is None

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._give_up_all()
            is_revoked = self._joining_since is not None  # then another owner is no surprise
            if not (is_revoked and isinstance(error, OvertakenError)):
                self._fail(error)

    # Commits: no reader continues from there, they are for tools that show the lag.

    async def _commit_for_ever(self) -> bool:
        while True:
            await asyncio.sleep(to_seconds(self._settings.commit_interval_ms))
            await self._commit(COMMIT_SECONDS)

    async def _commit(self, seconds: float) -> None:
        """Commits the places of the rows that are written."""
        places = {self._tp(number): each.outlet.place for number, each in self.active.items()}
        changed = {
            tp: place
            for tp, place in places.items()
            if place is not None and self._committed.get(tp) != place
        }
        if not changed:
            return
        try:
            offsets = {tp: OffsetAndMetadata(place, "") for tp, place in changed.items()}
            if await self._commits.commit(self._consumer, offsets, seconds):
                self._committed |= changed
        except (KafkaError, TimeoutError) as error:  # the next second brings another try
            log.warning("commit_failed", error=str(error) or type(error).__name__)

    # The gauges on `/metrics`, read at each scrape.

    def _register_gauges(self) -> None:
        gauges: dict[str, Callable[[], dict[tuple[str, ...], float]]] = {
            "callgauge_calls_open": lambda: {
                (): float(sum(len(each.evaluator.open_calls) for each in self.owned.values()))
            },
            "callgauge_scores_unwritten": lambda: {(): float(self._outbox.records)},
            "callgauge_consumer_lag_messages": lambda: self._of_active(self._lag_messages),
            "callgauge_consumer_lag_seconds": lambda: self._of_active(self._lag_seconds),
            "callgauge_watermark_lag_messages": lambda: self._of_active(
                lambda each: each.next_offset - each.first
            ),
            "callgauge_source_last_event_timestamp_seconds": self._newest_events,
        }
        for name, value in gauges.items():
            self._instruments.read_gauge(name, value)
        self._instruments.before_scrape(self._count_events)

    def _count_events(self) -> None:
        for each in self.owned.values():
            each.count_events()

    def _of_active(
        self, value: Callable[[Partition], float | None]
    ) -> dict[tuple[str, ...], float]:
        values = {number: value(each) for number, each in self.active.items()}
        labels = self._settings.group_id, self._events
        return {
            (*labels, str(number)): float(each)
            for number, each in values.items()
            if each is not None
        }

    def _lag_messages(self, partition: Partition) -> float | None:
        """Records that are not folded, as far as the broker has told; None if it has not."""
        tp, consumer = self._tp(partition.number), self._consumer
        end = consumer.highwater(tp) if tp in consumer.assignment() else None
        return None if end is None else max(0, end - partition.next_offset)

    def _lag_seconds(self, partition: Partition) -> float | None:
        """At most how old the oldest record is that is not folded: while the broker does not
        answer, there may be one.
        """
        behind = self._lag_messages(partition)
        if behind is None:
            return None
        now_ms = wall_clock_ms()
        answered_ms = self._consumer.last_poll_timestamp(self._tp(partition.number)) or 0
        if behind:
            return to_seconds(max(0, now_ms - partition.last_ms)) if partition.last_ms else None
        return to_seconds(now_ms - answered_ms) if now_ms - answered_ms > STALE_MS else 0.0

    def _newest_events(self) -> dict[tuple[str, ...], float]:
        newest: dict[str, int] = {}
        for each in self.owned.values():
            for source, time_ms in each.last_event_ms.items():
                newest[source] = max(time_ms, newest.get(source, 0))
        return {(source,): to_seconds(time_ms) for source, time_ms in newest.items()}


def _keeping_assignor() -> type[StickyPartitionAssignor]:
    """A way to share out partitions in which most stay where they are: one that moves is folded
    again from its oldest open call.

    The client keeps what a member had in the class, so each member needs one of its own. It has the
    name of the usual way, because a stranger who knows only that must not keep us out. To offer
    both is no way: the client joins once for each, and each time the others have to join again,
    without end.
    """
    return type("KeepingAssignor", (StickyPartitionAssignor,), {"name": "range"})
