"""A judge's answers are kept in a file: an answered question is never asked again, even after a
kill in the middle.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from consumers.judge.settings import JudgeSettings
from schemas.closed_sets import JudgeKind
from schemas.judging import JudgeVerdict, Rated
from streamer.offline.judge_in_process import KeptVerdicts
from tests.support.calls.judge_questions import question
from tests.support.fakes.scripted_openai import (
    Asked,
    Does,
    ScriptedOpenAI,
    fails,
    grades,
    scripted_openai,
)
from tests.support.patience import patient
from tests.unit.streamer.cli.test_score import JUDGED, call, goals, write_calls, write_goals
from tests.unit.streamer.command_line import Command, Ended

ROOT = Path(__file__).parents[4]


class Run:
    """Runs of a command on the same input and the same file of verdicts: on traces, unless another
    command is given.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, callgauge: Command) -> None:
        self.verdicts = folder / "verdicts.jsonl"
        self._traces = folder / "traces.jsonl"
        self._monkeypatch = monkeypatch
        self._callgauge = callgauge
        self.command = ["score", str(self._traces), "--format", "agent-inspect"]
        self.write(3)

    def write(self, traces: int, **config: Any) -> None:
        turns = [
            {"agent_input": f"Words {n}", "agent_response": {"response": "Yes"}} for n in (1, 2)
        ]
        line = {
            "agent_trace": {"turns": turns},
            "config": {"num_judge_trials": 1, "max_turns": 2, **config},
        }
        line["evaluation_data_sample"] = {
            "sub_goals": [{"details": "greeted"}, {"details": "booked"}]
        }
        self._traces.write_text(
            "".join(json.dumps({"id": f"t{n}", **line}) + "\n" for n in range(traces))
        )

    def __call__(self, judge: ScriptedOpenAI, *, switch: str = "on", **settings: object) -> Ended:
        """A whole run in this process."""
        for name, value in self._environment(judge, settings).items():
            self._monkeypatch.setenv(name, value)
        return self._callgauge(*self._arguments(switch))

    def begin(self, judge: ScriptedOpenAI, **settings: object) -> "subprocess.Popen[bytes]":
        """A run in a process of its own."""
        command = [sys.executable, "-m", "streamer.cli.main", *self._arguments("on")]
        environment = os.environ | self._environment(judge, settings)
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def killed(
        self, judge: ScriptedOpenAI, script: Callable[[Asked], Does], after: int, at_once: int = 1
    ) -> None:
        """A run that is killed when the judge has answered so many questions, and the next ones
        hang.
        """
        reached = threading.Event()

        def hangs(asked: Asked) -> Does:
            if len(judge.asked) <= after:
                return script(asked)
            if len(judge.asked) == after + at_once:
                reached.set()
            return Does(hangs=True)

        judge.script = hangs
        process = self.begin(judge, max_concurrent_requests=at_once)
        assert reached.wait(patient(60))
        process.send_signal(signal.SIGKILL)
        process.wait(patient(10))
        judge.script = script

    def _arguments(self, switch: str) -> list[str]:
        return [*self.command, "--judge", switch, "--verdicts", str(self.verdicts)]

    def _environment(self, judge: ScriptedOpenAI, settings: Mapping[str, object]) -> dict[str, str]:
        given = {
            "base_url": judge.url,
            "api_key": "key",
            "max_retries": 0,
            "max_concurrent_requests": 1,
        }
        given |= {"model": "gpt-4.1", **settings}
        return {f"CALLGAUGE_JUDGE__{name.upper()}": str(value) for name, value in given.items()}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, callgauge: Command) -> Run:
    return Run(tmp_path, monkeypatch, callgauge)


def by_word(asked: Asked) -> Does:
    return grades("C" if "booked" in asked.user else "I")


def yes(_asked: Asked) -> Does:
    return grades("C")


def test_a_second_run_asks_nothing_and_prints_the_same(run: Run) -> None:
    with scripted_openai(by_word) as judge:
        first = run(judge)
        requests = len(judge.asked)
        second = run(judge)
    assert requests == 3 * 3, "two subgoals in turn 1, one in turn 2"
    assert len(judge.asked) == requests
    assert first.code == second.code == 0, first.err + second.err
    assert first.out == second.out
    assert "Judge: 0 questions" in second.err
    assert "9 further questions have verdicts of an earlier run" in second.err


def test_a_run_that_is_killed_goes_on_where_it_was(run: Run) -> None:
    with scripted_openai(by_word) as judge:
        run.killed(judge, by_word, after=4)
        with run.verdicts.open("a") as file:
            file.write('{"key": "cut off in the mid')
        ended = run(judge)
    assert ended.code == 0, ended.err
    assert len(judge.asked) == 5 + 5, "the four that were answered are not asked again"
    assert "4 further questions have verdicts of an earlier run" in ended.err
    assert [line["metrics"]["SuccessScoreFinalTurn"]["score"] for line in ended.lines] == [0] * 3


def test_after_a_kill_only_questions_without_a_verdict_are_asked_again(run: Run) -> None:
    """Traces side by side: only questions on their way at the kill are repeated, at most one per
    place of the judge.
    """
    run.write(6)
    with scripted_openai(by_word) as judge:
        run.killed(judge, by_word, after=8, at_once=4)
        before = len(judge.asked)
        ended = run(judge, max_concurrent_requests=4)
    assert ended.code == 0, ended.err
    assert before == 8 + 4
    assert len(judge.asked) - before == 6 * 3 - 8, (
        "the eight that were answered are not asked again"
    )


