"""`callgauge transcript` writes each recorded call as one JSON array, on a line or in a file."""

import gzip
import json
import os
from pathlib import Path

import pytest

from tests.unit.streamer.cli.test_score import call, write_calls
from tests.unit.streamer.command_line import Command, command


@pytest.fixture
def transcript(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command(monkeypatch, capsys, "transcript")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_calls(tmp_path / "calls.jsonl", call("a", "hello", "book it"), call("b", "yes"))


def test_each_call_is_a_line(transcript: Command, path: Path) -> None:
    ended = transcript(path, "--agent", "desk")
    assert (ended.code, ended.err) == (0, "")
    first, second = ended.lines
    assert [turn["message"] for turn in second] == ["Welcome", "yes", "You said yes"]
    assert [turn["time_in_call_secs"] for turn in second] == [0, 2, 4]
    assert {turn["agent_metadata"]["agent_id"] for turn in first if turn["role"] == "agent"} == {
        "desk"
    }
    assert [use["tool_name"] for turn in first for use in turn["tool_results"]] == ["book"]


def test_what_is_read_first_changes_nothing(transcript: Command, path: Path) -> None:
    assert transcript(path, "--arrival", 7) == transcript(path)


def test_each_call_is_a_file(transcript: Command, path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    assert transcript(path, "--folder", folder) == (0, "", "")
    expected = transcript(path).lines
    assert [json.loads((folder / name).read_text()) for name in ("a.json", "b.json")] == expected
    assert transcript(path, "--folder", folder, "--gzip") == (0, "", "")
    assert json.loads(gzip.decompress((folder / "b.json.gz").read_bytes())) == expected[1]


def test_calls_of_one_id_are_told(transcript: Command, path: Path, tmp_path: Path) -> None:
    again = write_calls(tmp_path / "again.jsonl", call("a", "no"))
    folder = tmp_path / "made"
    ended = transcript(path, again, "--folder", folder)
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.startswith(
        "Call a: its transcript replaces that of an earlier call of the same id, in "
    )
    assert json.loads((folder / "a.json").read_text())[1]["message"] == "no"


def test_a_call_without_a_single_event_is_told(transcript: Command, tmp_path: Path) -> None:
    nothing = {"id": "empty", "audit": [], "pipecat": [], "user_sim": []}
    ended = transcript(write_calls(tmp_path / "calls.jsonl", nothing, call("b", "yes")))
    assert (ended.code, len(ended.lines)) == (0, 1)
    assert ended.err.startswith("Call empty: it has no transcript")


def test_packing_is_about_files(transcript: Command, path: Path) -> None:
    ended = transcript(path, "--gzip")
    assert (ended.code, ended.out) == (2, "")
    assert "give --folder too" in " ".join(ended.err.replace("│", " ").split())


def test_a_folder_that_cannot_be_used_is_told(transcript: Command, path: Path) -> None:
    ended = transcript(path, "--folder", path / "below")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(
        f"Transcripts: the folder {path / 'below'} cannot be written to (Not a directory)"
    )


def test_a_full_disk_ends_it_in_plain_words(
    transcript: Command, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    ended = transcript(path, "--folder", tmp_path / "made")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(
        f"Call a: its transcript could not be written to {tmp_path / 'made' / 'a.json'} (No space"
    )
    assert "Traceback" not in ended.err
