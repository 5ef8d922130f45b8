"""What `replay` and `simulate` really put on a broker."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from schemas.topics import INPUT_TOPICS
from streamer.embedded_broker import PARTITIONS, embedded_broker
from tests.unit.test_cli import Callgauge, callgauge, write_calls

__all__ = ["callgauge"]  # the fixture, for the tests below


@pytest.fixture
def embedded() -> Iterator[str]:
    with embedded_broker(INPUT_TOPICS) as bootstrap:
        yield bootstrap


def records(bootstrap: str) -> list[Message]:
    """All records of the input topics, in the order of each partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": True})
    try:
        partitions = [TopicPartition(topic, number, 0) for topic in INPUT_TOPICS for number in range(PARTITIONS)]
        consumer.assign(partitions)
        found, ends = [], 0
        deadline_seconds = time.monotonic() + 20
        while ends < len(partitions):
            assert time.monotonic() < deadline_seconds, "the records could not be read"
            for message in consumer.consume(num_messages=500, timeout=1):
                if message.error():
                    ends += 1  # the end of a partition
                else:
                    found.append(message)
        return found
    finally:
        consumer.close()


def values(found: list[Message]) -> list[dict[str, Any]]:
    return [json.loads(message.value()) for message in found]


def test_a_replay_is_fresh_each_time_and_happens_now(callgauge: Callgauge, embedded: str, tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    ids = write_calls(path, 1, 2)
    began_ms = time.time_ns() // 1_000_000
    for _ in range(2):
        code, out, err = callgauge("replay", path, "--speed", "max", "--bootstrap", embedded)
        assert (code, out) == (0, "")
    found = records(embedded)
    assert f"Played 2 calls, {len(found) // 2} events" in err
    keys = {message.key().decode() for message in found}
    assert len(keys) == 4
    assert all(sum(key.startswith(f"{name}-") for key in keys) == 2 for name in ids)
    times_ms = [int(value["timestamp"]) for value in values(found)]
    assert max(times_ms) <= time.time_ns() // 1_000_000
    assert min(times_ms) > began_ms - 300_000  # the calls are shorter than that, and end now


def test_ids_and_times_are_kept_when_asked(callgauge: Callgauge, embedded: str, tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    (name,) = write_calls(path, 1)
    arguments = ("--keep-ids", "--keep-times", "--speed", "max", "--bootstrap", embedded)
    assert callgauge("replay", path, *arguments).code == 0
    found = records(embedded)
    assert {message.key().decode() for message in found} == {name}
    assert min(int(value["timestamp"]) for value in values(found)) == 1_790_000_000_000


def test_the_agent_is_named_where_the_recording_has_none(callgauge: Callgauge, embedded: str, tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_text('{"id": "c", "audit": [{"value": "hi", "timestamp": 5000, "message_type": "user"}]}\n')
    assert callgauge("replay", path, "--agent", "bot-7", "--bootstrap", embedded).code == 0
    started, _, ended = values(records(embedded))
    assert (started["type"], started["agent"], ended["type"]) == ("call_started", "bot-7", "call_ended")


def test_simulated_calls_flow_until_the_time_is_over(callgauge: Callgauge, embedded: str) -> None:
    began_seconds = time.monotonic()
    code, out, err = callgauge("simulate", "--calls", 3, "--seconds", 0.5, "--seed", 1, "--bootstrap", embedded)
    assert time.monotonic() - began_seconds < 5
    assert (code, out) == (0, "")
    assert "seed 1" in err
    assert "call_started" in {value.get("type") for value in values(records(embedded))}
