"""`callgauge score` prints recorded calls as rows, judged or not, the same in any order
of reading.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from schemas.rows import CallRow, GoalsRow, Row, TurnRow
from streamer.backtest import last_values
from streamer.trials.calls import NewestRows
from tests.support.calls.rows_of_calls import call_of
from tests.support.fakes.scripted_openai import Asked, Does, fails, grades, scripted_openai
from tests.support.known import instance_of, some
from tests.unit.streamer.command_line import Command, Ended, Json

T0_MS = 1_790_000_000_000


def call(name: str, *turns: str, pause_ms: int = 4_000, ends: bool = True, **started: str) -> Json:
    """A call with a greeting and one turn for each text of the user; a text with `book` in it uses
    the tool `book`.
    """
    audit: list[Json] = []
    user_sim: list[Json] = []
    pipecat: list[Json] = []

    def heard(role: str, text: str, start_ms: int) -> None:
        for kind, sound_ms in (("audio_start", start_ms), ("audio_end", start_ms + 1_000)):
            event = {"event_type": kind, "user": role, "audio_timestamp": sound_ms / 1_000}
            user_sim.append({"timestamp": sound_ms, **event})
        kind = "assistant_speech" if role == "assistant" else "user_speech"
        user_sim.insert(
            -1, {"timestamp": start_ms + 900, "type": kind, "data": {"text": text, "source": role}}
        )

    def answers(text: str, at_ms: int) -> None:
        audit.append({"timestamp": at_ms - 100, "message_type": "assistant", "value": text})
        pipecat.append({"timestamp": at_ms, "type": "turn_start", "data": {"frame": "turn_start"}})
        pipecat.append({"timestamp": at_ms, "type": "tts_text", "data": {"frame": text}})
        heard("assistant", text, at_ms)

    answers("Welcome", T0_MS + 100)
    at_ms = T0_MS + 2_000
    for text in turns:
        heard("simulated_user", text, at_ms)
        audit.append({"timestamp": at_ms + 1_100, "message_type": "user", "value": text})
        if "book" in text:
            use = {"tool": "book", "parameters": {"seat": "window"}}
            answer = {"tool": "book", "response": {"status": "success"}}
            audit.append({"timestamp": at_ms + 1_200, "message_type": "tool_call", "value": use})
            audit.append(
                {"timestamp": at_ms + 1_300, "message_type": "tool_response", "value": answer}
            )
        answers(f"You said {text}", at_ms + 2_000)
        at_ms += pause_ms
    control = [{"type": "call_started", "timestamp": T0_MS, **started}] if started else []
    if ends:
        control.append({"type": "call_ended", "timestamp": at_ms, "reason": "goodbye"})
        over = {"state": "session_ended", "details": {"reason": "goodbye"}}
        user_sim.append({"timestamp": at_ms - 100, "type": "connection_state", "data": over})
    return {
        "id": name,
        "pipeline_type": "cascade",
        "audit": audit,
        "pipecat": pipecat,
        "user_sim": user_sim,
        "control": control,
    }


def write_calls(path: Path, *calls: Json) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in calls))
    return path


def subgoal(name: str, check: Json) -> Json:
    return {"id": name, "details": f"it is {name}", "check": check}


SAYS_YES = subgoal("agreed", {"kind": "says", "speaker": "user", "pattern": "yes"})
BOOKS = subgoal("booked", {"kind": "tool_result", "tool": "book", "outcome": "success"})
JUDGED = subgoal("glad", {"kind": "judge"})


def write_goals(path: Path, *sets: Json) -> Path:
    path.write_text(json.dumps(list(sets)))
    return path


def goals(name: str, *subgoals: Json, agents: tuple[str, ...] = ()) -> Json:
    return {"id": name, "agents": list(agents), "subgoals": list(subgoals), "max_turns": 3}


@pytest.fixture
def scored(score: Command, tmp_path: Path) -> Command:
    """Scores calls, with goal sets if there are some."""

    def ended(calls: Iterable[Json], *options: object, sets: Sequence[Json] = ()) -> Ended:
        path = write_calls(tmp_path / "calls.jsonl", *calls)
        given = ("--goals", write_goals(tmp_path / "goals.json", *sets)) if sets else ()
        return score(path, *given, *options)

    return ended


def test_progress_is_printed_per_turn(scored: Command) -> None:
    ended = scored([call("c", "hello", "yes", "book it")], sets=[goals("any", SAYS_YES, BOOKS)])
    assert (ended.code, ended.err) == (0, "")
    assert ended.progress == [0.0, 0.5, 1.0]
    closed = instance_of(CallRow, ended.rows[-1])
    assert closed.goals is not None
    assert [each.reached_turn for each in closed.goals.subgoals] == [2, 3]
    assert (closed.state, closed.ended_reason, closed.turns) == ("closed", "goodbye", 3)
    assert {row.conversation_id for row in ended.rows} == {"c"}


def test_with_all_every_row_is_printed_in_the_order_of_writing(
    score: Command, tmp_path: Path
) -> None:
    revised = call("c", "hello", "yes")
    revised["user_sim"] = [
        event for event in revised["user_sim"] if "event_type" in event
    ]  # an empty sound takes its turn back
    path = write_calls(tmp_path / "calls.jsonl", revised)
    given = (path, "--goals", write_goals(tmp_path / "goals.json", goals("any", SAYS_YES)))
    final, everything = score(*given), score(*given, "--all")
    written = everything.out.splitlines()
    assert set(final.out.splitlines()) < set(written)
    subjects = [
        (type(row), row.turn if isinstance(row, TurnRow) else None) for row in everything.rows
    ]
    newest = {subject: place for place, subject in enumerate(subjects)}
    assert len(newest) < len(subjects), "something was revised"
    assert final.out.splitlines() == [written[place] for place in sorted(newest.values())]
    assert len(set(written)) == len(written)
    first = everything.rows[0]
    assert isinstance(first, GoalsRow), "a call has its goals before it is measured against them"
    known_ms = [row.known_ms for row in everything.rows if not isinstance(row, GoalsRow)]
    assert known_ms == sorted(known_ms)
    assert known_ms[0] == T0_MS, "time is the events' own"
    revisions = [row.revision for row in everything.rows]
    assert revisions == sorted(revisions)


def test_what_is_read_first_changes_no_score(score: Command, tmp_path: Path) -> None:
    path = write_calls(tmp_path / "calls.jsonl", call("c", "hello", "yes", "book it", "no"))
    given = (path, "--goals", write_goals(tmp_path / "goals.json", goals("any", SAYS_YES, BOOKS)))
    expected = score(*given)
    for seed in range(4):
        shuffled = score(*given, "--arrival", seed)
        # after max_turns it is not reported again
        assert shuffled.progress == expected.progress == [0.0, 0.5, 1.0]
        assert last_values(NewestRows(shuffled.rows)) == last_values(NewestRows(expected.rows))


def test_each_call_has_the_goals_it_names_or_those_of_its_id_or_agent(
    score: Command, tmp_path: Path
) -> None:
    sets = (
        goals("a", SAYS_YES),
        goals("b", BOOKS),
        goals("desk", SAYS_YES, BOOKS, agents=("desk",)),
    )
    said = ("yes", "book")
    path = write_calls(
        tmp_path / "calls.jsonl",
        call("a", *said),
        call("x", *said, goals="b", agent="desk"),
        call("y", *said, agent="desk"),
        call("z", *said),
        call("w", *said, goals="unknown", agent="desk"),
    )
    given = write_goals(tmp_path / "goals.json", *sets)
    ended = score(path, "--goals", given)
    by_call: dict[str, list[int]] = {}
    for row in ended.rows:
        if isinstance(row, TurnRow) and row.progress is not None:
            by_call.setdefault(row.conversation_id, []).append(row.progress.subgoals)
    assert by_call == {"a": [1, 1], "x": [1, 1], "y": [2, 2]}
    assert [line.split(":")[0] for line in ended.err.splitlines()] == ["Call z", "Call w"]
    assert "Call z" not in score(path, "--goals", given, "--agent", "desk").err


def test_eva_s_format_is_one_line_per_call_in_its_own_encoding(
    score: Command, tmp_path: Path
) -> None:
    path = write_calls(tmp_path / "calls.jsonl", call("a", "hello", "yes"), call("b"))
    ended = score(path, "--format", "eva")
    first, second = (json.loads(line) for line in ended.out.splitlines())
    assert (ended.code, first["id"], second["id"]) == (0, "a", "b")
    assert set(first["metrics"]) >= {
        "turn_taking",
        "response_speed",
        "stt_wer",
        "tool_call_validity",
    }
    assert set(first["metrics"]["turn_taking"]) == {
        "details",
        "error",
        "normalized_score",
        "score",
        "skipped",
        "sub_metrics",
    }
    assert second["metrics"]["response_speed"]["skipped"]
    assert (second["metrics"]["stt_wer"]["score"], second["metrics"]["turn_taking"]["score"]) == (
        0.0,
        0.0,
    )
    assert score(path, "--format", "eva", "--arrival", "3").out == ended.out


@pytest.mark.parametrize(
    "option", [("--all",), ("--judge", "on"), ("--agent", "ava"), ("--goals", "goals.json")]
)
def test_eva_s_format_has_nothing_else(scored: Command, option: tuple[str, ...]) -> None:
    ended = scored([call("a")], "--format", "eva", *option)
    assert (ended.code, ended.out) == (2, "")
    assert "results have no goals" in ended.err


def test_without_goals_there_is_no_progress_and_nothing_to_complain_of(scored: Command) -> None:
    ended = scored([call("c", "hello")])
    assert (ended.code, ended.err, ended.progress) == (0, "", [])
    assert call_of(ended.rows).state == "closed"


def test_a_pause_cuts_nothing_off_and_neither_does_an_early_end(scored: Command) -> None:
    held = call("held", "hello", "yes", pause_ms=1_000_000)
    hasty = call("hasty", "hello", "yes", ends=False)
    over = {
        "type": "connection_state",
        "timestamp": T0_MS + 1_500,
        "data": {"state": "session_ended", "details": {}},
    }
    hasty["audit"][-1]["timestamp"] += 60_000
    hasty["user_sim"] = [
        event for event in hasty["user_sim"] if event["timestamp"] < over["timestamp"]
    ] + [over]
    ended = scored([held, hasty], sets=[goals("any", SAYS_YES)])
    events = {row.conversation_id: row.events for row in ended.rows if isinstance(row, CallRow)}
    everything = sum(len(held[name]) for name in ("audit", "pipecat", "user_sim", "control"))
    assert events["held"] == everything + 1  # `call_started` is added
    assert events["hasty"] == sum(len(hasty[name]) for name in ("audit", "pipecat", "user_sim")) + 2


def test_limits_on_the_amount_cut_nothing_off(
    score: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_calls(tmp_path / "calls.jsonl", call("c", "hello", "yes"))
    expected = score(path)
    for name in ("MAX_CALL_DURATION_MS", "MAX_RECORD_BYTES"):
        monkeypatch.setenv(f"CALLGAUGE_LIMITS__{name}", "1")
    assert score(path) == expected


def test_silence_passes_with_the_recording_s_own_time(scored: Command) -> None:
    long = call("c", "hello", "hello", "yes", "bye", pause_ms=200_000)
    rows = scored([long], "--all", sets=[goals("any", SAYS_YES)]).rows
    stalled = next(
        row
        for row in rows
        if isinstance(row, CallRow) and row.goals is not None and row.goals.stalls
    )
    assert stalled.known_ms == T0_MS + 202_000 + 120_000, (
        "the first turn was over when the second began"
    )
    third = next(
        row
        for row in rows
        if isinstance(row, TurnRow) and row.turn == 3 and row.progress is not None
    )
    assert rows.index(stalled) < rows.index(third)


def test_settings_of_the_environment_hold(
    score: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_calls(tmp_path / "calls.jsonl", call("c", "hello", "hello", "hello"))
    given = (path, "--goals", write_goals(tmp_path / "goals.json", goals("any", SAYS_YES)))
    assert not stalls(score(*given).rows)
    monkeypatch.setenv("CALLGAUGE_GOALS__STALL_TURNS", "2")
    assert stalls(score(*given).rows)


def stalls(rows: list[Row]) -> int:
    goals = some(call_of(rows).goals)
    return len(goals.stalls)


def test_an_event_that_the_evaluator_would_refuse_is_told(scored: Command) -> None:
    broken = call("c", "hello", "yes")
    broken["audit"].append({"value": "no time", "message_type": "user"})
    ended = scored([broken])
    assert ended.code == 0
    assert ended.err.startswith("Call c, event ")
    assert call_of(ended.rows).state == "closed"


def test_goals_with_mistakes_are_told_before_a_call_is_scored(
    score: Command, scored: Command, tmp_path: Path
) -> None:
    path = write_calls(tmp_path / "calls.jsonl", call("c", "hello"))
    broken = tmp_path / "goals.yaml"
    broken.write_text(
        "id: a\nsubgoals:\n  - id: one\n    details: d\n    check: {kind: nonsense}\n"
    )
    ended = score(path, "--goals", broken)
    assert (ended.code, ended.out) == (1, "")
    assert f"{broken}:5: " in ended.err
    (tmp_path / "empty").mkdir()
    ended = score(path, "--goals", tmp_path / "empty")
    assert (ended.code, ended.out) == (1, "")
    assert "no goal file in this folder" in ended.err
    assert score(path, "--goals", tmp_path / "missing.yaml").code == 1


def test_a_broken_recording_is_told_after_the_calls_before_it(
    score: Command, tmp_path: Path
) -> None:
    path = write_calls(tmp_path / "calls.jsonl", call("c", "hello"))
    path.write_text(path.read_text() + "{\n")
    ended = score(path)
    assert ended.code == 1
    assert f"{path}:2: this is not JSON" in ended.err
    assert call_of(ended.rows).state == "closed"


# The judge.


def test_without_a_judge_what_it_should_judge_is_unscored(scored: Command) -> None:
    ended = scored([call("c", "hello", "yes")], sets=[goals("any", SAYS_YES, JUDGED)])
    assert ended.progress == ["judge_disabled", "judge_disabled"]


def test_the_judge_needs_a_key(
    score: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_calls(tmp_path / "calls.jsonl", call("c", "hello"))
    ended = score(path, "--judge", "on")
    assert (ended.code, ended.out) == (2, "")
    assert "there is no key" in ended.err
    assert "OPENAI_API_KEY" in ended.err
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setenv("CALLGAUGE_JUDGE__ENABLED", "false")
    assert "switched off" in score(path, "--judge", "on").err


@pytest.fixture
def judged_calls(tmp_path: Path) -> tuple[object, ...]:
    """Nine calls, judged on the second of their turns."""
    calls = (call(f"c{number}", f"hello from {number}", "yes") for number in range(9))
    path = write_calls(tmp_path / "calls.jsonl", *calls)
    return (
        path,
        "--goals",
        write_goals(tmp_path / "goals.json", goals("any", SAYS_YES, JUDGED)),
        "--judge",
        "on",
    )


def test_a_slow_call_keeps_no_other_from_asking(
    scored: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four calls may wait for the judge. The first of twelve waits until all others have asked, and
    is shown first.
    """
    calls = [call(f"c{number}", f"hello from {number}") for number in range(12)]
    settings = {
        "OPENAI_API_KEY": "key",
        "CALLGAUGE_GOALS__TRIALS": "1",
        "CALLGAUGE_JUDGE__MAX_CONCURRENT_REQUESTS": "4",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with scripted_openai(
        lambda asked: grades("C", delay_seconds=1.0 if "hello from 0" in asked.user else 0.0)
    ) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        ended = scored(calls, "--judge", "on", sets=[goals("any", JUDGED)])
    assert ended.code == 0
    assert [row.conversation_id for row in ended.rows if isinstance(row, CallRow)] == [
        f"c{n}" for n in range(12)
    ]
    (slow,) = [asked for asked in server.asked if "hello from 0" in asked.user]
    assert slow.ended is not None
    assert all(asked.began < slow.ended for asked in server.asked)
    assert server.most_at_once <= 4


def test_a_judge_is_asked_at_the_moment_of_the_recording(
    score: Command, judged_calls: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def glad_when_agreed(asked: Asked) -> Does:
        return grades("C" if '"yes"' in asked.user else "I", delay_seconds=0.02)

    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setenv("CALLGAUGE_GOALS__TRIALS", "1")
    with scripted_openai(glad_when_agreed) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        ended = score(*judged_calls)
        shuffled = score(*judged_calls, "--arrival", 3)
    assert ended.code == 0
    ids = [row.conversation_id for row in ended.rows if isinstance(row, CallRow)]
    assert ids == [f"c{number}" for number in range(9)], "in the order of the recordings"
    turns = [row for row in ended.rows if isinstance(row, TurnRow) and row.progress is not None]
    assert [(row.turn, row.progress and row.progress.result) for row in turns] == [
        (1, 0),
        (2, 1),
    ] * 9
    assert (
        max(row.known_ms for row in ended.rows if isinstance(row, TurnRow | CallRow))
        < T0_MS + 60_000
    )
    assert shuffled.progress == ended.progress
    assert ended.err.startswith("Judge: 18 questions, 0 without a verdict; 18 requests, ")


def test_a_judge_that_takes_no_request_ends_it(
    score: Command, judged_calls: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    with scripted_openai(lambda _: fails(401)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        ended = score(*judged_calls)
    assert (ended.code, ended.out) == (1, "")
    assert f"the model gpt-4.1 at {server.url} answers nothing (rejected)" in ended.err
    assert "Traceback" not in ended.err


def test_one_question_without_a_verdict_is_told_and_its_score_says_why(
    score: Command, judged_calls: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setenv("CALLGAUGE_GOALS__TRIALS", "1")
    with scripted_openai(
        lambda asked: Does(refusal="no") if '"yes"' in asked.user else grades("I")
    ) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        ended = score(*judged_calls)
    assert (ended.code, ended.progress) == (0, [0.0, "refused"])
    assert "18 questions, 9 without a verdict (refused 9)" in ended.err


def test_a_table_says_whether_the_calls_were_good(
    score: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = score("sample", "--format", "table")
    assert (ended.code, ended.err) == (0, "")
    heads, row, *rest = ended.out.splitlines()
    assert heads.split()[:3] == ["call", "agent", "length"]
    assert row.split("  ")[0] == "sample-call"
    assert "6 of 6" in row
    assert "What stands out:" in rest
    assert score("sample", "--format", "table", "--all").code == 2


def test_calls_without_a_goal_set_are_named_up_to_three_and_counted(scored: Command) -> None:
    nobodys = (goals("a", SAYS_YES, agents=("x",)), goals("b", BOOKS, agents=("y",)))
    calls = (call(f"c-{number}", "yes") for number in range(5))
    told = scored(calls, sets=nobodys).err.splitlines()
    assert [line.partition(": no goal set is for it")[0] for line in told] == [
        "Call c-0",
        "Call c-1",
        "Call c-2",
        "And 2 more",
    ]


def test_a_trace_is_told_from_a_recording(score: Command, tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_text('{"agent_trace": {"turns": []}, "evaluation_data_sample": {"sub_goals": []}}\n')
    ended = score(path, "--format", "table")
    assert ended.code == 1
    assert "`callgauge score FILE --format agent-inspect` scores traces" in ended.err


def test_the_question_mark_of_the_table_is_explained(score: Command, scored: Command) -> None:
    sets = [goals("any", SAYS_YES, JUDGED)]
    lines = scored([call("c", "yes")], "--format", "table", sets=sets).out.splitlines()
    assert "1 of 2?" in lines[1]
    assert lines[2].startswith("goals: ? marks a call with subgoals whose verdict is not known")
    assert "?" not in score("sample", "--format", "table").out
