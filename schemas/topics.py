"""The topics, and the settings that each must have."""

import math
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from schemas.closed_sets import InputSource
from schemas.units import DAY_MS, HOUR_MS, MINUTE_MS, MS_PER_SECOND, to_seconds

# The topic table: every topic that callgauge reads or writes, with its key, value, partitions and
# retention.

Partitions = Literal["any", "same as events", "one for each shard"]
"""How many partitions a topic must have."""


class Topic(NamedTuple):
    """One row of the table. `partitions` is a rule, because the operator chooses the number;
    `retention_ms` -1 keeps for ever.
    """

    name: str
    direction: Literal["input", "output", "reference"]
    key: str
    value: str
    partitions: Partitions
    cleanup_policy: Literal["delete", "compact"]
    retention_ms: int
    what: str

    @property
    def has_broker_time(self) -> bool:
        """Whether the broker stamps its records: time is told by its clock alone."""
        return self.direction == "input" or self.name in (EVENTS_TOPIC, SCORES_TOPIC)


_CONVERSATION: Final = "conversation id"
_REFUSED: Final = "the refused record's key"
_SAME: Final = "same as events"
_ANY: Final = "any"


def _input(name: str, value: str, what: str) -> Topic:
    return Topic(name, "input", _CONVERSATION, value, _ANY, "delete", 7 * DAY_MS, what)


def _output(
    name: str, key: str, value: str, partitions: Partitions, what: str, kept_days: int = 14
) -> Topic:
    return Topic(name, "output", key, value, partitions, "delete", kept_days * DAY_MS, what)


TOPICS = (
    _input("pipecat.events", "pipecat-event", "what pipecat bots write while a call runs"),
    _input(
        "elevenlabs.events",
        "simulator-event",
        "the simulated caller's events, and those of ElevenLabs agents",
    ),
    _input("audit.events", "audit-event", "the agent framework's audit log: turns, replies, tools"),
    _input("judge.verdicts", "judge-verdict", "the judges' answers"),
    _output(
        "scores",
        _CONVERSATION,
        "turn-row",
        _SAME,
        "rows of turns and of calls; no value: an owner of the partition",
    ),
    _output(
        "words",
        _CONVERSATION,
        "words-row",
        _SAME,
        "what was said in each turn, and what its tools were asked and answered, without personal "
        "data",
        kept_days=7,
    ),
    _output(
        "scores.own",
        _CONVERSATION,
        "own-row",
        _ANY,
        "values of measures of one's own; of each the last one counts",
    ),
    _output(
        "quarantine",
        _REFUSED,
        "quarantine",
        _ANY,
        "records that can never be processed, with the reason",
    ),
    _output("transcripts", _CONVERSATION, "transcript", _ANY, "one transcript per ended call"),
    _output(
        "judge.requests",
        _CONVERSATION,
        "judge-request",
        _ANY,
        "questions to the judges",
        kept_days=7,
    ),
    _output(
        "events",
        _CONVERSATION,
        "event",
        _ANY,
        "all events of a call in one order, and time; written by the sequencer",
        kept_days=7,
    ),
    Topic(
        "sequencer",
        "reference",
        "none",
        "none",
        "one for each shard",
        "delete",
        DAY_MS,
        "always empty: its partitions are shared out among the sequencers, so that one is active "
        "in each",
    ),
    Topic(
        "annotations",
        "reference",
        _CONVERSATION,
        "annotation",
        _ANY,
        "delete",
        30 * DAY_MS,
        "labels and notes of people; no value: the call is to be forgotten",
    ),
    Topic("goals", "reference", "goal set id", "goals", _ANY, "compact", -1, "goal sets of calls"),
)

