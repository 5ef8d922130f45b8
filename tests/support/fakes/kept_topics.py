"""A consumer without a group over topics in memory, for readers of stretches."""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition

from tests.support.fakes.broker_records import BrokerRecord


class KeptTopics:
    """Answers as aiokafka's consumer does.

    Attributes:
        first: By partition, the first offset that retention has left; 0 unless given.
        fetched: Offsets that were handed over.
    """

    def __init__(self, *records: BrokerRecord) -> None:
        self.first: dict[TopicPartition, int] = {}
        self.fetched: list[int] = []
        self._records: dict[TopicPartition, list[BrokerRecord]] = {}
        self._at: dict[TopicPartition, int] = {}
        for each in records:
            self._records.setdefault(TopicPartition(each.topic, each.partition), []).append(each)

    def _left(self, tp: TopicPartition) -> list[BrokerRecord]:
        return [each for each in self._records.get(tp, ()) if each.offset >= self.first.get(tp, 0)]

    def assign(self, tps: Iterable[TopicPartition]) -> None:
        self._at = dict.fromkeys(tps, 0)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self._at[tp] = offset

    async def position(self, tp: TopicPartition) -> int:
        return self._at[tp]

    async def beginning_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.first.get(tp, 0) for tp in tps}

    async def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {
            tp: max((each.offset + 1 for each in self._records.get(tp, ())), default=0)
            for tp in tps
        }

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Any]:
        return {
            tp: next(
                (
                    SimpleNamespace(offset=e.offset, timestamp=e.timestamp)
                    for e in self._left(tp)
                    if e.timestamp >= ms
                ),
                None,
            )
            for tp, ms in times_ms.items()
        }

    async def getmany(
        self, *tps: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[BrokerRecord]]:
        del timeout_ms
        found = {}
        for tp in tps or self._at:
            records = [each for each in self._left(tp) if each.offset >= self._at[tp]][:max_records]
            if records:
                self._at[tp] = records[-1].offset + 1
                self.fetched += [each.offset for each in records]
                found[tp] = records
        return found
