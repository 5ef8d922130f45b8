"""The judgement after a run: every partition read back, evaluated in peace, and compared with what is in `scores`."""

import multiprocessing
from collections.abc import Mapping
from typing import Final, NamedTuple

from consumers.engine.limits import Limits
from schemas.quarantine import QuarantineRecord
from schemas.topics import QUARANTINE_TOPIC, SCORES_TOPIC, TOPIC_BY_SOURCE
from tests.chaos.checker import Coordinates, Findings, compared
from tests.chaos.topic_reader import to_the_end, wait_until_nothing_is_open
from tests.chaos.undisturbed import InputRecord, undisturbed

PROCESSES: Final = 2
"""Partitions judged side by side; each holds the records of one in memory."""


class Traces(NamedTuple):
    """Where a run left its topics.

    Attributes:
        bootstrap: The broker.
        prefix: Before each topic's name.
        partitions: Of each topic.
        limits: Those of the evaluators.
    """

    bootstrap: str
    prefix: str
    partitions: int
    limits: Limits


def judged(traces: Traces) -> Findings:
    """Reads everything and compares.

    Raises:
        UnreadableError: Something cannot be read to its end.
    """
    for topic in (SCORES_TOPIC, QUARANTINE_TOPIC):
        wait_until_nothing_is_open(traces.bootstrap, traces.prefix + topic, traces.partitions)
    quarantined = _quarantined(traces)
    findings = Findings()
    # Spawned, not forked: a client of Kafka does not survive a fork.
    with multiprocessing.get_context("spawn").Pool(PROCESSES, maxtasksperchild=1) as pool:
        tasks = [(traces, number, quarantined) for number in range(traces.partitions)]
        for found in pool.imap(_judged_partition, tasks):
            findings.add(found)
    return findings


def _judged_partition(task: tuple[Traces, int, frozenset[Coordinates]]) -> Findings:
    traces, number, quarantined = task
    inputs = {
        source: [
            InputRecord(traces.prefix + topic, *record)
            for record in to_the_end(traces.bootstrap, traces.prefix + topic, number)
        ]
        for source, topic in TOPIC_BY_SOURCE.items()
    }
    expected = undisturbed(inputs, traces.limits)
    log = to_the_end(traces.bootstrap, traces.prefix + SCORES_TOPIC, number)
    scores = (record.value for record in log if record.value is not None)  # else it marks a change of owner
    return compared(expected.records, scores, expected.refused, quarantined)


def _quarantined(traces: Traces) -> frozenset[Coordinates]:
    """Coordinates of every record in quarantine; it may be there more than once, since a replay refuses it again."""
    topic = traces.prefix + QUARANTINE_TOPIC
    records = (
        QuarantineRecord.model_validate_json(record.value or b"")
        for number in range(traces.partitions)
        for record in to_the_end(traces.bootstrap, topic, number)
    )
    return frozenset((record.topic, record.partition, record.offset) for record in records)


def limits_of(environment: Mapping[str, str]) -> Limits:
    """The limits that evaluators with this environment have."""
    prefix = "CALLGAUGE_LIMITS__"
    given = {name.removeprefix(prefix).lower(): value for name, value in environment.items() if name.startswith(prefix)}
    return Limits.model_validate(given)
