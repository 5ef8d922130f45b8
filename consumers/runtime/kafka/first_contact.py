"""Makes the first connection to a cluster without aiokafka's clients, so that a failure has its cause.

Those clients only log why an address failed, and then raise that no address is left. Here the cause is raised.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from aiokafka.conn import AIOKafkaConnection, collect_hosts, create_conn
from aiokafka.errors import KafkaError, SaslAuthenticationFailed
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest_v5
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Schema, String

from consumers.runtime.kafka.refusals import NoBrokersError, UnreachableNamesError

ANSWER_MS: Final = 10_000
"""How long one connection and each answer on it may take."""
UNKNOWN_RIGHTS: Final = -(2**31)
"""The value that a broker sends for unknown rights."""


class NoContactError(Exception):
    """None of the addresses could be used.

    Attributes:
        causes: The error of each tried address, in order.
    """

    def __init__(self, causes: Sequence[tuple[str, Exception]]) -> None:
        self.causes = tuple(causes)
        super().__init__("; ".join(f"{address}: {cause}" for address, cause in self.causes))


class _TopicsResponse(Response):  # type: ignore[misc]  # the library has no type hints
    API_KEY = 3
    API_VERSION = 8
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            Array(("node_id", Int32), ("host", String("utf-8")), ("port", Int32), ("rack", String("utf-8"))),
        ),
        ("cluster_id", String("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("topic", String("utf-8")),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline_replicas", Array(Int32)),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
        ("cluster_authorized_operations", Int32),
    )


class _TopicsRequest(RequestStruct):  # type: ignore[misc]  # as above
    API_KEY = 3
    API_VERSION = 8
    RESPONSE_TYPE = _TopicsResponse
    SCHEMA = Schema(
        ("topics", Array(String("utf-8"))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
    )


class TopicsRequest(Request[MetadataRequest_v5 | _TopicsRequest]):  # type: ignore[misc]  # as above
    """Kafka's Metadata request including our rights on each topic; aiokafka only has versions without them.

    For brokers before Kafka 2.3, the request is sent without them.
    """

    API_KEY = 3

    def __init__(self, topics: Sequence[str], *, make_missing: bool = False) -> None:
        self._topics = list(topics)
        self._make_missing = make_missing

    def build(self, request_struct_class: type[RequestStruct]) -> Any:
        """Builds the request in a version that the broker knows."""
        if request_struct_class is _TopicsRequest:
            asks_for_cluster, asks_for_topics = False, bool(self._topics)
            return _TopicsRequest(self._topics, self._make_missing, asks_for_cluster, asks_for_topics)
        return MetadataRequest_v5(self._topics, self._make_missing)


@asynccontextmanager
async def first_contact(options: Mapping[str, Any], client_id: str) -> AsyncIterator[AIOKafkaConnection]:
    """Connects to the first address that answers, logs in, and checks that the cluster's own addresses can be reached.

    Args:
        options: Options of any client of aiokafka.
        client_id: The client's name.

    Raises:
        NoContactError: No address can be used.
    """
    connecting = {"client_id": client_id, "request_timeout_ms": ANSWER_MS, **options}
    causes: list[tuple[str, Exception]] = []
    connection = None
    for host, port, _ in collect_hosts(connecting.pop("bootstrap_servers"), randomize=False):
        try:
            connection = await _opened(host, port, connecting)
            break
        except (OSError, KafkaError, TimeoutError, ValueError) as error:  # ValueError: no host name, or a false proof
            causes.append((f"{host}:{port}", error))
            if isinstance(error, SaslAuthenticationFailed):
                break  # the others would say the same, and may lock the user out
    if connection is None:
        raise NoContactError(causes)
    try:
        yield connection
    finally:
        await connection.close()


async def _opened(host: str, port: int, connecting: Mapping[str, Any]) -> AIOKafkaConnection:
    """Opens a connection and tests it; closes it if the test fails."""
    connection = await create_conn(host, port, **connecting)
    try:
        await _require_cluster(host, port, connection, connecting)
    except BaseException:
        await connection.close()
        raise
    return connection


async def _require_cluster(host: str, port: int, connection: AIOKafkaConnection, connecting: Mapping[str, Any]) -> None:
    """Checks that one of the cluster's own addresses can be reached, because clients go on with those."""
    answer = await connection.send(TopicsRequest([]))
    known = sorted({(broker[1], broker[2]) for broker in answer.brokers})
    if not known:
        raise NoBrokersError
    if (host, port) in known:
        return
    cause: Exception | None = None
    for known_host, known_port in known:
        try:
            onward = await create_conn(known_host, known_port, **connecting)
        except (OSError, KafkaError, TimeoutError, ValueError) as error:
            cause = error
            continue
        await onward.close()
        return
    raise UnreachableNamesError(", ".join(f"{host}:{port}" for host, port in known)) from cause
