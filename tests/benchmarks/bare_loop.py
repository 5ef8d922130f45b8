"""`python -m tests.benchmarks.bare_loop`: aiokafka and pydantic alone on the topics that an
evaluator reads.

No Python reader of these topics can do less, so an evaluator is compared to it. It prints the
number of events that it read and the processor time from the first poll to the last event, as JSON.
"""

import argparse
import asyncio
import json
import time

from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.events.codec import decode
from schemas.topics import SOURCE_BY_TOPIC

POLL_RECORDS = 500
POLL_MS = 200


async def read_all(bootstrap: str, prefix: str, events: int) -> dict[str, float]:
    """Reads and decodes this many events."""
    sources = {prefix + topic: source for topic, source in SOURCE_BY_TOPIC.items()}
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        client_id="bare-loop",
    )
    await consumer.start()
    try:
        partitions = [
            TopicPartition(topic, number)
            for topic in sources
            for number in await _numbers_of(consumer, topic)
        ]
        consumer.assign(partitions)
        read, begin = 0, time.process_time()
        while read < events:
            for tp, records in (
                await consumer.getmany(timeout_ms=POLL_MS, max_records=POLL_RECORDS)
            ).items():
                source = sources[tp.topic]
                for record in records:
                    decode(source, record.value)
                read += len(records)
        return {"events": read, "processor_seconds": time.process_time() - begin}
    finally:
        await consumer.stop()


async def _numbers_of(consumer: AIOKafkaConsumer, topic: str) -> set[int]:
    await consumer._client.force_metadata_update()
    consumer._client.add_topic(topic)
    while not (numbers := consumer.partitions_for_topic(topic)):
        await consumer._client.force_metadata_update()
    return set(numbers)


def main() -> None:
    """Reads the topics once."""
    parser = argparse.ArgumentParser(prog="tests.benchmarks.bare_loop")
    parser.add_argument("bootstrap")
    parser.add_argument("prefix")
    parser.add_argument("events", type=int)
    arguments = parser.parse_args()
    print(
        json.dumps(asyncio.run(read_all(arguments.bootstrap, arguments.prefix, arguments.events)))
    )


if __name__ == "__main__":
    main()
