"""Before the first record is read: topics that would lose scores are refused in plain words."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs

from consumers.engine.limits import GoalRules, Limits
from consumers.evaluator import topics
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.topics import EQUAL_TOPICS, TopicWatch, require_fit_topics, used_topics
from consumers.runtime.kafka.connection import (
    KafkaSettings,
    KafkaUnreachableError,
    TopicsUnfitError,
)
from tests.support.known import Logged

KAFKA = KafkaSettings(topic_prefix="x.")
HOUR_MS = 3_600_000
SETTINGS = EvaluatorSettings(limits=Limits(max_call_duration_ms=HOUR_MS, idle_ms=60_000))
RIGHT = {
    "cleanup.policy": "delete",
    "retention.ms": str(7 * 24 * HOUR_MS),
    "message.timestamp.type": "LogAppendTime",
}


class Broker:
    """The broker's answers when asked."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(
            (*EQUAL_TOPICS, "quarantine", "transcripts", "words", "judge.requests"), 4
        )
        self.asked_for: set[str] = set()
        self.settings: dict[str, Mapping[str, str]] = dict.fromkeys(self.counts, RIGHT)
        self.asked_for_settings = False

    async def partition_counts(self, _: KafkaSettings, names: Iterable[str]) -> Mapping[str, int]:
        self.asked_for |= set(names)
        return {name: self.counts[name] for name in self.asked_for}

    async def topic_settings(
        self, _: KafkaSettings, names: Iterable[str]
    ) -> Mapping[str, Mapping[str, str]]:
        self.asked_for_settings = True
        return {name: self.settings[name] for name in names if name in self.settings}


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(topics, "partition_counts", broker.partition_counts)
    monkeypatch.setattr(topics, "topic_settings", broker.topic_settings)
    return broker


async def test_topics_that_fit_give_their_partition_count(broker: Broker, logged: Logged) -> None:
    broker.counts["quarantine"] = 1  # its number is the operator's
    assert await require_fit_topics(KAFKA, SETTINGS) == 4
    assert logged == []


@pytest.mark.parametrize("is_wanted", [True, False])
async def test_there_must_be_a_topic_for_transcripts_where_some_are_written(
    broker: Broker, *, is_wanted: bool
) -> None:
    broker.counts["transcripts"] = 1  # its number is the operator's too
    settings = SETTINGS.model_copy(update={"writes_transcripts": is_wanted})
    assert await require_fit_topics(KAFKA, settings) == 4
    assert ("transcripts" in broker.asked_for) is is_wanted


@pytest.mark.parametrize("topic", EQUAL_TOPICS)
async def test_one_count_for_all(broker: Broker, topic: str) -> None:
    broker.counts[topic] = 8
    with pytest.raises(TopicsUnfitError, match=f"{topic} 8"):
        await require_fit_topics(KAFKA, SETTINGS)


async def test_there_must_be_a_topic_for_words_unless_none_are_written(broker: Broker) -> None:
    silent = SETTINGS.model_copy(
        update={"limits": SETTINGS.limits.model_copy(update={"words": False})}
    )
    broker.counts["words"] = 8
    assert await require_fit_topics(KAFKA, silent) == 4
    assert "words" not in broker.asked_for


async def test_everything_that_would_lose_scores_is_told_at_once(broker: Broker) -> None:
    broker.settings["scores"] = {**RIGHT, "cleanup.policy": "compact"}
    broker.settings["events"] = {**RIGHT, "retention.ms": str(HOUR_MS)}
    with pytest.raises(TopicsUnfitError) as refused:
        await require_fit_topics(KAFKA, SETTINGS)
    told = str(refused.value).splitlines()
    assert "does not start" in told[0]
    assert told[1].startswith("  x.scores: cleanup.policy is compact")
    assert told[2].startswith("  x.events: records are kept for 1 h (retention.ms)")
    assert "Set retention.ms=" in told[2]
    assert len(told) == 4


async def test_records_kept_for_the_longest_call_and_its_silence_are_enough(broker: Broker) -> None:
    settings = {**RIGHT, "retention.ms": str(HOUR_MS + 60_000)}
    broker.settings |= dict.fromkeys(("events", "scores"), settings)
    assert await require_fit_topics(KAFKA, SETTINGS) == 4
    longer = EvaluatorSettings(limits=Limits(max_call_duration_ms=HOUR_MS, idle_ms=60_001))
    with pytest.raises(TopicsUnfitError):
        await require_fit_topics(KAFKA, longer)


async def test_what_is_only_wrong_or_a_warning_stops_no_start_and_is_a_line_each(
    broker: Broker, logged: Logged
) -> None:
    broker.settings["events"] = {
        **RIGHT,
        "message.timestamp.type": "CreateTime",
        "retention.bytes": "5",
    }
    assert await require_fit_topics(KAFKA, SETTINGS) == 4
    assert [
        (line["event"], line["topic"], line["severity"], line["what_to_do"]) for line in logged
    ] == [
        ("topic_not_as_it_should_be", "x.events", "warning", "Set retention.bytes=-1 on it."),
        (
            "topic_not_as_it_should_be",
            "x.events",
            "wrong",
            "Set message.timestamp.type=LogAppendTime on it.",
        ),
    ]


WHEN_WRITTEN = {"transcripts", "judge.requests", "words"}


