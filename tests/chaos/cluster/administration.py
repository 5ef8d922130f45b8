"""Administrative requests to the brokers, by aiokafka.

Not by librdkafka: when a broker restarts after a request of this kind has timed out, it aborts the
whole process (`rd_kafka_enq_once_del_source_return`). Requests for metadata and for a consumer's
offsets are not of this kind.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient

from tests.support.brokers.topic_changes import admin_of

REQUEST_MS: Final = 10_000
"""How long a request may take."""


def asked(bootstrap: str, ask: Callable[[AIOKafkaAdminClient], Awaitable[Any]]) -> Any:
    """The answer to a request, on a client of its own."""

    async def answer() -> Any:
        async with admin_of(bootstrap, REQUEST_MS) as admin:
            return await ask(admin)

    return asyncio.run(answer())


def committed(bootstrap: str, group: str, numbers: set[int]) -> dict[tuple[str, int], int]:
    """Committed offsets of a group by topic and partition, for these partition numbers, where there
    are any.
    """
    found = asked(bootstrap, lambda admin: admin.list_consumer_group_offsets(group))
    return {
        (tp.topic, tp.partition): at.offset
        for tp, at in found.items()
        if tp.partition in numbers and at.offset >= 0
    }
