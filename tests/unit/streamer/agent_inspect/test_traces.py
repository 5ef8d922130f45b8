"""`callgauge score --format agent-inspect`: the traces it reads, its messages about the others, and
its questions.
"""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.fakes.scripted_openai import (
    Asked,
    Does,
    ScriptedOpenAI,
    fails,
    grades,
    scripted_openai,
)
from tests.support.patience import patient
from tests.unit.streamer.command_line import Command, Ended, Json


@pytest.fixture
def score(monkeypatch: pytest.MonkeyPatch, callgauge: Command) -> Command:
    def run(
        *arguments: object,
        judge: ScriptedOpenAI | None = None,
        form: str = "agent-inspect",
        **settings: object,
    ) -> Ended:
        if judge is not None:
            settings = {"base_url": judge.url, "api_key": "key", "max_retries": 0, **settings}
        for name, value in settings.items():
            monkeypatch.setenv(f"CALLGAUGE_JUDGE__{name.upper()}", str(value))
        return callgauge(
            "score", *arguments, "--format", form, *(("--judge", "on") if judge is not None else ())
        )

    return run


def turn(text: str = "Hello", answer: str | None = "Hi", steps: list[Json] | None = None) -> Json:
    response = None if answer is None else {"response": answer, "status_code": "200"}
    return {"id": "t", "agent_input": text, "agent_response": response, "steps": steps}


def step(tool: str = "book", output: object = "ok", **arguments: object) -> Json:
    given = [{"name": name, "value": value, "check": None} for name, value in arguments.items()]
    return {
        "id": "s",
        "parent_ids": [],
        "tool": tool,
        "tool_input_args": given,
        "tool_output": output,
    }


def sample(*details: str, at: object = None, **fields: object) -> Json:
    return {
        "sub_goals": [{"details": each, "type": "gradingNotes", "turn": at} for each in details],
        **fields,
    }


def trace(name: str, *turns: Json, of: Json | None = None, **config: object) -> Json:
    given = {"id": name, "agent_trace": {"turns": list(turns) or [turn()]}, "config": config}
    return given if of is None else {**given, "evaluation_data_sample": of}


def write(path: Path, *lines: object) -> Path:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def always(letter: str) -> Callable[[Asked], Does]:
    return lambda _: grades(letter)


def test_a_trace_that_cannot_be_read_is_named_and_the_others_go_on(
    score: Command, tmp_path: Path
) -> None:
    expected = sample("greeted", expected_tool_calls=[{"tool": "book", "turn": 0}])
    good = trace("good", turn(steps=[step()]), of=expected)
    bad: dict[str, object] = {
        "a JSON object": "{",
        "a trace as an object; seen a list": [1],
        '"agent_trace" as an object with the list "turns"': {
            "id": "x",
            "evaluation_data_sample": sample("a"),
        },
        "or the id of a sample in --goals; seen the id 'y'": trace("y"),
        "expected array or null; seen object": {
            **trace("x", of=sample("a")),
            "agent_trace": {"turns": {}},
        },
        "expected str; seen int - at $[0].details": trace("x", of={"sub_goals": [{"details": 4}]}),
        "expected str or null; seen int - at $[0].steps[0].tool": trace(
            "x", turn(steps=[{"tool": 3}]), of=sample("a")
        ),
        "seen str - at $[0].latency_in_ms": trace(
            "x", {**turn(), "latency_in_ms": "long"}, of=sample("a")
        ),
        "some of num_judge_trials": trace("x", of=sample("a"), num_judge_trails=3),
        "expected int; seen null - at $.num_judge_trials": trace(
            "x", of=sample("a"), num_judge_trials=None
        ),
        "the place {call} is missing": trace("x", of=sample("a"), template_subgoal="{subgoal}"),
        '"id" of 1 to 256 printable characters': trace("\u0000", of=sample("a")),
        "with mode exact or judge": trace(
            "x",
            of={
                "metadata": {
                    "subgoals": [],
                    "expected_tools": [{"tool_name": "a", "tool_inputs": [4]}],
                }
            },
        ),
    }
    for number, (told, line) in enumerate(bad.items()):
        ended = score(
            write(tmp_path / f"{number}.jsonl", line, good), "--scorer", "ToolCorrectnessMetric"
        )
        assert ended.code == 1
        assert told in ended.err, told
        assert "the others are not concerned" in ended.err
        assert "docs/sources/agent-inspect.md" in ended.err
        assert ended.metrics["good"]["ToolCorrectnessMetric"]["score"] == 1.0


