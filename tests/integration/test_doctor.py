"""The doctor, the topic check and the evaluator's own look at its topics, on a real broker: all by
the same rules.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import RecordsToDelete
from aiokafka.structs import OffsetAndMetadata

from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.topics import require_fit_topics
from consumers.runtime.kafka.connection import KafkaSettings, TopicsUnfitError
from tests.integration.metrics_page import total
from tests.integration.processes import ended, started, wait_for
from tests.integration.test_bad_input import line
from tests.support.brokers.topic_changes import (
    add_partitions,
    admin_of,
    configure_topic,
    delete_topic,
)
from tests.support.fakes.log_writer import LogWriter

NOBODY = "127.0.0.1:1"

pytestmark = pytest.mark.service(partitions=2)


def command(environment: dict[str, str], *arguments: str) -> tuple[int, str, str]:
    done = ended(*arguments, **environment)
    assert "Traceback" not in done.err
    return done


def findings(
    environment: dict[str, str], code: int, *arguments: str
) -> dict[str, list[dict[str, Any]]]:
    """The doctor's findings by their subject; it must end with this exit code."""
    exit_code, out, err = command(environment, "doctor", "--json", *arguments)
    assert exit_code == code, out + err
    by_check: dict[str, list[dict[str, Any]]] = {}
    for told in map(json.loads, out.splitlines()):
        by_check.setdefault(told["check"], []).append(told)
    return by_check


def verdict(found: dict[str, list[dict[str, Any]]], check: str) -> str:
    (one,) = found[check]
    return str(one["verdict"])


def test_fresh_topics_are_well_and_nobody_reads_them(environment: dict[str, str]) -> None:
    found = findings(environment, code=0)
    assert [
        verdict(found, check) for check in ("settings", "broker", "topics", "topic settings")
    ] == ["ok"] * 4
    assert "none was sent" in found["producers"][0]["seen"]
    for check in ("sequencer group", "evaluator group", "exporter group"):
        assert "never read" in found[check][0]["seen"]
    exit_code, shown, _ = command({**environment, "CALLGAUGE_HTTP_PORT": "0"}, "doctor")
    assert exit_code == 0
    assert shown.splitlines()[-1] == "6 ok, 4 warning."


async def test_while_calls_run_the_groups_are_seen(
    environment: dict[str, str], bootstrap: str, tmp_path: Path
) -> None:
    topic = f"{environment['CALLGAUGE_TOPIC_PREFIX']}pipecat.events"
    over = asyncio.Event()

    async def events() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            while not over.is_set():
                await producer.send_and_wait(topic, line(), key=b"c", partition=1)
                await asyncio.sleep(0.05)

    with started(tmp_path / "run.log", "run", **environment) as process:
        process.metrics()
        writing = asyncio.create_task(events())
        try:
            wrong = line(type="speech_event", data={"kind": "bot_stopped", "timestamp": 1.0})
            async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
                for value in (wrong, b"no JSON"):
                    await producer.send_and_wait(topic, value, key=b"c", partition=1)
            wait_for(
                "the refusal",
                lambda: total(process.metrics(), "callgauge_quarantined_total") == 1,
                20,
            )
            address = process.metrics().removesuffix("/metrics")
            found = await asyncio.to_thread(findings, environment, 0, "--roles-at", address)
            other = environment | {"CALLGAUGE_LIMITS__IDLE_MS": "1000", "CALLGAUGE_HTTP_PORT": "0"}
            told = command(other, "doctor", "--roles-at", address)[1]
        finally:
            over.set()
            await writing
    assert verdict(found, "producers") == "ok"
    assert "events came in the last 10 min" in found["producers"][0]["seen"]
    assert verdict(found, "roles") == "ok"
    assert {one["seen"].split(" since ")[0] for one in found["counters"]} == {
        "1 records refused",
        "1 records not understood",
    }
    assert "speech_event of kind 'bot_stopped'" in found["records"][0]["seen"]
    assert "bot_speech_stopped" in found["records"][0]["what_to_do"]
    assert "limits.idle_ms is 300000, here 1000" in " ".join(told.split())
    assert verdict(found, "evaluator group") == verdict(found, "exporter group") == "ok"
    assert "1 member, 1 of 1 partitions assigned" in found["sequencer group"][0]["seen"]
    for check in ("evaluator group", "exporter group"):
        assert "1 member, 2 of 2 partitions assigned" in found[check][0]["seen"]
    assert "log" not in found, "nothing is behind"


