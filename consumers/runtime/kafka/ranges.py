"""Readers in no group, which disturb no other: ranges of offsets from first to last, each record
once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from consumers.runtime.kafka.connection import KafkaSettings

STALL_SECONDS: Final = 15.0
"""A broker that hands over nothing for this long, with records still to come, counts as away."""
MAX_BATCH_RECORDS: Final = 5_000
FETCH_BYTES: Final = 4 * 2**20
"""Bytes of one partition in an answer, for readers of many records: with the client's 1 MB they
wait for the broker more often.
"""
_PAUSE_SECONDS: Final = 0.005

Ranges = Mapping[TopicPartition, tuple[int, int]]
"""By partition the first offset, and the one after the last."""


@asynccontextmanager
async def onlooker(
    kafka: KafkaSettings, role: str, **options: Any
) -> AsyncIterator[AIOKafkaConsumer]:
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


def not_shown(_share: float) -> None:
    """Does not show how far reading has come."""


async def records_between(
    consumer: AIOKafkaConsumer, ranges: Ranges, show: Callable[[float], None] = not_shown
) -> AsyncIterator[Any]:
    """The records in some ranges; those of one partition in order.

    Args:
        consumer: A started consumer; it gets the partitions of the ranges. With `OnlyBatchesWith`
            it gives few of their records.
        ranges: What to read.
        show: Called now and then with the share of the offsets that is behind us, from 0 to 1.

    Raises:
        KafkaError: The broker refuses.
        TimeoutError: The broker delivers nothing although there are more records.
    """
    reached = {tp: start for tp, (start, end) in ranges.items() if start < end}
    if not reached:
        return
    consumer.assign(list(reached))
    for tp, start in reached.items():
        consumer.seek(tp, start)
    total = sum(ranges[tp][1] - start for tp, start in reached.items())
    clock = asyncio.get_running_loop().time
    patience = clock() + STALL_SECONDS
    left = total
    while reached:
        # Without a wait: the client does not come back from one while batches are passed over, and
        # new ones follow.
        batches = await consumer.getmany(*reached, timeout_ms=0, max_records=MAX_BATCH_RECORDS)
        for tp, records in batches.items():
            end = ranges[tp][1]
            for record in records:
                if record.offset < end:
                    yield record
        # By position, not by record: a transaction's marker has an offset and is no record.
        reached = {tp: at for tp in reached if (at := await consumer.position(tp)) < ranges[tp][1]}
        still = sum(ranges[tp][1] - at for tp, at in reached.items())
        if still < left:
            left = still
            show(1 - left / total)
            patience = clock() + STALL_SECONDS
        elif clock() > patience:
            raise TimeoutError(
                f"nothing more of {next(iter(reached)).topic} for {STALL_SECONDS:.0f} s"
            )
        else:
            await asyncio.sleep(_PAUSE_SECONDS)