def test_a_path_without_traces_is_said_before_anything_is_read(
    score: Command, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for path, seen in (
        (tmp_path / "no.jsonl", "no such file"),
        (tmp_path / "empty", "there is no recorded call"),
    ):
        ended = score(path)
        assert (ended.code, ended.out) == (1, "")
        assert seen in ended.err
    ended = score(write(tmp_path / "notes.txt", "hello"))
    assert "this is not JSON" in ended.err


@pytest.mark.parametrize(
    "name", ["traces.jsonl", "traces.jsonl.gz", "traces.json", "traces.json.gz", "folder"]
)
def test_traces_come_from_lines_lists_and_folders(
    score: Command, tmp_path: Path, name: str
) -> None:
    first, second = ({"progress_scores": [0, each]} for each in (0.5, 1))
    if name == "folder":
        (tmp_path / name).mkdir()
        write(tmp_path / name / "a.jsonl", first)
        write(tmp_path / name / "b.json", second)
        ids = ["a:1", "b"]
    else:
        write(tmp_path / name, *((first, second) if "jsonl" in name else ([first, second],)))
        ids = ["traces:1", "traces:2"]
    ended = score(tmp_path / name)
    assert (ended.code, ended.err) == (0, "")
    assert {each: metrics["AUC"]["score"] for each, metrics in ended.metrics.items()} == dict(
        zip(ids, (0.25, 0.5), strict=True)
    )


def test_a_file_that_breaks_off_ends_the_reading_of_that_file_only(
    score: Command, tmp_path: Path
) -> None:
    whole = gzip.compress(b'{"progress_scores": [0, 1]}\n' * 2_000)
    (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) - 12])
    write(tmp_path / "b.jsonl", {"id": "b", "progress_scores": [1, 1]})
    ended = score(tmp_path)
    assert ended.code == 1
    assert "the rest of" in ended.err
    assert ended.metrics["b"]["AUC"]["score"] == 1.0


def test_samples_may_be_in_a_file_of_their_own_in_both_of_agent_inspect_s_shapes(
    score: Command, tmp_path: Path
) -> None:
    entry = {
        "id": 7,
        "input": [{"role": "user", "content": "Book a seat."}],
        "metadata": {
            "subgoals": [{"type": "gradingNotes", "turn": "all", "details": "a seat is booked"}],
            "expected_tools": [{"tool_name": "book", "turn": 0, "tool_inputs": []}],
        },
    }
    samples = write(tmp_path / "samples.json", [entry, {**sample("greeted", at=0), "id": "other"}])
    traces = write(
        tmp_path / "traces.jsonl",
        trace("7", turn(steps=[step()])),
        {**trace("run-1"), "data_sample_id": "other"},
        {"turns": [turn()], "id": "other"},
    )
    with scripted_openai(always("C")) as judge:
        ended = score(traces, "--goals", samples, judge=judge)
    assert ended.code == 0, ended.err
    assert set(ended.metrics["7"]) == {
        "ProgressScoresThroughTurns",
        "AUC",
        "PPT",
        "SuccessScoreFinalTurn",
        "ToolCorrectnessMetric",
    }
    assert ended.metrics["7"]["ToolCorrectnessMetric"]["score"] == 1.0
    assert (
        set(ended.metrics["run-1"])
        == set(ended.metrics["other"])
        == {"ProgressScore", "SuccessScore"}
    )
    # traces are judged beside each other
    assert any("Book a seat." in asked.user for asked in judge.asked)
    ended = score(traces, "--goals", write(tmp_path / "twice.json", [entry, entry]))
    assert (ended.code, ended.out) == (1, "")
    assert "an id of its own for each sample; seen '7' twice" in ended.err


def test_a_scripted_conversation_is_judged_once_a_subgoal_without_the_instruction(
    score: Command, tmp_path: Path
) -> None:
    goals = sample("greeted", at=0)["sub_goals"] + sample("booked", at=1)["sub_goals"]
    of = {"sub_goals": goals, "user_instruction": "Book it quietly."}
    path = write(
        tmp_path / "t.jsonl",
        trace("a", turn("one"), turn("two"), turn("three"), of=of, num_judge_trials=1),
    )
    with scripted_openai(lambda asked: grades("C" if "greeted" in asked.user else "I")) as judge:
        ended = score(path, judge=judge)
    assert [asked.user.count(" user ") for asked in judge.asked] == [1, 2]
    assert not any("quietly" in asked.user for asked in judge.asked)
    assert ended.metrics["a"]["ProgressScore"]["score"] == 0.5
    assert ended.metrics["a"]["SuccessScore"]["score"] == 0
    assert "Judge: 2 questions, 0 without a verdict" in ended.err


