"""Reading topics as a member of a group: polls, their watch, and commits within a bound."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, Literal, Never

import structlog
from aiokafka import AIOKafkaConsumer, OffsetAndMetadata, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import ConsumerStoppedError, KafkaError
from faststream import AckPolicy, BaseMiddleware
from faststream.kafka import KafkaMessage
from faststream.kafka.message import FAKE_CONSUMER

from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.logs import about_record
from consumers.runtime.process import in_time
from consumers.runtime.received import Batch, Message, Received, RecordPlace, Unreadable
from consumers.runtime.registry import Instruments
from schemas.quarantine import UndecodableRecord

# What members of a group have in common.

HEARTBEAT_MS: Final = 500
"""Time between heartbeats, which notice a rebalance. After an orderly stop, partitions have no
owner for that long.
"""
HAND_OVER_SECONDS: Final = 3.0
"""How long a member may take to end its work at a revocation or stop: half of the shortest session
timeout.
"""
CLOSE_SECONDS: Final = 1.0
"""How long a client may take to disconnect, leaving the group included. The broker drops a silent
member by itself.
"""
SLOW_SECONDS: Final = 15.0
"""Standstill after which a role is not ready, and asks why. It is well within the minute after
which a broker ends a transaction, and longer than a rebalance that a frozen member holds up until
its session ends.
"""

# Watches the polls of one role: failed polls are counted and logged, and make `/healthz` fail if
# they persist.

RETRY_SECONDS: Final = 1.0
"""Pause after a failed poll, so that polls that fail at once do not use up the processor."""
LINE_SECONDS: Final = 30.0
"""Time between log lines about failing polls. The first failure is logged immediately."""
MAX_FAILING_SECONDS: Final = 30.0
"""How long polls may fail, for other reasons than an unreachable broker, before only a restart
helps.
"""
QUIET_SECONDS: Final = 10.0
"""Time without a failure after which the trouble counts as over. A single good poll is not enough:
one partition may still fail.
"""

log = structlog.get_logger()


class PollWatch:
    """Runs every poll and swallows its errors. The position has not moved, so the next poll tries
    again.
    """

    def __init__(
        self,
        role: str,
        instruments: Instruments | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._role = role
        self._instruments = instruments
        self._clock = clock
        self._failing_since = self._failed_at = 0.0
        self._is_failing = False  # for another reason than a broker that is away
        self._line_at: float | None = None
        self._since_line = 0

    def stalled(self) -> Sequence[str]:
        """Reasons why only a restart helps, for `/healthz`: polls have failed for
        MAX_FAILING_SECONDS.
        """
        if not self._is_failing or self._clock() - self._failed_at > QUIET_SECONDS:
            return ()
        failing_seconds = self._failed_at - self._failing_since
        if failing_seconds <= MAX_FAILING_SECONDS:
            return ()
        return (f"{self._role}: its polls of Kafka have failed for {failing_seconds:.0f} s",)

    async def watched(self, poll: Callable[[], Awaitable[tuple[Any, ...]]]) -> tuple[Any, ...]:
        """Returns the records of a poll; none, after a pause, if it fails.

        Raises:
            ConsumerStoppedError: The client is stopped.
        """
        try:
            return await poll()
        except ConsumerStoppedError:
            raise
        # whatever it is: it would end reading, with one line an hour
        except Exception as error:  # noqa: BLE001
            self.failed(error)
        await asyncio.sleep(RETRY_SECONDS)
        return ()

    def failed(self, error: Exception) -> None:
        """Counts and logs a failed poll."""
        now = self._clock()
        if self._instruments is not None:
            self._instruments.inc("callgauge_poll_failures_total", (self._role,))
        # Retriable errors mean that the broker is unreachable, or moves partitions.
        if not (isinstance(error, KafkaError) and error.retriable):
            if not self._is_failing or now - self._failed_at > QUIET_SECONDS:
                self._is_failing, self._failing_since = True, now
            self._failed_at = now
        self._since_line += 1
        if self._line_at is not None and now - self._line_at < LINE_SECONDS:
            return
        log.error(
            "kafka_poll_failed",
            role=self._role,
            record=", ".join(getattr(error, "__notes__", ())) or None,
            error=repr(error),
            failures=self._since_line,
            what_happens_now="It is tried again from the same position in a few seconds; other "
            f"partitions go on. If it lasts for {MAX_FAILING_SECONDS:.0f} s and the broker is not "
            "away, /healthz fails.",
            what_to_do="See to what the error names: rights, the topic's settings, or that record.",
            exc_info=None if isinstance(error, KafkaError) else error,
        )
        self._line_at, self._since_line = now, 0


# Commits of a group member, none of which goes on while it joins its group.
#
# By itself the client tries for ever to commit an offset of a topic that was deleted. If it does so
# while the member joins its group again, the broker refuses the commit, and the client forgets its
# membership and joins again, for ever too.

COMMIT_SECONDS: Final = 5.0
"""How long a commit may take when nothing waits for it. The next one covers a failed one."""


# the library has no type hints
class GroupCommits(ConsumerRebalanceListener):  # type: ignore[misc]
    """Ends open commits at a revocation, once the owner has handed over, and lets none begin before
    the next assignment.
    """

    def __init__(self, owner: ConsumerRebalanceListener | None) -> None:
        self._owner = owner
        self._open: set[asyncio.Timeout] = set()
        self._is_joining = False

    async def commit(
        self,
        consumer: AIOKafkaConsumer,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        seconds: float,
    ) -> bool:
        """Commits the next offset of each partition, within so many seconds.

        Returns:
            False if the member is joining its group, and nothing was committed.

        Raises:
            KafkaError: The broker refuses it.
            TimeoutError: It takes longer, or a revocation ended it.
        """
        if self._is_joining:
            return False
        async with asyncio.timeout(seconds) as limit:
            self._open.add(limit)
            try:
                await consumer.commit(dict(offsets))
            finally:
                self._open.discard(limit)
        return True

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Lets the owner hand over, then ends all commits."""
        try:
            if self._owner is not None:
                await self._owner.on_partitions_revoked(revoked)
        finally:
            self._is_joining = True
            for limit in self._open:
                if not limit.expired():
                    limit.reschedule(0)

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Lets commits begin again, then calls the owner."""
        self._is_joining = False
        if self._owner is not None:
            await self._owner.on_partitions_assigned(assigned)


# A member of a group that reads an internal topic with FastStream: a subscriber of batches, whose
# decoder gives a handler messages.
#
# Of FastStream these parts are not used:
#
# - its publishers: they know no transaction of records and offsets, which the judge needs, and give
#   each record two headers more, one of them drawn at random,
# - its application: it takes the signals of the process, but our roles share one and are started
#   again one by one.

GATHER_MS: Final = 100
"""How long a broker lets records gather before it answers: each answer costs a millisecond, whether
it has one record or fifty. A record waits for at most two answers, as those of its partition are
asked for again only after the one that is under way.
"""
ENOUGH_BYTES: Final = 64 * 1_024
"""Bytes at which a broker answers immediately: what 1,000 calls write in some 60 ms, and a backlog
never waits.
"""
POLL_MS: Final = 50
"""How long a poll waits for an answer, and FastStream as long again after an empty one."""


class GroupReader(Generic[Message]):
    """Hands the decoded batches of a topic to a handler. Its first error ends reading: `failure`
    raises it.

    FastStream logs an error of a handler and goes on with the next batch. If that builds on this
    one, the gap would go unnoticed. So a middleware keeps the error and drops what comes later.

    Attributes:
        broker: FastStream's broker, for `TestKafkaBroker` and for AsyncAPI.
        subscriber: Its one subscriber.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        role: str,
        topic: str,
        handle: Callable[[Batch[Message]], Awaitable[None]],
        *,
        message: Any,
        decode: Callable[[bytes], Message | None],
        group_id: str,
        max_records: int,
        begins: Literal["earliest", "latest"],
        listener: ConsumerRebalanceListener | None = None,
        instruments: Instruments | None = None,
    ) -> None:
        """Declares the subscriber; `start` connects.

        Args:
            kafka: The cluster.
            role: Last part of the client's name.
            topic: A name in the topic table.
            handle: Called with each batch.
            message: The type of one record's value, which AsyncAPI shows.
            decode: Reads a value; a `ValueError` makes it `Unreadable` and stops no other record.
            group_id: The consumer group.
            max_records: Most records of one batch.
            begins: Where a new group begins.
            listener: Called with assignments. Its errors only go to aiokafka's log, so it must call
                `fail`.
            instruments: Count failed polls; None for no count.
        """
        self._kafka = kafka
        self._role = role
        self._decode = decode
        self._commits = GroupCommits(listener)
        self._watch = PollWatch(role, instruments)
        self._failures: list[Exception] = []
        self._has_failed = asyncio.Event()
        self.broker = kafka.broker(role, logger=self, middlewares=[partial(_EndsAtErrors, self)])
        self.subscriber = self.broker.subscriber(
            kafka.topic(topic),
            batch=True,
            group_id=group_id,
            max_records=max_records,
            auto_offset_reset=begins,
            batch_timeout_ms=POLL_MS,
            fetch_max_wait_ms=GATHER_MS,
            fetch_min_bytes=ENOUGH_BYTES,
            ack_policy=AckPolicy.MANUAL,
            listener=self._commits,
            parser=_as_they_came,
            decoder=self._decoded,
            title=f"{topic}:{role}",
            **kafka.reader_options(),
        )

        async def receive(batch: Any) -> None:
            await handle(batch)

        # AsyncAPI would show a batch as one record that is a list
        receive.__annotations__["batch"] = message
        self.subscriber(receive)

    @property
    def consumer(self) -> AIOKafkaConsumer:
        """The client, for positions and commits, from `start` to `stop`."""
        consumer = self.subscriber.consumer
        if consumer is None:
            raise RuntimeError("the reader is not started")
        return consumer

    def stalled(self) -> Sequence[str]:
        """Reasons why only a restart helps, for `/healthz`: polls keep failing although the broker
        answers.
        """
        return self._watch.stalled()

    async def start(self) -> None:
        """Connects and waits for the first assignment.

        Raises:
            KafkaUnreachableError: No broker answers.
        """
        try:
            await self.broker.start()
        except KafkaError as error:
            raise self._kafka.unreachable(error) from error

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], seconds: float
    ) -> bool:
        """Commits offsets of the group. Returns and raises as `GroupCommits.commit`."""
        return await self._commits.commit(self.consumer, offsets, seconds)

    async def stop(self) -> None:
        """Waits for the current batch, leaves the group and disconnects; bounded, and harmless when
        repeated.
        """
        with contextlib.suppress(TimeoutError):
            await in_time(CLOSE_SECONDS, self.broker.stop())

    async def failure(self) -> Never:
        """Waits for the first failure and raises it."""
        await self._has_failed.wait()
        raise self._failures[0]

    @property
    def has_failed(self) -> bool:
        """Whether reading has ended."""
        return self._has_failed.is_set()

    def fail(self, error: Exception) -> None:
        """Ends reading with an error of its owner. The first error counts."""
        self._failures.append(error)
        self._has_failed.set()

    def fail_in(self, records: Sequence[Any], error: Exception) -> None:
        """Ends reading with an error of the handler."""
        log.error(
            "batch_failed",
            role=self._role,
            records=len(records),
            **about_record(records[0]),
            exc_info=error,
        )
        self.fail(error)

    def log(self, _level: int, _text: Any, /, *, exc_info: Any = None, extra: Any = None) -> None:
        """Takes FastStream's lines. Those with an error are of failed polls, which no middleware
        sees.

        After an error of Kafka it polls again in 5 s. After any other it polls again immediately,
        for ever, so that ends reading.
        """
        if isinstance(exc_info, Exception):
            self._watch.failed(exc_info)
            if not isinstance(exc_info, KafkaError):
                self.fail(exc_info)

    async def _decoded(self, message: Any) -> list[Received[Message]]:
        return [
            Received(
                RecordPlace(
                    record.topic, record.partition, record.offset, record.timestamp, record.key
                ),
                self._read(record),
            )
            for record in message.raw_message
        ]

    def _read(self, record: Any) -> Message | Unreadable | None:
        if isinstance(record, UndecodableRecord):
            return Unreadable(str(record), record.what_to_do)
        if record.value is None:
            return None
        try:
            return self._decode(record.value)
        except ValueError as error:
            return Unreadable(str(error).partition("\n")[0])


class _EndsAtErrors(BaseMiddleware[Any, Any]):
    """Keeps what a handler raises, and hands it nothing more."""

    def __init__(self, reader: GroupReader[Any], records: Any, /, *, context: Any) -> None:
        super().__init__(records, context=context)
        self._reader = reader

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: Any) -> Any:
        """Calls the handler, unless reading has ended."""
        return None if self._reader.has_failed else await call_next(msg)

    async def after_processed(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: Any = None,
    ) -> bool:
        """Tells the reader of an error. Returns whether there was one, so that FastStream does not
        log it too.
        """
        if not isinstance(exc_val, Exception):
            return False
        self._reader.fail_in(self.msg, exc_val)
        return True


async def _as_they_came(records: Any) -> KafkaMessage:
    # FastStream's own parser reads every header as UTF-8, and a stranger's header that is not would
    # end reading.
    return KafkaMessage(body=b"", raw_message=records, headers={}, consumer=FAKE_CONSUMER)
