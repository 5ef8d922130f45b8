"""Repeated calls in the topics."""

from collections.abc import Callable
from urllib.parse import quote

from aiokafka import TopicPartition

from consumers.runtime.kafka.connection import KafkaSettings, partition_counts
from schemas.quarantine import UndecodableRecord
from schemas.topics import SCORES_TOPIC
from streamer.cluster.readers import onlooker, records_so_far
from streamer.trials.calls import CallFolds, Trials, fold_line


async def read_past_trials(
    kafka: KafkaSettings, since_ms: int, console_url: str | None, trials: Trials, on_record: Callable[[], None]
) -> int:
    """Adds the calls that closed since a moment, in the order in which they closed, with their final records.

    Args:
        kafka: The cluster.
        since_ms: Calls that closed earlier are not compared.
        console_url: Where the pages of calls are; None if nobody knows.
        trials: Gets the calls.
        on_record: Called for each record.

    Returns:
        The number of records of a newer version, or of another program. Their calls are left out.

    Raises:
        KafkaUnreachableError: No broker answers, or it refuses.
        TopicsUnfitError: There is no topic `scores`.
    """
    folds = CallFolds(trials, lambda call: call_page(console_url, call), since_ms)
    counts = await partition_counts(kafka, [SCORES_TOPIC])
    topic = kafka.topic(SCORES_TOPIC)
    partitions = [TopicPartition(topic, number) for number in range(counts[SCORES_TOPIC])]
    unreadable = 0
    async with onlooker(kafka, "trials", auto_offset_reset="earliest") as consumer:
        async for record in records_so_far(consumer, partitions, since_ms):
            on_record()
            if isinstance(record, UndecodableRecord):
                folds.damage_open_calls()  # it is of one of them
                unreadable += 1
            elif isinstance(record.key, bytes) and record.value is not None:
                unreadable += fold_line(record.value, folds, record.key.decode("utf-8", "replace")) is not None
    folds.end()
    trials.found.sort(key=lambda trial: (trial.closed_at_ms, trial.conversation_id))
    return unreadable


def call_page(console_url: str | None, conversation_id: str) -> str:
    """The address of a call's page.

    Example:
        >>> call_page("https://example.com/callgauge/", "1.1.2/trial_0"), call_page(None, "c")
        ('https://example.com/callgauge/calls/1.1.2%2Ftrial_0', '')
    """
    return f"{console_url.rstrip('/')}/calls/{quote(conversation_id, safe='')}" if console_url else ""
