"""Records as a client hands them over."""

from collections.abc import Sequence
from typing import Any, NamedTuple

LOG_APPEND_TIME = 1
"""The kind of time that our topics have."""


class BrokerRecord(NamedTuple):
    """What aiokafka tells of a record, whose key and value are bytes or None. Tests name what
    matters to them.
    """

    topic: str = "scores"
    offset: int = 0
    timestamp: int = 0
    key: Any = b"c-1"
    value: Any = b"{}"
    partition: int = 0
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp_type: int = LOG_APPEND_TIME
