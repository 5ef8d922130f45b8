"""Scores as functions: the same as the commands print, for paths and for events, with a judge and
without.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import callgauge as started
from consumers.engine.agent_inspect import EvaluationError, InvalidInputValueError, NumericalScore
from consumers.history.sqlite import SqliteHistory
from consumers.runtime.process import wall_clock_ms
from schemas.closed_sets import UnscoredReason
from schemas.rows import Unscored, encode
from schemas.units import DAY_MS
from streamer.agent_inspect import NotJudgedError
from streamer.notebook import (
    ScoredCall,
    auc,
    past_calls,
    ppt,
    progress,
    score,
    success,
    tool_correctness,
)
from streamer.recordings.files import RecordingError
from tests.support.fakes.scripted_openai import Does, grades, scripted_openai
from tests.support.pages import ROOT, blocks_of
from tests.unit.history.test_store import batch, call
from tests.unit.streamer.command_line import Command, Json

T0_MS = 1_790_000_000_000


@pytest.fixture(scope="module")
def sample() -> ScoredCall:
    (call,) = score("sample")
    return call


def test_a_path_gives_what_the_command_prints(callgauge: Command, sample: ScoredCall) -> None:
    rows = [sample.goals, *sample.turns, sample.call]
    assert [encode(row).decode() for row in rows if row] == callgauge(
        "score", "sample"
    ).out.splitlines()


def test_the_transcript_is_that_of_the_command(callgauge: Command, sample: ScoredCall) -> None:
    assert sample.transcript is not None
    printed = json.loads(callgauge("transcript", "sample").out)
    assert [entry.model_dump(mode="json") for entry in sample.transcript] == printed


def test_events_are_scored_as_the_file_that_has_them(tmp_path: Path) -> None:
    def event(call: str, at_ms: int, **fields: object) -> Json:
        return {"conversation_id": call, "timestamp": T0_MS + at_ms, **fields}

    events = [
        event("a", 0, type="call_started", agent="desk"),
        event("b", 10, stream="audit", message_type="user", value="Hello?"),
        event("a", 20, stream="audit", message_type="user", value=5),
        event("a", 9_000, type="call_ended", reason="goodbye"),
    ]
    path = tmp_path / "calls.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in events))
    called = score(iter(events), agent="other")
    of_file = score(path, agent="other")
    told = [tuple(each.replace(str(path), "events") for each in call.remarks) for call in of_file]
    assert called == [
        replace(call, remarks=remarks) for call, remarks in zip(of_file, told, strict=True)
    ]
    assert [call.conversation_id for call in called] == ["a", "b"]
    assert {call.to_dict()["labels.agent"] for call in called} == {"desk", "other"}
    (remark,) = called[0].remarks
    assert remark.startswith("events:3: ")
    assert events[0]["conversation_id"] == "a"  # what was given is as it was


def test_whole_calls_are_scored_too() -> None:
    said = {"message_type": "user", "value": "Hello?", "timestamp": str(T0_MS)}
    (call,) = score([{"id": "c", "audit": [said]}])
    assert call.conversation_id == "c"


def test_what_a_bot_tells_of_its_turns_comes_out_in_the_transcript() -> None:
    """From an event that names no stream, as any sender over HTTP writes it."""
    rag = {
        "chunks": [{"document_id": "d", "chunk_id": "c", "vector_distance": 0.5}],
        "embedding_model": "e5",
        "retrieval_query": "seats",
        "rag_latency_secs": 0.2,
    }
    (call,) = score(
        [
            {"type": "user_message", "timestamp": T0_MS + 1_000, "data": {"content": "A seat"}},
            {
                "type": "turn_details",
                "timestamp": T0_MS + 1_500,
                "rag_retrieval_info": rag,
                "workflow_node_id": "seats",
            },
            {
                "type": "assistant_message",
                "timestamp": T0_MS + 3_000,
                "data": {"content": "Gladly"},
            },
            {"type": "turn_details", "timestamp": T0_MS + 4_000, "feedback": {"score": "like"}},
        ]
    )
    assert call.transcript is not None
    answer = call.transcript[-1]
    assert (answer.message, answer.rag_retrieval_info) == ("Gladly", rag)
    assert answer.feedback == {"score": "like", "time_in_call_secs": 3}
    assert answer.agent_metadata is not None
    assert answer.agent_metadata.workflow_node_id == "seats"


def test_goals_are_those_of_the_file_and_a_call_without_any_is_told(tmp_path: Path) -> None:
    goals = tmp_path / "goals.yaml"
    goals.write_text(
        "id: g\nagents: [desk]\nsubgoals: [{id: a, details: d, check: {kind: says, speaker: user, "
        "pattern: hi}}]\n"
    )
    said = {"stream": "audit", "message_type": "user", "value": "hi", "timestamp": T0_MS + 5}
    (call,) = score(
        [{"type": "call_started", "timestamp": T0_MS, "agent": "desk"}, said], goals=goals
    )
    assert call.goals is not None
    assert [each["id"] for each in call.goals.goal_set["subgoals"]] == ["a"]
    assert call.to_dict()["goals.subgoals"] == 1


def test_what_cannot_be_read_says_where() -> None:
    with pytest.raises(RecordingError, match="events:2: its type is not known"):
        score(
            [{"type": "call_started", "timestamp": T0_MS}, {"type": "nonsense", "timestamp": T0_MS}]
        )
    with pytest.raises(RecordingError, match="no/such/call: there is no recorded call"):
        score("no/such/call")


def test_rows_are_flat_and_unknown_is_not_zero(sample: ScoredCall) -> None:
    rows = sample.to_dicts()
    assert [row["turn"] for row in rows] == list(range(8))
    assert not any(
        isinstance(value, dict | tuple | list)
        for row in [*rows, sample.to_dict()]
        for value in row.values()
    )
    (call,) = score(
        [{"stream": "audit", "message_type": "user", "value": "Hello?", "timestamp": T0_MS}]
    )
    row = call.to_dict()
    assert (row["speech.result"], bool(row["speech.result.reason"])) == (None, True)


def _first_subgoal(call: ScoredCall) -> object:
    assert call.call.goals is not None
    return call.call.goals.subgoals[0].result


async def test_a_judge_is_asked_from_within_a_running_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a notebook, whose cells run inside one."""
    goals = tmp_path / "goals.yaml"
    goals.write_text(
        "id: g\nsubgoals: [{id: kind, details: The assistant is kind., check: {kind: judge}}]\n"
    )
    (plain,) = score("sample", goals=goals)
    assert _first_subgoal(plain) == Unscored(UnscoredReason.JUDGE_DISABLED)
    with scripted_openai(lambda _: grades("C")) as endpoint:
        for name, value in {"base_url": endpoint.url, "api_key": "key"}.items():
            monkeypatch.setenv(f"CALLGAUGE_JUDGE__{name.upper()}", value)
        (judged,) = score("sample", goals=goals, judge=True)
    assert _first_subgoal(judged) == 1.0


