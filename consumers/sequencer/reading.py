"""Reading all partitions of all inputs: which there are, from where each is read, and where it
ends.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED, OffsetResetStrategy
from aiokafka.errors import KafkaError, OffsetOutOfRangeError
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest

from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.kafka.polling import CLOSE_SECONDS, ENOUGH_BYTES, RETRY_SECONDS, PollWatch
from consumers.runtime.process import end_tasks, in_time
from consumers.runtime.registry import Instruments
from consumers.sequencer.merge import FROM_THE_FIRST, STALE_MS, InputPartition, Witness
from consumers.sequencer.settings import SequencerSettings
from schemas.closed_sets import InputSource
from schemas.log import Next
from schemas.topics import TOPIC_BY_SOURCE
from schemas.units import to_seconds

POLL_MS: Final = 50
"""How long one poll waits for records: how late the end of a transaction is seen, which is no
record.
"""
FETCH_BYTES: Final = 256 * 1_024
"""Most bytes of one input partition in one answer of the broker. A larger record comes alone."""
LEADERS_AGE_MS: Final = 2_000
"""How often the client asks which partitions there are and who leads them. A broker that is cut off
from the others goes on to answer readers, without new records, until the client learns of the new
leader.
"""
ANY_BROKER: Final = -1
"""In place of a broker's number: whichever is asked for the partitions."""
READER: Final = -1
"""In place of a replica's number: one who reads, and is told what readers may see."""
ONLOOKER: Final = -2
"""One who is told where the log really ends: records that some replica does not have yet are hidden
from readers.
"""
PARTITIONS_SECONDS: Final = 1.0
"""How long a broker may take to name the partitions before another is asked."""
ANSWER_MS: Final = 10_000
"""How long a broker may take to answer before it is asked again."""

log = structlog.get_logger()


class BrokerTime:
    """The brokers' time as we estimate it, by a clock that cannot be set and the brokers' stamps
    of our ticks.

    So a step of this machine's wall clock changes nothing, and what is known is never known ahead
    of the brokers' time by more than the way of a tick. Between brokers whose clocks differ it is
    the slowest that counts.
    """

    def __init__(self) -> None:
        # The steady clock goes on while the machine sleeps, if the system has such a clock.
        self._clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        self._ahead_ms = self._wall_ahead_ms()

    def now_ms(self) -> int:
        """Returns the estimated time now."""
        return self._steady_ms() + self._ahead_ms

    def stamped(self, sent_ms: int, stamps_ms: Sequence[int]) -> None:
        """Corrects the estimate by the stamps of a tick, which was sent at this time and has been
        acknowledged just now.
        """
        if stamps_ms and min(stamps_ms) > 0:
            earliest, latest = min(stamps_ms) - self.now_ms(), min(stamps_ms) - sent_ms
            self._ahead_ms += min(max(0, earliest), latest)

    @property
    def difference_ms(self) -> int:
        """How far this machine's wall clock is ahead of it."""
        return self._wall_ahead_ms() - self._ahead_ms

    def _steady_ms(self) -> int:
        return time.clock_gettime_ns(self._clock) // 1_000_000

    def _wall_ahead_ms(self) -> int:
        return time.time_ns() // 1_000_000 - self._steady_ms()


