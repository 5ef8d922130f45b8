"""Ends the role when two installations use the same group name, and so write the same partitions."""

import time
from collections.abc import Mapping
from typing import Final

from consumers.evaluator.partition.owned_partition import OwnedPartition
from consumers.runtime.errors import OperatorError

FENCED_SECONDS: Final = 60.0
"""How long the group may still assign us a partition that another process writes. A rebalance takes seconds."""


class SharedNameError(OperatorError):
    """Another process writes a partition that the group assigns to us, so two installations share a group name."""


def require_ours(owned: Mapping[int, OwnedPartition], group_id: str) -> None:
    """Checks that no other process has written one of our partitions for `FENCED_SECONDS`.

    Raises:
        SharedNameError: Another process writes it.
    """
    now = time.monotonic()
    for number, each in owned.items():
        if each.fenced_at is not None and now - each.fenced_at > FENCED_SECONDS:
            raise SharedNameError(
                f"Partition {number}: another process writes it, but the group {group_id} has given it "
                f"to us for {FENCED_SECONDS:.0f} s. Nothing of it is evaluated here, so the evaluator ends. Either a broker "
                "ended a transaction that was open for too long, which a restart repairs, or another installation uses this "
                "group's name with other topics, or without joining the group: check that none does."
            )
