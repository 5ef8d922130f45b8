"""What `history find` prints: lines that fit, whole ids, and where calls are that lie outside the
time that was asked for.
"""

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from consumers.history.search import COLUMNS, Condition
from consumers.history.sqlite import SqliteHistory
from consumers.runtime.process import SetupError
from schemas.columns import CALL_COLUMNS, flat
from schemas.rows import CallRow, WordsRow
from streamer.history.finding import SNIPPET_CHARS, _said_in, calls_table
from streamer.recordings.files import SAMPLE
from tests.unit.history.test_store import NOON_MS, TRANSCRIPT, batch, call
from tests.unit.streamer.command_line import command


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize(
    "name", ["c", "call-9f2c41", "conv_3c4b5a6978d84e1f", "0193f8a2-7f4e-7c31"]
)
def test_a_line_for_each_call_with_its_whole_id(width: int, name: str) -> None:
    (row,) = [
        each
        for each in call(name, NOON_MS, agent="an-agent-with-a-very-long-name")
        if isinstance(each, CallRow)
    ][-1:]
    rows = [dict(zip(COLUMNS, flat(CALL_COLUMNS, row), strict=True))] * 3
    out = StringIO()
    Console(file=out, width=width).print(calls_table(rows, {}, width))
    lines = out.getvalue().splitlines()
    assert len(lines) == 4
    assert all(len(line) <= width and name in line for line in lines[1:])


def test_calls_outside_the_time_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = command(monkeypatch, capsys, "history")
    assert run("import", SAMPLE, "--folder", tmp_path).code == 0
    for options in ((), ("--json",)):
        ended = run("find", "--folder", tmp_path, *options)
        assert ended.out == ("[]\n" if options else "")
        assert "At other times 1 call is, but began on " in ended.err
    since, until = (ended.err.split(f"--{name} ")[1].split()[0] for name in ("since", "until"))
    (row,) = json.loads(
        run("find", "--folder", tmp_path, "--since", since, "--until", until, "--json").out
    )
    assert row["conversation_id"] == "sample-call"
    nothing = run("find", "--folder", tmp_path, "--agent", "nobody")
    assert "At other times" not in nothing.err
    assert "At other times" not in run("find", "--folder", tmp_path, "--since", since).err


def test_an_empty_history_has_no_other_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    SqliteHistory(tmp_path, writes=True).close()
    assert command(monkeypatch, capsys, "history")("find", "--folder", tmp_path).err.endswith(
        "is like that. There is no call in it yet.\n"
    )


def test_words_that_were_found_are_told_with_who_said_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = SqliteHistory(tmp_path, writes=True)
    writer.write(batch(call("c", NOON_MS), c=TRANSCRIPT))
    writer.close()
    run = command(monkeypatch, capsys, "history")
    find = ("find", "--folder", tmp_path, "--since", "2000-01-01")
    words = next(row for row in call("c", NOON_MS) if isinstance(row, WordsRow) and row.user)
    sought = max(words.user.split(), key=len).strip(".,?!")
    said = run(*find, "--text", sought).out.splitlines()[-1]
    assert re.match(r"c, turn \d+, (caller|agent): ", said)
    assert sought.casefold() in said.casefold()
    assert ", turn " not in run(*find).out
    assert ", turn " not in run(*find, "--text", sought, "--csv").out


def test_a_quote_goes_from_word_to_word() -> None:
    text = " ".join(f"word{number}" for number in range(100))
    rows = [WordsRow(conversation_id="c", turn=2, user=text, assistant="yes")]
    turn, who, last = _said_in(rows, []) or (0, "", "")
    assert (turn, who) == (2, "caller")
    assert last.startswith("\u2026 word")
    assert last.endswith("word99")
    _, _, found = _said_in(rows, ["word50"]) or (0, "", "")
    assert re.fullmatch(r"\u2026 (word\d\d )+\u2026", found)
    assert "word50" in found
    assert max(len(last), len(found)) <= SNIPPET_CHARS + len("\u2026 " * 2)
    assert _said_in([WordsRow(conversation_id="c", turn=1, user="x" * 500)], [])
    assert _said_in([], []) is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("p99_ms", "p95_ms"),
        ("agents", "labels.agent"),
        ("longest", "longest_wait_ms"),
        ("unansered", "unanswered"),
        ("outcom", "outcome"),
    ],
)
def test_a_wrong_column_names_the_nearest_and_where_all_are(name: str, meant: str) -> None:
    with pytest.raises(SetupError) as error:
        Condition.parse(f"{name} = 1")
    assert meant in str(error.value)
    assert "docs/tables.md lists all" in str(error.value)
    assert len(str(error.value)) < 300
