"""Membership of an evaluator in its group: options of the consumer, and the partitions it will probably lose in a rebalance."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError

from consumers.evaluator.settings import EvaluatorSettings

FETCH_BYTES: Final = 128 * 1_024
"""Most bytes of one input partition in one answer of the broker. With a backlog, each keeps as much in memory, and one input can
run as far ahead of another. A larger record comes alone."""
HEARTBEAT_MS: Final = 500
"""Time between heartbeats, which notice a rebalance. After an orderly stop, partitions have no owner for that long."""
ANSWER_SECONDS: Final = 0.5
"""How long the broker may take to list the members of the group. No call is evaluated meanwhile."""


def member_options(settings: EvaluatorSettings) -> dict[str, Any]:
    """Returns the options of the consumer for the evaluator's membership."""
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
    """Returns the ids of the members of a group, with those that just joined; none when the broker does not answer."""
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
    """Predicts which of our partition numbers another member gets, before the group has decided.

    Args:
        ours: Our numbers.
        partitions: Number of all partitions.
        members: Ids of the group's members now; none if they are not known.
        member_id: Our id.

    Returns:
        The numbers, ascending; all of ours if the members are not known.
    """
    if member_id not in members:
        return sorted(ours)
    place = sorted(members).index(member_id)
    each, more = divmod(partitions, len(members))
    first = each * place + min(place, more)
    kept = range(first, first + each + (place < more))
    return sorted(set(ours) - set(kept))
