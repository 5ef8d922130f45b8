"""Topics that change under a running evaluator, on a real broker: it goes on without a person, and no call closes twice."""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from schemas.scores.records import SCORE_RECORD, CallValues, ClosedFact, TurnStatus
from tests.integration.metrics_page import answer_of, total
from tests.integration.processes import Process, ran, started
from tests.integration.score_log import LOOK_SECONDS, records_on
from tests.support.brokers.topic_changes import configure_topic, delete_topic
from tests.support.patience import patient

pytestmark = [pytest.mark.kafka, pytest.mark.service(partitions=1, limits__closing_grace_ms="0")]
SECONDS = 120
"""A bound, not a goal: the machine may be busy."""


async def send_call(environment: dict[str, str], name: str) -> None:
    """A call of one exchange, whole."""
    now = time.time_ns() // 1_000_000
    said = "I would like to change my booking please. " * 40
    events = [
        {"message_type": "user", "timestamp": now - 2_000, "value": said},
        {"message_type": "assistant", "timestamp": now - 1_000, "value": said},
        {"type": "call_ended", "timestamp": now, "reason": "goodbye"},
    ]
    producer = AIOKafkaProducer(bootstrap_servers=environment["CALLGAUGE_BOOTSTRAP"])
    await producer.start()
    try:
        for event in events:
            topic = f"{environment['CALLGAUGE_TOPIC_PREFIX']}audit.events"
            await producer.send_and_wait(topic, json.dumps(event).encode(), key=name.encode(), partition=0)
    finally:
        await producer.stop()


async def closed(environment: dict[str, str]) -> Counter[str]:
    """How often each call has closed. Its final values come before, in the same transaction."""
    records = [SCORE_RECORD.validate_json(each.value) for each in await records_on(environment, "scores") if each.value]
    values = (record for record in records if isinstance(record, CallValues))
    finals = {record.conversation_id for record in values if record.status is TurnStatus.FINAL}
    calls = Counter(record.conversation_id for record in records if isinstance(record, ClosedFact))
    assert finals >= calls.keys()
    return calls


async def until_closed(environment: dict[str, str], *names: str) -> None:
    async with asyncio.timeout(patient(SECONDS)):
        while await closed(environment) != Counter(names):  # noqa: ASYNC110 - the topic is outside
            await asyncio.sleep(LOOK_SECONDS)


def page(process: Process, path: str) -> tuple[int, str]:
    address = process.metrics()
    answer = answer_of(address.removesuffix("/metrics") + path)
    return answer.status_code, answer.text


async def test_a_transcript_that_its_topic_refuses_is_left_out_and_the_next_one_is_written(
    environment: dict[str, str], bootstrap: str, tmp_path: Path
) -> None:
    transcripts = f"{environment['CALLGAUGE_TOPIC_PREFIX']}transcripts"
    with started(tmp_path / "run.log", "run", "--roles", "sequencer,evaluator", **environment) as process:
        address = process.metrics()
        await send_call(environment, "before")
        await until_closed(environment, "before")
        await configure_topic(bootstrap, transcripts, max_message_bytes="1000")
        await send_call(environment, "refused")
        await until_closed(environment, "before", "refused")
        assert total(address, "callgauge_limits_hit_total", limit="transcript") == 1
        await configure_topic(bootstrap, transcripts)
        await send_call(environment, "after")
        await until_closed(environment, "before", "refused", "after")
        assert [each.key for each in await records_on(environment, "transcripts")] == [b"before", b"after"]
        assert total(address, "callgauge_partitions_fenced_total") == 0
        assert process.text.count("record_too_large_to_write") == 1
        assert process.is_running


async def test_an_input_that_is_deleted_is_named_and_read_again_when_it_is_there(
    environment: dict[str, str], bootstrap: str, tmp_path: Path
) -> None:
    """Its offset is still to be committed when it is deleted, and no broker takes that any more."""
    environment["CALLGAUGE_COMMIT_INTERVAL_MS"] = "2000"
    topic = f"{environment['CALLGAUGE_TOPIC_PREFIX']}pipecat.events"
    with started(tmp_path / "run.log", "run", "--roles", "sequencer,evaluator", **environment) as process:
        await send_call(environment, "before")
        await until_closed(environment, "before")
        await delete_topic(bootstrap, topic)
        text = process.printed("role_failed", SECONDS)
        assert f"Topics: {topic} is gone from" in text
        status, said = page(process, "/readyz")
        assert (status, "TopicsUnfitError" in said) == (503, True)
        assert page(process, "/healthz") == (200, "ok\n")
        await send_call(environment, "after")
        ran("topics", "create", "--partitions", "1", **environment)
        process.printed("role_works_again", SECONDS)
        await until_closed(environment, "before", "after")
        assert page(process, "/readyz") == (200, "ok\n")
        assert process.is_running
