"""Connects this process to Kafka: one set of settings, from which every client is built."""

import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError
from pydantic import BaseModel, ConfigDict, Field

from consumers.runtime.errors import OperatorError
from consumers.runtime.kafka.batches.tolerant_reading import read_tolerantly
from consumers.runtime.kafka.first_contact import NoContactError, TopicsRequest, first_contact
from consumers.runtime.kafka.refusals import explained
from consumers.runtime.kafka.security import SecuritySettings
from schemas.topic_rules import MAX_BATCH_BYTES

if TYPE_CHECKING:
    from faststream.kafka import KafkaBroker

CONNECT_SECONDS: Final = 10.0
"""How long the first connection and the first answer may take before a start counts as failed."""
REQUEST_TIMEOUT_MS: Final = 10_000
"""How long an administrative request may take."""
LINGER_MS: Final = 5
"""How long a producer without transactions waits for more records of a batch: a fiftieth of the promised delay."""
BATCH_BYTES: Final = 128 * 1_024
"""Most bytes of one batch, unless one record has more. A batch waits for the answer to the one before it, so with the client's 16 kB
a thousand scores would wait forty times. Each partition in use may hold as much in memory."""
METADATA_AGE_MS: Final = 20_000
"""How often a reader asks for the partitions of its topics. Calls on added partitions wait for up to this time."""
HANDLER_STOP_SECONDS: Final = 0.5
"""How long stopping waits for the current batch."""


log = structlog.get_logger()


class _PollErrors:
    """Passes FastStream's errors to our log, without its line for each batch. `PollWatch` handles failed polls."""

    def log(self, level: int, msg: Any, /, *, exc_info: Any = None, extra: Mapping[str, Any] | None = None) -> None:
        """Logs one line of FastStream."""
        if level >= logging.ERROR:
            log.error("kafka_subscriber_failed", detail=str(msg), error=repr(exc_info))


class KafkaSettings(BaseModel):
    """Address of the cluster, prefix of topic names, and credentials."""

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

    security: SecuritySettings = Field(SecuritySettings(), description="TLS, and how to log in.")

    def topic(self, name: str) -> str:
        """Returns the name on this cluster of a topic of the topic table."""
        return self.topic_prefix + name

    def reader_options(self) -> dict[str, Any]:
        """Options of every consumer: only committed records, with checked checksums if the broker computes them right."""
        return {"isolation_level": "read_committed", "check_crcs": not self.is_embedded}

    def client_options(self) -> dict[str, Any]:
        """Options of every client of aiokafka: addresses and credentials."""
        return {"bootstrap_servers": self.bootstrap_servers, **self.security.client_options()}

    def admin(self, role: str) -> AIOKafkaAdminClient:
        """Returns a client for topics and their settings; its `start` raises like `first_contact`."""
        return _Admin(self, role)

    def consumer(self, role: str, *topics: str, **options: Any) -> AIOKafkaConsumer:
        """Returns a consumer of committed records; its `start` connects.

        It passes records that it cannot decode on as `UndecodableRecord`.

        Args:
            role: Last part of the client's name.
            topics: Full names, from `topic`.
            options: Further arguments of aiokafka's consumer; without a `group_id` it is in no group.
        """
        read_tolerantly()
        return AIOKafkaConsumer(
            *topics, **self.client_options(), client_id=self._client_name(role), **self.reader_options(), **options
        )

    def producer(
        self, role: str, transactional_id: str | None = None, transaction_timeout_ms: int = 60_000
    ) -> AIOKafkaProducer:
        """Returns a producer whose retries neither double nor reorder records; its `start` connects.

        Args:
            role: Last part of the client's name.
            transactional_id: Id of its transactions, whose last user is fenced off; None for no transactions.
            transaction_timeout_ms: How long a transaction may stay open before the broker aborts it.
        """
        return AIOKafkaProducer(
            **self.client_options(),
            client_id=self._client_name(role),
            enable_idempotence=True,
            linger_ms=LINGER_MS if transactional_id is None else 0,  # a transaction is sent whole: nothing more comes
            max_batch_size=BATCH_BYTES,
            max_request_size=MAX_BATCH_BYTES,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
        )

    def broker(self, role: str) -> "KafkaBroker":
        """Returns a FastStream broker that only reads: without producer and administration, and without creating topics."""
        from faststream.kafka import KafkaBroker  # only roles need it, and commands without one start sooner

        read_tolerantly()
        return KafkaBroker(
            self.bootstrap_servers.split(","),
            client_id=self._client_name(role),
            consumer_only=True,
            allow_auto_create_topics=False,
            graceful_timeout=HANDLER_STOP_SECONDS,
            metadata_max_age_ms=METADATA_AGE_MS,
            apply_types=False,  # the handler takes records as they are
            logger=_PollErrors(),
            **self.security.faststream_options(),
        )

    async def connection(self, role: str, host: str, port: int, answer_ms: int) -> AIOKafkaConnection:
        """Connects to this broker and logs in. The caller closes the connection.

        Args:
            role: Last part of the client's name.
            host: Host of the broker, as the cluster names it.
            port: Port of the broker, as the cluster names it.
            answer_ms: How long connecting, each step of logging in, and later each answer may take.

        Raises:
            OSError, KafkaError, TimeoutError, ValueError: It cannot be reached, or does not let us in.
        """
        options = {**self.client_options(), "client_id": self._client_name(role), "request_timeout_ms": answer_ms}
        del options["bootstrap_servers"]
        return await create_conn(host, port, **options)

    def _client_name(self, role: str) -> str:
        return f"{self.client_id}-{role}"

    @asynccontextmanager
    async def first_contact(self, role: str) -> AsyncIterator[AIOKafkaConnection]:
        """Connects and logs in without a client of aiokafka, so that a failure has its cause.

        Raises:
            KafkaUnreachableError: No broker can be used. The text has the cause.
        """
        try:
            async with first_contact(self.client_options(), self._client_name(role)) as connection:
                yield connection
        except (NoContactError, KafkaError, TimeoutError) as error:
            raise self.unreachable(error) from error

    def unreachable(self, error: BaseException) -> "KafkaUnreachableError":
        """Returns the error to show when a client could not connect, or was refused something.

        Args:
            error: The error of aiokafka or `first_contact`.

        Returns:
            A `KafkaRefusedError` if a broker answered with a refusal.
        """
        causes = error.causes if isinstance(error, NoContactError) else ((self.bootstrap_servers, error),)
        explanations = [(address, explained(cause, self.security)) for address, cause in causes]
        for address, each in explanations:
            if each.answers:
                return KafkaRefusedError(f"Kafka: the broker at {address} {each.seen}. {_ENDS} {each.remedy}")
        seen = explanations[0][1].seen
        if any(each.seen != seen for _, each in explanations):
            seen = ", ".join(f"{address} ({each.seen})" for address, each in explanations)
        return KafkaUnreachableError(
            f"Kafka: no broker answers at {self.bootstrap_servers}: {seen}. {_ENDS} {explanations[0][1].remedy}"
        )


