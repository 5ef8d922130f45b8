"""A FastStream batch subscriber that passes records on unchanged and does not swallow failures."""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Never

import structlog
from aiokafka import AIOKafkaConsumer, OffsetAndMetadata, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import KafkaError
from faststream import AckPolicy
from faststream.kafka import KafkaMessage

from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.logs import about_record
from consumers.runtime.polling.commits import Commits
from consumers.runtime.polling.poll_watch import PollWatch
from consumers.runtime.registry import Instruments

POLL_MS: Final = 200
"""How long one poll waits for records. Nothing else waits for it, and the next poll follows at once."""
POLL_INTERVAL_MS: Final = 25
"""How long a broker lets records gather before it answers, because a poll of fifty records costs the same as one of one record. It
is the longest delay of an event, and the highest age of a partition's known end."""
ENOUGH_BYTES: Final = 64 * 1_024
"""Bytes at which a broker answers at once: some two hundred events, so a backlog never waits."""
MAX_MISLED_NAMED: Final = 5
"""Most partitions that one log line names."""
STOP_SECONDS: Final = 1.0
"""How long stopping may take, leaving the group included. The broker drops a silent member by itself."""

BatchHandler = Callable[[Sequence[Any]], Awaitable[None]]

log = structlog.get_logger()


class Subscription:
    """Reads several topics as one group member. An error of the handler ends the subscription, and `failure` raises it.

    FastStream logs an error of a handler and goes on with the next batch. If that builds on this one, the gap would go
    unnoticed. So the first error is kept, and later batches are dropped.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        role: str,
        topics: Sequence[str],
        handle: BatchHandler,
        *,
        group_id: str,
        max_records: int,
        ack_policy: AckPolicy,
        listener: ConsumerRebalanceListener | None = None,
        poll_interval_ms: int = POLL_INTERVAL_MS,
        options: Mapping[str, Any] | None = None,
        instruments: Instruments | None = None,
    ) -> None:
        """Declares the subscriber; `start` connects.

        Args:
            kafka: The cluster.
            role: Last part of the client's name.
            topics: Names in the topic table.
            handle: Called with the records of one poll, those of each partition in order and together.
            group_id: The consumer group.
            max_records: Most records of one poll.
            ack_policy: `MANUAL` when the owner commits, `ACK_FIRST` when positions are committed as time passes.
            listener: Called with assignments. Its errors only go to aiokafka's log, so it must call `fail`.
            poll_interval_ms: How long a broker lets records gather before it answers, unless it has `ENOUGH_BYTES`.
            options: Further options of the subscriber.
            instruments: Count failed polls; None for no count.
        """
        self._kafka = kafka
        self._role = role
        self._handle = handle
        self._failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._is_misled = False
        self._commits = Commits(listener)
        self._broker = kafka.broker(role)
        self._subscriber = self._broker.subscriber(
            *(kafka.topic(name) for name in topics),
            batch=True,
            group_id=group_id,
            max_records=max_records,
            fetch_max_wait_ms=poll_interval_ms,
            fetch_min_bytes=ENOUGH_BYTES,
            ack_policy=ack_policy,
            listener=self._commits,
            parser=self._wrap,
            decoder=_unwrap,
            **kafka.reader_options(),
            **(options or {}),
        )
        self._subscriber(self._take)
        self._watch = PollWatch(role, instruments)
        self._max_records = max_records
        # FastStream restarts reading after whatever a poll raises, and says so once an hour; after an empty poll it sleeps.
        setattr(self._subscriber, "get_msg", lambda consumer: self._watch.watched(lambda: self._poll(consumer)))  # noqa: B010  # no seam

    @property
    def consumer(self) -> AIOKafkaConsumer:
        """The client, for positions and commits, from `start` to `stop`."""
        consumer = self._subscriber.consumer
        if consumer is None:
            raise RuntimeError("the subscription is not started")
        return consumer

    @property
    def generation(self) -> int:
        """Number of the group's latest rebalance in which this member took part; -1 before the first.

        Each rebalance has the next number, so a gap shows a rebalance without us. It is a private attribute of the client.
        """
        return int(self.consumer._coordinator.generation)  # noqa: SLF001  # there is no other way to know

    def read_from(self, leaders: Mapping[TopicPartition, int]) -> None:
        """Makes the client update its leaders if it reads from another broker. Call it until the client reads from these.

        A broker that is cut off from the others goes on to answer readers, without new records. By itself the client updates
        its leaders only every five minutes, or when a broker refuses. It asks any broker, so it may take several updates.

        Args:
            leaders: Leaders of partitions; -1 for none.
        """
        consumer = self._subscriber.consumer
        if consumer is None:
            return
        client = consumer._client  # noqa: SLF001  # there is no other way to make it look
        known = {tp: client.cluster.leader_for_partition(tp) for tp in consumer.assignment() & leaders.keys()}
        misled = [tp for tp, leader in known.items() if leader is not None and leaders[tp] not in (leader, -1)]
        if misled:
            client.force_metadata_update()
        if misled and not self._is_misled:
            log.warning(
                "reads_from_former_leader",
                partitions=sorted(f"{tp.topic}[{tp.partition}]" for tp in misled)[:MAX_MISLED_NAMED],
                what_happens_now="Another broker leads now; the client is made to look for it, and reads on there.",
                what_to_do="If this lasts, find out why brokers do not reach each other.",
            )
        self._is_misled = bool(misled)

    @property
    def member_id(self) -> str:
        """Id of this member of the group; empty before it has joined. It is a private attribute of the client."""
        return str(self.consumer._coordinator.member_id)  # noqa: SLF001  # there is no other way to know

    def stalled(self) -> Sequence[str]:
        """Reasons why only a restart helps, for `/healthz`: polls keep failing although the broker answers."""
        return self._watch.stalled()

    async def start(self) -> None:
        """Connects and waits for the first assignment.

        Raises:
            KafkaUnreachableError: No broker answers.
        """
        try:
            await self._broker.start()
        except KafkaError as error:
            raise self._kafka.unreachable(error) from error

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], seconds: float) -> bool:
        """Commits offsets of the group. Returns and raises as `Commits.commit`."""
        return await self._commits.commit(self.consumer, offsets, seconds)

    async def stop(self) -> None:
        """Waits for the current batch, leaves the group and disconnects; bounded, and harmless when repeated."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._broker.stop(), STOP_SECONDS)

    async def failure(self) -> Never:
        """Waits for the first failure and raises it."""
        raise await asyncio.shield(self._failure)

    def fail(self, error: Exception) -> None:
        """Ends the subscription with an error of its owner. The first error counts."""
        if not self._failure.done():
            self._failure.set_result(error)

    async def _poll(self, consumer: AIOKafkaConsumer) -> tuple[Any, ...]:
        batches = await consumer.getmany(timeout_ms=POLL_MS, max_records=self._max_records)
        return tuple(itertools.chain.from_iterable(batches.values()))

    async def _wrap(self, records: tuple[Any, ...]) -> KafkaMessage:
        # The library's parser decodes every header as UTF-8 and drops the whole batch, silently, when one is not.
        # Without an id it draws two at random for each poll.
        return KafkaMessage(
            body=b"", raw_message=records, headers={}, correlation_id=self._role, consumer=self._subscriber.consumer
        )

    async def _take(self, records: Sequence[Any]) -> None:
        if self._failure.done():
            return
        try:
            await self._handle(records)
        except Exception as error:  # the top of a shell: whatever it is, the owner must stop
            log.exception("batch_failed", role=self._role, records=len(records), **about_record(records[0]))
            self.fail(error)


async def _unwrap(message: Any) -> Any:
    return message.raw_message
