"""Tables for programs: the same values as the records, with kinds that hold, as CSV and
as Parquet.
"""

import builtins
import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from consumers.history.sqlite import SqliteHistory
from schemas.columns import TURN_COLUMNS, flat
from streamer.live_calls import print_rows
from streamer.notebook import score
from streamer.tables import (
    MAX_WAITING_ROWS,
    RUNNING_COLUMNS,
    TRIAL_COLUMNS,
    AnyColumn,
    Computed,
    csv_text,
    print_table,
    turn_rows,
)
from tests.support.calls.made_rows import NOW_MS
from tests.unit.streamer.command_line import Command
from tests.unit.streamer.test_live_calls import MIXED, watched

(SAMPLE,) = score("sample")
_KINDS = {"text": str, "integer": int, "real": float}
_ARROW = {"text": "string", "integer": "int64", "real": "double"}


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_line_of_a_turn_has_the_values_of_its_row(callgauge: Command) -> None:
    rows = {
        int(row["turn"]): row
        for row in read(callgauge("score", "sample", "--csv", "--rows", "turns").out)
    }
    assert list(rows) == [turn.turn for turn in SAMPLE.turns] == list(range(8))
    for turn in SAMPLE.turns:
        values = zip(TURN_COLUMNS, flat(TURN_COLUMNS, turn), strict=True)
        printed = {
            column.name: "" if value is None else " ".join(str(value).split())
            for column, value in values
        }
        assert rows[turn.turn] == printed
    assert rows[0]["wait_ms.reason"] or not rows[0]["wait_ms"]
    assert [int(row["tools"]) for row in rows.values()] == [
        len(turn.tools) for turn in SAMPLE.turns
    ]
    assert [number for number, row in rows.items() if row["interruptions"]] == [3]
    assert [number for number, row in rows.items() if row["dead_air"] != "0"] == [1]


def test_history_gives_the_rows_that_scoring_gives(callgauge: Command, tmp_path: Path) -> None:
    folder = tmp_path / "history"
    SqliteHistory(folder, writes=True).close()
    assert callgauge("history", "import", "sample", "--folder", folder).code == 0
    for rows in ("calls", "turns"):
        past = ("history", "find", "--folder", folder, "--since", "2026-01-01", "--rows", rows)
        scored = callgauge("score", "sample", "--csv", "--rows", rows).out
        assert len(scored.splitlines()) > 1
        more = {"calls": {"annotations": ""}, "turns": {}}[rows]
        assert read(callgauge(*past, "--csv").out) == [row | more for row in read(scored)]
        assert callgauge(*past, "--parquet", tmp_path / rows).code == 0
        assert parquet.read_table(tmp_path / rows).num_rows == len(read(scored))


def test_a_row_of_a_trial_says_what_was_reached_and_missed(callgauge: Command) -> None:
    (row,) = read(callgauge("trials", "sample", "--csv").out)
    assert (row["success"], row["success_unknown"], row["reached"], row["subgoals"]) == (
        "1.0",
        "",
        "6",
        "6",
    )
    assert (row["conversation_id"], row["missed"], row["failed_tools"]) == (
        "sample-call",
        "",
        "add_voucher",
    )


async def test_the_running_calls_come_as_top_has_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamer.live_calls.wall_clock_ms", lambda: NOW_MS + 500)
    calls = watched(*MIXED)
    calls.caught_up.set()
    await print_rows(None, calls, "")
    rows = read(capsys.readouterr().out)
    assert [row["conversation_id"] for row in rows] == ["second", "first", "fourth", "third"]
    assert [
        (row["trouble"], row["reasons"], row["answer.wait_ms"], row["state"]) for row in rows[:2]
    ] == [
        ("slow", "turn 1 slow: 2.0 s", "2000.0", "running"),
        ("", "", "900.0", "running"),
    ]


@pytest.mark.parametrize("columns", [RUNNING_COLUMNS, TRIAL_COLUMNS, TURN_COLUMNS])
def test_columns_have_names_of_their_own(columns: Sequence[AnyColumn]) -> None:
    assert len({column.name for column in columns}) == len(columns)


def test_parquet_has_the_kinds_of_the_columns_and_unknown_is_null(tmp_path: Path) -> None:
    place, rows = tmp_path / "turns.parquet", turn_rows(SAMPLE.turns)
    many = rows * (MAX_WAITING_ROWS // len(rows) + 1)
    print_table(TURN_COLUMNS, iter(many), place)
    table = parquet.read_table(place)
    assert [(field.name, str(field.type)) for field in table.schema] == [
        (column.name, _ARROW[column.kind]) for column in TURN_COLUMNS
    ]
    assert table.to_pylist() == [
        {column.name: value for column, value in zip(TURN_COLUMNS, row, strict=True)}
        for row in many
    ]
    assert all(
        isinstance(value, _KINDS[column.kind])
        for row in rows
        for column, value in zip(TURN_COLUMNS, row, strict=True)
        if value is not None
    )
    assert list(tmp_path.iterdir()) == [place]
    print_table(TURN_COLUMNS, (), place)
    assert parquet.read_table(place).num_rows == 0


def test_a_text_in_csv_is_one_line_and_no_formula() -> None:
    assert (
        csv_text([["=1+1", None, 0.5, "a\nb", 'say "x", y']]) == '\'=1+1,,0.5,a b,"say ""x"", y"\n'
    )


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_read(
    callgauge: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in (("score", "sample"), ("trials", "sample"), ("history", "find"), ("top",)):
        ended = callgauge(*command, "--parquet", tmp_path / "no" / "file")
        assert (ended.code, ended.out) == (1, "")
        assert f"there is no folder {tmp_path / 'no'}. Nothing was written" in ended.err
        assert "choose one" in " ".join(callgauge(*command, "--parquet", "x", "--csv").err.split())
    bring = builtins.__import__

    def without_arrow(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name="pyarrow")
        return bring(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_arrow)
    ended = callgauge("score", "sample", "--parquet", tmp_path / "file")
    assert (ended.code, ended.out, list(tmp_path.iterdir())) == (1, "", [])
    assert "--parquet needs a package that is not installed (pyarrow)" in ended.err


def test_a_table_that_broke_off_leaves_no_file(tmp_path: Path) -> None:
    def rows() -> Any:
        yield ("a",)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        print_table([Computed[str]("name", "text", "", str)], rows(), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []
