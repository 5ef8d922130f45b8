"""Commits of a group member, none of which goes on while it joins its group.

By itself the client tries for ever to commit an offset of a topic that was deleted. If it does so while the member joins its group
again, the broker refuses the commit, and the client forgets its membership and begins to join anew, for ever too.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from aiokafka import AIOKafkaConsumer, OffsetAndMetadata, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener

COMMIT_SECONDS: Final = 5.0
"""How long a commit may take when nothing waits for it. The next one covers a failed one."""


class Commits(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no type hints
    """Ends open commits at a revocation, once the owner has handed over, and lets none begin before the next assignment."""

    def __init__(self, owner: ConsumerRebalanceListener | None) -> None:
        """Starts before the first assignment.

        Args:
            owner: Called with revocations and assignments.
        """
        self._owner = owner
        self._open: set[asyncio.Timeout] = set()
        self._is_joining = False

    async def commit(
        self, consumer: AIOKafkaConsumer, offsets: Mapping[TopicPartition, OffsetAndMetadata], seconds: float
    ) -> bool:
        """Commits the next offset of each partition, within so many seconds.

        Returns:
            False if the member is joining its group, and nothing was committed.

        Raises:
            KafkaError: The broker refuses it.
            TimeoutError: It takes longer, or a revocation ended it.
        """
        if self._is_joining:
            return False
        async with asyncio.timeout(seconds) as limit:
            self._open.add(limit)
            try:
                await consumer.commit(dict(offsets))
            finally:
                self._open.discard(limit)
        return True

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Lets the owner hand over, then ends all commits."""
        try:
            if self._owner is not None:
                await self._owner.on_partitions_revoked(revoked)
        finally:
            self._is_joining = True
            for limit in self._open:
                if not limit.expired():
                    limit.reschedule(0)

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Lets commits begin again, then calls the owner."""
        self._is_joining = False
        if self._owner is not None:
            await self._owner.on_partitions_assigned(assigned)