def test_a_goal_set_may_have_a_template_of_agent_inspect_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    goals = tmp_path / "goals.yaml"
    goals.write_text(
        "id: g\nagents: [desk]\nuser_instruction: Ask for a seat.\nnum_judge_trials: 1\n"
        "templates_subgoal: 'Task {userTask}, goal {subgoal}. {trajectories} {answers} "
        "{dynamicDialogue} The end.'\n"
        "subgoals: [{id: kind, details: The assistant is kind., check: {kind: judge}}]\n"
    )
    events = [
        {"type": "call_started", "timestamp": T0_MS, "agent": "desk"},
        {"stream": "audit", "message_type": "user", "value": "A seat", "timestamp": T0_MS + 1_000},
        {
            "stream": "audit",
            "message_type": "assistant",
            "value": "Gladly",
            "timestamp": T0_MS + 2_000,
        },
        {"type": "call_ended", "timestamp": T0_MS + 3_000},
    ]
    with scripted_openai(lambda _: grades("C")) as endpoint:
        for name, value in {"base_url": endpoint.url, "api_key": "key"}.items():
            monkeypatch.setenv(f"CALLGAUGE_JUDGE__{name.upper()}", value)
        (judged,) = score(events, goals=goals, judge=True)
    assert _first_subgoal(judged) == 1.0
    (asked,) = endpoint.asked
    assert asked.user.startswith('Task "Ask for a seat.", goal "The assistant is kind.". BEGIN ')
    assert [asked.user.count(words) for words in ('user "A seat"', 'assistant "Gladly"')] == [2, 3]


