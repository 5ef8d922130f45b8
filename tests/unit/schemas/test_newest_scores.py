"""The valid records of a call: the newest revision of each subject, unless it withdraws the value."""

from typing import Any

import pytest

from schemas.closed_sets import UnscoredReason
from schemas.scores.live_view import is_withdrawn, newest_scores
from schemas.scores.records import AnyScoreRecord, NotApplicable, Scored, TurnValues, Unscored
from tests.unit.exporter.test_projection import AnyRecord, latency, progress, row, subgoal

WITHDRAWN = Unscored(reason=UnscoredReason.WITHDRAWN)


def revisions(*records: AnyScoreRecord) -> list[tuple[str, int | None, int]]:
    return [(record.name, record.turn, record.revision) for record in newest_scores(records).values()]


def test_a_higher_revision_replaces_a_lower_and_has_its_place() -> None:
    first, second = row(turn=1), row(turn=2)
    assert revisions(first, second, row(turn=1, revision=2)) == [("turn", 2, 1), ("turn", 1, 2)]
    assert revisions(row(turn=1, revision=2), first) == [("turn", 1, 2)]


def test_subjects_are_told_apart_by_name_turn_and_index() -> None:
    records: list[AnyScoreRecord] = [
        row(turn=1),
        latency(900, turn=1),
        latency(900, turn=2),
        latency(900, turn=2, index=1),
    ]
    assert len(newest_scores(records)) == 4


def test_what_was_taken_back_is_not_there_and_may_come_again() -> None:
    gone = row(revision=2, is_withdrawn=True)
    assert revisions(row(), gone) == []
    assert revisions(row(), gone, row(revision=3)) == [("turn", 2, 3)]


@pytest.mark.parametrize(
    ("record", "is_gone"),
    [
        (latency(900), False),
        (latency(-30), False),
        (latency(None), True),
        (latency(None, result=WITHDRAWN), True),
        (row(), False),
        (row(is_withdrawn=True), True),
        (row(voice_to_voice_ms=WITHDRAWN), False),
        (progress(Scored(value=0)), False),
        (progress(Unscored(reason=UnscoredReason.DEADLINE)), False),
        (progress(WITHDRAWN), True),
        (subgoal(Scored(value=0)), False),
        (subgoal(WITHDRAWN), True),
        (subgoal(NotApplicable(reason="none")), False),
    ],
)
def test_a_record_takes_back_what_was_there_or_says_something(record: AnyScoreRecord, *, is_gone: bool) -> None:
    assert is_withdrawn(record) is is_gone


def test_a_row_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    fields: dict[str, Any] = row(base=AnyRecord).model_dump(mode="json") | {"patience": {"result": None}}
    assert TurnValues.model_validate(fields) == row(base=AnyRecord)
