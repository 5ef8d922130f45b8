"""One call as text: as far as it has progressed, and with the words of its transcript."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from consumers.console.page.calls import ReportedCall
from consumers.console.page.drawing import duration
from consumers.engine.limits import GoalRules, Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.history.settings import HistorySettings
from consumers.history.sqlite import Batch, SqliteHistory
from consumers.runtime.process import OperatorError
from schemas.closed_sets import Speaker, UnscoredReason
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
from streamer.one_call import call_lines, in_history
from streamer.recordings.files import SAMPLE
from streamer.recordings.reader import goals_for, read_recordings
from streamer.report import reported_call
from streamer.settings.all_settings import Settings
from streamer.time_bounds import shown_moment


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
    assert not [line for line in lines if "[user interrupts]" in line or "likely" in line], "EVA's marks"
    kinds = {DeadAirFact: "dead air", InterruptionFact: "interrupt"}
    for kind, words in kinds.items():
        assert any(words in line for line in lines) is any(isinstance(record, kind) for record in half)


def test_an_interruption_stands_at_the_answer_that_was_cut_off_and_at_the_turn_that_began_with_it(
    scoring: RecordedScoring,
) -> None:
    turns = [
        record.turn for record in scoring.records if isinstance(record, InterruptionFact) and record.by is Speaker.USER
    ]
    assert turns
    lines = {line.split(":")[0].strip(): line for line in call_lines(shown(scoring), None) if line.startswith("  turn")}
    for turn in filter(None, turns):
        assert "began by interrupting the agent" in lines[f"turn {turn}"]
        assert "its answer was interrupted by the user" in lines[f"turn {turn - 1}"]


def test_start_and_length_are_those_of_the_events(scoring: RecordedScoring) -> None:
    (closed,) = (record for record in scoring.records if isinstance(record, ClosedFact))
    began_ms = scoring.call.control[0]["timestamp"]
    moved = closed.model_copy(update={"caused_at_ms": closed.caused_at_ms + 3_600_000})
    records = [moved if record is closed else record for record in scoring.records]
    assert closed.began_at_ms == began_ms
    line = list(call_lines(shown(scoring, records), None))[1]
    assert line.startswith(f"  {shown_moment(began_ms)} UTC, ")
    assert f" {duration(scoring.call.control[-1]['timestamp'] - began_ms)} long" in line


def test_a_call_that_the_topics_have_no_more_is_that_of_the_history(scoring: RecordedScoring, tmp_path: Path) -> None:
    assert in_history(Settings(), "mple-call") is None, "no folder"
    settings = Settings(history=HistorySettings(folder=tmp_path))
    values = [
        (each.model_copy(update={"conversation_id": name}), name)
        for name in ("a-sample-call", "b-sample-call")
        for each in scoring.records
    ]
    written = [(record, record.model_dump_json().encode()) for record, _ in values]
    store = SqliteHistory(tmp_path, writes=True)
    assert scoring.transcript is not None
    store.write(Batch(written, [("a-sample-call", scoring.records[0].caused_at_ms, scoring.transcript)], {}))
    store.close()
    with pytest.raises(OperatorError, match="2 calls end with 'mple-call'"):
        in_history(settings, "mple-call")
    assert in_history(settings, "ple-cal") is None
    found = in_history(settings, "a-sample-call")
    assert found is not None
    lines = list(call_lines(found.reported(), found.transcript, found.remarks))
    assert "  turn 1: answered after 5.04 s (audio); dead air over 3 s" in lines
    assert lines[lines.index("Transcript:") + 1].startswith("  0:00  agent: Good morning")
    assert "from the history" in lines[-1]


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
