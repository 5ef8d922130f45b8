"""The store of rows: newest and former revisions of calls, bounds, places to read on from."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from consumers.store.rows import RowStore
from schemas.rows import CallRow, GoalsRow, TurnRow, WordsRow
from tests.support.calls.rows_of_calls import newest, rows_of_simulated
from tests.support.known import some


def call_row(conversation_id: str, revision: int, known_ms: int, **parts: Any) -> CallRow:
    return CallRow(conversation_id=conversation_id, revision=revision, known_ms=known_ms, **parts)


def test_the_newest_rows_of_a_call_are_those_of_the_engine() -> None:
    store, rows = RowStore(), rows_of_simulated(3, has_goals=True)
    store.put(rows)
    stored, (call, turns, goals) = store.call(rows[0].conversation_id), newest(rows)
    assert stored is not None
    assert (stored.call, list(stored.turns), stored.goals) == (call, turns, goals)


def test_a_call_is_seen_as_it_was_known_at_each_moment() -> None:
    store, rows = RowStore(), rows_of_simulated(3)
    store.put(rows)
    moments = sorted({row.known_ms for row in rows if not isinstance(row, GoalsRow)})
    for at_ms in moments:
        then = [row for row in rows if isinstance(row, GoalsRow) or row.known_ms <= at_ms]
        call, turns, _ = newest(then)
        stored = some(store.call(call.conversation_id, at_ms))
        assert (stored.call, list(stored.turns)) == (call, turns)
    assert store.call(rows[0].conversation_id, moments[0] - 1) is None


@pytest.mark.parametrize("left_out", [0, 1])
def test_reading_in_parts_twice_and_in_another_order_changes_nothing(left_out: int) -> None:
    """Also of a call that has not closed: the last row is its closed one."""
    rows = rows_of_simulated(5, has_goals=True)
    rows, once, twice = rows[: len(rows) - left_out], RowStore(), RowStore()
    once.put(rows)
    for part in (rows[::-1], rows[:9], rows[9:]):
        twice.put(part)
    conversation_id = rows[0].conversation_id
    assert (twice.call(conversation_id), twice.bytes) == (once.call(conversation_id), once.bytes)


def test_words_are_kept_beside_their_turns() -> None:
    store = RowStore()
    store.put(
        [
            call_row("a", 1, 1),
            WordsRow(conversation_id="a", turn=1, revision=4, known_ms=5, user="hello"),
        ]
    )
    store.put([WordsRow(conversation_id="a", turn=1, revision=2, known_ms=3, user="he")])
    stored = some(store.call("a"))
    assert [words.user for words in stored.words] == ["hello"]


def test_open_calls_are_those_without_a_closed_row() -> None:
    store = RowStore()
    store.put([call_row("a", 2, 20), call_row("b", 1, 10), call_row("c", 1, 5)])
    store.put(
        [
            call_row("c", 3, 30, state="closed"),
            TurnRow(conversation_id="d", turn=1, revision=1, known_ms=1),
        ]
    )
    store.put([call_row("c", 2, 29)])  # an older row comes later
    assert [row.conversation_id for row in store.open_calls()] == ["b", "a"]


def test_beyond_its_bytes_closed_calls_go_before_open_ones_and_the_quietest_first() -> None:
    store = RowStore()
    store.put(
        [
            call_row("aaaa", 10, 11),
            call_row("bbbb", 10, 19, state="closed"),
            call_row("cccc", 10, 10),
        ]
    )
    store.max_bytes = store.bytes
    store.put([call_row("dddd", 10, 20)])
    assert {row.conversation_id for row in store.open_calls()} == {"aaaa", "cccc", "dddd"}
    store.put([call_row("eeee", 10, 21)])
    assert {row.conversation_id for row in store.open_calls()} == {"aaaa", "dddd", "eeee"}
    assert store.forgotten == 2
    assert store.bytes <= store.max_bytes


def test_places_and_rows_are_kept_together(tmp_path: Path) -> None:
    store = RowStore(tmp_path / "rows.sqlite")
    store.put([call_row("a", 1, 1)], {("scores", 3): 17})
    no_place: Any = object()
    with pytest.raises(sqlite3.Error):
        store.put([call_row("b", 1, 1)], {("scores", 3): no_place})
    store.close()
    again = RowStore(tmp_path / "rows.sqlite")
    assert again.positions() == {("scores", 3): 17}
    assert again.call("b") is None
    assert again.bytes == store.bytes
