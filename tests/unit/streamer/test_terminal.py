"""No text of others controls a terminal: every command, on calls whose every text is hostile,
writes nothing but visible text.
"""

import io
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import structlog
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.logs import configure_logging
from consumers.view.calls import ReportedCall
from schemas.rows import CallRow, Labels, ToolUse, ToolWords, TurnRow, WordsRow, decode, encode
from streamer.doctor.examination import finding_line
from streamer.doctor.findings import Finding, Verdict
from streamer.live_calls import CallsOnScreen, calls_document, live_screen, plain_table
from streamer.one_call import call_lines
from streamer.recordings.reader import read_recordings
from streamer.terminal import Screen, print_document, print_line, say
from tests.unit.streamer.cli.test_score import call, write_calls
from tests.unit.streamer.command_line import command

HOSTILE = "x\x1b]0;pwn\x07\x1b[2J\x1b[31m\x9b31m\x9d0;pwn\x9c\u202e\u2066\u200b\ufeff\u061c\r\u2028\x85\U000e0041[blink]"
FORGED = f"{HOSTILE}\nFORGED"
UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u061c\u2028-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)


def assert_harmless(text: str) -> None:
    assert UNSEEN.findall(text) == []
    assert [line for line in text.splitlines() if line.startswith("FORGED")] == []


def hostile_calls(folder: Path) -> Path:
    labels: Any = {"agent": FORGED, "tenant": FORGED, "environment": FORGED, "goals": FORGED}
    made = call("hostile", f"please {FORGED}", f"book {FORGED}", **labels)
    for event in made["audit"]:
        if isinstance(event["value"], dict):
            event["value"] = {**event["value"], "tool": FORGED, FORGED: FORGED}
    made["pipecat"].append({"type": FORGED, "timestamp": 1, FORGED: FORGED})
    made["control"][-1]["reason"] = FORGED
    return write_calls(folder / "call\x1b[31m\u202e\nFORGED.jsonl", made)


@pytest.mark.parametrize(
    "words",
    [
        "score CALL",
        "score CALL --all",
        "score CALL --format table",
        "score CALL --format table --goals GOALS",
        "transcript CALL",
        "context CALL",
        "trials CALL --goals GOALS",
        "trials CALL --goals GOALS --json",
        "report CALL --output PAGE",
        "goals check GOALS",
        "goals check GOALS --call CALL",
        "goals check CALL",
        "events check EVENTS",
        "events check EVENTS --json",
        "score CALL.missing",
        "transcript CALL --folder CALL",
        "score CALL --agent AGENT --config CALL",
        "topics",
        "settings",
    ],
)
def test_a_command_writes_visible_text(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = hostile_calls(tmp_path)
    goals = tmp_path / "goals\x1b[2J.yaml"
    check = {"kind": "says", "speaker": "assistant", "pattern": "said"}
    sets = {
        "id": HOSTILE,
        "agents": ["*"],
        "subgoals": [{"id": HOSTILE, "details": FORGED, "check": check}],
    }
    goals.write_text(json.dumps(sets))
    events = tmp_path / "events\x1b[2J.jsonl"
    events.write_text(
        "".join(json.dumps(event) + "\n" for event in json.loads(path.read_text())["control"])
        + FORGED
    )
    names = {
        "CALL": str(path),
        "GOALS": str(goals),
        "EVENTS": str(events),
        "PAGE": str(tmp_path / "p.html"),
        "AGENT": HOSTILE,
    }
    arguments = [
        re.sub(r"CALL|GOALS|EVENTS|PAGE|AGENT", lambda found: names[found.group()], word)
        for word in words.split()
    ]
    ended = command(monkeypatch, capsys)(*arguments)
    assert ended.out or ended.err
    assert "No such option" not in ended.err
    assert_harmless(ended.out)
    assert_harmless(ended.err)
    if (page := tmp_path / "p.html").exists():
        assert UNSEEN.findall(page.read_text()) == []


def test_what_a_program_reads_is_what_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = f"please{HOSTILE}".replace("\r\u2028\x85", "")
    ended = command(monkeypatch, capsys)(
        "transcript", write_calls(tmp_path / "c.jsonl", call("a", said))
    )
    assert said in [turn["message"] for turn in ended.lines[0]]
    print_document({"said": FORGED, "key": "ключ"})
    out = capsys.readouterr().out
    assert json.loads(out) == {"said": FORGED, "key": "ключ"}
    assert "ключ" in out


def shown(renderable: RenderableType, width: int) -> str:
    console = Screen(file=io.StringIO(), width=width)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 150, 1_000])