TOPIC_BY_SOURCE = {
    InputSource.PIPECAT: "pipecat.events",
    InputSource.ELEVENLABS: "elevenlabs.events",
    InputSource.AUDIT: "audit.events",
    InputSource.JUDGE: "judge.verdicts",
}
SOURCE_BY_TOPIC = {topic: source for source, topic in TOPIC_BY_SOURCE.items()}
INPUT_TOPICS = tuple(topic.name for topic in TOPICS if topic.direction == "input")
SCORES_TOPIC = "scores"
OWN_TOPIC = "scores.own"
WORDS_TOPIC = "words"
TRANSCRIPTS_TOPIC = "transcripts"
ANNOTATIONS_TOPIC = "annotations"
GOALS_TOPIC = "goals"
QUARANTINE_TOPIC = "quarantine"
EVENTS_TOPIC = "events"
SEQUENCER_TOPIC = "sequencer"
JUDGE_REQUESTS_TOPIC = "judge.requests"
JUDGE_VERDICTS_TOPIC = "judge.verdicts"
OWNER_MARK_KEY = b"callgauge-owner"
"""Key of records of `scores` without a value: an owner of the partition begins, or says how far it
has come.
"""


# Checks the broker's settings of the topics, so that no record is lost before it is read. Pure:
# settings in, faults out.
#
# The evaluator refuses to start on the worst faults, and the sequencer on a log that is too small
# for an event. `callgauge topics check` and `callgauge doctor` show all of them.

OUTAGE_MS: Final = DAY_MS
"""The outage that records must survive: one that is noticed only the next day must not
cost a call.
"""
UNREAD_MS: Final = HOUR_MS
"""How long an input must keep a record at least: the sequencer waits for inputs that lag, and its
successor may take a while.
"""
MAX_BATCH_BYTES: Final = 1_048_576
"""Largest batch that our producers send, and so the largest record that they write. The broker must
accept it.
"""
PLACED_BYTES: Final = 36_864
"""Most that a record of `events` has beside the value of its event: headers of the producer and
ours, the key, the head of its batch.
"""
MAX_TRANSACTION_MS: Final = 60_000
"""How long a transaction of ours may stay open at most. The brokers must let it
(`transaction.max.timeout.ms`).
"""

_UNLIMITED: Final = -1
_BROKER_TIME: Final = "LogAppendTime"

TopicSettings = Mapping[str, str]
"""Settings of a topic by name, as the broker reports them."""


class Severity(StrEnum):
    """How bad a fault is.

    - `REFUSED`: records would be lost or counted twice, so the evaluator does not start.
    - `WRONG`: results would be wrong.
    - `WARNING`: results are right, with less safety margin than recommended.
    """

    REFUSED = "refused"
    WRONG = "wrong"
    WARNING = "warning"


class TopicNeeds(BaseModel):
    """Limits of calls that decide what the topics must keep.

    Attributes:
        longest_call_ms: How long a call may last. A new owner of its partition reads all of it
            again in the log.
        idle_ms: Silence after which a call counts as over.
        max_record_bytes: Largest event that is accepted.
    """

    model_config = ConfigDict(frozen=True)

    longest_call_ms: int = Field(gt=0)
    idle_ms: int = Field(gt=0)
    max_record_bytes: int = Field(gt=0)

    @property
    def least_kept_ms(self) -> int:
        """Shortest retention in ms that keeps a record until its call has closed."""
        return self.longest_call_ms + self.idle_ms


class TopicFault(BaseModel):
    """One setting with a wrong value.

    Attributes:
        topic: The name in the topic table, without prefix.
        severity: How bad the fault is.
        seen: The value, the expected value and the consequence: a sentence without a full stop.
        setting: The recommended setting, as `name=value`.
    """

    model_config = ConfigDict(frozen=True)

    topic: str
    severity: Severity
    seen: str
    setting: str


def topic_faults(
    settings: Mapping[str, TopicSettings], needs: TopicNeeds
) -> tuple[TopicFault, ...]:
    """Returns the faults in the topics' settings, in the order of the topic table.

    Args:
        settings: Settings by name in the topic table. Topics and settings that are missing here are
            not checked.
        needs: The limits of calls.
    """
    return tuple(
        fault
        for topic in TOPICS
        if topic.name in settings
        for fault in _faults(topic, settings[topic.name], settings, needs)
    )


def duration(ms: float) -> str:
    """Returns a length of time in words, with two units at most.

    Example:
        >>> duration(14_700_000), duration(604_800_000), duration(1500)
        ('4 h 5 min', '7 days', '1.5 s')
        >>> duration(math.inf)
        'ever'
    """
    if ms == math.inf:
        return "ever"
    if ms < MINUTE_MS:
        return f"{to_seconds(ms):g} s"
    parts = []
    for unit_ms, one, many in (
        (DAY_MS, "day", "days"),
        (HOUR_MS, "h", "h"),
        (MINUTE_MS, "min", "min"),
        (MS_PER_SECOND, "s", "s"),
    ):
        count, ms = divmod(round(ms), unit_ms)
        if count:
            parts.append(f"{count} {one if count == 1 else many}")
    return " ".join(parts[:2])


