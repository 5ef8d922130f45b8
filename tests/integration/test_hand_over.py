"""Evaluators that stop, make room for another or are killed: the next one goes on in the log, and
every score is right.
"""

import signal
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from schemas.topics import TOPIC_BY_SOURCE
from tests.benchmarks.traffic import interleaved, simulated_events
from tests.chaos.verdict.verdict import Traces, judged, limits_of, rules_of
from tests.integration.metrics_page import total
from tests.integration.processes import started, wait_for
from tests.integration.score_log import closed_rows

PARTITIONS = 4
INPUTS = dict.fromkeys(("pipecat", "elevenlabs", "audit", "judge"), PARTITIONS)
CALLS = 12
WAIT_SECONDS = 120
EVALUATOR = ("run", "--roles", "sequencer,evaluator")

pytestmark = pytest.mark.service(partitions=PARTITIONS, limits__closing_grace_ms="300")


class Calls:
    """Calls that go on in parts."""

    def __init__(self, environment: dict[str, str]) -> None:
        now_ms = time.time_ns() // 1_000_000
        self._traffic = interleaved([simulated_events(seed, now_ms) for seed in range(CALLS)])
        self._environment = environment
        self._sent = 0

    async def go_on(self, share: float) -> int:
        """Until so much of all events is sent; how many these are."""
        until = int(len(self._traffic) * share)
        producer = AIOKafkaProducer(bootstrap_servers=self._environment["CALLGAUGE_BOOTSTRAP"])
        await producer.start()
        prefix = self._environment["CALLGAUGE_TOPIC_PREFIX"]
        for source, record in self._traffic[self._sent : until]:
            await producer.send(prefix + TOPIC_BY_SOURCE[source], record.value, key=record.key)
        await producer.stop()
        self._sent = until
        return until

    async def are_closed(self) -> bool:
        return len(await closed_rows(self._environment, CALLS, WAIT_SECONDS)) == CALLS


def live(*addresses: str) -> float:
    """Received events with any outcome, but those that a former owner had received."""
    return sum(
        total(address, "callgauge_events_total")
        - total(address, "callgauge_events_total", outcome="replayed")
        for address in addresses
    )


async def test_the_next_owner_goes_on_after_a_stop_a_join_and_a_kill(
    environment: dict[str, str], bootstrap: str, topic_prefix: str, tmp_path: Path
) -> None:
    calls = Calls(environment)
    with (
        started(tmp_path / "first.log", *EVALUATOR, **environment) as first,
        started(tmp_path / "second.log", *EVALUATOR, **environment) as second,
    ):
        one, two = first.metrics(WAIT_SECONDS), second.metrics(WAIT_SECONDS)
        second.printed("evaluator_ready")
        sent = await calls.go_on(0.4)
        wait_for("the first part", lambda: live(one, two) == sent, WAIT_SECONDS)
        had_two = live(two)
        assert first.signalled(signal.SIGTERM)[0] == 0

        sent_more = await calls.go_on(0.7)
        wait_for("the second part", lambda: live(two) == had_two + sent_more - sent, WAIT_SECONDS)
        with started(tmp_path / "third.log", *EVALUATOR, **environment) as third:
            three = third.metrics(WAIT_SECONDS)
            wait_for(
                "what the third gets", lambda: total(three, "callgauge_calls_open"), WAIT_SECONDS
            )
            assert second.signalled(signal.SIGKILL)[0] == -signal.SIGKILL
            await calls.go_on(1)
            assert await calls.are_closed()
            assert total(three, "callgauge_events_total", outcome="replayed") > 0, third.text
            third.signalled(signal.SIGTERM)
    settings = limits_of(environment), rules_of(environment)
    findings = judged(
        Traces(bootstrap, topic_prefix, PARTITIONS, INPUTS, *settings, tmp_path / "deleted")
    )
    assert (findings.missing, findings.duplicate, findings.wrong) == (0, 0, 0), findings.examples
    assert findings.calls == CALLS