class _Admin(AIOKafkaAdminClient):  # type: ignore[misc]  # the library has no type hints
    """An admin client that raises the cause if it cannot start. The library only logs it and raises another error."""

    def __init__(self, kafka: KafkaSettings, role: str) -> None:
        self._kafka = kafka
        self._role = role
        super().__init__(
            **kafka.client_options(), client_id=f"{kafka.client_id}-{role}", request_timeout_ms=REQUEST_TIMEOUT_MS
        )

    async def start(self) -> None:
        async with self._kafka.first_contact(self._role):
            await super().start()


_ENDS: Final = "callgauge cannot work like this, so it ends."


class KafkaUnreachableError(OperatorError):
    """No broker could be reached at the start. The caller ends the process and shows the text."""


class KafkaRefusedError(KafkaUnreachableError):
    """A broker refused our login or an operation. A person must change settings or rights."""


class TopicsUnfitError(OperatorError):
    """Topics are missing or have different partition counts. A person must fix them before a start."""


async def partition_counts(kafka: KafkaSettings, names: Iterable[str]) -> Mapping[str, int]:
    """Returns the partition counts of topics of the topic table. On the embedded broker, this creates the topics.

    Raises:
        KafkaUnreachableError: No broker answers, or it refuses to describe a topic.
        TopicsUnfitError: A topic does not exist. The text names all missing topics.
    """
    wanted = tuple(names)
    request = TopicsRequest([kafka.topic(name) for name in wanted], make_missing=kafka.is_embedded)
    async with kafka.first_contact("topics") as connection:
        answer = await connection.send(request)
    topics = answer.to_object()["topics"]
    hidden = [topic["topic"] for topic in topics if topic["error_code"] == TopicAuthorizationFailedError.errno]
    if hidden:
        raise kafka.unreachable(TopicAuthorizationFailedError(hidden))
    return counts_in(topics, kafka, wanted)


def counts_in(topics: Iterable[Mapping[str, Any]], kafka: KafkaSettings, names: Iterable[str]) -> Mapping[str, int]:
    """Returns the partition counts in a broker's answer to a `TopicsRequest`; errors as in `partition_counts`."""
    wanted = {name: kafka.topic(name) for name in names}
    counts = {topic["topic"]: 0 if topic["error_code"] else len(topic["partitions"]) for topic in topics}
    missing = [topic for topic in wanted.values() if not counts.get(topic)]
    if missing:
        raise TopicsUnfitError(
            f"Topics: {', '.join(missing)} not found on {kafka.bootstrap_servers}. callgauge does not make topics, "
            "so it does not start. `callgauge topics create` makes them; or check the topic prefix."
        )
    return {name: counts[topic] for name, topic in wanted.items()}


def require_equal_counts(counts: Mapping[str, int]) -> int:
    """Returns the partition count of all the topics.

    Raises:
        TopicsUnfitError: The counts differ, so records of one conversation would be on different partition numbers.
    """
    if len(set(counts.values())) != 1:
        seen = ", ".join(f"{topic} {count}" for topic, count in sorted(counts.items()))
        raise TopicsUnfitError(
            f"Topics: partition counts must be equal, but are {seen}. A conversation is found by its partition number, "
            "so callgauge does not start. Make the topics again with one count, or add partitions to the smaller ones "
            "while no call runs."
        )
    return next(iter(counts.values()))
