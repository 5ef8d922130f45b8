"""The findings of `doctor`: each with its meaning and its remedy."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from consumers.engine.limits import needs_of
from consumers.exporter.settings import ExporterSettings
from consumers.runtime.kafka.connection import KafkaSettings
from schemas.topics import (
    EVENTS_TOPIC,
    INPUT_TOPICS,
    MAX_TRANSACTION_MS,
    SCORES_TOPIC,
    Severity,
    TopicSettings,
    duration,
    retention_ms,
    topic_faults,
)
from streamer.cluster.facts import ClusterFacts
from streamer.cluster.topic_admin import judged
from streamer.settings.all_settings import Settings


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

    @property
    def text(self) -> str:
        """What was seen, and what to do, as sentences."""
        if not self.what_to_do:
            return self.seen
        stop = "" if self.seen.endswith((".", "?")) else "."
        return f"{self.seen}{stop} {self.what_to_do}"


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
        f"lasts {longest} at most and is over after {duration(limits.idle_ms)} of silence",
    )
    forgotten_ms = ExporterSettings().forget_after_ms
    if limits.max_call_duration_ms >= forgotten_ms:
        yield Finding(
            "settings",
            Verdict.WARNING,
            f"a call may last {longest}, but the exporter forgets a silent one after "
            f"{duration(forgotten_ms)}: the gauge of running calls would be too low",
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
    states = judged(cluster.topics, kafka)
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
            f"{duration(needs.least_kept_ms)}; cleanup, timestamps and sizes are right"
        )
        yield Finding("topic settings", Verdict.OK, seen)
