"""Kafka's ListOffsets request as replicas may send it: the answer is where a log ends, not where it ends for readers.

aiokafka stops at a version before the one that names the leader's epoch.
"""

from collections.abc import Mapping
from typing import Final

from aiokafka import TopicPartition
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Int8, Int16, Int32, Int64, Schema, String

_DEBUGGING_REPLICA: Final = -2
"""The replica id that Kafka keeps for tools: no right is needed but Describe. Followers answer to it as well, and theirs is
not the end; so the leader's epoch must be named, which whoever follows another leader refuses."""
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
    """Where the logs of some partitions end that one broker leads."""

    API_KEY = 2

    def __init__(self, epochs: Mapping[TopicPartition, int]) -> None:
        """Asks about these partitions.

        Args:
            epochs: In which the broker leads them, as the answer to a `TopicsRequest` says.
        """
        self._topics: dict[str, list[tuple[int, int, int]]] = {}
        for tp, epoch in epochs.items():
            self._topics.setdefault(tp.topic, []).append((tp.partition, epoch, _LATEST))

    def build(self, request_struct_class: type[_Request]) -> _Request:
        """The request in the one version that is known here."""
        return request_struct_class(_DEBUGGING_REPLICA, _UNCOMMITTED, list(self._topics.items()))
