"""A consumer without a group: it reads records and disturbs no other reader."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from consumers.runtime.kafka.connection import KafkaSettings

STALL_SECONDS: Final = 15.0
"""A broker that hands over nothing for this long, with records still to come, counts as away."""
CLOCK_MARGIN_MS: Final = 3_600_000
"""Largest difference between the clocks of a producer and the broker when records are searched by time."""
POLL_MS: Final = 200
_BATCH_RECORDS: Final = 500


@asynccontextmanager
async def onlooker(kafka: KafkaSettings, role: str, **options: Any) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer that is connected and has no partitions yet.

    Args:
        kafka: Where the broker is.
        role: Ends the client's name.
        options: Further arguments of aiokafka's consumer.

    Raises:
        KafkaUnreachableError: No broker answers, at the start or later, or it refuses.
    """
    consumer = kafka.consumer(role, **options)
    try:
        await consumer.start()
        # aiokafka's stop fails with a cancellation when its own tasks have not run once.
        await asyncio.sleep(0)
        yield consumer
    except (KafkaError, TimeoutError) as error:
        raise kafka.unreachable(error) from error
    finally:
        await consumer.stop()


async def records_so_far(
    consumer: AIOKafkaConsumer, partitions: Sequence[TopicPartition], since_ms: int | None
) -> AsyncIterator[Any]:
    """The records of some partitions up to their present ends; those of one partition in order.

    Args:
        consumer: A started consumer; it gets these partitions.
        partitions: The partitions to read.
        since_ms: Records whose time is before this may be left out; None reads from the beginning.

    Raises:
        KafkaError: The broker refuses.
        TimeoutError: The broker delivers nothing although there are more records.
    """
    consumer.assign(partitions)
    ends = await consumer.end_offsets(partitions)
    starts = await consumer.beginning_offsets(partitions)
    if since_ms is not None:
        found = await consumer.offsets_for_times(dict.fromkeys(partitions, max(0, since_ms - CLOCK_MARGIN_MS)))
        starts = {tp: at.offset if at else ends[tp] for tp, at in found.items()}
    for tp in partitions:
        consumer.seek(tp, starts[tp])
    left = {tp for tp in partitions if starts[tp] < ends[tp]}
    clock = asyncio.get_running_loop().time
    patience = clock() + STALL_SECONDS
    while left:
        batches = await consumer.getmany(*left, timeout_ms=POLL_MS, max_records=_BATCH_RECORDS)
        for tp, records in batches.items():
            for record in records:
                if record.offset < ends[tp]:
                    yield record
        # By position, not by record: a transaction's marker has an offset and is no record.
        reached = {tp for tp in left if await consumer.position(tp) >= ends[tp]}
        left -= reached
        if batches or reached:
            patience = clock() + STALL_SECONDS
        elif clock() > patience:
            raise TimeoutError(f"nothing more of {next(iter(left)).topic} for {STALL_SECONDS:.0f} s")