def test_the_script_of_the_page_makes_a_table_and_a_chart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = next(block for block in blocks_of("docs/python.md") if "pandas" in block.text)
    assert len(script.text.splitlines()) <= 15
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    made: dict[str, Any] = {}
    exec(compile(script.text, script.name, "exec"), made)  # noqa: S102 - our own page
    assert "AUC 0.65" in capsys.readouterr().out
    assert (made["waits"] > 0).all()
    assert [bar.get_height() for bar in made["chart"].patches] == made["waits"].tolist()
    assert (tmp_path / "waits.png").read_bytes().startswith(b"\x89PNG")


def test_the_script_about_past_calls_makes_a_table_and_a_chart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = next(block for block in blocks_of("docs/history.md") if "pandas" in block.text)
    assert len(script.text.splitlines()) <= 20
    writer = SqliteHistory(tmp_path / "history", writes=True)
    now_ms = wall_clock_ms()
    calls = [
        call(f"{agent}-{days}", now_ms - days * DAY_MS, agent)
        for agent in ("desk", "care")
        for days in range(1, 4)
    ]
    writer.write(batch(row for rows in calls for row in rows))
    writer.close()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    made: dict[str, Any] = {}
    exec(compile(script.text, script.name, "exec"), made)  # noqa: S102 - our own page
    assert "care-1" in capsys.readouterr().out
    assert made["waits"].shape == (3, 2)
    assert [list(line.get_ydata()) for line in made["chart"].lines] == [
        made["waits"][name].tolist() for name in ("care", "desk")
    ]
    assert (tmp_path / "waits.png").read_bytes().startswith(b"\x89PNG")
    assert [
        row["conversation_id"]
        for row in past_calls("36h", where=["labels.agent = desk"], folder="history")
    ] == ["desk-1"]


def _turn(answer: str = "Hi", *steps: Json) -> Json:
    return {"agent_input": "Hello", "agent_response": {"response": answer}, "steps": list(steps)}


def _trace(*turns: Json, of: Json, **config: object) -> Json:
    return {"agent_trace": {"turns": list(turns)}, "evaluation_data_sample": of, "config": config}


def test_traces_have_the_results_of_the_command(callgauge: Command, tmp_path: Path) -> None:
    step = {"tool": "book", "tool_input_args": [{"name": "n", "value": 2}], "tool_output": "ok"}
    calls = [
        {"tool": "book", "expected_parameters": [{"name": "n", "value": 2}], "turn": 0},
        {"tool": "pay", "turn": 0},
    ]
    of = {"sub_goals": [], "expected_tool_calls": calls}
    trace = _trace(_turn("Booked.", step), of=of)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    ended = callgauge(
        "score", path, "--format", "agent-inspect", "--scorer", "ToolCorrectnessMetric"
    )
    assert (
        asdict(tool_correctness(trace)) == json.loads(ended.out)["metrics"]["ToolCorrectnessMetric"]
    )
    assert tool_correctness(trace).score == 0.5


