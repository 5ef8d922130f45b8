"""One call as text: as far as it has come, with its words, and why it ended badly."""

from pathlib import Path

import pytest

from consumers.engine.limits import GoalRules, Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.history.settings import HistorySettings
from consumers.history.sqlite import SqliteHistory
from consumers.runtime.process import OperatorError
from consumers.view.calls import ReportedCall
from consumers.view.words import duration
from schemas.closed_sets import Speaker, ToolOutcome, UnscoredReason
from schemas.goals.goal_set import GoalSet
from schemas.rows import (
    CallRow,
    Note,
    Rating,
    Silence,
    StageLatency,
    ToolUse,
    ToolWords,
    TurnRow,
    Unscored,
    Waiting,
    WordsRow,
)
from schemas.scores.latency_stages import Stage, StageSource
from streamer.offline.scoring import RecordedScoring, ScoringPlan, plan_from, scored
from streamer.one_call import call_lines, in_history
from streamer.recordings.files import SAMPLE
from streamer.recordings.reader import goals_for, read_recordings
from streamer.settings.all_settings import Settings
from streamer.time_bounds import shown_moment
from tests.support.calls.console_calls import AT_MS, call_row, reported_rows, turn_row
from tests.support.calls.rows_of_calls import newest
from tests.unit.history.test_store import batch
from tests.unit.history.test_store import call as stored_rows


@pytest.fixture(scope="module")
def scoring(tmp_path_factory: pytest.TempPathFactory) -> RecordedScoring:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("empty"))
        (sample,) = read_recordings(SAMPLE)
        return scored(sample, plan_from(Settings(), goals_for([SAMPLE], None)))


def shown(scoring: RecordedScoring, count: int | None = None) -> ReportedCall:
    """The call with so many of its rows, all of them unless given."""
    row, turns, goals = newest(scoring.rows[:count])
    return ReportedCall(row, turns, goals, (), "c1", Redactor())


