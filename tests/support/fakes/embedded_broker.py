"""A broker inside the process of a test: librdkafka's mock cluster. It speaks Kafka's protocol and
keeps nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaException, Producer

PARTITIONS: Final = 4
"""Partitions that the mock cluster gives each topic; none of its properties changes that."""

_ANSWER_SECONDS: Final = 5.0


@contextmanager
def embedded_broker(topics: Sequence[str]) -> Iterator[str]:
    """Runs the broker while the context is open.

    Args:
        topics: Names of the topics to make at once, so that no consumer has to wait for one to
            appear.

    Yields:
        Its address, `host:port` on loopback.

    Raises:
        RuntimeError: It does not answer, or a topic does not have `PARTITIONS` partitions.
    """
    # The client that asks for a mock cluster owns it: the cluster is gone when the client is.
    # 2: critical; it would log its address as a notice
    owner = Producer({"test.mock.num.brokers": 1, "log_level": 2})
    try:
        (broker,) = owner.list_topics(timeout=_ANSWER_SECONDS).brokers.values()
        for name in topics:
            made = owner.list_topics(topic=name, timeout=_ANSWER_SECONDS).topics[name]
            if made.error is not None or len(made.partitions) != PARTITIONS:
                raise RuntimeError(
                    f"The embedded broker made the topic {name} with {len(made.partitions)} "
                    "partitions, expected "
                    f"{PARTITIONS} (error: {made.error})."
                )
    except KafkaException as error:
        raise RuntimeError(f"The embedded broker does not answer on loopback: {error}.") from error
    try:
        yield f"{broker.host}:{broker.port}"
    finally:
        del owner