def using(*names: str) -> EvaluatorSettings:
    """Settings with which these topics are written too."""
    goals = GoalRules(asks_judge="judge.requests" in names)
    limits = SETTINGS.limits.model_copy(update={"words": "words" in names})
    written = {"writes_transcripts": "transcripts" in names, "goals": goals, "limits": limits}
    return SETTINGS.model_copy(update=written)


@pytest.mark.parametrize("topic", ["scores", "events", "quarantine", *sorted(WHEN_WRITTEN)])
async def test_a_topic_that_takes_less_than_is_written_to_it_stops_the_start(
    broker: Broker, topic: str
) -> None:
    broker.settings[topic] = {**RIGHT, "max.message.bytes": "100000"}
    with pytest.raises(
        TopicsUnfitError,
        match=rf"x\.{topic}: max\.message\.bytes is 100000, .* Set max\.message\.bytes=1\d{{6}}\.",
    ):
        await require_fit_topics(KAFKA, using(*WHEN_WRITTEN))
    if topic in WHEN_WRITTEN:
        broker.asked_for.clear()
        with capture_logs() as logged:
            assert await require_fit_topics(KAFKA, using(*WHEN_WRITTEN - {topic})) == 4
        assert logged == []
        assert topic not in broker.asked_for


async def test_settings_that_may_not_be_seen_are_one_warning(
    broker: Broker, logged: Logged
) -> None:
    del broker.settings["scores"]
    assert await require_fit_topics(KAFKA, SETTINGS) == 4
    assert [(line["event"], line["log_level"], line["topics"]) for line in logged] == [
        ("topic_settings_not_known", "warning", ["x.scores"])
    ]


# While it runs.


async def test_a_setting_that_is_changed_while_running_is_told_once_with_the_remedy(
    broker: Broker, logged: Logged
) -> None:
    watch = TopicWatch(KAFKA, SETTINGS)
    await watch.look_at_settings()
    broker.settings["scores"] = {**RIGHT, "cleanup.policy": "compact"}
    for _ in range(2):
        await watch.look_at_settings()
    # which stops no start
    broker.settings["scores"] = {**RIGHT, "message.timestamp.type": "CreateTime"}
    await watch.look_at_settings()
    (line,) = logged
    assert (line["event"], line["log_level"], line["topic"]) == (
        "topic_changed",
        "error",
        "x.scores",
    )
    assert line["seen"].startswith("cleanup.policy is compact, expected delete")
    assert line["what_to_do"].startswith("Set cleanup.policy=delete")


async def test_settings_are_looked_at_again_and_again_and_a_broker_that_is_away_is_no_fault(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "LOOK_SECONDS", 0.0)
    watch, looks = TopicWatch(KAFKA, SETTINGS), list[str]()

    async def away(*_: object) -> None:
        looks.append("settings")
        raise KafkaUnreachableError("away")

    monkeypatch.setattr(topics, "topic_settings", away)
    following = asyncio.create_task(watch.follow(lambda: looks.append("standstill")))
    while len(looks) < 4:  # noqa: ASYNC110  # what it waits for is no event
        await asyncio.sleep(0)
    following.cancel()
    await asyncio.wait([following])
    assert looks[:4] == ["standstill", "settings"] * 2


class Answering(KafkaSettings):
    """Settings whose connection gives one answer: partition counts by topic, 0 for one that is not
    there.
    """

    counts: Mapping[str, int]

    @asynccontextmanager
    async def first_contact(self, _: str) -> AsyncIterator[Any]:
        if not self.counts:
            raise KafkaUnreachableError("gone")
        topics = [
            {"topic": topic, "partitions": [None] * count} for topic, count in self.counts.items()
        ]
        answer = SimpleNamespace(to_object=lambda: {"topics": topics})
        yield SimpleNamespace(send=AsyncMock(return_value=answer))


USED = used_topics(using("transcripts", "words"))


def watch(kafka: KafkaSettings) -> TopicWatch:
    return TopicWatch(kafka, using("transcripts", "words"))


async def misfit(**counts: int) -> str:
    """The problem when some topics have other counts than 4; dots of their names are
    underscores.
    """
    changed = {name.replace("_", "."): count for name, count in counts.items()}
    kafka = Answering(
        topic_prefix="x.", counts={f"x.{name}": changed.get(name, 4) for name in USED}
    )
    watching = watch(kafka)
    try:
        watching.require_fit(await watching.partitions() or {})
    except TopicsUnfitError as error:
        return str(error)
    return ""


async def test_nothing_is_wrong_with_topics_that_are_there() -> None:
    assert await misfit(transcripts=1, quarantine=2) == ""


@pytest.mark.parametrize("topic", USED)
async def test_a_topic_that_is_gone_is_named(topic: str) -> None:
    assert f"Topics: x.{topic} is gone from 127.0.0.1:9092" in await misfit(
        **{topic.replace(".", "_"): 0}
    )


async def test_all_topics_that_are_gone_are_named_at_once() -> None:
    assert "x.events, x.scores are gone" in await misfit(scores=0, events=0)


async def test_counts_that_differ_now_are_told() -> None:
    assert "x.events 8, x.scores 4, x.words 4" in await misfit(events=8)
    assert "x.events 4, x.scores 4, x.words 5" in await misfit(words=5)


async def test_a_broker_that_does_not_answer_says_nothing_of_its_topics() -> None:
    assert await watch(Answering(counts={})).partitions() is None
