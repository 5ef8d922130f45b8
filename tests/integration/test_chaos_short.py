"""A short `make chaos`: some of everything that it does, under load and with all of its poison;
then every score is checked.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.canaries.scripts import CANARIES
from tests.chaos.cluster import cluster as clusters
from tests.chaos.faults.faults import Fault, planned
from tests.chaos.load.poison import Kind
from tests.chaos.runs.canary_run import not_as_it_must_be
from tests.chaos.runs.chaos_run import Plan, chaos
from tests.support.brokers import kafka_broker
from tests.support.required_tools import MISSING

FAULTS = (
    Fault.KILL,
    Fault.TERMINATE,
    Fault.JOIN,
    Fault.FREEZE,
    Fault.BROKER_KILLED,
    Fault.NEWER,
    Fault.CLOCK_FORWARD,
    Fault.HALF_OPEN,
    Fault.DELETED_UNREAD,
    Fault.HEAVY_CLOSE,
)
PLAN = Plan(
    seed=24, seconds=45, calls=100, evaluators=2, partitions=4, spacing_seconds=4, faults=FAULTS
)
ONCE = replace(PLAN, seconds=34)
"""Until each kind of fault was done once; the rest of the time is for second ones."""
ON_THREE = replace(PLAN, faults=(*FAULTS, Fault.COORDINATOR_MOVED))
LEAST_FAULTS = 5


def test_the_short_plan_has_each_fault_once() -> None:
    coming = planned(
        ONCE.seed, seconds=ONCE.seconds, mean_spacing_seconds=ONCE.spacing_seconds, pack=FAULTS
    )
    assert sorted(each.fault for each in coming) == sorted(FAULTS)


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("plan", "brokers"),
    [
        pytest.param(ONCE, 1, id="each once"),
        pytest.param(PLAN, 1, id="again", marks=pytest.mark.long),
        pytest.param(ON_THREE, 3, id="on three brokers", marks=pytest.mark.long),
    ],
)
def test_no_score_is_missing_doubled_or_wrong_after_faults_under_load(
    plan: Plan, brokers: int, tmp_path: Path
) -> None:
    told: list[str] = []
    try:
        with clusters.running(tmp_path, brokers) as cluster:
            outcome = chaos(plan, cluster, tmp_path, told.append)
    except kafka_broker.NoBrokerError as error:
        pytest.skip(f"{MISSING}{error}")
    findings = outcome.findings
    zeros = (findings.missing, findings.duplicate, findings.wrong)
    assert zeros == (0, 0, 0), "\n".join([*told, *findings.examples, *outcome.what])
    assert outcome.faults >= LEAST_FAULTS
    assert findings.calls + findings.lost >= plan.calls
    assert findings.refused > 0
    poison = [line for line in outcome.what if line.startswith("poison: ")]
    assert len(poison) == len(Kind), poison


@pytest.mark.kafka
@pytest.mark.long
@pytest.mark.parametrize("kind", CANARIES)
def test_the_checker_finds_an_evaluator_that_is_broken_and_no_whole_one(kind: str) -> None:
    told: list[str] = []
    try:
        complaints = not_as_it_must_be([kind], told.append, has_controls=True)
    except kafka_broker.NoBrokerError as error:
        pytest.skip(f"{MISSING}{error}")
    assert complaints == [], "\n".join(told)
