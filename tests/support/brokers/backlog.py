"""A backlog of calls on a broker: records with broker times long ago, each with a time of its own,
which no consumer has read.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import Producer

from schemas.closed_sets import InputSource
from schemas.topics import TOPIC_BY_SOURCE
from tests.support.brokers.topic_changes import configure_topic
from tests.support.patience import patient

CALL_SOURCES = (InputSource.AUDIT, InputSource.PIPECAT, InputSource.ELEVENLABS)
POLL_EVERY = 10_000


class Sent(NamedTuple):
    """A record as it is put on an input topic; `at_ms` is when the broker took it."""

    source: InputSource
    key: str
    value: bytes
    partition: int
    at_ms: int


def put_backlog(bootstrap: str, prefix: str, records: Iterable[Sent]) -> None:
    """Writes records to the inputs, which are there, at the times that they name: for that the
    topics take the producer's.

    So the same records are the same backlog whenever they are put.
    """
    _put(bootstrap, {source: prefix + TOPIC_BY_SOURCE[source] for source in CALL_SOURCES}, records)


def put_on_topic(bootstrap: str, name: str, records: Iterable[Sent]) -> None:
    """Writes the records of all sources to one topic, which is there, at the times that they
    name.
    """
    _put(bootstrap, dict.fromkeys(CALL_SOURCES, name), records)


def _put(bootstrap: str, topics: Mapping[InputSource, str], records: Iterable[Sent]) -> None:
    for name in set(topics.values()):
        asyncio.run(configure_topic(bootstrap, name, message_timestamp_type="CreateTime"))
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 20,
            "queue.buffering.max.messages": 2_000_000,
            "log_level": 0,
        }
    )
    for number, sent in enumerate(records):
        producer.produce(
            topics[sent.source],
            sent.value,
            sent.key,
            partition=sent.partition,
            timestamp=sent.at_ms,
        )
        if number % POLL_EVERY == 0:
            producer.poll(0)
    assert producer.flush(patient(60)) == 0