KEPT = {
    "include_judge_explanation": True,
    "include_validation_results": True,
    "include_prompt_sent_to_llmj": True,
}


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("options", [{}, KEPT])
def test_a_judged_trace_has_all_that_the_command_prints(
    callgauge: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: Json, static: bool
) -> None:
    """Sub scores, explanations and verdicts, with agent-inspect's options and without."""

    def words(prompt: str) -> str:
        return (
            "It is done.\nGRADE: C"
            if "yes" in prompt.partition("Subgoal: ")[0]
            else "Not yet.\nGRADE: I"
        )

    goals = [
        {"details": "a", "turn": 0 if static else None},
        {"details": "b", "turn": 1 if static else None},
    ]
    step = {"tool": "book", "tool_input_args": [{"name": "n", "value": 2}], "tool_output": "ok"}
    expected = [{"tool": "book", "expected_parameters": [{"name": "n", "check": "two"}], "turn": 1}]
    trace = _trace(
        _turn("no"),
        _turn("yes", step),
        of={"sub_goals": goals, "expected_tool_calls": expected},
        max_turns=3,
        num_judge_trials=3,
        **options,
    )
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    with scripted_openai(lambda asked: Does(text=words(asked.user))) as endpoint:
        for name, value in {
            "base_url": endpoint.url,
            "api_key": "key",
            "answer_form": "grade",
        }.items():
            monkeypatch.setenv(f"CALLGAUGE_JUDGE__{name.upper()}", value)
        printed = json.loads(
            callgauge("score", path, "--format", "agent-inspect", "--judge", "on").out
        )["metrics"]
    found: Json = {"ToolCorrectnessMetric": tool_correctness(trace, words)}
    if static:
        (found["ProgressScore"],) = progress(trace, words)
        found["SuccessScore"] = success(trace, words)
    else:
        found |= {
            "AUC": auc(trace, words),
            "PPT": ppt(trace, words),
            "SuccessScoreFinalTurn": success(trace, words),
        }
        curve = progress(trace, words)
        assert [asdict(each) for each in curve] == printed.pop("ProgressScoresThroughTurns")
    assert {name: asdict(each) for name, each in found.items()} == printed
    has_completions = "Not yet." in json.dumps([asdict(each) for each in found.values()])
    assert has_completions == bool(options)


def test_options_say_what_a_result_has() -> None:
    def judge(_: str) -> str:
        return "All good.\nGRADE: C"

    trace = _trace(
        _turn("yes"), of={"sub_goals": [{"details": "d"}]}, max_turns=2, num_judge_trials=1
    )
    summary = "After turn 1 the subgoal is completed: d"
    plain = progress(trace, judge)[-1]
    assert (plain.sub_scores, plain.explanations, plain.validation_results) == (
        None,
        [{"d": [summary]}],
        None,
    )
    trace["config"] |= KEPT
    first, last = progress(trace, judge)
    assert last.explanations == [{"d": [summary, "All good.\nGRADE: C"]}]
    assert first.validation_results is None  # as in agent-inspect, the last turn has them
    assert last.validation_results is not None
    (verdict,) = last.validation_results
    assert (verdict.is_completed, verdict.explanations) == (True, [summary, "All good.\nGRADE: C"])
    assert verdict.sub_goal.details == "d"
    assert "yes" in (verdict.prompt_sent_to_llmj or "")
    assert auc(trace, judge).sub_scores == {
        "Turn_1_progress_score": 1.0,
        "Turn_2_progress_score": 1.0,
    }
    assert ppt(trace, judge).explanations == [first.explanations, last.explanations]
    assert success(last.validation_results) == NumericalScore(1, {"progress_score": 1.0})
    assert success(last) == NumericalScore(1, {"progress_score": 1.0}, last.explanations)


def _two_turns() -> Json:
    return _trace(_turn("no"), _turn("yes"), of={"sub_goals": [{"details": "d"}]}, max_turns=2)