def test_the_judge_gets_no_personal_data_and_the_prompt_is_shown_if_asked_for(
    score: Command, tmp_path: Path
) -> None:
    said = "My card is 4111 1111 1111 1111."
    steps = [step(card="4111 1111 1111 1111", output={"mail": "jane@example.com"})]
    config = {"num_judge_trials": 1, "max_turns": 1, "include_validation_results": True}
    config |= {
        "include_entire_prompt_in_validation_result": True,
        "include_judge_explanation": True,
    }
    path = write(
        tmp_path / "t.jsonl", trace("a", turn(said, steps=steps), of=sample("paid"), **config)
    )
    with scripted_openai(lambda _: grades("C", "card 4111 1111 1111 1111")) as judge:
        ended = score(path, judge=judge)
    sent = judge.asked[0].system + "\n\n" + judge.asked[0].user
    assert "1111" not in sent
    assert "jane" not in sent
    assert '1 tool_call "book"' in sent
    (validation,) = ended.metrics["a"]["ProgressScoresThroughTurns"][-1]["validation_results"]
    assert validation["prompt_sent_to_llmj"] == sent
    assert validation["sub_goal"] == {"details": "paid", "type": "gradingNotes", "turn": None}
    assert "[CARD]" in validation["explanations"][1]
    assert "1111" not in validation["explanations"][1]


def test_what_a_trace_shows_by_itself_has_the_fields_of_a_score_too(
    score: Command, tmp_path: Path
) -> None:
    spent = {
        "input_token_consumption": 200,
        "output_token_consumption": 12,
        "reasoning_token_consumption": 5,
    }
    shown = {**turn(steps=[{**step(), **spent}]), "latency_in_ms": 150.5}
    measured = {
        "TotalLatency": 150.5,
        "AverageLatency": 150.5,
        "InputTotalTokenCount": 200,
        "OutputTotalTokenCount": 12,
        "ReasoningTotalTokenCount": 5,
        "TotalTokenConsumption": 217,
        "ToolCallCount": 1,
    }
    scorers = [option for name in measured for option in ("--scorer", name)]
    ended = score(write(tmp_path / "t.jsonl", trace("a", shown, of=sample("greeted"))), *scorers)
    others = {"sub_scores": None, "explanations": None, "validation_results": None}
    assert ended.metrics["a"] == {
        name: {"score": value, **others} for name, value in measured.items()
    }
    ended = score(
        write(tmp_path / "t.jsonl", trace("a", turn(), of=sample("greeted"))),
        "--scorer",
        "TotalLatency",
    )
    assert ended.metrics["a"]["TotalLatency"]["internal_code"] == "050008"


@pytest.mark.parametrize("at", [None, 0])
def test_the_statistics_of_a_judge_come_with_the_verdicts(
    score: Command, tmp_path: Path, at: int | None
) -> None:
    """The same as of the verdicts in a file of their own, as agent-inspect takes them."""
    votes = iter("CCCICIIIII")  # 4 of 5, and none of 5
    config = {
        "include_judge_explanation": True,
        "include_validation_results": True,
        "max_turns": 1,
        "num_judge_trials": 5,
    }
    path = write(tmp_path / "t.jsonl", trace("a", of=sample("greeted", "booked", at=at), **config))
    last = "ProgressScoresThroughTurns" if at is None else "ProgressScore"
    with scripted_openai(lambda _: Does(text=f"GRADE: {next(votes)}")) as judge:
        scorers = ("--scorer", "StatisticAnalysis", "--scorer", last)
        ended = score(path, *scorers, judge=judge, answer_form="grade", max_concurrent_requests=1)
    judged = ended.metrics["a"][last]
    verdicts = (judged[-1] if at is None else judged)["validation_results"]
    again = score(write(tmp_path / "known.jsonl", {"id": "b", "validation_results": verdicts}))
    assert ended.metrics["a"]["StatisticAnalysis"] == again.metrics["b"]["StatisticAnalysis"]
    assert ended.metrics["a"]["StatisticAnalysis"] == {
        "judge_expectation": pytest.approx(0.4),
        "judge_std": pytest.approx(0.2),
    }


