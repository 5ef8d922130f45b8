"""The required settings of topics: each rule at its edge, and no message where nothing is wrong."""

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from consumers.engine.admission import MAX_HEADERS, MAX_HEADERS_BYTES
from consumers.engine.transcripts import MAX_TRANSCRIPT_BYTES
from schemas.closed_sets import InputSource
from schemas.judging import MAX_QUESTION_BYTES
from schemas.log import Origin, Placed
from schemas.topics import (
    INPUT_TOPICS,
    MAX_BATCH_BYTES,
    OUTAGE_MS,
    PLACED_BYTES,
    TOPICS,
    UNREAD_MS,
    Severity,
    TopicFault,
    TopicNeeds,
    least_message_bytes,
    topic_faults,
)
from schemas.units import DAY_MS
from schemas.wire import MAX_NAME_CHARS

HOUR_MS = 3_600_000
LARGEST_BYTES = 1_048_576
NEEDS = TopicNeeds(longest_call_ms=4 * HOUR_MS, idle_ms=300_000, max_record_bytes=LARGEST_BYTES)
LEAST_MS = 4 * HOUR_MS + 300_000


def right() -> dict[str, dict[str, str]]:
    """Every topic as `callgauge topics create` makes it."""
    return {
        topic.name: {
            "cleanup.policy": topic.cleanup_policy,
            "retention.ms": str(topic.retention_ms),
            "retention.bytes": "-1",
            "max.message.bytes": str(least_message_bytes(topic, NEEDS)),
            "message.timestamp.type": "LogAppendTime" if topic.has_broker_time else "CreateTime",
        }
        for topic in TOPICS
    }


def faults(topic: str, **settings: str) -> list[TopicFault]:
    """The messages when one topic differs, all of them about that topic."""
    changed = {name.replace("_", "."): value for name, value in settings.items()}
    found = topic_faults(right() | {topic: right()[topic] | changed}, NEEDS)
    assert {fault.topic for fault in found} <= {topic}
    return list(found)


def test_topics_as_we_make_them_are_right() -> None:
    assert topic_faults(right(), NEEDS) == ()


def test_what_is_not_known_is_not_judged() -> None:
    assert topic_faults({}, NEEDS) == ()
    assert topic_faults({topic.name: {} for topic in TOPICS}, NEEDS) == ()


@pytest.mark.parametrize("topic", ["scores", "events"])
@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_what_is_read_back_must_never_be_compacted(topic: str, policy: str) -> None:
    (fault,) = faults(topic, cleanup_policy=policy)
    assert fault.severity is Severity.REFUSED
    assert policy in fault.seen
    assert fault.setting == "cleanup.policy=delete"


@pytest.mark.parametrize(
    ("topic", "policy"),
    [("audit.events", "compact"), ("quarantine", "compact"), ("goals", "delete")],
)
def test_elsewhere_the_wrong_cleanup_is_wrong_and_stops_no_start(topic: str, policy: str) -> None:
    (fault,) = faults(topic, cleanup_policy=policy)
    assert fault.severity is Severity.WRONG


@pytest.mark.parametrize("topic", ["scores", "events"])
@pytest.mark.parametrize(
    ("kept_ms", "severity"),
    [
        (0, Severity.REFUSED),
        (LEAST_MS - 1, Severity.REFUSED),
        (LEAST_MS, Severity.WARNING),
        (LEAST_MS + OUTAGE_MS - 1, Severity.WARNING),
    ],
)
def test_records_are_kept_for_the_longest_call_and_an_outage(
    topic: str, kept_ms: int, severity: Severity
) -> None:
    (fault,) = faults(topic, retention_ms=str(kept_ms))
    assert fault.severity is severity
    assert "4 h 5 min" in fault.seen
    assert faults(topic, **dict([fault.setting.replace(".", "_").split("=")])) == []


@pytest.mark.parametrize("topic", INPUT_TOPICS)
@pytest.mark.parametrize(
    ("kept_ms", "severity"),
    [
        (0, Severity.WRONG),
        (UNREAD_MS - 1, Severity.WRONG),
        (UNREAD_MS, Severity.WARNING),
        (OUTAGE_MS - 1, Severity.WARNING),
    ],
)
def test_an_input_is_read_once_so_it_must_survive_an_outage_alone(
    topic: str, kept_ms: int, severity: Severity
) -> None:
    (fault,) = faults(topic, retention_ms=str(kept_ms))
    assert fault.severity is severity
    assert "would lose calls" in fault.seen
    assert faults(topic, retention_ms=str(OUTAGE_MS)) == []
    assert faults(topic, **dict([fault.setting.replace(".", "_").split("=")])) == []