@pytest.mark.parametrize("answer", [1, {"grade": "C"}, b"GRADE: C"])
def test_what_is_no_answer_of_a_judge_is_said(answer: Any) -> None:
    with pytest.raises(TypeError, match=f"True, False or None; seen {type(answer).__name__}"):
        progress(_two_turns(), lambda _: answer)


def test_a_judge_is_asked_as_often_as_agent_inspect_asks() -> None:
    asked: list[str] = []

    def answers() -> Iterator[str | bool | None]:
        yield from ("GRADE: C", "GRADE: I", "GRADE: C", True)  # a majority of five: three for it
        yield from (None, None, "no grade", "GRADE: I")  # in the second turn nothing is left to ask

    given = answers()

    def judge(prompt: str) -> str | bool | None:
        asked.append(prompt)
        return next(given)

    trace = _trace(
        _turn("My card is 4111 1111 1111 1111."),
        _turn(),
        of={"sub_goals": [{"details": "greeted"}]},
        max_turns=3,
        optimize_judge_trials=True,
    )
    assert [each.score for each in progress(trace, judge)] == [1.0, 1.0, 1.0]
    assert len(asked) == 4
    assert "greeted" in asked[0]
    assert "GRADE" in asked[0]
    assert "4111" not in "".join(asked)


def test_functions_take_a_trace_or_its_progress() -> None:
    trace = _trace(_turn("no"), _turn("yes"), of={"sub_goals": [{"details": "d"}]}, max_turns=4)

    def judge(prompt: str) -> bool:
        return "yes" in prompt

    curve = progress(trace, judge)
    values = [each.score for each in curve]
    assert values == [0.0, 1.0, 1.0, 1.0]
    for measure in (auc, ppt, success):
        assert measure(trace, judge).score == measure(curve).score == measure(values).score


def test_a_static_conversation_has_one_progress() -> None:
    of = {"sub_goals": [{"details": "a", "turn": 0}, {"details": "b", "turn": 1}]}
    trace = _trace(_turn("no"), _turn("yes"), of=of)
    (half,) = progress(trace, lambda prompt: "yes" in prompt)
    assert half.score == 0.5
    assert half.validation_results is not None  # static scores have them without the option
    assert [each.is_completed for each in half.validation_results] == [False, True]
    assert success(trace, lambda prompt: "yes" in prompt).sub_scores == {"progress_score": 0.5}
    assert success(trace, lambda _: True).score == 1


def test_errors_are_agent_inspect_s_and_nobody_to_ask_is_said() -> None:
    with pytest.raises(NotJudgedError, match="pass one as `judge`"):
        progress(_trace(_turn(), of={"sub_goals": [{"details": "d"}]}))
    with pytest.raises(InvalidInputValueError) as ended:
        auc([])
    assert ended.value.internal_code == "050005"
    with pytest.raises(EvaluationError):
        auc([1.0])
    with pytest.raises(ValueError, match="after at least one turn"):
        success([])
    with pytest.raises(
        RecordingError, match=r'"agent_trace" as an object[^!]*docs/sources/agent-inspect\.md'
    ):
        ppt({"evaluation_data_sample": {}})

    def breaks(_: str) -> bool:
        raise OSError("no line")

    with pytest.raises(OSError, match="no line"):  # an error of the judge is the caller's
        progress(_trace(_turn(), of={"sub_goals": [{"details": "d"}]}), breaks)


def test_the_page_has_every_name() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert {name for name in started.__all__ if f"`{name}(" in page or f"`{name}`" in page} == {
        *started.__all__
    } - {"main"}


def test_the_command_s_module_has_the_functions_and_loads_them_late() -> None:
    for name in started.__all__:
        assert callable(getattr(started, name))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        started.nothing  # noqa: B018
    late = (
        "import callgauge, sys; assert 'streamer.notebook' not in sys.modules; callgauge.auc; "
        "assert 'streamer.notebook' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", late], cwd=ROOT, check=True)