@pytest.mark.parametrize("stops_early", [True, False])
def test_a_question_that_is_open_at_a_kill_is_asked_for_its_missing_trials_only(
    run: Run, stops_early: bool
) -> None:
    run.write(1, num_judge_trials=5, optimize_judge_trials=stops_early)
    with scripted_openai(yes) as judge:
        run.killed(judge, yes, after=2)
        ended = run(judge)
        requests = len(judge.asked)
        again = run(judge)
    assert ended.code == 0, ended.err
    trials = 3 if stops_early else 5
    assert requests == 2 * trials + 1, (
        "both subgoals are complete in turn 1; only the request on its way is sent again"
    )
    assert len(judge.asked) == requests
    assert ended.out == again.out
    kept = [json.loads(line) for line in run.verdicts.read_text().splitlines()]
    votes = [line["verdict"]["votes"] for line in kept if "verdict" in line]
    assert votes == [{"complete": trials, "incomplete": 0, "invalid": 0}] * 2


@pytest.mark.parametrize(
    "command",
    [
        "score",
        pytest.param("trials", marks=pytest.mark.thorough),
        pytest.param("report", marks=pytest.mark.thorough),
    ],
)
def test_a_killed_run_over_recorded_calls_goes_on_where_it_was(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    recordings = write_calls(
        tmp_path / "calls.jsonl", *(call(f"c{n}", "yes", agent="desk") for n in range(4))
    )
    sets = write_goals(tmp_path / "goals.json", goals("any", JUDGED, agents=("desk",)))
    run.command = [command, str(recordings), "--goals", str(sets)]
    if command == "report":
        run.command += ["--output", str(tmp_path / "report.html")]
    monkeypatch.setenv("CALLGAUGE_GOALS__TRIALS", "3")
    with scripted_openai(yes) as judge:
        run.killed(judge, yes, after=4)
        ended = run(judge)
        requests = len(judge.asked)
        again = run(judge)
    assert ended.code == again.code == 0, ended.err
    assert requests == 4 * 2 + 1, (
        "two equal votes decide; the request on its way, a first vote, is sent again"
    )
    assert len(judge.asked) == requests, again.err
    assert "Judge: 0 questions" in again.err


@pytest.mark.parametrize("command", ["score", "trials", "report"])
def test_a_file_of_verdicts_needs_a_judge(run: Run, command: str) -> None:
    run.command = [command, "sample"]
    with scripted_openai(by_word) as judge:
        ended = run(judge, switch="off")
    assert ended.code == 2
    assert "add --judge on" in " ".join(ended.err.split())
    assert not run.verdicts.exists()


def test_another_way_of_asking_is_another_question(run: Run) -> None:
    with scripted_openai(by_word) as judge:
        run(judge)
        run(judge, model="another")
        assert len(judge.asked) == 18
        run.write(3, num_judge_trials=3, optimize_judge_trials=True)
        run(judge)
        assert len(judge.asked) == 18 + 2 * 9


def test_what_only_the_circumstances_kept_from_being_answered_is_asked_again(run: Run) -> None:
    with scripted_openai(
        lambda asked: fails(500) if len(judge.asked) == 2 else by_word(asked)
    ) as judge:
        run.write(1, max_retry_judge_trials=0)
        first = run(judge)
        assert json.loads(first.out)["metrics"]["AUC"]["internal_code"] == "050000"
        second = run(judge)
    assert json.loads(second.out)["metrics"]["AUC"]["score"] == 0.5
    assert len(judge.asked) == 2 + 2, "the first question of turn 1 was answered in the first run"


def test_answers_that_nobody_can_read_are_paid_once(run: Run) -> None:
    with scripted_openai(lambda _: Does(text="who knows")) as judge:
        run.write(1, max_retry_judge_trials=1)
        first, second = run(judge), run(judge)
    assert first.out == second.out
    assert json.loads(first.out)["metrics"]["AUC"]["internal_code"] == "050000"
    assert len(judge.asked) == 2


def test_another_file_is_refused_before_anything_is_asked(run: Run) -> None:
    run.verdicts.write_text('{"some": "notes"}\n')
    with scripted_openai(by_word) as judge:
        ended = run(judge)
    assert (ended.code, ended.out, judge.asked) == (2, "", [])
    assert "line 1 is no verdict or answer" in ended.err
    assert run.verdicts.read_text() == '{"some": "notes"}\n'


def test_two_runs_at_a_time_do_not_share_a_file(run: Run) -> None:
    with scripted_openai(by_word) as judge, closing(KeptVerdicts(run.verdicts, JudgeSettings())):
        ended = run(judge)
    assert (ended.code, judge.asked) == (2, [])
    assert "another run is writing it" in ended.err


def test_ratings_are_kept_for_the_goals_and_the_agent_that_ask_next(tmp_path: Path) -> None:
    request = question(kind=JudgeKind.CONCISENESS)
    verdict = JudgeVerdict(
        timestamp=1,
        request_id=request.request_id,
        conversation_id=request.conversation_id,
        kind=request.kind,
        turn=request.turn,
        input_hash=request.input_hash,
        prompt_version=request.prompt_version,
        result=Rated(rating=3, normalised=1.0),
        agent="ava",
    )
    with closing(KeptVerdicts(tmp_path / "v.jsonl", JudgeSettings())) as kept:
        kept.keep_verdict(request, verdict)
    with closing(KeptVerdicts(tmp_path / "v.jsonl", JudgeSettings())) as kept:
        assert kept.verdict_on(request) == verdict
        assert kept.verdict_on(request.model_copy(update={"agent": "eve"})) == verdict.model_copy(
            update={"agent": "eve"}
        )
