"""A range is read from its first offset to its last, whatever the broker hands over, and the share
that is behind us is shown.
"""

from collections.abc import Iterable
from typing import Any

import pytest
from aiokafka import TopicPartition

from consumers.runtime.kafka import ranges
from consumers.runtime.kafka.ranges import records_between
from tests.support.fakes.broker_records import BrokerRecord

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


class Scripted:
    """A consumer whose polls move each partition on by so many offsets; every third offset is a
    record.
    """

    def __init__(self, *polls: dict[TopicPartition, int]) -> None:
        self._polls = list(polls)
        self._at: dict[TopicPartition, int] = {}
        self.assigned: list[TopicPartition] = []

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self.assigned = list(partitions)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self._at[tp] = offset

    async def getmany(
        self, *tps: TopicPartition, **_: Any
    ) -> dict[TopicPartition, list[BrokerRecord]]:
        moved = self._polls.pop(0) if self._polls else {}
        found = {}
        for tp in tps:
            start, self._at[tp] = self._at[tp], self._at[tp] + moved.get(tp, 0)
            if records := [
                BrokerRecord(tp.topic, offset)
                for offset in range(start, self._at[tp])
                if offset % 3 == 0
            ]:
                found[tp] = records
        return found

    async def position(self, tp: TopicPartition) -> int:
        return self._at[tp]


async def test_markers_move_reading_on_and_what_lies_behind_the_end_is_left_out() -> None:
    consumer: Any = Scripted({A: 4, B: 1}, {A: 1}, {A: 9, B: 1})
    shares: list[float] = []
    bounds = {A: (2, 10), B: (1, 3), TopicPartition("empty", 0): (5, 5)}
    found = [record async for record in records_between(consumer, bounds, shares.append)]
    assert [(each.topic, each.offset) for each in found] == [("a", 3), ("a", 6), ("a", 9)]
    assert consumer.assigned == [A, B]
    assert shares == [0.5, 0.6, 1.0]


async def test_a_broker_that_hands_nothing_over_counts_as_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranges, "STALL_SECONDS", 0.0)
    monkeypatch.setattr(ranges, "_PAUSE_SECONDS", 0.0)
    consumer: Any = Scripted({A: 2})
    with pytest.raises(TimeoutError, match="nothing more of a"):
        _ = [record async for record in records_between(consumer, {A: (0, 10)})]
