"""One call as text: as far as it has progressed, and with the words of its transcript."""

from collections.abc import Iterable

import pytest

from consumers.console.page.calls import ReportedCall
from consumers.engine.limits import GoalRules, Limits
from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import UnscoredReason
from schemas.goals.goal_set import GoalSet
from schemas.scores.live_view import newest_scores
from schemas.scores.records import (
    AnyScoreRecord,
    CallValues,
    ClosedFact,
    DeadAirFact,
    InterruptionFact,
    Scored,
    TextRating,
    Unscored,
)
from schemas.transcript import TRANSCRIPT
from streamer.offline.scoring import RecordedScoring, ScoringPlan, plan_from, scored
from streamer.one_call import call_lines
from streamer.recordings.files import SAMPLE
from streamer.recordings.reader import goals_for, read_recordings
from streamer.report import reported_call
from streamer.settings.all_settings import Settings


@pytest.fixture(scope="module")
def scoring(tmp_path_factory: pytest.TempPathFactory) -> RecordedScoring:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("empty"))
        (sample,) = read_recordings(SAMPLE)
        return scored(sample, plan_from(Settings(), goals_for([SAMPLE], None), writes_transcripts=True))


def shown(scoring: RecordedScoring, records: Iterable[AnyScoreRecord] | None = None) -> ReportedCall:
    """The call with these records, all of them unless given."""
    call = reported_call(scoring, "c1", Redactor())
    newest = list(newest_scores(scoring.records if records is None else records).values())
    return ReportedCall(call.conversation_id, call.heard, newest, "c1", Redactor())


def test_a_call_that_is_still_on_is_shown_as_far_as_it_has_come(scoring: RecordedScoring) -> None:
    records = [record for record in scoring.records if not isinstance(record, ClosedFact)]
    half = records[: len(records) // 2]
    lines = list(call_lines(shown(scoring, half), None))
    assert lines[1].endswith("not over")
    assert lines[-1] == "The call is not over. Its transcript is written when it closes."
    assert "Words so far:" in lines
    kinds = {DeadAirFact: "dead air", InterruptionFact: "interrupted by the"}
    for kind, words in kinds.items():
        assert any(words in line for line in lines) is any(isinstance(record, kind) for record in half)


def test_an_expected_tool_call_says_why_it_was_missed() -> None:
    (sample,) = read_recordings(SAMPLE)
    expected = [{"tool": "find_booking", "turn": 0}, {"tool": "rebook", "turn": 4}]
    subgoal = {"id": "any", "details": "d", "check": {"kind": "judge"}}
    goal_set = GoalSet.model_validate({"id": "g", "subgoals": [subgoal], "expected_tool_calls": expected})
    asked = RecordedScoring(sample, ScoringPlan(Limits(), GoalRules(), "test"), goal_set)
    assert list(asked.run()) == []
    lines = [line for line in call_lines(shown(asked), None) if "expected tool call" in line]
    assert lines == [
        "  expected tool call find_booking in turn 1: not called in that turn, but in turn 2",
        "  expected tool call rebook in turn 5: made as expected",
    ]


def test_ratings_of_a_call_are_shown_with_what_was_not_judged(scoring: RecordedScoring) -> None:
    assert "Judged:" not in call_lines(shown(scoring), None)
    missing = {"violating_policies": "the agent's instructions are not known"}
    ratings = {
        "faithfulness": TextRating(result=Scored(value=1), through_turn=7, rating=3, not_applicable=missing),
        "conversation_progression": TextRating(result=Unscored(reason=UnscoredReason.UNAVAILABLE), through_turn=6),
    }
    records = [
        record.model_copy(update=ratings) if isinstance(record, CallValues) else record for record in scoring.records
    ]
    lines = list(call_lines(shown(scoring, records), None))
    assert lines[lines.index("Judged:") :][:3] == [
        "Judged:",
        "  faithfulness up to turn 7: 1; not judged: violating policies (the agent's instructions are not known)",
        "  conversation progression up to turn 6: Unscored: unavailable",
    ]


def test_the_words_are_those_of_the_transcript(scoring: RecordedScoring) -> None:
    assert scoring.transcript is not None
    entries = TRANSCRIPT.validate_json(scoring.transcript)
    text = "\n".join(call_lines(shown(scoring), entries))
    assert [each.message for each in entries if each.message and each.message not in text] == []
