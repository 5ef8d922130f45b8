"""Evaluators that stop in order, or make room for another, hand their state over: no evaluator replays, and every score is right."""

import secrets
import signal
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from schemas.topics import TOPIC_BY_SOURCE
from tests.benchmarks.traffic import interleaved, simulated_events
from tests.chaos.verdict.verdict import Traces, judged, limits_of
from tests.integration.metrics_page import address_in, total
from tests.integration.processes import Process, started, wait_for
from tests.integration.score_log import closings

PARTITIONS = 4
CALLS = 12
WAIT_SECONDS = 120
WRITTEN = "callgauge_snapshots_written_total"
EVALUATOR = ("run", "--roles", "evaluator")

pytestmark = pytest.mark.service(
    partitions=PARTITIONS,
    limits__closing_grace_ms="300",
    snapshots__key=secrets.token_hex(32),
    snapshots__interval_ms="0",
)


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
        return len(await closings(self._environment, CALLS, WAIT_SECONDS)) == CALLS


def ready_address(process: Process) -> str:
    return wait_for(
        lambda: f"the address of /metrics in:\n{process.text}", lambda: address_in(process.text), WAIT_SECONDS
    )


def restored(address: str) -> float:
    return total(address, "callgauge_snapshots_read_total", outcome="restored")


def read(*addresses: str) -> float:
    """Received events with any outcome; a replayed one comes twice."""
    return sum(total(address, "callgauge_events_total") for address in addresses)


async def test_no_call_is_replayed_when_an_evaluator_stops_or_joins(
    environment: dict[str, str], bootstrap: str, topic_prefix: str, tmp_path: Path
) -> None:
    calls = Calls(environment)
    with (
        started(tmp_path / "first.log", *EVALUATOR, **environment) as first,
        started(tmp_path / "second.log", *EVALUATOR, **environment) as second,
    ):
        one, two = ready_address(first), ready_address(second)
        second.printed("evaluator_ready")
        sent = await calls.go_on(0.4)
        wait_for("the first part", lambda: read(one, two) == sent, WAIT_SECONDS)
        # Where it came second, it was given a state without calls; where it came first, it handed that over.
        had_two, joined_with, had_given = read(two), restored(two), total(two, WRITTEN)
        assert first.signalled(signal.SIGTERM)[0] == 0
        wait_for("the hand-over", lambda: restored(two) > joined_with, WAIT_SECONDS)
        assert (restored(two) - joined_with, read(two)) == (PARTITIONS / 2, had_two), second.text

        sent_more = await calls.go_on(0.7)
        wait_for("the second part", lambda: read(two) == had_two + sent_more - sent, WAIT_SECONDS)
        assert total(two, WRITTEN) == had_given, "nobody was there to take anything"
        with started(tmp_path / "third.log", *EVALUATOR, **environment) as third:
            three = ready_address(third)
            wait_for("what the third gets", lambda: restored(three), WAIT_SECONDS)
            assert (restored(three), read(three)) == (PARTITIONS / 2, 0), third.text
            assert total(two, WRITTEN, outcome="written") - had_given == PARTITIONS / 2
            sent_all = await calls.go_on(1)
            assert await calls.are_closed()
            assert read(two, three) == had_two + sent_all - sent
            third.signalled(signal.SIGTERM)
        second.signalled(signal.SIGTERM)
    findings = judged(Traces(bootstrap, topic_prefix, PARTITIONS, limits_of(environment), tmp_path / "deleted"))
    assert (findings.missing, findings.duplicate, findings.wrong) == (0, 0, 0), findings.examples
    assert findings.calls == CALLS
