"""A short `make chaos`: some of everything that it does, under load and with all of its poison; then every score is checked."""

from pathlib import Path

import pytest

from tests.chaos.cluster import cluster as clusters
from tests.chaos.faults.faults import Fault
from tests.chaos.load.poison import Kind
from tests.chaos.runs.chaos_run import Plan, chaos
from tests.support.brokers import kafka_broker
from tests.support.required_tools import MISSING

FAULTS = (
    Fault.KILL,
    Fault.FREEZE,
    Fault.BROKER_KILLED,
    Fault.NEWER,
    Fault.CLOCK_FORWARD,
    Fault.HALF_OPEN,
    Fault.DELETED_UNREAD,
    Fault.HEAVY_CLOSE,
)
PLAN = Plan(seed=3, seconds=45, calls=100, evaluators=2, partitions=4, spacing_seconds=4, faults=FAULTS)
LEAST_FAULTS = 5


@pytest.mark.kafka
def test_no_score_is_missing_doubled_or_wrong_after_a_minute_of_faults(tmp_path: Path) -> None:
    told: list[str] = []
    try:
        with clusters.running(tmp_path, 1) as cluster:
            outcome = chaos(PLAN, cluster, tmp_path, told.append)
    except kafka_broker.NoBrokerError as error:
        pytest.skip(f"{MISSING}{error}")
    findings = outcome.findings
    zeros = (findings.missing, findings.duplicate, findings.wrong)
    assert zeros == (0, 0, 0), "\n".join([*told, *findings.examples, *outcome.what])
    assert outcome.faults >= LEAST_FAULTS
    assert findings.calls + findings.lost >= PLAN.calls
    assert findings.refused > 0
    poison = [line for line in outcome.what if line.startswith("poison: ")]
    assert len(poison) == len(Kind), poison
