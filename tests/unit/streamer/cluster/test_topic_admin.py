"""New topics count as made when a record can be written to each of their partitions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.admin import NewTopic

from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import OperatorError
from schemas.topics import INPUT_TOPICS, TOPICS, TopicNeeds, topic_faults
from streamer.cluster import topic_admin


class ScriptedAdmin:
    """Shows the topic `new` with these leaders, one state after the other; the last stays."""

    def __init__(self, *leaders: list[int]) -> None:
        self.left = list(leaders)

    async def describe_topics(self) -> list[dict[str, Any]]:
        leaders = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        new = {
            "topic": "new",
            "error_code": 0,
            "partitions": [{"leader": leader} for leader in leaders],
        }
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


def test_scores_words_and_log_are_the_only_topics_that_need_each_other() -> None:
    other = {f"x.{topic.name}": number for number, topic in enumerate(TOPICS, 1)}
    same = other | {"x.scores": 8, "x.words": 8, "x.events": 8}
    assert [state.problem for state in topic_admin.judged(same, KAFKA)] == [None] * len(TOPICS)
    for name in ("x.scores", "x.words"):
        (state,) = (each for each in topic_admin.judged(same | {name: 7}, KAFKA) if each.problem)
        assert (state.name, state.problem) == (name, "has 7 partitions, not 8 as x.events")


class MakingAdmin:
    """Takes every topic, and says that it is in force."""

    def __init__(self) -> None:
        self.made: dict[str, NewTopic] = {}

    async def create_topics(self, topics: list[NewTopic], timeout_ms: int) -> Any:
        self.made |= {topic.name: topic for topic in topics}
        return SimpleNamespace(topic_errors=[(topics[0].name, 0)])

    async def describe_topics(self) -> list[dict[str, Any]]:
        return [
            {"topic": name, "error_code": 0, "partitions": [{"leader": 1}]} for name in self.made
        ]


async def test_topics_are_made_as_their_rules_say(monkeypatch: pytest.MonkeyPatch) -> None:
    admin, needs = (
        MakingAdmin(),
        TopicNeeds(longest_call_ms=1, idle_ms=1, max_record_bytes=5_000_000),
    )

    @asynccontextmanager
    async def administration(*_: object) -> AsyncIterator[MakingAdmin]:
        yield admin

    async def states(_: KafkaSettings) -> tuple[topic_admin.TopicState, ...]:
        return topic_admin.judged({}, KAFKA)

    monkeypatch.setattr(KafkaSettings, "administration", administration)
    monkeypatch.setattr(topic_admin, "topic_states", states)
    wanted = {"partitions": 6, "replication_factor": 1, "shards": 2}
    await topic_admin.create_topics(KAFKA, needs=needs, **wanted)
    made = admin.made
    assert {name for name, topic in made.items() if topic.num_partitions != 6} == {"x.sequencer"}
    assert made["x.sequencer"].num_partitions == 2
    stamped = {
        name for name, topic in made.items() if topic.topic_configs.get("message.timestamp.type")
    }
    assert stamped == {"x.events", "x.scores", *(f"x.{name}" for name in INPUT_TOPICS)}
    settings = {name.removeprefix("x."): topic.topic_configs for name, topic in made.items()}
    assert int(settings["events"]["max.message.bytes"]) > 5_000_000
    assert topic_faults(settings, needs) == ()


@pytest.mark.parametrize(
    ("there", "wanted", "made"),
    [
        ({}, None, 4),
        ({}, 24, 24),
        ({"x.scores": 3}, None, 3),
        ({"x.scores": 3}, 3, 3),
        ({"x.events": 3}, None, 3),
        ({"x.quarantine": 3, "x.audit.events": 2}, 24, 24),
        ({"x.scores": 3, "x.events": 3}, None, 3),
        ({"x.words": 3}, None, 3),
        ({"x.scores": 3, "x.words": 2, "x.events": 3}, None, 3),
        ({"x.scores": 3, "x.words": 3, "x.events": 3}, 24, 24),
    ],
)
def test_the_scores_of_a_call_are_in_the_partition_of_its_events(
    there: dict[str, int], wanted: int | None, made: int
) -> None:
    assert topic_admin._count_for(topic_admin.judged(there, KAFKA), KAFKA, wanted) == made


@pytest.mark.parametrize(
    ("there", "wanted", "said"),
    [
        ({"x.scores": 3}, 4, "expected 4 partitions, as --partitions says; seen x.scores with 3."),
        ({"x.scores": 3, "x.events": 3}, 4, "seen x.events with 3."),
        ({"x.events": 3}, 4, "Leave --partitions out, and all get 3;"),
    ],
)
def test_topics_that_would_not_fit_those_that_are_there_are_not_made(
    there: dict[str, int], wanted: int | None, said: str
) -> None:
    with pytest.raises(OperatorError) as refused:
        topic_admin._count_for(topic_admin.judged(there, KAFKA), KAFKA, wanted)
    assert said in str(refused.value)
    assert "so no topic was made" in str(refused.value)
