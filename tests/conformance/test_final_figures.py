"""Prometheus' sums over the closings of recorded calls equal the values in their final `scores`."""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from itertools import islice

import pytest

from consumers.engine.limits import GoalRules, Limits
from consumers.exporter.projection import CallSoFar, Counted, Observed, project
from schemas.scores.live_view import newest_scores
from schemas.scores.records import AnyScoreRecord, CallValues, Scored, TurnValues, Unscored, VoiceToVoiceLatency
from streamer.offline.scoring import RecordedScoring, ScoringPlan
from streamer.recordings.reader import read_recordings
from streamer.sources.replay import with_control_events
from tests.support.conformance_data import conformance

MOST_CALLS = 60
NANOSECOND = 1e-9
Figures = dict[tuple[str, ...], float]


def written(name: str) -> list[list[AnyScoreRecord]]:
    """By call: everything that is written to `scores`."""
    found = []
    for call in islice(read_recordings(conformance(name)), MOST_CALLS):
        scoring = RecordedScoring(
            with_control_events(call, agent="desk"), ScoringPlan(Limits(), GoalRules(), "test"), None
        )
        deque(scoring.run(), maxlen=0)
        found.append(scoring.records)
    return found


def counted(records: Sequence[AnyScoreRecord], prefix: str) -> Figures:
    """The counters of this name, and of the histogram its count and sum."""
    figures: Figures = defaultdict(float)
    call = CallSoFar()
    for record in records:
        samples = list(project(record, record.caused_at_ms, call))
        call = call.after(record)
        for sample in samples:
            if sample.metric.startswith(prefix) and isinstance(sample, Counted):
                figures[sample.metric, *sample.labels] += sample.by
            elif sample.metric.startswith(prefix) and isinstance(sample, Observed):
                figures[sample.metric, "sum"] += sample.value
    return {key: figure for key, figure in figures.items() if figure}


def final(records: Sequence[AnyScoreRecord]) -> Figures:
    """The same from the newest record of each turn."""
    figures: Figures = defaultdict(float)
    labels = records[-1].labels
    who = (labels.agent, labels.tenant, labels.environment)
    for record in newest_scores(records).values():
        if isinstance(record, VoiceToVoiceLatency) and isinstance(record.result, Scored) and record.anchor is not None:
            is_measured = record.result.value >= 0
            figures[
                "callgauge_turns_final_total", *who, record.anchor, "measured" if is_measured else "overlapped"
            ] += 1
            if is_measured:
                figures["callgauge_turns_final_latency_seconds_total", *who, record.anchor] += (
                    record.result.value / 1000
                )
    return {key: figure for key, figure in figures.items() if figure}


@pytest.mark.parametrize("name", ["calls.jsonl.gz", "cut_calls.jsonl.gz", "hostile_calls.jsonl.gz", "record_1.1.2"])
def test_final_turns_are_those_of_scores(name: str) -> None:
    turns = 0
    for records in written(name):
        true, found = final(records), counted(records, "callgauge_turns_final")
        assert found.keys() == true.keys()
        assert all(abs(found[key] - true[key]) < NANOSECOND for key in true)
        turns += len(true)
        (call,) = (record for record in newest_scores(records).values() if isinstance(record, CallValues))
        rows = [
            record
            for record in newest_scores(records).values()
            if isinstance(record, TurnValues) and not record.is_withdrawn
        ]
        unmeasured = Counter(
            row.voice_to_voice_ms.reason for row in rows if isinstance(row.voice_to_voice_ms, Unscored)
        )
        assert call.unscored_turns.get("voice_to_voice_latency_ms", {}) == unmeasured
    assert turns > 0
