"""One FastStream batch subscriber that hands over records as they came and does not swallow failures."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Never

import structlog
from aiokafka import AIOKafkaConsumer
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import KafkaError
from faststream import AckPolicy
from faststream.kafka import KafkaMessage

from consumers.runtime.kafka import KafkaSettings
from consumers.runtime.logs import about_record
from consumers.runtime.poll_watch import PollWatch
from consumers.runtime.registry import Instruments

POLL_MS: Final = 10
"""How long one poll waits for records. FastStream sleeps as long again after an empty poll, so this, twice, is the
delay it may add to the first event after a silence."""
FETCH_WAIT_MS: Final = 100
"""How long the broker may hold an empty answer: how stale our knowledge of a partition's end can be."""
STOP_SECONDS: Final = 1.0
"""How long stopping may take, leaving the group included; the broker forgets a silent member by itself."""

BatchHandler = Callable[[Sequence[Any]], Awaitable[None]]

log = structlog.get_logger()


class Subscription:
    """Several topics read as one group member; a handler that raises ends the subscription, and its owner learns why.

    FastStream logs what a handler raises and goes on with the next batch. For a consumer whose next batch builds on
    this one that would be a hole nobody sees, so the first failure is kept, later batches are dropped, and `failure`
    raises it.
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
        options: Mapping[str, Any] | None = None,
        instruments: Instruments | None = None,
    ) -> None:
        """Declares the subscriber; nothing is connected before `start`.

        Args:
            kafka: Where the broker is.
            role: Ends the client's name.
            topics: Names of the topic table.
            handle: Gets the records of one poll: those of each partition in order, of several partitions side by side.
            group_id: The consumer group.
            max_records: Most records of one poll.
            ack_policy: `MANUAL` when the owner commits, `ACK_FIRST` when positions are committed as time passes.
            listener: Told of assignments. What it raises only reaches aiokafka's log: call `fail` there.
            options: Further options of the subscriber.
            instruments: Where polls that fail are counted; None counts them nowhere.
        """
        self._kafka = kafka
        self._role = role
        self._handle = handle
        self._failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._broker = kafka.broker(role)
        self._subscriber = self._broker.subscriber(
            *(kafka.topic(name) for name in topics),
            batch=True,
            group_id=group_id,
            max_records=max_records,
            batch_timeout_ms=POLL_MS,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            ack_policy=ack_policy,
            listener=listener,
            parser=self._wrap,
            decoder=_unwrap,
            **kafka.reader_options(),
            **(options or {}),
        )
        self._subscriber(self._take)
        self._watch = PollWatch(role, instruments)
        poll = self._subscriber.get_msg
        # FastStream restarts reading after whatever a poll raises, and says so once an hour.
        setattr(self._subscriber, "get_msg", lambda consumer: self._watch.watched(lambda: poll(consumer)))  # noqa: B010  # no seam

    @property
    def consumer(self) -> AIOKafkaConsumer:
        """The client underneath, for positions and commits; there from `start` to `stop`."""
        consumer = self._subscriber.consumer
        if consumer is None:
            raise RuntimeError("the subscription is not started")
        return consumer

    @property
    def generation(self) -> int:
        """Number of the group's latest rebalance in which this member took part; -1 before the first.

        Each rebalance has the next number, so a gap says that one happened without us. The client keeps it to itself.
        """
        return int(self.consumer._coordinator.generation)  # noqa: SLF001  # there is no other way to know

    def stalled(self) -> Sequence[str]:
        """What only a restart fixes, for `/healthz`: polls that fail and fail, though the broker is there."""
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

    async def stop(self) -> None:
        """Waits for the batch in hand, leaves the group and disconnects; bounded, and harmless when repeated."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._broker.stop(), STOP_SECONDS)

    async def failure(self) -> Never:
        """Waits for the first failure and raises it."""
        raise await asyncio.shield(self._failure)

    def fail(self, error: Exception) -> None:
        """Ends the subscription for a reason of the owner's; the first one counts."""
        if not self._failure.done():
            self._failure.set_result(error)

    async def _wrap(self, records: tuple[Any, ...]) -> KafkaMessage:
        # The library's parser decodes every header as UTF-8 and drops the whole batch, silently, when one is not.
        return KafkaMessage(body=b"", raw_message=records, headers={}, consumer=self._subscriber.consumer)

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