@pytest.mark.parametrize(
    ("form", "texts"),
    [("grade", "GRADE: {}"), ("structured", '{{"explanation": "so", "grade": "{}"}}')],
)
def test_the_statistics_need_no_other_option(
    score: Command, tmp_path: Path, form: str, texts: str
) -> None:
    """In one run, in either form of the answers. A trace that wants no explanations has none, as in
    agent-inspect.
    """
    found = []
    for config in ({}, {"include_judge_explanation": False}):
        votes = iter("CCCICIIIII")  # 4 of 5, and none of 5
        path = write(
            tmp_path / "t.jsonl", trace("a", of=sample("greeted", "booked"), max_turns=1, **config)
        )

        def answers(_: Asked, votes: Iterator[str] = votes) -> Does:
            return Does(text=texts.format(next(votes)))

        with scripted_openai(answers) as judge:
            ended = score(
                path,
                "--scorer",
                "StatisticAnalysis",
                judge=judge,
                answer_form=form,
                max_concurrent_requests=1,
            )
        found.append(ended.metrics["a"]["StatisticAnalysis"])
    assert found[0] == {"judge_expectation": pytest.approx(0.4), "judge_std": pytest.approx(0.2)}
    assert found[1]["internal_code"] == "080008"


def test_without_a_judge_only_what_needs_one_has_no_result(score: Command, tmp_path: Path) -> None:
    of = sample("greeted", expected_tool_calls=[{"tool": "book", "turn": 0}])
    ended = score(write(tmp_path / "t.jsonl", trace("a", turn(steps=[step()]), of=of)))
    assert ended.code == 0
    assert ended.metrics["a"]["AUC"]["reason"] == "judge_disabled"
    assert ended.metrics["a"]["ToolCorrectnessMetric"]["score"] == 1.0
    assert "Trace a: the judge gave no verdict (judge_disabled)" in ended.err


def test_a_budget_that_is_spent_leaves_scorers_without_a_result_and_no_error_of_agent_inspect_s(
    score: Command, tmp_path: Path
) -> None:
    path = write(
        tmp_path / "t.jsonl",
        trace("a", of=sample("greeted")),
        {"id": "b", "progress_scores": [0, 1]},
    )
    with scripted_openai(always("C")) as judge:
        ended = score(path, judge=judge, budget_per_call=0.001)
    assert judge.asked == []
    assert ended.metrics["a"]["PPT"]["error"] == "NotJudged"
    assert ended.metrics["a"]["PPT"]["reason"] == "over_budget"
    assert ended.metrics["b"]["AUC"]["score"] == 0.5


def test_a_judge_that_never_answers_ends_the_run_with_what_to_check(
    score: Command, tmp_path: Path
) -> None:
    path = write(tmp_path / "t.jsonl", trace("a", of=sample("greeted")))
    with scripted_openai(lambda _: fails(401)) as judge:
        ended = score(path, judge=judge)
    assert (ended.code, ended.out) == (1, "")
    assert "answers nothing (rejected)" in ended.err


def test_more_trials_than_a_judge_of_ours_counts_are_no_verdict(
    score: Command, tmp_path: Path
) -> None:
    path = write(tmp_path / "t.jsonl", trace("a", of=sample("greeted"), num_judge_trials=101))
    with scripted_openai(always("C")) as judge:
        ended = score(path, judge=judge)
    assert (
        ended.metrics["a"]["AUC"]["reason"] == "at most 99 trials and 20 retry waves are possible"
    )
    assert judge.asked == []


@pytest.mark.parametrize("options", [["--all"], ["--arrival", "1"], ["--processes", "2"]])
def test_options_about_events_are_refused(
    score: Command, tmp_path: Path, options: list[str]
) -> None:
    ended = score(write(tmp_path / "t.jsonl", trace("a", of=sample("greeted"))), *options)
    assert (ended.code, ended.out) == (2, "")


@pytest.mark.parametrize(
    "options", [["--scorer", "AUC"], ["--verdicts", "v.jsonl"], ["--option", "max_turns=1"]]
)
def test_options_of_traces_are_refused_for_calls(
    score: Command, tmp_path: Path, options: list[str]
) -> None:
    ended = score(
        write(tmp_path / "t.jsonl", trace("a", of=sample("greeted"))), *options, form="records"
    )
    assert (ended.code, ended.out) == (2, "")


