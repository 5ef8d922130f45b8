"""The doctor finds obstacles to `run` in goals, the judge and the address of /metrics, and finds refused records."""

import socket
from pathlib import Path

import pytest
from aiokafka import TopicPartition

from streamer.cluster.facts import LogBounds
from streamer.doctor.examination import metrics_finding, quarantine_finding, start_findings
from streamer.doctor.findings import Finding, Verdict
from streamer.settings.all_settings import Settings, load_settings
from tests.support.fakes.http_answers import Answer, answering

KEY = {"OPENAI_API_KEY": "key"}
JUDGED = "id: one\nsubgoals:\n  - {id: a, details: d, check: {kind: judge}}\n"
CODED = "id: two\nsubgoals:\n  - {id: a, details: d, check: {kind: tool_called, tool: t}}\n"


def found(environment: dict[str, str] | None = None) -> dict[str, Finding]:
    settings = load_settings(None, {"http_port": 0}, environment or {})
    return {finding.check: finding for finding in start_findings(settings)}


def goals_in(folder: Path, **files: str) -> dict[str, str]:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return {"CALLGAUGE_GOALS__FOLDER": str(folder)}


def test_without_goals_and_judge_all_is_well() -> None:
    findings = found()
    assert {check: finding.verdict for check, finding in findings.items()} == {
        "goals": Verdict.OK, "judge": Verdict.OK, "metrics address": Verdict.OK,
    }  # fmt: skip
    assert findings["judge"].seen == "off: it has no key"
    assert found({"CALLGAUGE_GOALS__READS_TOPIC": "true"})["goals"].seen == "the topic goals is read"


def test_a_folder_with_which_run_would_not_start_is_wrong(tmp_path: Path) -> None:
    finding = found({"CALLGAUGE_GOALS__FOLDER": str(tmp_path / "none")})["goals"]
    assert finding.verdict is Verdict.WRONG
    assert str(tmp_path / "none") in finding.seen
    assert "The evaluator would not start" in finding.seen


def test_broken_doubled_and_missing_goals_are_warnings(tmp_path: Path) -> None:
    environment = goals_in(tmp_path)
    assert found(environment)["goals"].seen == f"no goal file in {tmp_path}"
    goals_in(tmp_path, one=CODED)
    assert (found(environment)["goals"].verdict, found(environment)["goals"].seen) == (
        Verdict.OK, f"1 goal set in {tmp_path}",
    )  # fmt: skip
    goals_in(tmp_path, same=CODED)
    assert found(environment)["goals"].verdict is Verdict.WARNING
    goals_in(tmp_path, same="id: [")
    finding = found(environment)["goals"]
    assert finding.verdict is Verdict.WARNING
    assert f"broken and not used: {tmp_path / 'same.yaml'}" in finding.seen
    assert "callgauge goals check" in finding.what_to_do


def test_a_judge_that_is_waited_for_and_off_is_a_warning(tmp_path: Path) -> None:
    judged = goals_in(tmp_path, one=JUDGED)
    assert found(judged)["judge"].seen == "1 subgoal can only be judged by a model, and it has no key"
    assert found({"CALLGAUGE_GOALS__ASKS_JUDGE": "true"})["judge"].verdict is Verdict.WARNING
    off = judged | KEY | {"CALLGAUGE_JUDGE__ENABLED": "false"}
    assert found(off)["judge"].what_to_do == "Set judge.enabled=true."
    assert found(judged | KEY)["judge"] == Finding("judge", Verdict.OK, "on: gpt-4.1 at https://api.openai.com/v1")


def test_a_port_that_another_program_holds_is_a_warning() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        finding = metrics_finding(Settings(http_port=taken.getsockname()[1]))
    assert finding.verdict is Verdict.WARNING
    assert "could not start here" in finding.seen


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (Answer(200, b"# TYPE callgauge_build_info gauge"), Verdict.OK),
        (Answer(401, b"", {"WWW-Authenticate": "Bearer"}), Verdict.OK),
        (Answer(200, b"hello"), Verdict.WARNING),
    ],
)
def test_a_callgauge_that_runs_already_is_recognised(answer: Answer, verdict: Verdict) -> None:
    with answering(lambda _request: answer) as address:
        finding = metrics_finding(Settings(http_port=int(address.rpartition(":")[2].strip("/"))))
    assert finding.verdict is verdict


def test_records_that_were_refused_lately_are_a_warning() -> None:
    one, two = TopicPartition("quarantine", 0), TopicPartition("quarantine", 1)
    bounds = {one: LogBounds(10, 40), two: LogBounds(0, 5)}
    calm = quarantine_finding(bounds, {one: None, two: None})
    assert (calm.verdict, calm.seen) == (Verdict.OK, "nothing refused in the last hour, 35 kept in all")
    lately = quarantine_finding(bounds, {one: 38, two: None})
    assert (lately.verdict, lately.seen) == (Verdict.WARNING, "2 records refused in the last hour, 35 kept in all")
