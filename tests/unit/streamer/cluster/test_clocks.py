"""The clocks are compared by the first record that comes into each partition of the log while one
looks.
"""

from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from streamer.cluster import facts
from streamer.cluster.facts import ClockFacts, clock_facts

TPS = [TopicPartition("events", number) for number in range(3)]


def record(tp: TopicPartition, timestamp: int, kind: int = 1) -> Any:
    return ConsumerRecord(tp.topic, tp.partition, 5, timestamp, kind, None, b"", None, 0, 0, ())


class Ticking:
    """A consumer to which these records come, one answer after the other; this machine's clock goes
    on by 100 ms with each.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: list[Any]) -> None:
        self.now_ms = 1_000
        self.sought: dict[TopicPartition, int] = {}
        self._answers = list(answers)
        monkeypatch.setattr(facts, "wall_clock_ms", lambda: self.now_ms)
        monkeypatch.setattr(facts, "WATCH_SECONDS", 5.0 if answers else 0.0)

    def assign(self, _: object) -> None: ...

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.sought[tp] = offset

    async def end_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 5)

    async def getmany(self, *, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        del timeout_ms
        self.now_ms += 100
        answer = self._answers.pop(0)
        return {each: [one for one in answer if one.partition == each.partition] for each in TPS}


async def test_the_difference_is_between_two_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer: Any = Ticking(
        monkeypatch,
        [record(TPS[0], 1_060), record(TPS[0], 1_900), record(TPS[1], 7, kind=0)],
        [record(TPS[1], 3_150), record(TPS[2], 100)],
    )
    found = await clock_facts(consumer, TPS)
    assert consumer.sought == dict.fromkeys(TPS, 5)
    assert found == {
        TPS[0]: ClockFacts(-40, 60),
        TPS[1]: ClockFacts(1_950, 2_150),
        TPS[2]: ClockFacts(-1_100, -900),
    }


async def test_a_partition_into_which_nothing_comes_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer: Any = Ticking(monkeypatch)
    assert await clock_facts(consumer, TPS) == {}
