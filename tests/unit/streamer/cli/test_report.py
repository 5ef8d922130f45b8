"""`callgauge report` writes recorded calls as one page, and explains each failure in a sentence."""

import gzip
import os
from pathlib import Path

import pytest

from streamer.cli import report as cli_report
from streamer.recordings.files import RecordedCall
from tests.support.calls.report_calls import goal_set, recorded, wire_line
from tests.support.fakes.scripted_openai import grades, scripted_openai
from tests.unit.streamer.command_line import Command, command


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command(monkeypatch, capsys, "report")


def write(path: Path, *calls: RecordedCall) -> Path:
    path.write_bytes(gzip.compress("".join(map(wire_line, calls)).encode()))
    return path


def test_one_call_is_one_page(report: Command, tmp_path: Path) -> None:
    calls, html = write(tmp_path / "calls.jsonl.gz", recorded()), tmp_path / "report.html"
    ended = report(calls, "-o", html)
    assert (ended.code, ended.out) == (0, "")
    page = html.read_text()
    assert ended.err.splitlines()[-1] == f"Report of 1 call, {html.stat().st_size:,} bytes: {html}"
    assert page.startswith("<!doctype html>")
    assert "<h1>Call report</h1>" in page
    assert "No goals: no goal set names this agent" in page
    assert '<nav aria-labelledby="calls">' not in page
    assert {path.name for path in tmp_path.iterdir()} == {"calls.jsonl.gz", "report.html"}
    report(calls, "-o", html)
    assert html.read_text() == page, "the same calls give the same page"


def test_several_calls_have_an_index_and_too_many_are_left_out_and_counted(
    report: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_report, "MOST_CALLS", 3)
    calls = write(
        tmp_path / "calls.jsonl.gz",
        *(recorded(conversation_id=f"call {number}") for number in range(5)),
    )
    html = tmp_path / "report.html"
    assert report(calls, "-o", html).code == 0
    page = html.read_text()
    assert page.count("<article ") == 3
    for number in range(3):
        assert f'<a href="#c{number + 1}">call {number}</a>' in page
        assert f"Call call {number}</h2>" in page
    assert "2 further calls left out: a page has 3 at most." in page


def test_scores_are_no_recording(report: Command, tmp_path: Path) -> None:
    html, one, many = tmp_path / "report.html", tmp_path / "call.json", tmp_path / "scores.jsonl"
    one.write_text(
        '{"conversation_id": "c", "records": [], "transcript": [{"role": "agent", "message": '
        '"hello"}]}'
    )
    many.write_text('{"row": "call", "conversation_id": "c", "revision": 2, "state": "closed"}\n')
    for path, remedy in ((one, "callgauge report --from-topics ID"), (many, "callgauge trials")):
        ended = report(path, "-o", html)
        assert (ended.code, html.exists()) == (1, False)
        assert f"{path.name}{':1' if path == many else ''}: these are" in ended.err
        assert remedy in ended.err


def test_live_calls_and_recordings_are_not_mixed(report: Command) -> None:
    for wrong, why in (
        (["sample", "--from-topics", "call"], "leave the paths out"),
        ([], "Name recordings"),
        (["sample", "--since", "1d"], "are for --from-topics"),
        (["--from-topics", "call", "--agent", "desk"], "scored already"),
    ):
        ended = report(*wrong)
        assert (ended.code, why in " ".join(ended.err.replace("│", " ").split())) == (2, True), (
            wrong
        )


def test_progress_needs_goals(report: Command, tmp_path: Path) -> None:
    calls, html = write(tmp_path / "calls.jsonl.gz", recorded()), tmp_path / "report.html"
    goals = tmp_path / "goals.json"
    goals.write_text(goal_set("desk").model_dump_json(exclude_defaults=True))
    assert report(calls, "-o", html, "--goals", goals).code == 0
    assert "Reached 1 of 2" in html.read_text()


def test_a_judge_says_what_code_cannot(
    report: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, html = write(tmp_path / "calls.jsonl.gz", recorded(turns=1)), tmp_path / "report.html"
    goals = tmp_path / "goals.json"
    goals.write_text(
        '{"id": "g", "subgoals": [{"id": "glad", "details": "It is.", "check": {"kind": "judge"}}]}'
    )
    report(calls, "-o", html, "--goals", goals)
    assert "Unscored: judge disabled" in html.read_text()
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setenv("CALLGAUGE_GOALS__TRIALS", "1")
    with scripted_openai(lambda _: grades("C")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert report(calls, "-o", html, "--goals", goals, "--judge", "on").code == 0
    assert "by a judge, votes 1 for and 0 against" in html.read_text()


def test_personal_data_is_taken_out(report: Command, tmp_path: Path) -> None:
    call = recorded("write to jane.doe@example.com", name="send")
    html = tmp_path / "report.html"
    assert report(write(tmp_path / "calls.jsonl.gz", call), "-o", html).code == 0
    page = html.read_text()
    assert "write to [EMAIL]" in page
    assert "jane" not in page


def test_a_place_that_cannot_be_written_is_told_before_anything_is_read(
    report: Command, tmp_path: Path
) -> None:
    missing = tmp_path / "calls.jsonl.gz"
    for html, why in (
        (tmp_path, "it is a folder"),
        (tmp_path / "no" / "a.html", "there is no folder"),
    ):
        ended = report(missing, "-o", html)
        assert ended.code == 1
        assert f"{html}: this file cannot be written: {why}" in ended.err
        assert "Traceback" not in ended.err


def test_a_broken_recording_leaves_the_old_page(report: Command, tmp_path: Path) -> None:
    html, broken = tmp_path / "report.html", tmp_path / "calls.jsonl"
    html.write_text("old")
    broken.write_text("{\n")
    ended = report(broken, "-o", html)
    assert ended.code == 1
    assert f"{broken}:1: this is not JSON" in ended.err
    assert html.read_text() == "old"


def test_a_page_that_cannot_be_put_in_place_leaves_nothing(
    report: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, html = write(tmp_path / "calls.jsonl.gz", recorded()), tmp_path / "report.html"

    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "replace", full)
    ended = report(calls, "-o", html)
    assert ended.code == 1
    assert "No space left on device" in ended.err
    assert {path.name for path in tmp_path.iterdir()} == {"calls.jsonl.gz"}


def test_a_page_without_a_name_is_written_here(
    report: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert report("sample").code == 0
    assert "sample-call" in (tmp_path / "callgauge-report.html").read_text()
    assert report("sample", "--output", "other.html").code == 0
    assert (tmp_path / "other.html").is_file()
