"""An evaluator that is killed between two snapshots: the next one goes on from the older state and takes its steps again."""

import asyncio
import re
import secrets
import signal
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from consumers.evaluator.snapshots.manifest import RefusedError, opened
from schemas.topics import SNAPSHOTS_TOPIC
from tests.chaos.verdict.verdict import Traces, judged, limits_of
from tests.integration.metrics_page import total
from tests.integration.processes import started, wait_for
from tests.integration.test_hand_over import (
    CALLS,
    EVALUATOR,
    WAIT_SECONDS,
    Calls,
    read,
    ready_address,
    restored,
)
from tests.support.patience import patient

PARTITIONS = 4
INTERVAL_MS = 12_000
KEY = secrets.token_hex(32)
LOOK_SECONDS = 0.5

pytestmark = pytest.mark.service(
    partitions=PARTITIONS,
    limits__closing_grace_ms="300",
    snapshots__key=KEY,
    snapshots__interval_ms=str(INTERVAL_MS),
)


async def all_is_in_snapshots(environment: dict[str, str]) -> None:
    """Returns when each partition has a snapshot that covers every record sent so far."""
    begin = time.monotonic()
    while time.monotonic() - begin < patient(WAIT_SECONDS):
        if len(await covered(environment)) == PARTITIONS:
            return
        await asyncio.sleep(LOOK_SECONDS)
    raise AssertionError("there was no snapshot of each partition in time")


async def covered(environment: dict[str, str]) -> set[int]:
    """The partitions with a snapshot from which nothing is left to read."""
    consumer = AIOKafkaConsumer(
        environment["CALLGAUGE_TOPIC_PREFIX"] + SNAPSHOTS_TOPIC,
        bootstrap_servers=environment["CALLGAUGE_BOOTSTRAP"],
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    await consumer.start()
    try:
        found = set()
        for partition, end in (await consumer.end_offsets(consumer.assignment())).items():
            while await consumer.position(partition) < end:
                for record in (await consumer.getmany(partition, timeout_ms=1_000)).get(partition, ()):
                    try:
                        manifest = opened(record.value, KEY.encode())
                    except RefusedError:  # a part of the state
                        continue
                    inputs = {TopicPartition(topic, manifest.number): at for topic, at in manifest.positions.items()}
                    if await consumer.end_offsets(inputs) == inputs:
                        found.add(manifest.number)
        return found
    finally:
        await consumer.stop()


async def test_a_killed_evaluator_is_gone_on_with_behind_its_snapshots(
    environment: dict[str, str], bootstrap: str, topic_prefix: str, tmp_path: Path
) -> None:
    calls = Calls(environment)
    with started(tmp_path / "first.log", *EVALUATOR, **environment) as first:
        one = ready_address(first)
        first.printed("evaluator_ready")
        sent = await calls.go_on(0.4)
        wait_for("the first part", lambda: read(one) == sent, WAIT_SECONDS)
        await all_is_in_snapshots(environment)
        sent = await calls.go_on(0.7)
        wait_for("the second part", lambda: read(one) == sent, WAIT_SECONDS)
        wait_for("the scores of it", lambda: total(one, "callgauge_scores_unwritten") == 0, WAIT_SECONDS)
        assert first.signalled(signal.SIGKILL)[0] == -signal.SIGKILL
    with started(tmp_path / "second.log", *EVALUATOR, **environment) as second:
        two = ready_address(second)
        second.printed("evaluator_ready", WAIT_SECONDS)
        assert restored(two) == PARTITIONS, second.text
        steps = re.search(r"steps=(\d+)", second.text)
        assert steps is not None
        assert int(steps[1]) > CALLS, second.text
        sent_all = await calls.go_on(1)
        assert await calls.are_closed()
        assert sent_all - sent <= read(two) < sent_all - 0.35 * sent, "calls were replayed from their first record"
        second.signalled(signal.SIGTERM)
    findings = judged(Traces(bootstrap, topic_prefix, PARTITIONS, limits_of(environment), tmp_path / "deleted"))
    assert (findings.missing, findings.duplicate, findings.wrong) == (0, 0, 0), findings.examples
    assert findings.calls == CALLS