def test_the_log_may_be_kept_for_just_a_call_and_an_outage_and_for_ever_when_scores_are_too() -> (
    None
):
    assert faults("events", retention_ms=str(LEAST_MS + OUTAGE_MS)) == []
    both = right()
    for name in ("scores", "events", "annotations"):
        both[name]["retention.ms"] = "-1"
    assert topic_faults(both, NEEDS) == ()


@pytest.mark.parametrize(("topic", "kept_ms"), [("scores", 31 * DAY_MS), ("transcripts", -1)])
def test_what_is_forgotten_is_kept_as_long_as_what_would_bring_it_back(
    topic: str, kept_ms: int
) -> None:
    settings = right()
    settings[topic]["retention.ms"] = str(kept_ms)
    (fault,) = topic_faults(settings, NEEDS)
    assert (fault.topic, fault.severity, fault.setting) == (
        "annotations",
        Severity.WARNING,
        f"retention.ms={kept_ms}",
    )
    settings["annotations"]["retention.ms"] = str(kept_ms)
    assert topic_faults(settings, NEEDS) == ()


@pytest.mark.parametrize(("kept_ms", "said"), [(15 * DAY_MS, "15 days"), (-1, "for ever")])
def test_scores_are_kept_as_long_as_what_they_were_made_from(kept_ms: int, said: str) -> None:
    settings = right()
    settings["events"]["retention.ms"] = str(kept_ms)
    (fault,) = topic_faults(settings, NEEDS)
    assert (fault.topic, fault.severity) == ("scores", Severity.WARNING)
    assert said in fault.seen
    assert fault.setting == f"retention.ms={kept_ms}"


@pytest.mark.parametrize("topic", [*INPUT_TOPICS, "scores", "events"])
def test_a_bound_on_bytes_is_a_warning(topic: str) -> None:
    (fault,) = faults(topic, retention_bytes="1000000000")
    assert (fault.severity, fault.setting) == (Severity.WARNING, "retention.bytes=-1")


@pytest.mark.parametrize("topic", [*INPUT_TOPICS, "events", "scores"])
def test_inputs_the_log_and_scores_take_the_brokers_time(topic: str) -> None:
    (fault,) = faults(topic, message_timestamp_type="CreateTime")
    assert (fault.severity, fault.setting) == (
        Severity.WRONG,
        "message.timestamp.type=LogAppendTime",
    )
    assert faults("transcripts", message_timestamp_type="CreateTime") == []


@pytest.mark.parametrize(
    ("topic", "least", "severity"),
    [
        *((topic, LARGEST_BYTES, Severity.WARNING) for topic in INPUT_TOPICS),
        *(
            (topic, MAX_BATCH_BYTES, Severity.REFUSED)
            for topic in ("scores", "transcripts", "judge.requests", "quarantine")
        ),
        ("events", LARGEST_BYTES + PLACED_BYTES, Severity.REFUSED),
        ("goals", MAX_BATCH_BYTES, Severity.WARNING),
    ],
)
def test_the_broker_takes_what_we_take_and_write(
    topic: str, least: int, severity: Severity
) -> None:
    assert faults(topic, max_message_bytes=str(least)) == []
    (fault,) = faults(topic, max_message_bytes=str(least - 1))
    assert (fault.severity, fault.setting) == (severity, f"max.message.bytes={least}")


@pytest.mark.parametrize("largest_bytes", [MAX_TRANSCRIPT_BYTES, MAX_QUESTION_BYTES])
def test_the_largest_record_that_we_write_fits_a_batch(largest_bytes: int) -> None:
    size = DefaultRecordBatchBuilder.estimate_size_in_bytes(
        b"k" * MAX_NAME_CHARS * 4, b"v" * largest_bytes, []
    )
    assert size <= MAX_BATCH_BYTES


def test_the_largest_event_fits_what_the_log_must_take() -> None:
    headers = [
        (f"h{number:02}", b"v" * (MAX_HEADERS_BYTES // MAX_HEADERS - 3))
        for number in range(MAX_HEADERS)
    ]
    placed = Placed(1, Origin(InputSource.AUDIT, 0, 0, 0, 0)).header()
    size = DefaultRecordBatchBuilder.estimate_size_in_bytes(
        b"k" * MAX_NAME_CHARS, b"v" * LARGEST_BYTES, [*headers, placed]
    )
    assert LARGEST_BYTES + MAX_HEADERS_BYTES < size <= LARGEST_BYTES + PLACED_BYTES


def test_several_faults_come_in_the_order_of_the_topic_table() -> None:
    settings = right()
    settings["scores"]["cleanup.policy"] = "compact"
    settings["pipecat.events"]["retention.ms"] = "1"
    settings["scores"]["retention.bytes"] = "5"
    assert [fault.topic for fault in topic_faults(settings, NEEDS)] == [
        "pipecat.events",
        "scores",
        "scores",
    ]
