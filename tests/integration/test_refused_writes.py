"""Topics that change under a running evaluator, on a real broker: it goes on without a person, and
no call closes twice.
"""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from schemas.rows import CallRow
from tests.integration.metrics_page import answer_of, total
from tests.integration.processes import Process, ran, started, wait_for
from tests.integration.score_log import LOOK_SECONDS, records_on, rows_in
from tests.support.brokers.topic_changes import configure_topic, delete_topic
from tests.support.patience import patient

pytestmark = [pytest.mark.kafka, pytest.mark.service(partitions=1, limits__closing_grace_ms="0")]
SECONDS = 120
"""A bound, not a goal: the machine may be busy."""


async def send_call(environment: dict[str, str], name: str, *, agent: str | None = None) -> None:
    """A call of one exchange, whole; its agent is named on another input than the rest."""
    now = time.time_ns() // 1_000_000
    said = "I would like to change my booking please. " * 40
    events: list[tuple[str, dict[str, object]]] = [
        ("audit.events", {"message_type": "user", "timestamp": now - 2_000, "value": said}),
        ("audit.events", {"message_type": "assistant", "timestamp": now - 1_000, "value": said}),
        ("audit.events", {"type": "call_ended", "timestamp": now, "reason": "goodbye"}),
    ]
    if agent is not None:
        events.insert(
            0,
            ("pipecat.events", {"type": "call_started", "timestamp": now - 3_000, "agent": agent}),
        )
    producer = AIOKafkaProducer(bootstrap_servers=environment["CALLGAUGE_BOOTSTRAP"])
    await producer.start()
    try:
        for to, event in events:
            topic = f"{environment['CALLGAUGE_TOPIC_PREFIX']}{to}"
            await producer.send_and_wait(
                topic, json.dumps(event).encode(), key=name.encode(), partition=0
            )
    finally:
        await producer.stop()


async def closed(environment: dict[str, str]) -> Counter[str]:
    """How often each call has closed. Its final values are in the closed row."""
    rows = rows_in(each.value for each in await records_on(environment, "scores"))
    return Counter(
        row.conversation_id for row in rows if isinstance(row, CallRow) and row.state == "closed"
    )


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
    with started(
        tmp_path / "run.log", "run", "--roles", "sequencer,evaluator", **environment
    ) as process:
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
        assert [each.key for each in await records_on(environment, "transcripts")] == [
            b"before",
            b"after",
        ]
        assert total(address, "callgauge_partitions_fenced_total") == 0
        assert process.text.count("record_too_large_to_write") == 1
        assert process.is_running


async def test_an_input_that_is_deleted_is_named_and_read_again_when_it_is_there(
    environment: dict[str, str], bootstrap: str, tmp_path: Path
) -> None:
    """Time waits for it as it does for any input that does not answer; then the calls of the others
    go on without it.
    """
    topic = f"{environment['CALLGAUGE_TOPIC_PREFIX']}pipecat.events"

    def is_named() -> bool:
        status, said = page(process, "/readyz")
        return status == 503 and f"the topic {topic} is not there" in said

    with started(
        tmp_path / "run.log", "run", "--roles", "sequencer,evaluator", **environment
    ) as process:
        await send_call(environment, "before", agent="desk")
        await until_closed(environment, "before")
        await delete_topic(bootstrap, topic)
        await asyncio.to_thread(wait_for, "the input to be named", is_named, SECONDS)
        assert page(process, "/healthz") == (200, "ok\n")
        await send_call(environment, "meanwhile")
        await until_closed(environment, "before", "meanwhile")
        assert f"{topic}[0]" in await asyncio.to_thread(process.printed, "inputs_left_out", SECONDS)
        ran("topics", "create", "--partitions", "1", **environment)
        await asyncio.to_thread(
            wait_for, "the input to be there", lambda: page(process, "/readyz")[0] == 200, SECONDS
        )
        await send_call(environment, "after", agent="desk")
        await until_closed(environment, "before", "meanwhile", "after")
        assert f"{topic}[0]@" in await asyncio.to_thread(
            process.printed, "input_not_where_it_was", SECONDS
        )
        rows = rows_in(each.value for each in await records_on(environment, "scores"))
        closings = [row for row in rows if isinstance(row, CallRow) and row.state == "closed"]
        agents = {each.conversation_id: each.labels.agent for each in closings}
        assert agents == {"before": "desk", "meanwhile": "unknown", "after": "desk"}, (
            "what is on the new topic is read"
        )
        assert page(process, "/readyz") == (200, "ok\n")
        assert "role_failed" not in process.text
        assert process.is_running
