"""The sequencer role: one is active in each shard of the log, and others stand by.

The group shares out the partitions of the topic `sequencer`, which is always empty. Whoever is
given one reads all inputs and appends to its part of the log, until the group takes it away. That
may happen unnoticed, to a frozen process; so each begins a term of its own, and what another
appends behind the first tick of a higher term is void. So every event is in the log once for its
readers; records in quarantine may be there twice after a takeover.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Final, Never

import structlog
from aiokafka import TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import KafkaError

from consumers.runtime.kafka.connection import (
    KafkaSettings,
    TopicsUnfitError,
    partition_counts,
    topic_settings,
)
from consumers.runtime.kafka.polling import (
    CLOSE_SECONDS,
    HAND_OVER_SECONDS,
    HEARTBEAT_MS,
    SLOW_SECONDS,
)
from consumers.runtime.process import StuckTaskError, end_tasks, first_of, in_time, wall_clock_ms
from consumers.runtime.registry import Instruments
from consumers.sequencer.appending import LogWriter, Share, read_back, read_on
from consumers.sequencer.merge import InputPartition, in_order_until_ms, known_ms, merged
from consumers.sequencer.reading import LEADERS_AGE_MS, BrokerTime, InputReader
from consumers.sequencer.settings import SequencerSettings
from schemas.log import Tick
from schemas.topics import EVENTS_TOPIC, PLACED_BYTES, QUARANTINE_TOPIC, SEQUENCER_TOPIC
from schemas.units import to_seconds

EMPTY_WAIT_MS: Final = 5_000
"""How long the broker may wait for a record of the topic that has none."""
MAX_SILENT_SECONDS: Final = 60.0
"""Time without a step after which only a restart helps. A broker that is away ends the
role sooner.
"""

log = structlog.get_logger()


class Shard:
    """Reads all inputs and appends to one part of the log, in one term.

    Attributes:
        number: Number of the shard.
        term: The term; 0 before the log is read back.
        known_ms: Time up to which all inputs are in the log.
        left_out: Names of the inputs for which time does not wait.
        reader: Reads the inputs; None before the log is read back.
        clock: The brokers' time.
        is_active: Whether its first ticks are in the log.
        stepped_at: When the latest step ended, on the monotonic clock.
        stop: Ends it after the step that it is in.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: SequencerSettings,
        instruments: Instruments,
        number: int,
        generation: int,
    ) -> None:
        """Nothing is connected before `run`; `generation` is that of the group."""
        self.number = number
        self.term = self.known_ms = 0
        self.left_out: list[str] = []
        self.reader: InputReader | None = None
        self.clock = BrokerTime()
        self.is_active = False
        self.stepped_at = time.monotonic()
        self.stop = asyncio.Event()
        self._kafka = kafka
        self._settings = settings
        self._instruments = instruments
        self._generation = generation
        self._asked_ms = 0
        self._owes_tick = False

    async def run(self, least_term: int, begun: Callable[[], Awaitable[None]]) -> None:
        """Works until `stop` is set.

        Args:
            least_term: A term that has begun in the log, at least.
            begun: Called when it is active.

        Raises:
            KafkaUnreachableError: No broker answers at the start.
            TopicsUnfitError: A topic is missing or does not fit.
            AppendError: A record could not be appended.
        """
        kafka, settings = self._kafka, self._settings
        share = await self._share()
        least_records = 2 * settings.max_batch_records
        found = await read_back(kafka, share, least_records, least_term)
        self.term = max(self._generation, found.term + 1)
        async with AsyncExitStack() as closing:
            try:
                writer = LogWriter(kafka, settings, self._instruments, share, self.term)
                closing.push_async_callback(writer.stop)
                await writer.start()
                # behind these nothing of a lower term counts
                begun_at = await writer.tick(Tick.of(self.term, found.known_ms, {}))
                await read_on(kafka, found, {each.partition: each.offset for each in begun_at})
                self.known_ms = found.known_ms
                reader = self.reader = InputReader(
                    kafka,
                    settings,
                    self._instruments,
                    self.clock,
                    found.witnessed(),
                    counts_lost=not self.number,
                )
                closing.push_async_callback(reader.stop)
                await reader.start()
            except KafkaError as error:
                raise kafka.unreachable(error) from error
            await self._tick(reader, writer)
            self.is_active = True
            log.info(
                "sequencer_active",
                shard=self.number,
                term=self.term,
                partitions=list(share.numbers),
            )
            await begun()
            while not self.stop.is_set():
                await self._step(reader, writer)
                self.stepped_at = time.monotonic()
            await self._tick(reader, writer)  # so that a successor repeats nothing

    async def _share(self) -> Share:
        kafka = self._kafka
        counts = await partition_counts(kafka, (EVENTS_TOPIC, SEQUENCER_TOPIC))
        share = Share(self.number, counts[SEQUENCER_TOPIC], counts[EVENTS_TOPIC])
        if not share.numbers:
            raise TopicsUnfitError(
                f"Topics: {kafka.topic(SEQUENCER_TOPIC)} has {share.shards} partitions, and "
                f"{kafka.topic(EVENTS_TOPIC)} only {share.partitions}: a shard would have nothing. "
                "Recreate the former with fewer while no call runs; one is enough."
            )
        found = await topic_settings(kafka, [EVENTS_TOPIC])
        most = found.get(EVENTS_TOPIC, {}).get("max.message.bytes")
        least = self._settings.max_record_bytes + PLACED_BYTES
        if most is not None and int(most) < least:
            raise TopicsUnfitError(
                f"Topic {kafka.topic(EVENTS_TOPIC)}: max.message.bytes is {most}, expected at "
                f"least {least}: an event that it refuses would stop all calls, so the sequencer "
                f"does not start. Set it to {least}, or lower max_record_bytes."
            )
        return share

    async def _step(self, reader: InputReader, writer: LogWriter) -> None:
        await reader.poll()
        for each in [each for each in reader.inputs.values() if each.is_recreated]:
            await writer.append(((each, record) for record in each.pop_until(None)[0]), 0)
            each.renew()
            self._owes_tick = True  # a successor must know of the generation before it has events
            self._asked_ms = 0
        now_ms = self.clock.now_ms()
        inputs = reader.waited_for()
        if now_ms - self._asked_ms >= self._settings.tick_ms and not self._owes_tick:
            self._asked_ms, self._owes_tick = now_ms, True
            reader.ask()
        await self._append(reader, writer, inputs, now_ms)
        is_late = now_ms - self._asked_ms > self._settings.tick_ms // 2
        is_known = (
            reader.partitions_ms
            >= self._asked_ms
            <= min((each.settled_ms for each in inputs), default=0)
        )
        if self._owes_tick and (is_late or is_known):
            await self._tick(reader, writer)

    async def _append(
        self, reader: InputReader, writer: LogWriter, inputs: Sequence[InputPartition], now_ms: int
    ) -> None:
        records = merged(reader.inputs.values(), in_order_until_ms(inputs, now_ms))
        for each in inputs:
            each.settle()
        reached_ms = max(self.known_ms, min(reader.partitions_ms, known_ms(inputs, now_ms)))
        # Between what comes live the ticks that come by the clock are enough.
        told_ms = min(reached_ms, now_ms - 2 * self._settings.tick_ms)
        for first in range(0, len(records), self._settings.max_batch_records):
            await writer.append(records[first : first + self._settings.max_batch_records], told_ms)
        self.known_ms = reached_ms

    async def _tick(self, reader: InputReader, writer: LogWriter) -> None:
        """Tells what is in the log. Everything before these places is acknowledged."""
        now_ms, inputs = self.clock.now_ms(), reader.waited_for()
        left_out = [
            f"{each.tp.topic}[{each.tp.partition}]" for each in inputs if each.is_left_out(now_ms)
        ]
        if left_out and left_out != self.left_out:
            log.warning(
                "inputs_left_out",
                inputs=left_out,
                what_happens_now=(
                    "Time goes on without these; events that come from them later are late."
                ),
                what_to_do=(
                    "See to the brokers that lead them, or make the topics with `callgauge topics "
                    "create`."
                ),
            )
        self.left_out = left_out
        positions = {
            (each.source, each.tp.partition): each.next
            for each in reader.inputs.values()
            if each.next is not None
        }
        times_ms = {
            (each.source, each.tp.partition): each.before_next_ms for each in reader.inputs.values()
        }
        answers = await writer.tick(
            Tick.of(self.term, self.known_ms, positions, left_out, times_ms)
        )
        self.clock.stamped(now_ms, [each.timestamp for each in answers])
        self._owes_tick = False