def test_options_come_from_the_trace_then_the_command_and_not_from_the_settings(
    score: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLGAUGE_GOALS__TRIALS", "7")
    own = trace("own", of=sample("greeted"), num_judge_trials=1)
    path = write(tmp_path / "t.jsonl", trace("a", of=sample("greeted")), own)
    with scripted_openai(always("C")) as judge:
        ended = score(
            path, "--option", "num_judge_trials=3", "--option", "max_turns=4", judge=judge
        )
        assert len(judge.asked) == 3 + 1
        assert [
            len(metrics["ProgressScoresThroughTurns"]) for metrics in ended.metrics.values()
        ] == [4, 4]
        score(path, judge=judge)
        assert len(judge.asked) == 4 + 5 + 1, "agent-inspect's own five"


def test_a_template_of_ones_own_is_asked_and_a_changed_one_asks_again(
    score: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = tmp_path / "prompt.txt"
    monkeypatch.setenv("CALLGAUGE_GOALS__TEMPLATE_SUBGOAL", f"file:{template}")
    own = trace(
        "own",
        of=sample("greeted"),
        num_judge_trials=1,
        templates_subgoal="{call}\nOf the trace: {subgoal}",
    )
    path = write(tmp_path / "t.jsonl", trace("a", of=sample("greeted"), num_judge_trials=1), own)
    kept = ["--verdicts", str(tmp_path / "verdicts.jsonl")]
    with scripted_openai(always("C")) as judge:
        template.write_text("{call}\nOf the setting: {subgoal}")
        score(path, *kept, judge=judge)
        # two traces are judged beside each other
        asked = sorted(each.user.splitlines()[-1] for each in judge.asked)
        assert asked == ['Of the setting: "greeted"', 'Of the trace: "greeted"']
        score(path, *kept, judge=judge)
        assert len(judge.asked) == 2
        template.write_text("{call}\nChanged: {subgoal}")
        score(path, *kept, judge=judge)
        assert [each.user.splitlines()[-1] for each in judge.asked[2:]] == ['Changed: "greeted"']
        template.write_text("{call}")
        ended = score(path, *kept, judge=judge)
    assert (ended.code, ended.out) == (2, "")
    assert "the place {subgoal} is missing" in ended.err
    assert "CALLGAUGE_GOALS__TEMPLATE_SUBGOAL" in ended.err


def test_a_template_of_agent_inspect_s_is_asked_with_its_places(
    score: Command, tmp_path: Path
) -> None:
    template = (
        "Goal {subgoal}\nTask {userTask}\n{trajectories}\n{answers}\n{dynamicDialogue}\nThat is "
        "all."
    )
    config = {"num_judge_trials": 1, "max_turns": 1, "templates_subgoal": template}
    of, lacks = sample("greeted", user_instruction="say hello"), sample("greeted")
    path = write(
        tmp_path / "t.jsonl", trace("a", of=of, **config), trace("without", of=lacks, **config)
    )
    with scripted_openai(always("C")) as judge:
        ended = score(path, judge=judge)
    (asked,) = judge.asked
    assert asked.user.startswith('Goal "greeted"\nTask "say hello"\nBEGIN ')
    assert [asked.user.count(each) for each in ('1 user "Hello"', '1 assistant "Hi"')] == [2, 3]
    assert ended.metrics["a"]["AUC"]["error"] == "ValueError"  # as there, one turn has no area
    assert ended.metrics["a"]["PPT"]["score"] == 1.0
    assert ended.metrics["without"]["PPT"]["error"] == "KeyError", (
        "as there, a task that is missing"
    )


@pytest.mark.parametrize("option", ["max_turns", "turns=3", "max_turns=many", "template=1"])
def test_an_option_that_does_not_exist_is_refused(
    score: Command, tmp_path: Path, option: str
) -> None:
    ended = score(write(tmp_path / "t.jsonl", trace("a", of=sample("greeted"))), "--option", option)
    assert (ended.code, ended.out) == (2, "")
    assert "--option: expected" in ended.err


def test_a_rate_makes_a_run_longer_and_leaves_no_question_out(
    score: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLGAUGE_GOALS__VERDICT_DEADLINE_MS", str(round(3_000 * patient(1))))
    burst, more = 20, 10
    lines = [
        trace(f"t{n}", of=sample("greeted"), num_judge_trials=1, max_turns=2)
        for n in range(burst + more)
    ]
    with scripted_openai(always("C")) as judge:
        ended = score(write(tmp_path / "t.jsonl", *lines), judge=judge, max_requests_per_minute=120)
    assert len(judge.asked) == burst + more
    assert f"Judge: {burst + more} questions, 0 without a verdict" in ended.err
    assert [metrics["AUC"].get("score") for metrics in ended.metrics.values()] == [1.0] * (
        burst + more
    )