def retention_ms(settings: TopicSettings) -> float | None:
    """Returns how long records are kept, in ms; infinity for ever, None when the broker does not
    report it.
    """
    kept_ms = _number(settings, "retention.ms")
    return math.inf if kept_ms is not None and kept_ms < 0 else kept_ms


def _faults(
    topic: Topic, settings: TopicSettings, others: Mapping[str, TopicSettings], needs: TopicNeeds
) -> Iterator[TopicFault]:
    is_read_back = topic.name in (SCORES_TOPIC, EVENTS_TOPIC)
    is_input = topic.direction == "input"
    if (policy := settings.get("cleanup.policy", topic.cleanup_policy)) != topic.cleanup_policy:
        yield TopicFault(
            topic=topic.name,
            severity=Severity.REFUSED if is_read_back else Severity.WRONG,
            seen=f"cleanup.policy is {policy}, expected {topic.cleanup_policy}: {_harm_of(topic)}",
            setting=f"cleanup.policy={topic.cleanup_policy}",
        )
    if is_read_back or is_input:
        yield from _retention_faults(topic, settings, others, needs)
    if topic.name == ANNOTATIONS_TOPIC:
        yield from _forgetting_faults(settings, others)
    # A broker older than this setting does not report it, so there is nothing to check.
    if (
        topic.has_broker_time
        and (clock := settings.get("message.timestamp.type", _BROKER_TIME)) != _BROKER_TIME
    ):
        yield TopicFault(
            topic=topic.name,
            severity=Severity.WRONG,
            seen=(
                f"message.timestamp.type is {clock}, expected {_BROKER_TIME}: "
                f"{_harm_of_other_clocks(topic)}"
            ),
            setting=f"message.timestamp.type={_BROKER_TIME}",
        )
    least_bytes = least_message_bytes(topic, needs)
    most_bytes = _number(settings, "max.message.bytes")
    if most_bytes is not None and most_bytes < least_bytes:
        yield TopicFault(
            topic=topic.name,
            severity=Severity.REFUSED if topic.direction == "output" else Severity.WARNING,
            seen=(
                f"max.message.bytes is {most_bytes}, expected at least {least_bytes}: "
                f"{_harm_of_refusing(topic)}"
            ),
            setting=f"max.message.bytes={least_bytes}",
        )


def least_message_bytes(topic: Topic, needs: TopicNeeds) -> int:
    """Returns how large a batch the broker must take on this topic at least."""
    if topic.name == EVENTS_TOPIC:
        return max(needs.max_record_bytes + PLACED_BYTES, MAX_BATCH_BYTES)
    return needs.max_record_bytes if topic.direction == "input" else MAX_BATCH_BYTES


def _retention_faults(
    topic: Topic, settings: TopicSettings, others: Mapping[str, TopicSettings], needs: TopicNeeds
) -> Iterator[TopicFault]:
    kept_ms = retention_ms(settings)
    log_kept_ms = retention_ms(others.get(EVENTS_TOPIC, {}))
    # An input is read once, so an outage is all that it must survive. The log and the scores are
    # read back.
    is_input = topic.direction == "input"
    least_ms, spare_ms = (
        (UNREAD_MS, OUTAGE_MS - UNREAD_MS) if is_input else (needs.least_kept_ms, OUTAGE_MS)
    )
    if kept_ms is not None and 0 <= kept_ms < least_ms + spare_ms:
        expected = "an outage may last" if is_input else "the longest call and its silence are"
        severity = Severity.WRONG if is_input else Severity.REFUSED
        yield TopicFault(
            topic=topic.name,
            severity=Severity.WARNING if kept_ms >= least_ms else severity,
            seen=f"records are kept for {duration(kept_ms)} (retention.ms), but {expected} "
            f"{duration(OUTAGE_MS if is_input else least_ms)}: "
            f"{_harm_of_losing(topic, kept_ms - (0 if is_input else least_ms))}",
            setting=f"retention.ms={max(topic.retention_ms, least_ms + spare_ms)}",
        )
    elif (
        topic.name == SCORES_TOPIC
        and kept_ms is not None
        and log_kept_ms is not None
        and kept_ms < log_kept_ms
    ):
        yield TopicFault(
            topic=topic.name,
            severity=Severity.WARNING,
            seen=f"records are kept for {duration(kept_ms)} (retention.ms), but those of "
            f"{EVENTS_TOPIC} for "
            f"{duration(log_kept_ms)}: whoever reads that again finds no note that its calls were "
            "scored, and scores them twice",
            setting=f"retention.ms={_UNLIMITED if log_kept_ms == math.inf else log_kept_ms}",
        )
    kept_bytes = _number(settings, "retention.bytes")
    if kept_bytes is not None and kept_bytes != _UNLIMITED:
        yield TopicFault(
            topic=topic.name,
            severity=Severity.WARNING,
            seen=(
                f"retention.bytes is {kept_bytes} for each partition: in heavy traffic records go "
                "before their time"
            ),
            setting=f"retention.bytes={_UNLIMITED}",
        )