class Sequencer(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no type hints
    """Is active in the shards that the group gives it, and stands by for the others.

    Attributes:
        ready: Set while it is active in all of them; also if there are none.
    """

    def __init__(
        self, kafka: KafkaSettings, settings: SequencerSettings, instruments: Instruments
    ) -> None:
        """Nothing is connected before `run`. Call it inside a running event loop."""
        self.ready = asyncio.Event()
        self._kafka = kafka
        self._settings = settings
        self._instruments = instruments
        self._shards: dict[Shard, asyncio.Task[None]] = {}
        self._failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._group: Any = None  # there is one before anything is given
        self._is_leaving = False
        self._read_gauges()

    async def run(self, stop: asyncio.Event) -> None:
        """Works until `stop` is set, then appends what it has read, and leaves the group.

        Raises:
            KafkaUnreachableError: No broker answers at the start.
            TopicsUnfitError: A topic is missing or does not fit.
            Exception: Reading or appending failed. The role must end; a successor goes on from what
                the log has.
        """
        await partition_counts(self._kafka, (EVENTS_TOPIC, QUARANTINE_TOPIC, SEQUENCER_TOPIC))
        async with AsyncExitStack() as ending:
            await self._join(ending)
            ending.push_async_callback(self._let_go)
            try:
                await first_of(stop.wait(), self._fail_with(), self._stay())
            finally:
                self._is_leaving = True  # whatever the group gives from now on
                self.ready.clear()

    def problems(self) -> Sequence[str]:
        """Why the role is not ready, for `/readyz`. Standing by is no reason."""
        if self._is_leaving:
            return ("sequencer: leaving",)
        if not self.ready.is_set():
            what = "reading back the log" if self._shards else "joining its group"
            return (f"sequencer: {what}",)
        shards = self._kafka.topic(SEQUENCER_TOPIC)
        if not self._group.partitions_for_topic(shards):
            return (
                f"sequencer: the topic {shards} is not there, or may not be read, so nobody is "
                "active",
            )
        silent = [
            each for each in self._shards if time.monotonic() - each.stepped_at > SLOW_SECONDS
        ]
        missing = sorted(
            {topic for each in self._shards if each.reader for topic in each.reader.missing}
        )
        return [
            *(
                f"sequencer: nothing read or appended for {time.monotonic() - each.stepped_at:.0f} "
                "s"
                for each in silent
            ),
            *(
                f"sequencer: the topic {topic} is not there, or may not be read"
                for topic in missing
            ),
        ]

    def stalled(self) -> Sequence[str]:
        """Reasons why only a restart helps, for `/healthz`."""
        silent = [
            each for each in self._shards if time.monotonic() - each.stepped_at > MAX_SILENT_SECONDS
        ]
        if silent:
            return (
                f"sequencer: no step in shard {silent[0].number} for {MAX_SILENT_SECONDS:.0f} s",
            )
        return [
            reason for each in self._shards if each.reader for reason in each.reader.watch.stalled()
        ]

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Ends what is in flight and appends no more."""
        self.ready.clear()
        try:
            await self._let_go()
        except StuckTaskError as error:  # the client would log it and go on
            self._fail(error)

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Becomes active in these shards."""
        if self._is_leaving:
            return
        generation = self._group._coordinator.generation  # noqa: SLF001  # no other way
        for number in sorted(tp.partition for tp in assigned):
            shard = Shard(self._kafka, self._settings, self._instruments, number, generation)
            self._shards[shard] = task = asyncio.create_task(
                self._work(shard), name=f"shard {number}"
            )
            task.add_done_callback(self._on_done)
        if not assigned:
            log.info("sequencer_standing_by", group=self._settings.group_id)
            self.ready.set()

    async def _work(self, shard: Shard) -> None:
        """Runs a shard. The group remembers its term: a replaced process cannot change that,
        whatever it still appends.
        """
        group, tp = self._group, TopicPartition(self._kafka.topic(SEQUENCER_TOPIC), shard.number)
        # no other way
        former = await group._coordinator.fetch_committed_offsets([tp])  # noqa: SLF001
        least_term = int(former[tp].metadata or 0) if tp in former else 0

        async def begun() -> None:
            # the group reassigns, and another term begins
            with suppress(KafkaError, TimeoutError):
                await in_time(CLOSE_SECONDS, group.commit({tp: (0, str(shard.term))}))
            # one that is given up may still come here
            if self._shards and all(each.is_active for each in self._shards):
                self.ready.set()

        await shard.run(least_term, begun)

    async def _join(self, ending: AsyncExitStack) -> None:
        settings = self._settings
        self._group = self._kafka.consumer(
            "sequencer",
            group_id=settings.group_id,
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=min(HEARTBEAT_MS, settings.session_timeout_ms // 3),
            partition_assignment_strategy=[StickyPartitionAssignor],  # who joins later stands by
            enable_auto_commit=False,
            fetch_max_wait_ms=EMPTY_WAIT_MS,
            metadata_max_age_ms=LEADERS_AGE_MS,
        )
        ending.push_async_callback(self._leave)
        try:
            await self._group.start()
        except KafkaError as error:
            raise self._kafka.unreachable(error) from error
        self._group.subscribe([self._kafka.topic(SEQUENCER_TOPIC)], listener=self)

    async def _stay(self) -> Never:
        """Stays a member of the group: for that the client must be asked for records, of which
        there are none.
        """
        while True:
            await self._group.getone()

    async def _leave(self) -> None:
        with suppress(TimeoutError):
            await in_time(CLOSE_SECONDS, self._group.stop())

    async def _let_go(self) -> None:
        shards, self._shards = self._shards, {}
        for each in shards:
            each.stop.set()
        if shards:
            _, going_on = await asyncio.wait(shards.values(), timeout=HAND_OVER_SECONDS)
            await end_tasks(going_on)

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._failure.done():
            self._failure.set_result(error)

    async def _fail_with(self) -> Never:
        raise await asyncio.shield(self._failure)

    def _lags(self) -> dict[str, tuple[int, int]]:
        """By topic, the records that are not in the log, and the age of the oldest in ms. Each
        shard counts all of them.
        """
        found: dict[str, tuple[int, int]] = {}
        for shard in self._shards:
            for each in shard.reader.waited_for() if shard.reader is not None else ():
                messages, oldest_ms = found.get(each.tp.topic, (0, 0))
                age_ms = each.lag_ms(shard.clock.now_ms())
                found[each.tp.topic] = messages + each.lag_messages, max(oldest_ms, age_ms)
        return found

    def _read_gauges(self) -> None:
        def of_active(value: Callable[[Shard], float]) -> dict[tuple[str, ...], float]:
            if not self._shards or not self.ready.is_set():
                return {}
            return {(): max(value(each) for each in self._shards)}

        def known_behind() -> dict[tuple[str, ...], float]:
            if not all(each.known_ms for each in self._shards):  # a new log knows no time yet
                return {}
            return of_active(lambda each: to_seconds(wall_clock_ms() - each.known_ms))

        gauges: dict[str, Callable[[], dict[tuple[str, ...], float]]] = {
            "callgauge_sequencer_lag_messages": lambda: {
                (topic,): float(messages) for topic, (messages, _) in self._lags().items()
            },
            "callgauge_sequencer_lag_seconds": lambda: {
                (topic,): to_seconds(age_ms) for topic, (_, age_ms) in self._lags().items()
            },
            "callgauge_sequencer_known_behind_seconds": known_behind,
            "callgauge_sequencer_term": lambda: of_active(lambda each: each.term),
            "callgauge_sequencer_inputs_left_out": lambda: of_active(
                lambda each: len(each.left_out)
            ),
            "callgauge_sequencer_clock_difference_seconds": lambda: of_active(
                lambda each: to_seconds(each.clock.difference_ms)
            ),
        }
        for name, value in gauges.items():
            self._instruments.read_gauge(name, value)
