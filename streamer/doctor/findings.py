"""The findings of `doctor`: each with its meaning and its remedy."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from consumers.engine.limits import needs_of
from consumers.exporter.settings import ExporterSettings
from consumers.runtime.kafka.connection import KafkaSettings
from schemas.topics import (
    EVENTS_TOPIC,
    INPUT_TOPICS,
    MAX_TRANSACTION_MS,
    SCORES_TOPIC,
    TOPICS,
    Severity,
    TopicSettings,
    duration,
    retention_ms,
    topic_faults,
)
from streamer.cluster.facts import ClockFacts, ClusterFacts, PartitionState
from streamer.cluster.topic_admin import judged
from streamer.settings.all_settings import Settings

MAX_CLOCK_DIFFERENCE_MS: Final = 1_000
"""A third of the dead-air threshold: a larger clock error could turn a pause into dead air."""


class Verdict(StrEnum):
    """The verdict of a finding: fine; works with a risk; does not work or will not; not visible."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: Name of the check.
        verdict: Its verdict.
        seen: The observation, a sentence without a full stop.
        what_to_do: The remedy; empty when all is well.
        lag: Records that a group has not read, by `topic[partition]`.
    """

    check: str
    verdict: Verdict
    seen: str
    what_to_do: str = ""
    lag: Mapping[str, int] = field(default_factory=dict)


def counted(count: int, what: str) -> str:
    """A number with its noun, as in `1 broker`, `2 brokers`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def settings_findings(settings: Settings) -> Iterator[Finding]:
    """The settings, which can be read, or there would be nothing to look at."""
    limits = settings.limits
    longest = duration(limits.max_call_duration_ms)
    yield Finding(
        "settings",
        Verdict.OK,
        f"Kafka at {settings.bootstrap}, topic prefix {settings.topic_prefix or 'none'}; a call "
        f"lasts {longest} at most "
        f"and is over after {duration(limits.idle_ms)} of silence",
    )
    forgotten_ms = ExporterSettings().forget_after_ms
    if limits.max_call_duration_ms >= forgotten_ms:
        yield Finding(
            "settings",
            Verdict.WARNING,
            f"a call may last {longest}, but the exporter forgets a silent one after "
            f"{duration(forgotten_ms)}: the gauge "
            "of running calls would be too low",
            "Lower max_call_duration_ms.",
        )


def broker_finding(cluster: ClusterFacts) -> Finding:
    """The finding that the broker answers, with its version, and lets transactions take as long as
    ours may.
    """
    version = "version not known" if cluster.version is None else f"version {cluster.version}"
    seen = f"{counted(cluster.brokers, 'broker')} in the cluster, {version}"
    most_ms = cluster.max_transaction_ms
    if most_ms is not None and most_ms < MAX_TRANSACTION_MS:
        what_to_do = (
            f"Set transaction.max.timeout.ms={MAX_TRANSACTION_MS} on every broker, or more. The "
            "evaluator does not start."
        )
        fault = (
            f"transaction.max.timeout.ms is {most_ms}, expected at least {MAX_TRANSACTION_MS}: the "
            "evaluator's transactions"
        )
        return Finding("broker", Verdict.WRONG, f"{seen}; {fault} are refused", what_to_do)
    return Finding("broker", Verdict.OK, seen)


def topic_findings(cluster: ClusterFacts, kafka: KafkaSettings) -> Iterator[Finding]:
    """Checks that every topic of the topic table exists, and that `scores` has as many partitions
    as `events`.
    """
    states = judged({name: len(parts) for name, parts in cluster.topics.items()}, kafka)
    if missing := [state.name for state in states if state.partitions is None]:
        seen = f"not there: {', '.join(missing)}"
        what_to_do = (
            "`callgauge topics create` makes them; or check the topic prefix, and the right of "
            "this user to Describe them."
        )
        yield Finding("topics", Verdict.WRONG, seen, what_to_do)
    for state in states:
        if state.problem and state.partitions is not None:
            what_to_do = (
                "Make it again with the same number, or add partitions to the smaller one while no "
                "call runs."
            )
            yield Finding(state.name, Verdict.WRONG, state.problem, what_to_do)
    if not any(state.problem for state in states):
        log = next(state for state in states if state.topic.name == EVENTS_TOPIC)
        yield Finding(
            "topics",
            Verdict.OK,
            f"all {len(states)} are there; events and scores have "
            f"{counted(log.partitions or 0, 'partition')}",
        )


def topic_setting_findings(
    known: Mapping[str, TopicSettings], existing: Sequence[str], settings: Settings
) -> Iterator[Finding]:
    """Retention, cleanup, timestamps and sizes.

    Args:
        known: The settings that could be asked for, by name in the topic table.
        existing: The topics that are there, by name in the topic table.
        settings: Whose limits decide.
    """
    kafka, needs = settings.kafka, needs_of(settings.limits)
    for fault in topic_faults(known, needs):
        verdict = Verdict.WARNING if fault.severity is Severity.WARNING else Verdict.WRONG
        stops = " callgauge does not start before." if fault.severity is Severity.REFUSED else ""
        yield Finding(kafka.topic(fault.topic), verdict, fault.seen, f"Set {fault.setting}.{stops}")
    if unknown := [kafka.topic(name) for name in existing if name not in known]:
        seen = f"this user may not see those of {', '.join(unknown)}"
        what_to_do = "Give it the right to DescribeConfigs on them, or run this as one who has it."
        yield Finding("topic settings", Verdict.UNKNOWN, seen, what_to_do)
    elif known and not topic_faults(known, needs):
        kept = {
            name: duration(kept_ms)
            for name in (*INPUT_TOPICS, EVENTS_TOPIC, SCORES_TOPIC)
            if (kept_ms := retention_ms(known.get(name, {}))) is not None
        }
        inputs = sorted({kept[name] for name in INPUT_TOPICS if name in kept})
        seen = (
            f"inputs are kept for {' and '.join(inputs)}, events for "
            f"{kept.get(EVENTS_TOPIC, 'a time that is not known')}, scores for "
            f"{kept.get(SCORES_TOPIC, 'a time that is not known')}; a call needs "
            f"{duration(needs.least_kept_ms)}; cleanup, timestamps and "
            "sizes are right"
        )
        yield Finding("topic settings", Verdict.OK, seen)


