"""Closes a call as a limit when owner after owner of a partition ends without progress.

The next owner reads exactly as far as the earlier ones, while time is stopped. So it stops before the step that ended them.
There it closes the call with the largest state, and goes on when that is written.
"""

from collections.abc import Collection
from typing import Final

import structlog

from consumers.evaluator.partition.owned_partition import OwnedPartition
from consumers.evaluator.partition.progress import MAX_TAKEOVERS_WITHOUT_PROGRESS

MAX_TAKEOVERS_WITH_SCORES: Final = 2 * MAX_TAKEOVERS_WITHOUT_PROGRESS
"""Owners that may end before a call is closed without its final scores, because computing these may be the cause."""

HEAVY_BYTES: Final = 256 * 1_024
"""Smallest state of a call that may take seconds for a step. For smaller calls, unrelated kills or freezes are likelier."""
MAX_TAKEOVERS_WITH_LIGHT_CALLS: Final = 4 * MAX_TAKEOVERS_WITHOUT_PROGRESS
"""Owners that may end before a small call is closed, because a single value in it may end the process."""

log = structlog.get_logger()


def close_what_stops(owned: Collection[OwnedPartition]) -> None:
    """Closes one call when all stuck partitions of this process have come as far as earlier owners, then lets them go on.

    The call that ends the owners cannot be known before it does so again. The likeliest is the one with the largest state. One
    call is closed for all partitions of the process, because they ended together and most of them are healthy.

    Args:
        owned: The active partitions.
    """
    stuck = [each for each in owned if each.partition.stops is not None]
    if not stuck or not all(each.is_at_stops for each in stuck):
        return
    closing = [each.partition for each in stuck if each.partition.has_cut]
    if closing:
        if any(partition.outbox.records for partition in closing):
            return  # a successor must know of it before the next step
    elif _cut(stuck):
        return
    for each in stuck:
        each.partition.stops = None


def _cut(stuck: Collection[OwnedPartition]) -> bool:
    found = [(heaviest, each) for each in stuck if (heaviest := each.partition.heaviest_call) is not None]
    if not found:
        return False
    (kept_bytes, events, conversation_id), each = max(found, key=lambda one: one[0])
    partition = each.partition
    ended = each.takeovers - 1
    if kept_bytes < HEAVY_BYTES and ended < MAX_TAKEOVERS_WITH_LIGHT_CALLS:
        return False
    is_scored = ended < MAX_TAKEOVERS_WITH_SCORES
    log.error(
        "call_closed_to_get_on",
        conversation_id=conversation_id,
        partition=partition.number,
        kept_bytes=kept_bytes,
        events=events,
        seen=f"{ended} evaluators in a row ended before partition {partition.number} got on.",
        what_happens_now="The open call that keeps most is closed as limit_kept_bytes without a transcript"
        f"{'' if is_scored else ' and without final scores'}; then the partition goes on. If another call is the cause, the "
        "next evaluator closes the next one.",
        what_to_do="See in the logs of the evaluators before how they ended: out of memory, killed by a probe, or silent "
        "beyond the session timeout. Look at this call's producer, and lower max_kept_bytes_per_call or give more memory.",
    )
    partition.cut(conversation_id, is_scored=is_scored)
    return True