def test_live_calls_and_findings_are_visible_text(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = command(monkeypatch, capsys)("score", hostile_calls(tmp_path), "--all").lines
    rows = [
        decode(json.dumps({**line, "conversation_id": f"{FORGED}\x1b"}).encode())
        for line in printed
    ]
    watched = CallsOnScreen(0)
    for row in rows:
        watched.read_record(encode(row))
    assert (list(watched.totals.ends), watched.unreadable) == ([FORGED], 0)
    now_ms = max(row.known_ms for row in rows if isinstance(row, CallRow))
    assert_harmless(shown(live_screen(watched, FORGED, now_ms, width=width, height=60), width))
    assert_harmless(shown(plain_table(watched, FORGED, now_ms), width))
    print_document(calls_document(watched, now_ms))
    row = CallRow(
        conversation_id=FORGED,
        labels=Labels(FORGED, FORGED, FORGED, FORGED),
        ended_reason=FORGED,
        state="closed",
    )
    turn = TurnRow(conversation_id=FORGED, turn=1, tools=(ToolUse(0, FORGED),))
    words = WordsRow(
        conversation_id=FORGED,
        turn=1,
        user=FORGED,
        assistant=FORGED,
        tools=(ToolWords(0, FORGED, FORGED, FORGED),),
    )
    for text in call_lines(ReportedCall(row, [turn], None, [words], FORGED, Redactor()), [FORGED]):
        print_line(text)
    assert_harmless(capsys.readouterr().out)
    assert_harmless(shown(finding_line(Finding(FORGED, Verdict.WRONG, FORGED, FORGED)), width))


def test_a_text_has_neither_markup_nor_more_lines_than_it_was_given() -> None:
    table = Table(box=None)
    table.add_column("id", no_wrap=True)
    table.add_row("v-1\u200b[link=https://example.org]x")
    table.add_row(":smile:\nFORGED")
    lines = [line.strip() for line in shown(table, 100).splitlines()]
    assert lines == ["id", r"v-1\u200b[link=https://example.org]x", r":smile:\nFORGED"]
    assert shown(Text("ours\nand the second\x1b"), 100) == "ours\nand the second\\x1b\n"


def test_only_an_indented_line_continues_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    say("It failed:\n  expected a, saw \x1b\nFORGED")
    assert capsys.readouterr().err == "It failed:\n  expected a, saw \\x1b\\nFORGED\n"


def test_a_log_line_for_people_is_visible_text() -> None:
    output = io.StringIO()
    configure_logging("console", stream=output)
    log = structlog.get_logger()
    log.warning("record_quarantined", conversation_id=FORGED, keys=[FORGED])
    logging.getLogger("aiokafka").error("refused %s", FORGED)
    log.error("role_failed", exc_info=ValueError(FORGED))
    assert output.getvalue().count("pwn") == 8
    assert UNSEEN.findall(output.getvalue()) == []
    assert "FORGED" not in {line[:6] for line in output.getvalue().splitlines()[:2]}


def test_the_hostile_call_is_read(tmp_path: Path) -> None:
    assert [each.conversation_id for each in read_recordings(hostile_calls(tmp_path))] == [
        "hostile"
    ]