def _forgetting_faults(
    settings: TopicSettings, others: Mapping[str, TopicSettings]
) -> Iterator[TopicFault]:
    kept_ms = retention_ms(settings)
    calls_kept_ms = max(
        (
            retention_ms(others[name]) or 0
            for name in (SCORES_TOPIC, TRANSCRIPTS_TOPIC)
            if name in others
        ),
        default=0,
    )
    if kept_ms is not None and kept_ms < calls_kept_ms:
        yield TopicFault(
            topic=ANNOTATIONS_TOPIC,
            severity=Severity.WARNING,
            seen=f"records are kept for {duration(kept_ms)} (retention.ms), but calls for "
            f"{duration(calls_kept_ms)}: a history that is "
            "recreated would bring forgotten calls back",
            setting=f"retention.ms={_UNLIMITED if calls_kept_ms == math.inf else round(calls_kept_ms)}",
        )


def _harm_of(topic: Topic) -> str:
    if topic.cleanup_policy == "compact":
        return "records written long ago would be gone"
    if topic.name == SCORES_TOPIC:
        return "only the newest record of each call would stay, and recovery needs them all"
    if topic.name == EVENTS_TOPIC:
        return (
            "the broker would refuse ticks, which have no key, and nothing would be evaluated any "
            "more"
        )
    return "only the newest record of each key would stay"


def _harm_of_other_clocks(topic: Topic) -> str:
    if topic.name == EVENTS_TOPIC:
        return (
            "old recordings that are played again would be deleted immediately, and readers that "
            "look by time would miss events"
        )
    if topic.name == SCORES_TOPIC:
        return (
            "who takes a partition over looks by time for what was published, and with a wrong "
            "clock would miss calls that are closed"
        )
    return (
        "silence would be judged by the clock of each producer, and one that is wrong ends calls "
        "early or late"
    )


def _harm_of_refusing(topic: Topic) -> str:
    """Returns the consequence of a broker that rejects the largest records."""
    if topic.direction == "input":
        return "the broker refuses events that callgauge would take"
    if topic.name == SCORES_TOPIC:
        return "a score that is refused stops its whole partition"
    if topic.name == EVENTS_TOPIC:
        return "an event that is refused stops the sequencer, and with it all calls"
    return (
        "large records would be left out"
        if topic.direction == "output"
        else "writes may be refused"
    )


def _harm_of_losing(topic: Topic, room_ms: float) -> str:
    """Returns the consequence of deleting records `room_ms` after they are needed without an
    outage, or before that if negative.
    """
    if topic.name == SCORES_TOPIC:
        if room_ms < 0:
            return "a restart would not find the published scores, and score twice"
        return f"after an outage of more than {duration(room_ms)} calls would be scored twice"
    if room_ms < 0:
        return "a restart would miss the beginning of a call that still runs"
    return f"an outage of more than {duration(room_ms)} would lose calls"


def _number(settings: TopicSettings, name: str) -> int | None:
    """Returns a numeric setting; None when the broker does not report it."""
    text = settings.get(name, "")
    return int(text) if text.lstrip("-").isdigit() else None
