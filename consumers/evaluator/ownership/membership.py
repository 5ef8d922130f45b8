"""How an evaluator is a member of its group, and what it keeps when the group shares the partitions out anew."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError

from consumers.evaluator.settings import EvaluatorSettings

FETCH_BYTES: Final = 128 * 1_024
"""Of one input partition, in one answer of the broker. With a backlog this is what each of them keeps in memory, and how far
one input can run ahead of another; a larger record comes alone."""
HEARTBEAT_MS: Final = 1_000
"""How often we ask whether the group shares its partitions out anew: after an orderly stop they are nobody's for that long."""
ANSWER_SECONDS: Final = 0.5
"""How long the broker may take to say who is in the group; nobody's calls are evaluated meanwhile."""


def member_options(settings: EvaluatorSettings) -> dict[str, Any]:
    """Options of the consumer that make it a member as the evaluator needs it."""
    return {
        "auto_offset_reset": "earliest",
        # The only assignor of the client that gives a member the same numbers of all topics.
        "partition_assignment_strategy": [RangePartitionAssignor],
        "group_instance_id": settings.group_instance_id,
        "session_timeout_ms": settings.session_timeout_ms,
        "heartbeat_interval_ms": min(HEARTBEAT_MS, settings.session_timeout_ms // 3),
        "max_partition_fetch_bytes": FETCH_BYTES,
    }


async def members_of(admin: AIOKafkaAdminClient, group_id: str) -> frozenset[str]:
    """Ids of the members of a group, those that have just come included; none when the broker does not say."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            answers = await admin.describe_consumer_groups([group_id])
    except (KafkaError, TimeoutError):
        return frozenset()
    return frozenset(
        member["member_id"]
        for answer in answers
        for group in answer.to_object()["groups"]
        for member in group["members"]
    )


def likely_given_away(
    ours: Collection[int], partitions: int, members: Collection[str], member_id: str
) -> Sequence[int]:
    """Which of our partition numbers another member gets, as far as anybody can know before it is decided.

    Args:
        ours: The numbers that we have.
        partitions: How many there are.
        members: Who is in the group now; none if that is not known.
        member_id: Which of them we are.

    Returns:
        Ascending; all of them when nothing is known.
    """
    if member_id not in members:
        return sorted(ours)
    place = sorted(members).index(member_id)
    each, more = divmod(partitions, len(members))
    first = each * place + min(place, more)
    kept = range(first, first + each + (place < more))
    return sorted(set(ours) - set(kept))
