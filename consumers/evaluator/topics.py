"""Checks the topics before the evaluator reads the first record, and again when one of them may be
gone.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Never

import structlog
from aiokafka.errors import KafkaError

from consumers.engine.limits import needs_of
from consumers.evaluator.settings import EvaluatorSettings
from consumers.runtime.kafka.connection import (
    CONNECT_SECONDS,
    KafkaSettings,
    KafkaUnreachableError,
    TopicsRequest,
    TopicsUnfitError,
    partition_counts,
    topic_settings,
)
from consumers.runtime.kafka.polling import SLOW_SECONDS
from consumers.runtime.process import OperatorError
from schemas.topics import (
    EVENTS_TOPIC,
    JUDGE_REQUESTS_TOPIC,
    QUARANTINE_TOPIC,
    SCORES_TOPIC,
    TRANSCRIPTS_TOPIC,
    WORDS_TOPIC,
    Severity,
    TopicFault,
    topic_faults,
)

EQUAL_TOPICS: Final = (EVENTS_TOPIC, SCORES_TOPIC, WORDS_TOPIC)
"""Topics on which all records of a call have the same partition number; the last one only where
words are written.
"""

STUCK_WRITE_SECONDS: Final = 30.0
"""How long scores may wait while Kafka is whole by its own word; then the role ends, and its
successor writes them.
"""
STUCK_JOIN_SECONDS: Final = 60.0
"""How long a member may be without partitions meanwhile: six times the session after which Kafka
drops a frozen one.
"""
LOOK_SECONDS: Final = 15.0
"""Time between two looks at the topics while running."""

log = structlog.get_logger()


async def require_fit_topics(kafka: KafkaSettings, settings: EvaluatorSettings) -> int:
    """Checks that the topics fit exactly-once scores, before anything is read.

    If this user may not read settings, a warning is logged and they count
    as right. Faults that do not prevent a start are logged, one line each.

    Args:
        kafka: Where the broker is.
        settings: Which topics are used, and how long a call may last and be silent: its records
            must be kept for longer.

    Returns:
        The partition count of `events` and `scores`, and of `words` if it is used.

    Raises:
        KafkaUnreachableError: No broker answers.
        TopicsUnfitError: A topic is missing, partition counts differ, `events` or `scores` is
            compacted, its records are not kept for as long as a call may take, or a topic that is
            written takes smaller records than are written; the text names all such topics.
    """
    names = used_topics(settings)
    counts = await partition_counts(kafka, names)
    _require_equal({name: counts[name] for name in EQUAL_TOPICS if name in counts})
    found = await topic_settings(kafka, names)
    if unknown := [kafka.topic(name) for name in names if name not in found]:
        log.warning(
            "topic_settings_not_known",
            topics=unknown,
            what_happens_now="Retention, cleanup and the largest record are taken to be right.",
            what_to_do=(
                "Give this user the right to DescribeConfigs on them, or run `callgauge doctor` as "
                "one who has it."
            ),
        )
    faults = topic_faults(found, needs_of(settings.limits))
    if refused := [fault for fault in faults if fault.severity is Severity.REFUSED]:
        lines = [
            f"  {kafka.topic(fault.topic)}: {fault.seen}. Set {fault.setting}." for fault in refused
        ]
        raise TopicsUnfitError(
            "\n".join(
                [
                    f"Topics on {kafka.bootstrap_servers} cannot hold what callgauge needs: scores "
                    "would be lost, counted twice or not written, so callgauge does not start.",
                    *lines,
                    "  `kafka-configs.sh --alter --entity-type topics --entity-name TOPIC "
                    "--add-config NAME=VALUE` changes a setting; where a call may be shorter, "
                    "lower max_call_duration_ms instead.",
                ]
            )
        )
    for fault in faults:
        log.warning(
            "topic_not_as_it_should_be",
            topic=kafka.topic(fault.topic),
            severity=fault.severity.value,
            seen=fault.seen,
            what_happens_now="callgauge starts all the same.",
            what_to_do=f"Set {fault.setting} on it.",
        )
    return counts[EVENTS_TOPIC]


def used_topics(settings: EvaluatorSettings) -> tuple[str, ...]:
    """Returns the topics that the evaluator reads or writes, by their names in the topic table."""
    perhaps = {
        WORDS_TOPIC: settings.limits.words,
        TRANSCRIPTS_TOPIC: settings.writes_transcripts,
        JUDGE_REQUESTS_TOPIC: settings.goals.asks_judge,
    }
    return (
        EVENTS_TOPIC,
        SCORES_TOPIC,
        QUARANTINE_TOPIC,
        *(name for name, is_used in perhaps.items() if is_used),
    )


def _require_equal(counts: Mapping[str, int]) -> None:
    if len(set(counts.values())) > 1:
        seen = ", ".join(f"{topic} {count}" for topic, count in sorted(counts.items()))
        raise TopicsUnfitError(
            f"Topics: partition counts must be equal, but are {seen}. The scores of a call are on "
            "the partition of its events, so the evaluator cannot work. Add partitions to the one "
            "that has fewer, while no call runs."
        )


class Standstill(NamedTuple):
    """Something that should go on all the time, and does not.

    Attributes:
        what: What stands still, in words that go on with "for 17 s".
        since: Since when, in seconds of the monotonic clock.
        most_seconds: How long the role waits for it while Kafka is whole.
    """

    what: str
    since: float
    most_seconds: float


class StandstillError(OperatorError):
    """Something stands still although Kafka is whole, so this process is at fault. A new start has
    none of the state that led to it.
    """


class TopicWatch:
    """Checks the topics while something stands still, because one of them may be gone, and their
    settings all the time.
    """

    def __init__(self, kafka: KafkaSettings, settings: EvaluatorSettings) -> None:
        self._kafka = kafka
        self._topics = used_topics(settings)
        self._needs = needs_of(settings.limits)
        self._told: frozenset[TopicFault] = frozenset()

    async def follow(self, standstill: Callable[[], Standstill | None]) -> Never:
        """Looks again and again, until it is cancelled. Raises what `look` raises."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look(standstill())
            await self.look_at_settings()

    async def look(self, still: Standstill | None) -> None:
        """Asks Kafka why something stands still, if anything does.

        Raises:
            TopicsUnfitError: A topic is gone, or partition counts differ.
            StandstillError: Kafka is whole, and this lasts for too long.
        """
        if still is None or (seconds := time.monotonic() - still.since) <= SLOW_SECONDS:
            return
        found = await self.partitions()
        if found is None:  # it stands still because Kafka is away, and goes on when Kafka is back
            return
        self.require_fit(found)
        if seconds > still.most_seconds and _is_whole(found):
            raise StandstillError(
                f"{still.what} for {seconds:.0f} s, although {self._kafka.bootstrap_servers} "
                "answers and all replicas of the topics are in sync. The evaluator ends; the next "
                "one reads again what was not committed, and no score is lost. If this comes "
                "again, report it with the log before it."
            )

    async def look_at_settings(self) -> None:
        """Says once of each setting with which the evaluator would not start that somebody has
        changed it.
        """
        with contextlib.suppress(KafkaUnreachableError):
            found = await topic_settings(self._kafka, self._topics)
            faults = topic_faults(found, self._needs)
            refused = frozenset(fault for fault in faults if fault.severity is Severity.REFUSED)
            for fault in sorted(refused - self._told, key=str):
                log.error(
                    "topic_changed",
                    topic=self._kafka.topic(fault.topic),
                    seen=fault.seen,
                    what_happens_now=(
                        "This evaluator goes on as long as it can, and the next one will not start."
                    ),
                    what_to_do=f"Set {fault.setting} on it, and see who changed it.",
                )
            self._told = refused

    async def partitions(self) -> Mapping[str, Sequence[Any]] | None:
        """Returns the partitions of each topic as Kafka describes them now; None if no broker
        answers.
        """
        kafka = self._kafka
        try:
            async with (
                asyncio.timeout(CONNECT_SECONDS),
                kafka.first_contact("topics") as connection,
            ):
                answer = await connection.send(
                    TopicsRequest([kafka.topic(name) for name in self._topics])
                )
        except (KafkaError, KafkaUnreachableError, TimeoutError):
            return None
        return {topic["topic"]: topic["partitions"] for topic in answer.to_object()["topics"]}

    def require_fit(self, found: Mapping[str, Sequence[Any]]) -> None:
        """Checks that the topics are there, with equal partition counts where these matter.

        Raises:
            TopicsUnfitError: They are not.
        """
        kafka, names = self._kafka, self._topics
        counts = {topic: len(partitions) for topic, partitions in found.items()}
        if gone := [kafka.topic(name) for name in names if not counts.get(kafka.topic(name))]:
            raise TopicsUnfitError(
                f"Topics: {', '.join(gone)} {'is' if len(gone) == 1 else 'are'} gone from "
                f"{kafka.bootstrap_servers}, or this user may not see it any more. callgauge "
                "cannot work like this, so the evaluator ends. Make what is missing again with "
                "`callgauge topics create`, with as many partitions as before, or give the right "
                "back."
            )
        _require_equal(
            {kafka.topic(name): counts[kafka.topic(name)] for name in EQUAL_TOPICS if name in names}
        )


def _is_whole(found: Mapping[str, Sequence[Any]]) -> bool:
    """Whether every partition has a leader, and all of its replicas are in sync."""
    partitions = [partition for each in found.values() for partition in each]
    return all(
        each["leader"] >= 0 and set(each["isr"]) == set(each["replicas"]) for each in partitions
    )
