"""Measures of one's own on recorded calls: the command and the function give the same."""

import json
import shutil
from pathlib import Path

import pytest

from schemas.rows import encode
from streamer.notebook import score
from streamer.recordings import files as recordings
from tests.unit.streamer.command_line import Command


def test_score_prints_the_values_behind_the_rows(
    callgauge: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "import time\n"
        "from callgauge import NotMeasured, measure\n\n"
        "@measure\ndef words_of_answer(turn, words):\n    return len(words.assistant.split()) if "
        "words else NotMeasured('none')\n\n"
        "@measure\ndef tools(call, turns, context):\n    return len(context.tools_called) + "
        "len(turns)\n\n"
        "@measure\ndef raises(call):\n    raise KeyError('x')\n\n"
        "@measure\ndef sleeps(call):\n    time.sleep(30)\n"
    )
    plain = callgauge("score", "sample").out.splitlines()
    monkeypatch.setenv("CALLGAUGE_MEASURES__FOLDER", str(tmp_path))
    monkeypatch.setenv("CALLGAUGE_MEASURES__SECONDS", "0.2")
    lines = callgauge("score", "sample").out.splitlines()
    assert lines[: len(plain)] == plain
    own = [json.loads(line) for line in lines[len(plain) :]]
    assert [each["value"] for each in own if each["measure"] == "words_of_answer"][:2] == [
        16.0,
        19.0,
    ]
    others = {
        each["measure"]: each.get("value", each.get("reason")) for each in own if "turn" not in each
    }
    assert others == {
        "tools": 12.0,
        "raises": "it raised KeyError: 'x'",
        "sleeps": "it took more than 0.2 s",
    }
    (call,) = score("sample")
    assert [encode(row).decode() for row in call.own] == lines[len(plain) :]


def test_a_file_of_rows_is_compared_whatever_values_are_in_it(
    callgauge: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, with_values = tmp_path / "plain.jsonl", tmp_path / "own.jsonl"
    plain.write_text(callgauge("score", "sample").out)
    (tmp_path / "mine.py").write_text(
        "from callgauge import measure\n\n@measure\ndef one(call):\n    return 1\n"
    )
    monkeypatch.setenv("CALLGAUGE_MEASURES__FOLDER", str(tmp_path))
    with_values.write_text(callgauge("score", "sample").out)
    assert '"measure":"one"' in with_values.read_text()
    compared, expected = (callgauge("trials", str(path)) for path in (with_values, plain))
    assert (compared.out, compared.err) == (expected.out, expected.err)


def test_tables_reports_and_comparisons_have_the_values(
    callgauge: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "from callgauge import measure\n\n"
        "@measure\ndef turns_of_call(call, turns):\n    return len(turns)\n\n"
        "@measure\ndef mood(turn):\n    return 'calm'\n"
    )
    monkeypatch.setenv("CALLGAUGE_MEASURES__FOLDER", str(tmp_path))
    head, *lines = callgauge("score", "sample", "--csv", "--rows", "own").out.splitlines()
    assert head.startswith("conversation_id,measure,turn,")
    assert head.endswith(",value,label,reason")
    (of_call,) = (line for line in lines if ",turns_of_call," in line)
    (call,) = score("sample")
    assert of_call.endswith(f",{len(call.turns)}.0,,")
    assert sum(line.endswith(",,calm,") for line in lines) == len(call.turns)
    page = tmp_path / "report.html"
    callgauge("report", "sample", "-o", str(page))
    assert "Turns of call" in page.read_text()
    sample = Path(recordings.__file__).parent / "sample"
    lots = [tmp_path / name for name in ("before.jsonl", "after.jsonl")]
    for lot in lots:
        shutil.copy(sample / "call.jsonl", lot)
    goals = str(sample / "goals.yaml")
    compared = callgauge("trials", "--compare", *map(str, lots), "--goals", goals, "--json")
    assert json.loads(compared.out)["measures"]["turns_of_call"]["before"] == len(call.turns)
