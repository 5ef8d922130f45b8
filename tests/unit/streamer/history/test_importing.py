"""Recorded calls in history: the rows are those of the role, and a call that is there is replaced
only on request.
"""

from collections.abc import Iterable
from pathlib import Path

import pytest

from consumers.history.search import CallSearch
from consumers.history.sqlite import HistoryFolderError, SqliteHistory
from streamer.history import importing
from streamer.history.importing import Importing
from tests.unit.history.test_store import NOON_MS, TRANSCRIPT, call, stored
from tests.unit.history.test_store import batch as batch_of
from tests.unit.streamer.cli.test_app import write_calls
from tests.unit.streamer.command_line import Ended, command

EVER = CallSearch(0, 2**53)


@pytest.fixture
def store(tmp_path: Path) -> Iterable[SqliteHistory]:
    there = SqliteHistory(tmp_path / "history", writes=True)
    yield there
    there.close()


def test_rows_are_those_of_the_role(store: SqliteHistory, tmp_path: Path) -> None:
    taking = Importing(store)
    for name in "ab":
        taking.add((call(name), TRANSCRIPT))
    taking.flush()
    role = SqliteHistory(tmp_path / "role", writes=True)
    role.write(batch_of([*call("a"), *call("b")], a=TRANSCRIPT, b=TRANSCRIPT))
    assert store.find(EVER) == role.find(EVER)
    for name in "ab":
        assert store.call(name) == role.call(name) == stored(call(name))
        assert store.transcript(name) == TRANSCRIPT
    role.close()
    assert (taking.written, taking.there, taking.first_ms) == (2, 0, NOON_MS)


def test_a_call_that_is_there_stays_unless_it_is_to_be_replaced(store: SqliteHistory) -> None:
    store.write(batch_of(call("c"), c=TRANSCRIPT))
    kept = Importing(store)
    kept.add((call("c", agent="other"), None))
    kept.flush()
    assert (kept.written, kept.there) == (0, 1)
    assert [row["labels.agent"] for row in store.find(EVER)] == ["desk"]
    replacing = Importing(store, replaces=True)
    replacing.add((call("c", agent="other"), None))
    replacing.add((call("c", agent="last"), None))
    replacing.flush()
    assert [row["labels.agent"] for row in store.find(EVER)] == ["last"]
    assert store.transcript("c") is None


def test_many_calls_are_written_in_parts(
    store: SqliteHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "BATCH_ROWS", len(call("c")) + 1)
    taking = Importing(store)
    for number in range(3):
        taking.add((call(f"c{number}"), None))
    assert taking.written == 2
    taking.flush()
    assert len(store.find(EVER)) == 3


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> Ended:
    return command(monkeypatch, capsys, "history", "import")(*arguments)


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = write_calls(tmp_path / "calls.jsonl", 1, 2)
    folder = tmp_path / "history"
    ended = run(monkeypatch, capsys, tmp_path / "calls.jsonl", "--folder", folder, "--processes", 1)
    assert ended.code == 0
    assert "2 calls brought into" in ended.err
    reader = SqliteHistory(folder)
    assert {row["conversation_id"] for row in reader.find(EVER)} == set(names)
    for name in names:
        kept = reader.call(name)
        assert kept is not None
        assert kept.call.state == "closed"
        assert kept.turns
        assert reader.transcript(name) is not None
    again = run(monkeypatch, capsys, tmp_path / "calls.jsonl", "--folder", folder, "--processes", 1)
    assert "0 calls brought into" in again.err
    assert "2 that it had already stay" in again.err
    reader.close()


def test_a_folder_that_the_role_writes_is_refused(
    store: SqliteHistory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run(monkeypatch, capsys, "sample", "--folder", store.folder)
    assert ended.code != 0
    assert "another process writes" in ended.err


def test_a_damaged_line_is_named_and_the_others_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_calls(tmp_path / "calls.jsonl", 1)
    with (tmp_path / "calls.jsonl").open("a") as file:
        file.write("{broken\n")
    ended = run(
        monkeypatch, capsys, tmp_path / "calls.jsonl", "--folder", tmp_path / "h", "--processes", 1
    )
    assert ended.code == 1
    assert "1 call brought into" in ended.err


def test_a_removed_call_leaves_nothing(store: SqliteHistory) -> None:
    store.write(batch_of([*call("gone"), *call("stays")], gone=TRANSCRIPT, stays=TRANSCRIPT))
    assert store.remove(["gone", "nobody"]) == 1
    assert (store.call("gone"), store.transcript("gone")) == (None, None)
    assert [row["conversation_id"] for row in store.find(EVER._replace(words=["rebooking"]))] == [
        "stays"
    ]
    assert store.call("stays") == stored(call("stays"))
    with pytest.raises(HistoryFolderError):
        SqliteHistory(store.folder, writes=True)