class InputReader:
    """Reads the inputs. It knows no order among them and appends nothing.

    Attributes:
        inputs: By topic and partition number, also those that are gone: they may come back. Of a
            topic that is missing there is one.
        partitions_ms: When a broker was asked last which partitions there are and who leads them,
            and said what we know: one that we do not know, or another leader, may have records
            since.
        watch: Of failed polls.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: SequencerSettings,
        instruments: Instruments,
        clock: BrokerTime,
        places: Mapping[tuple[InputSource, int], tuple[Next, Witness | None]],
        *,
        counts_lost: bool,
    ) -> None:
        """Nothing is connected; `places` are where the log has the inputs, and what it knows of the
        records before.
        """
        self.inputs: dict[TopicPartition, InputPartition] = {}
        self.partitions_ms = 0
        self.watch = PollWatch("sequencer", instruments)
        self._instruments = instruments
        self._clock = clock
        self._counts_lost = counts_lost
        self._max_records = settings.max_batch_records
        self._topics = {source: kafka.topic(topic) for source, topic in TOPIC_BY_SOURCE.items()}
        self._counts = dict.fromkeys(self._topics, 0)
        self._present: frozenset[TopicPartition] = frozenset()  # partitions with a leader
        self._assigned = self._present
        self._asking: dict[int, asyncio.Task[None]] = {}
        for (source, number), (place, witness) in places.items():
            self._found(source, number, place, witness)
        self._consumer = kafka.consumer(
            "sequencer",
            auto_offset_reset="none",
            fetch_max_wait_ms=settings.poll_interval_ms,
            fetch_min_bytes=ENOUGH_BYTES,
            max_partition_fetch_bytes=FETCH_BYTES,
            metadata_max_age_ms=LEADERS_AGE_MS,
            request_timeout_ms=ANSWER_MS,
        )
        # the one way to leaders, and to ends without endless retries
        self._client = self._consumer._client  # noqa: SLF001

    @property
    def missing(self) -> Sequence[str]:
        """Topics that are not there, or that we may not see."""
        return [self._topics[source] for source, count in self._counts.items() if not count]

    async def start(self) -> None:
        """Connects, and finds the partitions.

        Raises:
            KafkaError: No broker answers.
        """
        await self._consumer.start()
        self._client.cluster.add_listener(self._look_at_partitions)
        await self._client.set_topics(list(self._topics.values()))
        await self._ask_for_partitions()

    async def stop(self) -> None:
        """Disconnects; bounded."""
        await end_tasks(self._asking.values())
        with suppress(TimeoutError):
            await in_time(CLOSE_SECONDS, self._consumer.stop())

    async def poll(self) -> None:
        """Reads what has come, or waits a little for it; records wait in their inputs."""
        if self._assigned != self._present:
            self._assign()
        reading = [self.inputs[tp] for tp in self._assigned]
        if unplaced := [each for each in reading if each.is_sought]:
            self._ask_about(unplaced)
        wanted = [each.tp for each in reading if each.is_placed and not each.is_full]
        if not wanted:
            await asyncio.sleep(to_seconds(POLL_MS))
            return
        only = wanted if len(wanted) < len(reading) else ()
        try:
            batches = await self._consumer.getmany(
                *only, timeout_ms=POLL_MS, max_records=self._max_records
            )
        except OffsetOutOfRangeError as error:
            for tp in error.args[0]:
                self.inputs[tp].is_placed = False
            return
        except KafkaError as error:
            self.watch.failed(error)
            await asyncio.sleep(RETRY_SECONDS)
            return
        now_ms = self._clock.now_ms()
        for each in reading:
            each.look_for_silence(now_ms)
        for tp, records in batches.items():
            each = self.inputs[tp]
            if each.is_placed and not each.put(records, now_ms):
                self._made_anew(each, "another record stands where its last one was")
        for each in reading:  # the end of a transaction is no record
            if each.is_placed and each.position < each.end:
                each.position = await self._consumer.position(each.tp)

    def ask(self) -> None:
        """Begins to ask each broker where its inputs end, unless it owes an answer. What it says
        holds for the moment before.
        """
        self._ask_about(self.inputs[tp] for tp in self._assigned)
        self._unless_asking(ANY_BROKER, self._ask_for_partitions)

    def waited_for(self) -> list[InputPartition]:
        """Returns the inputs that time waits for: not those that their topic does not have any
        more.
        """
        counts = self._counts
        return [
            each
            for each in self.inputs.values()
            if each.tp.partition < counts[each.source] or not counts[each.source]
        ]

    def _look_at_partitions(self, cluster: Any) -> None:
        """Takes notice of an answer of any broker about the topics."""
        for source, topic in self._topics.items():
            numbers = cluster.partitions_for_topic(topic)
            self._counts[source] = len(numbers or ())
            for number in numbers or (0,):
                if TopicPartition(topic, number) not in self.inputs:
                    self._found(source, number)
        for tp, each in self.inputs.items():
            leader = cluster.leader_for_partition(tp)
            # or it was away for a moment: another log may have its name now
            if leader != each.leader:
                each.leader = leader
                each.lose(self._clock.now_ms())
        # Of partitions without a leader the client would ask again and again, without a pause.
        self._present = frozenset(
            tp for tp, each in self.inputs.items() if each.leader is not None and each.leader >= 0
        )

    def _found(
        self,
        source: InputSource,
        number: int,
        place: Next | None = None,
        witness: Witness | None = None,
    ) -> None:
        tp = TopicPartition(self._topics[source], number)
        self.inputs[tp] = InputPartition(source, tp, self._clock.now_ms(), place, witness)

    def _assign(self) -> None:
        self._assigned = self._present
        self._consumer.assign(list(self._assigned))
        self._client.set_topics(list(self._topics.values()))  # also those that are missing
        for tp in self._assigned:
            self._consumer.seek(tp, self.inputs[tp].position)

    def _ask_about(self, inputs: Iterable[InputPartition]) -> None:
        by_leader: defaultdict[int, list[InputPartition]] = defaultdict(list)
        for each in inputs:
            if each.leader is not None:
                by_leader[each.leader].append(each)
        for leader, led in by_leader.items():
            self._unless_asking(leader, partial(self._ask, leader, led))

    def _unless_asking(self, broker: int, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if broker not in self._asking or self._asking[broker].done():
            self._asking[broker] = asyncio.create_task(ask(), name=f"question to broker {broker}")

    async def _ask_for_partitions(self) -> None:
        asked_ms = self._clock.now_ms()
        try:
            async with asyncio.timeout(PARTITIONS_SECONDS):
                question = MetadataRequest(
                    list(self._topics.values()), allow_auto_topic_creation=False
                )
                answer = await self._client.send(self._client.get_random_node(), question)
        except (KafkaError, TimeoutError):
            return
        found = {
            TopicPartition(topic, number): leader
            for code, topic, *_, partitions in answer.topics
            if not code
            for _, number, leader, *_ in partitions
        }
        if found == {
            tp: each.leader for tp, each in self.inputs.items() if each.leader is not None
        }:
            self.partitions_ms = asked_ms
        else:
            self._client.force_metadata_update()

    async def _ask(self, leader: int, inputs: Sequence[InputPartition]) -> None:
        # before the question: afterwards this process may be frozen
        asked_ms = self._clock.now_ms()
        handed = [each.handed for each in inputs]
        unplaced = [each for each in inputs if each.is_sought]
        try:
            log_ends = await self._offsets(leader, inputs, OffsetResetStrategy.LATEST, ONLOOKER)
            ends = visible = await self._offsets(leader, inputs, OffsetResetStrategy.LATEST)
            # or an open transaction hides the rest
            if any(ends.get(tp, 0) < end for tp, end in log_ends.items()):
                visible = await self._offsets(
                    leader, inputs, OffsetResetStrategy.LATEST, isolation=READ_UNCOMMITTED
                )
            firsts: Mapping[TopicPartition, int] = {}
            if unplaced:
                firsts = await self._offsets(leader, unplaced, OffsetResetStrategy.EARLIEST)
        except (KafkaError, TimeoutError) as error:
            log.debug("ends_not_told", broker=leader, error=str(error) or type(error).__name__)
            await asyncio.sleep(RETRY_SECONDS)
            return
        if ends and asked_ms - max(each.told_ms for each in self.inputs.values()) > STALE_MS:
            # nothing has been heard for a while: each may take its time again
            for each in self.inputs.values():
                each.told_ms = asked_ms
        for each, handed_then in zip(inputs, handed, strict=True):
            end = ends.get(each.tp)
            if end is None or each.is_recreated or each.tp not in self._assigned:
                continue
            if not each.is_placed and each.tp in firsts:
                self._begin(each, firsts[each.tp], end)
            if each.is_placed:
                hides_any = visible.get(each.tp, -1) < log_ends.get(each.tp, 0)
                each.told(asked_ms, end, handed_then, hides_any=hides_any)

    async def _offsets(
        self,
        leader: int,
        inputs: Iterable[InputPartition],
        which: int,
        replica: int = READER,
        isolation: int = READ_COMMITTED,
    ) -> Mapping[TopicPartition, int]:
        asked: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for each in inputs:
            asked[each.tp.topic].append((each.tp.partition, which))
        answer = await self._client.send(
            leader, OffsetRequest(replica, isolation, list(asked.items()))
        )
        found = [
            (TopicPartition(topic, each[0]), *each[1:])
            for topic, parts in answer.topics
            for each in parts
        ]
        if any(code for _, code, *_ in found):
            self._client.force_metadata_update()
        return {tp: offset for tp, code, _, offset, *_ in found if not code}

    def _begin(self, each: InputPartition, first: int, end: int) -> None:
        if each.handed > end:
            self._made_anew(each, f"it ends at {end}, and {each.handed} was to come next")
            return
        expected = each.handed
        each.begin(first, self._clock.now_ms())
        if FROM_THE_FIRST < expected < first and self._counts_lost:
            self._instruments.inc("callgauge_input_records_lost_total", (), first - expected)
            log.error(
                "input_not_where_it_was",
                record=f"{each.tp.topic}[{each.tp.partition}]@{expected}",
                seen=f"the topic begins at {first} now",
                records=first - expected,  # with the ends of transactions among them
                what_happens_now="These records were deleted before they were read. Reading goes "
                "on after them; calls that were open are incomplete, and calls that were in them "
                "alone are missing.",
                what_to_do=(
                    "Keep inputs for longer than the longest outage; see `callgauge doctor`."
                ),
            )
        self._consumer.seek(each.tp, each.position)

    def _made_anew(self, each: InputPartition, seen: str) -> None:
        each.is_placed, each.is_recreated = False, True
        log.error(
            "input_not_where_it_was",
            record=f"{each.tp.topic}[{each.tp.partition}]@{each.handed}",
            seen=seen,
            what_happens_now="The topic was recreated, or lost its end. It is read from its first "
            "record; calls that were open may lack what was in it.",
            what_to_do="Delete inputs only while no call runs.",
        )
