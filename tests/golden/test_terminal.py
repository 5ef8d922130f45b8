"""What people read on a terminal, at 80 columns and at 140, letter by letter: no line is longer,
and no id and no word is broken.

A change that is meant to change it runs `python -m tests.golden.test_terminal`, which writes the
files anew.
"""

import contextlib
import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from consumers.engine.redaction.redactor import Redactor
from consumers.store.rows import StoredCall
from streamer import terminal
from streamer.cli import main as cli
from streamer.fitting import FittedColumn, fitted
from streamer.live_calls import plain_table
from streamer.offline.scoring import plan_from, scored
from streamer.one_call import FoundCall, print_call
from streamer.recordings.files import SAMPLE
from streamer.recordings.reader import goals_for, read_recordings
from streamer.settings.all_settings import Settings
from streamer.terminal import Screen, print_wrapped
from tests.support.calls.made_rows import NOW_MS
from tests.support.calls.rows_of_calls import newest
from tests.unit.streamer.test_live_calls import MIXED, PLACE, silent, watched

FILES: Final = Path(__file__).with_name("terminal")
WIDTHS: Final = (80, 140)


def _run(*words: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["callgauge", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert not ended.value.code


def _scored(_width: int) -> None:
    _run("score", "sample", "--format", "table")


def _found(_width: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.redirect_stderr(io.StringIO()):
            _run("history", "import", str(SAMPLE), "--folder", folder)
        _run("history", "find", "--folder", folder, "--since", "2000-01-01")


def _one_call(_width: int) -> None:
    (sample,) = read_recordings(SAMPLE)
    scoring = scored(sample, plan_from(Settings(), goals_for([SAMPLE], None)))
    row, turns, goals = newest(scoring.rows)
    stored = StoredCall(row, tuple(turns), goals, tuple(scoring.words))
    print_call(FoundCall(stored, Redactor(), remarks=["The topics do not have all of it."]), set())


def _running(width: int) -> None:
    calls = watched(*MIXED, silent("a-call-with-a-long-id-3f9c41"))
    terminal.output_console().print(plain_table(calls, PLACE, NOW_MS, width))


PRINTED: Final[dict[str, Callable[[int], None]]] = {
    "score": _scored,
    "find": _found,
    "call": _one_call,
    "top": _running,
}


def printed(name: str, width: int) -> str:
    """What a command prints on a terminal of so many columns."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as empty:
        patch.chdir(empty)
        patch.setattr(terminal, "output_console", lambda: _terminal(width))
        with contextlib.redirect_stdout(io.StringIO()) as out:
            PRINTED[name](width)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _terminal(width: int) -> Screen:
    return Screen(width=width, force_terminal=True, color_system=None)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PRINTED)
def test_a_terminal_shows_what_it_did(name: str, width: int) -> None:
    text = printed(name, width)
    assert text == (FILES / f"{name}-{width}.txt").read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [40, 80, 140])
def test_ids_stay_whole_and_columns_leave_in_their_order(width: int) -> None:
    call = "0193f8a2-7f4e-7c31-9d7c-1b2a3c4d5e6f"
    columns = [
        FittedColumn("call", [call]),
        FittedColumn("agent", ["an-agent-with-a-very-long-name" * 2], is_cut=True, leaves=3),
        FittedColumn("turns", ["7"], leaves=2, is_number=True),
        FittedColumn("wait", ["1.00 s"], leaves=1, is_number=True),
    ]
    out = io.StringIO()
    Screen(file=out, width=width).print(fitted(columns, width))
    heads, line = (each.rstrip() for each in out.getvalue().splitlines())
    assert call in line
    assert max(len(heads), len(line)) <= width
    assert (
        heads.split()
        == {
            40: ["call"],
            80: ["call", "agent", "turns", "wait"],
            140: ["call", "agent", "turns", "wait"],
        }[width]
    )
    assert ("\u2026" in line) is (width == 80)


def test_a_file_has_each_line_whole(capsys: pytest.CaptureFixture[str]) -> None:
    line = "  " + "word " * 100
    print_wrapped(line)
    assert capsys.readouterr().out == f"{line}\n"


if __name__ == "__main__":
    for each in PRINTED:
        for columns in WIDTHS:
            (FILES / f"{each}-{columns}.txt").write_text(printed(each, columns), encoding="utf-8")
