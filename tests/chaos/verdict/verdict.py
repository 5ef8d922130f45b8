"""The judgement after a run: the log compared with the inputs, then folded in peace and compared
with `scores`.
"""

import multiprocessing
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from consumers.engine.limits import GoalRules, Limits
from schemas.closed_sets import InputSource
from schemas.quarantine import QuarantineRecord
from schemas.topics import (
    EVENTS_TOPIC,
    JUDGE_REQUESTS_TOPIC,
    QUARANTINE_TOPIC,
    SCORES_TOPIC,
    TOPIC_BY_SOURCE,
    TRANSCRIPTS_TOPIC,
)
from tests.chaos.load.foreign import is_foreign
from tests.chaos.verdict.beside_scores import Beside, beside_compared
from tests.chaos.verdict.checker import Coordinates, Findings, compared
from tests.chaos.verdict.deleted_records import DeletedRecords, Deletion, Excuse, with_deleted
from tests.chaos.verdict.log_check import (
    Entries,
    InputFindings,
    InputRecord,
    Log,
    dead_airs_in,
    input_compared,
    refused_compared,
    silences_compared,
    times_compared,
)
from tests.chaos.verdict.topic_reader import ReadRecord, to_the_end, wait_until_nothing_is_open
from tests.chaos.verdict.undisturbed import undisturbed

PROCESSES: Final = 2
"""Partitions judged side by side; each holds the records of one in memory."""


class Traces(NamedTuple):
    """Where a run left its topics.

    Attributes:
        bootstrap: The broker.
        prefix: Before each topic's name.
        partitions: Of `events`, and of the topics that have as many.
        inputs: By source, the partitions of each input.
        limits: Those of the evaluators.
        rules: Their rules of judging.
        kept: Folder of the records deleted from the topics.
        deletions: Those of records that may not have been read.
        excuses: When records of an input may come after the time that was known.
        made: By topic, how often it was recreated.
    """

    bootstrap: str
    prefix: str
    partitions: int
    inputs: Mapping[str, int]
    limits: Limits
    rules: GoalRules
    kept: Path
    deletions: tuple[Deletion, ...] = ()
    excuses: tuple[Excuse, ...] = ()
    made: Mapping[str, int] = {}  # nobody changes it

    def topic_of(self, source: InputSource) -> str:
        """The topic of an input."""
        return self.prefix + TOPIC_BY_SOURCE[source]


class _Folded(NamedTuple):
    """What one partition of the log comes to."""

    findings: Findings
    beside: Beside
    log: Log
    dead_airs: Counter[str]


def judged(traces: Traces) -> Findings:
    """Reads everything and compares."""
    for topic in (SCORES_TOPIC, QUARANTINE_TOPIC, TRANSCRIPTS_TOPIC, JUDGE_REQUESTS_TOPIC):
        wait_until_nothing_is_open(traces.bootstrap, traces.prefix + topic, traces.partitions)
    findings, expected, log = Findings(), Beside(Counter(), Counter()), Log()
    dead_airs: Counter[str] = Counter()
    inputs = InputFindings()
    # Spawned, not forked: a client of Kafka does not survive a fork.
    with multiprocessing.get_context("spawn").Pool(PROCESSES, maxtasksperchild=1) as pool:
        for folded in pool.imap(_folded, [(traces, number) for number in range(traces.partitions)]):
            findings.add(folded.findings)
            expected = expected.and_of(folded.beside)
            log.add(folded.log)
            dead_airs.update(folded.dead_airs)
        tasks = [
            (traces, source, number, log.entries.pop((source, number), Entries()))
            for source in TOPIC_BY_SOURCE
            for number in range(traces.inputs[source.value])
        ]
        for each in pool.imap(_input_judged, tasks):
            inputs.add(each)
    findings.add(inputs.findings)
    findings.admitted, findings.lost = inputs.admitted, inputs.unread
    findings.repeats, findings.void = log.repeats, log.void
    if log.fault is not None:
        findings.note("wrong", "log", log.fault)
    for source, number in log.entries:
        findings.note(
            "wrong", "log", f"{source} has no partition {number}, and the log has records of it"
        )
    findings.add(times_compared(log.early, traces.topic_of, traces.excuses))
    threshold_ms = traces.limits.dead_air_ms + traces.limits.delivery_allowance_ms

    def is_excused(time_ms: int) -> bool:
        return any(each.has(each.topic, time_ms) for each in traces.excuses)

    findings.add(silences_compared(inputs.silences, dead_airs, threshold_ms, is_excused))
    findings.add(refused_compared(inputs.refused, _quarantined(traces)))
    questions = _all(traces, JUDGE_REQUESTS_TOPIC)
    findings.add(beside_compared(expected, _all(traces, TRANSCRIPTS_TOPIC), questions))
    return findings