async def test_what_was_deleted_before_it_was_read_is_told(
    environment: dict[str, str], bootstrap: str
) -> None:
    tp = TopicPartition(f"{environment['CALLGAUGE_TOPIC_PREFIX']}events", 1)
    log = LogWriter()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for _ in range(5):
            headers = list(log.event("audit", "c", b"{}", 0).headers)
            await producer.send_and_wait(tp.topic, b"{}", key=b"c", partition=1, headers=headers)
    reader = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=tp.topic.replace("events", "callgauge-evaluator"),
        enable_auto_commit=False,
    )
    async with reader:
        reader.assign([tp])
        await reader.commit({tp: OffsetAndMetadata(1, "")})
    async with admin_of(bootstrap) as admin:
        await admin.delete_records({tp: RecordsToDelete(before_offset=4)})
    lost, rest = findings(environment, code=1)["evaluator group"]
    assert (lost["verdict"], rest["verdict"]) == ("wrong", "warning")
    assert f"3 records, {tp.topic}[1] 3" in lost["seen"]
    assert rest["lag"] == {f"{tp.topic}[1]": 1}


async def test_topics_that_lose_records_are_found_by_all_three(
    environment: dict[str, str], kafka: KafkaSettings, bootstrap: str
) -> None:
    prefix = environment["CALLGAUGE_TOPIC_PREFIX"]
    assert await require_fit_topics(kafka, EvaluatorSettings()) == 2
    assert command(environment, "topics", "check")[0] == 0
    stamped = {"message_timestamp_type": "LogAppendTime"}
    await configure_topic(bootstrap, f"{prefix}scores", cleanup_policy="compact", **stamped)
    lossy = {"retention_ms": "60000", **stamped}
    await configure_topic(bootstrap, f"{prefix}events", max_message_bytes="1085440", **lossy)
    await configure_topic(bootstrap, f"{prefix}pipecat.events", **lossy)
    await configure_topic(bootstrap, f"{prefix}audit.events", retention_bytes="1000000")

    with pytest.raises(TopicsUnfitError) as refused:
        await require_fit_topics(kafka, EvaluatorSettings())
    told = str(refused.value)
    assert f"{prefix}scores: cleanup.policy is compact" in told
    assert f"{prefix}events: records are kept for 1 min (retention.ms)" in told
    assert "audit.events" not in told, "what is only wrong stops no start"
    assert "pipecat.events" not in told, "the evaluator does not read it"

    found = findings(environment, code=1)
    assert [one["verdict"] for one in found[f"{prefix}scores"]] == ["wrong"]
    for name in ("events", "pipecat.events"):
        assert [one["verdict"] for one in found[f"{prefix}{name}"]] == ["wrong"]
    assert {one["verdict"] for one in found[f"{prefix}audit.events"]} == {"wrong", "warning"}
    exit_code, table, told = command(environment, "topics", "check")
    assert exit_code == 1
    assert "warning: retention.bytes is 1000000" in table
    for needed in (
        "scores needs cleanup.policy=delete",
        "pipecat.events needs retention.ms=604800000",
    ):
        assert f"{prefix}{needed}" in told
    assert f"{prefix}audit.events needs message.timestamp.type=LogAppendTime" in told


async def test_unequal_and_missing_topics_are_found_by_all_three(
    environment: dict[str, str], kafka: KafkaSettings, bootstrap: str
) -> None:
    prefix = environment["CALLGAUGE_TOPIC_PREFIX"]
    await add_partitions(bootstrap, {f"{prefix}scores": 5})
    await delete_topic(bootstrap, f"{prefix}goals")
    with pytest.raises(TopicsUnfitError, match="scores 5"):
        await require_fit_topics(kafka, EvaluatorSettings())
    found = findings(environment, code=1)
    assert "5 partitions, not 2" in found[f"{prefix}scores"][0]["seen"]
    assert found["topics"][0]["seen"] == f"not there: {prefix}goals"
    assert command(environment, "topics", "check")[0] == 1
    elsewhere = environment | {"CALLGAUGE_TOPIC_PREFIX": f"{prefix}no."}
    found = findings(elsewhere, code=1)
    assert [verdict(found, check) for check in ("topics", "evaluator group")] == [
        *("wrong", "unknown"),
    ]


def test_a_broker_that_is_away_is_one_finding() -> None:
    found = findings({"CALLGAUGE_BOOTSTRAP": NOBODY}, code=1)
    assert verdict(found, "broker") == "wrong"
    assert f"no broker answers at {NOBODY}" in found["broker"][0]["seen"]
    assert set(found) == {"settings", "goals", "judge", "roles", "broker"}
