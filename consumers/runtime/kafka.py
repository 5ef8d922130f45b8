"""How this process reaches Kafka: one set of settings, from which every client is built."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from faststream.kafka import KafkaBroker
from pydantic import BaseModel, ConfigDict, Field

CONNECT_SECONDS: Final = 10.0
"""How long the first connection and the first answer may take before a start counts as failed."""
LINGER_MS: Final = 5
"""How long the producer waits for more records of a batch: a fiftieth of the delay we promise."""
HANDLER_STOP_SECONDS: Final = 0.5
"""How long stopping waits for the batch in hand."""


log = structlog.get_logger()


class _PollErrors:
    """FastStream's errors in our log: a poll that fails is told nowhere else. Its line for each batch is left out."""

    def log(self, level: int, msg: Any, /, *, exc_info: Any = None, extra: Mapping[str, Any] | None = None) -> None:
        """Takes one line of FastStream's."""
        if level >= logging.ERROR:
            log.error("kafka_poll_failed", detail=str(msg), error=repr(exc_info))


class KafkaSettings(BaseModel):
    """Where Kafka is and how topics are named there."""

    model_config = ConfigDict(frozen=True)

    bootstrap_servers: str = Field("127.0.0.1:9092", min_length=1, description="`host:port`, several with commas.")
    client_id: str = Field("callgauge", min_length=1, description="Start of the names our clients give to the broker.")
    topic_prefix: str = Field(
        "",
        max_length=100,
        pattern=r"^[A-Za-z0-9._-]*$",
        description="Put before every topic's name as it is, where several installations share a cluster.",
    )
    is_embedded: bool = Field(
        default=False,
        description="Whether this is the broker inside our own process: it keeps nothing and has no transactions.",
    )

    def topic(self, name: str) -> str:
        """The name on this cluster of a topic of the topic table."""
        return self.topic_prefix + name

    def reader_options(self) -> dict[str, Any]:
        """Options of every consumer: only committed records, and checked ones where the broker's checksums are right."""
        return {"isolation_level": "read_committed", "check_crcs": not self.is_embedded}

    def broker(self, role: str) -> KafkaBroker:
        """A FastStream broker that only reads: no producer, no administration, no topics made on the way."""
        return KafkaBroker(
            self.bootstrap_servers.split(","),
            client_id=f"{self.client_id}-{role}",
            consumer_only=True,
            allow_auto_create_topics=False,
            graceful_timeout=HANDLER_STOP_SECONDS,
            apply_types=False,  # the handler takes records as they are
            logger=_PollErrors(),
        )

    def producer(self, role: str) -> AIOKafkaProducer:
        """A producer whose retries neither double nor reorder records."""
        return AIOKafkaProducer(
            bootstrap_servers=self.bootstrap_servers,
            client_id=f"{self.client_id}-{role}",
            enable_idempotence=True,
            linger_ms=LINGER_MS,
        )

    def unreachable(self, error: BaseException) -> "KafkaUnreachableError":
        """What to say when nothing there answers."""
        return KafkaUnreachableError(
            f"Kafka: no broker answers at {self.bootstrap_servers}: {str(error) or type(error).__name__}. "
            "Nothing can be read, so callgauge does not start. "
            "Check the address and that the broker runs; the lines logged before this one may say more."
        )


class KafkaUnreachableError(Exception):
    """No broker could be reached at the start; the caller ends the process and shows the text."""


class TopicsUnfitError(Exception):
    """Topics are missing or their partitions do not fit together; a person must mend them before a start."""


async def partition_counts(kafka: KafkaSettings, names: Iterable[str]) -> Mapping[str, int]:
    """How many partitions each topic of the topic table has here.

    On a broker that makes topics when asked for them, asking makes them.

    Raises:
        KafkaUnreachableError: No broker answers.
        TopicsUnfitError: A topic does not exist; the text names all that are missing.
    """
    wanted = [kafka.topic(name) for name in names]
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers, client_id=f"{kafka.client_id}-topics")
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await admin.start()
            described = await admin.describe_topics(wanted)
    except (KafkaError, TimeoutError) as error:
        raise kafka.unreachable(error) from error
    finally:
        await admin.close()
    counts = {topic["topic"]: 0 if topic["error_code"] else len(topic["partitions"]) for topic in described}
    missing = [topic for topic in wanted if not counts.get(topic)]
    if missing:
        raise TopicsUnfitError(
            f"Topics: {', '.join(missing)} not found on {kafka.bootstrap_servers}. callgauge does not make topics, "
            "so it does not start. `callgauge topics create` makes them; or check the topic prefix."
        )
    return {name: counts[topic] for name, topic in zip(names, wanted, strict=True)}


def require_equal_counts(counts: Mapping[str, int]) -> int:
    """The partition count that all the topics share.

    Raises:
        TopicsUnfitError: They differ, so records of one conversation would be on different partition numbers.
    """
    if len(set(counts.values())) != 1:
        seen = ", ".join(f"{topic} {count}" for topic, count in sorted(counts.items()))
        raise TopicsUnfitError(
            f"Topics: partition counts must be equal, but are {seen}. A conversation is found by its partition number, "
            "so callgauge does not start. Make the topics again with one count, or add partitions to the smaller ones "
            "while no call runs."
        )
    return next(iter(counts.values()))
