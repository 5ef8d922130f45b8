"""The judgement after a run: every partition read back, evaluated undisturbed, and compared with `scores`."""

import multiprocessing
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pydantic_core import from_json

from consumers.engine.limits import GoalRules, Limits
from schemas.closed_sets import InputSource
from schemas.quarantine import QuarantineRecord
from schemas.topics import (
    JUDGE_REQUESTS_TOPIC,
    ORDER_TOPIC,
    QUARANTINE_TOPIC,
    SCORES_TOPIC,
    TOPIC_BY_SOURCE,
    TRANSCRIPTS_TOPIC,
)
from tests.chaos.load.foreign import is_foreign
from tests.chaos.verdict.beside_scores import Beside, beside_compared
from tests.chaos.verdict.checker import Coordinates, Findings, compared
from tests.chaos.verdict.deleted_records import DeletedRecords, Deletion, gone, shortened
from tests.chaos.verdict.order_check import order_compared
from tests.chaos.verdict.topic_reader import ReadRecord, to_the_end, wait_until_nothing_is_open
from tests.chaos.verdict.undisturbed import InputRecord, undisturbed

PROCESSES: Final = 2
"""Partitions judged side by side; each holds the records of one in memory."""


class Traces(NamedTuple):
    """Where a run left its topics.

    Attributes:
        bootstrap: The broker.
        prefix: Before each topic's name.
        partitions: Of each topic.
        limits: Those of the evaluators.
        rules: Their rules of judging.
        kept: Folder of the records deleted from the inputs.
        deletions: Those that may have cost calls some of their records.
    """

    bootstrap: str
    prefix: str
    partitions: int
    limits: Limits
    rules: GoalRules
    kept: Path
    deletions: tuple[Deletion, ...] = ()


def judged(traces: Traces) -> Findings:
    """Reads everything and compares."""
    for topic in (SCORES_TOPIC, ORDER_TOPIC, QUARANTINE_TOPIC, TRANSCRIPTS_TOPIC, JUDGE_REQUESTS_TOPIC):
        wait_until_nothing_is_open(traces.bootstrap, traces.prefix + topic, traces.partitions)
    quarantined = _quarantined(traces)
    findings = Findings()
    # Spawned, not forked: a client of Kafka does not survive a fork.
    with multiprocessing.get_context("spawn").Pool(PROCESSES, maxtasksperchild=1) as pool:
        tasks = [(traces, number, quarantined) for number in range(traces.partitions)]
        expected = Beside(Counter(), Counter(), frozenset())
        for found, beside in pool.imap(_judged_partition, tasks):
            findings.add(found)
            expected = expected.and_of(beside)
    questions = _all(traces, JUDGE_REQUESTS_TOPIC, has_headers=True)
    findings.add(beside_compared(expected, _all(traces, TRANSCRIPTS_TOPIC), questions))
    return findings


def _judged_partition(task: tuple[Traces, int, frozenset[Coordinates]]) -> tuple[Findings, Beside]:
    traces, number, quarantined = task
    kept = DeletedRecords(traces.kept)
    deletions = [each for each in traces.deletions if each.partition == number]
    inputs: dict[InputSource, list[InputRecord]] = {}
    lost_keys: set[bytes] = set()
    for source, name in TOPIC_BY_SOURCE.items():
        topic = traces.prefix + name
        records = list(_with_deleted(kept.of(topic, number), to_the_end(traces.bootstrap, topic, number)))
        inputs[source] = [InputRecord(topic, *record) for record in records]
        for each in deletions:
            lost_keys |= each.calls((topic, record) for record in records)
    expected = undisturbed(inputs, traces.limits, traces.rules)
    lost = {key.decode("utf-8", "replace") for key in lost_keys}
    log = to_the_end(traces.bootstrap, traces.prefix + SCORES_TOPIC, number)
    # A record without a value is the mark of a new owner.
    scores = [each.value for each in log if each.value is not None and not is_foreign(each.key)]
    deleted = gone(deletions, expected.refused)
    findings = compared(
        expected.records,
        scores,
        expected.refused - deleted,
        quarantined,
        lost,
    )
    order = to_the_end(traces.bootstrap, traces.prefix + ORDER_TOPIC, number, has_headers=True)
    unread = {
        (record.topic, record.offset)
        for records in inputs.values()
        for record in records
        if any(each.has(record.topic, record.offset) for each in deletions)
        or (record.topic, number, record.offset) in expected.refused
    }
    findings.add(order_compared(order, inputs, _closings(scores), unread))
    return findings, Beside.of(expected, number, lost)


def _closings(scores: Iterable[bytes]) -> Counter[str]:
    """How often each call closes."""
    closed = (from_json(value) for value in scores if b'"name":"closed"' in value)
    return Counter(fields["conversation_id"] for fields in closed)


def _with_deleted(deleted: Iterator[ReadRecord], still_there: Iterator[ReadRecord]) -> Iterator[ReadRecord]:
    """Every record there ever was, in order."""
    next_offset = 0
    for records in (deleted, still_there):
        for record in records:
            if record.offset >= next_offset:  # a deletion may have been repeated, or have come to nothing
                next_offset = record.offset + 1
                yield shortened(record)


def _quarantined(traces: Traces) -> frozenset[Coordinates]:
    """Coordinates of every record in quarantine; it may be there more than once, since a replay refuses it again."""
    records = (QuarantineRecord.model_validate_json(record.value or b"") for record in _all(traces, QUARANTINE_TOPIC))
    return frozenset((record.topic, record.partition, record.offset) for record in records)


def _all(traces: Traces, topic: str, *, has_headers: bool = False) -> Iterator[ReadRecord]:
    """Every record of a topic."""
    for number in range(traces.partitions):
        yield from to_the_end(traces.bootstrap, traces.prefix + topic, number, has_headers=has_headers)


def limits_of(environment: Mapping[str, str]) -> Limits:
    """The limits that evaluators with this environment have."""
    return Limits.model_validate(_given(environment, "CALLGAUGE_LIMITS__"))


def rules_of(environment: Mapping[str, str]) -> GoalRules:
    """Their rules of judging."""
    given = _given(environment, "CALLGAUGE_GOALS__")
    text_judges = given.pop("text_judges", "")
    return GoalRules.model_validate({**given, "text_judges": text_judges.split(",") if text_judges else ()})


def _given(environment: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix).lower(): value for name, value in environment.items() if name.startswith(prefix)}