def _folded(task: tuple[Traces, int]) -> _Folded:
    traces, number = task
    events = traces.prefix + EVENTS_TOPIC
    kept = DeletedRecords(traces.kept).of(events, number)
    log = Log()
    records = with_deleted(kept, to_the_end(traces.bootstrap, events, number, has_headers=True))
    expected = undisturbed(log.read(records, number), traces.limits, traces.rules, number)
    written = to_the_end(traces.bootstrap, traces.prefix + SCORES_TOPIC, number)
    # A record without a value is the mark of an owner.
    scores = [each.value for each in written if each.value is not None and not is_foreign(each.key)]
    return _Folded(compared(expected.rows, scores), Beside.of(expected), log, dead_airs_in(scores))


def _input_judged(task: tuple[Traces, InputSource, int, Entries]) -> InputFindings:
    traces, source, number, entries = task
    topic = traces.topic_of(source)
    made = traces.made.get(topic, 0)
    kept = DeletedRecords(traces.kept)
    deletions = [
        each for each in traces.deletions if (each.topic, each.partition) == (topic, number)
    ]
    lives = [kept.of(topic, number, life) for life in range(made + 1)]
    lives[made] = with_deleted(lives[made], to_the_end(traces.bootstrap, topic, number))
    records = [map(partial(_of_input, topic), life) for life in lives]
    return input_compared(source, records, entries, traces.limits, traces.partitions, deletions)


def _of_input(topic: str, record: ReadRecord) -> InputRecord:
    return InputRecord(topic, *record)


def _quarantined(traces: Traces) -> frozenset[Coordinates]:
    """Coordinates of every record in quarantine; it may be there more than once, since a replay
    refuses it again.
    """
    records = (
        QuarantineRecord.model_validate_json(record.value or b"")
        for record in _all(traces, QUARANTINE_TOPIC)
    )
    return frozenset(
        (record.topic, record.partition, offset)
        for record in records
        for offset in range(record.offset, (record.last_offset or record.offset) + 1)
    )


def _all(traces: Traces, topic: str) -> Iterator[ReadRecord]:
    """Every record of a topic."""
    numbers = range(traces.partitions)
    return chain.from_iterable(
        to_the_end(traces.bootstrap, traces.prefix + topic, number) for number in numbers
    )


def limits_of(environment: Mapping[str, str]) -> Limits:
    """The limits that evaluators with this environment have."""
    return Limits.model_validate(_given(environment, "CALLGAUGE_LIMITS__"))


def rules_of(environment: Mapping[str, str]) -> GoalRules:
    """Their rules of judging."""
    given = _given(environment, "CALLGAUGE_GOALS__")
    text_judges = given.pop("text_judges", "")
    return GoalRules.model_validate(
        {**given, "text_judges": text_judges.split(",") if text_judges else ()}
    )


def _given(environment: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {
        name.removeprefix(prefix).lower(): value
        for name, value in environment.items()
        if name.startswith(prefix)
    }
