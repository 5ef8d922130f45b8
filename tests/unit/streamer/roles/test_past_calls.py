"""Past calls as the pages of the console ask for them."""

from pathlib import Path

import pytest

from consumers.history.settings import HistorySettings
from consumers.history.sqlite import SqliteHistory
from consumers.runtime.process import SetupError
from streamer.roles.past_calls import StoredCalls
from tests.unit.history.test_store import TRANSCRIPT, batch, call, stored


def test_the_page_of_past_calls_finds_them_in_the_folder(tmp_path: Path) -> None:
    writer = SqliteHistory(tmp_path, writes=True)
    writer.write(batch(call("c"), c=TRANSCRIPT))
    writer.close()
    past = StoredCalls(HistorySettings(folder=tmp_path))
    rows, has_more = past.find("2000-01-01", "desk", "turns > 1", "")
    assert [row["conversation_id"] for row in rows] == ["c"]
    assert not has_more
    assert past.find("2000-01-01", "care", "", "") == ([], False)
    assert past.call("c") == stored(call("c"))
    first_ms = int(str(rows[0]["first_known_ms"]))
    then = past.call("c", first_ms + 5)
    assert then is not None
    assert then.call.state == "running"
    assert past.call("d") is None
    for since in ("yesterday", "9" * 5_000, "9999-12-31T23:59:59-23:59x"):
        with pytest.raises(SetupError, match=r"is no moment"):
            past.find(since, "", "", "")
    assert past.annotations_of("c") == ()
    writer = SqliteHistory(tmp_path, writes=True)
    writer.forget(["c"])
    writer.close()
    assert (past.annotations_of("c"), past.call("c")) == (None, None)


def test_one_call_is_compared_with_the_median_of_its_agent(tmp_path: Path) -> None:
    writer = SqliteHistory(tmp_path, writes=True)
    writer.write(batch([*call("c"), *call("d"), *call("e", agent="care")]))
    writer.close()
    past = StoredCalls(HistorySettings(folder=tmp_path))
    (first, values), (name, medians) = past.compared(["c"])
    assert (first, name) == ("c", "median of desk, 2 calls of a day")
    assert medians["p95_ms"] == values["p95_ms"]
    assert "first_known_ms" not in medians
    assert [name for name, _ in past.compared(["c", "e", "none"])] == ["c", "e"]