def test_a_call_that_is_still_on_is_shown_as_far_as_it_has_come(scoring: RecordedScoring) -> None:
    half = shown(scoring, len(scoring.rows) // 2)
    lines = list(call_lines(half))
    assert lines[1].endswith("not over")
    assert lines[-1] == "The call is not over."
    assert sum("answered after" in line for line in lines) == len(half.waits_ms) > 0
    assert any("interrupt" in line for line in lines) is any(
        row.interruptions for row in half.turns
    )


def test_an_interruption_stands_at_the_answer_that_was_cut_off_and_at_the_turn_that_began_with_it(
    scoring: RecordedScoring,
) -> None:
    call = shown(scoring)
    turns = [row.turn for row in call.turns if Speaker.USER in row.interruptions]
    assert turns
    lines = {
        line.split(":")[0].strip(): line for line in call_lines(call) if line.startswith("  turn")
    }
    for turn in filter(None, turns):
        assert "began by interrupting the agent" in lines[f"turn {turn}"]
        assert "its answer was interrupted by the caller" in lines[f"turn {turn - 1}"]


def test_start_and_length_are_those_of_the_events(scoring: RecordedScoring) -> None:
    began_ms = scoring.call.control[0]["timestamp"]
    call = shown(scoring)
    assert call.row.began_ms == began_ms
    call.row.known_ms += 3_600_000
    line = list(call_lines(call))[1]
    assert line.startswith(f"  {shown_moment(began_ms)} UTC, ")
    assert f" {duration(scoring.call.control[-1]['timestamp'] - began_ms)} long" in line


def lines_of(row: CallRow, *turns: TurnRow, words: tuple[WordsRow, ...] = ()) -> list[str]:
    return list(call_lines(reported_rows(row, *turns, words=words)))


def test_a_turn_has_its_wait_its_stages_and_its_tools() -> None:
    turn = turn_row(
        2,
        wait_ms=912.0,
        anchor="vad",
        after_tools_ms=4_000.0,
        outcome="unanswered",
        stages=(StageLatency(Stage.TOOL_RUN, 300.0, StageSource.AUDIT, is_disputed=True),),
        dead_air=(Silence(1, 0, 0, 3_000),),
        tools=(ToolUse(0, "find", ToolOutcome.SUCCESS, 500), ToolUse(1, "book")),
    )
    asked = ToolWords(0, "find", '{"day":  "friday"}', '{"free": true}')
    words = (
        WordsRow(
            conversation_id="c",
            turn=2,
            user="Friday?",
            assistant="One [likely cut off by user]",
            tools=(asked,),
        ),
        WordsRow(conversation_id="c", turn=0, assistant="Hello"),
    )
    lines = lines_of(call_row(), turn, words=words)
    assert lines[lines.index("Turns:") + 1 :][:6] == [
        "  turn 2: answered after 0.91 s (vad); first sound: a filler; answer after 4.00 s; no "
        "answer: the call went on; "
        "dead air over 3 s; find: success in 0.50 s; book: no answer yet",
        "    stages: tool run 0.30 s (disputed)",
        '    find was given {"day": "friday"}',
        '      and answered {"free": true}',
        "",
        "No goals: no goal set is for this call (goals.folder, or its call_started).",
    ]
    assert lines[lines.index("Words so far:") + 1 :][:3] == [
        "     0  agent: Hello",
        "     2  caller: Friday?",
        "     2  agent: One",
    ]


def test_a_call_that_ended_badly_says_why() -> None:
    waiting = Waiting(4, AT_MS, 1)
    ended = call_row(
        state="closed",
        close_reason="ended",
        turns=4,
        turn=4,
        waiting=waiting,
        notes=(Note("handoff", 0),),
    )
    assert lines_of(ended)[1:4] == [
        f"  {shown_moment(AT_MS)} UTC, 0 s long, 4 turns, ended: no reason given",
        "  Hung up unanswered, turn 4.",
        "  an agent handed the call to another one",
    ]
    running = call_row(turns=4, turn=4, waiting=waiting)
    assert not [line for line in lines_of(running) if "ung up" in line]


def test_an_expected_tool_call_says_why_it_was_missed() -> None:
    (sample,) = read_recordings(SAMPLE)
    expected = [{"tool": "find_booking", "turn": 0}, {"tool": "rebook", "turn": 4}]
    subgoal = {"id": "any", "details": "d", "check": {"kind": "judge"}}
    goal_set = GoalSet.model_validate(
        {"id": "g", "subgoals": [subgoal], "expected_tool_calls": expected}
    )
    asked = RecordedScoring(sample, ScoringPlan(Limits(), GoalRules(), "test"), goal_set)
    assert list(asked.run()) == []
    lines = [line for line in call_lines(shown(asked)) if "expected tool call" in line]
    assert lines == [
        "  expected tool call find_booking in turn 1: not called in that turn, but in turn 2",
        "  expected tool call rebook in turn 5: made as expected",
    ]


def test_ratings_of_a_call_are_shown_with_what_was_not_judged() -> None:
    assert "Judged:" not in lines_of(call_row())
    missing = {"violating_policies": "the agent's instructions are not known"}
    lines = lines_of(
        call_row(
            faithfulness=Rating(1.0, 7, rating=3, not_applicable=missing),
            conversation_progression=Rating(Unscored(UnscoredReason.UNAVAILABLE), 6),
        )
    )
    assert lines[lines.index("Judged:") :][:3] == [
        "Judged:",
        "  faithfulness up to turn 7: 1; not judged: violating policies (the agent's instructions "
        "are not known)",
        "  conversation progression up to turn 6: Unscored: unavailable",
    ]


def test_a_call_that_the_topics_have_no_more_is_that_of_the_history(tmp_path: Path) -> None:
    assert in_history(Settings(), "mple-call") is None, "no folder"
    settings = Settings(history=HistorySettings(folder=tmp_path))
    writer = SqliteHistory(tmp_path, writes=True)
    writer.write(batch([*stored_rows("a-sample-call"), *stored_rows("b-sample-call")]))
    writer.close()
    with pytest.raises(OperatorError, match="2 calls end with 'mple-call'"):
        in_history(settings, "mple-call")
    assert in_history(settings, "ple-cal") is None
    found = in_history(settings, "a-sample-call")
    assert found is not None
    lines = list(call_lines(found.reported(), found.remarks))
    assert "  turn 1: answered after 5.04 s (audio); dead air over 3 s" in lines
    assert lines[lines.index("Words:") + 1].startswith("     0  agent: Good morning")
    assert "from the history" in lines[-1]
