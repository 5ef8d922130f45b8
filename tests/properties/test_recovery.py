"""Owners of a partition that end anywhere, with what they had not written, publish together what one owner publishes, byte for byte.

Each of them folds the log from the place that the row of the partition names, silently up to where the last one had come, and goes on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from schemas.scores.records import AnyScoreRecord, ClosedFact
from schemas.topics import JUDGE_REQUESTS_TOPIC
from tests.properties.evaluation import (
    Subject,
    assert_counted,
    end_of,
    final_state,
    final_values,
    fold,
    fresh,
    run,
    taken_over,
)
from tests.properties.owners import Acts, Log, Owner, Settings, acts, by_call, undisturbed
from tests.properties.partitions import logs, settings
from tests.properties.steered_calls import drawn
from tests.support.calls.wire_calls import arrivals_of
from tests.support.fakes.engine_feed import T0_MS
from tests.support.laws import examples

STEP_MS = 25


def _lives_of(records: Iterable[AnyScoreRecord]) -> list[list[AnyScoreRecord]]:
    """The records of each call."""
    calls: dict[str, list[AnyScoreRecord]] = {}
    for record in records:
        calls.setdefault(record.conversation_id, []).append(record)
    return list(calls.values())


def assert_once(log: Log) -> None:
    """Every call closes once and is silent then, no record comes twice, and revisions grow."""
    for life in _lives_of(log.score_records):
        assert [record.name for record in life].count("closed") == 1, "every call closes once"
        assert life[-1].name == "closed"
        ids = [record.record_id for record in life]
        assert len(set(ids)) == len(ids), "no record comes twice"
        last: dict[Subject, int] = {}
        for record in life:
            subject = (record.name, record.turn, record.index)
            assert record.revision > last.get(subject, 0), "revisions grow"
            last[subject] = record.revision


@examples(times=10)
@given(logs(), settings, st.lists(acts(), min_size=1, max_size=4))
def test_folding_with_stops_anywhere_publishes_what_folding_once_does_byte_for_byte(
    log: Log, settings: Settings, lives: Sequence[Acts]
) -> None:
    for number, each in enumerate(lives):
        Owner(log, settings, str(number)).live(each)
    Owner(log, settings, "last").to_the_end()
    expected = undisturbed(log, settings)
    evictions = sum(isinstance(each, ClosedFact) and each.reason == "limit_open_calls" for each in log.score_records)
    event(f"{min(evictions, 2)} evictions or more")
    event(f"{min(3, sum(each.topic == JUDGE_REQUESTS_TOPIC for each in expected))} questions or more")
    assert by_call(log.published) == by_call(expected)
    assert_once(log)
