"""The rights that each command needs on the cluster; deploy/security.md has the same list."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

from consumers.runtime.kafka.connection import READ, WRITE, Needs
from schemas.closed_sets import InputSource
from schemas.topics import (
    GOALS_TOPIC,
    INPUT_TOPICS,
    JUDGE_REQUESTS_TOPIC,
    JUDGE_VERDICTS_TOPIC,
    ORDER_TOPIC,
    QUARANTINE_TOPIC,
    SCORES_TOPIC,
    TOPIC_BY_SOURCE,
    TRANSCRIPTS_TOPIC,
)
from streamer.settings.all_settings import Settings

_TRAFFIC_SOURCES: Final = (InputSource.AUDIT, InputSource.PIPECAT, InputSource.ELEVENLABS)
_ROLE_OPERATIONS: Final[Mapping[str, Mapping[str, Collection[str]]]] = {
    "evaluator": {
        **{topic: {READ} for topic in INPUT_TOPICS},
        ORDER_TOPIC: {READ, WRITE},
        SCORES_TOPIC: {READ, WRITE},  # read: where `order` is missing, and past goal sets
        QUARANTINE_TOPIC: {WRITE},
    },
    "exporter": {SCORES_TOPIC: {READ}},
    "judge": {
        JUDGE_REQUESTS_TOPIC: {READ},
        JUDGE_VERDICTS_TOPIC: {WRITE},
    },
    "monitor": {TOPIC_BY_SOURCE[source]: {WRITE} for source in (InputSource.AUDIT, InputSource.ELEVENLABS)},
    "ingest": {TOPIC_BY_SOURCE[source]: {WRITE} for source in _TRAFFIC_SOURCES},
}

TRAFFIC_NEEDS: Final = Needs({TOPIC_BY_SOURCE[source]: frozenset({WRITE}) for source in _TRAFFIC_SOURCES})
"""The rights to put calls onto the topics."""


PUT_BACK_NEEDS: Final = Needs(dict.fromkeys((QUARANTINE_TOPIC, SCORES_TOPIC), frozenset({READ})))
"""The rights to put quarantined records of any topic back; `scores` says which calls have closed."""


def files_group(evaluator_group: str) -> str:
    """The consumer group that writes transcript files for the evaluators of this group."""
    return f"{evaluator_group}-files"


def needs_of(roles: Collection[str], settings: Settings) -> Needs:
    """The rights that roles of one process need together, as one user."""
    operations: defaultdict[str, set[str]] = defaultdict(set)
    for role in roles:
        for topic, needed in _ROLE_OPERATIONS[role].items():
            operations[topic] |= set(needed)
    names = {
        "evaluator": settings.evaluator_group,
        "exporter": settings.exporter_group,
        "judge": settings.judge_group,
    }
    groups = [names[role] for role in roles if role in names]
    if "evaluator" in roles:
        if settings.goals.reads_topic:
            operations[GOALS_TOPIC].add(READ)
        if settings.goal_rules(roles).asks_judge:
            operations[JUDGE_REQUESTS_TOPIC].add(WRITE)
        if settings.transcripts.enabled:
            operations[TRANSCRIPTS_TOPIC].add(WRITE)
        if settings.transcripts.folder is not None:
            operations[TRANSCRIPTS_TOPIC].add(READ)
            groups.append(files_group(settings.evaluator_group))
    return Needs(
        operations={topic: frozenset(needed) for topic, needed in operations.items()},
        groups=tuple(groups),
        # One of each role is enough: the right is granted for a prefix.
        transactional_ids=(
            *([f"{settings.evaluator_group}-0"] if "evaluator" in roles else []),
            *([f"{settings.judge_group}-judge-0"] if "judge" in roles else []),
        ),
        co_partitioned=(*INPUT_TOPICS, SCORES_TOPIC, ORDER_TOPIC) if "evaluator" in roles else (),
    )
