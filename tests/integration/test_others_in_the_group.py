"""Others in the evaluators' group: a program that commits offsets moves no call, and a second
evaluator of the same name fights nobody.
"""

import asyncio
import json
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from tests.chaos.cluster.administration import committed
from tests.integration.metrics_page import total
from tests.integration.processes import Process, started, wait_for
from tests.integration.score_log import LOOK_SECONDS, records_on
from tests.support.patience import patient

WAIT_SECONDS = 40
ROLE = ("run", "--roles", "sequencer,evaluator")
pytestmark = [pytest.mark.kafka, pytest.mark.service(partitions=1, limits__closing_grace_ms="300")]


class Topics:
    """Writes calls and reads `scores` of any version."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment

    async def send(self, conversation_id: str, *events: dict[str, Any]) -> None:
        now_ms = time.time_ns() // 1_000_000
        timed = ({"timestamp": now_ms + place} | event for place, event in enumerate(events))
        await self.write("audit.events", conversation_id, *timed)

    async def write(self, topic: str, conversation_id: str, *values: dict[str, Any]) -> None:
        name = self._environment["CALLGAUGE_TOPIC_PREFIX"] + topic
        async with AIOKafkaProducer(
            bootstrap_servers=self._environment["CALLGAUGE_BOOTSTRAP"]
        ) as producer:
            for value in values:
                await producer.send_and_wait(
                    name, json.dumps(value).encode(), key=conversation_id.encode()
                )

    async def scores(self) -> list[dict[str, Any]]:
        return [
            json.loads(each.value)
            for each in await records_on(self._environment, "scores")
            if each.value
        ]

    async def closed(self, *calls: str) -> dict[str, str]:
        """By call, the reason, once all of them are closed."""
        deadline = time.monotonic() + patient(WAIT_SECONDS)
        while time.monotonic() < deadline:
            reasons = {
                each["conversation_id"]: each["close_reason"]
                for each in _closed(await self.scores())
            }
            if reasons.keys() >= set(calls):
                return reasons
            await asyncio.sleep(LOOK_SECONDS)
        raise AssertionError(f"waited {WAIT_SECONDS} s in vain for the closings of {calls}")


def _closed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in rows if each.get("state") == "closed"]


SAID = (
    {"message_type": "user", "value": "Hello"},
    {"message_type": "assistant", "value": "Good day."},
)
ENDED = {"type": "call_ended", "reason": "goodbye"}


def call_started(agent: str) -> dict[str, Any]:
    return {"type": "call_started", "agent": agent}


def agents(records: list[dict[str, Any]]) -> dict[str, str]:
    """By closed call, the agent that its closed row names."""
    return {
        each["conversation_id"]: each["labels"]["agent"]
        for each in records
        if each.get("state") == "closed"
    }


async def test_what_a_foreign_consumer_committed_past_is_read(
    environment: dict[str, str], tmp_path: Path
) -> None:
    topics, prefix = Topics(environment), environment["CALLGAUGE_TOPIC_PREFIX"]
    with started(tmp_path / "first.log", *ROLE, **environment) as running:
        running.printed("evaluator_ready", WAIT_SECONDS)
        bootstrap, group = environment["CALLGAUGE_BOOTSTRAP"], f"{prefix}callgauge-evaluator"
        await asyncio.to_thread(
            wait_for, "its commit", lambda: bool(committed(bootstrap, group, {0})), WAIT_SECONDS
        )
        running.signalled(signal.SIGTERM)
    await topics.write(
        "pipecat.events", "a", call_started("desk") | {"timestamp": time.time_ns() // 1_000_000}
    )
    with started(
        tmp_path / "sequencer.log", "run", "--roles", "sequencer", **environment
    ) as running:
        appended = partial(total, running.metrics(WAIT_SECONDS), "callgauge_sequencer_events_total")
        await asyncio.to_thread(
            wait_for, "the event to be in the log", lambda: appended() == 1, WAIT_SECONDS
        )
        running.signalled(signal.SIGTERM)
    foreign = AIOKafkaConsumer(
        f"{prefix}events",
        bootstrap_servers=environment["CALLGAUGE_BOOTSTRAP"],
        client_id="a-console-consumer",
        group_id=f"{prefix}callgauge-evaluator",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=[RangePartitionAssignor],
    )
    async with foreign:
        while (await asyncio.wait_for(foreign.getone(), WAIT_SECONDS)).key != b"a":
            pass
        await foreign.commit()
        with started(tmp_path / "torn.log", *ROLE, **environment) as running:
            torn = await asyncio.to_thread(running.printed, "a-console-consumer", WAIT_SECONDS)
        assert "on 127.0.0.1" in torn
    with started(tmp_path / "next.log", *ROLE, **environment) as running:
        await asyncio.to_thread(running.printed, "evaluator_ready", 2 * WAIT_SECONDS)
        await topics.send("a", *SAID, ENDED)
        assert await topics.closed("a") == {"a": "ended"}
    assert agents(await topics.scores()) == {"a": "desk"}


async def test_of_two_evaluators_with_one_name_one_stands_aside(
    environment: dict[str, str], tmp_path: Path
) -> None:
    topics = Topics(environment)
    named = {**environment, "CALLGAUGE_EVALUATOR_INSTANCE": "ev-1"}
    with started(tmp_path / "older.log", *ROLE, **named) as older:
        older.printed("evaluator_ready", WAIT_SECONDS)
        await topics.send("open", call_started("desk"), *SAID)
        with started(tmp_path / "newer.log", *ROLE, **named) as newer:
            said = await asyncio.to_thread(
                older.printed, "evaluator_instance_is_shared", WAIT_SECONDS
            )
            assert "ev-1" in said
            await asyncio.to_thread(newer.printed, "evaluator_ready", WAIT_SECONDS)
            await topics.send("done", call_started("desk"), *SAID, ENDED)
            assert await topics.closed("done") == {"done": "ended"}
            assert older.is_running
            assert newer.is_running
            assert newer.signalled(signal.SIGTERM)[0] == 0
        # A member with a name does not leave the group by itself: its session has to end first.
        wait_for(
            "the older one to begin again",
            lambda: older.text.count("evaluator_ready") == 2,
            WAIT_SECONDS,
        )
        await topics.send("open", ENDED)
        assert await topics.closed("open", "done") == {"open": "ended", "done": "ended"}
    records = await topics.scores()
    assert agents(records) == {"open": "desk", "done": "desk"}
    assert sum(each.get("state") == "closed" for each in records) == 2


async def test_who_stands_aside_ends_at_once_when_it_is_asked_to(
    environment: dict[str, str], tmp_path: Path
) -> None:
    named = {**environment, "CALLGAUGE_EVALUATOR_INSTANCE": "ev-1"}
    with started(tmp_path / "older.log", *ROLE, **named) as older:
        older.printed("evaluator_ready", WAIT_SECONDS)
        with started(tmp_path / "newer.log", *ROLE, **named):
            older.printed("evaluator_instance_is_shared", WAIT_SECONDS)
            assert older.signalled(signal.SIGTERM)[0] == 0


@pytest.mark.service(partitions=12, limits__closing_grace_ms="300")
def test_partitions_stay_with_their_evaluator_when_another_joins(
    environment: dict[str, str], tmp_path: Path
) -> None:
    environment = {**environment, "CALLGAUGE_LOG_FORMAT": "json"}
    with ExitStack() as running:

        def joined(name: str, *roles: str) -> Process:
            return running.enter_context(
                started(tmp_path / f"{name}.log", "run", "--roles", *roles, **environment)
            )

        # at once
        members = [
            joined("a", "sequencer,evaluator"),
            joined("b", "evaluator"),
            joined("c", "evaluator"),
        ]
        wait_for("three shares", partial(_are_shared_out, members), WAIT_SECONDS)
        before = [_shares(member)[-1] for member in members]
        members.append(joined("d", "evaluator"))
        wait_for("four shares", partial(_are_shared_out, members), WAIT_SECONDS)
        after = [_shares(member)[-1] for member in members]
        # each has given one away
        assert all(now < then for now, then in zip(after, before, strict=False))
        # and has not been asked again and again
        assert all(len(_shares(member)) < 8 for member in members)


def _shares(member: Process) -> list[frozenset[int]]:
    """The partitions that the group has given to an evaluator, each time."""
    lines = [
        json.loads(line) for line in member.text.splitlines() if '"partitions_assigned"' in line
    ]
    return [frozenset(line["partitions"]) for line in lines]


def _are_shared_out(members: Sequence[Process]) -> bool:
    """Whether each partition has one owner, and all have as many."""
    newest = [shares[-1] for member in members if (shares := _shares(member))]
    is_whole = sorted(chain.from_iterable(newest)) == list(range(12))
    return is_whole and {len(each) for each in newest} == {12 // len(members)}