def replica_findings(
    topics: Mapping[str, Sequence[PartitionState]],
    known: Mapping[str, TopicSettings],
    kafka: KafkaSettings,
) -> Iterator[Finding]:
    """Whether the death of one broker loses records or stops writing; topics with the same fault in
    one line.
    """
    faults: dict[tuple[Verdict, str, str], list[str]] = defaultdict(list)
    present = {
        topic.name: topics[kafka.topic(topic.name)]
        for topic in TOPICS
        if kafka.topic(topic.name) in topics
    }
    for name, partitions in present.items():
        for fault in _replica_faults(partitions, known.get(name, {})):
            faults[fault].append(kafka.topic(name))
    for (verdict, seen, what_to_do), names in faults.items():
        named = "all topics" if len(names) == len(present) else ", ".join(names)
        yield Finding("replicas", verdict, f"{named}: {seen}", what_to_do)
    if present and not faults:
        least = min(state.replicas for partitions in present.values() for state in partitions)
        yield Finding(
            "replicas", Verdict.OK, f"at least {least} copies of every partition, all up to date"
        )


def clock_findings(clocks: Mapping[int, Sequence[ClockFacts]]) -> Iterator[Finding]:
    """This machine's clock against those of the brokers.

    Args:
        clocks: By the number of a broker, what was seen of its clock.
    """
    if not any(clocks.values()):
        seen = "no record came into the log while this looked, and nothing is written to find out"
        yield Finding("clock", Verdict.UNKNOWN, seen, "Run this again while a sequencer runs.")
        return
    are_wrong = False
    for broker, seen_of_it in sorted(clocks.items()):
        least_ms, most_ms = (
            max(each.least_ms for each in seen_of_it),
            min(each.most_ms for each in seen_of_it),
        )
        if most_ms >= -MAX_CLOCK_DIFFERENCE_MS and least_ms <= MAX_CLOCK_DIFFERENCE_MS:
            continue
        are_wrong, is_ahead = True, least_ms > 0
        seen = (
            f"the clock of broker {broker} is {duration(least_ms if is_ahead else -most_ms)} or "
            "more "
            f"{'ahead of' if is_ahead else 'behind'} this machine's: with a sequencer here, dead "
            "air and idle calls would be "
            f"decided too {'late' if is_ahead else 'early'}"
        )
        yield Finding("clock", Verdict.WRONG, seen, "Set all clocks by NTP.")
    if not are_wrong:
        yield Finding(
            "clock",
            Verdict.OK,
            f"this machine and {counted(len(clocks), 'broker')} agree to within a second",
        )


def _replica_faults(
    partitions: Sequence[PartitionState], settings: TopicSettings
) -> Iterator[tuple[Verdict, str, str]]:
    replicas = min((state.replicas for state in partitions), default=0)
    in_sync = min((state.in_sync for state in partitions), default=0)
    needed = int(settings.get("min.insync.replicas", "1"))
    if not all(state.has_leader for state in partitions):
        yield (
            Verdict.WRONG,
            "a partition has no leader: it can be neither read nor written",
            "Start its brokers.",
        )
    elif in_sync < needed:
        seen = (
            f"{in_sync} copies are up to date, min.insync.replicas is {needed}: nothing can be "
            "written"
        )
        yield Verdict.WRONG, seen, "Start the brokers that are down."
    elif in_sync < replicas:
        yield (
            Verdict.WARNING,
            f"{in_sync} of {replicas} copies are up to date",
            "See why a broker is away or slow.",
        )
    if replicas == 1:
        yield (
            Verdict.WARNING,
            "one copy: while its broker is away nothing goes on, and with its disk everything is "
            "lost",
            "Enough to try things out; else make topics with --replication-factor 3 and set "
            "min.insync.replicas=2.",
        )
    elif replicas and needed >= replicas:
        seen = (
            f"min.insync.replicas is {needed} of {replicas} copies: one broker away stops all "
            "writing"
        )
        yield Verdict.WARNING, seen, f"Set min.insync.replicas={max(1, replicas - 1)}."
    elif needed == 1 and "min.insync.replicas" in settings:
        seen = (
            "min.insync.replicas is 1: what only one broker has counts as written, and is lost "
            "with it"
        )
        yield Verdict.WARNING, seen, "Set min.insync.replicas=2."
    if replicas > 1 and settings.get("unclean.leader.election.enable") == "true":
        seen = (
            "unclean.leader.election.enable is true: a broker that is behind may take over, "
            "without the newest records"
        )
        yield Verdict.WARNING, seen, "Set unclean.leader.election.enable=false."
