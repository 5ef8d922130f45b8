"""Checks everything that a running callgauge depends on. Reads only."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Final

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from consumers.runtime.kafka.connection import KafkaSettings, KafkaUnreachableError, explained, settings_of
from schemas.topics import (
    INPUT_TOPICS,
    JUDGE_VERDICTS_TOPIC,
    QUARANTINE_TOPIC,
    SCORES_TOPIC,
    SOURCE_BY_TOPIC,
    TOPICS,
    TRANSCRIPTS_TOPIC,
)
from streamer.cluster.facts import (
    ClusterFacts,
    administration,
    clock_facts,
    cluster_facts,
    group_facts,
    log_bounds,
    partitions_of,
)
from streamer.cluster.onlooker import onlooker
from streamer.cluster.rights import files_group
from streamer.operations.doctor.findings import (
    Finding,
    Verdict,
    broker_finding,
    clock_finding,
    replica_findings,
    settings_findings,
    topic_findings,
    topic_setting_findings,
)
from streamer.operations.doctor.groups import group_findings
from streamer.operations.doctor.keys import key_findings, newest_keys
from streamer.operations.doctor.sources import right_findings, source_findings
from streamer.operations.doctor.start import quarantine_finding, recent_since_ms, start_findings
from streamer.operations.doctor.understanding import Understanding
from streamer.settings.all_settings import Settings

ANSWER_SECONDS: Final = 20.0
"""How long one check may take; then it is unknown, and the next one goes on."""

_FILES: Final = "transcripts"
"""The reader of the topic of that name, which writes the files."""


async def examine(settings: Settings) -> AsyncGenerator[Finding, None]:
    """Runs every check, one after the other; a check that cannot run is a finding too.

    Args:
        settings: The settings of the roles.
    """
    for finding in settings_findings(settings):
        yield finding
    for finding in await asyncio.to_thread(lambda: list(start_findings(settings))):
        yield finding
    async for finding in source_findings(settings):
        yield finding
    kafka = settings.kafka
    try:
        async with administration(kafka) as admin:
            cluster = await cluster_facts(admin)
            yield broker_finding(cluster)
            for finding in topic_findings(cluster, kafka):
                yield finding
            for finding in await _topic_settings(admin, cluster, settings):
                yield finding
            async with onlooker(kafka, "doctor") as consumer:
                yield await _clock(consumer, cluster, kafka)
                for finding in await _keys(consumer, cluster, kafka):
                    yield finding
                groups = {"evaluator": settings.evaluator_group, "exporter": settings.exporter_group}
                if settings.transcripts.folder is not None:
                    groups[_FILES] = files_group(settings.evaluator_group)
                for reader, group_id in groups.items():
                    for finding in await _group(admin, consumer, cluster, kafka, reader, group_id):
                        yield finding
                yield await _quarantine(consumer, cluster, kafka)
            for finding in await right_findings(settings, kafka):
                yield finding
    except KafkaUnreachableError as error:
        yield Finding("broker", Verdict.WRONG, str(error), "Nothing else was looked at.")


async def _topic_settings(admin: AIOKafkaAdminClient, cluster: ClusterFacts, settings: Settings) -> list[Finding]:
    kafka = settings.kafka
    existing = {kafka.topic(topic.name): topic.name for topic in TOPICS if kafka.topic(topic.name) in cluster.topics}
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            known = await settings_of(admin, existing) if existing else {}
    except (KafkaError, TimeoutError) as error:
        return [_not_seen("topic settings", error, kafka)]
    return [
        *topic_setting_findings(known, list(existing.values()), settings),
        *replica_findings(cluster.topics, known, kafka),
    ]


async def _clock(consumer: AIOKafkaConsumer, cluster: ClusterFacts, kafka: KafkaSettings) -> Finding:
    partitions = partitions_of(_counts(cluster), _names(kafka, INPUT_TOPICS))
    if not partitions:
        return Finding(
            "clock", Verdict.UNKNOWN, "there is no input topic to read the broker's time from", "Make them first."
        )
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return clock_finding(await clock_facts(consumer, partitions))
    except (KafkaError, TimeoutError) as error:
        return _not_seen("clock", error, kafka)


async def _keys(consumer: AIOKafkaConsumer, cluster: ClusterFacts, kafka: KafkaSettings) -> Sequence[Finding]:
    """Verdicts go where their question says, so it is the other inputs that producers place."""
    counts = _counts(cluster)
    names = _names(kafka, [name for name in INPUT_TOPICS if name != JUDGE_VERDICTS_TOPIC])
    partitions = {name: counts[name] for name in names if name in counts}
    if not partitions:
        return [Finding("keys", Verdict.UNKNOWN, "there is no input topic to read keys from", "Make them first.")]
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            understanding = Understanding({kafka.topic(topic): source for topic, source in SOURCE_BY_TOPIC.items()})
            keys = await newest_keys(consumer, partitions, understanding.look)
            return [*key_findings(keys, partitions), *understanding.findings()]
    except (KafkaError, TimeoutError) as error:
        return [_not_seen("keys", error, kafka)]


async def _group(
    admin: AIOKafkaAdminClient,
    consumer: AIOKafkaConsumer,
    cluster: ClusterFacts,
    kafka: KafkaSettings,
    reader: str,
    group_id: str,
) -> Sequence[Finding]:
    check = f"{reader} group"
    topics = {"exporter": (SCORES_TOPIC,), _FILES: (TRANSCRIPTS_TOPIC,)}.get(reader, INPUT_TOPICS)
    partitions = partitions_of(_counts(cluster), _names(kafka, topics))
    if not partitions:
        return [Finding(check, Verdict.UNKNOWN, "the topics that it reads are not there", "Make them first.")]
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            group = await group_facts(admin, group_id)
            bounds = await log_bounds(consumer, partitions)
    except (KafkaError, TimeoutError) as error:
        return [_not_seen(check, error, kafka)]
    role = "evaluator" if reader == _FILES else reader  # which writes the files too
    return list(group_findings(check, role, group, bounds, starts_at_end=reader == "exporter"))


async def _quarantine(consumer: AIOKafkaConsumer, cluster: ClusterFacts, kafka: KafkaSettings) -> Finding:
    partitions = partitions_of(_counts(cluster), _names(kafka, (QUARANTINE_TOPIC,)))
    if not partitions:
        return Finding("quarantine", Verdict.UNKNOWN, "its topic is not there", "Make it first.")
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            bounds = await log_bounds(consumer, partitions)
            found = await consumer.offsets_for_times(dict.fromkeys(partitions, recent_since_ms()))
    except (KafkaError, TimeoutError) as error:
        return _not_seen("quarantine", error, kafka)
    return quarantine_finding(bounds, {tp: None if at is None else at.offset for tp, at in found.items()})


def _counts(cluster: ClusterFacts) -> dict[str, int]:
    return {name: len(partitions) for name, partitions in cluster.topics.items()}


def _names(kafka: KafkaSettings, names: Sequence[str]) -> Iterator[str]:
    return (kafka.topic(name) for name in names)


def _not_seen(check: str, error: Exception, kafka: KafkaSettings) -> Finding:
    why = explained(error, kafka.security)
    return Finding(check, Verdict.UNKNOWN, f"the broker {why.seen}" if why.answers else why.seen, why.remedy)
