"""Kafka's ListOffsets request in the form for replicas. The answer is the end of the log, not the end that readers see.

aiokafka only has versions without the leader's epoch.
"""

from collections.abc import Mapping
from typing import Final

from aiokafka import TopicPartition
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Int8, Int16, Int32, Int64, Schema, String

_DEBUGGING_REPLICA: Final = -2
"""Kafka's replica id for tools, which needs only the right Describe. Followers answer it too, with an end that is not the log's. So
the request names the leader's epoch, and a replica that follows another leader refuses it."""
_UNCOMMITTED: Final = 0
_LATEST: Final = -1


class _Response(Response):  # type: ignore[misc]  # the library has no type hints
    API_KEY = 2
    API_VERSION = 4
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                (
                    "partitions",
                    Array(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("timestamp", Int64),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                    ),
                ),
            ),
        ),
    )


class _Request(RequestStruct):  # type: ignore[misc]  # as above
    API_KEY = 2
    API_VERSION = 4
    RESPONSE_TYPE = _Response
    SCHEMA = Schema(
        ("replica_id", Int32),
        ("isolation_level", Int8),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                ("partitions", Array(("partition", Int32), ("current_leader_epoch", Int32), ("timestamp", Int64))),
            ),
        ),
    )


class LogEndRequest(Request[_Request]):  # type: ignore[misc]  # as above
    """Request for the ends of the logs of some partitions, to their leader."""

    API_KEY = 2

    def __init__(self, epochs: Mapping[TopicPartition, int]) -> None:
        """Stores the partitions.

        Args:
            epochs: By partition, the leader's epoch from the answer to a `TopicsRequest`.
        """
        self._topics: dict[str, list[tuple[int, int, int]]] = {}
        for tp, epoch in epochs.items():
            self._topics.setdefault(tp.topic, []).append((tp.partition, epoch, _LATEST))

    def build(self, request_struct_class: type[_Request]) -> _Request:
        """Builds the request, of which this module has one version."""
        return request_struct_class(_DEBUGGING_REPLICA, _UNCOMMITTED, list(self._topics.items()))
