"""New topics count as made when a record can be written to each of their partitions."""

from typing import Any

import pytest

from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import OperatorError
from schemas.topics import TOPICS
from streamer.cluster import topic_admin


class ScriptedAdmin:
    """Shows the topic `new` with these leaders, one state after the other; the last stays."""

    def __init__(self, *leaders: list[int]) -> None:
        self.left = list(leaders)

    async def describe_topics(self) -> list[dict[str, Any]]:
        leaders = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        new = {"topic": "new", "error_code": 0, "partitions": [{"leader": leader} for leader in leaders]}
        broken = {"topic": "broken", "error_code": 3, "partitions": []}
        return [broken, new] if leaders else [broken]


async def test_topics_are_in_force_when_each_partition_has_a_leader() -> None:
    admin: Any = ScriptedAdmin([], [-1, -1], [1, -1], [1, 2])
    await topic_admin._until_in_force(admin, ["new"])
    assert admin.left == [[1, 2]]


async def test_waiting_for_leaders_ends(monkeypatch: Any) -> None:
    monkeypatch.setattr(topic_admin, "IN_FORCE_SECONDS", 0.01)
    admin: Any = ScriptedAdmin([-1])
    await topic_admin._until_in_force(admin, ["new"])
    await topic_admin._until_in_force(admin, ["broken"])


KAFKA = KafkaSettings(topic_prefix="x.")
ALL_WITH_8 = {f"x.{topic.name}": 8 for topic in TOPICS}


@pytest.mark.parametrize(
    ("there", "wanted", "made"),
    [
        ({}, None, 4),
        ({}, 24, 24),
        ({"x.scores": 3}, None, 3),
        ({"x.scores": 3}, 3, 3),
        ({"x.quarantine": 3}, 24, 24),
        (ALL_WITH_8, 24, 8),
        (ALL_WITH_8 | {"x.scores": 9}, None, 4),
    ],
)
def test_new_topics_have_the_number_of_those_that_are_there(
    there: dict[str, int], wanted: int | None, made: int
) -> None:
    assert topic_admin._count_for(topic_admin.judged(there, KAFKA), KAFKA, wanted) == made


@pytest.mark.parametrize(
    ("there", "wanted", "said"),
    [
        ({"x.scores": 3}, 4, "expected 4 partitions each, as --partitions says; seen x.scores 3."),
        ({"x.scores": 3}, 4, "Leave --partitions out, and all get 3;"),
        (
            {"x.scores": 3, "x.order": 2},
            None,
            "expected the same number of partitions for all; seen x.scores 3, x.order 2",
        ),
        ({"x.scores": 3, "x.order": 2}, 3, "give the smaller ones 3 partitions"),
    ],
)
def test_topics_that_would_not_fit_those_that_are_there_are_not_made(
    there: dict[str, int], wanted: int | None, said: str
) -> None:
    with pytest.raises(OperatorError) as refused:
        topic_admin._count_for(topic_admin.judged(there, KAFKA), KAFKA, wanted)
    assert said in str(refused.value)
    assert "so no topic was made" in str(refused.value)
