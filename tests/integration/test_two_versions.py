"""Two versions in one group, one after the other: calls that the first one closed stay closed, and
no record is written twice.
"""

import asyncio
import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from tests.chaos.evaluators.newer_version import NEWER
from tests.integration.processes import started
from tests.integration.score_log import LOOK_SECONDS, records_on
from tests.support.patience import patient

TODAY: dict[str, str] = {}
LATER = {NEWER: "1"}
ALTERED = (sys.executable, "-m", "tests.chaos.evaluators.altered")
WAIT_SECONDS = 40

# Its instance has a name, so that a killed one comes back at once, without a session timeout.
pytestmark = pytest.mark.service(
    partitions=1, evaluator_instance="one", limits__closing_grace_ms="300"
)


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


@pytest.mark.parametrize(
    ("first", "second"),
    [pytest.param(LATER, TODAY, id="rollback"), pytest.param(TODAY, LATER, id="upgrade")],
)
async def test_what_one_version_closed_the_other_does_not_score_again(
    environment: dict[str, str], tmp_path: Path, first: dict[str, str], second: dict[str, str]
) -> None:
    topics = Topics(environment)
    calls = [f"done-{number}" for number in range(3)]
    evaluator = ("run", "--roles", "sequencer,evaluator")
    with started(
        tmp_path / "first.log", *evaluator, command=ALTERED, **environment, **first
    ) as running:
        running.metrics(WAIT_SECONDS)
        await topics.send("open", *SAID)  # so that the second version reads all of them again
        for call in calls:
            await topics.send(call, *SAID, ENDED)
        before = await topics.closed(*calls)
        running.signalled(signal.SIGKILL)
    with started(
        tmp_path / "second.log", *evaluator, command=ALTERED, **environment, **second
    ) as running:
        running.metrics(WAIT_SECONDS)
        await topics.send("open", *SAID, ENDED)
        after = await topics.closed("open", *calls)
    rows = await topics.scores()
    reasons = {"ended", "ended_by_caller"}
    assert {after["open"], *before.values()} == reasons, (
        "both versions closed calls, each with its own word"
    )
    assert Counter(each["conversation_id"] for each in _closed(rows)) == Counter(["open", *calls])
    of = [
        (each, (each["row"], each["conversation_id"], each.get("turn")))
        for each in rows
        if "conversation_id" in each
    ]
    assert max(Counter((*subject, each["revision"]) for each, subject in of).values()) == 1
    assert (
        max(
            Counter(
                (*subject, name) for each, subject in of for name in each.get("news", ())
            ).values()
        )
        == 1
    )
